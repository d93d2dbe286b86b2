"""Nightly tasks, from late records and training to the report and retention."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from email import message_from_bytes, policy
from importlib import import_module
from pathlib import Path
from zoneinfo import ZoneInfo

import pandas as pd

from helios.app.advice_mail import mail_advice
from helios.app.clusters import choose_cluster
from helios.app.controller_state import NIGHTLY_LEVELS
from helios.app.energy.ledger import read_ledger
from helios.app.history import load_history
from helios.app.model_drift import DRIFTED
from helios.app.model_registry import nightly, training_history
from helios.app.nightly_order import NoGpuMachine, PastCheck, check_tonight, order_checks, proposal
from helios.app.notify import Notice, Notices, channels
from helios.app.reports import LONGEST_HELD, ReportContext, ReportQuery, open_context
from helios.app.sync import SyncResult
from helios.config import Retention, Settings
from helios.dates import parse_date
from helios.errors import FileUnreadable, HeliosError, NotEnoughHistory, UsageError
from helios.model import NODES, Snapshot
from helios.model.slurm_site import SlurmSite
from helios.ports import Progress, no_progress
from helios.private_files import file_name, make_folder, restrict_access, write_private
from helios.report.admin.nightly import WEEKS_BEFORE, NightEnergy, as_mail, nightly_digest, render_nightly
from helios.report.admin.nightly import Night as ReportedNight
from helios.report.energy import energy_levels
from helios.report.job_use import JUDGED_USE
from helios.services.qssf import OrderRule
from helios.warehouse import Horizon, Warehouse

ENDINGS = (".html", ".eml")
RECIPIENT = "root"
"""Who gets the mail that is written; notify.mail_to gets one of its own."""
ENERGY_DAYS = timedelta(days=14)
"""Days whose savings the nightly report shows."""


READ_AGAIN = timedelta(days=3)
"""Longest delay of a job's end in Slurm's database, for instance while the database or a node was down."""
STUDY = "helios.study.nightly"
"""Module of the study's sections, in a wing; it is imported when a night is reported."""
JOB_USE, USE_PREDICTIONS = "helios.job_use.fetch", "helios.job_use.predicted"
"""Modules that ask Prometheus what jobs used, and that judge predictions of it, in a wing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NightlyReport:
    """Files of one nightly report.

    Attributes
    ----------
    subject : str
        The day in a line.
    alarming : bool
        Whether something went wrong on that day.
    page, mail : Path
        The HTML page, and a message that ``sendmail -t`` takes.
    removed : int
        Older reports of this cluster that were removed.
    levels : dict of float
        Statements of the study of the last seven days, energy of the last ``ENERGY_DAYS``, and errors of the day's
        predictions of use, by name.
    use : tuple of str
        Sentences on predictions of use.
    """

    subject: str
    alarming: bool
    page: Path
    mail: Path
    removed: int
    levels: Mapping[str, float] = field(default_factory=dict)
    use: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NightlyRun:
    """Result of the nightly tasks.

    Attributes
    ----------
    done : tuple of str
        One line for each step that succeeded, in order.
    problems : tuple of HeliosError
        Errors of the steps that failed.
    report : NightlyReport, optional
        None where it could not be written.
    """

    done: tuple[str, ...]
    problems: tuple[HeliosError, ...]
    report: NightlyReport | None

    def line(self) -> str:
        """Return the result in one line.

        Raises
        ------
        HeliosError
            A step failed. The message also says what was done.
        """
        done = "; ".join(self.done)
        if self.problems:
            failed = "; ".join(problem.message for problem in self.problems)
            raise HeliosError(
                f"The night is not complete: {failed} (done: {done or 'nothing'})", hint=self.problems[0].hint
            )
        return done


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReport:
    """Report of an earlier night, with the text of its mail."""

    subject: str
    text: str
    page: Path
    mail: Path

    def to_json(self) -> dict[str, str]:
        """Return plain values."""
        return {"subject": self.subject, "text": self.text, "page": str(self.page), "mail": str(self.mail)}


def stored_report(settings: Settings, cluster: str | None, day: str | None, *, now: datetime) -> StoredReport:
    """Return the stored report of a day, else the newest.

    Raises
    ------
    NotEnoughHistory
        There is none.
    """
    with Warehouse.open(settings.database.url) as warehouse:
        row = choose_cluster(warehouse, cluster)
    name, timezone, folder = str(row["name"]), str(row["timezone"] or "UTC"), Path(settings.report.folder)
    days = [stem.removeprefix(f"{file_name(name)}-") for stem in _stored(folder, file_name(name))]
    chosen = days[-1] if days else ""
    if day is not None:
        chosen = f"{parse_date(day, now=now, timezone=timezone).astimezone(ZoneInfo(timezone)):%Y-%m-%d}"
    if chosen not in days:
        raise NotEnoughHistory(
            f"No nightly report of {name}{f' of {chosen}' if chosen else ''} is in {folder}.",
            hint=f"There are those of: {', '.join(days)}" if days else "Write one: helios nightly",
        )
    page, mail = (folder / f"{file_name(name)}-{chosen}{ending}" for ending in ENDINGS)
    subject, text = _read_mail(mail)
    return StoredReport(subject=subject, text=text, page=page, mail=mail)


def nightly_pages(settings: Settings, cluster: str | None, day: str, folder: Path, *, now: datetime) -> NightlyReport:
    """Write a day's report as page and mail.

    Writing the same day again replaces its files.

    Parameters
    ----------
    day : str
        As :mod:`helios.dates` reads one: ``yesterday``, ``2026-11-20``.
    folder : Path
        Created if missing. The newest ``report.keep`` reports of the cluster are kept in it.

    Raises
    ------
    UsageError
        The folder cannot be written.
    """
    with open_context(
        ReportQuery(url=settings.database.url, slurm=settings.slurm, cluster=cluster, now=now)
    ) as context:
        begin, end = context.day(day)
        changes = import_module(STUDY).weekly_changes(
            context.warehouse, context.cluster, timezone=context.timezone, end=end
        )
        judged = import_module(USE_PREDICTIONS).judge(context.warehouse, context.cluster, begin, end)
        night = _night(context, begin, end, settings, changes=changes.sentences, use=judged.sentences)
        digest = nightly_digest(night)
    stem = f"{file_name(digest.cluster)}-{pd.Timestamp(digest.begin).tz_convert(digest.timezone):%Y-%m-%d}"
    html, mail = (folder / f"{stem}{ending}" for ending in ENDINGS)
    page = render_nightly(digest)
    try:
        make_folder(folder)
        write_private(html, page.encode())
        write_private(mail, as_mail(digest, page=page, page_name=html.name, recipient=RECIPIENT))
        removed = _remove_old_reports(folder, file_name(digest.cluster), keep=settings.report.keep)
    except OSError as reason:
        raise UsageError(
            f"The nightly report cannot be written: {reason}", hint="Choose another place: report.folder"
        ) from reason
    return NightlyReport(
        subject=digest.subject,
        alarming=digest.alarming,
        page=html,
        mail=mail,
        removed=removed,
        levels={
            **changes.levels,
            **(energy_levels(night.energy.days) if night.energy else {}),
            **judged.levels,
        },
        use=judged.sentences,
    )


def run_nightly(
    *,
    settings: Settings,
    cluster: str,
    now: datetime,
    read: Callable[[timedelta], SyncResult],
    read_snapshot: Callable[[], Snapshot],
    rules: Callable[[], SlurmSite] | None = None,
    progress: Progress = no_progress,
) -> NightlyRun:
    """Run each nightly step, continuing after failures.

    Parameters
    ----------
    read : callable
        Reads the accounting, from the given time before the watermark.
    read_snapshot : callable
        Returns a snapshot, whose nodes are stored for the reports.
    rules : callable, optional
        Reads the scheduling rules of the cluster, for the check of forecasts of starts. None where they are not
        checked.
    """
    url = settings.database.url
    reports: list[NightlyReport] = []

    def report() -> str:
        reports.append(nightly_pages(settings, cluster, "yesterday", Path(settings.report.folder), now=now))
        with Warehouse.open(url) as warehouse:
            warehouse.remember(cluster, NIGHTLY_LEVELS, json.dumps(dict(reports[0].levels)), at=now)
            warehouse.remember(cluster, JUDGED_USE, json.dumps(reports[0].use), at=now)
        return f"report {reports[0].page}"

    snapshots: list[Snapshot] = []

    def nodes() -> str:
        snapshots.append(read_snapshot())
        snapshot = snapshots[0]
        # One row per node and partition.
        rows = snapshot.nodes.assign(partition=snapshot.nodes["partitions"].astype("str").str.split(","))
        rows = rows.explode("partition", ignore_index=True)
        with Warehouse.open(url) as warehouse:
            warehouse.add_nodes(cluster, NODES.conform(rows[NODES.names]))
        return f"{len(snapshot.nodes):,} nodes"

    steps: tuple[Callable[[], str], ...] = (
        lambda: read(READ_AGAIN).line(),
        nodes,
        lambda: _learn(url, cluster, settings, now, progress),
        lambda: _check_order(cluster, settings, snapshots, now=now, progress=progress),
        lambda: _check_starts(url, cluster, rules, now=now),
        lambda: str(import_module(JOB_USE).fetch_by_night(settings, cluster, now=now)),
        report,
        lambda: str(import_module(STUDY).store_latest(settings, cluster, now=now)),
        lambda: _notify(settings, cluster, reports[0] if reports else None, now=now),
        lambda: mail_advice(settings, cluster, now=now),
        lambda: delete_old_rows(url, cluster, settings.retention, now=now),
    )
    done, problems = [], []
    for step in steps:
        try:
            done.append(step())
        except HeliosError as problem:
            problems.append(problem)
    return NightlyRun(done=tuple(filter(None, done)), problems=tuple(problems), report=reports[0] if reports else None)


def delete_old_rows(url: str, cluster: str, retention: Retention, *, now: datetime) -> str:
    """Delete rows older than their retention time.

    Returns the numbers of deleted rows as text, empty where there were none.
    """
    horizon = Horizon(
        audit=now - timedelta(days=retention.audit_days),
        shadow=now - timedelta(days=retention.shadow_days),
        cycles=now - timedelta(days=retention.cycles_days),
        predictions=now - timedelta(days=retention.predictions_days),
        readings=now - timedelta(days=retention.readings_days),
    )
    with Warehouse.open(url) as warehouse:
        deleted = warehouse.forget(cluster, horizon)
    counts = ", ".join(f"{rows:,} {kind}" for kind, rows in deleted.items() if rows)
    return f"deleted because they were old: {counts}" if counts else ""


def _night(
    context: ReportContext,
    begin: datetime,
    end: datetime,
    settings: Settings,
    *,
    changes: tuple[str, ...],
    use: tuple[str, ...],
) -> ReportedNight:
    warehouse, cluster = context.warehouse, context.cluster
    try:
        energy = NightEnergy(
            day=read_ledger(context, begin, end, energy=settings.energy, by="partition"),
            days=read_ledger(context, begin - ENERGY_DAYS + timedelta(days=1), end, energy=settings.energy, by="day"),
        )
    except NotEnoughHistory:  # the history names no nodes
        energy = None
    return ReportedNight(
        cluster=cluster,
        timezone=context.timezone,
        begin=begin,
        end=end,
        jobs=context.jobs(begin - timedelta(weeks=WEEKS_BEFORE) - LONGEST_HELD, end),
        past=warehouse.jobs(cluster, until=end, columns=["user", "ended_at", "run_time_s"]),
        predictions=warehouse.predictions(cluster, since=begin - LONGEST_HELD, until=end),
        decisions=warehouse.decisions(cluster, since=begin, until=end),
        cycles=warehouse.cycles(cluster, since=begin, until=end),
        shadow=context.shadow(
            begin,
            end,
            nodes=None,
            gpus_per_node=settings.whatif.gpus_per_node,
            default_time_limit_s=settings.whatif.default_time_limit_s,
        ),
        energy=energy,
        order=_order_sentences(order_checks(warehouse, cluster), end),
        changes=changes,
        use=use,
    )


def _order_sentences(checks: list[PastCheck], end: datetime) -> tuple[str, ...]:
    """Return the sentences of the last order check, and the proposal."""
    earlier_checks = [check for check in checks if check.at < end + timedelta(days=1)]
    if not earlier_checks:
        return ()
    last_check = earlier_checks[-1]
    suggestion = proposal(earlier_checks, last_check.at)
    return (*last_check.sentences, *((suggestion,) if suggestion else ()))


def _remove_old_reports(folder: Path, name: str, *, keep: int) -> int:
    """Remove a cluster's reports but the newest ``keep``, and count them.

    All reports are made unreadable for other users.
    """
    stems = _stored(folder, name)
    for path in folder.iterdir():
        if path.stem in stems:
            restrict_access(path)
    outdated = stems[:-keep]
    for stem in outdated:
        for ending in ENDINGS:
            (folder / f"{stem}{ending}").unlink(missing_ok=True)
    return len(outdated)


def _stored(folder: Path, name: str) -> list[str]:
    """Return the names of a cluster's reports without their endings, oldest first."""
    pattern = re.compile(rf"{re.escape(name)}-\d{{4}}-\d\d-\d\d")
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted({path.stem for path in paths if pattern.fullmatch(path.stem)})


