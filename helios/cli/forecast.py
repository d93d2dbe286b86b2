"""``helios forecast``: how many nodes will be needed, and how good such forecasts are."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from helios.app.forecast import ForecastQuestion, evaluate_forecasts
from helios.app.machine import parse_nodes
from helios.app.watched import ClusterShapeAsked, watch_cluster
from helios.app.watched import watch_files as watch_series
from helios.cli.options import (
    AsJson,
    Cluster,
    Format,
    GpusPerNode,
    Timezone,
    Trace,
    configuration,
    history_from,
    moment,
    named_timezone,
)
from helios.cli.screen import progress_bars, say_notes, show, show_json
from helios.config import Settings, zone
from helios.errors import Misuse
from helios.predict.demand import Calendar, parse_holidays
from helios.report.forecast import forecast_table

commands = typer.Typer(no_args_is_help=True, help="Forecast how many nodes will be needed, and judge the forecasts.")


class Resource(StrEnum):
    """What is counted."""

    NODES = "nodes"
    GPUS = "gpus"


@commands.callback()
def _noun() -> None:
    pass  # so that evaluate stays a verb behind the noun while it is the only one


@commands.command(
    "evaluate",
    epilog="Example: helios forecast evaluate --series nodes.csv.gz --from 2017-11-15 --to 2017-12-01 --json",
)
def evaluate(
    more: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]...", help="More files of --series, to be added up.")
    ] = None,
    series: Annotated[
        list[Path] | None,
        typer.Option("--series", help="File with the columns time,active,total; several are added up."),
    ] = None,
    cluster: Cluster = None,
    trace: Trace = None,
    trace_format: Format = None,
    partition: Annotated[
        str | None, typer.Option("--partition", help="Only jobs of this partition; else of all, together.")
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option("--nodes", help="Nodes: N, or PARTITION=N[,PARTITION=N...]; else as many as were ever busy."),
    ] = None,
    gpus_per_node: GpusPerNode = None,
    resource: Annotated[Resource, typer.Option("--resource", help="What is forecast.")] = Resource.NODES,
    total: Annotated[
        float | None, typer.Option("--total", min=0, help="Nodes in service, where a series does not tell.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--from", help="Judge from then on; what lies before is history. Else the last third.")
    ] = None,
    until: Annotated[str | None, typer.Option("--to", help="Judge up to then.")] = None,
    timezone: Timezone = None,
    as_json: AsJson = False,
) -> None:
    """Judge forecasts of the nodes needed in 1, 3, 6 and 24 hours, beside rules that need no model.

    At every 10-minute step of the window a forecast is made from what was known then, learned anew every day. The
    rules: as now (persistence), the same hour last week, the most of the last 3 h; for the most nodes needed within the
    next hours, now plus the empirical quantile of all rises so far.
    """
    files = [*(series or []), *(more or [])]
    if files and (cluster or trace):
        raise Misuse("--series and --cluster or --trace say two things.", remedy="Give one of them.")
    settings = configuration().settings
    with progress_bars() as progress:
        if files:
            zone_name = named_timezone(timezone, configuration()) or settings.ingest.timezone
            watched = watch_series(
                files,
                timezone=zone_name,
                total=total,
                gpus_per_node=gpus_per_node or settings.whatif.gpus_per_node,
                in_gpus=resource is Resource.GPUS,
            )
        else:
            history = history_from(
                trace=trace, cluster=cluster, trace_format=trace_format, timezone=timezone, progress=progress
            )
            zone_name = history.timezone
            asked = ClusterShapeAsked(
                nodes=_described(nodes, total),
                gpus_per_node=gpus_per_node or settings.whatif.gpus_per_node,
                partition=partition,
                in_gpus=resource is Resource.GPUS,
                default_time_limit_s=settings.whatif.default_time_limit_s,
            )
            watched = watch_cluster(history, asked, progress=progress)
        question = _question(settings, zone_name, since, until)
        report = evaluate_forecasts(watched, question, progress=progress)
    say_notes(report.notes)
    if as_json:
        show_json(report.to_json())
        return
    show(forecast_table(report))


def _described(nodes: str | None, total: float | None) -> dict[str, int] | None:
    if nodes is None:
        return None if total is None else {"all": max(int(total), 1)}
    return parse_nodes(nodes)


def _question(settings: Settings, timezone: str, since: str | None, until: str | None) -> ForecastQuestion:
    return ForecastQuestion(
        since=moment(since, timezone=timezone),
        until=moment(until, timezone=timezone),
        calendar=Calendar(zone=zone(timezone), holidays=parse_holidays(settings.demand.holidays)),
        history_days=settings.demand.history_days,
    )
