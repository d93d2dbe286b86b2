"""Which model is active: the promoted one, by decisions that are judged on what neither model had seen."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from helios.app.history import LoadedHistory
from helios.app.model_comparison import INCUMBENT, TrainingOutcome, _decide_against_incumbent, decide_against_controls
from helios.app.model_drift import _weeks, drift, remembered_drift
from helios.app.model_registry import (
    SHRINKAGE,
    compare,
    decide_by_hand,
    describe_decisions,
    history_before,
    list_models,
    nightly,
    promote,
    roll_back,
    training_history,
)
from helios.app.nightly import _learn
from helios.app.prepared_history import prepare_history
from helios.config import Settings
from helios.errors import ModelUnreadable, NoSuchCluster, NotEnoughHistory, UsageError
from helios.model import JOBS, AuditStep, ModelRecord
from helios.ports import no_progress
from helios.predict.comparison import Comparison, PairedDifference, Versus
from helios.predict.model_record import from_record, to_record
from helios.predict.scores import PredictorScore, predictor_score
from helios.warehouse import Warehouse
from tests.builders import a_batch, a_job

START = datetime(2026, 3, 2, tzinfo=UTC)
DAY = timedelta(days=1)


def jobs_whose_memory_tells(
    days: float, *, per_day: int = 60, first: int = 0, turned: bool = False
) -> list[dict[str, Any]]:
    """Return jobs that run ten times as long with much memory (``turned``: with little), which only trees see."""
    rng = np.random.default_rng(first)
    number = int(days * per_day)
    much = rng.random(number) < 0.5
    return [
        a_job(
            job_id=str(first + n),
            user=f"u{rng.integers(0, 15)}",
            submitted_at=pd.Timestamp(START + timedelta(days=(first + n) / per_day)),
            run_time_s=float(round((3000.0 if big != turned else 300.0) * np.exp(0.3 * rng.standard_normal()))),
            memory_mib=64_000.0 if big else 4_000.0,
        )
        for n, big in enumerate(much)
    ]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with 21 days of such jobs: memory tells, then the other way round, then as before."""
    path = tmp_path_factory.mktemp("lab") / "helios.db"
    rows = [
        *jobs_whose_memory_tells(6),
        *jobs_whose_memory_tells(8, first=360, turned=True),
        *jobs_whose_memory_tells(7, first=840),
    ]
    with Warehouse.open(f"sqlite:///{path}") as warehouse:
        warehouse.load([a_batch(*rows)], cluster="lab", path="x", sha256="1", format="sacct", timezone="UTC")
    return path


@pytest.fixture
def url(template: Path, tmp_path: Path) -> str:
    (tmp_path / "helios.db").write_bytes(template.read_bytes())
    return f"sqlite:///{tmp_path / 'helios.db'}"


@pytest.fixture(scope="module")
def history(template: Path) -> LoadedHistory:
    return training_history(f"sqlite:///{template}", "lab")


@pytest.fixture(scope="module")
def of_day_6(history: LoadedHistory) -> ModelRecord:
    return trained(history, 6)


@pytest.fixture(scope="module")
def of_day_14(history: LoadedHistory) -> ModelRecord:
    return trained(history, 14)


def trained(history: LoadedHistory, day: float) -> ModelRecord:
    studied = prepare_history(history)
    return studied.record(studied.train(until=START + day * DAY, seed=0), seed=0, made_at=START + day * DAY)


def keep(url: str, *records: ModelRecord) -> None:
    with Warehouse.open(url) as warehouse:
        for record in records:
            warehouse.add_model(record)


def promoted(url: str) -> str:
    with Warehouse.open(url) as warehouse:
        try:
            return warehouse.model("lab").model_id
        except NotEnoughHistory:
            return SHRINKAGE


def a_night(url: str, history: LoadedHistory, *, day: float, days: float = 7) -> TrainingOutcome:
    now = START + day * DAY
    return nightly(url=url, history=history_before(history, now), seed=0, days=days, now=now, keep=30)[0]


def a_trial(url: str, history: LoadedHistory, *, day: float, days: float) -> TrainingOutcome:
    """Return the outcome of a night on a copy of the warehouse."""
    copy = f"{url}.copy"
    shutil.copy(url.removeprefix("sqlite:///"), copy.removeprefix("sqlite:///"))
    return a_night(copy, history, day=day, days=days)


