"""A cluster that Slurm schedules: its own rules, event by event, compiled."""

from helios.simulate.slurmlike.tables import SlurmLatency
from helios.simulate.slurmlike.timeline import SlurmReplay, SlurmTimeline, replay_slurm, startable
from helios.simulate.slurmlike.workload import SlurmWorkload

__all__ = [
    "SlurmLatency",
    "SlurmReplay",
    "SlurmTimeline",
    "SlurmWorkload",
    "replay_slurm",
    "startable",
]
