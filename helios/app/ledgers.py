"""Ledgers that keep nothing: for a turn that is only planned, and for one that has no database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import pandas as pd

from helios.errors import HeliosError
from helios.ports import Ledger, Office
from helios.warehouse import Warehouse


@contextmanager
def opened(url: str) -> Iterator[Warehouse | HeliosError]:
    """Open the warehouse, or give the reason why it cannot be."""
    try:
        warehouse = Warehouse.open(url)
    except HeliosError as trouble:
        yield trouble
        return
    with warehouse:
        yield warehouse


def ledger_of(warehouse: Warehouse | HeliosError, cluster: str, *, office: Office) -> Ledger:
    """Return the ledger of a cluster's office; where it cannot be had, one that says why."""
    if isinstance(warehouse, HeliosError):
        return NoLedger(warehouse)
    try:
        return warehouse.ledger(cluster, office=office)
    except HeliosError as trouble:
        return NoLedger(trouble)


class Draft:
    """A ledger that keeps nothing, for a plan."""

    def __init__(self, standings: pd.DataFrame) -> None:
        self._standings = standings

    def acquire(self, *, holder: str, now: datetime, lasts: timedelta) -> int | None:  # noqa: ARG002 - a Ledger's
        """Give the lease."""
        return 0

    def release(self, *, holder: str) -> None:
        """Do nothing."""

    def standings(self) -> pd.DataFrame:
        """Return what it was given."""
        return self._standings

    def record(self, *, token: int, decisions: pd.DataFrame, standings: pd.DataFrame | None) -> None:
        """Do nothing."""


class NoLedger:
    """A ledger that cannot be reached, for the one thing that goes on without: taking everything back."""

    def __init__(self, trouble: HeliosError) -> None:
        self._trouble = trouble

    def acquire(self, *, holder: str, now: datetime, lasts: timedelta) -> int | None:  # noqa: ARG002 - a Ledger's
        """Raise why there is no database."""
        raise self._trouble

    def release(self, *, holder: str) -> None:  # noqa: ARG002 - a Ledger's
        """Raise why there is no database."""
        raise self._trouble

    def standings(self) -> pd.DataFrame:
        """Raise why there is no database."""
        raise self._trouble

    def record(self, *, token: int, decisions: pd.DataFrame, standings: pd.DataFrame | None) -> None:  # noqa: ARG002 - a Ledger's
        """Raise why there is no database."""
        raise self._trouble
