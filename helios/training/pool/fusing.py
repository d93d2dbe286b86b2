"""Trials that are trained together in one process.

Whether models have the same structure is known when they were built. Until then trials with the same whole numbers and
texts among the parameters of their models are taken to be alike, since those choose shapes. The process
(:mod:`helios.training.fused.task`) tells what it finds under the key ``fused`` of its reports:

``structure``
    Equal for models that may train together.
``ended``, ``reason``
    It has done with the trial: ``finished``, ``diverged``, ``stopped``, ``paused``, ``failed``, or ``apart`` where the
    trial cannot train with the others of the process.
``obstacle``
    Why such models cannot train in one process at all.
``most``
    How many models the memory holds.
``way``, ``models``, ``alone_s``, ``fused_s``
    How the gradients of so many models are computed, and what an epoch of one alone and of all takes by a short
    measurement.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helios.lines_file import LinesFile
from helios.training.model import Device, FusedSpeed
from helios.training.pool.sweep import COMMON, FusedProgram, Value

MOST, MOST_SEARCHED = 64, 16
"""Most trials in a process, where the sweep file does not say; fewer where the next choice depends on results."""

Key = tuple[tuple[str, Value], ...]


@dataclass(slots=True, kw_only=True)
class FusedProcess:
    """A process that trains several trials.

    Attributes
    ----------
    number : int
        Number by which the agent knows it. It is below 0, since trials have numbers from 0.
    folder : Path
        Folder of its log, and of the file with its trials.
    trials : set of int
        Its current trials.
    """

    number: int
    devices: tuple[Device, ...]
    folder: Path
    limit_mib: float
    trials: set[int] = field(default_factory=set)
    started: bool = False
    closed: bool = False
    unwritten: list[bytes] = field(default_factory=list)

    @property
    def file(self) -> Path:
        """File with the trials for the process."""
        return self.folder / "trials.jsonl"

    def add_message(self, message: Mapping[str, Any]) -> None:
        """Keep a line for its file."""
        self.unwritten.append(json.dumps(dict(message)).encode() + b"\n")

    def write(self) -> None:
        """Append postponed messages to the file.

        It is done at once, so that trials which start together are seen together.

        Raises
        ------
        OSError
            It cannot be written; the same may be tried again.
        """
        if self.unwritten:
            with self.file.open("a+b", buffering=0) as file:
                lines = LinesFile(file.fileno())
                lines.skip()
                lines.append(b"".join(self.unwritten), lasting=False)
            self.unwritten.clear()


class Fusion:
    """What is known of which trials may train together.

    Parameters
    ----------
    program : FusedProgram, optional
        None where none may.
    searched : bool
        Whether a search chooses the trials.
    title : str
        Begins what such trials have in common, since those of another sweep never train with them.

    Attributes
    ----------
    most : int
        Most trials in a process.
    separate : set of int
        Trials that get a new process of their own from now on.
    """

    def __init__(self, program: FusedProgram | None, *, searched: bool, title: str = "") -> None:
        self._program, self._title = program, title
        self.most = (program.together if program else 1) or (MOST_SEARCHED if searched else MOST)
        self._structures: dict[Key, str] = {}
        self._alike: dict[Key, str | None] = {}
        """The structure of all models with the same whole numbers and texts, None where these differ."""
        self._most: dict[str, int] = {}
        self.separate: set[int] = set()

    def group_key(self, number: int, parameters: Mapping[str, Value]) -> tuple[str, int]:
        """Return what trials that may train together have in common.

        With it comes how many may at most. The text is empty for a trial that must have a process of its own.
        """
        if self._program is None or number in self.separate:
            return "", 1
        part = self._name(parameters)
        most = self._most.get(part, self.most)
        return (part, most) if most > 1 else ("", 1)

    def _name(self, parameters: Mapping[str, Value]) -> str:
        assert self._program is not None
        key, like = self._keys(parameters)
        structure = self._structures.get(key) or self._alike.get(like, f"like {like}") or f"like {key}"
        common = [f"{name}={value}" for name, value in self._program.common(parameters).items() if value is not None]
        return " ".join([*([self._title] if self._title else []), *common, structure])

    def _keys(self, parameters: Mapping[str, Value]) -> tuple[Key, Key]:
        assert self._program is not None
        shape = self._program.shape(parameters)
        key = tuple(sorted((name, value) for name, value in shape.items() if name not in COMMON))
        return key, tuple((name, value) for name, value in key if not isinstance(value, float))

    def learn(self, parameters: Mapping[str, Value], message: Mapping[str, Any]) -> bool:
        """Learn from a process's report, and return whether parts may have changed."""
        key, like = self._keys(parameters)
        before = self._structures.get(key), self._alike.get(like), self._most.get(self._name(parameters))
        if structure := message.get("structure"):
            self._structures[key] = structure = str(structure)[:100]
            if self._alike.setdefault(like, structure) != structure:
                self._alike[like] = None
        most = 1 if message.get("obstacle") else message.get("most")
        if isinstance(most, int):
            self.limit_fused(parameters, most)
        return before != (self._structures.get(key), self._alike.get(like), self._most.get(self._name(parameters)))

    def speed(self, parameters: Mapping[str, Value], message: Mapping[str, Any]) -> FusedSpeed | None:
        """Return the measured speed in a message, if any."""
        try:
            models, together_s, alone_s = (float(message[name]) for name in ("models", "fused_s", "alone_s"))
        except (KeyError, TypeError, ValueError):
            return None
        if not all(0 < number < math.inf for number in (models, together_s, alone_s)):
            return None
        return FusedSpeed(fusible=self._name(parameters), models=int(models), together_s=together_s, alone_s=alone_s)

    def limit_fused(self, parameters: Mapping[str, Value], most: int) -> None:
        """Have fewer trials like this one in a process from now on."""
        part = self._name(parameters)
        self._most[part] = max(1, min(most, self._most.get(part, self.most)))
