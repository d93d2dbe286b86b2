"""Sweeps of many replays, from a plan to a results file.

A replay whose result the file already has is not repeated. Replays run in this process or on Dask workers.
"""

from __future__ import annotations

import fcntl
import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from itertools import groupby, product
from pathlib import Path
from typing import IO, Any

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from helios.app.executors import FAILED, FIGURES, Engine, RunResult, SweepRun, package_fingerprint, run_here
from helios.app.history import LoadedHistory
from helios.app.replay_cluster import parse_nodes
from helios.app.scenarios import CONTROLS, Scenario, read_options, scenarios
from helios.app.whatif import WhatIfRequest
from helios.choices import Policy, ResampledUnit, RunTimes
from helios.config import zone
from helios.errors import FileUnreadable, NotEnoughHistory, UsageError
from helios.ports import Progress, no_progress
from helios.report.significance import Differences, compare_repeats, whatif_figures
from helios.report.sweep import Group, Sweep, SweepRow
from helios.simulate import Backfill, Placement
from helios.units import length

# A what-if repeated on resampled weeks, to see which of its differences are more than chance.

FEWEST_REPEATS = 5
"""Fewest repeats; the spread of fewer says too little."""


def repeats(
    history: LoadedHistory,
    request: WhatIfRequest,
    *,
    times: int,
    over: ResampledUnit | None = None,
    engine: Engine = run_here,
    progress: Progress = no_progress,
) -> Differences:
    """Replay every scenario on resampled histories, and compare with the baseline.

    Each of the ``times`` samples is the same for all scenarios.

    Parameters
    ----------
    over : ResampledUnit, optional
        What is resampled. None for weeks, or what the window is long enough for
        (:func:`helios.app.resampling.resampler_for`).
    engine : Engine
        Where the replays run; the result does not depend on it.

    Raises
    ------
    NotEnoughHistory
        A replay failed, with the reason.
    """
    cells = [
        SweepRun(request=replace(request, plans=(plan,)), repeat=repeat, over=over)
        for repeat in range(1, times + 1)
        for plan in request.plans
    ]
    figures_by_place: dict[int, Mapping[str, Any]] = {}
    progress("Repeating", 0.0)
    for done in engine(history, cells):
        if FIGURES not in done.result:
            raise NotEnoughHistory(f"A repeat could not be replayed: {next(iter(done.result.values()))}")
        figures_by_place[done.place] = done.result[FIGURES]
        progress("Repeating", len(figures_by_place) / len(cells))
    return compare_runs([figures_by_place[place] for place in range(len(cells))])


def compare_runs(runs: Sequence[Mapping[str, Any]]) -> Differences:
    """Compare the results of runs that differ only in scenario and repeat.

    Every scenario must have the same repeats in the same order.
    """
    by_label: dict[str, list[dict[str, float | None]]] = {}
    for figures in runs:
        by_label.setdefault(figures["label"], []).append(whatif_figures(figures))
    today = next((figures["label"] for figures in runs if figures["is_today"]), runs[0]["label"])
    return compare_repeats(by_label, baseline=today, over=ResampledUnit(runs[0]["over"]), blocks=runs[0]["blocks"])


# The file of results has one line for each run, appended when the run is done and never changed.
#
# A killed sweep leaves complete lines and at most one partial line, which the next sweep removes. Lines of other plans,
# histories and versions of Helios may be in the same file, because each run has a key.


class ResultsFile:
    """Open file of results, locked until it is closed.

    Attributes
    ----------
    known : dict
        The figures of each run by key, or why it failed the last time.
    """

    def __init__(self, path: Path, stream: IO[bytes]) -> None:
        self._stream = stream
        self.known: dict[str, RunResult] = {}
        stream.seek(0)
        *lines, partial = stream.read().split(b"\n")
        if partial:
            stream.truncate(stream.tell() - len(partial))
        stream.seek(0, os.SEEK_END)
        for number, line in enumerate(lines, start=1):
            try:
                result: dict[str, Any] = json.loads(line)
                key = str(result.pop("key"))
            except (ValueError, KeyError, TypeError, AttributeError) as reason:
                raise FileUnreadable(
                    f"{path}, line {number}, is no result of a sweep.", hint="Choose another file: --out FILE"
                ) from reason
            result.pop("cell", None)
            if FIGURES in result or not self.has(key):
                self.known[key] = result

    def has(self, key: str) -> bool:
        """Return whether a run has a result.

        A failed run has none.
        """
        return FIGURES in self.known.get(key, {})

    def add(self, key: str, cell: SweepRun, result: RunResult) -> None:
        """Append the line of a run, and sync it to the disk."""
        line = json.dumps({"key": key, "cell": cell.to_json(), **result}, sort_keys=True, allow_nan=False)
        self._stream.write(line.encode() + b"\n")
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self.known[key] = result


