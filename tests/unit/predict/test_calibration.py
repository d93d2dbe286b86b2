"""Intervals that hold: against a plain walk through lists, and against what they promise."""

from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.predict import calibration as c
from helios.predict.causal_stats import FEATURES, NEVER_S
from helios.predict.duration import HistoryPredictor
from helios.predict.job_table import JobTable, causal_features, group_columns
from tests.unit.predict.traces_of import a_campaign, a_trace, traces


def predicted(jobs):
    """Return what calibration takes of a trace, with shrinkage's quantiles."""
    table = JobTable.from_frame(jobs)
    features = causal_features(table).X
    return table, features, HistoryPredictor().predict(features)


def calibrate(table, features, quantiles, **options):
    return c.calibrate(
        features,
        quantiles,
        groups=group_columns(table),
        submitted_s=table.submitted_s,
        ended_s=table.ended_s,
        run_time_s=table.run_time_s,
        **options,
    )


def a_history(n, *, error=1.0, users=200, seed=0, spread=0.6, **columns):
    """Return table, features and quantiles of ``n`` jobs; truth is ``error`` times as far from p50 as predicted."""
    rng = np.random.default_rng(seed)
    typical = 6.0
    noise = np.broadcast_to(error, n) * spread * rng.standard_normal(n)
    rows = [
        {"submit": 7200 * i, "run": float(np.round(np.exp(typical + noise[i]))), "user": f"u{i % users}"}
        | {name: values[i] for name, values in columns.items()}
        for i in range(n)
    ]
    table, features, _ = predicted(a_trace(*rows))
    quantiles = np.tile(np.exp(typical + spread * 1.2816 * np.array([-1.0, 0.0, 1.0])), (n, 1))
    return table, features, quantiles


def coverage(quantiles, table, rows=slice(None)):
    truth = table.run_time_s[rows]
    return ((quantiles[rows, 0] <= truth) & (truth <= quantiles[rows, 2])).mean()


class Plain:
    """The same again, job by job, from lists: slow, and sharing no kernel."""

    def __init__(self, table, features, quantiles):
        self.table, self.quantiles = table, quantiles
        self.rows = [dict(zip(FEATURES, map(float, row), strict=True)) for row in features]
        self.offsets = c.empty_calibration().offsets.copy()
        self.ends = [0.0] * len(c.GROUPS)
        self.user_offsets, self.burst_ends = {}, {}
        self.outlived = c.OUTLIVED_BEFORE
        self.burst = self.bursts()

    def bursts(self):
        found, last = [], {}
        for job in range(self.table.n):
            size = ("g", self.table.gpus[job]) if self.table.gpus[job] > 0 else ("c", str(self.table.cpus[job]))
            asked = (size, str(self.table.time_limit_s[job]))
            user = self.table.user[job]
            kind = (user, asked) if user >= 0 else (asked, self.table.partition[job])
            now = self.table.submitted_s[job]
            before, burst = last.get(kind, (-(10**15), None))
            last[kind] = (now, burst if now - before <= 6 * 3600 else job)
            found.append(last[kind][1])
        return found

    def groups(self, job):
        row = self.rows[job]
        member = [0]
        if round(np.expm1(row["user_ended"]) if not np.isnan(row["user_ended"]) else 99) < 10:
            member.append(1)
        gaps = [np.expm1(row["user_submission_gap"]), np.expm1(row["user_size_submission_gap"])]
        if gaps[0] < 600.4 or gaps[1] < 6 * 3600 + 0.4:
            member.append(2)
        if row["gpus"] > 8:
            member.append(3)
        if row["gpus"] == 0 and np.expm1(row["log_cpus"]) > 8.001:
            member.append(4)
        return member

    def bounds(self, job):
        row, user = self.rows[job], self.table.user[job]
        of_user = self.user_offsets.get(user, [0.0, 0.0])
        down, up = (sum(self.offsets[side][g] for g in self.groups(job)) + of_user[side] for side in (0, 1))
        width = max(row["anchor_sd"], 0.1)
        highest = np.inf
        if self.outlived <= 0.01 and not np.isnan(row["log_limit"]):
            highest = np.log1p(np.expm1(row["log_limit"]) + 60)
        low, _, high = np.log1p(self.quantiles[job])
        return low - width * down, min(high + width * up, highest)

    def interval(self, job):
        low, high = np.expm1(self.bounds(job))
        median = self.quantiles[job, 1]
        return max(min(low, median), 0.0), median, max(high, median)

    def learn(self, job):
        log_run = np.log1p(self.table.run_time_s[job])
        if np.isnan(log_run):
            return
        burst, user = self.burst[job], self.table.user[job]
        self.burst_ends[burst] = self.burst_ends.get(burst, 0) + 1
        weight = max(self.burst_ends[burst] ** -0.5, 0.1)
        low, high = self.bounds(job)
        for side, missed in ((0, (log_run < low - 1e-9) - 0.11), (1, (log_run > high + 1e-9) - 0.09)):
            for group in self.groups(job):
                self.offsets[side][group] += max(0.02, 0.4 / (self.ends[group] + 1) ** 0.5) * weight * missed
            if user >= 0:
                self.user_offsets.setdefault(user, [0.0, 0.0])[side] += 0.03 * weight * missed
        for group in self.groups(job):
            self.ends[group] += weight
        limit = self.rows[job]["log_limit"]
        if np.isfinite(limit):
            self.outlived = 0.999 * self.outlived + 0.001 * (self.table.run_time_s[job] > np.expm1(limit) + 60)


