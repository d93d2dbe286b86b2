"""Content of the pages of the web site.

Sections are for a person, plain values for JSON. Nothing is written, and HTTP is left to ``server.py``.
"""

from __future__ import annotations

import html
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pandas as pd

from helios.app import reports
from helios.app.advise import advise
from helios.app.explain import ID_USED_BEFORE, LOOK_BACK, JobUnknown, explain, explain_node, find_queued, node_status
from helios.app.history import choose_cluster
from helios.app.operations import Operations
from helios.app.study import latest_study
from helios.config import Settings
from helios.errors import ClusterUnavailable, HeliosError, NoSuchCluster, UsageError
from helios.model import Snapshot, seconds_of
from helios.report.admin.sacct_format import ReportTable, as_json
from helios.report.energy import energy_answer, energy_sentences
from helios.report.html import PageSection, TableCells
from helios.report.job import JobExplanation
from helios.report.tables import counted
from helios.units import as_count, count_in_words, duration, in_number, write_count
from helios.warehouse import Warehouse

LIVE_S = 15.0
"""Time between two snapshots of the cluster, s."""
QUEUE_ROWS = 200
"""Most pending jobs on a page. JSON has all."""
LOOKS_BACK = timedelta(days=14)
"""Time before the window in which a user's last run is looked for. All runs of 10^6 jobs would take seconds."""
ADVICE_SHOWN = 20
"""Most pieces of advice on a page. JSON has all."""
REPORT_KINDS = (".html", ".txt")
"""Suffixes of the files in the report folder that are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Person who requests a page.

    Attributes
    ----------
    user : str
        Account name. Empty where it is not known.
    is_admin : bool
        Whether all jobs may be shown. Other readers see only what no other user's job changes.
    """

    user: str = ""
    is_admin: bool = False

    def may_see(self, user: str) -> bool:
        """Return whether jobs of ``user`` may be shown."""
        return self.is_admin or (bool(self.user) and self.user == user)

    def visible_part(self, queue: Snapshot) -> Snapshot:
        """Return a queue with only the jobs that may be shown."""
        if self.is_admin:
            return queue
        pending, running = (
            jobs[jobs["user"].eq(self.user).to_numpy(dtype=bool, na_value=False)]
            for jobs in (queue.pending, queue.running)
        )
        return replace(queue, pending=pending, running=running)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page.

    Attributes
    ----------
    title, subtitle : str
    sections : sequence of PageSection
    values : mapping
        The content as plain values, for JSON.
    form_fields : sequence of str
        Query parameters in the form on the page.
    """

    title: str
    subtitle: str = ""
    sections: Sequence[PageSection] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    form_fields: Sequence[str] = ()


class PageMissing(UsageError):
    """There is no such page, or not for this reader."""


class JobMissing(PageMissing):
    """The reader has no such job, whether or not another user has it."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"You have no job {job_id}.", hint="Only your own jobs are shown, new ones a little later.")


@dataclass(frozen=True, slots=True)
class Route:
    """A path of the site.

    Attributes
    ----------
    path : str
        Path with parameters in braces.
    summary : str
        Description for the list of pages and OpenAPI.
    make : callable
        Makes the page from the site, the reader and all parameters.
    query : tuple of str
        Names of the query parameters.
    menu_name : str
        Its name in the menu. Empty where it is not in the menu.
    for_users : bool
        Whether readers who are no admins may request it.
    """

    path: str
    summary: str
    make: Callable[[Site, Reader, Mapping[str, str]], Page]
    query: tuple[str, ...] = ()
    menu_name: str = ""
    for_users: bool = False


