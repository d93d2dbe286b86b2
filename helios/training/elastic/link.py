"""Messages between the launcher and its workers, and lines of reports.

The launcher leads: a worker that has come to a boundary says where it stands, and is told with whom to go on. So what
a group consists of is decided in one place, which no worker's death concerns.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

LINK = "HELIOS_ELASTIC_LINK"
"""Variable with the worker's end of the connection, a file descriptor."""
Message = dict[str, Any]


class Lines:
    """Messages over a connection, one JSON object a line."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._rest = b""

    def send(self, **message: Any) -> None:
        """Send a message, which is lost where the process has ended."""
        with suppress(OSError):  # its end is seen elsewhere
            self.connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[Message] | None:
        """Return messages that have come, or None at the other side's end."""
        try:
            read = self.connection.recv(1 << 16)
        except OSError:
            read = b""
        if not read:
            return None
        *lines, self._rest = (self._rest + read).split(b"\n")
        return [json.loads(line) for line in lines]


class Link:
    """A worker's connection to its launcher.

    Attributes
    ----------
    meeting : bool
        Whether the launcher asks for a boundary. Only the first worker heeds it, so that all come to the same one.
    on_lost : callable
        Called in another thread when another worker has ended.
    """

    def __init__(self, lines: Lines) -> None:
        self.meeting = False
        self.on_lost: Callable[[], None] = lambda: None
        self._lines = lines
        self._answers: queue.SimpleQueue[Message] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    @classmethod
    def open(cls) -> Link | None:
        """Return the connection to the launcher, or None without one."""
        handle = os.environ.pop(LINK, None)
        if handle is None:
            return None
        os.set_inheritable(int(handle), False)
        return cls(Lines(socket.socket(fileno=int(handle))))

    def send(self, **message: Any) -> None:
        """Tell the launcher."""
        self._lines.send(**message)

    def meet(self, **message: Any) -> Message:
        """Tell the launcher, and wait for what it decides."""
        self.meeting = False
        self._lines.send(**message)
        return self._answers.get()

    def _listen(self) -> None:
        while (messages := self._lines.receive()) is not None:
            for message in messages:
                if "meet" in message:
                    self.meeting = True
                elif "lost" in message:
                    self.on_lost()
                else:
                    self._answers.put(message)
        os._exit(1)  # without the launcher nobody could tell the workers of each other


def write_report(**fields: Any) -> None:
    """Append a line to the report file, where one is."""
    path = os.environ.get("HELIOS_REPORT")
    if not path:
        return
    line = json.dumps({**fields, "time_s": round(time.time(), 3)}).encode() + b"\n"
    try:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, line)
        finally:
            os.close(handle)
    except OSError as reason:
        print(f"A report cannot be written: {reason}", file=sys.stderr)  # noqa: T201 - the log
