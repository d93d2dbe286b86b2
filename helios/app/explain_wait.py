"""Explanation of one job, with what held it in a traced replay.

For each scheduling pass the trace has the reason why the job did not start, and the job that came before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.explain_past import JobUnknown, explanation, job_positions, near_ids
from helios.app.history import LoadedHistory
from helios.app.scenarios import BASELINE, ORDERS, Scenario
from helios.app.whatif import (
    ReplaySetup,
    WhatIfRequest,
    describe_sources,
    predictor_for,
    prepare_replay,
    replay_scenario,
    train_predictor,
)
from helios.choices import Policy
from helios.errors import UsageError
from helios.model import DECISIONS
from helios.ports import Progress, no_progress
from helios.report.job import (
    Blocker,
    Cause,
    Holder,
    JobExplanation,
    ReplayedStart,
    ReplayedWait,
    ShorterLimit,
    WaitInterval,
)
from helios.report.whatif import scenario_label
from helios.simulate import Backfill, JobTrace, Replay
from helios.simulate.core.state import NEVER, NOBODY
from helios.units import MINUTE_S, as_count, best_unit

HOLDERS = 3
CAUSES = tuple(Cause)
PRIORITY, RESOURCES, PIECES, RESERVED = (CAUSES.index(cause) for cause in Cause)


def explain_wait(
    history: LoadedHistory, request: WhatIfRequest, job_id: str, *, progress: Progress = no_progress
) -> JobExplanation:
    """Replay a window of history and explain what held one job.

    The first scenario of ``request`` is explained. For every other scenario, and for the baseline, only the start of
    the same job is given. If the id was used again, the first job of that id is explained.

    Parameters
    ----------
    job_id : str
        Id as a person writes it, such as ``123_7`` for an array. ``123-2`` is the second job of an id, after a requeue.

    Raises
    ------
    JobUnknown
        There is no such job in the replay.
    UsageError
        The scenario preempts: such a job waits in parts, which are not explained.
    NotEnoughHistory, JobLargerThanPartition, PartitionUnknown
        As :func:`helios.app.whatif.whatif`.
    """
    chosen, *others = dict.fromkeys((*request.scenarios, BASELINE))
    if chosen.policy is Policy.SRTF:
        raise UsageError(
            "The wait of a job under srtf cannot be explained: srtf preempts, so a job waits several times.",
            hint="Choose another policy, such as --policy qssf.",
        )
    setup = prepare_replay(history, request)
    job = _position(history, setup, job_id)
    taught = train_predictor(history, setup, request, progress)
    assumptions: list[str] = []

    def replayed(scenario: Scenario, watch: JobTrace | None = None) -> Replay:
        predictor = predictor_for(setup, taught, request) if scenario.uses_predictions else None
        replay = replay_scenario(scenario, setup, predictor, progress, request=request, watch=watch)
        assumptions.extend(describe_sources(predictor))
        return replay

    unit = best_unit(setup.machine.resource)

    def start(scenario: Scenario, replay: Replay) -> ReplayedStart:
        plain = " (plain)" if scenario == BASELINE else ""
        return ReplayedStart(
            label=f"{scenario_label(**scenario.parts, unit=unit)}{plain}",
            started_at=_to_datetime(replay.started_s[job]),
            wait_s=int(replay.wait_s[job]),
        )

    trace = JobTrace(job)
    replay = replayed(chosen, trace)
    wait = _Wait(setup, chosen, replay, trace)
    starts = (start(chosen, replay), *(start(scenario, replayed(scenario)) for scenario in others))
    rank, queued = trace.place if len(wait.passes) else (0, 0)
    by_order, by_backfill = wait.overtaken()
    planned_s = replay.estimate_s if chosen.estimates is not None else None
    record = setup.machine.jobs.iloc[job]
    names = {
        "job_id": wait.name(job).job_id,
        "partition": setup.machine.shape.partitions[setup.workload.partition[job]],
    }
    return replace(
        explanation(record, record["started_at"], DECISIONS.empty(), tasks=1),
        **names,
        run_time_s=float(setup.workload.run_time_s[job]),
        remarks=(*history.notes, *setup.machine.notes, *setup.notes, *dict.fromkeys(assumptions), *wait.notes()),
        replay=ReplayedWait(
            unit=unit,
            starts=starts,
            believed_s=None if chosen.run_times is None else float(replay.believed_s[job]),
            planned_s=None if planned_s is None else float(planned_s[job]),
            planned_by="" if planned_s is None else str(chosen.estimates),
            rank=rank,
            queued=queued,
            intervals=tuple(wait.intervals()),
            holders=tuple(wait.holders()),
            overtaken_by_order=by_order,
            overtaken_by_backfill=by_backfill,
            shorter=wait.shorter_limit(),
        ),
    )


class _Wait:
    """Wait of one job in a replay, from notes on each pass.

    Attributes
    ----------
    passes : array of shape (n_passes,)
        Notes on the passes before the job started, of type ``NOTE``.
    lasts_s : int64 array of shape (n_passes,)
        Time from each pass to the next one, or to the start.
    causes, blockers : int64 arrays of shape (n_passes,)
        Cause of the wait, as a position in ``CAUSES``, and the job that came first. It is ``NOBODY`` where the job was
        itself next in line.
    """

    def __init__(self, setup: ReplaySetup, scenario: Scenario, replay: Replay, trace: JobTrace) -> None:
        job = trace.job
        self.replay, self._scenario, self._job = replay, scenario, job
        self._workload, self._users = setup.workload, setup.machine.jobs["user"]
        self.submitted_s, self.started_s = int(setup.workload.submitted_s[job]), int(replay.started_s[job])
        self._gpus = as_count(float(setup.workload.gpus[job]))
        self._ids = pd.Series(setup.workload.job_id)
        self._run = self._ids.groupby(self._ids, sort=False).cumcount().to_numpy()
        notes = trace.notes
        self.passes = notes[notes["at_s"] < self.started_s]
        self._free, self._room = (self.passes[name] / trace.units for name in ("free", "room"))
        self.lasts_s = np.diff(self.passes["at_s"], append=self.started_s)
        # A pass starts whatever may start. So where the job would fit and is not the first in the order, it is backfill
        # that kept the place; where it would not fit, the first in the order would have been given any GPUs before it.
        # With skip no job waits for a larger one: there only those come first that ask for no more.
        first = self.passes["incumbent" if scenario.backfill is Backfill.SKIP else "head"]
        next_in_line, enough = first == job, self._free >= self._gpus
        self.causes = np.full(len(self.passes), PRIORITY)
        if scenario.backfill not in {Backfill.NONE, Backfill.SKIP}:
            self.causes[~next_in_line & (self._room >= self._gpus)] = RESERVED
        self.causes[next_in_line & ~enough] = RESOURCES
        self.causes[next_in_line & enough] = PIECES
        self.blockers = np.where(next_in_line, NOBODY, first)

    def name(self, job: int) -> Blocker:
        """Return a job's name.

        It is the site's id, with ``-2`` and so on for later jobs of that id.
        """
        run, user = int(self._run[job]), self._users.iloc[job]
        return Blocker(
            job_id=f"{self._ids.iloc[job]}-{run + 1}" if run else str(self._ids.iloc[job]),
            user="" if pd.isna(user) else str(user),
            gpus=as_count(float(self._workload.gpus[job])),
        )

    def notes(self) -> list[str]:
        """Return a note if other runs have the same id."""
        job_id = self._ids.iloc[self._job]
        n_runs = int((self._ids == job_id).sum())
        return [f"The id {job_id} was used {n_runs} times; write {job_id}-2 for the second."] if n_runs > 1 else []

    def intervals(self) -> Iterator[WaitInterval]:
        """Join consecutive passes with the same cause and blocking job."""
        causes, blockers, passes, lasts_s = self.causes, self.blockers, self.passes, self.lasts_s
        changed = (causes[1:] != causes[:-1]) | (blockers[1:] != blockers[:-1])
        begins = [0, *(np.flatnonzero(changed) + 1).tolist()] if len(passes) else []
        for begin, end in pairwise([*begins, len(passes)]):
            here, last = passes[begin:end], passes[end - 1]
            blocker = None if blockers[begin] == NOBODY else self.name(int(blockers[begin]))
            free, room = self._free[begin:end], self._room[begin:end]
            fits, meant_gpus = room >= self._gpus, blocker.gpus if blocker else self._gpus
            reserved = causes[begin] == RESERVED and last["shadow_s"] != NEVER
            yield WaitInterval(
                began_at=_to_datetime(here["at_s"][0]),
                ended_at=_to_datetime(last["at_s"] + lasts_s[end - 1]),
                length_s=int(lasts_s[begin:end].sum()),
                cause=CAUSES[causes[begin]],
                blocker=blocker,
                free=(as_count(free.min()), as_count(free.max())),
                largest_that_fits=(as_count(room.min()), as_count(room.max())),
                fitted_s=int(lasts_s[begin:end][fits].sum()),
                scattered_s=int(lasts_s[begin:end][free >= meant_gpus].sum()),
                reserved_at=_to_datetime(last["shadow_s"]) if reserved else None,
            )

    def holders(self) -> Iterator[Holder]:
        """Yield the jobs that delayed this job most.

        They held most GPU time while it was next in line. Where it was next in line for less than half of its wait, the
        whole wait counts.
        """
        if not len(self.passes):
            return
        in_line = (self.causes == RESOURCES) | (self.causes == PIECES)
        whole = 2 * self.lasts_s[in_line].sum() < self.lasts_s.sum()
        so_far_s = np.append(0, np.cumsum(self.lasts_s if whole else self.lasts_s * in_line))
        moments, mates = np.append(self.passes["at_s"], self.started_s), self._jobs_of_partition()
        times = self.replay.started_s[mates], self.replay.ended_s[mates]
        begun_s, over_s = (np.interp(at_s, moments, so_far_s) for at_s in times)
        held_s = over_s - begun_s
        gpu_s = held_s * self._workload.gpus[mates]
        for place in np.argsort(-gpu_s, kind="stable")[:HOLDERS]:
            if gpu_s[place] > 0:
                until = _to_datetime(self.replay.ended_s[mates[place]])
                yield Holder(**asdict(self.name(int(mates[place]))), held_s=round(held_s[place]), until=until)

    def overtaken(self) -> tuple[int, int]:
        """Count later jobs that started earlier, by order and by backfill."""
        workload, replay, mates = self._workload, self.replay, self._jobs_of_partition()
        earlier = replay.started_s[mates] < self.started_s
        later = mates[(workload.submitted_s[mates] > self.submitted_s) & earlier]
        keys = ORDERS[self._scenario.policy](
            submitted_s=workload.submitted_s, gpus=workload.order_gpus, run_time_s=replay.believed_s
        )
        by_order = int((keys[later] < keys[self._job]).sum())
        return by_order, len(later) - by_order

    def shorter_limit(self) -> ShorterLimit | None:
        """Return a shorter limit with an earlier start.

        It is taken from the first pass that leaves enough time for the job's run. None where no pass does. Until the
        job starts nothing depends on what is planned for it, so it would have started in that pass, if not before.
        """
        passes, never = self.passes, self.passes["shadow_s"] == NEVER
        window_s = np.where(never, 0, passes["shadow_s"] - passes["at_s"])
        long_enough = window_s >= max(MINUTE_S, int(self._workload.run_time_s[self._job]))
        earlier = self.started_s - passes["at_s"] >= MINUTE_S
        for place in np.flatnonzero((self.causes == RESERVED) & long_enough & earlier)[:1]:
            return ShorterLimit(planned_s=int(window_s[place]), started_at=_to_datetime(passes["at_s"][place]))
        return None

    def _jobs_of_partition(self) -> NDArray[np.int64]:
        """Return the positions of the other jobs of the same partition."""
        partition = self._workload.partition
        alike = partition == partition[self._job]
        alike[self._job] = False
        return np.flatnonzero(alike)


def _position(history: LoadedHistory, setup: ReplaySetup, job_id: str) -> int:
    """Return the job's position in the workload."""
    jobs = setup.machine.jobs
    if len(rows := job_positions(jobs, job_id)):
        return int(rows[0])
    base, dash, run = job_id.rpartition("-")
    rows = job_positions(jobs, base)
    if dash and run.isdecimal() and 2 <= int(run) <= len(rows):
        return int(rows[int(run) - 1])
    known = history.jobs[history.jobs["job_id"] == job_id]
    if len(known):
        job = known.iloc[0]
        where = "" if pd.isna(job["partition"]) else f" to {job['partition']}"
        raise JobUnknown(
            f"Job {job_id}, submitted {job['submitted_at']:%Y-%m-%d %H:%M} UTC{where}, was not replayed: it lies "
            "outside of --from and --to, never ran, holds nothing of what is replayed, or its partition has no nodes.",
            hint="Choose --from, --to and --nodes so that it is in the replay; without them all jobs that ran are.",
        )
    near = near_ids(jobs["job_id"], job_id)
    raise JobUnknown(
        f"No job {job_id} is in the history of {history.cluster} ({len(history.jobs):,} jobs).",
        hint=f"{'Near it' if near else 'It has'}: {', '.join(near or jobs['job_id'].head(3))}. An array's task is "
        "123_7, the second run of a requeued job 123-2.",
    )


def _to_datetime(at_s: int | np.integer[Any]) -> datetime:
    return datetime.fromtimestamp(int(at_s), UTC)
