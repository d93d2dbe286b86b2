"""Large jobs first while most people sleep: at night nobody waits for a small one to come back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from helios.actions import Place, Reorder
from helios.model import Snapshot


class NightOwl:
    """Prefer large jobs at night, the largest first."""

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """What a site may choose: what is large (GPUs), and when it is night (hours of the day, in a time zone)."""

        large_gpus: int = 8
        begins: int = 22
        ends: int = 6
        timezone: str = "UTC"

    every = timedelta(minutes=5)

    def __init__(self, options: Options) -> None:
        self.options = options
        self.zone = ZoneInfo(options.timezone)

    def decide(self, snapshot: Snapshot) -> Iterator[Reorder]:
        """Name the large jobs at night; by day nothing, and Helios reverts what was set."""
        if not self.is_night(snapshot.taken_at):
            return
        jobs = snapshot.pending
        large = jobs[jobs["excluded_reason"].isna() & (jobs["gpus"] >= self.options.large_gpus)]
        largest_first = large.sort_values(["gpus", "submitted_at", "job_id"], ascending=[False, True, True])
        for partition, queue in largest_first.groupby("partition", observed=True):
            places = [
                Place(
                    job_id=job_id,
                    urgency=gpus / (gpus + self.options.large_gpus),
                    reason=f"{gpus:g} GPUs, and it is night",
                )
                for job_id, gpus in zip(queue["job_id"], queue["gpus"], strict=True)
            ]
            yield Reorder(partition=str(partition), order=tuple(places), reason="large jobs first at night")

    def is_night(self, moment: datetime) -> bool:
        """Say whether ``moment`` is in the night, which may span midnight."""
        hour, begins, ends = moment.astimezone(self.zone).hour, self.options.begins, self.options.ends
        return begins <= hour < ends if begins < ends else hour >= begins or hour < ends
