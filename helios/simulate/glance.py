"""A look at a simulated cluster: a snapshot whose frames are made when somebody looks at them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pandas as pd
from numpy.typing import NDArray

from helios.model import Demand, PowerSettings, Snapshot
from helios.simulate.rows import Facts, Jobs, Rows

Frames = dict[str, Callable[[], pd.DataFrame]]
"""What makes the frames of running jobs and of nodes."""

_LAZY = ("pending", "running", "nodes")
"""Frames of a snapshot that are made when somebody looks."""


class Scene:
    """Who runs and what the nodes do at one moment, read from the tables when somebody looks.

    Before time goes on, whoever moves it has a scene that somebody still holds :meth:`kept`; :class:`Sight` does so.
    """

    __slots__ = ("__weakref__", "_frames", "_read")

    def __init__(self, read: Callable[[], Frames]) -> None:
        self._read = read
        self._frames: Frames | None = None

    def kept(self) -> Frames:
        """Return what makes the frames, which from now on says what is so now."""
        if self._frames is None:
            self._frames = self._read()
        return self._frames

    def running(self) -> pd.DataFrame:
        """Return columns of ``QUEUE``."""
        return self.kept()["running"]()

    def nodes(self) -> pd.DataFrame:
        """Return columns of ``NODE_STATES``."""
        return self.kept()["nodes"]()


class Sight:
    """The scene of now: whoever looks before time goes on is shown the same one."""

    def __init__(self) -> None:
        self._seen: Callable[[], Scene | None] = _nothing

    def now(self, read: Callable[[], Frames]) -> Scene:
        """Return the scene of now, of which ``read`` gives what makes the frames."""
        scene = self._seen()
        if scene is None:
            scene = Scene(read)
            self._seen = weakref.ref(scene)
        return scene

    def leave(self) -> None:
        """Let whoever still holds a snapshot keep what it shows; to be called before time goes on."""
        scene = self._seen()
        if scene is not None:
            scene.kept()
        self._seen = _nothing


def _nothing() -> None:
    """Be the scene that nobody has seen."""


class Glance(Snapshot):
    """A snapshot that makes its frames when somebody looks at them: what most services do not look at costs nothing."""

    __slots__ = ("_frames", "_pending")
    _frames: Mapping[str, Callable[[], pd.DataFrame]]
    _pending: Rows

    @classmethod
    def at(
        cls,
        now_s: int,
        *,
        cluster: str,
        pending: Rows,
        scene: Scene,
        power: PowerSettings | None = None,
    ) -> Glance:
        """Return what is to be seen ``now_s``."""
        seen = cls.__new__(cls)
        frames = {"pending": pending.frame, "running": scene.running, "nodes": scene.nodes}
        plain = {"taken_at": moment(now_s), "cluster": cluster, "power": power, "demand": None}
        own = {"longest_backlog_s": pending.longest_backlog_s, "_pending": pending, "_frames": frames}
        for name, value in (plain | own).items():
            object.__setattr__(seen, name, value)
        return seen

    def with_demand(self, demand: Demand | None) -> Glance:
        """Return the same with what is expected of the nodes, and no frame made for it."""
        seen = Glance.__new__(Glance)
        for name in (*Snapshot.__slots__, *Glance.__slots__):
            if name in _LAZY and name not in self._made():
                continue
            object.__setattr__(seen, name, demand if name == "demand" else getattr(self, name))
        return seen

    def positions(self, rows: Jobs, facts: Facts) -> Jobs | None:
        """Return which jobs of a replay, known by its ``facts``, these rows of ``pending`` are; None: of another."""
        pending = getattr(self, "_pending", None)
        return pending.jobs.take(rows) if pending is not None and pending.facts is facts else None

    def _made(self) -> list[str]:
        """Return the names of the frames that are there already."""
        return [name for name in _LAZY if _is_set(self, name)]

    def __getattr__(self, name: str) -> pd.DataFrame:
        """Make a frame: Python asks here for an attribute that is not there yet."""
        if name not in _LAZY:
            raise AttributeError(name)
        frame = self._frames[name]()
        object.__setattr__(self, name, frame)
        return frame

    def pending_values(self, name: str) -> NDArray[Any]:
        """Return a column of ``pending`` as a plain array, not to be written to."""
        if hasattr(self, "_pending"):
            return self._pending.values(name)
        return super().pending_values(name)  # a copy made by dataclasses.replace, whose frames are there


def _is_set(seen: Glance, name: str) -> bool:
    """Say whether a slot has a value, without asking ``__getattr__`` for one."""
    try:
        object.__getattribute__(seen, name)
    except AttributeError:
        return False
    return True


def moment(seconds: int) -> datetime:
    """Return a time given in s since the epoch."""
    return datetime.fromtimestamp(seconds, UTC)
