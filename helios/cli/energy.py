"""Commands ``helios energy`` and ``helios forecast``, about putting idle nodes to sleep."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

from helios.app.demand_history import (
    ForecastRequest,
    RequestedClusterShape,
    evaluate_forecasts,
    read_files,
    watch_cluster,
    watch_files,
)
from helios.app.replay_cluster import parse_nodes
from helios.cli.options import (
    AsJson,
    GpusPerNode,
    HistoryOptions,
    Machine,
    Report,
    WindowOptions,
    configuration,
    described,
    expand,
    moment,
    named_timezone,
)
from helios.cli.output import print_notes, print_result, progress_bars, width, write_page
from helios.config import Settings, zone
from helios.errors import NotEnoughHistory, UsageError
from helios.predict.demand.types import Calendar, parse_holidays
from helios.report.forecast import forecast_table

if TYPE_CHECKING:
    from helios.services.energy_saving import CesOptions


commands = typer.Typer(no_args_is_help=True, help="Estimate what putting idle nodes to sleep would save.")


MoreFiles = Annotated[
    list[Path] | None, Argument(metavar="[FILE]...", help="More files like that of --series. All are added up.")
]
Series = Annotated[
    list[Path] | None,
    Option("--series", help="File with the columns time,active,total. If repeated, all are added up."),
]
Total = Annotated[float | None, Option("--total", min=0, help="Nodes in service, if the series does not say.")]


@commands.callback()
def _energy_group() -> None:
    pass  # so that whatif stays a verb behind the noun while it is the only one


@commands.command(
    "whatif", epilog="Example: helios energy whatif --series nodes.csv.gz --from 2017-11-15 --to 2017-12-01 --json"
)
@expand
def whatif(
    *,
    more: MoreFiles = None,
    series: Series = None,
    total: Total = None,
    source: HistoryOptions,
    machine: Machine,
    placement: Annotated[
        Literal["random", "spread", "packed"],
        Option(help="How jobs are placed on nodes today. Without node weights in Slurm, nearly at random."),
    ] = "random",
    wake_ups: Annotated[
        float | None, Option(min=0.01, help="Acceptable wake-ups per day. Default: as configured for the service ces.")
    ] = None,
    since: Annotated[
        str | None,
        Option("--from", help="Begin of the window. Earlier data is for training only. Default: the last quarter."),
    ] = None,
    until: Annotated[str | None, Option("--to", help="End of the window.")] = None,
    price: Annotated[
        float | None,
        Option(
            min=0,
            help="Price of a kWh, in energy.currency. Default: setting energy.price_per_kwh where it is set, else "
            "no money is shown.",
        ),
    ] = None,
    co2: Annotated[
        float | None,
        Option(
            "--co2",
            min=0,
            help="Carbon dioxide of a kWh, g. Default: setting energy.co2_g_per_kwh where it is set, else "
            "none is shown.",
        ),
    ] = None,
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Estimate what the service ces would save, beside other policies.

    It uses a series of busy nodes, or a cluster's own jobs. The other policies are: nodes always on, Slurm's idle timer
    at 10 and 30 minutes, the maximum of the last 3 h plus 5 nodes, the published rule of ces without knowledge of the
    future, and an oracle that knows the future. On jobs, also nodes filled in the order of helios power weights (with
    Slurm's idle timer, and with ces), and a rule that wakes nodes each minute up to those in use and a number of spare
    ones, with a table of what each number would save and delay.
    Watts and boot times are those of section energy in helios.toml. Nothing touches a cluster.
    """
    files, size = [*(series or []), *(more or [])], None
    if files and (source.cluster or source.trace or machine.nodes):
        raise UsageError(
            "--series cannot be used with --cluster, --trace or --nodes.",
            hint="Give a series of nodes (--series), or jobs (--cluster or --trace).",
        )
    configured = configuration()
    settings = configured.settings
    given = {name: value for name, value in (("price_per_kwh", price), ("co2_g_per_kwh", co2)) if value is not None}
    known = {
        name: name in given or f"energy.{name}" in configured.origins for name in ("price_per_kwh", "co2_g_per_kwh")
    }
    settings = settings.model_copy(update={"energy": settings.energy.model_copy(update=given)})
    if wake_ups is not None:
        options = {**settings.services.get("ces", {}), "wake_ups_per_day": wake_ups}
        settings = settings.model_copy(update={"services": {**settings.services, "ces": options}})
    from helios.app.energy.whatif import EnergyJobsRequest, EnergySeriesRequest, energy_on_jobs, energy_on_series  # noqa: PLC0415 - it takes LightGBM  # noqa: PLC0415 - as above
    from helios.app.whatif import WhatIfRequest  # noqa: PLC0415 - as above
    from helios.simulate import Placement  # noqa: PLC0415 - as above

    with progress_bars() as progress:
        if files:
            zone_name = named_timezone(source.timezone, configuration()) or settings.ingest.timezone
            per_node = machine.gpus_per_node or settings.whatif.gpus_per_node
            busy = read_files(files, timezone=zone_name, total=total, gpus_per_node=per_node)
            on_series = EnergySeriesRequest(
                series=busy,
                window=_window(since, until, zone_name, busy.start_s, busy.end_s),
                calendar=_calendar(zone_name, settings),
                options=ces_options(settings),
                gpus_per_node=per_node,
            )
            found = energy_on_series(
                on_series, energy=settings.energy, history_days=settings.demand.history_days, progress=progress
            )
        else:
            history = source.read(progress)
            submitted = history.jobs["submitted_at"]
            if submitted.empty:
                raise NotEnoughHistory(
                    f"No job of {history.cluster} is known.",
                    hint="Read some: helios trace sync, or helios trace load FILE. On a series of nodes: --series FILE",
                )
            history = described(
                history, settings=settings, window=WindowOptions(since=since, until=until), machine=machine
            )
            assert history.record is not None  # there are jobs
            first_s, after_s = history.record.begin_s, history.record.end_s
            begin, end = _window(since, until, history.timezone, first_s, after_s)
            replay = WhatIfRequest(
                plans=(),
                since=begin,
                until=end,
                placement=Placement(placement),
                seed=settings.model.seed,
                **machine.request_fields(settings, history.capacity),
            )
            on_jobs = EnergyJobsRequest(
                replay=replay,
                calendar=_calendar(history.timezone, settings),
                options=ces_options(settings),
                history_days=settings.demand.history_days,
            )
            found = energy_on_jobs(history, on_jobs, energy=settings.energy, power=settings.power, progress=progress)
            size = history.capacity and history.capacity.to_json()
    found = found.without_unknown(price=known["price_per_kwh"], co2=known["co2_g_per_kwh"])
    from helios.report.energy import energy_table  # noqa: PLC0415 - drawing takes a second to import

    if report is not None:
        from helios.report.html import render_energy_whatif  # noqa: PLC0415 - as above

        write_page(report, render_energy_whatif(found))
    print_result(found.to_json() | {"capacity": size}, energy_table(found, width=width()), as_json=as_json)


