"""The site that all pages share.

It has one reading of the queue and one choice of the cluster.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Any, TypeVar

import pandas as pd

from helios.app import reports
from helios.app.clusters import NOT_LIVE, choose_cluster, history_alone, last_weeks
from helios.app.explain import LIKE, explain, find_queued, start_of_like, starts_of
from helios.app.explain_past import LOOK_BACK, JobUnknown, explain_job
from helios.app.operations import Operations
from helios.app.subjects import NAMES, SubjectUnknown, nearest_names
from helios.config import Settings
from helios.dates import parse_date
from helios.errors import ClusterUnavailable, HeliosError, NoSuchCluster, UsageError
from helios.model import Snapshot
from helios.model.slurm_site import SlurmSite
from helios.report.job import JobExplanation, StartForecast
from helios.units import rounded_duration
from helios.warehouse import Warehouse
from helios.web.page import PageMissing, Reader

T = TypeVar("T")

LIVE_S = 15.0
"""Time between two snapshots of the cluster, s."""
OLD = timedelta(days=1)
"""Age of the end of a window from which on a reader is told."""
YEAR = timedelta(days=365)
KEPT_S = 60.0
"""Time for which a part of a page is kept that is not made at each request, s."""
STARTS_S = 300.0
"""Time for which forecasts of starts are kept, s: simulations of a large queue take seconds."""
KEPT_PARTS = 256
RULES_S = 60.0
"""Time between two readings of Slurm's rules, s."""


@dataclass(slots=True)
class _Part:
    """A part of a page, once it is made."""

    lock: Lock = field(default_factory=Lock)
    made_at: float | None = None
    value: Any = None


