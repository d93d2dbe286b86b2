"""Tasks of the daemon, bound to one configuration and one live cluster.

The commands that run a task once by hand use them too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from pkgutil import resolve_name
from threading import RLock
from typing import TYPE_CHECKING

from helios.app.controller_state import (
    NIGHTLY_LEVELS,
    CycleSummary,
    DaemonOperations,
    NodeCycleSummary,
    hold_lock,
    other_leader,
)
from helios.app.controllers import JobController, NodeController
from helios.app.explain_socket import Explain, JobAnswer
from helios.app.hook import UNPUBLISHED, hook_orders_new_jobs, hook_rows
from helios.app.live_cluster import LiveCluster, open_live_cluster
from helios.app.notify import Notices, channels, notices_in
from helios.app.services import configured_domains, configured_services
from helios.app.sync import SyncResult, sync_history
from helios.choices import Domain
from helios.config import LoadedSettings, Settings
from helios.control import CycleReport, NodeCycleReport, ServiceMode
from helios.control.preconditions import SETTLES
from helios.dates import parse_date
from helios.errors import ConfigurationInvalid, HeliosError, HookTableInvalid, StrangersLeft, UsageError
from helios.ports import Progress, Service, no_progress
from helios.slurm.hook_table import TABLE, publish, render, retract
from helios.slurm.undo_file import UNDO_FILE
from helios.warehouse import Warehouse

if TYPE_CHECKING:
    from helios.app.nightly import NightlyRun

ALL_DOMAINS = frozenset(Domain)
WING_LEVELS = ("helios.job_use.idle_gpus:levels_now", "helios.job_use.predicted:predict_running")
"""Functions of the wings that return values for gauges by name, given settings, cluster and time."""
SYNC_LOCK = "sync.lock"
"""File in the state folder that a reading of the accounting locks."""
OF_STRANGERS = "Users may ask for --time-min=7, and admins write a SiteFactor of 537: docs/safety.md"


def operations_for(
    configuration: LoadedSettings,
    *,
    cluster: str | None = None,
    domains: frozenset[Domain] = ALL_DOMAINS,
    ingest: bool = True,
) -> DaemonOperations:
    """Return the daemon's tasks for the live cluster that this machine reaches.

    The cluster is not contacted until a task is called.

    Parameters
    ----------
    cluster : str, optional
        Refuse any other cluster than this one.
    domains : frozenset of Domain
        What this process acts on. It acts on nodes only if a configured service does.
    ingest : bool
        Whether this process reads the accounting.

    Raises
    ------
    ServiceUnknown, ServiceInvalid
        A configured service does not exist, or its options are wrong.
    ConfigurationInvalid
        There is nothing to do, because only nodes were requested and no configured service acts on them.
    """
    settings = configuration.settings
    # Building the services here reports wrong options at the start, not in every cycle.
    # What an earlier release left on nodes, such as weights, is reverted without a service too.
    on_nodes = Domain.NODES in domains and (
        bool(configured_services(settings, domain=Domain.NODES)) or _may_have_changed_nodes(settings)
    )
    on_jobs = Domain.JOBS in domains
    if not (on_jobs or on_nodes):
        raise ConfigurationInvalid(
            "No configured service acts on nodes, and this daemon was to act on nothing else.",
            hint="Name one in helios.toml: [services.ces]",
        )
    operations = Operations(settings, cluster=cluster)
    own_domains = {domain for domain, is_active in ((Domain.JOBS, on_jobs), (Domain.NODES, on_nodes)) if is_active}
    notices = Notices(settings, sender="-".join(sorted(own_domains)), cluster=lambda: operations.site.name)
    return DaemonOperations(
        ingest=(lambda: operations.read().line()) if ingest else None,
        cycle=operations.cycle if on_jobs else None,
        nodes=operations.node_cycle if on_nodes else None,
        hook=operations.publish_hook if on_jobs else lambda: "",
        nightly=lambda: operations.night().line(),
        release=lambda why: operations.release_on_stop(why, domains=own_domains),
        levels=operations.nightly_levels,
        observe=lambda summary: notices.observe(
            "nodes" if isinstance(summary, NodeCycleSummary) else "jobs", notices_in(summary)
        ),
        notify=notices.send_due if channels(settings.notify) else None,
        explain=job_explainer(settings, cluster=cluster) if on_jobs else None,
    )


def job_explainer(settings: Settings, *, cluster: str | None) -> Explain:
    """Return a function that explains jobs beside the cycles.

    It has a cluster and a predictor of its own, since those of the cycles serve one thread. What it has learned is
    kept, and only what is new is read again.
    """
    operations = Operations(settings, cluster=cluster)

    def explain_job(job_id: str, wanted: str | None) -> JobAnswer:
        from helios.app.explain import explain  # noqa: PLC0415 - a daemon that nobody asks needs none of it

        cycles = operations.cycles
        if wanted not in {None, cycles.site.name}:
            raise HeliosError(f"it acts on cluster {cycles.site.name}, not on {wanted}")
        found = explain(cycles, job_id)
        return JobAnswer(values=found.to_json(), lines=tuple(found.lines()))

    return explain_job


class Operations:
    """Tasks on one configuration and one live cluster.

    The cluster is opened when it is first needed, and again after that failed. Tasks may run at the same time in
    several threads, but cycles and releases may not.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        cluster: str | None = None,
        open_cluster: Callable[[Settings], LiveCluster] = open_live_cluster,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.settings, self._cluster, self._open_cluster, self._clock = settings, cluster, open_cluster, clock
        self._site: LiveCluster | None = None
        self._cycles: JobController | None = None
        self._node_cycles: NodeController | None = None
        self._lock = RLock()

    @property
    def site(self) -> LiveCluster:
        """The live cluster, opened on first use.

        Raises
        ------
        ClusterUnavailable, ConfigurationInvalid
            It cannot be reached, or is another than the one named.
        """
        with self._lock:
            if self._site is None:
                site = self._open_cluster(self.settings)
                if self._cluster not in {None, site.name}:
                    site.close()
                    raise ConfigurationInvalid(
                        f"The cluster that Slurm's commands reach here is {site.name!r}, not {self._cluster!r}.",
                        hint="Point SLURM_CONF at the right one, or leave its name out: --cluster, of the page also "
                        "database.cluster.",
                    )
                self._site = site
            return self._site

    @property
    def cycles(self) -> JobController:
        """The controller of jobs on this cluster, created on first use.

        Raises as :attr:`site`, and where a service's options are wrong.
        """
        with self._lock:
            if self._cycles is None:
                self._cycles = JobController(self.site, self.settings, clock=self._clock)
            return self._cycles

    @property
    def node_cycles(self) -> NodeController:
        """The controller of nodes on this cluster, created on first use.

        Raises as :attr:`cycles`.
        """
        with self._lock:
            if self._node_cycles is None:
                self._node_cycles = NodeController(self.site, self.settings, clock=self._clock)
            return self._node_cycles

    @property
    def state_folder(self) -> Path:
        """Folder of the pause file and the hook's table."""
        return Path(self.settings.control.state_folder)

    def read_again(self, since: datetime, *, progress: Progress = no_progress) -> SyncResult:
        """Read the cluster's history since a moment anew, and overwrite what is stored.

        Raises
        ------
        UsageError
            The moment is in the future.
        HeliosError
            Another process is reading the accounting, or the state folder cannot be written.
        """
        if since >= self._clock():
            raise UsageError(f"{since:%Y-%m-%d %H:%M} UTC has not come yet.", hint="Name a moment of the past.")
        with hold_lock(self.state_folder / SYNC_LOCK) as other:
            if other is not None:
                raise HeliosError(
                    f"Another process{other} is reading the accounting just now.",
                    hint="Try again when it has ended. The daemon reads for some seconds every few minutes.",
                )
            return self._read(start=since, overlap=timedelta(0), again=True, progress=progress)

    def read(self, *, again: timedelta = timedelta(0), progress: Progress = no_progress) -> SyncResult:
        """Read the missing parts of the cluster's history.

        Parameters
        ----------
        again : timedelta
            Time before the watermark from which to read again, to find late records.
        """
        history = self.settings.history
        overlap = max(timedelta(seconds=history.overlap_s), again)
        with ExitStack() as stack:
            with suppress(HeliosError):  # without the lock it is harmless, too
                stack.enter_context(hold_lock(self.state_folder / SYNC_LOCK))
            return self._read(start=_start(history.start), overlap=overlap, again=False, progress=progress)

    def _read(self, *, start: datetime | None, overlap: timedelta, again: bool, progress: Progress) -> SyncResult:
        site = self.cycles.site
        return sync_history(
            site.accounting,
            url=self.settings.database.url,
            cluster=site.name,
            now=self._clock(),
            start=start,
            window=timedelta(seconds=self.settings.history.window_s),
            overlap=overlap,
            again=again,
            job_use=tuple(self.settings.history.job_use.replace(",", " ").split()),
            progress=progress,
        )

    def cycle(self) -> CycleSummary:
        """Run one cycle on jobs in the modes that were set."""
        return self.cycles.summary()

    def node_cycle(self) -> NodeCycleSummary:
        """Run one cycle on nodes in the modes that were set."""
        return self.node_cycles.summary()

    def publish_hook(self) -> str:
        """Publish the hook's table, or remove it where it must not exist.

        Returns what was done, empty for nothing. While cycles are suspended or Helios is paused there is no table,
        because Helios treats a new job as a pending one. For the same reason a suspended service adds no rows.

        Raises
        ------
        HookTableInvalid
            The table cannot be written.
        ClusterUnavailable
            The cluster cannot be read, which is needed before the first cycle.
        """
        table = self.state_folder / TABLE
        cycles, now = self.cycles, self._clock()
        suspended = cycles.remembered().suspended
        settles = bool(suspended) and all(reason.endswith(SETTLES) for reason in suspended)
        if self.settings.hook.publish and settles and not cycles.pause():
            return ""  # for one cycle the table stays, and is not replaced
        is_suspended = cycles.pause() or suspended
        if not self.settings.hook.publish or is_suspended:
            if retract(table):
                return "the hook's table was removed"
            has_no_table = not is_suspended and hook_orders_new_jobs(self._services_for_hook(now))
            return f"{UNPUBLISHED}: new jobs have no place until the next cycle" if has_no_table else ""
        if not cycles.predictions.of_cluster:  # no cycle has run in this process
            cycles.predictions(cycles.site.cluster.snapshot())
        rows, notes = hook_rows(
            cycles.predictions.knowledge,
            self._services_for_hook(now),
            cluster=cycles.site.name,
            now=now,
            most_rows=self.settings.hook.most_rows,
            site_factor=cycles.site.site_factor,
            time_min=cycles.site.time_min,
            of_cluster=cycles.predictions.of_cluster,
        )
        if cycles.pause():  # Helios was paused while the rows were computed
            return "the hook's table was removed" if retract(table) else ""
        lifetime = timedelta(seconds=self.settings.hook.lasts_s)
        publish(table, render(rows, generation=int(now.timestamp() * 1000), now=now, lasts=lifetime))
        return "; ".join([f"hook table of {len(rows):,} rows at {table}", *notes])

    def _services_for_hook(self, now: datetime) -> list[tuple[Service, ServiceMode]]:
        modes, suspension = self.cycles.modes(), self.cycles.remembered().suspension
        failures = self.settings.control.failures_to_suspend
        return [
            (service, modes[name])
            for name, service in self.cycles.services.items()
            if not suspension.why_not(name, now=now, failures=failures)
        ]

    def night(self, *, progress: Progress = no_progress) -> NightlyRun:
        """Run the nightly tasks once."""
        cycles = self.cycles
        from helios.app.nightly import run_nightly  # noqa: PLC0415 - drawing takes a second to import

        return run_nightly(
            settings=self.settings,
            cluster=cycles.site.name,
            now=self._clock(),
            read=lambda again: self.read(again=again, progress=progress),
            read_snapshot=cycles.site.cluster.snapshot,
            rules=cycles.site.rules,
            progress=progress,
        )

    def nightly_levels(self) -> Mapping[str, float]:
        """Return values of the last nightly report and of now, by name."""
        name = self.cycles.site.name
        with Warehouse.open(self.settings.database.url) as warehouse:
            text = warehouse.remembered(name, NIGHTLY_LEVELS)
        levels = dict(json.loads(text)) if text else {}
        for place in WING_LEVELS:
            levels |= resolve_name(place)(self.settings, name, self._clock())
        return levels

    def release(self, why: str, *, hidden: bool = False) -> CycleReport:
        """Revert all changes to jobs, and remove the hook's table.

        No service is built for this, so that wrong options or an uninstalled service do not prevent it.

        Parameters
        ----------
        hidden : bool
            As in ``Revert``.

        Raises
        ------
        HookTableInvalid
            The table cannot be removed. The message also has the result for the jobs, which were reverted.
        """
        settings = self.settings.model_copy(update={"services": {}})
        try:
            retract(self.state_folder / TABLE)
        except HookTableInvalid as problem:
            report = JobController(self.site, settings, clock=self._clock).release(why, hidden=hidden)
            try:
                released = summarise_release(report)
            except HeliosError as left:
                released = left.message
            raise HookTableInvalid(f"{problem.message}; but of the jobs: {released}", hint=problem.hint) from problem
        return JobController(self.site, settings, clock=self._clock).release(why, hidden=hidden)

    def release_nodes(self, why: str) -> NodeCycleReport:
        """Wake Helios' sleeping nodes and restore weights and the keep-awake list."""
        settings = self.settings.model_copy(update={"services": {}})
        return NodeController(self.site, settings, clock=self._clock).release(why)

    def revert_everything(self, why: str, *, hidden: bool = False) -> tuple[CycleReport, NodeCycleReport | None, str]:
        """Revert everything on jobs and nodes.

        Returns the reports on jobs and on nodes, and a line about both. The report on nodes is None where Helios cannot
        have changed any. Values of strangers, which are left, are in the report on jobs and in the line.

        Raises
        ------
        HeliosError
            Something of Helios is left, or the cluster could not be read. Both domains were tried.
        """
        problems: list[HeliosError] = []
        jobs, nodes, done = None, None, []
        try:
            jobs = self.release(why, hidden=hidden)
            done.append(summarise_release(jobs))
        except StrangersLeft as left:
            done.append(left.message)
        except HeliosError as problem:
            problems.append(problem)
        try:
            if Domain.NODES in configured_domains(self.settings) or _may_have_changed_nodes(self.settings):
                nodes = self.release_nodes(why)
                done.append(summarise_node_release(nodes))
        except HeliosError as problem:
            problems.append(problem)
        if problems or jobs is None:
            raise HeliosError("; ".join([problem.message for problem in problems] + done), hint=problems[0].hint)
        return jobs, nodes, "; ".join(done)

    def release_on_stop(self, why: str, *, domains: Collection[Domain] = (Domain.JOBS,)) -> str:
        """Revert everything that this Helios set in ``domains``, when the daemon stops.

        Where another Helios holds the lease of a domain, nothing is reverted in it.

        Raises
        ------
        StrangersLeft
            Nothing of Helios is left, but values of strangers that look like it. All domains were tried.
        HeliosError
            Something of Helios is left, or the cluster could not be read. All domains were tried.
        """
        done: list[str] = []
        problems: list[HeliosError] = []
        for domain in sorted(domains):
            try:
                done.append(self._release(domain, why))
            except HeliosError as problem:
                problems.append(problem)
        if problems:
            facts = "; ".join([problem.message for problem in problems] + done)
            is_clean = all(isinstance(problem, StrangersLeft) for problem in problems)
            raise (StrangersLeft if is_clean else HeliosError)(facts, hint=problems[0].hint)
        return "; ".join(done)

    def _release(self, domain: Domain, why: str) -> str:
        if holder := other_leader(self.settings, self.site.name, now=self._clock(), domain=domain):
            return f"nothing of {domain} was reverted: what stands is another Helios' ({holder})"
        if domain is Domain.JOBS:
            return summarise_release(self.release(why))
        if not self.settings.power.wake_on_stop:
            stays = "what sleeps stays asleep, weights and the keep-awake list stay as they are"
            return f"{stays} (power.wake_on_stop is false); Slurm wakes nodes for jobs"
        return summarise_node_release(self.release_nodes(why))


