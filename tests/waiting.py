"""Wait for other processes and threads, for as long as a loaded machine takes."""

from __future__ import annotations

import time
from collections.abc import Callable

TEST_TIMEOUT_S = 600.0
"""When a test gives up. What comes at once is not waited for longer; a loaded machine takes minutes."""


def until(claim: Callable[[], object], *, every_s: float = 0.02) -> None:
    """Wait until ``claim`` is true, and fail with what it said last."""
    limit = time.monotonic() + TEST_TIMEOUT_S
    while not (seen := claim()):
        assert time.monotonic() < limit, f"not so after {TEST_TIMEOUT_S:g} s: {seen!r}"
        time.sleep(every_s)
