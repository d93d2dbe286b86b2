"""Command ``helios study``."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from helios.cli.options import (
    OUT,
    AsJson,
    Cluster,
    HistoryOptions,
    Machine,
    Partitions,
    Report,
    Since,
    Until,
    WindowOptions,
    configuration,
    described,
    expand,
    refuse_misplaced,
    select_cluster,
    split_words,
)
from helios.cli.output import print_message, print_notes, print_result, progress_bars, write_page
from helios.errors import UsageError
from helios.units import length

commands = typer.Typer(help="Say what a history shows of its cluster, and what follows from it.")
Audience = Literal["admin", "manager", "paper"]


@commands.callback(invoke_without_command=True)
@expand
def study_(
    *,
    context: typer.Context,
    source: HistoryOptions,
    machine: Machine,
    since: Since = None,
    until: Until = None,
    partition: Partitions = None,
    audience: Annotated[
        Audience, Option("--for", help="Whom the page is for, which decides what comes first.")
    ] = "admin",
    report: Report = None,
    out: Annotated[Path | None, Option(help=OUT)] = None,
    keep: Annotated[bool, Option("--keep", help="Also keep it as the latest study, which helios web shows.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what a history shows of its cluster, and what follows from it.

    It gives 23 statements. Each has a value, an interval over weeks or days, the number of jobs it rests on, a
    verdict, and the command it argues for. What the history does not record is "not known here". GPU hours are counted
    inside the window. --out gets the statements, and each figure as CSV and PDF. See docs/study.md.

    Example: helios study --cluster venus --from 2020-05 --to 2020-05 --report study.html
    """
    if context.invoked_subcommand is not None:
        return
    from helios.study.proposals import Source  # noqa: PLC0415 - as above
    from helios.study.study import (  # noqa: PLC0415 - see cli.replays
        NodeRecords,
        load_study,
        store_study,
        study,
        write_study,
    )
    from helios.study.text import statement_tables  # noqa: PLC0415 - as above

    settings, window = configuration().settings, WindowOptions(since=since, until=until)
    partitions = split_words(partition)
    with progress_bars() as progress:
        if source.trace is None:
            loaded, records = load_study(
                url=settings.database.url,
                cluster=select_cluster(source.cluster),
                window=window.bounds,
                progress=progress,
            )
        else:
            loaded, records = source.read(progress), NodeRecords()
        loaded = described(
            loaded,
            settings=settings,
            window=window,
            machine=machine,
            partitions=partitions,
        )
        if machine.nodes is not None:
            fields = machine.request_fields(settings, loaded.capacity)
            records = NodeRecords(given=fields["nodes"], units_per_node=fields["gpus_per_node"])
        bounds, size = loaded.window, loaded.capacity.resource if loaded.capacity else None
        # The list gives the history away: 10^7 jobs are held once.
        given_away = [loaded]
        del loaded
        found = study(
            given_away.pop(),
            since=bounds[0],
            until=bounds[1],
            partitions=partitions,
            resource=size,
            records=records,
            source=Source(trace=source.trace, machine=machine.as_arguments(), partitions=partition or ()),
            progress=progress,
        )
    print_notes(found.notes)
    if report is not None or out is not None:
        page, files = write_study(
            found,
            audience=audience,
            report=report,
            out=out,
            energy=settings.energy,
        )
        if report is not None:
            write_page(report, page)
        if out is not None:
            print_message(f"{len(files)} files: {out.resolve()}")
    if keep:
        print_message(
            f"Kept: {store_study(found, Path(settings.report.folder), energy=settings.energy, now=datetime.now(UTC))}"
        )
    print_result(found.to_json(), *statement_tables(found.statements), as_json=as_json)


@commands.command("compare", epilog="Example: helios study compare may.json june.json")
def compare_(
    context: typer.Context,
    one: Annotated[Path, Argument(help="A study that was written with --json.")],
    other: Annotated[Path, Argument(help="Another one, of another window or cluster.")],
    as_json: AsJson = False,
) -> None:
    """Compare two studies, and say which statements differ by more than chance.

    Write each with: helios study ... --json > FILE
    """
    refuse_misplaced(context, write="helios study compare ONE OTHER")
    from helios.study.comparison import compare, comparison_tables  # noqa: PLC0415 - no help needs it

    found = compare(_read(one), _read(other))
    print_result(found.to_json(), *comparison_tables(found), as_json=as_json)


@commands.command("sharing", epilog="Example: helios study sharing --cluster venus --from 2020-05 --to 2020-05")
@expand
def sharing_(
    *,
    context: typer.Context,
    cluster: Cluster = None,
    machine: Machine,
    since: Since = None,
    until: Until = None,
    gpu_memory: Annotated[
        float | None, Option(min=1, metavar="MIB", help="Memory of a GPU, MiB, where the measurements do not say.")
    ] = None,
    timeout: Annotated[str, Option(help="Idle time after which interactive sessions would end.")] = "2h",
    as_json: AsJson = False,
) -> None:
    """Say what sharing GPUs would have saved, beside simpler changes.

    Jobs of one GPU are put together, two and four to a GPU, where their memories (what 95 % of alike runs do not
    exceed) fit and their predicted use sums below 100 %. What was measured says how often the memory would not have
    fit, how much longer they take and which GPU hours are saved, of one-GPU jobs and of all; a replay of the queue,
    who waits less. Beside it: ending idle interactive sessions, and packing repeated trials (helios report trials).
    It needs measured GPU memory, and history before the window to predict from.
    """
    refuse_misplaced(context, write="helios study sharing")
    from helios.app.whatif import WhatIfRequest  # noqa: PLC0415 - see cli.replays
    from helios.study.sharing import SharingRequest, find_sharing, load_use  # noqa: PLC0415 - as above

    settings, window = configuration().settings, WindowOptions(since=since, until=until)
    timeout_s = length(timeout).total_seconds()
    with progress_bars() as progress:
        loaded = described(
            HistoryOptions(cluster=cluster).read(progress), settings=settings, window=window, machine=machine
        )
        replay = WhatIfRequest(
            since=loaded.window[0],
            until=loaded.window[1],
            seed=settings.model.seed,
            **machine.request_fields(settings, loaded.capacity),
        )
        request = SharingRequest(gpu_memory_mib=gpu_memory, timeout_s=timeout_s, replay=replay)
        found = find_sharing(loaded, load_use(settings.database.url, loaded.cluster), request, progress=progress)
    print_notes([*loaded.notes, *found.notes])
    print_result(found.to_json(), *found.tables(), as_json=as_json)


def _read(path: Path) -> dict[str, Any]:
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as reason:
        raise UsageError(
            f"{path} cannot be read as a study: {reason}", hint="Write it with: helios study --json > FILE"
        ) from reason
    if not isinstance(read, dict) or not isinstance(read.get("statements"), list):
        raise UsageError(f"{path} is not a study.", hint="Write it with: helios study --json > FILE")
    return read
