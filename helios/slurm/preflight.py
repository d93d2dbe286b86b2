"""What a cluster's own settings mean for Helios: facts for ``helios doctor``, each with what to do about it.

Nothing here changes anything. Each check stands alone: one that cannot be made says so and does not hide the others.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

from helios.changes import SOFT_LIMIT_FLAG
from helios.errors import HeliosError
from helios.private_files import closed_to
from helios.slurm import parse
from helios.slurm.accounting import Accounting
from helios.slurm.power import KEEP_AWAKE_SINCE, KEEPS_LIST, power_config, programs, seconds
from helios.slurm.shell import Shell, lines, quoted
from helios.slurm.translate import SOFT_LIMITS_SINCE

OLDEST_RELEASE = (22, 5)
"""The oldest Slurm that Helios was run with."""
NEWEST_RELEASE = (26, 5)
"""The newest Slurm that Helios was run with."""
HOOK = "priority hook"
"""The check whether slurmctld asks Helios' hook about new jobs; how bad it is where not, the modes say."""
_WEIGHTS = ("Age", "Assoc", "FairShare", "JobSize", "Partition", "QOS")
_LEVELS = ("Operator", "Administrator")


class FindingLevel(StrEnum):
    """How well a fact goes with Helios."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fact about the cluster.

    Attributes
    ----------
    check : str
        What was looked at.
    verdict : Level
        ``fail``: Helios cannot order jobs here, or must not; ``warn``: something does less than it could.
    fact : str
        What was found.
    hint : str
        What to do; empty: nothing.
    """

    check: str
    verdict: FindingLevel
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightContext:
    """What the checks look at.

    Attributes
    ----------
    configuration : mapping
        As :meth:`helios.slurm.backend.Backend.configuration` gives it.
    shell : Shell
        To ask what the configuration does not say.
    user : str
        The user that runs Helios.
    site_factor_most : int
        Bound of the SiteFactor that Helios writes.
    clock_skew_s : float
        Largest difference of the clocks that is tolerated, s.
    clock : callable
        Returns the time, aware.
    """

    configuration: Mapping[str, str]
    shell: Shell
    user: str
    site_factor_most: int
    clock_skew_s: float = 30.0
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)


Check = Callable[[PreflightContext], Iterator[Finding]]
"""Looks at one thing."""


def examine(
    *,
    shell: Shell,
    configuration: Callable[[], Mapping[str, str]],
    user: str,
    site_factor_most: int,
    clock_skew_s: float = 30.0,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    more: Sequence[Check] = (),
) -> list[Finding]:
    """Return what is to be known about the cluster; where the controller is silent, only that.

    Parameters
    ----------
    shell, user, site_factor_most, clock_skew_s, clock
        As in :class:`PreflightContext`.
    configuration : callable
        Asks the controller, as :meth:`helios.slurm.backend.Backend.configuration`.
    more : sequence of Check
        Further checks, as :func:`helios.slurm.preflight.power_checks` has them.
    """
    try:
        settings = configuration()
    except HeliosError as reason:
        return [Finding(check="controller", verdict=FindingLevel.FAIL, message=reason.message, hint=reason.hint)]
    ground = PreflightContext(
        configuration=settings,
        shell=shell,
        user=user,
        site_factor_most=site_factor_most,
        clock_skew_s=clock_skew_s,
        clock=clock,
    )
    return [finding for check in (*_CHECKS, *more) for finding in _tried(check, ground)]


def _tried(check: Check, ground: PreflightContext) -> list[Finding]:
    try:
        return list(check(ground))
    except HeliosError as reason:
        name = check.__name__.strip("_").replace("_", " ")
        return [Finding(check=name, verdict=FindingLevel.WARN, message=reason.message, hint=reason.hint)]


