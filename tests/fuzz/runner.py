"""Feed a target with inputs in a worker process of limited memory and time, and keep what it does not bear."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from multiprocessing.connection import Connection
from pathlib import Path

from tests.fuzz.mutate import mutated
from tests.fuzz.targets import TARGETS, Target

FOUND = Path(__file__).parent / "found"
MOST_MEMORY = 2 * 1024**3
LONGEST_S = 10.0
FORKS = multiprocessing.get_context("forkserver")
"""Workers are forks of a process that has imported what all need: alone each takes 1.5 CPU s for it."""
FORKS.set_forkserver_preload(
    [
        "__main__",
        "tests.fuzz.targets",
        "helios.control",
        "helios.ingest",
        "helios.predict.duration",
        "helios.slurm.hook_table",
    ]
)
STARTS_S = 300.0
"""Time for a worker to import, compile and train what its target needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """An input that a reader did not bear, and what happened."""

    target: str
    data: bytes
    what: str

    def keep(self, folder: Path = FOUND) -> Path:
        """Write the input where it is replayed from now on."""
        path = folder / self.target / sha256(self.data).hexdigest()[:16]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.data)
        return path


def input_of(target: Target, seeds: Sequence[bytes], seed: int, number: int) -> bytes:
    """Return the ``number``-th input: the same for the same seed, whatever came before."""
    chance = random.Random(f"{seed}-{number}")
    data = mutated(chance, seeds)
    return target.reseal(data) if target.reseal is not None and chance.random() < 0.5 else data


def outcome(target: Target, data: bytes) -> str:
    """Return what is wrong with how ``data`` was read; empty: it was read, or refused with a hint."""
    from helios.errors import HeliosError

    with tempfile.TemporaryDirectory() as folder:
        try:
            target.read(data, Path(folder))
        except HeliosError as refused:
            return (
                ""
                if refused.message and refused.hint
                else f"{type(refused).__name__} without a hint: {refused.message}"
            )
        except BaseException as raised:
            last = traceback.extract_tb(raised.__traceback__)[-1]
            return f"{type(raised).__name__}: {raised!s:.300} ({Path(last.filename).name}:{last.lineno})"
    return ""


def fuzzed(name: str, *, inputs: int, seed: int) -> Iterator[Finding]:
    """Yield what ``inputs`` inputs find; a worker that dies or hangs is started again after the input that did it."""
    at = 0
    while at < inputs:
        for number, what in _worked(name, first=at, inputs=inputs, seed=seed):
            at = number + 1
            if what:
                with tempfile.TemporaryDirectory() as folder:
                    seeds = TARGETS[name].seeds(Path(folder))
                yield Finding(target=name, data=input_of(TARGETS[name], seeds, seed, number), what=what)


def replayed(path: Path) -> str:
    """Return what is wrong with how a kept input is read, in a worker of its own."""
    for _, what in _worked(path.parent.name, file=path):
        return what
    return "nothing was read"


def _worked(
    name: str, *, first: int = 0, inputs: int = 1, seed: int = 0, file: Path | None = None
) -> Iterator[tuple[int, str]]:
    said, says = FORKS.Pipe(duplex=False)
    data = file.read_bytes() if file else None
    worker = FORKS.Process(target=_work, args=(says, name, range(first, inputs), seed, data))
    worker.start()
    says.close()
    number, within_s, done = first, STARTS_S, False
    try:
        while not done:
            if not said.poll(within_s):
                yield number, f"it took longer than {within_s:g} s"
                return
            try:
                word, what = said.recv()
            except (EOFError, OSError):
                worker.join()
                yield number, f"the worker ended with {worker.exitcode}"
                return
            within_s, done = LONGEST_S, word == "done"
            if word == "next":
                number = what
            elif word == "said":
                yield number, what
    finally:
        worker.kill()
        worker.join()
        said.close()


def _work(says: Connection, name: str, numbers: Sequence[int], seed: int, kept: bytes | None) -> None:
    """Be the worker: say each number before its input is read, and what was wrong afterwards."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    target = TARGETS[name]
    with tempfile.TemporaryDirectory() as folder:
        seeds = target.seeds(Path(folder))
    for data in seeds:  # compiled and imported before limits hold
        if wrong := outcome(target, data):
            raise SystemExit(f"a seed of {name} cannot be read: {wrong}")
    resource.setrlimit(resource.RLIMIT_AS, (_size() + MOST_MEMORY, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in numbers:
        data = input_of(target, seeds, seed, number) if kept is None else kept
        says.send(("next", number))
        says.send(("said", outcome(target, data)))
    says.send(("done", None))


def _size() -> int:
    """Return the address space that this process has already, most of it libraries and threads' stacks."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
