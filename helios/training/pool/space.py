"""Sweep files and the search for the next trial.

A sweep file names a command, its parameters and how they are searched. Grids and lists need nothing else; a search over
ranges is Optuna's, which is imported only here.
"""

from __future__ import annotations

import csv
import errno
import fcntl
import hashlib
import io
import json
import math
import os
import re
import shlex
import shutil
import tomllib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from importlib.util import find_spec
from inspect import isabstract, isclass
from pathlib import Path
from random import Random
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from helios.errors import FileUnreadable, FileUnwritable, UsageError
from helios.private_files import atomic_write, make_folder, open_private
from helios.training.model import TrialState

Value = str | int | float | bool
"""Value of a parameter."""

PAGE = "docs/sweep-file.md"
LARGEST_FILE = 1 << 20
"""Bytes of a sweep file; lists of trials belong into a file of trials."""
LARGEST_TRIALS_FILE = 1 << 26
"""Bytes of a file of trials."""
MOST_TRIALS = 100_000
MOST_PARAMETERS = 256
LONGEST_TEXT = 4_096
"""Characters of a value."""
LARGEST_TRIAL = 100_000
"""Characters of a trial's parameters as JSON; a variable of the environment has at most 128 KiB on Linux."""
LARGEST_END = 2**53
"""Of a range: Optuna counts in floats, which are not every whole number above it."""
FUSIBLE = (
    *("lr", "momentum", "dampening", "nesterov", "betas", "eps", "rho", "weight_decay", "groups", "schedule", "seed"),
    *("data_seed", "clip_norm", "early_stopping", "steps", "epochs"),
)
"""Parameters that may differ between the models of a stack: those of ``helios.training.fused``, and how many epochs."""
COMMON = ("batch_size", "optimizer", "precision", "on_nan")
"""Parameters of which a process that trains a stack has one value."""
FUSED_TASK = "helios.training.fused.task"
"""Module that trains many trials in one process."""
LONGEST_VALUE = 2_000
"""Lines of one value in a sweep file, above which an error names only where it begins."""


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
class TrainingSweep:
    """A sweep file, checked.

    Attributes
    ----------
    path : Path
        The file.
    command : tuple of str
        Words of the command, with placeholders such as ``{lr}``.
    parameters : mapping
        Values or a range of each parameter; empty with a file of trials.
    listed : tuple of mapping
        Trials of a file of trials; empty without one.
    search : SearchMethod, optional
        None for every combination, or every listed trial, in order and without Optuna.
    metric : str
        What trials are compared by. Empty where they are not.
    maximize : bool
        Whether more of the metric is better.
    attempts : int
        How often a trial that fails is started at most.
    memory_mib : float, optional
        Device memory that a trial needs at most, as the user says, MiB.
    env : mapping
        Added to the environment of every trial.
    cwd : Path
        Absolute folder in which trials run.
    events : str
        Folder of a trial's TensorBoard event files, with placeholders. Empty where none are read.
    container : ContainerChoice, optional
        None where trials run on the machine itself.
    fused : FusedProgram, optional
        What is run in place of the command's program, which then names it only.
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
    events: str = ""
    container: ContainerChoice | None = None
    fused: FusedProgram | None = None

    @property
    def combinations(self) -> int | None:
        """Number of combinations or listed trials, None where a range is continuous."""
        if self.listed:
            return len(self.listed)
        return _combinations(self.parameters)

    @property
    def trials(self) -> int:
        """Number of trials."""
        return self.search.trials if self.search else (self.combinations or 0)

    def combination(self, number: int) -> dict[str, Value]:
        """Return a listed trial, or a combination of the grid.

        The last parameter changes fastest.
        """
        if self.listed:
            return dict(self.listed[number])
        chosen: dict[str, Value] = {}
        for name, space in reversed(list(self.parameters.items())):
            values = _values(space) or ()
            number, place = divmod(number, len(values))
            chosen[name] = values[place]
        return dict(reversed(chosen.items()))

    def draws(self, count: int, *, seed: int) -> list[dict[str, Value]]:
        """Return trials before a search chooses them.

        They are the first of a grid or list. Where a sampler would choose, they are drawn evenly.
        """
        if self.combinations is not None and self.combinations <= self.trials:
            return [self.combination(number) for number in range(min(count, self.trials))]
        random = Random(seed)
        return [
            {name: _draw(space, random) for name, space in self.parameters.items()}
            for _ in range(min(count, self.trials))
        ]

    def fill(self, parameters: Mapping[str, Value], *, trial: int, checkpoints: Path) -> list[str]:
        """Return the command of a trial, to be run without a shell.

        The template was split into words before, so a value never becomes two words.

        Parameters
        ----------
        trial : int
            For the placeholder ``{trial}``.
        checkpoints : Path
            For the placeholder ``{checkpoints}``.
        """
        filled = {**parameters, "trial": trial, "checkpoints": str(checkpoints)}
        return [_fill_word(word, filled) for word in self.command]

    def events_folder(self, *, trial: int, checkpoints: Path) -> Path | None:
        """Return where a trial's event files are, or None."""
        filled = _fill_word(self.events, {"trial": trial, "checkpoints": str(checkpoints)})
        return self.cwd / filled if filled else None

    def fingerprint(self) -> str:
        """Return a hash of all that trials depend on but their number."""
        spaces = {
            name: asdict(each) if isinstance(each, ValueRange) else each for name, each in self.parameters.items()
        }
        parts = [self.command, spaces, self.listed, self.metric, self.maximize, self.search and self.search.sampler]
        parts += [] if self.container is None else [self.container.image]
        parts += [] if self.fused is None else [self.fused.settings]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


# Placeholders of a command.

NAME = r"[A-Za-z_][A-Za-z0-9_.-]*"
_PART = re.compile(r"\{\{|\}\}|\{(" + NAME + r")\}|[{}]")
OWN_PLACEHOLDERS = ("trial", "checkpoints")


def format_value(value: Value) -> str:
    """Return a value as it is written in a command."""
    return json.dumps(value) if isinstance(value, bool) else str(value)


def _fill_word(word: str, filled: Mapping[str, Value]) -> str:
    return _PART.sub(lambda part: format_value(filled[part[1]]) if part[1] else part[0][0], word)


def _placeholders(word: str) -> Iterator[str]:
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


def _values(space: tuple[Value, ...] | ValueRange) -> Sequence[Value] | None:
    return space.values() if isinstance(space, ValueRange) else space


def _draw(space: tuple[Value, ...] | ValueRange, random: Random) -> Value:
    if isinstance(space, ValueRange) and (space.log or space.values() is None):
        low, high = (math.log(space.low), math.log(space.high)) if space.log else (space.low, space.high)
        drawn = random.uniform(low, high)
        drawn = math.exp(drawn) if space.log else drawn
        return min(int(space.high), max(int(space.low), round(drawn))) if space.whole else drawn
    return random.choice(_values(space) or ())


def _combinations(parameters: Mapping[str, tuple[Value, ...] | ValueRange]) -> int | None:
    counts = [values and len(values) for space in parameters.values() for values in [_values(space)]]
    return None if None in counts else math.prod(count or 0 for count in counts)


# Reading a sweep file.


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


Table = TypeVar("Table", bound=_Table)


class _SearchTable(_Table):
    trials: int | None = Field(default=None, ge=1, le=MOST_TRIALS, description="How many trials")
    metric: str = Field(min_length=1, description="What the program reports and trials are compared by")
    direction: str = Field(default="maximize", pattern="^(maximize|minimize)$", description="maximize or minimize")
    sampler: str | dict[str, Any] | None = Field(default=None, description="A sampler of Optuna")
    pruner: str | dict[str, Any] | None = Field(default=None, description="A pruner of Optuna")
    seed: int | None = Field(default=None, ge=0, lt=2**32, description="Of the sampler")


class _ContainerTable(_Table):
    image: str = Field(min_length=1, description="A folder, a file, or a name that the runtime knows")
    runtime: str | None = Field(default=None, description="What starts it; else the first that can")
    binds: list[str] = Field(default=[], description="Other folders that trials need, such as data sets")


class _FusedTable(_Table):
    program: str = Field(min_length=1, description="Python file with build, loss and data")
    together: int | None = Field(default=None, ge=1, le=1_024, description="Most trials in one process")
    checkpoint_s: float = Field(default=30.0, gt=0, description="Time between checkpoints of a trial, s")
    epochs: int | None = Field(default=None, ge=1, description="How often all data are gone through")
    batch_size: int | None = Field(default=None, ge=1, description="Samples of a step")
    optimizer: str | None = Field(default=None, description="sgd, adam, adamw or adadelta")
    precision: str | None = Field(default=None, description="float16 or bfloat16")
    on_nan: str | None = Field(default=None, description="stop or skip")
    lr: float | int | None = None
    momentum: float | int | None = None
    dampening: float | int | None = None
    nesterov: bool | None = None
    betas: list[float] | None = None
    eps: float | None = None
    rho: float | None = None
    weight_decay: float | int | None = None
    groups: list[dict[str, Any]] | None = None
    schedule: dict[str, Any] | list[dict[str, Any]] | None = None
    seed: int | None = None
    data_seed: int | None = None
    clip_norm: float | int | None = None
    early_stopping: dict[str, Any] | None = None
    steps: int | None = None
    model: dict[str, Any] | None = Field(default=None, description="What build gets in all trials")


class _SweepTable(_Table):
    command: str | list[str] | None = Field(default=None, description="The program and its arguments")
    fused: dict[str, Any] | None = Field(default=None, description="Instead of a command: models for one process")
    parameters: dict[str, Any] = Field(default={}, max_length=MOST_PARAMETERS, description="Lists and ranges")
    trials_file: str | None = Field(default=None, description="CSV or JSON lines, a trial on each line")
    reads_parameters: bool = Field(default=False, description="The program reads HELIOS_PARAMETERS")
    search: _SearchTable | None = Field(default=None, description="A search instead of the grid")
    attempts: int = Field(default=3, ge=1, le=100, description="How often a trial that fails is started")
    memory: str | None = Field(default=None, description="Device memory of a trial, such as 4G")
    events: str | None = Field(default=None, description="Folder of a trial's TensorBoard files: runs/{trial}")
    env: dict[str, str] = Field(default={}, description="Added to the environment")
    cwd: str | None = Field(default=None, description="Where trials run; else the folder of this file")
    container: str | dict[str, Any] | None = Field(default=None, description="Image in which trials run")


class _RangeTable(_Table):
    low: int | float = Field(description="Smallest value")
    high: int | float = Field(description="Largest value")
    log: bool = Field(default=False, description="Spread evenly over orders of magnitude")
    step: int | float | None = Field(default=None, gt=0, description="Distance of values")
    whole: bool | None = Field(default=None, alias="int", description="Whole numbers only")


class _Refused(Exception):
    """What is wrong with a sweep file, and under which key."""

    def __init__(self, message: str, *keys: str | int, hint: str = "") -> None:
        super().__init__(message)
        self.keys = keys
        self.hint = hint


def read_training_sweep(path: Path) -> TrainingSweep:
    """Read and check a sweep file.

    Raises
    ------
    UsageError
        It cannot be read, or asks for what cannot be run; the message names the line.
    """
    text = _read_text(path, LARGEST_FILE)
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as reason:
        raise UsageError(f"{path} cannot be read as TOML: {reason}.", hint=f"See {PAGE} for an example.") from reason
    try:
        return _sweep(path, _validate(_SweepTable, content))
    except _Refused as reason:
        line = line_number(text, reason.keys)
        hint = reason.hint or f"See {PAGE} for an example."
        raise UsageError(f"{path}, line {line}: {reason}.", hint=hint) from reason


def _read_text(path: Path, largest: int) -> str:
    try:
        if not path.is_file():
            raise UsageError(f"{path} is no file.", hint="Give the path of a sweep file.")
        if path.stat().st_size > largest:
            raise UsageError(
                f"{path} is larger than {largest >> 20} MiB.", hint="Name a file of trials instead: trials_file"
            )
        return path.read_text(encoding="utf-8-sig")
    except OSError as reason:
        raise UsageError(f"{path}: {reason.strerror}.", hint="Give the path of a sweep file.") from reason
    except UnicodeDecodeError as reason:
        raise UsageError(f"{path} is not text in UTF-8.", hint=f"See {PAGE} for an example.") from reason


def line_number(text: str, keys: Sequence[str | int]) -> int:
    """Return the line of a TOML text where keys are set.

    Where the keys are not all there, the line of those that are. Statements are found by reading as few lines as are
    valid TOML, since the standard library's reader gives no lines.
    """
    lines, best, deepest, header, start = text.replace("\r\n", "\n").split("\n"), 1, 0, "", 0
    while start < len(lines):
        for end in range(start + 1, min(len(lines), start + LONGEST_VALUE) + 1):
            statement = "\n".join(lines[start:end])
            with suppress(tomllib.TOMLDecodeError, RecursionError):
                values = tomllib.loads(statement)
                break
        else:
            break
        is_header = statement.lstrip().startswith("[")
        if is_header:
            header = statement
        found: Any = values if is_header else tomllib.loads(f"{header}\n{statement}")
        depth = 0
        for key in keys:
            if not isinstance(found, dict) or key not in found:
                break
            found, depth = found[key], depth + 1
        if depth > deepest:
            best, deepest = start + 1, depth
        start = end
    return best


def _validate(table: type[Table], content: Any, *at: str) -> Table:
    """Return a validated part of the file.

    Raises
    ------
    _Refused
        With the first thing that is wrong.
    """
    try:
        return table.model_validate(content)
    except ValidationError as reason:
        error = min(reason.errors(), key=lambda error: error["type"] != "extra_forbidden")
    keys = [key for key in error["loc"] if isinstance(key, str)]
    inner = _SearchTable if table is _SweepTable and keys[:1] == ["search"] and len(keys) > 1 else table
    name = keys[1 if inner is not table else 0] if keys else ""
    place = (*at, *(keys[:2] if inner is not table else keys[:1]))
    known = {about.alias or key: about for key, about in inner.model_fields.items()}
    if error["type"] == "extra_forbidden":
        near = get_close_matches(name, known, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Known keys: {', '.join(known)}. See {PAGE}."
        raise _Refused(f"the key {name!r} is unknown", *place, hint=hint)
    if error["type"] == "missing":
        raise _Refused(f"the key {name!r} is missing ({known[name].description})", *place[:-1])
    about = f" ({known[name].description})" if name in known else ""
    raise _Refused(f"{'.'.join(place)}{about}: {error['msg']}", *place)


def _sweep(path: Path, table: _SweepTable) -> TrainingSweep:
    folder = path.absolute().parent
    cwd = folder / (table.cwd or ".")
    if not cwd.is_dir():
        raise _Refused(f"the folder {cwd} does not exist", "cwd", hint="Make it, or name another one.")
    fused = _fused(table, cwd)
    command = _command(table, cwd) if fused is None else ("python", "-m", FUSED_TASK, fused.program)
    parameters = {name: _space(name, each) for name, each in table.parameters.items()}
    listed: tuple[dict[str, Value], ...] = ()
    if table.trials_file is not None:
        if parameters:
            raise _Refused("a file of trials and [parameters] exclude each other", "parameters")
        if not (folder / table.trials_file).is_file():
            hint = "Paths are relative to the sweep file."
            raise _Refused(f"the file of trials {table.trials_file} does not exist", "trials_file", hint=hint)
        listed = read_trials(folder / table.trials_file)
    names = set(parameters) | {name for trial in listed for name in trial}
    if fused is None:
        _check_names(command, names, table)
    else:
        for needed, hint in (
            (("epochs", "steps"), "Write epochs = 10 in [fused], or in [parameters]."),
            (("batch_size",), "Write batch_size = 32 in [fused], or in [parameters]."),
        ):
            if not {*needed} & {*names, *fused.settings}:
                raise _Refused(f"nothing says {' or '.join(needed)} of trials", "fused", hint=hint)
    longest = {name: max(space, key=_size) for name, space in parameters.items() if isinstance(space, tuple)}
    if max(map(_size, listed or [longest])) > LARGEST_TRIAL:
        at = "trials_file" if listed else "parameters"
        raise _Refused(f"the values of a trial are more than {LARGEST_TRIAL:,} characters together", at)
    for name in table.env:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or name.startswith("HELIOS_") or "\0" in table.env[name]:
            raise _Refused(f"{name!r} cannot be set in the environment of trials", "env", name, hint="Name another.")
    count = len(listed) if listed else _combinations(parameters)
    return TrainingSweep(
        path=path,
        command=command,
        parameters=parameters,
        listed=listed,
        search=_search(table, count, parameters),
        metric=table.search.metric if table.search else "",
        maximize=table.search is None or table.search.direction == "maximize",
        attempts=table.attempts,
        memory_mib=_memory_mib(table.memory),
        env=dict(table.env),
        cwd=cwd.resolve(),
        events=_events(table.events),
        container=_container(table.container, folder),
        fused=fused,
    )


def _fused(table: _SweepTable, cwd: Path) -> FusedProgram | None:
    """Return the fused program, or None for a command."""
    if table.fused is None:
        if table.command is None:
            hint = 'Write command = "python train.py --lr {lr}", or program = "models.py" in [fused].'
            raise _Refused("the key 'command' is missing (The program and its arguments)", hint=hint)
        return None
    for key in ("command", "container", "events", "reads_parameters"):
        if getattr(table, key):
            raise _Refused(f"[fused] and {key} exclude each other", key, hint=f"Leave {key} or [fused] out.")
    fused_table = _validate(_FusedTable, table.fused, "fused")
    if not (cwd / fused_table.program).is_file():
        hint = "Paths are relative to the file, or to cwd."
        raise _Refused(f"{fused_table.program} is not in {cwd}", "fused", "program", hint=hint)
    if find_spec("torch") is None:
        raise _Refused("[fused] needs PyTorch", "fused", hint="pip install 'helios-slurm[fused]'")
    settings = fused_table.model_dump(exclude_none=True, exclude={"program", "together"})
    return FusedProgram(program=fused_table.program, together=fused_table.together, settings=settings)


def _size(value: Any) -> int:
    return len(json.dumps(value))


def _events(template: str | None) -> str:
    try:
        names = set(_placeholders(template or ""))
    except ValueError as reason:
        raise _Refused(str(reason), "events") from reason
    if template is not None and (not names or names - {*OWN_PLACEHOLDERS}):
        hint = 'Write events = "runs/{trial}", and the same folder in the command.'
        raise _Refused("the folder of event files must differ by {trial} or {checkpoints} alone", "events", hint=hint)
    return template or ""


RUNTIMES = ("slurm", "apptainer", "podman", "charliecloud")
_IMAGE_FILE = re.compile(r"^[./~]|\.(sif|tar|tgz|tar\.\w+|sqfs|sqsh|squashfs)$")


def _container(given: str | dict[str, Any] | None, folder: Path) -> ContainerChoice | None:
    """Return an image that is there, where it is a file."""
    if given is None:
        return None
    table = _validate(_ContainerTable, {"image": given} if isinstance(given, str) else given, "container")
    if table.runtime is not None and table.runtime not in RUNTIMES:
        hint = f"Known: {', '.join(RUNTIMES)}; or leave it out."
        raise _Refused(f"the container runtime {table.runtime!r} is unknown", "container", hint=hint)
    image = table.image
    path = folder / Path(image).expanduser()
    if _IMAGE_FILE.search(image) or path.exists():
        if not path.exists():
            hint = "Paths are relative to the sweep file; a name without / is one that the runtime knows."
            raise _Refused(f"the container image {path} does not exist", "container", hint=hint)
        if not os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)):
            hint = "Have its owner let you read it."
            raise _Refused(f"the container image {path} cannot be read", "container", hint=hint)
        image = str(path.resolve())
    binds = [folder / Path(bind).expanduser() for bind in table.binds]
    for bind in binds:
        if not bind.exists() or {*":,\n"} & {*str(bind)}:
            raise _Refused(f"{bind} cannot be bound into the container", "container", hint="Name a folder that exists.")
    return ContainerChoice(
        image=image, runtime=table.runtime or "", binds=tuple(str(bind.absolute()) for bind in binds)
    )


