"""Values that options of the command line choose from.

They are apart from the code that does what was chosen. So the help of a command needs neither pandas nor numba.
"""

from __future__ import annotations

from enum import StrEnum


class TraceFormat(StrEnum):
    """A format of history files."""

    HELIOS = "helios"
    SACCT = "sacct"
    SACCT_JSON = "sacct-json"
    SWF = "swf"
    PHILLY = "philly"
    PAI = "pai"
    ACME = "acme"
    PARQUET = "parquet"


class ExportLayout(StrEnum):
    """A layout in which history is exported."""

    PARQUET = "parquet"
    HELIOS = "helios"
    SWF = "swf"


class Policy(StrEnum):
    """Queue orders that can be replayed."""

    FIFO = "fifo"
    SJF = "sjf"
    QSSF = "qssf"
    SERVICE = "service"
    MEAN_SERVICE = "mean_service"
    FEWEST_GPUS = "fewest_gpus"
    SRTF = "srtf"


class RunTimes(StrEnum):
    """Source of run times for a queue order or for backfill."""

    LIMIT = "limit"
    PREDICTED = "predicted"
    EXPECTED = "expected"
    TRUE = "true"


class Backfill(StrEnum):
    """Which jobs may start before a blocked head of the queue."""

    NONE = "none"
    SKIP = "skip"
    EASY = "easy"
    NODES = "nodes"


class ResampledUnit(StrEnum):
    """What is resampled."""

    USERS = "users"
    WEEKS = "weeks"
    DAYS = "days"
    SEEDS = "seeds"


class Domain(StrEnum):
    """Kind of target that a service acts on.

    Each domain has its own control cycle, lease and cluster interface, and may run under its own identity.
    """

    JOBS = "jobs"
    NODES = "nodes"


class Mode(StrEnum):
    """How far a service may go."""

    OFF = "off"
    SHADOW = "shadow"
    CANARY = "canary"
    ACTIVE = "active"
