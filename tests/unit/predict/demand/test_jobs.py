"""What jobs tell: right by an independent count, deaf to the future, and no promise that a job ends on time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.errors import FrameInvalid
from helios.predict.demand.features import NAMES, NEVER_S, job_state
from tests.examples import examples
from tests.unit.predict.demand.worlds import START_S, ends_of_steps, some_jobs

STEPS = 9 * 144


def of(name: str, values: np.ndarray) -> np.ndarray:
    return values[:, NAMES.index(name)].astype(np.float64)


def as_known_at(jobs: dict[str, np.ndarray], now_s: int) -> dict[str, np.ndarray]:
    """Return the jobs as somebody saw them at ``now_s``: later ones are not there, later events have not happened."""
    there = jobs["submitted_s"] < now_s
    seen = {name: column[there] for name, column in jobs.items()}
    return seen | {name: np.where(seen[name] < now_s, seen[name], NEVER_S) for name in ("started_s", "ended_s")}


@settings(max_examples=examples(30), deadline=None)
@given(seed=st.integers(0, 10_000), job=st.integers(0, 149), event=st.sampled_from(["submitted_s", "ended_s"]))
def test_a_step_tells_the_same_to_one_who_knows_nothing_later(seed: int, job: int, event: str) -> None:
    jobs, ends = some_jobs(150, seed=seed), ends_of_steps(STEPS)
    # The step at whose end, or just after it, something happens to one of them.
    step = int(np.clip((min(jobs[event][job], ends[-1]) - START_S) // 600 - 1, 0, STEPS - 1))
    later = job_state(**jobs, ends_of_steps_s=ends).values[step]
    then = job_state(**as_known_at(jobs, int(ends[step])), ends_of_steps_s=ends[: step + 1]).values[step]
    np.testing.assert_allclose(later, then, rtol=1e-5, atol=1e-5)


@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_step_tells_the_same_whether_the_steps_before_it_are_asked_for_or_not(seed: int) -> None:
    jobs, ends = some_jobs(150, seed=seed), ends_of_steps(STEPS)
    whole = job_state(**jobs, ends_of_steps_s=ends).values
    np.testing.assert_allclose(job_state(**jobs, ends_of_steps_s=ends[-3:]).values, whole[-3:], rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def counted() -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    jobs, ends = some_jobs(300, seed=5), ends_of_steps(STEPS)
    return jobs, ends, job_state(**jobs, ends_of_steps_s=ends).values


def brute(jobs: dict[str, np.ndarray], now: int) -> dict[str, float]:
    submitted_s, nodes = jobs["submitted_s"], jobs["nodes"]
    started_s = np.maximum(jobs["started_s"], submitted_s)
    ended_s = np.maximum(jobs["ended_s"], np.where(started_s < NEVER_S, started_s, submitted_s))
    begun, over = started_s < now, ended_s < now
    waits = (submitted_s < now) & ~begun & ~over
    runs = begun & ~over
    ran_s = np.where(started_s < NEVER_S, ended_s, NEVER_S)
    return {
        "held": nodes[runs].sum(),
        "large_held": nodes[runs & (nodes >= 1)].sum(),
        "running": runs.sum(),
        "queued": nodes[waits].sum(),
        "queued_jobs": waits.sum(),
        "queued_since_h": (now - submitted_s[waits].min()) / 3600 if waits.any() else 0.0,
        **{
            f"arrived_{hours}_h": nodes[(submitted_s >= now - 3600 * hours) & (submitted_s < now)].sum()
            for hours in (1, 3, 24)
        },
        **{f"ended_{hours}_h": nodes[(ran_s >= now - 3600 * hours) & (ran_s < now)].sum() for hours in (1, 3, 24)},
    }


@pytest.mark.parametrize("step", [3, 200, 701, STEPS - 1])
def test_what_is_counted_agrees_with_a_count_job_by_job(counted, step: int) -> None:
    jobs, ends, values = counted
    for name, expected in brute(jobs, int(ends[step])).items():
        assert of(name, values)[step] == pytest.approx(float(expected), rel=1e-4, abs=1e-4), name


def test_more_is_expected_to_end_within_longer_and_never_more_than_runs(counted) -> None:
    _, _, values = counted
    released = np.stack([of(f"released_{hours}_h", values) for hours in (1, 3, 6, 12, 24)])
    assert (np.diff(released, axis=0) >= -1e-5).all()
    assert (released[-1] <= of("held", values) + 1e-4).all()


def jobs_that_run(run_s: np.ndarray, *, every_s: int = 1_200) -> dict[str, np.ndarray]:
    submitted_s = START_S + every_s * np.arange(len(run_s), dtype=np.int64)
    return {
        "submitted_s": submitted_s,
        "started_s": submitted_s,
        "ended_s": submitted_s + run_s.astype(np.int64),
        "nodes": np.ones(len(run_s)),
        "predicted_s": np.full(len(run_s), 3_000.0),
    }


def test_the_share_expected_to_end_is_the_share_that_ends() -> None:
    run_s = np.random.default_rng(0).exponential(7_200, 2_000)
    values = job_state(**jobs_that_run(run_s), ends_of_steps_s=ends_of_steps(3_600)).values[2_000:]
    held, within = of("held", values).sum(), of("released_1_h", values).sum()
    assert within / held == pytest.approx(1 - np.exp(-0.5), abs=0.05)


def test_what_always_runs_as_long_is_expected_to_end_then() -> None:
    values = job_state(**jobs_that_run(np.full(500, 20_000)), ends_of_steps_s=ends_of_steps(900)).values[600:]
    assert (of("released_6_h", values) > 0.9 * of("held", values)).all()
    share = of("released_1_h", values) / of("held", values)
    assert share.mean() == pytest.approx(3_600 / 20_000, abs=0.08)


def test_a_job_past_its_prediction_may_run_on() -> None:
    one = jobs_that_run(np.array([10 * 86_400]))
    values = job_state(**one, ends_of_steps_s=ends_of_steps(9 * 144)).values
    assert of("released_1_h", values)[-1] < 0.1


def test_a_campaign_that_comes_every_day_is_expected_at_its_hour() -> None:
    days = START_S + 86_400 * np.arange(8, dtype=np.int64) + 36_000
    jobs = {
        "submitted_s": days,
        "started_s": days,
        "ended_s": days + 600,
        "nodes": np.full(8, 7.0),
        "predicted_s": np.full(8, 600.0),
        "group": np.zeros(8, dtype=np.int64),
    }
    at_s = START_S + 86_400 * 8 + np.array([36_000 - 1_800, 36_000 + 7_200])
    values = job_state(**jobs, ends_of_steps_s=at_s).values
    # Seen twice before it is called a campaign: five of the last seven days are, the sixth is a day old.
    assert of("recurring_1_h", values) == pytest.approx([6.0, 0.0])
    alone = job_state(**(jobs | {"group": np.full(8, -1)}), ends_of_steps_s=at_s).values
    assert of("recurring_1_h", alone) == pytest.approx([0.0, 0.0])


def test_no_jobs_tell_nothing() -> None:
    none = {name: column[:0] for name, column in some_jobs(1).items()}
    assert not job_state(**none, ends_of_steps_s=ends_of_steps(5)).values.any()


def test_columns_of_unequal_length_are_refused() -> None:
    jobs = some_jobs(3)
    with pytest.raises(FrameInvalid):
        job_state(**(jobs | {"nodes": jobs["nodes"][:2]}), ends_of_steps_s=ends_of_steps(5))
