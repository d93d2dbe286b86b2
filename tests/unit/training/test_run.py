"""Several sweeps in one pool."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from helios.errors import UsageError
from helios.model.trial_runs import TrialRun
from helios.training import plan
from helios.training.model import PoolAction, PoolSnapshot, Trial
from helios.training.pool.coordinator import Coordinator
from helios.training.pool.search import ListSearch
from helios.training.pool.slots import fixed_slots
from helios.training.pool.state import read_runs
from helios.training.pool.sweep_file import pool_names
from helios.training.report import PoolResult
from helios.training.run import run_pools

REPORTS = """
import json, os, sys, time
open(os.environ["HELIOS_REPORT"], "a").write(json.dumps({"step": 1, "KEY": float(sys.argv[1])}) + "\\n")
open(f"ran-{os.environ['HELIOS_TRIAL']}", "a").write("x")
"""


class Told:
    """What a pool tells while it runs."""

    def __init__(self) -> None:
        self.events: list[Mapping[str, Any]] = []

    def event(self, event: Mapping[str, Any]) -> None:
        self.events.append(event)

    def refresh(self, pool: Coordinator) -> None:
        pass


def a_file(
    folder: Path, name: str, values: Iterable[float], *, key: str = "loss", code: str = "", top: str = ""
) -> Path:
    """A sweep file with a program of its own that reports its argument."""
    folder.mkdir(exist_ok=True)
    program = f"{name}.py"
    (folder / program).write_text(REPORTS.replace("KEY", key) + code)
    path = folder / f"{name}.toml"
    path.write_text(
        f'{top}\ncommand = "{sys.executable} {program} {{x}}"\n[parameters]\nx = {[*values]}\n'
        f'[search]\nmetric = "{key}"\ndirection = "{"minimize" if key == "loss" else "maximize"}"\n'
    )
    return path


def run_here(*paths: Path, **given: Any) -> list[PoolResult]:
    return run_pools(paths, **({"kind": "cpu", "slots": 2} | given))


def test_each_sweep_has_its_program_metric_and_best(tmp_path: Path) -> None:
    a = a_file(tmp_path, "a", [0.5, 0.25])
    b = a_file(tmp_path, "b", [3.0, 4.0, 1.0], key="accuracy")
    first, second = run_here(a, b)
    assert (first.name, first.metric, first.best, first.counts) == ("a.toml", "loss", 1, {"finished": 2})
    assert (second.name, second.metric, second.best, second.counts) == ("b.toml", "accuracy", 1, {"finished": 3})
    assert [trial["number"] for trial in second.trials] == [0, 1, 2]
    assert (tmp_path / "b.pool/trials/00002/report.jsonl").exists()


def test_services_see_the_trials_of_all_sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[int, Trial] = {}

    def decide(snapshot: PoolSnapshot) -> list[PoolAction]:
        seen.update({trial.number: trial for trial in snapshot.trials})
        return fixed_slots(snapshot)

    monkeypatch.setattr(plan, "fixed_slots", decide)
    run_here(a_file(tmp_path, "a", [1.0, 2.0]), a_file(tmp_path, "b", [3.0], top='owner = "ann"'))
    assert {number: (trial.label, trial.parameters["x"]) for number, trial in seen.items()} == {
        0: ("a:0", 1.0),
        1: ("a:1", 2.0),
        1_000_000: ("b:0", 3.0),
    }
    assert seen[1_000_000].owner == "ann"
    assert seen[0].owner != ""


def test_each_event_names_its_sweep(tmp_path: Path) -> None:
    told = Told()
    run_here(a_file(tmp_path, "a", [1.0]), a_file(tmp_path, "b", [2.0]), watcher=told)
    ends = {(event["sweep"], event["number"]) for event in told.events if event["event"] == "finished"}
    assert ends == {("a.toml", 0), ("b.toml", 0)}


def test_sweeps_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    paths = [a_file(tmp_path / name, "sweep", [1.0]) for name in ("here", "there")]
    assert [result.name for result in run_here(*paths)] == ["here/sweep.toml", "there/sweep.toml"]
    assert pool_names([Path("/a/b/s.toml"), Path("/c/b/s.toml")]) == ["a/b/s.toml", "c/b/s.toml"]


def test_programs_of_one_name_are_different_families(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    families: set[str] = set()

    def decide(snapshot: PoolSnapshot) -> list[PoolAction]:
        families.update(trial.family for trial in snapshot.trials)
        return fixed_slots(snapshot)

    monkeypatch.setattr(plan, "fixed_slots", decide)
    paths = [a_file(tmp_path / name, "sweep", [1.0]) for name in ("here", "there")]
    run_here(*paths)
    assert families == {f"{tmp_path}/{name}/sweep.py" for name in ("here", "there")}
    runs: list[TrialRun] = [each for path in paths for each in read_runs(path.with_suffix(".pool"))]
    assert {each.family for each in runs} == {"sweep.py"}  # as it is called where a sweep runs alone


@pytest.mark.parametrize(
    ("names", "given", "said"),
    [
        (("a", "a"), {}, "the same folder"),
        (("a", "b"), {"folder": Path("x")}, "--folder is for one sweep"),
        (("a", "served"), {}, "do not name the same service"),
    ],
)
def test_sweeps_that_cannot_run_together_are_refused(
    tmp_path: Path, names: tuple[str, ...], given: dict[str, Any], said: str
) -> None:
    files = {name: a_file(tmp_path, name, [1.0]) for name in ("a", "b", "served")}
    with files["served"].open("a") as file:
        file.write('[service]\nname = "packing"\n')
    with pytest.raises(UsageError, match=said):
        run_here(*(tmp_path / files[name].name for name in names), **given)
    assert not list(tmp_path.glob("ran-*"))


def test_nothing_starts_where_one_sweep_is_refused(tmp_path: Path) -> None:
    good, bad = a_file(tmp_path, "a", [1.0]), a_file(tmp_path, "b", [1.0])
    bad.write_text("command = 3")
    with pytest.raises(UsageError, match=r"b\.toml"):
        run_here(good, bad)
    assert not list(tmp_path.glob("ran-*"))


def test_a_sweep_that_is_done_leaves_its_slots_to_another(tmp_path: Path) -> None:
    a, b = a_file(tmp_path, "a", [1.0]), a_file(tmp_path, "b", [2.0, 3.0])
    run_here(a)
    first, second = run_here(a, b)
    assert (first.counts, second.counts) == ({"finished": 1}, {"finished": 2})
    assert [trial["attempts"] for trial in first.trials] == [1]


def test_a_failing_search_ends_its_sweep_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask: Callable[[ListSearch], Any] = ListSearch.ask
    asked: list[str] = []

    def fail(search: ListSearch) -> Any:
        asked.append(search._folder.parent.name)
        if asked.count("a.pool") > 1 and asked[-1] == "a.pool":
            raise ValueError("no more ideas")
        return ask(search)

    monkeypatch.setattr(ListSearch, "ask", fail)
    first, second = run_here(a_file(tmp_path, "a", [1.0, 2.0]), a_file(tmp_path, "b", [3.0, 4.0]))
    assert (first.counts, first.exit_code) == ({"finished": 1}, 1)
    assert "its search failed: ValueError: no more ideas" in first.reason
    assert (second.counts, second.exit_code, second.reason) == ({"finished": 2}, 0, "")


def test_sweeps_go_on_together_alone_and_with_a_third(tmp_path: Path) -> None:
    a = a_file(tmp_path, "a", [1.0, 2.0, 3.0], code="time.sleep(0.5)")
    b = a_file(tmp_path, "b", [1.0, 2.0, 3.0], code="time.sleep(0.5)")
    c = a_file(tmp_path, "c", [1.0])
    together = run_here(a, b, time_limit_s=0.9)
    assert all(result.reason for result in together)
    assert run_here(b)[0].counts == {"finished": 3}
    assert [result.counts for result in run_here(c, b, a)] == [{"finished": count} for count in (1, 3, 3)]
    for path in (a, b):
        lines = map(json.loads, (path.with_suffix(".pool") / "state.jsonl").read_text().splitlines())
        ends = [line["trial"] for line in lines if line.get("state") == "finished"]
        assert sorted(ends) == [0, 1, 2]


def test_pools_that_share_the_folders_of_several_sweeps_divide_the_trials(tmp_path: Path) -> None:
    a, b = a_file(tmp_path, "a", [1.0, 2.0]), a_file(tmp_path, "b", [3.0])
    assert [result.counts for result in run_here(a, b, shared=True)] == [{"finished": 2}, {"finished": 1}]
    assert [result.counts for result in run_here(b, shared=True)] == [{"finished": 1}]
    assert (tmp_path / "ran-0").read_text() == "xx"  # once for each sweep


def test_imports_are_done_once_for_each_sweep(tmp_path: Path) -> None:
    (tmp_path / "heavy.py").write_text("import os\nBY = os.getpid()\n")
    code = "import heavy\nopen(f'by-{sys.argv[0]}', 'a').write(f'{heavy.BY} ')\n"
    env = f'env = {{ PYTHONPATH = "{tmp_path}" }}'
    paths = [a_file(tmp_path, name, [1.0, 2.0], code=code, top=env) for name in ("a", "b")]
    run_here(*paths, warm=["heavy"])
    by = [{*(tmp_path / f"by-{name}.py").read_text().split()} for name in ("a", "b")]
    assert [len(pids) for pids in by] == [1, 1]
    assert by[0] != by[1]


FUSED = """
import torch
from torch import nn

def build(configuration):
    return nn.Linear(2, 1)

loss = nn.functional.mse_loss

def data():
    inputs = torch.ones(8, 2)
    return inputs, inputs[:, :1]
"""


def test_a_fused_sweep_runs_beside_one_with_a_command(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(FUSED)
    fused = tmp_path / "fused.toml"
    fused.write_text(
        '[fused]\nprogram = "models.py"\nepochs = 2\nbatch_size = 4\n[parameters]\nlr = [0.1, 0.01, 0.001]\n'
        '[search]\nmetric = "training_loss"\ndirection = "minimize"\n'
    )
    first, second = run_here(a_file(tmp_path, "a", [1.0, 2.0]), fused)
    assert (first.counts, second.counts) == ({"finished": 2}, {"finished": 3})
    assert (tmp_path / "fused.pool/fused").is_dir()
    assert not (tmp_path / "a.pool/fused").exists()


def test_packing_serves_several_sweeps(tmp_path: Path) -> None:
    results = run_here(a_file(tmp_path, "a", [1.0, 2.0]), a_file(tmp_path, "b", [3.0]), service="packing")
    assert [result.counts for result in results] == [{"finished": 2}, {"finished": 1}]
