"""Record of what a run of a pool is made of.

That is the code, its interpreter, the machine and the account.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from helios import __version__
from helios.training.model import Device
from helios.training.pool.sweep import TrainingSweep

ASK_S = 10.0
"""How long git and the interpreter may take; a slow file system must not hold up a pool."""
PACKAGES = (
    *("torch", "lightning", "pytorch-lightning", "transformers", "jax", "flax", "tensorflow", "keras", "numpy"),
    *("scikit-learn", "xgboost", "lightgbm", "catboost"),
)
"""Packages whose versions change results."""
MADE_WITH = ("commit", "changed", "helios", "python", "packages", "interpreter", "host", "user", "container")
"""What a run records that may change its results."""
_PYTHON = re.compile(r"python[0-9.]*")
_ASK_PYTHON = f"""
import json, platform
from importlib import metadata
found = {{}}
for name in {PACKAGES!r}:
    try:
        found[name] = metadata.version(name)
    except Exception:
        pass
print(json.dumps({{"python": platform.python_version(), "packages": found}}))
"""


def describe_start(sweep: TrainingSweep, devices: Sequence[Device], *, ends_s: float | None) -> dict[str, Any]:
    """Return what a pool records at its start, unknown as None."""
    return {
        "sweep": str(sweep.path.absolute()),
        "objectives": dict(sweep.objectives),
        "target": sweep.target and asdict(sweep.target),
        "total": sweep.trials,
        "command": list(sweep.command),
        "cwd": str(sweep.cwd),
        "env": dict(sweep.env),
        "container": None if sweep.container is None else sweep.container.image,
        "fused": sweep.fused is not None,
        "seed": None if sweep.fused is None else sweep.fused.settings.get("seed"),
        "devices": [asdict(device) for device in devices],
        "ends_s": ends_s,
        "host": socket.gethostname(),
        "user": own_name(),
        "pid": os.getpid(),
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
        "helios": __version__,
        **_commit(sweep.cwd),
        **_interpreter(sweep),
    }


def changed_code(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return a note where the last run has another commit than before."""
    before, now = ([None, None, *[run.get("commit") for run in runs]])[-2:]
    if before is None or now is None or before == now:
        return ""
    return f"The code has changed: commit {now[:12]} now, {before[:12]} in the run before. Each trial keeps its own"


def own_name() -> str:
    """Return the user's name, or number where there is no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _commit(folder: Path) -> dict[str, Any]:
    """Return the commit of a folder, and whether its files differ."""
    commit = _output(["git", "-C", str(folder), "rev-parse", "HEAD"])
    if commit is None:
        return {"commit": None, "changed": None}
    # Files that git does not know are left out: the folder of the pool is one, and data sets take long to look through.
    status = _output(["git", "-C", str(folder), "status", "--porcelain", "--untracked-files=no"])
    return {"commit": commit.strip(), "changed": None if status is None else bool(status.strip())}


def _interpreter(sweep: TrainingSweep) -> dict[str, Any]:
    """Return versions of a program's Python and packages, where quickly known."""
    word = sweep.command[0] if sweep.fused is None else sys.executable
    path = sweep.env.get("PATH", os.environ.get("PATH"))
    first = str(sweep.cwd / word) if "/" in word else shutil.which(word, path=path)
    if sweep.container is None and first is not None and _PYTHON.fullmatch(Path(word).name):
        answer = _output([first, "-c", _ASK_PYTHON], folder=sweep.cwd, environment=sweep.env)
        try:
            return {"interpreter": first, **json.loads(answer or "")}
        except ValueError:
            pass
    return {"interpreter": None, "python": None, "packages": None}


def _output(words: Sequence[str], *, folder: Path | None = None, environment: Mapping[str, str] = {}) -> str | None:
    """Return what a program prints, None after a failure or too long."""
    try:
        answer = subprocess.run(
            words,
            cwd=folder,
            env={**os.environ, **environment, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout
