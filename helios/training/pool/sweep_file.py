"""Sweep files, read and checked before anything starts."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from importlib.util import find_spec
from inspect import isabstract, isclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from helios.errors import ServiceInvalid, ServiceUnknown, UsageError
from helios.services.registry import POOL_GROUP, checked_options, find, list_options
from helios.targets import Target, parse_target
from helios.training.model import ServiceChoice, name_directions
from helios.training.pool.reports import OWN_KEYS
from helios.training.pool.search import load_optuna, make_pruner, make_sampler, silence_warnings
from helios.training.pool.sweep import (
    FUSED_TASK,
    GRACE_S,
    MOST_TRIALS,
    NAME,
    OWN_PLACEHOLDERS,
    STEP_TOLERANCE,
    ContainerChoice,
    ElasticProgram,
    FusedProgram,
    SearchMethod,
    TrainingSweep,
    Value,
    ValueRange,
    count_combinations,
    fill_word,
    find_placeholders,
    format_value,
    is_within,
    list_values,
    parse_memory,
)
from helios.units import length

PAGE = "docs/sweep-file.md"
LARGEST_FILE = 1 << 20
"""Bytes of a sweep file; lists of trials belong into a file of trials."""
LARGEST_TRIALS_FILE = 1 << 26
"""Bytes of a file of trials."""
MOST_PARAMETERS = 256
LONGEST_TEXT = 4_096
"""Characters of a value."""
LARGEST_TRIAL = 100_000
"""Characters of a trial's parameters as JSON; a variable of the environment has at most 128 KiB on Linux."""
MOST_DEVICES = 4_096
"""Of a trial; more is taken for a mistake."""
LARGEST_END = 2**53
"""Of a range: Optuna counts in floats, which are not every whole number above it."""
LONGEST_VALUE = 2_000
"""Lines of one value in a sweep file, above which an error names only where it begins."""
RUNTIMES = ("slurm", "apptainer", "podman", "charliecloud")
_IMAGE_FILE = re.compile(r"^[./~]|\.(sif|tar|tgz|tar\.\w+|sqfs|sqsh|squashfs)$")
SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
OF_A_SHELL = ("&&", "||", "|", ";", "&", ">", ">>", "<", "2>", "2>&1")


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


Table = TypeVar("Table", bound=_Table)


class _SearchTable(_Table):
    trials: int | None = Field(default=None, ge=1, le=MOST_TRIALS, description="How many trials")
    metric: str | list[str] = Field(min_length=1, description="What the program reports and trials are compared by")
    direction: str | list[str] | None = Field(default=None, description="maximize or minimize, for each metric")
    sampler: str | dict[str, Any] | None = Field(default=None, description="A sampler of Optuna")
    pruner: str | dict[str, Any] | None = Field(default=None, description="A pruner of Optuna")
    seed: int | None = Field(default=None, ge=0, lt=2**32, description="Of the sampler")


class _ContainerTable(_Table):
    image: str = Field(min_length=1, description="A folder, a file, or a name that the runtime knows")
    runtime: str | None = Field(default=None, description="What starts it; else the first that can")
    binds: list[str] = Field(default=[], description="Other folders that trials need, such as data sets")


class _FusedTable(_Table):
    program: str = Field(min_length=1, description="Python file with build, data, and loss or step")
    together: int | None = Field(default=None, ge=1, le=1_024, description="Most trials in one process")
    checkpoint_s: float = Field(default=30.0, gt=0, description="Time between checkpoints of a trial, s")
    epochs: int | None = Field(default=None, ge=1, description="How often all data are gone through")
    batch_size: int | None = Field(default=None, ge=1, description="Samples of a step, of data in tensors")
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


class _ElasticTable(_Table):
    least: int = Field(default=1, ge=1, description="Fewest devices of a trial")
    most: int = Field(ge=1, le=MOST_DEVICES, description="Most devices of a trial")
    batch: list[int] = Field(min_length=2, max_length=2, description="Smallest and largest batch over all devices")
    local_batch: list[int] = Field(min_length=2, max_length=2, description="Least and most samples of a device")
    epochs: int | None = Field(default=None, ge=1, description="How many a trial trains")
    every_s: float | int = Field(default=60.0, ge=1, description="Least time between two changes, s")