class Site:
    """The pages of one cluster.

    Parameters
    ----------
    settings : Settings
    cluster : str, optional
        Name of the cluster. By default the one of the settings, else the live one or the only one.
    clock : callable
        Returns the time, aware.
    operations : Operations, optional
        Operations on the live cluster. They are made from the settings by default.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        cluster: str | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        operations: Operations | None = None,
    ) -> None:
        self.settings, self.cluster, self.clock = settings, cluster or settings.database.cluster or None, clock
        self.operations = operations or Operations(settings, cluster=self.cluster)
        self._lock = Lock()
        self._live: tuple[float, Snapshot | str] | None = None

    def live(self) -> Snapshot | str:
        """Return the queue with predictions, or why it cannot be read.

        The cluster is read at most once in ``LIVE_S``, whatever the number of readers.
        """
        known = self._live
        if known is not None and time.monotonic() - known[0] <= LIVE_S:
            return known[1]  # without waiting for an explanation that is being made
        with self._lock:
            if self._live is None or time.monotonic() - self._live[0] > LIVE_S:
                found: Snapshot | str
                try:
                    cycles = self.operations.cycles
                    found = cycles.predictions(cycles.site.cluster.snapshot())
                except HeliosError as reason:
                    found = reason.message
                self._live = (time.monotonic(), found)
            return self._live[1]

    def name(self) -> str:
        """Return the name of the cluster whose history is shown.

        Where several are loaded and none is named, it is the live one, as for the daemon.

        Raises
        ------
        NoSuchCluster
            It is not loaded, or none can be chosen.
        """
        with Warehouse.open(self.settings.database.url) as warehouse:
            name = self.cluster
            if name is None and len(loaded := set(warehouse.clusters()["name"])) > 1:
                with suppress(HeliosError):  # no cluster is reached: the reader must choose
                    name = next(iter(loaded & {self.operations.site.name}), None)
            return str(choose_cluster(warehouse, name)["name"])

    def job(self, reader: Reader, job_id: str) -> JobExplanation:
        """Return everything that is known of a job.

        For a reader who is no admin its owner is looked up first, in the shared reading of the queue and in the
        history. Both are read for every id, so that neither the answer nor its time tells which jobs others have, and
        nobody can have another's job explained.

        Raises
        ------
        JobMissing
            The reader has no such job.
        """
        if not reader.is_admin:
            live = self.live()
            if isinstance(live, str):
                raise ClusterUnavailable(live)
            queued = find_queued(reader.visible_part(live), job_id) is not None
            with Warehouse.open(self.settings.database.url) as warehouse, suppress(NoSuchCluster):
                since = live.taken_at - LOOK_BACK
                queued |= warehouse.has_job(live.cluster, job_id, user=reader.user, since=since)
            if not queued:
                raise JobMissing(job_id)
        try:
            with self._lock:
                found = explain(self.operations.cycles, job_id)
        except JobUnknown:
            if reader.is_admin:
                raise
            raise JobMissing(job_id) from None  # it left the queue a moment ago
        if not reader.may_see(found.user):
            raise JobMissing(job_id)
        return found

    def report_query(self, reader: Reader, given: Mapping[str, str]) -> reports.ReportQuery:
        """Return the query of a report.

        For a reader who is no admin it is of the own jobs.

        Raises
        ------
        PageMissing
            Another user's jobs are asked for.
        """
        names = {"users": "user", "accounts": "account", "partitions": "partition"}
        picked = {many: (given[one],) for many, one in names.items() if given.get(one)}
        if not reader.is_admin:
            if not reader.may_see(given.get("user") or reader.user):
                raise PageMissing("Only your own jobs are shown.", hint="Leave the user out.")
            picked["users"] = (reader.user,)
        return reports.ReportQuery(
            url=self.settings.database.url,
            cluster=self.name(),
            now=self.clock(),
            start=given.get("from") or None,
            end=given.get("to") or None,
            hides_others=not reader.is_admin,
            **picked,
        )


# Now.


def now_page(site: Site, reader: Reader, _: Mapping[str, str]) -> Page:
    """Return the page of the queue as it is."""
    live = site.live()
    if isinstance(live, str):
        lines = ["The queue cannot be read now.", live, "The pages of the history do not need it."]
        return Page(title="Now", sections=[PageSection(sentences=lines)], values={"problem": live})
    state, lines = _state(site)
    shown = reader.visible_part(live)
    pending, running = shown.pending, shown.running
    gpus = as_count(float((running["gpus"] * running["tasks"].clip(lower=1)).sum()))
    tasks = int(pending["tasks"].clip(lower=1).sum())
    wait, run = "job waits" if tasks == 1 else "jobs wait", "runs" if len(running) == 1 else "run"
    whose = "" if reader.is_admin else "Of yours, "
    lines = [f"{whose}{tasks:,} {wait}, {len(running):,} {run} on {counted(gpus, 'GPU')}.", *lines]
    pending = pending.sort_values("priority", ascending=False, kind="stable")
    waited_s = live.taken_at.timestamp() - seconds_of(pending["eligible_at"].fillna(pending["submitted_at"]))
    rows = pending.assign(waited_s=np.maximum(waited_s, 0.0))
    columns = ["job_id", "user", "partition", "gpus", "tasks", "waited_s"]
    if reader.is_admin:  # predictions rest on everybody's jobs; those of own jobs are on the jobs' pages
        columns += ["p10_s", "p50_s", "p90_s"]
    section = PageSection(
        title="Waiting, the next one first" if reader.is_admin else "Your waiting jobs",
        sentences=["Predicted: half of such jobs run shorter; in brackets the middle 8 of 10."]
        if reader.is_admin
        else [],
        tables=[_queue_table(rows[columns].head(QUEUE_ROWS))],
        notes=[f"The first {QUEUE_ROWS} of {len(rows):,} are shown."] if len(rows) > QUEUE_ROWS else [],
    )
    return Page(
        title=f"{live.cluster} now",
        subtitle=f"As of {live.taken_at:%Y-%m-%d %H:%M:%S} UTC.",
        sections=[PageSection(sentences=lines), section],
        values={
            "cluster": live.cluster,
            "taken_at": live.taken_at.isoformat(),
            "pending": tasks,
            "running": len(running),
            "gpus_in_use": gpus,
            **state,
            "queue": _records(rows, columns),
        },
    )


def _state(site: Site) -> tuple[dict[str, Any], list[str]]:
    """Return what Helios may do now, as values and as sentences."""
    try:
        cycles = site.operations.cycles
        pause, modes = cycles.pause(), cycles.modes()
    except HeliosError as reason:
        return {"modes": None, "paused": None}, [f"What Helios may do is not known: {reason.message}"]
    lines = [f"Helios is paused {pause}."] if pause else []
    if modes:
        lines.append("Services: " + ", ".join(f"{name} is {modes[name].mode.value}" for name in modes) + ".")
    mode_names = {name: mode.mode.value for name, mode in modes.items()}
    return {"modes": mode_names, "paused": str(pause) if pause else None}, lines


def _queue_table(rows: pd.DataFrame) -> TableCells:
    names = ("JobID", "User", "Partition", "GPUs", "Waited", *(["Predicted"] if "p50_s" in rows else []))
    cells = [
        (
            str(row["job_id"]),
            "" if pd.isna(row["user"]) else str(row["user"]),
            "" if pd.isna(row["partition"]) else str(row["partition"]),
            write_count(row["gpus"]) + (f" x {int(row['tasks'])}" if row["tasks"] > 1 else ""),
            duration(row["waited_s"]),
            *([_interval(row["p10_s"], row["p50_s"], row["p90_s"])] if "p50_s" in row else []),
        )
        for row in rows.to_dict("records")
    ]
    return TableCells(header=[(name, place < 3) for place, name in enumerate(names)], rows=cells)


def _interval(p10_s: float, p50_s: float, p90_s: float) -> str:
    return "" if np.isnan(p50_s) else f"{duration(p50_s)} ({duration(p10_s)}-{duration(p90_s)})"


def _records(frame: pd.DataFrame, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return rows as plain values, missing ones as None."""
    chosen = frame[list(names)].astype(object)
    rows = chosen.where(chosen.notna(), None).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]


