"""HTTP server of the web site, behind bounds on connections."""

from __future__ import annotations

import asyncio
import socket
from threading import Thread
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from helios.config import Settings
from helios.errors import ConfigurationInvalid, UsageError
from helios.listener import MOST_HEADER_BYTES, ClientConnection, Listener
from helios.web.application import ANSWER_S, HERE, Access, web_application
from helios.web.site import Site


class WebServer:
    """Web server of one application, on one connection for each request.

    Parameters
    ----------
    application : ASGI application
    listen : str
        ``HOST:PORT``, with port 0 for a free one.

    Raises
    ------
    ConfigurationInvalid
        The address cannot be bound.
    """

    def __init__(self, application: ASGIApp, *, listen: str) -> None:
        host, _, port = listen.rpartition(":")
        host = host.strip("[]")
        try:
            listening = socket.create_server(
                (host, int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET
            )
        except OSError as reason:
            raise ConfigurationInvalid(
                f"The web page cannot listen on {listen}: {reason.strerror or reason}.",
                hint="Choose another HOST:PORT: web.listen. Who has it: ss -ltnp",
            ) from reason
        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{listening.getsockname()[1]}/"
        config = uvicorn.Config(
            application,
            http=_Protocol,
            ws="none",
            log_level="error",  # a warning for each request that is none would fill the journal
            access_log=False,
            server_header=False,
            proxy_headers=False,
            headers=[("Connection", "close")],
            timeout_graceful_shutdown=3,
            h11_max_incomplete_event_size=2 * MOST_HEADER_BYTES,
        )
        self._server = _Server(config, listening)

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        self._server.run()


class _Protocol(H11Protocol):
    """uvicorn's protocol, on a connection whose header has been read."""

    def __init__(self, *, header: bytes, lost: asyncio.Event, **given: Any) -> None:
        super().__init__(**given)
        self._header, self._lost = header, lost

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        super().data_received(self._header)

    def data_received(self, data: bytes) -> None:
        """Ignore what comes after the header, as nothing here reads a body."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._lost.set()


class _Server(uvicorn.Server):
    """uvicorn's server, behind the bounds of a listener."""

    def __init__(self, config: uvicorn.Config, listening: socket.socket) -> None:
        super().__init__(config)
        self._listening = listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002 - uvicorn's name
        await super().startup(sockets=[])
        self._listener = Listener(self._listening, self._answer, loop=asyncio.get_running_loop())
        self._listener.open()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002 - uvicorn's name
        await self._listener.close()
        await super().shutdown(sockets=[])

    async def _answer(self, connection: ClientConnection) -> None:
        self._listener.hold(connection, within_s=ANSWER_S)
        lost = asyncio.Event()

        def protocol() -> _Protocol:
            return _Protocol(
                header=bytes(connection.received),
                lost=lost,
                config=self.config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
            )

        transport, _ = await asyncio.get_running_loop().connect_accepted_socket(protocol, connection.stream)
        try:
            await lost.wait()
        finally:
            transport.abort()


def open_server(settings: Settings, *, token: str, cluster: str | None = None) -> WebServer:
    """Return a web server that already listens."""
    web = settings.web
    if (web.admins or web.managers) and not web.user_header:
        raise UsageError(
            "Admins and managers are users of a proxy.", hint="Say in which header it names them: web.user_header"
        )
    hosts = frozenset({web.listen.rpartition(":")[0].strip("[]"), *HERE, *_names(web.hosts.lower())})
    access = Access(
        token=token,
        hosts=hosts,
        user_header=web.user_header,
        admins=frozenset(_names(web.admins)),
        managers=frozenset(_names(web.managers)),
        framed_by=tuple(_names(web.framed_by)),
    )
    site = Site(settings, cluster=cluster)
    server = WebServer(web_application(site, access), listen=web.listen)
    Thread(target=site.prepare, daemon=True).start()
    return server


def _names(text: str) -> list[str]:
    return [name for name in (part.strip() for part in text.split(",")) if name]
