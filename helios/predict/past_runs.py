"""Distributions of run times that need no training.

Each job is compared with five samples of earlier jobs: the user's last ended jobs (similar ones count more), the ended
jobs of the same user, size and limit, and the last *started* jobs of the user, of the same request and of all. Jobs
that still run are censored at their age, so that long ones are not missed because they have not ended (Kaplan and Meier
1958). From the widest to the narrowest, each sample is mixed with the distribution of the one before it by a fixed
number of pseudo-observations.

All times are log1p of seconds. The kernels serve a recorded trace at once and a replay job by job.
"""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.jit import Table, inline_jit
from helios.predict.causal_stats import NEIGHBOURS, NEVER_S, REQUEST, USER, USER_SIZE

KEY_RUNS, USER_STARTS, REQUEST_STARTS, ALL_STARTS = 16, 64, 128, 256
"""Lengths of the rings."""
ALL_AGAIN = 8
"""Starts after which the sample of all jobs is made anew, fewer at first."""
# Half widths of the ramps that replace the steps of a distribution, for one user's jobs and for others.
USER_RAMP, OTHERS_RAMP = 0.15, 0.25
# Pseudo-observations of the wider distribution in the mixture: of the prior, and by sample.
PSEUDO_PRIOR, PSEUDO_REQUEST, PSEUDO_USER, PSEUDO_NEAR, PSEUDO_KEY = 4.0, 6.0, 1.5, 1.5, 2.0
# The prior of all: a logistic distribution, half an hour in the middle.
PRIOR_MIDDLE, PRIOR_WIDTH = 7.5, 2.5
LONGEST = np.log1p(60 * 86_400.0)
SHORTEST = 0.1

SAMPLES = ("key", "near", "user", "request", "all")
KEY, NEAR, STARTED_BY_USER, STARTED_ALIKE, STARTED = range(5)

ANCHORS = (
    *("key_last_1", "key_last_2"),
    *("near_p10", "near_p25", "near_p50", "near_p75", "near_p90"),
    *("request_p10", "request_p25", "request_p50", "request_p75", "request_p90"),
    *("started_p10", "started_p50", "started_p90"),
    *("running", "running_longest", "running_alike", "running_alike_longest", "running_alike_mean"),
    *("near_weight", "started_weight", "request_weight", "key_ended", "last_two_apart"),
)
"""Numbers that describe the samples of a job, log1p s or weights."""
ANCHOR: Any = namedtuple("AnchorColumns", ANCHORS)(*range(len(ANCHORS)))
"""Position of each of ``ANCHORS``."""
FIVE_LEVELS = np.array([0.1, 0.25, 0.5, 0.75, 0.9])
"""Levels of the quantiles of a sample that are anchors."""


@dataclass(frozen=True, eq=False)
class PastRuns(Table):
    """What has run and what runs, as of now.

    Attributes
    ----------
    started_s : int64 array of shape (n,)
        ``NEVER_S`` for a job that has not started.
    log_run : float64 array of shape (n,)
        NaN for a job that has not ended, or ended after an unknown time.
    ended : bool array of shape (n,)
    ended_s : int64 array of shape (n,)
    ring_of : int32 array of shape (n_groups,)
        Ring of a user, request, or user, size and limit; -1 for other groups.
    key_runs : float64 array of shape (n_keys, KEY_RUNS)
    user_starts, request_starts : int64 arrays of shapes (n_users, USER_STARTS), (n_requests, REQUEST_STARTS)
    all_starts : int64 array of shape (1, ALL_STARTS)
    key_count, user_count, request_count, all_count : int64 arrays, one entry per ring
    sample : float64 array of shape (2, ALL_STARTS)
        Sample of all jobs, values and masses; ``sample_state`` has its length, the starts it was made at, its leftover
        and its longest value.
    sample_state : float64 array of shape (4,)
    """

    started_s: NDArray[np.int64]
    log_run: NDArray[np.float64]
    ended: NDArray[np.bool_]
    ended_s: NDArray[np.int64]
    ring_of: NDArray[np.int32]
    key_runs: NDArray[np.float64]
    user_starts: NDArray[np.int64]
    request_starts: NDArray[np.int64]
    all_starts: NDArray[np.int64]
    key_count: NDArray[np.int64]
    user_count: NDArray[np.int64]
    request_count: NDArray[np.int64]
    all_count: NDArray[np.int64]
    sample: NDArray[np.float64]
    sample_state: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Samples(Table):
    """The five samples of one job, each sorted by value.

    Kernels reuse their room.

    Attributes
    ----------
    value, mass : float64 arrays of shape (5, ALL_STARTS)
    length : int64 array of shape (5,)
    rest, longest, weight : float64 arrays of shape (5,)
        Mass beyond the longest value, that value, and the weight of the sample in the mixture.
    anchors : float64 array of shape (len(ANCHORS),)
    """

    value: NDArray[np.float64] = field(default_factory=lambda: np.zeros((5, ALL_STARTS)))
    mass: NDArray[np.float64] = field(default_factory=lambda: np.zeros((5, ALL_STARTS)))
    length: NDArray[np.int64] = field(default_factory=lambda: np.zeros(5, dtype=np.int64))
    rest: NDArray[np.float64] = field(default_factory=lambda: np.zeros(5))
    longest: NDArray[np.float64] = field(default_factory=lambda: np.zeros(5))
    weight: NDArray[np.float64] = field(default_factory=lambda: np.zeros(5))
    anchors: NDArray[np.float64] = field(default_factory=lambda: np.zeros(len(ANCHORS)))


