"""Distributions of run times that need no training.

A job's distribution comes from five samples of earlier jobs: the user's last ended jobs (similar ones count more), the
ended jobs of the same user, size and limit, and the last *started* jobs of the user, of the same request and of all.
Jobs that still run are censored at their age, so that long jobs are not missed because they have not ended (Kaplan and
Meier 1958). From the widest sample to the narrowest, each is mixed with the distribution of the wider one, which counts
as a fixed number of pseudo-observations.

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
"""Lengths of the ring buffers: ended jobs of a user, size and limit, and started jobs of a user, request, and all."""
RENEW_AFTER = 8
"""Number of starts after which the sample of all jobs is renewed. It is smaller at first."""
# Half widths of the ramps that replace the steps of a distribution, for samples of one user and for the others.
USER_RAMP, OTHERS_RAMP = 0.15, 0.25
# Pseudo-observations of the wider distribution that each sample is mixed with.
PSEUDO_PRIOR, PSEUDO_REQUEST, PSEUDO_USER, PSEUDO_NEAR, PSEUDO_KEY = 4.0, 6.0, 1.5, 1.5, 2.0
# The prior of the widest sample: a logistic distribution with the median at half an hour.
PRIOR_MIDDLE, PRIOR_WIDTH = 7.5, 2.5
LONGEST = np.log1p(60 * 86_400.0)
SHORTEST = 0.1
SAMPLES = ("key", "near", "user", "request", "all")
KEY, NEAR, STARTED_BY_USER, STARTED_ALIKE, STARTED = range(5)
"""Positions of ``SAMPLES``. The key is a user, size and limit."""
ANCHORS = (
    *("key_last_1", "key_last_2"),
    *("near_p10", "near_p25", "near_p50", "near_p75", "near_p90"),
    *("request_p10", "request_p25", "request_p50", "request_p75", "request_p90"),
    *("started_p10", "started_p50", "started_p90"),
    *("running", "running_longest", "running_alike", "running_alike_longest", "running_alike_mean"),
    *("near_weight", "started_weight", "request_weight", "key_ended", "last_two_apart"),
)
"""Names of the numbers that summarize the samples of a job, log1p s or weights."""
ANCHOR: Any = namedtuple("AnchorColumns", ANCHORS)(*range(len(ANCHORS)))
"""Position of each of ``ANCHORS``."""
FIVE_LEVELS = np.array([0.1, 0.25, 0.5, 0.75, 0.9])
"""Levels of the quantiles of a sample that are anchors, in the order of their columns."""


@dataclass(frozen=True, eq=False)
class PastRuns(Table):
    """Jobs that have run and jobs that run now.

    Attributes
    ----------
    started_s : int64 array of shape (n,)
        ``NEVER_S`` for a job that has not started.
    log_run : float64 array of shape (n,)
        NaN for a job that has not ended or whose run time is unknown.
    ended : bool array of shape (n,)
    ended_s : int64 array of shape (n,)
    ring_index : int32 array of shape (n_groups,)
        Ring buffer of a user, of a request, or of a user, size and limit; -1 for other groups.
    key_runs : float64 array of shape (n_keys, KEY_RUNS)
        Run times of the last ended jobs of each user, size and limit, log1p s.
    user_starts, request_starts : int64 arrays of shapes (n_users, USER_STARTS), (n_requests, REQUEST_STARTS)
        Jobs that started last.
    all_starts : int64 array of shape (1, ALL_STARTS)
    key_count, user_count, request_count, all_count : int64 arrays, one entry per ring
        How many jobs were added to each ring.
    all_sample : float64 array of shape (2, ALL_STARTS)
        Sample of all started jobs, values and masses. It is kept, because it serves many predictions.
    all_sample_state : float64 array of shape (4,)
        Length of ``all_sample``, ``all_count`` when it was made, its leftover mass and its longest value.
    """

    started_s: NDArray[np.int64]
    log_run: NDArray[np.float64]
    ended: NDArray[np.bool_]
    ended_s: NDArray[np.int64]
    ring_index: NDArray[np.int32]
    key_runs: NDArray[np.float64]
    user_starts: NDArray[np.int64]
    request_starts: NDArray[np.int64]
    all_starts: NDArray[np.int64]
    key_count: NDArray[np.int64]
    user_count: NDArray[np.int64]
    request_count: NDArray[np.int64]
    all_count: NDArray[np.int64]
    all_sample: NDArray[np.float64]
    all_sample_state: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Samples(Table):
    """Buffers for the five samples of one job, each sorted by value.

    Attributes
    ----------
    value, mass : float64 arrays of shape (5, ALL_STARTS)
        Run times, log1p s, and their probabilities.
    length : int64 array of shape (5,)
    leftover, longest, weight : float64 arrays of shape (5,)
        Mass beyond the longest value, that value, and the weight of the sample in the mixture.
    anchors : float64 array of shape (len(ANCHORS),)
    """

    value: NDArray[np.float64] = field(default_factory=lambda: np.zeros((5, ALL_STARTS)))
    mass: NDArray[np.float64] = field(default_factory=lambda: np.zeros((5, ALL_STARTS)))
    length: NDArray[np.int64] = field(default_factory=lambda: np.zeros(5, dtype=np.int64))
    leftover: NDArray[np.float64] = field(default_factory=lambda: np.zeros(5))
    longest: NDArray[np.float64] = field(default_factory=lambda: np.zeros(5))
    weight: NDArray[np.float64] = field(default_factory=lambda: np.zeros(5))
    anchors: NDArray[np.float64] = field(default_factory=lambda: np.zeros(len(ANCHORS)))


def empty_past(groups: NDArray[np.int32]) -> PastRuns:
    """Return an empty past with room for all jobs of ``groups``."""
    n, n_groups = len(groups), int(groups.max(initial=-1)) + 1
    ring_index = np.full(n_groups, -1, dtype=np.int32)
    n_rings = []
    for level in (USER_SIZE, USER, REQUEST):
        numbers = np.unique(groups[:, level])
        numbers = numbers[numbers >= 0]
        ring_index[numbers] = np.arange(len(numbers), dtype=np.int32)
        n_rings.append(len(numbers))
    return replace(blank_past(n, n_groups, *n_rings), ring_index=ring_index)


def blank_past(n_jobs: int, n_groups: int, keys: int, users: int, requests: int) -> PastRuns:
    """Return an empty past with room for jobs, groups and rings.

    No group has a ring yet.
    """
    return PastRuns(
        started_s=np.full(n_jobs, NEVER_S),
        log_run=np.full(n_jobs, np.nan),
        ended=np.zeros(n_jobs, dtype=np.bool_),
        ended_s=np.full(n_jobs, NEVER_S),
        ring_index=np.full(n_groups, -1, dtype=np.int32),
        key_runs=np.full((keys, KEY_RUNS), np.nan),
        user_starts=np.full((users, USER_STARTS), -1, dtype=np.int64),
        request_starts=np.full((requests, REQUEST_STARTS), -1, dtype=np.int64),
        all_starts=np.full((1, ALL_STARTS), -1, dtype=np.int64),
        key_count=np.zeros(keys, dtype=np.int64),
        user_count=np.zeros(users, dtype=np.int64),
        request_count=np.zeros(requests, dtype=np.int64),
        all_count=np.zeros(1, dtype=np.int64),
        all_sample=np.zeros((2, ALL_STARTS)),
        all_sample_state=blank_all_sample_state(),
    )


def blank_all_sample_state() -> NDArray[np.float64]:
    """Return an empty sample of all jobs, to be renewed first."""
    return np.array([0.0, -1e9, 0.0, 0.0])


@inline_jit
def note_start(past: Any, groups: Any, job: int, started_s: int) -> None:
    """Add a started job to the rings that it belongs to."""
    _note_start_in_groups(past, groups, job, started_s)
    _insert(past.started_s, past.all_starts, past.all_count, 0, job)


@inline_jit
def note_starts(past: Any, groups: Any, jobs: Any, started_s: Any) -> None:
    """Add jobs ordered by start, with the result of ``note_start`` for each."""
    for i in range(len(jobs)):
        _note_start_in_groups(past, groups, jobs[i], started_s[i])
    # The ring of all jobs is merged with the new ones, from the newest on. Inserting one by one would move its entries
    # for each of hundreds of jobs.
    ring, count = past.all_starts[0], past.all_count[0]
    length = len(ring)
    n_known, n_new = min(count, length), len(jobs)
    known = np.empty(n_known, dtype=np.int64)
    for i in range(n_known):
        known[i] = ring[(count - n_known + i) % length]
    past.all_count[0] = min(n_known + n_new, length)
    for i in range(past.all_count[0] - 1, -1, -1):
        if n_known == 0 or (n_new > 0 and past.started_s[jobs[n_new - 1]] >= past.started_s[known[n_known - 1]]):
            n_new -= 1
            ring[i] = jobs[n_new]
        else:
            n_known -= 1
            ring[i] = known[n_known]


@inline_jit
def note_end(past: Any, groups: Any, job: int, ended_s: int, log_run: float) -> None:
    """Add an ended job. ``log_run`` is NaN for an unknown run time."""
    past.ended[job], past.ended_s[job] = True, ended_s
    past.log_run[job] = log_run
    key = groups[job, USER_SIZE]
    if key >= 0 and not np.isnan(log_run):
        ring = past.ring_index[key]
        past.key_runs[ring, past.key_count[ring] % KEY_RUNS] = log_run
        past.key_count[ring] += 1


@inline_jit
def _note_start_in_groups(past: Any, groups: Any, job: int, started_s: int) -> None:
    """Add a started job to the rings of its user and request."""
    past.started_s[job] = started_s
    user, request = groups[job, USER], groups[job, REQUEST]
    if user >= 0 and past.ring_index[user] >= 0:
        _insert(past.started_s, past.user_starts, past.user_count, past.ring_index[user], job)
    if request >= 0 and past.ring_index[request] >= 0:
        _insert(past.started_s, past.request_starts, past.request_count, past.ring_index[request], job)


@inline_jit
def _insert(started_s: Any, rings: Any, counts: Any, ring: int, job: int) -> None:
    """Insert a job into a ring that is ordered by start.

    A job that started before all of a full ring is left out.
    """
    length, n = rings.shape[1], counts[ring]
    if n >= length and started_s[rings[ring, n % length]] > started_s[job]:
        return
    i = n
    while i > 0 and i > n - length and started_s[rings[ring, (i - 1) % length]] > started_s[job]:
        i -= 1
    for later in range(n, i, -1):
        rings[ring, later % length] = rings[ring, (later - 1) % length]
    rings[ring, i % length] = job
    counts[ring] += 1


@inline_jit
def take_samples(past: Any, history: Any, groups: Any, traits: Any, job: int, now: int, samples: Any) -> None:  # noqa: PLR0917 - numba kernels are called by position
    """Fill in the samples and anchors of ``job`` as of ``now``."""
    samples.anchors[:] = np.nan
    _sample_ended(past, history, groups, traits, job, samples)
    _sample_started_by_user(past, groups, traits, job, now, samples)
    _sample_started_alike(past, groups, job, now, samples)
    _sample_started(past, now, samples)
    anchors = samples.anchors
    anchors[ANCHOR.near_weight] = np.log1p(samples.weight[NEAR])
    anchors[ANCHOR.started_weight] = np.log1p(samples.weight[STARTED_BY_USER])
    anchors[ANCHOR.request_weight] = np.log1p(samples.weight[STARTED_ALIKE])
    anchors[ANCHOR.key_ended] = np.log1p(float(samples.length[KEY]))


@inline_jit
def renew_sample(past: Any, now: int) -> None:
    """Renew the sample of all started jobs, if ``RENEW_AFTER`` have started."""
    count, state = past.all_count[0], past.all_sample_state
    if count - state[1] >= min(RENEW_AFTER, 1 + count // RENEW_AFTER):
        value, mass = past.all_sample[0], past.all_sample[1]
        n, _ = _collect_started(past, past.all_starts[0], count, np.inf, now, value, mass)
        _sort(value, mass, n)
        state[2] = _censor(mass, n)
        state[0], state[1], state[3] = n, count, value[n - 1] if n > 0 else 0.0


@inline_jit
def _sample_ended(past: Any, history: Any, groups: Any, traits: Any, job: int, samples: Any) -> None:  # noqa: PLR0917 - as above
    """Take both samples of the user's ended jobs."""
    samples.length[NEAR] = samples.length[KEY] = 0
    samples.weight[NEAR] = samples.weight[KEY] = 0.0
    user, key = groups[job, USER], groups[job, USER_SIZE]
    if user >= 0:
        _sample_near(history, history.ring_index[user], traits[job], samples)
        if key >= 0:
            _sample_key(past, past.ring_index[key], samples)


