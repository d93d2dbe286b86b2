"""Backend that uses pyslurm in a worker process.

It is a separate process because pyslurm's library can end, hang or crash a process.

The worker is ``pyslurm_worker.py``, run by whatever Python has pyslurm. Its source goes in through standard input, so
that it need not be visible where that Python runs (a chroot, a container). A request is one line of JSON with a time
limit. A worker that exceeds it is killed, and one that ended is started again with growing pauses. A change is one
request: a worker killed at any moment leaves at most one change whose result is unknown, and its answer says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self, cast, get_args, get_type_hints

from helios.errors import AnswerNotUnderstood, ClusterRefused, ClusterUnavailable, HeliosError
from helios.slurm.backend import Backend, JobUpdate, NodeUpdate, RawJob, RawNode, check_records, write_in_batches
from helios.slurm.parse import release
from helios.slurm.pyslurm_worker import PROTOCOL

HINT = 'Set [slurm] python to a Python that has pyslurm, or [slurm] backend = "commands" to do without it.'

_LONGEST_ANSWER = 1 << 30
"""Most bytes of one answer. 50,000 jobs are 40 MB."""
_LONGEST_TAIL = 500
"""Bytes of the worker's standard error that an error message repeats."""
_EXIT_WAIT_S = 2.0
"""How long a worker may take to end by itself."""

SOURCE = "the pyslurm worker"
WORKER = Path(__file__).with_name("pyslurm_worker.py")
NOT_KNOWN = "not known whether it was changed"
NOT_SENT = "not sent"

_WRITES = ("change", "change_nodes")
_LONGEST_PAUSE_S = 60.0
_DEATHS_PER_CALL = 3
"""Deaths in one call after which the remaining requests are not sent, since the fault is not that of one job."""


class WorkerLost(ClusterUnavailable):
    """The worker ended, or was killed after its time limit.

    Parameters
    ----------
    died : bool
        True if it ended by itself or somebody killed it. False if it was too slow, as the next one will be.
    """

    def __init__(self, message: str, *, died: bool) -> None:
        super().__init__(message, hint=HINT)
        self.died = died


