"""Commands on the table of the priority hook."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from helios.cli.options import AsJson, Cluster, configuration
from helios.cli.output import print_message, print_result, show, show_json
from helios.errors import UsageError

if TYPE_CHECKING:
    pass

hook_commands = typer.Typer(no_args_is_help=True, help="Publish the table of the priority hook, job_submit.lua.")


@hook_commands.command("publish", epilog="Example: helios hook publish")
def publish(cluster: Cluster = None, as_json: AsJson = False) -> None:
    """Publish the table that job_submit.lua looks jobs up in.

    The old table is replaced in one step. The daemon publishes it, too. It holds only the changes of active
    services, and of canaries by partition. The setting hook.publish must be true.
    """
    settings = configuration().settings
    if not settings.hook.publish:
        raise UsageError(
            "The hook is not switched on.", hint="Set publish = true in the section [hook] of helios.toml. See docs."
        )
    from helios.app.operations import Operations  # noqa: PLC0415 - as in doctor

    message = Operations(settings, cluster=cluster).publish_hook()
    print_result({"done": message}, message, as_json=as_json)


@hook_commands.command("retract", epilog="Example: helios hook retract")
def retract_(as_json: AsJson = False) -> None:
    """Remove the table of the hook.

    New jobs are then submitted unchanged.
    """
    from helios.app.operations import Operations  # noqa: PLC0415 - as in doctor
    from helios.slurm.hook_table import TABLE, retract  # noqa: PLC0415 - as in doctor

    table = Operations(configuration().settings).state_folder / TABLE
    removed = retract(table)
    message = f"{table} was removed." if removed else f"There is no table at {table}."
    print_result({"table": str(table), "removed": removed}, message, as_json=as_json)


@hook_commands.command("show", epilog="Example: helios hook show --json")
def show_table(as_json: AsJson = False) -> None:
    """Show the table as the hook reads it.

    A damaged or expired table is an error. The hook ignores such a table.
    """
    from helios.app.operations import Operations  # noqa: PLC0415 - as in doctor
    from helios.slurm.hook_table import TABLE, read_table  # noqa: PLC0415 - as in doctor

    table = read_table(Operations(configuration().settings).state_folder / TABLE, datetime.now(UTC))
    names = ("user", "partition", "gpus", "limit_min", "site_factor", "time_min")
    rows = [{name: getattr(row, name) for name in names} for row in table.rows.values()]
    if as_json:
        show_json({"published_at": table.published_at, "expires_at": table.expires_at, "rows": rows})
        return
    print_message(f"{len(rows):,} rows, published {table.published_at}, good until {table.expires_at}")
    for row in rows:
        show(" ".join(f"{name}={'*' if value is None else value}" for name, value in row.items()))
