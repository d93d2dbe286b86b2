"""A service of somebody's package that gives a trial one size after another, for pools that are commands."""

from __future__ import annotations

from pathlib import Path

SERVICE = """
from dataclasses import dataclass
from datetime import timedelta

from helios.training.model import ResizeTrial, TrialState
from helios.training.pool.slots import fixed_slots


class Sizes:
    '''Give each trial one size after another.'''

    every = timedelta(seconds=1)

    @dataclass(frozen=True, kw_only=True)
    class Options:
        sizes: str = "4,1"
        again: bool = False

    def __init__(self, options):
        self.sizes, self.again = [int(size) for size in options.sizes.split(",")], options.again

    def decide(self, snapshot):
        yield from fixed_slots(snapshot)
        for trial in snapshot.trials:
            if trial.state is TrialState.RUNNING and (self.again or trial.elastic.restarts < len(self.sizes)):
                names = sorted((each.name for each in snapshot.devices), key=lambda name: name not in trial.devices)
                wanted = names[: self.sizes[trial.elastic.restarts % len(self.sizes)]]
                yield ResizeTrial(number=trial.number, devices=tuple(wanted), reason="as the test")
"""


def add_sizes_service(site: Path) -> None:
    """Install the service ``sizes`` in a folder for PYTHONPATH."""
    about = site / "sizes-1.dist-info"
    about.mkdir(parents=True)
    (site / "sizes_service.py").write_text(SERVICE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: sizes\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[helios.pool_services]\nsizes = sizes_service:Sizes\n")
