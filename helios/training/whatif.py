"""Simulation of a sweep under several rules of sharing GPUs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from helios.training.model import ONE_DEVICE, Device, ServiceChoice, SharedSpeed, Trial, TrialForecast
from helios.training.past_runs import known_runs, runs_of_folder
from helios.training.pool.devices import find_devices
from helios.training.pool.state import FILE
from helios.training.pool.sweep import TrainingSweep, family, program
from helios.training.pool.sweep_file import read_training_sweep
from helios.training.services import build_for_pool, choose_service
from helios.training.services.packing import Packing, PackingOptions
from helios.training.sharing_rules import compare_pool_rules
from helios.training.simulated_trials import PairProfiles, SimulatedTrial
from helios.training.simulator import PoolCosts
from helios.training.whatif_report import PoolWhatIf
from helios.units import count_in_words, rounded_duration

SLOTS = 8
"""Most trials on a GPU, as the largest fixed rule has it."""
MOST_TRIALS = 192
"""Trials that are simulated at most, which takes about a minute."""
OURS = "packing"
MEASURED_S, MEASURED_SHARE = 60.0, 0.05
"""A speed is known after this long, or after this share of a trial, s."""


def pool_whatif(
    path: Path,
    *,
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
    progress: Progress = no_progress,
) -> PoolWhatIf:
    """Simulate the trials of a sweep file under several rules.

    The rules are exclusive GPUs, fixed sharing, the service that ``run_pool`` would use with the same arguments, and an
    oracle.

    Needs of earlier runs of the program are read from the warehouse, from the pool beside the sweep file, and from the
    pools in ``folders``. The arguments, and ``memory`` of the sweep file, stand above what these tell.

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
        Service that is compared. None for that of the sweep file, else the packing of trials.
    options : mapping
        Options of the service, above those of the sweep file.
    database : str, optional
        URL of the warehouse, if there is one.

    Raises
    ------
    UsageError
        The sweep cannot be run, or a needed value is not known.
    FileUnreadable
        A folder is not of a pool.
    """
    check_gains(gains or PAIR_GAINS)
    sweep = read_training_sweep(path)
    choice = choose_service(sweep.service, service, options, default=OURS)
    assert choice is not None  # there is a default
    decide = build_for_pool(choice.name, choice.options).decide
    ready = prepare_sweep(
        sweep,
        gpus=gpus,
        memory_mib=memory_mib,
        run_time_s=run_time_s,
        gains=gains,
        watts=watts,
        folders=folders,
        database=database,
        seed=seed,
    )
    found = {}
    cases = profiles_by_gain([ready], gains)
    for place, (gain, profiles) in enumerate(cases.items()):
        steps = Steps(progress, place, len(cases))
        found[gain] = compare_pool_rules(
            ready.trials,
            ready.devices,
            profiles,
            rules={choice.name: decide},
            planners={
                "sure": Packing(PackingOptions(optimism=0.0, worth=0.01)).decide,
                "steady": Packing(PackingOptions(optimism=0.0, worth=0.1)).decide,
            },
            costs=ready.costs,
            seed=seed,
            forecast=ready.expect,
            known_speeds=ready.known_speeds,
            progress=steps,
        )
    return PoolWhatIf(
        name=path.name,
        trials=len(ready.trials),
        devices=ready.devices,
        comparisons=found,
        watts=watts or _measured_watts(ready.past),
        notes=(*options_in_words(choice), *ready.notes),
    )


def options_in_words(choice: ServiceChoice) -> list[str]:
    """Return a note on the options of a service, if it has any."""
    written = ", ".join(f"{name} = {json.dumps(value)}" for name, value in choice.options.items())
    return [f"{choice.name} has the options {written}."] if written else []


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSweep:
    """A sweep, with all that a simulation of it needs.

    Attributes
    ----------
    past : sequence of TrialRun
        Earlier runs of its program.
    asked : sequence of (program, family, parameters)
        Of each trial.
    trials : sequence of SimulatedTrial
        Their families are places in ``families``.
    forecasts : sequence of TrialForecast
        Of each trial before the pool begins.
    notes : sequence of str
        Sources of the figures, and assumptions.
    """

    sweep: TrainingSweep
    past: Sequence[TrialRun]
    model: TrialModel
    run_time_s: float | None
    asked: Sequence[tuple[str, str, Mapping[str, Any]]]
    trials: Sequence[SimulatedTrial]
    forecasts: Sequence[TrialForecast]
    known_speeds: Sequence[SharedSpeed]
    devices: Sequence[Device]
    costs: PoolCosts
    notes: Sequence[str]

    @property
    def families(self) -> tuple[str, ...]:
        """The families of its trials."""
        return tuple(dict.fromkeys(family for _, family, _ in self.asked))

    def expect(self, trials: Sequence[Trial], runs: Sequence[TrialRun]) -> list[TrialForecast]:
        """Return a forecast of each trial, with what a person typed."""
        found = self.model.expect(program(self.sweep), trials, runs)
        return [_as_typed(each, self.run_time_s, self.sweep.memory_mib) for each in found]


def prepare_sweep(
    sweep: TrainingSweep,
    *,
    gpus: int | None,
    memory_mib: float | None,
    run_time_s: float | None,
    gains: tuple[float, float] | None,
    watts: tuple[float, float] | None = None,
    folders: Sequence[Path] = (),
    database: str | None = None,
    seed: int = 0,
    most: int = MOST_TRIALS,
    run_time_source: str = "--run-time",
) -> PreparedSweep:
    """Return what a simulation of a sweep needs.

    The other arguments are those of :func:`pool_whatif`.

    Parameters
    ----------
    most : int
        Most trials.
    run_time_source : str
        What says ``run_time_s``.

    Raises
    ------
    UsageError
        A needed value is not known.
    FileUnreadable
        A folder is not of a pool.
    """
    path, own = sweep.path, sweep.path.with_suffix(".pool")
    folders = [*folders, *([own] if (own / FILE).exists() and own not in folders else [])]
    own_program = program(sweep)
    known, problem = known_runs(database, own_program)
    runs = {
        (run.pool, run.number, run.attempt): run
        for run in [*known, *(run for folder in folders for run in runs_of_folder(folder, own_program))]
    }
    past = [run for run in runs.values() if run.placement == ONE_DEVICE]
    model = TrialModel([replace(run, curve=()) for run in past], now_s=math.inf)  # curves are what is simulated
    drawn = sweep.draws(most, seed=seed)
    asked = [(own_program, family(sweep, parameters), parameters) for parameters in drawn]
    told = model.forecasts(asked)
    known_speeds = model.speeds if gains is None else tuple(speed for speed in model.speeds if not speed.beside)
    typed = {
        run_time_source: run_time_s is not None and any(each.seconds_p50 is not None for each in told),
        "memory of the sweep file": sweep.memory_mib is not None and any(each.memory_p50_mib for each in told),
        "--gain": len(known_speeds) < len(model.speeds),
        "--watts": watts is not None and _measured_watts(past) is not None,
    }
    forecasts = [_as_typed(each, run_time_s, sweep.memory_mib) for each in told]
    missing = []
    if any(forecast.seconds_p50 is None for forecast in forecasts):
        missing.append(("its run time", "Say how long one takes alone on a GPU: --run-time 20min."))
    if any(forecast.memory_p50_mib is None for forecast in forecasts):
        missing.append(("its memory", 'Write memory = "4G" in the sweep file.'))
    if gpus is not None and memory_mib is None:
        missing.append(("the memory of a GPU", "Say how much each has: --memory 16G."))
    if missing:
        raise UsageError(
            f"What a trial of {path.name} needs is not known: {', '.join(what for what, _ in missing)}.",
            hint=f"{' '.join(hint for _, hint in missing)} Or run a part of it first: helios pool run {path}",
        )
    devices = _devices(gpus, memory_mib)
    reports = not past or any(run.speeds for run in past)
    start_up_s = median([run.start_up_s for run in past if run.start_up_s] or [PoolCosts().start_s])
    trials = _trials(
        sweep, asked, forecasts, past, run_time_s=run_time_s, start_up_s=start_up_s, seed=seed, reports=reports
    )
    measure_s = min(MEASURED_S, max(1.0, MEASURED_SHARE * median(trial.seconds for trial in trials)))
    notes = [problem] if problem else []
    used = [replace(each, seconds_p50=None) for each in told] if run_time_s is not None else told
    notes += _notes(sweep, drawn, past, used, devices, start_up_s=start_up_s, reports=reports)
    if any(typed.values()):
        notes.append(
            f"As typed, not as earlier runs had it: {', '.join(name for name, wins in typed.items() if wins)}."
        )
    return PreparedSweep(
        sweep=sweep,
        past=past,
        model=model,
        run_time_s=run_time_s,
        asked=asked,
        trials=trials,
        forecasts=forecasts,
        known_speeds=known_speeds,
        devices=devices,
        costs=PoolCosts(start_s=start_up_s, measure_s=measure_s),
        notes=notes,
    )


def profiles_by_gain(
    ready: Sequence[PreparedSweep], gains: tuple[float, float] | None
) -> dict[float | None, PairProfiles]:
    """Return the speeds of families by the gain of unmeasured pairs.

    It is None where all were. With ``gains`` no measured pair is used.
    """
    names = tuple(dict.fromkeys(name for each in ready for name in each.families))
    alone, shares = _speeds(
        names,
        [asked for each in ready for asked in each.asked],
        [forecast for each in ready for forecast in each.forecasts],
        [speed for each in ready for speed in each.known_speeds],
    )
    if not np.isnan(shares[np.triu_indices(len(names))]).any():
        return {None: PairProfiles(families=names, alone=alone, beside=shares)}
    return {
        gain: PairProfiles(families=names, alone=alone, beside=_with_gain(shares, gain))
        for gain in dict.fromkeys(gains or PAIR_GAINS)
    }


def _as_typed(forecast: TrialForecast, run_time_s: float | None, memory_mib: float | None) -> TrialForecast:
    """Return a forecast with what a person typed in place of what runs tell."""
    if run_time_s is not None:
        forecast = replace(forecast, seconds_p50=run_time_s, seconds_p90=run_time_s)
    if memory_mib is not None:
        forecast = replace(forecast, memory_p50_mib=memory_mib, memory_p95_mib=memory_mib, memory_most_mib=None)
    return forecast


class Steps:
    """Progress of a comparison, one step for each rule."""

    RULES = 10

    def __init__(self, progress: Progress, place: int, count: int) -> None:
        self._progress, self._done, self._of = progress, place * self.RULES, count * self.RULES

    def __call__(self, _: str) -> None:
        """Show that one more rule is simulated."""
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
    sweep: TrainingSweep,
    asked: Sequence[tuple[str, str, Mapping[str, Any]]],
    forecasts: Sequence[TrialForecast],
    past: Sequence[TrialRun],
    *,
    run_time_s: float | None,
    start_up_s: float,
    seed: int,
    reports: bool,
) -> list[SimulatedTrial]:
    """Return the trials to simulate.

    A trial that ran before with the same parameters needs the same again. Others are drawn from the forecast.
    """
    random = np.random.default_rng(seed)
    ran = {repr(sorted(fact.parameters.items())): fact for fact in trial_facts(past)}
    places = {name: place for place, name in enumerate(dict.fromkeys(name for _, name, _ in asked))}
    trials = []
    for (_, name, parameters), forecast in zip(asked, forecasts, strict=True):
        fact = ran.get(repr(sorted(parameters.items())))
        normal = random.standard_normal(2)
        seconds = _draw(forecast.seconds_p50, forecast.seconds_p90, NORMAL_90, normal[0]) or 0.0
        memory = _draw(forecast.memory_p50_mib, forecast.memory_p95_mib, NORMAL_95, normal[1])
        if fact is not None:
            seconds = (fact.seconds if run_time_s is None else None) or seconds
            memory = (fact.memory_mib if sweep.memory_mib is None else None) or memory
        trials.append(
            SimulatedTrial(
                family=places[name],
                seconds=max(1.0, seconds - start_up_s),
                memory_mib=memory or 0.0,
                parameters=parameters,
                reports=reports,
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
    sweep: TrainingSweep,
    drawn: Sequence[Mapping[str, Any]],
    past: Sequence[TrialRun],
    forecasts: Sequence[TrialForecast],
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
        notes.append(
            f"{sweep.path.name} never ran, so its program is taken to report steps, and all trials to be equal."
        )
    elif not reports:
        notes.append(
            f"Trials report no steps, so {OURS} shares GPUs by two and never takes it back: see docs/sweep-file.md."
        )
    if len(drawn) < sweep.trials:
        notes.append(f"The first {len(drawn):,} of {sweep.trials:,} trials are simulated.")
    if sweep.search is not None:
        notes.append("Parameters that the search will choose were drawn evenly, and no trial ends early.")
    notes.append(f"A start takes {rounded_duration(start_up_s)}.")
    return notes
