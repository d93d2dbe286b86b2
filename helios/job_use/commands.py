"""Command ``helios trace use``."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument

from helios.cli.options import AsJson, Cluster, configuration, named_timezone, select_cluster
from helios.cli.output import print_result, progress_bars
from helios.cli.trace import Columns, Timezone

commands = typer.Typer()


@commands.command("use", epilog="Example: helios trace use use.txt --cluster venus")
def use(
    file: Annotated[
        Path | None,
        Argument(help="Output of sacct, SQL dump of jobstats' database, or table of a map. Default: ask Prometheus."),
    ] = None,
    columns: Columns = None,
    cluster: Cluster = None,
    timezone: Timezone = None,
    as_json: AsJson = False,
) -> None:
    """Load what jobs really used, of jobs that are loaded.

    From sacct, AdminComment is read where jobstats wrote it, and the memory of the steps. It needs JobIDRaw; with Start
    each run of a requeued job and ids used again are told apart. For all of it: sacct --allusers --duplicates
    --noconvert --parsable --delimiter="$(cat /proc/sys/kernel/random/uuid)" --format=JobIDRaw,Submit,Start,End,State,
    AllocTRES,NTasks,MaxRSS,JobName,AdminComment. Steps and names tell shells from batch jobs. Of a dump, jobstats'
    table job_summary is read.

    A map is as for helios trace load. Its columns are job_id, submitted_at and started_at (as far as known), node and
    gpu where a row is of a GPU, and utilization, utilization_p95, utilization_max, idle_share, longest_idle_s,
    gpu_memory_peak_mib, gpu_memory_total_mib, power_w, energy_j, busy_means, samples, covered_s, gpus_measured,
    utilization_later, cpu_s, memory_peak_mib, memory_limit_mib, is_mig, is_shared, is_interactive, quality.

    Without a file, setting prometheus.url is asked, for each ended job once, the last submitted first, back to the
    oldest samples. Exporters of jobstats, slurm-job-exporter and DCGM's with its mapping of jobs are known. Where
    nothing is found, helios doctor says which label is missing.

    A job that is not loaded is counted and named. Loading again changes nothing.
    """
    from helios.app.clusters import choose_cluster  # noqa: PLC0415 - pandas; no help needs it
    from helios.warehouse import Warehouse  # noqa: PLC0415 - as above

    loaded = configuration()
    settings = loaded.settings
    with Warehouse.open(settings.database.url) as warehouse:
        name = str(choose_cluster(warehouse, select_cluster(cluster))["name"])
    if file is None:
        from helios.job_use.fetch import fetch  # noqa: PLC0415 - as above

        with progress_bars() as progress:
            found = fetch(settings, name, datetime.now(UTC), progress=progress)
        print_result({"cluster": name, **asdict(found)}, found.line(), as_json=as_json)
        return
    from helios.job_use.files import load_use  # noqa: PLC0415 - as above

    with progress_bars() as progress:
        counts = load_use(
            file,
            url=settings.database.url,
            cluster=name,
            columns=columns,
            timezone=named_timezone(timezone, loaded),
            progress=progress,
        )
    print_result({"cluster": name, **counts.to_json()}, *counts.lines(), as_json=as_json)
