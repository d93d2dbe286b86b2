"""Synthetic traces with the published statistics of a real GPU cluster.

Jobs come in campaigns: one user, one name, one size, similar run times. Every job has a value on two hidden scales,
size and length. The ranks on these scales are mapped to the published distributions, which are therefore met exactly,
whatever the campaigns are. The correlation of the two scales is solved for, so that the requested GPU time is the
published share of the cluster's capacity.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.errors import UsageError
from helios.model import JOBS, JobState

# Statistics of four GPU clusters, to make traces like theirs.
#
# Source of every figure that is not marked otherwise: Hu, Sun, Yan, Wen, Zhang, *Characterization and Prediction of
# Deep Learning Workloads in Large-Scale GPU Datacenters*, SC'21 (doi 10.1145/3458817.3476223) and its artifact;
# clusters of SenseTime, April to September 2020, GPU jobs only.
GPUS_PER_NODE = 8
DAYS_OBSERVED = 183

# Sizes at which the share of jobs "at or below" is published. Larger jobs have the profile's largest size.
SIZES = (1, 2, 4, 8, 16, 32, 64)
# Run times, s, at which the share of jobs "at or below" is published.
RUN_TIMES_S = (1, 8, 32, 64, 128, 256, 512, 1_024, 4_096, 16_384, 65_536, 262_144)

# Completed, cancelled and failed jobs, %, by GPUs, over all four clusters.
STATUS_BY_SIZE = {
    1: (66.8, 18.5, 14.7),
    8: (55.1, 29.3, 15.7),
    16: (42.8, 46.3, 10.9),
    64: (21.3, 68.5, 10.2),
}

# Relative submissions by hour of the local day: only the shape is published (trough 08-09 h, dips at 12 h and
# 18 h, peak 17-24 h); the numbers are ours.
SUBMISSIONS_BY_HOUR = (
    *(0.95, 0.80, 0.70, 0.60, 0.55, 0.50, 0.45, 0.40),
    *(0.35, 0.70, 1.00, 1.05, 0.75, 0.90, 1.10, 1.15),
    *(1.15, 1.20, 0.90, 1.15, 1.25, 1.30, 1.30, 1.20),
)
# Ours: slightly fewer jobs at weekends, as the paper describes it without figures.
SUBMISSIONS_BY_WEEKDAY = (1.05, 1.05, 1.05, 1.05, 1.0, 0.9, 0.9)

# The share of GPU time that the busiest 5 % of users hold is published as 46-61 %.
BUSIEST_USERS, SHARE_OF_BUSIEST = 0.05, 0.56
# Utilisation is published as 65-90 %. This is requested GPU time over the GPU time of the cluster.
OFFERED_LOAD = 0.80

DAY_S = 86_400
HOUR_S = 3_600
# What Slurm itself needs between placing and starting a job. Waiting for nodes is left to the simulator.
LONGEST_DISPATCH_S = 5
DEFAULT_TIME_LIMIT_S = 7 * DAY_S
# Round limits, as people type them.
TIME_LIMITS_S = np.array(
    [
        *(m * 60 for m in (10, 30)),
        *(h * HOUR_S for h in (1, 2, 4, 8, 12)),
        *(d * DAY_S for d in (1, 2, 3, 5, 7, 14, 30)),
    ],
    dtype=np.float64,
)
# The values below are ours, chosen to look like the published descriptions, which give no figures.
CPUS_PER_GPU = 6
SHARE_WITH_DEFAULT_LIMIT = 0.4
LIMIT_OVER_RUN_TIME = 10.0

LARGE_SWEEPS_ARE_SMALL = 0.6
LIKENESS_WITHIN_CAMPAIGN = 0.85
LIKENESS_WITHIN_USER = 0.4
LOAD_BY_PARTITION = (0.9, 1.1)
PROJECTS = ("det", "seg", "cls", "pose", "reid", "face", "ocr", "nas", "gan", "asr", "nlp", "rl", "video", "depth")
TASKS = ("train", "eval", "finetune", "search", "debug", "sweep")

CAMPAIGN_JOBS_LOG_MEAN, CAMPAIGN_JOBS_LOG_SD, LARGEST_CAMPAIGN = 1.2, 1.2, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterProfile:
    """Published statistics of one cluster.

    Attributes
    ----------
    jobs : int
        GPU jobs in ``DAYS_OBSERVED`` days.
    mean_run_time_s : float
        Mean run time, s.
    at_or_below_size : tuple of float
        % of jobs of at most ``SIZES`` GPUs.
    at_or_below_run_time : tuple of float
        % of jobs of at most ``RUN_TIMES_S``.
    status : tuple of float
        % of jobs completed, cancelled, failed.
    longest_run_time_s : float
        The longest run time; ours, so that the mean is the published one.
    largest_size : int
        GPUs of jobs above 64; ours, so that the mean size is the published one.
    users : int
        Number of users; ours.
    nodes : tuple of int
        Nodes of each partition; the sum is published, the division is ours.
    """

    jobs: int
    mean_run_time_s: float
    at_or_below_size: tuple[float, ...]
    at_or_below_run_time: tuple[float, ...]
    status: tuple[float, float, float]
    longest_run_time_s: float
    largest_size: int
    users: int
    nodes: tuple[int, ...]


PROFILES = {
    "venus": ClusterProfile(
        jobs=125_303, mean_run_time_s=13_041, longest_run_time_s=770_000, largest_size=104, users=180,
        at_or_below_size=(51.8, 57.4, 64.8, 90.0, 94.1, 97.8, 98.7), status=(52.6, 27.2, 20.2),
        at_or_below_run_time=(1.9, 6.4, 14.8, 23.2, 37.6, 55.1, 65.1, 72.9, 83.7, 89.7, 95.4, 98.9),
        nodes=(40, 28, 20, 16, 12, 8, 5, 4),
    ),
    "earth": ClusterProfile(
        jobs=427_148, mean_run_time_s=5_131, longest_run_time_s=830_000, largest_size=128, users=240,
        at_or_below_size=(89.2, 90.0, 92.1, 97.5, 99.1, 99.8, 99.9), status=(73.5, 13.6, 12.9),
        at_or_below_run_time=(1.0, 2.1, 4.1, 9.1, 17.8, 55.1, 71.6, 76.5, 88.7, 95.7, 98.6, 99.7),
        nodes=(44, 30, 22, 16, 12, 9, 6, 4),
    ),
    "saturn": ClusterProfile(
        jobs=698_896, mean_run_time_s=5_253, longest_run_time_s=495_000, largest_size=152, users=320,
        at_or_below_size=(68.3, 71.1, 79.4, 94.9, 97.5, 99.3, 99.7), status=(58.2, 27.2, 14.5),
        at_or_below_run_time=(7.2, 12.7, 25.1, 35.9, 50.8, 61.6, 69.6, 76.3, 88.8, 95.6, 98.1, 99.7),
        nodes=(80, 54, 40, 30, 22, 16, 10, 6, 4),
    ),
    "uranus": ClusterProfile(
        jobs=329_117, mean_run_time_s=9_164, longest_run_time_s=680_000, largest_size=128, users=280,
        at_or_below_size=(66.3, 69.4, 73.7, 92.3, 97.9, 99.6, 100.0), status=(60.7, 20.1, 19.2),
        at_or_below_run_time=(2.0, 4.9, 13.4, 22.6, 36.3, 48.3, 59.0, 72.3, 85.0, 91.7, 96.8, 99.4),
        nodes=(80, 56, 40, 30, 22, 16, 10, 6, 4),
    ),
}  # fmt: skip


def profile_named(name: str) -> ClusterProfile:
    """Return the profile called ``name``.

    Raises
    ------
    UsageError
        There is none of that name.
    """
    if name not in PROFILES:
        raise UsageError(f"There is no cluster profile {name!r}.", hint=f"Choose one of {', '.join(PROFILES)}.")
    return PROFILES[name]


Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


def synthetic_trace(*, profile: str = "venus", start: datetime, days: int = 30, seed: int = 0) -> pd.DataFrame:
    """Return a synthetic trace of GPU jobs.

    Jobs start a few seconds after their submission, as on an empty cluster: queueing is left to the simulator.

    Parameters
    ----------
    profile : str
        ``venus``, ``earth``, ``saturn`` or ``uranus``.
    start : datetime
        Beginning of the first day, with a zone. The daily pattern follows the clock of that zone.
    days : int
        Days of submissions.
    seed : int
        The same seed gives the same trace.

    Returns
    -------
    DataFrame
        Columns of ``JOBS``, in order of submission.

    Raises
    ------
    UsageError
        There is no such profile, ``start`` has no zone, or ``days`` is not positive.
    """
    figures = profile_named(profile)
    if start.tzinfo is None or days < 1:
        raise UsageError("A synthetic trace needs a start with a time zone, and at least one day.")
    rng = np.random.default_rng(seed)
    campaign = _campaigns(max(1, round(figures.jobs * days / DAYS_OBSERVED)), rng)
    gpus, run_time_s = _sizes_and_run_times(figures, campaign, days, rng)
    partition, user = _places(figures, campaign, gpus, run_time_s, rng)
    frame = pd.DataFrame(
        {
            "submitted_s": _submissions(start, days, campaign, rng),
            "gpus": gpus,
            "run_time_s": run_time_s,
            "partition": np.array(partition_names(figures))[partition],
            "user": np.char.add("u", np.char.zfill(user.astype(np.str_), 4)),
            "name": _names(campaign, user, rng),
            "state": _states(figures, gpus, rng),
            "time_limit_s": _time_limits(campaign, run_time_s, rng),
        }
    ).sort_values("submitted_s", kind="stable", ignore_index=True)
    return _as_jobs(frame, start, rng)


def synthetic_nodes(profile: str = "venus") -> dict[str, int]:
    """Return the number of nodes of each partition of a profile.

    Each node has 8 GPUs. A synthetic trace of the same ``profile`` is made for these nodes.

    Raises
    ------
    UsageError
        There is no such profile.
    """
    figures = profile_named(profile)
    return dict(zip(partition_names(figures), figures.nodes, strict=True))


def partition_names(figures: ClusterProfile) -> list[str]:
    """Return the names of the partitions, in the order of ``figures.nodes``."""
    return [f"vc{number:02d}" for number in range(1, len(figures.nodes) + 1)]


def _campaigns(jobs: int, rng: np.random.Generator) -> Counts:
    """Return the campaign of each job, ascending from 0."""
    drawn = np.exp(rng.normal(CAMPAIGN_JOBS_LOG_MEAN, CAMPAIGN_JOBS_LOG_SD, size=jobs))
    counts = np.clip(np.ceil(drawn), 1, LARGEST_CAMPAIGN).astype(np.int64)
    return np.repeat(np.arange(jobs), counts)[:jobs]


def _sizes_and_run_times(
    figures: ClusterProfile, campaign: Counts, days: int, rng: np.random.Generator
) -> tuple[Counts, Floats]:
    """Return the GPUs and the run time (s) of each job.

    Both have the published distributions. Their correlation is chosen so that the load is the published one.
    """
    campaigns = int(campaign[-1]) + 1
    # Campaigns of many jobs have small and short jobs. Otherwise a single one could hold half of a month's GPU time.
    many = LARGE_SWEEPS_ARE_SMALL * _standard(np.log(np.bincount(campaign)))
    size_scale, own_scale = rng.normal(size=(2, campaigns)) - many
    gpus = _sizes(figures, _ranks(size_scale[campaign]))
    noise = rng.normal(size=len(campaign))
    wanted_s = OFFERED_LOAD * sum(figures.nodes) * GPUS_PER_NODE * days * DAY_S

    def tied(strength: float) -> Floats:
        scale = strength * size_scale + np.sqrt(1 - strength**2) * own_scale
        likeness = LIKENESS_WITHIN_CAMPAIGN
        return _run_times(figures, _ranks(np.sqrt(likeness) * scale[campaign] + np.sqrt(1 - likeness) * noise))

    weakest, strongest = -0.9, 0.99
    for _ in range(16):
        strength = (weakest + strongest) / 2
        too_little = float(gpus @ tied(strength)) < wanted_s
        weakest, strongest = (strength, strongest) if too_little else (weakest, strength)
    return gpus, tied(strongest)


def _ranks(values: Floats) -> Floats:
    """Return each value's rank as a share between 0 and 1, exclusive."""
    places = np.empty(len(values))
    places[np.argsort(values, kind="stable")] = np.arange(len(values))
    return (places + 0.5) / len(values)


