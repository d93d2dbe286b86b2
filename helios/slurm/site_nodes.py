"""Nodes and partitions of a site.

They are read from the lines of ``slurm.conf``, or from the output of ``sinfo`` or ``scontrol``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from ClusterShell.RangeSet import RangeSet

from helios.errors import ConfigurationInvalid, HostlistInvalid
from helios.model.hostlist import expand
from helios.model.slurm_site import UNTYPED, NodeGroup, PartitionRules
from helios.slurm.site_conf import ConfLine, amount

_DEFAULT = "default"
_OUTSIDE_BRACKETS = re.compile(r",(?![^(\[]*[)\]])")
_DOWN_STATES = ("future", "down", "drain", "fail")
"""States of a ``NodeName`` line in which a node runs no job."""
_UNSET_VALUES = frozenset({"", "no", "none", "all", "0", "unlimited", "(null)", "n/a", "off"})
_NODE_KEYS = frozenset({
    "nodename", "cpus", "procs", "sockets", "socketsperboard", "corespersocket", "threadspercore", "boards",
    "realmemory", "memspeclimit", "gres", "corespeccount", "cpuspeclist", "weight", "feature", "features", "state",
    "nodeaddr", "nodehostname", "port", "bcastaddr", "tmpdisk", "reason", "restrictedcorespercpu",
})  # fmt: skip
_PARTITION_KEYS = frozenset({
    "partitionname", "nodes", "maxtime", "defaulttime", "prioritytier", "priorityjobfactor", "priority", "default",
    "state", "qos", "oversubscribe", "shared", "defmempercpu", "defmempergpu", "defmempernode", "hidden", "gracetime",
    "disablerootjobs", "rootonly", "allocnodes", "allowgroups", "tresbillingweights", "exclusiveuser", "jobdefaults",
})  # fmt: skip


@dataclass(slots=True, kw_only=True)
class MachineCounts:
    """Nodes and partitions, collected line by line.

    ``notes`` has what is not simulated. ``with_rules`` is False where nothing but the nodes is known of the partitions.
    """

    nodes: dict[str, NodeGroup] = field(default_factory=dict)
    partitions: dict[str, PartitionRules] = field(default_factory=dict)
    sets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    with_rules: bool = True
    _node_defaults: dict[str, str] = field(default_factory=dict)
    _partition_defaults: dict[str, str] = field(default_factory=dict)
    _waiting: list[ConfLine] = field(default_factory=list)

    def add_line(self, line: ConfLine) -> None:
        """Read a ``NodeName`` line, and keep any other line for ``finish``.

        Raises
        ------
        ConfigurationInvalid
            A value is not understood.
        """
        if line.title == "nodename":
            self._add_node(line)
        else:
            self._waiting.append(line)

    def finish(self, settings: Mapping[str, str]) -> None:
        """Read the kept ``PartitionName`` and ``NodeSet`` lines.

        All nodes must be known by then.

        Parameters
        ----------
        settings : mapping
            Settings of the whole cluster that are defaults of partitions.
        """
        for line in self._waiting:
            if line.title == "nodeset":
                self.sets[line.text("nodeset")] = self.members(line)
            else:
                self._add_partition(line, settings)
        self._waiting.clear()

    def add(self, line: ConfLine, names: tuple[str, ...]) -> None:
        """Add the nodes of one line."""
        threads = line.whole("threadspercore", 1)
        boards = line.whole("boards", 1)
        sockets = line.whole("sockets", 0) or boards * line.whole("socketsperboard", 1)
        cpus = line.whole("cpus", line.whole("procs", 0)) or sockets * line.whole("corespersocket", 1) * threads
        kept_back = line.whole("corespeccount", 0) * threads or len(RangeSet(line.text("cpuspeclist") or None))
        features = line.text("features") or line.text("feature")
        group = NodeGroup(
            names=names,
            cpus=max(1, cpus - kept_back),
            memory_mib=max(1, line.whole("realmemory", 1) - line.whole("memspeclimit", 0)),
            gpus=_gpus_of_node(line),
            weight=line.whole("weight", 1),
            features=tuple(re.split(r"[,&|]", features)) if features else (),
        )
        self.nodes |= {name: replace(group, names=(name,)) for name in names}

    def set_partitions(self, members: Mapping[str, Sequence[str]]) -> None:
        """Set partitions of which only the nodes are known.

        A ``*`` at the end of a name marks the default partition.
        """
        self.with_rules = False
        for name, nodes in members.items():
            if name:
                ordered = tuple(sorted(dict.fromkeys(nodes), key=_natural_key))
                plain = name.rstrip("*")
                self.partitions[plain] = PartitionRules(name=plain, nodes=ordered, is_default=name.endswith("*"))

    def groups(self) -> tuple[NodeGroup, ...]:
        """Return groups of equal neighbours, sorted as in Slurm."""
        ordered = sorted(self.nodes, key=_natural_key)
        alike = groupby(ordered, key=lambda name: replace(self.nodes[name], names=()))
        return tuple(replace(self.nodes[names[0]], names=names) for names in (tuple(group) for _, group in alike))

    def _add_node(self, line: ConfLine) -> None:
        if line.text("nodename").lower() == _DEFAULT:
            self._node_defaults |= line.words
            return
        whole = replace(line, words={**self._node_defaults, **line.words})
        names = _expand_names(whole, "nodename", whole.text("nodename"))
        self._note_unknown_keys(whole, _NODE_KEYS, f"nodes {line.text('nodename')}")
        state = whole.text("state").lower()
        if state.startswith(_DOWN_STATES):
            self.notes.append(f"Nodes {line.text('nodename')} are left out: State={whole.words['state']}.")
            return
        self.add(whole, names)

    def _add_partition(self, line: ConfLine, settings: Mapping[str, str]) -> None:
        name = line.text("partitionname")
        if name.lower() == _DEFAULT:
            self._partition_defaults |= line.words
            return
        own = replace(line, words={**self._partition_defaults, **line.words})
        self._note_unknown_keys(own, _PARTITION_KEYS, f"partition {name}")
        whole = replace(own, words={**settings, **own.words})
        self.partitions[name] = _partition(whole, name, self.members(whole))

    def members(self, line: ConfLine) -> tuple[str, ...]:
        """Return the nodes that a line names.

        It has a list, sets of nodes, ALL, or the feature of the nodes.
        """
        if feature := line.text("feature"):
            return tuple(name for name, group in self.nodes.items() if feature in group.features)
        members: list[str] = []
        for word in _OUTSIDE_BRACKETS.split(line.text("nodes")):
            if word.lower() == "all":
                members += self.nodes
            elif word in self.sets:
                members += self.sets[word]
            elif word:
                members += _expand_names(line, "nodes", word)
        if missing := [name for name in dict.fromkeys(members) if name not in self.nodes]:
            self.notes.append(
                f"{line.words.get(line.title)} has {len(missing):,} nodes that are not described or left out, "
                f"as {missing[0]}."
            )
        return tuple(sorted(set(members) & self.nodes.keys(), key=_natural_key))

    def _note_unknown_keys(self, line: ConfLine, known: frozenset[str], where: str) -> None:
        unknown = {key: value for key, value in line.words.items() if key not in known}
        strange = [f"{key}={value}" for key, value in unknown.items() if value.lower() not in _UNSET_VALUES]
        if strange:
            self.notes.append(f"Of {where}, not simulated: {', '.join(sorted(strange))}.")


def parse_sinfo(text: str) -> MachineCounts:
    """Read the output of ``sinfo -N``.

    Raises
    ------
    ConfigurationInvalid
        A needed column is missing, or a value is not understood.
    """
    printed = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    heads = re.split(r"\||\s+", printed[0][1].strip()) if printed else []
    if not {"NODELIST", "CPUS"} <= set(heads):
        raise ConfigurationInvalid(
            "line 1: there are no columns NODELIST and CPUS",
            hint="Make it with: sinfo -N -o '%N|%P|%c|%m|%G|%w|%f', or: scontrol show node; scontrol show partition",
        )
    separator = "|" if "|" in printed[0][1] else None
    found = MachineCounts()
    members: dict[str, list[str]] = {}
    for number, row in printed[1:]:
        words = {head.lower(): word for head, word in zip(heads, row.split(separator), strict=False)}
        line = ConfLine(number=number, title="nodelist", words=words)
        names = _expand_names(line, "nodelist", line.text("nodelist"))
        translated = {
            "cpus": words.get("cpus", ""),
            "realmemory": re.sub(r"\D.*", "", words.get("memory", "")),
            "gres": words.get("gres", ""),
            "weight": words.get("weight", ""),
            "features": words.get("avail_features", words.get("features", words.get("active_features", ""))),
        }
        found.add(replace(line, words=translated), names)
        members.setdefault(words.get("partition", ""), []).extend(names)
    found.set_partitions(members)
    return found


def parse_node_records(nodes: Iterable[ConfLine], partitions: Iterable[ConfLine]) -> MachineCounts:
    """Read the output of ``scontrol show node`` and ``scontrol show partition``."""
    found = MachineCounts()
    members: dict[str, list[str]] = {}
    unwell = 0
    for line in nodes:
        names = _expand_names(line, "nodename", line.text("nodename"))
        translated = {
            **{key: line.text(key) for key in ("gres", "weight", "realmemory", "memspeclimit")},
            "cpus": line.text("cpuefctv") or line.text("cputot"),
            "features": line.text("availablefeatures"),
        }
        found.add(replace(line, words=translated), names)
        for name in filter(None, line.text("partitions").split(",")):
            members.setdefault(name, []).extend(names)
        unwell += bool(re.search(r"DOWN\b|DRAIN|FAIL|FUTURE", line.text("state")))
    if unwell:
        found.notes.append(f"{unwell:,} nodes were down or drained when this was printed; they run jobs in the replay.")
    for line in partitions:
        name = line.text("partitionname")
        found.partitions[name] = _partition(line, name, found.members(line))
    if not found.partitions:
        found.set_partitions(members)
    return found


def _partition(line: ConfLine, name: str, nodes: tuple[str, ...]) -> PartitionRules:
    both = line.whole("priority", 1)  # up to 15.08 one key for both the tier and the factor
    return PartitionRules(
        name=name,
        nodes=nodes,
        max_time_s=line.length_s("maxtime", None),
        default_time_s=line.length_s("defaulttime", None),
        priority_tier=line.whole("prioritytier", both),
        priority_job_factor=line.whole("priorityjobfactor", both),
        is_default=line.text("default").lower() == "yes",
        is_up=line.text("state", "up").lower() == "up",
        qos=line.text("qos"),
        exclusive="exclusive" in (line.text("oversubscribe").lower(), line.text("shared").lower()),
        def_mem_per_cpu_mib=_mib(line, "defmempercpu"),
        def_mem_per_gpu_mib=_mib(line, "defmempergpu"),
        def_mem_per_node_mib=_mib(line, "defmempernode"),
        tres_billing=line.weights("tresbillingweights"),
    )


def _mib(line: ConfLine, key: str) -> int:
    return 0 if line.text(key).lower() == "unlimited" else line.whole(key, 0)


def _gpus_of_node(line: ConfLine) -> dict[str, int]:
    """Return the GPUs of each type in a line's GRES.

    Example: ``gpu:a100:4(S:0-1),gpu:8``.
    """
    found: dict[str, int] = {}
    for part in _OUTSIDE_BRACKETS.split(line.text("gres")):
        words = [word for word in re.sub(r"\(.*\)", "", part.strip()).split(":") if word.lower() != "no_consume"]
        if words[0].lower() != "gpu":
            continue
        try:
            kind, count = (words[1] if len(words) > 2 else UNTYPED), amount(words[-1]) if len(words) > 1 else 1
        except ValueError:
            raise line.error("gres", "is not a list of GRES", "Write gpu:a100:4 or gpu:4.") from None
        found[kind] = found.get(kind, 0) + count
    return found


def _expand_names(line: ConfLine, key: str, text: str) -> tuple[str, ...]:
    try:
        return expand(text)
    except HostlistInvalid as reason:
        raise ConfigurationInvalid(f"line {line.number}, {key}: {reason.message}", hint=reason.hint) from reason


def _natural_key(name: str) -> list[tuple[int, str]]:
    # Slurm keeps its nodes sorted by name, digits by value (strnatcmp in read_config.c, 22.05 and later).
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part]
