"""The page as the command serves it, among connections of everybody."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp

from helios.config import Settings
from helios.errors import ConfigurationInvalid, UsageError
from helios.web import application as web_application
from helios.web.application import FOLLOWS, MOST_OF_READER, MOST_READERS, Access
from helios.web.server import open_server
from tests.waiting import TEST_TIMEOUT_S, until

TOKEN = "a token of this test"
STRANGE = (
    b"\x16\x03\x01 not HTTP\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nno chunk",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"POST /%ff HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: \xff=\xff\r\nAuthorization: Bearer \xff\r\n\r\n",
)
"""Requests of somebody without the token."""


def settings(folder: Path, **web: object) -> Settings:
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    given = {"listen": "127.0.0.1:0", "token_file": str(folder / "token")} | web
    return Settings.model_validate({"database": {"url": f"sqlite:///{folder}/helios.db"}, "web": given})


class Page:
    """``helios web`` in a process of its own, which may have as many descriptors as is said."""

    def __init__(self, folder: Path, *, descriptors: int = 1_024) -> None:
        settings(folder)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HELIOS_")}
        environment |= {"HELIOS_WEB_TOKEN_FILE": str(folder / "token"), "HELIOS_WEB_LISTEN": "127.0.0.1:0"}
        environment |= {"HELIOS_DATABASE_URL": f"sqlite:///{folder}/helios.db", "HOME": str(folder)}
        words = ["prlimit", f"--nofile={descriptors}", sys.executable, "-m", "helios", "web"]
        self._log = folder / "log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(words, stderr=log, env=environment, cwd=folder)
        until(lambda: "\n" in self._log.read_text())
        self._first, *_ = self._log.read_text().splitlines(keepends=True)
        assert self._first.startswith("Listens on http://127.0.0.1:")
        self.address = self._first.split()[-1]

    def log(self) -> str:
        """Return what it said after its address."""
        return self._log.read_text().removeprefix(self._first)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def connect(self) -> socket.socket:
        host, port = self.address.removeprefix("http://").rstrip("/").split(":")
        return socket.create_connection((host, int(port)), TEST_TIMEOUT_S)

    def get(self, *, token: str = TOKEN) -> int:
        headers = {"Authorization": f"Bearer {token}"}
        try:
            asked = urllib.request.Request(f"{self.address}openapi.json", headers=headers)
            with urllib.request.urlopen(asked, timeout=TEST_TIMEOUT_S) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as refused:
            return refused.code


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    page = Page(tmp_path_factory.mktemp("page"))
    yield page
    page.end()


def test_an_address_of_another_process_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ConfigurationInvalid, match="cannot listen"):
            open_server(settings(tmp_path, listen=taken), token=TOKEN)


def test_admins_without_a_header_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="users of a proxy"):
        open_server(settings(tmp_path, admins="root"), token=TOKEN)


def test_the_command_serves_whoever_has_the_token_until_it_is_stopped(tmp_path: Path) -> None:
    page = Page(tmp_path)
    try:
        assert page.get() == 200
        assert page.get(token="another token of a test") == 401
        page.process.terminate()
        assert page.process.wait(TEST_TIMEOUT_S) in {0, -15}
        assert page.log() == ""
    finally:
        page.end()


def test_a_reader_is_answered_among_many_that_say_nothing(page: Page) -> None:
    with ExitStack() as clients:
        for number in range(800):
            client = clients.enter_context(page.connect())
            if number % 2:
                client.sendall(b"G")
        assert page.get() == 200
    assert page.log() == ""


def test_requests_of_strangers_leave_nothing_in_the_log(page: Page) -> None:
    for request in STRANGE:
        with page.connect() as client:
            client.sendall(request)
            assert client.recv(12).startswith(b"HTTP/1.1 4")
    assert page.get() == 200
    assert page.log() == ""


def test_a_connection_ends_with_its_answer(page: Page) -> None:
    asked = f"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    with page.connect() as client:
        client.sendall(asked.encode())
        answer = b""
        while data := client.recv(65_536):
            answer += data
    assert answer.startswith(b"HTTP/1.1 200") and b"connection: close" in answer.lower()


def test_a_page_of_few_descriptors_answers_and_complains_once(tmp_path: Path) -> None:
    page = Page(tmp_path, descriptors=128)
    try:
        with ExitStack() as clients:
            for _ in range(300):
                clients.enter_context(page.connect())

            def is_answered() -> bool:
                try:
                    return page.get() == 200
                except OSError:  # it may be ended for one that came later
                    return False

            until(is_answered)
        assert page.log().count("\n") == 1 and "raise LimitNOFILE" in page.log()
    finally:
        page.end()


async def status(application: ASGIApp, *, token: str = TOKEN, user: str = "", follows: bool = False) -> int:
    """Return the status of an answer to a reader."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {token}".encode())]
    headers += [(b"x-remote-user", user.encode())] if user else []
    headers += [(FOLLOWS.encode(), b"1")] if follows else []
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": headers}
    await application(scope, _nothing, send)
    return int(sent[0]["status"])


def test_one_user_does_not_keep_the_others_waiting() -> None:
    async def run() -> None:
        go = asyncio.Event()

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            await go.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})

        access = Access(token=TOKEN, user_header="X-Remote-User")
        application = web_application._Admission(slow, access)
        many = [asyncio.create_task(status(application, user="eve")) for _ in range(MOST_READERS)]
        other = asyncio.create_task(status(application, user="bob"))
        while sum(task.done() for task in many) < MOST_READERS - MOST_OF_READER:
            await asyncio.sleep(0)
        go.set()
        assert sorted(await asyncio.gather(*many)) == [200] * MOST_OF_READER + [503] * (MOST_READERS - MOST_OF_READER)
        assert await other == 200 and await status(application, user="eve") == 200

    asyncio.run(run())


def test_sixty_four_tabs_that_follow_keep_nobody_waiting() -> None:
    async def run() -> None:
        go = asyncio.Event()

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            await go.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})

        application = web_application._Admission(slow, Access(token=TOKEN, user_header="X-Remote-User"))
        users = [f"user{number % 8}" for number in range(64)]
        tabs = [asyncio.create_task(status(application, user=user, follows=True)) for user in users]
        while sum(task.done() for task in tabs) < 64 - web_application.MOST_FOLLOWERS:
            await asyncio.sleep(0)
        other = asyncio.create_task(status(application, user="bob"))
        while not other.done() and application._readers <= web_application.MOST_FOLLOWERS:
            await asyncio.sleep(0)
        go.set()
        assert await other == 200
        assert sorted(await asyncio.gather(*tabs)) == [200] * 32 + [503] * 32

    asyncio.run(run())


def test_few_readers_are_answered_at_once_and_strangers_do_not_wait() -> None:
    async def run() -> None:
        go, at_once = asyncio.Event(), []

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            at_once.append(1)
            await go.wait()
            at_once.pop()
            await send({"type": "http.response.start", "status": 200, "headers": []})

        application = web_application._Admission(slow, Access(token=TOKEN))
        readers = [asyncio.create_task(status(application)) for _ in range(MOST_READERS)]
        while len(at_once) < web_application.ANSWERED_AT_ONCE:
            await asyncio.sleep(0)
        assert await status(application, token="another token of a test") == 401
        assert await status(application) == 503
        assert len(at_once) == web_application.ANSWERED_AT_ONCE
        go.set()
        assert set(await asyncio.gather(*readers)) == {200}

    asyncio.run(run())


async def _nothing() -> Any:
    raise AssertionError("nothing reads a body")
