"""What Slurm's words about a node mean for its power: asleep or awake, and why it must be left as it is.

Pure functions. Flags are judged by what is known of them, not by what is forbidden: one that this version of Helios has
never heard of keeps its hands off.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from helios.errors import ConfigurationInvalid, HostlistInvalid
from helios.model import NodePower, PowerSettings
from helios.model.hostlist import expand
from helios.slurm import parse
from helios.slurm.backend import RawNode
from helios.slurm.commands import CommandsBackend
from helios.slurm.shell import Shell, lines, quoted

_POWER_FLAGS = frozenset({"POWER_DOWN", "POWERING_DOWN", "POWERED_DOWN", "POWER_UP", "POWERING_UP"})
_HARMLESS = _POWER_FLAGS | {"CLOUD", "PERFCTRS", "NET"}
_BASES = frozenset({"IDLE", "ALLOCATED", "MIXED"})
_OVERRIDDEN = {
    "DRAIN": "it is drained",
    "FAIL": "it is marked as failing",
    "MAINT": "it is under maintenance",
    "MAINTENANCE": "it is under maintenance",
    "INVALID_REG": "it registered with less than slurm.conf gives it",
    "REBOOT_REQUESTED": "a reboot was asked for",
    "REBOOT_ISSUED": "it is rebooting",
    "REBOOT^": "it is rebooting",
    "REBOOT@": "a reboot was asked for",
    "DYNAMIC_NORM": "it is a dynamic node",
    "DYNAMIC_FUTURE": "it is a dynamic node",
    "POWER_DRAIN": "it is drained",
    "BLOCKED": "another job has it to itself",
    "EXTERNAL": "it is not Slurm's",
}
"""Flags of a node that somebody, or something outside, has in hand: Helios neither puts it to sleep nor wakes it."""
_SLURMS = {
    "COMPLETING": "a job on it is still completing",
    "PLANNED": "Slurm plans to start a job on it",
    "RESERVED": "it is reserved",
}
"""Flags of a node that Slurm itself needs: it is not put to sleep; to wake it does no harm."""
_COUNTED = re.compile(r"(?P<nodes>.*?)(?::(?P<least>\d+))?")
_SIGNATURE = re.compile(r" \[[^\[\]]*@[^\[\]]*\]$")
"""Who gave a reason and when, as scontrol adds it and pyslurm does not."""
_BETWEEN = re.compile(r",(?![^\[]*\])")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAwake:
    """Nodes of which the cluster keeps ``least`` idle and awake; None: every one."""

    nodes: tuple[str, ...]
    least: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusions:
    """What the cluster itself never puts to sleep; an explicit ``POWER_DOWN`` ignores it (22.05.8), Helios does not.

    Attributes
    ----------
    warm : tuple of Warm
        ``SuspendExcNodes``.
    partitions, states : set of str
        ``SuspendExcParts`` and ``SuspendExcStates``.
    """

    warm: tuple[KeptAwake, ...] = ()
    partitions: frozenset[str] = frozenset()
    states: frozenset[str] = frozenset()

    @classmethod
    def of(cls, configuration: Mapping[str, str]) -> Exclusions:
        """Return what ``scontrol show config`` says.

        Raises
        ------
        HostlistInvalid
            ``SuspendExcNodes`` cannot be read: nobody knows then what must stay awake.
        """
        return cls(
            warm=keep_awake_list(configuration.get("SuspendExcNodes", "")),
            partitions=_words(configuration.get("SuspendExcParts", "")),
            states=frozenset(word.upper() for word in _words(configuration.get("SuspendExcStates", ""))),
        )


NO_EXCLUSIONS = Exclusions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What else of the cluster bears on its nodes: what it never puts to sleep, and the rack of each node."""

    exclusions: Exclusions = NO_EXCLUSIONS
    racks: Mapping[str, str] = field(default_factory=dict)