def _controller(ground: PreflightContext) -> Iterator[Finding]:
    version = ground.configuration.get("SLURM_VERSION", "unknown")
    name = ground.configuration.get("ClusterName", "of unknown name")
    known = OLDEST_RELEASE <= parse.release(version) <= NEWEST_RELEASE
    yield Finding(
        check="controller",
        verdict=FindingLevel.OK if known else FindingLevel.WARN,
        message=f"cluster {name} answers, Slurm {version}",
        hint="" if known else "Helios was run with 22.05 to 26.05; try it in mode shadow first.",
    )


def _priority(ground: PreflightContext) -> Iterator[Finding]:
    kind = ground.configuration.get("PriorityType", "unknown")
    multifactor = kind == "priority/multifactor"
    yield Finding(
        check="priority",
        verdict=FindingLevel.OK if multifactor else FindingLevel.FAIL,
        message=f"PriorityType is {kind}",
        hint="" if multifactor else "Set PriorityType=priority/multifactor: else a SiteFactor has no effect.",
    )
    if "INCR_ONLY" in ground.configuration.get("PriorityFlags", ""):
        yield Finding(
            check="priority",
            verdict=FindingLevel.FAIL,
            message="PriorityFlags has INCR_ONLY: priorities never fall, so nothing that Helios raises can be reverted",
            hint="Take INCR_ONLY out of PriorityFlags.",
        )


def _weights(ground: PreflightContext) -> Iterator[Finding]:
    found = {name: _number(ground.configuration.get(f"PriorityWeight{name}", "")) for name in _WEIGHTS}
    said = ", ".join(f"{name} {weight:,}" for name, weight in found.items() if weight) or "all 0"
    room, most = sum(found.values()), ground.site_factor_most
    message = f"priority weights: {said}; Helios adds at most ±{most:,}"
    if not room:
        hint = "Nothing but Helios would order jobs, and none could be moved down: a priority cannot fall below 1."
        yield Finding(check="weights", verdict=FindingLevel.WARN, message=message, hint=hint)
    elif most > room:
        hint = (
            f"Helios outweighs everything that the site set; a [slurm] site_factor_most below {room:,} leaves it a say."
        )
        yield Finding(check="weights", verdict=FindingLevel.WARN, message=message, hint=hint)
    else:
        yield Finding(check="weights", verdict=FindingLevel.OK, message=message)


def _soft_limits(ground: PreflightContext) -> Iterator[Finding]:
    flag = SOFT_LIMIT_FLAG in ground.configuration.get("SchedulerParameters", "").lower()
    able = parse.release(ground.configuration.get("SLURM_VERSION", "")) >= SOFT_LIMITS_SINCE
    if able and flag:
        yield Finding(
            check="soft limits", verdict=FindingLevel.OK, message=f"SchedulerParameters has {SOFT_LIMIT_FLAG}"
        )
        return
    hint = f"Add {SOFT_LIMIT_FLAG} to SchedulerParameters to use soft limits." if able else "They need Slurm 23.11."
    message = f"SchedulerParameters lacks {SOFT_LIMIT_FLAG}: Helios will refuse every soft limit"
    yield Finding(check="soft limits", verdict=FindingLevel.WARN, message=message, hint=hint)


def _rate_limit(ground: PreflightContext) -> Iterator[Finding]:
    limited = "rl_enable" in ground.configuration.get("SlurmctldParameters", "").lower()
    exempt = ground.user in {"root", slurm_user(ground)}
    slow = limited and not exempt
    yield Finding(
        check="rate limit",
        verdict=FindingLevel.WARN if slow else FindingLevel.OK,
        message="SlurmctldParameters has rl_enable: calls of one user are limited"
        if limited
        else "calls are not limited",
        hint="Raise rl_bucket_size, or lower [slurm] writes_per_cycle: one change is one call." if slow else "",
    )


def _power(ground: PreflightContext) -> Iterator[Finding]:
    after = ground.configuration.get("SuspendTime", "")
    on = ground.configuration.get("SuspendProgram", "(null)") != "(null)" and after not in {"", "INFINITE", "NONE"}
    message = f"power saving is on: idle nodes sleep after {after}" if on else "power saving is off"
    yield Finding(check="power", verdict=FindingLevel.OK, message=message)