class _TargetTable(_Table):
    metric: str = Field(min_length=1, description="What the program reports and the target is of")
    first: float = Field(description="Value from which the model is delivered")
    second: float | None = Field(default=None, description="Value towards which training goes on")
    direction: str | None = Field(default=None, description="maximize or minimize, where nothing else says it")
    deadline: str | None = Field(default=None, description="When the first target is wanted, as 6h after the start")
    on_target: str | list[str] = Field(default=[], description="Command that is run for what was delivered")


class _SweepTable(_Table):
    command: str | list[str] | None = Field(default=None, description="The program and its arguments")
    fused: dict[str, Any] | None = Field(default=None, description="Instead of a command: models for one process")
    parameters: dict[str, Any] = Field(default={}, max_length=MOST_PARAMETERS, description="Lists and ranges")
    trials_file: str | None = Field(default=None, description="CSV or JSON lines, a trial on each line")
    reads_parameters: bool = Field(default=False, description="The program reads HELIOS_PARAMETERS")
    search: _SearchTable | None = Field(default=None, description="A search instead of the grid")
    attempts: int = Field(default=3, ge=1, le=100, description="How often a trial that fails is started")
    grace_s: float | int = Field(default=GRACE_S, gt=0, description="Time from a request to stop to SIGTERM, s")
    memory: str | None = Field(default=None, description="Device memory of a trial, such as 4G")
    owner: str | None = Field(
        default=None, pattern=NAME, description="Whose sweep it is, for services; the account that runs it"
    )
    weight: float | int = Field(default=1.0, gt=0, le=1e6, description="Importance, for services that weigh trials")
    events: str | None = Field(default=None, description="Folder of a trial's TensorBoard files: runs/{trial}")
    elastic: dict[str, Any] | None = Field(default=None, description="A command whose number of devices may change")
    env: dict[str, str] = Field(default={}, description="Added to the environment")
    cwd: str | None = Field(default=None, description="Where trials run; else the folder of this file")
    container: str | dict[str, Any] | None = Field(default=None, description="Image in which trials run")
    service: dict[str, Any] | None = Field(default=None, description="Service that decides what starts where")
    target: dict[str, Any] | None = Field(default=None, description="How good a model is to be")


class _ParameterTable(_Table):
    when: dict[str, Any] = Field(default={}, description="Values of other parameters with which it is there")
    default: str | int | float | bool | None = Field(default=None, description="What trials had before it was added")


class _ValuesTable(_ParameterTable):
    values: list[Any] = Field(description="The values")


class _RangeTable(_ParameterTable):
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


