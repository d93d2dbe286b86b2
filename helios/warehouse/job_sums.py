"""Maintenance of the sums over jobs, in the transaction that changes the jobs.

Each job has its share in the sums of the days and months that it touches. A job that changes takes its old share back
and brings its new one, so that the sums are those of the stored jobs whatever the order of loads.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Self
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from numpy.typing import NDArray

from helios.metrics.job_sums import DISTRIBUTIONS, LARGEST_BIN, MEASURES, STATES, JobArrays, sum_jobs
from helios.metrics.occupancy import Times
from helios.model import NEVER_US, size_range
from helios.warehouse import schema
from helios.warehouse.bulk import Bulk
from helios.warehouse.columns import stored_time, text_digest

TIMES = ("submitted", "eligible", "started", "ended")
COLUMNS = (
    *(f"{name}_at" for name in TIMES),
    *("run_time_s", "time_limit_s", "nodes", "cpus", "gpus", "state", "partition", "account", "user"),
)
"""Columns of jobs that sums are made of."""
DIMENSIONS = ("partition", "account", "user", "size")
KEYS = ("level", "begins_at", *DIMENSIONS)
ALL_GROUPS = -1
"""Stands in a column of groups for all of them."""
UNKNOWN = 0
"""Number of the group of jobs that name none."""
LEVELS: Sequence[tuple[str, tuple[str, ...]]] = (
    ("day", DIMENSIONS),
    ("day", ("partition",)),
    ("day", ("account",)),
    ("day", ("size",)),
    ("month", DIMENSIONS),
    ("month", ("partition",)),
    ("month", ("account",)),
    ("month", ("user",)),
    ("month", ("size",)),
)
"""Unit of time and groups of each level. A chart of a year by day reads a few rows a day, not hundreds."""
FIRST, LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
"""Bounds of what is summed: no report goes beyond them."""

MOST_KEPT = 1_000_000
"""Counted values that are kept in memory before they are written, about 100 MB."""
ROWS_PER_REBUILD = 200_000
"""Jobs that are read at a time to make sums anew."""
_LETTERS = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", dtype=np.uint8)
_BIN_LETTERS, _ENTRY_LETTERS = 2, 7
"""Letters of a bin, and of a bin with its count, each letter being 6 bits."""

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cells:
    """Sums by key.

    Attributes
    ----------
    keys : dict of int64 array of shape (n_cells,)
        By the names in ``KEYS``.
    measures : int64 array of shape (n_cells, n_measures)
    bins : dict of int64 array of shape (n_entries,)
        ``cell`` (a row of the keys), ``kind``, ``bin`` and ``count``, ordered by the first three.
    """

    keys: dict[str, Numbers]
    measures: Numbers
    bins: dict[str, Numbers]

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the cells of all parts, without summing those of equal keys."""
        first = np.cumsum([0, *(len(part.measures) for part in parts[:-1])])
        bins = {name: np.concatenate([part.bins[name] for part in parts]) for name in ("kind", "bin", "count")}
        cells = [part.bins["cell"] + start for part, start in zip(parts, first, strict=True)]
        return cls(
            keys={name: np.concatenate([part.keys[name] for part in parts]) for name in KEYS},
            measures=np.concatenate([part.measures for part in parts]),
            bins={"cell": np.concatenate(cells), **bins},
        )

    def summed(self, **keys: Numbers) -> Self:
        """Return the sums of cells with equal keys, some of which may be replaced before."""
        keys = self.keys | keys
        code = np.zeros(len(self.measures), dtype=np.int64)
        for values in keys.values():
            place, distinct = pd.factorize(values)
            code = code * len(distinct) + place
        cell, distinct = pd.factorize(code)
        order = np.argsort(cell, kind="stable")
        starts = np.searchsorted(cell[order], np.arange(len(distinct)))
        measures = np.add.reduceat(self.measures[order], starts) if len(order) else self.measures
        kind_and_bin = self.bins["kind"] * (LARGEST_BIN + 1) + self.bins["bin"]
        entry = cell[self.bins["cell"]] * (len(DISTRIBUTIONS) * (LARGEST_BIN + 1)) + kind_and_bin
        order_of_bins = np.argsort(entry, kind="stable")
        entry = entry[order_of_bins]
        begins = np.flatnonzero(np.diff(entry, prepend=-1))
        counts = np.add.reduceat(self.bins["count"][order_of_bins], begins) if len(begins) else self.bins["count"]
        entry, counts = entry[begins][counts != 0], counts[counts != 0]
        rest, number = np.divmod(entry, LARGEST_BIN + 1)
        return type(self)(
            keys={name: values[order[starts]] for name, values in keys.items()},
            measures=measures,
            bins={
                "cell": rest // len(DISTRIBUTIONS),
                "kind": rest % len(DISTRIBUTIONS),
                "bin": number,
                "count": counts,
            },
        )

    def where_kind(self, kind: int) -> Self:
        """Return the cells with only one kind of counted values."""
        chosen = self.bins["kind"] == kind
        bins = {name: values[chosen] for name, values in self.bins.items()}
        return type(self)(keys=self.keys, measures=self.measures, bins=bins)

    def where(self, mask: NDArray[np.bool_]) -> Self:
        """Return the cells that a mask chooses."""
        chosen, place = mask[self.bins["cell"]], np.cumsum(mask) - 1
        bins = {name: values[chosen] for name, values in self.bins.items()}
        return type(self)(
            keys={name: values[mask] for name, values in self.keys.items()},
            measures=self.measures[mask],
            bins={**bins, "cell": place[bins["cell"]]},
        )

    def are_empty(self) -> NDArray[np.bool_]:
        """Return which cells have nothing in them."""
        return np.asarray(~self.measures.any(axis=1), dtype=np.bool_)


