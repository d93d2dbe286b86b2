"""``helios hook``: the table of the priority hook."""

from __future__ import annotations

from datetime import UTC, datetime

import typer

from helios.app.chores import Desk
from helios.cli.options import AsJson, Cluster, configuration
from helios.cli.screen import say, show, show_json
from helios.errors import Misuse
from helios.slurm.hook import TABLE, read_table, retract

commands = typer.Typer(no_args_is_help=True, help="The priority hook: job_submit.lua and its table.")


@commands.command("publish", epilog="Example: helios hook publish")
def publish(cluster: Cluster = None) -> None:
    """Publish the table that job_submit.lua looks jobs up in, in one step; the daemon does so by itself.

    Only what active services would do, and canaries by partition, stands in it. It needs hook.publish = true.
    """
    settings = configuration().settings
    if not settings.hook.publish:
        raise Misuse(
            "The hook is not switched on.", remedy="Set publish = true in the section [hook] of helios.toml. See docs."
        )
    show(Desk(settings, cluster=cluster).publish_hook())


@commands.command("retract", epilog="Example: helios hook retract")
def retract_() -> None:
    """Remove the table: jobs are submitted unchanged from now on."""
    table = Desk(configuration().settings).state_folder / TABLE
    show(f"{table} was removed." if retract(table) else f"There is no table at {table}.")


@commands.command("show", epilog="Example: helios hook show --json")
def show_table(as_json: AsJson = False) -> None:
    """Show the table as the hook reads it; a damaged or old one is an error, as it is no table for the hook."""
    table = read_table(Desk(configuration().settings).state_folder / TABLE, datetime.now(UTC))
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
