"""How many examples a property runs: few at every landing, many at night."""

from __future__ import annotations

from hypothesis import settings

USUAL = 25
"""Examples of a property that does not say how many."""


def examples(usual: int) -> int:
    """Return how many examples a property runs in the profile in force: ``usual`` of them in the usual one."""
    return usual * max(1, settings.default.max_examples // USUAL)
