"""Socket on which the daemon explains jobs, and its client.

``helios why`` asks here first: the daemon has imported the libraries and learned the history, which takes a process of
its own seconds of CPU time. It is a Unix socket in the state folder, and answers only root and the daemon's account.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from socketserver import StreamRequestHandler, UnixStreamServer
from threading import Thread
from typing import Any

from helios import __version__
from helios.config import Settings
from helios.errors import HeliosError, UsageError
from helios.private_files import OWN

NAME = "explain.sock"
ANSWER_S = 20.0
"""Longest wait for an answer, s. A forecast far down a long queue takes two on a free core; others may ask before."""
REQUEST_S = 2.0
"""Longest time that a client may take to send its request or to read, s, since one is answered after the other."""
MOST_WAITING = 128
"""Clients that wait for their turn, at most. By default it is 5, and one more is refused at once."""
LONGEST_REQUEST, LONGEST_ANSWER = 2**12, 2**24
"""Most bytes of each. An audit entry has some hundred bytes, and a job has one in a cycle at most."""
_CREDENTIALS = struct.Struct("3i")
"""pid, uid and gid of the peer, as SO_PEERCRED gives them (socket(7))."""

_log = logging.getLogger("helios.daemon.explain")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAnswer:
    """What is known of a job, as it is printed.

    Attributes
    ----------
    values : Any
        Plain values, for JSON.
    lines : tuple of str
        Sentences.
    """

    values: Any
    lines: tuple[str, ...]


Explain = Callable[[str, "str | None"], JobAnswer]
"""Function that explains a job, given its id and the cluster it must be of."""


def ask_daemon(settings: Settings, job_id: str, *, cluster: str | None) -> JobAnswer | str:
    """Return the daemon's explanation of a job.

    Where there is none return why, for a person. That is empty where no daemon listens or this account may not ask.

    Raises
    ------
    UsageError
        There is no such job, as the daemon says.
    """
    folder = Path(settings.control.state_folder)
    request = {"about": _fingerprint(settings), "cluster": cluster, "job_id": job_id}
    try:
        with _reachable(folder) as path, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(ANSWER_S)
            connection.connect(path)
            # In a folder that others can write, it could be anybody's.
            if _peer(connection) not in {os.geteuid(), folder.stat().st_uid}:
                return "the socket in the state folder is of another account"
            connection.sendall(json.dumps(request).encode() + b"\n")
            reply = json.loads(_read_all(connection))
        if misuse := reply.get("misuse"):
            raise UsageError(str(misuse["message"]), hint=str(misuse["hint"]))
        if why_not := reply.get("why_not"):
            return str(why_not)
        return JobAnswer(values=reply["values"], lines=tuple(map(str, reply["lines"])))
    except (FileNotFoundError, ConnectionRefusedError, PermissionError):
        return ""
    except OSError as reason:
        return f"the daemon did not answer: {reason}"
    except (ValueError, TypeError, KeyError, AttributeError):
        return "the daemon's answer cannot be read"


class ExplainServer:
    """Server of explanations, in a thread of its own.

    Only the daemon that holds the lock of the state folder may start it: it replaces a socket that is left over.

    Parameters
    ----------
    settings : Settings
        Those of the daemon. Requests under others are refused.
    explain : callable
        Is called by one thread only.

    Raises
    ------
    OSError
        The socket cannot be made.
    """

    def __init__(self, settings: Settings, explain: Explain) -> None:
        self._folder = Path(settings.control.state_folder)
        with suppress(FileNotFoundError):
            (self._folder / NAME).unlink()
        with _reachable(self._folder) as path:
            self._server = _Server(path, fingerprint=_fingerprint(settings), explain=explain)
        Thread(target=self._serve, name="explain", daemon=True).start()

    def close(self) -> None:
        """Take no more requests, without waiting for the answer that is being made."""
        with suppress(OSError):
            (self._folder / NAME).unlink()
        Thread(target=self._server.shutdown, daemon=True).start()

    def _serve(self) -> None:
        with self._server:
            self._server.serve_forever()


class _Server(UnixStreamServer):
    request_queue_size = MOST_WAITING

    def __init__(self, path: str, *, fingerprint: str, explain: Explain) -> None:
        self._fingerprint, self._explain = fingerprint, explain
        super().__init__(path, _Handler)

    def server_bind(self) -> None:
        os.fchmod(self.socket.fileno(), OWN)  # Linux gives this mode to the file, with no moment in between
        super().server_bind()

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002 - socketserver's names
        return _peer(request) in {0, os.geteuid()}

    def reply(self, line: bytes) -> dict[str, Any]:
        """Return the reply to a request as plain values."""
        try:
            request = json.loads(line)
            if request["about"] != self._fingerprint:
                return {"why_not": "the daemon is of another version, or has other settings"}
            answer = self._explain(str(request["job_id"]), request["cluster"])
        except UsageError as misuse:  # such as an unknown job
            return {"misuse": {"message": misuse.message, "hint": misuse.hint}}
        except HeliosError as reason:
            return {"why_not": f"the daemon could not tell: {reason.message}"}
        except Exception as defect:  # the daemon goes on, and who asks works it out there
            _log.exception("a job could not be explained")
            return {"why_not": f"the daemon failed ({type(defect).__name__}: {defect})"}
        return {"values": answer.values, "lines": answer.lines}

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 - socketserver's names
        _log.debug("a client was not answered", exc_info=True)


class _Handler(StreamRequestHandler):
    timeout = REQUEST_S
    server: _Server

    def handle(self) -> None:
        # Slow clients end by the timeout of one read: the request is one line, which is sent at once.
        reply = self.server.reply(self.rfile.readline(LONGEST_REQUEST))
        self.wfile.write(json.dumps(reply, allow_nan=False, default=str).encode())


@contextmanager
def _reachable(folder: Path) -> Iterator[str]:
    """Yield a short path of the socket, since unix(7) allows 107 bytes."""
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}/{NAME}"
    finally:
        os.close(handle)


def _read_all(connection: socket.socket) -> bytes:
    ends_s, parts, size = time.monotonic() + ANSWER_S, [], 0
    while part := connection.recv(2**16):
        parts.append(part)
        size += len(part)
        if size > LONGEST_ANSWER:
            raise ValueError
        connection.settimeout(max(ends_s - time.monotonic(), 0.001))
    return b"".join(parts)


def _peer(connection: socket.socket) -> int:
    """Return the user id of the process at the other end."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(found)[1])


def _fingerprint(settings: Settings) -> str:
    """Return a digest of release, settings and cluster."""
    chosen = settings.model_dump_json(exclude={"daemon", "notify", "report", "web"})
    # Slurm's commands find their cluster by SLURM_CONF.
    known = (__version__, chosen, os.environ.get("SLURM_CONF", ""))
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()