def keep_awake_list(keep_awake: str) -> tuple[KeptAwake, ...]:
    """Return what a ``SuspendExcNodes`` as ``n[10-20]:4,n100`` keeps awake.

    Slurm up to 22.05 gives a number to all that stands before it since the last one, later ones to the word that it is
    written behind (read in their source). The latter is taken: it never keeps fewer awake.

    Raises
    ------
    HostlistInvalid
        It is no such list.
    """
    if parse.text(keep_awake.strip()) is None:
        return ()
    found = (_COUNTED.fullmatch(word) for word in _BETWEEN.split(keep_awake.strip()) if word)
    return tuple(
        KeptAwake(nodes=expand(match["nodes"]), least=int(match["least"]) if match["least"] else None)
        for match in found
        if match
    )


def same_list(one: str, other: str) -> bool:
    """Return whether two keep-awake lists keep the same nodes awake, however they are written."""
    try:
        return _meaning(one) == _meaning(other)
    except HostlistInvalid:
        return one.strip() == other.strip()


def join_exceptions(own: str, nodes: Sequence[str]) -> str:
    """Return a keep-awake list of ``nodes`` beside those of the site's ``own``; empty: none."""
    own = parse.text(own.strip()) or ""
    kept = {node for part in keep_awake_list(own) if part.least is None for node in part.nodes}
    # Plain names, behind the site's own: with a number anywhere Slurm splits at every comma, also within brackets.
    return ",".join([own] * bool(own) + [node for node in dict.fromkeys(nodes) if node not in kept])


def power(node: RawNode) -> NodePower | None:
    """Return whether a node is awake; None: it is down, does not answer, or its state is unknown."""
    flags = state_flags(node)
    if node["state"] not in _BASES:
        return None
    if flags & {"POWER_DOWN", "POWERING_DOWN"}:
        return NodePower.FALLING_ASLEEP
    if flags & {"POWER_UP", "POWERING_UP"}:
        return NodePower.WAKING
    if "POWERED_DOWN" in flags:
        return NodePower.ASLEEP
    return None if "NOT_RESPONDING" in flags else NodePower.AWAKE


def is_idle(node: RawNode) -> bool:
    """Return whether a node holds no job."""
    return node["state"] == "IDLE" and not node["cpus_held"] and not node["gpus_held"]


def state_flags(node: RawNode) -> frozenset[str]:
    """Return a node's state flags."""
    return frozenset((node["flags"] or "").split("+")) - {""}


def in_hand(node: RawNode) -> str:
    """Return why Helios may not even wake a node, for a person: somebody has it in hand; empty: it may."""
    why = f" ({_SIGNATURE.sub('', node['reason'])})" if node["reason"] else ""
    if node["state"] == "DOWN":
        return f"it is down{why}"
    if node["state"] not in _BASES:
        return f"its state is {node['state']}"
    if found := next((said for flag, said in _OVERRIDDEN.items() if flag in state_flags(node)), ""):
        return f"{found}{why}"
    unknown = state_flags(node) - _HARMLESS - _SLURMS.keys() - {"NOT_RESPONDING"}
    return f"its flag {min(unknown)} is not known to Helios" if unknown else ""


def excluded_reason(node: RawNode, exclusions: Exclusions = NO_EXCLUSIONS) -> str:
    """Return why Helios must not put a node to sleep, idle or not, for a person; empty: it may.

    ``SuspendExcNodes`` is not among the reasons; see :func:`kept_awake`.
    """
    if why := in_hand(node):
        return why
    if found := next((said for flag, said in _SLURMS.items() if flag in state_flags(node)), ""):
        return found
    if power(node) is None:
        return "it does not answer"
    if parts := exclusions.partitions & _words(node["partitions"]):
        return f"SuspendExcParts names its partition {min(parts)}"
    states = exclusions.states & (state_flags(node) | {node["state"]})
    return f"SuspendExcStates names {min(states)}" if states else ""


def kept_awake(nodes: Iterable[RawNode], exclusions: Exclusions) -> frozenset[str]:
    """Return the nodes that ``SuspendExcNodes`` keeps awake now.

    Of a list with a number, the first so many that are awake, idle and in service: with fewer, every one. Marking some
    of them leaves the number awake however many of the others are put to sleep.
    """
    ready = [node["name"] for node in nodes if is_idle(node) and power(node) is NodePower.AWAKE and not in_hand(node)]
    kept: set[str] = set()
    for part in exclusions.warm:
        members = frozenset(part.nodes)
        kept |= members if part.least is None else frozenset([name for name in ready if name in members][: part.least])
    return frozenset(kept)


