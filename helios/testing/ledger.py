"""A ledger in memory: leases, fencing tokens and an audit that behave, and failures when asked for."""

from __future__ import annotations

from datetime import datetime, timedelta

import pandas as pd

from helios.errors import LeaseLost, WarehouseUnavailable
from helios.model import DECISIONS, NODE_STANDINGS, STANDINGS
from helios.ports import LONGEST_LEASE, Office


class FakeLedger:
    """A :class:`helios.ports.Ledger` in memory.

    Parameters
    ----------
    office : Office
        Whose: it says what stands changed in columns of ``STANDINGS``, or of ``NODE_STANDINGS``.

    Attributes
    ----------
    office : Office
        As it was given.
    records : int
        How often :meth:`record` succeeded.
    token : int
        The current fencing token; 0 before anybody held the lease.
    holder : str or None
        Who has the lease, though it may have run out; None: nobody.
    """

    def __init__(self, *, office: Office = Office.JOBS) -> None:
        self.records = 0
        self.token = 0
        self.holder: str | None = None
        self._until: datetime | None = None
        self._written: list[pd.DataFrame] = []
        self.office = office
        self._kind = NODE_STANDINGS if office is Office.NODES else STANDINGS
        self._standings = self._kind.empty()
        self._failing = 0
        self._well_until_failing = 0

    @property
    def decisions(self) -> pd.DataFrame:
        """Everything recorded, columns of ``DECISIONS``, oldest first."""
        return _stacked(self._written)

    def fail_next(self, *, times: int = 1, after: int = 0) -> None:
        """Let ``after`` more calls pass, then answer ``times`` calls of any kind with ``WarehouseUnavailable``."""
        self._failing, self._well_until_failing = times, after

    def acquire(self, *, holder: str, now: datetime, lasts: timedelta) -> int | None:
        """Take or renew the lease, as :class:`helios.ports.Ledger` says."""
        self._answer()
        if self.holder not in {None, holder} and self._until is not None and now < self._until:
            self._until = min(self._until, now + max(lasts, LONGEST_LEASE))
            return None
        if self.holder != holder:
            self.token += 1
        self.holder = holder
        self._until = now + lasts
        return self.token

    def release(self, *, holder: str) -> None:
        """Give the lease back, if ``holder`` has it."""
        self._answer()
        if self.holder == holder:
            self.holder = None

    def standings(self) -> pd.DataFrame:
        """Return what stands changed."""
        self._answer()
        return self._standings.copy()

    def record(self, *, token: int, decisions: pd.DataFrame, standings: pd.DataFrame | None) -> None:
        """Append and replace in one step; nothing is kept when it raises."""
        self._answer()
        DECISIONS.check(decisions)
        if standings is not None:
            self._kind.check(standings)
        if token != self.token:
            raise LeaseLost(
                f"fencing token {token} is not the current one, {self.token}",
                remedy="Another Helios took the lease; this one must not write.",
            )
        self._written += [decisions.copy()] if len(decisions) else []
        self._standings = self._standings if standings is None else standings.reset_index(drop=True)
        self.records += 1

    def _answer(self) -> None:
        if self._well_until_failing > 0 and self._failing > 0:
            self._well_until_failing -= 1
        elif self._failing > 0:
            self._failing -= 1
            raise WarehouseUnavailable("the ledger was told to fail", remedy="Call it again.")


def _stacked(frames: list[pd.DataFrame]) -> pd.DataFrame:
    # Text instead of categories: two frames with other categories do not add up to a category.
    rows = [frame[DECISIONS.names].astype(object) for frame in frames]
    return DECISIONS.conform(pd.concat(rows, ignore_index=True)) if rows else DECISIONS.empty()
