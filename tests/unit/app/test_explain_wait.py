"""Every claim of a job's story is checked by brute force, on the plain simulator of the simulator's own tests."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helios.app.explain_past import JobUnknown
from helios.app.explain_wait import explain_wait
from helios.app.history import LoadedHistory
from helios.app.scenarios import BASELINE, ORDERS, Policy, RunTimes, Scenario
from helios.app.whatif import WhatIfRequest
from helios.errors import UsageError
from helios.report.job import Cause, JobExplanation, ReplayedWait
from helios.simulate import RESERVING, Backfill
from tests.builders import a_job, jobs_frame
from tests.examples import examples
from tests.unit.simulate.builders import a_shape, a_workload
from tests.unit.simulate.test_replay_job_trace import noted_by_the_reference

EPOCH = datetime(2020, 1, 1, tzinfo=UTC)
OF_TEN = 30
"""Seconds of a unit of time, so that waits are long enough for advice."""
POLICIES = [Policy.FIFO, Policy.FEWEST_GPUS, Policy.SJF]


def second(moment: datetime) -> int:
    return int((moment - EPOCH).total_seconds())


def a_history(rows: list[tuple[int, int, int, int]], **overrides: Any) -> LoadedHistory:
    """Jobs 0, 1, ... of (submitted, run time, GPUs, limit), s, as user u0, u1, ..."""
    jobs = [
        a_job(
            job_id=str(place),
            user=f"u{place}",
            submitted_at=EPOCH + timedelta(seconds=submitted),
            run_time_s=float(run_time),
            gpus=gpus,
            time_limit_s=float(limit),
            **overrides,
        )
        for place, (submitted, run_time, gpus, limit) in enumerate(rows)
    ]
    return LoadedHistory(cluster="dev", jobs=jobs_frame(*jobs), timezone="UTC")


def a_scenario(policy: Policy = Policy.FIFO, backfill: Backfill = Backfill.EASY) -> Scenario:
    return Scenario(
        policy=policy,
        backfill=backfill,
        run_times=RunTimes.TRUE if policy is Policy.SJF else None,
        estimates=RunTimes.LIMIT if backfill in RESERVING else None,
    )


def a_story(
    rows: list[tuple[int, int, int, int]],
    job: str,
    *,
    nodes: int = 1,
    gpus_per_node: int = 8,
    scenarios: tuple[Scenario, ...] = (BASELINE,),
    **overrides: Any,
) -> ReplayedWait:
    request = WhatIfRequest(scenarios=scenarios, nodes={"gpu": nodes}, gpus_per_node=gpus_per_node)
    return replay_of(explain_wait(a_history(rows, **overrides), request, job))


def replay_of(explained: JobExplanation) -> ReplayedWait:
    assert explained.replay is not None
    return explained.replay


def in_reference(rows: list[tuple[int, int, int, int]], scenario: Scenario, *, nodes: int, gpus_per_node: int) -> Any:
    workload = a_workload([row[:3] for row in rows])
    keys = ORDERS[scenario.policy](
        submitted_s=workload.submitted_s, gpus=workload.gpus, run_time_s=workload.run_time_s.astype(np.float64)
    )
    return noted_by_the_reference(
        workload,
        a_shape((nodes, gpus_per_node)),
        keys=keys,
        estimates=[row[3] for row in rows],
        backfill=str(scenario.backfill),
    )


@st.composite
def crowds(draw: st.DrawFn) -> tuple[list[tuple[int, int, int, int]], int, int]:
    """A few nodes, and jobs of few sizes that come close together."""
    nodes, gpus_per_node = draw(st.integers(1, 4)), draw(st.integers(1, 8))
    sizes = st.integers(1, nodes * gpus_per_node) | st.integers(1, min(4, nodes * gpus_per_node))
    row = st.tuples(st.integers(0, 40), st.integers(0, 40), sizes, st.integers(0, 60))
    rows = sorted(draw(st.lists(row, min_size=2, max_size=25)))
    units = [(OF_TEN * at, OF_TEN * ran, gpus, OF_TEN * limit) for at, ran, gpus, limit in rows]
    return units, nodes, gpus_per_node


def assert_held(story: ReplayedWait, simulator: Any, job: int) -> None:
    """Check each stretch against what the plain simulator was left with by the passes in it."""
    me = simulator.jobs[job]
    passes = {now: row for now, row in simulator.seen.get(me.position, {}).items() if now < me.first_start}
    for interval in story.intervals:
        begin, end = second(interval.began_at), second(interval.ended_at)
        within = {now: row for now, row in passes.items() if begin <= now < end}
        assert interval.free == (min(r["free"] for r in within.values()), max(r["free"] for r in within.values()))
        rooms = [row["room"] for row in within.values()]
        assert interval.largest_that_fits == (min(rooms), max(rooms))
        fitted = scattered = 0
        for now, until in zip(within, [*list(within)[1:], end], strict=True):
            row = within[now]
            rivals = [job for job in row["queue"] if simulator.backfill != "skip" or job.gpus <= me.gpus]
            first, fits = rivals[0], me.gpus <= row["room"]
            assert first.gpus > row["room"], "the first in line is blocked"
            fitted += (until - now) * fits
            scattered += (until - now) * (first.gpus <= row["free"])
            if interval.cause is Cause.RESOURCES:
                assert first is me and row["free"] < me.gpus
            elif interval.cause is Cause.PIECES:
                assert first is me and row["free"] >= me.gpus
            else:
                assert (
                    interval.blocker is not None and interval.blocker.job_id == str(first.position) and first is not me
                )
            if interval.cause is Cause.RESERVED:
                assert fits and simulator.backfill in RESERVING and now + me.estimate > row["shadow"]
            elif simulator.backfill in RESERVING:
                assert not fits
        assert (interval.fitted_s, interval.scattered_s) == (fitted, scattered)


@pytest.mark.parametrize("backfill", list(Backfill))
@given(crowd=crowds(), policy=st.sampled_from(POLICIES), which=st.integers(0, 24))
@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_claim_holds_by_brute_force(backfill: Backfill, crowd: Any, policy: Policy, which: int) -> None:
    rows, nodes, gpus_per_node = crowd
    shape = {"nodes": nodes, "gpus_per_node": gpus_per_node}
    job, scenario = which % len(rows), a_scenario(policy, backfill)
    story = a_story(rows, str(job), scenarios=(scenario,), **shape)
    simulator = in_reference(rows, scenario, **shape)
    me = simulator.jobs[job]
    # The stretches are the wait, whole and without gaps.
    edges = [EPOCH + timedelta(seconds=me.submitted), *(interval.ended_at for interval in story.intervals)]
    assert [interval.began_at for interval in story.intervals] == edges[:-1]
    assert second(edges[-1]) == second(story.starts[0].started_at) == me.first_start
    assert story.starts[0].wait_s == me.first_start - me.submitted
    assert sum(interval.length_s for interval in story.intervals) == story.starts[0].wait_s
    assert_held(story, simulator, job)
    # Who came later and went first.
    later = [other for other in simulator.jobs if other.submitted > me.submitted and other.first_start < me.first_start]
    assert story.overtaken_by_order == sum(other.key < me.key for other in later)
    assert story.overtaken_by_order + story.overtaken_by_backfill == len(later)
    # Who held what meanwhile.
    in_line = [s for s in story.intervals if s.cause in {Cause.RESOURCES, Cause.PIECES}]
    if 2 * sum(s.length_s for s in in_line) < story.starts[0].wait_s:
        in_line = list(story.intervals)
    spans = [(second(s.began_at), second(s.ended_at)) for s in in_line]
    held = {
        str(other.position): sum(max(0, min(e, other.end) - max(b, other.first_start)) for b, e in spans)
        for other in simulator.jobs
        if other is not me
    }
    for holder in story.holders:
        assert holder.held_s == held[holder.job_id]
    most = sorted((held[str(other.position)] * other.gpus for other in simulator.jobs if other is not me), reverse=True)
    assert [h.held_s * h.gpus for h in story.holders] == [value for value in most[:3] if value > 0]
    # What it had been under today's order, and with the advice.
    for other in story.starts[1:]:
        assert second(other.started_at) == in_reference(rows, BASELINE, **shape).jobs[job].first_start
    assert len(story.starts) == 1 + (scenario != BASELINE)
    if story.shorter is not None:
        assert story.shorter.planned_s >= rows[job][1]
        advised = [*rows[:job], (*rows[job][:3], story.shorter.planned_s), *rows[job + 1 :]]
        start = in_reference(advised, scenario, **shape).jobs[job].first_start
        assert start <= second(story.shorter.started_at) < me.first_start


def test_advice_is_given_where_a_shorter_limit_would_have_let_it_pass() -> None:
    """Job 1 waits for the whole node; job 2 fits beside job 0, is done before it, but claims longer."""
    rows = [(0, 3600, 4, 3600), (60, 60, 8, 60), (120, 600, 2, 86_400)]
    story = a_story(rows, "2")
    assert story.intervals[0].cause is Cause.RESERVED
    assert story.shorter is not None
    assert story.shorter.planned_s == 3480
    assert second(story.shorter.started_at) == 120


def test_a_wait_for_a_cycle_and_then_for_nodes_has_both_causes() -> None:
    rows = [(0, 3600, 8, 3600), (60, 7200, 8, 7200), (120, 60, 8, 60)]
    story = a_story(rows, "2")
    assert [(interval.cause, interval.length_s) for interval in story.intervals] == [
        (Cause.PRIORITY, 3480),
        (Cause.RESOURCES, 7200),
    ]
    assert (story.rank, story.queued) == (2, 2)


def test_as_many_gpus_as_it_asks_for_may_be_free_in_pieces() -> None:
    rows = [(0, 600, 3, 600), (0, 600, 3, 600), (60, 60, 2, 60)]
    (interval,) = a_story(rows, "2", nodes=2, gpus_per_node=4).intervals
    assert (interval.cause, interval.free, interval.largest_that_fits) == (Cause.PIECES, (2, 2), (1, 1))
    assert interval.scattered_s == interval.length_s == 540


def test_a_wait_that_is_recorded_is_told_beside() -> None:
    request = WhatIfRequest(scenarios=(BASELINE,), nodes={"gpu": 1}, gpus_per_node=8)
    waited = explain_wait(a_history([(0, 60, 8, 60)]), request, "0").waited_s
    never = explain_wait(a_history([(0, 60, 8, 60)], started_at=None, ended_at=None), request, "0").waited_s
    assert waited == 5.0
    assert np.isnan(never)


def test_what_preempts_is_refused() -> None:
    srtf = Scenario(policy=Policy.SRTF, backfill=Backfill.NONE, run_times=RunTimes.TRUE)
    with pytest.raises(UsageError, match="srtf preempts"):
        a_story([(0, 60, 8, 60)], "0", scenarios=(srtf,))


def test_an_unknown_job_is_named_with_its_neighbours() -> None:
    with pytest.raises(JobUnknown, match="Near it: 1, 2, 3"):
        a_story([(0, 60, 1, 60)] * 4, "7")


def test_a_job_that_was_not_replayed_is_not_called_unknown() -> None:
    history = a_history([(0, 60, 1, 60), (60, 60, 1, 60)])
    request = WhatIfRequest(scenarios=(BASELINE,), nodes={"gpu": 1}, since=EPOCH + timedelta(seconds=30))
    with pytest.raises(JobUnknown, match=r"submitted .* UTC.*was not replayed"):
        explain_wait(history, request, "0")


def test_array_tasks_and_requeued_runs_are_found() -> None:
    jobs = [
        a_job(job_id="7", submitted_at=EPOCH, run_time_s=600.0, gpus=8),
        a_job(job_id="7", submitted_at=EPOCH + timedelta(seconds=60), restart=1, gpus=8),
        a_job(job_id="9", submitted_at=EPOCH + timedelta(seconds=120), array_job_id="8", array_task_id="3"),
    ]
    history = LoadedHistory(cluster="dev", jobs=jobs_frame(*jobs), timezone="UTC")
    request = WhatIfRequest(scenarios=(BASELINE,), nodes={"gpu": 1})
    second_run = explain_wait(history, request, "7-2")
    assert (second_run.job_id, replay_of(second_run).starts[0].wait_s) == ("7-2", 540)
    assert any("used 2 times" in note for note in second_run.remarks)
    assert replay_of(explain_wait(history, request, "7")).starts[0].wait_s == 0
    assert explain_wait(history, request, "8_3").job_id == "9"
