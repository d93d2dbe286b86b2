"""Explanation of one job's wait, from a replay that traces it.

The trace says of each scheduling pass why the job did not start and which job came before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from itertools import pairwise

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.explain_job import JobUnknown
from helios.app.history import LoadedHistory
from helios.app.scenarios import ORDERS, Policy, RunTimes, Scenario
from helios.app.whatif import (
    ReplaySetup,
    WhatIfRequest,
    describe_sources,
    predictor_for,
    prepare_replay,
    replay_scenario,
    replayed_resource,
    train_predictor,
)
from helios.errors import UsageError
from helios.ports import Progress, no_progress
from helios.predict.duration import DurationModel
from helios.report.job_wait import (
    Blocker,
    Cause,
    Holder,
    OtherReplay,
    Overtaken,
    ShorterLimit,
    WaitExplanation,
    WaitInterval,
)
from helios.report.whatif import scenario_label
from helios.simulate import Backfill, JobTrace, Replay
from helios.simulate.core.state import NEVER, NOBODY
from helios.units import MINUTE_S, best_unit

NEAR = 3
"""How many ids like an unknown one an error names."""
HOLDERS = 3
CAUSES = tuple(Cause)
PRIORITY, RESOURCES, PIECES, RESERVED = (CAUSES.index(cause) for cause in Cause)
BASELINE = Scenario(policy=Policy.FIFO, backfill=Backfill.EASY, estimates=RunTimes.LIMIT)
"""Scenario of a Slurm site without Helios."""


def explain_wait(
    history: LoadedHistory, request: WhatIfRequest, job_id: str, *, progress: Progress = no_progress
) -> WaitExplanation:
    """Replay a window of history and explain what held one job.

    The first scenario of ``request`` is explained. For every other scenario, and for the baseline, only the start of
    the same job is given. If the id was used again, the first job of that id is explained.

    Parameters
    ----------
    job_id : str
        As a person writes it: of an array ``123_7``; ``123-2`` is the second job of that id, one that was requeued.

    Raises
    ------
    JobUnknown
        There is no such job in the replay.
    UsageError
        The scenario preempts: such a job waits in parts, which are not explained.
    NotEnoughHistory, JobLargerThanPartition, PartitionUnknown
        As :func:`helios.app.whatif.whatif`.
    """
    chosen, *others = dict.fromkeys((*request.plans, BASELINE))
    if chosen.policy is Policy.SRTF:
        raise UsageError(
            "SRTF stops and resumes jobs, and what held a job that was stopped is not told.",
            hint="Ask for another policy, as --policy qssf.",
        )
    setup = prepare_replay(history, request)
    job = _position(history, setup, job_id)
    owner = _JobOwner(
        setup=setup, request=request, taught=train_predictor(history, setup, request, progress), progress=progress
    )
    job_trace = JobTrace(job)
    replay = owner.replayed(chosen, watch=job_trace)
    context = _JobContext(
        history=history,
        unit=best_unit(replayed_resource(history, request)),
        setup=setup,
        plan=chosen,
        replay=replay,
        job=job,
    )
    beside = tuple(_beside(plan, owner.replayed(plan), job) for plan in others)
    return _story(
        context,
        job_trace,
        beside=beside,
        notes=(*history.notes, *setup.machine.notes, *setup.notes, *_unique(owner.said)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _JobOwner:
    """Makes replays of one setup, each with its own predictor if it needs one."""

    setup: ReplaySetup
    request: WhatIfRequest
    taught: DurationModel | None
    progress: Progress
    said: list[str] = field(default_factory=list)

    def replayed(self, plan: Scenario, *, watch: JobTrace | None = None) -> Replay:
        predictor = predictor_for(self.setup, self.taught, self.request) if plan.uses_predictions else None
        replay = replay_scenario(plan, self.setup, predictor, self.progress, request=self.request, watch=watch)
        self.said.extend(describe_sources(predictor))
        return replay


@dataclass(frozen=True, kw_only=True)
class _JobContext:
    """One replay and the explained job in it."""

    history: LoadedHistory
    unit: str
    setup: ReplaySetup
    plan: Scenario
    replay: Replay
    job: int

    @property
    def submitted_s(self) -> int:
        return int(self.setup.workload.submitted_s[self.job])

    @property
    def started_s(self) -> int:
        return int(self.replay.started_s[self.job])

    @property
    def gpus(self) -> int:
        return int(self.setup.workload.gpus[self.job])

    def mates(self) -> NDArray[np.int64]:
        """Return the positions of the other jobs of the same partition."""
        partition = self.setup.workload.partition
        alike = partition == partition[self.job]
        alike[self.job] = False
        return np.flatnonzero(alike)


def _story(
    context: _JobContext, job_trace: JobTrace, *, beside: tuple[OtherReplay, ...], notes: tuple[str, ...]
) -> WaitExplanation:
    setup, job, replay, plan = context.setup, context.job, context.replay, context.plan
    passes = job_trace.notes[job_trace.notes["at_s"] < context.started_s]
    lasts_s = np.diff(passes["at_s"], append=context.started_s)
    causes, blockers = _judged(passes, context)
    names = _Names(setup)
    rank, queued = job_trace.place if len(passes) else (0, 0)
    plans = plan.estimates is not None and replay.estimate_s is not None
    return WaitExplanation(
        job=names.of(job),
        cluster=context.history.cluster,
        partition=setup.machine.shape.partitions[setup.workload.partition[job]],
        unit=context.unit,
        label=_label(plan),
        is_today=plan == BASELINE,
        submitted_at=_moment(context.submitted_s),
        started_at=_moment(context.started_s),
        run_time_s=int(setup.workload.run_time_s[job]),
        believed_s=None if plan.run_times is None else float(replay.believed_s[job]),
        planned_s=float(replay.estimate_s[job]) if plans and replay.estimate_s is not None else None,
        planned_by=str(plan.estimates) if plans else "",
        rank=rank,
        queued=queued,
        intervals=tuple(_intervals(passes, lasts_s, causes, blockers, gpus=context.gpus, names=names)),
        holders=tuple(_holders(context, passes, lasts_s, causes, names)),
        overtaken=_overtaken(context),
        shorter=_shorter(context, passes, causes),
        beside=beside,
        recorded_wait_s=_recorded_wait_s(setup.machine.jobs.iloc[job]),
        notes=(*notes, *names.said(job)),
    )


# What held the job.


def _judged(passes: NDArray[np.void], context: _JobContext) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the cause of waiting and the blocking job of each pass.

    A cause is a position in ``CAUSES``; the blocking job is ``NOBODY`` where the job was itself next in line.

    A pass starts whatever may start. So where the job would fit and is not the first in the order, it is backfill that
    kept the place; where it would not fit, the first in the order would have been given any GPUs before it. With
    ``skip`` nobody is kept waiting by a larger job: there only those come first that ask for no more.
    """
    gpus, first = context.gpus, passes["incumbent" if context.plan.backfill is Backfill.SKIP else "head"]
    reserves = context.plan.backfill not in {Backfill.NONE, Backfill.SKIP}
    next_in_line = first == context.job
    held = np.full(len(passes), PRIORITY)
    held[~next_in_line & (passes["room"] >= gpus) & reserves] = RESERVED
    held[next_in_line & (passes["free"] < gpus)] = RESOURCES
    held[next_in_line & (passes["free"] >= gpus)] = PIECES
    return held, np.where(next_in_line, NOBODY, first)


