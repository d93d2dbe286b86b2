import io
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from rich.markup import escape

from helios.predict.causal_stats import FEATURES, LEVELS
from helios.predict.explain import AFTERWARDS, EVERY_JOB, NEIGHBOURHOOD, PRIOR, Contribution, Explained
from helios.predict.similar_jobs import BASES, RecentInGroup
from helios.report import prediction
from helios.report.prediction import (
    PastJob,
    PredictionSteps,
    largest_corrections,
    rests_on,
)

LAST = RecentInGroup(jobs=37, last=12, shortest_s=3600.0, longest_s=5 * 3600.0)


def a_step(level: str, factor: float, *, jobs: int = 5, run_time_s: float = 600.0) -> Contribution:
    return Contribution(level=level, jobs=jobs, weight=float(jobs), run_time_s=run_time_s, factor=factor)


def an_explained(**overrides: Any) -> Explained:
    told: dict[str, Any] = {
        "quantiles_s": (600.0, 3600.0, 18_000.0),
        "source": "venus-20260101-abc",
        "basis": "user+size",
        "steps": (a_step(PRIOR, 1.0, jobs=0, run_time_s=1800.0), a_step("global", 0.5), a_step("user", 1.2)),
        "corrections": dict.fromkeys((*FEATURES, EVERY_JOB, AFTERWARDS), 1.0),
        "features": dict.fromkeys(FEATURES, 1.0),
        "recent": LAST,
        "resembling": (),
    }
    return Explained(**(told | overrides))


def a_past_job(**overrides: Any) -> PastJob:
    told: dict[str, Any] = {
        "job_id": "811",
        "user": "alice",
        "account": "lab",
        "partition": "gpu",
        "name": "train",
        "ended_at": datetime(2026, 1, 4, 9, 30, tzinfo=UTC),
        "gpus": 2,
        "cpus": 8.0,
        "time_limit_s": 7200.0,
        "run_time_s": 4000.0,
        "differs": (),
        "distance": 0.0,
    }
    return PastJob(**(told | overrides))


def the_steps(**overrides: Any) -> PredictionSteps:
    told: dict[str, Any] = {"user": "alice", "account": "lab", "explained": an_explained()}
    return PredictionSteps(**(told | overrides))