def _read_mail(path: Path) -> tuple[str, str]:
    """Return subject and text of a mail."""
    try:
        mail = message_from_bytes(path.read_bytes(), policy=policy.default)
    except OSError as reason:
        raise FileUnreadable(f"{path}: {reason.strerror}", hint="Write it again: helios nightly") from reason
    body = mail.get_body()
    return str(mail["Subject"]), str(body.get_content()) if body is not None else ""


def _notify(settings: Settings, cluster: str, report: NightlyReport | None, *, now: datetime) -> str:
    """Send notices about drift and the report."""
    if not channels(settings.notify):
        return ""
    notices = Notices(settings, sender="nightly", cluster=lambda: cluster, clock=lambda: now)
    with Warehouse.open(settings.database.url) as warehouse:
        line = warehouse.remembered(cluster, DRIFTED)
    drift = Notice(
        event="drift",
        cause=f"drift {cluster}",
        subject="jobs have drifted from those that the model learned from",
        lines=(f"{line}.", "See: helios model drift"),
    )
    notices.observe(f"drift {cluster}", [drift] if line else [])
    if report is not None:
        text = tuple(_read_mail(report.mail)[1].splitlines())
        events = ("nightly", "attention") if report.alarming else ("nightly",)
        report_notices = [
            Notice(event=event, cause=report.mail.stem, subject=report.subject, lines=text, mail=report.mail)
            for event in events
        ]
        notices.observe(f"nightly {cluster}", report_notices)
    return notices.send_due()