# Decisions, from figures.


def a_comparison(**against: tuple[float, float]) -> Comparison:
    """Make a contest from the challenger's (error, rank) less each other's, certain to a hundredth."""

    def sure(value: float) -> PairedDifference:
        return PairedDifference(value=value, low=value - 0.01, high=value + 0.01)

    score = PredictorScore(spearman=0.5, median_abs_log_error=0.5, bias_log=0.0, coverage_p10_p90=None)
    return Comparison(
        challenger="model",
        jobs=500,
        clusters=20,
        drawn="users",
        scores=dict.fromkeys(["model", *against], score),
        against={name: Versus(error=sure(error), rank=sure(rank)) for name, (error, rank) in against.items()},
    )


NEW = TrainingOutcome(step=AuditStep.KEPT, model_id="new", promoted="old", previous="old", why="")


@pytest.mark.parametrize(
    ("incumbent", "shrinkage", "promoted"),
    [
        ((-0.1, 0.1), (-0.1, 0.1), True),
        ((0.0, 0.0), (0.0, 0.0), True),
        ((0.005, -0.005), (0.0, 0.0), True),
        ((0.05, 0.1), (-0.1, 0.1), False),
        ((-0.1, -0.05), (-0.1, 0.1), False),
        ((-0.1, 0.1), (0.05, 0.1), False),
    ],
)
def test_a_new_model_takes_charge_if_it_is_worse_in_nothing(
    incumbent: tuple[float, float], shrinkage: tuple[float, float], promoted: bool
) -> None:
    comparison = a_comparison(**{INCUMBENT: incumbent, "shrinkage": shrinkage, "user_last": (0.3, -0.3)})
    outcome = _decide_against_incumbent(NEW, comparison)
    assert (outcome.step is AuditStep.PROMOTED) == promoted
    assert outcome.promoted == ("new" if promoted else "old")
    assert "500 jobs" in outcome.why
    assert ("is worse than" in outcome.why) != promoted


@pytest.mark.parametrize(
    ("shrinkage", "user_last", "promoted"),
    [
        ((-0.1, 0.1), (-0.1, 0.1), True),
        ((0.0, 0.0), (-0.1, 0.1), False),
        ((-0.1, -0.05), (-0.1, 0.1), False),
        ((-0.1, 0.1), (0.05, 0.1), False),
    ],
)
def test_against_shrinkage_alone_it_must_be_ahead_of_every_control(
    shrinkage: tuple[float, float], user_last: tuple[float, float], promoted: bool
) -> None:
    alone = replace(NEW, promoted=SHRINKAGE, previous=SHRINKAGE)
    outcome = decide_against_controls(alone, a_comparison(shrinkage=shrinkage, user_last=user_last))
    assert outcome.promoted == ("new" if promoted else SHRINKAGE)


def test_what_could_not_be_judged_does_not_take_charge() -> None:
    outcome = decide_against_controls(replace(NEW, promoted=SHRINKAGE), None)
    assert (outcome.step, outcome.promoted) == (AuditStep.KEPT, SHRINKAGE)
    assert "too short" in outcome.why


# By hand.


def test_a_first_model_that_is_asked_for_takes_charge(url: str, of_day_14: ModelRecord) -> None:
    keep(url, of_day_14)
    decide_by_hand(url, of_day_14, promote_it=True, by="ann", now=START)
    assert promoted(url) == of_day_14.model_id


def test_a_later_model_leaves_promoted_what_is(url: str, of_day_6: ModelRecord, of_day_14: ModelRecord) -> None:
    keep(url, of_day_6)
    promote(url, "lab", of_day_6.model_id, by="ann", why="first", now=START)
    keep(url, of_day_14)
    outcome = decide_by_hand(url, of_day_14, promote_it=False, by="ann", now=START)
    assert (outcome.step, outcome.promoted) == (None, of_day_6.model_id)
    assert promoted(url) == of_day_6.model_id
    assert len(describe_decisions(url, "lab")) == 1


