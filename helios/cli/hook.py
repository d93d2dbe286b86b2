"""Command ``helios hook``, on the table of the priority hook."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from typer import Option

from helios.cli.options import AsJson, Cluster, configuration
from helios.cli.output import print_message, print_result, show, show_json
from helios.errors import UsageError


def hook_(
    publish: Annotated[bool, Option("--publish", help="Replace the table in one step, as the daemon does.")] = False,
    retract: Annotated[
        bool, Option("--retract", help="Remove the table. New jobs are then submitted unchanged.")
    ] = False,
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    """Show, publish or remove the table of the priority hook.

    Without an option it shows the table as the hook, job_submit.lua, reads it. A damaged or expired one, which the hook
    ignores, is an error. It holds only the changes of active services, and of canaries by partition. To publish it, the
    setting hook.publish must be true.

    Example: helios hook --publish
    """
    settings = configuration().settings
    if publish and retract:
        raise UsageError("--publish and --retract exclude each other.")
    if publish and not settings.hook.publish:
        raise UsageError(
            "The hook is not switched on.", hint="Set publish = true in the section [hook] of helios.toml. See docs."
        )
    from helios.app.operations import Operations  # noqa: PLC0415 - as in doctor
    from helios.slurm import hook_table  # noqa: PLC0415 - as above

    operations = Operations(settings, cluster=cluster)
    path = operations.state_folder / hook_table.TABLE
    if publish:
        message = operations.publish_hook()
        print_result({"done": message}, message, as_json=as_json)
        return
    if retract:
        removed = hook_table.retract(path)
        message = f"{path} was removed." if removed else f"There is no table at {path}."
        print_result({"table": str(path), "removed": removed}, message, as_json=as_json)
        return
    table = hook_table.read_table(path, datetime.now(UTC))
    names = ("user", "partition", "gpus", "limit_min", "site_factor", "time_min")
    rows = [{name: getattr(row, name) for name in names} for row in table.rows.values()]
    if as_json:
        show_json({"published_at": table.published_at, "expires_at": table.expires_at, "rows": rows})
        return
    print_message(f"{len(rows):,} rows, published {table.published_at}, good until {table.expires_at}")
    for row in rows:
        show(" ".join(f"{name}={'*' if value is None else value}" for name, value in row.items()))
