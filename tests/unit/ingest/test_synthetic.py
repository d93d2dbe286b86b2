from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest

from helios.errors import UsageError
from helios.ingest import synthetic_nodes, synthetic_trace
from helios.model import JOBS, in_submission_order

START = datetime(2020, 9, 1, tzinfo=UTC)
PROFILES = ("venus", "earth", "saturn", "uranus")
MONTHS = {}

# Written down again from SCIENCE.md section 4, not from the product's constants.
JOBS_IN_183_DAYS = {"venus": 125_303, "earth": 427_148, "saturn": 698_896, "uranus": 329_117}
NODES = {"venus": 133, "earth": 143, "saturn": 262, "uranus": 264}
MEAN_RUN_TIME_S = {"venus": 13_041, "earth": 5_131, "saturn": 5_253, "uranus": 9_164}
MEDIAN_RUN_TIME_S = {"venus": 204, "earth": 234, "saturn": 124, "uranus": 280}
MEAN_GPUS = {"venus": 6.74, "earth": 2.10, "saturn": 4.01, "uranus": 4.04}
STATUS = {
    "venus": (52.6, 27.2, 20.2),
    "earth": (73.5, 13.6, 12.9),
    "saturn": (58.2, 27.2, 14.5),
    "uranus": (60.7, 20.1, 19.2),
}
SIZES = {
    "venus": (51.8, 57.4, 64.8, 90.0, 94.1, 97.8, 98.7),
    "earth": (89.2, 90.0, 92.1, 97.5, 99.1, 99.8, 99.9),
    "saturn": (68.3, 71.1, 79.4, 94.9, 97.5, 99.3, 99.7),
    "uranus": (66.3, 69.4, 73.7, 92.3, 97.9, 99.6, 100.0),
}
RUN_TIMES = {
    "venus": {8: 6.4, 64: 23.2, 256: 55.1, 1_024: 72.9, 16_384: 89.7, 262_144: 98.9},
    "earth": {8: 2.1, 64: 9.1, 256: 55.1, 1_024: 76.5, 16_384: 95.7, 262_144: 99.7},
    "saturn": {8: 12.7, 64: 35.9, 256: 61.6, 1_024: 76.3, 16_384: 95.6, 262_144: 99.7},
    "uranus": {8: 4.9, 64: 22.6, 256: 48.3, 1_024: 72.3, 16_384: 91.7, 262_144: 99.4},
}


def a_month(profile, seed=0):
    if (profile, seed) not in MONTHS:
        MONTHS[profile, seed] = synthetic_trace(profile=profile, start=START, seed=seed)
    return MONTHS[profile, seed]


def gpu_time(jobs):
    return jobs["gpus"] * jobs["run_time_s"]


@pytest.mark.parametrize("profile", PROFILES)
class TestEachProfileMeetsThePublishedFigures:
    def test_job_count(self, profile):
        assert len(a_month(profile)) == pytest.approx(JOBS_IN_183_DAYS[profile] * 30 / 183, abs=1)

    def test_mean_run_time_within_2_percent(self, profile):
        assert a_month(profile)["run_time_s"].mean() == pytest.approx(MEAN_RUN_TIME_S[profile], rel=0.02)

    def test_median_run_time_within_5_percent(self, profile):
        assert a_month(profile)["run_time_s"].median() == pytest.approx(MEDIAN_RUN_TIME_S[profile], rel=0.05)

    def test_run_time_distribution_within_1_point(self, profile):
        for seconds, percent in RUN_TIMES[profile].items():
            below = 100 * (a_month(profile)["run_time_s"] <= seconds).mean()
            assert below == pytest.approx(percent, abs=1.0)

    def test_mean_size_within_2_percent(self, profile):
        assert a_month(profile)["gpus"].mean() == pytest.approx(MEAN_GPUS[profile], rel=0.02)

    def test_size_distribution_within_a_tenth_of_a_point(self, profile):
        below = [100 * (a_month(profile)["gpus"] <= size).mean() for size in (1, 2, 4, 8, 16, 32, 64)]
        assert below == pytest.approx(SIZES[profile], abs=0.1)

    def test_status_within_1_point(self, profile):
        shares = 100 * a_month(profile)["state"].value_counts(normalize=True)
        assert [shares[name] for name in ("COMPLETED", "CANCELLED", "FAILED")] == pytest.approx(
            STATUS[profile], abs=1.0
        )

    def test_nodes(self, profile):
        assert sum(synthetic_nodes(profile).values()) == NODES[profile]

    @pytest.mark.parametrize("seed", [0, 1, 2])
    def test_offered_load_of_each_partition_is_65_to_95_percent(self, profile, seed):
        jobs, nodes = a_month(profile, seed), synthetic_nodes(profile)
        asked = gpu_time(jobs).groupby(jobs["partition"].astype(str)).sum()
        load = asked / (pd.Series(nodes) * 8 * 30 * 86_400)
        assert load.between(0.65, 0.95).all()

    @pytest.mark.parametrize("seed", [0, 1, 2])
    def test_the_busiest_users_hold_about_half_of_the_gpu_time(self, profile, seed):
        jobs = a_month(profile, seed)
        held = gpu_time(jobs).groupby(jobs["user"].astype(str)).sum().sort_values(ascending=False)
        assert 0.44 <= held.head(round(0.05 * len(held))).sum() / held.sum() <= 0.63

    def test_every_job_fits_its_partition(self, profile):
        jobs = a_month(profile)
        assert (jobs["gpus"] <= 8 * jobs["partition"].astype(str).map(synthetic_nodes(profile))).all()

    def test_users_have_one_partition_or_two(self, profile):
        jobs = a_month(profile)
        assert jobs["partition"].astype(str).groupby(jobs["user"].astype(str)).nunique().max() <= 2

    def test_no_user_submits_most_jobs(self, profile):
        assert a_month(profile)["user"].value_counts(normalize=True).max() < 0.3


