"""Requests to yield over cycles: every rail ends them, and nothing is believed that was not read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from helios.actions import Yield
from helios.control import CycleReport, Preconditions
from helios.control.yields import CONFIRM_S, HOUR_S, YieldRecord, describe_target, in_memory
from helios.errors import WarehouseUnavailable
from helios.model import Snapshot
from helios.model.targets import TargetJob, read_note
from helios.testing import FakeCluster, a_node
from tests.unit.control.table import OFF, SHADOW, Says, Table, active, all_is_well, canary, settings

TARGET = "helios:target=acc>=0.9,0.99;yield=USR2"


def a_target(job_id: str, comment: str = f"{TARGET};at=0.95,step=7", **fields: Any) -> TargetJob:
    job = TargetJob(job_id=job_id, user="alice", partition="gpu", state="RUNNING", gpus=1, started_s=1, comment=comment)
    return replace(job, note=read_note(comment), **fields)


class Training(FakeCluster):
    """A cluster whose jobs save a checkpoint when they are asked, unless told otherwise."""

    def __init__(self, nodes: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(nodes=nodes)
        self.targets = {job.job_id: job for job in (a_target("1"), a_target("2", started_s=2))}
        self.targets["3"] = a_target("3", TARGET, state="PENDING", reason="Resources", started_s=0)
        self.asked: list[str] = []
        self.sent: list[str] = []
        self.saves = self.requeues = True
        self.complaint = ""
        self.meanwhile: Callable[[], None] | None = None

    def snapshot(self) -> Snapshot:
        return replace(super().snapshot(), targets=tuple(self.targets.values()))

    def change(self, job_id: str, **fields: Any) -> None:
        self.targets[job_id] = replace(self.targets[job_id], **fields)

    def tell(self, job_id: str, comment: str) -> None:
        self.change(job_id, comment=comment, note=read_note(comment))

    def save(self, job_id: str, *, later_s: int = 0) -> None:
        self.tell(job_id, f"{TARGET};at=0.95,checkpoint={int(self.now.timestamp()) + later_s}")

    def read_target(self, job_id: str) -> TargetJob | None:
        self._answer()
        found = self.targets.get(job_id)
        if self.meanwhile is not None:
            happens, self.meanwhile = self.meanwhile, None
            happens()
        return found

    def ask_for_checkpoint(self, job: TargetJob) -> str:
        self.asked.append(job.job_id)
        if self.saves:
            self.save(job.job_id)
        return self.complaint

    def requeue_job(self, job: TargetJob) -> str:
        self.sent.append(job.job_id)
        if self.requeues and not self.complaint:
            self.change(job.job_id, state="PENDING", reason="BeginTime", restart=job.restart + 1, started_s=0)
        return self.complaint


class Yielding(Table):
    """A table whose service wants job 1, else job 2, to yield to job 3."""

    cluster: Training
    wants: Says

    def run(self, *, after: timedelta = timedelta(minutes=1), mode: Any = None) -> CycleReport:
        given = {} if mode is None else {"mode": mode}
        return self.cycle(active(self.wants, name="targets", **given), after=after)

    def outcomes(self, job_id: str = "1") -> list[str]:
        return [row["outcome"] for row in self.lines(action="Yield", target=job_id)]

    def records(self) -> list[YieldRecord]:
        assert self.store is not None
        return self.store.read()


FULL = [a_node(gpus=2, gpus_held=2.0)]


def a_table(nodes: Sequence[Mapping[str, Any]] = FULL, **control: Any) -> Yielding:
    table = Yielding(cluster=Training(nodes), store=in_memory(), settings=settings(yield_least_run_s=1, **control))
    table.wants = Says(*(Yield(job_id=job, for_job="3", reason="it is past its first") for job in ("1", "2")))
    table.run()  # a new process only drops what another one may have left
    return table


def test_a_job_is_asked_first_and_requeued_in_a_later_cycle() -> None:
    table = a_table()
    table.run()
    assert (table.cluster.asked, table.cluster.sent) == (["1"], [])
    report = table.run()
    assert (table.cluster.asked, table.cluster.sent, report.acted) == (["1"], ["1"], 1)


def test_the_audit_has_the_intent_before_each_step() -> None:
    table = a_table()
    table.run()
    table.run()
    assert [outcome.split(";")[0] for outcome in table.outcomes()] == [
        "meant",
        "done: asked for a checkpoint by USR2",
        "meant",
        "done: requeued, and read back",
    ]
    (last,) = table.lines(action="Yield", outcome="done: requeued, and read back")
    assert (last["before"], last["after"]) == ("RUNNING, restart 0", "PENDING, restart 1")


def test_one_job_yields_for_one_that_waits() -> None:
    table = a_table()
    for _ in range(4):
        table.run()
    assert table.cluster.sent == ["1"]


def test_the_next_one_is_asked_where_the_first_saves_nothing() -> None:
    table = a_table(yield_checkpoint_s=90)
    table.cluster.saves = False
    for _ in range(4):
        table.run()
    assert table.cluster.asked == ["1", "2"]
    assert any("confirmed no checkpoint" in outcome for outcome in table.outcomes())


def test_a_checkpoint_of_before_the_request_confirms_nothing() -> None:
    table = a_table()
    table.cluster.saves = False
    table.cluster.save("1", later_s=50)  # a forged or fast clock
    table.run()
    table.run()
    assert table.cluster.sent == []


def test_a_job_that_was_asked_is_left_for_an_hour() -> None:
    table = a_table(yield_checkpoint_s=1, yield_most_per_hour=1)
    table.cluster.saves = False
    for _ in range(3):
        table.run()
    table.run()
    assert table.cluster.asked == ["1"]
    assert "asked less than an hour ago" in table.outcomes()[-1]
    table.run(after=timedelta(seconds=HOUR_S))
    assert table.cluster.asked == ["1", "1"]


def test_a_job_yields_at_most_so_often() -> None:
    table = a_table(yield_most_per_job=1)
    del table.cluster.targets["2"]
    table.run()
    table.run()
    table.cluster.change("1", state="RUNNING", started_s=1)
    for _ in range(2):
        table.run(after=timedelta(seconds=HOUR_S))
    assert table.cluster.asked == ["1"]
    assert "it has yielded 1 times, and may 1 times" in table.outcomes()[-1]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"comment": "helios:target=acc>=0.9;at=0.95", "note": read_note("helios:target=acc>=0.9;at=0.95")}, "opt in"),
        ({"note": None, "problem": "no target"}, "opt in"),
        ({"note": read_note(f"{TARGET};at=0.5")}, "not reached its first"),
        ({"requeues": False}, "sbatch --requeue"),
        ({"state": "SUSPENDED"}, "suspended"),
        ({"excluded_reason": "it is part of an array"}, "array"),
        ({"excluded_reason": "it is of reservation r"}, "reservation"),
        ({"excluded_reason": "it is a component of heterogeneous job 1"}, "heterogeneous"),
        ({"started_s": 0}, "run less than"),
        ({"gpus": 0.5}, "not what the waiting job asks for"),
        ({"partition": "debug"}, "not what the waiting job asks for"),
    ],
)
def test_a_guard_refuses_what_a_service_proposes(fields: dict[str, Any], why: str) -> None:
    table = a_table()
    del table.cluster.targets["2"]
    table.cluster.change("1", **fields)
    table.run()
    assert table.cluster.asked == []
    assert why in table.outcomes()[-1]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"state": "RUNNING"}, "does not wait any more"),
        ({"note": read_note(f"{TARGET};at=0.9")}, "does not wait any more"),
        ({"excluded_reason": "it is held"}, "does not wait any more"),
        ({"reason": "Dependency"}, "could not start now (Slurm says Dependency)"),
        ({"gpus": 2}, "not what the waiting job asks for"),
        ({"gpu_type": "h100"}, "not what the waiting job asks for"),
    ],
)
def test_nobody_is_asked_where_the_gpus_help_nobody(fields: dict[str, Any], why: str) -> None:
    table = a_table()
    table.cluster.change("3", **fields)
    table.run()
    assert table.cluster.asked == []
    assert why in table.outcomes()[-1]


def test_nobody_is_asked_while_gpus_are_free() -> None:
    table = a_table(nodes=[a_node(gpus=2, gpus_held=1.0)])
    table.run()
    assert table.cluster.asked == []
    assert "GPUs are free" in table.outcomes()[-1]


def test_slurm_not_having_looked_yet_does_not_end_a_request() -> None:
    table = a_table()
    table.run()
    table.cluster.change("3", reason="None")
    table.run()
    assert table.cluster.sent == ["1"]


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (lambda cluster: cluster.tell("1", "helios:target=acc>=0.9;at=0.95,checkpoint=99999999999"), "opt in"),
        (lambda cluster: cluster.change("1", restart=1), "requeued or started again"),
        (lambda cluster: cluster.change("1", requeues=False), "sbatch --requeue"),
        (lambda cluster: cluster.targets.pop("1"), "it has ended"),
        (lambda cluster: cluster.targets.pop("3"), "does not wait any more"),
    ],
)
@pytest.mark.parametrize("right_before", [True, False])
def test_what_changes_before_the_requeue_ends_it(
    happens: Callable[[Training], None], why: str, right_before: bool
) -> None:
    table = a_table()
    table.run()
    if right_before:  # after the first of the two looks
        table.cluster.meanwhile = lambda: happens(table.cluster)
    else:
        happens(table.cluster)
    table.run()
    assert table.cluster.sent == []
    assert why in table.outcomes()[-1]


@pytest.mark.parametrize("mode", [OFF, SHADOW, canary("debug")])
def test_a_mode_that_may_not_write_ends_the_request(mode: Any) -> None:
    table = a_table()
    table.run()
    table.run(mode=mode)
    table.run()
    assert table.cluster.sent == []
    assert table.records()[0].why


def test_a_pause_ends_the_request() -> None:
    table = a_table()
    table.run()
    table.world = lambda now: replace(all_is_well(now), paused="enough")
    table.run()
    table.world = all_is_well
    table.run()
    assert table.cluster.sent == []


def test_a_pause_between_the_looks_ends_the_request() -> None:
    table = a_table()
    table.run()
    answers = iter(["", "", "enough"])
    table.pause_asked = lambda: next(answers, "enough")
    table.run()
    table.pause_asked = lambda: ""
    table.run()
    assert table.cluster.sent == []


def test_a_release_by_script_ends_the_request() -> None:
    table = a_table()
    table.run()
    table.world = lambda now: Preconditions(
        controller="ctl1", history_read_at=now, model_trained_at=now, clock_skew_s=0.0, released="helios-release.sh"
    )
    table.run()
    table.world = all_is_well
    table.run()
    assert table.cluster.sent == []


def test_another_leader_drops_the_request() -> None:
    table = a_table()
    table.run()
    assert table.store is not None
    table.store.interrupted = True  # it was standing by
    table.run()
    assert table.cluster.sent == []


def test_nothing_is_asked_that_cannot_be_stored() -> None:
    table = a_table()

    def fails(text: str) -> None:
        raise WarehouseUnavailable("the disk is full", hint="")

    assert table.store is not None
    table.store.save = fails
    table.run()
    assert table.cluster.asked == []


def test_damaged_requests_are_a_note_and_nobody_is_asked() -> None:
    table = a_table()
    assert table.store is not None
    table.store.load = lambda: "[{]"
    report = table.run()
    assert table.cluster.asked == []
    assert any("who was asked to yield cannot be read" in note for note in report.notes)


def test_a_requeue_that_slurm_accepts_and_forgets_is_a_failure() -> None:
    table = a_table()
    table.cluster.requeues = False
    table.run()
    table.run()
    assert "done: requeued" not in "".join(table.outcomes())
    table.run(after=timedelta(seconds=CONFIRM_S + 1))
    assert (table.cluster.sent, table.outcomes()[-1].split(";")[0]) == (
        ["1"],
        "failed: a requeue was meant, and none was seen",
    )


def test_a_requeue_that_was_forgotten_counts_for_the_breaker() -> None:
    table = a_table(mismatches_to_open=1)
    table.cluster.requeues = False
    table.run()
    table.run()
    table.run(after=timedelta(seconds=CONFIRM_S + 1))
    assert any("the breaker is open" in why for why in table.run().suspended)


def test_a_requeue_that_slurm_refuses_is_a_failure() -> None:
    table = a_table()
    table.run()
    table.cluster.complaint = "Access denied"
    table.run()
    assert "Slurm refused the requeue: Access denied" in table.outcomes()[-1]


def test_a_shadow_tells_once_what_it_would_do() -> None:
    table = a_table()
    for _ in range(3):
        table.run(mode=SHADOW)
    assert table.outcomes() == ["would: ask it for a checkpoint, and requeue it then"]
    assert table.cluster.asked == []


def test_a_cluster_that_cannot_requeue_refuses_with_a_sentence() -> None:
    table = Yielding(store=in_memory())
    table.wants = Says(Yield(job_id="1", for_job="3", reason="it is past its first"))
    table.run()
    table.run()
    assert table.outcomes() == ["refused: this cluster cannot ask a running job to yield"]


def test_a_job_explains_whom_it_yielded_to() -> None:
    table = a_table()
    table.run()
    table.run()
    table.cluster.change("1", state="RUNNING", started_s=1)
    lines = describe_target(table.cluster.snapshot(), "1", table.records(), table.settings.control)
    assert lines[0].startswith("Target: acc 0.95")
    assert "asked to yield to job 3: requeued at" in lines[1]
    assert "may be again after" in lines[-1]


def test_requests_of_long_ago_are_forgotten() -> None:
    table = a_table()
    table.run()
    table.run()
    assert table.store is not None
    rows = json.loads(table.store.load())
    table.store.save(json.dumps([row | {"changed_s": 0} for row in rows]))
    table.cluster.change("1", state="RUNNING", started_s=1)
    table.run(after=timedelta(seconds=HOUR_S))
    assert [record.stage for record in table.records()] == ["asked for a checkpoint"]
