"""Samples and distributions of past runs again, from lists of earlier jobs: slow, plain, and sharing no kernel."""

from dataclasses import replace

import lightgbm
import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.ports import HORIZON_S
from helios.predict import past_runs as p
from helios.predict.causal_stats import FEATURES, LEVELS, NEVER_S
from helios.predict.distribution import PAIR_FEATURES
from helios.predict.duration import train
from helios.predict.job_table import JobTable, job_events
from helios.predict.timeline import GRACE_S, GROUPS, RecordedWalk, started_s, untrained
from helios.predict.trees import trees_alone
from tests.examples import examples
from tests.unit.predict.traces_of import a_campaign, a_trace, traces
from tests.unit.predict.walks import walked


def kaplan_meier(values, weights, ended):
    """Return the masses of ended values, and what is left over, by the definition, value by value."""
    order = np.argsort(values, kind="stable")
    survival, masses = 1.0, np.zeros(len(values))
    for place, at in enumerate(order):
        at_risk = sum(weights[other] for other in order[place:])
        if ended[at]:
            masses[at] = survival * weights[at] / at_risk
            survival -= masses[at]
    return masses, survival


def ramp(t, value, half):
    return min(max((t + half - value) / (2 * half), 0.0), 1.0)


def logistic(x):
    return 1 / (1 + np.exp(-1.702 * x))


class Reference:
    """What is known of the last job of a trace, as of its submission."""

    def __init__(self, jobs):
        table = JobTable.from_frame(jobs)
        self.now = int(table.submitted_s[-1])
        self.events, self.me = job_events(table), table.n - 1
        self.began, self.log_run = started_s(table), np.log1p(table.run_time_s)
        known = (table.started_s != NEVER_S) | np.isfinite(table.run_time_s)
        self.over = table.ended_s < self.now
        self.starts = [j for j in np.argsort(self.began, kind="stable") if known[j] and self.began[j] < self.now]
        self.ends = [j for j in np.lexsort((np.arange(table.n), table.ended_s)) if self.over[j]]

    def value(self, job):
        return self.log_run[job] if self.over[job] else np.log1p(self.now - self.began[job])

    def distance(self, job):
        a, b = self.events.traits[job], self.events.traits[self.me]
        return abs(a[0] - b[0]) + abs(a[1] - b[1]) + (a[2] != b[2]) + 2 * (a[3] != b[3])

    def started(self, level, most, weigh):
        """Return values, masses, left-over mass, weight and longest value of the last started jobs of a group."""
        group = self.events.groups[self.me, level]
        mine = [j for j in self.starts if group >= 0 and self.events.groups[j, level] == group][-most:][::-1]
        told = [(self.value(j), weigh(j, age), self.over[j]) for age, j in enumerate(mine)]
        told = [one for one in told if not np.isnan(one[0])]
        if not told:
            return None
        values, weights, ended = map(np.array, zip(*told, strict=True))
        masses, rest = kaplan_meier(values, weights, ended)
        return values, masses, rest, weights.sum(), values.max()

    def mixture(self, t, anchor, anchor_sd):
        def spread(sample, t, half, wider):
            values, masses, rest, _, longest = sample
            own = sum(mass * ramp(t, value, half) for value, mass in zip(values, masses, strict=True))
            if rest > 0 and t > longest and wider(longest) < 1 - 1e-9:
                own += rest * (wider(t) - wider(longest)) / (1 - wider(longest))
            return own

        def drawn(own, weight, pseudo, wider):
            return (weight * own + pseudo * wider) / (weight + pseudo) if weight > 0 else wider

        def prior(t):
            return logistic((t - p.PRIOR_MIDDLE) / p.PRIOR_WIDTH)

        everything = self.started(0, p.ALL_STARTS, lambda job, age: 1.0)
        alike = self.started(2, p.REQUEST_STARTS, lambda job, age: 1 / (1 + age / 32))
        user = self.started(
            4, p.USER_STARTS, lambda job, age: 1 / ((1 + 3 * self.distance(job)) ** 2 * (1 + 0.1 * age))
        )

        def of_all(t):
            if everything is None:
                return prior(t)
            return drawn(spread(everything, t, p.OTHERS_RAMP, prior), len(everything[0]), p.PSEUDO_PRIOR, prior(t))

        def of_request(t):
            wide = of_all(t)
            if alike is not None:
                wide = drawn(spread(alike, t, p.OTHERS_RAMP, of_all), alike[3], p.PSEUDO_REQUEST, wide)
            return 0.5 * wide + 0.5 * logistic((t - anchor) / max(anchor_sd, 0.3)) if anchor > 0 else wide

        wide = of_request(t)
        if user is not None:
            wide = drawn(spread(user, t, p.USER_RAMP, of_request), user[3], p.PSEUDO_USER, wide)
        for level, most, weigh, pseudo in (
            (4, p.NEIGHBOURS, lambda j, age: 1 / ((1 + 3 * self.distance(j)) ** 2 * (1 + 0.15 * age)), p.PSEUDO_NEAR),
            (7, p.KEY_RUNS, lambda j, age: 1 / (1 + 0.3 * age), p.PSEUDO_KEY),
        ):
            group = self.events.groups[self.me, level]
            mine = [j for j in self.ends if group >= 0 and self.events.groups[j, level] == group]
            mine = [j for j in mine if not np.isnan(self.log_run[j])][-most:][::-1]
            weights = np.array([weigh(j, age) for age, j in enumerate(mine)])
            if len(mine):
                own = sum(w * ramp(t, self.log_run[j], p.USER_RAMP) for w, j in zip(weights, mine, strict=True))
                wide = drawn(own / weights.sum(), weights.sum(), pseudo, wide)
        return wide