@contextmanager
def read_results(path: Path) -> Iterator[ResultsFile]:
    """Open a file of results, or create one.

    Raises
    ------
    UsageError
        It cannot be written, or another sweep is writing to it.
    FileUnreadable
        It contains something else.
    """
    try:
        stream = path.open("a+b")
    except OSError as reason:
        raise UsageError(f"Results cannot be written: {reason}", hint="Choose another place: --out FILE") from reason
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as reason:
            raise UsageError(
                f"Another sweep is writing to {path}.", hint="Wait for it, or choose another place: --out FILE"
            ) from reason
        yield ResultsFile(path, stream)


# The plan of a sweep is a TOML file, whose lists are combined as a Cartesian product.

OptionColumns = dict[str, list[Any]]
"""Options of a policy, each with a list of values to combine with the others'."""


class _PlanTable(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    @field_validator("*", mode="before")
    @classmethod
    def _not_empty(cls, value: Any, about: ValidationInfo) -> Any:
        if value == []:
            raise ValueError(f"an empty list replays nothing; {_example(cls, about.field_name)}")
        return value


class Window(_PlanTable):
    """Time window of the history."""

    since: datetime | date | str | None = Field(default=None, alias="from", description="Jobs submitted from then on")
    until: datetime | date | str | None = Field(default=None, alias="to", description="Jobs submitted before then")
    warm_up: str | None = Field(default=None, description="Replayed before it, uncounted: 7d")


class SweepSettings(_PlanTable):
    """The cluster and how it is used, as lists that are combined."""

    nodes: list[str] = Field(default=[], description="As --nodes: gpu=16, or 16 to pool all jobs")
    gpus_per_node: list[int] = Field(default=[], description="GPUs of a node")
    placement: list[Placement] = Field(default=[], description="packed, spread, random")
    plan_quantile: list[float] = Field(default=[], description="What backfill plans with: 0.1, 0.5, 0.9")
    predict_again: list[str] = Field(default=[], description="Predict what waits again after so long: 1h; never")
    default_time_limit: list[str] = Field(default=[], description="Assumed for jobs that have none: 7d")


class SweepPlan(_PlanTable):
    """Plan of a sweep, in which every key is optional."""

    policies: list[Policy] = Field(
        default=[], description="Queue orders; else the controls of a what-if", examples=[["fifo", "qssf"]]
    )
    options: dict[Policy, list[OptionColumns]] = Field(
        default={}, description="Options of policies, by policy: share, least"
    )
    backfills: list[Backfill] = Field(default=[], description="What may pass a blocked head")
    estimates: list[RunTimes | int] = Field(default=[], description="Run times that backfill plans with")
    run_times: list[RunTimes] = Field(default=[], description="Run times that orders use")
    controls: bool = Field(default=True, description="Add what a site has today, and fewest GPUs first")
    windows: list[Window] = Field(default=[], description="Stretches of the history; else all of it")
    settings: SweepSettings = SweepSettings()
    repeats: int = Field(default=0, ge=0, description="Random samples of weeks for each; 0: the window as it was")
    over: ResampledUnit | None = Field(default=None, description="What is resampled: weeks, days, seeds")
    seeds: list[int] = Field(default=[], description="Of training, random placement and samples")
    slurm: dict[str, Any] = Field(default={}, description="Workers as Slurm jobs: jobs, cores, memory, queue, ...")

    @field_validator("options", mode="before")
    @classmethod
    def _one_table_or_several(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: [tables] if isinstance(tables, dict) else tables for name, tables in value.items()}

    @field_validator("options")
    @classmethod
    def _none_empty(cls, value: dict[Policy, list[OptionColumns]]) -> dict[Policy, list[OptionColumns]]:
        for policy, tables in value.items():
            if not tables or not all(values for table in tables for values in table.values()):
                raise ValueError(
                    f"an empty list replays nothing; write {policy} = {{wait_share = [0.5]}}, or leave it out"
                )
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Cross:
    """Runs of a sweep, and notes on combinations that were left out.

    Runs that are compared with each other are adjacent.
    """

    cells: tuple[SweepRun, ...]
    notes: tuple[str, ...]


def _example(table: type[BaseModel], key: str | None) -> str:
    examples = table.model_fields[key].examples if key else None
    return f"write {key} = {json.dumps(examples[0])}, or leave it out" if examples else "leave it out"


def read_sweep_plan(path: Path) -> SweepPlan:
    """Read the plan of a sweep.

    Raises
    ------
    UsageError
        It cannot be read, or a key is unknown or of the wrong type. The message lists the known keys.
    """
    try:
        plan = SweepPlan.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as reason:
        raise UsageError(f"{path}: {reason.strerror}.", hint="Give the path of a plan: --sweep PLAN.toml") from reason
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as reason:
        raise UsageError(
            f"{path} cannot be read as TOML: {reason}", hint="See docs/sweeps.md for an example."
        ) from reason
    except ValidationError as reason:
        wrong = "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in reason.errors()[:5])
        keys = ", ".join(SweepPlan.model_fields)
        of_settings = ", ".join(SweepSettings.model_fields)
        raise UsageError(
            f"{path} is not a plan of a sweep: {wrong}.",
            hint=f"The keys are: {keys}; of [settings]: {of_settings}. See docs/sweeps.md for an example.",
        ) from reason
    if 0 < plan.repeats < FEWEST_REPEATS:
        raise UsageError(
            f"{plan.repeats} repeats are too few to tell a difference from chance.",
            hint=f"Write repeats = {FEWEST_REPEATS} or more, or 0 for one replay of each.",
        )
    return plan


def cross_options(plan: SweepPlan, *, base: WhatIfRequest, timezone: str) -> Cross:
    """Return every run of a plan.

    Parameters
    ----------
    base : WhatIfRequest
        What holds where the plan says nothing.
    timezone : str
        Zone of times that carry none.

    Raises
    ------
    UsageError
        No replay is left, or a value is not understood.
    """
    replays, notes = _replays(plan)
    repeats = range(1, plan.repeats + 1) if plan.repeats else (0,)
    cells = [
        SweepRun(request=replace(request, plans=(replay,)), repeat=repeat, over=plan.over)
        for request in _requests(plan, base, timezone)
        for repeat in repeats
        for replay in replays
    ]
    return Cross(cells=tuple(cells), notes=tuple(notes))


def _replays(plan: SweepPlan) -> tuple[list[Scenario], list[str]]:
    """Return a plan's valid scenarios, and notes on the others."""
    if any(isinstance(value, int) and value < 1 for value in plan.estimates):
        raise UsageError(
            "estimates in the plan holds a number of seconds below 1.",
            hint="Write limit, predicted, expected, true, or a number of seconds from 1 on.",
        )
    chosen, notes = [], []
    crossed: Iterable[tuple[Policy | None, Backfill | None, RunTimes | None]] = product(
        plan.policies or (None,), plan.backfills or (None,), plan.run_times or (None,)
    )
    for policy, backfill, run_times in crossed:
        try:
            chosen += scenarios(
                policies=[policy] if policy else [],
                backfills=[backfill] if backfill else [],
                estimates=plan.estimates,
                run_times=run_times,
            )
        except UsageError as reason:
            notes.append(f"Left out: {', '.join(filter(None, (policy, backfill, run_times)))}. {reason.message}")
    if not chosen:
        raise UsageError("No combination in the plan can be replayed.", hint="\n".join(notes))
    if unknown := set(plan.options) - {scenario.policy for scenario in chosen}:
        names = ", ".join(sorted(unknown))
        raise UsageError(
            f"The plan has options for {names}, but does not replay {names}.",
            hint=f"Add {names} to policies, or leave the options out.",
        )
    options = {
        policy: [
            read_options(policy, dict(zip(table, values, strict=True)))
            for table in tables
            for values in product(*table.values())
        ]
        for policy, tables in plan.options.items()
    }
    chosen = [replace(one, options=given) for one in chosen for given in options.get(one.policy, [()])]
    if plan.controls:
        chosen = [*CONTROLS, *chosen]
    return list(dict.fromkeys(chosen)), notes


def _requests(plan: SweepPlan, base: WhatIfRequest, timezone: str) -> Iterator[WhatIfRequest]:
    """Yield a request for each window and combination of settings.

    The settings vary within a window.
    """
    asked = plan.settings
    lists: dict[str, list[Any]] = {
        "nodes": [parse_nodes(text) for text in asked.nodes],
        "gpus_per_node": asked.gpus_per_node,
        "placement": asked.placement,
        "plan_quantile": asked.plan_quantile,
        "predict_again_s": [repredict_interval_s(text) or 0 for text in asked.predict_again],
        "default_time_limit_s": [int(length(text).total_seconds()) for text in asked.default_time_limit],
        "seed": plan.seeds,
    }
    lists = {name: values for name, values in lists.items() if values}
    for window in plan.windows or [Window()]:
        within: dict[str, Any] = {
            "since": _moment(window.since, timezone) or base.since,
            "until": _moment(window.until, timezone) or base.until,
            "warm_up": base.warm_up if window.warm_up is None else length(window.warm_up),
        }
        for values in product(*lists.values()):
            yield replace(base, **within, **dict(zip(lists, values, strict=True)))


def repredict_interval_s(text: str) -> int | None:
    """Parse how often waiting jobs are predicted again, s.

    Returns None for ``never``.

    Raises
    ------
    UsageError
        It is neither a length nor ``never``, or less than a second.
    """
    if text == "never":
        return None
    every_s = int(length(text).total_seconds())
    if every_s < 1:
        raise UsageError(f"{text!r} is less than a second.", hint="Write 10min, 1h, or never")
    return every_s


def _moment(value: datetime | date | str | None, timezone: str) -> datetime | None:
    if value is None:
        return None
    read = pd.to_datetime(str(value), errors="coerce")
    if pd.isna(read):
        raise UsageError(f"{value!r} is not a date or time.", hint="Write 2020-09-01, or 2020-09-01T08:00:00+08:00")
    zoned = read.tz_localize(zone(timezone)) if read.tzinfo is None else read
    moment: datetime = zoned.to_pydatetime().astimezone(UTC)
    return moment


def sweep(
    history: LoadedHistory,
    asked: Cross,
    *,
    out: Path,
    engine: Engine = run_here,
    progress: Progress = no_progress,
) -> Sweep:
    """Replay the runs missing in ``out``, and return the results of all.

    After an interruption, ``out`` keeps what was done, and the same call continues from there. Runs that fail are
    recorded with their reason, and tried again the next time.

    Raises
    ------
    UsageError, FileUnreadable
        ``out`` cannot be used.
    DaskUnavailable, DaskMismatch
        The engine has no workers, or workers with another release.
    """
    fingerprint = package_fingerprint(history)
    keys = [cell.key(fingerprint) for cell in asked.cells]
    with read_results(out) as results:
        left = [place for place, key in enumerate(keys) if not results.has(key)]
        progress("Replaying cells", 1 - len(left) / len(keys))
        # Close the generator now, not at garbage collection, since remote workers go on until then.
        with closing((engine if left else run_here)(history, [asked.cells[place] for place in left])) as replays:
            for number, done in enumerate(replays, start=1):
                place = left[done.place]
                results.add(keys[place], asked.cells[place], done.result)
                progress("Replaying cells", 1 - (len(left) - number) / len(keys))
        results_by_key = {key: results.known[key] for key in keys}
    return Sweep(
        cluster=history.cluster,
        timezone=history.timezone,
        results=str(out),
        cells=len(keys),
        known_before=len(keys) - len(left),
        groups=tuple(_groups(asked.cells, keys, results_by_key)),
        notes=(*history.notes, *asked.notes),
        lines=tuple(
            {"key": key, "cell": cell.to_json(), **results_by_key[key]}
            for key, cell in zip(keys, asked.cells, strict=True)
        ),
    )


def _groups(cells: Sequence[SweepRun], keys: Sequence[str], results_by_key: dict[str, RunResult]) -> Iterator[Group]:
    """Yield groups of runs that differ only in scenario and repeat.

    Groups are in the order of the runs. A row is one scenario over all of its repeats. Differences to the baseline are
    those of the repeats in which every scenario was replayed, if there are two at least.
    """
    numbered = zip(cells, keys, strict=True)
    for request, members in groupby(numbered, key=lambda member: replace(member[0].request, plans=())):
        by_plan: dict[Scenario, list[RunResult]] = {}
        by_repeat: dict[int, list[RunResult]] = {}
        for cell, key in members:
            by_plan.setdefault(cell.plan, []).append(results_by_key[key])
            by_repeat.setdefault(cell.repeat, []).append(results_by_key[key])
            about = cell.to_json()
        whole = [runs for repeat, runs in by_repeat.items() if repeat and all(FIGURES in run for run in runs)]
        yield Group(
            about={name: about[name] for name in about if name in request.__slots__ and name != "plans"},
            rows=tuple(_row(plan, runs) for plan, runs in by_plan.items()),
            differences=compare_runs([run[FIGURES] for runs in whole for run in runs]) if len(whole) >= 2 else None,
        )


def _row(plan: Scenario, runs: Sequence[RunResult]) -> SweepRow:
    found = [run[FIGURES] for run in runs if FIGURES in run]
    reasons = [run[FAILED] for run in runs if FAILED in run]
    named = ", ".join([plan.policy, plan.backfill, *(f"{name} {value}" for name, value in plan.options)])
    return SweepRow.of(found, reasons, named=named)
