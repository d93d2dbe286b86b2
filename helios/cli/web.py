"""Command ``helios web``, the read-only web page."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

from typer import Option

from helios.cli.options import Cluster, configuration
from helios.cli.output import say
from helios.errors import HeliosError, UsageError
from helios.private_files import read_secret


class WebUnavailable(HeliosError):
    """The web page cannot be served."""


def web_(
    listen: Annotated[str, Option(help="Address to listen on, HOST:PORT. Port 0: a free one.")] = "127.0.0.1:9850",
    token_file: Annotated[
        Path | None, Option(help="File with the token that readers need, of this user alone. Default: a new token.")
    ] = None,
    host: Annotated[list[str] | None, Option(help="Further name under which browsers reach this server.")] = None,
    user_header: Annotated[
        str, Option(help="Header in which a proxy names the user. Users see their own jobs, and the cluster's sums.")
    ] = "",
    admin: Annotated[list[str] | None, Option(help="User of --user-header who sees everything.")] = None,
    cluster: Cluster = None,
) -> None:
    """Serve a read-only web page of the queue, decisions, use and reports.

    It prints an address with a token; nobody without the token sees anything. Each page is JSON too, for
    "Accept: application/json". Nothing is ever changed, and no other site is asked.

    Example: helios web --listen 127.0.0.1:9850
    """
    try:
        import uvicorn  # noqa: PLC0415 - of the extra [web]

        from helios.web.pages import Site  # noqa: PLC0415 - as above
        from helios.web.server import Access, web_application  # noqa: PLC0415 - as above
    except ModuleNotFoundError as reason:
        raise WebUnavailable(
            f"{reason.name} is not installed.", hint="Install the extra: pip install 'helios-slurm[web]'"
        ) from reason
    from helios.daemon.http import parse_address  # noqa: PLC0415 - only needed here

    address, port = parse_address(listen)
    if admin and not user_header:
        raise UsageError(
            "--admin names users of a proxy.", hint="Say in which header it names them: --user-header NAME"
        )
    hosts = frozenset({address, "127.0.0.1", "localhost", "::1", *(name.lower() for name in host or ())})
    token = secrets.token_urlsafe(24) if token_file is None else read_secret(token_file)
    access = Access(token=token, hosts=hosts, user_header=user_header, admins=frozenset(admin or ()))
    site = Site(configuration().settings, cluster=cluster)
    server = uvicorn.Server(
        uvicorn.Config(
            web_application(site, access),
            host=address,
            port=port,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=64,
            timeout_keep_alive=5,
            h11_max_incomplete_event_size=16_384,
        )
    )
    socket = server.config.bind_socket()
    shown = f"[{address}]" if ":" in address else address
    say(
        f"Open http://{shown}:{socket.getsockname()[1]}/?token={token}"
        if token_file is None
        else f"Listens on {listen}"
    )
    server.run(sockets=[socket])
