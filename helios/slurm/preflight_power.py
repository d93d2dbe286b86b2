"""What a cluster's own settings mean for putting nodes to sleep: further facts for ``helios doctor``.

Asked where a service acts on nodes. Only one of them writes at all, and that to a node that does not exist.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

from helios.slurm import values
from helios.slurm.power_settings import KEEP_AWAKE_SINCE, KEEPS_LIST, powering, programs, seconds
from helios.slurm.preflight import Check, Finding, Ground, Level, slurm_user
from helios.slurm.shell import lines, quoted

PROBE = "helios-probe"
"""A node that does not exist: Slurm judges who asks before it looks for the node (22.05.8, 26.05.5)."""
_DAY_S = 86_400.0
_LEAST_BATCH_START_S = 60.0
"""Slurm's power saving guide asks for more than the default of 10 s where nodes boot; a minute is a guess."""


def power_checks(mechanism: str, *, tiers: int) -> tuple[Check, ...]:
    """Return the checks of a cluster whose nodes Helios is to put to sleep, for ``examine(more=...)``.

    Parameters
    ----------
    mechanism : str
        ``sleep`` or ``keep_awake``, as ``[power] mechanism``.
    tiers : int
        ``[power] tiers``.
    """
    timer = _timer_of_keep_awake if mechanism == "keep_awake" else _timer_of_sleep
    listed: tuple[Check, ...] = (_keep_awake,) if mechanism == "keep_awake" else ()

    def node_weights(ground: Ground) -> Iterator[Finding]:
        return _node_weights(ground, tiers)

    return (_power_programs, timer, _power_timeouts, _power_rates, *listed, _administrator, node_weights)


def _finding(check: str, fact: str, *, remedy: str = "", level: Level = Level.WARN) -> Finding:
    """Return a finding that is as bad as ``level`` where there is something to do about it."""
    return Finding(check=check, verdict=level if remedy else Level.OK, fact=fact, remedy=remedy)


def _power_programs(ground: Ground) -> Iterator[Finding]:
    found = programs(ground.configuration)
    for key in ("SuspendProgram", "ResumeProgram"):
        if key in found:
            yield _program(key, Path(found[key]))
        else:
            remedy = "Set it in slurm.conf; deploy/slurm/power has programs for IPMI, Redfish, Wake-on-LAN and clouds."
            yield _finding("power programs", f"slurm.conf has no {key}", remedy=remedy, level=Level.FAIL)


def _program(key: str, path: Path) -> Finding:
    if not path.exists():
        return _finding("power programs", f"{key} is {path}, which is not on this host to be looked at")
    if os.access(path, os.X_OK):
        return _finding("power programs", f"{key} is {path}")
    remedy = f"chmod 755 {path}; slurmctld's host must have it too."
    return _finding("power programs", f"{key} is {path}, which cannot be run", remedy=remedy, level=Level.FAIL)


def _timer_of_sleep(ground: Ground) -> Iterator[Finding]:
    remedy = "Slurm would put nodes to sleep before Helios does: SuspendTime=604800, a week, leaves it to Helios."
    yield _timer(ground, lambda after_s: remedy if after_s < _DAY_S else "")


def _timer_of_keep_awake(ground: Ground) -> Iterator[Finding]:
    remedy = 'Hardly a node will ever sleep: with [power] mechanism = "keep_awake" set SuspendTime=600.'
    yield _timer(ground, lambda after_s: remedy if after_s >= _DAY_S else "")


def _timer(ground: Ground, judge: Callable[[float], str]) -> Finding:
    after_s = powering(ground.configuration).settings.suspend_time_s
    if math.isinf(after_s):
        fact = "SuspendTime is INFINITE: Slurm refuses every power_down, and wakes no node for a job"
        remedy = "Set SuspendTime=604800 (a week) in slurm.conf."
        return _finding("idle timer", fact, remedy=remedy, level=Level.FAIL)
    return _finding("idle timer", f"SuspendTime is {after_s:.0f} s", remedy=judge(after_s))