def _sizes(figures: ClusterProfile, ranks: Floats) -> Counts:
    places = np.searchsorted(np.array(figures.at_or_below_size) / 100, ranks)
    return np.array([*SIZES, figures.largest_size], dtype=np.int64)[places]


def _run_times(figures: ClusterProfile, ranks: Floats) -> Floats:
    """Return run times in whole seconds.

    They interpolate the published distribution in log time.
    """
    shares = np.array([*figures.at_or_below_run_time, 100.0]) / 100
    seconds = np.interp(ranks, shares, np.log([*RUN_TIMES_S, figures.longest_run_time_s]))
    return np.maximum(1.0, np.round(np.exp(seconds)))


def _places(
    figures: ClusterProfile, campaign: Counts, gpus: Counts, run_time_s: Floats, rng: np.random.Generator
) -> tuple[Counts, Counts]:
    """Return the partition and the user of each job.

    Campaigns are laid in a row and cut into partitions by GPU time. The row is cut again into users, so that a user has
    one partition, or two neighbouring ones. Campaigns of one user have similar run times.
    """
    asked = np.bincount(campaign, weights=gpus * run_time_s).astype(np.float64)
    # A bound between two sizes may fall within a campaign; its last jobs are then the larger ones.
    last = np.searchsorted(campaign, np.arange(len(asked)), side="right") - 1
    mean_log = np.bincount(campaign, weights=np.log(run_time_s)) / np.bincount(campaign)
    noise = rng.normal(size=len(asked))
    kind = LIKENESS_WITHIN_USER * _standard(mean_log) + np.sqrt(1 - LIKENESS_WITHIN_USER**2) * noise
    partition = _partitions(figures, asked, gpus[last], rng)
    row = np.lexsort((kind, partition))
    user = np.empty(len(asked), dtype=np.int64)
    user[row] = _cut(asked[row], rng.permutation(_user_shares(figures.users)))
    return partition[campaign], _split_users(user, partition)[campaign]