def ces_options(settings: Settings) -> CesOptions:
    """Return the configured options of the service ces.

    Raises
    ------
    ServiceInvalid
        One is unknown, or has an invalid value.
    """
    from helios.services.energy_saving import Ces  # noqa: PLC0415 - numba takes a while
    from helios.services.registry import checked_options  # noqa: PLC0415 - as above

    checked: CesOptions = checked_options(Ces, settings.services.get("ces", {}), name="ces")
    return checked


def _calendar(zone_name: str, settings: Settings) -> Calendar:
    return Calendar(zone=zone(zone_name), holidays=parse_holidays(settings.demand.holidays))


def _window(from_: str | None, to: str | None, zone_name: str, first_s: int, after_s: int) -> tuple[datetime, datetime]:
    """Return the window that --from and --to name.

    Default: the last quarter of the data.
    """
    first, after = datetime.fromtimestamp(first_s, UTC), datetime.fromtimestamp(after_s, UTC)
    since, until = moment(from_, timezone=zone_name), moment(to, timezone=zone_name)
    if since and since >= (until or after):
        goes = f"{first:%Y-%m-%d %H:%M} to {after:%Y-%m-%d %H:%M} UTC"
        raise UsageError(
            "--from is not before --to, or not before the end of the data.",
            hint=f"The data spans {goes}; leave some weeks of it before --from for the forecasts to learn from.",
        )
    end = min(until or after, after)
    return since or end - (end - first) / 4, end


