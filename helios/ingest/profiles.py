"""Four GPU clusters in figures, to make traces like theirs.

Source of every figure that is not marked otherwise: Hu, Sun, Yan, Wen, Zhang, *Characterization and Prediction of
Deep Learning Workloads in Large-Scale GPU Datacenters*, SC'21 (doi 10.1145/3458817.3476223) and its artifact;
clusters of SenseTime, April to September 2020, GPU jobs only.
"""

from __future__ import annotations

from dataclasses import dataclass

from helios.errors import Misuse

GPUS_PER_NODE = 8
DAYS_OBSERVED = 183

# Sizes at which the share of jobs "at or below" is published; what is larger has the profile's largest size.
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
# Ours: a mild week, as the paper describes it in words.
SUBMISSIONS_BY_WEEKDAY = (1.05, 1.05, 1.05, 1.05, 1.0, 0.9, 0.9)

# The share of GPU time that the busiest 5 % of users hold is published as 46-61 %.
BUSIEST_USERS, SHARE_OF_BUSIEST = 0.05, 0.56
# Utilisation is published as 65-90 %; this is GPU time asked for over GPU time there is.
OFFERED_LOAD = 0.80


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One cluster.

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
        People; ours.
    nodes : tuple of int
        Nodes of each partition; the sum is published, the partition is ours.
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
    "venus": Profile(
        jobs=125_303,
        mean_run_time_s=13_041,
        at_or_below_size=(51.8, 57.4, 64.8, 90.0, 94.1, 97.8, 98.7),
        at_or_below_run_time=(1.9, 6.4, 14.8, 23.2, 37.6, 55.1, 65.1, 72.9, 83.7, 89.7, 95.4, 98.9),
        status=(52.6, 27.2, 20.2),
        longest_run_time_s=770_000,
        largest_size=104,
        users=180,
        nodes=(40, 28, 20, 16, 12, 8, 5, 4),
    ),
    "earth": Profile(
        jobs=427_148,
        mean_run_time_s=5_131,
        at_or_below_size=(89.2, 90.0, 92.1, 97.5, 99.1, 99.8, 99.9),
        at_or_below_run_time=(1.0, 2.1, 4.1, 9.1, 17.8, 55.1, 71.6, 76.5, 88.7, 95.7, 98.6, 99.7),
        status=(73.5, 13.6, 12.9),
        longest_run_time_s=830_000,
        largest_size=128,
        users=240,
        nodes=(44, 30, 22, 16, 12, 9, 6, 4),
    ),
    "saturn": Profile(
        jobs=698_896,
        mean_run_time_s=5_253,
        at_or_below_size=(68.3, 71.1, 79.4, 94.9, 97.5, 99.3, 99.7),
        at_or_below_run_time=(7.2, 12.7, 25.1, 35.9, 50.8, 61.6, 69.6, 76.3, 88.8, 95.6, 98.1, 99.7),
        status=(58.2, 27.2, 14.5),
        longest_run_time_s=495_000,
        largest_size=152,
        users=320,
        nodes=(80, 54, 40, 30, 22, 16, 10, 6, 4),
    ),
    "uranus": Profile(
        jobs=329_117,
        mean_run_time_s=9_164,
        at_or_below_size=(66.3, 69.4, 73.7, 92.3, 97.9, 99.6, 100.0),
        at_or_below_run_time=(2.0, 4.9, 13.4, 22.6, 36.3, 48.3, 59.0, 72.3, 85.0, 91.7, 96.8, 99.4),
        status=(60.7, 20.1, 19.2),
        longest_run_time_s=680_000,
        largest_size=128,
        users=280,
        nodes=(80, 56, 40, 30, 22, 16, 10, 6, 4),
    ),
}


def profile_named(name: str) -> Profile:
    """Return the profile called ``name``.

    Raises
    ------
    Misuse
        There is none of that name.
    """
    if name not in PROFILES:
        raise Misuse(f"There is no cluster profile {name!r}.", remedy=f"Choose one of {', '.join(PROFILES)}.")
    return PROFILES[name]