class SumChanges:
    """Changes of the sums of one cluster, within one transaction.

    Parameters
    ----------
    connection : Connection
        The transaction that changes the jobs.
    bulk : Bulk
        Transport to the same database.
    cluster_id : int
        Number of the cluster.
    """

    def __init__(self, connection: sa.Connection, bulk: Bulk, *, cluster_id: int) -> None:
        self._connection = connection
        self._bulk = bulk
        self._cluster_id = cluster_id
        zone = sa.select(schema.clusters.c.timezone).where(schema.clusters.c.cluster_id == cluster_id)
        self._zone = connection.execute(zone).scalar_one() or "UTC"
        self._states = state_numbers(connection)
        self._parts: list[Cells] = []

    def add(self, rows: pa.Table, *, sign: int = 1) -> None:
        """Add the shares of jobs, given as stored columns.

        With ``sign`` -1 they are taken back.
        """
        rows = rows.select(COLUMNS).combine_chunks()
        jobs = job_arrays(rows, self._states)
        settled = jobs.are_settled()
        if not settled.any():
            return
        if not settled.all():
            jobs, rows = jobs.where(settled), rows.filter(pa.array(settled))
        groups, keys = group_numbers(rows, jobs)
        edges = midnights(self._zone, *_span(jobs))
        sums = sum_jobs(jobs, group=groups, edges_us=edges, now_us=0)
        cells, bins = sums.cells, {str(name): values.to_numpy() for name, values in sums.bins.items()}
        of_group = {name: values[cells["group"]] for name, values in keys.items()}
        self._parts.append(
            Cells(
                keys={"level": np.zeros(len(cells), dtype=np.int64), "begins_at": edges[cells["period"]], **of_group},
                measures=sign * cells[list(MEASURES)].to_numpy(),
                bins={**bins, "count": sign * bins["count"]},
            )
        )
        if sum(len(part.bins["count"]) for part in self._parts) > MOST_KEPT:
            self.write()

    def write(self) -> None:
        """Add the changes to the stored sums."""
        if not self._parts:
            return
        days = Cells.joined(self._parts).summed()
        self._parts = []
        if not len(days.measures):
            return
        months = days.summed(begins_at=months_of(self._zone, days.keys["begins_at"]))
        levels = []
        for level, (unit, dimensions) in enumerate(LEVELS):
            cells = days if unit == "day" else months
            merged = [name for name in DIMENSIONS if name not in dimensions]
            # Of the days only waits are asked for by group.
            cells = cells.where_kind(0) if unit == "day" and merged else cells
            values = {"level": level, **dict.fromkeys(merged, ALL_GROUPS)}
            keys = {name: np.full(len(cells.measures), value, dtype=np.int64) for name, value in values.items()}
            levels.append(cells.summed(**keys) if merged else replace(cells, keys=cells.keys | keys))
        self._store(Cells.joined(levels))

    def _store(self, cells: Cells) -> None:
        """Add cells of all levels to the stored sums.

        They are written together, since each statement costs as much as some hundred rows.
        """
        table = schema.job_sums
        begins, level = cells.keys["begins_at"], cells.keys["level"]
        ends = [
            sa.select(end(table.c.begins_at)).filter_by(cluster_id=self._cluster_id, level=one).scalar_subquery()
            for end in (sa.func.min, sa.func.max)
            for one in range(len(LEVELS))
        ]
        never = (np.iinfo(np.int64).max, np.iinfo(np.int64).min)
        stored_ends = np.array(self._connection.execute(sa.select(*ends)).one(), dtype=object).reshape(2, len(LEVELS))
        first, last = (
            np.array([without if end is None else end for end in one], dtype=np.int64)[level]
            for one, without in zip(stored_ends, never, strict=True)
        )
        is_apart = (begins < first) | (begins > last)
        filled = cells.where(is_apart & ~cells.are_empty())
        self._bulk.insert(self._connection, table, self._rows(filled))
        cells = cells.where(~is_apart)
        if not len(cells.measures):
            return
        keys = self._rows(cells).select(["cluster_id", *KEYS])
        with self._bulk.staged(self._connection, keys, table=table) as incoming:
            same = [table.c[name] == incoming.c[name] for name in ("cluster_id", *KEYS)]
            # SQLite would scan the sums of the cluster for an inner join.
            joined = sa.select(*table.c).join_from(incoming, table, sa.and_(*same), isouter=True)
            stored = self._bulk.select(self._connection, joined)
        stored = stored.filter(stored["cluster_id"].is_valid())
        cells = Cells.joined([cells, stored_cells(stored)]).summed()
        empty = cells.are_empty()
        rows = self._rows(cells)
        self._bulk.replace(self._connection, table, rows.filter(pa.array(~empty)))
        gone = rows.filter(pa.array(empty)).select(["cluster_id", *KEYS]).to_pylist()
        if gone:
            found = sa.and_(*(table.c[name] == sa.bindparam(f"key_{name}") for name in gone[0]))
            named = [{f"key_{name}": value for name, value in row.items()} for row in gone]
            self._connection.execute(sa.delete(table).where(found), named)

    def _rows(self, cells: Cells) -> pa.Table:
        n_cells = len(cells.measures)
        return pa.table(
            {
                "cluster_id": np.full(n_cells, self._cluster_id),
                **cells.keys,
                **{name: np.ascontiguousarray(cells.measures[:, n]) for n, name in enumerate(MEASURES)},
                **{name: _texts(cells, kind) for kind, name in enumerate(DISTRIBUTIONS)},
            }
        )