def _accounting(ground: PreflightContext) -> Iterator[Finding]:
    # sacctmgr shows its configuration with slurmdbd away too; a list it has to ask for.
    ground.shell.run("sacctmgr", "--noheader", "--parsable2", "show", "cluster", "format=cluster")
    kept = Accounting(shell=ground.shell).keeps_jobs()
    reach = "for ever" if kept is None else f"for {kept.days} days"
    short = kept is not None and kept < timedelta(days=30)
    hint = "Helios learns best from months: raise PurgeJobAfter in slurmdbd.conf." if short else ""
    yield Finding(
        check="accounting",
        verdict=FindingLevel.WARN if short else FindingLevel.OK,
        message=f"slurmdbd answers and keeps jobs {reach}",
        hint=hint,
    )


def _clock(ground: PreflightContext) -> Iterator[Finding]:
    theirs = controllers_time(ground.shell)
    skew = abs((ground.clock() - theirs).total_seconds())
    bad = skew > ground.clock_skew_s
    yield Finding(
        check="clock",
        verdict=FindingLevel.FAIL if bad else FindingLevel.OK,
        message=f"the controller's clock differs by {skew:.0f} s",
        hint="Let chrony or ntpd set both clocks; Helios writes nothing until then." if bad else "",
    )


def _privileges(ground: PreflightContext) -> Iterator[Finding]:
    if ground.user in {"root", slurm_user(ground)}:
        yield Finding(
            check="privileges",
            verdict=FindingLevel.WARN,
            message=f"Helios runs as {ground.user}, who may do anything to this cluster",
            hint="Fit for a trial. For more, give it a user of its own that is a Slurm Operator: docs/install.md",
        )
        return
    asked = ("--noheader", "--parsable2", "show", "user", f"name={ground.user}", "format=AdminLevel")
    level = lines(ground.shell.run("sacctmgr", *asked))[0].strip() or "no account at all"
    able = level in _LEVELS
    yield Finding(
        check="privileges",
        verdict=FindingLevel.OK if able else FindingLevel.FAIL,
        message=f"user {ground.user} has AdminLevel {level}",
        hint="" if able else f"As an administrator: sacctmgr modify user {ground.user} set adminlevel=Operator",
    )


def _private_data(ground: PreflightContext) -> Iterator[Finding]:
    private = ground.configuration.get("PrivateData", "none")
    if "jobs" in private:
        message = f"PrivateData is {private}: only operators see other users' jobs"
        yield Finding(check="private data", verdict=FindingLevel.OK, message=message)


def _priority_hook(ground: PreflightContext) -> Iterator[Finding]:
    plugins = ground.configuration.get("JobSubmitPlugins", "(null)")
    message = f"JobSubmitPlugins is {plugins}"
    if "lua" in re.split(r"\W+", plugins):
        script = Path(ground.configuration.get("SLURM_CONF", "")).parent / "job_submit.lua"
        if _names_hook(script):
            yield Finding(check=HOOK, verdict=FindingLevel.OK, message=message)
            return
        message = f"{message}, and {script} does not call Helios' hook"
    hint = "Install the hook, after its table is published: docs/priority-hook.md"
    yield Finding(
        check=HOOK,
        verdict=FindingLevel.WARN,
        message=f"{message}: new jobs have no place until the next cycle",
        hint=hint,
    )


def hook_table_check(table: Path) -> Check:
    """Return the check that slurmctld can read the hook's ``table``, for ``examine(more=...)``."""

    def check(ground: PreflightContext) -> Iterator[Finding]:
        user = slurm_user(ground)
        place = closed_to(user, table)
        if place is None:
            return
        message = f"SlurmUser {user} may not read {place}: the hook leaves every new job unchanged"
        hint = f"Let {user} into the group of {place}, then start slurmctld again: docs/priority-hook.md"
        yield Finding(check=HOOK, verdict=FindingLevel.WARN, message=message, hint=hint)

    return check