@settings(max_examples=examples(20), deadline=None)
@given(traces(), st.lists(st.floats(0.2, 15.0), min_size=1, max_size=4))
def test_the_untrained_distribution_is_that_of_its_definition(jobs, times):
    walk = walked_to_the_last(jobs)
    reference, row = Reference(jobs), walk.timeline.state.features[-1]
    anchor, anchor_sd = (float(row[FEATURES.index(name)]) for name in ("anchor", "anchor_sd"))
    place = PAIR_FEATURES.index("by_mixture")
    for t in times:
        found = walk.timeline.pair_features(reference.me, t)[place]
        assert found == pytest.approx(reference.mixture(t, anchor, anchor_sd), abs=1e-5)


def walked_to_the_last(jobs):
    """Return a walk whose last question was about the last of ``jobs``."""
    table = JobTable.from_frame(jobs)
    walk, now_s = RecordedWalk(table), int(table.submitted_s[-1])
    walk.to(now_s)
    walk.timeline.submitted(np.arange(walk.timeline.submissions, table.n), now_s)
    walk.timeline.state.past.all_sample_state[1] = -1e9  # the sample of all is made anew only after some starts
    walk.timeline.waiting(np.array([table.n - 1]), now_s)
    return walk


def test_the_trees_as_steps_of_the_threshold_are_lightgbms_at_every_threshold():
    jobs = a_campaign(700, noise=1.0)
    model, table = replace(train(jobs.iloc[:600], cluster="lab"), trained=True), JobTable.from_frame(jobs)
    walk = RecordedWalk(table)
    walk.submit(table.n - 1)
    walk.timeline.model = replace(model.kernel, tail=untrained().tail)
    walk.timeline.submitted(np.array([table.n - 1]), int(table.submitted_s[-1]))
    scratch = walk.timeline.state.scratch
    at, raw = scratch.grid.copy(), np.cumsum(scratch.raw_steps[:-1])
    rows = np.array([walk.timeline.pair_features(table.n - 1, t) for t in at])
    booster = lightgbm.Booster(model_str=trees_alone(model.trees.text))
    np.testing.assert_allclose(raw, booster.predict(rows, raw_score=True), atol=2e-2)
    assert np.median(np.abs(raw - booster.predict(rows, raw_score=True))) < 1e-9


@pytest.mark.parametrize("noise", [0.1, 2.0])
def test_what_is_read_off_is_that_of_the_distribution(noise):
    walk = walked(a_campaign(300, noise=noise, users=2))
    scratch, found = walk.timeline.state.scratch, walk.predicted[-1]
    at, survival = scratch.grid, 1 - scratch.cdf
    fine = np.linspace(0.0, at[-1], 200_001)
    both = np.sqrt(np.interp(fine, at, survival, left=1.0) * np.interp(fine, at, 1 - scratch.grid_cdfs[5], left=1.0))
    seconds = np.expm1(fine)
    integral = float((np.diff(seconds) * (both[1:] + both[:-1]) / 2)[seconds[1:] <= HORIZON_S].sum())
    assert found[5] == pytest.approx(integral, rel=0.1)
    assert np.interp(np.log1p(found[1]), at, scratch.cdf) == pytest.approx(0.5, abs=0.02)