def test_large_jobs_are_cancelled_more_often_and_completed_less():
    jobs = a_month("venus")
    small, large = jobs[jobs["gpus"] == 1]["state"], jobs[jobs["gpus"] >= 16]["state"]
    assert (large == "CANCELLED").mean() > (small == "CANCELLED").mean() + 0.2
    assert (large == "COMPLETED").mean() < (small == "COMPLETED").mean() - 0.2


def test_submissions_have_the_published_shape_of_the_day():
    hours = pd.concat([a_month(profile) for profile in PROFILES])["submitted_at"].dt.hour.value_counts()
    assert hours[[8, 9]].mean() < 0.7 * hours.mean()
    assert hours[12] < hours[11] and hours[18] < hours[17]
    assert hours[list(range(17, 24))].mean() > 1.2 * hours[list(range(12))].mean()


def test_the_shape_of_the_day_follows_the_clock_of_the_start():
    start = datetime(2020, 9, 1, tzinfo=ZoneInfo("Asia/Shanghai"))
    jobs = synthetic_trace(start=start, days=30)
    local = jobs["submitted_at"].dt.tz_convert("Asia/Shanghai").dt.hour.value_counts()
    assert local[[8, 9]].mean() < 0.8 * local.mean() and jobs["submitted_at"].min() >= start


def test_run_times_within_a_campaign_are_alike():
    jobs = a_month("venus")
    log = np.log(jobs["run_time_s"])
    campaign = jobs["user"].astype(str) + jobs["name"] + jobs["gpus"].astype(str)
    assert (log - log.groupby(campaign).transform("mean")).var() < 0.5 * log.var()


def test_no_job_runs_beyond_its_limit():
    jobs = a_month("uranus")
    assert (jobs["run_time_s"] <= jobs["time_limit_s"]).all()


def test_the_default_limit_of_7_days_is_the_most_frequent():
    assert a_month("venus")["time_limit_s"].mode()[0] == 7 * 86_400


def test_submissions_lie_within_the_days_asked_for():
    jobs = synthetic_trace(start=START, days=3)
    assert jobs["submitted_at"].between(START, pd.Timestamp(START) + pd.Timedelta(days=3), inclusive="left").all()


def test_start_and_end_follow_the_submission():
    jobs = a_month("venus")
    assert (jobs["started_at"] - jobs["submitted_at"]).dt.total_seconds().between(1, 5).all()
    assert ((jobs["ended_at"] - jobs["started_at"]).dt.total_seconds() == jobs["run_time_s"]).all()


def test_the_frame_is_declared_and_in_submission_order():
    jobs = JOBS.check(synthetic_trace(start=START, days=2))
    pd.testing.assert_frame_equal(in_submission_order(jobs), jobs)


def test_the_same_seed_gives_the_same_trace():
    first, second = (synthetic_trace(start=START, days=2, seed=5) for _ in range(2))
    pd.testing.assert_frame_equal(first, second)


def test_another_seed_gives_another_trace():
    first, second = (synthetic_trace(start=START, days=2, seed=seed) for seed in (5, 6))
    assert not first["submitted_at"].equals(second["submitted_at"])


@pytest.mark.parametrize("profile", PROFILES)
def test_a_single_day_can_be_made(profile):
    assert len(synthetic_trace(profile=profile, start=START, days=1)) > 500


def test_an_unknown_profile_names_the_known_ones():
    with pytest.raises(UsageError, match="venus, earth, saturn, uranus"):
        synthetic_trace(profile="mars", start=START)


@pytest.mark.parametrize(("start", "days"), [(START.replace(tzinfo=None), 30), (START, 0)])
def test_a_start_without_zone_or_no_days_is_a_misuse(start, days):
    with pytest.raises(UsageError, match="time zone"):
        synthetic_trace(start=start, days=days)
