"""A conversation with the pyslurm worker: its process, its pipes, and the lines of JSON that pass through them.

What the lines mean is ``binding.py``'s; here is only who is listening, for how long, and how it ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any, cast

from helios.errors import AnswerNotUnderstood, ClusterRefused, ClusterUnavailable

PROTOCOL = 1
REMEDY = 'Set [slurm] python to a Python that has pyslurm, or [slurm] backend = "commands" to do without it.'

_LONGEST_ANSWER = 1 << 30
"""Bytes of one answer; 50,000 jobs are 40 MB. More is not an answer."""
_LONGEST_TAIL = 500
"""Bytes of the worker's standard error that an error repeats."""
_GOODBYE_S = 2.0
"""How long a worker may take to end by itself."""


class WorkerLost(ClusterUnavailable):
    """The worker ended, or was killed because it did not answer in time.

    Parameters
    ----------
    died : bool
        It ended by itself or by somebody else's hand; False: it was too slow, and so will be the next.
    """

    def __init__(self, fact: str, *, died: bool) -> None:
        super().__init__(fact, remedy=REMEDY)
        self.died = died


class Worker:
    """A started worker and the pipes to it."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str] | None, source: bytes) -> None:
        self.python = ""
        self._source = source
        self._rest = b""
        self._complaint = b""
        bootstrap = f"import sys; exec(compile(sys.stdin.buffer.read({len(source)}), 'helios-worker', 'exec'))"
        try:
            self._process = subprocess.Popen(
                [*argv, "-c", bootstrap],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=None if environment is None else dict(environment),
                cwd="/",  # python -c imports from the current folder first
                start_new_session=True,
            )
        except OSError as reason:
            raise ClusterUnavailable(
                f"The Python {argv[0]!r} for pyslurm cannot be started: {reason}", remedy=REMEDY
            ) from reason
        self._selector = selectors.DefaultSelector()
        for pipe in (self._process.stdout, self._process.stderr):
            self._selector.register(cast(IO[bytes], pipe), selectors.EVENT_READ)

    @property
    def pid(self) -> int:
        """The process id; of the prefix, where there is one that stays."""
        return self._process.pid

    def greet(self, *, within_s: float) -> None:
        """Hand in the source, and hear who answers."""
        self._send(self._source)
        greeting = self.hear(within_s=within_s)
        if greeting.get("protocol") != PROTOCOL:
            raise ClusterRefused(
                f"The pyslurm worker speaks protocol {greeting.get('protocol')!r}, Helios speaks {PROTOCOL}.",
                remedy=REMEDY,
            )
        self.python = str(greeting.get("python"))
        try:
            error = self.hear(within_s=within_s).get("error")
        except WorkerLost as reason:
            raise _lost_in_import(reason) from reason
        if error:
            raise ClusterRefused(f"Python {self.python} has no usable pyslurm: {error.get('message')}", remedy=REMEDY)

    def say(self, request: Mapping[str, Any]) -> None:
        """Send one request."""
        self._send(json.dumps(request).encode("ascii") + b"\n")

    def hear(self, *, within_s: float) -> dict[str, Any]:
        """Return the next line.

        Raises
        ------
        WorkerLost
            None came within ``within_s``, or the worker ended.
        AnswerNotUnderstood
            It is not a JSON object.
        """
        line = self._line(time.monotonic() + within_s, within_s)
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError) as reason:
            raise AnswerNotUnderstood(f"The pyslurm worker said what is not JSON: {line[:80]!r}") from reason
        if not isinstance(answer, dict):
            raise AnswerNotUnderstood(f"The pyslurm worker said what is no answer: {line[:80]!r}")
        return answer

    def ended(self) -> str:
        """Say how the worker ended; empty: it runs."""
        status = self._process.poll()
        if status is None:
            return ""
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"The pyslurm worker {how}{self._said()}."

    def end(self) -> None:
        """Let the worker end by itself, or else kill it."""
        with contextlib.suppress(OSError):
            cast(IO[bytes], self._process.stdin).close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GOODBYE_S)
        self.kill()

    def kill(self) -> None:
        """End the worker and what it started, and let go of its pipes."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._selector.close()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(OSError):
                cast(IO[bytes], pipe).close()

    def _send(self, text: bytes) -> None:
        try:
            cast(IO[bytes], self._process.stdin).write(text)  # far less than a pipe holds: it cannot block
        except OSError:
            raise self._lost() from None

    def _line(self, until: float, within_s: float) -> bytes:
        chunks, size = [self._rest], len(self._rest)
        while b"\n" not in chunks[-1]:
            chunks.append(self._more(until, within_s))
            size += len(chunks[-1])
            if size > _LONGEST_ANSWER:
                raise AnswerNotUnderstood(f"The pyslurm worker's answer is longer than {_LONGEST_ANSWER} bytes.")
        line, _, self._rest = b"".join(chunks).partition(b"\n")
        return line

    def _more(self, until: float, within_s: float) -> bytes:
        """Return more of standard output; keep the end of standard error."""
        while True:
            ready = self._selector.select(max(until - time.monotonic(), 0))
            if not ready:
                raise WorkerLost(f"The pyslurm worker did not answer within {within_s:g} s{self._said()}.", died=False)
            for key, _ in ready:
                text = os.read(key.fd, 1 << 20)
                if key.fileobj is self._process.stdout:
                    if not text:
                        raise self._lost()
                    return text
                if not text:
                    self._selector.unregister(key.fileobj)
                self._complaint = (self._complaint + text)[-_LONGEST_TAIL:]

    def _lost(self) -> WorkerLost:
        """Say how a worker ended whose pipes are closed."""
        with contextlib.suppress(OSError):
            os.set_blocking(cast(IO[bytes], self._process.stderr).fileno(), False)
            self._complaint = (self._complaint + (cast(IO[bytes], self._process.stderr).read() or b""))[-_LONGEST_TAIL:]
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GOODBYE_S)
        return WorkerLost(self.ended() or "The pyslurm worker closed its standard output.", died=True)

    def _said(self) -> str:
        text = " ".join(self._complaint.decode("utf-8", "replace").split())
        return f"; it said: {text}" if text else ""


def _lost_in_import(reason: WorkerLost) -> WorkerLost:
    return WorkerLost(
        f"{reason.fact} It was importing pyslurm, which waits a minute and then ends its process where slurm.conf"
        " cannot be read or reached.",
        died=reason.died,
    )
