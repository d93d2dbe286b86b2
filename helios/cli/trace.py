"""Commands ``helios trace``, which load job history, and ``helios db``."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.markup import escape
from typer import Argument, Option

from helios.choices import TraceFormat
from helios.cli.options import (
    AsJson,
    Cluster,
    HistoryOptions,
    Report,
    Since,
    configuration,
    expand,
    moment,
    named_site,
    named_timezone,
)
from helios.cli.output import frame_table, print_message, print_notes, print_result, progress_bars, write_page
from helios.config import without_password
from helios.errors import HeliosError, UsageError

if TYPE_CHECKING:
    from helios.warehouse import LoadReport

commands = typer.Typer(no_args_is_help=True, help="Load, describe and export job history.")

Format = Annotated[
    TraceFormat | None, Option("--format", help="Format of the file. Default: detected from its content.")
]
Columns = Annotated[
    str | None,
    Option(
        "--columns",
        metavar="MAP",
        help="Read a table of any columns (CSV, Parquet, SQL dump, JSON) as this TOML file says, or as a map of Helios "
        "says, such as slurmdbd; help lists them.",
    ),
]
Timezone = Annotated[
    str | None,
    Option(
        "--timezone", help="Time zone of times without one, such as Asia/Shanghai. Default: setting ingest.timezone."
    ),
]
GpusFrom = Annotated[
    Path | None,
    Option(
        "--gpus-from",
        help="Count parts of GPUs, and GPUs that no row names, by the nodes in this file: slurm.conf, the output of "
        "scontrol show node, or a table name,gpus[,cpus,shards,mps]. Default: setting ingest.gpus_from.",
    ),
]
MOST_REJECTS = 50
"""Refused rows that are shown; their counts are of all."""

LoadName = Annotated[
    str | None, Option("--cluster", help="Name of the cluster. Default: the one in the file, else the file's name.")
]


@commands.command(
    "load",
    epilog="Example: helios trace load sacct.txt.gz --cluster venus --timezone Asia/Shanghai; or helios trace load "
    "slurm_acct_db.sql.gz --columns slurmdbd",
)
def load(
    files: Annotated[
        list[Path],
        Argument(
            metavar="FILE...",
            help="Trace files, compressed or plain, in one of the formats of --format; - for standard input. Several "
            "go into one --cluster.",
        ),
    ],
    trace_format: Format = None,
    columns: Columns = None,
    cluster: LoadName = None,
    timezone: Timezone = None,
    gpus_from: GpusFrom = None,
    as_json: AsJson = False,
) -> None:
    """Load job traces into the warehouse.

    Each file is loaded as a whole or not at all. Loading it again changes nothing, unless an older Helios loaded it.
    Invalid rows are counted by reason and stored with their line number (helios trace describe).
    """
    from helios.app.history import ingest, ingest_stdin  # noqa: PLC0415 - pandas; no help needs it
    from helios.report.tables import load_table  # noqa: PLC0415 - as above

    stdin = Path("-")
    if cluster is None and (len(files) > 1 or stdin in files):
        what = "Several files" if len(files) > 1 else "Standard input"
        raise UsageError(f"{what} could be of any cluster.", hint="Name it: --cluster NAME")
    settings = configuration()
    options: dict[str, Any] = {
        "url": settings.settings.database.url,
        "timezone": named_timezone(timezone, settings),
        "trace_format": trace_format,
        "columns": columns,
        "site": named_site(gpus_from, settings),
    }
    found = list[dict[str, Any]]()
    with progress_bars() as progress:
        for file in files:
            try:
                report = (
                    ingest_stdin(cluster=str(cluster), progress=progress, **options)
                    if file == stdin
                    else ingest(file, cluster=cluster, progress=progress, **options)
                )
            except HeliosError:
                if found:
                    print_message(f"Loaded before the error: {', '.join(it['file'] for it in found)}.")
                raise
            changes = (f"{name} of {it.jobs:,} changed, such as {it.example}" for name, it in report.changes.items())
            print_notes([*report.notes, *changes])
            found.append({"file": str(file), **load_answer(report)})
    if len(found) == 1:
        del found[0]["file"]
        print_result(found[0], load_table(found[0]), as_json=as_json)
        return
    parts = [part for it in found for part in (escape(it["file"]), load_table(it), "")]
    print_result(found, *parts[:-1], as_json=as_json)


@commands.command("sync", epilog="Example: helios trace sync --from 2026-06-01")
def sync(
    cluster: Cluster = None,
    since: Since = None,
    again: Annotated[
        str | None,
        Option("--again", metavar="DATE", help="Read everything anew that was in any state since this time."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read missing history from the live cluster's accounting.

    It reads limited periods one after the other. After an interruption, the next run goes on. The daemon does the same
    every few minutes. The first reading begins at setting history.start, else 30 days ago. Times are UTC, and another
    live cluster than --cluster is refused. Of what jobs used, it reads the sources in history.job_use; Prometheus is
    asked by helios nightly and helios trace use.

    With --again, stored jobs are overwritten by what the accounting says, and the columns that changed are listed with
    an example each. It mends what an older Helios read wrongly. It may be repeated.
    """
    from helios.app.operations import Operations  # noqa: PLC0415 - everything that a live cluster takes

    settings = configuration().settings
    if since is not None:
        history = settings.history.model_copy(update={"start": str(moment(since, timezone="UTC"))})
        settings = settings.model_copy(update={"history": history})
    if again is not None and since is not None:
        raise UsageError("--from and --again exclude each other.", hint="--again DATE reads what is missing, too.")
    start = moment(again, timezone="UTC")
    with progress_bars() as progress:
        operations = Operations(settings, cluster=cluster)
        reading = (
            operations.read(progress=progress) if start is None else operations.read_again(start, progress=progress)
        )
    print_result(asdict(reading), reading.line(), as_json=as_json)


