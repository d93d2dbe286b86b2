"""``helios doctor``: what must be so for Helios to act well, and what to do where it is not."""

from __future__ import annotations

import logging
import os
import sys
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from helios.app.doctor import diagnose
from helios.app.operations import Operations
from helios.cli.options import AsJson, Cluster, configuration
from helios.cli.output import progress_bars, say, say_notes, show, show_json, width, write_page
from helios.errors import UsageError
from helios.ports import Domain
from helios.slurm.hook_table import TABLE, read_table, retract
from helios.slurm.preflight import FindingLevel

if TYPE_CHECKING:
    from helios.app.demo import Demo

COLOURS = {FindingLevel.OK: "green", FindingLevel.WARN: "yellow", FindingLevel.FAIL: "bold red"}


def doctor_(cluster: Cluster = None, as_json: AsJson = False) -> None:
    """Examine the cluster and Helios' own state, each finding with its hint. No job is touched.

    Exit status 1 if something fails. Example: helios doctor
    """
    found = diagnose(configuration().settings, cluster=cluster, now=datetime.now(UTC))
    worst = any(finding.verdict is FindingLevel.FAIL for finding in found)
    if as_json:
        show_json([{name: str(getattr(it, name)) for name in ("check", "verdict", "message", "hint")} for it in found])
    else:
        table = Table("", "Check", "Finding", box=None, pad_edge=False)
        for it in found:
            told = Text(it.message)
            if it.hint:
                told.append(f"\n-> {it.hint}", style="italic")
            table.add_row(Text(it.verdict.value, style=COLOURS[it.verdict]), it.check, told)
        show(table)
    if worst:
        raise typer.Exit(1)


# ``helios config``: the settings in force.

config_commands = typer.Typer(no_args_is_help=True, help="The settings in force and where each comes from.")


@config_commands.command("show", epilog="Example: HELIOS_DATABASE_URL=sqlite:///site.db helios config show")
def show_settings(as_json: AsJson = False) -> None:
    """Print every setting, its value, and where that came from: default, file or environment."""
    listing = configuration().listing()
    if as_json:
        show_json(
            [
                {"key": s.key, "value": s.value, "origin": s.origin, "variable": s.variable, "doc": s.doc}
                for s in listing
            ]
        )
        return
    table = Table("Key", "Value", "From", "Meaning", box=None, pad_edge=False)
    for setting in listing:
        table.add_row(setting.key, str(setting.value), setting.origin, setting.doc)
    show(table)


# ``helios daemon``: the process that keeps time.


def daemon_(
    cluster: Cluster = None,
    nightly: Annotated[
        bool,
        typer.Option("--nightly/--no-nightly", help="Also do the nightly analysis; no: a timer does (helios nightly)."),
    ] = True,
    domain: Annotated[
        list[Domain] | None,
        typer.Option("--domain", help="Act on jobs, or on nodes, only; else on whatever the services act on."),
    ] = None,
    ingest: Annotated[
        bool, typer.Option("--ingest/--no-ingest", help="Also read the accounting; no: another daemon does.")
    ] = True,
) -> None:
    """Read, decide and act in a rhythm, until SIGTERM: then revert what was set, verify it, and exit 0.

    Log lines go to standard error. Example: HELIOS_DAEMON_LOGS=json helios daemon --no-nightly
    """
    from helios.app.operations import operations_for  # noqa: PLC0415 - it knows every room, and takes its time to import
    from helios.daemon import run, start_logs  # noqa: PLC0415 - APScheduler is not needed by any other command

    settings = configuration()
    start_logs(settings.settings.daemon.logs, stream=sys.stderr)
    work = operations_for(settings, cluster=cluster, domains=frozenset(domain or Domain), ingest=ingest)
    ending = run(work, settings=settings.settings, nightly=nightly, environment=os.environ)
    if ending.stuck:
        _leave_at_once(ending.code)
    raise typer.Exit(ending.code)


def _leave_at_once(code: int) -> None:
    """End without waiting for a thread that does not end; the interpreter would wait for ever."""
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)


# ``helios hook``: the table of the priority hook.

hook_commands = typer.Typer(no_args_is_help=True, help="The priority hook: job_submit.lua and its table.")


