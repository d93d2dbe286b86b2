"""Metrics of the exporters that measure jobs, as a table.

From the sources of jobstats' ``cgroup_exporter`` and ``nvidia_gpu_prometheus_exporter``, of ``slurm-job-exporter``, and
of NVIDIA's DCGM exporter with its mapping of jobs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from helios.model.job_use import LONGEST_GPU, BusyMeans

MIB = 2.0**-20


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric of a GPU.

    Attributes
    ----------
    name : str
    scale : float
        Factor that gives the unit of ``JOB_USE``: %, MiB or W.
    match : str
        Matchers of further labels.
    plus : str
        Another metric that is added.
    busy_means : BusyMeans, optional
        What utilization counts as busy.
    """

    name: str
    scale: float = 1.0
    match: str = ""
    plus: str = ""
    busy_means: BusyMeans | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuExporter:
    """Metrics of GPUs of one exporter.

    Attributes
    ----------
    name : str
        As in the setting ``prometheus.dialect``.
    job_label : str
        Label with the id of the job; empty where ``owner`` says it.
    owner : str
        Metric whose value is the id of the job that holds a GPU; empty where a label says it.
    utilization : tuple of Metric
        Metrics of different GPUs: a GPU is in one of them.
    memory, memory_total, power : Metric
    shows_sm : str
        Metric that is there only where utilization counts active SMs; empty: no such rule.
    gpu_labels : tuple of str
        Labels that tell one GPU or slice from all others; the first names its node.
    number_labels : tuple of str
        Labels that name it on its node.
    knows_slices : bool
        Whether utilization of a MIG slice is its own. Where SMs are counted it always is.
    hint : str
        What to do where the exporter runs but names no jobs.
    """

    name: str
    job_label: str = ""
    owner: str = ""
    utilization: tuple[Metric, ...]
    memory: Metric
    memory_total: Metric
    power: Metric
    shows_sm: str = ""
    gpu_labels: tuple[str, ...]
    number_labels: tuple[str, ...]
    knows_slices: bool = False
    hint: str

    @property
    def of_utilization(self) -> str:
        """Matcher of the series of utilization."""
        return f'__name__=~"{"|".join(metric.name for metric in self.utilization)}"'

    def gpu(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """Return what tells the GPU or slice of a series from all others."""
        return tuple(labels.get(name, "") for name in self.gpu_labels)

    def node(self, labels: Mapping[str, str]) -> str:
        """Return the name of the node of a series."""
        return node_name(labels.get(self.gpu_labels[0], ""))

    def number(self, labels: Mapping[str, str]) -> str:
        """Return the number or UUID of a GPU or slice on its node."""
        names = [labels[label] for label in self.number_labels if labels.get(label)]
        if is_slice(labels) and labels.get("uuid"):
            names = [labels["uuid"]]
        return "/".join(names)[:LONGEST_GPU]


def is_slice(labels: Mapping[str, str]) -> bool:
    """Return whether a series is of a MIG slice."""
    named = (labels.get(name, "") for name in ("gpu", "uuid", "UUID"))
    return any(text.startswith("MIG-") for text in named) or bool(labels.get("GPU_I_ID")) or " MIG " in _kind(labels)


def node_name(text: str) -> str:
    """Return a node's name from the address of its exporter."""
    host = re.sub(r":\d+$", "", text)
    return host if re.fullmatch(r"[\d.]+|.*:.*", host) else host.partition(".")[0]


def _kind(labels: Mapping[str, str]) -> str:
    return labels.get("gpu_type") or labels.get("name") or labels.get("modelName") or ""


_JOBSTATS = GpuExporter(
    name="jobstats",
    job_label="jobid",
    utilization=(Metric(name="nvidia_gpu_duty_cycle", busy_means=BusyMeans.KERNEL),),
    memory=Metric(name="nvidia_gpu_memory_used_bytes", scale=MIB),
    memory_total=Metric(name="nvidia_gpu_memory_total_bytes", scale=MIB),
    power=Metric(name="nvidia_gpu_power_usage_milliwatts", scale=1e-3),
    gpu_labels=("instance", "minor_number", "uuid"),
    number_labels=("minor_number",),
    hint="Slurm's prolog must name the job of each GPU for nvidia_gpu_prometheus_exporter (jobstats: setup).",
)
DIALECTS = (
    _JOBSTATS,
    replace(_JOBSTATS, name="jobstats-joined", job_label="", owner="nvidia_gpu_jobId"),
    GpuExporter(
        name="slurm-job-exporter",
        job_label="slurmjobid",
        utilization=(Metric(name="slurm_job_utilization_gpu", busy_means=BusyMeans.KERNEL),),
        memory=Metric(name="slurm_job_memory_usage_gpu", scale=MIB),
        memory_total=Metric(name="slurm_job_memory_total_gpu", scale=MIB),
        power=Metric(name="slurm_job_power_gpu", scale=1e-3),
        shows_sm="slurm_job_sm_occupancy_gpu",
        gpu_labels=("instance", "gpu"),
        number_labels=("gpu",),
        hint="Start slurm-job-exporter with --monitor gpu where jobs hold GPUs.",
    ),
    GpuExporter(
        name="dcgm",
        job_label="hpc_job",
        utilization=(
            Metric(name="DCGM_FI_DEV_GPU_UTIL", match='GPU_I_ID=""', busy_means=BusyMeans.KERNEL),
            Metric(name="DCGM_FI_PROF_GR_ENGINE_ACTIVE", scale=100, match='GPU_I_ID!=""', busy_means=BusyMeans.ENGINE),
        ),
        memory=Metric(name="DCGM_FI_DEV_FB_USED"),
        memory_total=Metric(name="DCGM_FI_DEV_FB_USED", plus="DCGM_FI_DEV_FB_FREE"),
        power=Metric(name="DCGM_FI_DEV_POWER_USAGE"),
        gpu_labels=("Hostname", "UUID", "GPU_I_ID"),
        number_labels=("gpu", "GPU_I_ID"),
        knows_slices=True,
        hint="Give dcgm-exporter a folder in which Slurm's prolog names jobs: --hpc-job-mapping-dir.",
    ),
)
"""The jobs' own label comes before a join, which costs the server more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMetrics:
    """Metrics of the processors and memory of jobs, which are bytes.

    Attributes
    ----------
    job_label : str
        Label with the id of the job.
    memory, limit, cpu : str
        Metrics: most memory held, most that may be held, and time used by processors.
    cpu_scale : float
        Factor that gives seconds.
    match : str
        Matchers of the series of whole jobs.
    """

    job_label: str
    memory: str
    limit: str
    cpu: str
    cpu_scale: float = 1.0
    match: str = ""


HOST_METRICS = (
    HostMetrics(
        job_label="slurmjobid",
        memory="slurm_job_memory_max",
        limit="slurm_job_memory_limit",
        cpu="slurm_job_core_usage_total",
        cpu_scale=1e-9,
    ),
    HostMetrics(
        job_label="jobid",
        memory="cgroup_memory_rss_bytes",
        limit="cgroup_memory_total_bytes",
        cpu="cgroup_cpu_total_seconds",
        match='step="",task=""',
    ),
)


def select(name: str, *matchers: str) -> str:
    """Return the selector of a metric with matchers, of which any may be empty."""
    return f"{name}{{{','.join(filter(None, matchers))}}}"


def one_of(label: str, values: set[str]) -> str:
    """Return the matcher of a label that has one of some values."""
    return f"{label}=~{json.dumps('|'.join(re.escape(value) for value in sorted(values)))}"