def _intervals(
    passes: NDArray[np.void],
    lasts_s: NDArray[np.int64],
    causes: NDArray[np.int64],
    blockers: NDArray[np.int64],
    *,
    gpus: int,
    names: _Names,
) -> Iterator[WaitInterval]:
    """Join consecutive passes with the same cause and blocking job."""
    changed = (causes[1:] != causes[:-1]) | (blockers[1:] != blockers[:-1])
    begins = [0, *(np.flatnonzero(changed) + 1).tolist()] if len(passes) else []
    for begin, end in pairwise([*begins, len(passes)]):
        here, last = passes[begin:end], passes[end - 1]
        blocker, shadow_s = int(blockers[begin]), int(last["shadow_s"])
        fits = here["room"] >= gpus
        meant_gpus = gpus if blocker == NOBODY else names.of(blocker).gpus
        yield WaitInterval(
            began_at=_moment(int(here["at_s"][0])),
            ended_at=_moment(int(last["at_s"] + lasts_s[end - 1])),
            cause=CAUSES[causes[begin]],
            blocker=None if blocker == NOBODY else names.of(blocker),
            free=(int(here["free"].min()), int(here["free"].max())),
            room=(int(here["room"].min()), int(here["room"].max())),
            fitted_s=int(lasts_s[begin:end][fits].sum()),
            scattered_s=int(lasts_s[begin:end][here["free"] >= meant_gpus].sum()),
            reserved_at=_moment(shadow_s) if causes[begin] == RESERVED and shadow_s != NEVER else None,
        )