@hook_commands.command("publish", epilog="Example: helios hook publish")
def publish(cluster: Cluster = None) -> None:
    """Publish the table that job_submit.lua looks jobs up in, in one step; the daemon does so by itself.

    Only what active services would do, and canaries by partition, stands in it. It needs hook.publish = true.
    """
    settings = configuration().settings
    if not settings.hook.publish:
        raise UsageError(
            "The hook is not switched on.", hint="Set publish = true in the section [hook] of helios.toml. See docs."
        )
    show(Operations(settings, cluster=cluster).publish_hook())


@hook_commands.command("retract", epilog="Example: helios hook retract")
def retract_() -> None:
    """Remove the table: jobs are submitted unchanged from now on."""
    table = Operations(configuration().settings).state_folder / TABLE
    show(f"{table} was removed." if retract(table) else f"There is no table at {table}.")


@hook_commands.command("show", epilog="Example: helios hook show --json")
def show_table(as_json: AsJson = False) -> None:
    """Show the table as the hook reads it; a damaged or old one is an error, as it is no table for the hook."""
    table = read_table(Operations(configuration().settings).state_folder / TABLE, datetime.now(UTC))
    rows = [
        {
            "user": row.user,
            "partition": row.partition,
            "gpus": row.gpus,
            "limit_min": row.limit_min,
            "site_factor": row.site_factor,
            "time_min": row.time_min,
        }
        for row in table.rows.values()
    ]
    if as_json:
        show_json({"published_at": table.published_at, "expires_at": table.expires_at, "rows": rows})
        return
    say(f"{len(rows):,} rows, published {table.published_at}, good until {table.expires_at}")
    for row in rows:
        show(" ".join(f"{name}={'*' if value is None else value}" for name, value in row.items()))


# ``helios try``: all of Helios once, on a made-up month.


class Profile(StrEnum):
    """Clusters whose published figures a month can be calibrated to."""

    VENUS = "venus"
    EARTH = "earth"
    SATURN = "saturn"
    URANUS = "uranus"


def try_(
    folder: Annotated[Path, typer.Option("--folder", help="Where everything is put.")] = Path("helios-try"),
    profile: Annotated[Profile, typer.Option("--profile", help="Cluster the month is calibrated to.")] = Profile.VENUS,
    days: Annotated[int, typer.Option("--days", min=2, max=366, help="Days to make.")] = 30,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed makes the same month.")] = 0,
    as_json: AsJson = False,
) -> None:
    """See Helios work on a made-up month of a GPU cluster: load, learn, replay, report.

    Nothing outside the folder is touched. Example: helios try --days 10 --folder /tmp/helios-try
    """
    from helios.app.demo import run_demo  # noqa: PLC0415 - it knows every room

    with progress_bars() as progress:
        trial = run_demo(
            folder, profile=profile.value, days=days, seed=seed, made_at=datetime.now(UTC), progress=progress
        )
    from helios.report.html import render_whatif  # noqa: PLC0415 - drawing takes a second to import

    page = (folder / "report.html").resolve()
    write_page(
        page,
        render_whatif(
            trial.result,
            description=trial.description,
            evaluation=trial.evaluation.to_json(),
            next_steps=_next_steps(),
        ),
    )
    if as_json:
        show_json({**trial.result.to_json(), "report": str(page), "evaluation": trial.evaluation.to_json()})
        return
    _tell(trial)


def _tell(trial: Demo) -> None:
    from helios.report.tables import evaluation_table, whatif_table  # noqa: PLC0415 - as above

    say_notes(trial.result.notes)
    show(evaluation_table(trial.evaluation.to_json()), "", whatif_table(trial.result, width=width()), "")
    say("Next, with your own history (nothing touches the cluster):", *(f"  {step}" for step in _next_steps()))


def _next_steps() -> list[str]:
    return [
        "TZ=UTC sacct --allusers --duplicates --allocations --parsable "
        '--delimiter="$(cat /proc/sys/kernel/random/uuid)" -S 2026-09-01 -E 2026-10-01 '
        "--format=JobIDRaw,Cluster,User,Account,QOS,Partition,State,Submit,Eligible,Start,End,ElapsedRaw,Timelimit,"
        "NNodes,ReqCPUS,ReqTRES,AllocTRES,NodeList,JobName > september.txt",
        "helios trace load september.txt",
        "helios model evaluate",
        "helios whatif --nodes PARTITION=N --gpus-per-node 8 --report whatif.html",
    ]