@inline_jit
def _sample_near(history: Any, ring: int, job_traits: Any, samples: Any) -> None:
    """Sample a user's last ended jobs, weighted by similarity and age."""
    length = history.ring_length[ring]
    value, mass = samples.value[NEAR], samples.mass[NEAR]
    n = min(length, NEIGHBOURS)
    total = 0.0
    for age in range(n):
        entry = history.rings[ring, (length - 1 - age) % NEIGHBOURS]
        value[age] = entry[0]
        mass[age] = 1.0 / ((1.0 + 3.0 * _distance(entry[1:], job_traits)) ** 2 * (1.0 + 0.15 * age))
        total += mass[age]
    if n > 1:
        samples.anchors[ANCHOR.last_two_apart] = abs(value[0] - value[1])
    if n > 0:
        mass[:n] /= total
        _sort(value, mass, n)
        _note_quantiles(samples.anchors, ANCHOR.near_p10, value, mass, n)
    samples.length[NEAR], samples.weight[NEAR] = n, total


@inline_jit
def _sample_key(past: Any, ring: int, samples: Any) -> None:
    """Sample the last ended jobs of a user, size and limit."""
    anchors = samples.anchors
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
def _sample_started_by_user(past: Any, groups: Any, traits: Any, job: int, now: int, samples: Any) -> None:  # noqa: PLR0917 - as above
    """Take the sample of the jobs that the user started last."""
    anchors = samples.anchors
    user = groups[job, USER]
    samples.length[STARTED_BY_USER], samples.weight[STARTED_BY_USER] = 0, 0.0
    if user < 0:
        return
    ring = past.ring_index[user]
    length = past.user_count[ring]
    value, mass = samples.value[STARTED_BY_USER], samples.mass[STARTED_BY_USER]
    n, total = 0, 0.0
    running, alike, alike_sum = 0, 0, 0.0
    for age in range(min(length, USER_STARTS)):
        other = past.user_starts[ring, (length - 1 - age) % USER_STARTS]
        log_time = _log_time(past, other, now)
        if np.isnan(log_time):
            continue
        weight = 1.0 / ((1.0 + 3.0 * _distance(traits[other], traits[job])) ** 2 * (1.0 + 0.1 * age))
        value[n], mass[n] = log_time, weight if past.ended[other] else -weight
        n += 1
        total += weight
        if not past.ended[other] and other != job:
            running += 1
            anchors[ANCHOR.running_longest] = (
                max(log_time, anchors[ANCHOR.running_longest]) if running > 1 else log_time
            )
            if groups[other, USER_SIZE] == groups[job, USER_SIZE]:
                alike += 1
                alike_sum += log_time
                longest = anchors[ANCHOR.running_alike_longest]
                anchors[ANCHOR.running_alike_longest] = max(log_time, longest) if alike > 1 else log_time
    _finish_started(samples, STARTED_BY_USER, n, total)
    anchors[ANCHOR.started_p10] = _quantile(value, mass, n, 0.1)
    anchors[ANCHOR.started_p50] = _quantile(value, mass, n, 0.5)
    anchors[ANCHOR.started_p90] = _quantile(value, mass, n, 0.9)
    anchors[ANCHOR.running], anchors[ANCHOR.running_alike] = np.log1p(float(running)), np.log1p(float(alike))
    if alike > 0:
        anchors[ANCHOR.running_alike_mean] = alike_sum / alike


