"""Numbers for the runs of requeued jobs.

Slurm keeps a record for each run of a requeued job (``sacct --duplicates``), all with the same id. Such rows may be
anywhere in a file, so one pass over ids and times comes first. It keeps 32 bytes a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.ingest.checks import REASONS, CheckResults, Reason
from helios.ingest.job_rows import JobRows
from helios.ingest.parse import NEVER
from helios.model import JobState

_NOT_STARTED = np.iinfo(np.int64).max


class Runs:
    """Rows of a file that share job id and submit time with another row.

    Call :meth:`add` for the whole file, then :meth:`judge` once, then :meth:`apply` for the rows of a second pass.
    """

    def __init__(self) -> None:
        self._seen: list[pd.DataFrame] = []
        self._repeated = pd.DataFrame()
        self.clusters: set[str] = set()

    def add(self, draft: JobRows) -> None:
        """Add the rows of ``draft``."""
        self.clusters |= draft.clusters
        start = draft.jobs.get("started_at", np.full(len(draft.line), NEVER))
        pending = draft.jobs["state"] == JobState.PENDING.value if "state" in draft.jobs else False
        frame = pd.DataFrame(
            {
                "line": draft.line,
                "job": _hashed(draft.jobs["job_id"]) ^ _mixed(draft.jobs["submitted_at"].view(np.int64)),
                "start": np.where(np.isnat(start), _NOT_STARTED, start.view(np.int64)),
                "text": draft.fingerprints(),
                "pending": np.asarray(pending) & np.isnat(start),
            }
        )
        self._seen.append(frame[~draft.skipped & draft.results.accepted & ~np.asarray(draft.jobs["job_id"].isna())])

    def judge(self) -> None:
        """Give each row a verdict and each run its restart number.

        Call it once, after the last :meth:`add`.
        """
        rows = pd.concat(self._seen, ignore_index=True) if self._seen else pd.DataFrame({"job": [], "line": []})
        self._seen = []
        self._repeated = _judged(rows[rows["job"].duplicated(keep=False)].copy())

    def apply(self, draft: JobRows) -> None:
        """Set the restart numbers of ``draft``.

        Rows that repeat another one, or that a later one supersedes, are refused.
        """
        restart = np.zeros(len(draft.line), dtype=np.int32)
        if len(self._repeated):
            lines = self._repeated["line"].to_numpy()
            place = np.minimum(np.searchsorted(lines, draft.line), len(lines) - 1)
            found = lines[place] == draft.line
            restart[found] = self._repeated["restart"].to_numpy()[place[found]]
            _refuse(draft.results, found, self._repeated["verdict"].to_numpy()[place])
        draft.jobs["restart"] = restart


def _judged(rows: pd.DataFrame) -> pd.DataFrame:
    """Return ``rows`` with a verdict and a restart number, ordered by line.

    ``rows`` are those that share their job with another. A verdict of -1 is a run of its own, else the position of the
    reason in ``REASONS``.
    """
    rows["verdict"] = np.int8(-1)
    rows["restart"] = np.int32(0)
    if rows.empty:
        return rows
    rows.loc[rows.duplicated(["job", "text"], keep="first"), "verdict"] = REASONS.index(Reason.DUPLICATE_ROW)
    rows.loc[_superseded(rows[rows["verdict"] < 0]), "verdict"] = REASONS.index(Reason.SUPERSEDED)
    runs = rows[rows["verdict"] < 0].sort_values(["job", "start", "line"], kind="stable")
    rows.loc[runs.index, "restart"] = runs.groupby("job").cumcount().astype(np.int32)
    return rows.sort_values("line")


def _superseded(rows: pd.DataFrame) -> pd.Index[Any]:
    """Return the rows that a later row of the same run replaces.

    Such rows come from exports of one job at two moments of its life.
    """
    started = rows["start"] != _NOT_STARTED
    again = started & rows.duplicated(["job", "start"], keep="last")
    last = rows.groupby("job")["line"].transform("max")
    return rows.index[again | (rows["pending"] & (rows["line"] < last))]


def _refuse(results: CheckResults, found: NDArray[np.bool_], codes: NDArray[np.int8]) -> None:
    for reason in (Reason.DUPLICATE_ROW, Reason.SUPERSEDED):
        results.refuse(found & (codes == REASONS.index(reason)), reason)


def _hashed(ids: pd.Series[Any]) -> NDArray[np.uint64]:
    return pd.util.hash_array(ids.astype(object).to_numpy(), categorize=False)


def _mixed(times: NDArray[np.int64]) -> NDArray[np.uint64]:
    # Multiplication by an odd number (Knuth's golden ratio) modulo 2**64 is one to one and spreads the low bits.
    return times.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
