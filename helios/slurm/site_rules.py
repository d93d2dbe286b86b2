"""Priority and scheduling rules from the settings of ``slurm.conf``.

Notes list the settings that are not simulated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from helios.errors import ConfigurationInvalid
from helios.model.slurm_site import PriorityRules, SchedulingRules, SlurmSite
from helios.slurm.site_conf import MINUTE_S, ConfLine

_NO_NORMAL = ("NO_NORMAL_PART", "NO_NORMAL_QOS", "NO_NORMAL_TRES")
FLAGS_SIMULATED = frozenset(
    {"NO_FAIR_TREE", "FAIR_TREE", "ACCRUE_ALWAYS", "SMALL_RELATIVE_TO_TIME", "MAX_TRES", *_NO_NORMAL}
)
_UNITS = {
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
_WAYS_TO_PLACE = frozenset({"CR_PACK_NODES", "CR_ONE_TASK_PER_CORE", "LL_SHARED_GRES", "MULTIPLE_SHARING_GRES_PJ"})
_HARMLESS = frozenset({
    "", "(null)", "none", "no", "off", "0", "1", "n/a", "infinite", "-1", "0 sec", "0 min", "00:00:00", "topology/none",
})  # fmt: skip
_HARMLESS_ENDS = ("/none", "/default", "/flat")


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

    def text(self, key: str, otherwise: str = "") -> str:
        """Return a setting, or ``otherwise``."""
        return self.lines[key].text(key, otherwise) if key in self.lines else otherwise

    def plain(self, *keys: str) -> dict[str, str]:
        """Return those of ``keys`` that are set, with their values."""
        return {key: self.text(key) for key in keys if self.text(key)}

    def whole(self, key: str) -> int:
        """Return a setting as a whole number, 0 where it is not set.

        Raises :class:`ConfigurationInvalid` where it is not one.
        """
        return self.lines[key].whole(key, 0) if key in self.lines else 0

    def whole_minutes_s(self, key: str, otherwise: int) -> int:
        """Return a length of time, rounded up to whole minutes, s.

        Slurm keeps these settings in minutes. Raises :class:`ConfigurationInvalid` where it is not a length.
        """
        length = self.lines[key].length_s(key, otherwise) if key in self.lines else otherwise
        return 0 if length is None else -(-length // MINUTE_S) * MINUTE_S


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
    strange = sorted(set(flags) - FLAGS_SIMULATED)
    if strange:
        settings.notes.append(f"Of PriorityFlags, not simulated: {', '.join(strange)}.")
    usual = PriorityRules()
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
        max_age_s=settings.whole_minutes_s("prioritymaxage", usual.max_age_s),
        decay_half_life_s=settings.whole_minutes_s("prioritydecayhalflife", usual.decay_half_life_s),
        calc_period_s=settings.whole_minutes_s("prioritycalcperiod", usual.calc_period_s) or usual.calc_period_s,
        favor_small=settings.text("priorityfavorsmall").lower() in {"yes", "1", "true"},
        fair_tree=not {"NO_FAIR_TREE", "DEPTH_OBLIVIOUS"} & set(flags),
        flags=flags,
    )


def scheduling_rules(settings: SchedulingSettings) -> SchedulingRules:
    """Return the rules of the main scheduler and of backfill.

    Raises :class:`ConfigurationInvalid` as :func:`priority_rules` does.
    """
    values: dict[str, int | float | bool] = {}
    strange: list[str] = []
    for word in re.split(r"[,\s]+", settings.text("schedulerparameters")):
        key, _, value = word.partition("=")
        key = key.lower()
        if not key or key in _IRRELEVANT:
            continue
        if key in _SWITCHES:
            values[_SWITCHES[key]] = True
        elif key in _UNITS:
            values[_UNITS[key]] = _number(settings, key, value)
        elif key == "bf_window":
            values["bf_window_s"] = _number(settings, key, value) * MINUTE_S
        elif key == "sched_min_interval":
            values["sched_min_interval_s"] = _number(settings, key, value) / 1e6
        else:
            strange.append(f"{key}={value}" if value else key)
    if strange:
        settings.notes.append(f"Of SchedulerParameters, not simulated: {', '.join(sorted(strange))}.")
    kind = settings.text("schedulertype", "sched/backfill").lower()
    return SchedulingRules(
        backfill=kind == "sched/backfill",
        epilog=bool(settings.text("epilog") or settings.text("epilog[0]")),
        **values,  # type: ignore[arg-type]  # because each is of its rule's type by the tables above
    )


def selection(settings: SchedulingSettings) -> tuple[str, bool, bool]:
    """Return the rules for the choice of nodes.

    They are ``select``, ``least_loaded`` and ``holds_memory`` of :class:`SlurmSite`.
    """
    kind = settings.text("selecttype", "select/cons_tres").lower().removeprefix("select/")
    parameters = {word.strip().upper() for word in settings.text("selecttypeparameters").split(",")}
    if kind not in {"cons_tres", "cons_res", "linear"}:
        settings.notes.append(f"SelectType={settings.text('selecttype')} is not simulated: cons_tres is taken instead.")
        kind = SlurmSite().select
    if strange := sorted(parameters & _WAYS_TO_PLACE):
        settings.notes.append(f"Of SelectTypeParameters, not simulated: {', '.join(strange)}.")
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


_READ = frozenset({
    "clustername", "prioritytype", "priorityweightage", "priorityweightfairshare", "priorityweightjobsize",
    "priorityweightpartition", "priorityweightqos", "priorityweightassoc", "priorityweighttres", "prioritymaxage",
    "prioritydecayhalflife", "prioritycalcperiod", "priorityfavorsmall", "priorityflags", "schedulertype",
    "schedulerparameters", "selecttype", "selecttypeparameters", "include",
})  # fmt: skip


def _number(settings: SchedulingSettings, key: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        line = settings.lines["schedulerparameters"]
        raise ConfigurationInvalid(
            f"line {line.number}: SchedulerParameters has {key}={value}, which is not a whole number",
            hint=f"Write {key}=N.",
        ) from None
