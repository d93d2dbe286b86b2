"""Sweeps of training trials, with their parameters and commands."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice, pairwise, product
from pathlib import Path
from random import Random
from typing import Any

from helios.targets import Target
from helios.training.model import ServiceChoice

Value = str | int | float | bool
"""Value of a parameter."""
GRACE_S = 10.0
"""From the request to stop to SIGTERM, s: so long a program has for its own end."""
MOST_TRIALS = 100_000
STEP_TOLERANCE = 1e-8
"""Part of a step by which a value may be off, as in Optuna."""
FUSIBLE = (
    *("lr", "momentum", "dampening", "nesterov", "betas", "eps", "rho", "weight_decay", "groups", "schedule", "seed"),
    *("data_seed", "clip_norm", "early_stopping", "steps", "epochs"),
)
"""Parameters that may differ between the models of a stack: those of ``helios.training.fused``, and how many epochs."""
COMMON = ("batch_size", "optimizer", "precision", "on_nan")
"""Parameters of which a process that trains a stack has one value."""
FUSED_TASK = "helios.training.fused.task"
"""Module that trains many trials in one process."""
NAME = r"[A-Za-z_][A-Za-z0-9_.-]*"
_PART = re.compile(r"\{\{|\}\}|\{(" + NAME + r")\}|[{}]")
_SEED = re.compile(r"(^|[_.-])(seed|random_state|repeat|replicate|fold)($|[_.-])", re.IGNORECASE)
"""Names of parameters that repeat a trial on other random numbers or on another part of the data."""
OWN_PLACEHOLDERS = ("trial", "checkpoints")
_LAUNCHER = re.compile(
    r"python[0-9.]*|(ba|da|z|k)?sh|env|torchrun|accelerate|deepspeed|srun|mpirun|mpiexec|uv|conda|Rscript|julia|java"
)
"""Programs that start others, so that their names do not say what runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRange:
    """Range of a parameter, both ends included.

    Attributes
    ----------
    step : float, optional
        Distance of values. None for any value, or any whole number with ``whole``.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None
    whole: bool = False

    def values(self) -> Sequence[Value] | None:
        """Return every value of the range, None if it is continuous."""
        if self.whole:
            return range(int(self.low), int(self.high) + 1, int(self.step or 1))
        if self.low == self.high:
            return (self.low,)
        if self.step is None:
            return None
        count = min(MOST_TRIALS, math.floor((self.high - self.low) / self.step + 1e-9)) + 1
        return tuple(float(f"{self.low + place * self.step:.12g}") for place in range(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchMethod:
    """How Optuna chooses the next trial.

    Attributes
    ----------
    trials : int
        How many.
    sampler, pruner : str
        Class names of Optuna. Without a sampler the trials are those of the grid or list in order; without a pruner
        no trial ends early.
    sampler_options, pruner_options : mapping
        Their keyword arguments.
    seed : int, optional
    """

    trials: int
    sampler: str = "TPESampler"
    pruner: str = ""
    sampler_options: Mapping[str, Any] = field(default_factory=dict)
    pruner_options: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerChoice:
    """Container image in which trials run.

    Attributes
    ----------
    image : str
        Absolute path of a folder or file, or a name that the runtime knows.
    runtime : str
        What starts it. Empty for the first that can.
    binds : tuple of str
        Absolute folders of the machine that are at the same place in the container.
    """

    image: str
    runtime: str = ""
    binds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedProgram:
    """Program that trains many trials in one process.

    ``python -m helios.training.fused.task`` is such a program.

    Attributes
    ----------
    program : str
        Path of the file, relative to the folder in which trials run.
    together : int, optional
        Most trials in one process. None for as many as fit.
    settings : mapping
        What all trials have in common; a parameter of the same name stands above it.
    """

    program: str
    together: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def shape(self, parameters: Mapping[str, Value]) -> dict[str, Value]:
        """Return the parameters that may part trials.

        They are those that ``build`` gets, and those of which a process has one value. All others may differ between
        the models of a stack.
        """
        return {name: value for name, value in parameters.items() if name.partition(".")[0] not in FUSIBLE}

    def common(self, parameters: Mapping[str, Value]) -> dict[str, Any]:
        """Return the settings that all trials of a process have in common."""
        return {name: parameters.get(name, self.settings.get(name)) for name in COMMON}


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticProgram:
    """How the trials of a program may change their size.

    Attributes
    ----------
    least, most : int
        Devices of a trial.
    batch : tuple of int
        Smallest and largest batch over all devices.
    local_batch : tuple of int
        Least and most samples that a device takes at a time.
    epochs : int, optional
        How many a trial trains, as its owner says.
    every_s : float
        Least time between two changes, s.
    """

    least: int
    most: int
    batch: tuple[int, int]
    local_batch: tuple[int, int]
    epochs: int | None = None
    every_s: float = 60.0


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
        Values or a range of each parameter; empty with a file of trials. Those that others depend on come first.
    listed : tuple of mapping
        Trials of a file of trials; empty without one.
    search : SearchMethod, optional
        None for every combination, or every listed trial, in order and without Optuna.
    objectives : mapping of str to bool
        Metrics that trials are compared by, and whether more of each is better. Empty where they are not.
    attempts : int
        How often a trial that fails is started at most.
    grace_s : float
        Time from a request to stop to SIGTERM, s.
    memory_mib : float, optional
        Device memory that a trial needs at most, as the user says, MiB.
    env : mapping
        Added to the environment of every trial.
    owner : str
        Whose trials they are. Empty for the account that runs them.
    weight : float
        Importance of its trials, for services that weigh trials.
    cwd : Path
        Absolute folder in which trials run.
    events : str
        Folder of a trial's TensorBoard event files, with placeholders. Empty where none are read.
    container : ContainerChoice, optional
        None where trials run on the machine itself.
    fused : FusedProgram, optional
        What is run in place of the command's program, which then names it only.
    elastic : ElasticProgram, optional
        None where a trial keeps the devices that it started on.
    service : ServiceChoice, optional
        None for a fixed number of slots.
    conditions : mapping of str to mapping
        For a parameter that not every trial has: the values of others with which it is there.
    defaults : mapping of str to value
        Of parameters that were added later: what trials had before.
    target : Target, optional
        What the first trial that reaches it delivers.
    on_target : tuple of str
        Words of a command that is run for each target that was delivered. Empty for none.
    """

    path: Path
    command: tuple[str, ...]
    parameters: Mapping[str, tuple[Value, ...] | ValueRange]
    listed: tuple[Mapping[str, Value], ...] = ()
    search: SearchMethod | None = None
    objectives: Mapping[str, bool] = field(default_factory=dict)
    attempts: int = 3
    grace_s: float = GRACE_S
    memory_mib: float | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path
    events: str = ""
    container: ContainerChoice | None = None
    fused: FusedProgram | None = None
    elastic: ElasticProgram | None = None
    service: ServiceChoice | None = None
    conditions: Mapping[str, Mapping[str, tuple[Value, ...]]] = field(default_factory=dict)
    defaults: Mapping[str, Value] = field(default_factory=dict)
    weight: float = 1.0
    owner: str = ""
    target: Target | None = None
    on_target: tuple[str, ...] = ()

    @property
    def metric(self) -> str:
        """First metric that trials are compared by, empty where they are not."""
        return next(iter(self.objectives), "")

    @property
    def combinations(self) -> int | None:
        """Number of combinations or listed trials, None where a range is continuous."""
        if self.listed:
            return len(self.listed)
        return count_combinations(self.parameters, self.conditions)

    @property
    def trials(self) -> int:
        """Number of trials."""
        return self.search.trials if self.search else (self.combinations or 0)

    def has(self, name: str, chosen: Mapping[str, Value]) -> bool:
        """Return whether trials with these values have a parameter."""
        return all(chosen.get(other) in values for other, values in self.conditions.get(name, {}).items())

    def grid(self) -> Iterator[dict[str, Value]]:
        """Yield the listed trials, or every combination.

        The last parameter changes fastest.
        """
        if self.listed:
            yield from map(dict, self.listed)
        elif not self.conditions:
            spaces = [list_values(space) or () for space in self.parameters.values()]
            yield from (dict(zip(self.parameters, values, strict=True)) for values in product(*spaces))
        else:
            yield from self._combine([*self.parameters], {})

    def _combine(self, names: Sequence[str], chosen: dict[str, Value]) -> Iterator[dict[str, Value]]:
        """Yield every combination of parameters that goes on from chosen values."""
        if not names:
            yield chosen
        elif not self.has(names[0], chosen):
            yield from self._combine(names[1:], chosen)
        else:
            for value in list_values(self.parameters[names[0]]) or ():
                yield from self._combine(names[1:], {**chosen, names[0]: value})

    def draws(self, count: int, *, seed: int) -> list[dict[str, Value]]:
        """Return trials before a search chooses them.

        They are the first of a grid or list. Where a sampler would choose, they are drawn evenly.
        """
        count = min(count, self.trials)
        if self.combinations is not None and self.combinations <= self.trials:
            return list(islice(self.grid(), count))
        random, drawn = Random(seed), []
        for _ in range(count):
            chosen: dict[str, Value] = {}
            for name, space in self.parameters.items():
                if self.has(name, chosen):
                    chosen[name] = _draw(space, random)
            drawn.append(chosen)
        return drawn

    def fill(self, parameters: Mapping[str, Value], *, trial: int, checkpoints: Path) -> list[str]:
        """Return the command of a trial, to be run without a shell.

        The template was split into words before, so a value never becomes two words. The words of parameters that
        the trial does not have are left out.

        Parameters
        ----------
        trial : int
            For the placeholder ``{trial}``.
        checkpoints : Path
            For the placeholder ``{checkpoints}``.
        """
        filled = {**parameters, "trial": trial, "checkpoints": str(checkpoints)}
        absent = {name for word in self.command for name in find_placeholders(word)} - filled.keys()
        return [fill_word(word, filled) for word in leave_out(self.command, absent)]

    def events_folder(self, *, trial: int, checkpoints: Path) -> Path | None:
        """Return where a trial's event files are, or None."""
        filled = fill_word(self.events, {"trial": trial, "checkpoints": str(checkpoints)})
        return self.cwd / filled if filled else None


