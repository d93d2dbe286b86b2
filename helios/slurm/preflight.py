"""What a cluster's own settings mean for Helios: facts for ``helios doctor``, each with what to do about it.

Nothing here changes anything. Each check stands alone: one that cannot be made says so and does not hide the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path

from helios.asked_of_jobs import SOFT_LIMIT_FLAG
from helios.errors import HeliosError
from helios.private_files import closed_to
from helios.slurm import values
from helios.slurm.accounting import Accounting
from helios.slurm.shell import Shell, lines
from helios.slurm.translate import SOFT_LIMITS_SINCE

OLDEST_RELEASE = (22, 5)
"""The oldest Slurm that Helios was run with."""
NEWEST_RELEASE = (26, 5)
"""The newest Slurm that Helios was run with."""
HOOK = "priority hook"
"""The check whether slurmctld asks Helios' hook about new jobs; how bad it is where not, the modes say."""
_WEIGHTS = ("Age", "Assoc", "FairShare", "JobSize", "Partition", "QOS")
_LEVELS = ("Operator", "Administrator")


class Level(StrEnum):
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
    remedy : str
        What to do; empty: nothing.
    """

    check: str
    verdict: Level
    fact: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
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


Check = Callable[[Ground], Iterator[Finding]]
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
        As in :class:`Ground`.
    configuration : callable
        Asks the controller, as :meth:`helios.slurm.backend.Backend.configuration`.
    more : sequence of Check
        Further checks, as :func:`helios.slurm.preflight_power.power_checks` has them.
    """
    try:
        settings = configuration()
    except HeliosError as reason:
        return [Finding(check="controller", verdict=Level.FAIL, fact=reason.fact, remedy=reason.remedy)]
    ground = Ground(
        configuration=settings,
        shell=shell,
        user=user,
        site_factor_most=site_factor_most,
        clock_skew_s=clock_skew_s,
        clock=clock,
    )
    return [finding for check in (*_CHECKS, *more) for finding in _tried(check, ground)]


def _tried(check: Check, ground: Ground) -> list[Finding]:
    try:
        return list(check(ground))
    except HeliosError as reason:
        name = check.__name__.strip("_").replace("_", " ")
        return [Finding(check=name, verdict=Level.WARN, fact=reason.fact, remedy=reason.remedy)]


def _controller(ground: Ground) -> Iterator[Finding]:
    version = ground.configuration.get("SLURM_VERSION", "unknown")
    name = ground.configuration.get("ClusterName", "of unknown name")
    known = OLDEST_RELEASE <= values.release(version) <= NEWEST_RELEASE
    yield Finding(
        check="controller",
        verdict=Level.OK if known else Level.WARN,
        fact=f"cluster {name} answers, Slurm {version}",
        remedy="" if known else "Helios was run with 22.05 to 26.05; try it in mode shadow first.",
    )


def _priority(ground: Ground) -> Iterator[Finding]:
    kind = ground.configuration.get("PriorityType", "unknown")
    multifactor = kind == "priority/multifactor"
    yield Finding(
        check="priority",
        verdict=Level.OK if multifactor else Level.FAIL,
        fact=f"PriorityType is {kind}",
        remedy="" if multifactor else "Set PriorityType=priority/multifactor: else a SiteFactor has no effect.",
    )
    if "INCR_ONLY" in ground.configuration.get("PriorityFlags", ""):
        yield Finding(
            check="priority",
            verdict=Level.FAIL,
            fact="PriorityFlags has INCR_ONLY: priorities never fall, so nothing that Helios raises can be taken back",
            remedy="Take INCR_ONLY out of PriorityFlags.",
        )


def _weights(ground: Ground) -> Iterator[Finding]:
    found = {name: _number(ground.configuration.get(f"PriorityWeight{name}", "")) for name in _WEIGHTS}
    said = ", ".join(f"{name} {weight:,}" for name, weight in found.items() if weight) or "all 0"
    room, most = sum(found.values()), ground.site_factor_most
    fact = f"priority weights: {said}; Helios adds at most ±{most:,}"
    if not room:
        remedy = "Nothing but Helios would order jobs, and none could be moved down: a priority cannot fall below 1."
        yield Finding(check="weights", verdict=Level.WARN, fact=fact, remedy=remedy)
    elif most > room:
        remedy = (
            f"Helios outweighs everything that the site set; a [slurm] site_factor_most below {room:,} leaves it a say."
        )
        yield Finding(check="weights", verdict=Level.WARN, fact=fact, remedy=remedy)
    else:
        yield Finding(check="weights", verdict=Level.OK, fact=fact)


def _soft_limits(ground: Ground) -> Iterator[Finding]:
    flag = SOFT_LIMIT_FLAG in ground.configuration.get("SchedulerParameters", "").lower()
    able = values.release(ground.configuration.get("SLURM_VERSION", "")) >= SOFT_LIMITS_SINCE
    if able and flag:
        yield Finding(check="soft limits", verdict=Level.OK, fact=f"SchedulerParameters has {SOFT_LIMIT_FLAG}")
        return
    remedy = f"Add {SOFT_LIMIT_FLAG} to SchedulerParameters to use soft limits." if able else "They need Slurm 23.11."
    fact = f"SchedulerParameters lacks {SOFT_LIMIT_FLAG}: Helios will refuse every soft limit"
    yield Finding(check="soft limits", verdict=Level.WARN, fact=fact, remedy=remedy)


