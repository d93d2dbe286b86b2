"""Findings of a study against plain computations on small histories."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.app.history import LoadedHistory
from helios.errors import NotEnoughHistory
from helios.metrics.blocks import Blocks, local_edges
from helios.metrics.capacity import header_capacity
from helios.metrics.history import COLUMNS, StudyHistory, read_history
from helios.metrics.trials import last_alike, next_alike
from helios.study.capacity import find_capacity
from helios.study.comparison import compare
from helios.study.nightly import compare_weeks
from helios.study.statements import jobs as findings
from helios.study.study import NodeRecords, Study, study
from tests.builders import a_job, jobs_frame
from tests.examples import examples

FIRST = pd.Timestamp("2020-01-06T00:00:00Z")  # a Monday
HOUR = pd.Timedelta(hours=1)


def history_of(*jobs: dict[str, Any], **options: Any) -> StudyHistory:
    return read_history(jobs_frame(*jobs)[list(COLUMNS)], cluster="c", timezone="UTC", **options)


def at(hours: float, **values: Any) -> dict[str, Any]:
    """A job submitted so many hours after ``FIRST`` that starts at once."""
    submitted_at = FIRST + hours * HOUR
    return a_job(submitted_at=submitted_at, started_at=values.pop("started_at", submitted_at), **values)


def study_of(*jobs: dict[str, Any], **options: Any) -> Study:
    loaded = LoadedHistory(cluster="c", jobs=jobs_frame(*jobs), timezone="UTC")
    return study(loaded, **options)


def test_hours_outside_the_window_are_left_out():
    jobs = [at(0, run_time_s=10 * 3600, gpus=2), at(8, run_time_s=10 * 3600, gpus=1), at(30, gpus=1)]
    found = history_of(*jobs, since=FIRST + 4 * HOUR, until=FIRST + 12 * HOUR)
    assert found.hours().tolist() == [12.0, 4.0]
    assert found.hours_by_block().sum() == 16.0


def test_running_jobs_count_to_the_end_of_the_window():
    job = at(1, run_time_s=math.nan, ended_at=None, state="RUNNING", gpus=3)
    found = history_of(at(0), job, since=FIRST, until=FIRST + 5 * HOUR)
    assert found.hours()[1] == 12.0


def test_without_starts_hours_are_those_of_submitted_jobs():
    jobs = [at(k, started_at=None, ended_at=None, run_time_s=7200, gpus=2) for k in range(3)]
    found = history_of(*jobs, since=FIRST, until=FIRST + 1.5 * HOUR)
    assert not found.has_starts
    assert found.hours().sum() == 8.0


def test_clock_that_runs_backwards_is_counted_and_unknown():
    backwards = at(1, run_time_s=-3600, ended_at=FIRST)
    found = history_of(at(0), backwards)
    assert found.repaired == {"ends before its start": 1}
    assert found.hours()[1] == 0


def test_job_cancelled_in_the_queue_never_ran():
    cancelled = at(1, state="CANCELLED", run_time_s=0, started_at=FIRST + 3 * HOUR, ended_at=FIRST + 3 * HOUR)
    found = history_of(at(0), cancelled)
    assert found.ran.tolist() == [True, False]
    assert np.isnan(found.wait_s[1])


def test_interval_is_that_of_the_jackknife():
    blocks = Blocks(kind="days", edges_s=np.arange(7) * 86_400)
    part, whole = np.array([1.0, 4, 2, 5, 3, 2]), np.array([10.0, 12, 9, 11, 10, 8])
    found = blocks.ratio(part, whole)
    without = [(part.sum() - p) / (whole.sum() - w) for p, w in zip(part, whole, strict=True)]
    error = math.sqrt(5 / 6 * sum((value - np.mean(without)) ** 2 for value in without))
    assert found.value == pytest.approx(part.sum() / whole.sum())
    assert found.low is not None
    assert found.value - found.low == pytest.approx(2.5706 * error, rel=1e-3)  # Student's t with 5 degrees


def test_fewer_than_five_blocks_have_no_interval():
    blocks = Blocks(kind="days", edges_s=np.arange(5) * 86_400)
    assert blocks.ratio(np.ones(4), np.full(4, 2.0)).low is None


BLOCKS = Blocks(kind="days", edges_s=np.array([0, 3, 10, 11, 20, 26, 30]))
spells = st.lists(
    st.tuples(st.integers(-5, 35), st.integers(-5, 35), st.integers(0, 3), st.integers(-1, 2)), min_size=1, max_size=9
)


@settings(max_examples=examples(30))
@given(spells)
def test_integrals_over_blocks_are_those_of_each_second(world):
    begins, ends, weight, group = np.array(world, dtype=np.int64).T
    found = BLOCKS.spread_groups(begins, ends, weight, group, 3)
    for one in range(3):
        for block, (first, last) in enumerate(pairwise(BLOCKS.edges_s)):
            seconds = sum(w for b, e, w, g in world for second in range(first, last) if g == one and b <= second < e)
            assert found[one, block] == seconds


values_of_moments = st.lists(
    st.tuples(st.integers(0, 29), st.integers(0, 9), st.integers(1, 5)), min_size=1, max_size=20
)


@settings(max_examples=examples(30))
@given(values_of_moments, st.floats(0, 1))
def test_intervals_of_quantiles_are_those_without_each_block(world, share):
    moment, value, weight = np.array(world, dtype=np.int64).T
    value, weight = value.astype(float), weight.astype(float)
    block = BLOCKS.number(moment)
    rest = [block != one for one in np.unique(block)]
    found = BLOCKS.quantile(value, moment, share)
    without = np.array([np.quantile(value[of], share) for of in rest if of.any()])
    expected = BLOCKS.estimate(float(np.quantile(value, share)), without)
    assert (found.value, found.low, found.high) == pytest.approx((expected.value, expected.low, expected.high))
    found = BLOCKS.weighted_median(value, moment, weight)
    assert found.value == findings.weighted_median(value, weight)
    if len(rest) > 1:
        without = np.array([findings.weighted_median(value[of], weight[of]) for of in rest])
        expected = BLOCKS.estimate(found.value, without)
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_days_begin_at_local_midnight_across_daylight_saving():
    first = int(pd.Timestamp("2020-03-28T12:00:00", tz="Europe/Berlin").timestamp())
    edges = local_edges(first, first + 3 * 86_400, timezone="Europe/Berlin")
    lengths_h = (np.diff(edges) / 3600).tolist()
    assert lengths_h[:3] == [12.0, 23.0, 24.0]


worlds = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 1), st.integers(1, 2), st.integers(0, 4), st.integers(0, 1)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=examples(30))
@given(worlds)
def test_last_and_next_alike_are_those_of_a_plain_search(world):
    world = sorted(world)
    jobs = [
        at(hour, user="ab"[user], gpus=gpus, run_time_s=3600.0 * length, state=("FAILED", "COMPLETED")[good])
        for hour, user, gpus, length, good in world
    ]
    found = history_of(*jobs)
    last, gap_s = last_alike(found), next_alike(found)
    for me, (hour, user, gpus, length, _) in enumerate(world):
        like = [k for k, other in enumerate(world) if other[1:3] == (user, gpus)]
        before = [k for k in like if world[k][0] + world[k][3] < hour]
        newest = max((world[k][0] + world[k][3] for k in before), default=None)
        assert (last[me] < 0) == (not before)
        if before:
            assert world[last[me]][0] + world[last[me]][3] == newest
        after = [world[k][0] - hour - length for k in like if world[k][0] >= hour + length and (length or k != me)]
        if length:
            assert gap_s[me] == (3600 * min(after) if after else np.inf)


def test_failures_count_from_an_hour_on_and_nodes_apart():
    jobs = [
        at(0, state="FAILED", run_time_s=7200, time_limit_s=36_000, gpus=1),
        at(1, state="FAILED", run_time_s=1800, gpus=2),
        at(2, state="NODE_FAIL", run_time_s=7200, time_limit_s=36_000, gpus=2),
        at(3, state="COMPLETED", run_time_s=3600, gpus=3),
        at(20),
    ]
    found = findings.long_failures(history_of(*jobs))
    hours = 2 + 1 + 4 + 3
    assert found.estimate.value == pytest.approx(6 / hours, rel=1e-3)
    assert found.parts["share_of_hours_by_nodes"] == pytest.approx(4 / hours, rel=1e-3)
    assert found.n == 2


def test_a_failure_at_the_time_limit_is_no_late_failure():
    cut = at(0, state="FAILED", run_time_s=7200, time_limit_s=7200, gpus=1)
    found = history_of(cut, at(9, run_time_s=7200, time_limit_s=36_000, gpus=1), until=FIRST + 24 * HOUR)
    assert findings.long_failures(found).estimate.value == 0.0
    assert findings.hours_at_limit(found).estimate.value == 0.5


def test_third_failure_in_a_row_counts_as_a_streak():
    jobs = [at(3 * k, state="FAILED", run_time_s=3600, gpus=1) for k in range(4)]
    found = findings.repeated_failures(history_of(*jobs, at(20, state="COMPLETED", user="b")))
    assert found.estimate.value == pytest.approx(2 / 4, rel=1e-2)
    assert found.parts["share_that_fails_after_failure"] == 1.0
    assert found.parts["share_that_fails"] == pytest.approx(4 / 5)


def test_hours_at_the_limit_include_what_was_cut_just_before():
    jobs = [
        at(0, state="TIMEOUT", run_time_s=3600, time_limit_s=3600, gpus=1),
        at(1.5, state="COMPLETED", run_time_s=3600, time_limit_s=3600, gpus=1),
        at(3, state="FAILED", run_time_s=3590, time_limit_s=3600, gpus=1),
        at(9, state="COMPLETED", run_time_s=3600, time_limit_s=7200, gpus=1),
    ]
    found = findings.hours_at_limit(history_of(*jobs, until=FIRST + 24 * HOUR))
    assert found.estimate.value == pytest.approx(7190 / 14390)
    # Only the first was sent again within an hour: half an hour later.
    assert found.parts["share_of_these_hours_sent_again"] == pytest.approx(3600 / 7190)


def test_limits_are_weighed_by_hours():
    jobs = [
        at(0, run_time_s=36_000, time_limit_s=36_000, gpus=8),
        *(at(k, run_time_s=60, time_limit_s=3600) for k in range(1, 6)),
    ]
    found = findings.long_limits(history_of(*jobs))
    assert found.estimate.value == 1.0
    assert found.parts["median_by_jobs"] == 60.0


def test_requeued_runs_are_lost_but_the_last():
    jobs = [
        at(0, job_id="7", restart=0, state="NODE_FAIL", run_time_s=3600, gpus=1),
        at(0, job_id="7", restart=1, run_time_s=3 * 3600, gpus=1, started_at=FIRST + 2 * HOUR),
        at(9, gpus=1, job_id="8", run_time_s=60),
    ]
    found = findings.lost_to_requeues(history_of(*jobs, until=FIRST + 10 * HOUR))
    assert found.estimate.value == pytest.approx(1 / (4 + 60 / 3600))


def test_runs_of_their_own_submission_are_lost_also_behind_the_last_one():
    jobs = [
        at(0, job_id="7", restart=0, state="PREEMPTED", run_time_s=3600, gpus=1),
        at(2, job_id="7", restart=1, run_time_s=3 * 3600, gpus=1),
    ]
    assert findings.lost_to_requeues(history_of(*jobs)).estimate.value == pytest.approx(1 / 4)


def test_parts_of_a_resized_job_and_an_id_used_again_lose_nothing():
    jobs = [
        at(0, job_id="7", restart=0, state="RESIZING", run_time_s=3600, gpus=1),
        at(0, job_id="7", restart=1, run_time_s=3600, gpus=1, started_at=FIRST + 2 * HOUR),
        at(9, job_id="7", restart=0, run_time_s=3600, gpus=1),
    ]
    assert findings.lost_to_requeues(history_of(*jobs)).estimate.value == 0


def test_concentration_is_of_users_with_hours():
    jobs = [at(k, user=f"u{k}", gpus=1, run_time_s=3600) for k in range(19)]
    jobs += [at(1, user="heavy", gpus=1, run_time_s=19 * 3600), at(2, user="idle", gpus=0)]
    found = findings.concentration(history_of(*jobs, until=FIRST + 48 * HOUR))
    assert found.n == 20
    assert found.estimate.value == 0.5


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=30))
@settings(max_examples=examples(20))
def test_gini_is_the_mean_difference_over_twice_the_mean(values):
    given_ = np.array(values)
    plain = np.abs(given_[:, None] - given_[None, :]).mean() / (2 * given_.mean())
    assert findings.gini(given_) == pytest.approx(plain, abs=1e-9)


def test_short_jobs_wait_behind_long_ones():
    long = at(0, run_time_s=10 * 3600, gpus=2)
    short = at(1, run_time_s=600, gpus=1, started_at=FIRST + 3 * HOUR)
    other = at(1, run_time_s=3600, gpus=1, started_at=FIRST + 2 * HOUR)
    found = findings.short_behind_long(history_of(long, short, other, until=FIRST + 12 * HOUR))
    # The short job waits 2 h of 3 h in all. In its second hour the long job holds 2 of the 3 GPUs in use.
    assert found.estimate.value == pytest.approx((1 + 2 / 3) / 3)
    assert found.parts["share_of_waiting_of_short_jobs"] == pytest.approx(2 / 3)


def test_job_whose_wait_is_unknown_does_not_wait_to_the_end():
    short = at(1, run_time_s=600, gpus=1, started_at=FIRST + 2 * HOUR)
    lost = at(1, state="FAILED", run_time_s=math.nan, started_at=None, ended_at=None, gpus=1)
    found = findings.short_behind_long(history_of(at(0), short, lost, until=FIRST + 100 * HOUR))
    assert found.parts["share_of_waiting_of_short_jobs"] == 1.0


def test_short_half_waits_a_larger_share():
    jobs = [
        at(k, run_time_s=run, started_at=FIRST + (k + 1) * HOUR) for k, run in enumerate([3600, 3600, 72_000, 72_000])
    ]
    history = history_of(*jobs)
    found = findings.who_waits(history, find_capacity(history))
    assert found.estimate.value == 0.5
    assert found.parts["long_p50"] == pytest.approx(1 / 21)


def test_drift_of_the_same_mix_is_none_and_of_another_one_whole():
    same = [at(24 * day, run_time_s=100) for day in range(15)]
    assert findings.drift(history_of(*same)).estimate.value == 0.0
    other = [at(24 * day, run_time_s=100 if day < 7 else 100_000) for day in range(15)]
    assert findings.drift(history_of(*other)).estimate.value == 1.0


def test_a_lower_bound_argues_against_nothing():
    # The only node may be busy all the time, by CPU jobs or others.
    jobs = [at(k, run_time_s=3600.0, gpus=1, nodes=1.0, node_list=None, partition="p") for k in range(200)]
    found = study_of(*jobs, records=NodeRecords(given={"p": 1}, units_per_node=8))
    assert (found.statements[3].value, found.statements[3].verdict) == (0.0, "for orientation")


def test_drift_of_a_window_that_ends_within_a_week_is_known():
    jobs = [at(24 * day, run_time_s=100.0) for day in range(17)]
    found = findings.drift(history_of(*jobs))
    assert (found.n, found.estimate.value) == (2, 0.0)


def test_a_burst_has_a_variance_above_its_mean():
    jobs = [at(2) for _ in range(30)] + [at(k + 0.5) for k in range(10)]
    found = findings.bursts(history_of(*jobs, since=FIRST, until=FIRST + 10 * HOUR))
    counts = np.array([1, 1, 31, *[1] * 7, 0])  # the hours from the first to the last, and the one that ends there
    assert found.parts["most_in_an_hour"] == 31
    assert found.estimate.value == pytest.approx(counts[:10].var() / counts[:10].mean(), rel=0.2)


NO_USERS = {"user": None, "account": None, "name": None}
DEGENERATE = {
    "one job": [at(0)],
    "no run times": [at(k, run_time_s=math.nan, ended_at=None, started_at=None, state=None) for k in range(3)],
    "no users": [at(k, **NO_USERS) for k in range(5)],
    "no starts": [at(k, started_at=None, ended_at=None) for k in range(5)],
    "CPU jobs": [at(k, gpus=0) for k in range(5)],
    "all at once": [at(0) for _ in range(5)],
    "no size": [at(k, gpus=0, cpus=math.nan) for k in range(3)],
    "backwards": [at(k, run_time_s=-10.0, ended_at=FIRST) for k in range(3)],
    "still waiting": [at(k, started_at=None, ended_at=None, run_time_s=math.nan, state="PENDING") for k in range(3)],
    "partition unknown": [at(k, partition=None) for k in range(3)],
}


@pytest.mark.parametrize("name", DEGENERATE)
def test_every_statement_is_there_or_says_why_not(name):
    found = study_of(*DEGENERATE[name])
    told = json.loads(json.dumps(found.to_json(), allow_nan=False))["statements"]
    assert all(statement["value"] is not None or statement["lacks"] for statement in told)
    assert not any(word in statement["sentence"] for statement in told for word in ("nan", "None", "inf "))


def test_a_window_without_jobs_is_refused_with_the_span_of_the_record():
    with pytest.raises(NotEnoughHistory, match="the record spans 2020-01-06 to 2020-01-06"):
        study_of(at(0), since=FIRST + 100 * HOUR, until=FIRST + 200 * HOUR)


def test_studies_of_two_weeks_differ_where_their_intervals_say_so():
    one = {
        "cluster": "a",
        "statements": [_told(7, 0.10, 0.08, 0.12), _told(9, 0.10, 0.08, 0.12), _told(4, None, None, None)],
    }
    other = {
        "cluster": "b",
        "statements": [_told(7, 0.20, 0.18, 0.22), _told(9, 0.11, 0.09, 0.13), _told(4, 0.1, 0, 1)],
    }
    found = compare(one, other)
    assert [row.more_than_chance for row in found.statements] == [True, False, None]
    assert found.statements[0].low == pytest.approx(0.1 - math.hypot(0.02, 0.02))


def test_levels_are_of_the_machine_that_a_file_names():
    jobs = [at(k, gpus=0, cpus=6.0, run_time_s=3600.0, partition="p") for k in range(10)]
    loaded = LoadedHistory(cluster="c", jobs=jobs_frame(*jobs), timezone="UTC", capacity=header_capacity(3, 20))
    found = study(loaded, since=FIRST, until=FIRST + 10 * HOUR, resource="cpus")
    assert found.statements[4].value == pytest.approx(6 / 20)


def test_studies_that_count_in_two_ways_do_not_differ_beyond_chance():
    one, other = _told(3, 10.0, 8.0, 12.0), _told(3, 90.0, 85.0, 95.0)
    one["parts"], other["parts"] = {"level": "counts"}, {"level": "nodes"}
    found = compare({"statements": [one]}, {"statements": [other]}).statements[0]
    assert (found.difference, found.more_than_chance) == (None, None)


def _told(number: int, value: float | None, low: float | None, high: float | None) -> dict[str, Any]:
    return {"number": number, "name": f"s{number}", "unit": "share", "value": value, "low": low, "high": high}


def test_what_changed_this_week_beyond_chance_is_told_and_only_that():
    jobs = []
    for day in range(70):
        late = day >= 63
        for k in range(3 + day % 2):
            failed = k == 0
            state, run_time_s = ("FAILED" if failed else "COMPLETED"), 7200 + 60 * (day % 7)
            if failed and late:
                run_time_s = 10 * 7200
            jobs.append(
                at(24 * day + 0.1 * k, state=state, run_time_s=run_time_s, time_limit_s=math.inf, gpus=1, user=f"u{k}")
            )
    loaded = LoadedHistory(cluster="c", jobs=jobs_frame(*jobs), timezone="UTC")
    steady = compare_weeks(loaded, end=(FIRST + 63 * 24 * HOUR).to_pydatetime())
    assert steady.sentences == ()
    changed = compare_weeks(loaded, end=(FIRST + 70 * 24 * HOUR).to_pydatetime())
    assert any("failed after more than an hour" in sentence for sentence in changed.sentences)
    assert changed.levels["long_failures"] > 2 * steady.levels["long_failures"]
