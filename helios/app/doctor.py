"""Preflight checks of a cluster, the configuration and Helios' own state."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from helios.app.controller_state import CycleUnderWay, hold_cycle_lock, lease_holder
from helios.app.history import choose_cluster
from helios.app.hook import UNPUBLISHED, hook_orders_new_jobs
from helios.app.job_controller import MEMORY
from helios.app.live_cluster import configured_services, preflight
from helios.app.modes import is_paused, modes_in_force
from helios.app.node_controller import MEMORY as NODE_MEMORY
from helios.app.predictions import UNTRUSTED
from helios.app.sync import read_until
from helios.config import Settings
from helios.control import BreakerState, ControllerState, NodeControllerState
from helios.control.state import UNREADABLE
from helios.errors import HeliosError, HookTableInvalid, ModelUnreadable, NoSuchCluster, NotEnoughHistory
from helios.model import Mode, ModelRecord
from helios.ports import Domain
from helios.private_files import is_wide
from helios.slurm.hook_table import TABLE, read_table
from helios.slurm.preflight import HOOK, Finding, FindingLevel
from helios.warehouse import Warehouse, sqlite_file

FEW_JOBS = 1_000
HEALTH_FILE = "health.json"
"""File in which the daemon reports its state. The name is repeated here: ``app`` cannot import ``daemon``."""
SILENT_S = 120.0
"""Age of the health file from which the daemon counts as silent, s; a live one writes it several times as often."""


def diagnose(settings: Settings, *, cluster: str | None, now: datetime) -> list[Finding]:
    """Run every check and return the findings, those of the cluster first.

    No check changes anything.

    Parameters
    ----------
    cluster : str, optional
        Name to use where the cluster cannot say its own; None: the only one of the warehouse.
    """
    found = preflight(settings)
    name = cluster or _name_in(found) or _only_name(settings)
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        lambda: _services(settings),
        lambda: _state_folder(settings),
        lambda: _closed(settings),
        lambda: _warehouse(settings),
        lambda: _history(settings, name, now),
        lambda: _model(settings, name, now),
        lambda: _modes(settings, name),
        lambda: _daemon(settings, now),
        lambda: _rhythm(settings),
        lambda: _lease(settings, name, now),
        lambda: _breaker(settings, name, now),
        lambda: _nodes(settings, name),
        lambda: _pause(settings, name),
        lambda: _hook(settings, name, now),
    )
    found = [_as_grave(finding) if finding.check == HOOK and _orders(settings, name) else finding for finding in found]
    return [*found, *(finding for check in checks for finding in _tried(check))]


def hook_not_installed(settings: Settings, name: str) -> list[Finding]:
    """Return why the priority hook does not order new jobs.

    Without the hook new jobs get their place in the next cycle only. The list is empty where no service orders jobs.
    """
    if not _orders(settings, name):
        return []
    unpublished = [] if settings.hook.publish else [_unpublished(FindingLevel.FAIL)]
    found = [*(it for it in preflight(settings) if it.check == HOOK), *unpublished]
    return [finding for finding in found if finding.verdict is not FindingLevel.OK]


def _as_grave(finding: Finding) -> Finding:
    return replace(finding, verdict=FindingLevel.FAIL) if finding.verdict is FindingLevel.WARN else finding


def _orders(settings: Settings, name: str) -> bool:
    """Return whether an active service orders jobs that the hook could place.

    False while Helios is paused, and where this cannot be known.
    """
    try:
        services = configured_services(settings, domain=Domain.JOBS)
        if not name or is_paused(settings.database.url, name, Path(settings.control.state_folder)):
            return False
        modes = modes_in_force(settings.database.url, name, services)
        return hook_orders_new_jobs((services[service], mode) for service, mode in modes.items())
    except HeliosError:
        return False  # another check says why it is not known


def _tried(check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    try:
        return list(check())
    except HeliosError as reason:
        return [Finding(check="helios", verdict=FindingLevel.FAIL, message=reason.message, hint=reason.hint)]


def _name_in(found: list[Finding]) -> str | None:
    """Return the cluster's name from the finding that its controller answers."""
    facts = [
        finding.message.split() for finding in found if finding.check == "controller" and "answers" in finding.message
    ]
    return facts[0][1] if facts else None


