"""What fuzzing found once is read, or refused with a hint, ever after; and a few new inputs each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.runner import FOUND, fuzzed, replayed
from tests.fuzz.targets import TARGETS, available

FEW = 40
"""Inputs of the cheapest target; of dearer ones fewer, at least 5."""


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


@pytest.mark.parametrize("path", sorted(path for path in FOUND.glob("*/*")), ids=_name)
def test_a_finding_stays_mended(path: Path) -> None:
    if not available(path.parent.name):
        pytest.skip("needs a Lua 5.1 library")
    assert replayed(path) == ""


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_inputs_are_read_or_refused_with_a_hint(name: str) -> None:
    if not available(name):
        pytest.skip("needs a Lua 5.1 library")
    inputs = max(FEW // TARGETS[name].cost, 5)
    assert [(finding.what, finding.data[:200]) for finding in fuzzed(name, inputs=inputs, seed=13)] == []