@commands.command("rename", epilog="Example: helios trace rename kth kth-1996")
def rename(
    cluster: Annotated[str, Argument(help="Name of a loaded cluster.")],
    name: Annotated[str, Argument(metavar="NAME", help="Its new name.")],
    as_json: AsJson = False,
) -> None:
    """Give a loaded cluster another name.

    Its history, models and reports go with it. A cluster whose accounting is read live keeps the name that Slurm gives
    it.
    """
    from helios.warehouse import Warehouse  # noqa: PLC0415 - SQLAlchemy; no help needs it

    with Warehouse.open(configuration().settings.database.url) as warehouse:
        warehouse.rename_cluster(cluster, name)
    print_result({"before": cluster, "after": name}, f"{cluster} is called {name} now.", as_json=as_json)


@commands.command("remove", epilog="Example: helios trace remove kth --yes")
def remove(
    cluster: Annotated[str, Argument(help="Name of a loaded cluster.")],
    yes: Annotated[bool, Option("--yes", help="Remove it. Without this, only say what would be removed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove a cluster from the warehouse, with its history, models and audit log.

    It cannot be undone. A cluster on which a Helios acts is refused.
    """
    from helios.warehouse import Warehouse  # noqa: PLC0415 - SQLAlchemy; no help needs it

    with Warehouse.open(configuration().settings.database.url) as warehouse:
        rows = warehouse.contents(cluster)
        if yes:
            warehouse.remove_cluster(cluster)
    listed = ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in rows.items()) or "nothing"
    message = f"{cluster} was removed: {listed}." if yes else f"{cluster} has: {listed}."
    print_result({"cluster": cluster, "removed": yes, "rows": rows}, message, as_json=as_json)
    if not yes:
        print_message(f"Nothing was removed. To remove it for good: helios trace remove {cluster} --yes")


@commands.command("describe", epilog="Example: helios trace describe --cluster venus --report venus.html")
@expand
def describe(*, source: HistoryOptions, report: Report = None, as_json: AsJson = False) -> None:
    """Describe the jobs of a history.

    Shows users, sizes, run times, end states, how submissions spread over the day, and the rows of loaded files that
    made no sense, with file, line and reason. What follows from the jobs, with intervals, says helios study.
    """
    from helios.report.history import describe as describe_jobs  # noqa: PLC0415 - pandas; no help needs it
    from helios.report.tables import description_tables, rejects_table  # noqa: PLC0415 - as above

    with progress_bars() as progress:
        history = source.read(progress)
    found: dict[str, Any] = {"cluster": history.cluster, "jobs": 0}
    tables: list[RenderableType] = []
    print_notes(history.notes)
    if not history.jobs.empty or report is not None:
        description = describe_jobs(history.jobs, cluster=history.cluster, timezone=history.timezone)
        found, tables = description.to_json(), description_tables(description)
        if report is not None:
            from helios.report.html import render_description  # noqa: PLC0415 - drawing takes a second to import

            write_page(report, render_description(description))
    if source.trace is None:
        from helios.warehouse import Warehouse  # noqa: PLC0415 - SQLAlchemy; no help needs it

        with Warehouse.open(configuration().settings.database.url) as warehouse:
            counts, rows = (
                warehouse.reject_counts(history.cluster),
                warehouse.rejects(history.cluster, limit=MOST_REJECTS),
            )
        found["rejects"] = {
            "counts": dict(zip(counts["reason"], counts["rows"].tolist(), strict=True)),
            "rows": rows.to_dict(orient="records"),
        }
        tables += ["", rejects_table(rows, counts)]
    print_result(found, *tables, as_json=as_json)


@commands.command("list", epilog="Example: helios trace list --json")
def list_(as_json: AsJson = False) -> None:
    """List the loaded clusters."""
    from helios.warehouse import Warehouse  # noqa: PLC0415 - SQLAlchemy; no help needs it

    with Warehouse.open(configuration().settings.database.url) as warehouse:
        clusters = warehouse.clusters(counts=True)
    print_result(clusters.to_dict(orient="records"), frame_table(clusters), as_json=as_json)


def load_answer(report: LoadReport) -> dict[str, Any]:
    """Return the plain values of a load report, for tables and JSON.

    A file that was loaded before changes nothing, and is reported so.
    """
    names = ("cluster", "rows_read", "jobs_new", "jobs_updated", "jobs_unchanged", "rejects", "already_loaded")
    found = {name: getattr(report, name) for name in names}
    if report.already_loaded:
        known = report.jobs_new + report.jobs_updated + report.jobs_unchanged
        found |= {"jobs_new": 0, "jobs_updated": 0, "jobs_unchanged": known}
    return found


db_commands = typer.Typer(no_args_is_help=True, help="Upgrade the database and grant access to it.")


@db_commands.command("upgrade", epilog="Example: HELIOS_DATABASE_URL=postgresql://helios@db/helios helios db upgrade")
def upgrade(
    sums: Annotated[
        bool, Option("--sums", help="Make the kept sums over jobs anew, too, as helios doctor may ask for.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Upgrade the database to the schema of this version.

    An empty database gets its tables. Rows that an older Helios read wrongly are counted, each kind with an example
    and the command that mends them; helios doctor repeats it.
    """
    from helios.app.history import misread_rows  # noqa: PLC0415 - pandas; no help needs it
    from helios.warehouse import Warehouse  # noqa: PLC0415 - SQLAlchemy; no help needs it

    url = configuration().settings.database.url
    with Warehouse.open(url, create=False) as warehouse:
        with progress_bars(shows_compiling=False) as progress:
            applied = warehouse.upgrade(sums=sums, progress=partial(progress, "Summing the jobs of each day"))
        head = warehouse.head()
        misread = {name: misread_rows(warehouse, name) for name in warehouse.clusters()["name"]} if applied else {}
    shown = without_password(url)
    now = f"now at {head} ({len(applied)} applied: {', '.join(applied)})" if applied else f"already at {head}"
    found = {"database": shown, "applied": applied, "revision": head}
    found["misread"] = {name: messages for name, (messages, _) in misread.items() if messages}
    print_result(found, f"{shown} is {now}.", as_json=as_json)
    print_notes(
        f"{name}: read wrongly by an older Helios: {'; '.join(messages)}. {hint}"
        for name, (messages, hint) in misread.items()
        if messages
    )


@db_commands.command(
    "grant",
    epilog="Example: helios db grant --jobs-role helios_jobs --nodes-role helios_nodes --reader-role helios_reader",
)
def grant(
    jobs_role: Annotated[str, Option(help="PostgreSQL role of the daemon that acts on jobs.")],
    nodes_role: Annotated[str | None, Option(help="PostgreSQL role of the daemon that acts on nodes.")] = None,
    reader_role: Annotated[str | None, Option(help="PostgreSQL role of people who only read.")] = None,
    as_json: AsJson = False,
) -> None:
    """Grant the PostgreSQL role of each daemon the privileges it needs.

    It gets no others. The role for jobs cannot write the tables that control the power of nodes, and the role for nodes
    cannot write those of jobs. Run it as the owner of the tables, again after an upgrade, and whenever you configure a
    service that acts on nodes.
    """
    from helios.app.controllers import grant_roles  # noqa: PLC0415 - an upgrade needs nothing of what it imports

    settings = configuration().settings
    grant_roles(settings, jobs=jobs_role, nodes=nodes_role, reader=reader_role)
    roles = {what: role for what, role in (("jobs", jobs_role), ("nodes", nodes_role), ("reads", reader_role)) if role}
    given, shown = (
        ", ".join(f"{role} ({what})" for what, role in roles.items()),
        without_password(settings.database.url),
    )
    print_result({"database": shown, "granted": roles}, f"{shown}: granted to {given}.", as_json=as_json)