def read_training_sweep(path: Path, *, target: str | None = None) -> TrainingSweep:
    """Read and check a sweep file.

    Parameters
    ----------
    target : str, optional
        Target that stands above the one of the file, such as ``val_acc>=0.90,0.95``.

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
        return _sweep(path, _validate(_SweepTable, content), target)
    except _Refused as reason:
        line = line_number(text, reason.keys)
        hint = reason.hint or f"See {PAGE} for an example."
        raise UsageError(f"{path}, line {line}: {reason}.", hint=hint) from reason


def check_training_sweep(path: Path, content: Mapping[str, Any], *, target: str | None = None) -> TrainingSweep:
    """Check a sweep that is given by its content.

    Parameters
    ----------
    path : Path
        Where its file would be; paths in it are relative to that folder.
    target : str, optional
        As in :func:`read_training_sweep`.

    Raises
    ------
    UsageError
        It asks for what cannot be run.
    """
    try:
        return _sweep(path, _validate(_SweepTable, json.loads(json.dumps(content))), target)
    except _Refused as reason:
        raise UsageError(f"The sweep: {reason}.", hint=reason.hint or f"See {PAGE} for an example.") from reason
    except (TypeError, ValueError) as reason:
        raise UsageError(f"The sweep: {reason}.", hint="Values are texts, numbers, lists and tables.") from reason


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


def _sweep(path: Path, table: _SweepTable, target_text: str | None) -> TrainingSweep:
    folder = path.absolute().parent
    cwd = folder / (table.cwd or ".")
    if not cwd.is_dir():
        raise _Refused(f"the folder {cwd} does not exist", "cwd", hint="Make it, or name another one.")
    fused = _fused(table, cwd)
    command = _command(table, cwd) if fused is None else ("python", "-m", FUSED_TASK, fused.program)
    spaces = {name: _space(name, each) for name, each in table.parameters.items()}
    conditions = {name: _conditions(name, table.parameters[name], spaces) for name in spaces}
    conditions = {name: when for name, when in conditions.items() if when}
    parameters = {name: spaces[name] for name in _order(spaces, conditions)}
    defaults = {
        name: _default(name, each, spaces[name])
        for name, each in table.parameters.items()
        if isinstance(each, dict) and "default" in each
    }
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
        _check_optional(command, {*conditions} | {name for name in names for trial in listed if name not in trial})
    elif not {"epochs", "steps"} & {*names, *fused.settings}:
        hint = "Write epochs = 10 in [fused], or in [parameters]."
        raise _Refused("nothing says epochs or steps of trials", "fused", hint=hint)
    longest = {name: max(space, key=_size) for name, space in parameters.items() if isinstance(space, tuple)}
    if max(map(_size, listed or [longest])) > LARGEST_TRIAL:
        at = "trials_file" if listed else "parameters"
        raise _Refused(f"the values of a trial are more than {LARGEST_TRIAL:,} characters together", at)
    for name in table.env:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or name.startswith("HELIOS_") or "\0" in table.env[name]:
            raise _Refused(f"{name!r} cannot be set in the environment of trials", "env", name, hint="Name another.")
    count = len(listed) if listed else count_combinations(parameters, conditions)
    objectives = _objectives(table.search)
    target, on_target = _target(table.target, target_text, objectives)
    if target is not None:
        objectives = objectives or {target.metric: target.maximize}
    return TrainingSweep(
        path=path,
        command=command,
        parameters=parameters,
        listed=listed,
        search=_search(table, count, parameters, objectives),
        objectives=objectives,
        attempts=table.attempts,
        grace_s=float(table.grace_s),
        memory_mib=_memory_mib(table.memory),
        weight=float(table.weight),
        owner=table.owner or "",
        env=dict(table.env),
        cwd=cwd.resolve(),
        events=_events(table.events),
        container=_container(table.container, folder),
        fused=fused,
        elastic=_elastic(table),
        service=_service(table.service),
        conditions=conditions,
        defaults=defaults,
        target=target,
        on_target=on_target,
    )


def _target(
    given: dict[str, Any] | None, text: str | None, objectives: Mapping[str, bool]
) -> tuple[Target | None, tuple[str, ...]]:
    """Return the target of a sweep, and the command for what it delivers.

    A text, of the command line, stands above metric and values of the file.
    """
    if given is None and text is None:
        return None, ()
    try:
        target, on_target = None if text is None else parse_target(text), list[str]()
    except ValueError as reason:
        raise UsageError(f"--target: {reason}.", hint="Write --target 'val_acc>=0.90,0.95'") from reason
    try:
        if given is not None:
            table = _validate(_TargetTable, given, "target")
            on_target = shlex.split(table.on_target) if isinstance(table.on_target, str) else table.on_target
            target = target or _target_of(table, objectives)
            if table.deadline is not None:
                target = replace(target, deadline_s=length(table.deadline).total_seconds())
    except ValueError as reason:
        raise _Refused(str(reason), "target") from reason
    except UsageError as reason:
        raise _Refused(reason.message.rstrip("."), "target", "deadline", hint=reason.hint) from reason
    assert target is not None
    metric, maximize = next(iter(objectives.items()), (target.metric, target.maximize))
    hint = "A target is of the first metric of [search], and in its direction."
    if target.metric != metric:
        about = f"the target is of {target.metric!r}, and trials are compared by {metric!r}"
        raise _Refused(about, "target", hint=hint)
    if target.maximize != maximize:
        about = f"the target {target} contradicts [search], which is to {name_directions(objectives)[0]} it"
        raise _Refused(about, "target", hint=hint)
    return target, tuple(on_target)


def _target_of(table: _TargetTable, objectives: Mapping[str, bool]) -> Target:
    """Return a target with the direction that the file says."""
    directions = {"maximize": True, "minimize": False, None: objectives.get(table.metric)}
    if table.direction not in directions:
        raise _Refused(f"{table.direction!r} is no direction: maximize or minimize", "target", "direction")
    maximize = directions[table.direction]
    if maximize is None:
        if table.second is None:
            hint = 'Write direction = "minimize" or "maximize" in [target], or a second target.'
            raise _Refused(f"nothing says whether more of {table.metric!r} is better", "target", hint=hint)
        maximize = table.second > table.first
    return Target(metric=table.metric, first=table.first, second=table.second, maximize=maximize)


def _objectives(search: _SearchTable | None) -> dict[str, bool]:
    """Return the metrics of comparison, and whether more of each is better."""
    if search is None:
        return {}
    metrics = [search.metric] if isinstance(search.metric, str) else search.metric
    if not all(metrics) or len({*metrics}) < len(metrics):
        raise _Refused("a metric has no name or is there twice", "search", "metric", hint="Name each metric once.")
    if own := [name for name in metrics if name in OWN_KEYS]:
        raise _Refused(
            f"{own[0]!r} is never a metric, since a report says something else with it",
            "search",
            "metric",
            hint="Report the metric by another name.",
        )
    directions = search.direction
    if isinstance(directions, str) or (directions is None and len(metrics) == 1):
        directions = [directions or "maximize"]
    if directions is None or len(directions) != len(metrics):
        at = "metric" if search.direction is None else "direction"
        hint = f"Write direction = {json.dumps(['maximize'] * len(metrics))}, with minimize where less is better."
        raise _Refused(f"{len(metrics)} metrics need a direction each", "search", at, hint=hint)
    if wrong := {*directions} - {"maximize", "minimize"}:
        raise _Refused(f"{min(wrong)!r} is no direction: maximize or minimize", "search", "direction")
    return {name: direction == "maximize" for name, direction in zip(metrics, directions, strict=True)}


def _service(given: dict[str, Any] | None) -> ServiceChoice | None:
    """Return the service of the file, whose options are keys of its table."""
    if given is None:
        return None
    options = {key: value for key, value in given.items() if key != "name"}
    if not isinstance(given.get("name"), str):
        raise _Refused("the service has no name", "service", hint='Write name = "packing" in [service].')
    name = given["name"]
    try:
        service_class = find(name, POOL_GROUP)
        known = [option.name for option in list_options(service_class)]
        for key, value in options.items():
            if key not in known:
                near = get_close_matches(key, known, n=1)
                hint = f"Did you mean {near[0]!r}?" if near else f"Known options: {', '.join(known)}."
                raise _Refused(f"the service {name} has no option {key!r}", "service", key, hint=hint)
            try:
                checked_options(service_class, {key: value}, name=name)
            except ServiceInvalid as reason:
                raise _Refused(reason.message.rstrip("."), "service", key, hint=reason.hint) from reason
        checked_options(service_class, options, name=name)
    except (ServiceInvalid, ServiceUnknown) as reason:
        raise _Refused(reason.message.rstrip("."), "service", "name", hint=reason.hint) from reason
    return ServiceChoice(name=name, options=options)


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


def _elastic(table: _SweepTable) -> ElasticProgram | None:
    """Return how trials may change their size, None where they may not."""
    if table.elastic is None:
        return None
    for key in ("fused", "container"):
        if getattr(table, key):
            hint = f"Leave {key} or [elastic] out."
            raise _Refused(f"[elastic] and {key} exclude each other", key, hint=hint)
    elastic = _validate(_ElasticTable, table.elastic, "elastic")
    for key in ("batch", "local_batch"):
        low, high = getattr(elastic, key)
        if not 0 < low <= high:
            hint = f"Write the smaller one first: {key} = [32, 512]."
            raise _Refused(f"{key} = [{low}, {high}] is no range above 0", "elastic", key, hint=hint)
    if elastic.least > elastic.most:
        raise _Refused(f"least is {elastic.least} and most is {elastic.most} devices", "elastic", "least")
    samples = elastic.local_batch[0]
    for key, batch, which in (("least", elastic.batch[0], "smallest"), ("most", elastic.batch[1], "largest")):
        if (devices := getattr(elastic, key)) * samples > batch:
            about = f"{devices} devices of at least {samples} samples are more than the {which} batch, {batch}"
            hint = f"Write at most {batch // samples} devices, a smaller local_batch or a larger batch."
            raise _Refused(about, "elastic", key, hint=hint)
    sizes = {"batch": tuple(elastic.batch), "local_batch": tuple(elastic.local_batch)}
    return ElasticProgram(**{**elastic.model_dump(), **sizes, "every_s": float(elastic.every_s)})


def _size(value: Any) -> int:
    return len(json.dumps(value))


def _events(template: str | None) -> str:
    try:
        names = set(find_placeholders(template or ""))
    except ValueError as reason:
        raise _Refused(str(reason), "events") from reason
    if template is not None and (not names or names - {*OWN_PLACEHOLDERS}):
        hint = 'Write events = "runs/{trial}", and the same folder in the command.'
        raise _Refused("the folder of event files must differ by {trial} or {checkpoints} alone", "events", hint=hint)
    return template or ""


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
    mib = None if text is None else parse_memory(text)
    if text is not None and mib is None:
        raise _Refused(f"{text!r} is not an amount of memory", "memory", hint="Write 512M or 4G; 1G is 1,024M.")
    return mib


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
        names = [list(find_placeholders(word)) for word in words]
    except ValueError as reason:
        hint = "Write {name} for a parameter, and {{ or }} for a brace."
        raise _Refused(f"the command's word {reason}", "command", hint=hint) from reason
    if any("\0" in word for word in words):
        raise _Refused("the command holds a null character", "command")
    if isinstance(table.command, str) and (special := [word for word in words if word in OF_A_SHELL]):
        hint = "Put it into a script, or write the command as a list that starts a shell."
        raise _Refused(f"{special[0]!r} is of a shell, and trials are started without one", "command", hint=hint)
    program = fill_word(words[0], {}) if not names[0] else ""
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
    if script.endswith(".py") and not inside and not names[1] and not (cwd / fill_word(script, {})).is_file():
        raise _Refused(f"{script} is not in {cwd}", "command", hint="Paths are relative to the file, or to cwd.")
    return tuple(words)


def _check_names(command: tuple[str, ...], known: set[str], table: _SweepTable) -> None:
    """Refuse placeholders without a parameter and parameters without a placeholder."""
    used = {name for word in command for name in find_placeholders(word)}
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


def _check_optional(command: tuple[str, ...], optional: set[str]) -> None:
    """Refuse words that cannot be left out where a trial lacks a parameter."""
    for place, word in enumerate(command):
        names = {*find_placeholders(word)}
        for name in sorted(names & optional):
            alone, before = word == f"{{{name}}}", command[place - 1]
            is_flag = before.startswith("-") and "=" not in before and not [*find_placeholders(before)]
            if len(names) > 1 or not (is_flag if alone else re.match(r"-|[^{]*=", word)):
                hint = f"Write --{name}={{{name}}} or --{name} {{{name}}}, or have the program read HELIOS_PARAMETERS."
                raise _Refused(f"not all trials have {name}, and {word!r} cannot be left out", "command", hint=hint)


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
    if isinstance(given, dict) and "values" not in given:
        return _range(name, given)
    if isinstance(given, dict):
        given = _validate(_ValuesTable, given, *at).values
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


def _conditions(name: str, given: Any, spaces: Mapping[str, Any]) -> dict[str, tuple[Value, ...]]:
    """Return the values of other parameters with which a parameter is there."""
    at = ("parameters", name, "when")
    conditions = {}
    for other, wanted in (given.get("when", {}) if isinstance(given, dict) else {}).items():
        values = wanted if isinstance(wanted, list) else [wanted]
        if other not in spaces or other == name:
            near = get_close_matches(other, spaces.keys() - {name}, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else "Name another parameter."
            raise _Refused(f"{name} depends on {other!r}, which is no other parameter", *at, hint=hint)
        if list_values(spaces[other]) is None:
            hint = f"Give {other} a list of values or a step."
            raise _Refused(f"{name} depends on {other}, which is continuous", *at, hint=hint)
        odd = next((value for value in values if not is_within(spaces[other], value)), None)
        if odd is not None or not values:
            raise _Refused(f"{name} depends on a value that {other} never has: {odd}", *at)
        conditions[other] = tuple(values)
    return conditions


def _order(spaces: Mapping[str, Any], conditions: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the names of parameters, those that others depend on first."""
    ordered: list[str] = []
    while left := [name for name in spaces if name not in ordered]:
        free = next((name for name in left if not conditions.get(name, {}).keys() & {*left}), None)
        if free is None:
            raise _Refused(f"{' and '.join(left)} depend on each other", "parameters", left[0], "when")
        ordered.append(free)
    return ordered