@inline_jit
def _sample_started_alike(past: Any, groups: Any, job: int, now: int, samples: Any) -> None:
    """Take the sample of the last started jobs of the same request."""
    ring = past.ring_index[groups[job, REQUEST]]
    value, mass = samples.value[STARTED_ALIKE], samples.mass[STARTED_ALIKE]
    n, total = _collect_started(past, past.request_starts[ring], past.request_count[ring], 32.0, now, value, mass)
    _finish_started(samples, STARTED_ALIKE, n, total)
    _note_quantiles(samples.anchors, ANCHOR.request_p10, value, mass, n)


@inline_jit
def _sample_started(past: Any, now: int, samples: Any) -> None:
    """Take the sample of all started jobs."""
    renew_sample(past, now)
    state = past.all_sample_state
    n = int(state[0])
    samples.value[STARTED, :n], samples.mass[STARTED, :n] = past.all_sample[0, :n], past.all_sample[1, :n]
    samples.length[STARTED], samples.weight[STARTED] = n, float(n)
    samples.leftover[STARTED], samples.longest[STARTED] = state[2], state[3]


@inline_jit
def _collect_started(  # noqa: PLR0917 - as above
    past: Any, starts: Any, length: int, decay: float, now: int, value: Any, mass: Any
) -> tuple[int, float]:
    """Collect a ring's started jobs, and return number and weight.

    The ``decay``-th newest job weighs half. The mass of a job that still runs is negative, as ``_censor`` expects.
    """
    n, total = 0, 0.0
    for age in range(min(length, len(starts))):
        other = starts[(length - 1 - age) % len(starts)]
        log_time = _log_time(past, other, now)
        if not np.isnan(log_time):
            weight = 1.0 / (1.0 + age / decay)
            value[n], mass[n] = log_time, weight if past.ended[other] else -weight
            n += 1
            total += weight
    return n, total


