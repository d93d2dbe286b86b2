"""HTTP server of ``/metrics`` and ``/healthz``, read-only."""

from __future__ import annotations

import errno
import json
import logging
import re
import socket
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from io import StringIO
from socketserver import TCPServer, ThreadingMixIn
from threading import Lock, Thread
from typing import Any, TextIO
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from helios.errors import ConfigurationInvalid, HeliosError

CONNECTION_S = 5.0
"""Time after which a connection is closed in any case, s. A scraper on this host needs far less."""
MOST_CONNECTIONS = 32
"""Largest number of connections at once. More are closed, because the cycles need file descriptors and threads."""

_log = logging.getLogger("helios.daemon.http")


class AddressTaken(HeliosError):
    """Error about an address on which another process listens."""


def parse_address(listen: str) -> tuple[str, int]:
    """Parse an address into host and port.

    Its form is ``HOST:PORT``, with an IPv6 host in brackets.

    Raises
    ------
    ConfigurationInvalid
        The text has another form.
    """
    parts = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]+)):(\d{1,5})", listen)
    if parts is None or int(parts[3]) > 65_535:
        raise ConfigurationInvalid(
            f"daemon.listen is {listen!r}, not HOST:PORT.",
            hint="Write 127.0.0.1:9842, [::1]:9842, or an empty text to serve nothing.",
        )
    return parts[1] or parts[2], int(parts[3])


class Server:
    """HTTP server of metrics and health, in its own threads.

    Parameters
    ----------
    listen : str
        ``HOST:PORT``, with port 0 for a free one.
    registry : CollectorRegistry
        Metrics for ``/metrics``.
    health : callable
        Returns the report for ``/healthz``. The status is 200 if its ``healthy`` is true, else 503.

    Raises
    ------
    AddressTaken
        Another process has the address.
    ConfigurationInvalid
        The address cannot be bound for another reason.
    """

    def __init__(self, listen: str, *, registry: CollectorRegistry, health: Callable[[], dict[str, Any]]) -> None:
        host, port = parse_address(listen)
        try:
            self._server = (_Server6 if ":" in host else _Server)((host, port), _Handler)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise AddressTaken(
                    f"another process listens on {listen}: /metrics and /healthz are not served by this daemon",
                    hint="See who it is: ss -ltnp. Do not believe what it answers; or choose another daemon.listen.",
                ) from error
            raise ConfigurationInvalid(
                f"daemon.listen {listen} cannot be bound: {error.strerror or error}.",
                hint="Choose another HOST:PORT, or an empty text to serve nothing.",
            ) from error
        self._server.set_app(_application(registry, health))
        self.port = self._server.server_port
        self._thread = Thread(target=self._server.serve_forever, name="server", daemon=True)
        self._thread.start()
        _log.info("serves /metrics and /healthz on %s port %d", host, self.port)

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _application(registry: CollectorRegistry, health: Callable[[], dict[str, Any]]) -> Callable[..., Iterable[bytes]]:
    metrics = make_wsgi_app(registry)

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        def start(status: str, headers: list[tuple[str, str]]) -> None:
            start_response(status, [("Server", "helios"), *headers])  # wsgiref's own names the release of Python

        if environ["PATH_INFO"] == "/metrics":
            found: list[bytes] = metrics(environ, start)
            return found
        status, kind, body = "404 Not Found", "text/plain", b"There are /metrics and /healthz.\n"
        if environ["PATH_INFO"] == "/healthz":
            report = health()
            status = "200 OK" if report["healthy"] else "503 Service Unavailable"
            kind, body = "application/json", (json.dumps(report, indent=2) + "\n").encode()
        start(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
        return [body]

    return answer


class _Server(ThreadingMixIn, WSGIServer):
    """Threaded server that bounds the number and length of connections.

    prometheus-client's own server bounds neither.
    """

    daemon_threads = True
    request_queue_size = 128  # with socketserver's 5, a flood of connections delays a scraper by seconds

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        self._ends_s: dict[socket.socket, float] = {}
        self._lock = Lock()
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # Not HTTPServer's, which looks up the host's name: without a name service this would delay the start.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002 - socketserver's names
        with self._lock:
            if len(self._ends_s) >= MOST_CONNECTIONS:
                return False  # socketserver then closes it
            self._ends_s[request] = time.monotonic() + CONNECTION_S
            return True

    def service_actions(self) -> None:
        # A timeout of the socket alone would begin anew with every byte that a slow client sends.
        now_s = time.monotonic()
        with self._lock:
            for request in [request for request, end_s in self._ends_s.items() if end_s <= now_s]:
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)  # its thread wakes up and closes it

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._ends_s.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 - socketserver's names
        _log.debug("a client was not answered: %s", sys.exc_info()[1])


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = CONNECTION_S

    def get_stderr(self) -> TextIO:
        # wsgiref writes a traceback there when a client stops reading, so that any client could fill the journal.
        return StringIO()

    def log_message(self, format: str, *args: object) -> None:
        _log.debug(format, *args)
