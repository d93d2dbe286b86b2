"""``/metrics`` and ``/healthz``, for a scraper beside the daemon; nothing can be changed here."""

from __future__ import annotations

import json
import logging
import re
import socket
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from threading import Thread
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from helios.errors import ConfigurationInvalid

ANSWER_S = 10.0
"""A client that has not sent its request by then is left, s."""

_log = logging.getLogger("helios.daemon.server")


def address_of(listen: str) -> tuple[str, int]:
    """Read ``HOST:PORT``; an IPv6 host stands in brackets.

    Raises
    ------
    ConfigurationInvalid
        It has another form.
    """
    parts = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]+)):(\d{1,5})", listen)
    if parts is None or int(parts[3]) > 65_535:
        raise ConfigurationInvalid(
            f"daemon.listen is {listen!r}, not HOST:PORT.",
            remedy="Write 127.0.0.1:9842, [::1]:9842, or an empty text to serve nothing.",
        )
    return parts[1] or parts[2], int(parts[3])


class Server:
    """Answers in threads of its own.

    Parameters
    ----------
    listen : str
        ``HOST:PORT``; port 0 takes a free one.
    registry : CollectorRegistry
        What ``/metrics`` shows.
    health : callable
        What ``/healthz`` shows: 200 if its ``healthy`` is true, else 503.

    Raises
    ------
    ConfigurationInvalid
        The address cannot be bound.
    """

    def __init__(self, listen: str, *, registry: CollectorRegistry, health: Callable[[], dict[str, Any]]) -> None:
        host, port = address_of(listen)
        self._server = _bound(host, port, _answers(registry, health), listen=listen)
        self.port = self._server.server_port
        self._thread = Thread(target=self._server.serve_forever, name="server", daemon=True)
        self._thread.start()
        _log.info("serves /metrics and /healthz on %s port %d", host, self.port)

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    def server_bind(self) -> None:
        # Not HTTPServer's: it asks the name service who it is, and a dead name service would hold up the start.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 - socketserver's names
        _log.debug("a client was not answered: %s", sys.exc_info()[1])


class _Server6(_Server):
    address_family = socket.AF_INET6


def _bound(host: str, port: int, answers: type[BaseHTTPRequestHandler], *, listen: str) -> _Server:
    try:
        return (_Server6 if ":" in host else _Server)((host, port), answers)
    except OSError as error:
        raise ConfigurationInvalid(
            f"daemon.listen {listen} cannot be bound: {error.strerror or error}.",
            remedy="Does another helios daemon run here? Choose another HOST:PORT, or an empty text to serve nothing.",
        ) from error


def _answers(registry: CollectorRegistry, health: Callable[[], dict[str, Any]]) -> type[BaseHTTPRequestHandler]:
    class Answers(BaseHTTPRequestHandler):
        timeout = ANSWER_S
        server_version = "helios"
        sys_version = ""

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                encode, kind = choose_encoder(self.headers.get("Accept", ""))
                self._answer(HTTPStatus.OK, kind, encode(registry))
            elif path == "/healthz":
                report = health()
                code = HTTPStatus.OK if report["healthy"] else HTTPStatus.SERVICE_UNAVAILABLE
                self._answer(code, "application/json", (json.dumps(report, indent=2) + "\n").encode())
            else:
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"There are /metrics and /healthz.\n")

        def _answer(self, code: HTTPStatus, kind: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            _log.debug(format, *args)

    return Answers