def _meaning(keep_awake: str) -> tuple[frozenset[str], frozenset[tuple[frozenset[str], int]]]:
    parts = keep_awake_list(keep_awake)
    plain = frozenset(node for part in parts if part.least is None for node in part.nodes)
    return plain, frozenset((frozenset(part.nodes), part.least) for part in parts if part.least is not None)


def _words(text: str) -> frozenset[str]:
    return frozenset(word for word in re.split(r"[,\s]+", parse.text(text) or "") if word)


# How a cluster is set to put nodes to sleep and to wake them: read from ``scontrol``, and what it lacks, for a
# person.
#
# Always asked of Slurm's commands, whatever the way in: pyslurm 25.11 knows neither a partition's own times nor
# topology.

KEEP_AWAKE_SINCE = (23, 2)
"""First release in which ``scontrol update SuspendExcNodes=`` is known; 22.05.8: No valid entity in update command."""
KEEPS_LIST = "KeepPowerSaveSettings"
"""Flag of ``ReconfigFlags`` without which ``scontrol reconfigure`` forgets the list and goes back to slurm.conf."""
_ENDLESS = frozenset({"INFINITE", "UNLIMITED", "NONE", "-1", "-1 sec"})
_FIELD = re.compile(r"(\w+)=(\S*)")
_NO_TOPOLOGY = ("none", "flat", "default")


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerConfig:
    """What was read of how a cluster powers its nodes.

    Attributes
    ----------
    settings : PowerSettings
        What services and control are told.
    surroundings : Surroundings
        What the cluster never puts to sleep, and its racks.
    release : tuple of int
        Slurm's release.
    """

    settings: PowerSettings
    surroundings: Surroundings
    release: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerConfigReader:
    """Asks Slurm's commands how nodes are powered, and changes the keep-awake list.

    Parameters
    ----------
    shell : Shell
        How commands are run.
    racks : mapping
        Rack by node, where the site says it; goes before Slurm's topology.
    """

    shell: Shell
    racks: Mapping[str, str]

    def __call__(self) -> PowerConfig:
        """Return how nodes are powered now.

        Raises
        ------
        ClusterUnavailable
            The controller does not answer.
        """
        configuration = self.configuration()
        partitions = lines(self.shell.run("scontrol", "--all", "--oneliner", "show", "partition"))
        racks = self._topology(configuration) | dict(self.racks)
        return power_config(configuration, partitions, racks)

    def configuration(self) -> dict[str, str]:
        """Return what ``scontrol show config`` shows."""
        backend = CommandsBackend(commands_folder=self.shell.folder, timeout_s=self.shell.timeout_s)
        backend.shell = self.shell
        return backend.configuration()

    def keep_awake(self, keep_awake: str) -> str:
        """Write the keep-awake list; return nothing where Slurm accepted it, else its message."""
        answer = self.shell.answer("scontrol", "update", f"SuspendExcNodes={keep_awake}")
        return quoted(answer.complaint) if answer.complaint.strip() or answer.status else ""

    def _topology(self, configuration: Mapping[str, str]) -> dict[str, str]:
        if configuration.get("TopologyPlugin", "").rpartition("/")[2] in _NO_TOPOLOGY:
            return {}
        answer = self.shell.answer("scontrol", "--oneliner", "show", "topology")
        return topology_racks(lines(answer.output)) if answer.status == 0 else {}


def power_config(
    configuration: Mapping[str, str], partitions: Sequence[str] = (), racks: Mapping[str, str] | None = None
) -> PowerConfig:
    """Return what the answers of ``scontrol`` mean.

    Parameters
    ----------
    configuration : mapping
        ``scontrol show config``.
    partitions : sequence of str
        ``scontrol --oneliner show partition``.
    racks : mapping, optional
        Rack by node.
    """
    release = parse.release(configuration.get("SLURM_VERSION", ""))
    exclusions, unread = _exclusions(configuration)
    own = [dict(_FIELD.findall(line)) for line in partitions]
    suspend_times = _of_all("SuspendTime", configuration, own)
    why_not = _why_not(configuration, min(suspend_times)) or unread
    settings = PowerSettings(
        suspend_time_s=min(suspend_times),
        suspend_timeout_s=max(_finite(_of_all("SuspendTimeout", configuration, own))),
        resume_timeout_s=max(_finite(_of_all("ResumeTimeout", configuration, own))),
        keep_awake=parse.text(configuration.get("SuspendExcNodes", "")) or "",
        can_sleep=not why_not,
        can_keep_awake=not why_not and release >= KEEP_AWAKE_SINCE,
        why_not=why_not,
    )
    return PowerConfig(
        settings=settings, surroundings=Surroundings(exclusions=exclusions, racks=racks or {}), release=release
    )


