"""Preflight checks of a cluster, the configuration and Helios' own state."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from pkgutil import resolve_name

from helios.app.clusters import history_alone
from helios.app.controller_state import CycleUnderWay, hold_cycle_lock, lease_holder
from helios.app.controllers import JOBS_MEMORY, NODES_MEMORY
from helios.app.energy.tariff import tariff_from
from helios.app.history import misread_rows
from helios.app.hook import UNPUBLISHED, hook_orders_new_jobs
from helios.app.live_cluster import preflight
from helios.app.model_drift import DRIFTED
from helios.app.modes import current_modes, is_paused
from helios.app.notify import channels, check_notify, try_servers
from helios.app.services import configured_services
from helios.app.status import (
    FAIL,
    OK,
    WARN,
    check_daemon,
    check_history,
    check_model,
    check_modes,
    check_pause,
    make_finding,
    only_name,
    run_check,
    status,
)
from helios.choices import Domain
from helios.config import Settings, without_password
from helios.control import BreakerState, ControllerState, NodeControllerState
from helios.errors import HeliosError, HookTableInvalid, NoSuchCluster
from helios.private_files import is_wide
from helios.slurm.hook_table import TABLE, read_table, why_unsafe
from helios.slurm.preflight import HOOK, FindingLevel, PreflightFinding
from helios.units import count_in_words
from helios.warehouse import Warehouse, check_folder, sqlite_file

CHECKED_DAYS = 2
"""Days whose kept sums are compared with their jobs: a day of a large cluster takes a tenth of a second."""
WING_CHECKS = ("helios.job_use.checks:check_prometheus",)
"""More checks, in the wings, given settings, cluster and time."""


def diagnose(settings: Settings, *, cluster: str | None, now: datetime) -> list[PreflightFinding]:
    """Run every check and return the findings, those of the cluster first.

    No check changes anything.

    Parameters
    ----------
    cluster : str, optional
        Name to use where the cluster cannot say its own. None for the only one of the warehouse.
    """
    found = preflight(settings)
    answers = (it.message.split() for it in found if it.check == "controller" and "answers" in it.message)
    name = cluster or next((words[1] for words in answers), None) or only_name(settings)
    checks: tuple[Callable[[], Iterator[PreflightFinding]], ...] = (
        lambda: _services(settings),
        lambda: _state_folder(settings),
        lambda: _open_files(settings),
        lambda: _warehouse(settings),
        lambda: check_history(settings, name, now),
        lambda: _old_rows(settings, name),
        lambda: _sums(settings, name),
        lambda: check_model(settings, name, now),
        lambda: check_modes(settings, name),
        lambda: check_daemon(settings, now),
        lambda: _intervals(settings),
        lambda: _lease(settings, name, now),
        lambda: _breaker(settings, name, now),
        lambda: _nodes(settings, name),
        lambda: check_pause(settings, name),
        lambda: _hook(settings, name, now),
        lambda: _notices(settings),
        *(partial(lambda place: resolve_name(place)(settings, name, now), place) for place in WING_CHECKS),
    )
    if _has_ordering_service(settings, name):  # then nothing of the hook is only a warning
        found = [
            replace(finding, verdict=FAIL) if finding.check == HOOK and finding.verdict is WARN else finding
            for finding in found
        ]
    found += [finding for check in checks for finding in run_check(check)]
    return [*dict.fromkeys(found)]  # what several checks fail at is said once


def known_problems(settings: Settings, name: str, *, now: datetime) -> list[PreflightFinding]:
    """Return what needs a person, without a question to the cluster.

    The worst come first. Of a history without a live Slurm it is what ``helios status`` says of it.
    """
    checks: tuple[Callable[[], Iterator[PreflightFinding]], ...] = (
        lambda: _breaker(settings, name, now),
        lambda: _nodes(settings, name),
        lambda: _drift(settings, name),
        lambda: _intervals(settings),
        lambda: _open_files(settings),
    )
    found = status(settings, cluster=name, now=now)
    if not history_alone(settings, name, now=now):
        found += [finding for check in checks for finding in run_check(check)]
    return sorted((it for it in found if it.verdict is not OK), key=lambda it: it.verdict is not FAIL)


def hook_not_installed(settings: Settings, name: str) -> list[PreflightFinding]:
    """Return why the priority hook does not order new jobs.

    Without the hook new jobs get their place in the next cycle only. The list is empty where no service orders jobs.
    """
    if not _has_ordering_service(settings, name):
        return []
    unpublished = [] if settings.hook.publish else [_not_published(FAIL)]
    found = [*(it for it in preflight(settings) if it.check == HOOK), *unpublished]
    return [finding for finding in found if finding.verdict is not OK]


def _has_ordering_service(settings: Settings, name: str) -> bool:
    """Return whether an active service orders jobs that the hook could place.

    False while Helios is paused, and where this cannot be known.
    """
    try:
        services = configured_services(settings, domain=Domain.JOBS)
        if not name or is_paused(settings.database.url, name, Path(settings.control.state_folder)):
            return False
        modes = current_modes(settings.database.url, name, services)
        return hook_orders_new_jobs((services[service], mode) for service, mode in modes.items())
    except HeliosError:
        return False  # another check says why it is not known


def check_settings(settings: Settings) -> list[HeliosError]:
    """Return the problems of configured folders, files and services.

    Nothing is opened for writing, and no cluster is asked.
    """
    checks: tuple[Callable[[], object], ...] = (
        lambda: check_folder(settings.database.url),
        lambda: configured_services(settings),
        lambda: tariff_from(settings.energy),
    )
    found = []
    for check in checks:
        try:
            check()
        except HeliosError as reason:
            found.append(reason)
    return [*found, *check_notify(settings.notify)]


def _services(settings: Settings) -> Iterator[PreflightFinding]:
    names = ", ".join(configured_services(settings))
    version = ".".join(map(str, sys.version_info[:3]))
    yield make_finding("services", OK, f"configured: {names or 'none'} (Python {version})")


def _state_folder(settings: Settings) -> Iterator[PreflightFinding]:
    folder = Path(settings.control.state_folder)
    try:
        with hold_cycle_lock(folder):
            pass
    except CycleUnderWay:
        pass
    except HeliosError as reason:
        yield make_finding("state folder", FAIL, reason.message, reason.hint)
        return
    yield make_finding("state folder", OK, f"{folder} can be written")


def _open_files(settings: Settings) -> Iterator[PreflightFinding]:
    """Report files of Helios that other accounts can read or write.

    They name users and their jobs.
    """
    state, reports = Path(settings.control.state_folder), Path(settings.report.folder)
    files = [path for folder in (state, state / TABLE.parent, reports) for path in (folder, *_files_in(folder))]
    if (database := sqlite_file(settings.database.url)) is not None:
        files += [database, *(database.with_name(f"{database.name}-{end}") for end in ("wal", "shm"))]
    if wide := [str(path) for path in files if is_wide(path)]:
        message = f"other accounts can read or write {', '.join(wide[:5])}" + (" and more" if len(wide) > 5 else "")
        yield make_finding("permissions", WARN, message, f"chmod g-w,o-rwx {' '.join(wide)}")
    else:
        yield make_finding("permissions", OK, "no other account can read what Helios keeps")


def _notices(settings: Settings) -> Iterator[PreflightFinding]:
    """Report whether mail and webhook servers can be reached."""
    names = ", ".join(channels(settings.notify))
    problems = [*check_notify(settings.notify)] or [*try_servers(settings.notify)]
    for problem in problems:
        yield make_finding("notices", FAIL, problem.message, problem.hint)
    if not problems:
        yield make_finding(
            "notices", OK, f"by {names}" if names else "nobody is told anything: notify.mail_to is empty"
        )


def _files_in(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_file())
    except OSError:
        return []


def _warehouse(settings: Settings) -> Iterator[PreflightFinding]:
    shown = without_password(settings.database.url)
    try:
        with Warehouse.open(settings.database.url) as warehouse:
            warehouse.try_to_write()
            yield make_finding("warehouse", OK, f"{shown} can be written, schema {warehouse.revision()}")
    except HeliosError as reason:
        yield make_finding("warehouse", FAIL, f"{shown}: {reason.message}", reason.hint)


def _old_rows(settings: Settings, name: str) -> Iterator[PreflightFinding]:
    with Warehouse.open(settings.database.url) as warehouse:
        try:
            messages, hint = misread_rows(warehouse, name)
        except NoSuchCluster:
            return
    if messages:
        yield make_finding("old rows", WARN, f"read wrongly by an older Helios: {'; '.join(messages)}", hint)


def _sums(settings: Settings, name: str) -> Iterator[PreflightFinding]:
    """Report whether the kept sums of random days are those of their jobs."""
    with Warehouse.open(settings.database.url) as warehouse:
        try:
            looked_at, wrong = warehouse.wrong_days(name, days=CHECKED_DAYS)
        except NoSuchCluster:
            return
    if wrong:
        days = ", ".join(f"{day:%Y-%m-%d %H:%M}" for day in wrong)
        message = f"kept sums of the days from {days} UTC are not those of their jobs: reports of use are wrong"
        yield make_finding("sums", FAIL, message, "Make them anew: helios db upgrade --sums")
    elif looked_at:
        yield make_finding(
            "sums", OK, f"those of {count_in_words(len(looked_at), 'random day')} are those of their jobs"
        )


def _intervals(settings: Settings) -> Iterator[PreflightFinding]:
    """Report intervals that are too short for the daemon's own cycle.

    With such settings a lease, a history or a hook table expires between two renewals although nothing fails.
    """
    control, daemon, hook = settings.control, settings.daemon, settings.hook
    wrong = {
        "control.lease_s is not longer than daemon.cycle_s: a standby takes over": control.lease_s <= daemon.cycle_s,
        "control.oldest_history_s is not longer than daemon.ingest_s": control.oldest_history_s <= daemon.ingest_s,
        "hook.lasts_s is not longer than daemon.ingest_s": hook.publish and hook.lasts_s <= daemon.ingest_s,
    }
    for message in (message for message, is_wrong in wrong.items() if is_wrong):
        yield make_finding(
            "rhythm", WARN, message, "Make it several times as long: else it runs out between two of them."
        )


def _lease(settings: Settings, name: str, now: datetime) -> Iterator[PreflightFinding]:
    with Warehouse.open(settings.database.url) as warehouse:
        try:
            lease, time_there = warehouse.lease(name), warehouse.time_of_leases(now)
        except NoSuchCluster:
            lease = None
    if lease is None or lease["holder"] is None:
        yield make_finding("lease", OK, "no Helios holds it, so none writes to this cluster")
        return
    until = datetime.fromtimestamp(lease["expires_at"] / 1e6, UTC)
    whose = "this Helios" if lease["holder"] == lease_holder(settings) else f"another Helios ({lease['holder']})"
    left_s = (until - time_there).total_seconds()  # by the clock that leases run by, which need not be this machine's
    state = f"holds the lease for another {left_s:.0f} s" if left_s > 0 else f"held the lease {-left_s:.0f} s ago"
    yield make_finding("lease", OK, f"{whose} {state}")


def _recall(settings: Settings, name: str, key: str) -> str | None:
    with Warehouse.open(settings.database.url) as warehouse:
        try:
            return warehouse.remembered(name, key)
        except NoSuchCluster:
            return None


def _breaker(settings: Settings, name: str, now: datetime) -> Iterator[PreflightFinding]:
    text = _recall(settings, name, JOBS_MEMORY)
    breaker = (ControllerState.from_json(text) if text else ControllerState()).breaker
    state = breaker.state(now=now, settings=settings.control)
    if state is BreakerState.CLOSED:
        yield make_finding("breaker", OK, state.value)
    else:
        message = f"{state.value} after {breaker.bad_in_row} bad cycles in a row"
        yield make_finding("breaker", WARN, message, "See what failed: helios report decisions")


def _nodes(settings: Settings, name: str) -> Iterator[PreflightFinding]:
    """Report nodes that need a person.

    Nothing is reported where no service acts on nodes.
    """
    if not configured_services(settings, domain=Domain.NODES):
        return
    text = _recall(settings, name, NODES_MEMORY)
    memory = NodeControllerState.from_json(text) if text else NodeControllerState()
    level, message = OK, "none is quarantined"
    if memory.protected:
        level, message = FAIL, memory.protected
    elif memory.quarantined:
        level, message = WARN, f"quarantined, as they failed to wake: {', '.join(sorted(memory.quarantined))}"
    yield make_finding("nodes", level, message, "Repair the nodes, then: helios power --clear all")


def _drift(settings: Settings, name: str) -> Iterator[PreflightFinding]:
    """Report whether jobs have drifted from those that the model learned from."""
    if line := _recall(settings, name, DRIFTED):
        yield make_finding("drift", WARN, line, "See what: helios model drift")


def _hook(settings: Settings, name: str, now: datetime) -> Iterator[PreflightFinding]:
    """Report whether the hook has a table that slurmctld may open.

    Without one, new jobs stay behind jobs that Helios has ordered until the next cycle.
    """
    orders, path = _has_ordering_service(settings, name), Path(settings.control.state_folder) / TABLE
    if why := why_unsafe(path):
        folders = f"{path.parent.parent} {path.parent}"  # PAUSED lies in either
        hint = f"See who put what there (ls -la {folders}), remove it, and close the folder: docs/priority-hook.md"
        yield make_finding("hook", FAIL, why, hint)
        return
    if not settings.hook.publish:
        yield _not_published(FAIL if orders else OK)
        return
    try:
        table = read_table(path, now)
    except HookTableInvalid as reason:
        yield make_finding("hook", FAIL if orders else WARN, reason.message, reason.hint or "helios hook --publish")
        return
    message = f"a table of {len(table.rows):,} rows, good until {table.expires_at:%Y-%m-%d %H:%M} UTC"
    hint = "No kind of job of the last 60 days is in it. Is the history read? helios trace sync"
    yield make_finding("hook", FAIL if orders and not table.rows else OK, message, hint)


def _not_published(level: FindingLevel) -> PreflightFinding:
    return make_finding(
        "hook", level, UNPUBLISHED, "Set publish = true in the section [hook] of helios.toml: docs/priority-hook.md"
    )
