"""Cluster simulated under Slurm's own scheduling rules.

The simulation goes event by event and is compiled.
"""

from helios.simulate.slurm.replay import SlurmReplay, SlurmTimeline, replay_slurm, startable
from helios.simulate.slurm.tables import SlurmLatency
from helios.simulate.slurm.workload import SlurmWorkload

__all__ = [
    "SlurmLatency",
    "SlurmReplay",
    "SlurmTimeline",
    "SlurmWorkload",
    "replay_slurm",
    "startable",
]
