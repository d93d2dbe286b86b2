"""Curve of a trial's metric, thinned while it grows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from helios.model.trial_runs import CurvePoint

MOST_POINTS = 200
"""Points of a curve. A line of a figure shows no more, and JSON of so many is some 6 KB."""


class Curve:
    """Values of a metric by step, over all attempts of a trial.

    It is thinned each time that it has twice as many points as it may have, so that a point costs the same on average
    however many there are.
    """

    def __init__(self, points: Iterable[CurvePoint] = ()) -> None:
        self._all = list(points)
        self._thinned: tuple[CurvePoint, ...] | None = None

    @property
    def points(self) -> tuple[CurvePoint, ...]:
        """At most ``MOST_POINTS``, with the first and the last one."""
        if self._thinned is None:
            self._thinned = thin(self._all)
        return self._thinned

    @property
    def seconds(self) -> float:
        """Time of the last point, s."""
        return self._all[-1].seconds if self._all else 0.0

    def is_ahead(self, step: int) -> bool:
        """Return whether a step is after all others."""
        return not self._all or step > self._all[-1].step

    def add(self, step: int, seconds: float, value: float | None) -> None:
        """Add a point.

        Points of this step and later ones are removed, since the program goes on from a checkpoint before them.
        """
        while not self.is_ahead(step):
            self._all.pop()
        self._all.append(CurvePoint(step, round(max(seconds, self.seconds), 3), value))
        if len(self._all) >= 2 * MOST_POINTS:
            self._all = list(thin(self._all))
        self._thinned = None


def thin(points: Sequence[CurvePoint]) -> tuple[CurvePoint, ...]:
    """Return at most ``MOST_POINTS`` of the points, evenly spaced by step."""
    if len(points) <= MOST_POINTS:
        return tuple(points)
    first, last = points[0], points[-1]
    gap = (last.step - first.step) / (MOST_POINTS - 1)
    by_place = {int((point.step - first.step) / gap): point for point in reversed(points[:-1])}
    by_place.pop(MOST_POINTS - 1, None)  # the last one's
    return (*(by_place[place] for place in sorted(by_place)), last)