def _default(name: str, given: Mapping[str, Any], space: tuple[Value, ...] | ValueRange) -> Value:
    """Return the value that trials had before a parameter was added."""
    value: Value = given["default"]
    if not is_within(space, value):
        hint = "It becomes the value of earlier trials, so it must be one that trials may have."
        raise _Refused(f"the default of {name} is not among its values", "parameters", name, "default", hint=hint)
    return value


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
    if table.step is not None and table.step * (1 - STEP_TOLERANCE) > table.high - table.low:
        raise _Refused(f"the step of {name} is larger than the range", *at)
    make = int if whole else float
    return ValueRange(
        low=make(table.low), high=make(table.high), log=table.log, step=table.step and make(table.step), whole=whole
    )


def _search(
    table: _SweepTable, count: int | None, parameters: Mapping[str, Any], objectives: Mapping[str, bool]
) -> SearchMethod | None:
    """Return how Optuna searches, or None where it is not needed."""
    if not parameters and table.trials_file is None:
        raise _Refused("there are no trials", "parameters", hint="Name values in [parameters], or a trials_file.")
    search = table.search
    if search is None or search.trials is None:
        at = ("search",) if search else ("parameters",)
        if count is None:
            endless = next(name for name, space in parameters.items() if list_values(space) is None)
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
    _try_method(method, objectives)
    return method


