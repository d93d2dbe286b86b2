"""Sweep files, and the search that says which trial comes next.

A sweep file names a command, its parameters and how they are searched. Grids and lists need nothing else; a search over
ranges is Optuna's, which is imported only here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from helios.model.pools import TrialState

Value = str | int | float | bool
"""Value of a parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRange:
    """Range of a parameter, both ends included.

    Attributes
    ----------
    step : float, optional
        Distance of values; None: any value, or any whole number with ``whole``.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchMethod:
    """How Optuna chooses the next trial.

    Attributes
    ----------
    trials : int
        How many.
    sampler, pruner : str
        Class names of Optuna; an empty pruner ends no trial early.
    sampler_options, pruner_options : mapping
        Their keyword arguments.
    seed : int, optional
    """

    trials: int
    sampler: str = "TPESampler"
    pruner: str = ""
    sampler_options: Mapping[str, Value] = field(default_factory=dict)
    pruner_options: Mapping[str, Value] = field(default_factory=dict)
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSweep:
    """A sweep file, checked.

    Attributes
    ----------
    path : Path
        The file.
    command : tuple of str
        Words of the command, with placeholders such as ``{lr}``.
    parameters : mapping
        Values or a range of each parameter.
    listed : tuple of mapping
        Trials of a file of trials; empty without one.
    search : SearchMethod, optional
        None: every combination, or every listed trial, in order.
    metric : str
        What is best at a trial; empty: nothing is compared.
    maximize : bool
        Whether more of the metric is better.
    attempts : int
        How often a trial that fails is started at most.
    memory_mib : float, optional
        What a trial needs at most, as the user says.
    env : mapping
        Added to the environment of every trial.
    cwd : Path
        Absolute folder in which trials run.
    """

    path: Path
    command: tuple[str, ...]
    parameters: Mapping[str, tuple[Value, ...] | ValueRange]
    listed: tuple[Mapping[str, Value], ...] = ()
    search: SearchMethod | None = None
    metric: str = ""
    maximize: bool = True
    attempts: int = 3
    memory_mib: float | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path

    @property
    def trials(self) -> int:
        """Number of trials."""
        raise NotImplementedError

    def fill(self, parameters: Mapping[str, Value], *, trial: int, checkpoints: Path) -> list[str]:
        """Return the command of a trial, to be run without a shell.

        Parameters
        ----------
        trial : int
            For the placeholder ``{trial}``.
        checkpoints : Path
            For the placeholder ``{checkpoints}``.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTrial:
    """A trial to run."""

    number: int
    parameters: Mapping[str, Value]


class Search(Protocol):
    """Which trial comes next; kept in a folder, for one process at a time.

    After a restart, trials that were asked for and not told are asked for again under the same number.
    """

    def ask(self) -> NextTrial | None:
        """Return the next trial; None when all were asked for."""

    def tell(self, number: int, state: TrialState, metric: float | None) -> None:
        """Record how a trial ended: finished, failed or pruned. Once told, nothing changes it."""

    def report(self, number: int, step: int, value: float) -> bool:
        """Record the metric (which may be NaN) at a step, and return whether the trial is to be pruned."""

    def close(self) -> None:
        """Let another process open the folder."""


def read_training_sweep(path: Path) -> TrainingSweep:
    """Read and check a sweep file.

    Raises
    ------
    UsageError
        It cannot be read, or asks for what cannot be run; the message names the line.
    """
    raise NotImplementedError


def open_search(sweep: TrainingSweep, folder: Path) -> Search:
    """Open the search of a sweep in a folder of its own, or go on with it.

    Raises
    ------
    UsageError
        The folder belongs to another sweep or to a process that runs, or Optuna is needed and missing.
    """
    raise NotImplementedError
