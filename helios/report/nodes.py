"""Reports on the state of nodes and on changes by Helios."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import pandas as pd
from rich.markup import escape
from rich.table import Table

from helios.model import APPLIED_NODE_CHANGES, DECISIONS, NODE_TALLIES
from helios.model.frames import plain
from helios.model.nodes import fold
from helios.units import percent

MOST_SHOWN = 40
MOST_DECISIONS = 12
WIDE_COLUMNS = 120
"""Terminal columns from which a table with the reason fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRule:
    """Rule by which nodes of a pool stay awake.

    Attributes
    ----------
    spare : int
        Nodes awake beyond those in use.
    memory_s : int
        Time over which the most nodes in use count, s.
    reason : str
        Why these numbers.
    submissions, delayed : int
        Submissions of the last seven days, and those of which a job waited for a node to boot.
    """

    pool: str
    spare: int
    memory_s: int
    reason: str
    submissions: int
    delayed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpareNodes:
    """Rules of all pools, and what came of them.

    Attributes
    ----------
    accepted : float
        Share of submissions that the site accepts to be delayed.
    cycles : mapping of str to int
        How often Helios put each node to sleep in the last 24 hours.
    """

    rules: tuple[PoolRule, ...]
    accepted: float
    cycles: Mapping[str, int]

    @property
    def share_delayed(self) -> float | None:
        """Share of the submissions of the last seven days that were delayed.

        None without any.
        """
        submissions = sum(rule.submissions for rule in self.rules)
        return sum(rule.delayed for rule in self.rules) / submissions if submissions else None

    def sentences(self) -> Iterator[str]:
        """Yield what a person should know, a sentence for each pool first."""
        for rule in self.rules:
            yield f"{rule.pool}, most in use of the last {rule.memory_s // 60} min and {rule.reason}."
        if self.share_delayed is not None:
            delayed, submissions = (
                sum(getattr(rule, name) for rule in self.rules) for name in ("delayed", "submissions")
            )
            yield (
                f"In the last seven days {delayed:,} of {submissions:,} submissions waited for a boot: "
                f"{percent(self.share_delayed, 2)}; {percent(self.accepted, 2)} are accepted."
            )
        if self.cycles:
            most = max(self.cycles.values())
            often = fold(node for node, times in self.cycles.items() if times == most)
            times = "once" if most == 1 else f"{most} times"
            yield f"Put to sleep most often in 24 hours: {often}, {times}."

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "rules": [asdict(rule) for rule in self.rules],
            "share_delayed": self.share_delayed,
            "share_accepted": self.accepted,
            "cycles": dict(self.cycles),
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeStatus:
    """State of a cluster's nodes.

    Attributes
    ----------
    taken_at : datetime
    pools : DataFrame
        Columns of ``NODE_TALLIES``: each pool now.
    applied_changes : DataFrame
        Columns of ``APPLIED_NODE_CHANGES``: changes applied now, and those that a shadow would have applied.
    protected : str
        Why nothing is put to sleep. Empty where it may be.
    quarantined : mapping of str to str
        Nodes that failed to wake, and what was observed.
    cannot : str
        Why this cluster cannot put nodes to sleep at all. Empty where it can.
    kept_awake : str
        What the numbers in the cluster's own keep-awake list mean. Empty where it has none.
    paused : str
        Who paused Helios. Empty where it is not paused.
    spare : SpareNodes, optional
        Rules by which nodes stay awake. None where no service has one.
    use_unknown : str
        Why it is not known which nodes were in use. Empty where it is, or nothing depends on it.
    """

    taken_at: datetime
    pools: pd.DataFrame
    applied_changes: pd.DataFrame
    protected: str
    quarantined: Mapping[str, str]
    cannot: str
    kept_awake: str
    paused: str
    spare: SpareNodes | None = None
    use_unknown: str = ""

    def __post_init__(self) -> None:
        NODE_TALLIES.check(self.pools)
        APPLIED_NODE_CHANGES.check(self.applied_changes)

    def parts(self) -> Iterator[Table | str]:
        """Yield the lines and tables for a terminal."""
        if self.paused:
            yield f"PAUSED {escape(self.paused)}"
        if self.cannot:
            yield f"Nodes cannot be put to sleep here: {escape(self.cannot)}"
        if self.kept_awake:
            yield f"{escape(self.kept_awake)}."
        if self.protected:
            yield f"PROTECTED: {escape(self.protected)}. To end it: helios power --clear all"
        for node, observed in self.quarantined.items():
            name = escape(node)
            mend = f"Once mended: helios power --clear {name}"
            yield f"{name} is left alone, it failed to wake: {escape(observed)}. {mend}"
        if self.use_unknown:
            yield f"No node is put to sleep: {escape(self.use_unknown)}"
        yield self._pools()
        yield from ("", *map(escape, self.spare.sentences()), "") if self.spare else ()
        if len(self.applied_changes):
            yield ""
            yield self._applied_changes()
        else:
            yield "Helios has changed nothing on any node."

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "taken_at": self.taken_at.isoformat(),
            "paused": self.paused,
            "cannot": self.cannot,
            "kept_awake": self.kept_awake,
            "protected": self.protected,
            "quarantined": dict(self.quarantined),
            "use_unknown": self.use_unknown,
            "spare": None if self.spare is None else self.spare.to_json(),
            "pools": plain(self.pools.drop(columns=["taken_at", "wanted"])),
            "applied_changes": plain(self.applied_changes),
        }

    def _pools(self) -> Table:
        table = Table(box=None, pad_edge=False)
        for name in ("Pool", "Nodes", "Busy", "Idle", "Asleep", "Falling asleep", "Waking", "By Helios"):
            table.add_column(name, justify="left" if name == "Pool" else "right")
        for row in self.pools.to_dict("records"):
            idle = row["total"] - row["busy"] - row["asleep"] - row["falling_asleep"] - row["waking"]
            counts = (row["total"], row["busy"], max(idle, 0), row["asleep"], row["falling_asleep"], row["waking"])
            table.add_row(escape(str(row["pool"])), *(f"{int(count):,}" for count in (*counts, row["by_helios"])))
        return table

    def _applied_changes(self) -> Table:
        names = ("Nodes", "Applied change", "The site's own", "Service", "Mode", "Since (UTC)")
        table = Table(*names, box=None, pad_edge=False)
        groups: dict[tuple[str, ...], list[tuple[str, datetime]]] = {}
        for row in self.applied_changes.to_dict("records"):
            note = "; changed by somebody else, left alone" if row["overridden"] else ""
            applied = f"{row['setting']}: {row['value']}{note}"
            cells = tuple(_text(cell) for cell in (applied, row["own"], row["service"], row["mode"]))
            groups.setdefault(cells, []).append((_text(row["node"]), row["written_at"]))
        for cells, rows in list(groups.items())[:MOST_SHOWN]:
            nodes, since = (
                fold_names(node for node, _ in rows) or "(the list)",
                min(written_at for _, written_at in rows),
            )
            table.add_row(*map(escape, (nodes, *cells)), f"{since:%m-%d %H:%M}")
        if len(groups) > MOST_SHOWN:
            table.add_row(f"... and {len(groups) - MOST_SHOWN:,} more: --json shows all")
        return table


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeExplanation:
    """State of one node and the last decisions about it.

    Attributes
    ----------
    facts : tuple of str
        Sentences on its state, on changes by Helios, and on why it is excluded.
    decisions : DataFrame
        Columns of ``DECISIONS``: the last decisions about it, newest first.
    """

    node: str
    facts: tuple[str, ...]
    decisions: pd.DataFrame

    def __post_init__(self) -> None:
        DECISIONS.check(self.decisions)

    def parts(self, *, width: int = WIDE_COLUMNS) -> Iterator[Table | str]:
        """Yield the lines and tables for a terminal.

        On a narrow terminal each decision takes two lines.
        """
        yield from (escape(message) for message in self.facts)
        if not len(self.decisions):
            yield "Helios has decided nothing about it in the last 30 days."
            return
        yield ""
        table = Table("When (UTC)", "Service", "Mode", "Action", "Outcome", "Why", box=None, pad_edge=False)
        columns = ("service", "mode", "action", "outcome", "reason")
        for row in self.decisions.head(MOST_DECISIONS).to_dict("records"):
            decided_at = f"{row['decided_at']:%m-%d %H:%M:%S}"
            service, mode, action, outcome, why = (escape(_text(row[name])) for name in columns)
            if width >= WIDE_COLUMNS:
                table.add_row(decided_at, service, mode, action, outcome, why)
            else:
                yield f"{decided_at}  {service} ({mode})  {action}  {outcome}"
                yield f"    {why}"
        if width >= WIDE_COLUMNS:
            yield table

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"node": self.node, "facts": list(self.facts), "decisions": plain(self.decisions)}


def group_decisions(lines: pd.DataFrame) -> list[tuple[str, str, str, str, str]]:
    """Group audit entries that differ only in their node.

    Returns for each group the nodes as a hostlist, service, action, outcome and reason.

    Parameters
    ----------
    lines : DataFrame
        Columns of ``DECISIONS``.
    """
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for row in lines[["target", "service", "action", "outcome", "reason"]].astype("object").itertuples(index=False):
        target, service, action, outcome, reason = map(_text, row)
        groups.setdefault((service, action, outcome, reason), []).append(target)
    return [(fold_names(nodes), *key) for key, nodes in groups.items()]


def fold_names(nodes: Iterable[str]) -> str:
    """Return nodes as a hostlist, without the empty name of the keep-awake list."""
    return fold(filter(None, nodes))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
