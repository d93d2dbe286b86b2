"""Answers of the web site.

It decides who may read what, and answers in HTML, JSON, CSV or with a picture, from one cache for all readers.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import html
import json
import os
import re
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import quote, urlencode

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from helios.app.explain_past import JobUnknown
from helios.app.subjects import SubjectUnknown
from helios.errors import HeliosError, NoSuchCluster, UsageError
from helios.report.html import PageSection, TableCells
from helios.web.openapi import openapi
from helios.web.page import Page, PageMissing, Reader, Role, Route
from helios.web.pages.report_page import WINDOW
from helios.web.pages.reports import report_files
from helios.web.render import Address, render_page
from helios.web.routes import ROUTES
from helios.web.search import find_pages
from helios.web.site import Site
from helios.web.table import CONTROLS

COOKIE = "helios_token"
CACHED_S = 60.0
"""How long a page of the history is shown before it is made again, s."""
FOLLOWED_S = 5.0
"""How long a page that follows the queue is shown, s. All tabs of a reader then cost one page in that time."""
CACHED_PAGES = 256
SHORT_BYTES = 2_000
"""Answers below this size are not compressed."""
_NOTHING_ELSE = "default-src 'none'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
HEADERS = {
    # Styles within a page are allowed for the figures of studies and reports; scripts within one never are.
    "Content-Security-Policy": f"{_NOTHING_ELSE}script-src 'self'; connect-src 'self'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
REPORT_HEADERS = {
    **HEADERS,
    "Content-Security-Policy": f"{_NOTHING_ELSE}style-src 'unsafe-inline'; img-src data:",
}
"""A written report runs no scripts at all."""
FRAMED = "frame-ancestors 'none'"
"""What a card says of the pages that may show it in a frame, unless sites are set."""
STATIC_HEADERS = {**HEADERS, "Cache-Control": "private, max-age=86400"}
"""Files of this version, whose number is in their address."""
STATIC_KINDS = {".js": "text/javascript", ".css": "text/css"}
LONGEST_VALUE = 200
ANSWERED_AT_ONCE = 4
"""Readers who are answered at once. Pages are made in threads, which share one processor for the most part."""
MOST_READERS = 64
"""Readers who are answered or wait for it. More are told to come later."""
MOST_FOLLOWERS = MOST_READERS // 2
"""Of these, pages that are asked for again by themselves. The other half is left to who clicks."""
FOLLOWS = "x-helios-follow"
"""Header of a page that is asked for again by itself."""
MOST_OF_READER = 8
"""Of these, those of one user of the proxy, so that nobody keeps all others waiting."""
ANSWER_S = 120.0
"""Time in which an answer must be made and read, s."""
USER = re.compile(r"[A-Za-z0-9_.@\\+$-]{1,200}")
"""Name of one account, also of a directory (``user@realm``, ``DOMAIN\\user``). No list, space or look-alike is one."""
HERE = frozenset({"127.0.0.1", "localhost", "::1"})
"""Names that every machine has for itself."""


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
    admins, managers : frozenset of str
        Users of the proxy who see all, and those who see sums over all.
    framed_by : tuple of str
        Origins of the sites whose pages may show a card in a frame.
    """

    token: str
    hosts: frozenset[str] = HERE
    user_header: str = ""
    admins: frozenset[str] = frozenset()
    managers: frozenset[str] = frozenset()
    framed_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.token) < 16:
            raise UsageError("A token of fewer than 16 characters can be guessed.", hint="Leave it out; one is made.")

    def is_known(self, token: str) -> bool:
        """Return whether a token is the right one."""
        return hmac.compare_digest(token.encode(), self.token.encode())

    def role(self, user: str) -> Role:
        """Return the role of a user of the proxy."""
        if user in self.admins:
            return Role.ADMIN
        return Role.MANAGER if user in self.managers else Role.USER


@dataclass(slots=True)
class _Cache:
    """Pages by reader and address, for a minute."""

    pages: OrderedDict[Any, tuple[float, Page]] = field(default_factory=OrderedDict)
    lock: Lock = field(default_factory=Lock)

    def get(self, key: Any, *, is_cached: bool) -> Page | None:
        with self.lock:
            made_at, page = self.pages.get(key, (0.0, None))
            if page is None:
                return None
            shown_s = CACHED_S if is_cached else FOLLOWED_S if page.follows else 0.0
            return page if time.monotonic() - made_at < shown_s else None

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
        elif self._readers >= (MOST_FOLLOWERS if FOLLOWS in request.headers else MOST_READERS) or (
            reader.user and self._of_user[reader.user] >= MOST_OF_READER
        ):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """What somebody asks for, once it is known who does."""

    request: Request
    site: Site
    reader: Reader
    address: Address
    route: Route | None = None

    @property
    def wants_json(self) -> bool:
        return _wants_json(self.request)

    def html(self, page: Page, *, lines: Sequence[str] = (), window_only: bool = False) -> str:
        """Return a page as HTML."""
        address = Address(path=self.address.path, given=self.address.window) if window_only else self.address
        try:
            is_history = self.site.history() is not None
            age = self.site.age(self.reader, until=address.given.get("to", ""))
        except HeliosError:  # the page that says so has the whole menu
            is_history, age = False, ""
        return render_page(address, self.reader, page, route=self.route, is_history=is_history, age=age, lines=lines)


