"""Simulation of sweeps under several rules of sharing GPUs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.errors import UsageError
from helios.metrics.trials import PAIR_GAINS, check_gains
from helios.model.trial_runs import TrialRun
from helios.ports import Progress, no_progress
from helios.training.forecast import NORMAL_90, NORMAL_95, TrialModel, trial_facts
from helios.training.model import ONE_DEVICE, Device, SharedSpeed, Trial, TrialForecast
from helios.training.past_runs import runs_of_sweep
from helios.training.pool.devices import find_devices
from helios.training.pool.sweep import TrainingSweep, family, program
from helios.training.pool.sweep_file import pool_folders, pool_names, read_training_sweep
from helios.training.recorded_curves import TaskCurve, find_curves
from helios.training.services import build_for_pool, choose_common_service
from helios.training.services.packing import Packing, PackingOptions
from helios.training.sharing_rules import PoolComparison, compare_pool_rules
from helios.training.simulated_trials import PairProfiles, SimulatedTrial
from helios.training.simulator import PoolCosts
from helios.training.target_rules import TargetComparison, compare_target_rules
from helios.training.whatif_report import PoolWhatIf
from helios.units import count_in_words, rounded_duration

SLOTS = 8
"""Most trials on a GPU, as the largest fixed rule has it."""
MOST_TRIALS, MOST_WITH_TARGETS = 192, 48
"""Trials that are simulated at most, which takes about a minute."""
OURS = "packing"
MEASURED_S, MEASURED_SHARE = 60.0, 0.05
"""A speed is known after this long, or after this share of a trial, s."""


def pool_whatif(
    *paths: Path,
    gpus: int | None = None,
    memory_mib: float | None = None,
    run_time_s: float | None = None,
    gains: tuple[float, float] | None = None,
    watts: tuple[float, float] | None = None,
    folders: Sequence[Path] = (),
    service: str | None = None,
    options: Mapping[str, Any] = {},
    database: str | None = None,
    seed: int = 0,
    targets: bool = False,
    target: str | None = None,
    curves: Path | None = None,
    progress: Progress = no_progress,
) -> PoolWhatIf:
    """Simulate the trials of sweep files in one pool under several rules.

    The rules are exclusive GPUs, fixed sharing, the service that ``run_pools`` would use with the same arguments, and
    an oracle. With targets they are those of :func:`~helios.training.target_rules.compare_target_rules`.

    Needs of earlier runs of the program are read from the warehouse, from the pool beside each sweep file, and from
    the pools in ``folders``. The arguments, and ``memory`` of the sweep file, stand above what these tell.

    Parameters
    ----------
    gpus : int, optional
        GPUs of the pool. None for those of this machine.
    memory_mib : float, optional
        Memory of each GPU. By default what is free on those of this machine.
    run_time_s : float, optional
        Time of a trial alone on a GPU. None: as of earlier runs.
    gains : pair of float
        Least and most work of two trials on a GPU, over that of one. None: as measured, and for pairs that were never
        measured from nothing to what was measured on the best card.
    watts : pair of float, optional
        Power of an idle and of a busy GPU, W. By default that of busy ones is as measured by earlier runs.
    service : str, optional
        Service that is compared. None for that of the sweep files, else ``packing`` or ``targets``.
    options : mapping
        Options of the service, above those of the sweep file.
    database : str, optional
        URL of the warehouse, if there is one.

    targets : bool
        Whether the question is when the sweeps reach their targets. ``target`` and ``curves`` ask that too.
    target : str, optional
        Target of all sweeps, as of ``run_pools``.
    curves : Path, optional
        File for :func:`~helios.training.recorded_curves.read_curves`, which stands above earlier runs.

    Raises
    ------
    UsageError
        A sweep cannot be run, or a needed value is not known.
    FileUnreadable
        A folder is not of a pool.
    """
    check_gains(gains or PAIR_GAINS)
    targets = targets or target is not None or curves is not None
    sweeps = _read_sweeps(paths, target, needs_target=targets)
    choice = choose_common_service(
        [sweep.service for sweep in sweeps], service, options, default="targets" if targets else OURS
    )
    assert choice is not None  # there is a default
    past, problems = _past_runs(sweeps, folders, database)
    start_up_s = median([run.start_up_s for run in past if run.start_up_s] or [PoolCosts().start_s])
    model = TrialModel([replace(run, curve=()) for run in past], now_s=math.inf)  # curves are what is simulated
    most = max(1, (MOST_WITH_TARGETS if targets else MOST_TRIALS) // len(sweeps))
    drawn = [sweep.draws(most, seed=seed) for sweep in sweeps]
    own = [sweep for sweep, trials in zip(sweeps, drawn, strict=True) for _ in trials]
    asked = [
        (program(sweep), family(sweep, parameters), parameters)
        for sweep, parameters in zip(own, chain(*drawn), strict=True)
    ]
    raw = model.forecasts(asked)
    known_speeds = model.speeds if gains is None else tuple(speed for speed in model.speeds if not speed.beside)
    run_times_s = [run_time_s] * len(asked)
    task_curves, curve_notes = list[TaskCurve](), list[str]()
    if targets:
        names = [name.removesuffix(".toml") for name in pool_names(paths)]
        tasks = [(name, number) for name, trials in zip(names, drawn, strict=True) for number in range(len(trials))]
        task_curves, curve_notes = find_curves(tasks, own, asked, past, curves, seed=seed)
        run_times_s = [run_time_s or (curve.seconds and curve.seconds + start_up_s) for curve in task_curves]
    typed = {
        "--run-time": run_time_s is not None and any(each.seconds_p50 is not None for each in raw),
        "memory of the sweep file": any(
            sweep.memory_mib is not None and each.memory_p50_mib for sweep, each in zip(own, raw, strict=True)
        ),
        "--gain": len(known_speeds) < len(model.speeds),
        "--watts": watts is not None and _measured_watts(past) is not None,
    }
    forecasts = [
        _as_typed(each, seconds, sweep.memory_mib) for each, seconds, sweep in zip(raw, run_times_s, own, strict=True)
    ]
    unknown = {
        sweep.path.name: None
        for sweep, each in zip(own, forecasts, strict=True)
        if each.seconds_p50 is None or each.memory_p50_mib is None
    }
    _check_known([*unknown], paths, forecasts, memory_known=gpus is None or memory_mib is not None)
    devices = _devices(gpus, memory_mib)
    reports = not past or any(run.speeds for run in past)
    trials = _trials(
        own, asked, forecasts, past, run_times_s=run_times_s, start_up_s=start_up_s, seed=seed, reports=reports
    )
    if targets:
        trials = [
            replace(trial, curve=curve.points, target=sweep.target, sweep=name)
            for trial, curve, sweep, (name, _) in zip(trials, task_curves, own, tasks, strict=True)
        ]
        forecasts = [
            replace(each, steps_per_s=each.steps_per_s or (curve.steps / trial.seconds if curve.steps else None))
            for each, curve, trial in zip(forecasts, task_curves, trials, strict=True)
        ]
    measure_s = min(MEASURED_S, max(1.0, MEASURED_SHARE * median(trial.seconds for trial in trials)))
    families = tuple(dict.fromkeys(name for _, name, _ in asked))
    alone, shares = _speeds(families, asked, forecasts, known_speeds)
    unmeasured = bool(np.isnan(shares[np.triu_indices(len(families))]).any())
    written = ", ".join(f"{name} = {json.dumps(value)}" for name, value in choice.options.items())
    notes = [*problems, *([f"{choice.name} has the options {written}."] if written else [])]
    used = [
        replace(each, seconds_p50=None) if typed_s else each for each, typed_s in zip(raw, run_times_s, strict=True)
    ]
    notes += _notes(sweeps, past, used, run_times_s, devices, start_up_s=start_up_s, reports=reports)
    if above := ", ".join(name for name, wins in typed.items() if wins):
        notes.append(f"As typed, not as earlier runs had it: {above}.")
    given: dict[str, Any] = {
        "rules": {choice.name: build_for_pool(choice.name, choice.options).decide},
        "costs": PoolCosts(start_s=start_up_s, measure_s=measure_s),
        "seed": seed,
        "forecast": partial(_expect, model, own, run_times_s),
        "known_speeds": known_speeds,
    }
    planners = {
        "sure": Packing(PackingOptions(optimism=0.0, worth=0.01)).decide,
        "steady": Packing(PackingOptions(optimism=0.0, worth=0.1)).decide,
    }
    found: dict[float | None, PoolComparison | TargetComparison] = {}
    cases = tuple(dict.fromkeys(gains or PAIR_GAINS)) if unmeasured else (None,)
    for place, gain in enumerate(cases):
        given["progress"] = _Steps(progress, place, len(cases))
        beside = shares if gain is None else _with_gain(shares, gain)
        profiles = PairProfiles(families=families, alone=alone, beside=beside)
        found[gain] = (
            compare_target_rules(trials, devices, profiles, **given)
            if targets
            else compare_pool_rules(trials, devices, profiles, planners=planners, **given)
        )
    return PoolWhatIf(
        name=", ".join(path.name for path in paths),
        trials=len(trials),
        devices=devices,
        comparisons=found,
        watts=watts or _measured_watts(past),
        notes=(*notes, *curve_notes),
    )


def _read_sweeps(paths: Sequence[Path], target: str | None, *, needs_target: bool) -> list[TrainingSweep]:
    pool_folders(paths, None)
    sweeps = [read_training_sweep(path, target=target) for path in paths]
    if needs_target and not any(sweep.target for sweep in sweeps):
        hint = "Write [target] in the sweep file, or say it: --target 'val_acc>=0.90,0.95'."
        raise UsageError(f"There is no target in {', '.join(map(str, paths))}.", hint=hint)
    return sweeps


def _check_known(
    unknown: Sequence[str], paths: Sequence[Path], forecasts: Sequence[TrialForecast], *, memory_known: bool
) -> None:
    """Ask for what is not known of trials or GPUs."""
    missing = []
    if any(forecast.seconds_p50 is None for forecast in forecasts):
        missing.append(("its run time", "Say how long one takes alone on a GPU: --run-time 20min."))
    if any(forecast.memory_p50_mib is None for forecast in forecasts):
        missing.append(("its memory", 'Write memory = "4G" in the sweep file.'))
    if not memory_known:
        missing.append(("the memory of a GPU", "Say how much each has: --memory 16G."))
    if missing:
        names = ", ".join(unknown or [path.name for path in paths])
        run_first = f"Or run a part of it first: helios pool run {' '.join(map(str, paths))}"
        raise UsageError(
            f"What a trial of {names} needs is not known: {', '.join(what for what, _ in missing)}.",
            hint=f"{' '.join(hint for _, hint in missing)} {run_first}",
        )


def _past_runs(
    sweeps: Sequence[TrainingSweep], folders: Sequence[Path], database: str | None
) -> tuple[list[TrialRun], list[str]]:
    """Return earlier runs, and why some cannot be read."""
    found = [runs_of_sweep(sweep, folders, database) for sweep in sweeps]
    runs = {(run.pool, run.number, run.attempt): run for known, _ in found for run in known}
    problems = dict.fromkeys(problem for _, problem in found if problem)
    return [run for run in runs.values() if run.placement == ONE_DEVICE], [*problems]


def _as_typed(forecast: TrialForecast, run_time_s: float | None, memory_mib: float | None) -> TrialForecast:
    """Return a forecast with typed values in place of recorded ones."""
    if run_time_s is not None:
        forecast = replace(forecast, seconds_p50=run_time_s, seconds_p90=run_time_s)
    if memory_mib is not None:
        forecast = replace(forecast, memory_p50_mib=memory_mib, memory_p95_mib=memory_mib, memory_most_mib=None)
    return forecast


def _expect(
    model: TrialModel,
    sweeps: Sequence[TrainingSweep],
    run_times_s: Sequence[float | None],
    trials: Sequence[Trial],
    runs: Sequence[TrialRun],
) -> list[TrialForecast]:
    """Return a forecast of each trial with typed values, by number."""
    found: dict[int, TrialForecast] = {}
    for name in dict.fromkeys(map(program, sweeps)):
        mine = {trial.number: trial for trial in trials if program(sweeps[trial.number]) == name}
        own_runs = [run for run in runs if run.number in mine]
        found |= dict(zip(mine, model.expect(name, [*mine.values()], own_runs), strict=True))
    return [
        _as_typed(found[trial.number], run_times_s[trial.number], sweeps[trial.number].memory_mib) for trial in trials
    ]


class _Steps:
    """Progress of a comparison, one step for each rule."""

    RULES = 10

    def __init__(self, progress: Progress, place: int, count: int) -> None:
        self._progress, self._done, self._of = progress, place * self.RULES, count * self.RULES

    def __call__(self, _: str) -> None:
        self._progress("Simulating", min(1.0, self._done / self._of))
        self._done += 1


def _devices(gpus: int | None, memory_mib: float | None) -> tuple[Device, ...]:
    if gpus is not None:
        return tuple(
            Device(name=f"gpu:{place}", kind="gpu", memory_mib=memory_mib or 0.0, slots=SLOTS) for place in range(gpus)
        )
    try:
        found = find_devices(kind="gpu", memory_mib=memory_mib, gpu_slots=SLOTS)
    except UsageError as reason:
        raise UsageError(
            "No GPU is visible here, so it is not known what to simulate.", hint="Say it: --gpus 4 --memory 16G"
        ) from reason
    return tuple(replace(device, slots=SLOTS) for device in found)


def _trials(
    sweeps: Sequence[TrainingSweep],
    asked: Sequence[tuple[str, str, Mapping[str, Any]]],
    forecasts: Sequence[TrialForecast],
    past: Sequence[TrialRun],
    *,
    run_times_s: Sequence[float | None],
    start_up_s: float,
    seed: int,
    reports: bool,
) -> list[SimulatedTrial]:
    """Return the trials to simulate.

    A trial that ran before with the same parameters needs the same again. Others are drawn from the forecast.
    """
    random = np.random.default_rng(seed)
    ran = {(fact.program, repr(sorted(fact.parameters.items()))): fact for fact in trial_facts(past)}
    places = {name: place for place, name in enumerate(dict.fromkeys(name for _, name, _ in asked))}
    trials = []
    for number, ((own_program, name, parameters), forecast) in enumerate(zip(asked, forecasts, strict=True)):
        fact = ran.get((own_program, repr(sorted(parameters.items()))))
        normal = random.standard_normal(2)
        seconds = _draw(forecast.seconds_p50, forecast.seconds_p90, NORMAL_90, normal[0]) or 0.0
        memory = _draw(forecast.memory_p50_mib, forecast.memory_p95_mib, NORMAL_95, normal[1])
        if fact is not None:
            seconds = (fact.seconds if run_times_s[number] is None else None) or seconds
            memory = (fact.memory_mib if sweeps[number].memory_mib is None else None) or memory
        trials.append(
            SimulatedTrial(
                family=places[name],
                seconds=max(1.0, seconds - start_up_s),
                memory_mib=memory or 0.0,
                parameters=parameters,
                reports=reports,
                weight=sweeps[number].weight,
            )
        )
    return trials


def _draw(middle: float | None, high: float | None, normal_high: float, normal: float) -> float | None:
    """Return a lognormal value, by its median and one quantile."""
    if middle is None or high is None:
        return middle
    return float(middle * (high / middle) ** (normal / normal_high))


def _speeds(
    names: Sequence[str],
    asked: Sequence[tuple[str, str, Mapping[str, Any]]],
    forecasts: Sequence[TrialForecast],
    known_speeds: Sequence[SharedSpeed],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the speeds of families alone and in pairs.

    A speed alone is in steps a second. One in a pair is a share of it, and NaN where the pair was not measured.
    """
    expected = {name: forecast.steps_per_s for (_, name, _), forecast in zip(asked, forecasts, strict=True)}
    alone = np.array([expected[name] or 1.0 for name in names])
    place = {name: at for at, name in enumerate(names)}
    shares = np.full((len(names), len(names)), np.nan)
    for speed in known_speeds:
        if len(speed.beside) == 1 and speed.family in place and speed.beside[0] in place and expected[speed.family]:
            at = place[speed.family]
            shares[at, place[speed.beside[0]]] = min(1.0, speed.steps_per_s / alone[at])
    return alone, shares


