"""Job ids that are not known are answered with those nearest to them."""

from __future__ import annotations

import pandas as pd
import pytest

from helios.app.explain_past import near_ids

IDS = pd.Series(["1", "5", "90", "91"], dtype="str")


@pytest.mark.parametrize(
    ("asked", "near"),
    [("88", ["5", "90", "91"]), ("88_3", ["5", "90", "91"]), ("model", []), ("9" * 400, ["1", "5", "90"])],
    ids=["number", "array task", "letters", "400 digits"],
)
def test_an_unknown_id_is_answered_with_the_nearest(asked: str, near: list[str]) -> None:
    assert sorted(near_ids(IDS, asked), key=int) == near
