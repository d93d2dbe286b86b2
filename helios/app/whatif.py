"""What-if replays of a cluster's own history under other queue policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.history import LoadedHistory
from helios.app.replay_cluster import ReplayCluster, replay_cluster_for
from helios.app.scenarios import AGAIN_S, ORDERS, Policy, RunTimes, Scenario, wait_bound
from helios.errors import NotEnoughHistory, UsageError
from helios.metrics.queue import summarize_queue, wait
from helios.ports import Progress, ReplayPredictor, no_progress
from helios.predict.duration import DurationModel, train
from helios.predict.replay_predictor import ReplayTrainedPredictor
from helios.report.whatif import Named, Run, WhatIf
from helios.simulate import Backfill, JobTrace, Placement, Replay, Reservation, Workload, replay
from helios.units import DAY_S, best_unit, duration_in_words


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfRequest:
    """What to replay, and on which machine.

    Attributes
    ----------
    plans : sequence of Scenario
        The replays to make.
    since, until : datetime, optional
        Jobs submitted in [since, until) are replayed and counted; the predictor learns from earlier ones.
    warm_up : timedelta
        Stretch before ``since`` that is replayed too, but not counted, so that the cluster is not empty at first.
    nodes : mapping, optional
        Nodes of each partition; None takes them from the peak demand.
    resource : str, optional
        ``gpus`` or ``cpus``; None: GPUs where any job asks for one.
    placement : Placement
        Which of the nodes that fit a job gets.
    plan_quantile : float
        Quantile of a prediction that backfill plans with: .1, .5 or .9.
    predict_again_s : int, optional
        Predict pending jobs again after so long, s; 0: never; None: as for the policy, see ``AGAIN_S``.
    seed : int
        Of training, of random placement and of repeats.
    """

    plans: Sequence[Scenario]
    since: datetime | None = None
    until: datetime | None = None
    warm_up: timedelta = timedelta(0)
    nodes: Mapping[str, int] | None = None
    gpus_per_node: int = 8
    resource: str | None = None
    skip_oversized: bool = False
    default_time_limit_s: int = 7 * 86_400
    placement: Placement = Placement.PACKED
    plan_quantile: float = 0.9
    predict_again_s: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        refuse_reversed(self.since, self.until)


def refuse_reversed(since: datetime | None, until: datetime | None) -> None:
    """Raise UsageError where a window ends before it begins."""
    if since is not None and until is not None and since >= until:
        raise UsageError(
            f"Nothing lies between --from {since:%Y-%m-%d %H:%M} and --to {until:%Y-%m-%d %H:%M} (UTC).",
            hint="Give a --from that is before --to.",
        )


def whatif(history: LoadedHistory, request: WhatIfRequest, *, progress: Progress = no_progress) -> WhatIf:
    """Replay a window of a cluster's history under each scenario.

    All replays are measured alike.

    Raises
    ------
    NotEnoughHistory
        No job in the window can be replayed.
    JobLargerThanPartition, PartitionUnknown
        The jobs do not fit the cluster as described.
    """
    setup = prepare_replay(history, request)
    taught = train_predictor(history, setup, request, progress)
    runs, said = [], []
    for plan in request.plans:
        predictor = predictor_for(setup, taught, request) if plan.uses_predictions else None
        runs.append(to_run(plan, setup, predictor, progress, request=request))
        said += describe_sources(predictor)
    return answer_request(history, request, setup, runs=runs, said=said)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySetup:
    """The replayed jobs on their machine, which of them count, and the earlier jobs.

    Attributes
    ----------
    window_s : pair of int
        From when to when its jobs count, as far as the history goes, s since the epoch.
    first : array of shape (jobs,), optional
        Where weeks were drawn: for each job the position of the one that it is a copy of, its own where it is none.
    """

    machine: ReplayCluster
    workload: Workload
    counted: NDArray[np.bool_]
    before: pd.DataFrame
    limit_s: NDArray[np.int64]
    notes: tuple[str, ...]
    timezone: str
    window_s: tuple[int, int]
    first: NDArray[np.int64] | None = None


def answer_request(
    history: LoadedHistory, request: WhatIfRequest, setup: ReplaySetup, *, runs: Sequence[Run], said: Sequence[str]
) -> WhatIf:
    """Return the replays of one setup as a report, with all notes."""
    counted = setup.machine.jobs["submitted_at"][setup.counted]
    return WhatIf(
        cluster=history.cluster,
        partitions=dict(zip(setup.machine.shape.partitions, setup.machine.shape.nodes.tolist(), strict=True)),
        gpus_per_node=request.gpus_per_node,
        resource=replayed_resource(history, request),
        window=(counted.min().to_pydatetime(), counted.max().to_pydatetime()),
        runs=tuple(runs),
        notes=(*history.notes, *setup.machine.notes, *setup.notes, *dict.fromkeys(said), *_bounds_said(runs)),
        named=Named(
            job_ids=setup.workload.job_id[setup.counted],
            partition=setup.workload.partition[setup.counted],
            users=tuple(setup.machine.jobs["user"].cat.categories.astype(str)),
        ),
    )


def replayed_resource(history: LoadedHistory, request: WhatIfRequest) -> str:
    """Return the resource to replay, ``gpus`` or ``cpus``.

    The one of the request, otherwise GPUs where any job asks for one, otherwise CPUs.
    """
    return request.resource or ("gpus" if bool((history.jobs["gpus"] > 0).any()) else "cpus")


def prepare_replay(history: LoadedHistory, request: WhatIfRequest) -> ReplaySetup:
    """Choose the jobs to replay and the machine.

    Raises
    ------
    NotEnoughHistory, JobLargerThanPartition, PartitionUnknown
        As :func:`whatif`.
    """
    resource = replayed_resource(history, request)
    submitted = history.jobs["submitted_at"]
    first, end = submitted.min(), submitted.max() + timedelta(seconds=1)
    since = pd.Timestamp(request.since) if request.since else first
    until = pd.Timestamp(request.until) if request.until else end
    opening = since - request.warm_up
    replayable, notes = _replayable(history.jobs, opening, until, resource)
    machine = replay_cluster_for(
        replayable,
        resource=resource,
        nodes=request.nodes,
        gpus_per_node=request.gpus_per_node,
        skip_oversized=request.skip_oversized,
    )
    counted = (machine.jobs["submitted_at"] >= since).to_numpy()
    if not counted.any():
        raise NotEnoughHistory("Every job between --from and --to was left out.", hint="\n".join(notes))
    limit_s, assumed = _limits(machine.jobs, request.default_time_limit_s)
    notes += assumed
    if not request.warm_up:
        notes.append("Each replay starts on an empty cluster; --warm-up 7d replays the week before, uncounted.")
    return ReplaySetup(
        machine=machine,
        workload=Workload(
            job_id=machine.jobs["job_id"].to_numpy(dtype=object),
            submitted_s=_seconds(machine.jobs["submitted_at"]),
            run_time_s=machine.jobs["run_time_s"].to_numpy().astype(np.int64),
            gpus=machine.size,
            partition=machine.partition,
        ),
        counted=counted,
        before=history.jobs[submitted < opening],
        limit_s=limit_s,
        notes=tuple(notes),
        timezone=history.timezone,
        window_s=(int(max(since, first).timestamp()), int(min(until, end).timestamp())),
    )


def _replayable(
    jobs: pd.DataFrame, opening: pd.Timestamp, until: pd.Timestamp, resource: str
) -> tuple[pd.DataFrame, list[str]]:
    window = jobs[(jobs["submitted_at"] >= opening) & (jobs["submitted_at"] < until)]
    if window.empty:
        first, last = jobs["submitted_at"].min(), jobs["submitted_at"].max()
        raise NotEnoughHistory(
            f"No job was submitted in the window; the history spans {first:%Y-%m-%d} to {last:%Y-%m-%d}.",
            hint="Choose --from and --to within it.",
        )
    notes = []
    if resource == "cpus":
        notes.append("No GPUs are replayed here: the CPUs that jobs hold take their place, --gpus-per-node a node.")
    timed = window["run_time_s"].notna()
    if not timed.all():
        notes.append(f"{int((~timed).sum()):,} jobs that never ran, or whose run time is unknown, were left out.")
    sized = window[resource].fillna(0) > 0
    if not sized.all():
        notes.append(f"{int((timed & ~sized).sum()):,} jobs that hold no {best_unit(resource)} were left out.")
    if not (timed & sized).any():
        raise NotEnoughHistory("No job in the window can be replayed.", hint="\n".join(notes))
    return window[timed & sized], notes


def _bounds_said(runs: Sequence[Run]) -> list[str]:
    """Return a note on the wait bound that each ``balanced`` replay reached.

    Only where the bound was not set by an option.
    """
    return [
        f"{run.label}: by the end, who had waited {duration_in_words(run.bound_s)} went first; the service qssf finds "
        "such a bound by itself."
        for run in runs
        if run.bound_s is not None and run.policy == Policy.BALANCED and "patience_s" not in run.options
    ]


def _limits(jobs: pd.DataFrame, default_s: int) -> tuple[NDArray[np.int64], list[str]]:
    """Return each job's time limit, s, and a note on missing ones.

    A job without a limit, or with UNLIMITED, gets the default.
    """
    limit_s = jobs["time_limit_s"].to_numpy()
    unlimited = ~np.isfinite(limit_s)
    notes = []
    if unlimited.any():
        notes.append(
            f"{int(unlimited.sum()):,} of {len(jobs):,} jobs have no time limit; {default_s / DAY_S:g} days are "
            "assumed for them (whatif.default_time_limit_s)."
        )
    return np.where(unlimited, default_s, limit_s).astype(np.int64), notes


def train_predictor(
    history: LoadedHistory, setup: ReplaySetup, request: WhatIfRequest, progress: Progress
) -> DurationModel | None:
    """Return a model of what had ended when the replay begins.

    None: no scenario needs one, or too little had ended, so the predictor learns during the replay alone.
    """
    if setup.before.empty or not any(plan.uses_predictions for plan in request.plans):
        return None
    opening = setup.machine.jobs["submitted_at"].iloc[0].to_pydatetime()
    try:
        return train(
            setup.before,
            cluster=history.cluster,
            until=opening,
            seed=request.seed,
            timezone=history.timezone,
            progress=progress,
        )
    except NotEnoughHistory:
        return None


def predictor_for(setup: ReplaySetup, taught: DurationModel | None, request: WhatIfRequest) -> ReplayTrainedPredictor:
    """Return a predictor that starts with ``taught`` and learns during the replay."""
    return ReplayTrainedPredictor(
        setup.machine.jobs,
        history=setup.before,
        model=taught,
        refit=True,
        seed=request.seed,
        timezone=setup.timezone,
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
    plan: Scenario,
    setup: ReplaySetup,
    predictor: ReplayPredictor | None,
    progress: Progress,
    *,
    request: WhatIfRequest | None = None,
) -> Run:
    """Make one replay and measure its counted jobs.

    ``request`` gives the placement, the planning and the seed.
    """
    result = replay_scenario(plan, setup, predictor, progress, request=request)
    return measure(
        setup,
        policy=plan.policy.value,
        run_times=plan.run_times.value if plan.run_times else None,
        estimates=plan.published_estimates,
        backfill=plan.backfill.value,
        options=dict(plan.options),
        started_s=result.started_s,
        ended_s=result.ended_s,
        bound_s=result.bound_s,
    )


def measure(
    setup: ReplaySetup,
    *,
    policy: str,
    run_times: str | None,
    estimates: str | None,
    backfill: str,
    started_s: NDArray[np.int64],
    ended_s: NDArray[np.int64],
    options: Mapping[str, Any] | None = None,
    bound_s: int | None = None,
) -> Run:
    """Measure the counted jobs of a replay.

    ``started_s`` and ``ended_s`` are those of every job of the setup.
    """
    counted, workload = setup.counted, setup.workload
    submitted_s, gpus = workload.submitted_s[counted], workload.gpus[counted]
    started_s, ended_s, run_time_s = started_s[counted], ended_s[counted], workload.run_time_s[counted]
    return Run(
        policy=policy,
        run_times=run_times,
        estimates=estimates,
        backfill=backfill,
        options=options or {},
        bound_s=bound_s,
        summary=summarize_queue(
            submitted_s=submitted_s,
            ended_s=ended_s,
            run_time_s=run_time_s,
            gpus=gpus,
            total_gpus=setup.machine.shape.total_gpus,
        ),
        submitted_s=submitted_s,
        started_s=started_s,
        ended_s=ended_s,
        wait_s=wait(submitted_s=submitted_s, ended_s=ended_s, run_time_s=run_time_s),
        gpus=gpus,
        users=setup.machine.jobs["user"].cat.codes.to_numpy().astype(np.int64)[counted],
    )


def replay_scenario(
    plan: Scenario,
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
    request, workload = request or WhatIfRequest(plans=(plan,)), setup.workload
    setup_name = f"Replaying {plan.policy}, {plan.backfill}" + (
        f", {plan.published_estimates}" if plan.published_estimates else ""
    )
    progress(setup_name, 0.0)
    result = replay(
        workload,
        setup.machine.shape,
        backfill=plan.backfill,
        order=ORDERS[plan.policy],
        preemptive=plan.policy is Policy.SRTF,
        run_time_s=_believed(plan, workload),
        estimate_s=_planned(plan, setup),
        predictor=predictor,
        plan_quantile=None if plan.estimates is RunTimes.EXPECTED else request.plan_quantile,
        predict_again_s=_again_s(plan, request) if predictor else None,
        **_bound(plan),
        placement=request.placement,
        seed=request.seed,
        progress=lambda done: progress(setup_name, done / len(workload.submitted_s)),
        watch=watch,
    )
    progress(setup_name, 1.0)
    return result


def _again_s(plan: Scenario, request: WhatIfRequest) -> int | None:
    asked = request.predict_again_s
    return (AGAIN_S.get(plan.policy) if asked is None else asked) or None


def _bound(plan: Scenario) -> dict[str, Any]:
    """Return the arguments that bound waits.

    ``balanced`` has a bound by default. For every order an option can set one, and ``patience = "never"`` removes it.
    """
    guard = wait_bound(plan.policy.value, plan.options)
    if guard is None:
        return {}
    closed = Reservation(closed=True) if plan.backfill is Backfill.NODES else None
    return {"guard": guard, "reservation": closed}


def _believed(plan: Scenario, workload: Workload) -> NDArray[np.float64] | None:
    """Return the run times that the order uses.

    None: a predictor gives them during the replay.
    """
    return None if plan.run_times is RunTimes.PREDICTED else workload.run_time_s.astype(np.float64)


def _planned(plan: Scenario, setup: ReplaySetup) -> NDArray[np.int64] | None:
    """Return the run times that EASY plans with.

    None: a predictor gives them during the replay.
    """
    if plan.estimates in {RunTimes.PREDICTED, RunTimes.EXPECTED}:
        return None
    if plan.estimates is RunTimes.LIMIT:
        return setup.limit_s
    if isinstance(plan.estimates, int):
        return np.full(len(setup.limit_s), plan.estimates, dtype=np.int64)
    return setup.workload.run_time_s


def _seconds(times: pd.Series) -> NDArray[np.int64]:
    return times.to_numpy(dtype="datetime64[s]").astype(np.int64)