def screen(told: PredictionSteps, *, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(*map(escape, told.lines()), *told.tables(), sep="\n")
    return console.file.getvalue()  # type: ignore[attr-defined]  # because the file is the one above


@pytest.mark.parametrize("name", [PRIOR, *LEVELS, NEIGHBOURHOOD])
def test_every_step_has_words(name: str) -> None:
    assert name in prediction.STEP_WORDS


def test_every_basis_has_words() -> None:
    assert set(prediction.BASIS_WORDS) == set(BASES)


def test_a_step_of_tomorrow_is_told_by_its_name() -> None:
    assert "moon phase" in screen(the_steps(explained=an_explained(steps=(a_step("moon_phase", 1.0),))))


def test_the_largest_corrections_come_first_and_small_ones_are_merged() -> None:
    corrections = {"hour": 1.5, "log_limit": 0.25, "gpus": 1.02, "user_burst": 0.99, AFTERWARDS: 1.0}
    told = largest_corrections(an_explained(corrections=corrections))
    assert told == [("log limit", 0.25), ("hour", 1.5), ("everything else", pytest.approx(1.02 * 0.99))]


def test_corrections_that_are_shown_multiply_to_all() -> None:
    rng = np.random.default_rng(0)
    corrections = {name: float(np.exp(rng.normal(0, 0.5))) for name in (*FEATURES, EVERY_JOB, AFTERWARDS)}
    told = largest_corrections(an_explained(corrections=corrections))
    assert np.prod([factor for _, factor in told]) == pytest.approx(np.prod(list(corrections.values())))
    assert len({text for text, _ in told}) == len(told) == prediction.MOST_LINES + 1


def test_the_answer_says_what_the_prediction_rests_on() -> None:
    assert list(the_steps(notes=("it is new",)).lines()) == [
        "It rests on 37 ended jobs of alice of this size and limit: the last 12 took 1 h to 5 h.",
        "Note: it is new.",
    ]


@pytest.mark.parametrize(("run_time_s", "where"), [(60.0, "below"), (1000.0, "within"), (90_000.0, "above")])
def test_a_job_that_ended_has_the_truth_beside_its_prediction(run_time_s: float, where: str) -> None:
    assert f"It ran {where} that range." in the_steps(run_time_s=run_time_s).lines()


@pytest.mark.parametrize(
    ("basis", "recent", "said"),
    [
        (
            "user+size",
            RecentInGroup(jobs=1, last=1, shortest_s=60.0, longest_s=60.0),
            "1 ended job of bob of this size and limit: it took 1 min.",
        ),
        (
            "user",
            RecentInGroup(jobs=3, last=3, shortest_s=60.0, longest_s=120.0),
            "3 ended jobs of bob, none of them of this size and limit: they took 1 min to 2 min.",
        ),
        ("group", LAST, "37 ended jobs of account lab, none of them of bob: the last 12 took 1 h to 5 h."),
        ("size", LAST, "37 ended jobs of others of this size, limit and partition: the last 12 took 1 h to 5 h."),
    ],
)
def test_whose_jobs_a_prediction_rests_on(basis: str, recent: RecentInGroup, said: str) -> None:
    assert rests_on(basis, recent, user="bob", account="lab") == f"It rests on {said}"


def test_where_nothing_had_ended_no_past_job_is_claimed() -> None:
    assert "no past job" in rests_on("all", None, user="", account="")


def test_steps_without_jobs_are_not_shown() -> None:
    steps = (a_step(PRIOR, 1.0, jobs=0), a_step("global", 0.5, run_time_s=300.0), a_step("user", 1.0, jobs=0))
    steps += (a_step("distribution", 1.0, run_time_s=300.0),)
    lines = screen(the_steps(explained=an_explained(steps=steps))).splitlines()
    (first,) = [line for line in lines if "all jobs that had ended" in line]
    assert "x" not in first
    assert "5 min" in first
    assert not any("jobs of this user" in line for line in lines)


def test_the_way_to_the_prediction_ends_at_the_prediction() -> None:
    steps = (a_step(PRIOR, 1.0, jobs=0, run_time_s=1800.0), a_step("global", 599 / 1801, run_time_s=598.0))
    corrections = {"hour": 3601 / 599, AFTERWARDS: 1.0}
    text = screen(the_steps(explained=an_explained(steps=steps, corrections=corrections)))
    (line,) = [line for line in text.splitlines() if line.startswith("hour")]
    assert line.split("x 6.01")[1].split() == ["1", "h"]


def test_past_jobs_are_listed_with_what_is_different() -> None:
    text = screen(
        the_steps(alike=(a_past_job(), a_past_job(job_id="700", user="bob", differs=("limit", "user")))), width=120
    )
    assert "Past jobs most like it" in text
    assert "nothing" in text
    assert "limit, user bob" in text


def test_nothing_is_wider_than_80_columns_whatever_the_names() -> None:
    long = "x" * 300
    alike = (a_past_job(name=long, user=long, differs=("size", "limit", "partition", "name", "user", "account")),)
    text = screen(the_steps(user=long, alike=alike, notes=(long,)))
    assert max(map(len, text.splitlines())) <= 80
    assert "name xxxxxxxxxxxxxxx…" in " ".join(text.split())


def test_what_a_site_writes_is_no_markup() -> None:
    text = screen(the_steps(user="[bold]eve[/]", alike=(a_past_job(user="[red]", differs=("user",)),)), width=120)
    assert "[bold]eve[/]" in text
    assert "[red]" in text