forecast_commands = typer.Typer(
    no_args_is_help=True, help="Forecast how many nodes will be needed, and evaluate the forecasts."
)


@forecast_commands.callback()
def _forecast_group() -> None:
    pass  # so that evaluate stays a verb behind the noun while it is the only one


@forecast_commands.command(
    "evaluate",
    epilog="Example: helios forecast evaluate --series nodes.csv.gz --from 2017-11-15 --to 2017-12-01 --json",
)
@expand
def evaluate(
    *,
    more: MoreFiles = None,
    series: Series = None,
    source: HistoryOptions,
    partition: Annotated[
        str | None, Option(help="Only jobs of this partition. Default: of all partitions together.")
    ] = None,
    nodes: Annotated[
        str | None,
        Option(help="Nodes of each partition, such as gpu=16,cpu=4, or N. Default: the most that were busy at once."),
    ] = None,
    gpus_per_node: GpusPerNode = None,
    resource: Annotated[Literal["nodes", "gpus"], Option(help="Resource to forecast.")] = "nodes",
    total: Total = None,
    since: Annotated[
        str | None,
        Option("--from", help="Begin of the window. Earlier data is for training only. Default: the last third."),
    ] = None,
    until: Annotated[str | None, Option("--to", help="End of the window.")] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate forecasts of the nodes needed, beside baselines without a model.

    Forecasts look 1, 3, 6 and 24 hours ahead. One is made at every 10-minute step of the window, from what was known
    then. The model is trained again every day. The baselines are the present value (persistence), the same hour last
    week, and the maximum of the last 3 h. For the maximum within the next hours, the baseline is the present value plus
    the empirical quantile of all rises so far.
    """
    files = [*(series or []), *(more or [])]
    if files and (source.cluster or source.trace):
        raise UsageError("--series cannot be used with --cluster or --trace.", hint="Give one of them.")
    settings = configuration().settings
    per_node = gpus_per_node or settings.whatif.gpus_per_node
    with progress_bars() as progress:
        if files:
            zone_name = named_timezone(source.timezone, configuration()) or settings.ingest.timezone
            demand = watch_files(
                files, timezone=zone_name, total=total, gpus_per_node=per_node, in_gpus=resource == "gpus"
            )
        else:
            history = source.read(progress)
            zone_name = history.timezone
            pooled = None if total is None else {"all": max(int(total), 1)}
            shape = RequestedClusterShape(
                nodes=pooled if nodes is None else parse_nodes(nodes),
                gpus_per_node=per_node,
                partition=partition,
                in_gpus=resource == "gpus",
                default_time_limit_s=settings.whatif.default_time_limit_s,
            )
            demand = watch_cluster(history, shape, progress=progress)
        request = ForecastRequest(
            since=moment(since, timezone=zone_name),
            until=moment(until, timezone=zone_name),
            calendar=_calendar(zone_name, settings),
            history_days=settings.demand.history_days,
        )
        report = evaluate_forecasts(demand, request, progress=progress)
    print_notes(report.notes)
    print_result(report.to_json(), forecast_table(report), as_json=as_json)
