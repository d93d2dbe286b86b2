"""Curves of simulated tasks, from earlier runs or a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from helios.errors import UsageError
from helios.model.trial_runs import TrialRun
from helios.training.pool.sweep import TrainingSweep
from helios.units import count_in_words

COLUMNS = ("task", "step", "value")
"""Columns that a file of curves must have. With ``seconds`` it says run times too."""


class TaskCurve(NamedTuple):
    """Values of the metric of a trial.

    Attributes
    ----------
    points : tuple of (float, float)
        Share of its work, and value then. Empty where it has no target.
    steps : float
        Steps of the whole trial.
    seconds : float, optional
        From its first step to its end alone on a device, s.
    """

    points: tuple[tuple[float, float], ...] = ()
    steps: float = 0.0
    seconds: float | None = None


def find_curves(
    tasks: Sequence[tuple[str, int]],
    sweeps: Sequence[TrainingSweep],
    asked: Sequence[tuple[str, str, Mapping[str, Any]]],
    past: Sequence[TrialRun],
    file: Path | None,
    *,
    seed: int,
) -> tuple[list[TaskCurve], list[str]]:
    """Return the curve of each trial, and a note on their source.

    It is that of the file, else that of the earlier run with the same parameters, else one of its family, else one of
    its program.

    Parameters
    ----------
    tasks : sequence of (str, int)
        Name of the sweep and number in it, of each trial.
    sweeps, asked : sequence
        Sweep, and program, family and parameters, of each trial.

    Raises
    ------
    UsageError
        The file cannot be read, or a trial with a target has no curve.
    """
    given = {} if file is None else read_curves(file, [*dict.fromkeys(name for name, _ in tasks)])
    by_progress = sorted(past, key=lambda run: (run.attempt, run.progress or 0.0))
    ran = [
        (run, curve) for run in {(run.pool, run.number): run for run in by_progress}.values() if (curve := _of_run(run))
    ]
    random, sources, found = np.random.default_rng(seed), Counter[str](), list[TaskCurve]()
    for (name, number), sweep, (program, family, parameters) in zip(tasks, sweeps, asked, strict=True):
        if sweep.target is None:
            found.append(TaskCurve())
            continue
        alike = [(run, curve) for run, curve in ran if (run.program, run.metric) == (program, sweep.target.metric)]
        choices = {
            f"from {file}": [given[task] for task in (f"{name}/{number}", name) if task in given][:1],
            "of a run of the same parameters": [curve for run, curve in alike if run.parameters == parameters][-1:],
            "of a run of the family": [curve for run, curve in alike if run.family == family],
            "of a run of the program": [curve for _, curve in alike],
        }
        source = next((source for source, curves in choices.items() if curves), None)
        if source is None:
            raise UsageError(
                f"How {sweep.target.metric} of {sweep.path.name} gets better is not known.",
                hint="Give curves: --curves FILE.csv with the columns task, step and value. "
                f"Or run a part of it first: helios pool run {sweep.path}",
            )
        sources[source] += 1
        found.append(choices[source][int(random.integers(len(choices[source])))])
    total = sum(sources.values())
    notes = [f"Curves of {count:,} of {total:,} trials are {source}." for source, count in sources.items()]
    if unused := sorted(given.keys() - {each for name, number in tasks for each in (name, f"{name}/{number}")}):
        notes.append(f"{file} has curves of {count_in_words(len(unused), 'trial')} not simulated, as {unused[0]}.")
    return found, notes


def _of_run(run: TrialRun) -> TaskCurve | None:
    if not run.curve or run.curve[-1].step <= 0:
        return None
    steps = run.curve[-1].step / (1.0 if run.outcome == "finished" else run.progress or 1.0)
    return TaskCurve(tuple((point.step / steps, point.value) for point in run.curve if point.value is not None), steps)


def read_curves(path: Path, names: Sequence[str]) -> dict[str, TaskCurve]:
    """Read the curve of each task from a CSV.

    Its columns are ``task``, ``step``, ``value`` and, for run times, ``seconds`` since the first step. A task is a
    sweep, as ``gru`` for ``gru.toml``, or one of its trials, as ``gru/3``. Values that are empty or nan are left out.

    Raises
    ------
    UsageError
        It cannot be read; the message names the line.
    """
    hint = f"Write a header with {', '.join(COLUMNS)} and, for run times, seconds; then a line for each report."
    try:
        rows = pd.read_csv(path, dtype=str, skip_blank_lines=False).dropna(how="all")
    except (OSError, ValueError) as reason:
        why = reason.strerror if isinstance(reason, OSError) else reason
        raise UsageError(f"{path} cannot be read: {why}.", hint=hint) from reason
    if missing := [name for name in COLUMNS if name not in rows]:
        raise UsageError(f"{path} has no column {missing[0]}.", hint=hint)
    if rows.empty:
        raise UsageError(f"{path} has no rows.", hint=hint)
    texts = rows.assign(seconds=rows.get("seconds", "0"))
    numbers = texts[["step", "value", "seconds"]].apply(pd.to_numeric, errors="coerce")
    before = numbers.groupby(rows["task"]).shift(fill_value=-1.0)
    faults = {
        ("task", f"is none of {', '.join(names)}"): ~rows["task"].str.replace(r"/\d+$", "", regex=True).isin(names),
        ("step", "is no whole number from 0"): ~(numbers["step"] >= 0) | (numbers["step"] % 1 != 0),
        ("step", "is not after the one before"): ~(numbers["step"] > before["step"]),
        ("value", "is no number"): numbers["value"].isna() & texts["value"].notna(),
        ("seconds", "is no number from 0"): ~(numbers["seconds"] >= 0) | np.isinf(numbers["seconds"]),
        ("seconds", "is before that of the step before"): numbers["seconds"] < before["seconds"],
    }
    for (column, fault), wrong in faults.items():
        if wrong.any():
            row = int(wrong.to_numpy().argmax())
            raise UsageError(
                f"{path}, line {rows.index[row] + 2}: {column} {texts[column].iloc[row]} {fault}.", hint=hint
            )
    found = {}
    for task, own in numbers.groupby(rows["task"]):
        steps, seconds = float(own["step"].iloc[-1]), float(own["seconds"].iloc[-1])
        if not steps or ("seconds" in rows and not seconds):
            raise UsageError(f"{path} has nothing of {task} after its beginning.", hint=hint)
        known = own[np.isfinite(own["value"])]
        points = zip((known["step"] / steps).tolist(), known["value"].tolist(), strict=True)
        found[str(task)] = TaskCurve(tuple(points), steps, seconds or None)
    return found
