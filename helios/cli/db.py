"""``helios db``: the warehouse's schema."""

from __future__ import annotations

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
    if as_json:
        show_json({"database": without_password(url), "revision": revision, "head": head})
        return
    state = "up to date" if revision == head else f"behind {head}: helios db upgrade"
    show(f"{without_password(url)} is at {revision or 'no schema yet'}, {state}.")
