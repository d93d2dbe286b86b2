"""Process that starts workers, watches them, and changes how many there are.

It has no PyTorch. Workers meet it at a boundary between two steps, when a change is due or when one of them has died;
when all that live are there, it says who goes on, and from whose state.
"""

from __future__ import annotations

import json
import math
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import helios_task

from helios.errors import UsageError
from helios.training.elastic.link import BEAT_S, LINK, PART, TRIAL, WAITS, Lines, Message, find_difference

POLL_S = 0.25
"""Between two looks for requests and for workers that ended without closing their connection."""
LEAVE_S = 30.0
"""How long a worker that leaves may take for its own end."""
HUNG_S = 300.0
"""How long others wait for a worker that is amid a step or is silent, s, before it is lost.

A model that is compiled takes minutes."""
STUCK_S = 60.0
"""How long a worker waits in a group that others have left, s, before it is lost."""
LONGEST_REQUEST = 1 << 20
"""Bytes of a request that are read."""
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
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
    """A process that trains on one device.

    Attributes
    ----------
    doing, since_s, heard_s
        What it does, since when, and when it last said so.
    """

    number: int
    device: Device
    process: subprocess.Popen[bytes]
    lines: Lines
    facts: Mapping[str, str] = field(default_factory=dict)
    arrived: Message = field(default_factory=dict)
    leaves_by_s: float | None = None
    doing: Any = ()
    since_s: float = math.inf
    heard_s: float = 0.0
    lost: str = ""