def rebuild(
    connection: sa.Connection, bulk: Bulk, cluster_id: int, *, progress: Callable[[float], None] | None = None
) -> None:
    """Make the sums of a cluster anew from its jobs.

    ``progress`` is called with the share of the history's time that was read.
    """
    connection.execute(sa.delete(schema.job_sums).where(schema.job_sums.c.cluster_id == cluster_id))
    changes = SumChanges(connection, bulk, cluster_id=cluster_id)
    jobs = schema.jobs
    in_cluster = jobs.c.cluster_id == cluster_id
    first, last = connection.execute(
        sa.select(sa.func.min(jobs.c.submitted_at), sa.func.max(jobs.c.submitted_at)).where(in_cluster)
    ).one()
    since: int | None = first
    while since is not None:
        later = sa.and_(in_cluster, jobs.c.submitted_at >= since)
        next_one = sa.select(jobs.c.submitted_at).where(later).order_by(jobs.c.submitted_at)
        until = connection.execute(next_one.offset(ROWS_PER_REBUILD).limit(1)).scalar_one_or_none()
        if until == since:  # so many jobs of one moment
            until = connection.execute(next_one.where(jobs.c.submitted_at > since).limit(1)).scalar_one_or_none()
        part = later if until is None else sa.and_(later, jobs.c.submitted_at < until)
        rows = bulk.select(connection, sa.select(*(jobs.c[name] for name in COLUMNS)).where(part))
        changes.add(rows)
        since = until
        if progress is not None:
            progress(1.0 if until is None else (until - first) / (last - first))
    changes.write()