def _holders(
    context: _JobContext, passes: NDArray[np.void], lasts_s: NDArray[np.int64], causes: NDArray[np.int64], names: _Names
) -> Iterator[Holder]:
    """Yield the jobs that held most GPU time while the job was next in line.

    Where it was next in line for less than half of its wait, the whole wait counts.
    """
    if not len(passes):
        return
    in_line = (causes == RESOURCES) | (causes == PIECES)
    counted_s = lasts_s * in_line if 2 * lasts_s[in_line].sum() >= lasts_s.sum() else lasts_s
    moments, so_far_s = np.append(passes["at_s"], context.started_s), np.append(0, np.cumsum(counted_s))
    mates, replay = context.mates(), context.replay
    begun_s, over_s = (np.interp(at_s, moments, so_far_s) for at_s in (replay.started_s[mates], replay.ended_s[mates]))
    held_s = over_s - begun_s
    gpu_s = held_s * context.setup.workload.gpus[mates]
    for place in np.argsort(-gpu_s, kind="stable")[:HOLDERS]:
        if gpu_s[place] > 0:
            mate = int(mates[place])
            yield Holder(job=names.of(mate), held_s=round(held_s[place]), until=_moment(int(replay.ended_s[mate])))


def _overtaken(context: _JobContext) -> Overtaken:
    workload, replay = context.setup.workload, context.replay
    mates = context.mates()
    later = mates[(workload.submitted_s[mates] > context.submitted_s) & (replay.started_s[mates] < context.started_s)]
    keys = ORDERS[context.plan.policy](
        submitted_s=workload.submitted_s, gpus=workload.gpus, run_time_s=replay.believed_s
    )
    by_order = int((keys[later] < keys[context.job]).sum())
    return Overtaken(by_order=by_order, by_backfill=len(later) - by_order)


def _shorter(context: _JobContext, passes: NDArray[np.void], causes: NDArray[np.int64]) -> ShorterLimit | None:
    """Return a planned run time with which the job would have started earlier.

    It is taken from the first pass that leaves enough time for the job's run. None: no pass does. Until the job starts
    nothing depends on what is planned for it, so it would have started in that pass, if not before.
    """
    window_s = np.where(passes["shadow_s"] == NEVER, 0, passes["shadow_s"] - passes["at_s"])
    needed_s = max(MINUTE_S, int(context.setup.workload.run_time_s[context.job]))
    earlier_s = context.started_s - passes["at_s"]
    enough = np.flatnonzero((causes == RESERVED) & (window_s >= needed_s) & (earlier_s >= MINUTE_S))
    if not len(enough):
        return None
    found = enough[0]
    return ShorterLimit(planned_s=int(window_s[found]), started_at=_moment(int(passes["at_s"][found])))


def _beside(plan: Scenario, replay: Replay, job: int) -> OtherReplay:
    return OtherReplay(
        label=_label(plan),
        is_today=plan == BASELINE,
        started_at=_moment(int(replay.started_s[job])),
        wait_s=int(replay.wait_s[job]),
    )


def _recorded_wait_s(job: pd.Series) -> float | None:
    began = job["eligible_at"] if pd.notna(job["eligible_at"]) else job["submitted_at"]
    return None if pd.isna(job["started_at"]) else max(0.0, (job["started_at"] - began).total_seconds())


