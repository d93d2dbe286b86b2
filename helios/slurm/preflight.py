"""Checks of a cluster's configuration for ``helios doctor``.

Each finding says what to do about it. Nothing here changes anything. Each check stands alone: one that fails says so
and does not hide the others.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path

from helios.changes import SOFT_LIMIT_FLAG
from helios.errors import HeliosError
from helios.private_files import find_denied
from helios.slurm import parse
from helios.slurm.accounting import Accounting
from helios.slurm.power_config import KEEP_AWAKE_SINCE, KEEPS_LIST, power_config, programs, seconds
from helios.slurm.shell import Shell, lines, quoted
from helios.slurm.translate import SOFT_LIMITS_SINCE

OLDEST_RELEASE = (22, 5)
"""The oldest Slurm that Helios was run with."""
NEWEST_RELEASE = (26, 5)
"""The newest Slurm that Helios was run with."""
HOOK = "priority hook"
"""Name of the check whether slurmctld calls Helios' hook for new jobs. How serious its lack is depends on the mode."""
_WEIGHTS = ("Age", "Assoc", "FairShare", "JobSize", "Partition", "QOS")
_LEVELS = ("Operator", "Administrator")
_GPU_TRES = {"gres/gpu": "GPUs", "gres/shard": "shards", "gres/mps": "MPS shares"}
"""TRES of GPUs and their shares, and what each counts."""
_ALWAYS_TRACKED = frozenset({"", "(null)", "billing", "cpu", "energy", "fs/disk", "mem", "node", "pages", "vmem"})
"""What Slurm tracks without being told, and prints in ``scontrol show config`` (22.05.8)."""

PROBE = "helios-probe"
"""A node that does not exist. Slurm checks the user's rights before it looks up the node (22.05.8, 26.05.5)."""
_DAY_S = 86_400.0
_LEAST_BATCH_START_S = 60.0
"""Slurm's power saving guide recommends more than the default of 10 s where nodes boot. A minute is a guess."""


