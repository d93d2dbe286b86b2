"""Power state of nodes, and reasons to leave a node alone.

Flags are checked against a list of known ones: a node with a flag that this version of Helios does not know is left
alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from helios.errors import HostlistInvalid
from helios.model import NodePower
from helios.model.nodes import expand, fold
from helios.slurm import parse
from helios.slurm.backend import RawNode

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
"""Flags of a node under the control of a person or another system. Helios neither puts it to sleep nor wakes it."""
_SLURMS = {
    "COMPLETING": "a job on it is still completing",
    "PLANNED": "Slurm plans to start a job on it",
    "RESERVED": "it is reserved",
}
"""Flags of a node that Slurm itself needs. It is not put to sleep, but waking it does no harm."""
COUNTS_BUSY_SINCE = (24, 5)
"""First release whose ``SuspendExcNodes=NODES:N`` counts nodes with jobs in N (its CHANGELOG)."""
_COUNTED = re.compile(r"(?P<nodes>.*?)(?::(?P<least>\d+))?")
_SIGNATURE = re.compile(r" \[[^\[\]]*@[^\[\]]*\]$")
"""Author and time of a reason, which scontrol adds and pyslurm does not."""
_BETWEEN = re.compile(r",(?![^\[]*\])")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAwake:
    """Nodes that the cluster keeps awake.

    Of them ``least`` stay awake, or all for None. Whether busy ones count is :attr:`Exclusions.counts_busy`.
    """

    nodes: tuple[str, ...]
    least: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusions:
    """Nodes that the cluster itself never puts to sleep.

    An explicit ``POWER_DOWN`` ignores them (22.05.8), but Helios does not.

    Attributes
    ----------
    warm : tuple of KeptAwake
        ``SuspendExcNodes``.
    counts_busy : bool
        Whether a number in ``SuspendExcNodes`` also counts nodes that hold jobs.
    partitions, states : set of str
        ``SuspendExcParts`` and ``SuspendExcStates``.
    """

    warm: tuple[KeptAwake, ...] = ()
    counts_busy: bool = False
    partitions: frozenset[str] = frozenset()
    states: frozenset[str] = frozenset()

    @classmethod
    def of(cls, configuration: Mapping[str, str]) -> Exclusions:
        """Return the exclusions in the output of ``scontrol show config``.

        Raises
        ------
        HostlistInvalid
            ``SuspendExcNodes`` cannot be read, so that it is not known what must stay awake.
        """
        return cls(
            warm=keep_awake_list(configuration.get("SuspendExcNodes", "")),
            counts_busy=parse.release(configuration.get("SLURM_VERSION", "")) >= COUNTS_BUSY_SINCE,
            partitions=_split_words(configuration.get("SuspendExcParts", "")),
            states=frozenset(word.upper() for word in _split_words(configuration.get("SuspendExcStates", ""))),
        )


NO_EXCLUSIONS = Exclusions()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSurroundings:
    """Exclusions from sleep, and the rack of each node."""

    exclusions: Exclusions = NO_EXCLUSIONS
    racks: Mapping[str, str] = field(default_factory=dict)


def keep_awake_list(keep_awake: str) -> tuple[KeptAwake, ...]:
    """Parse the value of ``SuspendExcNodes``.

    Example: ``n[10-20]:4,n100``. Slurm up to 22.05 applies a number to all words since the last number, later releases
    only to the word before it (read in their source). The latter is used here, because it never keeps fewer nodes
    awake.

    Raises
    ------
    HostlistInvalid
        The text is no such list.
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
    """Return whether two keep-awake lists keep the same nodes awake.

    The notation does not matter.
    """
    try:
        return _parse_for_comparison(one) == _parse_for_comparison(other)
    except HostlistInvalid:
        return one.strip() == other.strip()


def join_exceptions(own: str, nodes: Sequence[str]) -> str:
    """Return a keep-awake list of the site's ``own`` nodes and ``nodes``.

    Empty where there are none.
    """
    own = parse.text(own.strip()) or ""
    kept = {node for part in keep_awake_list(own) if part.least is None for node in part.nodes}
    # Plain names without brackets, behind the site's own list. Where the list has a number, Slurm splits it at every
    # comma, also within brackets.
    return ",".join([own] * bool(own) + [node for node in dict.fromkeys(nodes) if node not in kept])


def power(node: RawNode) -> NodePower | None:
    """Return a node's power state.

    None where it is down, does not answer, or its state is unknown. Slurm starts no job on a node that is powered down
    and does not answer, and so does not wake it.
    """
    flags = state_flags(node)
    if node["state"] not in _BASES:
        return None
    if flags & {"POWER_DOWN", "POWERING_DOWN"}:
        return NodePower.FALLING_ASLEEP
    if flags & {"POWER_UP", "POWERING_UP"}:
        return NodePower.WAKING
    if "NOT_RESPONDING" in flags:
        return None
    return NodePower.ASLEEP if "POWERED_DOWN" in flags else NodePower.AWAKE


