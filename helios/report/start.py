"""Forecast of the start of a pending job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from helios.report.plain import plain
from helios.units import duration_in_words

LATER = "later than"


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierStart:
    """A change of the request that was tried in the same simulations.

    Attributes
    ----------
    change : str
        What to ask for instead, for a person.
    p50_at : datetime
        Median start with it.
    gain_s : float
        Median gain, s.
    """

    change: str
    p50_at: datetime
    gain_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StartForecast:
    """When a pending job starts, by simulations of the queue.

    Attributes
    ----------
    taken_at : datetime
        Moment of the queue, aware, UTC.
    horizon_at : datetime
        How far the simulations went.
    draws : int
        Number of simulations. 0 where there is no forecast, and ``problem`` says why.
    p10_at, p50_at, p90_at : datetime, optional
        Quantiles of the start. None for a time after ``horizon_at``.
    end_p10_at, end_p50_at, end_p90_at : datetime, optional
        Quantiles of the end. None where it starts after ``horizon_at``.
    by_limits : bool
        Too little has ended to predict: run times were taken from time limits.
    fitting_limit_s : float
        Time limit that 95 % of such jobs fit into. NaN where not known.
    earlier : tuple of EarlierStart
        What would make it start earlier, largest gain first.
    notes : tuple of str
        What the forecast rests on and lacks, for a person.
    not_simulated : tuple of str
        Settings of the cluster that are not simulated; for programs, as they are the same for every job.
    problem : str
        Why there is no forecast, for a person.
    """

    taken_at: datetime
    horizon_at: datetime
    draws: int = 0
    p10_at: datetime | None = None
    p50_at: datetime | None = None
    p90_at: datetime | None = None
    end_p10_at: datetime | None = None
    end_p50_at: datetime | None = None
    end_p90_at: datetime | None = None
    by_limits: bool = False
    fitting_limit_s: float = float("nan")
    earlier: tuple[EarlierStart, ...] = ()
    notes: tuple[str, ...] = ()
    not_simulated: tuple[str, ...] = ()
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain values, with times in ISO 8601.

        Unknown numbers and times are null.
        """
        found: dict[str, Any] = plain(self)
        return found

    def lines(self) -> Iterator[str]:
        """Yield the forecast as sentences."""
        if self.problem:
            yield f"When it starts is not forecast: {self.problem}."
            return
        if self.p10_at is None:
            yield f"Starts {LATER} {self._text(self.horizon_at)}, in 9 of 10 simulations of the queue."
        elif self.p50_at is None:
            first, end = self._text(self.p10_at), self._text(self.horizon_at)
            yield f"Starts after {first}; in half of the simulations {LATER} {end}."
        else:
            yield (
                f"Starts {self._interval_text(self.p10_at, self.p90_at)} "
                f"(half of the simulations: before {self._text(self.p50_at)})."
            )
            if self.end_p50_at is not None:
                yield (
                    f"Ends {self._interval_text(self.end_p10_at, self.end_p90_at)} "
                    f"(half of the simulations: before {self._text(self.end_p50_at)})."
                )
        for way in self.earlier:
            yield (
                f"With {way.change} it would start {duration_in_words(way.gain_s)} earlier: "
                f"half of the simulations before {self._text(way.p50_at)}."
            )
        yield from self.notes

    def _interval_text(self, first: datetime | None, last: datetime | None) -> str:
        begins = "now" if first is None or first <= self.taken_at else self._text(first)
        if last is None:
            return f"after {begins}, perhaps {LATER} {self._text(self.horizon_at)}"
        if self._text(last) == begins:
            return f"at {begins}"
        return f"between {begins} and {self._text(last)}"

    def _text(self, moment: datetime) -> str:
        """Return a time, with its date where it is of another day."""
        style = "%H:%M" if moment.date() == self.taken_at.date() else "%Y-%m-%d %H:%M"
        return f"{moment:{style}} UTC"