def _with_gain(shares: NDArray[np.float64], gain: float) -> NDArray[np.float64]:
    """Return shares in which pairs that were never measured have a gain."""
    other = shares.T
    guess = np.where(np.isnan(other), gain / 2, np.clip(gain - other, 0.05, 1.0))
    return np.where(np.isnan(shares), guess, shares)


def _measured_watts(past: Iterable[TrialRun]) -> tuple[float, float] | None:
    """Return the measured power of an idle and a busy GPU.

    A busy GPU was measured with one trial on it. The power of an idle one is not measured, so it is NaN.
    """
    alone = [run for run in past if run.energy_j and run.seconds > 0 and not any(speed.beside for speed in run.speeds)]
    if not alone:
        return None
    return float("nan"), sum(run.energy_j or 0.0 for run in alone) / sum(run.seconds for run in alone)


def _notes(
    sweeps: Sequence[TrainingSweep],
    past: Sequence[TrialRun],
    forecasts: Sequence[TrialForecast],
    run_times_s: Sequence[float | None],
    devices: Sequence[Device],
    *,
    start_up_s: float,
    reports: bool,
) -> list[str]:
    """Return notes on the sources of the figures and on assumptions."""
    notes = []
    if past:
        known = sum(forecast.seconds_p50 is not None for forecast in forecasts)
        on = ", ".join(sorted({run.device_model or run.device_kind for run in past}))
        runs = count_in_words(len(past), "run")
        notes += [f"Needs of {known:,} of {len(forecasts):,} trials are from {runs} on {on}."] if known else []
        if any(run.device_kind != device.kind for run in past for device in devices):
            notes.append("These runs were not on GPUs, so run times and memory will differ there.")
    if not past:
        names, programs = (
            ", ".join(sweep.path.name for sweep in sweeps),
            "program is" if len(sweeps) == 1 else "programs are",
        )
        equal = "" if len({*run_times_s}) > 1 else ", and all trials to be equal"
        notes.append(f"{names} never ran, so the {programs} taken to report steps{equal}.")
    elif not reports:
        notes.append(
            f"Trials report no steps, so {OURS} shares GPUs by two and never takes it back: see docs/sweep-file.md."
        )
    if len(run_times_s) < (total := sum(sweep.trials for sweep in sweeps)):
        notes.append(f"The first {len(run_times_s):,} of {total:,} trials are simulated.")
    if any(sweep.search is not None for sweep in sweeps):
        notes.append("Parameters that the search will choose were drawn evenly, and no trial ends early.")
    notes.append(f"A start takes {rounded_duration(start_up_s)}.")
    return notes
