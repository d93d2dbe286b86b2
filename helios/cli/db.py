"""``helios db``: the warehouse's schema."""

from __future__ import annotations

from typing import Annotated

import typer

from helios.cli.options import AsJson, configuration
from helios.cli.screen import show, show_json
from helios.config import without_password
from helios.warehouse import Warehouse

commands = typer.Typer(no_args_is_help=True, help="The warehouse's schema.")


@commands.command("upgrade", epilog="Example: HELIOS_DATABASE_URL=postgresql://helios@db/helios helios db upgrade")
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


@commands.command("status", epilog="Example: helios db status --json")
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


@commands.command(
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
    from helios.app.roles import roles_granted  # noqa: PLC0415 - an upgrade needs nothing of what it imports

    settings = configuration().settings
    roles_granted(settings, jobs=jobs, nodes=nodes, reader=reader)
    given = ", ".join(
        f"{role} ({what})" for what, role in (("jobs", jobs), ("nodes", nodes), ("reads", reader)) if role
    )
    show(f"{without_password(settings.database.url)}: granted to {given}.")
