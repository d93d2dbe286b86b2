"""Options that several commands share: how they are spelled, read and explained."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from helios.app.history import LoadedHistory, load_history, read_file
from helios.cli.output import say
from helios.config import Configuration, load_configuration, zone
from helios.errors import UsageError
from helios.ingest import TraceFormat
from helios.ports import Progress
from helios.units import length


class Resource(StrEnum):
    """What jobs hold in a replay."""

    GPUS = "gpus"
    CPUS = "cpus"


class Oversized(StrEnum):
    """What to do with jobs larger than their partition."""

    FAIL = "fail"
    SKIP = "skip"


Cluster = Annotated[
    str | None, typer.Option("--cluster", help="Loaded cluster to use; needed only where several are loaded.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
Format = Annotated[
    TraceFormat | None,
    typer.Option("--format", help="Format of the file; recognised from its content if not given."),
]
Timezone = Annotated[
    str | None,
    typer.Option("--timezone", help="Time zone of times that carry none, as Asia/Shanghai; else ingest.timezone."),
]
Trace = Annotated[Path | None, typer.Option("--trace", help="Read this trace file instead of the warehouse.")]
Report = Annotated[Path | None, typer.Option("--report", help="Also write a self-contained HTML page here.")]

# What a replay is made of, for every command that makes one.
Nodes = Annotated[
    str | None,
    typer.Option(
        "--nodes", help="Nodes of each partition, as gpu=16,cpu=4; or N to pool all jobs. Else from the peak demand."
    ),
]
GpusPerNode = Annotated[
    int | None, typer.Option("--gpus-per-node", min=1, help="GPUs of a node; else whatif.gpus_per_node.")
]
Since = Annotated[str | None, typer.Option("--from", help="Replay jobs submitted from then on.")]
Until = Annotated[str | None, typer.Option("--to", help="Replay jobs submitted before then.")]
WarmUp = Annotated[
    str | None,
    typer.Option("--warm-up", help="Also replay this long before --from (7d), without counting it."),
]
OfResource = Annotated[
    Resource | None,
    typer.Option("--resource", help="Replay GPUs or CPUs; GPUs where any job asks for one."),
]
IfOversized = Annotated[
    Oversized, typer.Option("--oversized", help="Jobs larger than their partition: fail, or skip them.")
]
PredictAgain = Annotated[
    str | None,
    typer.Option("--predict-again", help="Predict what still waits again after so long, as 10min; or never."),
]


def configuration() -> Configuration:
    """Return the settings in force where the command was typed; who else could have written them is said once."""
    found = load_configuration(environment=os.environ, folder=Path.cwd())
    _say_once(found.notes)
    return found


@cache
def _say_once(notes: tuple[str, ...]) -> None:
    for note in notes:
        say(f"warning: {note}")


def refuse_misplaced(context: typer.Context, *, write: str) -> None:
    """Refuse options of the command above a subcommand, which would be passed over in silence.

    Parameters
    ----------
    write : str
        How the subcommand is written, for the hint.

    Raises
    ------
    Misuse
        Such an option was given.
    """
    above = context.parent
    if above is None:
        return
    sources = {name: above.get_parameter_source(name) for name in above.params}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if given:
        spelled = {parameter.name: parameter.opts[0] for parameter in above.command.params}
        raise UsageError(
            f"{', '.join(str(spelled[name]) for name in given)} before {context.info_name} would have no effect.",
            hint=f"Write options behind it: {write}",
        )


def named_timezone(option: str | None, settings: Configuration) -> str | None:
    """Return the zone for times that carry none, where a person named one: the option, else the configuration."""
    if option is None and "ingest.timezone" in settings.origins:
        return settings.settings.ingest.timezone
    return option


def moment(text: str | None, *, timezone: str) -> datetime | None:
    """Read a date or time; one without a zone is in ``timezone``.

    Raises
    ------
    Misuse
        It is not a date or time.
    """
    if text is None:
        return None
    read = pd.to_datetime(text, errors="coerce") if text.strip() else pd.NaT
    if pd.isna(read):
        raise UsageError(f"{text!r} is not a date or time.", hint="Write 2020-09-01, or 2020-09-01T08:00:00+08:00")
    zoned = read.tz_localize(zone(timezone)) if read.tzinfo is None else read
    moment_utc: datetime = zoned.to_pydatetime().astimezone(UTC)
    return moment_utc


def duration(text: str | None) -> timedelta:
    """Read a length of time as ``7d``, ``12h`` or ``90min``; None is zero.

    Raises
    ------
    Misuse
        It is not a length of time.
    """
    return timedelta(0) if text is None else length(text, or_none=True)


def history_from(
    *,
    trace: Path | None,
    cluster: str | None,
    trace_format: TraceFormat | None,
    timezone: str | None,
    progress: Progress,
) -> LoadedHistory:
    """Return the jobs of ``--trace FILE``, else those of the loaded cluster."""
    settings = configuration()
    if trace is None:
        progress("Reading the warehouse", 0.0)
        history = load_history(url=settings.settings.database.url, cluster=cluster)
        progress("Reading the warehouse", 1.0)
        return history
    return read_file(
        trace,
        timezone=named_timezone(timezone, settings),
        trace_format=trace_format,
        cluster=cluster,
        progress=progress,
    )