def test_a_model_promoted_without_any_decision_stays_so_by_one(
    url: str, of_day_6: ModelRecord, of_day_14: ModelRecord
) -> None:
    keep(url, of_day_6, of_day_14)
    decide_by_hand(url, of_day_14, promote_it=False, by="ann", now=START)
    assert promoted(url) == of_day_6.model_id
    assert [row["step"] for row in describe_decisions(url, "lab")] == ["kept"]


def test_an_unreadable_model_is_not_promoted(url: str, of_day_14: ModelRecord) -> None:
    damaged = replace(of_day_14, artifact=of_day_14.artifact.replace('"cluster":"lab"', '"cluster":"lub"'))
    assert damaged.artifact != of_day_14.artifact
    keep(url, damaged)
    with pytest.raises(ModelUnreadable):
        promote(url, "lab", damaged.model_id, by="ann", why="hope", now=START)
    assert describe_decisions(url, "lab") == []


def test_rolling_back_passes_over_what_cannot_be_read_and_says_so(
    url: str, of_day_6: ModelRecord, of_day_14: ModelRecord
) -> None:
    keep(url, of_day_6, of_day_14)
    for record in (of_day_6, of_day_14):
        promote(url, "lab", record.model_id, by="ann", why="try", now=START)
    keep(url, replace(of_day_6, artifact="{}"))
    outcome = roll_back(url, "lab", by="bob", why="slow", now=START)
    # Before anything was decided, the newest was active.
    assert outcome.promoted == of_day_14.model_id
    assert f"skipped {of_day_6.model_id}" in outcome.why


def test_rolling_back_ends_at_what_was_promoted_first(url: str, of_day_6: ModelRecord) -> None:
    promote(url, "lab", SHRINKAGE, by="ann", why="start", now=START)
    keep(url, of_day_6)
    promote(url, "lab", of_day_6.model_id, by="ann", why="try", now=START)
    assert roll_back(url, "lab", by="ann", why="no", now=START).promoted == SHRINKAGE
    with pytest.raises(UsageError, match="No other model"):
        roll_back(url, "lab", by="ann", why="no", now=START)


def test_the_listing_shows_manifests_and_who_is_promoted(url: str, of_day_6: ModelRecord) -> None:
    keep(url, of_day_6)
    (row,) = list_models(url, "lab")
    assert row["promoted"]
    assert row["manifest"]["digest"] == of_day_6.manifest["digest"]


def test_the_listing_says_why_the_model_promoted_cannot_be_read(url: str, of_day_6: ModelRecord) -> None:
    keep(url, replace(of_day_6, artifact="[" * 100_000))
    (row,) = list_models(url, "lab")
    assert f"Model {of_day_6.model_id} cannot be read" in row["problem"]


def test_training_by_hand_says_that_the_model_promoted_cannot_be_read(
    url: str, of_day_6: ModelRecord, of_day_14: ModelRecord
) -> None:
    keep(url, replace(of_day_6, artifact="{}"), of_day_14)
    promote(url, "lab", of_day_14.model_id, by="ann", why="first", now=START)
    keep(url, replace(of_day_14, artifact="{}"), of_day_6)
    outcome = decide_by_hand(url, of_day_6, promote_it=False, by="ann", now=START)
    assert outcome.why.startswith(f"Model {of_day_14.model_id} cannot be read")


# By night.


def test_the_first_nightly_model_is_promoted_if_it_beats_the_controls(url: str, history: LoadedHistory) -> None:
    outcome = a_night(url, history, day=6, days=2)
    assert outcome.comparison is not None
    assert outcome.comparison.against["shrinkage"].better_in
    assert promoted(url) == outcome.model_id
    (decided,) = describe_decisions(url, "lab")
    assert (decided["step"], decided["promoted_by"], decided["candidate"]) == ("promoted", "nightly", outcome.model_id)


def test_a_worse_nightly_model_is_stored_but_not_promoted(
    url: str, history: LoadedHistory, of_day_6: ModelRecord
) -> None:
    keep(url, of_day_6)
    promote(url, "lab", of_day_6.model_id, by="ann", why="first", now=START)
    outcome = a_night(url, history, day=16, days=2)
    assert (outcome.step, promoted(url)) == (AuditStep.KEPT, of_day_6.model_id)
    assert "worse than the active model" in outcome.why
    assert outcome.model_id in {row["model_id"] for row in list_models(url, "lab")}