@inline_jit
def _finish_started(samples: Any, sample: int, n: int, total: float) -> None:
    """Sort and censor started jobs, and set their length and weight."""
    value, mass = samples.value[sample], samples.mass[sample]
    _sort(value, mass, n)
    samples.leftover[sample] = _censor(mass, n)
    samples.longest[sample] = value[n - 1] if n > 0 else 0.0
    samples.length[sample], samples.weight[sample] = n, total


@inline_jit
def _sort(value: Any, mass: Any, n: int) -> None:
    """Sort a sample by value, in place."""
    order = np.argsort(value[:n])
    by_value, by_mass = value[:n][order], mass[:n][order]
    value[:n], mass[:n] = by_value, by_mass


@inline_jit
def _censor(weight: Any, n: int) -> float:
    """Replace weights by Kaplan-Meier masses, and return the leftover mass.

    The sample is sorted by value. A job that still runs has a negative weight, and gets no mass.
    """
    at_risk = 0.0
    for i in range(n):
        at_risk += abs(weight[i])
    survival = 1.0
    for i in range(n):
        own_weight = weight[i]
        weight[i] = 0.0
        if own_weight > 0.0 and at_risk > 1e-12:
            weight[i] = survival * min(own_weight / at_risk, 1.0)
            survival -= weight[i]
        at_risk -= abs(own_weight)
    return max(survival, 0.0)


