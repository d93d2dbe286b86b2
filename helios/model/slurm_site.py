"""A site's Slurm configuration, as far as it decides who starts when.

Read from the text of ``slurm.conf`` and dumps of ``sacctmgr`` and ``sinfo``; used by the replay that follows Slurm's
own rules. Defaults are those of ``slurm.conf(5)``, 25.11, so that an empty file means what it means to Slurm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from helios.model.gpu_parts import part_of_gpu

DAY_S = 86_400
UNTYPED = ""
"""Type of GPUs that have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Nodes that are alike.

    Attributes
    ----------
    names : tuple of str
        Nodes sorted by name, with numbers by value. Slurm keeps its nodes in this order, and fills equal ones in it.
    cpus : int
        CPUs that can be allocated on each.
    memory_mib : int
        Memory that can be allocated on each, MiB.
    gpus : mapping of str to int
        GPUs of each type on each, as Slurm counts them; ``UNTYPED`` where the type is not given.
    shards, mps : int
        Shares into which the GPUs of each are divided (``gres/shard``, ``gres/mps``); 0 for none.
    weight : int
        Lowest is filled first.
    features : tuple of str
    """

    names: tuple[str, ...]
    cpus: int = 1
    memory_mib: int = 1
    gpus: Mapping[str, int] = field(default_factory=dict)
    shards: int = 0
    mps: int = 0
    weight: int = 1
    features: tuple[str, ...] = ()

    @property
    def whole_gpus(self) -> float:
        """GPUs of each, with a MIG slice as its part of one."""
        return sum(count * (part_of_gpu(kind) or 1.0) for kind, count in self.gpus.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRules:
    """A partition, a queue for nodes that other partitions may share.

    Attributes
    ----------
    nodes : tuple of str
        Names of its nodes.
    max_time_s, default_time_s : int or None
        None for no maximum. Without a default, a job that asks for none gets ``max_time_s``.
    priority_tier : int
        Partitions of a higher tier are looked at first, whatever the priorities.
    priority_job_factor : int
        What the partition gives to the multifactor priority, before it is normalised by the largest.
    qos : str
        QOS whose limits hold for all of its jobs. Empty for none.
    exclusive : bool
        Whole nodes only.
    def_mem_per_cpu_mib, def_mem_per_gpu_mib, def_mem_per_node_mib : int
        Memory of a job that asks for none. 0 where not set.
    tres_billing : mapping of str to float
        ``TRESBillingWeights``, as for :attr:`PriorityRules.tres`. Empty where CPUs are billed.
    """

    name: str
    nodes: tuple[str, ...]
    max_time_s: int | None = None
    default_time_s: int | None = None
    priority_tier: int = 1
    priority_job_factor: int = 1
    is_default: bool = False
    is_up: bool = True
    qos: str = ""
    exclusive: bool = False
    def_mem_per_cpu_mib: int = 0
    def_mem_per_gpu_mib: int = 0
    def_mem_per_node_mib: int = 0
    tres_billing: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityRules:
    """Slurm's ``Priority*`` settings.

    Attributes
    ----------
    multifactor : bool
        False for first in, first out (``priority/basic``).
    age, fairshare, job_size, partition, qos, association : int
        Weights; the factors lie between 0 and 1.
    tres : mapping of str to float
        Weights by TRES, as ``cpu``, ``mem``, ``gres/gpu``.
    max_age_s : int
        Age at which the age factor is 1.
    decay_half_life_s : int
        Half-life of usage, s. 0 where usage does not decay.
    calc_period_s : int
        Time between two updates of decay and fair shares, s.
    favor_small : bool
        Small jobs get the job size factor instead of large ones.
    fair_tree : bool
        Fair Tree, else the classic formula (``NO_FAIR_TREE``).
    flags : tuple of str
        All ``PriorityFlags`` in capitals, those above included.
    """

    multifactor: bool = True
    age: int = 0
    fairshare: int = 0
    job_size: int = 0
    partition: int = 0
    qos: int = 0
    association: int = 0
    tres: Mapping[str, float] = field(default_factory=dict)
    max_age_s: int = 7 * DAY_S
    decay_half_life_s: int = 7 * DAY_S
    calc_period_s: int = 300
    favor_small: bool = False
    fair_tree: bool = True
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingRules:
    """Slurm's ``Sched*`` settings.

    Attributes
    ----------
    backfill : bool
        False for ``sched/builtin``.
    default_queue_depth : int
        Jobs that a quick pass of the main scheduler looks at.
    sched_interval_s : int
        Time between two full passes of the main scheduler, s. -1 for none.
    sched_min_interval_s : float
        Least time between two passes of the main scheduler.
    partition_job_depth : int
        Jobs of each partition that the main scheduler looks at. 0 for no limit.
    batch_sched_delay_s : int
        Least time between two passes of the main scheduler that submissions ask for, and ends on nodes without an
        epilog.
    epilog : bool
        Nodes run an ``Epilog``: then each end causes a pass of the main scheduler at once (observed in 22.05).
    sched_max_job_start : int
        Jobs that a pass of the main scheduler starts. 0 for no limit.
    defer : bool
        No attempt to start a job at its submission.
    bf_interval_s : int
        Time between two backfill passes, s. -1 for none.
    bf_window_s : int
        How far into the future backfill plans.
    bf_resolution_s : int
        Planned starts are rounded up to it.
    bf_max_job_test : int
        Jobs that a backfill pass looks at.
    bf_max_job_part, bf_max_job_user, bf_max_job_start : int
        Jobs of a partition or a user that it looks at, and that it starts. 0 for no limit.
    bf_max_job_array_resv : int
        Tasks of one array that it plans.
    bf_node_space_size : int
        Slots of time that its plan may have, after which it ends. 0 for as many as ``bf_max_job_test``.
    bf_continue : bool
        Go on with the same pass after locks were yielded.
    bf_busy_nodes : bool
        Prefer nodes in use for planned starts.
    time_min_is_soft : bool
        ``time_min_as_soft_limit``: backfill plans with TimeMin, and the time limit stays in force.
    """

    backfill: bool = True
    default_queue_depth: int = 100
    sched_interval_s: int = 60
    sched_min_interval_s: float = 2e-6
    partition_job_depth: int = 0
    batch_sched_delay_s: int = 3
    epilog: bool = False
    sched_max_job_start: int = 0
    defer: bool = False
    bf_interval_s: int = 30
    bf_window_s: int = DAY_S
    bf_resolution_s: int = 60
    bf_max_job_test: int = 500
    bf_max_job_part: int = 0
    bf_max_job_user: int = 0
    bf_max_job_start: int = 0
    bf_max_job_array_resv: int = 20
    bf_node_space_size: int = 0
    bf_continue: bool = False
    bf_busy_nodes: bool = False
    time_min_is_soft: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QosRules:
    """A quality of service, as far as it decides who starts when.

    Attributes
    ----------
    priority : int
        Before it is normalised by the largest.
    usage_factor : float
        How much a second counts for fair share.
    max_gpus_per_user, max_gpus, max_jobs_per_user : int or None
        Limits of what runs at once, if there are any.
    """

    name: str
    priority: int = 0
    usage_factor: float = 1.0
    max_gpus_per_user: int | None = None
    max_gpus: int | None = None
    max_jobs_per_user: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """An association of Slurm's accounting.

    An account below another one, or a user in an account.

    Attributes
    ----------
    account, parent : str
        ``parent`` is empty for the root.
    user : str
        Empty for the account itself.
    shares : int or None
        None for ``parent`` in Slurm, whose users compete in the account above.
    usage_s : float
        TRES seconds charged before the replay begins.
    """

    account: str
    parent: str = ""
    user: str = ""
    shares: int | None = 1
    usage_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSite:
    """A site's Slurm configuration.

    Attributes
    ----------
    select : str
        ``cons_tres``, ``cons_res`` or ``linear`` (whole nodes).
    least_loaded : bool
        ``CR_LLN``: emptiest nodes first; else nodes are filled by weight, then order.
    holds_memory : bool
        Memory is a resource that jobs hold (``CR_*_Memory``).
    notes : tuple of str
        Settings that are not understood or not simulated, for a person.
    """

    name: str = "slurm"
    nodes: tuple[NodeGroup, ...] = ()
    partitions: tuple[PartitionRules, ...] = ()
    priority: PriorityRules = PriorityRules()
    scheduling: SchedulingRules = SchedulingRules()
    qos: tuple[QosRules, ...] = ()
    shares: tuple[Share, ...] = ()
    select: str = "cons_tres"
    least_loaded: bool = False
    holds_memory: bool = False
    notes: tuple[str, ...] = ()