def test_a_night_judges_on_jobs_that_neither_model_had_learned_from(
    url: str, history: LoadedHistory, of_day_14: ModelRecord
) -> None:
    # What ended from day 18 on is changed beyond recognition; models stopped before it, and only the figures change.
    jobs = history.jobs.copy()
    late = (jobs["submitted_at"] >= pd.Timestamp(START + 18 * DAY)).to_numpy()
    jobs.loc[late, "run_time_s"] = 9.0
    jobs.loc[late, "ended_at"] = jobs["started_at"][late] + pd.Timedelta(seconds=9)
    keep(url, of_day_14)
    promote(url, "lab", of_day_14.model_id, by="ann", why="first", now=START)
    plain = a_trial(url, history, day=21, days=3)
    changed = a_trial(url, replace(history, jobs=JOBS.conform(jobs)), day=21, days=3)
    assert plain.comparison is not None
    assert changed.comparison is not None
    assert plain.comparison.jobs == pytest.approx(180, abs=3)
    assert changed.comparison.scores["model"].bias_log > plain.comparison.scores["model"].bias_log + 0.5


def test_a_night_with_too_few_jobs_looks_back_then_keeps_its_model(
    url: str, history: LoadedHistory, of_day_6: ModelRecord
) -> None:
    keep(url, of_day_6)
    promote(url, "lab", of_day_6.model_id, by="ann", why="first", now=START)
    quiet = a_trial(url, history, day=12, days=0.01)
    assert quiet.comparison is None
    assert "too few to judge" in quiet.why
    wider = a_trial(url, history, day=12, days=0.5)
    assert wider.days == 2.0


def test_a_model_that_cannot_be_read_leaves_the_field_to_shrinkage(
    url: str, history: LoadedHistory, of_day_6: ModelRecord
) -> None:
    keep(url, replace(of_day_6, model_id="lab-old", artifact='{"format":"helios-duration-1"}'))
    outcome = a_night(url, history, day=6, days=2)
    assert "older Helios" in outcome.why
    assert promoted(url) == outcome.model_id != "lab-old"


def test_a_damaged_model_promoted_is_made_good_by_training_it_again(
    url: str, history: LoadedHistory, of_day_6: ModelRecord
) -> None:
    keep(url, replace(of_day_6, artifact="{}"))
    outcome = a_night(url, history, day=6, days=2)
    assert outcome.model_id == of_day_6.model_id
    assert "cannot be read" in outcome.why
    with Warehouse.open(url) as warehouse:
        assert from_record(warehouse.model("lab")).model_id == of_day_6.model_id


def test_a_night_that_learned_nothing_new_changes_nothing(url: str, history: LoadedHistory) -> None:
    first = a_night(url, history, day=6, days=2)
    again = a_night(url, history, day=6, days=2)
    assert again.promoted == first.promoted
    assert "nothing new" in again.why


# Side by side.


def test_two_models_are_compared_on_jobs_submitted_after_both_had_stopped(
    url: str, history: LoadedHistory, of_day_6: ModelRecord, of_day_14: ModelRecord
) -> None:
    keep(url, of_day_6, of_day_14)
    comparison, notes = compare(
        history, url=url, first=of_day_14.model_id, second=of_day_6.model_id, now=START + 21 * DAY
    )
    assert comparison.jobs == pytest.approx(7 * 60, abs=5)
    assert comparison.against[of_day_14.model_id].better_in == ("log error", "rank correlation")
    assert notes == ()


def test_two_models_that_have_seen_everything_are_compared_by_their_backtests(
    url: str, history: LoadedHistory, of_day_6: ModelRecord, of_day_14: ModelRecord
) -> None:
    late, later = (trained(history, day) for day in (20.5, 21))
    with_backtest = [
        to_record(replace(from_record(seen), backtest=stopped(judged), trained=True), trained_at=START)
        for seen, judged in ((late, of_day_6), (later, of_day_14))
    ]
    keep(url, *with_backtest)
    first, second = (record.model_id for record in with_backtest)
    comparison, notes = compare(history, url=url, first=first, second=second, now=START + 21 * DAY)
    assert comparison.jobs == pytest.approx(7 * 60, abs=5)
    assert comparison.against[first].worse_in == ("log error", "rank correlation")
    assert len(notes) == 2


