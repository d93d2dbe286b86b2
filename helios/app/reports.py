"""What an admin asks: each report's frames out of the warehouse, handed to the pure functions that answer."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import pandas as pd

from helios.app.energy.ledger import energy_ledger
from helios.app.history import choose_cluster
from helios.config import Energy
from helios.errors import Misuse, NotEnoughHistory
from helios.model import JOBS
from helios.report.admin.accuracy import prediction_accuracy
from helios.report.admin.answer import Answer
from helios.report.admin.audit import decision_lines, service_days
from helios.report.admin.jobs import chosen_jobs
from helios.report.admin.mail import as_mail, as_text
from helios.report.admin.moments import local_day, moment_in_words
from helios.report.admin.nightly import WEEKS_BEFORE, Digest, Night, NightEnergy, digest_of
from helios.report.admin.people import usage_by
from helios.report.admin.queue import queue_at, queue_over_time
from helios.report.admin.shadow import ShadowDay
from helios.report.energy.ledger import EnergyLedger
from helios.warehouse import Warehouse

DEFAULT_LENGTH = timedelta(days=7)
LONGEST_HELD = timedelta(days=60)
"""How long before a window a job may have been submitted and still have waited or run in it; older ones are missed."""
ENERGY_DAYS = timedelta(days=14)
"""Days whose savings the nightly report shows side by side."""
COLUMNS = [
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


def usage_report(ask: Ask, *, group: str) -> Answer:
    """Report jobs, hours, waits and failures of jobs submitted in the window, by user, account or partition."""
    with _opened(ask) as desk:
        jobs = desk.jobs(desk.since, desk.until)
        return desk.finished(
            usage_by(
                group,
                jobs,
                predictions=desk.warehouse.predictions(desk.cluster, since=desk.since, until=desk.until),
                at=desk.until,
                title=desk.title(f"Jobs by {group}"),
                timezone=desk.timezone,
            )
        )


def queue_report(ask: Ask) -> Answer:
    """Report the queue at the window's end; where a start is given, over the window."""
    with _opened(ask) as desk:
        if ask.start is None:
            jobs = desk.jobs(desk.until - LONGEST_HELD, desk.until)
            predictions = desk.warehouse.predictions(desk.cluster, since=desk.until - LONGEST_HELD, until=desk.until)
            title = f"{desk.cluster}: the queue at {desk.written(desk.until)} ({desk.timezone})"
            return desk.finished(
                queue_at(jobs, predictions=predictions, at=desk.until, title=title, timezone=desk.timezone)
            )
        return desk.finished(
            queue_over_time(
                desk.jobs(desk.since - LONGEST_HELD, desk.until),
                since=desk.since,
                until=desk.until,
                title=desk.title("The queue"),
                timezone=desk.timezone,
            )
        )


def prediction_report(ask: Ask, *, by: str | None = None) -> Answer:
    """Report how far off predictions of jobs submitted in the window were, beside the user's last ended run."""
    with _opened(ask) as desk:
        past = desk.warehouse.jobs(desk.cluster, until=desk.until, columns=["user", "ended_at", "run_time_s"])
        return desk.finished(
            prediction_accuracy(
                desk.jobs(desk.since, desk.until),
                predictions=desk.warehouse.predictions(desk.cluster, since=desk.since, until=desk.until),
                past=past,
                title=desk.title("Predicted and true run times"),
                by=by,
                timezone=desk.timezone,
            )
        )


def decision_report(
    ask: Ask,
    *,
    services: Collection[str] = (),
    job_ids: Collection[str] = (),
    results: Collection[str] = (),
    modes: Collection[str] = (),
    actions: Collection[str] = (),
) -> Answer:
    """Report the audit's lines of the window; users, accounts and partitions choose the jobs they are about."""
    with _opened(ask) as desk:
        decisions = desk.warehouse.decisions(desk.cluster, since=desk.since, until=desk.until)
        if ask.users or ask.accounts or ask.partitions:
            about = desk.jobs(desk.since - LONGEST_HELD, desk.until)
            ids = {*about["job_id"].dropna(), *about["array_job_id"].dropna(), *ask.partitions}
            decisions = decisions[decisions["target"].isin(list(ids))]
        return decision_lines(
            decisions,
            title=desk.title("Decisions"),
            services=services,
            targets=job_ids,
            results=results,
            modes=modes,
            actions=actions,
            timezone=desk.timezone,
        )


def service_report(ask: Ask, *, services: Collection[str] = ()) -> Answer:
    """Report per day and service what was proposed, done and refused, and when Helios kept still."""
    with _opened(ask) as desk:
        return service_days(
            desk.warehouse.decisions(desk.cluster, since=desk.since, until=desk.until),
            title=desk.title("Services"),
            turns=desk.warehouse.turns(desk.cluster, since=desk.since, until=desk.until),
            services=services,
            timezone=desk.timezone,
        )


