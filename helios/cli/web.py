"""Command ``helios web``, the read-only web page."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

from pydantic import ValidationError
from typer import Option

from helios.cli.options import Cluster, configuration
from helios.cli.output import print_message
from helios.errors import HeliosError, UsageError
from helios.private_files import read_secret


class WebUnavailable(HeliosError):
    """The web page cannot be served."""


def web_(
    listen: Annotated[
        str | None, Option(help="Address to listen on, HOST:PORT. Port 0: a free one. Default: setting web.listen.")
    ] = None,
    token_file: Annotated[
        Path | None,
        Option(
            help="File with the token that readers need, of this user alone. Default: web.token_file, else a new one."
        ),
    ] = None,
    host: Annotated[
        list[str] | None,
        Option(help="Further name under which browsers reach this server. Default: setting web.hosts."),
    ] = None,
    user_header: Annotated[
        str | None,
        Option(
            help="Header in which a proxy names the user. Users see their own jobs, and the cluster's sums. Default: "
            "setting web.user_header."
        ),
    ] = None,
    admin: Annotated[
        list[str] | None, Option(help="User of --user-header who sees everything. Default: setting web.admins.")
    ] = None,
    cluster: Cluster = None,
) -> None:
    """Serve a read-only web page of the queue, decisions, use and reports.

    It prints an address with a token; nobody without the token sees anything. Each page is JSON too, for
    "Accept: application/json". Nothing is ever changed, and no other site is asked.

    Example: helios web --listen 127.0.0.1:9850
    """
    given = {
        "listen": listen,
        "token_file": token_file and str(token_file.absolute()),
        "hosts": host and ",".join(host),
        "user_header": user_header,
        "admins": admin and ",".join(admin),
    }
    settings = configuration().settings
    changed = {name: value for name, value in given.items() if value is not None}
    try:
        web = type(settings.web).model_validate(settings.web.model_dump() | changed)
    except ValidationError as reason:
        first = reason.errors()[0]
        option = "--" + str(first["loc"][0]).replace("_", "-")
        raise UsageError(
            f"{option}: {first['msg'].removeprefix('Value error, ')}", hint="See helios web --help"
        ) from reason
    token = read_secret(Path(web.token_file)) if web.token_file else secrets.token_urlsafe(24)
    try:
        from helios.web.server import open_server  # noqa: PLC0415 - of the extra [web]
    except ModuleNotFoundError as reason:
        raise WebUnavailable(
            f"{reason.name} is not installed.", hint="Install the extra: pip install 'helios-slurm[web]'"
        ) from reason
    server = open_server(settings.model_copy(update={"web": web}), token=token, cluster=cluster)
    print_message(f"Listens on {server.address}" if web.token_file else f"Open {server.address}?token={token}")
    server.run()
