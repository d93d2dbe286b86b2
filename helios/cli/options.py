"""Options that several commands share."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer
from typer import Option

from helios.choices import Policy
from helios.cli.output import print_message
from helios.config import LoadedSettings, Settings, load_configuration, zone
from helios.dates import FORMS, parse_date
from helios.errors import UsageError
from helios.units import length

if TYPE_CHECKING:
    from helios.app.history import LoadedHistory
    from helios.metrics.capacity import ClusterCapacity
    from helios.model.gpu_parts import SiteGpus
    from helios.ports import Progress


class Oversized(StrEnum):
    """What to do with jobs larger than their partition."""

    FAIL = "fail"
    SKIP = "skip"


Cluster = Annotated[
    str | None, Option("--cluster", help="Loaded cluster to use. Default: setting database.cluster, else the only one.")
]
AsJson = Annotated[bool, Option("--json", help="Print the result as JSON.")]
Trace = Annotated[
    Path | None,
    Option("--trace", help="Read jobs from this file instead. What is not recognised, load first: helios trace load."),
]


def writable(context: typer.Context, option: typer.CallbackParam, path: Path | None) -> Path | None:
    """Refuse an output file that cannot be written.

    What is there stays as it is.

    Raises
    ------
    UsageError
        It cannot be opened for writing.
    """
    is_pipe_or_device = path is not None and path.exists() and not path.is_file() and not path.is_dir()
    if path is None or context.resilient_parsing or is_pipe_or_device:
        return path
    try:
        is_new = not os.path.lexists(path)
        path.open("ab").close()
        if is_new:
            path.unlink()
    except OSError as reason:
        name = option.opts[0]
        raise UsageError(
            f"{name} {path} cannot be written: {reason}", hint=f"Choose another place: {name} FILE"
        ) from reason
    return path


Report = Annotated[
    Path | None, Option("--report", callback=writable, help="Also write a self-contained HTML page to this file.")
]

OUT = "Folder for what is written; made if missing."
Out = Annotated[Path, Option("--out", help=OUT)]
Partitions = Annotated[
    list[str] | None, Option("-r", "--partition", help="Only these partitions, separated by commas.")
]
Users = Annotated[list[str] | None, Option("-u", "--user", help="Only these users, separated by commas.")]
MODEL = "Id of a model, as helios model list names it."
Model = Annotated[str | None, Option("--model", help=MODEL)]
Gain = Annotated[
    str | None,
    Option(
        "--gain",
        help="Least and most work of two trials on one GPU over that of one, as LOW,HIGH. Default: as measured, "
        "else 1.0,1.87.",
    ),
]
DAY, BY = "Day, such as 2026-09-01, today or yesterday.", "What a row of the report is of."
POLICY = f"Queue order to replay with EASY backfill: {', '.join(Policy)}."
SLURM_CONF, ACTING = "File with slurm.conf.", "Also replay with this service acting, as it does live. Repeatable."

# Options of every command that makes a replay.
Nodes = Annotated[
    str | None,
    Option(
        "--nodes",
        help="Nodes of each partition, such as gpu=16,cpu=4, or N to pool all jobs on N nodes. "
        "Default: as the warehouse, setting ingest.gpus_from or the header of the file says, else what jobs held.",
    ),
]
GpusPerNode = Annotated[
    int | None,
    Option(
        "--gpus-per-node",
        min=1,
        help="GPUs of a node. Default: as those nodes have, else setting whatif.gpus_per_node.",
    ),
]
Since = Annotated[str | None, Option("--from", metavar="DATE", help=f"Begin of the window: {FORMS}.")]
Until = Annotated[
    str | None, Option("--to", metavar="DATE", help="End of the window, as --from. A day or a month is included.")
]
WarmUp = Annotated[
    str | None,
    Option("--warm-up", help="Also replay the jobs of this long before --from, such as 7d, without counting them."),
]
OfResource = Annotated[
    Literal["gpus", "cpus"] | None,
    Option("--resource", help="Replay GPUs or CPUs. Default: GPUs if jobs with GPUs have 5 % of all job hours."),
]
IfOversized = Annotated[
    Oversized,
    Option(
        "--oversized",
        help="If jobs are larger than their partition, stop with an error (fail) or leave them out (skip).",
    ),
]
Draws = Annotated[
    int,
    Option(
        "--draws",
        min=0,
        help="Draws of the window for the verdict: users moved by whole days, without users whole weeks or days. "
        "0: no verdict.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryOptions:
    """Options that say whose history is read."""

    cluster: Cluster = None
    trace: Trace = None

    def read(self, progress: Progress, *, site: SiteGpus | None = None) -> LoadedHistory:
        """Return the jobs of ``--trace FILE``, else those of the loaded cluster.

        Parameters
        ----------
        site : SiteGpus, optional
            GPUs of the nodes where no setting names a file of them.
        """
        from helios.app.history import load_history, read_file  # noqa: PLC0415 - pandas; no help needs it

        settings = configuration()
        if self.trace is not None:
            return read_file(
                self.trace,
                timezone=named_timezone(None, settings),
                cluster=self.cluster,
                site=named_site(None, settings) or site,
                progress=progress,
            )
        progress("Reading the warehouse", 0.0)
        history = load_history(url=settings.settings.database.url, cluster=select_cluster(self.cluster))
        progress("Reading the warehouse", 1.0)
        return history


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOptions:
    """Options that say which jobs are replayed."""

    since: Since = None
    until: Until = None
    warm_up: WarmUp = None

    def bounds(self, timezone: str, now: datetime | None) -> tuple[datetime | None, datetime | None]:
        """Return begin and end on a clock, each None where not given."""
        since = moment(self.since, timezone=timezone, now=now)
        return since, moment(self.until, timezone=timezone, now=now, is_end=True)

    def request_fields(self, history: LoadedHistory) -> dict[str, Any]:
        """Return the window as a what-if request names it."""
        since, until = history.window
        return {"since": since, "until": until, "warm_up": duration(self.warm_up)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Options that say on which nodes jobs are replayed."""

    nodes: Nodes = None
    gpus_per_node: GpusPerNode = None

    def as_arguments(self) -> list[str]:
        """Return the options that were given."""
        return _given_options(("--nodes", self.nodes), ("--gpus-per-node", self.gpus_per_node))

    @property
    def parsed_nodes(self) -> dict[str, int] | None:
        """Nodes of each partition, None where no option gives them."""
        from helios.app.replay_cluster import parse_nodes  # noqa: PLC0415 - numba; most commands replay nothing

        return None if self.nodes is None else parse_nodes(self.nodes)

    def request_fields(self, settings: Settings, capacity: ClusterCapacity | None = None) -> dict[str, Any]:
        """Return the nodes as a what-if request names them.

        The GPUs of a node that no option says are those of the ``capacity``, else of the settings.
        """
        per_node = self.gpus_per_node or (capacity and capacity.per_node) or settings.whatif.gpus_per_node
        return {
            "nodes": self.parsed_nodes,
            "gpus_per_node": per_node,
            "default_time_limit_s": settings.whatif.default_time_limit_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Options that say how jobs are replayed."""

    resource: OfResource = None
    oversized: IfOversized = Oversized.FAIL

    def request_fields(self, settings: Settings) -> dict[str, Any]:
        """Return resource, jobs and seed as a what-if request names them."""
        skip = self.oversized is Oversized.SKIP
        return {"resource": self.resource, "skip_oversized": skip, "seed": settings.model.seed}


def described(
    history: LoadedHistory,
    *,
    settings: Settings,
    window: WindowOptions | None = None,
    machine: Machine | None = None,
    resource: str | None = None,
    partitions: Collection[str] = (),
) -> LoadedHistory:
    """Return a history with window and capacity by options or record."""
    from helios.app.record import describe_record  # noqa: PLC0415 - pandas; no help needs it

    window, machine = window or WindowOptions(), machine or Machine()
    # Now is the end of a history that is not read from a live cluster.
    now = None if history.covered or history.jobs.empty else history.jobs["submitted_at"].max().to_pydatetime()
    since, until = window.bounds(history.timezone, now)
    return describe_record(
        history,
        since=since,
        until=until,
        resource=resource,
        nodes=machine.parsed_nodes,
        per_node=machine.gpus_per_node,
        usual_per_node=settings.whatif.gpus_per_node,
        partitions=partitions,
    )


def _given_options(*given: tuple[str, object]) -> list[str]:
    return [str(word) for name, value in given if value is not None for word in (name, value)]


Command = Callable[..., None]


def expand(command: Command) -> Command:
    """Replace each parameter that is a group of options by those options.

    A group is a dataclass such as :class:`HistoryOptions`. Typer sees its fields as options of their own, and the
    command is called with the group filled in.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters: list[Parameter] = []
    groups: dict[str, Any] = {}
    for parameter in signature(command).parameters.values():
        group: Any = hints[parameter.name]
        if not is_dataclass(group):
            parameters.append(parameter.replace(annotation=group, kind=Parameter.KEYWORD_ONLY))
            continue
        groups[parameter.name] = group
        kinds = get_type_hints(group, include_extras=True)
        parameters += [
            Parameter(option.name, Parameter.KEYWORD_ONLY, default=option.default, annotation=kinds[option.name])
            for option in fields(group)
        ]

    def expanded(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{option.name: given.pop(option.name) for option in fields(group)})
        command(**given)

    expanded.__doc__, expanded.__name__ = command.__doc__, command.__name__
    expanded.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # because only inspect reads it
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return expanded


def configuration() -> LoadedSettings:
    """Return the settings in force in the current folder.

    A warning about who else may have written them is printed once.
    """
    found = load_configuration(environment=os.environ, folder=Path.cwd())
    _print_warnings(found.notes)
    return found


def select_cluster(option: str | None) -> str | None:
    """Return the loaded cluster that the option or else the configuration names.

    None: neither names one.
    """
    return option or configuration().settings.database.cluster or None


@cache
def _print_warnings(notes: tuple[str, ...]) -> None:
    for note in notes:
        print_message(f"warning: {note}")


def split_words(texts: list[str] | None) -> list[str]:
    """Return the words of an option that takes several by commas."""
    return [word.strip() for text in texts or [] for word in text.split(",") if word.strip()]


def refuse_misplaced(context: typer.Context, *, write: str) -> None:
    """Refuse options before a subcommand, which would have no effect there.

    Parameters
    ----------
    write : str
        How to write the subcommand, for the hint.

    Raises
    ------
    UsageError
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


def named_timezone(option: str | None, settings: LoadedSettings) -> str | None:
    """Return the time zone that the option or else the configuration names.

    It is for times without one. None: neither names one.
    """
    if option is None and "ingest.timezone" in settings.origins:
        return settings.settings.ingest.timezone
    return option


def named_site(option: Path | None, settings: LoadedSettings) -> SiteGpus | None:
    """Return the nodes that the option or else the configuration names.

    Raises
    ------
    HeliosError
        The file cannot be read.
    """
    file = option or settings.settings.ingest.gpus_from
    if not file:
        return None
    from helios.slurm.gpu_nodes import read_site_gpus  # noqa: PLC0415 - pandas; no help needs it

    return read_site_gpus(Path(file))


def moment(text: str | None, *, timezone: str, is_end: bool = False, now: datetime | None = None) -> datetime | None:
    """Return the time that an option means.

    None stays None. ``now`` is the clock's time where it is not given.
    """
    if text is None:
        return None
    zone(timezone)  # an unknown zone of the settings has an error of its own
    return parse_date(text, now=now or datetime.now(UTC), timezone=timezone, is_end=is_end)


def parse_service_options(options: list[str]) -> Mapping[str, dict[str, Any]]:
    """Parse SERVICE.OPTION=VALUE, the value as TOML.

    Raises
    ------
    UsageError
        It is something else.
    """
    options_of_service: dict[str, dict[str, Any]] = {}
    for text in options:
        key, equals, value = text.partition("=")
        service, dot, name = key.strip().partition(".")
        if not (equals and dot and service and name):
            raise UsageError(
                f"--set {text!r} is not SERVICE.OPTION=VALUE.", hint="Write --set qssf.promote_after_s=7200"
            )
        try:
            options_of_service.setdefault(service, {})[name] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError as reason:
            raise UsageError(
                f"--set {text!r}: {value!r} is not a TOML value.", hint="Quote text: 'name=\"text\"'"
            ) from reason
    return options_of_service


def duration(text: str | None) -> timedelta:
    """Parse a length of time such as ``7d``, ``12h`` or ``90min``.

    None is zero.

    Raises
    ------
    UsageError
        It is not a length of time.
    """
    return timedelta(0) if text is None else length(text, or_none=True)


def low_high(option: str, text: str, *, example: str) -> tuple[float, float]:
    """Parse two numbers, the lower one first.

    Raises
    ------
    UsageError
        They are not.
    """
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError as reason:
        raise UsageError(
            f"{option} {text!r} is not understood.", hint=f"Write {option} LOW,HIGH, such as {example}"
        ) from reason
    if not 0 <= low <= high < float("inf"):
        raise UsageError(
            f"{option} {text!r} is not two numbers, the lower one first.", hint=f"Write {option} {example}"
        )
    return low, high
