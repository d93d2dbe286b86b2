"""Trials whose devices change while they run, as a pool has it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helios.targets import Target
from helios.training.model import (
    Device,
    PoolAction,
    PoolSnapshot,
    ResizeTrial,
    StartTrial,
    StopTrial,
    Trial,
    TrialState,
)
from helios.training.pool import resizing
from helios.training.pool.coordinator import Coordinator
from helios.training.pool.devices import Node
from helios.training.pool.slots import fixed_slots
from helios.training.pool.state import TrialRecord
from helios.training.pool.sweep import ElasticProgram, TrainingSweep
from tests.disks import fill, small_disk
from tests.json_lines import whole_lines
from tests.unit.training.pool.test_coordinator import Watched, run

PROGRAM = Path(__file__).with_name("elastic_program.py")
FOUR = tuple(Device(name=f"cpu:{place}", kind="cpu", memory_mib=1000.0, slots=1, cores=1) for place in range(4))
ELASTIC = ElasticProgram(least=1, most=4, batch=(32, 512), local_batch=(8, 64), epochs=100, every_s=0.1)


def elastic_sweep(folder: Path, *hows: str, **more: Any) -> TrainingSweep:
    values = {"elastic": ELASTIC, "grace_s": 5.0, **more}
    return TrainingSweep(
        path=folder / "sweep.toml",
        command=(sys.executable, str(PROGRAM), "{how}"),
        parameters={"how": hows or ("takes",)},
        cwd=folder,
        **values,
    )


class Resizes:
    """Starts trials as ``fixed_slots``, and wants sizes of the first one, each when it has the one before.

    The others start afterwards, or beside it.
    """

    def __init__(self, *wanted: tuple[str, ...], beside: bool = False) -> None:
        self.wanted, self.beside = [*wanted], beside
        self.seen: list[Trial] = []

    def __call__(self, snapshot: PoolSnapshot) -> Iterable[PoolAction]:
        starts = (action for action in fixed_slots(snapshot) if isinstance(action, StartTrial))
        yield from (action for action in starts if self.beside or not action.number or not self.wanted)
        trial = snapshot.trials[0]
        if trial.number or trial.state is not TrialState.RUNNING:
            return
        self.seen.append(trial)
        if self.wanted and trial.devices == self.wanted[0]:
            del self.wanted[0]
        if self.wanted:
            yield ResizeTrial(number=0, devices=self.wanted[0], reason="as the test")


def go_on(folder: Path, *kinds: str, count: int = 1) -> Callable[[Coordinator, Mapping[str, Any]], None]:
    """Return what lets the programs end after so many events of some kinds."""
    left = [count]

    def act(_: Coordinator, event: Mapping[str, Any]) -> None:
        left[0] -= event["event"] in kinds
        if not left[0]:
            (folder / "go").touch()

    return act


def run_until(
    folder: Path,
    decide: Resizes,
    *kinds: str,
    count: int = 1,
    hows: tuple[str, ...] = (),
    devices: Sequence[Device] = FOUR,
    nodes: Sequence[Node] = (),
    **more: Any,
) -> tuple[list[Mapping[str, Any]], dict[int, TrialRecord]]:
    """Run a pool until something happened to its only trial so often."""
    watched = Watched(go_on(folder, *kinds, count=count))
    sweep = elastic_sweep(folder, *hows, **more)
    _, trials = run(sweep, devices=devices, nodes=nodes, decide=decide, watched=watched)
    return watched.events, trials


def seen(folder: Path) -> list[dict[str, Any]]:
    return whole_lines(folder / "seen")


def of_kind(events: Iterable[Mapping[str, Any]], kind: str) -> list[Mapping[str, Any]]:
    return [event for event in events if event["event"] == kind]


def test_a_trial_starts_on_no_fewer_devices_than_its_sweep_says(tmp_path: Path) -> None:
    def one_device(snapshot: PoolSnapshot) -> Iterable[PoolAction]:
        (trial, *_) = snapshot.trials
        if trial.state is TrialState.WAITING:
            yield StartTrial(number=0, devices=("cpu:0",), memory_limit_mib=None, reason="as the test")

    watched = Watched(go_on(tmp_path, "started"))
    run(elastic_sweep(tmp_path, elastic=replace(ELASTIC, least=2)), devices=FOUR, decide=one_device, watched=watched)
    assert [len(event["devices"]) for event in of_kind(watched.events, "started")] == [2]


def test_a_trial_is_told_its_devices_and_limits_at_its_start(tmp_path: Path) -> None:
    run_until(tmp_path, Resizes(), "started")
    assert seen(tmp_path)[0]["given"] == {
        "devices": [{}],
        "batch": [32, 512],
        "local_batch": [8, 64],
        "threads": 1,
        "node": 0,
        "nodes": 1,
    }


def test_a_trial_grows_in_place_and_keeps_its_process(tmp_path: Path) -> None:
    events, trials = run_until(tmp_path, Resizes(("cpu:0", "cpu:1", "cpu:2")), "resized")
    (resized,) = of_kind(events, "resized")
    assert (resized["devices"], resized["pause_s"], resized["in_place"]) == (["cpu:0", "cpu:1", "cpu:2"], 0.25, True)
    assert (trials[0].attempts, trials[0].changes, trials[0].pause_s) == (1, 1, 0.25)
    assert trials[0].devices == ("cpu:0", "cpu:1", "cpu:2")
    assert len({line["pid"] for line in seen(tmp_path)}) == 1


@pytest.mark.parametrize(("batches", "asked"), [((32, 512), range(32, 513)), ((128, 128), [None])])
def test_a_batch_is_chosen_with_the_devices(
    batches: tuple[int, int], asked: Sequence[int | None], tmp_path: Path
) -> None:
    wanted = Resizes(tuple(device.name for device in FOUR))
    run_until(tmp_path, wanted, "resized", elastic=replace(ELASTIC, batch=batches))
    (request,) = (line["request"] for line in seen(tmp_path) if "request" in line)
    assert request.get("batch") in asked


def test_devices_that_stay_come_first_in_a_request(tmp_path: Path) -> None:
    run_until(tmp_path, Resizes(("cpu:1", "cpu:0")), "resized")
    request = seen(tmp_path)[1]["request"]
    assert (request["request"], len(request["devices"])) == ("resize", 2)


def test_a_trial_that_shrinks_frees_devices_for_another(tmp_path: Path) -> None:
    decide, hows = Resizes(("cpu:0", "cpu:1"), ("cpu:0",)), ("takes", "takes ")
    events, trials = run_until(tmp_path, decide, "started", count=2, hows=hows, devices=FOUR[:2])
    assert [list(event["devices"]) for event in of_kind(events, "started")] == [["cpu:0"], ["cpu:1"]]
    assert [trial.changes for trial in trials.values()] == [2, 0]


def test_a_program_that_refuses_keeps_its_size_and_is_left_alone(tmp_path: Path) -> None:
    decide = Resizes(("cpu:0", "cpu:1"))
    events, trials = run_until(tmp_path, decide, "kept_size", hows=("refuses",))
    (kept,) = of_kind(events, "kept_size")
    assert (kept["devices"], kept["reason"]) == (["cpu:0"], "its batch does not fit")
    assert len(of_kind(events, "resizing")) == 1
    assert (trials[0].devices, trials[0].changes) == (("cpu:0",), 0)


def test_a_program_that_does_not_answer_gives_the_devices_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resizing, "ANSWER_S", 0.5)
    monkeypatch.setattr(resizing, "LATE_S", 0.1)
    decide, hows = Resizes(("cpu:0", "cpu:1")), ("deaf", "deaf ")
    events, _ = run_until(tmp_path, decide, "kept_size", hows=hows, devices=FOUR[:2])
    assert of_kind(events, "kept_size")[0]["reason"] == "it did not answer in 0.5 s"


def test_a_program_without_the_agent_is_started_again_from_its_checkpoint(tmp_path: Path) -> None:
    events, trials = run_until(tmp_path, Resizes(("cpu:1", "cpu:2")), "resized", hows=("plain",))
    (resized,) = of_kind(events, "resized")
    assert (resized["devices"], resized["in_place"]) == (["cpu:1", "cpu:2"], False)
    assert resized["pause_s"] > 0
    assert (trials[0].attempts, trials[0].changes) == (2, 1)
    first, second = seen(tmp_path)
    assert second["device"] == "cpu:1,cpu:2"
    assert second["step"] > first["step"]


def test_a_worker_that_dies_is_a_smaller_trial(tmp_path: Path) -> None:
    decide = Resizes(("cpu:0", "cpu:1", "cpu:2"))

    def lose(_: Coordinator, event: Mapping[str, Any]) -> None:
        if event["event"] == "resized":
            (tmp_path / ("lose" if len(event["devices"]) == 3 else "go")).touch()

    watched = Watched(lose)
    _, trials = run(elastic_sweep(tmp_path), devices=FOUR, decide=decide, watched=watched)
    assert of_kind(watched.events, "resized")[1]["devices"] == ["cpu:0", "cpu:2"]
    assert (trials[0].state, trials[0].attempts) == (TrialState.FINISHED, 1)


def test_a_trial_changes_no_more_often_than_its_sweep_says(tmp_path: Path) -> None:
    events, _ = run_until(
        tmp_path,
        Resizes(("cpu:0", "cpu:1"), ("cpu:0",), ("cpu:0", "cpu:1", "cpu:2")),
        "resized",
        count=3,
        elastic=replace(ELASTIC, every_s=2.0),
    )
    at_s = [event["at_s"] for event in events if event["event"] in {"started", "resizing", "resized"}]
    started, first, done, second, *_ = at_s
    assert first - started >= 2.0
    assert second - done >= 2.0


@pytest.mark.parametrize(
    ("devices", "problem"),
    [
        (("cpu:0", "cpu:1", "cpu:2"), "its sweep allows 1 to 2"),
        (("cpu:0", "small"), "its limit is"),
    ],
)
def test_a_size_that_cannot_be_is_refused_with_its_reason(
    tmp_path: Path, devices: tuple[str, ...], problem: str
) -> None:
    small = Device(name="small", kind="cpu", memory_mib=1.0, slots=1)
    decide = Resizes(devices)
    elastic = replace(ELASTIC, most=2)
    events, trials = run_until(tmp_path, decide, "note", elastic=elastic, devices=(*FOUR[:3], small))
    (note,) = of_kind(events, "note")
    assert problem in note["note"]
    assert trials[0].changes == 0


def test_devices_of_another_trial_are_not_taken(tmp_path: Path) -> None:
    decide, hows = Resizes(("cpu:0", "cpu:1"), beside=True), ("takes", "takes ")
    looked = 0

    def decide_and_count(snapshot: PoolSnapshot) -> Iterable[PoolAction]:
        nonlocal looked
        looked += snapshot.trials[0].progress is not None
        if looked >= 3:  # from here on one may end, and its device is free
            (tmp_path / "go").touch()
            return []
        return decide(snapshot)

    watched = Watched()
    run(elastic_sweep(tmp_path, *hows), devices=FOUR[:2], decide=decide_and_count, watched=watched)
    assert of_kind(watched.events, "resizing") == []


def test_a_trial_of_a_fixed_size_is_not_resized(tmp_path: Path) -> None:
    events, trials = run_until(tmp_path, Resizes(("cpu:0", "cpu:1")), "note", elastic=None, hows=("fixed",))
    assert "its size is fixed" in of_kind(events, "note")[0]["note"]
    assert (trials[0].state, trials[0].devices) == (TrialState.FINISHED, ("cpu:0",))


def test_a_trial_that_is_pruned_while_it_changes_ends_and_frees_all(tmp_path: Path) -> None:
    def decide(snapshot: PoolSnapshot) -> Iterable[PoolAction]:
        yield from Resizes(("cpu:0", "cpu:1"))(snapshot)
        if len(snapshot.trials[0].devices) == 2:
            yield StopTrial(number=0, reason="as the test")

    watched = Watched()
    _, trials = run(elastic_sweep(tmp_path, "deaf"), devices=FOUR, decide=decide, watched=watched)
    assert (trials[0].state, trials[0].changes) == (TrialState.PRUNED, 0)


def test_services_see_what_a_trial_has_measured(tmp_path: Path) -> None:
    decide = Resizes(("cpu:0", "cpu:1"))
    run_until(tmp_path, decide, "resized")
    first, last = decide.seen[0].elastic, decide.seen[-1].elastic
    assert first is not None and last is not None
    assert (first.submit_s, first.limits.smallest, first.restarts) == (last.submit_s, 32, 0)
    assert last.measured[0] == ((1, 1, 32), (0.05, 0.01))
    assert (last.most, last.restarts, last.change_s) in {(2, 1, 0.25), (4, 1, 0.25)}
    assert last.gradient == (2.0, 6.0)
    assert last.remaining is not None and last.remaining > 0
    assert last.gpu_s > first.gpu_s


def test_what_was_measured_stays_over_a_kill_of_the_pool(tmp_path: Path) -> None:
    decide = Resizes(("cpu:0", "cpu:1"))

    def interrupt(pool: Coordinator, event: Mapping[str, Any]) -> None:
        if event["event"] == "resized":
            pool.interrupt()

    watched = Watched(interrupt)
    run(elastic_sweep(tmp_path), devices=FOUR, decide=decide, watched=watched)
    before, again = decide.seen[-1].elastic, Resizes()
    shown: list[Trial] = []

    def decide_again(snapshot: PoolSnapshot) -> Iterable[PoolAction]:
        shown.extend(snapshot.trials)
        return again(snapshot)

    (tmp_path / "go").touch()
    run(elastic_sweep(tmp_path), devices=FOUR, decide=decide_again)
    after = shown[0].elastic
    assert before is not None and after is not None
    assert {run for run, _ in before.measured} <= {run for run, _ in after.measured}
    assert (after.restarts, after.submit_s) == (1, before.submit_s)
    assert after.gpu_s > 0


def test_a_trial_on_more_devices_may_use_the_memory_of_all(tmp_path: Path) -> None:
    devices = tuple(replace(device, memory_mib=200.0) for device in FOUR)
    decide = Resizes(("cpu:0", "cpu:1", "cpu:2"), ("cpu:0", "cpu:1"))
    _, trials = run_until(tmp_path, decide, "resized", count=2, hows=("large",), devices=devices)
    assert (trials[0].state, trials[0].memory_kills) == (TrialState.FINISHED, 0)


def test_a_trial_with_too_much_memory_for_fewer_devices_is_killed(tmp_path: Path) -> None:
    devices = tuple(replace(device, memory_mib=200.0) for device in FOUR)
    decide = Resizes(("cpu:0", "cpu:1", "cpu:2"), ("cpu:0",))
    _, trials = run_until(tmp_path, decide, "out_of_memory", hows=("large",), devices=devices)
    assert trials[0].memory_kills == 1
    assert trials[0].reason == ""


def test_a_target_that_is_reached_while_a_trial_changes_is_delivered_afterwards(tmp_path: Path) -> None:
    def act(_: Coordinator, event: Mapping[str, Any]) -> None:
        if event["event"] == "target":
            (tmp_path / "answer").touch()
        if event["event"] == "delivered":
            (tmp_path / "go").touch()

    target = Target(metric="loss", first=0.01, maximize=False)
    watched = Watched(act)
    sweep = elastic_sweep(tmp_path, "slow", target=target, objectives={"loss": False})
    run(sweep, devices=FOUR, decide=Resizes(("cpu:0", "cpu:1")), watched=watched)
    told = [
        event["event"] for event in watched.events if event["event"] in {"resizing", "target", "resized", "delivered"}
    ]
    assert told == ["resizing", "target", "resized", "delivered"]
    assert int((tmp_path / "pool" / "deliverable" / "step").read_text()) >= 100


def test_a_trial_knows_what_another_of_its_family_has_measured(tmp_path: Path) -> None:
    seen_of: dict[int, Trial] = {}

    def decide(snapshot: PoolSnapshot) -> Iterable[PoolAction]:
        if snapshot.trials[0].progress is not None:
            (tmp_path / "go").touch()
        seen_of.update((trial.number, trial) for trial in snapshot.trials if trial.state is TrialState.WAITING)
        return fixed_slots(snapshot)

    sweep = replace(elastic_sweep(tmp_path), parameters={"how": ("takes",), "seed": (1, 2)})
    run(replace(sweep, command=(*sweep.command, "{seed}")), devices=FOUR[:1], decide=decide)
    first, second = (seen_of[number].elastic for number in (0, 1))
    assert first is not None and second is not None
    assert first.measured == ()
    assert [run.gpus for run, _ in second.measured] == [1]
    assert (second.most, second.restarts, second.gpu_s) == (2, 0, 0.0)


def test_a_change_that_comes_too_late_is_asked_to_go_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resizing, "ANSWER_S", 0.5)
    monkeypatch.setattr(resizing, "LATE_S", 0.1)

    def act(_: Coordinator, event: Mapping[str, Any]) -> None:
        if event["event"] == "kept_size":
            monkeypatch.setattr(resizing, "ANSWER_S", 60.0)
        if event["event"] == "resized":
            (tmp_path / "go").touch()

    watched = Watched(act)
    run(elastic_sweep(tmp_path, "late"), devices=FOUR, decide=Resizes(("cpu:0", "cpu:1")), watched=watched)
    told = [event for event in watched.events if event["event"] in {"kept_size", "resized"}]
    assert [(event["event"], event["devices"]) for event in told] == [("kept_size", ["cpu:0"]), ("resized", ["cpu:0"])]
    assert [len(line["request"]["devices"]) for line in seen(tmp_path) if "request" in line] == [2, 1]


def test_what_a_program_says_of_changes_that_nobody_asked_for_is_ignored(tmp_path: Path) -> None:
    wants = Resizes(("cpu:0", "cpu:1", "cpu:2"))

    def decide(snapshot: PoolSnapshot) -> Iterable[PoolAction]:
        if (snapshot.trials[0].progress or 0.0) > 0.03 and not wants.wanted:
            (tmp_path / "go").touch()
        return wants(snapshot)

    watched = Watched()
    _, trials = run(elastic_sweep(tmp_path, "lies"), devices=FOUR, decide=decide, watched=watched)
    assert [len(line["request"]["devices"]) for line in seen(tmp_path) if "request" in line] == [3]
    assert of_kind(watched.events, "resized")[0]["pause_s"] is None
    assert (trials[0].state, trials[0].changes) == (TrialState.FINISHED, 1)
    assert not any("\x1b" in str(event) for event in watched.events)


def test_a_change_without_an_answer_is_asked_to_go_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resizing, "ANSWER_S", 0.5)
    monkeypatch.setattr(resizing, "LATE_S", 0.1)

    def act(_: Coordinator, event: Mapping[str, Any]) -> None:
        if event["event"] == "kept_size":
            monkeypatch.setattr(resizing, "ANSWER_S", 60.0)

    wants = Resizes(("cpu:0", "cpu:1"))

    def decide(snapshot: PoolSnapshot) -> Iterable[PoolAction]:
        if len([line for line in seen(tmp_path) if "request" in line] if (tmp_path / "seen").exists() else []) == 2:
            (tmp_path / "go").touch()
        return wants(snapshot)

    run(elastic_sweep(tmp_path, "mute"), devices=FOUR, decide=decide, watched=Watched(act))
    assert [len(line["request"]["devices"]) for line in seen(tmp_path) if "request" in line] == [2, 1]


@pytest.mark.parametrize("how", ["takes", "plain"])
def test_a_full_disk_puts_a_change_off(tmp_path: Path, how: str) -> None:
    with small_disk(tmp_path / "pool") as disk:

        def act(_: Coordinator, event: Mapping[str, Any]) -> None:
            if event["event"] == "note" and "is not resized" in event["note"]:
                (disk / "full").unlink()
            if event["event"] == "resized":
                (tmp_path / "go").touch()

        wants = Resizes(("cpu:0", "cpu:1"))

        def decide(snapshot: PoolSnapshot) -> Iterable[PoolAction]:
            actions = [*wants(snapshot)]
            if snapshot.trials[0].progress is not None and not (tmp_path / "filled").exists():
                (tmp_path / "filled").touch()
                fill(disk)
            return actions

        watched = Watched(act)
        _, trials = run(elastic_sweep(tmp_path, how), devices=FOUR, decide=decide, watched=watched)
        told = [event for event in watched.events if event["event"] in {"note", "resizing", "resized"}]
        assert "No space left" in told[0]["note"]
        assert [event["event"] for event in told[1:] if event["event"] != "note"] == ["resizing", "resized"]
        assert (trials[0].state, trials[0].changes) == (TrialState.FINISHED, 1)


def test_a_pipe_in_place_of_a_file_holds_nobody_up(tmp_path: Path) -> None:
    folder = tmp_path / "pool" / "trials" / "00000"
    folder.mkdir(parents=True)
    for name in ("requests", "report.jsonl"):
        os.mkfifo(folder / name)

    def act(pool: Coordinator, event: Mapping[str, Any]) -> None:
        if event["event"] == "note":
            pool.interrupt()

    watched = Watched(act)
    end, _ = run(elastic_sweep(tmp_path), devices=FOUR, decide=Resizes(("cpu:0", "cpu:1")), watched=watched)
    assert any("no plain file" in note for note in end.notes)
    assert not (folder / "requests").is_fifo()