def empty_past(groups: NDArray[np.int32]) -> PastRuns:
    """Return an empty past with room for all jobs of ``groups``."""
    n, n_groups = len(groups), int(groups.max(initial=-1)) + 1
    ring_of = np.full(n_groups, -1, dtype=np.int32)
    counts = []
    for level in (USER_SIZE, USER, REQUEST):
        found = np.unique(groups[:, level])
        found = found[found >= 0]
        ring_of[found] = np.arange(len(found), dtype=np.int32)
        counts.append(len(found))
    return replace(blank_past(n, n_groups, *counts), ring_of=ring_of)


def blank_past(n_jobs: int, n_groups: int, keys: int, users: int, requests: int) -> PastRuns:
    """Return an empty past with room for jobs, groups and rings.

    No group has a ring yet.
    """
    return PastRuns(
        started_s=np.full(n_jobs, NEVER_S),
        log_run=np.full(n_jobs, np.nan),
        ended=np.zeros(n_jobs, dtype=np.bool_),
        ended_s=np.full(n_jobs, NEVER_S),
        ring_of=np.full(n_groups, -1, dtype=np.int32),
        key_runs=np.full((keys, KEY_RUNS), np.nan),
        user_starts=np.full((users, USER_STARTS), -1, dtype=np.int64),
        request_starts=np.full((requests, REQUEST_STARTS), -1, dtype=np.int64),
        all_starts=np.full((1, ALL_STARTS), -1, dtype=np.int64),
        key_count=np.zeros(keys, dtype=np.int64),
        user_count=np.zeros(users, dtype=np.int64),
        request_count=np.zeros(requests, dtype=np.int64),
        all_count=np.zeros(1, dtype=np.int64),
        sample=np.zeros((2, ALL_STARTS)),
        sample_state=blank_sample_state(),
    )


def blank_sample_state() -> NDArray[np.float64]:
    """Return the state of a sample that is to be made anew."""
    return np.array([0.0, -1e9, 0.0, 0.0])


@inline_jit
def note_start(past: Any, groups: Any, job: int, started_s: int) -> None:
    """Add a job that started. No group, and one without a ring, is skipped."""
    _note_start_in_groups(past, groups, job, started_s)
    _insert(past.started_s, past.all_starts, past.all_count, 0, job)


@inline_jit
def note_starts(past: Any, groups: Any, jobs: Any, started_s: Any) -> None:
    """Add jobs ordered by start, as ``note_start`` would one by one."""
    for place in range(len(jobs)):
        _note_start_in_groups(past, groups, jobs[place], started_s[place])
    # The ring of all jobs is merged with them, the newest first: to insert hundreds of jobs would move it as often.
    ring, count = past.all_starts[0], past.all_count[0]
    length = len(ring)
    old, new = min(count, length), len(jobs)
    before = np.empty(old, dtype=np.int64)
    for place in range(old):
        before[place] = ring[(count - old + place) % length]
    past.all_count[0] = min(old + new, length)
    for place in range(past.all_count[0] - 1, -1, -1):
        if old == 0 or (new > 0 and past.started_s[jobs[new - 1]] >= past.started_s[before[old - 1]]):
            new -= 1
            ring[place] = jobs[new]
        else:
            old -= 1
            ring[place] = before[old]