def _memory_mib(text: str | None) -> float | None:
    if text is None:
        return None
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([MGT])(?:i?B)?", text)
    if parts is None or not float(parts[1]):
        raise _Refused(f"{text!r} is not an amount of memory", "memory", hint="Write 512M or 4G; 1G is 1,024M.")
    return float(parts[1]) * {"M": 1, "G": 1 << 10, "T": 1 << 20}[parts[2]]


SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
OF_A_SHELL = ("&&", "||", "|", ";", "&", ">", ">>", "<", "2>", "2>&1")


def _command(table: _SweepTable, cwd: Path) -> tuple[str, ...]:
    """Return the words of the command.

    It must exist, and must not need a shell.
    """
    try:
        words = shlex.split(table.command) if isinstance(table.command, str) else list(table.command or ())
    except ValueError as reason:
        raise _Refused(f"the command cannot be split into words: {reason}", "command") from reason
    if not words or not words[0]:
        raise _Refused("the command is empty", "command")
    try:
        names = [list(_placeholders(word)) for word in words]
    except ValueError as reason:
        hint = "Write {name} for a parameter, and {{ or }} for a brace."
        raise _Refused(f"the command's word {reason}", "command", hint=hint) from reason
    if any("\0" in word for word in words):
        raise _Refused("the command holds a null character", "command")
    if isinstance(table.command, str) and (special := [word for word in words if word in OF_A_SHELL]):
        hint = "Put it into a script, or write the command as a list that starts a shell."
        raise _Refused(f"{special[0]!r} is of a shell, and trials are started without one", "command", hint=hint)
    program = _fill_word(words[0], {}) if not names[0] else ""
    if not program:
        raise _Refused("the program itself cannot be a parameter", "command", hint="Write one sweep file for each.")
    where = str(cwd / program) if "/" in program else program
    if table.container is None and shutil.which(where, path=table.env.get("PATH")) is None:
        hint = "Check its name, its mode and PATH; paths are relative to the folder in which trials run."
        raise _Refused(f"the command {program!r} is not found", "command", hint=hint)
    base = Path(program).name
    text = next((place + 1 for place, word in enumerate(words) if re.fullmatch(r"-[a-z]*c", word)), len(words))
    if base in SHELLS and any(names[text:][:1]):
        hint = 'Values could become commands there. Use a script, or "$1": ["sh", "-c", "... $1", "sh", "{lr}"].'
        raise _Refused("the text of a shell holds a placeholder", "command", hint=hint)
    script = next(iter(words[1:2]), "") if re.fullmatch(r"python[0-9.]*", base) else ""
    inside = table.container is not None and Path(script).is_absolute()
    if script.endswith(".py") and not inside and not names[1] and not (cwd / _fill_word(script, {})).is_file():
        raise _Refused(f"{script} is not in {cwd}", "command", hint="Paths are relative to the file, or to cwd.")
    return tuple(words)


def _check_names(command: tuple[str, ...], known: set[str], table: _SweepTable) -> None:
    """Refuse placeholders without a parameter and parameters without a placeholder."""
    used = {name for word in command for name in _placeholders(word)}
    for name in sorted(used - known - {*OWN_PLACEHOLDERS}):
        near = get_close_matches(name, [*known, *OWN_PLACEHOLDERS], n=1)
        hint = f"Did you mean {{{near[0]}}}?" if near else "Name it in [parameters]; {{ is a brace."
        raise _Refused(f"the command uses {{{name}}}, which is no parameter", "command", hint=hint)
    if table.reads_parameters:
        return
    for name in sorted(known - used):
        hint = (
            f"Write {{{name}}} where it belongs, or reads_parameters = true above [parameters] if the program reads "
            "HELIOS_PARAMETERS."
        )
        key = ("parameters", name) if name in table.parameters else ("trials_file",)
        raise _Refused(f"the command does not use the parameter {name!r}", *key, hint=hint)