def _partitions(figures: ClusterProfile, asked: Floats, gpus: Counts, rng: np.random.Generator) -> Counts:
    """Return the partition of each campaign.

    The campaign with the most GPU time comes first, and goes to the partition with the most left to fill.
    """
    capacity = np.array(figures.nodes, dtype=np.float64)
    left = capacity * rng.uniform(*LOAD_BY_PARTITION, size=len(capacity))
    left *= asked.sum() / left.sum()
    partition = np.empty(len(asked), dtype=np.int64)
    for place in np.argsort(-asked, kind="stable"):
        # One job takes at most half of a partition, or the partition would have to drain for it.
        fitting = capacity * GPUS_PER_NODE >= 2 * gpus[place]
        chosen = int(np.argmax(np.where(fitting, left, -np.inf)))
        partition[place] = chosen
        left[chosen] -= asked[place]
    return partition


def _cut(weights: Floats, shares: Floats) -> Counts:
    """Return the piece in which each weight falls.

    The row of ``weights`` is cut into consecutive pieces in proportion to ``shares``.
    """
    middles = (np.cumsum(weights) - weights / 2) / weights.sum()
    edges = np.cumsum(shares) / shares.sum()
    return np.asarray(np.minimum(np.searchsorted(edges, middles), len(shares) - 1), dtype=np.int64)


