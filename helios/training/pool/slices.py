"""Which trials of a device run now, by shares of its time.

It is stride scheduling (Waldspurger and Weihl, 1995) with a credit for each trial: the time that its share gave it and
that it has not used yet. The agent stops and continues processes by it; here is no process and no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SLICE_S, GPU_SLICE_S = 0.2, 0.5
"""Time for which the same trials run, s.

To stop and continue a program of some threads takes 1 ms, and its caches are warm again some ms later. A GPU goes on
with the kernels that a stopped program has launched, some ten ms of a usual one, so slices are longer there.
"""
LEAST_ROOM = 0.2
"""Part of a place that the running trials leave unused, above which one more runs."""
IDLE_USE = 0.1
"""Part of a place below which a trial runs even where no place is free, since it waits for something else."""
MOST_CREDIT = 2.0
"""Slices that a trial may have saved, or used too much. What it leaves unused for longer is lost to it."""


@dataclass(slots=True)
class _TimeCredit:
    """Time that a trial may still use.

    Attributes
    ----------
    part : float
        Part of a place that its share is, at most 1.
    credit_s : float
        Time that it may use before the others, s. Below 0 where it used more than its share.
    use : float
        Part of a place that it wants when it runs.
    """

    part: float
    credit_s: float = 0.0
    use: float = 1.0


class TimeSlices:
    """Time of one device, shared by trials.

    Parameters
    ----------
    slice_s : float
    """

    def __init__(self, slice_s: float) -> None:
        self.slice_s, self._places = slice_s, 1
        self._credits: dict[int, _TimeCredit] = {}

    def set_shares(self, shares: Mapping[int, float], places: int) -> None:
        """Change the shares, and keep the credit of those that stay.

        Parameters
        ----------
        shares : mapping
            Share of each trial by its number; they sum to 1.
        places : int
            How many run at the same time.
        """
        self._places = places
        parts = fill_places(shares, places)
        before, self._credits = self._credits, {}
        for number, part in parts.items():
            credit = self._credits[number] = before.get(number) or _TimeCredit(part)
            credit.part = part

    def charge(self, elapsed_s: float, used_s: Mapping[int, float], wanted_s: Mapping[int, float]) -> None:
        """Charge the trials that ran for a time.

        Parameters
        ----------
        elapsed_s : float
        used_s, wanted_s : mapping
            How much of it each of them used, and would have used without others on the machine, s of a place.
        """
        for number, wanted in wanted_s.items():
            if number in self._credits and elapsed_s >= self.slice_s / 2:  # in less, CPU time is not known well
                self._credits[number].use = min(1.0, wanted / elapsed_s)
        # A trial that waits for something else is owed nothing, so that the others' credits do not sink.
        owed = {number: credit for number, credit in self._credits.items() if number not in used_s or credit.use >= 0.5}
        total_s = sum(used_s.get(number, 0.0) for number in owed)
        parts = sum(credit.part for credit in owed.values())
        most_s = MOST_CREDIT * self.slice_s
        for number, credit in owed.items():
            change_s = total_s * credit.part / parts - used_s.get(number, 0.0)
            credit.credit_s = max(-most_s, min(most_s, credit.credit_s + change_s))

    def choose(self, numbers: Iterable[int]) -> set[int]:
        """Return which of these trials run in the next slice.

        First is who would have used up its credit first.
        """
        turns = {number: self._credits[number] for number in numbers if number in self._credits}
        room, chosen = float(self._places), set[int]()
        for number in sorted(turns, key=lambda each: ((self.slice_s - turns[each].credit_s) / turns[each].part, each)):
            if room >= LEAST_ROOM or turns[number].use <= IDLE_USE:
                chosen.add(number)
                room -= turns[number].use
        return chosen


def fill_places(shares: Mapping[int, float], places: int) -> dict[int, float]:
    """Return which part of a place each trial gets.

    None gets more than one place, and what is left of its share goes to the others in proportion.
    """
    parts: dict[int, float] = {}
    left = dict(shares)
    while left:
        scale = (places - len(parts)) / sum(left.values())
        full = [number for number, share in left.items() if share * scale >= 1.0]
        if not full:
            return parts | {number: share * scale for number, share in left.items()}
        for number in full:
            parts[number] = 1.0
            del left[number]
        if len(parts) >= places:
            break
    return parts | dict.fromkeys(left, 1.0)
