"""Texts of times into UTC, once, at this edge: a zone for times without one, and daylight saving."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from helios.errors import Misuse
from helios.ingest.check import LONGEST_S, Mask
from helios.ingest.values import distinct_texts, known

Instants = NDArray[np.datetime64]  # unit us, in UTC unless the name says local

MICROSECONDS = "datetime64[us]"
NEVER = np.datetime64("NaT", "us")
# Times outside are sentinels or damage; pandas' nanosecond paths and zone files end not far beyond.
EARLIEST = np.datetime64("1970-01-01T00:00:00", "us")
LATEST = np.datetime64("2200-01-01T00:00:00", "us")

_EPOCH = re.compile(r"\d{9,11}(\.\d{1,6})?", re.ASCII)
_ABSOLUTE = re.compile(rb"\d{2}:\d{2}(:\d{2})?(\.\d+)?([+-]\d{2}:?\d{2}|Z)\b", re.ASCII)


def tells_zone(head: bytes) -> bool:
    """Return whether the times at the start of a file carry their distance from UTC."""
    return _ABSOLUTE.search(head) is not None


def spans(seconds: NDArray[np.float64]) -> NDArray[np.timedelta64]:
    """Return lengths in s as time differences; NaT where unknown, negative or beyond what any job lasts."""
    usable = (seconds >= 0) & (seconds <= LONGEST_S)
    microseconds = (np.where(usable, seconds, 0.0) * 1e6).round().astype("timedelta64[us]")
    return np.where(usable, microseconds, np.timedelta64("NaT", "us"))


def instants(seconds: NDArray[np.float64]) -> tuple[Instants, Mask]:
    """Return seconds after 1970 as instants, NaT where unknown; and where a number is no time."""
    lowest, highest = (time.astype("datetime64[s]").astype(np.int64) for time in (EARLIEST, LATEST))
    within: Mask = (seconds >= lowest) & (seconds < highest)
    microseconds = (np.where(within, seconds, 0.0) * 1e6).round().astype(MICROSECONDS)
    return np.where(within, microseconds, NEVER), ~within & ~np.isnan(seconds)


class Clock:
    """Reads the times of one file.

    Parameters
    ----------
    zone : str
        IANA zone of times that carry none.

    Raises
    ------
    Misuse
        There is no such zone.
    """

    def __init__(self, zone: str) -> None:
        try:
            ZoneInfo(zone)
        except (KeyError, ValueError, OSError) as reason:
            raise Misuse(
                f"There is no time zone {zone!r}.", remedy="Name one of the IANA database, as Europe/Berlin or UTC."
            ) from reason
        self.zone = zone
        self.ambiguous = 0
        self.nonexistent = 0

    def read(self, texts: pa.Array, *, not_before: Instants | None = None) -> tuple[Instants, Mask]:
        """Return times in UTC, NaT where unknown, and where a text is no time.

        A local time that daylight saving repeats is the first of the two, or the second if the first lies
        before ``not_before`` (the event that came before, shape (n_rows,)). A local time that daylight
        saving skips is moved to the end of the gap. Both are counted.

        ISO 8601 with space or T is read, with or without a distance from UTC, and seconds since the epoch.
        """
        texts = known(texts)
        try:
            local = pc.cast(texts, pa.timestamp("us")).to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid:
            return self._read_absolute(texts, not_before)
        instants = self._in_utc(local, not_before)
        sane = _sane(local) | np.isnat(local)
        return np.where(sane, instants, NEVER), ~sane

    def _read_absolute(self, texts: pa.Array, not_before: Instants | None) -> tuple[Instants, Mask]:
        try:
            instants = pc.cast(texts, pa.timestamp("us", tz="UTC")).to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid:
            return self._read_each(texts, not_before)
        sane = _sane(instants) | np.isnat(instants)
        return np.where(sane, instants, NEVER), ~sane

    def _read_each(self, texts: pa.Array, not_before: Instants | None) -> tuple[Instants, Mask]:
        codes, distinct = distinct_texts(texts)
        found = [_time(text) for text in distinct]
        local = _array([time if time is None or not time.tzinfo else None for time in found])[codes]
        absolute = _array([time.replace(tzinfo=None) if time and time.tzinfo else None for time in found])[codes]
        instants = np.where(np.isnat(absolute), self._in_utc(local, not_before), absolute)
        bad = (codes >= 0) & ~_sane(instants)
        return np.where(bad, NEVER, instants), bad

    def _in_utc(self, local: Instants, not_before: Instants | None) -> Instants:
        if self.zone == "UTC":
            return local
        readable = pd.DatetimeIndex(np.where(_sane(local), local, NEVER))
        first = self._localised(readable, first_of_two=True)
        second = self._localised(readable, first_of_two=False)
        ambiguous = first < second
        self.ambiguous += int(ambiguous.sum())
        back = pd.DatetimeIndex(first).tz_localize("UTC").tz_convert(self.zone).tz_localize(None)
        self.nonexistent += int((readable.notna() & (back != readable)).sum())
        return first if not_before is None else np.where(ambiguous & (first < not_before), second, first)

    def _localised(self, local: pd.DatetimeIndex, *, first_of_two: bool) -> Instants:
        # The first of two equal local times is the one still in daylight saving time.
        is_summer = np.full(len(local), first_of_two)
        zoned = local.tz_localize(self.zone, ambiguous=is_summer, nonexistent="shift_forward")
        return zoned.tz_convert("UTC").tz_localize(None).to_numpy().astype(MICROSECONDS)


def _sane(times: Instants) -> Mask:
    return (times >= EARLIEST) & (times < LATEST)


def _array(times: list[datetime | None]) -> Instants:
    return np.array([*times, None], dtype=MICROSECONDS)


def _time(text: str) -> datetime | None:
    """Return a naive local time, an aware time in UTC, or None for what is no time."""
    text = text.strip()
    try:
        if _EPOCH.fullmatch(text):
            return datetime.fromtimestamp(float(text), tz=UTC)
        # fromisoformat also takes 20200101 and 2020W01, which are rather numbers and names.
        time = datetime.fromisoformat(text) if len(text) >= 10 and text[4] == "-" else None
        return time.astimezone(UTC) if time and time.tzinfo else time
    except (ValueError, OverflowError, OSError):
        return None
