"""What jobs really used, as measured, by run and by GPU.

A missing value is not known, which is never the same as 0.
"""

from __future__ import annotations

from enum import StrEnum

from helios.model.frames import TIME, frame_kind

LONGEST_GPU = 64
"""Letters of a GPU's name that are kept: a minor number, or the UUID of a GPU or of a MIG slice."""


class UseSource(StrEnum):
    """Where a measurement comes from, the most trusted first."""

    PROMETHEUS = "prometheus"
    JOBSTATS = "jobstats"
    FILE = "file"
    ACCOUNTING = "sacct"


EARLY = "first 15 minutes"
"""Source of rows that say what runs used until then, by Prometheus. They stand apart from those of whole runs."""


class BusyMeans(StrEnum):
    """What utilization counts as busy."""

    KERNEL = "a kernel ran"
    SM = "an SM was active"
    ENGINE = "the graphics engine was active"


class UseQuality(StrEnum):
    """How far a measurement can be trusted."""

    OK = "ok"
    PARTIAL = "partial"
    """Some GPUs or less than 90 % of the run were measured."""
    SHORT = "short"
    """The run was shorter than two samples."""
    NONE = "none"
    """The source looked and had nothing."""
    BROKEN = "broken"
    """What the source said is cut, or contradicts itself."""


_KEY = (
    ("submitted_at", TIME, "Submission of the job; never missing"),
    ("job_id", "str", "The site's id of the job"),
    ("restart", "int32", "Number of the run in its job"),
    ("source", "category", "A UseSource, or EARLY"),
)
_BUSY = (
    ("utilization", "float64", "Share of the time that a GPU was busy, mean, %"),
    ("utilization_p95", "float64", "95th percentile of the samples, %"),
    ("utilization_max", "float64", "Highest sample, %"),
    ("idle_share", "float64", "Share of samples below 1 %, 0 to 1"),
    ("longest_idle_s", "float64", "Longest time without a sample of 1 % or more, s"),
    ("gpu_memory_peak_mib", "float64", "Most memory held on a GPU, MiB"),
    ("gpu_memory_total_mib", "float64", "Memory of a GPU or slice, MiB"),
    ("power_w", "float64", "Power, mean of a GPU, W"),
    ("energy_j", "float64", "Energy, J; only of GPUs held whole and alone"),
)
JOB_USE = frame_kind(
    "job_use",
    *_KEY,
    ("busy_means", "category", "A BusyMeans; missing: not known, or nothing of GPUs"),
    ("samples", "float64", "Samples of a GPU, the mean over GPUs"),
    ("covered_s", "float64", "Time that the samples cover, s"),
    ("gpus_measured", "float64", "GPUs with at least one sample"),
    *_BUSY,
    ("utilization_later", "float64", "Utilization without the first 60 minutes, mean, %"),
    ("cpu_s", "float64", "CPU seconds used"),
    ("memory_peak_mib", "float64", "Most memory held on the nodes, MiB"),
    ("memory_limit_mib", "float64", "Memory that the job could have held, MiB"),
    ("is_mig", "float64", "1: MIG slices; 0: whole GPUs"),
    ("is_shared", "float64", "1: other jobs were on its GPUs; 0: it was alone"),
    ("is_interactive", "float64", "1: a shell or notebook; 0: a batch job"),
    ("quality", "category", "A UseQuality; never missing"),
)
"""Values of GPUs are the mean over the GPUs measured, and of memory held the largest."""
GPU_USE = frame_kind("gpu_use", *_KEY, ("node", "str", "Node name"), ("gpu", "str", "Number or UUID"), *_BUSY)