def parse_memory(text: str) -> float | None:
    """Return an amount such as ``512M`` or ``4G`` in MiB, or None."""
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([MGT])(?:i?B)?", text)
    if parts is None or not float(parts[1]):
        return None
    return float(parts[1]) * {"M": 1, "G": 1 << 10, "T": 1 << 20}[parts[2]]


def format_value(value: Value) -> str:
    """Return a value as it is written in a command."""
    return json.dumps(value) if isinstance(value, bool) else str(value)


def fill_word(word: str, filled: Mapping[str, Value]) -> str:
    """Return a word with its placeholders filled."""
    return _PART.sub(lambda part: format_value(filled[part[1]]) if part[1] else part[0][0], word)


def find_placeholders(word: str) -> Iterator[str]:
    """Yield the names in a word.

    Raises
    ------
    ValueError
        A brace stands alone.
    """
    for part in _PART.finditer(word):
        if part[1]:
            yield part[1]
        elif part[0] in "{}":
            raise ValueError(f"{word!r} has a {part[0]!r} that belongs to no placeholder")


def leave_out(command: Sequence[str], absent: Set[str]) -> list[str]:
    """Return a command without words of parameters that a trial lacks.

    Where such a word is the placeholder alone, the flag before it goes as well.
    """
    words: list[str] = []
    for word in command:
        names = {*find_placeholders(word)} & absent
        if not names:
            words.append(word)
        elif word == f"{{{min(names)}}}" and words[-1].startswith("-"):
            del words[-1]
    return words


