"""What stands changed: Helios' own book, held against what is seen, so that nobody else's hand is written over.

A change is entered before it is made and confirmed when it was read back: whatever happens in between, the book names
at least every job that was touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pandas as pd

from helios.actions import Lever
from helios.control.pending import Key, PendingJob
from helios.control.resolution import Resolution
from helios.model import STANDINGS, Mode, Snapshot

SET_AGAIN = " (set again)"
"""Ends the ``after`` of a change that somebody had undone once, and that Helios made a second time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One change that stands, as in ``STANDINGS``.

    Attributes
    ----------
    after : str
        What was read back; empty but for ``SET_AGAIN``: it is entered, and not yet read back.
    admins : bool
        Whether it is somebody else's now.
    """

    lever: Lever
    job_id: str
    submitted_us: int
    service: str
    mode: Mode
    value: float
    after: str
    written_at: datetime
    admins: bool = False

    @property
    def key(self) -> Key:
        """Lever and job."""
        return self.lever, self.job_id

    @property
    def confirmed(self) -> bool:
        """Whether it was read back as asked."""
        return self.after not in {"", SET_AGAIN}

    @property
    def set_again(self) -> bool:
        """Whether Helios made this change a second time already."""
        return self.after.endswith(SET_AGAIN)

    def is_of(self, job: PendingJob | None) -> bool:
        """Return whether ``job`` is the one that was changed, and not a later one of the same id."""
        return job is not None and job.job_id == self.job_id and job.submitted_us == self.submitted_us


Book = dict[Key, Standing]
"""What stands, by lever and job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """What stands on the cluster, and what would stand if the shadows could act."""

    real: Book
    shadow: Book

    def frame(self) -> pd.DataFrame:
        """Return both as columns of ``STANDINGS``."""
        return _frame([*self.real.values(), *self.shadow.values()])

    def of_the_admins(self) -> frozenset[Key]:
        """Return what Helios keeps off for good."""
        return frozenset(key for key, row in self.real.items() if row.admins)


def books_of(frame: pd.DataFrame) -> Books:
    """Read ``STANDINGS``."""
    submitted_us = STANDINGS.check(frame)["submitted_at"].astype("int64")
    rows = [
        _standing(record, submitted) for record, submitted in zip(frame.to_dict("records"), submitted_us, strict=True)
    ]
    return Books(
        real={row.key: row for row in rows if row.mode is not Mode.SHADOW},
        shadow={row.key: row for row in rows if row.mode is Mode.SHADOW},
    )


def without_the_gone(books: Books, *, jobs: Mapping[str, PendingJob], snapshot: Snapshot) -> Books:
    """Return the books without jobs that left the queue.

    What is an admin's is remembered while the job runs: a requeue brings it back.
    """
    running = set(snapshot.running["job_id"])
    return Books(
        real={k: r for k, r in books.real.items() if r.is_of(jobs.get(r.job_id)) or (r.admins and r.job_id in running)},
        shadow={k: r for k, r in books.shadow.items() if r.is_of(jobs.get(r.job_id))},
    )


def changed_by_others(book: Book, *, jobs: Mapping[str, PendingJob], resolution: Resolution) -> list[Standing]:
    """Return what was read back as Helios had asked, and now reads otherwise.

    Jobs that cannot be read (not eligible) or must be left alone anyway are not judged.
    """
    return [row for row in book.values() if _differs(row, jobs.get(row.job_id), resolution)]


def without_the_released(book: Book, *, jobs: Mapping[str, PendingJob]) -> Book:
    """Return the book after a kill switch took everything back: without what is seen to be gone from the cluster.

    That it is gone is nobody's will about that job, and no reason to keep off it.
    """
    return {key: row for key, row in book.items() if row.admins or _may_stand(row, jobs.get(row.job_id))}


def _may_stand(row: Standing, job: PendingJob | None) -> bool:
    # Slurm hides the place of a job that is held, or whose priority was set: those have a reason to be left alone.
    return job is None or job.carries(row.lever) or not job.readable(row.lever) or bool(job.hands_off)


def given_to_the_admins(book: Book, rows: Iterable[Standing]) -> Book:
    """Return the book with ``rows`` marked as somebody else's."""
    return book | {row.key: replace(row, admins=True) for row in rows}


def _differs(row: Standing, job: PendingJob | None, resolution: Resolution) -> bool:
    if row.admins or not row.confirmed or job is None or not row.is_of(job):
        return False
    if job.hands_off or not job.readable(row.lever):
        return False
    return not resolution.same(row.lever, asked=row.value, read=job.value(row.lever))


def _standing(record: Mapping[Any, Any], submitted_us: int) -> Standing:
    return Standing(
        lever=Lever(record["lever"]),
        job_id=record["job_id"],
        submitted_us=submitted_us,
        service=str(record["service"]),
        mode=Mode(record["mode"]),
        value=float(record["value"]),
        after=record["after"] if isinstance(record["after"], str) else "",
        written_at=record["written_at"].to_pydatetime(),
        admins=bool(record["admins"]),
    )


def _frame(rows: list[Standing]) -> pd.DataFrame:
    if not rows:
        return STANDINGS.empty()
    columns: dict[str, Any] = {
        name: [getattr(row, name) for row in rows] for name in STANDINGS.names if name != "submitted_at"
    }
    columns["lever"] = [row.lever.value for row in rows]
    columns["mode"] = [row.mode.value for row in rows]
    columns["submitted_at"] = pd.to_datetime([row.submitted_us for row in rows], unit="us", utc=True)
    columns["written_at"] = pd.to_datetime(columns["written_at"], utc=True)
    return STANDINGS.conform(pd.DataFrame(columns))
