"""Simulation of sweeps whose trials change their sizes, beside trials of fixed sizes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from statistics import median
from typing import Any

from helios.errors import UsageError
from helios.model.trial_runs import TrialRun
from helios.ports import Progress, no_progress
from helios.training.elastic_sim.learned_profile import LearnedProfile, learn_profile
from helios.training.elastic_sim.profiles import ModelProfile, read_profile
from helios.training.elastic_sim.simulator import ROUND_S, ElasticJob, JobOutcome, make_devices, simulate
from helios.training.past_runs import runs_of_sweep
from helios.training.pool.devices import find_devices
from helios.training.pool.elastic_state import CHANGE_S, begin_with
from helios.training.pool.sweep import ElasticProgram, TrainingSweep, family
from helios.training.pool.sweep_file import pool_folders, pool_names, read_training_sweep
from helios.training.services import build_for_pool, choose_common_service
from helios.training.services.elastic import Elastic, ElasticOptions
from helios.training.sizes.model import BatchLimits, ElasticSnapshot, ElasticState, Placement
from helios.training.sizes.placing import place_asked, possible_sizes
from helios.training.whatif_elastic_report import DeviceSpan, ElasticWhatIf, SizesOutcome
from helios.units import count_in_words, percent

MOST_TRIALS = 192
"""Trials that are simulated at most."""
Profile = ModelProfile | LearnedProfile


def elastic_whatif(
    *paths: Path,
    gpus: int | None = None,
    gpus_per_node: int | None = None,
    folders: Sequence[Path] = (),
    profiles: Path | None = None,
    service: str | None = None,
    options: Mapping[str, Any] = {},
    database: str | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
) -> ElasticWhatIf:
    """Simulate the trials of elastic sweeps with changing and with fixed sizes.

    All trials are there at the begin. How fast they are is known from earlier runs, as for
    :func:`~helios.training.whatif.pool_whatif`, or from measured profiles.

    Parameters
    ----------
    gpus : int, optional
        GPUs of the pool. None for those of this machine.
    gpus_per_node : int, optional
        None where all are of one node.
    profiles : Path, optional
        Holds a folder for each sweep's name, for :func:`~helios.training.elastic_sim.profiles.read_profile`.
    service, options, database
        As of ``run_pools``.

    Raises
    ------
    UsageError
        A sweep cannot be run or is not elastic, or how fast its trials are is not known.
    """
    pool_folders(paths, None)
    sweeps = [read_training_sweep(path) for path in paths]
    choice = choose_common_service([sweep.service for sweep in sweeps], service, options, default="elastic")
    assert choice is not None  # there is a default
    if not isinstance(chosen := build_for_pool(choice.name, choice.options), Elastic):
        raise UsageError(f"The service {choice.name} changes no sizes.", hint="Add --service elastic.")
    count = len(find_devices(kind="gpu")) if gpus is None else gpus
    if count % (gpus_per_node or 1):
        raise UsageError(f"{count} GPUs are no whole nodes of {gpus_per_node}.", hint="Give a multiple: --gpus 16")
    nodes = (gpus_per_node or count,) * (count // (gpus_per_node or count))
    notes = [f"{choice.name} has the option {name} = {json.dumps(value)}." for name, value in choice.options.items()]
    jobs, costs_s = list[ElasticJob](), (list[float](), list[float]())
    for name, sweep in zip(pool_names(paths), sweeps, strict=True):
        drawn = sweep.draws(max(1, MOST_TRIALS // len(sweeps)), seed=seed)
        if len(drawn) < sweep.trials:
            notes.append(f"The first {len(drawn):,} of {sweep.trials:,} trials of {name} are simulated.")
        if (elastic := sweep.elastic) is None:
            raise UsageError(f"{name} says not how its trials may change their size.", hint="Write [elastic] in it.")
        if profiles is not None:
            known: Sequence[Profile] = [_read_profile(sweep, elastic, profiles)] * len(drawn)
        else:
            runs, problem = runs_of_sweep(sweep, folders, database)
            notes += [problem] if problem else []
            known = _learn_profiles(sweep, elastic, runs, drawn, notes=notes, costs_s=costs_s)
        jobs += [
            ElasticJob(
                name=f"{name.removesuffix('.toml')}:{number}" if len(sweeps) > 1 else f"trial {number}",
                submit_s=ROUND_S,  # when the first decision is
                profile=profile,
                gpus=elastic.least,
                batch=profile.limits.smallest,
                least_gpus=elastic.least,
                most_gpus=elastic.most,
                every_s=elastic.every_s,
                weight=sweep.weight,
                family=f"{name} {profile.name}",
                measured=profile.measured if isinstance(profile, LearnedProfile) and profile.name else (),
            )
            for number, profile in enumerate(known)
        ]
    starts_s, changes_s = costs_s
    start_s, change_s = (max(1, round(median(known_s or starts_s or [CHANGE_S]))) for known_s in costs_s)
    start = f"A start takes {start_s} s" + ("" if starts_s else ", which is assumed")
    change = (
        f"a change on a node {change_s} s" if changes_s else "so does a change, since no trial changed its size yet"
    )
    notes.append(f"{start}, and {change}.")
    notes.append(f"All trials begin at once, sizes are decided every {ROUND_S} s, and no trial ends early.")
    if profiles is not None:
        notes.append("Batches follow what trials learn at any time; a pool asks for one with other devices.")
    pool = _Pool(nodes, change_s=change_s, start_s=start_s)
    fixed = pool.fixed_sizes(jobs)
    rules = {}
    for step, (rule, sizes) in enumerate({choice.name: [job.gpus for job in jobs], **fixed}.items()):
        progress("Simulating", step / (1 + len(fixed)))
        sized = [replace(job, gpus=size) for job, size in zip(jobs, sizes, strict=True)]
        rules[rule] = pool.simulate(sized, chosen if rule == choice.name else None)
    shares = ", ".join(f"{rule} {percent(outcome.measured_share)}" for rule, outcome in rules.items())
    if any(outcome.measured_share < 1 for outcome in rules.values()):
        notes.append(f"Sizes that earlier runs had take these shares of the time; others are extrapolated: {shares}.")
    return ElasticWhatIf(
        name=", ".join(path.name for path in paths),
        service=choice.name,
        trials=[job.name for job in jobs],
        gpus=count,
        nodes=len(nodes),
        rules=rules,
        notes=notes,
    )


class _Pool:
    """A pool that is simulated."""

    def __init__(self, nodes: Sequence[int], **pauses_s: int) -> None:
        self._gpus, self._pauses_s = sum(nodes), pauses_s
        self._devices = make_devices(nodes)
        self._sizes: list[int] = possible_sizes(ElasticSnapshot(0, (), tuple(nodes))).tolist()
        self._alone_s: dict[tuple[int, int], int] = {}

    def fixed_sizes(self, jobs: Sequence[ElasticJob]) -> dict[str, list[int]]:
        """Return the GPUs of each trial by each rule of fixed sizes.

        Raises
        ------
        UsageError
            A trial needs more than there are.
        """
        if (least := max(job.least_gpus for job in jobs)) > self._gpus:
            raise UsageError(f"A trial needs {least} GPUs at least, of {self._gpus}.", hint=f"Give --gpus {least}.")
        powers = [size for size in self._sizes if not size & (size - 1)]
        every = [[self._fit(job, size) for job in jobs] for size in sorted({*powers, self._gpus // len(jobs)})]
        return {"fixed " + "-".join(map(str, sorted({min(sizes), max(sizes)}))): sizes for sizes in every}

    def _fit(self, job: ElasticJob, wanted: float) -> int:
        """Return the largest size that a trial may have up to another."""
        most = min(wanted, job.most_gpus, job.profile.limits.most_gpus)
        return max((size for size in self._sizes if job.least_gpus <= size <= most), default=job.least_gpus)

    def simulate(self, jobs: Sequence[ElasticJob], service: Elastic | None) -> SizesOutcome:
        """Return what a service comes to.

        None keeps the sizes that the trials ask for.
        """
        outcomes = self._run(jobs, service)
        spans = [
            DeviceSpan(trial, start_s - ROUND_S, stop_s - ROUND_S, sum(shape), _has_run(jobs[trial].profile, shape))
            for trial, outcome in enumerate(outcomes)
            for (start_s, shape), (stop_s, _) in pairwise([*outcome.shapes, (outcome.end_s, ())])
            if shape
        ]
        ends_s = [outcome.completion_s for outcome in outcomes]
        equal_s = [self._equal_share_s(job, end_s, ends_s) for job, end_s in zip(jobs, ends_s, strict=True)]
        return SizesOutcome(
            ends_s=ends_s,
            changes=[outcome.restarts for outcome in outcomes],
            slowdowns=[end_s / alone_s for end_s, alone_s in zip(ends_s, equal_s, strict=True)],
            spans=spans,
        )

    def _run(self, jobs: Sequence[ElasticJob], service: Elastic | None) -> list[JobOutcome]:
        def keep(now: ElasticSnapshot) -> Mapping[int, Placement]:
            return place_asked(now, sorted(now.jobs, key=lambda job: not job.placement))

        service = service or Elastic(ElasticOptions(), keep)
        return simulate(jobs, service, devices=self._devices, **self._pauses_s)

    def _equal_share_s(self, job: ElasticJob, end_s: int, ends_s: Sequence[int]) -> float:
        """Return how long a trial takes alone on its equal share.

        That is of the GPUs over the trials that were there in the mean. On less than it can run on it takes as much
        longer.
        """
        share = self._gpus / (sum(min(end_s, other) for other in ends_s) / end_s)
        size = self._fit(job, share)
        key = id(job.profile), size
        if key not in self._alone_s:
            self._alone_s[key] = self._run([replace(job, gpus=size)], None)[0].completion_s
        return self._alone_s[key] * max(1.0, size / share)


def _has_run(profile: Profile, shape: tuple[int, ...]) -> bool:
    return isinstance(profile, ModelProfile) or profile.has_run_on(len(shape), sum(shape))


def _read_profile(sweep: TrainingSweep, elastic: ElasticProgram, profiles: Path) -> Profile:
    """Return the measured profile of a sweep, within the batches that it allows."""
    name = sweep.path.name
    if elastic.epochs is None:
        raise UsageError(f"{name} says not how long its trials train.", hint="Write epochs under [elastic].")
    profile = read_profile(profiles / sweep.path.stem, epochs=elastic.epochs)
    known = profile.limits
    (smallest, largest), (least, most) = elastic.batch, elastic.local_batch
    if smallest != known.smallest:
        hint = f"Write batch = [{known.smallest}, {largest}]."
        raise UsageError(f"The smallest batch of {name} is {smallest}, and {known.smallest} was measured.", hint=hint)
    local = max(least, known.smallest_local), min(most, known.largest_local)
    return replace(profile, limits=BatchLimits(smallest, min(largest, known.largest), *local))


def _learn_profiles(
    sweep: TrainingSweep,
    elastic: ElasticProgram,
    runs: Sequence[TrialRun],
    drawn: Sequence[Mapping[str, Any]],
    *,
    notes: list[str],
    costs_s: tuple[list[float], list[float]],
) -> list[Profile]:
    """Return the profile of each trial by earlier runs.

    Notes, and how long starts and changes took, are added to the lists.
    """
    limits = BatchLimits(*elastic.batch, *elastic.local_batch)
    new = ElasticState(asked=1, most=1, limits=limits, submit_s=0.0)
    shown: dict[str, list[ElasticState]] = {}
    told = sorted((run for run in runs if run.sizes), key=lambda run: run.started_s)
    alike = [run for run in told if run.device_model == told[-1].device_model]
    for run in alike:
        state = begin_with(new, elastic, [run.sizes])
        costs_s[0].extend([] if run.start_up_s is None else [run.start_up_s])
        costs_s[1].extend([run.sizes["pause_s"]] if "pause_s" in run.sizes else [])
        if state.measured and state.gradient and state.batch and state.work:
            shown.setdefault(run.family, []).append(state)
    if not shown:
        raise UsageError(
            f"How fast trials of {sweep.path.name} are on one device and on several is not known.",
            hint=f"Run some for a few minutes: helios pool run {sweep.path} --service elastic. Or name an earlier pool "
            "(--pool FOLDER), or measured profiles (--profiles FOLDER).",
        )
    shown[""] = every = list(chain.from_iterable(shown.values()))
    known = {name: learn_profile(name, limits, states) for name, states in shown.items()}
    families = [family(sweep, parameters) for parameters in drawn]
    used = [known.get(name, known[""]).limits.smallest for name in families]
    sizes = sorted({step.gpus for state in every for step, _ in state.measured})
    batches = " to ".join(f"{batch:,}" for batch in sorted({min(used), max(used)}))
    notes.append(
        f"Trials of {sweep.path.name} are as {count_in_words(len(every), 'earlier run')} on {alike[-1].device_model} "
        f"showed, with devices: {', '.join(map(str, sizes))}. Their batch stays {batches}."
    )
    if others := [run.device_model for run in told if run not in alike]:
        notes.append(f"{len(others):,} runs on other devices are left out, such as on {others[0]}.")
    if foreign := [number for number, name in enumerate(families) if name not in shown]:
        notes.append(f"{len(foreign):,} of them have parameters that never ran, such as {foreign[0]}, and are alike.")
    seen = {name: max(step.gpus for state in states for step, _ in state.measured) for name, states in shown.items()}
    if lone := [number for number, name in enumerate(families) if seen.get(name, sizes[-1]) == 1]:
        notes.append(
            f"The like of {len(lone):,} of them, such as {lone[0]}, never ran on several devices: communication is "
            "taken to cost nothing, so larger sizes look better than they are. Run one with least = 2 first."
        )
    return [known.get(name, known[""]) for name in families]
