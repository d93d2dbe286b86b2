"""How single fields are read."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from helios.ingest.parse import numbers


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1), (" -1.5e3", -1500), ("2.", 2), (".5", 0.5), ("2K", 2048), ("1.5M", 1.5 * 1024**2)]
)
def test_a_number_is_read(text: str, value: float) -> None:
    read, wrong = numbers(pa.array([text, "2K"]))
    assert (read[0], wrong[0]) == (value, False)


@pytest.mark.parametrize("text", ["x", ".", "1.2.3", "1e9999", "1 2", "K", "9" * 1_000_000 + "x"])
def test_what_is_no_number_is_told(text: str) -> None:
    """A million digits and a letter are told at once: an expression with two ways to match digits would take hours."""
    read, wrong = numbers(pa.array([text, "2K"]))
    assert np.isnan(read[0])
    assert wrong.tolist() == [True, False]
