"""Reader of a site's Slurm configuration for simulation.

It takes texts that an administrator can print, also on another machine, and contacts no cluster. Notes list what of the
configuration is not simulated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from helios.errors import ConfigurationInvalid
from helios.model.slurm_site import PartitionRules, SlurmSite
from helios.slurm.site_accounts import read_qos, read_shares
from helios.slurm.site_conf import lines, records
from helios.slurm.site_nodes import MachineCounts, parse_node_records, parse_sinfo
from helios.slurm.site_rules import SchedulingSettings, note_unsimulated, priority_rules, scheduling_rules, selection

_ABOUT_MACHINES = frozenset({"nodename", "partitionname", "nodeset"})
_NOT_FOLLOWED = frozenset({"downnodes", "frontendname", "switchname"})
_FOR_ALL_PARTITIONS = ("defmempercpu", "defmempergpu", "defmempernode")


def read_site(
    slurm_conf: str,
    *,
    sacctmgr_qos: str | None = None,
    sacctmgr_assoc: str | None = None,
    sinfo: str | None = None,
) -> SlurmSite:
    """Return the scheduling rules in a site's configuration.

    Parameters
    ----------
    slurm_conf : str
        Text of ``slurm.conf``, or the output of ``scontrol show config``.
    sacctmgr_qos : str, optional
        Output of ``sacctmgr show qos -P``.
    sacctmgr_assoc : str, optional
        Output of ``sacctmgr show assoc tree -P``, or of ``sshare -a -l -P``, which also has past usage.
    sinfo : str, optional
        Output of ``sinfo -N -o '%N|%P|%c|%m|%G|%w|%f'``, or of ``scontrol show node`` and ``scontrol show partition``,
        one after the other. Nodes and partitions found here replace those of ``slurm_conf``.

    Raises
    ------
    ConfigurationInvalid
        A text has another format; the message names the line.
    """
    with _in_file("slurm.conf"):
        settings, machines = _read_configuration(slurm_conf)
        select, least_loaded, holds_memory = selection(settings)
        priority, scheduling = priority_rules(settings), scheduling_rules(settings)
    notes, name = settings.notes, settings.text("clustername", "slurm")
    with _in_file("sinfo"):
        printed = read_machines(sinfo) if sinfo is not None else MachineCounts()
    with _in_file("qos"):
        qos = read_qos(sacctmgr_qos, notes) if sacctmgr_qos is not None else ()
    with _in_file("associations"):
        shares = read_shares(sacctmgr_assoc, notes, cluster=name) if sacctmgr_assoc is not None else ()
    note_unsimulated(settings)
    site = SlurmSite(
        name=name,
        nodes=printed.groups() if printed.nodes else machines.groups(),
        partitions=tuple(_partitions(machines, printed)),
        priority=priority,
        scheduling=scheduling,
        qos=qos,
        shares=shares,
        select=select,
        least_loaded=least_loaded,
        holds_memory=holds_memory,
    )
    if not site.nodes or not any(partition.nodes for partition in site.partitions):
        raise ConfigurationInvalid(
            "no partition with nodes is described",
            hint="Give a slurm.conf with its NodeName and PartitionName lines, or with --sinfo what scontrol show "
            "node and scontrol show partition print.",
        )
    return replace(site, notes=tuple(dict.fromkeys([*notes, *machines.notes, *printed.notes, *_missing_parts(site)])))


def read_machines(text: str) -> MachineCounts:
    """Read nodes and partitions from the output of Slurm's commands.

    The text is that of ``sinfo -N``, or of ``scontrol show node`` and ``show partition``.

    Raises
    ------
    ConfigurationInvalid
        It is neither, or a value is not understood.
    """
    if re.search(r"^\s*(NodeName|PartitionName)=", text, re.MULTILINE | re.IGNORECASE):
        return parse_node_records(records(text, "nodename"), records(text, "partitionname"))
    return parse_sinfo(text)


@contextmanager
def _in_file(name: str) -> Iterator[None]:
    """Add the name of the file to errors about its content."""
    try:
        yield
    except ConfigurationInvalid as reason:
        raise ConfigurationInvalid(f"{name}, {reason.message}", hint=reason.hint) from reason


def _read_configuration(text: str) -> tuple[SchedulingSettings, MachineCounts]:
    settings, machines = SchedulingSettings(), MachineCounts()
    for line in lines(text):
        if line.title in _ABOUT_MACHINES:
            machines.add_line(line)
        elif line.title in _NOT_FOLLOWED:
            settings.notes.append(f"Line {line.number}: {line.title} is not followed.")
        elif line.title == "include":
            settings.notes.append(
                f"Line {line.number} includes {line.words['include']}, which was not read: give the files as one text."
            )
        else:
            settings.add_line(line)
    machines.finish(settings.plain(*_FOR_ALL_PARTITIONS))
    return settings, machines


def _partitions(machines: MachineCounts, printed: MachineCounts) -> Iterator[PartitionRules]:
    """Yield the partitions.

    Those in ``printed`` (the output of sinfo or scontrol) have precedence. Where it has only their nodes, the rules
    come from slurm.conf.
    """
    if not printed.partitions:
        yield from machines.partitions.values()
    for name, partition in printed.partitions.items():
        known = machines.partitions.get(name)
        if printed.with_rules or known is None:
            yield partition
        else:
            yield replace(known, nodes=partition.nodes)
        if not printed.with_rules and known is None:
            printed.notes.append(
                f"Of partition {name} only the nodes are known, not limits and priority: "
                "add what scontrol show partition prints."
            )


def _missing_parts(site: SlurmSite) -> Iterator[str]:
    if site.priority.multifactor and site.priority.fairshare and not site.shares:
        yield "Fair share has a weight, but no associations were given (--assoc): all users have the same shares."
    if site.priority.multifactor and site.priority.qos and not site.qos:
        yield "QOS has a weight, but no QOS were given (--qos): they all count alike."
    named = {partition.qos for partition in site.partitions if partition.qos}
    if unknown := sorted(named - {qos.name for qos in site.qos}):
        yield f"The limits of the partitions' QOS are not known (--qos): {', '.join(unknown)}."
