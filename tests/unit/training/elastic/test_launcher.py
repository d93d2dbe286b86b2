"""What the launcher does with workers that do not train, without PyTorch."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from helios.errors import UsageError
from helios.training.elastic.launcher import read_settings

WORKER = """
import json, os, socket, sys, time
from pathlib import Path
from helios.training.elastic.link import Lines

folder, facts = Path(sys.argv[1]), json.loads(sys.argv[2])
lines = Lines(socket.socket(fileno=int(os.environ["HELIOS_ELASTIC_LINK"])))
number = len(list(folder.glob("worker-*")))
while True:
    try:
        (folder / f"worker-{number}").touch(exist_ok=False)
        break
    except FileExistsError:
        number += 1
fact = facts[number]
if fact is None:
    sys.exit(3)
lines.send(ready={"batch": 8, **fact})
while (messages := lines.receive()) is not None:
    if any("go" in message for message in messages):
        sys.exit(0)
"""


def launch(folder: Path, *facts: object) -> subprocess.CompletedProcess[str]:
    """Run workers that say these facts of themselves, in the order in which they start."""
    program = folder / "worker.py"
    program.write_text(WORKER)
    command = [sys.executable, "-m", "helios.training.elastic", "--devices", str(len(facts))]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    command += [str(program), str(folder), json.dumps(facts)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)


def test_a_program_that_fails_at_its_start_ends_all(tmp_path: Path) -> None:
    assert launch(tmp_path, {"torch": "2", "model": {}}, None, {"torch": "2", "model": {}}).returncode == 3


def test_workers_that_end_well_end_well(tmp_path: Path) -> None:
    assert launch(tmp_path, {"torch": "2", "model": {}}, {"torch": "2", "model": {}}).returncode == 0


def test_workers_of_different_versions_of_torch_are_refused(tmp_path: Path) -> None:
    ended = launch(tmp_path, {"torch": "2.4", "model": {}}, {"torch": "2.5", "model": {}})
    assert ended.returncode == 2
    assert re.match(r"Worker 1 has torch 2.[45], and others 2.[45]\.", ended.stderr)


def test_settings_of_several_nodes_need_an_address() -> None:
    with pytest.raises(UsageError, match="not complete"):
        read_settings({"devices": [{}], "nodes": 2}, 1)
