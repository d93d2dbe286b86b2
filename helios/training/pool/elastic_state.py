"""What is known of trials that may change their size.

Their program tells it under the key ``elastic`` of its reports, where what is missing is unknown:

``devices``, ``nodes``, ``local``, ``accumulation``, ``step_s``, ``sync_s``
    On how many devices a step ran, with how many samples of each and further passes, and what it took.
``square``, ``variance``
    Of the gradient, for the smallest batch.
``epoch``, ``epochs``, ``progress``
    Epochs that have ended, all of them, and the work done in steps of the smallest batch.
``number`` with ``devices`` and ``pause_s``, or with ``refused``
    Answer to the request to resize of that number.
``lost`` with ``devices``, and ``kept``
    What happened to a worker, how many are left, and their places among those before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from helios.training.pool.reports import ReportReader
from helios.training.pool.state import TrialRecord
from helios.training.pool.sweep import ElasticProgram
from helios.training.sizes.model import BatchLimits, ElasticState, Gradient, StepRun, StepTime, statistical_gain

MOST_MEASURED = 256
"""Kinds of steps of which times are kept."""
MOST_RECORDED = 32
"""Kinds of steps that are recorded for later trials, evenly chosen; a model of seven numbers is fitted to them."""
MOST_SHOWN = 20
"""Earlier trials that a new one of the family is expected to be like, the last ones."""
STEP = ("nodes", "devices", "local", "step_s", "sync_s")
"""What is recorded of a step."""
MOST_READS = 100
"""Parts of a report file that are read when a pool begins."""
LEAST, MOST = 1e-9, 1e15
"""Numbers above 0 that a program may tell; with smaller or larger ones sums of all trials overflow."""
CHANGE_S = 30.0
"""How long a trial that has never changed its size is taken to stand still, s; Pollux assumes the same."""


def first_state(program: ElasticProgram, record: TrialRecord, reports: Path) -> ElasticState:
    """Return what a trial that does not run has shown of itself."""
    limits = BatchLimits(*program.batch, *program.local_batch)
    state = ElasticState(
        asked=program.least,
        most=program.least,
        least=program.least,
        limits=limits,
        every_s=program.every_s,
        submit_s=record.made_s,
        restarts=record.changes,
        gpu_s=record.device_s,
        change_s=CHANGE_S if record.pause_s is None else record.pause_s,
    )
    reads = islice(iter(ReportReader(reports).read, []), MOST_READS if record.attempts else 0)
    for report in chain.from_iterable(reads):
        state = learn(state, program, report.elastic, progress=report.progress)
    return state


def plain_number(value: object) -> float | None:
    """Return a number that nothing is spoilt by, None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if value == 0 or LEAST <= value <= MOST else None


def learn(
    state: ElasticState, program: ElasticProgram, message: Mapping[str, Any], *, progress: float | None
) -> ElasticState:
    """Return what is known after a report.

    Parameters
    ----------
    progress : float, optional
        Share of the training that is done. Without it the epochs tell it.
    """
    numbers = {name: plain_number(value) for name, value in message.items()}
    told = {name: number for name, number in numbers.items() if number is not None}
    measured = dict(state.measured)
    gpus, local, nodes = (int(told.get(name, 0)) for name in ("devices", "local", "nodes"))
    is_step = 1 <= gpus <= program.most and 1 <= local <= program.batch[1] and nodes <= gpus
    if is_step and told.get("step_s") and "sync_s" in told:
        run = StepRun(max(nodes, 1), gpus, local)
        time = StepTime(told["step_s"], min(told["sync_s"], told["step_s"]))
        if run in measured:  # noise of a loaded machine weighs less
            time = StepTime(*((old + new) / 2 for old, new in zip(measured[run], time, strict=True)))
        if run in measured or len(measured) < MOST_MEASURED:
            measured[run] = time
    largest = max((run.gpus for run in measured), default=0)
    epochs = program.epochs or told.get("epochs")
    share = told["epoch"] / epochs if progress is None and epochs and "epoch" in told else progress
    work = told["progress"] / share if share and "progress" in told else None
    return replace(
        state,
        measured=tuple(sorted(measured.items())),
        most=min(program.most, max(program.least, 2 * largest)),
        gradient=Gradient(told["square"], told["variance"])
        if told.get("square") and "variance" in told
        else state.gradient,
        epoch=int(told.get("epoch", state.epoch)),
        remaining=max(0.0, work - told["progress"]) if work is not None else state.remaining,
        batch=int(gpus * local * (told["accumulation"] + 1)) if is_step and "accumulation" in told else state.batch,
        work=state.work if work is None else work,
        epochs=epochs or state.epochs,
    )


def describe_shown(state: ElasticState) -> dict[str, Any]:
    """Return what a trial has shown, as plain values for later ones."""
    steps = state.measured[:: math.ceil(len(state.measured) / MOST_RECORDED) or 1]
    square, variance = state.gradient or (None, None)
    known = {
        "smallest": state.limits.smallest,
        "batch": state.batch,
        "work": state.work,
        "epochs": state.epochs,
        "square": square,
        "variance": variance,
        "pause_s": state.change_s if state.restarts else None,
        "steps": [[*run, *time] for run, time in steps],
    }
    return {name: value for name, value in known.items() if value is not None}


def begin_with(state: ElasticState, program: ElasticProgram, shown: Iterable[Mapping[str, Any]]) -> ElasticState:
    """Return what a new trial is expected to show, by others of its family.

    Their smallest batch and their epochs may have been others. Noise of gradients falls with the batch.
    """
    for each in shown:
        known = {name: number for name, value in each.items() if (number := plain_number(value)) is not None}
        steps = [step for step in each.get("steps") or () if isinstance(step, list) and len(step) == len(STEP)]
        if "smallest" not in known or not steps:  # what is not of this form was not stored by a pool
            continue
        scale = known["smallest"] / program.batch[0]
        for step in steps:
            told = dict(zip(STEP, step, strict=True))
            state = learn(state, program, told, progress=None)
        if "variance" in known:
            known["variance"] *= scale
        state = learn(state, program, {name: known.get(name) for name in ("square", "variance")}, progress=None)
        state = replace(state, change_s=known.get("pause_s", state.change_s), batch=int(known.get("batch", 0)) or None)
        if "work" in known and state.gradient is not None:
            work = known["work"] * statistical_gain(state.gradient, scale)
            work *= program.epochs / known["epochs"] if program.epochs and known.get("epochs") else 1.0
            state = replace(state, work=work)
    return state if state.remaining is not None else replace(state, remaining=state.work)