@inline_jit
def _quantile(value: Any, mass: Any, n: int, level: float) -> Any:
    """Return the least value at which the mass reaches ``level``, or NaN."""
    total = 0.0
    for i in range(n):
        total += mass[i]
        if mass[i] > 0.0 and total >= level:
            return value[i]
    return np.nan


@inline_jit
def _note_quantiles(anchors: Any, first: int, value: Any, mass: Any, n: int) -> None:
    """Set the five quantiles of a sample, from the anchor ``first`` on."""
    for k in range(len(FIVE_LEVELS)):
        anchors[first + k] = _quantile(value, mass, n, FIVE_LEVELS[k])


@inline_jit
def _distance(a: Any, b: Any) -> Any:
    """Return the distance of two jobs in size, limit, partition and name.

    ``a`` and ``b`` are their traits (see ``Events``).
    """
    return abs(a[0] - b[0]) + abs(a[1] - b[1]) + (a[2] != b[2]) + 2.0 * (a[3] != b[3])


@inline_jit
def _log_time(past: Any, job: int, now: int) -> Any:
    """Return log1p of a job's run time, while running its age."""
    return past.log_run[job] if past.ended[job] else np.log1p(float(max(now - past.started_s[job], 0)))


@inline_jit
def distributions(times: Any, samples: Any, anchor: float, anchor_sd: float, out: Any) -> None:
    """Fill in P(T <= t) for each sample and for their mixture.

    Parameters
    ----------
    times : float64 array of shape (m,)
        Ascending, log1p s.
    anchor, anchor_sd : float
        Shrunk mean of past runs and its standard deviation, log1p s.
    out : float64 array of shape (6, m)
        A row for each of ``SAMPLES``, NaN for an empty one, and the mixture.
    """
    for sample in range(5):
        if samples.length[sample] == 0:
            out[sample, :] = np.nan
        else:
            _fill_cdf(times, sample, samples, _half_width(sample), out[sample])
    started_at_longest = _started_cdf_at(samples, samples.longest[STARTED_ALIKE])
    alike_at_longest = _alike_cdf_at(samples, samples.longest[STARTED_BY_USER], anchor, anchor_sd)
    for i in range(len(times)):
        t = times[i]
        mixed = _mix_prior(samples, t, out[STARTED, i])
        out[STARTED, i] = mixed
        if samples.length[STARTED_ALIKE] > 0:
            out[STARTED_ALIKE, i] += _leftover_up_to(samples, STARTED_ALIKE, t, mixed, started_at_longest)
        mixed = _mix(out[STARTED_ALIKE, i], samples.weight[STARTED_ALIKE], PSEUDO_REQUEST, mixed)
        mixed = _mix_anchor(t, anchor, anchor_sd, mixed)
        if samples.length[STARTED_BY_USER] > 0:
            out[STARTED_BY_USER, i] += _leftover_up_to(samples, STARTED_BY_USER, t, mixed, alike_at_longest)
        mixed = _mix(out[STARTED_BY_USER, i], samples.weight[STARTED_BY_USER], PSEUDO_USER, mixed)
        mixed = _mix(out[NEAR, i], samples.weight[NEAR], PSEUDO_NEAR, mixed)
        out[5, i] = _mix(out[KEY, i], samples.weight[KEY], PSEUDO_KEY, mixed)


