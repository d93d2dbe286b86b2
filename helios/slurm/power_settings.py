"""How a cluster is set to put nodes to sleep and to wake them: read from ``scontrol``, and what it lacks, for a person.

Always asked of Slurm's commands, whatever the way in: pyslurm 25.11 knows neither a partition's own times nor topology.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from helios.errors import ConfigurationInvalid, HostlistInvalid
from helios.hostlist import expand
from helios.model import PowerSettings
from helios.slurm import values
from helios.slurm.commands import CommandsBackend
from helios.slurm.power import NO_EXCLUSIONS, Exclusions, Surroundings
from helios.slurm.shell import Shell, lines, quoted

KEEP_AWAKE_SINCE = (23, 2)
"""First release in which ``scontrol update SuspendExcNodes=`` is known; 22.05.8: No valid entity in update command."""
KEEPS_LIST = "KeepPowerSaveSettings"
"""Flag of ``ReconfigFlags`` without which ``scontrol reconfigure`` forgets the list and goes back to slurm.conf."""
_ENDLESS = frozenset({"INFINITE", "UNLIMITED", "NONE", "-1", "-1 sec"})
_FIELD = re.compile(r"(\w+)=(\S*)")
_NO_TOPOLOGY = ("none", "flat", "default")


@dataclass(frozen=True, slots=True, kw_only=True)
class Powering:
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
class PowerDesk:
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

    def __call__(self) -> Powering:
        """Return how nodes are powered now.

        Raises
        ------
        ClusterUnavailable
            The controller does not answer.
        """
        configuration = self.configuration()
        partitions = lines(self.shell.run("scontrol", "--all", "--oneliner", "show", "partition"))
        racks = self._topology(configuration) | dict(self.racks)
        return powering(configuration, partitions, racks)

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
        return racks_of_topology(lines(answer.output)) if answer.status == 0 else {}


def powering(
    configuration: Mapping[str, str], partitions: Sequence[str] = (), racks: Mapping[str, str] | None = None
) -> Powering:
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
    release = values.release(configuration.get("SLURM_VERSION", ""))
    exclusions, unread = _exclusions(configuration)
    own = [dict(_FIELD.findall(line)) for line in partitions]
    suspend_times = _of_all("SuspendTime", configuration, own)
    why_not = _why_not(configuration, min(suspend_times)) or unread
    settings = PowerSettings(
        suspend_time_s=min(suspend_times),
        suspend_timeout_s=max(_finite(_of_all("SuspendTimeout", configuration, own))),
        resume_timeout_s=max(_finite(_of_all("ResumeTimeout", configuration, own))),
        keep_awake=values.text(configuration.get("SuspendExcNodes", "")) or "",
        can_sleep=not why_not,
        can_keep_awake=not why_not and release >= KEEP_AWAKE_SINCE,
        why_not=why_not,
    )
    return Powering(
        settings=settings, surroundings=Surroundings(exclusions=exclusions, racks=racks or {}), release=release
    )


def racks_of_topology(shown: Sequence[str]) -> dict[str, str]:
    """Return the leaf switch or block of each node, as ``scontrol --oneliner show topology`` lists them."""
    racks: dict[str, str] = {}
    for line in shown:
        field: dict[str, str] = dict(_FIELD.findall(line))
        name = field.get("SwitchName") or field.get("BlockName")
        if name and field.get("Level", "0") == "0" and "Nodes" in field:
            for node in expand(field["Nodes"]):
                racks.setdefault(node, name)
    return racks


def racks_of_configuration(text: str) -> dict[str, str]:
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
            raise ConfigurationInvalid(f"[power] racks: {reason.fact}", remedy=reason.remedy) from reason
        if not (rack and equals and named):
            raise ConfigurationInvalid(
                f"[power] racks: {part.strip()!r} names no rack and its nodes.",
                remedy="Write it as: r1=gpu[01-08]; r2=gpu[09-16]",
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
    return {key: program for key in keys if (program := values.text(configuration.get(key, "")))}


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
        return NO_EXCLUSIONS, f"SuspendExcNodes in slurm.conf: {reason.fact}"


def _of_all(key: str, configuration: Mapping[str, str], partitions: Sequence[Mapping[str, str]]) -> list[float]:
    """Return a time of the whole cluster, and those of the partitions that have their own (21.08 and newer)."""
    own = (field.get(key, "GLOBAL") for field in partitions)
    return [seconds(configuration.get(key, "")), *(seconds(text) for text in own if text != "GLOBAL")]


def _finite(lengths: Sequence[float]) -> Iterator[float]:
    found = [length for length in lengths if math.isfinite(length)]
    yield from found or [0.0]