def web_application(site: Site, access: Access) -> ASGIApp:
    """Return the site as an ASGI application."""
    cache = _Cache()
    routes = [StarletteRoute(route.path, _endpoint(route, site, access, cache)) for route in ROUTES]
    routes += [
        StarletteRoute("/search", functools.partial(_search_response, site, access)),
        StarletteRoute("/reports/{file}", functools.partial(_report_response, site, access)),
        StarletteRoute("/static/{file}", _static_response),
        StarletteRoute("/openapi.json", functools.partial(_openapi_response, access)),
    ]
    application = Starlette(
        routes=routes,
        exception_handlers={404: _not_found, 405: _not_found},
        middleware=[Middleware(GZipMiddleware, minimum_size=SHORT_BYTES, compresslevel=6)],
    )
    return _Admission(application, access)


def _endpoint(route: Route, site: Site, access: Access, cache: _Cache) -> Any:
    known, card_headers = {*route.query, *WINDOW, *CONTROLS}, _card_headers(access)

    def answer(request: Request) -> Response:
        reader = _authenticate(request, access)
        if isinstance(reader, Response):
            return reader
        given = {
            name: value[:LONGEST_VALUE]
            for name, value in {**request.query_params, **request.path_params}.items()
            if name in known or name in request.path_params
        }
        asked = {name: value for name, value in given.items() if name not in request.path_params}
        address = Address(path=request.url.path, given=asked)
        question = _Question(request=request, site=site, reader=reader, address=address, route=route)
        try:
            if not all(value.isprintable() for value in given.values()):
                raise PageMissing("There is no such page.", hint="The address has control characters.")
            if not route.is_for(reader):
                raise PageMissing("This page is not for you.", hint="Your own jobs are on the first page.")
            page = _made(route, site, reader, given, cache)
            return _page_response(question, page, headers=card_headers if page.is_card else HEADERS)
        except (PageMissing, JobUnknown, SubjectUnknown, NoSuchCluster) as reason:
            return _problem_response(question, reason, 404)
        except HeliosError as reason:
            status = 400 if isinstance(reason, UsageError) else 503
            return _problem_response(question, reason, status)

    return answer


def _made(route: Route, site: Site, reader: Reader, given: Mapping[str, str], cache: _Cache) -> Page:
    """Return the page with all rows of its table, made at most once a minute."""
    asked = {name: value for name, value in given.items() if name in route.query or f"{{{name}}}" in route.path}
    key = (reader, route.path, tuple(sorted(asked.items())))
    page = cache.get(key, is_cached=route.is_cached)
    if page is None:
        page = route.make(site, reader, asked)
        cache.put(key, page)
    return page


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
        path = "/" + quote(request.url.path).lstrip("/")  # two slashes would lead to another site
        answer = RedirectResponse(path + (f"?{rest}" if rest else ""), status_code=303, headers=HEADERS)
        answer.set_cookie(COOKIE, access.token, httponly=True, samesite="strict", secure=request.url.scheme == "https")
        return answer
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    token = bearer if scheme.lower() == "bearer" else request.cookies.get(COOKIE, "")
    if not access.is_known(token):
        return _refuse(
            request, 401, "This page needs the token that helios web printed: open the address with ?token=..."
        )
    if not access.user_header:
        return Reader(role=Role.ADMIN)
    users = request.headers.getlist(access.user_header)
    if len(users) != 1 or not USER.fullmatch(users[0]):
        # Of several, also joined by a comma, one may be the browser's own, which the proxy did not remove.
        named = "did not name one user" if any(users) else "named no user"
        return _refuse(request, 403, f"The proxy {named} in {access.user_header}.")
    return Reader(user=users[0], role=access.role(users[0]))


def _refuse(request: Request, status: int, message: str) -> Response:
    if _wants_json(request):
        return JSONResponse({"error": message}, status_code=status, headers=HEADERS)
    text = f"<!DOCTYPE html><html lang=en><title>Helios</title><p>{html.escape(message)}</p></html>"
    return HTMLResponse(text, status_code=status, headers=HEADERS)