def wrong_days(connection: sa.Connection, bulk: Bulk, cluster_id: int, *, days: int) -> tuple[list[int], list[int]]:
    """Compare the sums of random days with their jobs.

    Returns
    -------
    looked_at, wrong : list of int
        Begins of the days, µs since the epoch. All of them are wrong where the totals of two levels differ.
    """
    jobs, table = schema.jobs.c, schema.job_sums
    zone = connection.execute(sa.select(schema.clusters.c.timezone).filter_by(cluster_id=cluster_id)).scalar_one()
    span = sa.select(sa.func.min(jobs.submitted_at), sa.func.max(jobs.submitted_at))
    first, last = connection.execute(span.where(jobs.cluster_id == cluster_id)).one()
    if first is None:
        return [], []
    edges = midnights(zone or "UTC", first, last)
    looked_at = sorted(random.sample(range(len(edges) - 1), min(days, len(edges) - 1)))
    states = state_numbers(connection)
    sums = [sa.cast(sa.func.sum(table.c[name]), sa.BigInteger) for name in MEASURES]
    in_cluster = table.c.cluster_id == cluster_id
    wrong = []
    for place in looked_at:
        day = edges[place : place + 2]
        found = job_arrays(_jobs_of_day(connection, bulk, cluster_id, *map(int, day)), states)
        found = found.where(found.are_settled())
        cells = sum_jobs(found, group=np.zeros(len(found.run_s), dtype=np.int64), edges_us=day, now_us=0).cells
        stored = connection.execute(
            sa.select(*sums).where(in_cluster, table.c.level == 0, table.c.begins_at == int(day[0]))
        ).one()
        if [value or 0 for value in stored] != cells[list(MEASURES)].sum().tolist():
            wrong.append(int(day[0]))
    totals = connection.execute(sa.select(*sums).where(in_cluster).group_by(table.c.level)).all()
    begins = [int(edges[place]) for place in looked_at]
    has_all = len(totals) in {0, len(LEVELS)} and len({tuple(total) for total in totals}) < 2
    return begins, wrong if has_all else begins


def _jobs_of_day(connection: sa.Connection, bulk: Bulk, cluster_id: int, begin_us: int, end_us: int) -> pa.Table:
    """Return all jobs that may have a share in a day, and others."""
    jobs = schema.jobs.c
    until = end_us + schema.DAY_US
    near = sa.and_(jobs.cluster_id == cluster_id, jobs.submitted_at.between(begin_us - schema.DAY_US, until))
    earlier = sa.and_(schema.in_cluster_by_index(cluster_id), jobs.submitted_at < begin_us - schema.DAY_US)
    run_until = jobs.started_at + sa.cast(jobs.run_time_s * 1_000_000, sa.BigInteger)
    conditions = [
        near,
        sa.and_(earlier, schema.IS_LONG, jobs.ended_at >= begin_us),
        sa.and_(earlier, schema.IS_UNENDED, sa.or_(jobs.started_at >= begin_us, run_until >= begin_us)),
    ]
    columns = [jobs[name] for name in COLUMNS]
    return pa.concat_tables(bulk.select(connection, sa.select(*columns).where(chosen)) for chosen in conditions)


def state_numbers(connection: sa.Connection) -> dict[str, list[int]]:
    """Return the numbers of the stored names of states, by the flags of ``JobArrays``."""
    names = schema.names.c
    digests = {text_digest(state.value): flag for flag, states in STATES.items() for state in states}
    found: dict[str, list[int]] = {flag: [] for flag in STATES}
    for digest, number in connection.execute(
        sa.select(names.digest, names.name_id).where(names.digest.in_(list(digests)))
    ):
        found[digests[digest]].append(number)
    return found


def job_arrays(rows: pa.Table, states: dict[str, list[int]]) -> JobArrays:
    """Return stored columns of jobs as arrays."""
    state = pc.fill_null(rows["state"], UNKNOWN).to_numpy()
    arrays: dict[str, Any] = {
        **{f"{name}_us": pc.fill_null(rows[f"{name}_at"], NEVER_US).to_numpy() for name in TIMES},
        **{name: _floats(rows[name]) for name in ("nodes", "cpus", "gpus")},
        "run_s": _floats(rows["run_time_s"]),
        "limit_s": _floats(rows["time_limit_s"]),
        **{flag: np.isin(state, numbers) for flag, numbers in states.items()},
        "has_state": state != UNKNOWN,
    }
    return JobArrays(**arrays)


def group_numbers(rows: pa.Table, jobs: JobArrays) -> tuple[Numbers, dict[str, Numbers]]:
    """Return the group of each job by all ``DIMENSIONS``, and the values of each group."""
    columns = {name: pc.fill_null(rows[name], UNKNOWN).to_numpy() for name in DIMENSIONS if name != "size"}
    columns["size"] = size_range(jobs.gpus)
    code = np.zeros(len(rows), dtype=np.int64)
    for values in columns.values():
        place, distinct = pd.factorize(values)
        code = code * len(distinct) + place
    group, distinct = pd.factorize(code)
    first = np.flatnonzero(np.diff(np.maximum.accumulate(group), prepend=-1)) if len(group) else group
    return group.astype(np.int64), {name: values[first] for name, values in columns.items()}