@inline_jit
def _note_start_in_groups(past: Any, groups: Any, job: int, started_s: int) -> None:
    past.started_s[job] = started_s
    user, request = groups[job, USER], groups[job, REQUEST]
    if user >= 0 and past.ring_of[user] >= 0:
        _insert(past.started_s, past.user_starts, past.user_count, past.ring_of[user], job)
    if request >= 0 and past.ring_of[request] >= 0:
        _insert(past.started_s, past.request_starts, past.request_count, past.ring_of[request], job)


@inline_jit
def _insert(started_s: Any, rings: Any, counts: Any, ring: int, job: int) -> None:
    """Put a job into a ring that is ordered by start.

    A job older than all of a full ring is left out.
    """
    length, n = rings.shape[1], counts[ring]
    if n >= length and started_s[rings[ring, n % length]] > started_s[job]:
        return
    place = n
    while place > 0 and place > n - length and started_s[rings[ring, (place - 1) % length]] > started_s[job]:
        place -= 1
    for later in range(n, place, -1):
        rings[ring, later % length] = rings[ring, (later - 1) % length]
    rings[ring, place % length] = job
    counts[ring] += 1


@inline_jit
def note_end(past: Any, groups: Any, job: int, ended_s: int, log_run: float) -> None:
    """Add a job that ended, after an unknown time for NaN."""
    past.ended[job], past.ended_s[job] = True, ended_s
    past.log_run[job] = log_run
    key = groups[job, USER_SIZE]
    if key >= 0 and not np.isnan(log_run):
        ring = past.ring_of[key]
        past.key_runs[ring, past.key_count[ring] % KEY_RUNS] = log_run
        past.key_count[ring] += 1


@inline_jit
def _sort(value: Any, mass: Any, n: int) -> None:
    """Sort a sample by value, in place."""
    order = np.argsort(value[:n])
    by_value, by_mass = value[:n][order], mass[:n][order]
    value[:n], mass[:n] = by_value, by_mass


@inline_jit
def _censor(weight: Any, n: int) -> float:
    """Turn a sorted sample's weights into Kaplan and Meier's masses.

    What is left over is returned.

    The weight of a job that still runs is negative.
    """
    at_risk = 0.0
    for place in range(n):
        at_risk += abs(weight[place])
    survival = 1.0
    for place in range(n):
        w = weight[place]
        weight[place] = 0.0
        if w > 0.0 and at_risk > 1e-12:
            weight[place] = survival * min(w / at_risk, 1.0)
            survival -= weight[place]
        at_risk -= abs(w)
    return max(survival, 0.0)


@inline_jit
def _quantile(value: Any, mass: Any, n: int, level: float) -> Any:
    """Return the least value at which the mass reaches ``level``, or NaN."""
    total = 0.0
    for place in range(n):
        total += mass[place]
        if mass[place] > 0.0 and total >= level:
            return value[place]
    return np.nan


@inline_jit
def _note_quantiles(anchors: Any, first: int, value: Any, mass: Any, n: int) -> None:
    """Set the five quantiles of a sample, from the anchor ``first`` on."""
    for k in range(len(FIVE_LEVELS)):
        anchors[first + k] = _quantile(value, mass, n, FIVE_LEVELS[k])


@inline_jit
def _distance(a: Any, b: Any) -> Any:
    """Return how unlike two jobs are in size, limit, partition and name."""
    return abs(a[0] - b[0]) + abs(a[1] - b[1]) + (a[2] != b[2]) + 2.0 * (a[3] != b[3])


@inline_jit
def _age(past: Any, job: int, now: int) -> Any:
    """Return log1p of a job's run time, or of its age."""
    return past.log_run[job] if past.ended[job] else np.log1p(float(max(now - past.started_s[job], 0)))


