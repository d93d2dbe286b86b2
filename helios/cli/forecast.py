"""Command ``helios forecast``, about the nodes that will be needed tomorrow."""

from __future__ import annotations

from datetime import UTC, datetime

from helios.cli.energy import MoreFiles, Series, Total
from helios.cli.options import (
    AsJson,
    GpusPerNode,
    HistoryOptions,
    Machine,
    Nodes,
    Partitions,
    Until,
    WindowOptions,
    configuration,
    described,
    expand,
    moment,
    split_words,
)
from helios.cli.output import print_notes, print_result, progress_bars
from helios.config import zone
from helios.errors import UsageError


@expand
def forecast_(
    *,
    more: MoreFiles = None,
    series: Series = None,
    source: HistoryOptions,
    partition: Partitions = None,
    nodes: Nodes = None,
    gpus_per_node: GpusPerNode = None,
    total: Total = None,
    until: Until = None,
    as_json: AsJson = False,
) -> None:
    """Forecast how many nodes will be needed tomorrow, hour by hour.

    For planning maintenance: the most nodes at once in each hour, with a range that nine of ten hours keep to, and how
    far off such forecasts were in the last weeks, beside as now and the same hour a week ago. Nodes are counted from
    the jobs of a cluster, or read from a series. With --to, as it would have been forecast then.

    Example: helios forecast --cluster venus
    """
    files = [*(series or []), *(more or [])]
    if files and (source.cluster or source.trace):
        raise UsageError("--series cannot be used with --cluster or --trace.", hint="Give one of them.")
    from helios.app.demand_history import RequestedClusterShape, count_nodes, forecast_tomorrow, read_files  # noqa: PLC0415 - it takes LightGBM
    from helios.report.forecast import forecast_table  # noqa: PLC0415 - as above

    settings, partitions = configuration().settings, split_words(partition)
    size = None
    with progress_bars() as progress:
        if files:
            per_node = gpus_per_node or settings.whatif.gpus_per_node
            zone_name = settings.ingest.timezone
            counted = read_files(files, timezone=zone_name, total=total, gpus_per_node=per_node, in_steps=True)
        else:
            pooled = None if total is None else str(max(int(total), 1))
            machine = Machine(nodes=nodes or pooled, gpus_per_node=gpus_per_node)
            history = described(
                source.read(progress),
                settings=settings,
                window=WindowOptions(until=until),
                machine=machine,
                partitions=partitions,
            )
            zone_name, size = history.timezone, history.capacity and history.capacity.to_json()
            shape = RequestedClusterShape(
                **machine.request_fields(settings, history.capacity), partitions=tuple(partitions)
            )
            counted = count_nodes(history, shape)
        found = forecast_tomorrow(
            counted,
            kind="series" if files else "cluster",
            zone=zone(zone_name),
            until=moment(until, timezone=zone_name, is_end=True, now=datetime.fromtimestamp(counted.end_s, UTC)),
            progress=progress,
        )
    print_notes(found.notes)
    print_result(found.to_json() | {"capacity": size}, forecast_table(found), as_json=as_json)