def energy_report(ask: Ask, *, energy: Energy, by: str = "day") -> EnergyLedger:
    """Report what the nodes did and drew in the window, and what sleep saved, by day, partition or node."""
    with _opened(ask) as desk:
        return _ledger(desk, desk.since, desk.until, energy=energy, by=by)


def shadow_report(
    ask: Ask,
    *,
    day: str,
    nodes: Mapping[str, int] | None = None,
    gpus_per_node: int = 8,
    default_time_limit_s: int = 7 * 86_400,
) -> tuple[str, ShadowDay]:
    """Report the cluster, and what the shadow decisions of ``day`` (as sacct writes one) would have changed.

    Without ``nodes`` the cluster's own are taken from the warehouse; where it knows none, the peak demand.
    """
    with _opened(ask) as desk:
        begin, end = _day(desk, day)
        return desk.cluster, _shadow(
            desk, begin, end, nodes=nodes, gpus_per_node=gpus_per_node, default_time_limit_s=default_time_limit_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NightlyReport:
    """The files of one night.

    Attributes
    ----------
    subject : str
        The day in a line.
    alarming : bool
        Whether something did not go as it should.
    page, text, mail : Path
        The HTML page, the plain text, and a message that ``sendmail -t`` takes.
    removed : int
        Older reports of this cluster that were removed.
    """

    subject: str
    alarming: bool
    page: Path
    text: Path
    mail: Path
    removed: int


def nightly_pages(
    url: str,
    cluster: str | None,
    day: str,
    folder: Path,
    *,
    now: datetime,
    keep: int = 60,
    nodes: Mapping[str, int] | None = None,
    gpus_per_node: int = 8,
    default_time_limit_s: int = 7 * 86_400,
    energy: Energy | None = None,
    sender: str = "helios",
    recipient: str = "root",
) -> NightlyReport:
    """Write the report of a day: a page, a text, and a mail with both; the same day again replaces them.

    Parameters
    ----------
    day : str
        As sacct writes one: ``yesterday``, ``2026-11-20``.
    folder : Path
        Made if missing.
    keep : int
        Reports of this cluster kept there, the newest.
    energy : Energy, optional
        What nodes draw; None: as the built-in defaults say.

    Raises
    ------
    Misuse
        The folder cannot be written.
    """
    ask = Ask(url=url, cluster=cluster, now=now)
    with _opened(ask) as desk:
        begin, end = _day(desk, day)
        shadow = _shadow(
            desk, begin, end, nodes=nodes, gpus_per_node=gpus_per_node, default_time_limit_s=default_time_limit_s
        )
        night = _night(desk, begin, end, shadow)
        digest = digest_of(replace(night, energy=_energy(desk, begin, end, energy=energy or Energy())))
    from helios.report.admin.page import render_nightly  # noqa: PLC0415 - drawing takes a second to import

    return _written(digest, render_nightly(digest), folder, keep=keep, sender=sender, recipient=recipient)


def known_nodes(warehouse: Warehouse, cluster: str) -> tuple[dict[str, int] | None, int | None]:
    """Return the GPU nodes of each partition and the commonest number of GPUs a node; None where none is known."""
    nodes = warehouse.nodes(cluster)
    with_gpus = nodes[(nodes["gpus"] > 0) & nodes["partition"].notna()]
    if with_gpus.empty:
        return None, None
    counts = with_gpus.groupby("partition", observed=True)["name"].nunique()
    return {str(name): int(count) for name, count in counts.items()}, int(with_gpus["gpus"].mode().iloc[0])


def _day(desk: _Desk, day: str) -> tuple[datetime, datetime]:
    """Return begin and end of the day that is meant; today ends now, since nobody knows who will wait at midnight."""
    now = desk.ask.now
    begin, end = local_day(moment_in_words(day, now=now, timezone=desk.timezone), timezone=desk.timezone)
    return begin, min(end, now) if begin < now else end


def _shadow(
    desk: _Desk,
    begin: datetime,
    end: datetime,
    *,
    nodes: Mapping[str, int] | None,
    gpus_per_node: int,
    default_time_limit_s: int,
) -> ShadowDay:
    from helios.app.shadow_day import WARM_UP, shadow_day  # noqa: PLC0415 - no other report replays, which takes numba

    nodes, per_node = known_nodes(desk.warehouse, desk.cluster) if nodes is None else (nodes, None)
    return shadow_day(
        desk.jobs(begin - WARM_UP, end),
        desk.warehouse.decisions(desk.cluster, since=begin, until=end),
        begin=begin,
        end=end,
        nodes=nodes,
        gpus_per_node=per_node or gpus_per_node,
        default_time_limit_s=default_time_limit_s,
        timezone=desk.timezone,
    )


def _night(desk: _Desk, begin: datetime, end: datetime, shadow: ShadowDay) -> Night:
    earliest = begin - timedelta(weeks=WEEKS_BEFORE) - LONGEST_HELD
    warehouse, cluster = desk.warehouse, desk.cluster
    return Night(
        cluster=cluster,
        timezone=desk.timezone,
        begin=begin,
        end=end,
        jobs=desk.jobs(earliest, end),
        past=warehouse.jobs(cluster, until=end, columns=["user", "ended_at", "run_time_s"]),
        predictions=warehouse.predictions(cluster, since=begin - LONGEST_HELD, until=end),
        decisions=warehouse.decisions(cluster, since=begin, until=end),
        turns=warehouse.turns(cluster, since=begin, until=end),
        shadow=shadow,
    )


def _energy(desk: _Desk, begin: datetime, end: datetime, *, energy: Energy) -> NightEnergy | None:
    """Return what the nodes drew on the day and the days before; None where the history names no nodes."""
    try:
        return NightEnergy(
            day=_ledger(desk, begin, end, energy=energy, by="partition"),
            days=_ledger(desk, begin - ENERGY_DAYS + timedelta(days=1), end, energy=energy, by="day"),
        )
    except NotEnoughHistory:
        return None


def _ledger(desk: _Desk, since: datetime, until: datetime, *, energy: Energy, by: str) -> EnergyLedger:
    return energy_ledger(
        desk.warehouse, desk.cluster, timezone=desk.timezone, since=since, until=until, energy=energy, by=by
    )


def _written(digest: Digest, page: str, folder: Path, *, keep: int, sender: str, recipient: str) -> NightlyReport:
    stem = f"{_file_name(digest.cluster)}-{pd.Timestamp(digest.begin).tz_convert(digest.timezone):%Y-%m-%d}"
    mail = as_mail(digest, page=page, page_name=f"{stem}.html", sender=sender, recipient=recipient)
    contents = {".html": page.encode(), ".txt": as_text(digest).encode(), ".eml": mail}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for ending, content in contents.items():
            _replace(folder / f"{stem}{ending}", content)
        removed = _thin_out(folder, _file_name(digest.cluster), keep=keep)
    except OSError as reason:
        raise Misuse(
            f"The nightly report cannot be written: {reason}", remedy="Choose another place: report.folder"
        ) from reason
    page_at, text_at, mail_at = (folder / f"{stem}{ending}" for ending in contents)
    return NightlyReport(
        subject=digest.subject, alarming=digest.alarming, page=page_at, text=text_at, mail=mail_at, removed=removed
    )


def _file_name(cluster: str) -> str:
    return re.sub(r"[^\w.-]", "_", cluster).lstrip(".") or "cluster"


def _replace(path: Path, content: bytes) -> None:
    """Write a file such that a reader finds the old one or the new one, never a part."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_bytes(content)
    fresh.replace(path)


def _thin_out(folder: Path, name: str, *, keep: int) -> int:
    """Remove all but the newest ``keep`` reports of a cluster; return how many were removed."""
    of_a_day = re.compile(rf"{re.escape(name)}-\d{{4}}-\d\d-\d\d")
    stems = sorted({path.stem for path in folder.iterdir() if of_a_day.fullmatch(path.stem)})
    outdated = stems[:-keep]
    for stem in outdated:
        for ending in (".html", ".txt", ".eml"):
            (folder / f"{stem}{ending}").unlink(missing_ok=True)
    return len(outdated)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Desk:
    """One cluster of an open warehouse, and the window that is asked about."""

    warehouse: Warehouse
    ask: Ask
    cluster: str
    timezone: str
    since: datetime
    until: datetime
    spans: tuple[pd.Timestamp, pd.Timestamp]

    def jobs(self, since: datetime, until: datetime) -> pd.DataFrame:
        found = self.warehouse.jobs(self.cluster, since=since, until=until, columns=COLUMNS)
        # Columns that no report reads are not fetched; what takes a whole frame finds them missing.
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
        return f"{self.cluster}: {of}, {self.written(self.since)} to {self.written(self.until)} ({self.timezone})"

    def written(self, moment: datetime) -> str:
        return f"{pd.Timestamp(moment).tz_convert(self.timezone):%Y-%m-%d %H:%M}"


@contextmanager
def _opened(ask: Ask) -> Iterator[_Desk]:
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
        yield _Desk(
            warehouse=warehouse,
            ask=ask,
            cluster=str(chosen["name"]),
            timezone=timezone,
            since=since,
            until=until,
            spans=(chosen["first_submitted_at"], chosen["last_submitted_at"]),
        )
