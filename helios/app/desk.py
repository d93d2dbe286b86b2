"""One cluster of an open warehouse, and the window that an admin asks about."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import pandas as pd

from helios.app.energy.ledger import energy_ledger
from helios.app.history import choose_cluster
from helios.config import Energy
from helios.errors import Misuse
from helios.model import JOBS
from helios.report.admin.answer import Answer
from helios.report.admin.jobs import chosen_jobs
from helios.report.admin.moments import local_day, moment_in_words
from helios.report.admin.shadow import ShadowDay
from helios.report.energy.ledger import EnergyLedger
from helios.warehouse import Warehouse

DEFAULT_LENGTH = timedelta(days=7)
LONGEST_HELD = timedelta(days=60)
"""How long before a window a job may have been submitted and still have waited or run in it; older ones are missed."""
_COLUMNS = [
    name
    for name in JOBS.names
    if name not in {"name", "group", "exit_code", "het_job_id", "het_job_offset", "tres_requested", "tres_allocated"}
    and name not in {"node_list", "memory_mib", "gpu_type", "qos"}
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a report is asked for, as typed.

    Attributes
    ----------
    url : str
        The warehouse.
    cluster : str, optional
        None: the only one there is.
    start, end : str, optional
        As sacct's ``-S`` and ``-E``; None: ``DEFAULT_LENGTH`` before the end, and ``now``.
    users, accounts, partitions : collections of str
        Only jobs of these; empty: of all.
    now : datetime
        Aware; what ``now`` means.
    """

    url: str
    now: datetime
    cluster: str | None = None
    start: str | None = None
    end: str | None = None
    users: Collection[str] = ()
    accounts: Collection[str] = ()
    partitions: Collection[str] = ()


@contextmanager
def opened(ask: Ask) -> Iterator[Desk]:
    """Open the warehouse at what is asked for.

    Raises
    ------
    Misuse
        The window ends before it begins.
    """
    with Warehouse.open(ask.url) as warehouse:
        chosen = choose_cluster(warehouse, ask.cluster)
        timezone = str(chosen["timezone"] or "UTC")
        until = moment_in_words(ask.end or "now", now=ask.now, timezone=timezone)
        since = (
            until - DEFAULT_LENGTH if ask.start is None else moment_in_words(ask.start, now=ask.now, timezone=timezone)
        )
        if since >= until:
            raise Misuse(
                f"The window begins at {since:%Y-%m-%d %H:%M} and ends at {until:%Y-%m-%d %H:%M} UTC.",
                remedy="Give a start (-S) before the end (-E).",
            )
        yield Desk(
            warehouse=warehouse,
            ask=ask,
            cluster=str(chosen["name"]),
            timezone=timezone,
            since=since,
            until=until,
            spans=(chosen["first_submitted_at"], chosen["last_submitted_at"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """One cluster of an open warehouse, and the window that is asked about."""

    warehouse: Warehouse
    ask: Ask
    cluster: str
    timezone: str
    since: datetime
    until: datetime
    spans: tuple[pd.Timestamp, pd.Timestamp]

    def jobs(self, since: datetime, until: datetime) -> pd.DataFrame:
        """Return the jobs that are asked about, submitted in [since, until); what no report reads is missing."""
        found = self.warehouse.jobs(self.cluster, since=since, until=until, columns=_COLUMNS)
        jobs = JOBS.conform(found)
        ask = self.ask
        return chosen_jobs(jobs, users=ask.users, accounts=ask.accounts, partitions=ask.partitions)

    def finished(self, answer: Answer) -> Answer:
        """Return the answer; where it is empty, with the stretch that the history covers."""
        first, last = self.spans
        if not answer.rows.empty or pd.isna(first):
            return answer
        return replace(answer, empty=f"{answer.empty} The history spans {self.written(first)} to {self.written(last)}.")

    def title(self, of: str) -> str:
        """Return the heading of a report ``of`` something over the window."""
        return f"{self.cluster}: {of}, {self.written(self.since)} to {self.written(self.until)} ({self.timezone})"

    def written(self, moment: datetime) -> str:
        """Return a moment as the cluster's people write it."""
        return f"{pd.Timestamp(moment).tz_convert(self.timezone):%Y-%m-%d %H:%M}"

    def day(self, day: str) -> tuple[datetime, datetime]:
        """Return begin and end of the day meant; today ends now, since nobody knows who will wait at midnight."""
        now = self.ask.now
        begin, end = local_day(moment_in_words(day, now=now, timezone=self.timezone), timezone=self.timezone)
        return begin, min(end, now) if begin < now else end

    def shadow(
        self,
        begin: datetime,
        end: datetime,
        *,
        nodes: Mapping[str, int] | None,
        gpus_per_node: int,
        default_time_limit_s: int,
    ) -> ShadowDay:
        """Return what the shadow decisions of a day would have changed; without ``nodes`` on those that are known."""
        from helios.app.shadow_day import WARM_UP, shadow_day  # noqa: PLC0415 - no other report replays, which takes numba

        nodes, per_node = known_nodes(self.warehouse, self.cluster) if nodes is None else (nodes, None)
        return shadow_day(
            self.jobs(begin - WARM_UP, end),
            self.warehouse.decisions(self.cluster, since=begin, until=end),
            begin=begin,
            end=end,
            nodes=nodes,
            gpus_per_node=per_node or gpus_per_node,
            default_time_limit_s=default_time_limit_s,
            timezone=self.timezone,
        )

    def ledger(self, since: datetime, until: datetime, *, energy: Energy, by: str) -> EnergyLedger:
        """Return what the nodes did and drew, and what sleep saved."""
        return energy_ledger(
            self.warehouse, self.cluster, timezone=self.timezone, since=since, until=until, energy=energy, by=by
        )


def known_nodes(warehouse: Warehouse, cluster: str) -> tuple[dict[str, int] | None, int | None]:
    """Return the GPU nodes of each partition and the commonest number of GPUs a node; None where none is known."""
    nodes = warehouse.nodes(cluster)
    with_gpus = nodes[(nodes["gpus"] > 0) & nodes["partition"].notna()]
    if with_gpus.empty:
        return None, None
    counts = with_gpus.groupby("partition", observed=True)["name"].nunique()
    return {str(name): int(count) for name, count in counts.items()}, int(with_gpus["gpus"].mode().iloc[0])
