"""Checks of Prometheus for ``helios doctor``."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from helios.app.status import OK, WARN, make_finding
from helios.config import Settings
from helios.errors import HeliosError, NoSuchCluster
from helios.job_use.dialects import DIALECTS, GpuExporter, select
from helios.job_use.prometheus import Prometheus
from helios.job_use.use_reader import find_dialect, find_host_metrics, is_there
from helios.slurm.preflight import PreflightFinding
from helios.warehouse import Warehouse

CHECK = "prometheus"
JUST_STARTED = timedelta(minutes=10)
"""Age of a run that may not have been scraped yet."""
MOST_NAMED = 3


def check_prometheus(settings: Settings, cluster: str, now: datetime) -> Iterator[PreflightFinding]:
    """Report whether Prometheus says what running jobs use, else what it lacks.

    Nothing is reported where no Prometheus is named.
    """
    if not settings.prometheus.url:
        return
    client = Prometheus(settings.prometheus, tries=1)
    try:
        client.refuse_wrong_clock()
        exporter = find_dialect(client, settings.prometheus)
        if exporter is None:
            yield from _missing_label(client, settings)
        else:
            yield _running_jobs(client, settings, exporter, cluster, now)
        if find_host_metrics(client, settings.prometheus) is None:
            hint = "Install slurm-job-exporter, or cgroup_exporter of jobstats, on the nodes."
            yield make_finding(CHECK, WARN, "no exporter says what processors and memory jobs use", hint)
    except HeliosError as reason:
        yield make_finding(CHECK, WARN, reason.message, reason.hint)


def _missing_label(client: Prometheus, settings: Settings) -> Iterator[PreflightFinding]:
    """Report exporters that run but name no jobs, or else that there is none."""
    chosen = [it for it in DIALECTS if settings.prometheus.dialect in {"auto", it.name} and it.job_label]
    there = [it for it in chosen if is_there(client, select("", it.of_utilization, settings.prometheus.match))]
    for exporter in there:
        message = f"{exporter.utilization[0].name} is measured, but no series has the label {exporter.job_label}"
        yield make_finding(CHECK, WARN, message, exporter.hint)
    if not there:
        names = ", ".join(metric.name for it in chosen[::-1] for metric in it.utilization[:1])
        yield make_finding(
            CHECK,
            WARN,
            f"it has no metric of GPUs that Helios knows: {names}",
            "Does it scrape such an exporter? Setting prometheus.match must fit its series, too.",
        )


def _running_jobs(
    client: Prometheus, settings: Settings, exporter: GpuExporter, cluster: str, now: datetime
) -> PreflightFinding:
    """Return whether running jobs have series."""
    with Warehouse.open(settings.database.url) as warehouse:
        try:
            jobs = warehouse.jobs(cluster, unended_at=now, columns=["job_id", "started_at", "ended_at", "gpus"])
        except NoSuchCluster:
            jobs = None
    running: set[str] = set()
    if jobs is not None:
        runs = jobs[jobs["ended_at"].isna() & (jobs["gpus"] > 0) & (jobs["started_at"] < now - JUST_STARTED)]
        running = {*runs["job_id"]}
    match = settings.prometheus.match
    if exporter.owner:
        named = {f"{each.value:.0f}" for each in client.query(f"{select(exporter.owner, match)} > 0")}
        place = f"the metric {exporter.owner}"
    else:
        series = select("", exporter.of_utilization, f'{exporter.job_label}!=""', match)
        answer = client.query(f"count by ({exporter.job_label}) ({series})")
        named = {each.labels.get(exporter.job_label, "") for each in answer}
        place = f"the label {exporter.job_label}"
    found = running & named
    if not running:
        return make_finding(CHECK, OK, f"{place} of {exporter.name} names jobs; no job that is known holds a GPU now")
    if found:
        return make_finding(
            CHECK, OK, f"{place} of {exporter.name} names {len(found):,} of {len(running):,} running jobs with GPUs"
        )
    ours, theirs = (", ".join(sorted(ids)[:MOST_NAMED]) or "none" for ids in (running, named))
    return make_finding(
        CHECK,
        WARN,
        f"{place} of {exporter.name} names no running job with GPUs ({ours}), but {theirs}",
        "Is it the Prometheus of this cluster? Of several clusters in one, setting prometheus.match chooses.",
    )