def _value_fault(value: Any) -> str:
    """Return why something cannot be a value, or nothing."""
    if not isinstance(value, Value):
        return "is neither text, a number nor true or false"
    if isinstance(value, float) and not math.isfinite(value):
        return "is not a finite number"
    if isinstance(value, int) and abs(value) >= 2**63:
        return "is too large a number"
    if isinstance(value, str) and ("\0" in value or len(value) > LONGEST_TEXT):
        return f"holds a null character or more than {LONGEST_TEXT:,} characters"
    return ""


def _name_fault(name: str) -> str:
    """Return why something cannot be the name of a parameter, or nothing."""
    if name in OWN_PLACEHOLDERS:
        return f"{name!r} is a name that every trial has already"
    return "" if re.fullmatch(NAME, name) else f"{name!r} is no name of a parameter"


def _space(name: str, given: Any) -> tuple[Value, ...] | ValueRange:
    at = ("parameters", name)
    if fault := _name_fault(name):
        raise _Refused(fault, *at, hint="Use letters, digits, '_', '.' and '-', and a letter first.")
    if isinstance(given, dict):
        return _range(name, given)
    values = given if isinstance(given, list) else [given]
    if not values:
        raise _Refused(f"{name} has no values, so there are no trials", *at, hint="Name one or leave it out.")
    for value in values:
        if fault := _value_fault(value):
            raise _Refused(f"a value of {name} {fault}", *at)
    if len(set(values)) < len(values):  # also 1 and 1.0 and true, which Optuna could not tell apart
        twice = next(value for place, value in enumerate(values) if value in values[:place])
        raise _Refused(f"{name} has the value {format_value(twice)} twice", *at)
    return tuple(values)


def _range(name: str, given: dict[str, Any]) -> ValueRange:
    at = ("parameters", name)
    table = _validate(_RangeTable, given, *at)
    numbers = [table.low, table.high, *([table.step] if table.step is not None else [])]
    if fault := next(filter(None, map(_value_fault, numbers)), ""):
        raise _Refused(f"an end of {name} {fault}", *at)
    if max(map(abs, numbers)) > LARGEST_END:
        raise _Refused(f"an end of {name} is too large", *at)
    all_whole = all(isinstance(number, int) for number in numbers)
    whole = table.whole if table.whole is not None else all_whole and table.step is not None
    if all_whole and table.whole is None and table.step is None:
        hint = f"Write int = true, or {float(table.low)} instead of {table.low}."
        raise _Refused(f"{name} may be meant as whole numbers or as any", *at, hint=hint)
    if whole and not all_whole:
        raise _Refused(f"{name} is of whole numbers, and an end or the step is none", *at)
    if table.low > table.high:
        raise _Refused(f"{name} is empty: low is above high", *at)
    if table.log and (table.low <= 0 or table.step is not None):
        raise _Refused(f"{name} with log = true needs a low above 0 and no step", *at)
    if table.step is not None and table.step > max(table.high - table.low, 0):
        raise _Refused(f"the step of {name} is larger than the range", *at)
    make = int if whole else float
    return ValueRange(
        low=make(table.low), high=make(table.high), log=table.log, step=table.step and make(table.step), whole=whole
    )


def _search(table: _SweepTable, count: int | None, parameters: Mapping[str, Any]) -> SearchMethod | None:
    """Return how Optuna searches, or None where it is not needed."""
    if not parameters and table.trials_file is None:
        raise _Refused("there are no trials", "parameters", hint="Name values in [parameters], or a trials_file.")
    search = table.search
    if search is None or search.trials is None:
        at = ("search",) if search else ("parameters",)
        if count is None:
            endless = next(name for name, space in parameters.items() if _values(space) is None)
            hint = 'Write how many in [search]: trials = 64 and metric = "..."; or a list of values, or a step.'
            raise _Refused(
                f"{endless} is continuous, and no number of trials is given",
                *at,
                *((endless,) if at == ("parameters",) else ()),
                hint=hint,
            )
        if count > MOST_TRIALS:
            hint = "Write fewer values, or how many of them in [search]: trials = 64."
            raise _Refused(f"these are {count:,} trials, above the {MOST_TRIALS:,} of a pool", *at, hint=hint)
        if search is None or (search.sampler is None and search.pruner is None):
            return None
        if search.sampler is not None:
            raise _Refused("a sampler needs a number of trials", "search", "sampler", hint="Write trials = 64.")
    elif table.trials_file is not None:
        raise _Refused("the file of trials says how many there are", "search", "trials")
    elif count is not None and search.trials > count:
        hint = "Leave trials out for every combination."
        raise _Refused(f"{search.trials} trials of {count} combinations repeat some", "search", "trials", hint=hint)
    sampler, sampler_options = _choice(search.sampler, "sampler", "TPESampler" if search.trials else "")
    pruner, pruner_options = _choice(search.pruner, "pruner", "")
    method = SearchMethod(
        trials=search.trials or count or 0,
        sampler=sampler,
        sampler_options=sampler_options,
        pruner=pruner,
        pruner_options=pruner_options,
        seed=search.seed,
    )
    for kind, alone in (("sampler", replace(method, pruner="")), ("pruner", replace(method, sampler=""))):
        try:
            with _silence_warnings():
                study = load_optuna().create_study(sampler=_make_sampler(alone, 0), pruner=_make_pruner(alone))
                for _ in range(2):
                    trial = study.ask()
                    trial.suggest_float("x", 0.0, 1.0)
                    trial.report(0.0, 1)
                    trial.should_prune()
                    study.tell(trial, 0.0)
        except UsageError:
            raise
        except Exception as reason:  # whatever a class of Optuna, or what it needs, says of its arguments
            hint = "See the class in Optuna's documentation."
            raise _Refused(f"Optuna refuses the {kind}: {reason}", "search", kind, hint=hint) from reason
    return method


