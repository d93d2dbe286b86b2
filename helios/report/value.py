"""What predictions are worth to a queue: replays with them, between what a site has today and what is possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from helios.metrics import QueueSummary
from helios.report.words import change, duration, percent, unit_of

TODAY, MODEL, ORACLE, UNGUARDED_ORACLE = "today", "model", "oracle", "oracle_unguarded"
REPLAY_NAMES = {
    TODAY: "FIFO, today",
    MODEL: "QSSF, Helios",
    "model_unguarded": "QSSF, Helios, no guard",
    "shrinkage": "QSSF, shrinkage untrained",
    "user_last": "QSSF, user's last ended job",
    "smallest_first": "Smallest first, no model",
    ORACLE: "QSSF, true run times",
    UNGUARDED_ORACLE: "QSSF, true, no guard",
}
LEAST_GAIN_S = 1.0
"""Mean wait that the oracle must save for a share of it to mean anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """What each order makes of one queue; all with EASY backfill by time limits.

    Attributes
    ----------
    nodes : mapping
        Nodes of each partition that were replayed.
    gpus_per_node : int
    resource : str
        gpus or cpus.
    guard : str
        The bound on waiting, in words.
    replays : mapping of QueueSummary
        By the names of ``REPLAY_NAMES``; today and both oracles are always there.
    notes : tuple of str
        Assumptions, said aloud.
    """

    nodes: Mapping[str, int]
    gpus_per_node: int
    resource: str
    guard: str
    replays: Mapping[str, QueueSummary]
    notes: tuple[str, ...] = ()

    def share(self, name: str, *, oracle: str = ORACLE) -> float | None:
        """Return the part of the oracle's gain in mean wait over today that a replay realises.

        None: there is nothing to gain, because the oracle saves less than ``LEAST_GAIN_S``. Below 0: longer waits than
        today. Above 1: shorter ones than the oracle's, whose order is not the best there could be.
        """
        today_s, oracle_s = self.replays[TODAY].mean_wait_s, self.replays[oracle].mean_wait_s
        if today_s - oracle_s < LEAST_GAIN_S:
            return None
        return (today_s - self.replays[name].mean_wait_s) / (today_s - oracle_s)

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return {
            "nodes": dict(self.nodes),
            "gpus_per_node": self.gpus_per_node,
            "resource": self.resource,
            "guard": self.guard,
            "share_of_oracle_gain": self.share(MODEL),
            "replays": {
                name: {
                    "share_of_oracle_gain": self.share(name),
                    "share_of_unguarded_oracle_gain": self.share(name, oracle=UNGUARDED_ORACLE),
                    **summary.to_json(),
                }
                for name, summary in self.replays.items()
            },
        }


def notes_of(value: Value | str | None) -> tuple[str, ...]:
    """Return what is to be said aloud of the replays, or why there are none; nothing where none were asked for."""
    if isinstance(value, Value):
        return value.notes
    return () if value is None else (value,)


def value_table(value: Value) -> RenderableType:
    """Compare the replays, and say in words what the predictions are worth."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("Replayed, with EASY by limits")
    for name in ("Mean wait", "of gain", "Median", "p99", "Longest", f">8 {unit_of(value.resource)}"):
        table.add_column(name, justify="right")
    for name, words in REPLAY_NAMES.items():
        if name in value.replays:
            table.add_row(*_cells(value, name, words), style="bold" if name == MODEL else None)
    return Group(table, "", *(escape(sentence) for sentence in in_words(value)))


def in_words(value: Value) -> Sequence[str]:
    """Say what the predictions are worth to this queue, and under which bound on waiting."""
    today = value.replays[TODAY]
    where = f"{today.jobs:,} jobs replayed on {sum(value.nodes.values()):,} nodes x {value.gpus_per_node}"
    share = value.share(MODEL)
    if share is None:
        saved = "no queue" if today.mean_wait_s < LEAST_GAIN_S else "a queue that no order by run time shortens"
        return (f"{where}: {saved}, nothing to gain. Describe a smaller machine with --nodes to see one.",)
    free = value.share(MODEL, oracle=UNGUARDED_ORACLE)
    beside = "" if free is None else f", and {percent(free)} of what they would save if nobody were promoted"
    mean = change(value.replays[MODEL].mean_wait_s, today.mean_wait_s)
    return (
        f"{where}. With these predictions the mean wait changes by {mean}: {percent(share)} of what true run times "
        f"would save under the same bound{beside}.",
        f"Bound on waiting: {value.guard}. Whoever has waited longer goes first.",
    )


def _cells(value: Value, name: str, words: str) -> list[str]:
    summary, share = value.replays[name], value.share(name)
    large = summary.mean_wait_s_by_size[">8"]
    return [
        words,
        duration(summary.mean_wait_s),
        "-" if share is None or name == TODAY else percent(share),
        duration(summary.median_wait_s),
        duration(summary.p99_wait_s),
        duration(summary.max_wait_s),
        "-" if large is None else duration(large),
    ]