@inline_jit
def _sample_ended(past: Any, history: Any, groups: Any, nearness: Any, job: int, samples: Any) -> None:  # noqa: PLR0917 - numba kernels are called by position
    """Take the samples of the user's ended jobs, near and alike."""
    anchors = samples.anchors
    user, key = groups[job, USER], groups[job, USER_SIZE]
    samples.length[NEAR] = samples.length[KEY] = 0
    samples.weight[NEAR] = samples.weight[KEY] = 0.0
    if user < 0:
        return
    ring = history.ring_of[user]
    length = history.ring_length[ring]
    value, mass = samples.value[NEAR], samples.mass[NEAR]
    n = min(length, NEIGHBOURS)
    total = 0.0
    for age in range(n):
        entry = history.rings[ring, (length - 1 - age) % NEIGHBOURS]
        value[age] = entry[0]
        mass[age] = 1.0 / ((1.0 + 3.0 * _distance(entry[1:], nearness[job])) ** 2 * (1.0 + 0.15 * age))
        total += mass[age]
    if n > 1:
        anchors[ANCHOR.last_two_apart] = abs(value[0] - value[1])
    if n > 0:
        mass[:n] /= total
        _sort(value, mass, n)
        _note_quantiles(anchors, ANCHOR.near_p10, value, mass, n)
    samples.length[NEAR], samples.weight[NEAR] = n, total
    if key < 0:
        return
    ring = past.ring_of[key]
    length = past.key_count[ring]
    value, mass = samples.value[KEY], samples.mass[KEY]
    n = min(length, KEY_RUNS)
    total = 0.0
    for age in range(n):
        value[age] = past.key_runs[ring, (length - 1 - age) % KEY_RUNS]
        mass[age] = 1.0 / (1.0 + 0.3 * age)
        total += mass[age]
    if n > 0:
        anchors[ANCHOR.key_last_1] = value[0]
        mass[:n] /= total
    if n > 1:
        anchors[ANCHOR.key_last_2] = value[1]
    _sort(value, mass, n)
    samples.length[KEY], samples.weight[KEY] = n, total


@inline_jit
def _sample_started_by_user(past: Any, groups: Any, nearness: Any, job: int, now: int, samples: Any) -> None:  # noqa: PLR0917 - as above
    """Take the sample of the jobs that the user started last."""
    anchors = samples.anchors
    user = groups[job, USER]
    samples.length[STARTED_BY_USER], samples.weight[STARTED_BY_USER] = 0, 0.0
    if user < 0:
        return
    ring = past.ring_of[user]
    length = past.user_count[ring]
    value, mass = samples.value[STARTED_BY_USER], samples.mass[STARTED_BY_USER]
    n, total = 0, 0.0
    running, alike, alike_sum = 0, 0, 0.0
    for age in range(min(length, USER_STARTS)):
        other = past.user_starts[ring, (length - 1 - age) % USER_STARTS]
        so_far = _age(past, other, now)
        if np.isnan(so_far):
            continue
        weight = 1.0 / ((1.0 + 3.0 * _distance(nearness[other], nearness[job])) ** 2 * (1.0 + 0.1 * age))
        value[n], mass[n] = so_far, weight if past.ended[other] else -weight
        n += 1
        total += weight
        if not past.ended[other] and other != job:
            running += 1
            anchors[ANCHOR.running_longest] = max(so_far, anchors[ANCHOR.running_longest]) if running > 1 else so_far
            if groups[other, USER_SIZE] == groups[job, USER_SIZE]:
                alike += 1
                alike_sum += so_far
                longest = anchors[ANCHOR.running_alike_longest]
                anchors[ANCHOR.running_alike_longest] = max(so_far, longest) if alike > 1 else so_far
    _set_started(samples, STARTED_BY_USER, n, total)
    anchors[ANCHOR.started_p10] = _quantile(value, mass, n, 0.1)
    anchors[ANCHOR.started_p50] = _quantile(value, mass, n, 0.5)
    anchors[ANCHOR.started_p90] = _quantile(value, mass, n, 0.9)
    anchors[ANCHOR.running], anchors[ANCHOR.running_alike] = np.log1p(float(running)), np.log1p(float(alike))
    if alike > 0:
        anchors[ANCHOR.running_alike_mean] = alike_sum / alike


@inline_jit
def _sample_started_alike(past: Any, groups: Any, job: int, now: int, samples: Any) -> None:
    """Take the sample of the same request's jobs that started last."""
    ring = past.ring_of[groups[job, REQUEST]]
    value, mass = samples.value[STARTED_ALIKE], samples.mass[STARTED_ALIKE]
    n, total = _take_started(past, past.request_starts[ring], past.request_count[ring], 32.0, now, value, mass)
    _set_started(samples, STARTED_ALIKE, n, total)
    _note_quantiles(samples.anchors, ANCHOR.request_p10, value, mass, n)