def _only_name(settings: Settings) -> str:
    """Return the name of the only cluster of the warehouse.

    Empty where there are several, or where the warehouse cannot be read.
    """
    try:
        with Warehouse.open(settings.database.url) as warehouse:
            return str(choose_cluster(warehouse, None)["name"])
    except HeliosError:
        return ""


def _services(settings: Settings) -> Iterator[Finding]:
    names = ", ".join(configured_services(settings))
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding(
        check="services", verdict=FindingLevel.OK, message=f"configured: {names or 'none'} (Python {version})"
    )


def _state_folder(settings: Settings) -> Iterator[Finding]:
    folder = Path(settings.control.state_folder)
    try:
        with hold_cycle_lock(folder):
            pass
    except HeliosError as reason:
        if not isinstance(reason, CycleUnderWay):
            yield Finding(check="state folder", verdict=FindingLevel.FAIL, message=reason.message, hint=reason.hint)
            return
    yield Finding(check="state folder", verdict=FindingLevel.OK, message=f"{folder} can be written")


def _closed(settings: Settings) -> Iterator[Finding]:
    """Report files of Helios that other accounts can read or write.

    They name users and their jobs.
    """
    state, reports = Path(settings.control.state_folder), Path(settings.report.folder)
    files = [path for folder in (state, state / TABLE.parent, reports) for path in (folder, *_files_in(folder))]
    if (database := sqlite_file(settings.database.url)) is not None:
        files += [database, *(database.with_name(f"{database.name}-{end}") for end in ("wal", "shm"))]
    if wide := [str(path) for path in files if is_wide(path)]:
        message = f"other accounts can read or write {', '.join(wide[:5])}" + (" and more" if len(wide) > 5 else "")
        hint = f"chmod g-w,o-rwx {' '.join(wide)}"
        yield Finding(check="permissions", verdict=FindingLevel.WARN, message=message, hint=hint)
    else:
        yield Finding(
            check="permissions", verdict=FindingLevel.OK, message="no other account can read what Helios keeps"
        )


def _files_in(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_file())
    except OSError:
        return []


def _warehouse(settings: Settings) -> Iterator[Finding]:
    with Warehouse.open(settings.database.url) as warehouse:
        warehouse.try_to_write()
        yield Finding(
            check="warehouse", verdict=FindingLevel.OK, message=f"can be written, schema {warehouse.revision()}"
        )


def _history(settings: Settings, name: str, now: datetime) -> Iterator[Finding]:
    with Warehouse.open(settings.database.url) as warehouse:
        try:
            read_at = read_until(warehouse, name)
            clusters = warehouse.clusters().set_index("name")
            jobs = int(clusters["jobs"].get(name, 0))
        except NoSuchCluster:
            read_at, jobs = None, 0
    if read_at is None:
        message = f"the accounting of {name or 'the cluster'} was never read"
        yield Finding(check="history", verdict=FindingLevel.FAIL, message=message, hint="Read it: helios trace sync")
        return
    old = now - read_at > timedelta(seconds=settings.control.oldest_history_s)
    few = jobs < FEW_JOBS
    yield Finding(
        check="history",
        verdict=FindingLevel.FAIL if old else FindingLevel.WARN if few else FindingLevel.OK,
        message=f"{jobs:,} jobs, known until {read_at:%Y-%m-%d %H:%M} UTC",
        hint="Nothing is written while it is so old. Run the daemon, or: helios trace sync"
        if old
        else "Predictions get better with months of history: set history.start to an earlier day."
        if few
        else "",
    )


