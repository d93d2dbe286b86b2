"""GPUs that running jobs hold and do not use, now."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime

from helios.config import PrometheusSettings, Settings
from helios.errors import HeliosError
from helios.job_use.dialects import GpuExporter, is_slice, select
from helios.job_use.prometheus import Prometheus
from helios.job_use.use_reader import find_dialect
from helios.metrics.job_use import IDLE
from helios.warehouse import Warehouse

IDLE_GPUS = "idle GPUs"
"""Name under which the warehouse keeps what was seen last."""
MINUTES = 30
"""Time without use from which a held GPU counts, in minutes; 90 % of it must be measured."""
_log = logging.getLogger("helios.job_use")


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleGpu:
    """A GPU that a running job holds and has not used for ``MINUTES``.

    Attributes
    ----------
    user : str, optional
        None where it is not known.
    has_process : bool, optional
        Whether a process of the job holds memory of it. None where the exporter does not tell.
    memory_mib : float, optional
        Most memory held on it, MiB.
    """

    job_id: str
    user: str | None
    node: str
    gpu: str
    has_process: bool | None
    memory_mib: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldGpus:
    """What is known of the GPUs that running jobs hold.

    Attributes
    ----------
    at : str
        When they were looked at, ISO 8601.
    exporter, busy_means : str
        What measured them, and what it counts as busy.
    measured : int
        GPUs that one job holds alone and that were measured for ``MINUTES``.
    idle : tuple of IdleGpu
        Those of them without use.
    """

    at: str
    exporter: str
    busy_means: str
    measured: int
    idle: tuple[IdleGpu, ...]

    def levels(self) -> dict[str, float]:
        """Return the values of the gauges by name."""
        return {
            "held_gpus_measured": self.measured,
            "held_gpus_idle": len(self.idle),
            "held_gpus_without_process": sum(gpu.has_process is False for gpu in self.idle),
        }


def levels_now(settings: Settings, cluster: str, now: datetime) -> Mapping[str, float]:
    """Look at the held GPUs, keep what is seen, and return its values for gauges.

    They are none where there is no Prometheus, or it does not say.
    """
    if not settings.prometheus.url:
        return {}
    try:
        held = held_gpus(Prometheus(settings.prometheus, tries=1), settings.prometheus, now)
    except HeliosError as problem:
        _log.debug("idle GPUs are not known: %s", problem.message)
        return {}
    if held is None:
        return {}
    with Warehouse.open(settings.database.url) as warehouse:
        held = with_users(held, warehouse, cluster, now)
        warehouse.remember(cluster, IDLE_GPUS, json.dumps(asdict(held)), at=now)
    return held.levels()


def last_held_gpus(warehouse: Warehouse, cluster: str) -> dict[str, object] | None:
    """Return what was seen last as plain values, those of ``HeldGpus``, or None."""
    text = warehouse.remembered(cluster, IDLE_GPUS)
    return dict(json.loads(text)) if text else None


def held_gpus(client: Prometheus, settings: PrometheusSettings, now: datetime) -> HeldGpus | None:
    """Return what Prometheus says of held GPUs in the last ``MINUTES``.

    Users are not known yet, unless the exporter names them. None where no exporter names jobs.

    Raises
    ------
    PrometheusUnavailable, PrometheusRefused
        It does not answer, its clock is wrong, or it refuses.
    """
    client.refuse_wrong_clock()
    exporter = find_dialect(client, settings)
    if exporter is None:
        return None
    owners = _owners(client, exporter, settings.match)
    job = f'{exporter.job_label}!=""' if exporter.job_label else ""
    memory = {
        (each.labels.get(exporter.job_label, ""), exporter.gpu(each.labels)): each.value * exporter.memory.scale
        for each in client.query(f"max_over_time({select(exporter.memory.name, job, settings.match)}[{MINUTES}m])")
    }
    jobs_on = Counter(gpu for _, gpu in memory)
    counts_sm = bool(exporter.shows_sm and client.query(f"count({select(exporter.shows_sm, settings.match)})"))
    measured, idle = 0, []
    for metric in exporter.utilization:
        series = select(metric.name, job, metric.match, settings.match)
        enough = f"count_over_time({series}[{MINUTES}m:1m]) >= {0.9 * MINUTES:g}"
        for each in client.query(f"max_over_time({series}[{MINUTES}m]) and ({enough}) and {series}"):
            gpu, percent = exporter.gpu(each.labels), each.value * metric.scale
            job_id = each.labels.get(exporter.job_label) if exporter.job_label else owners.get(gpu)
            knows_it = exporter.knows_slices or counts_sm or not is_slice(each.labels)
            if job_id is None or jobs_on[gpu] > 1 or not knows_it or not 0 <= percent <= 100:
                continue
            measured += 1
            if percent < IDLE:
                held = memory.get((each.labels.get(exporter.job_label, ""), gpu))
                tells = bool(exporter.shows_sm) and not counts_sm and held is not None
                idle.append(
                    IdleGpu(
                        job_id=job_id,
                        user=each.labels.get("user"),
                        node=exporter.node(each.labels),
                        gpu=exporter.number(each.labels),
                        has_process=held != 0 if tells else None,
                        memory_mib=held,
                    )
                )
    means = "an SM was active" if counts_sm else str(exporter.utilization[0].busy_means)
    at = now.isoformat(timespec="seconds")
    return HeldGpus(at=at, exporter=exporter.name, busy_means=means, measured=measured, idle=tuple(idle))


def with_users(held: HeldGpus, warehouse: Warehouse, cluster: str, now: datetime) -> HeldGpus:
    """Return the GPUs with the users of the jobs that the history knows."""
    if not held.idle:
        return held
    jobs = warehouse.jobs(cluster, unended_at=now, columns=["job_id", "user"])
    known = jobs[jobs["user"].notna()]
    user_of = dict(zip(known["job_id"], known["user"].astype("str"), strict=True))
    idle = tuple(replace(gpu, user=user_of.get(gpu.job_id, gpu.user)) for gpu in held.idle)
    return replace(held, idle=idle)


def _owners(client: Prometheus, exporter: GpuExporter, match: str) -> dict[tuple[str, ...], str]:
    """Return the job that held each GPU all the time."""
    if not exporter.owner:
        return {}
    series = select(exporter.owner, match)
    span = f"[{MINUTES}m]"
    answer = client.query(f"({series} > 0) and (min_over_time({series}{span}) == max_over_time({series}{span}))")
    return {exporter.gpu(each.labels): f"{each.value:.0f}" for each in answer}
