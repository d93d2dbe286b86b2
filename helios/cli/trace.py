"""``helios trace``: history files in, and what they hold."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from helios.app.history import choose_cluster, ingest
from helios.cli.options import (
    AsJson,
    Cluster,
    Format,
    Report,
    Timezone,
    Trace,
    configuration,
    history_from,
    moment,
    named_timezone,
)
from helios.cli.output import frame_table, progress_bars, say_notes, show, show_json, write_page
from helios.config import without_password
from helios.report.history import describe as describe_jobs
from helios.report.tables import description_tables, load_table, rejects_table
from helios.warehouse import LoadReport, Warehouse

commands = typer.Typer(no_args_is_help=True, help="Job history: load it, look at it.")

LoadName = Annotated[
    str | None,
    typer.Option("--cluster", help="Name to load under; else the one in the file, else the file's name."),
]


@commands.command("load", epilog="Example: helios trace load sacct.txt.gz --cluster venus --timezone Asia/Shanghai")
def load(
    file: Annotated[Path, typer.Argument(help="Trace file, gzip or plain, of any format that --format takes.")],
    trace_format: Format = None,
    cluster: LoadName = None,
    timezone: Timezone = None,
    as_json: AsJson = False,
) -> None:
    """Load a job trace into the warehouse; loading again changes nothing.

    Rows that make no sense are counted by reason and kept, with their line, in the rejects table
    (helios trace rejects).
    """
    settings = configuration()
    with progress_bars() as progress:
        report = ingest(
            file,
            url=settings.settings.database.url,
            timezone=named_timezone(timezone, settings),
            trace_format=trace_format,
            cluster=cluster,
            progress=progress,
        )
    say_notes(report.notes)
    if as_json:
        show_json(load_answer(report))
        return
    show(load_table(load_answer(report)))


@commands.command("sync", epilog="Example: helios trace sync --from 2026-06-01")
def sync(
    cluster: Annotated[str | None, typer.Option("--cluster", help="Refuse any other live cluster than this.")] = None,
    since: Annotated[
        str | None, typer.Option("--from", help="Where the history begins (UTC); else history.start, else 30 days ago.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read what is missing of the live cluster's history from its accounting, in bounded stretches.

    Interrupted anywhere, the next run goes on. The daemon does the same every few minutes.
    """
    from helios.app.operations import Operations  # noqa: PLC0415 - everything that a live cluster takes

    settings = configuration().settings
    if since is not None:
        history = settings.history.model_copy(update={"start": str(moment(since, timezone="UTC"))})
        settings = settings.model_copy(update={"history": history})
    with progress_bars() as progress:
        reading = Operations(settings, cluster=cluster).read(progress=progress)
    if as_json:
        show_json(asdict(reading))
        return
    show(reading.line())