def _choice(given: str | dict[str, Any] | None, kind: str, default: str) -> tuple[str, dict[str, Any]]:
    """Return a class name of Optuna and its arguments."""
    options = dict(given) if isinstance(given, dict) else {"name": given}
    name = options.pop("name", None)
    if name is None and given is not None:
        raise _Refused(f"the {kind} has no name", "search", kind, hint=f'Write {kind} = {{ name = "...", ... }}.')
    if name is None:
        return default, {}
    module = getattr(load_optuna(), f"{kind}s")
    suffix = kind.capitalize()
    known = {
        each.removesuffix(suffix).lower(): each
        for each in module.__all__
        if each.endswith(suffix) and isclass(made := getattr(module, each)) and not isabstract(made)
        if each not in ("GridSampler", "PartialFixedSampler", "PatientPruner", "BaseGASampler")
    }
    plain = re.sub(r"[^a-z]", "", str(name).lower()).removesuffix(kind)
    if plain not in known:
        near = get_close_matches(plain, known, n=1)
        hint = f"Did you mean {known[near[0]]}?" if near else f"Known: {', '.join(sorted(known.values()))}."
        if plain == "grid":
            hint = "Leave sampler and trials out for the grid."
        raise _Refused(f"{name!r} is no {kind} that can be used", "search", kind, hint=hint)
    return known[plain], options


def read_trials(path: Path) -> tuple[dict[str, Value], ...]:
    """Read a file of trials, CSV with a header or JSON lines.

    Raises
    ------
    UsageError
        It cannot be read, or a trial lacks a parameter that another has; the message names the line.
    """

    def refuse(line: int, message: str) -> UsageError:
        hint = f"Give every trial on a line of its own the same parameters. See {PAGE}."
        return UsageError(f"{path}, line {line}: {message}.", hint=hint)

    text = _read_text(path, LARGEST_TRIALS_FILE)
    read = _csv_rows if path.suffix == ".csv" else _json_rows
    trials: list[dict[str, Value]] = []
    line = 1
    try:
        for line, trial in read(text):
            if not isinstance(trial, dict):
                raise refuse(line, 'it is no JSON object such as {"lr": 0.1, "width": 64}')
            if trials and set(trial) != set(trials[0]):
                odd = min(set(trial) ^ set(trials[0]))
                raise refuse(line, f"{odd!r} is missing here or in the first trial")
            for name, value in trial.items():
                if fault := _name_fault(name):
                    raise refuse(line, fault)
                if fault := _value_fault(value):
                    raise refuse(line, f"the value of {name} {fault}")
            if len(trials) >= MOST_TRIALS or len(trial) > MOST_PARAMETERS:
                raise refuse(line, f"more than {MOST_TRIALS:,} trials or {MOST_PARAMETERS} parameters")
            trials.append(trial)
    except (ValueError, csv.Error) as reason:
        raise refuse(line + 1, str(reason)) from reason
    if not trials or not trials[0]:
        raise refuse(1, "there are no trials")
    return tuple(trials)


