"""How faithfully the simulator repeats a real Slurm: sleeping jobs of a compressed trace, start by start.

python -m benchmarks.fidelity [FOLDER]      record on a cluster of this machine (about ten minutes; as root, with
                                            Slurm installed, and with the real traces), write it to FOLDER, judge
python -m benchmarks.fidelity --again FOLDER  judge what was recorded there, without Slurm
python -m benchmarks.fidelity --twice       record the same submissions on two clusters at once: how well real
                                            Slurm repeats itself is what no simulator can surpass
"""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from rich.console import Console

from helios.report.fidelity import Fidelity, fidelity, fidelity_table
from tests.live.recorded import SETTINGS, Recording, give_shares, held_against, record, submissions
from tests.live.rig import Rig, missing, roomy_folder
from tests.traces import TRACES

JOBS = 260
GOAL_ORDER, GOAL_WAIT = 0.98, 0.05


def main() -> None:
    """Record and judge, or judge again."""
    words = sys.argv[1:]
    if words[:1] == ["--again"]:
        judge(Recording.read(Path(words[1])))
        return
    if why := missing() or ("" if TRACES.is_dir() else f"the real traces are not at {TRACES}"):
        print(f"skipped: {why}")
        return
    folder = Path(next((word for word in words if not word.startswith("-")), tempfile.mkdtemp(prefix="fidelity-")))
    folders = [folder / "one", folder / "other"] if "--twice" in words else [folder]
    rigs = [Rig(roomy_folder(), settings=SETTINGS)]
    try:
        rigs[0].control("up")
        if len(folders) > 1:
            rigs.append(Rig(roomy_folder(), settings=SETTINGS))
            rigs[1].control("up")
        with ThreadPoolExecutor() as pool:
            recordings = list(pool.map(recorded, rigs))
    finally:
        for rig in rigs:
            rig.control("wipe")
    for recording, where in zip(recordings, folders, strict=True):
        recording.write(where)
        print(f"recorded: {where}")
        judge(recording)
    if len(recordings) > 1:
        Console(width=120).print(fidelity_table([itself(*recordings)]))


def recorded(rig: Rig) -> Recording:
    """Run the stretch on one cluster."""
    give_shares(rig)
    return record(rig, submissions(JOBS))


def judge(recording: Recording) -> None:
    """Print how near each replay comes, and whether the goal is met."""
    rows = held_against(recording)
    Console(width=120).print(fidelity_table(rows))
    met = rows[0].order_correlation >= GOAL_ORDER and abs(rows[0].mean_wait_error) <= GOAL_WAIT
    print(f"goal (order {GOAL_ORDER}, mean wait within {GOAL_WAIT:.0%}): {'met' if met else 'missed'}")


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
