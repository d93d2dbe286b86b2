"""What a witness notes is what the plain simulator was left with, pass by pass."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helios.services.qssf import shortest_service_first
from helios.simulate import ORDERS, Backfill, JobTrace, Reservation, WaitBound, replay
from helios.simulate.core.state import NEVER
from tests.examples import examples

from .builders import a_shape, a_workload
from .crowds import clusters_with_jobs
from .reference import ReferenceSimulator

ALL_ORDERS = {**ORDERS, "qssf": shortest_service_first}
usual = settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Noting(ReferenceSimulator):
    """Writes down, after each pass, what there is of free GPUs, and who waits in which order."""

    def schedule(self, partition, now):
        super().schedule(partition, now)
        sizes = range(sum(partition.free) + 1)
        row = {
            "queue": partition.in_order(),
            "free": sum(partition.free),
            "room": max(size for size in sizes if size == 0 or partition.placement(size) is not None),
        }
        if row["queue"] and row["room"]:
            row["shadow"] = self.shadow(partition, row["queue"][0], now)
        for job in partition.pending:
            self.seen.setdefault(job.position, {})[now] = row

    def shadow(self, partition, head, now):
        """Return when the head is expected to start, going by what the pass has left."""
        if self.backfill == "nodes":
            return None if self.closed and head.key == -np.inf else self.reservation(partition, head, now)[0]
        if self.backfill != "easy":
            return None
        for end in sorted({job.planned_end for job in partition.running}):
            released = sum(job.gpus for job in partition.running if job.planned_end <= end)
            if sum(partition.free) + released >= head.gpus:
                return end
        return None


def noted_by_the_reference(workload, shape, *, keys, estimates, **options):
    simulator = Noting(workload, shape, preemptive=False, **options)
    simulator.seen = {}
    for job in simulator.jobs:
        job.key, job.estimate = float(keys[job.position]), int(estimates[job.position])
    simulator.play()
    return simulator


@pytest.mark.parametrize("backfill", list(Backfill))
@pytest.mark.parametrize("guarded", [False, True])
@given(case=clusters_with_jobs(), order=st.sampled_from(sorted(ALL_ORDERS)), which=st.integers(0, 29))
@usual
def test_a_job_trace_notes_what_each_pass_left(backfill, guarded, case, order, which):
    shape, workload, estimates = case
    watched = JobTrace(which % len(workload))
    run_time_s = workload.run_time_s.astype(np.float64)
    closed = guarded and backfill is Backfill.NODES
    ours = replay(
        workload,
        shape,
        backfill=backfill,
        order=ALL_ORDERS[order],
        run_time_s=run_time_s,
        estimate_s=estimates,
        guard=WaitBound.constant(7) if guarded else None,
        reservation=Reservation(closed=True) if closed else None,
        watch=watched,
    )
    keys = ALL_ORDERS[order](submitted_s=workload.submitted_s, gpus=workload.gpus, run_time_s=run_time_s)
    theirs = noted_by_the_reference(
        workload,
        shape,
        keys=keys,
        estimates=estimates,
        backfill=str(backfill),
        patience=(lambda now: 7) if guarded else None,
        closed=closed,
    )
    start = int(ours.started_s[watched.job])
    assert ours.started_s.tolist() == [job.first_start for job in theirs.jobs]
    passes = {now: row for now, row in theirs.seen.get(watched.job, {}).items() if now < start}
    notes = [note for note in watched.notes if note["at_s"] < start]
    assert [note["at_s"] for note in notes] == list(passes)
    for note, row in zip(notes, passes.values(), strict=True):
        size = theirs.jobs[watched.job].gpus
        incumbent = next(job for job in row["queue"] if job.gpus <= size)
        assert (note["free"], note["room"]) == (row["free"], row["room"])
        assert note["head"] == row["queue"][0].position
        assert backfill is Backfill.NONE or note["incumbent"] == incumbent.position
        if size <= row["room"] and row["queue"][0].position != watched.job:
            assert note["shadow_s"] == (NEVER if row["shadow"] is None else row["shadow"])
        else:
            assert note["shadow_s"] == NEVER


def test_the_first_in_line_and_the_first_as_small_are_noted() -> None:
    workload = a_workload([(0, 100, 8), (1, 10, 8), (2, 10, 2), (3, 10, 4)])
    watched = JobTrace(3)
    replay(workload, a_shape((2, 4)), backfill=Backfill.SKIP, order=ORDERS["fifo"], watch=watched)
    assert watched.notes[["at_s", "head", "incumbent"]].tolist() == [(3, 1, 2), (100, 2, 2)]
    assert watched.place == (3, 3)


def test_a_job_that_starts_at_once_leaves_no_note() -> None:
    watched = JobTrace(0)
    replay(a_workload([(0, 5, 1)]), a_shape((1, 1)), backfill=Backfill.NONE, order=ORDERS["fifo"], watch=watched)
    assert len(watched.notes) == 0
    assert watched.place == (0, 0)


def test_a_long_wait_is_noted_whole_however_many_passes_it_lasts() -> None:
    n = 10_000
    rows = [(0, n, 1), *((second, 1, 2) for second in range(1, n))]
    watched = JobTrace(1)
    replay(a_workload(rows), a_shape((1, 2)), backfill=Backfill.NONE, order=ORDERS["fifo"], watch=watched)
    assert watched.notes["at_s"].tolist() == list(range(1, n))
