"""The clocks that the daemon reads: the wall's for people, the monotonic one for lengths of time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Two clocks; a test hands in its own.

    Attributes
    ----------
    now : callable
        Aware UTC; may jump.
    monotonic_s : callable
        Never goes back; its zero means nothing.
    """

    now: Callable[[], datetime] = _utc_now
    monotonic_s: Callable[[], float] = time.monotonic