def list_values(space: tuple[Value, ...] | ValueRange) -> Sequence[Value] | None:
    """Return every value of a parameter, None if it is continuous."""
    return space.values() if isinstance(space, ValueRange) else space


def is_within(space: tuple[Value, ...] | ValueRange, value: Value) -> bool:
    """Return whether a parameter may have a value."""
    if isinstance(space, tuple):  # where 1, 1.0 and true are other words of a command
        return any(value == each and type(value) is type(each) for each in space)
    if not isinstance(value, int if space.whole else int | float) or isinstance(value, bool):
        return False
    steps = 0.0 if space.step is None else (value - space.low) / space.step
    return space.low <= value <= space.high and abs(steps - round(steps)) < STEP_TOLERANCE


def _draw(space: tuple[Value, ...] | ValueRange, random: Random) -> Value:
    if isinstance(space, ValueRange) and (space.log or space.values() is None):
        low, high = (math.log(space.low), math.log(space.high)) if space.log else (space.low, space.high)
        drawn = random.uniform(low, high)
        drawn = math.exp(drawn) if space.log else drawn
        return min(int(space.high), max(int(space.low), round(drawn))) if space.whole else drawn
    return random.choice(list_values(space) or ())


def count_combinations(
    parameters: Mapping[str, tuple[Value, ...] | ValueRange], conditions: Mapping[str, Mapping[str, tuple[Value, ...]]]
) -> int | None:
    """Return the number of combinations, None where a parameter is continuous."""
    spaces = {name: list_values(space) for name, space in parameters.items()}
    if any(values is None for values in spaces.values()):
        return None
    counts: Counter[tuple[tuple[str, Value], ...]] = Counter({(): 1})
    """How many combinations there are of the parameters so far, by the values that later ones depend on."""
    for place, (name, space) in enumerate(spaces.items()):
        values = space or ()
        later = {other for follower in [*spaces][place + 1 :] for other in conditions.get(follower, {})}
        before, counts = counts, Counter()
        for known, count in before.items():
            chosen = dict(known)
            if not all(chosen.get(other) in wanted for other, wanted in conditions.get(name, {}).items()):
                made: Iterable[tuple[dict[str, Value], int]] = [(chosen, 1)]
            elif name in later:
                made = [({**chosen, name: value}, 1) for value in values]
            else:
                made = [(chosen, len(values))]
            for each, more in made:
                counts[tuple((other, value) for other, value in each.items() if other in later)] += count * more
    return sum(counts.values())


def family(sweep: TrainingSweep, parameters: Mapping[str, Any]) -> str:
    """Return the family of a trial.

    Numbers with a fraction, such as a learning rate, and seeds change what is learned and not the shapes. All others
    may.
    """
    shaping = parameters if sweep.fused is None else sweep.fused.shape(parameters)
    shapes = [
        f"{name}={value}"
        for name, value in sorted(shaping.items())
        if not isinstance(value, float) and not _SEED.search(name)
    ]
    return " ".join([Path(program(sweep)).name, *shapes])


def program(sweep: TrainingSweep) -> str:
    """Return the path of the program that a sweep runs.

    One that is found by its name alone is known by it. Of a module, or of a program that only starts others, it is
    a path in the sweep's folder, since others run other things by that name.
    """
    first, *rest = sweep.command
    script = next((word for word in sweep.command if word.endswith(".py")), None)
    if script is None and "/" not in first and not _LAUNCHER.fullmatch(first):
        return first
    if script is None and _LAUNCHER.fullmatch(Path(first).name):
        script = next((word for flag, word in pairwise(rest) if flag == "-m"), Path(first).name)
    return os.path.normpath(sweep.cwd / (script or first))