def _model(settings: Settings, name: str, now: datetime) -> Iterator[Finding]:
    if not name:  # the history check says what to do
        yield Finding(check="model", verdict=FindingLevel.WARN, message="which cluster is meant is not known")
        return
    with Warehouse.open(settings.database.url) as warehouse:
        try:
            record = warehouse.model(name)
        except (NoSuchCluster, NotEnoughHistory) as reason:
            message = f"{reason.message} Predictions come from users' own history alone (shrinkage)"
            yield Finding(check="model", verdict=FindingLevel.WARN, message=message, hint=reason.hint)
            return
    if problem := _unreadable(record):
        yield Finding(check="model", verdict=FindingLevel.FAIL, message=problem, hint=f"{UNTRUSTED}.")
        return
    old = now - record.known_good_at > timedelta(seconds=settings.control.oldest_model_s)
    yield Finding(
        check="model",
        verdict=FindingLevel.FAIL if old else FindingLevel.OK,
        message=f"{record.model_id}, trained on {record.jobs:,} jobs at {record.trained_at:%Y-%m-%d %H:%M} UTC",
        hint="Nothing is written while it is so old: helios nightly" if old else "",
    )


def _unreadable(record: ModelRecord) -> str:
    """Return why a model cannot be read, empty if it can.

    A model of an older release is one that cannot.
    """
    from helios.predict.model_record import from_record  # noqa: PLC0415 - numba takes a while, and most of the rest needs none

    try:
        from_record(record)
    except ModelUnreadable as reason:
        return f"{reason.message.rstrip('.')}."
    return ""


def _modes(settings: Settings, name: str) -> Iterator[Finding]:
    modes = modes_in_force(settings.database.url, name, configured_services(settings)) if name else {}
    said = ", ".join(f"{service} {mode.mode.value}" for service, mode in modes.items()) or "not known"
    acts = any(mode.mode in {Mode.CANARY, Mode.ACTIVE} for mode in modes.values())
    message = said if acts else f"{said}: nothing on the cluster is changed"
    yield Finding(check="modes", verdict=FindingLevel.OK, message=message)


def _daemon(settings: Settings, now: datetime) -> Iterator[Finding]:
    """Report the daemon's last health file and why its last cycle was suspended."""
    try:
        told = json.loads((Path(settings.control.state_folder) / HEALTH_FILE).read_text(encoding="utf-8"))
        age_s = (now - datetime.fromisoformat(told["written_at"])).total_seconds()
        state, reasons = str(told["state"]), [*told["reasons"], *((told["cycle"] or {}).get("suspended") or ())]
        note = str(told.get("note") or "")
    except (OSError, *UNREADABLE):
        message, hint = "none has left word in the state folder", "Start it: systemctl start helios"
        yield Finding(check="daemon", verdict=FindingLevel.WARN, message=message, hint=hint)
        return
    silent = state != "stopped" and age_s > SILENT_S
    word = "stopped" if state == "stopped" else f"silent for {age_s:.0f} s" if silent else state
    well = word in {"at work", "standby"} and not note
    yield Finding(
        check="daemon",
        verdict=FindingLevel.OK if well else FindingLevel.WARN,
        message="; ".join([word, *([] if well else [*reasons, *filter(None, [note])])]),
        hint="" if well else "Read its log: journalctl -u helios",
    )


def _rhythm(settings: Settings) -> Iterator[Finding]:
    """Report intervals that are too short for the daemon's own cycle.

    With such settings a lease, a history or a hook table expires between two renewals although nothing fails.
    """
    control, daemon = settings.control, settings.daemon
    wrong = [
        (control.lease_s <= daemon.cycle_s, "control.lease_s is not longer than daemon.cycle_s: a standby takes over"),
        (control.oldest_history_s <= daemon.ingest_s, "control.oldest_history_s is not longer than daemon.ingest_s"),
        (
            settings.hook.publish and settings.hook.lasts_s <= daemon.ingest_s,
            "hook.lasts_s is not longer than ingest_s",
        ),
    ]
    for _, message in (pair for pair in wrong if pair[0]):
        hint = "Make it several times as long: else it runs out between two of them."
        yield Finding(check="rhythm", verdict=FindingLevel.WARN, message=message, hint=hint)