@commands.command("describe", epilog="Example: helios trace describe --cluster venus --report venus.html")
def describe(
    cluster: Cluster = None,
    trace: Trace = None,
    trace_format: Format = None,
    timezone: Timezone = None,
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Say what a history holds: jobs, users, sizes, run times, states, the shape of the day."""
    with progress_bars() as progress:
        history = history_from(
            trace=trace, cluster=cluster, trace_format=trace_format, timezone=timezone, progress=progress
        )
    description = describe_jobs(history.jobs, cluster=history.cluster, timezone=history.timezone)
    say_notes(history.notes)
    if report is not None:
        from helios.report.html import render_description  # noqa: PLC0415 - drawing takes a second to import

        write_page(report, render_description(description))
    if as_json:
        show_json(description.to_json())
        return
    show(*description_tables(description))


@commands.command("rejects", epilog="Example: helios trace rejects --limit 20")
def rejects(
    cluster: Cluster = None,
    limit: Annotated[int, typer.Option(min=1, help="Rows to show.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show the rows that made no sense, with their file, line and reason."""
    with Warehouse.open(configuration().settings.database.url) as warehouse:
        name = str(choose_cluster(warehouse, cluster)["name"])
        counts = warehouse.reject_counts(name)
        rows = warehouse.rejects(name, limit=limit)
    if as_json:
        show_json(
            {
                "cluster": name,
                "counts": dict(zip(counts["reason"], counts["rows"].tolist(), strict=True)),
                "rows": rows.to_dict(orient="records"),
            }
        )
        return
    show(rejects_table(rows, counts))


@commands.command("list", epilog="Example: helios trace list --json")
def list_(as_json: AsJson = False) -> None:
    """List the loaded clusters."""
    url = configuration().settings.database.url
    with Warehouse.open(url) as warehouse:
        clusters = warehouse.clusters()
    if as_json:
        show_json(clusters.to_dict(orient="records"))
        return
    show(frame_table(clusters))


def load_answer(report: LoadReport) -> dict[str, Any]:
    """Return a load report as the plain values that tables and JSON show; a file loaded before changes nothing."""
    known = report.jobs_new + report.jobs_updated + report.jobs_unchanged
    again = report.already_loaded
    return {
        "cluster": report.cluster,
        "rows_read": report.rows_read,
        "jobs_new": 0 if again else report.jobs_new,
        "jobs_updated": 0 if again else report.jobs_updated,
        "jobs_unchanged": known if again else report.jobs_unchanged,
        "rejects": report.rejects,
        "already_loaded": again,
    }


# ``helios db``: the warehouse's schema.

db_commands = typer.Typer(no_args_is_help=True, help="The warehouse's schema.")


@db_commands.command("upgrade", epilog="Example: HELIOS_DATABASE_URL=postgresql://helios@db/helios helios db upgrade")
def upgrade(as_json: AsJson = False) -> None:
    """Bring the database to the schema of this version; an empty one is made."""
    url = configuration().settings.database.url
    with Warehouse.open(url, create=False) as warehouse:
        applied = warehouse.upgrade()
        head = warehouse.head()
    if as_json:
        show_json({"database": without_password(url), "applied": applied, "revision": head})
    elif applied:
        show(f"{without_password(url)} is now at {head} ({len(applied)} applied: {', '.join(applied)}).")
    else:
        show(f"{without_password(url)} is already at {head}.")


@db_commands.command("status", epilog="Example: helios db status --json")
def status(as_json: AsJson = False) -> None:
    """Say which database is used, and which schema it has."""
    url = configuration().settings.database.url
    with Warehouse.open(url, create=False) as warehouse:
        revision, head = warehouse.revision(), warehouse.head()
        newer = revision is not None and not warehouse.knows(revision)
    if as_json:
        show_json({"database": without_password(url), "revision": revision, "head": head, "newer": newer})
        return
    if newer:
        state = f"made by a newer Helios; this one knows {head}: pip install --upgrade helios-slurm"
    else:
        state = "up to date" if revision == head else f"behind {head}: helios db upgrade"
    show(f"{without_password(url)} is at {revision or 'no schema yet'}, {state}.")


@db_commands.command(
    "grant", epilog="Example: helios db grant --jobs helios_jobs --nodes helios_nodes --reader helios_reader"
)
def grant(
    jobs: Annotated[str, typer.Option(help="Role of the daemon that acts on jobs.")],
    nodes: Annotated[str | None, typer.Option(help="Role of the daemon that acts on nodes.")] = None,
    reader: Annotated[str | None, typer.Option(help="Role of people who only read.")] = None,
) -> None:
    """Give each daemon's role in PostgreSQL what it needs and no more; run it as the owner of the tables.

    The role of the jobs cannot write what nodes are powered by, nor the other way round. Run it again after an upgrade,
    and when a service that acts on nodes is configured.
    """
    from helios.app.roles import grant_roles  # noqa: PLC0415 - an upgrade needs nothing of what it imports

    settings = configuration().settings
    grant_roles(settings, jobs=jobs, nodes=nodes, reader=reader)
    given = ", ".join(
        f"{role} ({what})" for what, role in (("jobs", jobs), ("nodes", nodes), ("reads", reader)) if role
    )
    show(f"{without_password(settings.database.url)}: granted to {given}.")