def stored_cells(rows: pa.Table) -> Cells:
    """Return stored rows as cells."""
    parts = [decoded_bins(rows[name].to_pylist(), kind) for kind, name in enumerate(DISTRIBUTIONS)]
    return Cells(
        keys={name: rows[name].to_numpy() for name in KEYS},
        measures=np.column_stack([rows[name].to_numpy() for name in MEASURES]),
        bins={name: np.concatenate([part[name] for part in parts]) for name in ("cell", "kind", "bin", "count")},
    )


def midnights(zone: str, first_us: int, last_us: int) -> Times:
    """Return the local midnights from the one before ``first_us`` to the first after ``last_us``."""
    first_us, last_us = (min(max(moment, stored_time(FIRST)), stored_time(LAST)) for moment in (first_us, last_us))
    return _around(_day_begins, zone, first_us, last_us)


def months_of(zone: str, moments_us: Times) -> Times:
    """Return the begin of the local month of each moment."""
    edges = _around(_month_begins, zone, int(moments_us.min()), int(moments_us.max()))
    return edges[np.searchsorted(edges, moments_us, side="right") - 1]


def _around(begins: Callable[[str, int], Times], zone: str, first_us: int, last_us: int) -> Times:
    first, last = (datetime.fromtimestamp(moment // 1_000_000, UTC).year for moment in (first_us, last_us))
    edges = np.unique(np.concatenate([begins(zone, year) for year in range(first - 1, max(first, last) + 2)]))
    begin = np.searchsorted(edges, first_us, side="right") - 1
    return edges[begin : np.searchsorted(edges, max(first_us, last_us), side="right") + 1]


@lru_cache(maxsize=1_000)
def _day_begins(zone: str, year: int) -> Times:
    first = datetime(year, 1, 1, tzinfo=ZoneInfo(zone))
    days = (datetime(year + 1, 1, 1, tzinfo=first.tzinfo) - first).days
    return np.array([stored_time(first + timedelta(days=day)) for day in range(days)], dtype=np.int64)


@lru_cache(maxsize=1_000)
def _month_begins(zone: str, year: int) -> Times:
    months = (datetime(year, month, 1, tzinfo=ZoneInfo(zone)) for month in range(1, 13))
    return np.array([stored_time(month) for month in months], dtype=np.int64)


def _span(jobs: JobArrays) -> tuple[int, int]:
    """Return the first and the last moment that jobs touch."""
    times = [jobs.submitted_us, jobs.started_us, jobs.ended_us]
    run_us = np.nan_to_num(jobs.run_s * 1e6).astype(np.int64)
    times.append(np.where(jobs.started_us == NEVER_US, NEVER_US, jobs.started_us + run_us))
    known = [moments[moments != NEVER_US] for moments in times]
    first = min(int(moments.min()) for moments in known if len(moments))
    return first - schema.DAY_US, max(int(moments.max()) for moments in known if len(moments))


def _floats(column: pa.ChunkedArray) -> NDArray[np.float64]:
    return np.asarray(column.cast(pa.float64()).to_numpy(), dtype=np.float64)


def _texts(cells: Cells, kind: int) -> pa.Array:
    """Return the counted values of one kind as a text for each cell."""
    chosen = cells.bins["kind"] == kind
    cell, number, count = (cells.bins[name][chosen] for name in ("cell", "bin", "count"))
    letters = [
        _LETTERS[(values >> 6 * place) & 63]
        for values, n_letters in ((number, _BIN_LETTERS), (count, _ENTRY_LETTERS - _BIN_LETTERS))
        for place in range(n_letters)
    ]
    data = np.column_stack(letters).astype(np.uint8).tobytes()
    offsets = _ENTRY_LETTERS * np.searchsorted(cell, np.arange(len(cells.measures) + 1))
    buffers = [pa.py_buffer(offsets.astype(np.int32).tobytes()), pa.py_buffer(data)]
    return pa.StringArray.from_buffers(len(cells.measures), *buffers)


def decoded_bins(texts: Sequence[str], kind: int) -> dict[str, Numbers]:
    """Return the counted values in texts, the place of each text being its cell."""
    entries = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts)) // _ENTRY_LETTERS
    places = np.zeros(128, dtype=np.int64)
    places[_LETTERS] = np.arange(64)
    letters = places[np.frombuffer("".join(texts).encode("ascii"), dtype=np.uint8)].reshape(-1, _ENTRY_LETTERS)
    weights = 64 ** np.arange(_ENTRY_LETTERS)
    return {
        "cell": np.repeat(np.arange(len(texts)), entries),
        "kind": np.full(len(letters), kind),
        "bin": letters[:, :_BIN_LETTERS] @ weights[:_BIN_LETTERS],
        "count": letters[:, _BIN_LETTERS:] @ weights[: _ENTRY_LETTERS - _BIN_LETTERS],
    }
