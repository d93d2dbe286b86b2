"""Trace of one job through a replay."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.jit import entry_point, kernel
from helios.simulate.core.events import admit_due, awaits_key, end_due, next_moment, run_due_passes
from helios.simulate.core.nodes import largest_fit
from helios.simulate.core.running import reserve_gpus
from helios.simulate.core.scheduling import comes_before, first_up_to, reserve_nodes
from helios.simulate.core.state import EASY, NEVER, NODES, EngineState

NOTE = np.dtype(
    [
        ("at_s", np.int64),
        ("head", np.int64),  # the first job in the order
        ("incumbent", np.int64),  # the first that asks for no more GPUs than the traced job; often that job itself
        ("free", np.int64),  # GPUs
        ("room", np.int64),  # GPUs of the largest job that could be placed
        # When the head is expected to start, by which backfilled jobs have to end; NEVER: no reservation.
        ("shadow_s", np.int64),
        ("extra", np.int64),  # GPUs that EASY's head leaves over then
    ],
    align=True,
)
"""What a pass left while the traced job went on waiting."""
ROWS = 4_096
"""Notes that the core takes before it returns."""

_OUT_OF_BUDGET, _REACHED, _FULL = 0, 1, 2
JOB, BUDGET, N_NOTES, AHEAD, QUEUED = 0, 1, 2, 3, 4
"""Places in the status of a trace: the job, events left, notes taken, and the queue after the job's first pass."""


class JobTrace:
    """Trace of the wait of one job, for ``replay(..., watch=trace)``.

    It notes what every scheduling pass over the job's partition leaves while the job waits. The core makes the same
    moves as without it, and the cost does not grow with the queue.

    Parameters
    ----------
    job : int
        Position of the job in the workload.
    """

    def __init__(self, job: int) -> None:
        self.job, self.units = job, 1
        self._buffer = np.empty(ROWS, dtype=NOTE)
        self._notes: list[NDArray[np.void]] = []
        self._status = np.array([job, 0, 0, 0, 0], dtype=np.int64)

    def run(self, state: EngineState, *, scored: int, budget: int, until_s: int = NEVER) -> bool:
        """Run the replay as ``run`` does, and take notes."""
        status, reached = self._status, _FULL
        self.units = int(state.clock["units"][0])
        status[BUDGET] = budget
        while reached == _FULL:
            reached = _run_and_record(state, scored, until_s, status, self._buffer)
            if status[N_NOTES]:
                self._notes.append(self._buffer[: status[N_NOTES]].copy())
        return reached == _REACHED

    @property
    def notes(self) -> NDArray[np.void]:
        """Notes in order of time, with GPUs in ``units`` of one.

        Of several passes in one second the last is kept.
        """
        notes = np.concatenate(self._notes) if self._notes else np.empty(0, dtype=NOTE)
        kept: NDArray[np.void] = notes[np.diff(notes["at_s"], append=NEVER) > 0]
        return kept

    @property
    def place(self) -> tuple[int, int]:
        """Position of the job in its partition's queue, and the queue's length.

        Both are as after the first pass in which the job was queued and not started. The position counts from 1. Both
        are 0 where the job did not wait.
        """
        return int(self._status[AHEAD]) + bool(self._status[QUEUED]), int(self._status[QUEUED])


@entry_point
def _run_and_record(
    state: EngineState, scored: int, until_s: int, status: NDArray[np.int64], notes: NDArray[np.void]
) -> int:
    job = status[JOB]
    status[N_NOTES] = 0
    while status[BUDGET] > 0 and status[N_NOTES] < len(notes):
        now = next_moment(state)
        if now == NEVER or now >= until_s or awaits_key(state, now, scored):
            state.clock[0].next_s = now
            return _REACHED
        status[BUDGET] -= end_due(state, now) + admit_due(state, now)
        due = state.partitions[state.jobs[job].partition].pass_due
        run_due_passes(state, now)
        if due and state.clock[0].arrived > job and state.jobs[job].started_s == NEVER:
            if status[QUEUED] == 0:
                _count_ahead(state, job, status)
            _note(state, job, notes[status[N_NOTES]], now)
            status[N_NOTES] += 1
    return _FULL if status[BUDGET] > 0 else _OUT_OF_BUDGET


@kernel
def _note(state: EngineState, job: int, row: Any, now: int) -> None:
    record, partition = state.jobs[job], state.jobs[job].partition
    row.at_s, row.shadow_s, row.extra = now, NEVER, 0
    row.free, row.room = state.partitions[partition].free_gpus, largest_fit(state, partition)
    row.head = first_up_to(state, partition, -1)
    row.incumbent = first_up_to(state, partition, record.gpus)
    if row.head != job and record.gpus <= row.room:
        _note_reservation(state, row, now)


@kernel
def _note_reservation(state: EngineState, row: Any, now: int) -> None:
    """Note what backfill reserves for the head.

    Jobs that the pass started end by then or use nothing that the head is to get, so it is the same as within the pass.
    """
    clock, partition, gpus = state.clock[0], state.jobs[row.head].partition, state.jobs[row.head].gpus
    if clock.backfill == EASY:
        row.shadow_s, row.extra = reserve_gpus(state, partition, gpus)
    elif clock.backfill == NODES and not (clock.closed and state.pending[row.head].key == -np.inf):
        row.shadow_s = reserve_nodes(state, partition, row.head, now)


@kernel
def _count_ahead(state: EngineState, job: int, status: NDArray[np.int64]) -> None:
    status[AHEAD] = status[QUEUED] = 0
    for other in range(state.clock[0].arrived):
        record = state.jobs[other]
        if record.partition == state.jobs[job].partition and record.started_s == NEVER:
            status[QUEUED] += 1
            status[AHEAD] += comes_before(state.pending, other, job)
