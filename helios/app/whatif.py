"""What-if replays of a cluster's own history under other queue policies.

Submissions are predicted without leaving compiled code, because a stop of the replay at each submission, with its calls
from Python, takes as long as the prediction itself. A job that comes alone to an empty queue starts or waits whatever
its key is. Where nothing but keys follows from predictions, it is predicted only if it waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from threading import BrokenBarrierError
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.history import LoadedHistory
from helios.app.own_order import LOOKS_BACK
from helios.app.record import refuse_reversed
from helios.app.replay_cluster import ReplayCluster, replay_cluster_for, sized_jobs
from helios.app.scenarios import AGAIN_S, Scenario
from helios.choices import Policy, RunTimes
from helios.errors import NotEnoughHistory, PartitionUnknown
from helios.jit import Table, cached_jit, inline_jit, plain
from helios.metrics.capacity import choose_resource
from helios.metrics.queue import summarize_queue, wait
from helios.model import NodeSizes, Sizes
from helios.ports import RUN_TIME, Progress, ReplayPredictor, no_progress
from helios.predict.duration import DurationModel, train
from helios.predict.replay_predictor import ReplayTrainedPredictor, SharedTraining
from helios.predict.timeline import learn_events, note_ended, pass_submitted, predict_submitted
from helios.report.whatif import JobNames, Run, WhatIf
from helios.simulate import ORDERS, JobTrace, LongestWaits, Placement, Replay, Workload, replay
from helios.simulate.core.events import run
from helios.simulate.core.scheduling import first_up_to, push, remove
from helios.simulate.core.state import NEVER, EngineState
from helios.simulate.replay import LEAST_KEY, LONGEST_ESTIMATE_S, JobKeys, Runner
from helios.units import DAY_S, best_unit, duration_in_words, in_number

MOST_SIDE_BY_SIDE = 1_000_000
"""Jobs of all replays together that share a training at once, .7 kB each."""
STARTS_EMPTY = "Each replay starts on an empty cluster; --warm-up 7d replays the week before, uncounted."

PLAN_QUANTILE = 0.9
"""Quantile of a prediction that backfill plans with: nine of ten jobs end by then."""
PROBES_S = (1.0, 1e3, 1e7)
"""Run times at which an order must be a straight line, s."""
EVENTS_PER_PREDICTION = 100
"""Events that a prediction counts as in the budget of a call."""
_REACHED, _OUT_OF_BUDGET, _ATTEND = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfRequest:
    """What to replay, and on which machine.

    Every what-if takes it; those that choose their replays themselves take no scenarios.

    Attributes
    ----------
    scenarios : sequence of Scenario
        The replays to make.
    since, until : datetime, optional
        Jobs submitted in [since, until) are replayed and counted; the predictor learns from earlier ones.
    warm_up : timedelta
        Stretch before ``since`` that is replayed too, but not counted, so that the cluster is not empty at first.
    nodes : mapping, optional
        Nodes of each partition; None takes the capacity of the history.
    resource : str, optional
        ``gpus`` or ``cpus``; None: as :func:`~helios.metrics.capacity.choose_resource` says.
    placement : Placement
        Choice among the nodes that fit a job.
    predict_again_s : int, optional
        Predict pending jobs again after so long, s. 0 for never. None for hourly.
    seed : int
        Seed of training, of random placement and of repeats.
    """

    scenarios: Sequence[Scenario] = ()
    since: datetime | None = None
    until: datetime | None = None
    warm_up: timedelta = timedelta(0)
    nodes: Mapping[str, int] | None = None
    gpus_per_node: int = 8
    resource: str | None = None
    skip_oversized: bool = False
    default_time_limit_s: int = 7 * 86_400
    placement: Placement = Placement.PACKED
    predict_again_s: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        refuse_reversed(self.since, self.until)


def whatif(
    history: LoadedHistory,
    request: WhatIfRequest,
    *,
    progress: Progress = no_progress,
    keeps_finished: bool = False,
) -> WhatIf:
    """Replay a window of a cluster's history under each scenario.

    All replays are measured alike.

    Parameters
    ----------
    keeps_finished : bool
        Return the replays that are finished where a person interrupts it.

    Raises
    ------
    NotEnoughHistory
        No job in the window can be replayed.
    JobLargerThanPartition, PartitionUnknown
        The jobs do not fit the cluster as described.
    """
    setup = prepare_replay(history, request)
    taught = train_predictor(history, setup, request, progress)
    found, said, interrupted = dict[Scenario, Run](), list[str](), False
    try:
        for scenario in request.scenarios:
            if not scenario.uses_predictions:
                found[scenario] = to_run(scenario, setup, None, progress, request=request)
        for scenarios in _group_by_training(request.scenarios, jobs=len(setup.before) + len(setup.workload)):
            runs, notes = _replay_side_by_side(scenarios, setup, taught, request, progress)
            found |= runs
            said += notes
    except KeyboardInterrupt:
        if not found or not keeps_finished:
            raise
        interrupted = True
        said.append(
            f"Interrupted: {len(found)} of {len(request.scenarios)} replays were made, and only these are shown."
        )
    made = [found[scenario] for scenario in request.scenarios if scenario in found]
    return replace(answer_request(history, request, setup, runs=made, said=said), interrupted=interrupted)


def _group_by_training(scenarios: Sequence[Scenario], *, jobs: int) -> Iterator[Sequence[Scenario]]:
    """Yield the scenarios with predictions that share their trainings, each once."""
    at_once = max(MOST_SIDE_BY_SIDE // jobs, 1)
    asking = [scenario for scenario in dict.fromkeys(scenarios) if scenario.uses_predictions]
    yield from (asking[first : first + at_once] for first in range(0, len(asking), at_once))


def _replay_side_by_side(
    scenarios: Sequence[Scenario],
    setup: ReplaySetup,
    taught: DurationModel | None,
    request: WhatIfRequest,
    progress: Progress,
) -> tuple[dict[Scenario, Run], list[str]]:
    """Replay scenarios that use predictions, in threads that share their trainings.

    The second value says who predicted.
    """
    shared = SharedTraining(len(scenarios)) if len(scenarios) > 1 else None
    # One replay of each backfill describes its jobs, in case it does not keep up with the others.
    described = {scenario.backfill: number for number, scenario in reversed(list(enumerate(scenarios)))}
    predictors = [
        predictor_for(setup, taught, request, shared=shared, describes=described[scenario.backfill] == number)
        for number, scenario in enumerate(scenarios)
    ]
    if shared is None:
        runs = [
            to_run(scenario, setup, one, progress, request=request)
            for scenario, one in zip(scenarios, predictors, strict=True)
        ]
        return dict(zip(scenarios, runs, strict=True)), describe_sources(predictors[0])
    if any(scenario.needs_own_order for scenario in scenarios):
        setup.own_order  # noqa: B018 - once, before the threads ask for it

    def one(number: int) -> Run:
        # The first tells how far all are, as they wait for each other.
        tell = progress if number == 0 else no_progress
        try:
            return to_run(
                scenarios[number],
                setup,
                predictors[number],
                lambda _, done: tell(f"Replaying {len(scenarios)} orders with predictions", done),
                request=request,
            )
        except BaseException:
            shared.abort()
            raise

    with ThreadPoolExecutor(len(scenarios)) as threads:
        replays = [threads.submit(one, number) for number in range(len(scenarios))]
        try:
            wait_for(replays)
        except BaseException:  # such as an interruption: else all would be replayed to the end
            shared.abort()
            raise
    failed = [replay.exception() for replay in replays]
    for error in failed:
        if error is not None and not isinstance(error, BrokenBarrierError):
            raise error
    runs = [replay.result() for replay in replays]
    return dict(zip(scenarios, runs, strict=True)), [note for one in predictors for note in describe_sources(one)]


@dataclass(frozen=True, kw_only=True)
class ReplaySetup:
    """Jobs and machine of a replay.

    Attributes
    ----------
    window_s : pair of int
        From when to when its jobs count, as far as the history goes, s since the epoch.
    first : array of shape (jobs,), optional
        Where weeks were drawn: for each job the position of the one that it is a copy of, its own where it is none.
    """

    machine: ReplayCluster
    counted: NDArray[np.bool_]
    before: pd.DataFrame
    notes: tuple[str, ...]
    timezone: str
    window_s: tuple[int, int]
    default_limit_s: int
    first: NDArray[np.int64] | None = None

    @cached_property
    def workload(self) -> Workload:
        """The jobs as a workload."""
        return self.machine.workload()

    @cached_property
    def limit_s(self) -> NDArray[np.int64]:
        """Time limit of each job, s, also of those that have none."""
        return self.machine.limits_s(self.default_limit_s)

    @property
    def recorded_wait_s(self) -> NDArray[np.float64]:
        """Recorded wait of each job that counts, s, NaN where unknown."""
        jobs = self.machine.jobs[self.counted]
        eligible = jobs["eligible_at"].fillna(jobs["submitted_at"])
        wait_s = (jobs["started_at"] - np.maximum(eligible, jobs["submitted_at"])).dt.total_seconds()
        known: NDArray[np.float64] = np.maximum(wait_s.to_numpy(dtype=np.float64), 0.0)
        return known

    @cached_property
    def own_order(self) -> LongestWaits:
        """Longest recent wait under the site's own order.

        That is first in, first out with EASY by time limits. At first the waits of the four weeks before count, as far
        as their jobs are known and fit. These are replayed on their own: the replay starts empty, and what they left
        running would make the site's own order look worse than it is there.
        """
        longest, earlier = self._waits_of(self.machine), self._earlier_jobs()
        if earlier is None:
            return longest
        return longest.with_earlier(self._waits_of(earlier, until_s=int(self.workload.submitted_s[0])))

    def _waits_of(self, machine: ReplayCluster, *, until_s: int = NEVER) -> LongestWaits:
        result = machine.replay(ORDERS["fifo"], default_limit_s=self.default_limit_s)
        submitted_s = machine.workload().submitted_s
        return LongestWaits.of(submitted_s=submitted_s, started_s=result.started_s, until_s=until_s)

    def _earlier_jobs(self) -> ReplayCluster | None:
        recent = self.before["submitted_at"] >= self.machine.jobs["submitted_at"].min() - LOOKS_BACK
        resource = self.machine.resource
        earlier = self.before[recent & self.before["run_time_s"].notna() & (self.before[resource].fillna(0) > 0)]
        if earlier.empty:
            return None
        try:
            found = replay_cluster_for(
                earlier,
                resource=resource,
                nodes=self.machine.nodes,
                gpus_per_node=int(self.machine.shape.gpus_per_node[0]),
                skip_oversized=True,
            )
        except PartitionUnknown:  # the earlier jobs ran on other partitions
            return None
        return found if len(found.jobs) else None


def answer_request(
    history: LoadedHistory, request: WhatIfRequest, setup: ReplaySetup, *, runs: Sequence[Run], said: Sequence[str]
) -> WhatIf:
    """Return the replays of one setup as a report, with all notes."""
    counted = setup.machine.jobs["submitted_at"][setup.counted]
    bounds = [
        f"{run.label}: by the end, who had waited {duration_in_words(run.bound_s)} went first."
        for run in runs
        if run.bound_s is not None and "patience_s" not in run.options
    ]
    return WhatIf(
        cluster=history.cluster,
        capacity=history.capacity,
        recorded_wait_s=setup.recorded_wait_s,
        partitions=setup.machine.nodes,
        gpus_per_node=request.gpus_per_node,
        resource=setup.machine.resource,
        window=(counted.min().to_pydatetime(), counted.max().to_pydatetime()),
        runs=tuple(runs),
        notes=(*history.notes, *setup.machine.notes, *setup.notes, *dict.fromkeys(said), *bounds),
        named=JobNames(
            job_ids=setup.workload.job_id[setup.counted],
            partition=setup.workload.partition[setup.counted],
            users=tuple(setup.machine.jobs["user"].cat.categories.astype(str)),
        ),
    )


def prepare_replay(history: LoadedHistory, request: WhatIfRequest) -> ReplaySetup:
    """Choose the jobs to replay and the machine.

    Raises
    ------
    NotEnoughHistory, JobLargerThanPartition, PartitionUnknown
        As :func:`whatif`.
    """
    known = request.resource or (history.capacity and history.capacity.resource)
    resource, chosen = (known, []) if known else choose_resource(history.jobs)
    window = choose_window(history, request.since, request.until, warm_up=request.warm_up)
    replayable, notes = _replayable_jobs(window.jobs, resource)
    notes = chosen + notes
    machine = replay_cluster_for(
        replayable,
        resource=resource,
        nodes=request.nodes,
        gpus_per_node=request.gpus_per_node,
        skip_oversized=request.skip_oversized,
        capacity=history.capacity,
    )
    counted = (machine.jobs["submitted_at"] >= window.since).to_numpy()
    if not counted.any():
        raise NotEnoughHistory("Every job between --from and --to was left out.", hint="\n".join(notes))
    if unlimited := int((~np.isfinite(machine.jobs["time_limit_s"].to_numpy())).sum()):
        notes.append(
            f"{unlimited:,} of {len(machine.jobs):,} jobs have no time limit; {request.default_time_limit_s / DAY_S:g} "
            "days are assumed for them (whatif.default_time_limit_s)."
        )
    if not request.warm_up:
        notes.append(STARTS_EMPTY)
    submitted = history.jobs["submitted_at"]
    end = submitted.max() + timedelta(seconds=1)
    return ReplaySetup(
        machine=machine,
        counted=counted,
        before=window.before,
        notes=tuple(notes),
        timezone=history.timezone,
        window_s=(int(max(window.since, submitted.min()).timestamp()), int(min(window.until, end).timestamp())),
        default_limit_s=request.default_time_limit_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryWindow:
    """Jobs of a window with its warm-up, and the earlier jobs."""

    jobs: pd.DataFrame
    before: pd.DataFrame
    since: pd.Timestamp
    until: pd.Timestamp


def choose_window(
    history: LoadedHistory, since: datetime | None, until: datetime | None, *, warm_up: timedelta
) -> HistoryWindow:
    """Return the jobs of a window, by default of the whole history.

    Raises
    ------
    NotEnoughHistory
        No job was submitted in it.
    """
    submitted = history.jobs["submitted_at"]
    if history.jobs.empty:
        raise NotEnoughHistory("There are no jobs in this history.", hint="Load some: helios trace load FILE")
    begin = pd.Timestamp(since) if since else submitted.min()
    end = pd.Timestamp(until) if until else submitted.max() + timedelta(seconds=1)
    opening = begin - warm_up
    jobs = history.jobs[(submitted >= opening) & (submitted < end)]
    if jobs.empty:
        raise NotEnoughHistory(
            f"No job was submitted in the window; the history spans {submitted.min():%Y-%m-%d} to "
            f"{submitted.max():%Y-%m-%d}.",
            hint="Choose --from and --to within it.",
        )
    return HistoryWindow(jobs=jobs, before=history.jobs[submitted < opening], since=begin, until=end)


def _replayable_jobs(window: pd.DataFrame, resource: str) -> tuple[pd.DataFrame, list[str]]:
    notes = []
    if resource == "cpus":
        notes.append("No GPUs are replayed here: the CPUs that jobs hold take their place, --gpus-per-node a node.")
    timed = window["run_time_s"].notna()
    if not timed.all():
        notes.append(
            in_number(int((~timed).sum()), "jobs that never ran, or whose run time is unknown, were left out.")
        )
    replayable, left_out = sized_jobs(window[timed], resource)
    notes += left_out
    if replayable.empty:
        raise NotEnoughHistory("No job in the window can be replayed.", hint="\n".join(notes))
    return replayable, notes


def train_predictor(
    history: LoadedHistory, setup: ReplaySetup, request: WhatIfRequest, progress: Progress
) -> DurationModel | None:
    """Return a model of what had ended when the replay begins.

    None where no scenario needs one, or too few jobs had ended. Then the predictor learns only during the replay.
    """
    if not any(scenario.uses_predictions for scenario in request.scenarios):
        return None
    if request.since is None:
        return None
    opening = request.since - request.warm_up
    return train_before(history, setup.before, opening, seed=request.seed, progress=progress)


def train_before(
    history: LoadedHistory, before: pd.DataFrame, opening: datetime, *, seed: int, progress: Progress
) -> DurationModel | None:
    """Return a model of what had ended by a moment.

    None where too few jobs had ended. Then the predictor learns only during the replay.

    Parameters
    ----------
    before : DataFrame
        The jobs submitted before ``opening``.
    """
    if before.empty:
        return None
    if (opening, seed) not in history.trained:
        try:
            history.trained[opening, seed] = train(
                before, cluster=history.cluster, until=opening, seed=seed, timezone=history.timezone, progress=progress
            )
        except NotEnoughHistory:
            return None
    model: DurationModel = history.trained[opening, seed]
    return model


def predictor_for(
    setup: ReplaySetup,
    taught: DurationModel | None,
    request: WhatIfRequest,
    *,
    shared: SharedTraining | None = None,
    describes: bool = True,
) -> InsidePredictor:
    """Return a predictor that starts with ``taught`` and learns during the replay.

    It trains with others if ``shared``, and keeps what that takes if it ``describes``.
    """
    return InsidePredictor(
        setup.machine.jobs,
        history=setup.before,
        model=taught,
        refit=True,
        seed=request.seed,
        timezone=setup.timezone,
        shared=shared,
        describes=describes,
    )


def describe_sources(predictor: ReplayTrainedPredictor | None) -> list[str]:
    """Return a note on who predicted, unless one trained model did."""
    if predictor is None:
        return []
    asked = predictor.source[predictor.source >= 0]
    untrained, fitted = float((asked == 0).mean()), len(predictor.sources) - 1
    if not untrained and fitted == 1:
        return []
    return [
        f"Of the predictions in a replay {100 * untrained:.0f} % are untrained shrinkage estimates, the rest come from "
        f"{fitted} models, each fitted on what had ended by then."
    ]


def to_run(
    scenario: Scenario,
    setup: ReplaySetup,
    predictor: ReplayPredictor | None,
    progress: Progress,
    *,
    request: WhatIfRequest | None = None,
) -> Run:
    """Make one replay and measure its counted jobs.

    ``request`` gives the placement, the planning and the seed.
    """
    result = replay_scenario(scenario, setup, predictor, progress, request=request)
    return measure(setup, result.started_s, result.ended_s, bound_s=result.bound_s, **scenario.parts)


def measure(
    setup: ReplaySetup, started_s: NDArray[np.int64], ended_s: NDArray[np.int64], *, policy: str, **about: Any
) -> Run:
    """Measure the counted jobs of a replay.

    ``started_s`` and ``ended_s`` are those of every job of the setup, ``policy`` and ``about`` name the replay in the
    fields of :class:`helios.report.whatif.Run`.
    """
    counted, workload = setup.counted, setup.workload
    return measured_run(
        submitted_s=workload.submitted_s[counted],
        started_s=started_s[counted],
        ended_s=ended_s[counted],
        run_time_s=workload.run_time_s[counted],
        gpus=workload.gpus[counted],
        users=setup.machine.jobs["user"].cat.codes.to_numpy().astype(np.int64)[counted],
        total_gpus=setup.machine.shape.total_gpus,
        node=int(setup.machine.shape.gpus_per_node.max()),
        policy=policy,
        unit=best_unit(setup.machine.resource),
        **about,
    )


def measured_run(
    *,
    submitted_s: NDArray[np.int64],
    started_s: NDArray[np.int64],
    ended_s: NDArray[np.int64],
    run_time_s: NDArray[np.int64],
    gpus: Sizes,
    users: NDArray[np.int64],
    total_gpus: int,
    node: NodeSizes,
    **about: Any,
) -> Run:
    """Return a replay with its metrics.

    All arrays have one element per job. ``about`` names the replay, as for :func:`measure`.
    """
    times = {"submitted_s": submitted_s, "ended_s": ended_s, "run_time_s": run_time_s}
    return Run(
        summary=summarize_queue(**times, gpus=gpus, total_gpus=total_gpus, node=node),
        submitted_s=submitted_s,
        started_s=started_s,
        ended_s=ended_s,
        wait_s=wait(**times),
        gpus=gpus,
        users=users,
        node=node,
        **about,
    )


def replay_scenario(
    scenario: Scenario,
    setup: ReplaySetup,
    predictor: ReplayPredictor | None,
    progress: Progress,
    *,
    request: WhatIfRequest | None = None,
    watch: JobTrace | None = None,
) -> Replay:
    """Make one replay.

    ``request`` gives the placement, the planning and the seed. ``watch`` traces one of its jobs.
    """
    request, workload = request or WhatIfRequest(scenarios=(scenario,)), setup.workload
    source = f", {scenario.published_estimates}" if scenario.published_estimates else ""
    setup_name = f"Replaying {scenario.policy}, {scenario.backfill}{source}"
    progress(setup_name, 0.0)
    # Where the order or backfill uses predictions, the predictor gives them during the replay.
    estimate_s: NDArray[np.int64] | None = workload.run_time_s
    if scenario.estimates in {RunTimes.PREDICTED, RunTimes.EXPECTED}:
        estimate_s = None
    elif scenario.estimates is RunTimes.LIMIT:
        estimate_s = setup.limit_s
    elif isinstance(scenario.estimates, int):
        estimate_s = np.full(len(workload), scenario.estimates, dtype=np.int64)
    again_s = AGAIN_S if request.predict_again_s is None else request.predict_again_s
    result = replay(
        workload,
        setup.machine.shape,
        backfill=scenario.backfill,
        preemptive=scenario.policy is Policy.SRTF,
        run_time_s=None if scenario.run_times is RunTimes.PREDICTED else scenario.true_run_time_s(workload.run_time_s),
        estimate_s=estimate_s,
        predictor=predictor,
        plan_quantile=None if scenario.estimates is RunTimes.EXPECTED else PLAN_QUANTILE,
        predict_again_s=(again_s or None) if predictor else None,
        **scenario.rules(
            setup.own_order if scenario.needs_own_order else None, node=int(setup.machine.shape.gpus_per_node.max())
        ),
        placement=request.placement,
        seed=request.seed,
        progress=lambda done: progress(setup_name, done / len(workload)),
        watch=watch,
        make_runner=predictor.inside if isinstance(predictor, InsidePredictor) else None,
    )
    progress(setup_name, 1.0)
    return result


@dataclass(frozen=True, eq=False)
class KeyRules(Table):
    """How keys and plans of jobs follow from their predictions.

    Attributes
    ----------
    key, slope : float64 arrays of shape (n_jobs,)
        Key of a job at a run time of 0, and what a second adds.
    tau_s : float64 array of shape (n_jobs,)
        Ageing times; empty: keys do not age.
    weights : float64 array of shape (3,)
        Weights of p10, p50 and p90 in the run time that backfill plans with.
    believed_s : float64 array of shape (n_jobs,)
    n_reported : int64 array of shape (1,)
        Number of ended jobs that the predictor was told of.
    reads : tuple of int
        Column of a prediction that the order goes by, whether keys and plans are needed, and whether jobs that start
        at once are predicted.
    """

    key: NDArray[np.float64]
    slope: NDArray[np.float64]
    tau_s: NDArray[np.float64]
    weights: NDArray[np.float64]
    believed_s: NDArray[np.float64]
    n_reported: NDArray[np.int64]
    reads: tuple[int, ...]


@partial(cached_jit, nogil=True)
def _carry_predicting(  # noqa: PLR0917 - numba kernels are called by position
    engine: Any,
    rules: Any,
    state: Any,
    events: Any,
    model: Any,
    known: Any,
    first: int,
    limits: Any,
    until_s: int,
    budget: int,
) -> int:
    """Carry a replay on as ``run`` does, and predict submissions."""
    clock, jobs = engine.clock[0], engine.jobs
    job, ended, ended_s = np.empty(1, dtype=np.int64), np.empty(1, dtype=np.int64), np.empty(1, dtype=np.int64)
    out = np.empty((1, len(RUN_TIME)))
    scored = clock.arrived
    while True:
        # Jobs that are predicted must arrive before it returns.
        if not run(engine, scored, until_s, max(budget, 1)):
            return _OUT_OF_BUDGET
        now = clock.next_s
        if now == NEVER or now >= until_s:
            return _REACHED
        if budget <= 0:
            return _OUT_OF_BUDGET
        while rules.n_reported[0] < clock.ended:
            ended[0] = engine.ended[rules.n_reported[0]]
            ended_s[0] = jobs[ended[0]].ends_s
            ended[0] += first
            note_ended(known, ended, ended_s)
            rules.n_reported[0] += 1
        learn_events(state, events, known, now)
        end = scored
        while end < len(jobs) and jobs[end].submitted_s == now:
            end += 1
        if end - 1 >= limits[0] or known.learned[0] >= limits[1] or now >= limits[2]:
            return _ATTEND
        events.submitted_s[first + scored : first + end] = now
        is_put_off = not rules.reads[3] and end - scored == 1 and first_up_to(engine, jobs[scored].partition, -1) < 0
        if is_put_off:
            run(engine, end, now + 1, plain(NEVER))
        for place in range(scored, end):
            job[0] = first + place
            if is_put_off and jobs[place].started_s != NEVER:
                pass_submitted(state, events, model, job[0])
                continue
            predict_submitted(state, events, model, job, out)
            if is_put_off:
                remove(engine, place)
            _set_key(engine, rules, place, out[0])
            if is_put_off:
                push(engine, place)
        budget -= EVENTS_PER_PREDICTION * (end - scored)
        scored = end


@inline_jit
def _set_key(engine: Any, rules: Any, job: int, prediction: Any) -> None:
    """Set the key and the plan of a job as ``JobKeys`` does."""
    reads, is_ranked_by, is_planned_with, _ = rules.reads
    if is_planned_with:
        planned_s = 0.0
        for column in range(3):
            planned_s += rules.weights[column] * prediction[column]
        engine.pending[job].estimate_s = int(min(max(np.ceil(planned_s), 0.0), float(LONGEST_ESTIMATE_S)))
    if is_ranked_by:
        rules.believed_s[job] = prediction[reads]
        key = rules.key[job] + rules.slope[job] * prediction[reads]
        if len(rules.tau_s) > 0:
            age_s = engine.jobs[job].submitted_s - engine.jobs[0].submitted_s
            key = np.log(max(key, LEAST_KEY)) + age_s / rules.tau_s[job]
        engine.pending[job].key = key


class InsidePredictor(ReplayTrainedPredictor):
    """Predictor that carries on the replay it serves."""

    def inside(self, scores: JobKeys) -> Runner | None:
        """Return what carries a replay on and predicts its submissions.

        None where keys are no straight line in the run time.
        """
        line = _line(scores)
        if line is None:
            return None
        tau_s = np.empty(0) if scores.tau_s is None else scores.tau_s
        # What p10 and p90 are read off at has learned from the predictions of all earlier jobs.
        predicts_all = not scores.estimates_known or scores.keys_known or scores.reads in {RUN_TIME.p10, RUN_TIME.p90}
        needs = (scores.reads, int(not scores.keys_known), int(not scores.estimates_known), int(predicts_all))
        rules = KeyRules(*line, tau_s, scores.weights, scores.believed_s, scores.n_reported, needs)

        def carry(engine: EngineState, *, scored: int, budget: int, until_s: int = NEVER) -> bool:  # noqa: ARG001  all jobs get a key here
            clock, timeline, stopped = engine.clock[0], self.timeline, _ATTEND
            while stopped == _ATTEND:
                before = int(clock["arrived"])
                args = (
                    rules,
                    timeline.state,
                    timeline.events,
                    timeline.model,
                    self.unlearned,
                    self.first,
                    self.training_limits(),
                )
                stopped = _carry_predicting(engine, *args, until_s, budget)
                arrived = int(clock["arrived"])
                self.source[before:arrived] = len(self.sources) - 1
                timeline.submissions = max(timeline.submissions, self.first + arrived)
                if stopped == _ATTEND:
                    now_s = int(clock["next_s"])
                    submitted_s = engine.jobs["submitted_s"]
                    self.train_if_due(int(np.searchsorted(submitted_s, now_s, side="right")) - 1, now_s)
            return stopped == _REACHED

        return carry


def _line(scores: JobKeys) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return intercept and slope of the keys.

    The key is a straight line over the run time, s. None if keys do not follow from these.
    """
    workload = scores.workload

    def at(run_time_s: float) -> NDArray[np.float64]:
        run_times_s = np.full(len(workload), run_time_s)
        return scores.order(submitted_s=workload.submitted_s, gpus=workload.order_gpus, run_time_s=run_times_s)

    start = np.asarray(at(0.0), dtype=np.float64)
    slope = at(1.0) - start
    straight = all(np.allclose(at(probe_s), start + probe_s * slope, rtol=1e-12, atol=0) for probe_s in PROBES_S)
    return (start, slope) if straight else None