@inline_jit
def _fill_cdf(times: Any, sample: int, samples: Any, half_width: float, out: Any) -> None:
    """Fill in a sample's distribution at ascending times, with ramps.

    ``full`` is the mass of values whose ramps lie before the time, ``partial`` that of values whose ramps contain it.
    """
    value, mass, n = samples.value[sample], samples.mass[sample], samples.length[sample]
    full, partial, partial_sum = 0.0, 0.0, 0.0
    first, past_end = 0, 0
    for i in range(len(times)):
        t = times[i]
        while past_end < n and value[past_end] < t + half_width:
            partial += mass[past_end]
            partial_sum += mass[past_end] * value[past_end]
            past_end += 1
        while first < past_end and value[first] <= t - half_width:
            full += mass[first]
            partial -= mass[first]
            partial_sum -= mass[first] * value[first]
            first += 1
        out[i] = full + (partial * (t + half_width) - partial_sum) / (2.0 * half_width)


@inline_jit
def _logistic(x: float) -> Any:
    """Return the standard normal distribution at ``x``, approximated by a logistic one."""
    return 1.0 / (1.0 + np.exp(-1.702 * x))


@inline_jit
def _half_width(sample: int) -> Any:
    return USER_RAMP if sample <= STARTED_BY_USER else OTHERS_RAMP