def job_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of one job."""
    found = site.job(reader, given["job"])
    if not reader.is_admin:
        # They tell how long others' jobs ran, and whose they were.
        remarks = tuple(text for text in found.remarks if not text.startswith(ID_USED_BEFORE))
        found = replace(found, rests_on="", remarks=remarks)
    tables = []
    if len(found.decisions):
        names = ("decided_at", "service", "mode", "action", "after", "outcome", "reason")
        rows = [
            tuple("" if pd.isna(row[name]) else str(row[name])[:200] for name in names)
            for row in found.decisions.to_dict("records")
        ]
        tables = [TableCells(header=[(name.replace("_", " ").capitalize(), True) for name in names], rows=rows[::-1])]
    sections = [
        PageSection(sentences=found.lines()),
        PageSection(title="What Helios decided, the last first", tables=tables),
    ]
    return Page(title=f"Job {found.job_id}", sections=sections, values=found.to_json())


def nodes_page(site: Site, _: Reader, __: Mapping[str, str]) -> Page:
    """Return the page of all nodes."""
    found = node_status(site.operations.node_cycles)
    lines = [f"Helios is paused {found.paused}."] if found.paused else []
    lines += [f"{found.protected[:1].upper()}{found.protected[1:]}."] if found.protected else []
    lines += [f"Nodes cannot be put to sleep here: {found.cannot}"] if found.cannot else []
    lines += [f"{node} failed to wake: {what}" for node, what in found.quarantined.items()]
    lines += [f"No node is put to sleep: {found.use_unknown}"] if found.use_unknown else []
    values = found.to_json()
    pools = values["pools"]
    header = [(name.replace("_", " ").capitalize(), place == 0) for place, name in enumerate(pools[0])] if pools else []
    rows = [tuple("" if value is None else str(value) for value in pool.values()) for pool in pools]
    sections = [
        PageSection(sentences=lines or [f"Nodes as of {found.taken_at:%Y-%m-%d %H:%M:%S} UTC."]),
        PageSection(title="Pools of nodes", tables=[TableCells(header=header, rows=rows)]),
    ]
    if found.spare is not None:
        sections.append(PageSection(title="Why so many stay awake", sentences=tuple(found.spare.sentences())))
    return Page(title="Nodes", sections=sections, values=values)


def node_page(site: Site, _: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of one node."""
    found = explain_node(site.operations.node_cycles, given["node"])
    return Page(title=f"Node {found.node}", sections=[PageSection(sentences=found.facts)], values=found.to_json())