def _check_order(
    cluster: str, settings: Settings, snapshots: list[Snapshot], *, now: datetime, progress: Progress
) -> str:
    """Check the queue order and return the outcome in one line.

    Empty where no prediction orders the queue.
    """
    options = settings.services.get("qssf")
    if not snapshots or options is None or options.get("order", OrderRule.QSSF) != OrderRule.QSSF:
        return ""
    history = load_history(url=settings.database.url, cluster=cluster)
    try:
        check = check_tonight(history, snapshots[0].nodes, settings=settings, now=now, progress=progress)
    except (NotEnoughHistory, NoGpuMachine) as reason:
        return f"order not checked: {reason.message}"
    return f"order checked: {check.sentences[0]}"


def _check_starts(url: str, cluster: str, rules: Callable[[], SlurmSite] | None, *, now: datetime) -> str:
    """Check forecasts of starts on the last weeks."""
    if rules is None:
        return ""
    from helios.app.start_forecast import LOOKS_BACK, WEEKS, check_starts, store_check  # noqa: PLC0415 - it compiles

    try:
        site = rules()
    except HeliosError as reason:
        return f"starts not checked: {reason.message}"
    with Warehouse.open(url) as warehouse:
        timezone = warehouse.timezone(cluster) or "UTC"
        recent = warehouse.jobs(cluster, since=now - LOOKS_BACK - timedelta(weeks=WEEKS + 1))
        try:
            check = check_starts(recent, site, now=now, timezone=timezone)
        except NotEnoughHistory as reason:
            return f"starts not checked: {reason.message}"
        store_check(warehouse, cluster, check, at=now)
    return check.line()


def _learn(url: str, cluster: str, settings: Settings, now: datetime, progress: Progress) -> str:
    """Train on all ended jobs, and return the outcome in one line.

    The line has the new model, whether it was promoted and why, and what has drifted.
    """
    model = settings.model
    try:
        outcome, drift = nightly(
            url=url,
            history=training_history(url, cluster, progress=progress),
            seed=model.seed,
            days=model.judged_days,
            now=now,
            keep=model.kept,
            progress=progress,
        )
    except NotEnoughHistory as reason:
        return f"no model yet, shrinkage predicts: {reason.message}"
    return f"model {outcome.model_id} {outcome.did}: {outcome.why}; active: {outcome.promoted}; {drift}"
