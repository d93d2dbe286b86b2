"""Rehearsal speed: a real trace replayed with Qssf asked on the way, beside the plain compiled replay, in one run.

Usage: python benchmarks/rehearsal.py [JOBS]

The trace is KTH-SP2 of the Parallel Workloads Archive, in the folder that HELIOS_TRACES names. All replays have the
same jobs, the same machine and EASY with the users' limits; compilation is not counted. A rehearsal also predicts each
job at its submission and trains anew on the way, five times on this trace: what a silent service costs is that, the
clock and the looking. Its rate is given per second, and per second of all cores' time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from helios.actions import Action
from helios.app.history import History, read_file
from helios.app.rehearsal import rehearse
from helios.app.whatif import Question, set_the_stage
from helios.model import Snapshot
from helios.ports import Service
from helios.services.qssf import Qssf
from helios.simulate import Backfill, replay
from helios.simulate.policies import first_in_first_out
from tests.traces import TRACES

TRACE = TRACES / "KTH-SP2-1996-2.1-cln.swf.gz"
NODES = {"all": 100}
COMPILE_ON = 100


class Silent:
    """A service that proposes nothing, and is asked as often as Qssf is."""

    every = timedelta(seconds=Qssf.Options().every_s)

    def decide(self, snapshot: Snapshot) -> Iterable[Action]:  # noqa: ARG002  because of the port
        """Propose nothing."""
        return ()


def question_of(history: History, jobs: int) -> Question:
    """Ask about the first ``jobs`` of a history."""
    submitted = history.jobs["submitted_at"]
    until = submitted.iloc[jobs] if jobs < len(submitted) else None
    return Question(plans=(), nodes=NODES, gpus_per_node=1, until=until)


def compiled(history: History, question: Question) -> float:
    """Return jobs per second of the plain replay, first in, first out."""
    stage = set_the_stage(history, question)
    start = time.perf_counter()
    replay(
        stage.workload,
        stage.machine.shape,
        backfill=Backfill.EASY,
        order=first_in_first_out,
        run_time_s=stage.workload.run_time_s.astype(float),
        estimate_s=stage.limit_s,
    )
    return len(stage.workload) / (time.perf_counter() - start)


def rehearsed(title: str, history: History, question: Question, service: Service) -> None:
    """Print the rate of a rehearsal, how often the service was asked, and what came of it."""
    cpu_s = time.process_time()
    result = rehearse(history, question, {title: service})
    cpu_s = time.process_time() - cpu_s
    today, *_, run = result.whatif.runs
    (seat,) = result.seats
    print(
        f"  {title:<22}{result.jobs_per_s:>12,.0f} jobs/s"
        f"{len(run.wait_s) / cpu_s:>8,.0f} per CPU second{seat.asked:>9,} asks"
        f"   mean wait {run.summary.mean_wait_s:,.0f} s (first in, first out: {today.summary.mean_wait_s:,.0f} s)"
    )


def main() -> None:
    """Print everything."""
    if not TRACE.is_file():
        print(f"Nothing to measure: {TRACE.name} is not in the folder of traces; set HELIOS_TRACES to where it is.")
        return
    history = read_file(TRACE)
    small = question_of(history, COMPILE_ON)
    compiled(history, small)
    rehearse(history, small, {"qssf": Qssf(Qssf.Options())})
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else len(history.jobs)
    question = question_of(history, jobs)
    print(f"{TRACE.name}, {min(jobs, len(history.jobs)):,} jobs")
    print(f"  {'plain compiled replay':<22}{compiled(history, question):>12,.0f} jobs/s")
    rehearsed("a silent service", history, question, Silent())
    rehearsed("qssf", history, question, Qssf(Qssf.Options()))


if __name__ == "__main__":
    main()