@settings(max_examples=50, deadline=None)
@given(traces())
def test_a_trace_is_calibrated_as_a_plain_walk_through_lists_does(jobs):
    table, features, quantiles = predicted(jobs)
    found, learned = calibrate(table, features, quantiles)
    plain = Plain(table, features, quantiles)
    waiting = [int(job) for job in table.ends()]
    for job in range(table.n):
        while waiting and table.ended_s[waiting[0]] < table.submitted_s[job]:
            plain.learn(waiting.pop(0))
        assert found[job] == pytest.approx(plain.interval(job), rel=1e-5, abs=1e-5)
    for job in waiting:
        plain.learn(job)
    np.testing.assert_allclose(learned.offsets, plain.offsets, atol=1e-6)
    np.testing.assert_allclose(learned.ends, plain.ends, atol=1e-9)


@settings(max_examples=50, deadline=None)
@given(traces(), st.integers(0, 23), st.floats(1, 1e6))
def test_what_ends_later_changes_no_interval(jobs, number, run_s):
    table, features, quantiles = predicted(jobs)
    number = min(number, table.n - 1)
    before, _ = calibrate(table, features, quantiles)
    unknown = table.ended_s >= table.submitted_s[number]
    table.run_time_s.setflags(write=True)
    changed = np.where(unknown, run_s, table.run_time_s)
    later = np.where(unknown, table.submitted_s[number] + 1, table.ended_s)
    after, _ = c.calibrate(
        features,
        quantiles,
        groups=group_columns(table),
        submitted_s=table.submitted_s,
        ended_s=np.where(table.ended_s == NEVER_S, NEVER_S, later),
        run_time_s=changed,
    )
    upto = table.submitted_s <= table.submitted_s[number]
    np.testing.assert_array_equal(before[upto], after[upto])


@settings(max_examples=50, deadline=None)
@given(traces())
def test_step_by_step_gives_the_numbers_of_the_whole_trace_bit_for_bit(jobs):
    table, features, quantiles = predicted(jobs)
    whole, learned = calibrate(table, features, quantiles)
    intervals, log_run = c.empty_intervals(group_columns(table)), np.log1p(table.run_time_s)
    ends, told = table.ends(), 0
    stepwise = []
    for now_s, together in groupby(range(table.n), key=lambda job: table.submitted_s[job]):
        rows = np.array(list(together))
        due = int(np.searchsorted(table.ended_s[ends], now_s))
        c.learn_ends(intervals, ends[told:due], log_run)
        told = due
        step = quantiles[rows]
        c.calibrate_submitted(intervals, rows, int(now_s), features[rows], step)
        stepwise.append(step)
    c.learn_ends(intervals, ends[told:], log_run)
    np.testing.assert_array_equal(np.concatenate(stepwise), whole)
    np.testing.assert_array_equal(intervals.learned.offsets, learned.offsets)


@settings(max_examples=50, deadline=None)
@given(traces())
def test_the_median_stays_and_lies_inside(jobs):
    table, features, quantiles = predicted(jobs)
    found, _ = calibrate(table, features, quantiles)
    np.testing.assert_array_equal(found[:, 1], quantiles[:, 1])
    assert (np.diff(found, axis=1) >= 0).all()
    assert (found[:, 0] >= 0).all()


@pytest.mark.parametrize("error", [0.5, 1.6, 3.0])
def test_intervals_too_wide_or_too_narrow_come_to_hold_four_jobs_in_five(error):
    table, features, quantiles = a_history(3000, error=error)
    found, _ = calibrate(table, features, quantiles)
    assert abs(coverage(quantiles, table) - 0.8) > 0.1
    assert coverage(found, table, slice(1000, None)) == pytest.approx(0.8, abs=0.03)


def test_intervals_follow_work_that_becomes_harder_to_predict():
    table, features, quantiles = a_history(4000, error=np.where(np.arange(4000) < 2000, 1.0, 2.5))
    found, _ = calibrate(table, features, quantiles)
    assert coverage(quantiles, table, slice(2500, None)) < 0.5
    assert coverage(found, table, slice(2500, None)) == pytest.approx(0.8, abs=0.04)


def test_large_jobs_come_to_hold_by_themselves():
    large = np.resize([False] * 9 + [True], 4000)
    table, features, quantiles = a_history(
        4000, error=np.where(large, 2.5, 1.0), users=199, gpus=np.where(large, 16, 1).astype(int)
    )
    found, _ = calibrate(table, features, quantiles)
    below = table.run_time_s <= found[:, 2]
    late = np.arange(4000) >= 2000
    assert below[large & late].mean() == pytest.approx(0.91, abs=0.03)
    assert below[~large & late].mean() == pytest.approx(0.91, abs=0.03)
    assert (table.run_time_s <= quantiles[:, 2])[large].mean() < 0.75