def stopped(record: ModelRecord) -> Any:
    return from_record(record).trees


def test_models_without_a_backtest_and_jobs_since_cannot_be_compared(url: str, history: LoadedHistory) -> None:
    seen = [
        to_record(replace(from_record(trained(history, day)), backtest=None), trained_at=START) for day in (20.8, 21)
    ]
    keep(url, *seen)
    with pytest.raises(NotEnoughHistory, match="neither model"):
        compare(history, url=url, first=seen[0].model_id, second=seen[1].model_id, now=START + 21 * DAY)


def test_training_history_is_the_same_for_a_named_and_the_only_cluster(url: str) -> None:
    named, only = training_history(url, "lab"), training_history(url, None)
    assert (named.cluster, named.timezone) == (only.cluster, only.timezone) == ("lab", "UTC")
    pd.testing.assert_frame_equal(named.jobs, only.jobs)
    with pytest.raises(NoSuchCluster, match="earth"):
        training_history(url, "earth")


# Drift.


def test_drift_is_measured_against_the_model_promoted(url: str, history: LoadedHistory, of_day_6: ModelRecord) -> None:
    keep(url, of_day_6)
    told = drift(history_before(history, START + 13 * DAY), url=url, model_id=None, days=6, now=START + 13 * DAY)
    assert told["model_id"] == of_day_6.model_id
    assert told["jobs"] == 360
    steady = {one["feature"]: one["steadiness"] for one in told["inputs"]}
    assert steady["log_memory"] == "steady"
    assert [week["jobs"] for week in told["weeks"]]
    # Its rule no longer holds: worse than the control that has no rule.
    assert told["weeks"][-1]["model"]["median_abs_log_error"] > told["weeks"][-1]["shrinkage"]["median_abs_log_error"]


def test_a_night_remembers_its_line_about_drift(url: str, history: LoadedHistory) -> None:
    a_night(url, history, day=6, days=2)
    assert "inputs" in str(remembered_drift(url, "lab"))


def test_the_nightly_analysis_says_in_a_line_what_was_decided_and_why(url: str) -> None:
    settings = Settings.model_validate({"database": {"url": url}, "model": {"judged_days": 3}})
    line = _learn(url, "lab", settings, START + 21 * DAY, no_progress)
    (decided,) = describe_decisions(url, "lab")
    assert f"model {decided['candidate']} " in line
    assert decided["why"] in line
    assert "inputs" in line


def test_a_night_before_there_is_enough_history_says_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'helios.db'}"
    with Warehouse.open(url) as warehouse:
        warehouse.load(
            [a_batch(*jobs_whose_memory_tells(1))], cluster="lab", path="x", sha256="1", format="sacct", timezone="UTC"
        )
    assert "shrinkage predicts" in _learn(url, "lab", Settings(), START + DAY, no_progress)


def test_only_jobs_that_had_ended_by_then_are_judged(history: LoadedHistory) -> None:
    studied = prepare_history(history)
    rows = studied.scored_jobs(START + 2 * DAY, START + 3 * DAY)
    ends = history.jobs["ended_at"].iloc[rows]
    assert len(rows) > 50
    assert ends.max() < pd.Timestamp(START + 3 * DAY)
    assert history.jobs["submitted_at"].iloc[rows].min() >= pd.Timestamp(START + 2 * DAY)


def test_weeks_that_a_model_had_learned_from_are_predicted_by_its_backtest(
    history: LoadedHistory, of_day_6: ModelRecord, of_day_14: ModelRecord
) -> None:
    studied = prepare_history(history)
    model = replace(from_record(of_day_14), backtest=stopped(of_day_6), trained=True)
    judged = model.backtest_model()
    assert judged is not None
    before, since = _weeks(studied, model, at=START + 20 * DAY)

    def score(predictor: Any, first: float, end: float) -> PredictorScore:
        rows = np.intersect1d(
            studied.scored_jobs(START, START + 20 * DAY), studied.submitted(START + first * DAY, START + end * DAY)
        )
        return predictor_score(studied.predictions({"it": predictor}, rows)["it"], studied.table.run_time_s[rows])

    assert before.model == score(judged, 6, 13) != score(model, 6, 13)
    assert since.model != score(judged, 13, 20)
