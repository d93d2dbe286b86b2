"""What ``helios compile`` has compiled is everything that other commands call."""

from __future__ import annotations

import json
import subprocess
import sys

NOT_BY_COMMANDS = {"helios.simulate.core.stepping.may_choose"}
"""Called by those alone who write a simulation of their own."""
LOOK = """
import json
from helios.cli.compile import compile_all
from helios.jit import KEPT
compile_all(lambda step, done: None)
print(json.dumps([f"{each.py_func.__module__}.{each.py_func.__name__}" for each in KEPT if not each.signatures]))
"""


def test_every_function_that_is_kept_on_disk_is_compiled_beforehand() -> None:
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-2_000:]
    assert set(json.loads(done.stdout.splitlines()[-1])) <= NOT_BY_COMMANDS