def test_each_side_is_missed_as_often_as_promised_under_wrong_distributions():
    # Every user's runs become longer and longer, so that past runs are always too short.
    rng = np.random.default_rng(0)
    n = 6000
    run_s = np.round(np.exp(3 + 4 * np.arange(n) / n + rng.standard_normal(n)))
    jobs = a_trace(
        *(
            {"submit": 60 * k, "run": float(s), "user": f"u{u}", "time_limit_s": np.inf}
            for k, (s, u) in enumerate(zip(run_s, rng.integers(0, 40, n), strict=True))
        )
    )
    found = walked(jobs).predicted[2000:]
    assert np.mean(run_s[2000:] < found[:, 0]) == pytest.approx(0.1, abs=0.04)
    assert np.mean(run_s[2000:] > found[:, 2]) == pytest.approx(0.1, abs=0.04)


def test_a_bound_is_learned_before_the_end_of_a_job():
    short = [{"submit": 100 * n, "run": 60.0, "user": f"u{n % 50}", "time_limit_s": np.inf} for n in range(400)]
    walk = walked(a_trace(*short))
    before = walk.calibration().offsets[1, GROUPS.index("all")]
    endless = [
        {"submit": 40_000 + 100 * n, "run": 1e7, "user": f"u{n % 50}", "time_limit_s": np.inf} for n in range(400)
    ]
    later = walked(a_trace(*short, *endless)).calibration().offsets[1, GROUPS.index("all")]
    assert later > before + 0.5


def test_runs_of_one_second_lie_within_their_interval():
    rng = np.random.default_rng(0)
    run_s = np.where(rng.random(2000) < 0.97, 1.0, np.round(np.exp(9 * rng.random(2000))))
    jobs = a_trace(*({"submit": 300 * k, "run": float(s), "time_limit_s": np.inf} for k, s in enumerate(run_s)))
    found = walked(jobs).predicted[200:]
    inside = (found[:, 0] <= 1.0) & (found[:, 2] >= 1.0)
    assert inside.all()


def test_an_interval_that_ends_at_the_limit_holds_runs_ended_there():
    rng = np.random.default_rng(0)
    run_s = np.where(rng.random(2000) < 0.6, 3617.0, np.round(np.exp(8 * rng.random(2000))))
    jobs = a_trace(*({"submit": 9000 * k, "run": float(s), "time_limit_s": 3600.0} for k, s in enumerate(run_s)))
    found = walked(jobs).predicted[200:]
    assert (found[:, 2] >= 3617.0).mean() > 0.95
    assert (found[:, 2] <= 3600.0 + GRACE_S).all()


def test_two_thousand_jobs_at_once_calibrate_as_fewer_than_a_hundred():
    first, last = {"run": 60.0, "user": "ada"}, {"submit": 100_000, "run": 60.0, "user": "eve"}
    walk = walked(a_trace(first, *[{"submit": 1000, "run": 60.0, "user": "bob"}] * 2000, last))
    assert 10 < walk.calibration().counts[1, GROUPS.index("all")] < 100


@numba.njit
def one_by_one(past, groups, jobs, started_s):
    for place in range(len(jobs)):
        p.note_start(past, groups, jobs[place], started_s[place])


@numba.njit
def at_once(past, groups, jobs, started_s):
    p.note_starts(past, groups, jobs, started_s)


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 300), st.integers(0, 300), st.integers(1, 400), st.integers(0, 2**32 - 1))
def test_jobs_that_started_are_added_at_once_as_one_by_one(n_before, n_more, seconds, seed):
    rng, n = np.random.default_rng(seed), n_before + n_more
    groups = (rng.integers(0, 3, (n, len(LEVELS))) + 3 * np.arange(len(LEVELS))).astype(np.int32)
    groups[rng.random(groups.shape) < 0.2] = -1
    started_s = rng.integers(0, seconds, n)  # many at the same time
    more = n_before + np.argsort(started_s[n_before:], kind="stable")
    kept = []
    for add in (one_by_one, at_once):
        past = p.empty_past(groups)
        one_by_one(past, groups, np.arange(n_before), started_s[:n_before])
        add(past, groups, more, started_s[more])
        rings = ((past.user_starts, past.user_count), (past.request_starts, past.request_count))
        rings += ((past.all_starts, past.all_count),)
        newest = [
            [ring[(count - 1 - age) % len(ring)] for age in range(min(count, len(ring)))]
            for starts, counts in rings
            for ring, count in zip(starts, counts, strict=True)
        ]
        kept.append((newest, past.started_s.tolist()))
    assert kept[0] == kept[1]