def _try_method(method: SearchMethod, objectives: Mapping[str, bool]) -> None:
    """Refuse a sampler or pruner that Optuna refuses."""
    for kind, alone in (("sampler", replace(method, pruner="")), ("pruner", replace(method, sampler=""))):
        try:
            with silence_warnings():
                study = load_optuna().create_study(
                    sampler=make_sampler(alone, 0), pruner=make_pruner(alone), directions=name_directions(objectives)
                )
                for _ in range(2):
                    trial = study.ask()
                    trial.suggest_float("x", 0.0, 1.0)
                    if alone.pruner:
                        trial.report(0.0, 1)
                        trial.should_prune()
                    study.tell(trial, [0.0] * len(objectives))
        except UsageError:
            raise
        except Exception as reason:  # whatever a class of Optuna, or what it needs, says of its arguments
            hint = "See the class in Optuna's documentation."
            raise _Refused(f"Optuna refuses the {kind}: {reason}", "search", kind, hint=hint) from reason


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


def pool_folders(paths: Sequence[Path], folder: Path | None) -> dict[Path, Path]:
    """Return the folder of each sweep file, in their order.

    Raises
    ------
    UsageError
        Two have the same folder, or one folder is given for several.
    """
    if folder is not None and len(paths) > 1:
        raise UsageError(
            "--folder is for one sweep, and each of several has its own.", hint="Leave --folder out: a.pool and b.pool."
        )
    folders = {path: (folder or path.with_suffix(".pool")).absolute() for path in paths}
    taken: dict[Path, Path] = {}
    for path in paths:
        into = folders[path].resolve()
        if into in taken:
            raise UsageError(f"{taken[into]} and {path} have the same folder, {into}.", hint="Name each sweep once.")
        taken[into] = path
    return folders


def pool_names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest ends of some paths that tell them apart."""
    parts = [path.absolute().parts for path in paths]
    for depth in range(1, max(map(len, parts))):
        if len({each[-depth:] for each in parts}) == len(parts):
            break
    return ["/".join(each[-depth:]) for each in parts]


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
    names: set[str] = set()
    line = 1
    try:
        for line, row in read(text):
            if not isinstance(row, dict):
                raise refuse(line, 'it is no JSON object such as {"lr": 0.1, "width": 64}')
            if trials and set(row) != names:
                odd = min(set(row) ^ names)
                raise refuse(line, f"{odd!r} is missing here or in the first trial")
            names = {*row}
            trial = {name: value for name, value in row.items() if value is not None}
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
    if not trials or not names:
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
