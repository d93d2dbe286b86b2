"""HTTP server of the web page.

It decides who may read what, and answers in HTML or JSON, from one cache for all readers.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import html
import json
import logging
import os
import re
import socket
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import quote, urlencode

import uvicorn
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from helios import __version__
from helios.app.explain import NodeUnknown
from helios.app.explain_past import JobUnknown
from helios.config import Settings
from helios.errors import ConfigurationInvalid, HeliosError, NoSuchCluster, UsageError
from helios.listener import MOST_HEADER_BYTES, ClientConnection, Listener
from helios.report.html import filled_sections
from helios.web.pages import ROUTES, report_files
from helios.web.site import Page, PageMissing, Reader, Route, Site

COOKIE = "helios_token"
CACHED_S = 60.0
"""How long a page of the history is shown before it is made again, s."""
CACHED_PAGES = 256
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
LINKS = {"JobID": "/jobs/", "User": "/users/", "Node": "/nodes/", "Report": "/reports/", "Pool": "/pools/"}
"""Addresses of what stands in a column, by its head."""
LABELS = {
    "from": "From",
    "to": "To",
    "user": "User",
    "account": "Account",
    "partition": "Partition",
    "by": "Group by",
    "result": "Result",
}
LONGEST_VALUE = 200
ANSWERED_AT_ONCE = 4
"""Readers who are answered at once. Pages are made in threads, which share one processor for the most part."""
MOST_READERS = 64
"""Readers who are answered or wait for it. More are told to come later."""
MOST_OF_READER = 8
"""Of these, those of one user of the proxy, so that nobody keeps all others waiting."""
ANSWER_S = 120.0
"""Time in which an answer must be made and read, s."""
USER = re.compile(r"[A-Za-z0-9_.@\\+$-]{1,200}")
"""Name of one account, also of a directory (``user@realm``, ``DOMAIN\\user``). No list, space or look-alike is one."""
HERE = frozenset({"127.0.0.1", "localhost", "::1"})
"""Names that every machine has for itself."""

_log = logging.getLogger("helios.web")
_PAGES = Environment(
    loader=ChoiceLoader([PackageLoader("helios.web"), PackageLoader("helios.report")]),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who may read.

    Attributes
    ----------
    token : str
        Needed for everything: in a cookie, or as a bearer token.
    hosts : frozenset of str
        Names that the Host header may have, without port; else another site's page could ask through a browser.
    user_header : str
        Header in which a proxy names the user. Empty where whoever has the token sees all.
    admins : frozenset of str
        Users of the proxy who see all.
    """

    token: str
    hosts: frozenset[str] = HERE
    user_header: str = ""
    admins: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if len(self.token) < 16:
            raise UsageError("A token of fewer than 16 characters can be guessed.", hint="Leave it out; one is made.")

    def is_known(self, token: str) -> bool:
        """Return whether a token is the right one."""
        return hmac.compare_digest(token.encode(), self.token.encode())


@dataclass(slots=True)
class _Cache:
    """Pages by reader and address, for a minute."""

    pages: OrderedDict[Any, tuple[float, Page]] = field(default_factory=OrderedDict)
    lock: Lock = field(default_factory=Lock)

    def get(self, key: Any) -> Page | None:
        with self.lock:
            made = self.pages.get(key)
            return made[1] if made is not None and time.monotonic() - made[0] < CACHED_S else None

    def put(self, key: Any, page: Page) -> None:
        with self.lock:
            self.pages[key] = (time.monotonic(), page)
            self.pages.move_to_end(key)
            while len(self.pages) > CACHED_PAGES:
                self.pages.popitem(last=False)


class _Admission:
    """Answer strangers at once, and few readers at a time."""

    def __init__(self, application: ASGIApp, access: Access) -> None:
        self.application, self._access = application, access
        self._semaphore = asyncio.Semaphore(ANSWERED_AT_ONCE)
        self._readers = 0
        self._of_user: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.application(scope, receive, send)
            return
        request = Request(scope)
        reader = _authenticate(request, self._access)
        if isinstance(reader, Response):
            await reader(scope, receive, send)
        elif self._readers >= MOST_READERS or (reader.user and self._of_user[reader.user] >= MOST_OF_READER):
            await _refuse(request, 503, "Too many pages are asked for. Ask again in a minute.")(scope, receive, send)
        else:
            self._readers += 1
            self._of_user[reader.user] += 1
            try:
                async with self._semaphore:
                    await self.application(scope, receive, send)
            finally:
                self._readers -= 1
                self._of_user[reader.user] -= 1


