"""Numbers of runs across loads, whatever the order in which they arrive.

The runs of a requeued job may lie in two files, or in two readings of the live accounting. ``jobs`` has no index by id,
which would make loads slower and a third larger. So the table ``requeues`` lists the few rows of ``jobs`` that another
run may follow, or that follow one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from numpy.typing import NDArray

from helios.model import INTERRUPTED, LONGEST_EPILOG_US, NEVER_US, number_runs
from helios.warehouse.bulk import Bulk
from helios.warehouse.columns import CHUNK, StringTable
from helios.warehouse.schema import jobs, requeues

_KEY = ["job_id", "submitted_at", "restart"]
_RECORD_TYPES = {"job_id": pa.string(), "submitted_at": pa.int64()}
_RECORD = list(_RECORD_TYPES)
_COLUMNS = (*_KEY, "started_at", "ended_at", "state", "user")

_MISSING = {"started_at": NEVER_US, "ended_at": NEVER_US, "state": -1, "user": -1}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChange:
    """Stored jobs of which one column was changed.

    Attributes
    ----------
    jobs : int
        Number of them.
    example : str
        The first one, with its value before and after.
    """

    jobs: int
    example: str

    def __add__(self, later: ColumnChange) -> ColumnChange:
        """Return both changes as one."""
        return ColumnChange(jobs=self.jobs + later.jobs, example=self.example)


class RunNumbers:
    """Numbers for the runs in the rows of one load.

    Parameters
    ----------
    connection : Connection
        The transaction of the load.
    bulk : Bulk
        Transport to the same database.
    cluster_id : int
        Number of the cluster.
    strings : StringTable
        Numbers of the texts of category columns.
    """

    def __init__(self, connection: sa.Connection, bulk: Bulk, *, cluster_id: int, strings: StringTable) -> None:
        self._connection = connection
        self._bulk = bulk
        self._cluster_id = cluster_id
        self._interrupted = strings.numbers([state.value for state in INTERRUPTED])
        in_cluster = sa.select(jobs.c.cluster_id).where(jobs.c.cluster_id == cluster_id).limit(1)
        self._is_new = connection.execute(in_cluster).first() is None
        self.changes: dict[str, ColumnChange] = {}
        """Stored runs that got another number."""

    def numbered(self, rows: pa.Table) -> pa.Table:
        """Return stored columns of jobs with the numbers of their runs.

        Stored runs get another number where the rows show that others come before them.
        """
        is_part = np.isin(rows["state"].to_numpy(), self._interrupted) | (rows["restart"].to_numpy() > 0)
        rows, follows = self._with_stored(rows, is_part)
        is_part |= follows
        listed = rows.filter(pa.array(is_part)).select(["cluster_id", *_RECORD])
        self._bulk.insert(self._connection, requeues, listed)
        return rows

    def _with_stored(self, rows: pa.Table, is_part: NDArray[np.bool_]) -> tuple[pa.Table, NDArray[np.bool_]]:
        """Return the rows with their numbers, and which follow another one."""
        if not len(rows) or (self._is_new and not is_part.any()):
            return rows, is_part
        ids = rows["job_id"]
        stored = _frame(rows.select(_COLUMNS).slice(0, 0)) if self._is_new else self._stored(rows, is_part)
        wanted = pa.array([*stored["job_id"], *ids.filter(pa.array(is_part)).to_pylist()], ids.type)
        chosen = np.flatnonzero(pc.is_in(ids, value_set=wanted).to_numpy())
        new = _frame(rows.select(_COLUMNS).take(pa.array(chosen)))
        found = pd.concat([stored, new], ignore_index=True)
        found["place"] = np.concatenate([np.full(len(stored), -1), chosen])
        found["is_stored"] = found["place"] < 0
        restart = rows["restart"].to_numpy().copy()
        found = found[found["job_id"].duplicated(keep=False)].reset_index(drop=True)
        if found.empty:
            return rows, restart > 0
        found["number"] = _numbers(found, self._interrupted)
        self._renumber(found[found["is_stored"]])
        new = found[~found["is_stored"]]
        restart[new["place"].to_numpy()] = new["number"].to_numpy()
        place = rows.column_names.index("restart")
        has_several = found.groupby("job_id", sort=False)["number"].transform("max") > 0
        is_part = restart > 0
        is_part[new["place"][has_several]] = True
        self._list(found[found["is_stored"] & has_several])
        return rows.set_column(place, "restart", pa.array(restart)), is_part

    def _stored(self, rows: pa.Table, is_part: NDArray[np.bool_]) -> pd.DataFrame:
        """Return the stored runs that may be of the same jobs."""
        ids, parts = rows["job_id"], rows.filter(pa.array(is_part))
        columns = [jobs.c[name] for name in _COLUMNS]
        of_cluster = jobs.c.cluster_id == self._cluster_id
        listed = sa.select(*columns).join_from(
            requeues,
            jobs,
            (jobs.c.cluster_id == requeues.c.cluster_id)
            & (jobs.c.submitted_at == requeues.c.submitted_at)
            & (jobs.c.job_id == requeues.c.job_id),
            isouter=True,  # SQLite would scan the jobs of the cluster for an inner join
        )
        found = [
            self._read(listed.where(requeues.c.cluster_id == self._cluster_id, requeues.c.job_id.in_(some)))
            for some in self._lists(ids)
        ]
        # Those with one of the given submissions, and those that may follow one of the given runs. A run that is listed
        # with its end has met them.
        parts = parts.filter(pa.array(~_are_ended(parts, found)))
        if len(parts):
            times = [parts[name].drop_null().to_numpy() for name in ("submitted_at", "ended_at")]
            first, last = times[0].min(), max(column.max(initial=0) for column in times) + LONGEST_EPILOG_US
            near = of_cluster & jobs.c.submitted_at.between(int(first), int(last))
            found += [
                self._read(sa.select(*columns).where(near, jobs.c.job_id.in_(some)))
                for some in self._lists(parts["job_id"])
            ]
        return pd.concat(found, ignore_index=True).drop_duplicates(_KEY, ignore_index=True)

    def _lists(self, ids: pa.ChunkedArray) -> list[sa.Select[tuple[str]]]:
        distinct = pc.unique(ids).to_pylist()
        chunks = [distinct[start : start + CHUNK] for start in range(0, len(distinct), CHUNK)]
        return [sa.select(self._bulk.elements(json.dumps(chunk))) for chunk in chunks]

    def _read(self, query: sa.Select[Any]) -> pd.DataFrame:
        rows = [row for row in self._connection.execute(query).all() if row.job_id is not None]
        types = {name: pa.string() if name == "job_id" else pa.int64() for name in _COLUMNS}
        columns = {name: pa.array([row[n] for row in rows], types[name]) for n, name in enumerate(_COLUMNS)}
        return _frame(pa.table(columns))

    def _renumber(self, stored: pd.DataFrame) -> None:
        """Change the numbers of stored runs."""
        # Two rows that turn out to be one run stay as they are.
        clash = stored.duplicated([*_RECORD, "number"], keep=False).groupby([stored[name] for name in _RECORD])
        changed = stored[(stored["number"] != stored["restart"]) & ~clash.transform("any")]
        if changed.empty:
            return
        key = [jobs.c.cluster_id == self._cluster_id]
        key += [jobs.c[name] == sa.bindparam(f"old_{name}") for name in _KEY]
        values = [
            {
                "old_job_id": row.job_id,
                "old_submitted_at": row.submitted_at,
                "old_restart": row.restart,
                "to": row.number,
            }
            for row in changed.sort_values("restart", ascending=False).itertuples()  # numbers only rise
        ]
        self._connection.execute(sa.update(jobs).where(*key).values(restart=sa.bindparam("to")), values)
        first = changed.iloc[0]
        change = ColumnChange(
            jobs=len(changed), example=f"{first['job_id'][:40]!a} ({first['restart']} -> {first['number']})"
        )
        self.changes["restart"] = self.changes["restart"] + change if self.changes else change

    def _list(self, stored: pd.DataFrame) -> None:
        """List stored runs that another run follows, or that follow one."""
        stored = stored.drop_duplicates(_RECORD)
        listed = {name: pa.array(stored[name].tolist(), kind) for name, kind in _RECORD_TYPES.items()}
        rows = pa.table({"cluster_id": pa.array([self._cluster_id] * len(stored), pa.int64()), **listed})
        self._bulk.insert(self._connection, requeues, rows)


def _frame(rows: pa.Table) -> pd.DataFrame:
    """Return runs as plain numbers.

    A missing time is ``NEVER_US``, a missing text -1.
    """
    filled = {name: pc.fill_null(rows[name], _MISSING[name]) for name in _MISSING}
    keys = {"submitted_at": rows["submitted_at"], "restart": rows["restart"]}
    numbers = {name: values.to_numpy() for name, values in (keys | filled).items()}
    return pd.DataFrame({"job_id": rows["job_id"].to_pandas().astype(object), **numbers})


def _are_ended(parts: pa.Table, found: list[pd.DataFrame]) -> NDArray[np.bool_]:
    """Return which rows have a stored run of their key that has ended."""
    keys = pd.concat(found, ignore_index=True)
    ended = pd.MultiIndex.from_frame(keys.loc[keys["ended_at"] != NEVER_US, _KEY])
    return pd.MultiIndex.from_frame(_frame(parts.select(_COLUMNS))[_KEY]).isin(ended)


def _numbers(rows: pd.DataFrame, interrupted: list[int]) -> NDArray[np.int64]:
    """Return the number of each row's run, stored rows being before new ones."""
    rows = rows.assign(interrupted=rows["state"].isin(interrupted) & (rows["ended_at"] != NEVER_US))
    run = rows.assign(run=_identities(rows)).groupby(["job_id", "submitted_at", "run"], sort=False)
    runs = pd.DataFrame(
        {
            "started": run["started_at"].min(),
            "ended": run["ended_at"].min(),
            "interrupted": run["interrupted"].any(),
            # Slurm marks the record of a job that was requeued by hand. Stored jobs that finished are not looked for,
            # so that the order of the loads does not matter.
            "finished": False,
            "user": run["user"].max(),
            "least": run["restart"].max(),
            "is_first": False,
        }
    ).reset_index(names=["job", "submitted", "run"])
    numbers: NDArray[np.int64] = number_runs(runs)[run.ngroup().to_numpy()].astype(np.int64)
    return numbers


