"""Interfaces of training pools that have more than one implementation."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Protocol

from helios.training.model import PoolAction, PoolSnapshot


class PoolService(Protocol):
    """Plug-in that decides what a pool's trials do next.

    A class as for :class:`helios.ports.Service`, registered in the entry point group ``helios.pool_services``.
    ``decide`` is deterministic: no clock (time is ``snapshot.now_s``), network, disk or randomness of its own.

    Attributes
    ----------
    every : timedelta
        Longest time between two decisions; positive. A pool decides also when a trial ends, or is measured.
    """

    every: timedelta

    def decide(self, snapshot: PoolSnapshot) -> Iterable[PoolAction]:
        """Return the trials to start, pause and stop now, possibly none.

        Only waiting and paused trials can be started, each once, and only running ones paused or
        given a share.
        """
        ...