def test_a_user_who_surprises_gets_an_interval_of_his_own():
    odd = np.resize([True, False, False, False], 3000)
    user = np.where(odd, "odd", np.array([f"u{i % 50}" for i in range(3000)]))
    table, features, quantiles = a_history(3000, error=np.where(odd, 3.0, 1.0), user=user)
    found, _ = calibrate(table, features, quantiles)
    late = np.arange(3000) >= 1500
    assert coverage(found, table, odd & late) == pytest.approx(0.8, abs=0.05)


def test_ends_of_one_burst_count_for_less_and_less():
    n = 150
    table, features, quantiles = predicted(a_trace(*({"submit": i, "run": 60.0, "wait": 200} for i in range(n))))
    _, learned = calibrate(table, features, quantiles)
    assert learned.ends[0] == pytest.approx(sum(max(k**-0.5, 0.1) for k in range(1, n + 1)))


def test_six_hours_of_nothing_alike_end_a_burst():
    table, features, quantiles = predicted(
        a_trace({"submit": 0}, {"submit": 6 * 3600}, {"submit": 12 * 3600 + 1, "user": "ada"})
    )
    _, learned = calibrate(table, features, quantiles)
    assert learned.ends[0] == pytest.approx(1 + 2**-0.5 + 1)


@pytest.mark.parametrize(("outlived", "cut"), [(0.0, True), (0.02, False)])
def test_the_upper_bound_is_cut_at_limits_that_hold_and_only_there(outlived, cut):
    table, features, quantiles = predicted(a_trace({"time_limit_s": 600.0}))
    learned = c.empty_calibration()
    learned.outlived[0] = outlived
    quantiles[:] = [[10.0, 100.0, 5000.0]]
    found, _ = calibrate(table, features, quantiles, start=learned)
    assert (found[0, 2] == pytest.approx(660.0, rel=1e-5)) == cut


def test_a_median_beyond_the_limit_keeps_its_upper_bound_above():
    table, features, _ = predicted(a_trace({"time_limit_s": 600.0}))
    learned = c.empty_calibration()
    learned.outlived[0] = 0.0
    found, _ = calibrate(table, features, np.array([[10.0, 900.0, 5000.0]]), start=learned)
    np.testing.assert_array_equal(found[0, 1:], [900.0, 900.0])


@pytest.mark.parametrize(("run_s", "holds"), [(650.0, True), (700.0, False)])
def test_limits_are_believed_after_many_jobs_that_obeyed(run_s, holds):
    rows = ({"submit": 1000 * i, "run": run_s, "time_limit_s": 600.0} for i in range(800))
    _, learned = calibrate(*predicted(a_trace(*rows)))
    assert (learned.outlived[0] <= c.OUTLIVED_AT_MOST) == holds


def test_a_job_never_predicted_teaches_nothing():
    table, features, quantiles = predicted(a_campaign(200))
    _, learned = calibrate(table, features, np.full_like(quantiles, np.nan))
    for found, before in zip(learned, c.empty_calibration(), strict=True):
        np.testing.assert_array_equal(found, before)


def test_an_end_at_or_after_until_teaches_nothing():
    table, features, quantiles = predicted(a_trace({"run": 60.0}, {"submit": 9000, "run": 60.0}))
    at_end = int(table.ended_s[0])
    assert calibrate(table, features, quantiles, until_s=at_end)[1].ends[0] == 0
    assert calibrate(table, features, quantiles, until_s=at_end + 1)[1].ends[0] == 1


def test_a_start_is_left_as_it_is_and_moves_the_first_job():
    table, features, quantiles = a_history(300, error=3.0)
    _, learned = calibrate(table, features, quantiles)
    kept = [part.copy() for part in learned]
    found, _ = calibrate(table, features, quantiles, start=learned)
    for part, before in zip(learned, kept, strict=True):
        np.testing.assert_array_equal(part, before)
    np.testing.assert_array_equal(found[:1], c.calibrate_each(features[:1], quantiles[:1], learned))
    assert found[0, 2] > quantiles[0, 2]


def test_a_job_predicted_again_is_calibrated_as_of_now_and_suspended_teaches_of_its_submission():
    table, features, quantiles = a_history(300, error=3.0)
    intervals, log_run = c.empty_intervals(group_columns(table)), np.log1p(table.run_time_s)
    rows = np.arange(table.n)
    c.calibrate_submitted(intervals, rows, 0, features, quantiles.copy())
    c.learn_ends(intervals, rows[:200], log_run)
    remembered = intervals.bounds.copy()
    again = quantiles[200:] * 2
    c.calibrate_again(intervals, rows[200:], features[200:], again)
    assert (again[:, 2] > quantiles[200:, 2] * 2).all()
    np.testing.assert_array_equal(intervals.bounds, remembered)


def test_no_jobs_are_calibrated_to_nothing():
    table, features, quantiles = predicted(a_campaign(1).iloc[:0])
    assert calibrate(table, features, quantiles)[0].shape == (0, 3)