def web_application(site: Site, access: Access) -> ASGIApp:
    """Return the site as an ASGI application."""
    cache = _Cache()
    routes = [StarletteRoute(route.path, _endpoint(route, site, access, cache)) for route in ROUTES]
    routes += [
        StarletteRoute("/reports/{file}", functools.partial(_file_response, site, access)),
        StarletteRoute("/openapi.json", functools.partial(_openapi_response, access)),
    ]
    return _Admission(Starlette(routes=routes, exception_handlers={404: _not_found, 405: _not_found}), access)


def _endpoint(route: Route, site: Site, access: Access, cache: _Cache) -> Any:
    def answer(request: Request) -> Response:
        reader = _authenticate(request, access)
        if isinstance(reader, Response):
            return reader
        given = {
            name: value[:LONGEST_VALUE]
            for name, value in {**request.query_params, **request.path_params}.items()
            if name in route.query or name in request.path_params
        }
        try:
            if not all(value.isprintable() for value in given.values()):
                raise PageMissing("There is no such page.", hint="The address has control characters.")
            if not (reader.is_admin or route.for_users):
                raise PageMissing("Only admins see this page.", hint="Your own jobs are on the first page.")
            key = (reader, route.path, tuple(sorted(given.items())))
            page = cache.get(key) if route.path not in {"/", "/jobs/{job}"} else None
            if page is None:
                page = route.make(site, reader, given)
                cache.put(key, page)
        except (PageMissing, JobUnknown, NodeUnknown, NoSuchCluster) as reason:
            return _problem_response(request, reader, reason, 404)
        except HeliosError as reason:
            return _problem_response(request, reader, reason, 400 if isinstance(reason, UsageError) else 503)
        if _wants_json(request):
            # JSON has no NaN and no infinity: they become null.
            return JSONResponse(
                json.loads(json.dumps(page.values, default=str), parse_constant=lambda _: None), headers=HEADERS
            )
        return _page_response(request, reader, page, given)

    return answer


def _authenticate(request: Request, access: Access) -> Reader | Response:
    """Return who asks, or the answer to somebody who may not."""
    host = (
        request.headers.get("host", "").rpartition("]")[0].lstrip("[")
        or request.headers.get("host", "").partition(":")[0]
    )
    if host.lower() not in access.hosts:
        return _refuse(
            request, 421, f"This server is not called {host[:100]!r}. Its names are in the setting web.hosts."
        )
    if (given := request.query_params.get("token")) and access.is_known(given):
        rest = urlencode([(name, value) for name, value in request.query_params.multi_items() if name != "token"])
        answer = RedirectResponse(
            quote(request.url.path) + (f"?{rest}" if rest else ""), status_code=303, headers=HEADERS
        )
        answer.set_cookie(COOKIE, access.token, httponly=True, samesite="strict", secure=request.url.scheme == "https")
        return answer
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    token = bearer if scheme.lower() == "bearer" else request.cookies.get(COOKIE, "")
    if not access.is_known(token):
        return _refuse(
            request, 401, "This page needs the token that helios web printed: open the address with ?token=..."
        )
    if not access.user_header:
        return Reader(is_admin=True)
    users = request.headers.getlist(access.user_header)
    if len(users) != 1 or not USER.fullmatch(users[0]):
        # Of several, also joined by a comma, one may be the browser's own, which the proxy did not remove.
        named = "did not name one user" if any(users) else "named no user"
        return _refuse(request, 403, f"The proxy {named} in {access.user_header}.")
    return Reader(user=users[0], is_admin=users[0] in access.admins)


def _refuse(request: Request, status: int, message: str) -> Response:
    if _wants_json(request):
        return JSONResponse({"error": message}, status_code=status, headers=HEADERS)
    text = f"<!DOCTYPE html><html lang=en><title>Helios</title><p>{html.escape(message)}</p></html>"
    return HTMLResponse(text, status_code=status, headers=HEADERS)


