"""Accept HTTP connections within bounds, for the page and for the metrics.

uvicorn bounds requests and http.server nothing: whoever opens thousands of connections that send nothing takes every
descriptor of a process. Here each connection has one request, little time for its header, and the oldest slow one goes
when there are too many.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import socket
import struct
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

MOST_CONNECTIONS = 384
"""Connections at once. By default a process has 1,024 descriptors, and needs some of them for its work."""
MOST_OF_ADDRESS = 256
"""Connections at once of one remote address. Behind a proxy all readers have one."""
HEADER_S = 5.0
"""Time for a complete header, s. An honest reader sends it at once."""
MOST_HEADER_BYTES = 16_384
BACKLOG = 4_096
"""Connections that wait in the kernel, at most net.core.somaxconn. Where it is full, a reader tries for seconds."""
ACCEPTED_AT_ONCE = 64
"""Connections accepted at once. So that others can be read in between, few of MOST_OF_ADDRESS."""
PAUSE_S = 0.01
"""Pause after that many, s. Of 6,400 a second on one address, each has 40 ms to send its header before it is ended."""
FULL_PAUSE_S = 0.5
"""Pause where no descriptor is left and no connection can be ended, s."""
CHECK_S = 0.5
"""Time between looks for connections whose time is over, s."""
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of a process or machine that has nothing left for another connection."""
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER by which closing leaves nothing of a connection in the kernel, even if its client keeps it open."""

_HEADER_END = re.compile(rb"\n\r?\n")
_log = logging.getLogger("helios.listener")


@dataclass(slots=True, eq=False, kw_only=True)
class ClientConnection:
    """An open connection.

    Attributes
    ----------
    stream : socket
    address : str
        Of the client, without port.
    end_s : float
        When it is ended, by the clock of the event loop.
    received : bytearray
        What has been read. When the header is complete, nothing is after it.
    answer : Task or None
        The answer that is being made and sent.
    """

    stream: socket.socket
    address: str
    end_s: float
    received: bytearray = field(default_factory=bytearray)
    answer: asyncio.Task[None] | None = None


class Listener:
    """Accept connections, read a header of each, and have it answered.

    Parameters
    ----------
    listening : socket
        It is bound, and not used by anybody else.
    answer : callable
        Coroutine function that answers a connection with a complete header. The listener closes it afterwards.
    loop : event loop
        All methods are called in its thread.
    """

    def __init__(
        self,
        listening: socket.socket,
        answer: Callable[[ClientConnection], Awaitable[None]],
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._listening, self._answer, self._loop = listening, answer, loop
        self._endable: OrderedDict[ClientConnection, None] = OrderedDict()  # the oldest first
        self._held: set[ClientConnection] = set()
        self._of_address: Counter[str] = Counter()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._warned = False

    def open(self) -> None:
        """Begin to accept connections."""
        self._listening.setblocking(False)
        self._listening.listen(BACKLOG)
        self._check()
        self._resume()

    async def close(self) -> None:
        """End all connections, and listen no more."""
        self._loop.remove_reader(self._listening)
        for timer in self._timers.values():
            timer.cancel()
        answers = [connection.answer for connection in (*self._endable, *self._held) if connection.answer is not None]
        for connection in (*self._endable, *self._held):
            self._end(connection)
        await asyncio.gather(*answers, return_exceptions=True)
        self._listening.close()

    def hold(self, connection: ClientConnection, *, within_s: float) -> None:
        """Keep a connection however many others come, until its time is over."""
        if connection in self._endable:
            del self._endable[connection]
            self._held.add(connection)
            connection.end_s = self._loop.time() + within_s

    def _resume(self) -> None:
        self._loop.add_reader(self._listening, self._accept)

    def _pause(self, pause_s: float) -> None:
        self._loop.remove_reader(self._listening)
        self._timers["accept"] = self._loop.call_later(pause_s, self._resume)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                stream, address = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as reason:
                if reason.errno not in EXHAUSTED:
                    continue  # what befell the new connection, says accept(2)
                self._make_room(reason)
                return
            stream.setblocking(False)
            self._admit(stream, str(address[0]))
        self._pause(PAUSE_S)

    def _make_room(self, reason: OSError) -> None:
        """End many slow connections, as the process needs descriptors for its work, too."""
        if not self._warned:
            _log.error("no connection can be accepted: %s. What to do: raise LimitNOFILE", reason.strerror)
        self._warned = True
        ended = [self._end_oldest(None) for _ in range(ACCEPTED_AT_ONCE)]
        self._pause(PAUSE_S if any(ended) else FULL_PAUSE_S)

    def _admit(self, stream: socket.socket, address: str) -> None:
        is_full = len(self._endable) + len(self._held) >= MOST_CONNECTIONS
        connection = ClientConnection(stream=stream, address=address, end_s=self._loop.time() + HEADER_S)
        if self._of_address[address] >= MOST_OF_ADDRESS:
            is_full = not self._end_oldest(address)
        elif is_full:
            is_full = not self._end_oldest(None)
        if is_full:
            self._end(connection)
            return
        self._endable[connection] = None
        self._of_address[address] += 1
        self._read(connection)  # it is mostly there already: whoever sends it at once is never ended unread
        if connection in self._endable and connection.answer is None:
            self._loop.add_reader(stream, self._read, connection)

    def _end_oldest(self, address: str | None) -> bool:
        """End the oldest connection that may be ended, if any."""
        oldest = next((it for it in self._endable if address in {None, it.address}), None)
        if oldest is not None:
            self._end(oldest)
        return oldest is not None

    def _read(self, connection: ClientConnection) -> None:
        try:
            data = connection.stream.recv(MOST_HEADER_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        connection.received += data
        end = _HEADER_END.search(connection.received)
        if end is not None:
            # Nothing here reads a body, and what comes after this request would not be answered.
            del connection.received[end.end() :]
            self._loop.remove_reader(connection.stream)
            connection.answer = self._loop.create_task(self._answer_one(connection))
            connection.answer.add_done_callback(lambda _: self._close(connection))  # also if it never began
        elif not data or len(connection.received) > MOST_HEADER_BYTES:
            self._end(connection)

    async def _answer_one(self, connection: ClientConnection) -> None:
        with suppress(OSError):  # the client went away
            await self._answer(connection)

    def _check(self) -> None:
        self._timers["check"] = self._loop.call_later(CHECK_S, self._check)
        for connection in [it for it in (*self._endable, *self._held) if it.end_s <= self._loop.time()]:
            self._end(connection)

    def _end(self, connection: ClientConnection) -> None:
        """End a connection in the middle of whatever it does."""
        self._forget(connection)
        with suppress(OSError):
            connection.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        if connection.answer is not None:
            connection.answer.cancel()
        else:
            self._loop.remove_reader(connection.stream)
            self._close(connection)

    def _close(self, connection: ClientConnection) -> None:
        self._forget(connection)
        connection.stream.close()

    def _forget(self, connection: ClientConnection) -> None:
        if connection not in self._endable and connection not in self._held:
            return
        self._endable.pop(connection, None)
        self._held.discard(connection)
        self._of_address[connection.address] -= 1
        if not self._of_address[connection.address]:
            del self._of_address[connection.address]
