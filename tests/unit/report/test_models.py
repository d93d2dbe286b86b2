"""What screens about models say: readable at 80 columns, the words right for what was decided."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console, RenderableType

from helios.report.models import comparison_table, drift_tables, models_table, outcome_text
from helios.report.tables import WIDE

LONG_ID = "sdsc-blue-20030618-0a1b2c3d"
SCORE = {"spearman": 0.7512, "median_abs_log_error": 0.643, "bias_log": -0.05, "coverage_p10_p90": 0.79}


def on_screen(part: RenderableType, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(part)
    return str(console.file.getvalue())  # type: ignore[attr-defined]  # it is the StringIO above


def a_model(**overrides: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "model_id": LONG_ID,
        "promoted": True,
        "problem": "",
        "trained_at": "2026-11-22T02:30:00+00:00",
        "trained_until": "2026-11-22T02:29:59+00:00",
        "jobs": 300_000,
        "scores": {"scores": {"model": SCORE, "shrinkage": SCORE | {"spearman": 0.68}}},
        "manifest": {"first_submission": "2026-01-02T03:04:05+00:00"},
    }
    return row | overrides


def difference(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.02, "high": value + 0.02}


def a_comparison(**words: Any) -> dict[str, Any]:
    against = {
        "error": difference(-0.123),
        "rank": difference(0.05),
        "worse_in": [],
        "better_in": ["log error", "rank correlation"],
        "is_chance": False,
    } | words
    return {
        "challenger": "model",
        "jobs": 1204,
        "clusters": 37,
        "drawn": "users",
        "scores": {"model": SCORE, "active": SCORE, "user_last": SCORE | {"coverage_p10_p90": None}},
        "against": {"active": against, "user_last": against},
    }


def an_outcome(**overrides: Any) -> dict[str, Any]:
    return {
        "step": "promoted",
        "model_id": "new",
        "promoted": "new",
        "previous": "old",
        "why": "it is better",
    } | overrides


def test_the_list_fits_80_columns_and_marks_who_is_promoted() -> None:
    text = on_screen(models_table([a_model(), a_model(model_id="b", promoted=False)], [], drift=None, width=80))
    lines = text.splitlines()
    assert lines[1].split()[:6] == ["*", LONG_ID, "300,000", "0.75", "0.64", "0.68"]
    assert not lines[2].startswith("*")
    assert f"* active: {LONG_ID}." in text


def test_a_wide_list_shows_the_times_too() -> None:
    text = on_screen(models_table([a_model()], [], drift=None, width=WIDE), WIDE)
    assert "2026-11-22 02:29" in text
    assert "2026-01-02" in text


def test_a_model_without_scores_has_dashes() -> None:
    text = on_screen(models_table([a_model(scores={}, manifest={})], [], drift=None, width=WIDE), WIDE)
    assert text.splitlines()[1].split()[3:7] == ["-"] * 4


def test_the_list_says_the_last_decisions_and_the_drift() -> None:
    decision = {
        "promoted_at": "2026-11-22T02:31:00+00:00",
        "promoted_by": "nightly",
        "step": "kept",
        "model_id": None,
        "why": "worse",
    }
    text = on_screen(models_table([a_model(promoted=False)], [decision], drift="inputs as usual", width=80))
    assert "shrinkage predicts" in text
    assert "2026-11-22 02:31  kept: shrinkage, by nightly: worse" in text
    assert "Drift: inputs as usual." in text


def test_the_list_says_why_the_model_promoted_is_not_to_be_trusted() -> None:
    text = on_screen(models_table([a_model(problem="Model x cannot be read: a cycle")], [], drift=None, width=80))
    assert "It is not to be trusted. Model x cannot be read: a cycle" in " ".join(text.split())


def test_an_empty_list_says_how_to_begin() -> None:
    assert "helios model train" in on_screen(models_table([], [], drift=None, width=80))


def test_a_comparison_fits_80_columns_and_shows_what_chance_allows() -> None:
    text = on_screen(comparison_table(a_comparison(), notes=("x was stood in for.",)))
    row, beside = [line for line in text.splitlines() if line.startswith("active model")]
    assert row.split()[2:] == ["0.751", "0.64", "-0.05", "79", "%"]
    assert beside.split()[2:8] == ["+0.050", "[+0.03,", "+0.07]", "+0.123", "[+0.10,", "+0.14]"]
    assert max(map(len, text.splitlines())) <= 80
    assert "x was stood in for." in text


@pytest.mark.parametrize(("is_chance", "word"), [(True, "yes"), (False, "no")])
def test_a_comparison_says_whether_chance_explains_it(is_chance: bool, word: str) -> None:
    text = on_screen(comparison_table(a_comparison(is_chance=is_chance)))
    _, beside = [line for line in text.splitlines() if line.startswith("active model")]
    assert beside.split()[-1] == word


def test_without_a_rank_correlation_there_is_a_dash() -> None:
    assert " - " in on_screen(comparison_table(a_comparison(rank=None)))


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (an_outcome(), "Active: new, before it old."),
        (an_outcome(step="kept", promoted="old"), "new was not promoted: it is better."),
        (an_outcome(step="kept", promoted="old"), "helios model evaluate --model old --model new"),
        (an_outcome(step="kept", promoted="shrinkage"), "Active: shrinkage, which needs no training."),
        (an_outcome(step=None, promoted="old"), "new is kept and not used: it is better."),
        (an_outcome(step=None), "new: it is better."),
        (an_outcome(step="rolled back", previous="newer"), "new is active again: it is better."),
    ],
)
def test_an_outcome_says_what_happened_and_who_is_promoted(outcome: dict[str, Any], said: str) -> None:
    assert said in "\n".join(outcome_text(outcome))


def a_drift(**overrides: Any) -> dict[str, Any]:
    week = {"begin": "2026-11-15T00:00:00+00:00", "jobs": 900, "model": SCORE, "shrinkage": SCORE}
    inputs = [
        {"feature": f"feature_{n}", "index": 0.5 - n / 100, "usual": 0.2, "steadiness": "changed", "unusual": n == 0}
        for n in range(40)
    ]
    return {
        "model_id": LONG_ID,
        "as_of": "2026-11-22T00:00:00+00:00",
        "days": 7.0,
        "jobs": 950,
        "training": {"jobs": 300_000, "new_users": 0.01, "new_names": None},
        "new_users": 0.04,
        "new_names": None,
        "inputs": inputs,
        "weeks": [week],
        "line": "1 of 40 inputs changed",
    } | overrides


def test_drift_fits_80_columns_and_shows_the_farthest_first() -> None:
    text = on_screen(drift_tables(a_drift(), width=80))
    assert "changed, unusual" in text
    assert "and 30 more" in text
    assert "jobs of new users 4.0 % (in training 1.0 %)" in " ".join(text.split())
    assert "name never seen" not in text
    assert "2026-11-15" in text


def test_a_wide_screen_shows_every_feature() -> None:
    assert "feature_39" in on_screen(drift_tables(a_drift(), width=WIDE), WIDE)


def test_too_few_jobs_are_said_and_not_shown_as_steady() -> None:
    text = on_screen(drift_tables(a_drift(inputs=[], jobs=12, weeks=[]), width=80))
    assert "12 jobs are too few to compare" in text
