"""The cluster's power-saving configuration, and what it lacks.

It is always read through Slurm's commands, whatever the backend, because pyslurm 25.11 has neither a partition's own
times nor the topology.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from helios.errors import ConfigurationInvalid, HostlistInvalid
from helios.model import PowerSettings
from helios.model.nodes import expand
from helios.slurm import parse
from helios.slurm.commands import show, show_config
from helios.slurm.power import NO_EXCLUSIONS, Exclusions, NodeSurroundings, counts_meaning
from helios.slurm.shell import Shell, lines, quoted

KEEP_AWAKE_SINCE = (23, 2)
"""First release with ``scontrol update SuspendExcNodes=``. 22.05.8 says: No valid entity in update command."""
KEEPS_LIST = "KeepPowerSaveSettings"
"""Flag of ``ReconfigFlags``; without it ``scontrol reconfigure`` resets the list to that of slurm.conf."""
_ENDLESS = frozenset({"INFINITE", "UNLIMITED", "NONE", "-1", "-1 sec"})
_FIELD = re.compile(r"(\w+)=(\S*)")
_NO_TOPOLOGY = ("none", "flat", "default")


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerConfig:
    """Power-saving configuration of a cluster.

    Attributes
    ----------
    settings : PowerSettings
        The part that services and control receive.
    surroundings : NodeSurroundings
        Nodes that the cluster never puts to sleep, and its racks.
    release : tuple of int
        Slurm's release.
    """

    settings: PowerSettings
    surroundings: NodeSurroundings
    release: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerConfigReader:
    """Reader of the power-saving configuration, and writer of the keep-awake list.

    Parameters
    ----------
    shell : Shell
        Runs Slurm's commands.
    racks : mapping
        Rack of each node as the site configured it; has precedence over Slurm's topology.
    """

    shell: Shell
    racks: Mapping[str, str]

    def __call__(self) -> PowerConfig:
        """Return the current power-saving configuration.

        Raises
        ------
        ClusterUnavailable
            The controller does not answer.
        """
        configuration = self.configuration()
        partitions = show(self.shell, "partition").split("\n")
        racks: dict[str, str] = {}
        if configuration.get("TopologyPlugin", "").rpartition("/")[2] not in _NO_TOPOLOGY:
            answer = self.shell.answer("scontrol", "--oneliner", "show", "topology")
            racks = topology_racks(lines(answer.output)) if answer.status == 0 else {}
        return power_config(configuration, partitions, racks | dict(self.racks))

    def configuration(self) -> dict[str, str]:
        """Return the output of ``scontrol show config`` as a mapping."""
        return show_config(self.shell)

    def keep_awake(self, keep_awake: str) -> str:
        """Write the keep-awake list.

        Returns Slurm's message; empty where Slurm accepted the list.
        """
        answer = self.shell.answer("scontrol", "update", f"SuspendExcNodes={keep_awake}")
        return quoted(answer.error_output) if answer.error_output.strip() or answer.status else ""


def power_config(
    configuration: Mapping[str, str], partitions: Sequence[str] = (), racks: Mapping[str, str] | None = None
) -> PowerConfig:
    """Return the configuration in the output of ``scontrol``.

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
    try:
        exclusions, unread = Exclusions.of(configuration), ""
    except HostlistInvalid as reason:
        exclusions, unread = NO_EXCLUSIONS, f"SuspendExcNodes in slurm.conf: {reason.message}"
    own = [dict(_FIELD.findall(line)) for line in partitions]
    suspend_times = _all_times("SuspendTime", configuration, own)
    why_not = _why_not(configuration, min(suspend_times)) or unread
    settings = PowerSettings(
        suspend_time_s=min(suspend_times),
        suspend_timeout_s=max(_finite_times(_all_times("SuspendTimeout", configuration, own))),
        resume_timeout_s=max(_finite_times(_all_times("ResumeTimeout", configuration, own))),
        keep_awake=parse.text(configuration.get("SuspendExcNodes", "")) or "",
        can_sleep=not why_not,
        can_keep_awake=not why_not and release >= KEEP_AWAKE_SINCE,
        why_not=why_not,
        keep_awake_meaning=counts_meaning(exclusions),
    )
    return PowerConfig(
        settings=settings, surroundings=NodeSurroundings(exclusions=exclusions, racks=racks or {}), release=release
    )


def topology_racks(shown: Sequence[str]) -> dict[str, str]:
    """Return each node's leaf switch or block as its rack.

    Read from ``scontrol --oneliner show topology``.
    """
    racks: dict[str, str] = {}
    for line in shown:
        field: dict[str, str] = dict(_FIELD.findall(line))
        name = field.get("SwitchName") or field.get("BlockName")
        if name and field.get("Level", "0") == "0" and "Nodes" in field:
            for node in expand(field["Nodes"]):
                racks.setdefault(node, name)
    return racks


def feature_racks(text: str) -> dict[str, str]:
    """Parse ``[power] racks`` into the rack of each node.

    Example: ``r1=gpu[01-08]; r2=gpu[09-16]``.

    Raises
    ------
    ConfigurationInvalid
        The text has another form.
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
    """Parse ``604800 sec``, ``604800`` or ``INFINITE`` into seconds.

    Returns inf for never, and where there is no number.
    """
    found = re.match(r"\d+", text)
    return math.inf if text in _ENDLESS or found is None else float(found[0])


def programs(configuration: Mapping[str, str]) -> dict[str, str]:
    """Return the configured power programs by their keys in slurm.conf."""
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


def _all_times(key: str, configuration: Mapping[str, str], partitions: Sequence[Mapping[str, str]]) -> list[float]:
    """Return a time of the whole cluster, and those of its partitions.

    Partitions have times of their own from 21.08 on.
    """
    own = (field.get(key, "GLOBAL") for field in partitions)
    return [seconds(configuration.get(key, "")), *(seconds(text) for text in own if text != "GLOBAL")]


def _finite_times(lengths: Sequence[float]) -> Iterator[float]:
    found = [length for length in lengths if math.isfinite(length)]
    yield from found or [0.0]
