"""Commands of training pools."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from helios.training.past_runs import keep_runs
from helios.training.pool.state import read_runs
from helios.training.run import run_pool
from helios.training.whatif import pool_whatif

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


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A sweep file whose pools share a folder, beside a first one that has run."""
    (tmp_path / "train.py").write_text("")
    path = tmp_path / "sweep.toml"
    path.write_text(f'command = "{sys.executable} train.py {{x}}"\nmemory = "1G"\n[parameters]\nx = [1, 2, 3]\n')
    run_pool(path, kind="cpu", shared=True)
    return path


def test_a_shared_pool_is_loaded(shared: Path, tmp_path: Path) -> None:
    assert keep_runs(f"sqlite:///{tmp_path}/helios.db", [shared.with_suffix(".pool")]) == [3]


def test_a_shared_pool_tells_a_simulation(shared: Path) -> None:
    found = pool_whatif(shared, gpus=1, memory_mib=2_048.0)
    assert any("3 runs" in note for note in found.notes)


def test_a_shared_pool_with_packing_goes_on(shared: Path) -> None:
    result = run_pool(shared, kind="cpu", shared=True, service="packing")
    assert result.counts == {"finished": 3}


def test_pools_with_packing_share_a_folder(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\ntime.sleep(0.5)")
    (tmp_path / "sweep.toml").write_text(
        f'command = "{sys.executable} train.py {{x}}"\n[parameters]\nx = {{ low = 1, high = 8, step = 1 }}\n'
    )
    words = [sys.executable, "-m", "helios", "pool", "run", "sweep.toml", "--shared", "--service", "packing", "--json"]
    pools = [subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE) for _ in range(2)]
    assert [pool.communicate()[0] and pool.returncode for pool in pools] == [0, 0]
    runs = read_runs(tmp_path / "sweep.pool")
    assert sorted((run.number, run.attempt, run.outcome) for run in runs) == [(n, 1, "finished") for n in range(8)]


@pytest.mark.parametrize("content", [b"", b'{"version": 1, "po'])
def test_a_pool_that_has_just_begun_has_no_runs(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state.jsonl").write_bytes(content)
    assert read_runs(tmp_path) == []