async def _not_found(request: Request, reason: Exception) -> Response:
    status = int(getattr(reason, "status_code", 404))
    return _refuse(request, status, "There is no such page." if status == 404 else "This page can only be read.")


def _problem_response(question: _Question, reason: HeliosError, status: int) -> Response:
    if question.wants_json:
        return JSONResponse({"error": reason.message, "hint": reason.hint}, status_code=status, headers=HEADERS)
    page = Page(title="Not found" if status == 404 else "This cannot be shown")
    lines = [reason.message, *filter(None, [reason.hint])]
    return HTMLResponse(question.html(page, lines=lines, window_only=True), status_code=status, headers=HEADERS)


def _wants_json(request: Request) -> bool:
    """Return whether JSON is asked for before HTML."""
    wanted = request.headers.get("accept", "")
    return "application/json" in wanted and "text/html" not in wanted


def _page_response(question: _Question, page: Page, *, headers: Mapping[str, str] = HEADERS) -> Response:
    """Return a page in the form that is asked for.

    HTML, JSON, CSV, or the picture of one of its charts.
    """
    if question.wants_json:
        # JSON has no NaN and no infinity: they become null.
        plain = json.loads(json.dumps(page.to_json(question.address.given), default=str), parse_constant=lambda _: None)
        return JSONResponse(plain, headers=HEADERS)
    form = question.address.given.get("format", "")
    if form == "csv" and page.data is not None:
        name = re.sub(r"[^a-z0-9]+", "-", page.title.lower()).strip("-")
        return StreamingResponse(
            page.data.to_csv(question.address.given),
            media_type="text/csv; charset=utf-8",
            headers={**HEADERS, "Content-Disposition": f'attachment; filename="{name}.csv"'},
        )
    if form and (chart := next((chart for chart in page.charts if chart.name == form), None)):
        from helios.web.picture import draw_chart  # noqa: PLC0415 - matplotlib takes half a second

        return Response(draw_chart(chart), media_type="image/svg+xml", headers=HEADERS)
    if form:
        raise PageMissing(f"This page is not there as {form}.")
    return HTMLResponse(question.html(page), headers=headers)


def _card_headers(access: Access) -> dict[str, str]:
    """Return the headers of a page that some sites may frame."""
    if not access.framed_by:
        return HEADERS
    policy = HEADERS["Content-Security-Policy"].replace(FRAMED, f"frame-ancestors {' '.join(access.framed_by)}")
    return {**HEADERS, "Content-Security-Policy": policy}


def _search_response(site: Site, access: Access, request: Request) -> Response:
    """Lead to the page of a job, user, account, partition or node."""
    reader = _authenticate(request, access)
    if isinstance(reader, Response):
        return reader
    text = request.query_params.get("q", "").strip()[:LONGEST_VALUE]
    window = {name: request.query_params[name][:LONGEST_VALUE] for name in WINDOW if name in request.query_params}
    address = Address(path="/search", given=window)
    question = _Question(request=request, site=site, reader=reader, address=address)
    try:
        found = find_pages(site, reader, text)
    except HeliosError as reason:
        return _problem_response(question, reason, 404)
    if len(found) == 1 and not question.wants_json:
        (path,) = found.values()
        return RedirectResponse(address.to(path), status_code=303, headers=HEADERS)
    cells = TableCells(header=[(kind.capitalize(), True) for kind in found], rows=[[text] * len(found)])
    page = Page(
        title="Search",
        sections=[PageSection(sentences=[f"{text} is the name of several things."], tables=[cells])],
        values={"found": found},
    )
    return _page_response(question, page)


def _static_response(request: Request) -> Response:
    """Answer with a style or script of this version."""
    name = request.path_params["file"]
    files = resources.files("helios.web") / "static"
    kind = STATIC_KINDS.get(Path(name).suffix)
    if kind is None or name not in {file.name for file in files.iterdir()}:
        return _refuse(request, 404, "There is no such page.")
    return Response((files / name).read_bytes(), media_type=f"{kind}; charset=utf-8", headers=STATIC_HEADERS)


def _report_response(site: Site, access: Access, request: Request) -> Response:
    """Answer with a report that was written.

    Its scripts, if it has any, do not run.
    """
    reader = _authenticate(request, access)
    if isinstance(reader, Response):
        return reader
    named = {path.name: path for path in report_files(site.settings)} if reader.is_admin else {}
    path = named.get(request.path_params["file"])
    if path is None:
        address = Address(path=request.url.path, given={})
        question = _Question(request=request, site=site, reader=reader, address=address)
        return _problem_response(question, PageMissing("There is no such report."), 404)
    kind = "text/html" if path.suffix == ".html" else "text/plain"
    return Response(_read(path), media_type=f"{kind}; charset=utf-8", headers=REPORT_HEADERS)


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