def is_idle(node: RawNode) -> bool:
    """Return whether a node holds no job."""
    return node["state"] == "IDLE" and not node["cpus_held"] and not node["gpus_held"]


def state_flags(node: RawNode) -> frozenset[str]:
    """Return a node's state flags."""
    return frozenset((node["flags"] or "").split("+")) - {""}


def why_not_wake(node: RawNode) -> str:
    """Return why Helios may not even wake a node, for a person.

    Empty where it may. The reasons are states and flags that a person or another system controls.
    """
    why = f" ({_SIGNATURE.sub('', node['reason'])})" if node["reason"] else ""
    if node["state"] == "DOWN":
        return f"it is down{why}"
    if node["state"] not in _BASES:
        return f"its state is {node['state']}"
    if found := next((text for flag, text in _OVERRIDDEN.items() if flag in state_flags(node)), ""):
        return f"{found}{why}"
    if {"POWERED_DOWN", "NOT_RESPONDING"} <= state_flags(node):
        return "it is powered down and does not answer, so that Slurm never uses it (scontrol: state=power_down_force)"
    unknown = state_flags(node) - _HARMLESS - _SLURMS.keys() - {"NOT_RESPONDING"}
    return f"its flag {min(unknown)} is not known to Helios" if unknown else ""


def excluded_reason(node: RawNode, exclusions: Exclusions = NO_EXCLUSIONS) -> str:
    """Return why Helios must not put a node to sleep, for a person.

    Empty where it may. The reasons hold for idle and busy nodes. ``SuspendExcNodes`` is not among them; see
    :func:`kept_awake`.
    """
    if why := why_not_wake(node):
        return why
    if found := next((text for flag, text in _SLURMS.items() if flag in state_flags(node)), ""):
        return found
    if power(node) is None:
        return "it does not answer"
    if parts := exclusions.partitions & _split_words(node["partitions"]):
        return f"SuspendExcParts names its partition {min(parts)}"
    states = exclusions.states & (state_flags(node) | {node["state"]})
    return f"SuspendExcStates names {min(states)}" if states else ""


def kept_awake(nodes: Iterable[RawNode], exclusions: Exclusions) -> frozenset[str]:
    """Return the nodes that ``SuspendExcNodes`` keeps awake now.

    Of an entry with a number these are the first that are awake, idle and in service, up to the number. So that number
    stays awake however many of the other nodes are put to sleep. From 24.05 on it is less one for each busy node.
    """
    names, ready, busy = set[str](), list[str](), set[str]()
    for node in nodes:
        names.add(node["name"])
        if power(node) is not NodePower.AWAKE or why_not_wake(node):
            continue
        # A node with a completing job counts as busy (_pick_exc_nodes of 24.11.5). One whose jobs are all suspended
        # counts as neither there; it cannot be told from others here.
        if is_idle(node) and "COMPLETING" not in state_flags(node):
            ready.append(node["name"])
        else:
            busy.add(node["name"])
    kept: set[str] = set()
    for part in exclusions.warm:
        members = names.intersection(part.nodes)
        if part.least is None or part.least >= len(members):
            kept.update(part.nodes)
            continue
        least = max(part.least - len(busy & members), 0) if exclusions.counts_busy else part.least
        kept.update([name for name in ready if name in members][:least])
    return frozenset(kept)


def counts_meaning(exclusions: Exclusions) -> str:
    """Return what the numbers in ``SuspendExcNodes`` mean, for a person.

    Empty where it has none.
    """
    counted = [part for part in exclusions.warm if part.least is not None]
    which = (
        "those that hold jobs included (Slurm 24.05 or newer)"
        if exclusions.counts_busy
        else "besides those that hold jobs (Slurm before 24.05)"
    )
    kept = (f"{part.least} of {len(part.nodes)} nodes awake, {which}: {fold(part.nodes)}" for part in counted)
    return f"SuspendExcNodes keeps {'; '.join(kept)}" if counted else ""


def _parse_for_comparison(keep_awake: str) -> tuple[frozenset[str], frozenset[tuple[frozenset[str], int]]]:
    parts = keep_awake_list(keep_awake)
    plain = frozenset(node for part in parts if part.least is None for node in part.nodes)
    return plain, frozenset((frozenset(part.nodes), part.least) for part in parts if part.least is not None)


def _split_words(text: str) -> frozenset[str]:
    return frozenset(word for word in re.split(r"[,\s]+", parse.text(text) or "") if word)