def _json_rows(text: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            trial = json.loads(line)
        except (ValueError, RecursionError):
            trial = None
        yield number, trial


def _csv_rows(text: str) -> Iterator[tuple[int, Any]]:
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    names = next(rows, [])
    if len(set(names)) < len(names):
        raise ValueError("a column is there twice")
    for row in rows:
        if row:
            if len(row) != len(names):
                raise ValueError(f"{len(row)} values for {len(names)} columns")
            yield rows.line_num, {name: _from_text(value) for name, value in zip(names, row, strict=True)}


def _from_text(text: str) -> Value:
    """Parse a JSON number or truth value in a text."""
    if re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?|true|false", text):
        value: Value = json.loads(text)
        return value
    return text


# Searches. One process at a time has a search's folder.


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTrial:
    """A trial to run."""

    number: int
    parameters: Mapping[str, Value]


class Search(Protocol):
    """Which trial comes next, kept in a folder.

    One process at a time has the folder, or several take turns. After a restart, trials that were asked for and not
    told are asked for again under the same number.
    """

    def ask(self) -> NextTrial | None:
        """Return the next trial, or None when all were asked for.

        Raises
        ------
        FileUnwritable
            The folder cannot be written. The same may be asked again.
        """

    def tell(self, number: int, state: TrialState, metric: float | None) -> None:
        """Record for good how a trial ended.

        Raises
        ------
        FileUnwritable
            The folder cannot be written. The same may be told again.
        """

    def report(self, number: int, step: int, value: float) -> bool:
        """Record a metric and return whether to prune.

        The metric may be NaN.

        Raises
        ------
        FileUnwritable
            The folder cannot be written. Nothing is lost but this value.
        """

    def close(self) -> None:
        """Let another process open the folder."""


def open_search(sweep: TrainingSweep, folder: Path, *, others: int | None = None) -> Search:
    """Open or resume the search of a sweep in a folder.

    Parameters
    ----------
    others : int, optional
        How many processes have had it open before, where several may have it at the same time; they must then take
        turns. None where only this one may.

    Raises
    ------
    UsageError
        The folder belongs to another sweep or to a process that runs, or Optuna is needed and missing.
    FileUnreadable, FileUnwritable
        What is in the folder is damaged, or it cannot be written.
    """
    with _disk_errors(folder):
        make_folder(folder)
        lock = open_private(folder / "search.lock")
        try:
            try:
                fcntl.flock(lock, (fcntl.LOCK_EX if others is None else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            except BlockingIOError as reason:
                raise UsageError(
                    f"Another process works in {folder}.", hint="Wait for it, or choose another folder."
                ) from reason
            _check_same(sweep, folder / "sweep.fingerprint")
            if sweep.search:
                return OptunaSearch(sweep, folder, lock, others=others or 0)
            return ListSearch(sweep, folder, lock)
        except BaseException:
            os.close(lock)
            raise


def _check_same(sweep: TrainingSweep, record: Path) -> None:
    try:
        before = record.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        atomic_write(record, sweep.fingerprint() + "\n", mode=0o640)
        return
    if before != sweep.fingerprint():
        raise UsageError(
            f"{record.parent} is of a sweep with another command, parameters, metric or sampler.",
            hint="Choose another folder, or remove this one and what it knows.",
        )


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as reason:
        raise FileUnwritable(
            f"{folder} cannot be used: {reason.strerror}.", hint="Make room or set its mode, then start again."
        ) from reason


def _trim(handle: int) -> None:
    """Cut off a last line that was only written in part."""
    size = os.fstat(handle).st_size
    end = size
    while end:
        start = max(0, end - 65_536)
        found = os.pread(handle, end - start, start).rfind(b"\n")
        end = start + found + 1 if found >= 0 else start
        if found >= 0:
            break
    if end < size:
        os.ftruncate(handle, end)


class ListSearch:
    """Every combination of a grid, or every listed trial, in order."""

    def __init__(self, sweep: TrainingSweep, folder: Path, lock: int) -> None:
        self._sweep, self._folder, self._lock = sweep, folder, lock
        self._record = open_private(folder / "told.jsonl")
        _trim(self._record)
        self._ended: set[int] = set()
        size = os.fstat(self._record).st_size
        for line in os.pread(self._record, size, 0).splitlines():
            try:
                self._ended.add(json.loads(line)["number"])
            except (ValueError, TypeError, KeyError) as reason:
                os.close(self._record)
                raise FileUnreadable(
                    f"{folder / 'told.jsonl'} is damaged.", hint="Choose another folder, or remove this one."
                ) from reason
        self._next = 0

    def ask(self) -> NextTrial | None:
        """Return the next trial, or None when all were asked for."""
        while self._next in self._ended:
            self._next += 1
        if self._next >= self._sweep.trials:
            return None
        self._next += 1
        return NextTrial(number=self._next - 1, parameters=self._sweep.combination(self._next - 1))

    def tell(self, number: int, state: TrialState, metric: float | None) -> None:
        """Record how a trial ended."""
        if number in self._ended:
            return
        line = json.dumps({"number": number, "state": state.value, "metric": finite(metric)}) + "\n"
        with _disk_errors(self._folder), _truncate_on_failure(self._record) as end:
            if os.pwrite(self._record, line.encode(), end) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._ended.add(number)

    def report(self, number: int, step: int, value: float) -> bool:
        """Return False, since nothing is pruned without Optuna."""
        del number, step, value
        return False

    def close(self) -> None:
        """Let another process open the folder."""
        os.close(self._record)
        os.close(self._lock)


@contextmanager
def _truncate_on_failure(handle: int) -> Iterator[int]:
    """Yield a file's end, and truncate there after a failure."""
    size = os.fstat(handle).st_size
    try:
        yield size
    except OSError:
        os.ftruncate(handle, size)
        raise


def finite(value: float | None) -> float | None:
    """Return a number, None for NaN and infinity."""
    return value if value is not None and math.isfinite(value) else None


def load_optuna() -> Any:
    """Return the package.

    Raises
    ------
    UsageError
        It is not installed.
    """
    try:
        import optuna  # noqa: PLC0415 - an extra, and not needed for grids
        import optuna.storages.journal  # noqa: PLC0415 - as above
    except ImportError as reason:
        raise UsageError(
            "A [search] needs Optuna, which is not installed here.", hint="pip install 'helios-slurm[search]'"
        ) from reason
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _make_sampler(method: SearchMethod, done: int) -> Any:
    """Return a sampler with a fresh seed after a restart."""
    if not method.sampler:
        return None
    options = dict(method.sampler_options)
    if method.seed is not None:
        options["seed"] = (method.seed + 1_000_003 * done) % 2**32
    if method.sampler == "TPESampler":
        options.setdefault("constant_liar", True)  # trials run side by side, and would else be drawn close together
    with _silence_warnings():
        return getattr(load_optuna().samplers, method.sampler)(**options)


def _make_pruner(method: SearchMethod) -> Any:
    if not method.pruner:
        return load_optuna().pruners.NopPruner()
    return getattr(load_optuna().pruners, method.pruner)(**method.pruner_options)


_OTHER_SEED = 7_919
"""Moves the seed of a process that shares a search, so that it draws other trials."""
JOURNAL, STUDY = "optuna.journal", "sweep"
"""File of a search in Optuna's own format, and the study in it: ``optuna-dashboard FOLDER/optuna.journal``."""
LOCKED = "pool\n"
STALE_LOCK_S = 5
"""After which the lock of a dashboard that was killed is broken, s; it is held for one write."""
EVERY_STEP = 100
"""Up to this step all reports are kept, then those that are ``THINNED`` times later than the last one kept."""
THINNED = 1.01


class _Journal:
    """Optuna's journal file, with the lock of its dashboard.

    A kill leaves neither a line that was only written in part nor, since the lock says whose it is, the lock.
    """

    def __init__(self, path: Path) -> None:
        journal = load_optuna().storages.journal
        self._handle = open_private(path)
        _trim(self._handle)
        self._lock_path = path.with_name(f"{path.name}.lock")
        with suppress(FileNotFoundError):
            if self._lock_path.read_text() == LOCKED:  # by a pool that was killed: this one has the folder now
                self._lock_path.unlink()
        self._lock = journal.JournalFileOpenLock(str(path), grace_period=STALE_LOCK_S)
        self._file = journal.JournalFileBackend(str(path), lock_obj=self)

    def acquire(self) -> bool:
        self._lock.acquire()
        self._lock_path.write_text(LOCKED)
        return True

    def release(self) -> None:
        with suppress(RuntimeError):  # a dashboard broke the lock while this process was stopped; the line is written
            self._lock.release()

    def read_logs(self, log_number_from: int) -> Any:
        return self._file.read_logs(log_number_from)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        with _truncate_on_failure(self._handle):
            self._file.append_logs(logs)

    def close(self) -> None:
        os.close(self._handle)


class OptunaSearch:
    """A search with a sampler or pruner of Optuna."""

    def __init__(self, sweep: TrainingSweep, folder: Path, lock: int, *, others: int = 0) -> None:
        assert sweep.search is not None
        self._sweep, self._method, self._folder, self._lock = sweep, sweep.search, folder, lock
        self._optuna = load_optuna()
        self._spaces = {name: self._distribution(space) for name, space in _spaces(sweep).items()}
        self._journal = _Journal(folder.absolute() / JOURNAL)
        try:
            with _silence_warnings():
                self._study = self._optuna.create_study(
                    study_name=STUDY,
                    storage=self._optuna.storages.JournalStorage(self._journal),
                    direction="maximize" if sweep.maximize else "minimize",
                    load_if_exists=True,
                )
                before = self._study.get_trials(deepcopy=False)
                self._study.sampler = (
                    _make_sampler(self._method, len(before) + _OTHER_SEED * others) or self._study.sampler
                )
                self._study.pruner = _make_pruner(self._method)
        except (ValueError, KeyError, TypeError, AssertionError) as reason:
            self._journal.close()
            raise FileUnreadable(
                f"{folder / JOURNAL} cannot be read: {reason}.", hint="Choose another folder, or remove this one."
            ) from reason
        self._asked = 0
        self._again: list[int] = []
        self._trials: dict[int, Any] = {}
        self._take_up()

    def _take_up(self) -> None:
        """Queue trials that the study has and nobody was given."""
        trials = self._study.get_trials(deepcopy=False)
        self._again += [trial.number for trial in trials[self._asked :] if not trial.state.is_finished()]
        self._asked = len(trials)

    def ask(self) -> NextTrial | None:
        """Return the next trial, or None when all were asked for."""
        with _disk_errors(self._folder), _silence_warnings():
            self._take_up()  # what others asked for meanwhile
            try:
                if not self._again and self._asked < self._method.trials:
                    self._begin()
            finally:
                self._take_up()
            if not self._again:
                return None
            parameters = self._parameters(self._again[0])
        return NextTrial(number=self._again.pop(0), parameters=parameters)

    def _begin(self) -> None:
        if self._method.sampler:
            self._study.ask()
            return
        parameters = self._sweep.combination(self._asked)
        create, running = self._optuna.trial.create_trial, self._optuna.trial.TrialState.RUNNING
        self._study.add_trial(create(state=running, params=parameters, distributions=self._spaces))

    def _parameters(self, number: int) -> dict[str, Value]:
        if not self._method.sampler:
            return self._sweep.combination(number)
        trial = self._trial(number)
        return {name: self._suggest(trial, name) for name in self._spaces}

    def _suggest(self, trial: Any, name: str) -> Value:
        """Draw a value, or return the recorded one."""
        value: Value
        space = self._sweep.parameters[name]
        if isinstance(space, tuple):
            value = trial.suggest_categorical(name, space)
        elif space.whole:
            value = trial.suggest_int(name, int(space.low), int(space.high), step=int(space.step or 1), log=space.log)
        else:
            value = trial.suggest_float(name, space.low, space.high, step=space.step, log=space.log)
        return value

    def _distribution(self, space: tuple[Value, ...] | ValueRange) -> Any:
        distributions = self._optuna.distributions
        if isinstance(space, tuple):
            return distributions.CategoricalDistribution(space)
        if space.whole:
            return distributions.IntDistribution(
                int(space.low), int(space.high), log=space.log, step=int(space.step or 1)
            )
        return distributions.FloatDistribution(space.low, space.high, log=space.log, step=space.step)

    def _trial(self, number: int) -> Any:
        if number not in self._trials:
            known = self._study.get_trials(deepcopy=False)[number]
            self._trials[number] = self._optuna.trial.Trial(self._study, known._trial_id)
        return self._trials[number]

    def tell(self, number: int, state: TrialState, metric: float | None) -> None:
        """Record how a trial ended.

        One that finished without its metric has failed, for Optuna.
        """
        states = self._optuna.trial.TrialState
        value = finite(metric) if state is TrialState.FINISHED else None
        optuna_state = (
            states.PRUNED if state is TrialState.PRUNED else states.FAIL if value is None else states.COMPLETE
        )
        with _disk_errors(self._folder), _silence_warnings():
            self._study.tell(number, value, state=optuna_state, skip_if_finished=True)
        self._trials.pop(number, None)

    def report(self, number: int, step: int, value: float) -> bool:
        """Record a metric, and return whether to prune the trial."""
        with _disk_errors(self._folder), _silence_warnings():
            trial = self._trial(number)
            known = self._study.get_trials(deepcopy=False)[number]
            last = max(known.intermediate_values, default=-1)
            too_soon = step <= last or (step >= EVERY_STEP and step < THINNED * last)
            if step < 0 or too_soon or known.state.is_finished():
                return False
            trial.report(value, step)
            return bool(trial.should_prune())

    def close(self) -> None:
        """Let another process open the folder."""
        self._journal.close()
        os.close(self._lock)


def _spaces(sweep: TrainingSweep) -> dict[str, tuple[Value, ...] | ValueRange]:
    """Return the space of each parameter."""
    if not sweep.listed:
        return dict(sweep.parameters)
    spaces: dict[str, tuple[Value, ...] | ValueRange] = {}
    for name in sweep.listed[0]:
        values = [trial[name] for trial in sweep.listed]
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        if len(numbers) < len(values):
            spaces[name] = tuple(dict.fromkeys(values))
        else:
            whole = all(isinstance(value, int) for value in numbers)
            spaces[name] = ValueRange(low=min(numbers), high=max(numbers), whole=whole)
    return spaces


@contextmanager
def _silence_warnings() -> Iterator[None]:
    """Hide Optuna's warnings about experimental features."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
