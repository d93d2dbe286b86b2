"""Wait for other processes and threads, for as long as a loaded machine takes."""

from __future__ import annotations

import time
from collections.abc import Callable

TEST_TIMEOUT_S = 600.0
"""When a test gives up. What comes at once is not waited for longer; a loaded machine takes minutes."""
LEAST_PAUSE_S, MOST_PAUSE_S = 0.02, 1.0
"""Between two looks. A look may start programs of Slurm or be a whole cycle of Helios, and takes other tests' time."""


def until(claim: Callable[[], object], *, longest_s: float = TEST_TIMEOUT_S) -> None:
    """Wait until ``claim`` is true, at most ``longest_s``, and fail with what it said last.

    Pauses between looks grow to a tenth of what was waited, and are twice as long as a look.
    """
    began = time.monotonic()
    while True:
        looked = time.monotonic()
        if seen := claim():
            return
        now = time.monotonic()
        assert now - began < longest_s, f"not so after {longest_s:g} s: {seen!r}"
        time.sleep(min(MOST_PAUSE_S, max(LEAST_PAUSE_S, (now - began) / 10, 2 * (now - looked))))
