"""What a pool tells while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any


class Notes:
    """Keeps what a person should know, and publishes what happens.

    Parameters
    ----------
    listener : callable, optional
        Called with each event.
    """

    def __init__(self, listener: Callable[[Mapping[str, Any]], None] | None) -> None:
        self._listener = listener
        self._notes: dict[str, str] = {}

    @property
    def texts(self) -> tuple[str, ...]:
        """All notes, each once."""
        return tuple(self._notes.values())

    def note(self, note: str, *, key: str | None = None) -> None:
        """Take note of something for a person, once."""
        known = (key or note) in self._notes
        self._notes[key or note] = note
        if not known:
            self.publish({"event": "note", "note": note})

    def publish(self, event: Mapping[str, Any]) -> None:
        """Tell the listener what happened just now."""
        if self._listener is not None:
            self._listener({"at_s": round(time.time(), 3), **event})