# Names of jobs.


class _Names:
    """Names of the jobs in explanations.

    A name is the site's id, with ``-2`` and so on for later jobs of the same id.
    """

    def __init__(self, setup: ReplaySetup) -> None:
        ids = pd.Series(setup.workload.job_id)
        self._ids, self._users, self._gpus = ids, setup.machine.jobs["user"], setup.workload.gpus
        self._run = ids.groupby(ids, sort=False).cumcount().to_numpy()

    def of(self, job: int) -> Blocker:
        run, user = int(self._run[job]), self._users.iloc[job]
        return Blocker(
            job_id=f"{self._ids.iloc[job]}-{run + 1}" if run else str(self._ids.iloc[job]),
            user="" if pd.isna(user) else str(user),
            gpus=int(self._gpus[job]),
        )

    def said(self, job: int) -> list[str]:
        """Return a note if other runs have the same id."""
        n_runs = int((self._ids == self._ids.iloc[job]).sum())
        if n_runs == 1:
            return []
        return [f"The id {self._ids.iloc[job]} was used {n_runs} times; write {self._ids.iloc[job]}-2 for the second."]


def _position(history: LoadedHistory, setup: ReplaySetup, job_id: str) -> int:
    """Return the job's position in the workload."""
    ids = pd.Series(setup.workload.job_id)
    rows = np.flatnonzero(_called(setup.machine.jobs, ids, job_id))
    if len(rows):
        return int(rows[0])
    base, dash, run = job_id.rpartition("-")
    if dash and run.isdecimal():
        rows = np.flatnonzero(_called(setup.machine.jobs, ids, base))
        if 2 <= int(run) <= len(rows):
            return int(rows[int(run) - 1])
    raise _unknown(history, ids, job_id)


def _called(jobs: pd.DataFrame, ids: pd.Series, job_id: str) -> NDArray[np.bool_]:
    called = (ids == job_id).to_numpy()
    master, _, task = job_id.partition("_")
    if task and not called.any():
        return ((jobs["array_job_id"] == master) & (jobs["array_task_id"] == task)).to_numpy(dtype=bool, na_value=False)
    return called


def _unknown(history: LoadedHistory, ids: pd.Series, job_id: str) -> JobUnknown:
    known = history.jobs[history.jobs["job_id"] == job_id]
    if len(known):
        job = known.iloc[0]
        where = "" if pd.isna(job["partition"]) else f" to {job['partition']}"
        return JobUnknown(
            f"Job {job_id}, submitted {job['submitted_at']:%Y-%m-%d %H:%M} UTC{where}, was not replayed: it lies "
            "outside of --from and --to, never ran, holds nothing of what is replayed, or its partition has no nodes.",
            hint="Choose --from, --to and --nodes so that it is in the replay; without them all jobs that ran are.",
        )
    near = _near(ids, job_id)
    return JobUnknown(
        f"No job {job_id} is in the history of {history.cluster} ({len(history.jobs):,} jobs).",
        hint=f"{'Near it' if near else 'It has'}: {', '.join(near or ids.head(NEAR))}. An array's task is 123_7, the "
        "second run of a requeued job 123-2.",
    )


def _near(ids: pd.Series, job_id: str) -> list[str]:
    """Return the known ids nearest in number, or in letters where ids are no numbers."""
    numbers = pd.to_numeric(ids, errors="coerce")
    digits = job_id.partition("_")[0].partition("-")[0]
    if digits.isdecimal() and numbers.notna().any():
        apart = (numbers - int(digits)).abs().nsmallest(NEAR)
        return [str(ids.iloc[row]) for row in sorted(apart.index)]
    return get_close_matches(job_id, list(dict.fromkeys(ids.astype(str))), n=NEAR)


def _label(plan: Scenario) -> str:
    return scenario_label(
        policy=plan.policy.value,
        run_times=plan.run_times.value if plan.run_times else None,
        backfill=plan.backfill.value,
        estimates=plan.published_estimates,
        options=dict(plan.options),
    )


def _unique(said: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(said))


def _moment(at_s: int) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)
