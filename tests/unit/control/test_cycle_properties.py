"""Whatever services propose, whoever interrupts, wherever it crashes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from functools import cache
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from helios.actions import Action, Place, Reorder, Revert, SoftLimit
from helios.changes import Change
from helios.control import ActiveService, release
from helios.control.observed import helios_values, pending_jobs
from helios.testing import Crash, FakeCluster, FakeLedger
from tests.examples import examples
from tests.unit.control.table import ACTIVE, OFF, SHADOW, Says, Table, active, all_is_well, canary, order, soft_limit

FEW = settings(max_examples=examples(25))
FREE = ("j1", "j2", "j3")
OTHERS = ("held", "reserved", "foreign", "theirs", "running")
EVERY_ID = (*FREE, *OTHERS, "nobody")

job_ids = st.sampled_from(EVERY_ID)
urgencies = st.floats(-1, 1)
partitions = st.sampled_from(["gpu", "debug"])


@st.composite
def orders(draw: st.DrawFn) -> Reorder:
    chosen = draw(st.dictionaries(job_ids, urgencies))
    ranked = sorted(chosen.items(), key=lambda item: -item[1])
    places = tuple(Place(job_id=job, urgency=urgency, reason="so") for job, urgency in ranked)
    return Reorder(partition=draw(partitions), order=places, reason="so")


limits = st.builds(
    SoftLimit, job_id=job_ids, run_time=st.timedeltas(timedelta(seconds=1), timedelta(hours=3)), reason=st.just("so")
)
restores = st.builds(Revert, job_ids=st.none() | st.lists(job_ids, unique=True).map(tuple), reason=st.just("no longer"))
proposals = st.lists(orders() | limits | restores, max_size=4)
modes = st.sampled_from([ACTIVE, SHADOW, OFF, canary("gpu"), canary(percent=50)])


def a_table_with_others_jobs() -> Table:
    """Beside free jobs: held, reserved, foreign, twice changed by an admin, and running ones."""
    return deepcopy(_made_once())


@cache
def _made_once() -> Table:
    table = Table()
    table.submit(*FREE, "held", "reserved", "foreign", "running")
    table.submit("theirs", urgency=0.3)
    table.cluster.hold("held")
    table.cluster.admin_sets_priority("reserved", 5)
    table.cluster.admin_sets_site_factor("foreign", 537)  # not Helios', though it bears the mark
    table.cluster.start("running")
    service = Says(order(theirs=0.3))
    table.cycle(active(service))
    for _ in range(2):
        table.cluster.admin_sets_site_factor("theirs", 0)
        table.cycle(active(service))
    assert (table.ledger.applied_changes()["overridden"] == 1).any()
    return table


def set_on(cluster: FakeCluster, names: Sequence[str], *, only_order: Sequence[str] = ()) -> dict[str, Any]:
    return {
        name: cluster.site_factor_of(name)
        if name in only_order
        else (cluster.site_factor_of(name), cluster.time_min_of(name))
        for name in names
    }


@FEW
@given(cycles=st.lists(st.tuples(proposals, modes, proposals, modes), min_size=1, max_size=4))
def test_no_proposal_writes_foreign_or_running_jobs(
    cycles: list[tuple[list[Action], Any, list[Action], Any]],
) -> None:
    table = a_table_with_others_jobs()
    before = set_on(table.cluster, OTHERS, only_order=["theirs"])
    for first, mode, second, other_mode in cycles:
        table.cycle(active(Says(*first), mode=mode), active(Says(*second), name="other", mode=other_mode))
        assert set_on(table.cluster, OTHERS, only_order=["theirs"]) == before


@FEW
@given(cycles=st.lists(st.tuples(proposals, modes, proposals, modes), min_size=1, max_size=4))
def test_no_job_outside_scope_and_record_is_ever_written(
    cycles: list[tuple[list[Action], Any, list[Action], Any]],
) -> None:
    table = a_table_with_others_jobs()
    changed: set[str] = set()
    for first, mode, second, other_mode in cycles:
        jobs = pending_jobs(table.cluster.snapshot())
        table.cluster.applied.clear()
        table.cycle(active(Says(*first), mode=mode), active(Says(*second), name="other", mode=other_mode))
        may = {name for name in FREE for one in (mode, other_mode) if one.writes and one.covers(jobs[name])}
        for change in (change for changes in table.cluster.applied for change in changes):
            if change.is_revert:
                assert change.target in changed
            else:
                assert change.target in may | {"theirs"}  # whose soft limit is not theirs
                changed.add(change.target)


@FEW
@given(cycles=st.lists(st.tuples(proposals, modes), min_size=1, max_size=4))
def test_every_mark_on_the_cluster_is_in_the_record(
    cycles: list[tuple[list[Action], Any]],
) -> None:
    table = Table()
    table.submit(*FREE)
    for proposal, mode in cycles:
        table.cycle(active(Says(*proposal), mode=mode))
        frame = table.ledger.applied_changes()
        real = frame[frame["mode"] != "shadow"]
        assert {(str(setting), job) for setting, job in zip(real["setting"], real["job_id"], strict=True)} == {
            (setting.value, job)
            for setting, job in helios_values(list(pending_jobs(table.cluster.snapshot()).values()))
        }


@FEW
@given(cycles=st.lists(st.tuples(proposals, proposals), min_size=1, max_size=3))
def test_whatever_is_proposed_asking_again_writes_nothing_more(
    cycles: list[tuple[list[Action], list[Action]]],
) -> None:
    table = Table()
    table.submit(*FREE)
    for first, second in cycles:
        active_services = (active(Says(*first)), active(Says(*second), name="other"))
        table.cycle(*active_services)
        writes, records = table.cluster.writes, table.ledger.records
        table.cycle(*active_services)
        assert (table.cluster.writes, table.ledger.records) == (writes, records)


class Watched(FakeLedger):
    """A ledger that lets somebody else come in at any of its calls, before it answers."""

    def __init__(self) -> None:
        super().__init__()
        self.interruptions: dict[int, Callable[[], None]] = {}
        self.calls = 0

    def _answer(self) -> None:
        self.calls += 1
        interruption = self.interruptions.pop(self.calls, None)
        if interruption is not None:
            interruption()
        super()._answer()


class Eyed:
    """A cluster as one holder sees it, that keeps who had the lease when that holder wrote."""

    def __init__(
        self, cluster: FakeCluster, ledger: FakeLedger, holder: str, writers: list[tuple[str, str | None]]
    ) -> None:
        self._cluster, self._ledger, self._holder, self._writers = cluster, ledger, holder, writers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def apply(self, changes: Sequence[Change[float]]) -> Any:
        self._writers.append((self._holder, self._ledger.holder))
        return self._cluster.apply(changes)


@FEW
@given(
    at=st.integers(1, 12),
    slept_s=st.sampled_from([0, 100, 179, 181, 400]),
    later_s=st.sampled_from([0, 60, 200]),
)
def test_two_holders_never_both_write(at: int, slept_s: int, later_s: int) -> None:
    ledger, cluster = Watched(), FakeCluster()
    writers: list[tuple[str, str | None]] = []
    first, second = (
        Table(cluster=Eyed(cluster, ledger, name, writers), ledger=ledger, holder=name)  # type: ignore[arg-type]
        for name in ("helios-1", "helios-2")
    )
    first.submit("j1")

    def overtake() -> None:
        second.cycle(active(Says(order(j1=-0.5))), after=timedelta(seconds=slept_s))
        cluster.tick(timedelta(seconds=-slept_s))

    ledger.interruptions[at] = overtake
    first.cycle(active(Says(order(j1=0.5))))
    first.cycle(active(Says(order(j1=0.6))), after=timedelta(seconds=later_s))
    second.cycle(active(Says(order(j1=-0.6))))
    assert writers
    assert all(writer == holder for writer, holder in writers)


def crash_at_call(ledger: FakeLedger, number: int) -> None:
    """Let the process die in the number-th call of the ledger's ``record``."""
    left, record = [number], ledger.record

    def dying(**arguments: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Crash("died writing down")
        record(**arguments)

    ledger.record = dying  # type: ignore[method-assign]


def is_clean(table: Table) -> bool:
    return not helios_values(list(pending_jobs(table.cluster.snapshot()).values()))


ACTIVE_SERVICES: list[list[ActiveService]] = [
    [active(Says(order(j1=0.5, j2=-0.5)), name="a"), active(Says(soft_limit("j3", minutes=20)), name="b")],
    [active(Says(order(j1=-0.9, j3=0.4)), name="a"), active(Says(soft_limit("j2", minutes=30)), name="b")],
]


@FEW
@given(
    dies_recording=st.none() | st.integers(1, 4),
    dies_writing=st.none() | st.integers(0, 7),
    how=st.sampled_from(["next cycle", "release", "pause"]),
)
def test_after_a_crash_anywhere_everything_can_be_taken_back(
    dies_recording: int | None, dies_writing: int | None, how: str
) -> None:
    table = Table()
    table.submit(*FREE)
    table.submit("user", user_soft_limit_s=600.0)
    if dies_recording is not None:
        crash_at_call(table.ledger, dies_recording)
    if dies_writing is not None:
        table.cluster.crash_after(writes=dies_writing)
    for active_services in ACTIVE_SERVICES:
        try:
            table.cycle(*active_services)
        except Crash:
            break
    table.cluster.crash_after(writes=None)
    table.ledger.record = FakeLedger.record.__get__(table.ledger)  # type: ignore[method-assign]
    take_back(table, how)
    assert is_clean(table)
    assert table.cluster.time_min_of("user") == 10
    assert table.ledger.applied_changes().empty


def take_back(table: Table, how: str) -> None:
    if how == "next cycle":
        table.cycle(*(active(Says(), name=name, mode=SHADOW) for name in "ab"))
    elif how == "pause":
        table.world = lambda now: replace(all_is_well(now), paused="enough")
        table.cycle()
    else:
        now = table.cluster.now
        release(cluster=table.cluster, ledger=table.ledger, now=now, holder="helios-1", reason="enough")