def _may_have_changed_nodes(settings: Settings) -> bool:
    """Return whether Helios has recorded changes of nodes on this machine."""
    return os.path.lexists(Path(settings.control.state_folder) / UNDO_FILE)


def summarise_release(report: CycleReport) -> str:
    """Return the result of a release of jobs in one line.

    Raises
    ------
    StrangersLeft
        Nothing of Helios is left, but values of strangers that look like it.
    HeliosError
        Something of Helios is left, or the cluster could not be read.
    """
    if not report.clean:
        left = "unknown: the cluster could not be read" if report.remaining is None else ", ".join(report.remaining)
        raise HeliosError(
            f"Not everything could be reverted; left: {left}. {' '.join(report.notes)}",
            hint="Where nothing is hidden or unproved: run deploy/slurm/helios-release.sh as a Slurm "
            "administrator; it needs neither Python nor the database.",
        )
    if report.strangers:
        # What another Helios set is recorded in the database alone: without it nobody is known to be a stranger.
        kind = StrangersLeft if report.recorded else HeliosError
        raise kind("; ".join([f"{report.acted} jobs set back", *report.notes]), hint=OF_STRANGERS)
    return "; ".join([f"{report.acted} jobs set back, looked again, nothing is left", *report.notes[1:]])


def summarise_node_release(report: NodeCycleReport) -> str:
    """Return the result of a release of nodes in one line.

    Raises
    ------
    HeliosError
        Something is left, or the cluster could not be read.
    """
    if not report.clean:
        left = "unknown" if report.remaining is None else ", ".join(report.remaining)
        raise HeliosError(
            f"Not all nodes could be set back yet; left: {left}. {' '.join(report.notes)}",
            hint="A node that falls asleep can be woken only then. While Helios is paused its daemon goes on; "
            "without one: helios pause again, or deploy/slurm/helios-release.sh --nodes-only as an administrator.",
        )
    weights = f", {len(report.weighed)} given back their weight" if report.weighed else ""
    return "; ".join([f"{len(report.woken)} nodes woken{weights}, looked again, nothing is left", *report.notes[1:]])


def _start(text: str) -> datetime | None:
    if not text:
        return None
    try:
        return parse_date(text, now=datetime.now(UTC), timezone="UTC")
    except UsageError as reason:
        raise ConfigurationInvalid(f"history.start: {reason.message}", hint=reason.hint) from reason