@dataclass
class RequestedSize:
    """A change that was requested and is not done yet."""

    number: int
    batch: int | None
    by_s: float
    kept: list[TrainingWorker]
    added: list[TrainingWorker]
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
        self._number = self._generation = self._batch = self._samples = self._status = 0
        self._met_s = self._pause_s = self._awake_s = 0.0
        self._broken_s, self._requested = math.inf, -1  # since when a member is lost
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
                    began_s = time.monotonic()
                    for key, _ in self._selector.select(POLL_S):
                        self._receive(key.data)
                    self._reap()
                    self._kill_hung()
                    self._read_request()
                    self._decide()
                    self._awake_s += min(time.monotonic() - began_s, 1.0)  # not while all are stopped
            finally:
                self._kill(self._workers)
        return self._status

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
        for worker in self._workers:
            worker.process.send_signal(number)

    def _kill(self, workers: Sequence[TrainingWorker]) -> None:
        for worker in [each for each in workers if each in self._workers]:
            worker.process.kill()
            worker.process.wait()
            self._forget(worker)

    def _forget(self, worker: TrainingWorker) -> None:
        self._workers.remove(worker)
        with suppress(KeyError):  # it had closed its connection
            self._selector.unregister(worker.lines.connection)
        worker.lines.connection.close()

    def _living(self) -> list[TrainingWorker]:
        """Return the members that have not ended."""
        return [member for member in self._members if member in self._workers]

    def _receive(self, worker: TrainingWorker) -> None:
        messages = worker.lines.receive()
        if messages is None:
            self._selector.unregister(worker.lines.connection)
        for message in messages or ():
            worker.heard_s = self._awake_s
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
            elif worker.doing != message["doing"]:
                worker.doing, worker.since_s = message["doing"], self._awake_s

    def _reap(self) -> None:
        """See which workers have ended, and what that means."""
        for worker in list(self._workers):
            status = worker.process.poll()
            if status is None:
                if worker.leaves_by_s is not None and time.monotonic() > worker.leaves_by_s:
                    worker.process.kill()
            elif worker in self._workers:  # not killed with another one
                self._forget(worker)
                worker.lost = worker.lost or f"worker {worker.number} ended with {status}"
                if worker in self._members or not self._members:
                    self._status = max(self._status, 128 - status if status < 0 else status)
                    self._lose(worker)
                elif worker.leaves_by_s is None:
                    self._refuse(f"{worker.lost} before it could train")

    def _lose(self, worker: TrainingWorker) -> None:
        """Have the other members come together, or end where none can go on.

        Before the first step, and where there are other nodes, what stops one stops all.
        """
        self._broken_s = self._awake_s
        if self._change is not None and not self._change.begun:
            self._refuse(worker.lost)
        if not self._living() or self._settings["nodes"] > 1:
            self._kill(self._workers)
        for member in self._living():
            member.lines.send(lost=worker.number)

    def _kill_hung(self) -> None:
        """Kill members that others have waited for too long.

        One between two steps may take longer, since the first one validates there.
        """
        limit_s, recent_s = self._awake_s - HUNG_S, self._awake_s - 3 * BEAT_S
        living = self._living()
        # Who is silent does not wait: it may be at its end, which closes its connection last.
        if any(each.doing[:1] == [WAITS] and each.since_s < limit_s and each.heard_s > recent_s for each in living):
            for member in living:
                if member.heard_s < limit_s or (member.doing[:1] == [PART] and member.since_s < limit_s):
                    member.lost = f"worker {member.number} did not go on for {HUNG_S:g} s"
                    member.process.kill()
        # Gloo may miss that a connection was closed: some then wait for each other in a group that others have left.
        stuck_s = self._awake_s - STUCK_S
        if self._broken_s < stuck_s and all(each.arrived or each.doing[:1] == [WAITS] for each in living):
            waiting = [each for each in living if not each.arrived and each.since_s < stuck_s]
            for member in sorted(waiting, key=lambda each: each.since_s)[:1]:  # whose end may free the others
                member.lost = f"worker {member.number} waited in a group that others have left"
                member.process.kill()

    def _read_request(self) -> None:
        """Begin a change that was requested since the last look."""
        path = os.environ.get("HELIOS_REQUESTS")
        if not path or not self._living() or self._change is not None or self._settings["node"]:
            return
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # whatever is in its place
            with os.fdopen(handle, "rb") as file:
                request = json.loads(file.read(LONGEST_REQUEST))
            number, devices = int(request["number"]), [dict(device) for device in request["devices"]]
            batch = None if request.get("batch") is None else min(int(request["batch"]), self._samples)
            by_s = float(request.get("by_s") or "inf")
            if request["request"] != "resize" or number == self._requested:
                return
        except (OSError, ArithmeticError, ValueError, KeyError, TypeError):
            return  # nothing is requested, or nothing that can be read
        self._requested = number
        change = self._change = RequestedSize(number, batch, by_s, [], [])
        if self._settings["nodes"] > 1:
            self._refuse("on several nodes a size changes by a checkpoint and a restart")
        elif reason := refuse_sizes(self._settings, batch or self._batch, len(devices), self._samples):
            self._refuse(reason)
        else:
            left = self._living()
            for device in devices:
                worker = next((member for member in left if dict(member.device) == device), None)
                if worker is None:
                    change.added.append(self._start(device))
                else:
                    left.remove(worker)
                    change.kept.append(worker)
            if not change.kept:
                self._refuse("none of its devices is kept, which takes a checkpoint and a restart")

    def _refuse(self, reason: str) -> None:
        """Answer that the size stays as it is."""
        change, self._change = self._change, None
        if change is not None:
            self._kill(change.added)
            helios_task._write({"answer": "resize", "elastic": {"number": change.number, "refused": reason}})

    def _decide(self) -> None:
        """Say who goes on, where all that is waited for are there."""
        change, living = self._change, self._living()
        if not self._members and self._workers and all(worker.facts for worker in self._workers):
            self._begin()
        if not living:
            return
        if change is not None and not change.asked:
            if all(worker.facts for worker in change.added):
                if reason := self._difference([living[0], *change.added]):
                    self._refuse(reason)
                else:
                    change.asked = True
                    living[0].lines.send(meet=change.number)
            elif time.time() > change.by_s:
                self._refuse("the new workers were not ready in time")
        elif change is not None and change.done and not any(worker.leaves_by_s for worker in self._workers):
            self._change = None
            answer = {"number": change.number, "devices": len(living), "pause_s": round(self._pause_s, 3)}
            helios_task._write({"answer": "resize", "elastic": {**answer, "batch": self._batch}})
        if all(member.arrived for member in living):
            self._regroup(living)

    def _begin(self) -> None:
        """Have the workers of the start train."""
        facts = self._workers[0].facts
        self._batch, self._samples = int(facts["size of a batch"]), int(facts["number of samples"])
        reason = self._difference(self._workers)
        if reason := reason or refuse_sizes({}, self._batch, len(self._workers), self._samples):
            raise UsageError(f"{reason}.".capitalize(), hint="Start all workers alike, each with a sample.")
        self._go(self._workers, None)

    def _difference(self, workers: Sequence[TrainingWorker]) -> str:
        """Return what of the workers differs, or nothing."""
        for worker in workers[1:]:
            if found := find_difference(worker.facts, workers[0].facts):
                return f"worker {worker.number} differs, {found}"
        return ""

    def _regroup(self, living: list[TrainingWorker]) -> None:
        """Have the members that live go on, with others where that was requested."""
        places = [member.arrived["at"] for member in living]
        whole = math.isinf(self._broken_s) and all(member.arrived["whole"] for member in living)
        if not whole and self._settings["nodes"] > 1:  # a node of others has ended
            self._status = 1
            self._kill(self._workers)
            return
        if lost := [member.lost for member in self._members if member not in living]:
            kept = [self._members.index(member) for member in living]
            helios_task._write({"elastic": {"devices": len(kept), "lost": ", ".join(lost), "kept": kept}})
        change = self._change
        if change is None or not change.asked or change.begun or not whole:
            self._go(living, places.index(max(places)), keep=whole)
            if change is not None and change.asked and not change.begun:
                living[0].lines.send(meet=change.number)
            return
        change.begun = True
        members = [*change.kept, *change.added]
        for worker in living:
            if worker not in members:
                worker.leaves_by_s = time.monotonic() + LEAVE_S
                worker.lines.send(leave=True)
        self._go(members, members.index(change.kept[0]), keep=members == living, batch=change.batch)

    def _go(
        self, members: Sequence[TrainingWorker], source: int | None, *, keep: bool = False, batch: int | None = None
    ) -> None:
        """Tell workers that they train together from here on."""
        self._members, self._broken_s, self._status = list(members), math.inf, 0
        self._generation += 1
        at = None if source is None else members[source].arrived["at"]
        store = str(self._folder / f"store-{self._generation}")
        common = {"settings": self._settings, "backend": self._backend, "store": store, "batch": batch}
        common |= {"size": len(members), "source": source or 0, "at": at, "keep": keep}
        for rank, member in enumerate(self._members):
            member.arrived, member.since_s = {}, self._awake_s
            is_first = rank == self._settings["node"] == 0
            trial = {name: os.environ[name] for name in TRIAL if is_first and name in os.environ}
            member.lines.send(go={**common, "rank": rank, "environment": trial})
