"""What a warehouse promises of models and of who is in charge, held on SQLite and on a real PostgreSQL alike."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helios.errors import NotEnoughHistory
from helios.model import PROMOTIONS, AuditStep, ModelRecord
from helios.warehouse import Warehouse
from helios.warehouse.models import previous_incumbents

NOON = datetime(2020, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def warehouse(database: str) -> Iterator[Warehouse]:
    with Warehouse.open(database) as opened:
        yield opened


def a_model(model_id: str = "m1", **overrides: Any) -> ModelRecord:
    record: dict[str, Any] = {
        "model_id": model_id,
        "cluster": "venus",
        "trained_at": NOON,
        "trained_until": NOON - HOUR,
        "jobs": 7,
        "features": ("gpus",),
        "scores": {"spearman": 0.5},
        "artifact": "tree",
        "manifest": {"digest": "abc", "seed": 3},
    }
    return ModelRecord(**(record | overrides))


def keep(warehouse: Warehouse, *model_ids: str) -> None:
    """Store models, each trained an hour after the one before."""
    for hour, model_id in enumerate(model_ids):
        warehouse.add_model(a_model(model_id, trained_at=NOON + hour * HOUR))


def decide(warehouse: Warehouse, model_id: str | None, *, step: AuditStep = AuditStep.PROMOTED, hour: int = 0) -> None:
    warehouse.decide("venus", step=step, model_id=model_id, by="ann", why="because", at=NOON + hour * HOUR)


def test_a_manifest_comes_back_as_it_went_in(warehouse: Warehouse) -> None:
    keep(warehouse, "a")
    assert warehouse.model("venus", "a") == a_model("a")
    (row,) = warehouse.models("venus").to_dict(orient="records")
    assert (row["manifest"], row["scores"]) == ({"digest": "abc", "seed": 3}, {"spearman": 0.5})


def test_the_promoted_model_is_promoted_whatever_was_trained_since(warehouse: Warehouse) -> None:
    keep(warehouse, "a", "b")
    decide(warehouse, "a")
    keep(warehouse, "c")
    assert warehouse.model("venus").model_id == "a"
    listed = warehouse.models("venus").set_index("model_id")["promoted"]
    assert listed.to_dict() == {"a": True, "b": False, "c": False}


def test_a_decision_for_shrinkage_leaves_no_model_promoted_and_says_so(warehouse: Warehouse) -> None:
    keep(warehouse, "a")
    decide(warehouse, None)
    with pytest.raises(NotEnoughHistory, match="shrinkage predicts"):
        warehouse.model("venus")
    assert warehouse.edition("venus") == (0, "")
    assert not warehouse.models("venus")["promoted"].any()


def test_the_edition_changes_when_another_model_is_put_promoted_and_back(warehouse: Warehouse) -> None:
    keep(warehouse, "a", "b")
    seen = [warehouse.edition("venus")]
    for step, model_id in ((AuditStep.PROMOTED, "a"), (AuditStep.PROMOTED, "b"), (AuditStep.ROLLED_BACK, "a")):
        decide(warehouse, model_id, step=step)
        seen.append(warehouse.edition("venus"))
    assert [model_id for _, model_id in seen] == ["b", "a", "b", "a"]


def test_a_model_promoted_knows_when_that_was_last_confirmed(warehouse: Warehouse) -> None:
    keep(warehouse, "a", "b")
    assert warehouse.model("venus").confirmed_at is None
    decide(warehouse, "a")
    decide(warehouse, "a", step=AuditStep.KEPT, hour=24)
    kept = warehouse.model("venus")
    assert kept.confirmed_at == kept.known_good_at == NOON + 24 * HOUR
    other = warehouse.model("venus", "b")
    assert (other.confirmed_at, other.known_good_at) == (None, other.trained_at)


def test_every_decision_is_kept_with_who_was_promoted_before(warehouse: Warehouse) -> None:
    keep(warehouse, "a", "b")
    decide(warehouse, "a")
    warehouse.decide(
        "venus", step=AuditStep.KEPT, model_id="a", candidate="b", by="nightly", why="b is worse", at=NOON + HOUR
    )
    decide(warehouse, None, step=AuditStep.ROLLED_BACK, hour=2)
    found = PROMOTIONS.check(warehouse.promotions("venus"))
    assert found["step"].tolist() == ["promoted", "kept", "rolled back"]
    assert found["previous"].tolist() == ["b", "a", "a"]
    assert found["model_id"].isna().tolist() == [False, False, True]
    assert found["candidate"].tolist()[1] == "b"
    assert found["promoted_at"].tolist() == [NOON, NOON + HOUR, NOON + 2 * HOUR]


def test_a_first_candidate_was_not_promoted_before_although_it_is_the_newest(warehouse: Warehouse) -> None:
    keep(warehouse, "a", "b")
    warehouse.decide("venus", step=AuditStep.PROMOTED, model_id="b", candidate="b", by="ann", why="better", at=NOON)
    assert warehouse.promotions("venus")["previous"].tolist() == ["a"]


def test_clusters_decide_for_themselves(warehouse: Warehouse) -> None:
    keep(warehouse, "a", "b")
    warehouse.add_model(a_model("e", cluster="earth"))
    decide(warehouse, "a")
    assert warehouse.model("earth").model_id == "e"
    assert warehouse.promotions("earth").empty


def test_a_model_that_is_not_there_cannot_be_put_promoted(warehouse: Warehouse) -> None:
    keep(warehouse, "a")
    with pytest.raises(NotEnoughHistory, match="'nobody'"):
        decide(warehouse, "nobody")
    assert warehouse.promotions("venus").empty


def test_forgetting_spares_the_model_promoted_and_the_one_before_it(warehouse: Warehouse) -> None:
    keep(warehouse, "a", "b", "c", "d", "e")
    decide(warehouse, "a")
    decide(warehouse, "b")
    assert warehouse.forget_models("venus", keep=1) == 2
    assert warehouse.models("venus")["model_id"].tolist() == ["e", "b", "a"]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([], []),
        ([("promoted", "a", None)], [None]),
        ([("promoted", "b", "a")], ["a"]),
        ([("promoted", "a", None), ("kept", "a", "a"), ("promoted", "b", "a")], ["a", None]),
        ([("promoted", "a", None), ("promoted", "b", "a"), ("rolled back", "a", "b")], [None]),
        (
            [
                ("promoted", "a", None),
                ("promoted", "b", "a"),
                ("rolled back", "a", "b"),
                ("promoted", "c", "a"),
            ],
            ["a", None],
        ),
        (
            [("promoted", "a", None), ("promoted", "b", "a"), ("promoted", "a", "b"), ("rolled back", "b", "a")],
            ["a", None],
        ),
    ],
)
def test_a_rollback_goes_through_promotions_and_skips_those_taken_back(
    steps: list[tuple[str, str, str | None]], expected: list[str | None]
) -> None:
    rows = [{"step": step, "model_id": chosen, "previous": previous} for step, chosen, previous in steps]
    assert list(previous_incumbents(PROMOTIONS.conform(PROMOTIONS.empty()) if not rows else frame(rows))) == expected


def frame(rows: list[dict[str, Any]]) -> Any:
    import pandas as pd  # noqa: PLC0415 - only here

    same = {"promoted_at": pd.Timestamp(NOON), "promoted_by": "ann", "why": "because"}
    return PROMOTIONS.conform(pd.DataFrame([row | same for row in rows]))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(promoted=st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=8))
def test_rolling_back_again_and_again_visits_every_change_backwards(promoted: list[str]) -> None:
    changes = [model for n, model in enumerate(promoted) if n == 0 or model != promoted[n - 1]]
    rows: list[dict[str, Any]] = []
    promoted: str | None = None
    for model in changes:
        rows.append({"step": "promoted", "model_id": model, "previous": promoted})
        promoted = model
    visited = []
    while before := previous_incumbents(frame(rows)):
        rows.append({"step": "rolled back", "model_id": before[0], "previous": promoted})
        promoted = before[0]
        visited.append(promoted)
    assert visited == [*changes[-2::-1], None]