@inline_jit
def renew_sample(past: Any, now: int) -> None:
    """Renew the sample of all started jobs after ``ALL_AGAIN`` starts."""
    length, state = past.all_count[0], past.sample_state
    if length - state[1] >= min(ALL_AGAIN, 1 + length // ALL_AGAIN):
        value, mass = past.sample[0], past.sample[1]
        n, _ = _take_started(past, past.all_starts[0], length, np.inf, now, value, mass)
        _sort(value, mass, n)
        state[2] = _censor(mass, n)
        state[0], state[1], state[3] = n, length, value[n - 1] if n > 0 else 0.0


@inline_jit
def _sample_started(past: Any, now: int, samples: Any) -> None:
    """Take the sample of all started jobs."""
    renew_sample(past, now)
    state = past.sample_state
    n = int(state[0])
    samples.value[STARTED, :n], samples.mass[STARTED, :n] = past.sample[0, :n], past.sample[1, :n]
    samples.length[STARTED], samples.weight[STARTED] = n, float(n)
    samples.rest[STARTED], samples.longest[STARTED] = state[2], state[3]


@inline_jit
def _take_started(  # noqa: PLR0917 - as above
    past: Any, starts: Any, length: int, decay: float, now: int, value: Any, mass: Any
) -> tuple[int, float]:
    """Take the last jobs of a ring of starts, and return their number and weight.

    The ``decay``-th newest weighs half. The mass of a job that still runs is negative.
    """
    n, total = 0, 0.0
    for age in range(min(length, len(starts))):
        other = starts[(length - 1 - age) % len(starts)]
        so_far = _age(past, other, now)
        if not np.isnan(so_far):
            weight = 1.0 / (1.0 + age / decay)
            value[n], mass[n] = so_far, weight if past.ended[other] else -weight
            n += 1
            total += weight
    return n, total


@inline_jit
def _set_started(samples: Any, sample: int, n: int, total: float) -> None:
    """Finish a sample of started jobs."""
    value, mass = samples.value[sample], samples.mass[sample]
    _sort(value, mass, n)
    samples.rest[sample] = _censor(mass, n)
    samples.longest[sample] = value[n - 1] if n > 0 else 0.0
    samples.length[sample], samples.weight[sample] = n, total


@inline_jit
def take_samples(past: Any, history: Any, groups: Any, nearness: Any, job: int, now: int, samples: Any) -> None:  # noqa: PLR0917 - numba kernels are called by position
    """Fill in the samples and anchors of ``job`` as of ``now``."""
    samples.anchors[:] = np.nan
    _sample_ended(past, history, groups, nearness, job, samples)
    _sample_started_by_user(past, groups, nearness, job, now, samples)
    _sample_started_alike(past, groups, job, now, samples)
    _sample_started(past, now, samples)
    anchors = samples.anchors
    anchors[ANCHOR.near_weight] = np.log1p(samples.weight[NEAR])
    anchors[ANCHOR.started_weight] = np.log1p(samples.weight[STARTED_BY_USER])
    anchors[ANCHOR.request_weight] = np.log1p(samples.weight[STARTED_ALIKE])
    anchors[ANCHOR.key_ended] = np.log1p(float(samples.length[KEY]))


@inline_jit
def _logistic(x: float) -> Any:
    """Return an approximation of the normal distribution by a logistic one."""
    return 1.0 / (1.0 + np.exp(-1.702 * x))


@inline_jit
def _ramps(at: Any, sample: int, samples: Any, half: float, out: Any) -> None:
    """Fill in the distribution of a sample, with ramps for steps."""
    value, mass, n = samples.value[sample], samples.mass[sample], samples.length[sample]
    whole, begun, begun_sum = 0.0, 0.0, 0.0
    first, past_end = 0, 0
    for place in range(len(at)):
        t = at[place]
        while past_end < n and value[past_end] < t + half:
            begun += mass[past_end]
            begun_sum += mass[past_end] * value[past_end]
            past_end += 1
        while first < past_end and value[first] <= t - half:
            whole += mass[first]
            begun -= mass[first]
            begun_sum -= mass[first] * value[first]
            first += 1
        out[place] = whole + (begun * (t + half) - begun_sum) / (2.0 * half)


@inline_jit
def distributions(at: Any, samples: Any, anchor: float, anchor_sd: float, out: Any) -> None:
    """Fill in P(T <= t) at the ascending times ``at``.

    Parameters
    ----------
    at : float64 array of shape (m,)
        log1p s, ascending.
    anchor, anchor_sd : float
        Mean and standard deviation of the shrinkage.
    out : float64 array of shape (6, m)
        By each of ``SAMPLES``, NaN for an empty one, and by their mixture.
    """
    for sample in range(5):
        if samples.length[sample] == 0:
            out[sample, :] = np.nan
        else:
            _ramps(at, sample, samples, _half(sample), out[sample])
    beyond_alike = _started_at(samples, samples.longest[STARTED_ALIKE])
    beyond_user = _alike_at(samples, samples.longest[STARTED_BY_USER], anchor, anchor_sd)
    for place in range(len(at)):
        t = at[place]
        mixed = _with_prior(samples, t, out[STARTED, place])
        out[STARTED, place] = mixed
        if samples.length[STARTED_ALIKE] > 0:
            out[STARTED_ALIKE, place] += _rest(samples, STARTED_ALIKE, t, mixed, beyond_alike)
        mixed = _mix(out[STARTED_ALIKE, place], samples.weight[STARTED_ALIKE], PSEUDO_REQUEST, mixed)
        mixed = _with_anchor(t, anchor, anchor_sd, mixed)
        if samples.length[STARTED_BY_USER] > 0:
            out[STARTED_BY_USER, place] += _rest(samples, STARTED_BY_USER, t, mixed, beyond_user)
        mixed = _mix(out[STARTED_BY_USER, place], samples.weight[STARTED_BY_USER], PSEUDO_USER, mixed)
        mixed = _mix(out[NEAR, place], samples.weight[NEAR], PSEUDO_NEAR, mixed)
        out[5, place] = _mix(out[KEY, place], samples.weight[KEY], PSEUDO_KEY, mixed)


@inline_jit
def _half(sample: int) -> Any:
    return USER_RAMP if sample <= STARTED_BY_USER else OTHERS_RAMP


@inline_jit
def _prior(t: float) -> Any:
    return _logistic((t - PRIOR_MIDDLE) / PRIOR_WIDTH)


@inline_jit
def _rest(samples: Any, sample: int, t: float, wider: float, wider_there: float) -> Any:
    """Return what of a sample's left-over mass lies up to ``t``.

    Beyond the longest value of a censored sample nothing is known but the wider distribution, given that it is longer:
    ``wider`` at ``t``, and ``wider_there`` at the longest value.
    """
    if samples.rest[sample] <= 0.0 or t <= samples.longest[sample] or wider_there >= 1.0 - 1e-9:
        return 0.0
    return samples.rest[sample] * (wider - wider_there) / (1.0 - wider_there)


@inline_jit
def _with_prior(samples: Any, t: float, own: float) -> Any:
    """Return the distribution of all started jobs, drawn towards the prior.

    ``own`` is NaN without any such job.
    """
    n, prior = float(samples.length[STARTED]), _prior(t)
    if n == 0.0:
        return prior
    own += _rest(samples, STARTED, t, prior, _prior(samples.longest[STARTED]))
    return (n * own + PSEUDO_PRIOR * prior) / (n + PSEUDO_PRIOR)


@inline_jit
def _with_anchor(t: float, anchor: float, anchor_sd: float, mixed: float) -> Any:
    return 0.5 * mixed + 0.5 * _logistic((t - anchor) / max(anchor_sd, 0.3)) if anchor > 0 else mixed


@inline_jit
def _sample_at(samples: Any, sample: int, t: float) -> Any:
    """Return a sample's distribution at one time, without its left-over mass."""
    value, mass, half = samples.value[sample], samples.mass[sample], _half(sample)
    total = 0.0
    for place in range(samples.length[sample]):
        total += mass[place] * min(max((t + half - value[place]) / (2.0 * half), 0.0), 1.0)
    return total


@inline_jit
def _started_at(samples: Any, t: float) -> Any:
    """Return the distribution of all started jobs at one time."""
    return _with_prior(samples, t, _sample_at(samples, STARTED, t))


@inline_jit
def _alike_at(samples: Any, t: float, anchor: float, anchor_sd: float) -> Any:
    """Return the mixture towards which a user's started jobs are drawn."""
    mixed = _started_at(samples, t)
    if samples.length[STARTED_ALIKE] > 0:
        own = _sample_at(samples, STARTED_ALIKE, t)
        if t > samples.longest[STARTED_ALIKE]:
            own += _rest(samples, STARTED_ALIKE, t, mixed, _started_at(samples, samples.longest[STARTED_ALIKE]))
        mixed = _mix(own, samples.weight[STARTED_ALIKE], PSEUDO_REQUEST, mixed)
    return _with_anchor(t, anchor, anchor_sd, mixed)


@inline_jit
def _mix(own: float, weight: float, pseudo: float, wider: float) -> Any:
    """Return a sample's own distribution drawn towards the wider one."""
    return (weight * own + pseudo * wider) / (weight + pseudo) if weight > 0.0 else wider