def _names_hook(script: Path) -> bool:
    """Return whether a script calls the hook; one that cannot be read here, as on another host, is believed to."""
    try:
        return b"helios_hook" in script.read_bytes()
    except OSError:
        return True


_CHECKS: tuple[Check, ...] = (
    _controller,
    _priority,
    _weights,
    _soft_limits,
    _rate_limit,
    _power,
    _accounting,
    _clock,
    _privileges,
    _private_data,
    _priority_hook,
)


def _number(text: str) -> int:
    found = re.match(r"\d+", text)
    return int(found[0]) if found else 0


def slurm_user(ground: PreflightContext) -> str:
    """Return the user that slurmctld runs as."""
    return ground.configuration.get("SlurmUser", "").partition("(")[0]


def controllers_time(shell: Shell) -> datetime:
    """Return the time by the controller's clock, whole seconds.

    Raises
    ------
    ClusterUnavailable, AnswerNotUnderstood
        ``sdiag`` fails, or does not say it.
    """
    # sdiag prints the time of the answer by the clock of the controller (22.05.8).
    said = shell.run("sdiag").decode("utf-8", "replace")
    found = re.search(r"sdiag output at .*\((\d+)\)", said)
    if found is None:
        raise HeliosError("sdiag does not say what time it is at the controller.")
    return datetime.fromtimestamp(int(found[1]), UTC)


# What a cluster's own settings mean for putting nodes to sleep: further facts for ``helios doctor``.
#
# Asked where a service acts on nodes. Only one of them writes at all, and that to a node that does not exist.

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

    def node_weights(ground: PreflightContext) -> Iterator[Finding]:
        return _node_weights(ground, tiers)

    return (_power_programs, timer, _power_timeouts, _power_rates, *listed, _administrator, node_weights)


def _finding(check: str, message: str, *, hint: str = "", level: FindingLevel = FindingLevel.WARN) -> Finding:
    """Return a finding that is as bad as ``level`` where there is something to do about it."""
    return Finding(check=check, verdict=level if hint else FindingLevel.OK, message=message, hint=hint)


def _power_programs(ground: PreflightContext) -> Iterator[Finding]:
    found = programs(ground.configuration)
    for key in ("SuspendProgram", "ResumeProgram"):
        if key in found:
            yield _program(key, Path(found[key]))
        else:
            hint = "Set it in slurm.conf; deploy/slurm/power has programs for IPMI, Redfish, Wake-on-LAN and clouds."
            yield _finding("power programs", f"slurm.conf has no {key}", hint=hint, level=FindingLevel.FAIL)


def _program(key: str, path: Path) -> Finding:
    if not path.exists():
        return _finding("power programs", f"{key} is {path}, which is not on this host to be looked at")
    if os.access(path, os.X_OK):
        return _finding("power programs", f"{key} is {path}")
    hint = f"chmod 755 {path}; slurmctld's host must have it too."
    return _finding("power programs", f"{key} is {path}, which cannot be run", hint=hint, level=FindingLevel.FAIL)


def _timer_of_sleep(ground: PreflightContext) -> Iterator[Finding]:
    hint = "Slurm would put nodes to sleep before Helios does: SuspendTime=604800, a week, leaves it to Helios."
    yield _timer(ground, lambda after_s: hint if after_s < _DAY_S else "")


def _timer_of_keep_awake(ground: PreflightContext) -> Iterator[Finding]:
    hint = 'Hardly a node will ever sleep: with [power] mechanism = "keep_awake" set SuspendTime=600.'
    yield _timer(ground, lambda after_s: hint if after_s >= _DAY_S else "")


def _timer(ground: PreflightContext, judge: Callable[[float], str]) -> Finding:
    after_s = power_config(ground.configuration).settings.suspend_time_s
    if math.isinf(after_s):
        message = "SuspendTime is INFINITE: Slurm refuses every power_down, and wakes no node for a job"
        hint = "Set SuspendTime=604800 (a week) in slurm.conf."
        return _finding("idle timer", message, hint=hint, level=FindingLevel.FAIL)
    return _finding("idle timer", f"SuspendTime is {after_s:.0f} s", hint=judge(after_s))


