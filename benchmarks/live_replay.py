"""The same arrivals under plain Slurm and under Slurm with Helios, side by side on two real clusters of one machine.

A stretch of a real trace, compressed in time, runs as sleeping jobs; ``tests/live/test_proof.py`` holds it to account.

Usage: python -m benchmarks.live_replay   (about six minutes; as root, with Slurm installed, and with the real traces)
"""

import shutil
from contextlib import ExitStack

from tests.live.replayed import Stretch, helped, replay, waits
from tests.live.rig import Rig, missing, roomy_folder
from tests.traces import TRACES


def main() -> None:
    """Replay, and print."""
    if why := missing() or ("" if TRACES.is_dir() else f"the real traces are not at {TRACES}"):
        print(f"skipped: {why}")
        return
    stretch, folder = Stretch(), roomy_folder()
    with ExitStack() as ending:
        ending.callback(shutil.rmtree, folder, ignore_errors=True)
        rigs = [up(ending, name, users=stretch.users) for name in ("plain", "helped")]
        with helped(rigs[1], stretch, folder):
            replay(stretch, rigs)
        for rig, name in zip(rigs, ("plain Slurm", "Slurm and Helios"), strict=True):
            print(waits(rig, name).line())


def up(ending: ExitStack, name: str, *, users: list[str]) -> Rig:
    """Bring up a cluster that is wiped in the end."""
    rig = Rig(roomy_folder(), settings={"NAME": name, "USERS": " ".join(users)})
    ending.callback(rig.control, "wipe")
    rig.control("up")
    return rig


if __name__ == "__main__":
    main()