def _split_users(user: Counts, partition: Counts) -> Counts:
    """Return users of whom each has at most two partitions.

    A user with more of them is split into several users.
    """
    first = np.full(int(user.max()) + 1, len(partition), dtype=np.int64)
    np.minimum.at(first, user, partition)
    people = user * len(partition) + (partition - first[user]) // 2
    return np.asarray(np.unique(people, return_inverse=True)[1], dtype=np.int64)


def _user_shares(users: int) -> Floats:
    """Return each user's share of GPU time.

    The shares fall as a power of the rank. The exponent is chosen so that the busiest users hold the published share.
    """
    ranks, busiest = np.arange(1, users + 1, dtype=np.float64), max(1, round(BUSIEST_USERS * users))
    exponents = np.linspace(0.0, 3.0, 301)
    shares = ranks[None, :] ** -exponents[:, None]
    held = shares[:, :busiest].sum(axis=1) / shares.sum(axis=1)
    return np.asarray(shares[np.argmin(np.abs(held - SHARE_OF_BUSIEST))])


def _submissions(start: datetime, days: int, campaign: Counts, rng: np.random.Generator) -> Counts:
    """Return submit times in seconds after ``start``.

    Campaigns last minutes to days. Their times are then mapped to the pattern of submissions over the day and the week.
    """
    campaigns = int(campaign[-1]) + 1
    begin = rng.uniform(0, days * DAY_S, size=campaigns)
    spread_s = np.exp(rng.uniform(np.log(60), np.log(3 * DAY_S), size=campaigns))
    even = (begin[campaign] + rng.exponential(spread_s[campaign])) % (days * DAY_S)
    hours = np.arange(days * 24)
    by_hour = np.array(SUBMISSIONS_BY_HOUR)[(hours + start.hour) % 24]
    by_day = np.array(SUBMISSIONS_BY_WEEKDAY)[((hours + start.hour) // 24 + start.weekday()) % 7]
    done = np.concatenate([[0.0], np.cumsum(by_hour * by_day)])
    bent: Floats = np.interp(even / (days * DAY_S), done / done[-1], np.arange(days * 24 + 1) * float(HOUR_S))
    return np.asarray(np.floor(bent), dtype=np.int64)


def _names(campaign: Counts, user: Counts, rng: np.random.Generator) -> NDArray[np.str_]:
    """Return job names.

    A name has a task, one of the user's two projects, and a number for the campaign.
    """
    campaigns = int(campaign[-1]) + 1
    task, number = rng.integers(len(TASKS), size=campaigns), rng.integers(1, 40, size=campaigns)
    project = np.array(PROJECTS)[(user * 7 + number[campaign] % 2) % len(PROJECTS)]
    stem = np.char.add(np.char.add(np.array(TASKS)[task][campaign], "_"), project)
    return np.char.add(np.char.add(stem, "_"), number[campaign].astype(np.str_))


def _states(figures: ClusterProfile, gpus: Counts, rng: np.random.Generator) -> NDArray[np.str_]:
    """Return the final state of each job.

    It depends on the job's size. The shares are scaled so that those of the whole cluster are the published ones.
    """
    sizes = np.log2(list(STATUS_BY_SIZE))
    published = np.array(list(STATUS_BY_SIZE.values()))
    shares = np.stack([np.interp(np.log2(gpus), sizes, published[:, place]) for place in range(3)], axis=1)
    # Iterative proportional fitting (Deming and Stephan 1940); a few rounds are exact to 0.1 %.
    for _ in range(20):
        shares *= np.array(figures.status) / shares.mean(axis=0)
        shares /= shares.sum(axis=1, keepdims=True)
    drawn = (rng.uniform(size=(len(gpus), 1)) > np.cumsum(shares, axis=1)).sum(axis=1)
    ends = [JobState.COMPLETED.value, JobState.CANCELLED.value, JobState.FAILED.value]
    chosen: NDArray[np.str_] = np.array(ends)[np.minimum(drawn, 2)]
    return chosen


def _time_limits(campaign: Counts, run_time_s: Floats, rng: np.random.Generator) -> Floats:
    """Return time limits in seconds, one for each campaign.

    A limit is a round one above the longest run of the campaign, or often the default.
    """
    campaigns = int(campaign[-1]) + 1
    longest = np.zeros(campaigns)
    np.maximum.at(longest, campaign, run_time_s)
    meant = longest * np.exp(np.abs(rng.normal(0, np.log(LIMIT_OVER_RUN_TIME), size=campaigns)))
    default = (rng.uniform(size=campaigns) < SHARE_WITH_DEFAULT_LIMIT) & (longest <= DEFAULT_TIME_LIMIT_S)
    places = np.minimum(np.searchsorted(TIME_LIMITS_S, meant), len(TIME_LIMITS_S) - 1)
    limits: Floats = np.where(default, float(DEFAULT_TIME_LIMIT_S), TIME_LIMITS_S[places])
    return limits[campaign]


def _standard(values: Floats) -> Floats:
    return np.asarray((values - values.mean()) / (values.std() or 1.0))


def _as_jobs(frame: pd.DataFrame, start: datetime, rng: np.random.Generator) -> pd.DataFrame:
    origin = pd.Timestamp(start.astimezone(UTC)).as_unit("us")
    submitted = origin + pd.to_timedelta(frame.pop("submitted_s"), unit="s")
    started = submitted + pd.to_timedelta(rng.integers(1, LONGEST_DISPATCH_S + 1, size=len(frame)), unit="s")
    jobs = frame.assign(
        job_id=np.arange(1, len(frame) + 1).astype(np.str_),
        submitted_at=submitted,
        eligible_at=submitted,
        started_at=started,
        ended_at=started + pd.to_timedelta(frame["run_time_s"], unit="s"),
        nodes=np.ceil(frame["gpus"] / GPUS_PER_NODE),
        cpus=frame["gpus"] * float(CPUS_PER_GPU),
    )
    return JOBS.conform(jobs)