class FindingLevel(StrEnum):
    """How serious a finding is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightFinding:
    """Result of one check of the cluster.

    Attributes
    ----------
    check : str
        Name of the check.
    verdict : FindingLevel
        ``fail`` where Helios cannot or must not act here, ``warn`` where something works less well than it could.
    message : str
        What was found.
    hint : str
        What to do; empty where nothing is to be done.
    """

    check: str
    verdict: FindingLevel
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightContext:
    """Input of the checks.

    Attributes
    ----------
    configuration : mapping
        As :meth:`helios.slurm.backend.Backend.configuration` gives it.
    shell : Shell
        Runs Slurm's commands, for what the configuration does not contain.
    user : str
        The user that runs Helios.
    site_factor_most : int
        Largest absolute SiteFactor that Helios writes.
    clock_skew_s : float
        Largest tolerated difference of the clocks, s.
    clock : callable
        Returns the time, aware.
    """

    configuration: Mapping[str, str]
    shell: Shell
    user: str
    site_factor_most: int
    clock_skew_s: float = 30.0
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)


Check = Callable[[PreflightContext], Iterator[PreflightFinding]]
"""A check, which yields its findings."""


def run_checks(
    *,
    shell: Shell,
    configuration: Callable[[], Mapping[str, str]],
    user: str,
    site_factor_most: int,
    clock_skew_s: float = 30.0,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    more: Sequence[Check] = (),
) -> list[PreflightFinding]:
    """Run all checks of a cluster and return their findings.

    Where the controller does not answer, this is the only finding.

    Parameters
    ----------
    shell, user, site_factor_most, clock_skew_s, clock
        As in :class:`PreflightContext`.
    configuration : callable
        Returns the controller's configuration, like :meth:`helios.slurm.backend.Backend.configuration`.
    more : sequence of Check
        Further checks, such as those of :func:`helios.slurm.preflight.power_checks`.
    """
    try:
        settings = configuration()
    except HeliosError as reason:
        return [
            PreflightFinding(check="controller", verdict=FindingLevel.FAIL, message=reason.message, hint=reason.hint)
        ]
    context = PreflightContext(
        configuration=settings,
        shell=shell,
        user=user,
        site_factor_most=site_factor_most,
        clock_skew_s=clock_skew_s,
        clock=clock,
    )
    return [finding for check in (*_CHECKS, *more) for finding in _run_check(check, context)]


def _run_check(check: Check, context: PreflightContext) -> list[PreflightFinding]:
    try:
        return list(check(context))
    except HeliosError as reason:
        function = check.func if isinstance(check, partial) else check
        name = function.__name__.strip("_").replace("_", " ")
        return [PreflightFinding(check=name, verdict=FindingLevel.WARN, message=reason.message, hint=reason.hint)]


def _finding(check: str, message: str, *, hint: str = "", level: FindingLevel = FindingLevel.WARN) -> PreflightFinding:
    """Return a finding, which is of ``level`` if it has a hint.

    Without a hint it is ``ok``.
    """
    return PreflightFinding(check=check, verdict=level if hint else FindingLevel.OK, message=message, hint=hint)


def _controller(context: PreflightContext) -> Iterator[PreflightFinding]:
    version = context.configuration.get("SLURM_VERSION", "unknown")
    name = context.configuration.get("ClusterName", "of unknown name")
    known = OLDEST_RELEASE <= parse.release(version) <= NEWEST_RELEASE
    hint = "" if known else "Helios was run with 22.05 to 26.05; try it in mode shadow first."
    yield _finding("controller", f"cluster {name} answers, Slurm {version}", hint=hint)


def _priority(context: PreflightContext) -> Iterator[PreflightFinding]:
    kind = context.configuration.get("PriorityType", "unknown")
    hint = "Set PriorityType=priority/multifactor: else a SiteFactor has no effect."
    hint = "" if kind == "priority/multifactor" else hint
    yield _finding("priority", f"PriorityType is {kind}", hint=hint, level=FindingLevel.FAIL)
    if "INCR_ONLY" in context.configuration.get("PriorityFlags", ""):
        message = "PriorityFlags has INCR_ONLY: priorities never fall, so nothing that Helios raises can be reverted"
        yield _finding("priority", message, hint="Take INCR_ONLY out of PriorityFlags.", level=FindingLevel.FAIL)


def _weights(context: PreflightContext) -> Iterator[PreflightFinding]:
    found = {name: parse.whole(context.configuration.get(f"PriorityWeight{name}", "")) or 0 for name in _WEIGHTS}
    weights = ", ".join(f"{name} {weight:,}" for name, weight in found.items() if weight) or "all 0"
    room, most = sum(found.values()), context.site_factor_most
    hint = ""
    if not room:
        hint = "Nothing but Helios would order jobs, and none could be moved down: a priority cannot fall below 1."
    elif most > room:
        hint = (
            f"Helios outweighs everything that the site set; a [slurm] site_factor_most below {room:,} leaves it a say."
        )
    yield _finding("weights", f"priority weights: {weights}; Helios adds at most ±{most:,}", hint=hint)


def _soft_limits(context: PreflightContext) -> Iterator[PreflightFinding]:
    flag = SOFT_LIMIT_FLAG in context.configuration.get("SchedulerParameters", "").lower()
    able = parse.release(context.configuration.get("SLURM_VERSION", "")) >= SOFT_LIMITS_SINCE
    if able and flag:
        yield _finding("soft limits", f"SchedulerParameters has {SOFT_LIMIT_FLAG}")
        return
    hint = f"Add {SOFT_LIMIT_FLAG} to SchedulerParameters to use soft limits." if able else "They need Slurm 23.11."
    message = f"SchedulerParameters lacks {SOFT_LIMIT_FLAG}: Helios will refuse every soft limit"
    yield _finding("soft limits", message, hint=hint)


def _rate_limit(context: PreflightContext) -> Iterator[PreflightFinding]:
    limited = "rl_enable" in context.configuration.get("SlurmctldParameters", "").lower()
    message = "SlurmctldParameters has rl_enable: calls of one user are limited" if limited else "calls are not limited"
    hint = "Raise rl_bucket_size, or lower [slurm] writes_per_cycle: one change is one call."
    yield _finding("rate limit", message, hint=hint if limited and not _has_slurm_privileges(context) else "")


def _power(context: PreflightContext) -> Iterator[PreflightFinding]:
    after = context.configuration.get("SuspendTime", "")
    on = context.configuration.get("SuspendProgram", "(null)") != "(null)" and after not in {"", "INFINITE", "NONE"}
    yield _finding("power", f"power saving is on: idle nodes sleep after {after}" if on else "power saving is off")


def _accounting(context: PreflightContext) -> Iterator[PreflightFinding]:
    # sacctmgr prints its configuration even without slurmdbd, but has to ask slurmdbd for a list.
    context.shell.run("sacctmgr", "--noheader", "--parsable2", "show", "cluster", "format=cluster")
    kept = Accounting(shell=context.shell).keeps_jobs()
    reach = "for ever" if kept is None else f"for {kept.days} days"
    short = kept is not None and kept < timedelta(days=30)
    hint = "Helios learns best from months: raise PurgeJobAfter in slurmdbd.conf." if short else ""
    yield _finding("accounting", f"slurmdbd answers and keeps jobs {reach}", hint=hint)


def _gpu_accounting(context: PreflightContext) -> Iterator[PreflightFinding]:
    tracked = context.configuration.get("AccountingStorageTRES", "").split(",")
    shown = lines(context.shell.run("scontrol", "--all", "--oneliner", "show", "node"))
    gres = [found[1] for line in shown if (found := re.search(r" Gres=(\S+)", line))]
    lost: dict[str, int] = {}
    for name in _GPU_TRES:
        types = {word.removeprefix(f"{name}:") for word in tracked if word.startswith(f"{name}:")}
        counts = [parse.gpus(text, name.removeprefix("gres/")) for text in gres]
        if name not in tracked and (count := sum(it.count for it in counts if it.type not in types)):
            lost[name] = count
    if not lost:
        has = ", ".join(name for name in _GPU_TRES if name in tracked)
        none_lost = "no node has GPUs or shares of them that AccountingStorageTRES leaves out"
        yield _finding("gpu accounting", f"AccountingStorageTRES has {has}" if has else none_lost)
        return
    own = [name for name in tracked if name not in _ALWAYS_TRACKED]
    nothing_of = " and ".join(f"the {count:,} {_GPU_TRES[name]}" for name, count in lost.items())
    message = f"AccountingStorageTRES lacks {', '.join(lost)}: the history says nothing of {nothing_of} of these nodes"
    hint = (
        f"Set AccountingStorageTRES={','.join([*own, *lost])} in slurm.conf and restart slurmctld; types such as "
        "gres/gpu:a100 are optional. Jobs that ran before stay as they are."
    )
    yield _finding("gpu accounting", message, hint=hint)


def _clock(context: PreflightContext) -> Iterator[PreflightFinding]:
    skew = abs((context.clock() - controllers_time(context.shell)).total_seconds())
    hint = (
        "Let chrony or ntpd set both clocks; Helios writes nothing until then." if skew > context.clock_skew_s else ""
    )
    yield _finding("clock", f"the controller's clock differs by {skew:.0f} s", hint=hint, level=FindingLevel.FAIL)


def _privileges(context: PreflightContext) -> Iterator[PreflightFinding]:
    if _has_slurm_privileges(context):
        message = f"Helios runs as {context.user}, who may do anything to this cluster"
        hint = "Fit for a trial. For more, give it a user of its own that is a Slurm Operator: docs/install.md"
        yield _finding("privileges", message, hint=hint)
        return
    asked = ("--noheader", "--parsable2", "show", "user", f"name={context.user}", "format=AdminLevel")
    level = lines(context.shell.run("sacctmgr", *asked))[0].strip() or "no account at all"
    hint = f"As an administrator: sacctmgr modify user {context.user} set adminlevel=Operator"
    message = f"user {context.user} has AdminLevel {level}"
    yield _finding("privileges", message, hint="" if level in _LEVELS else hint, level=FindingLevel.FAIL)


def _private_data(context: PreflightContext) -> Iterator[PreflightFinding]:
    private = context.configuration.get("PrivateData", "none")
    if "jobs" in private:
        yield _finding("private data", f"PrivateData is {private}: only operators see other users' jobs")


def _priority_hook(context: PreflightContext) -> Iterator[PreflightFinding]:
    plugins = context.configuration.get("JobSubmitPlugins", "(null)")
    message = f"JobSubmitPlugins is {plugins}"
    if "lua" in re.split(r"\W+", plugins):
        script = Path(context.configuration.get("SLURM_CONF", "")).parent / "job_submit.lua"
        try:
            calls_hook = b"helios_hook" in script.read_bytes()
        except OSError:  # it may lie on another host only
            calls_hook = True
        if calls_hook:
            yield _finding(HOOK, message)
            return
        message = f"{message}, and {script} does not call Helios' hook"
    hint = "Install the hook, after its table is published: docs/priority-hook.md"
    yield _finding(HOOK, f"{message}: new jobs have no place until the next cycle", hint=hint)


def hook_table_check(table: Path) -> Check:
    """Return the check that slurmctld can read the hook's ``table``.

    It is for ``examine(more=...)``.
    """

    def check(context: PreflightContext) -> Iterator[PreflightFinding]:
        user = slurm_user(context)
        if (place := find_denied(user, table)) is not None:
            message = f"SlurmUser {user} may not read {place}: the hook leaves every new job unchanged"
            hint = f"Let {user} into the group of {place}, then start slurmctld again: docs/priority-hook.md"
            yield _finding(HOOK, message, hint=hint)

    return check


_CHECKS: tuple[Check, ...] = (
    _controller,
    _priority,
    _weights,
    _soft_limits,
    _rate_limit,
    _power,
    _accounting,
    _gpu_accounting,
    _clock,
    _privileges,
    _private_data,
    _priority_hook,
)


def slurm_user(context: PreflightContext) -> str:
    """Return the user that slurmctld runs as."""
    return context.configuration.get("SlurmUser", "").partition("(")[0]


def _has_slurm_privileges(context: PreflightContext) -> bool:
    return context.user in {"root", slurm_user(context)}


def controllers_time(shell: Shell) -> datetime:
    """Return the time of the controller's clock, in whole seconds.

    Raises
    ------
    ClusterUnavailable, ClusterRefused, AnswerNotUnderstood
        ``sdiag`` fails.
    HeliosError
        Its output does not contain the time.
    """
    # sdiag prints the time of the answer by the clock of the controller (22.05.8).
    text = shell.run("sdiag").decode("utf-8", "replace")
    found = re.search(r"sdiag output at .*\((\d+)\)", text)
    if found is None:
        raise HeliosError("sdiag does not say what time it is at the controller.")
    return datetime.fromtimestamp(int(found[1]), UTC)


def power_checks(mechanism: str) -> tuple[Check, ...]:
    """Return the checks for a cluster whose nodes Helios may power down.

    They are for ``examine(more=...)``.

    Parameters
    ----------
    mechanism : str
        ``sleep`` or ``keep_awake``, as ``[power] mechanism``.
    """
    keeps_awake = mechanism == "keep_awake"
    return (
        _power_programs,
        partial(_idle_timer, keeps_awake=keeps_awake),
        _power_timeouts,
        _power_rates,
        _kept_awake_counts,
        *((_keep_awake,) if keeps_awake else ()),
        _administrator,
    )


def _power_programs(context: PreflightContext) -> Iterator[PreflightFinding]:
    found = programs(context.configuration)
    for key in ("SuspendProgram", "ResumeProgram"):
        message, hint = f"{key} is {found.get(key)}", ""
        if key not in found:
            message = f"slurm.conf has no {key}"
            hint = "Set it in slurm.conf; deploy/slurm/power has programs for IPMI, Redfish, Wake-on-LAN and clouds."
        elif not Path(found[key]).exists():
            message += ", which is not on this host to be looked at"
        elif not os.access(found[key], os.X_OK):
            message += ", which cannot be run"
            hint = f"chmod 755 {found[key]}; slurmctld's host must have it too."
        yield _finding("power programs", message, hint=hint, level=FindingLevel.FAIL)


def _idle_timer(context: PreflightContext, *, keeps_awake: bool) -> Iterator[PreflightFinding]:
    after_s = power_config(context.configuration).settings.suspend_time_s
    if math.isinf(after_s):
        message = "SuspendTime is INFINITE: Slurm refuses every power_down, and wakes no node for a job"
        hint = "Set SuspendTime=604800 (a week) in slurm.conf."
        yield _finding("idle timer", message, hint=hint, level=FindingLevel.FAIL)
        return
    hint = ""
    if keeps_awake and after_s >= _DAY_S:
        hint = 'Hardly a node will ever sleep: with [power] mechanism = "keep_awake" set SuspendTime=600.'
    elif not keeps_awake and after_s < _DAY_S:
        hint = "Slurm would put nodes to sleep before Helios does: SuspendTime=604800, a week, leaves it to Helios."
    yield _finding("idle timer", f"SuspendTime is {after_s:.0f} s", hint=hint)


def _power_timeouts(context: PreflightContext) -> Iterator[PreflightFinding]:
    suspend_s, resume_s, batch_s, message_s = (
        seconds(context.configuration.get(key, ""))
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


def _power_rates(context: PreflightContext) -> Iterator[PreflightFinding]:
    rates = {key: context.configuration.get(key, "").partition(" ")[0] for key in ("SuspendRate", "ResumeRate")}
    message = ", ".join(f"{key} is {rate or 'unknown'} nodes a minute" for key, rate in rates.items())
    hint = "0 is no limit: jobs may wake every sleeping node at once. Ask whoever knows your power feed."
    yield _finding("power rates", message, hint=hint if rates["ResumeRate"] == "0" else "")


def _kept_awake_counts(context: PreflightContext) -> Iterator[PreflightFinding]:
    found = power_config(context.configuration)
    if found.settings.keep_awake_meaning:
        hint = "They are no spare nodes: once as many are busy, none waits awake. Leave spare ones to the service ces."
        is_floor = found.surroundings.exclusions.counts_busy
        yield _finding("kept awake", found.settings.keep_awake_meaning, hint=hint if is_floor else "")


def _keep_awake(context: PreflightContext) -> Iterator[PreflightFinding]:
    version = context.configuration.get("SLURM_VERSION", "unknown")
    if parse.release(version) < KEEP_AWAKE_SINCE:
        message = f"Slurm {version} cannot change SuspendExcNodes while it runs"
        hint = 'It needs Slurm 23.02; until then [power] mechanism = "sleep".'
        yield _finding("keep-awake list", message, hint=hint, level=FindingLevel.FAIL)
    elif KEEPS_LIST.lower() in context.configuration.get("ReconfigFlags", "").lower():
        yield _finding("keep-awake list", f"ReconfigFlags has {KEEPS_LIST}")
    else:
        hint = (
            f"After scontrol reconfigure the list is slurm.conf's until Helios' next cycle: ReconfigFlags={KEEPS_LIST}"
        )
        yield _finding("keep-awake list", f"ReconfigFlags lacks {KEEPS_LIST}", hint=hint)


def _administrator(context: PreflightContext) -> Iterator[PreflightFinding]:
    if _has_slurm_privileges(context):
        yield _finding("administrator", f"{context.user} may change nodes")
        return
    complaint = context.shell.answer("scontrol", "update", f"NodeName={PROBE}", "Weight=1").error_output
    if "Invalid node name" in complaint:
        yield _finding("administrator", f"user {context.user} may change nodes")
        return
    hint = (
        "Nodes take an administrator, jobs an operator. Run the cycles on nodes as a user of their own, and: "
        f"sacctmgr modify user {context.user} set adminlevel=Administrator"
    )
    message = f"user {context.user} may not change nodes: {quoted(complaint)}"
    yield _finding("administrator", message, hint=hint, level=FindingLevel.FAIL)
