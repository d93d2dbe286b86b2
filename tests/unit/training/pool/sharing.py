"""A pool whose service gives shares, as a program: ``python -m tests.unit.training.pool.sharing FOLDER HOW``.

``HOW`` is what carries the shares out: ``weights``, ``slices`` or ``gpu``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from helios.training.model import Device, PoolAction, PoolSnapshot, ShareTrial, TrialState
from helios.training.pool import agent, launcher
from helios.training.pool.slots import fixed_slots
from helios.training.pool.sweep_file import read_training_sweep
from tests.unit.training.pool.test_coordinator import run

SLICES = """
import sys
from helios.training.pool import agent, device_shares
device_shares.cpu_groups = lambda prefix: None
agent.main(*sys.argv[1:])
"""
"""An agent whose account may not make control groups for the CPU."""
AGENT = agent.__file__


def share_by(how: str, folder: Path, *, slots: int) -> Device:
    """Have agents that start from now on carry shares out in this way, and return a device for it."""
    (folder / "agent.py").write_text(SLICES)
    agent.__file__ = AGENT if how == "weights" else str(folder / "agent.py")
    if how != "gpu":
        return Device(name="cpu:0", kind="cpu", memory_mib=1_000.0 * slots, slots=slots)
    # No driver knows this one, so that its memory is 0; all else is as on a GPU.
    vars(launcher).update(gpu_id=lambda device: "GPU-none", device_environment=lambda device: {})
    return Device(name="gpu:0", kind="gpu", memory_mib=1_000.0 * slots, slots=slots)


def change_shares(pool: PoolSnapshot) -> list[PoolAction]:
    """Give running trials other shares every second, and sometimes none."""
    second = int(pool.now_s)
    running = [trial.number for trial in pool.trials if trial.state is TrialState.RUNNING]
    shares = {number: None if second % 7 == 0 else 1 / (1 + (number * 7 + second) % 20) for number in running}
    return [
        *fixed_slots(pool),
        *(ShareTrial(number=number, share=share, reason="a test") for number, share in shares.items()),
    ]


def main(folder: Path, how: str) -> None:
    """Run or resume the pool of ``sweep.toml`` in a folder."""
    run(read_training_sweep(folder / "sweep.toml"), devices=[share_by(how, folder, slots=4)], decide=change_shares)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
