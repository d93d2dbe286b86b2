"""A cell: one replay of many, made wherever there is a processor for it.

A cell says everything that its figures hang on, and nothing of where it is replayed. What cells share, the jobs on
their machine and the model taught beforehand, is kept by the process that made it last.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, NamedTuple, Protocol, TypeVar

import pandas as pd

from helios import __version__
from helios.app.code_fingerprint import code_fingerprint
from helios.app.draws import Urn, predictor_of, redrawn, urn_of
from helios.app.history import History
from helios.app.plans import Plan
from helios.app.whatif import Question, Stage, run_of, set_the_stage, teach
from helios.errors import HeliosError
from helios.ports import in_silence
from helios.predict import DurationModel
from helios.report.differences import Over

FIGURES = "figures"
FAILED = "failed"
MOST_KEPT = 2
"""Windows, draws and models that a process keeps ready: each takes the memory of a history."""
OF_THE_STAGE = (
    "since",
    "until",
    "warm_up",
    "nodes",
    "gpus_per_node",
    "resource",
    "skip_oversized",
    "default_time_limit_s",
)
"""What of a question chooses the jobs and the machine."""

Kept = TypeVar("Kept")
Told = dict[str, Any]
"""What became of a cell: ``figures``, or why it ``failed``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One replay.

    Attributes
    ----------
    question : Question
        The window, the machine, and the one plan.
    repeat : int
        Which draw of weeks, days or arrivals; 0: the window as it was.
    over : Over, optional
        What is drawn; None: what the window is long enough for.
    """

    question: Question
    repeat: int = 0
    over: Over | None = None

    @property
    def plan(self) -> Plan:
        """The replay to make."""
        (plan,) = self.question.plans
        return plan

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain values, the plan's parts beside the question's."""
        asked = self.question
        parts = {name: getattr(asked, name) for name in Question.__slots__ if name != "plans"}
        plan = {name: getattr(self.plan, name) for name in Plan.__slots__}
        told = parts | plan | {"repeat": self.repeat, "over": self.over}
        told |= {
            "since": asked.since.isoformat() if asked.since else None,
            "until": asked.until.isoformat() if asked.until else None,
            "warm_up": asked.warm_up.total_seconds(),
            "nodes": dict(asked.nodes) if asked.nodes else None,
            "options": dict(self.plan.options),
        }
        plain: dict[str, Any] = json.loads(json.dumps(told, default=str))
        return plain

    def key(self, fingerprint: str) -> str:
        """Return by what name its line goes: another history, or other code of Helios, is another cell."""
        told = json.dumps([self.to_json(), fingerprint, __version__, code_fingerprint()], sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()[:20]


class Done(NamedTuple):
    """A cell that was replayed, by its place among those that were asked for."""

    place: int
    told: Told


class Engine(Protocol):
    """Replays cells, in any order."""

    def __call__(self, history: History, cells: Sequence[Cell]) -> Generator[Done, None, None]:
        """Yield each cell when it is done; closed before the last one, let go of what replays the others."""
        ...


def fingerprint_of(history: History) -> str:
    """Return what the replays of a history hang on, in 16 characters: its jobs, and its time zone."""
    rows = pd.util.hash_pandas_object(history.jobs, index=False)
    digest = hashlib.sha256(rows.to_numpy().tobytes())
    digest.update(f"{list(history.jobs.columns)} {history.timezone} {history.cluster}".encode())
    return digest.hexdigest()[:16]


def here(history: History, cells: Sequence[Cell]) -> Generator[Done, None, None]:
    """Be an :class:`Engine` in this process, one cell after the other."""
    bench = Workbench(history)
    for place, cell in enumerate(cells):
        yield Done(place, bench.tell(cell))


class Workbench:
    """Replays cells of one history, and keeps for the next what they share. Threads may use it side by side."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._stages: dict[str, Stage] = {}
        self._drawn: dict[str, tuple[Stage, Urn]] = {}
        self._taught: dict[str, DurationModel | None] = {}
        self._lock = Lock()

    def tell(self, cell: Cell) -> Told:
        """Replay a cell and tell its figures, or why it failed: a cell that fails does not stop the others."""
        try:
            return {FIGURES: self.figures(cell)}
        except HeliosError as reason:
            return {FAILED: reason.fact}
        except Exception as reason:  # whatever it is, the other cells can still be replayed
            return {FAILED: f"{type(reason).__name__}: {reason}"}

    def figures(self, cell: Cell) -> dict[str, Any]:
        """Replay a cell and return its figures; raises as :func:`helios.app.whatif.whatif`."""
        about = cell.to_json()
        with self._lock:
            machine = str({name: about[name] for name in OF_THE_STAGE})
            original = self._stage(cell.question, machine)
            stage, urn = self._draw(cell, original, machine) if cell.repeat else (original, None)
            taught = self._teach(original, cell.question) if cell.plan.uses_predictions else None
        predictor = predictor_of(stage, taught, cell.question) if cell.plan.uses_predictions else None
        run = run_of(cell.plan, stage, predictor, in_silence, question=cell.question)
        return {
            "label": run.label,
            "is_today": run.is_today,
            "is_oracle": run.is_oracle,
            "over": urn.over.value if urn else None,
            "blocks": urn.blocks if urn else 0,
            "nodes": dict(zip(stage.machine.shape.partitions, stage.machine.shape.nodes.tolist(), strict=True)),
            **run.summary.to_json(),
        }

    def _stage(self, question: Question, about: str) -> Stage:
        return _kept(self._stages, about, lambda: set_the_stage(self._history, question))

    def _draw(self, cell: Cell, stage: Stage, about: str) -> tuple[Stage, Urn]:
        seed = cell.question.seed

        def draw() -> tuple[Stage, Urn]:
            urn = urn_of(stage, cell.over)
            return redrawn(stage, urn, repeat=cell.repeat, seed=seed), urn

        return _kept(self._drawn, f"{about} {cell.repeat} {cell.over} {seed}", draw)

    def _teach(self, stage: Stage, question: Question) -> DurationModel | None:
        """Return the model of what came before the window, which is no draw's business: all share one."""
        about = f"{len(stage.before)} {stage.workload.submitted_s[0]} {question.seed}"
        return _kept(self._taught, about, lambda: teach(self._history, stage, question, in_silence))


def _kept(memory: dict[str, Kept], key: str, make: Callable[[], Kept]) -> Kept:
    """Return what is kept under ``key``; make it where it is not, and let go of the oldest."""
    if key not in memory:
        while len(memory) >= MOST_KEPT:
            memory.pop(next(iter(memory)))
        memory[key] = make()
    return memory[key]