def _power_timeouts(ground: PreflightContext) -> Iterator[Finding]:
    suspend_s, resume_s, batch_s, message_s = (
        seconds(ground.configuration.get(key, ""))
        for key in ("SuspendTimeout", "ResumeTimeout", "BatchStartTimeout", "MessageTimeout")
    )
    message = (
        f"a node has {suspend_s:.0f} s to fall asleep and {resume_s:.0f} s to wake (SuspendTimeout, ResumeTimeout); "
        f"BatchStartTimeout is {batch_s:.0f} s, MessageTimeout {message_s:.0f} s"
    )
    hint = (
        f"A batch job on a node that has just booted may be given up too early: BatchStartTimeout="
        f"{_LEAST_BATCH_START_S:.0f} or more. See that the slowest node boots within ResumeTimeout."
    )
    yield _finding("power timeouts", message, hint=hint if batch_s < _LEAST_BATCH_START_S < resume_s else "")


def _power_rates(ground: PreflightContext) -> Iterator[Finding]:
    rates = {key: ground.configuration.get(key, "").partition(" ")[0] for key in ("SuspendRate", "ResumeRate")}
    message = ", ".join(f"{key} is {rate or 'unknown'} nodes a minute" for key, rate in rates.items())
    hint = "0 is no limit: jobs may wake every sleeping node at once. Ask whoever knows your power feed."
    yield _finding("power rates", message, hint=hint if rates["ResumeRate"] == "0" else "")


def _keep_awake(ground: PreflightContext) -> Iterator[Finding]:
    version = ground.configuration.get("SLURM_VERSION", "unknown")
    if parse.release(version) < KEEP_AWAKE_SINCE:
        message = f"Slurm {version} cannot change SuspendExcNodes while it runs"
        hint = 'It needs Slurm 23.02; until then [power] mechanism = "sleep".'
        yield _finding("keep-awake list", message, hint=hint, level=FindingLevel.FAIL)
    elif KEEPS_LIST.lower() in ground.configuration.get("ReconfigFlags", "").lower():
        yield _finding("keep-awake list", f"ReconfigFlags has {KEEPS_LIST}")
    else:
        hint = (
            f"After scontrol reconfigure the list is slurm.conf's until Helios' next cycle: ReconfigFlags={KEEPS_LIST}"
        )
        yield _finding("keep-awake list", f"ReconfigFlags lacks {KEEPS_LIST}", hint=hint)


def _administrator(ground: PreflightContext) -> Iterator[Finding]:
    if ground.user in {"root", slurm_user(ground)}:
        yield _finding("administrator", f"{ground.user} may change nodes")
        return
    said = ground.shell.answer("scontrol", "update", f"NodeName={PROBE}", "Weight=1").complaint
    if "Invalid node name" in said:
        yield _finding("administrator", f"user {ground.user} may change nodes")
        return
    hint = (
        "Nodes take an administrator, jobs an operator. Give the turns on nodes a user of their own, and: "
        f"sacctmgr modify user {ground.user} set adminlevel=Administrator"
    )
    message = f"user {ground.user} may not change nodes: {quoted(said)}"
    yield _finding("administrator", message, hint=hint, level=FindingLevel.FAIL)


def _node_weights(ground: PreflightContext, tiers: int) -> Iterator[Finding]:
    shown = lines(ground.shell.run("scontrol", "--all", "--oneliner", "show", "node"))
    found = (re.search(r" Weight=(\d+)", line) for line in shown)
    weights = sorted({int(match[1]) for match in found if match})
    tight = next((f"{low} and {high}" for low, high in pairwise(weights) if high - low < tiers), "")
    hint = (
        f"Between {tight} there is no room for [power] tiers = {tiers}: nodes are hardly told apart there. "
        "Write weights in steps of 100 in slurm.conf."
    )
    message = f"nodes have the weights {', '.join(map(str, weights)) or 'none'}"
    yield _finding("node weights", message, hint=hint if tight else "")