def _power_timeouts(ground: Ground) -> Iterator[Finding]:
    suspend_s, resume_s, batch_s, message_s = (
        seconds(ground.configuration.get(key, ""))
        for key in ("SuspendTimeout", "ResumeTimeout", "BatchStartTimeout", "MessageTimeout")
    )
    fact = (
        f"a node has {suspend_s:.0f} s to fall asleep and {resume_s:.0f} s to wake (SuspendTimeout, ResumeTimeout); "
        f"BatchStartTimeout is {batch_s:.0f} s, MessageTimeout {message_s:.0f} s"
    )
    remedy = (
        f"A batch job on a node that has just booted may be given up too early: BatchStartTimeout="
        f"{_LEAST_BATCH_START_S:.0f} or more. See that the slowest node boots within ResumeTimeout."
    )
    yield _finding("power timeouts", fact, remedy=remedy if batch_s < _LEAST_BATCH_START_S < resume_s else "")


def _power_rates(ground: Ground) -> Iterator[Finding]:
    rates = {key: ground.configuration.get(key, "").partition(" ")[0] for key in ("SuspendRate", "ResumeRate")}
    fact = ", ".join(f"{key} is {rate or 'unknown'} nodes a minute" for key, rate in rates.items())
    remedy = "0 is no limit: jobs may wake every sleeping node at once. Ask whoever knows your power feed."
    yield _finding("power rates", fact, remedy=remedy if rates["ResumeRate"] == "0" else "")


def _keep_awake(ground: Ground) -> Iterator[Finding]:
    version = ground.configuration.get("SLURM_VERSION", "unknown")
    if values.release(version) < KEEP_AWAKE_SINCE:
        fact = f"Slurm {version} cannot change SuspendExcNodes while it runs"
        remedy = 'It needs Slurm 23.02; until then [power] mechanism = "sleep".'
        yield _finding("keep-awake list", fact, remedy=remedy, level=Level.FAIL)
    elif KEEPS_LIST.lower() in ground.configuration.get("ReconfigFlags", "").lower():
        yield _finding("keep-awake list", f"ReconfigFlags has {KEEPS_LIST}")
    else:
        remedy = (
            f"After scontrol reconfigure the list is slurm.conf's until Helios' next turn: ReconfigFlags={KEEPS_LIST}"
        )
        yield _finding("keep-awake list", f"ReconfigFlags lacks {KEEPS_LIST}", remedy=remedy)


def _administrator(ground: Ground) -> Iterator[Finding]:
    if ground.user in {"root", slurm_user(ground)}:
        yield _finding("administrator", f"{ground.user} may change nodes")
        return
    said = ground.shell.answer("scontrol", "update", f"NodeName={PROBE}", "Weight=1").complaint
    if "Invalid node name" in said:
        yield _finding("administrator", f"user {ground.user} may change nodes")
        return
    remedy = (
        "Nodes take an administrator, jobs an operator. Give the turns on nodes a user of their own, and: "
        f"sacctmgr modify user {ground.user} set adminlevel=Administrator"
    )
    fact = f"user {ground.user} may not change nodes: {quoted(said)}"
    yield _finding("administrator", fact, remedy=remedy, level=Level.FAIL)


def _node_weights(ground: Ground, tiers: int) -> Iterator[Finding]:
    shown = lines(ground.shell.run("scontrol", "--all", "--oneliner", "show", "node"))
    found = (re.search(r" Weight=(\d+)", line) for line in shown)
    weights = sorted({int(match[1]) for match in found if match})
    tight = next((f"{low} and {high}" for low, high in pairwise(weights) if high - low < tiers), "")
    remedy = (
        f"Between {tight} there is no room for [power] tiers = {tiers}: nodes are hardly told apart there. "
        "Write weights in steps of 100 in slurm.conf."
    )
    fact = f"nodes have the weights {', '.join(map(str, weights)) or 'none'}"
    yield _finding("node weights", fact, remedy=remedy if tight else "")
