"""Commands that read what jobs used."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime

import typer

from helios.cli.options import AsJson, Cluster, configuration, select_cluster
from helios.cli.output import print_result, progress_bars

commands = typer.Typer()


@commands.command("use-prometheus", epilog="Example: helios trace use-prometheus --cluster venus")
def use_prometheus(cluster: Cluster = None, as_json: AsJson = False) -> None:
    """Read what ended jobs used from Prometheus.

    Setting prometheus.url names it. Exporters of jobstats, slurm-job-exporter and DCGM's with its
    mapping of jobs are known. Each job is asked for once, the last submitted first, back to the oldest samples. After
    an interruption, the next run goes on. Where nothing is found, helios doctor says which label is missing.
    """
    from helios.app.clusters import choose_cluster  # noqa: PLC0415 - pandas; no help needs it
    from helios.job_use.fetch import fetch  # noqa: PLC0415 - as above
    from helios.warehouse import Warehouse  # noqa: PLC0415 - as above

    settings = configuration().settings
    with Warehouse.open(settings.database.url) as warehouse:
        name = str(choose_cluster(warehouse, select_cluster(cluster))["name"])
    with progress_bars() as progress:
        found = fetch(settings, name, datetime.now(UTC), progress=progress)
    print_result(asdict(found), found.line(), as_json=as_json)
