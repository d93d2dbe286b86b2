"""What Helios does and knows now, without a question to Slurm."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from helios.app.clusters import NOT_LIVE, choose_cluster, history_alone, last_weeks, live_window
from helios.app.modes import current_modes, is_paused
from helios.app.predictions import UNTRUSTED
from helios.app.services import configured_services
from helios.config import Settings
from helios.control.state import UNREADABLE
from helios.errors import HeliosError, ModelUnreadable, NoSuchCluster, NotEnoughHistory
from helios.model import CYCLES, Mode
from helios.slurm.preflight import FindingLevel, PreflightFinding
from helios.units import in_number
from helios.warehouse import Warehouse

OK, WARN, FAIL = FindingLevel.OK, FindingLevel.WARN, FindingLevel.FAIL
FEW_JOBS = 1_000
HEALTH_FILE = "health.json"
"""File in which the daemon reports its state. The name is repeated here: ``app`` cannot import ``daemon``."""
LAST_CYCLES = timedelta(days=7)
SILENT_S = 120.0
"""Age of the health file from which the daemon counts as silent, s; a live one writes it several times as often."""


def status(settings: Settings, *, cluster: str | None, now: datetime) -> list[PreflightFinding]:
    """Return five findings on what Helios does.

    They are on the daemon, the services, the last cycle, the history and the model. Of a history without a live Slurm
    they are on the history alone. The cluster is not asked, so that it answers at once.

    Parameters
    ----------
    cluster : str, optional
        None for the default or else the only one of the warehouse.
    """
    name, url = cluster or only_name(settings), settings.database.url
    checks: dict[str, Callable[[], Iterator[PreflightFinding]]] = {
        "daemon": lambda: check_daemon(settings, now),
        "services": lambda: _current_modes(settings, name),
        "cycle": lambda: _last_cycle(settings, name, now),
        "history": lambda: check_history(settings, name, now),
        "model": lambda: check_model(settings, name, now, reads=False),
    }
    if name and history_alone(settings, name, now=now):
        # A daemon that ran here, and a pause, are of this machine, whatever history is asked for.
        folder = Path(settings.control.state_folder)
        here = {"daemon": (folder / HEALTH_FILE).exists(), "services": bool(is_paused(url, name, folder))}
        checks = {
            "slurm": lambda: iter([make_finding("slurm", OK, f"none here: {name} is {NOT_LIVE}")]),
            **{line: checks[line] for line, is_shown in here.items() if is_shown},
            "history": lambda: _span(settings, name),
            "model": checks["model"],
        }
    return [replace(next(iter(run_check(check))), check=line) for line, check in checks.items()]


def _span(settings: Settings, name: str) -> Iterator[PreflightFinding]:
    """Report the span of a history, and the window that questions take."""
    with Warehouse.open(settings.database.url) as warehouse:
        known = warehouse.clusters(counts=True).set_index("name").to_dict("index")[name]
        weeks = last_weeks(warehouse, name)
    first, last = (f"{known[f'{end}_submitted_at']:%Y-%m-%d %H:%M}" for end in ("first", "last"))
    message = f"{known['jobs']:,} jobs submitted {first} to {last} UTC"
    if weeks is not None:
        message += f"; reports take {weeks[0]:%Y-%m-%d %H:%M} to {weeks[1]:%Y-%m-%d %H:%M} UTC"
    yield make_finding("history", OK, message)


def _current_modes(settings: Settings, name: str) -> Iterator[PreflightFinding]:
    """Report a pause, else the modes."""
    paused = next(check_pause(settings, name))
    yield from check_modes(settings, name) if paused.verdict is OK else [paused]


def _last_cycle(settings: Settings, name: str, now: datetime) -> Iterator[PreflightFinding]:
    with Warehouse.open(settings.database.url) as warehouse:
        try:
            cycles = warehouse.cycles(name, since=now - LAST_CYCLES)
        except NoSuchCluster:
            cycles = CYCLES.empty()
    if cycles.empty:
        yield make_finding("cycle", OK, f"none in the last {LAST_CYCLES.days} days")
        return
    last = cycles.sort_values("taken_at").iloc[-1]
    when = f"{last['taken_at']:%Y-%m-%d %H:%M} UTC"
    if isinstance(last["suspended"], str) and last["suspended"]:
        yield make_finding("cycle", WARN, f"{when}: nothing is done: {'; '.join(last['suspended'].splitlines())}")
        return
    changed = in_number(int(last["acted"]), "jobs")
    yield make_finding(
        "cycle", OK, f"{when}: {changed} changed, {last['pending']:,} pending, {last['running']:,} running"
    )


def only_name(settings: Settings) -> str:
    """Return the name of the default or only cluster.

    Empty where there are several, or where the warehouse cannot be read.
    """
    try:
        with Warehouse.open(settings.database.url) as warehouse:
            return str(choose_cluster(warehouse, settings.database.cluster or None)["name"])
    except HeliosError:
        return ""


def check_daemon(settings: Settings, now: datetime) -> Iterator[PreflightFinding]:
    """Report the health of the daemon.

    It comes from the last health file, with the reason of a suspended cycle.
    """
    try:
        health = json.loads((Path(settings.control.state_folder) / HEALTH_FILE).read_text(encoding="utf-8"))
        age_s = (now - datetime.fromisoformat(health["written_at"])).total_seconds()
        state, reasons = str(health["state"]), [*health["reasons"], *((health["cycle"] or {}).get("suspended") or ())]
        unsent = str(health.get("tasks", {}).get("notify", {}).get("problem") or "")
        note = "; ".join(filter(None, [str(health.get("note") or ""), unsent]))
    except (OSError, *UNREADABLE):
        message = f"not running, or it never ran here: the state folder holds no readable {HEALTH_FILE}"
        yield make_finding("daemon", WARN, message, "Start it: systemctl start helios")
        return
    silent = state != "stopped" and age_s > SILENT_S
    word = f"silent for {age_s:.0f} s" if silent else state
    if word in {"at work", "standby"} and not note:
        yield make_finding("daemon", OK, word)
    else:
        message = "; ".join([word, *reasons, *filter(None, [note])])
        yield make_finding("daemon", WARN, message, "Read its log: journalctl -u helios")


def check_modes(settings: Settings, name: str) -> Iterator[PreflightFinding]:
    """Report the mode of each service."""
    modes = current_modes(settings.database.url, name, configured_services(settings)) if name else {}
    text = ", ".join(f"{service} {mode.mode.value}" for service, mode in modes.items()) or "not known"
    acts = any(mode.mode in {Mode.CANARY, Mode.ACTIVE} for mode in modes.values())
    yield make_finding("modes", OK, text if acts else f"{text}: nothing on the cluster is changed")


def check_pause(settings: Settings, name: str) -> Iterator[PreflightFinding]:
    """Report whether Helios is paused."""
    if pause := is_paused(settings.database.url, name, Path(settings.control.state_folder)):
        yield make_finding("pause", WARN, f"paused {pause}", "To go on: helios resume")
    else:
        yield make_finding("pause", OK, "Helios is not paused")


def check_history(settings: Settings, name: str, now: datetime) -> Iterator[PreflightFinding]:
    """Report until when the accounting was read."""
    with Warehouse.open(settings.database.url) as warehouse:
        try:
            read = live_window(warehouse, name)
            jobs = int(warehouse.clusters(counts=True).set_index("name")["jobs"].get(name, 0))
        except NoSuchCluster:
            read, jobs = None, 0
    if read is None:
        message = f"the accounting of {name or 'the cluster'} was never read"
        yield make_finding("history", FAIL, message, "Read it: helios trace sync")
        return
    level, hint, read_at = OK, "", read[1]
    if now - read_at > timedelta(seconds=settings.control.oldest_history_s):
        level, hint = FAIL, "Nothing is written while it is so old. Run the daemon, or: helios trace sync"
    elif jobs < FEW_JOBS:
        level, hint = WARN, "Predictions get better with months of history: set history.start to an earlier day."
    yield make_finding("history", level, f"{jobs:,} jobs, known until {read_at:%Y-%m-%d %H:%M} UTC", hint)


def check_model(settings: Settings, name: str, now: datetime, *, reads: bool = True) -> Iterator[PreflightFinding]:
    """Report which model predicts, and whether it is too old."""
    if not name:  # the history check says what to do
        yield make_finding("model", WARN, "not checked, as the cluster's name is not known", "Give it: --cluster NAME")
        return
    with Warehouse.open(settings.database.url) as warehouse:
        try:
            record = warehouse.model(name)
        except (NoSuchCluster, NotEnoughHistory) as reason:
            message = f"{reason.message} Predictions come from users' own history alone (shrinkage)"
            yield make_finding("model", WARN, message, reason.hint)
            return
    try:
        if reads:
            from helios.predict.model_record import from_record  # noqa: PLC0415 - numba takes a while

            from_record(record)  # a model of an older release cannot be read either
    except ModelUnreadable as reason:
        yield make_finding("model", FAIL, f"{reason.message.rstrip('.')}.", f"{UNTRUSTED}.")
        return
    old = now - record.known_good_at > timedelta(seconds=settings.control.oldest_model_s)
    message = f"{record.model_id}, trained on {record.jobs:,} jobs at {record.trained_at:%Y-%m-%d %H:%M} UTC"
    yield make_finding("model", FAIL if old else OK, message, "Nothing is written while it is so old: helios nightly")


def run_check(check: Callable[[], Iterator[PreflightFinding]]) -> list[PreflightFinding]:
    """Return the findings of a check, its own error among them."""
    try:
        return list(check())
    except HeliosError as reason:
        return [make_finding("helios", FAIL, reason.message, reason.hint)]


def make_finding(check: str, level: FindingLevel, message: str, hint: str = "") -> PreflightFinding:
    """Return a finding.

    A finding that is OK has no hint.
    """
    return PreflightFinding(check=check, verdict=level, message=message, hint="" if level is OK else hint)