class Worker:
    """A running worker process and the pipes to it."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str] | None, source: bytes) -> None:
        self.python = ""
        self._source = source
        self._rest = b""
        self._stderr_tail = b""
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
                f"The Python {argv[0]!r} for pyslurm cannot be started: {reason}", hint=HINT
            ) from reason
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._pipes = self._input, self._output, self._errors = tuple(cast(IO[bytes], pipe) for pipe in pipes)
        self._selector = selectors.DefaultSelector()
        for pipe in (self._output, self._errors):
            self._selector.register(pipe, selectors.EVENT_READ)

    @property
    def pid(self) -> int:
        """The process id of the worker, or of the program before it.

        A program in ``[slurm] python`` before the interpreter, such as a container runtime, may stay as the parent.
        """
        return self._process.pid

    def handshake(self, *, within_s: float) -> None:
        """Send the worker's source, and check its greeting."""
        self._send(self._source)
        greeting = self.receive(within_s=within_s)
        if greeting.get("protocol") != PROTOCOL:
            raise ClusterRefused(
                f"The pyslurm worker speaks protocol {greeting.get('protocol')!r}, Helios speaks {PROTOCOL}.",
                hint=HINT,
            )
        self.python = str(greeting.get("python"))
        try:
            error = self.receive(within_s=within_s).get("error")
        except WorkerLost as reason:
            raise WorkerLost(
                f"{reason.message} It was importing pyslurm, which waits a minute and then ends its process where"
                " slurm.conf cannot be read or reached.",
                died=reason.died,
            ) from reason
        if error:
            raise ClusterRefused(f"Python {self.python} has no usable pyslurm: {error.get('message')}", hint=HINT)

    def send(self, request: Mapping[str, Any]) -> None:
        """Send one request."""
        self._send(json.dumps(request).encode("ascii") + b"\n")

    def receive(self, *, within_s: float) -> dict[str, Any]:
        """Return the worker's next line, parsed.

        Raises
        ------
        WorkerLost
            No line came within ``within_s``, or the worker ended.
        AnswerNotUnderstood
            It is not a JSON object.
        """
        until = time.monotonic() + within_s
        chunks, size = [self._rest], len(self._rest)
        while b"\n" not in chunks[-1]:
            chunks.append(self._read_more(until, within_s))
            size += len(chunks[-1])
            if size > _LONGEST_ANSWER:
                raise AnswerNotUnderstood(f"The pyslurm worker's answer is longer than {_LONGEST_ANSWER} bytes.")
        line, _, self._rest = b"".join(chunks).partition(b"\n")
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError) as reason:
            raise AnswerNotUnderstood(f"The pyslurm worker said what is not JSON: {line[:80]!r}") from reason
        if not isinstance(answer, dict):
            raise AnswerNotUnderstood(f"The pyslurm worker said what is no answer: {line[:80]!r}")
        return answer

    def exit_text(self) -> str:
        """Return how the worker ended, or an empty text while it runs."""
        status = self._process.poll()
        if status is None:
            return ""
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"The pyslurm worker {how}{self._error_output()}."

    def end(self) -> None:
        """End the worker, and kill it if it does not end."""
        with contextlib.suppress(OSError):
            self._input.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_WAIT_S)
        self.kill()

    def kill(self) -> None:
        """Kill the worker's process group and close its pipes."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._selector.close()
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.close()

    def _send(self, text: bytes) -> None:
        try:
            self._input.write(text)  # far less than a pipe holds: it cannot block
        except OSError:
            raise self._lost_error() from None

    def _read_more(self, until: float, within_s: float) -> bytes:
        """Read more of the worker's standard output.

        The end of its standard error is kept for error messages.
        """
        while True:
            ready = self._selector.select(max(until - time.monotonic(), 0))
            if not ready:
                raise WorkerLost(
                    f"The pyslurm worker did not answer within {within_s:g} s{self._error_output()}.", died=False
                )
            for key, _ in ready:
                text = os.read(key.fd, 1 << 20)
                if key.fileobj is self._output:
                    if not text:
                        raise self._lost_error()
                    return text
                if not text:
                    self._selector.unregister(key.fileobj)
                self._stderr_tail = (self._stderr_tail + text)[-_LONGEST_TAIL:]

    def _lost_error(self) -> WorkerLost:
        """Return the error about a worker whose pipes are closed."""
        with contextlib.suppress(OSError):
            os.set_blocking(self._errors.fileno(), False)
            self._stderr_tail = (self._stderr_tail + (self._errors.read() or b""))[-_LONGEST_TAIL:]
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_WAIT_S)
        return WorkerLost(self.exit_text() or "The pyslurm worker closed its standard output.", died=True)

    def _error_output(self) -> str:
        text = " ".join(self._stderr_tail.decode("utf-8", "replace").split())
        return f"; it said: {text}" if text else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """Versions of the worker and of the controller.

    Attributes
    ----------
    python, pyslurm : str
        Versions in the worker.
    library : str or None
        Release of Slurm's library in the worker, such as ``25.11``. None where the library does not tell it.
    controller : str or None
        Version of the controller, such as ``25.11.2``. None where it did not answer.
    """

    python: str
    pyslurm: str
    library: str | None
    controller: str | None

    @property
    def agree(self) -> bool:
        """Whether pyslurm, its library and the controller are of one release X.Y."""
        releases = {release(version) for version in (self.pyslurm, self.library, self.controller) if version}
        return self.controller is not None and len(releases) == 1

    def __str__(self) -> str:
        controller = f"a controller of Slurm {self.controller}" if self.controller else "a controller that is silent"
        return f"pyslurm {self.pyslurm} (Python {self.python}, library {self.library or 'unknown'}) with {controller}"


class PyslurmBackend(Backend):
    """``Backend`` over pyslurm.

    The worker starts with the first call. Calls from several threads wait for each other.

    Parameters
    ----------
    python : str
        The Python that has pyslurm, with any command before it, such as ``chroot /srv/slurm /usr/bin/python3``. Empty
        for the one that runs Helios.
    timeout_s : float
        Longest wait for one answer, and for all answers of one :meth:`change`, s.
    environment : mapping, optional
        The worker's environment; None for that of this process.
    clock : callable
        Returns monotonic time, s, for the pauses between restarts.
    worker : str
        Source of the worker; empty for Helios' own.
    """

    name = "pyslurm"

    def __init__(
        self,
        *,
        python: str = "",
        timeout_s: float = 30.0,
        environment: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        worker: str = "",
    ) -> None:
        self.argv = shlex.split(python) or [sys.executable]
        self.timeout_s = timeout_s
        self._environment = environment
        self._source = (worker or WORKER.read_text(encoding="utf-8")).encode()
        self._clock = clock
        self._lock = threading.RLock()
        self._worker: Worker | None = None
        self._requests = 0
        self._failures = 0
        self._not_before = 0.0
        self._why = ""

    @property
    def worker_pid(self) -> int | None:
        """Process id of the running worker, or None."""
        return self._worker.pid if self._worker else None

    def versions(self) -> Versions:
        """Return the versions that must agree, and the controller's current one.

        Raises
        ------
        ClusterUnavailable
            The worker cannot be started, ends, or does not answer in time.
        ClusterRefused
            The Python has no usable pyslurm, or the worker speaks another protocol.
        """
        answer = self._read("versions")
        python = self._worker.python if self._worker else ""
        try:
            versions = Versions(python=python, **answer)
            _ = versions.agree  # parses them
            return versions
        except TypeError as reason:
            raise AnswerNotUnderstood(f"The pyslurm worker's versions make no sense: {answer!r:.200}") from reason

    def queue(self, job_ids: Sequence[str] = ()) -> list[RawJob]:
        """Return the records of all jobs that have not ended."""
        jobs = cast(list[RawJob], _records(self._read("queue", job_ids=list(job_ids)), RawJob))
        return check_records(jobs, by="job_id", source=SOURCE)

    def nodes(self) -> list[RawNode]:
        """Return all nodes."""
        nodes = cast(list[RawNode], _records(self._read("nodes"), RawNode))
        return check_records(nodes, by="name", source=SOURCE)

    def configuration(self) -> dict[str, str]:
        """Return the settings that the worker knows, as ``scontrol show config``."""
        found = self._read("configuration")
        if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
            raise AnswerNotUnderstood(f"{SOURCE} printed a configuration that is none: {found!r:.200}")
        return cast(dict[str, str], found)

    def change(self, changes: Sequence[JobUpdate]) -> list[str]:
        """Write the changes one after the other.

        If the worker dies of one of them, the others are still written.
        """
        return self._send_each(
            "change", [{"job_id": it.job_id, "site_factor": it.site_factor, "time_min": it.time_min} for it in changes]
        )

    def change_nodes(self, changes: Sequence[NodeUpdate]) -> list[str]:
        """Write the changes of nodes, equal ones in one request.

        If the worker dies of one request, the others are still written.
        """
        return write_in_batches(
            changes,
            lambda batches: self._send_each(
                "change_nodes", [{"nodes": it.node, "state": it.state, "weight": it.weight} for it in batches]
            ),
        )

    def _send_each(self, call: str, requests: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return the answers to requests that change something, in order."""
        until = time.monotonic() + self.timeout_s
        answers: list[str] = []
        deaths = 0
        with self._lock:
            for arguments in requests:
                try:
                    answers.append(self._write(call, arguments, until))
                except WorkerLost as reason:
                    answers.append(f"{NOT_KNOWN}: {reason.message}")
                    deaths += 1 if reason.died else _DEATHS_PER_CALL
                except ClusterUnavailable as reason:  # nothing was sent
                    if not answers:
                        raise
                    return answers + [f"{NOT_SENT}: {reason.message}"] * (len(requests) - len(answers))
                if deaths >= _DEATHS_PER_CALL:
                    break
        return answers + [f"{NOT_SENT}: the pyslurm worker was lost"] * (len(requests) - len(answers))

    def close(self) -> None:
        """End the worker.

        Calling it again has no effect. The next request starts another worker.
        """
        with self._lock:
            if self._worker:
                self._worker.end()
                self._worker = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, call: str, arguments: Mapping[str, Any], until: float) -> str:
        """Return the answer to one request that changes something.

        Raises
        ------
        WorkerLost
            It was sent, and its answer is lost.
        ClusterUnavailable
            It was not sent.
        """
        try:
            self._running()
        except WorkerLost as reason:
            raise ClusterUnavailable(reason.message, hint=reason.hint) from reason
        if (remaining := until - time.monotonic()) <= 0:
            raise ClusterUnavailable(f"The changes took longer than {self.timeout_s:g} s.")
        answer = self._call(call, arguments, within_s=remaining)
        if answer["ok"]:
            return str(answer["result"])
        error = answer["error"]
        if error.get("kind") != "unavailable":
            return str(error.get("message"))
        if error.get("sent", True):
            raise WorkerLost(f"the controller did not answer: {error.get('message')}", died=False)
        raise _to_error(error)

    def _read(self, call: str, **arguments: Any) -> Any:
        """Send a request that only reads, and repeat it once.

        It is repeated if the worker died, but not if it was too slow.
        """
        with self._lock:
            try:
                answer = self._call(call, arguments, within_s=self.timeout_s)
            except WorkerLost as reason:
                if not reason.died:
                    raise
                answer = self._call(call, arguments, within_s=self.timeout_s)
            if not answer["ok"]:
                raise _to_error(answer["error"])
            return answer["result"]

    def _call(self, call: str, arguments: Mapping[str, Any], *, within_s: float) -> dict[str, Any]:
        worker = self._running()
        self._requests += 1
        try:
            worker.send({"id": self._requests, "call": call, "args": dict(arguments)})
            answer = worker.receive(within_s=within_s)
            complete = "result" in answer if answer.get("ok") else isinstance(answer.get("error"), dict)
            if answer.get("id") != self._requests or not complete:
                raise AnswerNotUnderstood(
                    f"The pyslurm worker's answer to request {self._requests} makes no sense: {answer!r:.200}"
                )
        except HeliosError as reason:
            self._record_failure(reason)
            if isinstance(reason, AnswerNotUnderstood) and call in _WRITES:
                raise WorkerLost(reason.message, died=True) from reason
            raise
        self._failures = 0
        return answer

    def _running(self) -> Worker:
        """Return the worker, and start it if it does not run."""
        if self._worker and (ended := self._worker.exit_text()):
            self._record_failure(WorkerLost(ended, died=True))
        if self._worker:
            return self._worker
        if (pause := self._not_before - self._clock()) > 0:
            raise ClusterUnavailable(
                f"The pyslurm worker failed {self._failures} times, last: {self._why} Next try in {pause:.0f} s.",
                hint=HINT,
            )
        self._worker = Worker(self.argv, self._environment, self._source)
        try:
            self._worker.handshake(within_s=self.timeout_s)
        except HeliosError as reason:
            self._record_failure(reason)
            raise
        return self._worker

    def _record_failure(self, reason: HeliosError) -> None:
        """Kill the worker, and set the pause before the next start.

        There is no pause after a first failure, then 1, 2, 4, ... s up to a minute.
        """
        if self._worker:
            self._worker.kill()
            self._worker = None
        self._failures += 1
        self._why = reason.message
        pause = 0.0 if self._failures == 1 else min(2.0 ** (self._failures - 2), _LONGEST_PAUSE_S)
        self._not_before = self._clock() + pause


def _records(answer: Any, kind: type[Any]) -> list[dict[str, Any]]:
    """Return ``answer`` if it is a list of records of ``kind``."""
    hints = get_type_hints(kind)
    types = {key: get_args(hint) or (hint,) for key, hint in hints.items()}
    types = {key: (*of, int) if float in of else of for key, of in types.items()}  # JSON has 60 for 60.0
    if not isinstance(answer, list) or any(
        not isinstance(row, dict)
        or row.keys() != types.keys()
        or not all(isinstance(value, types[key]) for key, value in row.items())
        for row in answer
    ):
        raise AnswerNotUnderstood(f"The pyslurm worker's records are not those of {kind.__name__}: {answer!r:.200}")
    return answer


def _to_error(error: Mapping[str, Any]) -> HeliosError:
    message = error.get("message")
    if error.get("kind") == "unavailable":
        return ClusterUnavailable(f"Slurm's controller cannot be reached: {message}", hint="Look with: scontrol ping")
    if error.get("kind") == "refused":
        return ClusterRefused(f"Slurm refused: {message}", hint="Helios needs AdminLevel Operator: sacctmgr show user")
    return AnswerNotUnderstood(f"pyslurm failed: {message}", hint=HINT)
