"""What ``helios compile`` has compiled is everything that other commands call."""

from __future__ import annotations

import json
import subprocess
import sys

NOT_BY_COMMANDS = {"helios.simulate.core.events.has_choice", "helios.simulate.core.events.set_power"}
"""Called by those alone who write a simulation of their own."""
BOTH_CLUSTERS = "helios.app.replay_guards._pass_capped"
"""Compiled for the simulated cluster, and for the one under Slurm's rules, whose starts are no column of records."""
LOOK = """
import json
from helios.cli.compile import compile_all
from helios.jit import KEPT
compile_all(lambda step, done: None)
print(json.dumps({f"{each.py_func.__module__}.{each.py_func.__name__}": len(each.signatures) for each in KEPT}))
"""


def test_every_function_that_is_kept_on_disk_is_compiled_beforehand_and_once() -> None:
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-2_000:]
    times = json.loads(done.stdout.splitlines()[-1])
    others = {name: n for name, n in times.items() if n != 1}
    # A second signature means that arguments differ in type between calls, so another command may bring a third.
    assert others == dict.fromkeys(NOT_BY_COMMANDS, 0) | {BOTH_CLUSTERS: 2}
