"""Commands of training pools."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys
from helios.cli.main import application
try:
    application(["pool", "run", *sys.argv[1:], "--json"])
except SystemExit as end:
    assert not end.code
print(sorted({"matplotlib", "lightgbm", "torch", "optuna"} & {*sys.modules}), file=sys.stderr)
"""


@pytest.mark.parametrize("options", [[], ["--service", "packing"]])
def test_a_pool_runs_without_plotting_and_boosting_libraries(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "sweep.toml").write_text('command = ["true", "{lr}"]\n[parameters]\nlr = [0.1]\n')
    answer = subprocess.run(
        [sys.executable, "-c", CODE, "sweep.toml", *options], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert answer.stderr.splitlines()[-1] == "[]"
