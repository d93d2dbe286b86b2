"""AdminComments as jobstats writes them, and where measured use of real clusters lies."""

from __future__ import annotations

import base64
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

USE = Path(os.environ.get("HELIOS_USE", Path(__file__).parents[2] / "shared" / "use"))

needs_use = pytest.mark.skipif(not USE.is_dir(), reason=f"measured use is not at {USE}; set HELIOS_USE to its folder")

GIB = 2**30


def comment(content: Any) -> str:
    """Return the AdminComment of a summary, or of any text or bytes in its place."""
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    packed = gzip.compress(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text, mtime=0)
    return f"JS1:{base64.b64encode(packed).decode()}"


def of_node(**values: Any) -> dict[str, Any]:
    """Return what a node of one GPU says, but for ``values``."""
    usual = {
        "used_memory": 4 * GIB,
        "total_memory": 8 * GIB,
        "total_time": 500.0,
        "cpus": 4,
        "gpu_utilization": {"0": 40.0},
        "gpu_used_memory": {"0": 10 * GIB},
        "gpu_total_memory": {"0": 80 * GIB},
    }
    return {name: value for name, value in (usual | values).items() if value is not None}


def summary(*nodes: dict[str, Any], gpus: Any = 1, total_time: Any = 3600) -> dict[str, Any]:
    """Return a summary of the nodes n0, n1 and so on."""
    return {"nodes": {f"n{n}": node for n, node in enumerate(nodes)}, "gpus": gpus, "total_time": total_time}
