"""One at a time, and nobody after closing time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock


class Door:
    """Lets one chore in at a time, until it is shut for good."""

    def __init__(self) -> None:
        self._inside = Lock()
        self._shut = False

    @contextmanager
    def entered(self) -> Iterator[bool]:
        """Wait for the one inside, then enter; False: the door was shut meanwhile, turn round."""
        with self._inside:
            yield not self._shut

    def shut(self, *, within_s: float) -> bool:
        """Let nobody in any more, and wait for the one inside.

        Returns
        -------
        bool
            False: it is still inside after ``within_s``.
        """
        self._shut = True
        left = self._inside.acquire(timeout=within_s)
        if left:
            self._inside.release()  # who waits at the door finds it shut, and goes
        return left