class JobMissing(PageMissing):
    """The reader has no such job, even if another user has."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"You have no job {job_id}.", hint="Only your own jobs are shown, new ones a little later.")


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
        self._lock, self._simulating, self._lock_of_parts = Lock(), Lock(), Lock()
        self._live: tuple[float, Snapshot | str] | None = None
        self._history: tuple[float, str | None] | None = None
        self._kept: OrderedDict[Hashable, _Part] = OrderedDict()
        self._rules: tuple[float, SlurmSite | str] | None = None

    def history(self) -> str | None:
        """Return the name of the cluster where no live Slurm stands behind it.

        None for a live cluster. It is found out at most once in ``LIVE_S``.
        """
        if self._history is None or time.monotonic() - self._history[0] > LIVE_S:
            found = history_alone(self.settings, self.cluster, now=self.clock())
            self._history = (time.monotonic(), found)
        return self._history[1]

    def age(self, reader: Reader, *, until: str = "") -> str:
        """Return a sentence on how old a page is, if it is.

        Parameters
        ----------
        until : str
            End of the window, as typed. Empty for the present.
        """
        name, now = self.history(), self.clock()
        if name is None:
            try:
                end = parse_date(until or "now", now=now, timezone="UTC", is_end=True)
            except UsageError:
                return ""  # the page says so
            return f"This window ended {_ago(end, now)}." if now - end > OLD else ""
        if not reader.sees_sums:
            return f"This is a {NOT_LIVE}."  # its last job may be another user's
        with Warehouse.open(self.settings.database.url) as warehouse:
            last = choose_cluster(warehouse, name)["last_submitted_at"].to_pydatetime()
        return f"This is a {NOT_LIVE}: its last job was submitted {_ago(last, now)}."

    def prepare(self) -> None:
        """Find the last weeks of a history before the first reader asks."""
        with suppress(HeliosError):
            if (name := self.history()) is not None:
                with Warehouse.open(self.settings.database.url) as warehouse:
                    last_weeks(warehouse, name)

    def keep(self, key: Hashable, make: Callable[[], T], *, kept_s: float = KEPT_S) -> T:
        """Return a part of a page that is made at most once in ``kept_s``.

        Readers who ask meanwhile wait for it.
        """
        with self._lock_of_parts:
            part = self._kept.setdefault(key, _Part())
            self._kept.move_to_end(key)
            while len(self._kept) > KEPT_PARTS:
                self._kept.popitem(last=False)
        with part.lock:
            if part.made_at is None or time.monotonic() - part.made_at > kept_s:
                part.value, part.made_at = make(), time.monotonic()
            found: T = part.value
            return found

    def refuse_history(self, what: str) -> None:
        """Refuse a page that only a live cluster has.

        Raises
        ------
        PageMissing
            The cluster is a history without a live Slurm.
        """
        if name := self.history():
            raise PageMissing(f"{what} not shown: {name} is {NOT_LIVE}.")

    def live(self) -> Snapshot | str:
        """Return the queue with predictions, or why it cannot be read.

        The cluster is read at most once in ``LIVE_S``, whatever the number of readers.
        """
        if (known := self._recent()) is not None:
            return known  # without waiting for an explanation that is being made
        with self._lock:
            if (found := self._recent()) is None:
                try:
                    cycles = self.operations.cycles
                    found = cycles.predictions(cycles.site.cluster.snapshot())
                except HeliosError as reason:
                    found = reason.message
                self._live = (time.monotonic(), found)
            return found

    def _recent(self) -> Snapshot | str | None:
        """Return what was read of the queue in the last ``LIVE_S``."""
        known = self._live
        return known[1] if known is not None and time.monotonic() - known[0] <= LIVE_S else None

    def rules(self) -> SlurmSite | str:
        """Return Slurm's rules, or why they are not known.

        They are read at most once in ``RULES_S``, and not at all where Slurm did not answer lately.
        """
        if self.history() is not None:
            return "A history does not record the rules of Slurm."
        if isinstance(problem := self.live(), str):
            return f"The rules of Slurm are not known: {problem}"
        with self._lock:
            if self._rules is None or time.monotonic() - self._rules[0] > RULES_S:
                read: SlurmSite | str
                try:
                    read = self.operations.site.rules()
                except HeliosError as reason:
                    read = f"The rules of Slurm are not known: {reason.message}"
                self._rules = (time.monotonic(), read)
            return self._rules[1]

    def reservations(self) -> pd.DataFrame | str:
        """Return the reservations of the live cluster, or why they are not known.

        They are read at most once in ``RULES_S``, and not at all where Slurm did not answer lately.
        """
        if isinstance(problem := self.live(), str):
            return f"Reservations are not known: {problem}"

        def read() -> pd.DataFrame | str:
            try:
                return self.operations.site.reservations()
            except HeliosError as reason:
                return f"Reservations are not known: {reason.message}"

        return self.keep("reservations", read, kept_s=RULES_S)

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
            self._refuse_others(reader, job_id)

        def explain_live() -> JobExplanation:
            if (known := self._recent()) is not None and isinstance(known, str):  # it is not asked for every page
                raise ClusterUnavailable(known)
            return explain(self.operations.cycles, job_id, lock=self._lock)

        try:
            found = explain_job(self.settings, job_id, cluster=self.cluster, live=explain_live, now=self.clock())
        except JobUnknown:
            if reader.is_admin:
                raise
            raise JobMissing(job_id) from None  # it left the queue a moment ago
        if not reader.may_see(found.user):
            raise JobMissing(job_id)
        return found

    def starts(self, reader: Reader, live: Snapshot, jobs: pd.DataFrame) -> list[StartForecast]:
        """Return when some waiting jobs of a reader start, or why that is not forecast.

        A reader's jobs are simulated at most once in ``STARTS_S``, one reader's after another's. Who asks for anything
        else does not wait for that.
        """

        def make() -> list[StartForecast]:
            with self._simulating:
                return starts_of(self.operations.cycles, live, jobs, lock=self._lock)

        return self.keep(("starts", reader, *jobs["job_id"]), make, kept_s=STARTS_S)

    def start_of_like(self, live: Snapshot, last: pd.Series[Any]) -> StartForecast:
        """Return when a job like another one would start now.

        It is simulated as in :meth:`starts`.
        """

        def make() -> StartForecast:
            with self._simulating:
                return start_of_like(self.operations.cycles, live, last, lock=self._lock)

        asked = tuple(str(last[name]) for name in LIKE)
        return self.keep(("like", *asked), make, kept_s=STARTS_S)

    def _refuse_others(self, reader: Reader, job_id: str) -> None:
        """Refuse a job that the reader does not have."""
        queued, cluster, since, unread = False, self.history(), None, None
        if cluster is None:
            live = self.live()
            if isinstance(live, str):
                cluster, unread = self.name(), live
            else:
                queued = find_queued(reader.visible_part(live), job_id) is not None
                cluster, since = live.cluster, live.taken_at - LOOK_BACK
        with Warehouse.open(self.settings.database.url) as warehouse, suppress(NoSuchCluster):
            queued |= warehouse.has_job(cluster, job_id, user=reader.user, since=since)
        if unread and not queued:
            raise ClusterUnavailable(unread)
        if not queued:
            raise JobMissing(job_id)

    def report_query(self, reader: Reader, given: Mapping[str, str], *, sums: bool = False) -> reports.ReportQuery:
        """Return the query of a report.

        For a reader who is no admin it is of the own jobs; of ``sums`` over all users' jobs a manager sees all.

        Raises
        ------
        PageMissing
            Another user's jobs are asked for.
        SubjectUnknown
            No job that the reader may see has a user, account or partition of this name.
        """
        picked: dict[str, Any] = {many: (given[one],) for one, many in NAMES.items() if given.get(one)}
        # A manager sees sums over all users, but none of one other user.
        sees_all = reader.is_admin or (sums and reader.sees_sums and not given.get("user"))
        if not sees_all:
            if not reader.may_see(given.get("user") or reader.user):
                raise PageMissing("Only your own jobs are shown.", hint="Leave the user out.")
            picked["users"] = (reader.user,)
        for kind in NAMES:
            if (name := given.get(kind)) and not (kind == "user" and name == reader.user):
                self._refuse_unknown(reader, kind, name, sees_all=sees_all)
        return reports.ReportQuery(
            url=self.settings.database.url,
            slurm=self.settings.slurm,
            cluster=self.name(),
            exempt=self.settings.advice.exempt,
            now=self.clock(),
            start=given.get("from") or None,
            end=given.get("to") or None,
            hides_others=not sees_all,
            **picked,
        )

    def _refuse_unknown(self, reader: Reader, kind: str, name: str, *, sees_all: bool) -> None:
        """Refuse a name that no job has of those that a reader may see."""
        with Warehouse.open(self.settings.database.url) as warehouse:
            cluster = self.name()
            known = warehouse.names_of_jobs(cluster, kind, user="" if sees_all else reader.user)
            if kind == "partition" and sees_all:
                known |= set(warehouse.nodes(cluster)["partition"].dropna())
        if name not in known:
            known |= self._names_of_slurm(reader, kind, sees_all=sees_all)
        if name not in known:
            jobs = "No job here has" if sees_all else "No job of yours has"
            raise SubjectUnknown(f"{jobs} the {kind} {name!r}.", hint=nearest_names(name, known))

    def _names_of_slurm(self, reader: Reader, kind: str, *, sees_all: bool) -> set[str]:
        """Return the names of a kind that the live Slurm has."""
        live = None if self.history() is not None else self.live()
        if not isinstance(live, Snapshot):
            return set()
        shown = live if sees_all else reader.visible_part(live)
        texts = pd.concat([queue[kind].astype("object").dropna() for queue in (shown.pending, shown.running)])
        names = {part for text in texts for part in str(text).split(",")}
        rules = self.rules() if kind == "partition" else ""
        return names if isinstance(rules, str) else names | {one.name for one in rules.partitions}


def _ago(moment: datetime, now: datetime) -> str:
    age = now - moment
    length = f"{age / YEAR:.0f} years" if age >= 2 * YEAR else rounded_duration(age.total_seconds())
    return f"on {moment:%Y-%m-%d}, {length} ago"
