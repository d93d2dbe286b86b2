"""How faithfully the simulator repeats a real Slurm: sleeping jobs of a compressed trace, start by start.

Recording takes as long as the jobs do: ten minutes for the default stretch. It needs root, Slurm and the real traces.
Two clusters at once tell how well real Slurm repeats itself, which no simulator can surpass.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path

import numpy as np
from rich.console import Console

from helios.model import seconds_of
from helios.report.tables import Fidelity, fidelity, fidelity_table
from helios.simulate.slurm import SlurmTimeline
from tests.live.recorded import (
    Recording,
    as_submitted,
    backfill_began_s,
    give_shares,
    held_against,
    known_latency,
    record,
)
from tests.live.rig import Rig, missing, roomy_folder
from tests.live.stretch import Stretch, submissions
from tests.traces import TRACES

GOAL_ORDER, GOAL_WAIT = 0.98, 0.05
LOG = "slurmctld.log"
EXAMPLE = """example:
  python -m benchmarks.fidelity --jobs 300 --shortest-s 20 --nodes 16 --bf-interval 30 --twice slower
  python -m benchmarks.fidelity --again slower/one slower/other"""
OPTIONS = {
    "jobs": "how many jobs",
    "first": "where in Venus they begin",
    "shortest_s": "shortest run time, s; the longest is 35 times that",
    "nodes": "of 8 GPUs each",
    "bf_interval": "from one backfill pass to the next, s",
    "offered": "GPU seconds submitted for each that the cluster has",
    "seed": "of what the trace does not tell: users, limits, partitions",
}


def main(words: list[str] | None = None) -> None:
    """Record and judge, or judge again."""
    asked = _parser().parse_args(words)
    if asked.again:
        _judge(asked.folders)
        return
    if why := missing() or ("" if TRACES.is_dir() else f"the real traces are not at {TRACES}"):
        print(f"skipped: {why}")
        return
    folder = asked.folders[0] if asked.folders else Path(tempfile.mkdtemp(prefix="fidelity-"))
    stretch = Stretch(**{name: getattr(asked, name) for name in OPTIONS})
    folders = [folder / "one", folder / "other"] if asked.twice else [folder]
    record_on_clusters(stretch, folders)
    _judge(folders)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fidelity",
        description=__doc__,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", nargs="*", type=Path, help="where the recording goes; with --again: those to judge")
    parser.add_argument("--again", action="store_true", help="judge what was recorded, without Slurm")
    parser.add_argument("--twice", action="store_true", help="record on two clusters at once")
    for one in fields(Stretch):
        parser.add_argument(
            f"--{one.name.replace('_', '-')}",
            type=type(one.default),
            default=one.default,
            help=f"{OPTIONS[one.name]} (default {one.default})",
        )
    return parser


def record_on_clusters(stretch: Stretch, folders: list[Path]) -> None:
    """Record a stretch once for each folder, on clusters of their own at the same time; keep the controllers' logs."""
    rigs: list[Rig] = []
    try:
        for _ in folders:
            rigs.append(Rig(roomy_folder(), settings=stretch.settings))
            rigs[-1].control("up")
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda rig, folder: _record(rig, stretch, folder), rigs, folders))
    finally:
        for rig in rigs:
            rig.control("wipe")


def _record(rig: Rig, stretch: Stretch, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    give_shares(rig)
    try:
        recording = record(rig, submissions(stretch))
    finally:
        shutil.copy(rig.folder / "log" / LOG, folder)
    recording.write(folder)
    print(f"recorded: {folder}")


def _judge(folders: list[Path]) -> None:
    for folder in folders:
        judge(folder)
    if len(folders) == 2:
        Console(width=120).print(fidelity_table([itself(*(Recording.read(folder) for folder in folders))]))


def judge(folder: Path) -> None:
    """Print how near each replay comes, and whether the goal is met."""
    recording = Recording.read(folder)
    rows = held_against(recording)
    if (folder / LOG).exists():
        began_s = backfill_began_s((folder / LOG).read_text(errors="replace"))
        rows.append(at_its_moments(recording, began_s))
    Console(width=120).print(fidelity_table(rows))
    met = rows[0].order_correlation >= GOAL_ORDER and abs(rows[0].mean_wait_error) <= GOAL_WAIT
    print(f"goal (order {GOAL_ORDER}, mean wait within {GOAL_WAIT:.0%}): {'met' if met else 'missed'}")


def at_its_moments(recording: Recording, began_s: list[float]) -> Fidelity:
    """Hold a replay against a recording, its backfill passes at the moments at which the real ones began.

    What is left of the difference is not one of when Slurm looks at its queue, but of what it does then.
    """
    jobs = as_submitted(recording)
    timeline = SlurmTimeline(jobs.workload, recording.site, latency=known_latency(recording))
    clock = timeline.state.clock[0]
    for moment_s in began_s:
        # What was updated does not matter: the log says that there was a pass.
        clock["first_update_ms"] = clock["last_backfill_ms"]
        clock["backfill_interval_ms"] = round(moment_s * 1000) - clock["last_backfill_ms"]
        timeline.advance(moment_s)
    clock["backfill_interval_ms"] = recording.site.scheduling.bf_interval_s * 1000
    timeline.advance()
    return fidelity(
        "Slurm's rules, backfill at its moments",
        eligible_s=jobs.workload.column("eligible_s"),
        recorded_s=seconds_of(jobs.jobs["started_at"]),
        replayed_s=timeline.result().started_s,
    )


def itself(one: Recording, other: Recording) -> Fidelity:
    """Hold one recording against another of the same submissions, job by job."""
    key = ["submitted_s", "array_task_id"]
    first, second = (recording.jobs.sort_values(key, ignore_index=True) for recording in (one, other))
    assert np.array_equal(first["gpus"], second["gpus"])
    return fidelity(
        "Real Slurm, once more",
        eligible_s=first["eligible_s"].to_numpy(),
        recorded_s=first["started_s"].to_numpy(),
        replayed_s=second["started_s"].to_numpy(),
    )


if __name__ == "__main__":
    main()