def _lease(settings: Settings, name: str, now: datetime) -> Iterator[Finding]:
    with Warehouse.open(settings.database.url) as warehouse:
        try:
            lease, time_there = warehouse.lease(name), warehouse.time_of_leases(now)
        except NoSuchCluster:
            lease = None
    if lease is None or lease["holder"] is None:
        yield Finding(check="lease", verdict=FindingLevel.OK, message="nobody writes to this cluster now")
        return
    until = datetime.fromtimestamp(lease["expires_at"] / 1e6, UTC)
    whose = "this Helios" if lease["holder"] == lease_holder(settings) else f"another Helios ({lease['holder']})"
    left_s = (until - time_there).total_seconds()  # by the clock that leases run by, which need not be this machine's
    state = f"holds the lease for another {left_s:.0f} s" if left_s > 0 else f"held the lease {-left_s:.0f} s ago"
    yield Finding(check="lease", verdict=FindingLevel.OK, message=f"{whose} {state}")


def _breaker(settings: Settings, name: str, now: datetime) -> Iterator[Finding]:
    with Warehouse.open(settings.database.url) as warehouse:
        try:
            text = warehouse.remembered(name, MEMORY)
        except NoSuchCluster:
            text = None
    memory = ControllerState.from_json(text) if text else ControllerState()
    state = memory.breaker.state(now=now, settings=settings.control)
    bad = state is not BreakerState.CLOSED
    yield Finding(
        check="breaker",
        verdict=FindingLevel.WARN if bad else FindingLevel.OK,
        message=f"{state.value}" + (f" after {memory.breaker.bad_in_row} bad cycles in a row" if bad else ""),
        hint="See what failed: helios report decisions" if bad else "",
    )


def _nodes(settings: Settings, name: str) -> Iterator[Finding]:
    """Report nodes that need a person.

    Nothing is reported where no service acts on nodes.
    """
    if not configured_services(settings, domain=Domain.NODES):
        return
    with Warehouse.open(settings.database.url) as warehouse:
        try:
            text = warehouse.remembered(name, NODE_MEMORY)
        except NoSuchCluster:
            text = None
    memory = NodeControllerState.from_json(text) if text else NodeControllerState()
    failed = ", ".join(sorted(memory.quarantined))
    message = memory.protected or (
        f"set apart, since they failed to wake: {failed}" if failed else "every node is trusted"
    )
    yield Finding(
        check="nodes",
        verdict=FindingLevel.FAIL if memory.protected else FindingLevel.WARN if failed else FindingLevel.OK,
        message=message,
        hint="Mend them, then: helios power clear" if memory.protected or failed else "",
    )


def _pause(settings: Settings, name: str) -> Iterator[Finding]:
    pause = is_paused(settings.database.url, name, Path(settings.control.state_folder))
    yield Finding(
        check="pause",
        verdict=FindingLevel.WARN if pause else FindingLevel.OK,
        message=f"paused {pause}" if pause else "Helios is not paused",
        hint="To go on: helios resume" if pause else "",
    )


def _hook(settings: Settings, name: str, now: datetime) -> Iterator[Finding]:
    """Report whether the hook has a table.

    Without one, new jobs stay behind jobs that Helios has ordered until the next cycle.
    """
    orders = _orders(settings, name)
    if not settings.hook.publish:
        yield _unpublished(FindingLevel.FAIL if orders else FindingLevel.OK)
        return
    bad = FindingLevel.FAIL if orders else FindingLevel.WARN
    try:
        table = read_table(Path(settings.control.state_folder) / TABLE, now)
    except HookTableInvalid as reason:
        yield Finding(check="hook", verdict=bad, message=reason.message, hint=reason.hint or "helios hook publish")
        return
    empty = orders and not table.rows
    message = f"a table of {len(table.rows):,} rows, good until {table.expires_at:%Y-%m-%d %H:%M} UTC"
    hint = "No kind of job of the last 60 days is in it. Is the history read? helios trace sync" if empty else ""
    yield Finding(check="hook", verdict=FindingLevel.FAIL if empty else FindingLevel.OK, message=message, hint=hint)


def _unpublished(verdict: FindingLevel) -> Finding:
    hint = "Set publish = true in the section [hook] of helios.toml: docs/priority-hook.md"
    return Finding(
        check="hook",
        verdict=verdict,
        message=UNPUBLISHED,
        hint="" if verdict is FindingLevel.OK else hint,
    )
