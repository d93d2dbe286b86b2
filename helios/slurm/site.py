"""Reader of a site's Slurm configuration for simulation.

It takes texts that an administrator can print, also on another machine, and contacts no cluster. Notes list what of the
configuration is not simulated. QOS and fair shares are read from the tables of ``sacctmgr show qos``,
``show assoc`` and ``sshare``, with ``|`` between columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from helios.errors import ConfigurationInvalid
from helios.model.slurm_site import PartitionRules, QosRules, Share, SlurmSite
from helios.slurm.site_conf import amount, lines, records
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


_QOS_IDLE = frozenset({
    "name", "priority", "usagefactor", "maxtrespu", "maxtresperuser", "maxjobspu", "maxjobsperuser", "grptres",
    "description", "id", "gracetime", "preemptexempttime", "preemptmode", "flags", "usagethres", "usagethreshold",
    "maxsubmitpu", "maxsubmitjobsperuser", "maxsubmitpa", "grpsubmit", "grpsubmitjobs", "maxwall", "maxtresmins",
})  # fmt: skip
"""Columns without a note: those that are read, that limit submissions, or whose effect is in recorded run times."""
_ASSOC_IDLE = frozenset({
    "cluster", "account", "parentname", "par_name", "user", "share", "fairshare", "rawshares", "rawusage", "partition",
    "qos", "def_qos", "defaultqos", "id", "lft", "rgt", "normshares", "normusage", "effectvusage", "levelfs", "maxwall",
    "maxsubmit", "maxsubmitjobs", "grpsubmit", "maxtresmins", "tresrunmins", "comment", "lineage", "flags",
})  # fmt: skip
_MOST_TRES, _MOST_JOBS = ("maxtrespu", "maxtresperuser"), ("maxjobspu", "maxjobsperuser")
_NOTHING = frozenset({"", "0", "00:00:00", "cluster", "none", "n/a", "(null)"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AssociationRow:
    """Row of a printed table, by normalised column heads.

    Heads are in lower case, with underscores for blanks.
    """

    number: int
    words: Mapping[str, str]

    def text(self, *keys: str) -> str:
        """Return the first existing column of ``keys``, without surrounding blanks."""
        return next((self.words[key].strip() for key in keys if key in self.words), "")

    def float_value(self, *keys: str, otherwise: float = 0.0) -> float:
        """Return a column as a number.

        Raises
        ------
        ConfigurationInvalid
            It is not a number.
        """
        value = self.text(*keys)
        try:
            return float(value) if value else otherwise
        except ValueError:
            raise self.error(f"{keys[0]} is {value!r}, which is not a number") from None

    def error(self, what: str) -> ConfigurationInvalid:
        """Return an error about this row."""
        return ConfigurationInvalid(f"line {self.number}: {what}", hint="Print it anew, with -P and with its heads.")


def table(text: str, *, needed: Sequence[str], made_by: str) -> list[AssociationRow]:
    """Read a table with ``|`` between its columns.

    Parameters
    ----------
    needed : sequence of str
        Required heads, in lower case and with underscores for blanks.
    made_by : str
        The command that prints such a table, for the hint.

    Raises
    ------
    ConfigurationInvalid
        It is not such a table.
    """
    printed = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not printed:
        return []
    heads = [head.strip().lower().replace(" ", "_").rstrip("+") for head in printed[0][1].split("|")]
    if missing := [head for head in needed if head not in heads]:
        raise ConfigurationInvalid(
            f"line {printed[0][0]}: the table has no column {missing[0]!r}; it begins {printed[0][1].strip()[:60]!r}",
            hint=f"Make it with: {made_by}",
        )
    return [
        AssociationRow(number=number, words=dict(zip(heads, line.split("|"), strict=False)))
        for number, line in printed[1:]
    ]


def read_qos(text: str, notes: list[str]) -> tuple[QosRules, ...]:
    """Read the output of ``sacctmgr show qos -P``.

    Limits that are not simulated are added to ``notes``.

    Raises
    ------
    ConfigurationInvalid
        The text is not such a table, or a value not understood.
    """
    rows = table(text, needed=("name",), made_by="sacctmgr show qos -P")
    for row in rows:
        _note_limits(row, f"QOS {row.text('name')}", _QOS_IDLE, notes)
        _note_other_tres(row, _MOST_TRES, f"QOS {row.text('name')}", notes)
        _note_other_tres(row, ("grptres",), f"QOS {row.text('name')}", notes)
    return tuple(
        QosRules(
            name=row.text("name"),
            priority=int(row.float_value("priority")),
            usage_factor=row.float_value("usagefactor", otherwise=1.0),
            max_gpus_per_user=_gpus(row, *_MOST_TRES),
            max_gpus=_gpus(row, "grptres"),
            max_jobs_per_user=int(row.float_value(*_MOST_JOBS)) if row.text(*_MOST_JOBS) else None,
        )
        for row in rows
    )


def read_shares(text: str, notes: list[str], *, cluster: str = "") -> tuple[Share, ...]:
    """Read fair shares from ``sacctmgr`` or ``sshare``.

    The commands are ``sacctmgr show assoc tree -P`` and ``sshare -a -l -P``. The latter also has the past usage. What
    is not simulated is added to ``notes``.

    Parameters
    ----------
    cluster : str
        The cluster whose rows count where the table has several. Not needed where the table has one.

    Raises
    ------
    ConfigurationInvalid
        The text is not such a table, a value is not understood, or clusters are mixed.
    """
    rows = _select_cluster(table(text, needed=("account",), made_by="sacctmgr show assoc tree -P"), cluster)
    found: dict[tuple[str, str], Share] = {}
    for row, parent in _with_parents(rows, notes):
        share = _share(row, parent)
        if row.text("partition"):
            notes.append(f"Shares of {share.user or share.account} for one partition only are not simulated.")
            continue
        found[share.account, share.user] = share
        _note_limits(row, f"association {share.account}/{share.user}".rstrip("/"), _ASSOC_IDLE, notes)
    return tuple(found.values())


def _select_cluster(rows: list[AssociationRow], cluster: str) -> list[AssociationRow]:
    names = {row.text("cluster") for row in rows}
    if len(names) < 2:
        return rows
    if cluster not in names:
        raise ConfigurationInvalid(
            f"the associations are those of several clusters: {', '.join(sorted(names))}",
            hint="Print those of one: sacctmgr show assoc tree -P cluster=NAME",
        )
    return [row for row in rows if row.text("cluster") == cluster]


def _with_parents(rows: Sequence[AssociationRow], notes: list[str]) -> Iterator[tuple[AssociationRow, str]]:
    """Yield each row with the name of its parent account.

    It comes from the row's own column, otherwise from the indentation of its account.
    """
    named = any(row.text("parentname", "par_name") for row in rows)
    above: dict[int, str] = {}
    flat = not named and not any(row.words["account"].startswith(" ") for row in rows)
    if flat and len(rows) > 1:
        notes.append("Who is above whom is not said in the associations: print them with: sacctmgr show assoc tree -P")
    for row in rows:
        account = row.words["account"]
        depth = len(account) - len(account.lstrip())
        if row.text("user"):
            yield row, account.strip()
            continue
        above[depth] = account.strip()
        indented = next((above[d] for d in range(depth - 1, -1, -1) if d in above), "")
        parent = row.text("parentname", "par_name")
        yield row, parent or indented or ("root" if flat and account != "root" else "")


def _share(row: AssociationRow, parent: str) -> Share:
    columns = ("share", "fairshare", "rawshares")
    follows_parent = row.text(*columns).lower() == "parent"
    account, user = row.text("account"), row.text("user")
    return Share(
        account=account,
        parent="" if user or account == "root" else parent,
        user=user,
        shares=None if follows_parent else int(row.float_value(*columns, otherwise=1.0)),
        usage_s=row.float_value("rawusage"),
    )


def _gpus(row: AssociationRow, *keys: str) -> int | None:
    for word in row.text(*keys).split(","):
        name, _, value = word.partition("=")
        if name.strip().lower() == "gres/gpu":
            try:
                return amount(value)
            except ValueError:
                raise row.error(f"{keys[0]} has {word!r}, which is not gres/gpu=N") from None
    return None


def _note_other_tres(row: AssociationRow, keys: tuple[str, ...], where: str, notes: list[str]) -> None:
    other = [word for word in row.text(*keys).split(",") if word and not word.lower().startswith("gres/gpu=")]
    if other:
        notes.append(f"Of {where}, {keys[0]} is simulated for gres/gpu only: {', '.join(other)} is left out.")


def _note_limits(row: AssociationRow, where: str, known: frozenset[str], notes: list[str]) -> None:
    limits = [
        f"{key}={value.strip()}"
        for key, value in row.words.items()
        if key not in known and value.strip().lower() not in _NOTHING
    ]
    if limits:
        notes.append(f"Of {where}, not simulated: {', '.join(limits)}.")
