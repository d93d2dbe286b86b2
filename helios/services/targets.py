"""Order of Slurm jobs that have targets, and which of them yield their GPUs.

A job opts in by its comment (:mod:`helios.model.targets`). No job is put ahead of its own place, so that a job which
has not opted in is never put back. Among jobs that have, those before their first target come before those past it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta

from helios.actions import Place, Reorder, Yield
from helios.model import Snapshot
from helios.model.targets import TargetJob
from helios.units import gpu_time

TARGETS = "targets"
"""Name of the service in configuration, audit and reports."""
SHORTEST_S, LONGEST_S = 60.0, 1_000 * 3_600.0
"""GPU times between which jobs before their first target are ordered, s: a minute, and 1,000 GPU hours."""
LEVELS = 10
"""Steps of that order, so that a new prediction seldom changes a job's place."""
LEAST_URGENT = -0.5
"""Urgency before the first target at the longest need."""
UNKNOWN_NEED = LEAST_URGENT / 2
PAST = (0.0, -0.75, -1.0)
"""Urgencies past a first and past a second target."""
MOST_CANDIDATES = 5
"""Most running jobs that are named for each one that waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTargetsOptions:
    """Options of the targets.

    Attributes
    ----------
    every_s : int
        Time between two decisions, s.
    yields : bool
        Whether running jobs whose owners opted in are asked to yield. Otherwise only pending jobs are ordered.
    """

    every_s: int = 60
    yields: bool = True

    def __post_init__(self) -> None:
        if self.every_s <= 0:
            raise ValueError("every_s must be positive")


class JobTargets:
    """Bring jobs that have targets to their first ones sooner.

    What is needed to a first target is not known on Slurm: the predicted run time times the GPUs stands for it, so
    that among these jobs the shortest comes first. A job without a prediction is in the middle.

    A running job past its first target is named to yield where a job waits for a first one that its GPUs are enough
    for: of jobs past a second target first, then the one that runs longest. All rails are in :mod:`helios.control`.
    """

    Options = JobTargetsOptions

    def __init__(self, options: JobTargetsOptions) -> None:
        self.options = options
        self.every = timedelta(seconds=options.every_s)

    def decide(self, snapshot: Snapshot) -> list[Reorder | Yield]:
        """Return one order for each partition with such jobs, then the yields."""
        service_s = _service_s(snapshot)
        places: dict[str, list[Place]] = {}
        for job in snapshot.targets:
            if job.state == "PENDING" and job.note is not None and not job.excluded_reason.startswith("it is held"):
                places.setdefault(job.partition, []).append(_place(job, service_s.get(job.job_id, math.nan)))
        orders = [
            Reorder(
                partition=partition,
                order=tuple(sorted(order, key=lambda place: (-place.urgency, int(place.job_id)))),
                reason="jobs with targets step back behind those that need least to their first",
                partial=True,
            )
            for partition, order in sorted(places.items())
        ]
        return [*orders, *(self._yields(snapshot, service_s) if self.options.yields else ())]

    def _yields(self, snapshot: Snapshot, service_s: dict[str, float]) -> list[Yield]:
        waiting = [job for job in snapshot.targets if job.waits_for_first]
        waiting.sort(key=lambda job: (-_urgency(job, service_s.get(job.job_id, math.nan)), int(job.job_id)))
        able = [job for job in snapshot.targets if not job.why_not_asked()]
        able.sort(key=lambda job: (-(job.note.reached if job.note else 0), job.started_s, int(job.job_id)))
        return [
            Yield(job_id=job.job_id, for_job=other.job_id, reason=f"{job.note}; somebody waits for a first target")
            for other in waiting
            for job in [job for job in able if job.can_free(other)][:MOST_CANDIDATES]
        ]


def _service_s(snapshot: Snapshot) -> dict[str, float]:
    """Return the predicted GPU time of each pending job, s.

    NaN where it is unknown.
    """
    jobs, gpus = snapshot.pending, snapshot.pending["gpus"].to_numpy()
    return dict(zip(jobs["job_id"], (jobs["p50_s"].to_numpy() * gpus).tolist(), strict=True))


def _urgency(job: TargetJob, service_s: float) -> float:
    if job.note is None or job.note.reached:
        return PAST[job.note.reached if job.note else 0]
    if not service_s > 0:
        return UNKNOWN_NEED
    share = math.log(min(max(service_s, SHORTEST_S), LONGEST_S) / SHORTEST_S) / math.log(LONGEST_S / SHORTEST_S)
    return LEAST_URGENT * round(LEVELS * share) / LEVELS + 0.0  # + 0.0: no negative zero


def _place(job: TargetJob, service_s: float) -> Place:
    need = f"predicted {gpu_time(service_s)}" if service_s > 0 else "its need is not known, so in the middle"
    reason = str(job.note) if job.note and job.note.reached else f"{job.note}; {need}"
    return Place(job_id=job.job_id, urgency=_urgency(job, service_s), reason=reason)
