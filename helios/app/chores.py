"""The daemon's chores, and the same once by hand: each use case bound to one configuration and one live cluster."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import RLock

from helios.app.clockwork import Chores, TurnSummary
from helios.app.hook_table import hook_rows
from helios.app.live import open_site
from helios.app.nightly import Night, night
from helios.app.reading import Reading, read_history
from helios.app.site import Site
from helios.app.staff import services_of
from helios.app.turns import Turns, another_leads
from helios.config import Configuration, Settings
from helios.control import ServiceMode, TurnReport
from helios.errors import ConfigurationInvalid, HeliosError, HookTableInvalid
from helios.ports import Progress, Service, in_silence
from helios.slurm.hook import TABLE, publish, render, retract


def chores(configuration: Configuration, *, cluster: str | None = None) -> Chores:
    """Return the chores of the live cluster that this machine reaches; nothing is touched before one is called.

    Parameters
    ----------
    cluster : str, optional
        Refuse any other cluster than this one.

    Raises
    ------
    ServiceUnknown, ServiceInvalid
        A service of the configuration cannot be had as it is asked for.
    """
    services_of(configuration.settings)  # a mistake in a service's options is told at the start, not every turn
    desk = Desk(configuration.settings, cluster=cluster)
    return Chores(
        ingest=lambda: desk.read().line(),
        turn=desk.turn,
        hook=desk.publish_hook,
        nightly=lambda: desk.night().line(),
        release=desk.release_at_the_end,
    )


class Desk:
    """One configuration and one live cluster, which is opened when it is first needed, and again when that failed.

    Chores may run beside each other in several threads; turns and releases do not.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        cluster: str | None = None,
        opens: Callable[[Settings], Site] = open_site,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.settings, self._cluster, self._opens, self._clock = settings, cluster, opens, clock
        self._site: Site | None = None
        self._turns: Turns | None = None
        self._lock = RLock()

    @property
    def site(self) -> Site:
        """The cluster.

        Raises
        ------
        ClusterUnavailable, ConfigurationInvalid
            It cannot be reached, or is another than the one named.
        """
        with self._lock:
            if self._site is None:
                site = self._opens(self.settings)
                if self._cluster not in {None, site.name}:
                    site.close()
                    raise ConfigurationInvalid(
                        f"The cluster that Slurm's commands reach here is {site.name!r}, not {self._cluster!r}.",
                        remedy="Point SLURM_CONF at the right one, or leave --cluster out.",
                    )
                self._site = site
            return self._site

    @property
    def turns(self) -> Turns:
        """The cluster with everything around it; raises as :attr:`site`, and where a service's options are wrong."""
        with self._lock:
            if self._turns is None:
                self._turns = Turns(self.site, self.settings, clock=self._clock)
            return self._turns

    @property
    def state_folder(self) -> Path:
        """Where the pause file and the hook's table lie."""
        return Path(self.settings.control.state_folder)

    def read(self, *, again: timedelta = timedelta(0), progress: Progress = in_silence) -> Reading:
        """Read what is missing of the cluster's history; ``again``: and so much before the watermark once more."""
        history = self.settings.history
        site = self.turns.site
        return read_history(
            site.accounting,
            url=self.settings.database.url,
            cluster=site.name,
            now=self._clock(),
            start=_start(history.start),
            window=timedelta(seconds=history.window_s),
            overlap=max(timedelta(seconds=history.overlap_s), again),
            progress=progress,
        )

    def turn(self) -> TurnSummary:
        """Take one turn in the modes that were set."""
        return self.turns.summary()

    def publish_hook(self) -> str:
        """Publish the hook's table, or remove it where it must not be; return what was done, empty: nothing.

        While turns are still, for whatever reason, or Helios is paused, there is no table: what Helios does not do to a
        pending job it must not do to a new one. Nor does a service that sits out reach it.

        Raises
        ------
        HookTableInvalid
            The table cannot be written.
        """
        table = self.state_folder / TABLE
        turns, now = self.turns, self._clock()
        if not self.settings.hook.publish or turns.pause() or turns.remembered().still:
            return "the hook's table was removed" if retract(table) else ""
        rows, notes = hook_rows(
            turns.outlook.knowledge,
            self._who_may_reach_the_hook(now),
            cluster=turns.site.name,
            now=now,
            most_rows=self.settings.hook.most_rows,
            site_factor=turns.site.site_factor,
            time_min=turns.site.time_min,
        )
        if turns.pause():  # it came while the rows were made
            return "the hook's table was removed" if retract(table) else ""
        lasts = timedelta(seconds=self.settings.hook.lasts_s)
        publish(table, render(rows, generation=int(now.timestamp() * 1000), now=now, lasts=lasts))
        return "; ".join([f"hook table of {len(rows):,} rows at {table}", *notes])

    def _who_may_reach_the_hook(self, now: datetime) -> list[tuple[Service, ServiceMode]]:
        modes, bench = self.turns.modes(), self.turns.remembered().bench
        failures = self.settings.control.raises_to_bench
        return [
            (service, modes[name])
            for name, service in self.turns.services.items()
            if not bench.why_not(name, now=now, failures=failures)
        ]

    def night(self, *, progress: Progress = in_silence) -> Night:
        """Do the nightly analysis once."""
        turns = self.turns
        return night(
            settings=self.settings,
            cluster=turns.site.name,
            now=self._clock(),
            read=lambda again: self.read(again=again, progress=progress),
            look=turns.site.cluster.snapshot,
            progress=progress,
        )

    def release(self, why: str) -> TurnReport:
        """Take back everything, the hook's table too; no service need be there, or have options that can be used.

        Raises
        ------
        HookTableInvalid
            The table cannot be removed. The jobs were taken back all the same, as far as the error says.
        """
        bare = self.settings.model_copy(update={"services": {}})
        try:
            retract(self.state_folder / TABLE)
        except HookTableInvalid as trouble:
            told = released(Turns(self.site, bare, clock=self._clock).release(why))
            raise HookTableInvalid(f"{trouble.fact}; but of the jobs: {told}", remedy=trouble.remedy) from trouble
        return Turns(self.site, bare, clock=self._clock).release(why)

    def release_at_the_end(self, why: str) -> str:
        """Take back everything that this Helios set: nothing, while another one writes to the cluster."""
        if holder := another_leads(self.settings, self.site.name, now=self._clock()):
            return f"nothing was taken back: what stands is another Helios' ({holder})"
        return released(self.release(why))


def released(report: TurnReport) -> str:
    """Return what a release did in one line.

    Raises
    ------
    HeliosError
        Something is left, or nobody could look.
    """
    if not report.clean:
        left = (
            "unknown: the cluster could not be looked at" if report.remaining is None else ", ".join(report.remaining)
        )
        raise HeliosError(
            f"Not everything could be taken back; left: {left}. {' '.join(report.notes)}",
            remedy="Run deploy/slurm/helios-release.sh as a Slurm operator; it needs neither Python nor the database.",
        )
    return "; ".join([f"{report.acted} jobs set back, looked again, nothing is left", *report.notes[1:]])


def _start(text: str) -> datetime | None:
    if not text:
        return None
    try:
        start = datetime.fromisoformat(text)
    except ValueError as reason:
        raise ConfigurationInvalid(
            f"history.start is {text!r}, which is no date.", remedy="Write it as 2026-09-01."
        ) from reason
    return start if start.tzinfo else start.replace(tzinfo=UTC)
