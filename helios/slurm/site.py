"""Reader of a site's Slurm configuration for simulation.

It takes texts that an administrator can print, also on another machine, and contacts no cluster. Notes list the
settings that are not simulated.

- Priority and scheduling rules are read from the settings of ``slurm.conf``.
- Nodes and partitions are read from the lines of ``slurm.conf``, or from the output of ``sinfo`` or ``scontrol``.
- QOS and fair shares are read from the tables of ``sacctmgr show qos``, ``show assoc`` and ``sshare``, with ``|``
  between columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from ClusterShell.RangeSet import RangeSet

from helios.errors import ConfigurationInvalid, HostlistInvalid
from helios.model.nodes import expand
from helios.model.slurm_site import (
    UNTYPED,
    NodeGroup,
    PartitionRules,
    PriorityRules,
    QosRules,
    SchedulingRules,
    Share,
    SlurmSite,
)
from helios.slurm.parse import COMMA_OUTSIDE_BRACKETS
from helios.slurm.site_conf import MINUTE_S, ConfLine, amount, in_file, lines, records

_DEFAULT = "default"
_DOWN_STATES = ("future", "down", "drain", "fail")
"""States of a ``NodeName`` line in which a node runs no job."""
_UNSET_VALUES = frozenset({"", "no", "none", "all", "0", "unlimited", "(null)", "n/a", "off"})
_GPU_GRES = frozenset({"gpu", "shard", "mps"})
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


_NO_NORMAL = ("NO_NORMAL_PART", "NO_NORMAL_QOS", "NO_NORMAL_TRES")
FLAGS_SIMULATED = frozenset(
    {"NO_FAIR_TREE", "FAIR_TREE", "ACCRUE_ALWAYS", "SMALL_RELATIVE_TO_TIME", "MAX_TRES", *_NO_NORMAL}
)
_WHOLE_NUMBERS = {
    "max_job_bf": "bf_max_job_test",
    **{key: f"{key}_s" for key in ("sched_interval", "batch_sched_delay", "bf_interval", "bf_resolution")},
    **{key: key for key in [
        "default_queue_depth", "partition_job_depth", "bf_max_job_test", "bf_max_job_part", "bf_max_job_user",
        "bf_max_job_start", "sched_max_job_start", "bf_max_job_array_resv", "bf_node_space_size",
    ]},
}  # fmt: skip
"""Whole numbers of ``SchedulerParameters``, each with its field of :class:`SchedulingRules`."""
_SWITCHES = {
    "defer": "defer",
    "bf_continue": "bf_continue",
    "bf_busy_nodes": "bf_busy_nodes",
    "time_min_as_soft_limit": "time_min_is_soft",
}
_IRRELEVANT = frozenset({
    "bf_yield_interval", "bf_yield_sleep", "bf_yield_rpc_cnt", "bf_max_time", "max_rpc_cnt",
    "nohold_on_prolog_fail", "max_script_size", "disable_job_shrink", "disable_hetjob_steps",
    "bf_job_part_count_reserve", "build_queue_timeout", "max_depend_depth", "salloc_wait_nodes", "sbatch_wait_nodes",
    "kill_invalid_depend", "allow_zero_lic", "default_gbytes", "spec_cores_first", "step_retry_count",
    "step_retry_time", "enable_hetero_jobs", "bf_window_linear", "preempt_reorder_count", "preempt_strict_order",
    "preempt_youngest_first", "bf_topopt_enable", "ignore_numa", "requeue_setup_env_fail", "requeue_setup_env_requeue",
    "batch_step_launch_retry",
})  # fmt: skip
"""Words of ``SchedulerParameters`` that do not affect when jobs start, or only on an overloaded controller."""
_IDLE_SETTINGS = (
    "accountingsto", "acctgather", "allow", "auth", "auto", "backup", "batchstart", "bcast", "boot", "cache",
    "certgen", "certmgr", "cgroup", "clifilter", "cloudreg", "clustername", "communication", "constrain", "control",
    "corespec", "cpufreq", "cred", "crypto", "data", "debug", "defmem", "dependency", "disableroot", "eio",
    "enable", "enforcepart", "epilog", "extsensors", "fastschedule", "federation", "firstjob", "getenv", "gpufreq",
    "grestypes", "group", "hash", "healthcheck", "http", "ignore", "inactive", "interactive", "jobacct", "jobcomp",
    "jobcontainer", "jobcredential", "jobdefaults", "jobfile", "jobrequeue", "keepalive", "killon", "killwait",
    "launch", "log", "mail", "maxarray", "maxbatch", "maxdbd", "maxjob", "maxmem", "maxnode", "maxstep", "maxtasks",
    "mcs", "memory", "message", "metrics", "minjobage", "mpi", "msgaggr", "multiple_slurmd", "namespace",
    "next_job", "nodefeatures", "oci", "plug", "pmix", "power", "prep", "private", "proctrack", "prolog",
    "propagate", "reboot", "reconfig", "requeue", "resume", "resv", "returnto", "route", "sacctmgr", "salloc",
    "sbcast", "schedlog", "schedulertimeslice", "schedulerport", "schedulerrootfilter", "scron", "slurm", "srun",
    "statesave", "suspendexc", "suspendprogram", "suspendrate", "suspendtimeout", "switch", "sysroot", "systemd",
    "task", "tcp", "tls", "tmpfs", "topologyparam", "track", "tree", "unkillable", "url", "usepam", "version",
    "vsize", "wait", "x11",
)  # fmt: skip
"""Prefixes of settings that do not affect when jobs start, or are read elsewhere here."""
_NOT_SIMULATED = {
    "preempttype": "jobs are never preempted in the replay",
    "preemptmode": "jobs are never preempted in the replay",
    "licenses": "licences are not counted in the replay",
    "overtimelimit": "in the replay a job ends at its limit",
    "fairsharedampeningfactor": "fair share is not dampened in the replay",
    "priorityusageresetperiod": "usage decays in the replay, and is never reset",
    "prioritysitefactorplugin": "the plugin's factors are not known to the replay",
    "prioritysitefactorparameters": "the plugin's factors are not known to the replay",
    "priorityparameters": "it is not simulated",
    "topologyplugin": "nodes are filled without regard to switches in the replay",
    "jobsubmitplugins": "what it changes at submission is in the recorded jobs, or not in the replay",
    "burstbuffertype": "burst buffers are not simulated",
    "suspendtime": "nodes are always awake in this replay",
    "preemptexempttime": "jobs are never preempted in the replay",
    "preemptparameters": "jobs are never preempted in the replay",
    "completewait": "in the replay nobody waits for nodes to be cleaned up",
}
_PLACEMENT_PARAMETERS = frozenset(
    {"CR_PACK_NODES", "CR_ONE_TASK_PER_CORE", "LL_SHARED_GRES", "MULTIPLE_SHARING_GRES_PJ"}
)
_HARMLESS = frozenset({
    "", "(null)", "none", "no", "off", "0", "1", "n/a", "infinite", "-1", "0 sec", "0 min", "00:00:00", "topology/none",
})  # fmt: skip
_HARMLESS_ENDS = ("/none", "/default", "/flat")


_READ = frozenset({
    "clustername", "prioritytype", "priorityweightage", "priorityweightfairshare", "priorityweightjobsize",
    "priorityweightpartition", "priorityweightqos", "priorityweightassoc", "priorityweighttres", "prioritymaxage",
    "prioritydecayhalflife", "prioritycalcperiod", "priorityfavorsmall", "priorityflags", "schedulertype",
    "schedulerparameters", "selecttype", "selecttypeparameters", "include",
})  # fmt: skip


_MACHINE_LINES = frozenset({"nodename", "partitionname", "nodeset"})
_NOT_FOLLOWED = frozenset({"downnodes", "frontendname", "switchname"})
_PARTITION_DEFAULTS = ("defmempercpu", "defmempergpu", "defmempernode")


_UNNOTED_QOS_COLUMNS = frozenset({
    "name", "priority", "usagefactor", "maxtrespu", "maxtresperuser", "maxjobspu", "maxjobsperuser", "grptres",
    "description", "id", "gracetime", "preemptexempttime", "preemptmode", "flags", "usagethres", "usagethreshold",
    "maxsubmitpu", "maxsubmitjobsperuser", "maxsubmitpa", "grpsubmit", "grpsubmitjobs", "maxwall", "maxtresmins",
})  # fmt: skip
"""Columns without a note: those that are read, that limit submissions, or whose effect is in recorded run times."""
_UNNOTED_ASSOCIATION_COLUMNS = frozenset({
    "cluster", "account", "parentname", "par_name", "user", "share", "fairshare", "rawshares", "rawusage", "partition",
    "qos", "def_qos", "defaultqos", "id", "lft", "rgt", "normshares", "normusage", "effectvusage", "levelfs", "maxwall",
    "maxsubmit", "maxsubmitjobs", "grpsubmit", "maxtresmins", "tresrunmins", "comment", "lineage", "flags",
})  # fmt: skip
_MAX_TRES_PER_USER, _MAX_JOBS_PER_USER = ("maxtrespu", "maxtresperuser"), ("maxjobspu", "maxjobsperuser")
"""Heads of a column in different versions."""
_NO_LIMIT = frozenset({"", "0", "00:00:00", "cluster", "none", "n/a", "(null)"})


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
    with in_file("slurm.conf"):
        settings, machines = _read_configuration(slurm_conf)
        select, least_loaded, holds_memory = selection(settings)
        priority, scheduling = priority_rules(settings), scheduling_rules(settings)
    notes, name = settings.notes, settings.text("clustername", "slurm")
    with in_file("sinfo"):
        printed = read_machines(sinfo) if sinfo is not None else MachineCounts()
    with in_file("qos"):
        qos = read_qos(sacctmgr_qos, notes) if sacctmgr_qos is not None else ()
    with in_file("associations"):
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
        _note_limits(row, f"QOS {row.text('name')}", _UNNOTED_QOS_COLUMNS, notes)
        _note_other_tres(row, _MAX_TRES_PER_USER, f"QOS {row.text('name')}", notes)
        _note_other_tres(row, ("grptres",), f"QOS {row.text('name')}", notes)
    return tuple(
        QosRules(
            name=row.text("name"),
            priority=int(row.float_value("priority")),
            usage_factor=row.float_value("usagefactor", default=1.0),
            max_gpus_per_user=_gpus(row, *_MAX_TRES_PER_USER),
            max_gpus=_gpus(row, "grptres"),
            max_jobs_per_user=int(row.float_value(*_MAX_JOBS_PER_USER)) if row.text(*_MAX_JOBS_PER_USER) else None,
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
    shares: dict[tuple[str, str], Share] = {}
    for row, parent in _with_parents(rows, notes):
        share = _share(row, parent)
        if row.text("partition"):
            notes.append(f"Shares of {share.user or share.account} for one partition only are not simulated.")
            continue
        shares[share.account, share.user] = share
        _note_limits(row, f"association {share.account}/{share.user}".rstrip("/"), _UNNOTED_ASSOCIATION_COLUMNS, notes)
    return tuple(shares.values())


@dataclass(slots=True, kw_only=True)
class MachineCounts:
    """Nodes and partitions, collected line by line.

    ``notes`` says what is not simulated. ``with_rules`` is False where only the nodes of the partitions are known.
    ``with_down`` keeps the nodes that are out of service.
    """

    nodes: dict[str, NodeGroup] = field(default_factory=dict)
    partitions: dict[str, PartitionRules] = field(default_factory=dict)
    sets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    with_rules: bool = True
    with_down: bool = False
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
        reserved = line.whole("corespeccount", 0) * threads or len(RangeSet(line.text("cpuspeclist") or None))
        features = line.text("features") or line.text("feature")
        gres = _gres_of_node(line)
        group = NodeGroup(
            names=names,
            cpus=max(1, cpus - reserved),
            memory_mib=max(1, line.whole("realmemory", 1) - line.whole("memspeclimit", 0)),
            gpus=gres.get("gpu", {}),
            shards=sum(gres.get("shard", {}).values()),
            mps=sum(gres.get("mps", {}).values()),
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
        """Return the nodes in Slurm's order, with equal neighbours in one group."""
        ordered = sorted(self.nodes, key=_natural_key)
        neighbours = groupby(ordered, key=lambda name: replace(self.nodes[name], names=()))
        return tuple(replace(self.nodes[names[0]], names=names) for names in (tuple(group) for _, group in neighbours))

    def _add_node(self, line: ConfLine) -> None:
        if line.text("nodename").lower() == _DEFAULT:
            self._node_defaults |= line.words
            return
        line = replace(line, words={**self._node_defaults, **line.words})
        names = _expand_names(line, "nodename", line.text("nodename"))
        self._note_unknown_keys(line, _NODE_KEYS, f"nodes {line.text('nodename')}")
        if not self.with_down and line.text("state").lower().startswith(_DOWN_STATES):
            self.notes.append(f"Nodes {line.text('nodename')} are left out: State={line.words['state']}.")
            return
        self.add(line, names)

    def _add_partition(self, line: ConfLine, settings: Mapping[str, str]) -> None:
        name = line.text("partitionname")
        if name.lower() == _DEFAULT:
            self._partition_defaults |= line.words
            return
        line = replace(line, words={**self._partition_defaults, **line.words})
        self._note_unknown_keys(line, _PARTITION_KEYS, f"partition {name}")
        line = replace(line, words={**settings, **line.words})
        self.partitions[name] = _partition(line, name, self.members(line))

    def members(self, line: ConfLine) -> tuple[str, ...]:
        """Return the nodes that a line names.

        It names them by a list, node sets, ALL, or a feature.
        """
        if feature := line.text("feature"):
            return tuple(name for name, group in self.nodes.items() if feature in group.features)
        members: list[str] = []
        for word in COMMA_OUTSIDE_BRACKETS.split(line.text("nodes")):
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
        unknown = [
            f"{key}={value}"
            for key, value in line.words.items()
            if key not in known and value.lower() not in _UNSET_VALUES
        ]
        if unknown:
            self.notes.append(f"Of {where}, not simulated: {', '.join(sorted(unknown))}.")


