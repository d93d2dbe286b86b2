"""Command ``helios trace use``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument

from helios.cli.options import AsJson, Cluster, configuration, named_timezone
from helios.cli.output import print_result, progress_bars
from helios.cli.trace import Columns, Timezone

commands = typer.Typer()


@commands.command("use", epilog="Example: helios trace use use.txt --cluster venus")
def use(
    file: Annotated[Path, Argument(help="Output of sacct, SQL dump of jobstats' database, or table of a map.")],
    columns: Columns = None,
    cluster: Cluster = None,
    timezone: Timezone = None,
    as_json: AsJson = False,
) -> None:
    """Load what jobs really used, of jobs that are loaded.

    From sacct, AdminComment is read where jobstats wrote it, and the memory of the steps. It needs JobIDRaw; with Start
    each run of a requeued job and ids used again are told apart. For all of it: sacct --allusers --duplicates
    --noconvert --parsable --delimiter="$(cat /proc/sys/kernel/random/uuid)" --format=JobIDRaw,Submit,Start,End,State,
    AllocTRES,NTasks,MaxRSS,AdminComment. Of a dump, jobstats' table job_summary is read.

    A map is as for helios trace load. Its columns are job_id, submitted_at and started_at (as far as known), node and
    gpu where a row is of a GPU, and utilization, utilization_p95, utilization_max, idle_share, longest_idle_s,
    gpu_memory_peak_mib, gpu_memory_total_mib, power_w, energy_j, busy_means, samples, covered_s, gpus_measured,
    utilization_later, cpu_s, memory_peak_mib, memory_limit_mib, is_mig, is_shared, is_interactive, quality.

    A job that is not loaded is counted and named. Loading a file again changes nothing.
    """
    from helios.app.clusters import choose_cluster  # noqa: PLC0415 - pandas; no help needs it
    from helios.job_use.files import load_use  # noqa: PLC0415 - as above
    from helios.warehouse import Warehouse  # noqa: PLC0415 - as above

    settings = configuration()
    url = settings.settings.database.url
    with Warehouse.open(url) as warehouse:
        name = choose_cluster(warehouse, cluster or settings.settings.database.cluster or None)["name"]
    with progress_bars() as progress:
        counts = load_use(
            file,
            url=url,
            cluster=name,
            columns=columns,
            timezone=named_timezone(timezone, settings),
            progress=progress,
        )
    print_result({"cluster": name, **counts.to_json()}, *counts.lines(), as_json=as_json)