def _rate_limit(ground: Ground) -> Iterator[Finding]:
    limited = "rl_enable" in ground.configuration.get("SlurmctldParameters", "").lower()
    exempt = ground.user in {"root", slurm_user(ground)}
    slow = limited and not exempt
    yield Finding(
        check="rate limit",
        verdict=Level.WARN if slow else Level.OK,
        fact="SlurmctldParameters has rl_enable: calls of one user are limited" if limited else "calls are not limited",
        remedy="Raise rl_bucket_size, or lower [slurm] writes_per_turn: one change is one call." if slow else "",
    )


def _power(ground: Ground) -> Iterator[Finding]:
    after = ground.configuration.get("SuspendTime", "")
    on = ground.configuration.get("SuspendProgram", "(null)") != "(null)" and after not in {"", "INFINITE", "NONE"}
    fact = f"power saving is on: idle nodes sleep after {after}" if on else "power saving is off"
    yield Finding(check="power", verdict=Level.OK, fact=fact)


def _accounting(ground: Ground) -> Iterator[Finding]:
    # sacctmgr shows its configuration with slurmdbd away too; a list it has to ask for.
    ground.shell.run("sacctmgr", "--noheader", "--parsable2", "show", "cluster", "format=cluster")
    kept = Accounting(shell=ground.shell).keeps_jobs()
    reach = "for ever" if kept is None else f"for {kept.days} days"
    short = kept is not None and kept < timedelta(days=30)
    remedy = "Helios learns best from months: raise PurgeJobAfter in slurmdbd.conf." if short else ""
    yield Finding(
        check="accounting",
        verdict=Level.WARN if short else Level.OK,
        fact=f"slurmdbd answers and keeps jobs {reach}",
        remedy=remedy,
    )


def _clock(ground: Ground) -> Iterator[Finding]:
    theirs = controllers_time(ground.shell)
    skew = abs((ground.clock() - theirs).total_seconds())
    bad = skew > ground.clock_skew_s
    yield Finding(
        check="clock",
        verdict=Level.FAIL if bad else Level.OK,
        fact=f"the controller's clock differs by {skew:.0f} s",
        remedy="Let chrony or ntpd set both clocks; Helios writes nothing until then." if bad else "",
    )


def _privileges(ground: Ground) -> Iterator[Finding]:
    if ground.user in {"root", slurm_user(ground)}:
        yield Finding(
            check="privileges",
            verdict=Level.WARN,
            fact=f"Helios runs as {ground.user}, who may do anything to this cluster",
            remedy="Fit for a trial. For more, give it a user of its own that is a Slurm Operator: docs/operate.md",
        )
        return
    asked = ("--noheader", "--parsable2", "show", "user", f"name={ground.user}", "format=AdminLevel")
    level = lines(ground.shell.run("sacctmgr", *asked))[0].strip() or "no account at all"
    able = level in _LEVELS
    yield Finding(
        check="privileges",
        verdict=Level.OK if able else Level.FAIL,
        fact=f"user {ground.user} has AdminLevel {level}",
        remedy="" if able else f"As an administrator: sacctmgr modify user {ground.user} set adminlevel=Operator",
    )


def _private_data(ground: Ground) -> Iterator[Finding]:
    private = ground.configuration.get("PrivateData", "none")
    if "jobs" in private:
        fact = f"PrivateData is {private}: only operators see other users' jobs"
        yield Finding(check="private data", verdict=Level.OK, fact=fact)


def _priority_hook(ground: Ground) -> Iterator[Finding]:
    plugins = ground.configuration.get("JobSubmitPlugins", "(null)")
    fact = f"JobSubmitPlugins is {plugins}"
    if "lua" in re.split(r"\W+", plugins):
        script = Path(ground.configuration.get("SLURM_CONF", "")).parent / "job_submit.lua"
        if _names_hook(script):
            yield Finding(check=HOOK, verdict=Level.OK, fact=fact)
            return
        fact = f"{fact}, and {script} does not call Helios' hook"
    remedy = "Install the hook, after its table is published: docs/priority-hook.md"
    yield Finding(
        check=HOOK, verdict=Level.WARN, fact=f"{fact}: new jobs have no place until the next turn", remedy=remedy
    )


def hook_table_check(table: Path) -> Check:
    """Return the check that slurmctld can read the hook's ``table``, for ``examine(more=...)``."""

    def check(ground: Ground) -> Iterator[Finding]:
        user = slurm_user(ground)
        place = closed_to(user, table)
        if place is None:
            return
        fact = f"SlurmUser {user} may not read {place}: the hook leaves every new job unchanged"
        remedy = f"Let {user} into the group of {place}, then start slurmctld again: docs/priority-hook.md"
        yield Finding(check=HOOK, verdict=Level.WARN, fact=fact, remedy=remedy)

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


def slurm_user(ground: Ground) -> str:
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
