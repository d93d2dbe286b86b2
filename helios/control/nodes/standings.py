"""What stands changed on nodes: Helios' own book, and what others did to it since.

A change is entered before it is made and confirmed when it was read back: whatever happens in between, the book names
at least every node that was touched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pandas as pd

from helios.actions import NodeLever
from helios.control.nodes.wishes import LIST, NodeKey
from helios.errors import HostlistInvalid
from helios.hostlist import expand
from helios.model import NODE_STANDINGS, Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStanding:
    """One change that stands, as in ``NODE_STANDINGS``.

    Attributes
    ----------
    own : str
        What the site itself had there; of a node's power empty.
    after : str
        What was read back; empty: it is entered, and not yet read back.
    admins : bool
        Whether it is somebody else's now.
    """

    lever: NodeLever
    node: str
    service: str
    mode: Mode
    value: str
    own: str
    after: str
    written_at: datetime
    admins: bool = False

    @property
    def key(self) -> NodeKey:
        """Lever and node."""
        return self.lever, self.node

    @property
    def confirmed(self) -> bool:
        """Whether it was read back as asked."""
        return bool(self.after)


NodeBook = dict[NodeKey, NodeStanding]
"""What stands, by lever and node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBooks:
    """What stands on the cluster, and what would stand if the shadows could act."""

    real: NodeBook
    shadow: NodeBook

    def frame(self) -> pd.DataFrame:
        """Return both as columns of ``NODE_STANDINGS``."""
        return _frame([*self.real.values(), *self.shadow.values()])

    def ours(self, lever: NodeLever) -> list[NodeStanding]:
        """Return what stands on the cluster because of Helios."""
        return [row for row in self.real.values() if row.lever is lever and not row.admins]

    def own(self) -> dict[NodeKey, str]:
        """Return what the site itself has, where Helios changed it."""
        return {key: row.own for key, row in self.real.items() if not row.admins}


def node_books_of(frame: pd.DataFrame) -> NodeBooks:
    """Read ``NODE_STANDINGS``."""
    rows = [_standing(record) for record in NODE_STANDINGS.check(frame).to_dict("records")]
    return NodeBooks(
        real={row.key: row for row in rows if row.mode is not Mode.SHADOW},
        shadow={row.key: row for row in rows if row.mode is Mode.SHADOW},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """What would have to be taken back, in plain words that outlive the database: what a kill switch reads.

    Attributes
    ----------
    asleep : tuple of str
        Nodes that Helios put to sleep, or is about to.
    weights : tuple of (str, int)
        Nodes whose weight Helios changed, and the site's own weight of each.
    keep_awake : str, optional
        The site's own keep-awake list; None: Helios did not change it.
    """

    asleep: tuple[str, ...] = ()
    weights: tuple[tuple[str, int], ...] = ()
    keep_awake: str | None = None

    @classmethod
    def of(cls, books: NodeBooks) -> Undo:
        """Return what undoes all that stands in the book."""
        kept = books.real.get(LIST)
        weights = {row.node: row.own for row in books.ours(NodeLever.WEIGHT)}
        return cls(
            asleep=tuple(sorted(row.node for row in books.ours(NodeLever.POWER))),
            weights=tuple(sorted((node, int(float(own))) for node, own in weights.items())),
            keep_awake=None if kept is None or kept.admins else kept.own,
        )

    def rows(self, *, at: datetime, service: str) -> NodeBook:
        """Return it as entries of a book that are nobody's, to be taken back."""
        pairs = [
            *((NodeLever.POWER, node, "asleep", "") for node in self.asleep),
            *((NodeLever.WEIGHT, node, "unknown", str(own)) for node, own in self.weights),
            *([(NodeLever.KEEP_AWAKE, "", "unknown", self.keep_awake)] if self.keep_awake is not None else []),
        ]
        rows = [
            NodeStanding(
                lever=lever,
                node=node,
                service=service,
                mode=Mode.ACTIVE,
                value=value,
                own=own,
                after="",
                written_at=at,
            )
            for lever, node, value, own in pairs
        ]
        return {row.key: row for row in rows}


def weight_in(words: str) -> float | None:
    """Return the weight that is said in the mechanism's words (``Weight 20``); None: none is."""
    numbers = re.findall(r"\d+", words)
    return float(numbers[-1]) if numbers else None


def same_list(one: str, other: str) -> bool:
    """Return whether two keep-awake lists keep the same nodes awake, however they are folded.

    Each may stand alone or in the mechanism's words (``SuspendExcNodes n[1-4]``), and may say of how many nodes so many
    are kept (``n[1-9]:4``).
    """
    return one == other or _kept(one) == _kept(other)


def _kept(words: str) -> frozenset[tuple[str, ...]]:
    text = words.rsplit(maxsplit=1)[-1] if words.split() else ""
    try:
        parts = [part.partition(":") for part in re.split(r",(?![^\[]*\])", text) if part]
        plain = {(node,) for names, _, least in parts if not least for node in expand(names)}
        return frozenset(plain | {(least, *expand(names)) for names, _, least in parts if least})
    except HostlistInvalid:
        return frozenset({(text,)})  # what nobody can read is the same only as itself


def _standing(record: Mapping[Any, Any]) -> NodeStanding:
    return NodeStanding(
        lever=NodeLever(record["lever"]),
        node=_text(record["node"]),
        service=str(record["service"]),
        mode=Mode(record["mode"]),
        value=_text(record["value"]),
        own=_text(record["own"]),
        after=_text(record["after"]),
        written_at=record["written_at"].to_pydatetime(),
        admins=bool(record["admins"]),
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _frame(rows: Iterable[NodeStanding]) -> pd.DataFrame:
    rows = list(rows)
    if not rows:
        return NODE_STANDINGS.empty()
    columns: dict[str, Any] = {name: [getattr(row, name) for row in rows] for name in NODE_STANDINGS.names}
    columns["lever"] = [row.lever.value for row in rows]
    columns["mode"] = [row.mode.value for row in rows]
    columns["written_at"] = pd.to_datetime(columns["written_at"], utc=True)
    columns["admins"] = [int(row.admins) for row in rows]
    return NODE_STANDINGS.conform(pd.DataFrame(columns))