# History.


def _report(name: str, answer: ReportTable, *, form_fields: Sequence[str], sentences: Sequence[str] = ()) -> Page:
    empty = [answer.empty] if answer.rows.empty else []
    section = PageSection(sentences=[*sentences, *empty], tables=[answer], notes=answer.notes)
    return Page(title=name, subtitle=answer.title, sections=[section], values=as_json(answer), form_fields=form_fields)


WINDOW = ("from", "to")
CHOICE = (*WINDOW, "user", "account", "partition")


def usage_page(group: str, site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of use by user, account or partition."""
    answer = reports.usage_report(site.report_query(reader, given), group=group)
    fields = [name for name in CHOICE if reader.is_admin or name != "user"]
    return _report(f"Use by {group}", answer, form_fields=fields)


def user_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of one user."""
    user = given["user"]
    if not reader.may_see(user):
        raise PageMissing(f"The page of {user} is not yours.", hint="Only your own is shown.")
    used = reports.usage_report(site.report_query(reader, given), group="partition")
    waiting = reports.queue_report(site.report_query(reader, {"user": user}))
    sections = [
        PageSection(sentences=[used.title, *([used.empty] if used.rows.empty else [])]),
        PageSection(title="Use by partition", tables=[used], notes=used.notes),
        PageSection(
            title="In the queue",
            sentences=[waiting.empty] if waiting.rows.empty else [],
            tables=[waiting],
            notes=waiting.notes,
        ),
    ]
    return Page(
        title=f"User {user}",
        sections=sections,
        values={"use": as_json(used), "queue": as_json(waiting)},
        form_fields=WINDOW,
    )


def queue_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of waiting jobs by partition and user."""
    return _report("Who waits", reports.queue_report(site.report_query(reader, given)), form_fields=CHOICE)


def predictions_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of the predictions' errors."""
    by = given.get("by") or "day"
    if by not in {"all", "source", "size", "day", "partition"}:
        raise UsageError(f"by={by} is not known.", hint="Choose all, source, size, day or partition.")
    found = reports.prediction_report(site.report_query(reader, given), by=by, looks_back=LOOKS_BACK)
    note = f"The user's last run is looked for in the {LOOKS_BACK.days} days before the window."
    return _report("Accuracy of predictions", replace(found, notes=(*found.notes, note)), form_fields=(*WINDOW, "by"))


def decisions_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of the audit log."""
    start = {"from": "now-1days"} if not given.get("from") else {}
    results = (given["result"],) if given.get("result") else ()
    answer = reports.decision_report(site.report_query(reader, {**given, **start}), results=results)
    return _report("Decisions", answer, form_fields=(*CHOICE, "result"))


def services_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of services' requests by day."""
    return _report("Services", reports.service_report(site.report_query(reader, given)), form_fields=WINDOW)


def energy_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of node hours and energy."""
    ledger = reports.energy_report(site.report_query(reader, given), energy=site.settings.energy)
    found = _report("Energy", energy_answer(ledger), form_fields=WINDOW, sentences=energy_sentences(ledger))
    return replace(found, values=ledger.to_json())


# Files in the report folder.


def report_files(settings: Settings) -> Iterator[Path]:
    """Yield the listed report files, newest first."""
    folder = Path(settings.report.folder)
    try:
        found = [
            path
            for path in folder.iterdir()
            if path.suffix in REPORT_KINDS and path.is_file() and not path.is_symlink()
        ]
    except OSError:
        return
    yield from sorted(found, key=lambda path: (-path.stat().st_mtime, path.name))


def reports_page(site: Site, _: Reader, __: Mapping[str, str]) -> Page:
    """Return the list of reports and what-ifs that were written."""
    found = [
        {
            "file": path.name,
            "title": _title(path),
            "written_at": f"{datetime.fromtimestamp(path.stat().st_mtime, UTC):%Y-%m-%d %H:%M}",
        }
        for path in report_files(site.settings)
    ]
    rows = [(each["file"], each["title"], each["written_at"]) for each in found]
    folder = site.settings.report.folder
    lines = [
        "Written by the nightly analysis, and by commands with --report into the same folder."
        if found
        else "No report has been written: helios nightly writes one each night.",
        f"To have a what-if, a study or another report here: --report {folder}/NAME.html",
    ]
    table = TableCells(header=[("Report", True), ("What", True), ("Written (UTC)", False)], rows=rows)
    return Page(
        title="Reports",
        sections=[PageSection(sentences=lines), PageSection(title="Files", tables=[table])],
        values={"reports": found},
    )


def _title(path: Path) -> str:
    """Return the title of a report, empty where it has none."""
    if path.suffix != ".html":
        return "the same as text" if path.with_suffix(".html").exists() else ""
    try:
        with path.open("rb") as file:
            found = re.search(rb"<title>([^<]{1,200})</title>", file.read(4096))
    except OSError:
        return ""
    return html.unescape(found[1].decode("utf-8", "replace")) if found else ""


def study_page(site: Site, _: Reader, __: Mapping[str, str]) -> Page:
    """Return the page of the latest study."""
    cluster = site.name()
    kept = latest_study(Path(site.settings.report.folder), cluster)
    if kept is None:
        lines = [
            "No study has been kept: helios nightly makes one of the last four weeks each night.",
            "To make one now: helios study --keep",
        ]
        return Page(title=f"Study of {cluster}", sections=[PageSection(sentences=lines)], values={"made_at": None})
    sections = [
        PageSection(
            title=one["title"],
            sentences=one["sentences"],
            figures=[partial(_figure_of_width, *drawn) for drawn in one["figures"]],
            tables=[
                TableCells(header=[tuple(name) for name in table["header"]], rows=table["rows"])
                for table in one["tables"]
            ],
            notes=one["notes"],
        )
        for one in kept.sections
    ]
    return Page(
        title=f"Study of {cluster}",
        subtitle=f"Made on {kept.made_at:%Y-%m-%d %H:%M} UTC. {kept.subtitle}",
        sections=sections,
        values={"made_at": kept.made_at.isoformat(), **kept.values},
    )


def _figure_of_width(wide: str, narrow_one: str, *, narrow: bool = False) -> str:
    return narrow_one if narrow else wide


def advice_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of advice for users."""
    found = advise(site.report_query(reader, given))
    sections = [
        PageSection(
            sentences=[
                f"{count_in_words(len(found.advice), 'piece')} of advice on {in_number(found.jobs, 'jobs')}, "
                "that on the most hours first.",
                "What jobs used is not looked at here: helios advise asks Slurm for it.",
            ],
            notes=found.notes,
        ),
        *(
            PageSection(
                title=f"{one.user}: {one.which}" if reader.is_admin else one.which,
                sentences=[one.sentence, *one.lines()[1:]],
            )
            for one in found.advice[:ADVICE_SHOWN]
        ),
    ]
    return Page(
        title="Advice",
        sections=sections,
        values=found.to_json(),
        form_fields=(*WINDOW, *(["user"] if reader.is_admin else [])),
    )


ROUTES = (
    Route("/", "The queue now, and what Helios may do", now_page, menu_name="Now", for_users=True),
    Route("/jobs/{job}", "One job: prediction, place, what Helios did", job_page, for_users=True),
    Route("/nodes", "Pools of nodes: asleep, waking, failed", nodes_page, menu_name="Nodes"),
    Route("/nodes/{node}", "One node and what Helios did to it", node_page),
    Route("/queue", "Who waits, by partition and user", queue_page, query=CHOICE, menu_name="Who waits"),
    Route(
        "/partitions",
        "Jobs, hours and waits by partition",
        partial(usage_page, "partition"),
        query=CHOICE,
        menu_name="Partitions",
        for_users=True,
    ),
    Route(
        "/accounts",
        "Jobs, hours and waits by account",
        partial(usage_page, "account"),
        query=CHOICE,
        menu_name="Accounts",
    ),
    Route("/users", "Jobs, hours and waits by user", partial(usage_page, "user"), query=CHOICE, menu_name="Users"),
    Route("/users/{user}", "One user's use and queue", user_page, query=WINDOW, for_users=True),
    Route(
        "/predictions",
        "How far off predicted run times were",
        predictions_page,
        query=(*WINDOW, "by"),
        menu_name="Predictions",
        for_users=True,
    ),
    Route("/decisions", "The audit log", decisions_page, query=(*CHOICE, "result"), menu_name="Decisions"),
    Route(
        "/services",
        "What services asked for, by day",
        services_page,
        query=WINDOW,
        menu_name="Services",
    ),
    Route(
        "/energy",
        "Node hours, energy, and what sleep saved",
        energy_page,
        query=WINDOW,
        menu_name="Energy",
    ),
    Route("/study", "The latest study: statements and figures", study_page, menu_name="Study"),
    Route(
        "/advice",
        "Requests that do not fit what jobs need",
        advice_page,
        query=(*WINDOW, "user"),
        menu_name="Advice",
        for_users=True,
    ),
    Route("/reports", "Reports and what-ifs that were written", reports_page, menu_name="Reports"),
)
