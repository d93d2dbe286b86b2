"""Connections are accepted within bounds: slow ones go first, and those that ask at once are answered."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from threading import Thread

import pytest

from helios import listener
from helios.listener import ClientConnection, Listener
from tests.waiting import TEST_TIMEOUT_S, until

REQUEST = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"


class Served:
    """A listener in a thread, which answers each request with what it received."""

    def __init__(self, listening: socket.socket, *, held_s: float = 0.0) -> None:
        self.address = listening.getsockname()
        self._held_s = held_s
        self._clients = ExitStack()
        self.asked = 0
        self._loop = asyncio.new_event_loop()
        self.listener = Listener(listening, self._answer, loop=self._loop)
        self._thread = Thread(target=self._run)
        self._thread.start()

    async def _answer(self, connection: ClientConnection) -> None:
        self.asked += 1
        if self._held_s:
            self.listener.hold(connection, within_s=self._held_s)
            await asyncio.Event().wait()
        await self._loop.sock_sendall(connection.stream, bytes(connection.received))

    def _run(self) -> None:
        self.listener.open()
        self._loop.run_forever()
        self._loop.run_until_complete(self.listener.close())
        self._loop.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._clients.close()

    def connect(self, address: str = "127.0.0.1") -> socket.socket:
        client = socket.create_connection(self.address, TEST_TIMEOUT_S, source_address=(address, 0))
        return self._clients.enter_context(client)

    def ask(self, address: str = "127.0.0.1") -> bytes:
        with suppress(ConnectionError):  # one that is refused may end before it is made, or has sent anything
            client = self.connect(address)
            client.sendall(REQUEST)
            return received(client)
        return b""


def received(client: socket.socket) -> bytes:
    """Return everything until a connection ends, however it ends."""
    text = b""
    try:
        while data := client.recv(65_536):
            text += data
    except ConnectionError:
        pass
    return text


def is_open(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


@contextmanager
def served(listening: socket.socket | None = None, *, held_s: float = 0.0) -> Iterator[Served]:
    made = Served(listening or socket.create_server(("127.0.0.1", 0)), held_s=held_s)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HEADER_S", 2 * TEST_TIMEOUT_S)  # no machine is so slow that it ends here


def test_a_request_is_answered_and_its_connection_closed() -> None:
    with served() as server:
        assert server.ask() == REQUEST


def test_a_request_that_comes_in_parts_is_answered() -> None:
    with served() as server:
        client = server.connect()
        for part in (REQUEST[:7], REQUEST[7:-1], REQUEST[-1:]):
            client.sendall(part)
        assert received(client) == REQUEST


def test_what_follows_a_header_is_not_read_as_another_request() -> None:
    with served() as server:
        client = server.connect()
        client.sendall(REQUEST + REQUEST)
        assert received(client) in {REQUEST, b""}  # the client is told that it was not read
        until(lambda: server.asked == 1)


def test_a_reader_is_answered_however_many_say_nothing() -> None:
    with served() as server:
        for _ in range(listener.MOST_CONNECTIONS + 100):
            server.connect()
        assert server.ask() == REQUEST


def test_the_oldest_slow_connection_of_an_address_goes_first() -> None:
    with served() as server:
        clients = [server.connect() for _ in range(listener.MOST_OF_ADDRESS + 3)]
        assert [received(client) for client in clients[:3]] == [b""] * 3
        assert all(is_open(client) for client in clients[3:])


def test_an_address_cannot_have_another_one_s_connection_ended() -> None:
    with served() as server:
        other = server.connect("127.0.0.2")
        clients = [server.connect() for _ in range(2 * listener.MOST_CONNECTIONS)]
        assert received(clients[0]) == b""
        other.sendall(REQUEST)
        assert received(other) == REQUEST


def test_many_addresses_have_no_more_than_all_may_have() -> None:
    with served() as server:
        clients = [server.connect(f"127.0.1.{number % 200 + 1}") for number in range(listener.MOST_CONNECTIONS + 9)]
        assert [received(client) for client in clients[:9]] == [b""] * 9
        assert all(is_open(client) for client in clients[9:])
        assert server.ask() == REQUEST


def test_a_header_that_comes_byte_by_byte_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HEADER_S", 0.2)
    with served() as server:
        client = server.connect()
        client.settimeout(0.02)

        def is_ended() -> bool:
            try:
                client.sendall(b"X")
                return client.recv(1) == b""
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        until(is_ended)


def test_a_header_that_is_too_long_ends_the_connection() -> None:
    with served() as server:
        client = server.connect()
        client.sendall(b"X" * (listener.MOST_HEADER_BYTES + 1))
        assert received(client) == b""


def test_an_answer_that_is_held_stays_however_many_come() -> None:
    with served(held_s=2 * TEST_TIMEOUT_S) as server:
        reader = server.connect()
        reader.sendall(REQUEST)
        until(lambda: server.asked)
        slow = [server.connect() for _ in range(listener.MOST_CONNECTIONS)]
        assert received(slow[0]) == b""
        assert is_open(reader)


def test_an_answer_that_is_not_read_in_time_is_ended() -> None:
    with served(held_s=0.2) as server:
        assert server.ask() == b""


def test_where_all_are_held_a_new_connection_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MOST_CONNECTIONS", 3)
    with served(held_s=2 * TEST_TIMEOUT_S) as server:
        for number in range(3):
            server.connect().sendall(REQUEST)
            until(lambda number=number: server.asked == number + 1)  # type: ignore[misc]
        assert server.ask() == b""
        assert server.asked == 3


class Exhausted(socket.socket):
    """A socket of a process that has no descriptor left for a while."""

    refused = 0

    def accept(self) -> tuple[socket.socket, object]:
        if self.refused < 3:
            self.refused += 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_a_process_without_descriptors_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "FULL_PAUSE_S", 0.02)
    listening = Exhausted()
    listening.bind(("127.0.0.1", 0))
    with served(listening) as server:
        listening.listen()
        assert server.ask() == REQUEST
    assert listening.refused == 3
    assert [record.getMessage() for record in caplog.records] == [
        "no connection can be accepted: Too many open files. What to do: raise LimitNOFILE"
    ]
