"""Jobs that vanish from the queue: believed where another source tells of their end, or when it is seen twice."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import datetime

import pytest

from helios.config import Settings
from helios.control import Cycle, CycleReport, JobDomain
from helios.control.observed import Observation
from helios.model import Snapshot
from helios.testing import FakeCluster, a_node
from tests.unit.control.table import MINUTE, Says, Table, active, order

JOBS = tuple(f"j{number}" for number in range(1, 25))
FIRST_THIRD, OTHER_THIRD = JOBS[:8], JOBS[8:16]


class Cut(FakeCluster):
    """A cluster whose answers leave out jobs and nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: Collection[str] = ()

    def snapshot(self) -> Snapshot:
        whole = super().snapshot()
        pending, running = (frame[~frame["job_id"].isin(self.hidden)] for frame in (whole.pending, whole.running))
        return replace(
            whole, pending=pending, running=running, nodes=whole.nodes[~whole.nodes["name"].isin(self.hidden)]
        )


@dataclass(kw_only=True)
class Desk(Table):
    """A table whose cycles remember what they saw, as those of one process do."""

    cluster: Cut = field(default_factory=Cut)  # type: ignore[assignment]  # because it is one
    known: set[str] = field(default_factory=set)
    asked: list[datetime] = field(default_factory=list)
    accepted: Observation | None = None
    doubted: Observation | None = None

    def ended(self, since: datetime) -> Collection[str]:
        self.asked.append(since)
        return self.known

    def look(self, *, hidden: Collection[str] = ()) -> CycleReport:
        """Take a cycle in which the cluster leaves out some jobs and nodes."""
        self.cluster.tick(MINUTE)
        self.cluster.hidden = hidden
        cycle = Cycle(
            domain=JobDomain(self.cluster, self.settings),
            ledger=self.ledger,
            settings=self.settings,
            now=self.cluster.now,
            holder=self.holder,
            memory=self.memory,
            paused=self.pause_asked,
            ended=self.ended,
            accepted=self.accepted,
            doubted=self.doubted,
        )
        report: CycleReport = cycle.run(
            [active(self.service)], expectation=self.expectation, conditions=lambda _: self.world(self.cluster.now)
        )
        self.memory, self.accepted, self.doubted = report.memory, cycle.accepted, cycle.doubted
        return report

    service: Says = field(default_factory=lambda: Says(order(j12=0.5)))


@pytest.fixture
def desk() -> Desk:
    desk = Desk(settings=Settings())
    desk.submit(*JOBS)
    assert desk.look().suspended == ()
    desk.service.actions = [order(j12=-0.5)]
    return desk


def test_a_third_that_vanishes_unexplained_suspends_a_cycle_and_is_counted(desk: Desk) -> None:
    writes = len(desk.lines())
    report = desk.look(hidden=FIRST_THIRD)
    assert report.suspended[0] == (
        "8 of 24 jobs vanished, and nothing tells of their start or end: one cycle to settle"
    )
    assert report.acted == 0 and len(desk.lines()) == writes + 1
    assert desk.applied() == {"j12": 0.5}


@pytest.mark.parametrize("hidden", [FIRST_THIRD + OTHER_THIRD[:1], JOBS])
def test_a_second_answer_that_agrees_is_accepted(desk: Desk, hidden: tuple[str, ...]) -> None:
    assert desk.look(hidden=hidden).suspended
    assert desk.look(hidden=hidden).suspended == ()
    assert desk.look(hidden=hidden).suspended == ()


def test_after_an_empty_answer_a_cut_one_is_doubted_too(desk: Desk) -> None:
    assert desk.look(hidden=JOBS).suspended
    assert desk.look(hidden=JOBS[1:]).suspended
    assert desk.look(hidden=FIRST_THIRD + OTHER_THIRD).suspended
    assert desk.look(hidden=FIRST_THIRD).suspended
    assert desk.look().suspended == ()


def test_after_a_cut_answer_one_that_is_cut_more_is_doubted_too(desk: Desk) -> None:
    assert desk.look(hidden=FIRST_THIRD + OTHER_THIRD[:1]).suspended
    assert desk.look(hidden=FIRST_THIRD + OTHER_THIRD).suspended
    assert desk.look(hidden=FIRST_THIRD + OTHER_THIRD).suspended == ()


def test_jobs_whose_end_is_known_vanish_without_a_wait(desk: Desk) -> None:
    desk.known = set(JOBS[:23])
    assert desk.look(hidden=JOBS[:23]).suspended == ()
    assert len(desk.asked) == 1


def test_jobs_that_started_explain_themselves_and_nobody_is_asked(desk: Desk) -> None:
    for job in JOBS[:20]:
        desk.cluster.start(job)
    assert desk.look().suspended == ()
    assert desk.asked == []


def test_a_queue_of_many_short_jobs_never_suspends_cycles(desk: Desk) -> None:
    for turn in range(6):
        fresh = [f"t{turn}-{number}" for number in range(24)]
        desk.submit(*fresh)
        desk.known |= {*JOBS, *(f"t{turn - 1}-{number}" for number in range(24))}
        assert desk.look(hidden=desk.known).suspended == ()
    assert len(desk.asked) == 6


def test_all_running_jobs_that_vanish_are_asked_for_however_few(desk: Desk) -> None:
    desk.cluster.start("j1")
    assert desk.look().suspended == ()
    assert desk.look(hidden=["j1"]).suspended
    assert desk.look().suspended == ()
    desk.known = {"j1"}
    assert desk.look(hidden=["j1"]).suspended == ()


def test_a_few_jobs_of_a_short_queue_may_vanish(desk: Desk) -> None:
    desk.known = set(JOBS[3:])
    assert desk.look(hidden=JOBS[3:]).suspended == ()
    desk.known = set()
    desk.asked.clear()
    assert desk.look(hidden=JOBS[1:]).suspended == ()
    assert desk.asked == []
    assert desk.look(hidden=JOBS).suspended  # nothing is left


def test_a_share_of_the_nodes_that_vanishes_suspends_a_cycle(desk: Desk) -> None:
    desk.cluster.nodes = [a_node(name=f"node{number}") for number in range(1, 5)]
    assert desk.look().suspended == ()
    assert desk.look(hidden=["node4"]).suspended == ()
    hidden = ["node4", "node3", "node2"]
    assert desk.look(hidden=hidden).suspended[0] == "2 of 3 nodes vanished at once: one cycle to settle"
    assert desk.look(hidden=hidden).suspended == ()


def test_a_pause_asks_nobody_and_reverts_what_is_seen(desk: Desk) -> None:
    desk.world = lambda now: replace(Table().world(now), paused="by root")
    assert desk.look(hidden=FIRST_THIRD).suspended[0] == "paused: by root"
    assert desk.asked == [] and desk.applied() == {}
