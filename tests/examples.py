"""How many examples a property runs: few at every landing, many at night."""

from __future__ import annotations

from hypothesis import settings

USUAL, NIGHTLY = 15, 1_000
"""Examples of a property that does not say how many."""


def examples(count: int) -> int:
    """Return how many examples a property runs in the profile in force: ``count`` where others run 25."""
    return max(1, count * settings.default.max_examples // 25)
