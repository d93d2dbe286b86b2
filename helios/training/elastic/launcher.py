"""Process that starts workers, watches them, and changes how many there are.

It has no PyTorch. Workers meet it at a boundary between two steps, when a change is due or when one of them has died;
when all that live are there, it says who goes on, and from whose state.
"""

from __future__ import annotations

import json
import os
import secrets
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helios.errors import UsageError
from helios.training.elastic.link import LINK, Lines, Message, write_report

POLL_S = 0.25
"""Between two looks for requests and for workers that ended without closing their connection."""
LEAVE_S = 30.0
"""How long a worker that leaves may take for its own end."""
LONGEST_REQUEST = 1 << 20
"""Bytes of a request that are read."""
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
TRIAL = ("HELIOS_REPORT", "HELIOS_REQUESTS")
"""What of the environment is the first worker's alone."""
Device = Mapping[str, str]


def read_settings(given: Mapping[str, Any], devices: int) -> Message:
    """Return what the pool says at the start, with what it leaves out.

    ``devices``: environment of each worker of this node. ``batch``, ``local_batch``: least and most samples of a step,
    and of one pass of a worker. ``threads``: CPU threads of a worker. ``address``: host and port of the first node.
    ``key``: secret of the workers, which those of all nodes have in common.

    Raises
    ------
    UsageError
        Something is missing.
    """
    settings = {"devices": [{}] * devices, "threads": 1, "node": 0, "nodes": 1, "key": secrets.token_hex(16), **given}
    if not settings["devices"] or (settings["nodes"] > 1 and not {"address", "key"} <= given.keys()):
        names = ", ".join(given)
        raise UsageError(f"HELIOS_ELASTIC is not complete, it has {names}.", hint="Start it by a pool.")
    return settings


def refuse_sizes(settings: Mapping[str, Any], batch: int, devices: int, samples: int) -> str:
    """Return why devices cannot share a batch, or nothing."""
    least, most = settings.get("batch") or (1, batch)
    most = min(most, samples)
    if not least <= batch <= most:
        return f"a batch of {batch} is not between {least} and {most}"
    least, _ = settings.get("local_batch") or (1, None)
    if devices < 1 or batch // devices < least:
        return f"a batch of {batch} on {devices} devices gives one of them less than {least}"
    return ""


@dataclass(eq=False)
class TrainingWorker:
    """A process that trains on one device."""

    number: int
    device: Device
    process: subprocess.Popen[bytes]
    lines: Lines
    facts: Message | None = None
    arrived: Message | None = None
    leaves_by_s: float | None = None


@dataclass
class RequestedSize:
    """A change that was requested and is not done yet."""

    number: int
    kept: list[TrainingWorker]
    added: list[TrainingWorker]
    batch: int | None
    by_s: float
    asked: bool = False
    begun: bool = False
    done: bool = False


