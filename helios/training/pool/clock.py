"""Time of a pool, which nobody sets while it runs.

A machine's clock is set back or forward, by an hour where somebody mends its time zone. Intervals must not change with
it, and the ends of allocations and the beginnings of trials are told in seconds since the epoch.
"""

from __future__ import annotations

import time

_EPOCH_S = time.time() - time.monotonic()
"""What both clocks differed by when this process began, s."""


def steady_s() -> float:
    """Return the time since the epoch by the monotonic clock, s."""
    return _EPOCH_S + time.monotonic()
