"""Commands of training pools."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helios.errors import UsageError
from helios.training import plan
from helios.training.model import PoolSnapshot, StartTrial, TrialState
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
def packed(tmp_path: Path) -> Path:
    """A sweep file that names the packing of trials, and up to four on a GPU."""
    path = tmp_path / "sweep.toml"
    path.write_text(
        'command = "true {x}"\nmemory = "1G"\n[parameters]\nx = [0.1, 0.2, 0.3, 0.4]\n'
        '[service]\nname = "packing"\ntogether = 4\nworth = 0.2\n'
    )
    return path


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        ({}, {"together": 4, "worth": 0.2}),
        ({"options": {"together": 3, "for": "results"}}, {"together": 3, "worth": 0.2, "for": "results"}),
    ],
)
def test_a_pool_runs_its_service_as_file_and_command_say(
    packed: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], options: dict[str, Any]
) -> None:
    built: list[tuple[str, dict[str, Any]]] = []

    def build(name: str, given: dict[str, Any]) -> OneByOne:
        built.append((name, given))
        return OneByOne()

    monkeypatch.setattr(plan, "build_for_pool", build)
    assert run_pool(packed, kind="cpu", **asked).counts == {"finished": 4}
    assert built == [("packing", options)]


class OneByOne:
    """A service that starts one trial at a time."""

    def decide(self, pool: PoolSnapshot) -> list[StartTrial]:
        if any(trial.state is TrialState.RUNNING for trial in pool.trials):
            return []
        first = next(trial.number for trial in pool.trials if trial.state is TrialState.WAITING)
        return [StartTrial(number=first, devices=(pool.devices[0].name,), memory_limit_mib=None, reason="one by one")]


def test_options_without_a_service_are_refused(shared: Path) -> None:
    with pytest.raises(UsageError, match="--service"):
        run_pool(shared, kind="cpu", options={"for": "results"})


def test_a_simulation_shows_the_service_that_would_run(packed: Path) -> None:
    usual: dict[str, Any] = {"gpus": 1, "memory_mib": 16_384.0, "run_time_s": 1_000.0, "gains": (1.8, 1.8)}
    row = {}
    for together in (1, 2):
        found = pool_whatif(packed, options={"together": together}, **usual).to_json()
        row[together] = found["comparisons"][0]["rules"]["packing"]["makespan_s"]
        assert f"packing has the options together = {together}, worth = 0.2." in found["notes"]
    assert row[2] < 0.7 * row[1]


def test_a_job_runs_the_service_that_is_asked_for(packed: Path) -> None:
    words = ["--for", "results", "--set", "packing.together=2", "--warm", "json", "--mps", "--dry-run"]
    submit = [sys.executable, "-m", "helios", "pool", "submit", "sweep.toml", *words]
    script = subprocess.run(submit, cwd=packed.parent, capture_output=True, text=True, check=True).stdout
    assert "--warm json --mps --service packing --set packing.together=2 --set 'packing.for=\"results\"'" in script


def test_an_option_of_another_service_is_refused(packed: Path) -> None:
    words = ["--service", "packing", "--set", "other.together=2"]
    run = [sys.executable, "-m", "helios", "pool", "run", "sweep.toml", *words]
    answer = subprocess.run(run, cwd=packed.parent, capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert "--set names other, and the service is packing" in answer.stderr


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