async def _not_found(request: Request, reason: Exception) -> Response:
    status = int(getattr(reason, "status_code", 404))
    return _refuse(request, status, "There is no such page." if status == 404 else "This page can only be read.")


def _problem_response(request: Request, reader: Reader, reason: HeliosError, status: int) -> Response:
    if _wants_json(request):
        return JSONResponse({"error": reason.message, "hint": reason.hint}, status_code=status, headers=HEADERS)
    return _page_response(
        request,
        reader,
        Page(title="Not found" if status == 404 else "This cannot be shown"),
        {},
        status=status,
        lines=[reason.message, *filter(None, [reason.hint])],
    )


def _wants_json(request: Request) -> bool:
    """Return whether JSON is asked for before HTML."""
    wanted = request.headers.get("accept", "")
    return "application/json" in wanted and "text/html" not in wanted


def _page_response(
    request: Request,
    reader: Reader,
    page: Page,
    given: Mapping[str, str],
    *,
    status: int = 200,
    lines: tuple[str, ...] | list[str] = (),
) -> Response:
    menu = [
        (route.path, route.menu_name) for route in ROUTES if route.menu_name and (reader.is_admin or route.for_users)
    ]
    text = _PAGES.get_template("page.html.j2").render(
        title=page.title,
        subtitle=page.subtitle,
        sections=filled_sections(page.sections),
        lines=lines,
        menu=menu,
        here=request.url.path,
        links={head: where for head, where in LINKS.items() if reader.is_admin or head in {"JobID", "Pool"}},
        fields=[(name, LABELS[name], given.get(name, "")) for name in page.form_fields],
        user=reader.user,
        version=__version__,
    )
    return HTMLResponse(text, status_code=status, headers=HEADERS)


def _file_response(site: Site, access: Access, request: Request) -> Response:
    """Answer with a report that was written.

    Its scripts, if it has any, do not run.
    """
    reader = _authenticate(request, access)
    if isinstance(reader, Response):
        return reader
    named = {path.name: path for path in report_files(site.settings)} if reader.is_admin else {}
    path = named.get(request.path_params["file"])
    if path is None:
        return _problem_response(request, reader, PageMissing("There is no such report."), 404)
    kind = "text/html" if path.suffix == ".html" else "text/plain"
    return Response(_read(path), media_type=f"{kind}; charset=utf-8", headers=HEADERS)


def _read(path: Path) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as stream:
        return stream.read()


def _openapi_response(access: Access, request: Request) -> Response:
    """Answer with the OpenAPI description of all pages."""
    reader = _authenticate(request, access)
    if isinstance(reader, Response):
        return reader
    return JSONResponse(openapi(), headers=HEADERS)


def openapi() -> dict[str, Any]:
    """Return the OpenAPI description of the site."""
    paths = {}
    for route in ROUTES:
        inside = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
        parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in inside]
        parameters += [
            {"name": name, "in": "query", "required": False, "schema": {"type": "string"}} for name in route.query
        ]
        answers = {
            "200": {"description": "The page", "content": {"application/json": {}, "text/html": {}}},
            "401": {"description": "The token is missing"},
            "404": {"description": "Nothing of that name, or not for this reader"},
        }
        paths[route.path] = {"get": {"summary": route.summary, "parameters": parameters, "responses": answers}}
    return {"openapi": "3.1.0", "info": {"title": "Helios", "version": __version__}, "paths": paths}


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
    if web.admins and not web.user_header:
        raise UsageError("Admins are users of a proxy.", hint="Say in which header it names them: web.user_header")
    hosts = frozenset({web.listen.rpartition(":")[0].strip("[]"), *HERE, *_names(web.hosts.lower())})
    access = Access(token=token, hosts=hosts, user_header=web.user_header, admins=frozenset(_names(web.admins)))
    return WebServer(web_application(Site(settings, cluster=cluster), access), listen=web.listen)


def _names(text: str) -> list[str]:
    return [name for name in (part.strip() for part in text.split(",")) if name]