def _identities(rows: pd.DataFrame) -> pd.Series[Any]:
    """Return a number for each row, the same for rows of one run.

    Rows of one load with different numbers are different runs. A new row is the stored run of its number, unless one
    began after the other had ended. Else it is the one with its start, or the only one that is left.
    """
    stored = rows["is_stored"]
    token = rows.groupby(_KEY, sort=False).ngroup()
    before = rows.loc[stored, ["started_at", "ended_at"]].set_index(token[stored]).reindex(token, fill_value=NEVER_US)
    apart = ~stored & _is_apart(rows, before["started_at"].to_numpy(), before["ended_at"].to_numpy())
    token = token.where(~apart, len(rows) + rows.groupby([*_KEY, "started_at"], sort=False).ngroup())
    rows = rows.assign(token=token)
    new = rows[~stored & ~token.isin(token[stored])].drop_duplicates("token")
    left = rows[stored & ~token.isin(token[~stored])]
    same_start = new[new["started_at"] != NEVER_US].merge(left, on=[*_RECORD, "started_at"], suffixes=("", "_stored"))
    same_start = same_start.drop_duplicates("token").drop_duplicates("token_stored")
    new, left = new[~new["token"].isin(same_start["token"])], left[~left["token"].isin(same_start["token_stored"])]
    only = [part.drop_duplicates(_RECORD, keep=False) for part in (new, left)]
    alone = only[0].merge(only[1], on=_RECORD, suffixes=("", "_stored"))
    alone = alone[~_is_apart(alone, alone["started_at_stored"], alone["ended_at_stored"])]
    pairs = pd.concat([found.set_index("token")["token_stored"] for found in (same_start, alone)])
    return token.map(pairs).fillna(token).astype(np.int64)


def _is_apart(rows: pd.DataFrame, started: Any, ended: Any) -> Any:
    """Return which rows overlap no other run in time."""
    known = (rows["started_at"] != NEVER_US) & (started != NEVER_US)
    return known & ((rows["started_at"] >= ended) | (rows["ended_at"] <= started))