@inline_jit
def _prior(t: float) -> Any:
    return _logistic((t - PRIOR_MIDDLE) / PRIOR_WIDTH)


@inline_jit
def _leftover_up_to(samples: Any, sample: int, t: float, wider: float, wider_at_longest: float) -> Any:
    """Return a sample's leftover mass up to ``t``.

    Beyond the longest value of a censored sample it follows the wider distribution, given that the run is longer.
    ``wider`` is that distribution at ``t``, and ``wider_at_longest`` at the longest value.
    """
    if samples.leftover[sample] <= 0.0 or t <= samples.longest[sample] or wider_at_longest >= 1.0 - 1e-9:
        return 0.0
    return samples.leftover[sample] * (wider - wider_at_longest) / (1.0 - wider_at_longest)


@inline_jit
def _mix_prior(samples: Any, t: float, own: float) -> Any:
    """Return the distribution of all started jobs at ``t``, mixed with the prior.

    ``own`` is that of the sample, NaN without any such job.
    """
    n, prior = float(samples.length[STARTED]), _prior(t)
    if n == 0.0:
        return prior
    own += _leftover_up_to(samples, STARTED, t, prior, _prior(samples.longest[STARTED]))
    return (n * own + PSEUDO_PRIOR * prior) / (n + PSEUDO_PRIOR)


@inline_jit
def _mix_anchor(t: float, anchor: float, anchor_sd: float, mixed: float) -> Any:
    return 0.5 * mixed + 0.5 * _logistic((t - anchor) / max(anchor_sd, 0.3)) if anchor > 0 else mixed


@inline_jit
def _sample_cdf_at(samples: Any, sample: int, t: float) -> Any:
    """Return the distribution of a sample at ``t``, without its leftover mass."""
    value, mass, half_width = samples.value[sample], samples.mass[sample], _half_width(sample)
    total = 0.0
    for i in range(samples.length[sample]):
        total += mass[i] * min(max((t + half_width - value[i]) / (2.0 * half_width), 0.0), 1.0)
    return total


@inline_jit
def _started_cdf_at(samples: Any, t: float) -> Any:
    """Return the distribution of all started jobs at ``t``."""
    return _mix_prior(samples, t, _sample_cdf_at(samples, STARTED, t))


@inline_jit
def _alike_cdf_at(samples: Any, t: float, anchor: float, anchor_sd: float) -> Any:
    """Return the distribution at ``t`` that the user's started jobs are mixed with."""
    mixed = _started_cdf_at(samples, t)
    if samples.length[STARTED_ALIKE] > 0:
        own = _sample_cdf_at(samples, STARTED_ALIKE, t)
        if t > samples.longest[STARTED_ALIKE]:
            own += _leftover_up_to(
                samples, STARTED_ALIKE, t, mixed, _started_cdf_at(samples, samples.longest[STARTED_ALIKE])
            )
        mixed = _mix(own, samples.weight[STARTED_ALIKE], PSEUDO_REQUEST, mixed)
    return _mix_anchor(t, anchor, anchor_sd, mixed)


@inline_jit
def _mix(own: float, weight: float, pseudo: float, wider: float) -> Any:
    """Return the distribution of a sample mixed with the wider one."""
    return (weight * own + pseudo * wider) / (weight + pseudo) if weight > 0.0 else wider
