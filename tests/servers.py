"""Servers on loopback that take mails and what is posted, for tests of notices."""

from __future__ import annotations

import json
import ssl
import threading
from email import message_from_bytes, policy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword


class OnAnyPort(Controller):
    """Connects to the port that the system chose, as it does to one that was given."""

    def _trigger_server(self) -> None:
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()


class MailServer:
    """A mail server on loopback with a certificate of its own, which takes mail only from who logged in."""

    def __init__(self, certificate: Path | None, *, tls: str = "starttls") -> None:
        self.taken: list[Any] = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if certificate is not None:
            context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        options: dict[str, Any] = {"ssl_context": context} if tls == "tls" else {}
        if tls == "starttls":
            options = {"tls_context": context, "require_starttls": True}
        if tls != "none":
            options |= {"authenticator": self._log_in, "auth_required": True, "auth_require_tls": tls == "starttls"}
        self._controller = OnAnyPort(self, hostname="127.0.0.1", port=0, ready_timeout=30, **options)

    def _log_in(self, server: Any, session: Any, envelope: Any, mechanism: str, data: LoginPassword) -> AuthResult:
        known = (data.login, data.password) == (b"helios", b"right")
        return AuthResult(success=known, handled=False)

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's name
        self.taken.append(envelope)
        return "250 taken"

    def __enter__(self) -> MailServer:
        self._controller.start()
        self.port = self._controller.port
        return self

    def __exit__(self, *_: object) -> None:
        self._controller.stop()

    @property
    def mails(self) -> list[Any]:
        return [message_from_bytes(envelope.content, policy=policy.default) for envelope in self.taken]


class ChatServer:
    """A web server on loopback that keeps what is posted, and answers as told."""

    def __init__(self, *, status: int = 200) -> None:
        self.bodies: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(status)
                self.send_header("Location", "http://127.0.0.1:1/")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook/secret"

    def __enter__(self) -> ChatServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
