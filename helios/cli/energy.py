"""Command ``helios whatif energy``, about putting idle nodes to sleep."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from helios.cli.options import (
    AsJson,
    HistoryOptions,
    Machine,
    Report,
    Since,
    Until,
    WindowOptions,
    configuration,
    described,
    expand,
    refuse_misplaced,
)
from helios.cli.output import print_result, progress_bars, width, write_page
from helios.config import Settings, zone
from helios.errors import NotEnoughHistory, UsageError

MoreFiles = Annotated[
    list[Path] | None, Argument(metavar="[FILE]...", help="More files like that of --series. All are added up.")
]
Series = Annotated[
    list[Path] | None,
    Option("--series", help="File with the columns time,active,total. If repeated, all are added up."),
]
Total = Annotated[float | None, Option("--total", min=0, help="Nodes in service, if the series does not say.")]


@expand
def energy(
    *,
    context: typer.Context,
    more: MoreFiles = None,
    series: Series = None,
    total: Total = None,
    source: HistoryOptions,
    machine: Machine,
    placement: Annotated[
        Literal["random", "spread", "packed"],
        Option(help="How jobs are placed on nodes today. Without node weights in Slurm, nearly at random."),
    ] = "random",
    since: Since = None,
    until: Until = None,
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Estimate what the service ces would save, beside other policies.

    The jobs of a cluster are replayed on nodes that sleep and wake, or a series of busy nodes is. The window is the
    last quarter where no option says it. The number of spare nodes of ces is chosen on the weeks before it. The other
    policies are: nodes always on; Slurm's idle timer of 30 minutes, alone and with as many nodes left awake; the
    maximum of the last 3 h plus 5 nodes; the rule of the paper; on jobs ces with nodes filled in the order of helios
    power weights; and an oracle that knows the future. On jobs a second table shows what each number of spare nodes
    would save and delay.
    Watts and boot times are those of section energy in helios.toml. Nothing touches a cluster.
    """
    refuse_misplaced(context, write="helios whatif energy --cluster NAME")
    files, size = [*(series or []), *(more or [])], None
    if files and (source.cluster or source.trace or machine.nodes):
        raise UsageError(
            "--series cannot be used with --cluster, --trace or --nodes.",
            hint="Give a series of nodes (--series), or jobs (--cluster or --trace).",
        )
    configured = configuration()
    settings = configured.settings
    known = {name: f"energy.{name}" in configured.origins for name in ("price_per_kwh", "co2_g_per_kwh")}
    from helios.app.demand_history import read_files  # noqa: PLC0415 - they take LightGBM and numba
    from helios.app.energy.whatif import EnergyJobsRequest, energy_on_jobs  # noqa: PLC0415 - as above
    from helios.app.energy.whatif_series import EnergySeriesRequest, energy_on_series  # noqa: PLC0415 - as above
    from helios.app.live_cluster import slurm_release  # noqa: PLC0415 - as above
    from helios.app.whatif import WhatIfRequest  # noqa: PLC0415 - as above
    from helios.simulate import Placement  # noqa: PLC0415 - as above

    accepted = _accepted(settings)
    with progress_bars() as progress:
        if files:
            zone_name = settings.ingest.timezone
            per_node = machine.gpus_per_node or settings.whatif.gpus_per_node
            busy = read_files(files, timezone=zone_name, total=total, gpus_per_node=per_node)
            on_series = EnergySeriesRequest(
                series=busy,
                window=_window(since, until, zone_name, busy.start_s, busy.end_s),
                zone=zone(zone_name),
                gpus_per_node=per_node,
                **accepted,
            )
            found = energy_on_series(on_series, energy=settings.energy, progress=progress)
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
                scenarios=(),
                since=begin,
                until=end,
                placement=Placement(placement),
                seed=settings.model.seed,
                **machine.request_fields(settings, history.capacity),
            )
            release = slurm_release(settings) if source.trace is None else None
            on_jobs = EnergyJobsRequest(replay=replay, release=release, **accepted)
            found = energy_on_jobs(history, on_jobs, energy=settings.energy, progress=progress)
            size = history.capacity and history.capacity.to_json()
    found = found.without_unknown(price=known["price_per_kwh"], co2=known["co2_g_per_kwh"])
    from helios.report.energy_whatif import energy_table  # noqa: PLC0415 - drawing takes a second to import

    if report is not None:
        from helios.report.html import render_energy_whatif  # noqa: PLC0415 - as above

        write_page(report, render_energy_whatif(found))
    print_result(found.to_json() | {"capacity": size}, energy_table(found, width=width()), as_json=as_json)


def _accepted(settings: Settings) -> dict[str, Any]:
    """Return the delays and wakes that the site accepts of the service ces.

    Raises
    ------
    ServiceInvalid
        An option is unknown, or has an invalid value.
    """
    from helios.services.energy_saving import Ces  # noqa: PLC0415 - numba takes a while
    from helios.services.registry import checked_options  # noqa: PLC0415 - as above

    options = checked_options(Ces, settings.services.get("ces", {}), name="ces")
    return {name: getattr(options, name) for name in ("delayed_submissions", "cycles_per_node_day")}


def _window(from_: str | None, to: str | None, zone_name: str, first_s: int, after_s: int) -> tuple[datetime, datetime]:
    """Return the window that --from and --to name.

    Default: the last quarter of the data.
    """
    first, after = datetime.fromtimestamp(first_s, UTC), datetime.fromtimestamp(after_s, UTC)
    since, until = WindowOptions(since=from_, until=to).bounds(zone_name, after)
    if since and since >= (until or after):
        goes = f"{first:%Y-%m-%d %H:%M} to {after:%Y-%m-%d %H:%M} UTC"
        raise UsageError(
            "--from is not before --to, or not before the end of the data.",
            hint=f"The data spans {goes}; leave some weeks of it before --from to choose the rule on.",
        )
    end = min(until or after, after)
    return since or end - (end - first) / 4, end
