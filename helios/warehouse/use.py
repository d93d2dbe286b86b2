"""Reading of use by period and group, from the kept sums and a few jobs.

Whole days come from the sums. Read one by one are jobs at the edges of a window that are no midnights, jobs that run or
wait, and jobs that had not started at its end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import sqlalchemy as sa
from numpy.typing import NDArray

from helios.metrics.job_sums import DISTRIBUTIONS, LARGEST_BIN, LONGEST_SPAN_US, MEASURES, JobArrays, Sums, sum_jobs
from helios.metrics.occupancy import Times
from helios.model import NEVER_US, SIZE_RANGES
from helios.warehouse import schema
from helios.warehouse.bulk import Bulk
from helios.warehouse.columns import StringTable, known_numbers, stored_time
from helios.warehouse.job_sums import (
    COLUMNS,
    DIMENSIONS,
    FIRST,
    LAST,
    LEVELS,
    decoded_bins,
    group_numbers,
    job_arrays,
    midnights,
    months_of,
    state_numbers,
)
from helios.warehouse.schema import DAY_US, IS_LONG, IS_ODD, IS_UNENDED, in_cluster_by_index, jobs

Group = Literal["", "partition", "account", "user", "size"]
UNNAMED = "(unknown)"
"""What stands for the name of a group of jobs that name none."""
_KEY = ["submitted_at", "job_id", "restart"]
_WAIT = ("wait",)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Use:
    """Use of a cluster in a window.

    Attributes
    ----------
    sums : Sums
        By period and group, groups being places in ``names``.
    names : list of str
    waiting : DataFrame
        ``group``, and ``wait_s`` so far of each job that waited at the end of the window.
    unknown_gpus : int
        Jobs that were submitted in the window or held something in it, and have no record of their GPUs.
    example : str
        Id of one of them.
    waits_at_end, runs_at_end : int
        Jobs that waited or ran at the end of the window, also those submitted before it.
    """

    sums: Sums
    names: list[str]
    waiting: pd.DataFrame
    unknown_gpus: int
    example: str
    waits_at_end: int
    runs_at_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UseQuery:
    """Question about use.

    Attributes
    ----------
    by : sequence of str
        What to group by, each giving an answer; empty for one group.
    edges : sequence of datetime
        Edges of the periods. The first and the last are the window; the others are local midnights.
    now : datetime
        Until when running jobs have held resources.
    chosen : mapping of str to collection of str
        Names of the users, accounts and partitions of which jobs count, by column; empty for all.
    all_distributions : bool
        Whether run times and limits over run times are asked for too, not only waits.
    """

    by: Sequence[Group]
    edges: Sequence[datetime]
    now: datetime
    chosen: Mapping[str, Collection[str]]
    all_distributions: bool = False


def read_use(connection: sa.Connection, bulk: Bulk, *, cluster_id: int, zone: str, query: UseQuery) -> list[Use]:
    """Return the use of a cluster by period and group, for each way to group.

    The jobs at edges are read once.
    """
    reader = _Reader(connection, bulk, cluster_id=cluster_id, zone=zone, query=query)
    edges, days, now_us = reader.edges, reader.days, stored_time(query.now)
    rows = reader.jobs_at_edges()
    found = job_arrays(rows, reader.states)
    group, values = group_numbers(rows, found)
    parts = _sums_of_jobs(found, group, edges, days, now_us=now_us)
    inside = (found.submitted_us >= edges[0]) & (found.submitted_us < edges[-1])
    # Of jobs that a clock said to end before they start, those that ended before the window are not looked at.
    reaches = (found.ended_us == NEVER_US) | (found.ended_us >= edges[0]) | (found.submitted_us >= edges[0])
    waits_at_end, runs_at_end = (
        reaches & at_end for at_end in (found.wait_at(int(edges[-1])), found.run_at(int(edges[-1])))
    )
    waits = inside & waits_at_end
    # Of those submitted in the window the sums have the number.
    unknown, holds = np.isnan(found.gpus), found.hold(int(edges[0]), int(edges[-1]), now_us=now_us)
    carried = int((unknown & ~inside & holds).sum())
    present = np.flatnonzero(unknown & (inside | holds))
    example = str(rows["job_id"][int(present[0])].as_py()) if len(present) else ""
    answers = []
    for by in query.by:
        number = values[by] if by else np.zeros(int(group.max(initial=-1)) + 1, dtype=np.int64)
        stored = [reader.stored_sums(by)] if days[0] < days[1] else []
        total, groups = _total([*((part, number) for part in parts), *stored])
        unknown_gpus = carried + int(total.cells["gpus_unknown"].sum())
        if unknown_gpus and not example:
            example = reader.first_unknown()
        place = pd.Index(groups).get_indexer(pd.Index(number[group[waits]]))
        answers.append(
            Use(
                sums=total,
                names=_names(connection, bulk, by, groups),
                waiting=pd.DataFrame({"group": place, "wait_s": (edges[-1] - found.able_us()[waits]) / 1e6}),
                unknown_gpus=unknown_gpus,
                example=example,
                waits_at_end=int(waits_at_end.sum()),
                runs_at_end=int(runs_at_end.sum()),
            )
        )
    return answers


def count_jobs(connection: sa.Connection, bulk: Bulk, *, cluster_id: int, zone: str) -> tuple[int, int]:
    """Return the number of jobs of a cluster, and of those with GPUs.

    Only jobs that are not in the sums are looked at one by one.
    """
    states, table, at = state_numbers(connection), schema.job_sums, jobs.c.submitted_at
    has_gpus = table.c.size.not_in([SIZE_RANGES.index("0"), SIZE_RANGES.index("unknown")])
    submitted = (table.c.submitted, sa.case((has_gpus, table.c.submitted), else_=0))
    in_sums = sa.select(*(sa.func.sum(number) for number in submitted)).where(
        table.c.cluster_id == cluster_id, table.c.level == LEVELS.index(("month", ("size",)))
    )
    ends = [midnights(zone, stored_time(moment), stored_time(moment)) for moment in (FIRST, LAST)]
    first, last = int(ends[0][0]), int(ends[1][-1])
    of_cluster = sa.select(sa.func.count(), sa.func.count(sa.case((jobs.c.gpus > 0, 1)))).select_from(jobs)
    of_cluster = of_cluster.where(jobs.c.cluster_id == cluster_id)
    outside = [of_cluster.where(at < first), of_cluster.where(at >= last)]
    counts = np.array([connection.execute(query).one() for query in (in_sums, *outside)], dtype=np.float64)
    found = np.nan_to_num(counts).sum(axis=0).astype(np.int64)
    is_open = jobs.c.state.in_([*states["runs"], *states["waits"]])
    is_odd = (jobs.c.started_at < at - DAY_US) | (jobs.c.run_time_s * 1_000_000 > LONGEST_SPAN_US)
    by_index = sa.select(*(jobs.c[name] for name in COLUMNS)).where(in_cluster_by_index(cluster_id))
    by_index = by_index.where(at.between(first, last - 1))
    for query in (IS_ODD & jobs.c.ended_at.is_not(None), IS_UNENDED & (is_open | is_odd)):
        rows = job_arrays(bulk.select(connection, by_index.where(query)), states)
        left_out = ~rows.are_settled()
        found += [int(left_out.sum()), int((left_out & (rows.gpus > 0)).sum())]
    return int(found[0]), int(found[1])


class _Reader:
    """Reading of one question from the tables.

    Parameters are those of ``read_use``.
    """

    def __init__(self, connection: sa.Connection, bulk: Bulk, *, cluster_id: int, zone: str, query: UseQuery) -> None:
        self._connection, self._bulk, self._cluster_id, self._zone, self._query = (
            connection,
            bulk,
            cluster_id,
            zone,
            query,
        )
        self.states = state_numbers(connection)
        self.edges = np.array([stored_time(edge) for edge in query.edges], dtype=np.int64)
        since, until = int(self.edges[0]), int(self.edges[-1])
        days = midnights(zone, since, until)
        days = days[(days >= since) & (days <= until)]
        has_days = len(days) > 1 and bool(np.isin(self.edges[1:-1], days).all())
        self.days = (int(days[0]), int(days[-1])) if has_days else (until, until)
        """First and last midnight of the window. Without a whole day, or with steps by hour, everything is an edge."""
        self._chosen = {name: known_numbers(connection, texts) for name, texts in query.chosen.items() if texts}

    def jobs_at_edges(self) -> pa.Table:
        """Return the jobs whose part in the window is not all in the sums.

        Those that run or wait or are odd, that were submitted, ran or waited outside of whole days, or waited at the
        end.
        """
        since, until, (first, last) = int(self.edges[0]), int(self.edges[-1]), self.days
        at, started, ended = jobs.c.submitted_at, jobs.c.started_at, jobs.c.ended_at
        by_length = started + sa.cast(jobs.c.run_time_s * 1_000_000, sa.BigInteger)
        at_edge = at.between(since, first - 1) | at.between(last, until - 1)
        is_open = jobs.c.state.in_([*self.states["runs"], *self.states["waits"]])
        # Around the edges every job is looked at, elsewhere those that are long or have no end.
        around = [(since - DAY_US, min(first, until) + DAY_US), (last - DAY_US, until + DAY_US)]
        far = sa.and_(at < until + DAY_US, *(~at.between(begin, end - 1) for begin, end in around))
        # A recorded start may be a day before the submission.
        early = sa.or_((at >= first) & (started < first), (at >= until) & (started <= until))
        near = sa.or_(at_edge, *((at < moment) & (ended >= moment) for moment in (since, last)), early)
        conditions = [
            *(sa.and_(at.between(begin, end - 1), ended.is_not(None), near) for begin, end in around),
            *(sa.and_(far, IS_LONG, ended >= moment, at < moment) for moment in (since, last)),
            sa.and_(at < until + DAY_US, IS_ODD),
            sa.and_(
                at < until + DAY_US,
                IS_UNENDED,
                sa.or_(
                    *(is_open, at_edge, early, started < at - DAY_US, jobs.c.run_time_s * 1_000_000 > LONGEST_SPAN_US),
                    *((at < moment) & (by_length >= moment) for moment in (since, last)),
                ),
            ),
        ]
        columns = [jobs.c[name] for name in dict.fromkeys([*_KEY, *COLUMNS])]
        by_key = sa.select(*columns).where(self._are_chosen(jobs))
        by_index = sa.select(*columns).where(in_cluster_by_index(self._cluster_id), self._are_in_groups(jobs))
        queries = [*(by_key.where(near) for near in conditions[:2]), *(by_index.where(far) for far in conditions[2:])]
        found = pa.concat_tables([self._bulk.select(self._connection, query) for query in queries])
        is_first = ~found.select(_KEY).to_pandas().duplicated().to_numpy()
        return found.filter(pa.array(is_first)).sort_by("submitted_at")

    def stored_sums(self, by: Group) -> tuple[Sums, NDArray[np.int64]]:
        """Return the stored sums of whole days, with the numbers of their groups."""
        query, edges, table = self._query, self.edges, schema.job_sums
        kinds = DISTRIBUTIONS if query.all_distributions else _WAIT
        group = table.c[by] if by else sa.literal_column("0", sa.BigInteger)
        many = len(edges) > 2
        columns = [
            (table.c.begins_at if many else sa.func.min(table.c.begins_at)).label("begins_at"),
            group.label("number"),
            *(sa.cast(sa.func.sum(table.c[name]), sa.BigInteger).label(name) for name in MEASURES),
            *(sa.func.aggregate_strings(table.c[name], "").label(name) for name in kinds),
        ]
        keys = [*([table.c.begins_at] if many else []), *([group] if by else [])]
        rows: list[Any] = []
        for unit, first, last in _spans(self._zone, edges, self.days):
            found = sa.select(*columns).where(
                self._are_chosen(table),
                table.c.level == _level(unit, by, query, self._chosen),
                table.c.begins_at.between(first, last - 1),
            )
            # Without a group there would be a row of nothing.
            rows += self._connection.execute(found.group_by(*keys).having(sa.func.count() > 0)).all()
        values = list(zip(*rows, strict=True)) or [()] * len(columns)
        begins, number, *sums = (np.array(column, dtype=np.int64) for column in values[: -len(kinds)])
        place, groups = pd.factorize(number)
        period = np.searchsorted(edges, begins, side="right") - 1 if many else np.zeros(len(begins), dtype=np.int64)
        bins = [
            decoded_bins(texts, DISTRIBUTIONS.index(kind))
            for texts, kind in zip(values[-len(kinds) :], kinds, strict=True)
        ]
        cells = {"period": period, "group": place, **dict(zip(MEASURES, sums, strict=True))}
        counted = {name: np.concatenate([part[name] for part in bins]) for name in bins[0]}
        return Sums(cells=pd.DataFrame(cells), bins=pd.DataFrame(counted)), np.asarray(groups, dtype=np.int64)

    def first_unknown(self) -> str:
        """Return the first job of whole days without a record of its GPUs."""
        table = schema.job_sums
        begins = sa.select(sa.func.min(table.c.begins_at)).where(
            self._are_chosen(table),
            table.c.level == 0,
            table.c.begins_at.between(self.days[0], self.days[1] - 1),
            table.c.gpus_unknown > 0,
        )
        first = self._connection.execute(begins).scalar_one()
        query = sa.select(jobs.c.job_id).where(
            self._are_chosen(jobs), jobs.c.submitted_at >= first, jobs.c.gpus.is_(None)
        )
        return str(self._connection.execute(query.order_by(jobs.c.submitted_at).limit(1)).scalar_one())

    def _are_chosen(self, table: sa.Table) -> sa.ColumnElement[bool]:
        """Return the condition that rows are of the cluster and the chosen groups."""
        return sa.and_(table.c.cluster_id == self._cluster_id, self._are_in_groups(table))

    def _are_in_groups(self, table: sa.Table) -> sa.ColumnElement[bool]:
        return sa.and_(sa.true(), *(table.c[name].in_(ids) for name, ids in self._chosen.items()))


def _sums_of_jobs(
    found: JobArrays, group: NDArray[np.int64], edges: Times, days: tuple[int, int], *, now_us: int
) -> list[Sums]:
    """Return sums to add to the stored ones."""
    until = int(edges[-1])
    settled = found.are_settled()
    pieces = np.union1d(edges, np.array(days))
    pieces = pieces[(pieces >= edges[0]) & (pieces <= until)]
    period = np.searchsorted(edges, pieces[:-1], side="right") - 1
    is_whole = (pieces[:-1] >= days[0]) & (pieces[:-1] < days[1])

    def summed(which: NDArray[np.bool_], *, until_us: int | None, kept: NDArray[np.bool_], sign: int = 1) -> Sums:
        sums = sum_jobs(found.where(which), group=group[which], edges_us=pieces, now_us=now_us, until_us=until_us)
        chosen = kept[sums.cells["period"]]
        cells = sums.cells.assign(period=period[sums.cells["period"]])
        bins = sums.bins[chosen[sums.bins["cell"]]]
        counted = sign * chosen.astype(np.int64)
        return Sums(
            cells=cells.assign(**{name: counted * cells[name] for name in MEASURES}),
            bins=bins.assign(count=sign * bins["count"]),
        )

    everywhere = np.ones(len(is_whole), dtype=np.bool_)
    return [
        summed(np.ones(len(group), dtype=np.bool_), until_us=until, kept=everywhere),
        # What the stored sums have of these jobs is taken back.
        summed(settled, until_us=None, kept=is_whole, sign=-1),
    ]


def _spans(zone: str, edges: Times, days: tuple[int, int]) -> list[tuple[str, int, int]]:
    """Return unit, begin and end of each part of the whole days.

    They are months where no edge lies within one.
    """
    months = np.unique(months_of(zone, midnights(zone, days[0], days[1])))
    months = months[(months >= days[0]) & (months <= days[1])]
    inner = edges[1:-1]
    if len(months) < 2 or not np.isin(inner[(inner > months[0]) & (inner < months[-1])], months).all():
        return [("day", *days)]
    first, last = int(months[0]), int(months[-1])
    spans = [("day", days[0], first), ("month", first, last), ("day", last, days[1])]
    return [span for span in spans if span[1] < span[2]]


def _level(unit: str, by: Group, query: UseQuery, chosen: Mapping[str, list[int]]) -> int:
    """Return the level with the fewest rows that answers a question."""
    alone = (by or "size",)
    has_all = unit == "month" or not query.all_distributions
    if has_all and set(chosen) <= {by} and (unit, alone) in LEVELS:
        return LEVELS.index((unit, alone))
    return LEVELS.index((unit, DIMENSIONS))


def _total(parts: Sequence[tuple[Sums, NDArray[np.int64]]]) -> tuple[Sums, NDArray[np.int64]]:
    """Return the sum of all parts, and the number of each group in it."""
    groups = np.unique(np.concatenate([numbers for _, numbers in parts]))
    n_groups = max(len(groups), 1)
    # Arrays, because pandas takes ten times as long for so few rows.
    codes = [
        sums.cells["period"].to_numpy() * n_groups + np.searchsorted(groups, numbers)[sums.cells["group"]]
        for sums, numbers in parts
    ]
    cell, distinct = pd.factorize(np.concatenate(codes))
    measures = np.zeros((len(distinct), len(MEASURES)), dtype=np.int64)
    np.add.at(measures, cell, np.concatenate([sums.cells[list(MEASURES)].to_numpy() for sums, _ in parts]))
    total = {"period": distinct // n_groups, "group": distinct % n_groups}
    first = np.cumsum([0, *(len(sums.cells) for sums, _ in parts)])
    of_cell = np.concatenate(
        [sums.bins["cell"].to_numpy() + start for (sums, _), start in zip(parts, first, strict=False)]
    )
    kind, number, count = (
        np.concatenate([sums.bins[name].to_numpy() for sums, _ in parts]) for name in ("kind", "bin", "count")
    )
    code = (cell[of_cell] * len(DISTRIBUTIONS) + kind) * (LARGEST_BIN + 1) + number
    entries, place = np.unique(code, return_inverse=True)
    counts = np.zeros(len(entries), dtype=np.int64)
    np.add.at(counts, place, count)
    entries, counts = entries[counts != 0], counts[counts != 0]
    rest, number = np.divmod(entries, LARGEST_BIN + 1)
    bins = {"cell": rest // len(DISTRIBUTIONS), "kind": rest % len(DISTRIBUTIONS), "bin": number, "count": counts}
    return Sums(
        cells=pd.DataFrame({**total, **{name: measures[:, n] for n, name in enumerate(MEASURES)}}),
        bins=pd.DataFrame(bins),
    ), groups


def _names(connection: sa.Connection, bulk: Bulk, by: Group, groups: NDArray[np.int64]) -> list[str]:
    if by == "size":
        return [SIZE_RANGES[group] for group in groups]
    if not by:
        return [""] * len(groups)
    texts = StringTable(connection, bulk).texts([int(group) for group in groups])
    return [texts.get(int(group), UNNAMED) for group in groups]