@dataclass(slots=True, kw_only=True)
class SchedulingSettings:
    """Settings of a whole cluster, each with its line.

    If a setting occurs several times, the last one counts, as in Slurm. ``notes`` has what is not simulated.
    """

    lines: dict[str, ConfLine] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add_line(self, line: ConfLine) -> None:
        """Add the setting of one line."""
        earlier = self.lines.get(line.title)
        if earlier is not None and earlier.words != line.words and line.title in _READ | _NOT_SIMULATED.keys():
            self.notes.append(
                f"{line.spelled} is set on line {earlier.number} and again on line {line.number}: the last counts."
            )
        self.lines[line.title] = line

    def text(self, key: str, default: str = "") -> str:
        """Return a setting, or ``default``."""
        return self.lines[key].text(key, default) if key in self.lines else default

    def plain(self, *keys: str) -> dict[str, str]:
        """Return those of ``keys`` that are set, with their values."""
        return {key: self.text(key) for key in keys if self.text(key)}

    def whole(self, key: str) -> int:
        """Return a setting as a whole number, 0 where it is not set.

        Raises :class:`ConfigurationInvalid` where it is not one.
        """
        return self.lines[key].whole(key, 0) if key in self.lines else 0

    def length_s(self, key: str, default: int) -> int:
        """Return a length of time, rounded up to whole minutes, s.

        Slurm keeps these settings in minutes. Raises :class:`ConfigurationInvalid` where it is not a length.
        """
        length = self.lines[key].length_s(key, default) if key in self.lines else default
        return 0 if length is None else -(-length // MINUTE_S) * MINUTE_S


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

    def float_value(self, *keys: str, default: float = 0.0) -> float:
        """Return a column as a number.

        Raises
        ------
        ConfigurationInvalid
            It is not a number.
        """
        value = self.text(*keys)
        try:
            return float(value) if value else default
        except ValueError:
            raise self.error(f"{keys[0]} is {value!r}, which is not a number") from None

    def error(self, what: str) -> ConfigurationInvalid:
        """Return an error about this row."""
        return ConfigurationInvalid(f"line {self.number}: {what}", hint="Print it anew, with -P and with its heads.")


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
    machines = MachineCounts()
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
        machines.add(replace(line, words=translated), names)
        members.setdefault(words.get("partition", ""), []).extend(names)
    machines.set_partitions(members)
    return machines


def parse_node_records(nodes: Iterable[ConfLine], partitions: Iterable[ConfLine]) -> MachineCounts:
    """Read the output of ``scontrol show node`` and ``scontrol show partition``."""
    machines = MachineCounts()
    members: dict[str, list[str]] = {}
    out_of_service = 0
    for line in nodes:
        names = _expand_names(line, "nodename", line.text("nodename"))
        translated = {
            **{key: line.text(key) for key in ("gres", "weight", "realmemory", "memspeclimit")},
            "cpus": line.text("cpuefctv") or line.text("cputot"),
            "features": line.text("availablefeatures"),
        }
        machines.add(replace(line, words=translated), names)
        for name in filter(None, line.text("partitions").split(",")):
            members.setdefault(name, []).extend(names)
        out_of_service += bool(re.search(r"DOWN\b|DRAIN|FAIL|FUTURE", line.text("state")))
    if out_of_service:
        machines.notes.append(
            f"{out_of_service:,} nodes were down or drained when this was printed; they run jobs in the replay."
        )
    for line in partitions:
        name = line.text("partitionname")
        machines.partitions[name] = _partition(line, name, machines.members(line))
    if not machines.partitions:
        machines.set_partitions(members)
    return machines


def priority_rules(settings: SchedulingSettings) -> PriorityRules:
    """Return the rules by which job priorities are computed.

    Raises
    ------
    ConfigurationInvalid
        A value is not understood.
    """
    flags = tuple(flag.strip().upper() for flag in settings.text("priorityflags").split(",") if flag.strip())
    if "NO_NORMAL_ALL" in flags:
        flags = (*(flag for flag in flags if flag != "NO_NORMAL_ALL"), *_NO_NORMAL)
    if unknown := sorted(set(flags) - FLAGS_SIMULATED):
        settings.notes.append(f"Of PriorityFlags, not simulated: {', '.join(unknown)}.")
    defaults = PriorityRules()
    return PriorityRules(
        multifactor=settings.text("prioritytype", "priority/multifactor").lower() != "priority/basic",
        age=settings.whole("priorityweightage"),
        fairshare=settings.whole("priorityweightfairshare"),
        job_size=settings.whole("priorityweightjobsize"),
        partition=settings.whole("priorityweightpartition"),
        qos=settings.whole("priorityweightqos"),
        association=settings.whole("priorityweightassoc"),
        tres=settings.lines["priorityweighttres"].weights("priorityweighttres")
        if "priorityweighttres" in settings.lines
        else {},
        max_age_s=settings.length_s("prioritymaxage", defaults.max_age_s),
        decay_half_life_s=settings.length_s("prioritydecayhalflife", defaults.decay_half_life_s),
        calc_period_s=settings.length_s("prioritycalcperiod", defaults.calc_period_s) or defaults.calc_period_s,
        favor_small=settings.text("priorityfavorsmall").lower() in {"yes", "1", "true"},
        fair_tree=not {"NO_FAIR_TREE", "DEPTH_OBLIVIOUS"} & set(flags),
        flags=flags,
    )


def scheduling_rules(settings: SchedulingSettings) -> SchedulingRules:
    """Return the rules of the main scheduler and of backfill.

    Raises
    ------
    ConfigurationInvalid
        A value is not understood.
    """
    values: dict[str, int | float | bool] = {}
    unknown: list[str] = []
    for word in re.split(r"[,\s]+", settings.text("schedulerparameters")):
        key, _, value = word.partition("=")
        key = key.lower()
        if not key or key in _IRRELEVANT:
            continue
        if key in _SWITCHES:
            values[_SWITCHES[key]] = True
        elif key in _WHOLE_NUMBERS:
            values[_WHOLE_NUMBERS[key]] = _number(settings, key, value)
        elif key == "bf_window":
            values["bf_window_s"] = _number(settings, key, value) * MINUTE_S
        elif key == "sched_min_interval":
            values["sched_min_interval_s"] = _number(settings, key, value) / 1e6
        else:
            unknown.append(f"{key}={value}" if value else key)
    if unknown:
        settings.notes.append(f"Of SchedulerParameters, not simulated: {', '.join(sorted(unknown))}.")
    kind = settings.text("schedulertype", "sched/backfill").lower()
    return SchedulingRules(
        backfill=kind == "sched/backfill",
        epilog=bool(settings.text("epilog") or settings.text("epilog[0]")),
        **values,  # type: ignore[arg-type]  # because each is of its rule's type by the tables above
    )


def selection(settings: SchedulingSettings) -> tuple[str, bool, bool]:
    """Return the rules for the choice of nodes.

    These are ``select``, ``least_loaded`` and ``holds_memory`` of :class:`SlurmSite`.
    """
    kind = settings.text("selecttype", "select/cons_tres").lower().removeprefix("select/")
    parameters = {word.strip().upper() for word in settings.text("selecttypeparameters").split(",")}
    if kind not in {"cons_tres", "cons_res", "linear"}:
        settings.notes.append(f"SelectType={settings.text('selecttype')} is not simulated: cons_tres is taken instead.")
        kind = SlurmSite().select
    if ignored := sorted(parameters & _PLACEMENT_PARAMETERS):
        settings.notes.append(f"Of SelectTypeParameters, not simulated: {', '.join(ignored)}.")
    holds_memory = any(word.endswith("MEMORY") for word in parameters)
    return kind, "CR_LLN" in parameters, holds_memory


def note_unsimulated(settings: SchedulingSettings) -> None:
    """Add notes about settings that are unknown or not simulated."""
    unknown = []
    for key, line in settings.lines.items():
        value = line.text(key)
        if key in _NOT_SIMULATED:
            if value.lower() not in _HARMLESS and not value.lower().endswith(_HARMLESS_ENDS):
                settings.notes.append(f"Line {line.number}, {line.spelled}={value}: {_NOT_SIMULATED[key]}.")
        elif key not in _READ and not key.startswith(_IDLE_SETTINGS):
            unknown.append(f"{line.spelled} (line {line.number})")
    if unknown:
        settings.notes.append(f"Not known here, and not followed: {', '.join(unknown)}.")


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


def _partition(line: ConfLine, name: str, nodes: tuple[str, ...]) -> PartitionRules:
    priority = line.whole("priority", 1)  # up to 15.08 one key for both the tier and the factor
    return PartitionRules(
        name=name,
        nodes=nodes,
        max_time_s=line.length_s("maxtime", None),
        default_time_s=line.length_s("defaulttime", None),
        priority_tier=line.whole("prioritytier", priority),
        priority_job_factor=line.whole("priorityjobfactor", priority),
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


def _gres_of_node(line: ConfLine) -> dict[str, dict[str, int]]:
    """Return GPUs, shards and MPS shares by type in a line's GRES.

    Example: ``gpu:a100:4(S:0-1),gpu:8,shard:32``.
    """
    found: dict[str, dict[str, int]] = {}
    for part in COMMA_OUTSIDE_BRACKETS.split(line.text("gres")):
        words = [word for word in re.sub(r"\(.*\)", "", part.strip()).split(":") if word.lower() != "no_consume"]
        if (name := words[0].lower()) not in _GPU_GRES:
            continue
        try:
            kind, count = (words[1] if len(words) > 2 else UNTYPED), amount(words[-1]) if len(words) > 1 else 1
        except ValueError:
            raise line.error("gres", "is not a list of GRES", "Write gpu:a100:4 or gpu:4.") from None
        kinds = found.setdefault(name, {})
        kinds[kind] = kinds.get(kind, 0) + count
    return found


def _expand_names(line: ConfLine, key: str, text: str) -> tuple[str, ...]:
    try:
        return expand(text)
    except HostlistInvalid as reason:
        raise ConfigurationInvalid(f"line {line.number}, {key}: {reason.message}", hint=reason.hint) from reason


def _natural_key(name: str) -> list[tuple[int, str]]:
    # Slurm keeps its nodes sorted by name, digits by value (strnatcmp in read_config.c, 22.05 and later).
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part]


def _number(settings: SchedulingSettings, key: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        line = settings.lines["schedulerparameters"]
        raise ConfigurationInvalid(
            f"line {line.number}: SchedulerParameters has {key}={value}, which is not a whole number",
            hint=f"Write {key}=N.",
        ) from None


def _read_configuration(text: str) -> tuple[SchedulingSettings, MachineCounts]:
    settings, machines = SchedulingSettings(), MachineCounts()
    for line in lines(text):
        if line.title in _MACHINE_LINES:
            machines.add_line(line)
        elif line.title in _NOT_FOLLOWED:
            settings.notes.append(f"Line {line.number}: {line.title} is not followed.")
        elif line.title == "include":
            settings.notes.append(
                f"Line {line.number} includes {line.words['include']}, which was not read: give the files as one text."
            )
        else:
            settings.add_line(line)
    machines.finish(settings.plain(*_PARTITION_DEFAULTS))
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
    partition_qos = {partition.qos for partition in site.partitions if partition.qos}
    if unknown := sorted(partition_qos - {qos.name for qos in site.qos}):
        yield f"The limits of the partitions' QOS are not known (--qos): {', '.join(unknown)}."


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

    The name comes from the row's own column, otherwise from the indentation of its account.
    """
    named = any(row.text("parentname", "par_name") for row in rows)
    account_at_depth: dict[int, str] = {}
    flat = not named and not any(row.words["account"].startswith(" ") for row in rows)
    if flat and len(rows) > 1:
        notes.append("Who is above whom is not said in the associations: print them with: sacctmgr show assoc tree -P")
    for row in rows:
        account = row.words["account"]
        depth = len(account) - len(account.lstrip())
        if row.text("user"):
            yield row, account.strip()
            continue
        account_at_depth[depth] = account.strip()
        shallower = (level for level in range(depth - 1, -1, -1) if level in account_at_depth)
        indented_parent = account_at_depth.get(next(shallower, -1), "")
        parent = row.text("parentname", "par_name")
        yield row, parent or indented_parent or ("root" if flat and account != "root" else "")


def _share(row: AssociationRow, parent: str) -> Share:
    columns = ("share", "fairshare", "rawshares")
    follows_parent = row.text(*columns).lower() == "parent"
    account, user = row.text("account"), row.text("user")
    return Share(
        account=account,
        parent="" if user or account == "root" else parent,
        user=user,
        shares=None if follows_parent else int(row.float_value(*columns, default=1.0)),
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
        if key not in known and value.strip().lower() not in _NO_LIMIT
    ]
    if limits:
        notes.append(f"Of {where}, not simulated: {', '.join(limits)}.")