def topology_racks(shown: Sequence[str]) -> dict[str, str]:
    """Return the leaf switch or block of each node, as ``scontrol --oneliner show topology`` lists them."""
    racks: dict[str, str] = {}
    for line in shown:
        field: dict[str, str] = dict(_FIELD.findall(line))
        name = field.get("SwitchName") or field.get("BlockName")
        if name and field.get("Level", "0") == "0" and "Nodes" in field:
            for node in expand(field["Nodes"]):
                racks.setdefault(node, name)
    return racks


def feature_racks(text: str) -> dict[str, str]:
    """Return the rack of each node as ``[power] racks`` names them: ``r1=gpu[01-08]; r2=gpu[09-16]``.

    Raises
    ------
    ConfigurationInvalid
        It is written otherwise.
    """
    racks: dict[str, str] = {}
    for part in filter(str.strip, text.split(";")):
        rack, equals, nodes = (word.strip() for word in part.partition("="))
        try:
            named = expand(nodes)
        except HostlistInvalid as reason:
            raise ConfigurationInvalid(f"[power] racks: {reason.message}", hint=reason.hint) from reason
        if not (rack and equals and named):
            raise ConfigurationInvalid(
                f"[power] racks: {part.strip()!r} names no rack and its nodes.",
                hint="Write it as: r1=gpu[01-08]; r2=gpu[09-16]",
            )
        racks |= dict.fromkeys(named, rack)
    return racks


def seconds(text: str) -> float:
    """Return a length as ``604800 sec``, ``604800`` or ``INFINITE`` in seconds; inf: never, or not said."""
    found = re.match(r"\d+", text)
    return math.inf if text in _ENDLESS or found is None else float(found[0])


def programs(configuration: Mapping[str, str]) -> dict[str, str]:
    """Return the power programs by their keys in slurm.conf, those that are set."""
    keys = ("SuspendProgram", "ResumeProgram")
    return {key: program for key in keys if (program := parse.text(configuration.get(key, "")))}


def _why_not(configuration: Mapping[str, str], suspend_time_s: float) -> str:
    lacking = [key for key in ("SuspendProgram", "ResumeProgram") if key not in programs(configuration)]
    if lacking:
        return (
            f"slurm.conf has no {' and no '.join(lacking)}: Slurm cannot switch nodes off and on. "
            "Set both (docs/power.md), and SuspendTime; then restart slurmctld"
        )
    if math.isinf(suspend_time_s):
        return (
            "SuspendTime is INFINITE, with which Slurm refuses every power_down and wakes no node for a job. "
            "Set SuspendTime=604800 (a week) in slurm.conf; then: scontrol reconfigure"
        )
    return ""


def _exclusions(configuration: Mapping[str, str]) -> tuple[Exclusions, str]:
    try:
        return Exclusions.of(configuration), ""
    except HostlistInvalid as reason:
        return NO_EXCLUSIONS, f"SuspendExcNodes in slurm.conf: {reason.message}"


def _of_all(key: str, configuration: Mapping[str, str], partitions: Sequence[Mapping[str, str]]) -> list[float]:
    """Return a time of the whole cluster, and those of the partitions that have their own (21.08 and newer)."""
    own = (field.get(key, "GLOBAL") for field in partitions)
    return [seconds(configuration.get(key, "")), *(seconds(text) for text in own if text != "GLOBAL")]


def _finite(lengths: Sequence[float]) -> Iterator[float]:
    found = [length for length in lengths if math.isfinite(length)]
    yield from found or [0.0]