class ElasticLauncher:
    """Workers of one program on this node."""

    def __init__(self, command: Sequence[str], settings: Message) -> None:
        self._command, self._settings = list(command), settings
        self._workers: list[TrainingWorker] = []
        self._members: list[TrainingWorker] = []
        self._change: RequestedSize | None = None
        self._seen: tuple[int, int] | None = None
        self._number = self._generation = self._batch = self._samples = 0
        self._status: int | None = None
        self._met_s = self._pause_s = 0.0
        self._signalled = self._broken = False
        self._selector = selectors.DefaultSelector()
        distinct = Counter(device.get("CUDA_VISIBLE_DEVICES") for device in settings["devices"])
        # Two processes of NCCL cannot share a GPU.
        self._backend = "gloo" if None in distinct or max(distinct.values()) > 1 else "nccl"

    def run(self) -> int:
        """Run until all workers have ended, and return the exit status."""
        for number in FORWARDED:
            signal.signal(number, self._forward)
        with tempfile.TemporaryDirectory(prefix="elastic-") as folder:
            self._folder = Path(folder)
            try:
                for device in self._settings["devices"]:
                    self._start(device)
                while self._workers:
                    for key, _ in self._selector.select(POLL_S):
                        self._receive(key.data)
                    self._reap()
                    self._read_request()
                    self._decide()
            finally:
                self._kill(self._workers)
        return self._status or 0

    def _start(self, device: Device) -> TrainingWorker:
        ours, theirs = socket.socketpair()
        environment = {name: value for name, value in os.environ.items() if name not in TRIAL}
        environment |= {"OMP_NUM_THREADS": str(self._settings["threads"]), LINK: str(theirs.fileno()), **device}
        if self._settings["nodes"] == 1:
            environment.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a host's name need not be known to itself
        if self._backend == "nccl":
            environment.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")  # else survivors of a death are ended
        with theirs:
            process = subprocess.Popen(self._command, env=environment, pass_fds=[theirs.fileno()])
        worker = TrainingWorker(self._number, device, process, Lines(ours))
        self._number += 1
        self._workers.append(worker)
        self._selector.register(ours, selectors.EVENT_READ, worker)
        return worker

    def _forward(self, number: int, frame: Any) -> None:
        del frame
        self._signalled = True
        for worker in self._workers:
            worker.process.send_signal(number)

    def _kill(self, workers: Sequence[TrainingWorker]) -> None:
        for worker in list(workers):
            worker.process.kill()
            worker.process.wait()
            self._forget(worker)

    def _forget(self, worker: TrainingWorker) -> None:
        self._workers.remove(worker)
        with suppress(KeyError):  # it had closed its connection
            self._selector.unregister(worker.lines.connection)
        worker.lines.connection.close()

    def _receive(self, worker: TrainingWorker) -> None:
        messages = worker.lines.receive()
        if messages is None:
            self._selector.unregister(worker.lines.connection)
        for message in messages or ():
            if "ready" in message:
                worker.facts = message["ready"]
            elif "arrived" in message:
                self._met_s = self._met_s or time.monotonic()
                worker.arrived = message["arrived"]
            elif "going" in message:  # of the first worker, which trains again
                self._batch = message["going"]
                self._pause_s, self._met_s = time.monotonic() - self._met_s, 0.0
                if self._change is not None:
                    self._change.done = self._change.begun

    def _reap(self) -> None:
        """See which workers have ended, and what that means."""
        for worker in list(self._workers):
            if worker not in self._workers:  # killed with another one
                continue
            if (status := worker.process.poll()) is None:
                if worker.leaves_by_s is not None and time.monotonic() > worker.leaves_by_s:
                    worker.process.kill()
                continue
            self._forget(worker)
            if worker.leaves_by_s is not None:
                continue
            if worker in self._members:
                place = self._members.index(worker)
                self._members.remove(worker)
                self._end(worker, place, status)
            elif self._members and self._change is not None:
                self._refuse(f"worker {worker.number} ended with {status} before it could train")
            elif not self._members:  # before the first step what stops one stops all
                self._status = self._status or exit_status(status)
                self._kill(self._workers)

    def _end(self, worker: TrainingWorker, place: int, status: int) -> None:
        """Note that a worker that trained has ended."""
        reason = f"worker {worker.number} ended with {status}"
        self._broken = True
        if self._change is not None and not self._change.begun:
            self._refuse(reason)
        alone = not self._members or self._settings["nodes"] > 1
        if status == 0 or self._status is not None or self._signalled or alone:  # the end of the program
            self._status = self._status or exit_status(status)
            if alone:
                self._kill(self._workers)
            return
        kept = [number for number in range(len(self._members) + 1) if number != place]
        write_report(elastic={"devices": len(kept), "lost": reason, "kept": kept})
        for member in self._members:
            member.lines.send(lost=worker.number)

    def _read_request(self) -> None:
        """Begin a change that was requested since the last look."""
        path = os.environ.get("HELIOS_REQUESTS")
        if not path or not self._members or self._change is not None or self._settings["node"]:
            return
        try:
            found = Path(path).stat()
            if (found.st_mtime_ns, found.st_ino) == self._seen:
                return
            with Path(path).open("rb") as file:
                request = json.loads(file.read(LONGEST_REQUEST))
            self._seen = (found.st_mtime_ns, found.st_ino)
            if request["request"] != "resize":
                return
            number, devices = int(request["number"]), [dict(device) for device in request["devices"]]
            batch = None if request.get("batch") is None else min(int(request["batch"]), self._samples)
            by_s = float(request.get("by_s") or "inf")
        except (OSError, ArithmeticError, ValueError, KeyError, TypeError):
            return  # nothing is requested, or nothing that can be read
        self._change = RequestedSize(number, [], [], batch, by_s)
        if self._settings["nodes"] > 1:
            self._refuse("on several nodes a size changes by a checkpoint and a restart")
        elif reason := refuse_sizes(self._settings, batch or self._batch, len(devices), self._samples):
            self._refuse(reason)
        else:
            left = list(self._members)
            for device in devices:
                worker = next((member for member in left if dict(member.device) == device), None)
                if worker is None:
                    self._change.added.append(self._start(device))
                else:
                    left.remove(worker)
                    self._change.kept.append(worker)
            if not self._change.kept:
                self._refuse("none of its devices is kept, which takes a checkpoint and a restart")

    def _refuse(self, reason: str) -> None:
        """Answer that the size stays as it is."""
        change, self._change = self._change, None
        if change is not None:
            self._kill([worker for worker in change.added if worker in self._workers])
            write_report(answer="resize", elastic={"number": change.number, "refused": reason})

    def _decide(self) -> None:
        """Say who goes on, where all that is waited for are there."""
        if not self._members:
            if self._workers and self._generation == 0 and all(worker.facts for worker in self._workers):
                facts, devices = self._workers[0].facts or {}, len(self._workers)
                self._batch, self._samples = facts["batch"], int(facts["model"]["samples"])
                if reason := self._difference(self._workers) or refuse_sizes({}, self._batch, devices, self._samples):
                    self._kill(self._workers)
                    raise UsageError(f"{reason}.".capitalize(), hint="Start all workers alike, each with a sample.")
                self._go(self._workers, None)
            return
        change = self._change
        if change is not None and not change.asked and all(worker.facts for worker in change.added):
            if reason := self._difference([self._members[0], *change.added]):
                self._refuse(reason)
            else:
                change.asked = True
                self._members[0].lines.send(meet=change.number)
        elif change is not None and not change.asked and time.time() > change.by_s:
            self._refuse("the new workers were not ready in time")
        change = self._change
        if change is not None and change.done and not any(worker.leaves_by_s for worker in self._workers):
            self._change = None
            answer = {"number": change.number, "devices": len(self._members), "pause_s": round(self._pause_s, 3)}
            write_report(answer="resize", elastic={**answer, "batch": self._batch})
        if all(member.arrived for member in self._members):
            self._regroup()

    def _difference(self, workers: Sequence[TrainingWorker]) -> str:
        """Return what of the workers differs, or nothing."""
        first = workers[0].facts or {}
        for worker in workers[1:]:
            facts = worker.facts or {}
            if facts["torch"] != first["torch"]:
                return f"worker {worker.number} has torch {facts['torch']}, and others {first['torch']}"
            for name in sorted({*facts["model"], *first["model"]}):
                here, there = (each["model"].get(name, "nothing") for each in (facts, first))
                if here != there:
                    return f"worker {worker.number} has another model: {name} is {here} and not {there}"
        return ""

    def _regroup(self) -> None:
        """Have the members that live go on, with others where that was requested."""
        places = [(member.arrived or {})["at"] for member in self._members]
        whole = not self._broken and all((member.arrived or {})["whole"] for member in self._members)
        if not whole and self._settings["nodes"] > 1:  # a node of others has ended
            self._status = 1
            self._kill(self._workers)
            return
        change = self._change
        if change is None or not change.asked or change.begun or not whole:
            self._go(self._members, places.index(max(places)), keep=whole)
            if change is not None and change.asked and not change.begun:
                self._members[0].lines.send(meet=change.number)
            return
        change.begun = True
        members = [*change.kept, *change.added]
        for worker in self._members:
            if worker not in members:
                worker.leaves_by_s = time.monotonic() + LEAVE_S
                worker.lines.send(leave=True)
        source = members.index(change.kept[0]) if change.kept else 0
        self._go(members, source, keep=members == self._members, batch=change.batch)

    def _go(
        self, members: Sequence[TrainingWorker], source: int | None, *, keep: bool = False, batch: int | None = None
    ) -> None:
        """Tell workers that they train together from here on."""
        self._members, self._broken = list(members), False
        self._generation += 1
        at = None if source is None else (self._members[source].arrived or {})["at"]
        store = str(self._folder / f"store-{self._generation}")
        common = {"settings": self._settings, "backend": self._backend, "store": store, "batch": batch}
        common |= {"size": len(members), "source": source or 0, "at": at, "keep": keep}
        for rank, member in enumerate(self._members):
            member.arrived = None
            is_first = rank == self._settings["node"] == 0
            trial = {name: os.environ.get(name) if is_first else None for name in TRIAL}
            member.lines.send(go={**common, "rank": rank, "environment": trial})


def exit_status(status: int) -> int:
    """Return the status of a shell for that of a process."""
    return 128 - status if status < 0 else status
