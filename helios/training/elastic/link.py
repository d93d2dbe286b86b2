"""Messages between the launcher and its workers.

The launcher leads: a worker that has come to a boundary says where it stands, and is told with whom to go on. So what
a group consists of is decided in one place, which no worker's death concerns.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from typing import Any

LINK = "HELIOS_ELASTIC_LINK"
"""Variable with the worker's end of the connection, a file descriptor."""
TRIAL = ("HELIOS_REPORT", "HELIOS_REQUESTS")
"""What of the environment is the first worker's alone."""
BEAT_S = 2.0
"""Between two messages of a worker about what it does, s."""
OWN, PART, WAITS = "own", "part", "waits"
"""What a worker does: whatever a program does between two steps, a part of a step, or waiting for others."""
Message = dict[str, Any]


class Lines:
    """Messages over a connection, one JSON object a line."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._lock, self._rest = threading.Lock(), b""

    def send(self, **message: Any) -> None:
        """Send a message, which is lost where the process has ended."""
        with self._lock, suppress(OSError):  # its end is seen elsewhere
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
        self.send = lines.send
        self._lines, self._changes = lines, count()
        self._answers: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.note(PART)
        for run in (self._listen, self._beat):
            threading.Thread(target=run, daemon=True).start()

    @classmethod
    def open(cls) -> Link | None:
        """Return the connection to the launcher, or None without one."""
        handle = os.environ.pop(LINK, None)
        if handle is None:
            return None
        os.set_inheritable(int(handle), False)
        return cls(Lines(socket.socket(fileno=int(handle))))

    def note(self, doing: str) -> None:
        """Note what the worker does from now on."""
        self._doing = [doing, next(self._changes)]

    def meet(self, **message: Any) -> Message:
        """Tell the launcher, and wait for what it decides."""
        self.meeting = False
        self.note(WAITS)
        self.send(**message)
        return self._answers.get()

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT_S)
            self.send(doing=self._doing)

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


def find_difference(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """Return what differs first by its name, or nothing."""
    for name in sorted({*here, *there}):
        if here.get(name) != there.get(name):
            return f"{name} is {here.get(name, 'missing')} and not {there.get(name, 'missing')}"
    return ""
