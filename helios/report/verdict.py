"""The verdict on the order that Helios should run live.

One replay is no evidence, because a seed changes the mean wait of three weeks by up to 40 %. So the verdict goes by the
logarithm of the ratio of their waits in each draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from math import exp, isfinite, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.choices import ResampledUnit
from helios.metrics.statistics import mean_interval
from helios.model import SIZE_CLASSES, SIZE_NAMES
from helios.model.frames import plain
from helios.units import duration_in_words

LEAST_EFFECT = 0.1
"""Relative difference of mean waits up to which it is called small."""
DIGITS = 2
"""Decimals of a ratio as printed."""
LEAST_WAIT_S = 1.0
"""Mean wait under plain FIFO + EASY below which no order can change anything."""
NOTICED_S = 1.0
"""Smallest noticeable difference of waits, s."""
LEAST_RECORDED = 0.5
"""Share of jobs with a recorded start from which waits are compared."""
DIFFERENCE, DIFFERENCE_S = 2.0, 60.0
"""Ratio and difference, s, of recorded and replayed mean waits beyond which a replay is not what the site runs.

Orders are compared for gains of a third to a half, which a baseline that is off by two hides.
"""
PLAIN = "plain FIFO + EASY"
NOBODY_WAITS = f"Hardly any job waits under {PLAIN}, so no order of the queue can change anything."
SINGLE_REPLAY = (
    "A single replay is no evidence: other arrivals move its mean wait by up to 40 %. helios whatif --draws 5 gives a "
    "verdict."
)
DRAW_METHODS = {
    ResampledUnit.USERS: "each user's jobs moved by whole days",
    ResampledUnit.WEEKS: "whole weeks drawn anew",
    ResampledUnit.DAYS: "whole days drawn anew",
    ResampledUnit.SEEDS: "arrivals moved within their hour",
}


class CheckedOrder(StrEnum):
    """Orders that Helios may propose to a site."""

    PREDICTIONS = "qssf"
    SIZE = "fewest_gpus"
    OWN = "fifo"


NAMES = {CheckedOrder.PREDICTIONS: "Predictions (qssf)", CheckedOrder.SIZE: "Size, equally aged"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """Waits under an order, relative to plain FIFO + EASY.

    ``large`` is the mean wait of jobs of a node and more, ``by_size`` that of each size class; NaN without such jobs.
    """

    mean: float
    longest: float
    large: float
    by_size: Mapping[str, float] = field(default_factory=dict)


class Effect(StrEnum):
    """What a ratio of waits shows, by its interval and its size."""

    SHORTER = "shorter"
    LONGER = "longer"
    SMALL = "small"
    CHANCE = "not told apart from chance"
    UNKNOWN = "a single replay"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitRatio:
    """Geometric mean over draws of a ratio of waits.

    ``low`` and ``high`` are its 95 % interval, None where there are too few draws.
    """

    ratio: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, ratios: Sequence[float]) -> WaitRatio:
        """Return the geometric mean of known ratios with its interval.

        NaN where none is known.
        """
        logs = np.log([ratio for ratio in ratios if isfinite(ratio)])
        if not len(logs):
            return cls(ratio=float("nan"))
        low, high = (None if bound is None else exp(bound) for bound in mean_interval(logs))
        return cls(ratio=exp(float(logs.mean())), low=low, high=high)

    @property
    def effect(self) -> Effect:
        """Whether waits differ, and by enough to matter."""
        if self.low is None or self.high is None:
            return Effect.UNKNOWN
        # Of the numbers as they are printed, so that no word contradicts them.
        ratio, low, high = (round(value, DIGITS) for value in (self.ratio, self.low, self.high))
        if low <= 1 <= high:
            return Effect.CHANCE
        if round(abs(ratio - 1), DIGITS) <= LEAST_EFFECT:
            return Effect.SMALL
        return Effect.SHORTER if ratio < 1 else Effect.LONGER

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        found: dict[str, Any] = plain(self)
        return found | {"effect": self.effect.value}

    def __str__(self) -> str:
        """Return it as ``x 0.47 (0.40 to 0.55)``."""
        interval = (
            "" if self.low is None or self.high is None else f" ({self.low:.{DIGITS}f} to {self.high:.{DIGITS}f})"
        )
        return f"x {self.ratio:.{DIGITS}f}{interval}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedWaits:
    """Recorded and replayed mean wait of the same jobs, s."""

    jobs: int
    recorded_s: float
    replayed_s: float

    @property
    def differs(self) -> bool:
        """Whether the replay waits another time than the site."""
        low_s, high_s = sorted((self.recorded_s, self.replayed_s))
        return high_s - low_s >= DIFFERENCE_S and high_s > DIFFERENCE * low_s

    def sentences(self) -> list[str]:
        """Return the recorded wait beside that of plain FIFO + EASY."""
        waits = f"{duration_in_words(self.replayed_s)} where {duration_in_words(self.recorded_s)} was recorded"
        mean = f"the mean wait of the {self.jobs:,} jobs with a recorded start is {waits}"
        if not self.differs:
            return [f"Under {PLAIN} {mean}."]
        return [
            f"{PLAIN[0].upper()}{PLAIN[1:]} is not what this site runs: under it {mean}. So this replay says nothing "
            "of gains at the site; its own rules are replayed by: helios whatif slurm"
        ]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "jobs": self.jobs,
            "mean_wait_s": self.recorded_s,
            "replayed_mean_wait_s": self.replayed_s,
            "differs": self.differs,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderVerdict:
    """Waits under the orders that a site could use, and its verdict.

    All three have EASY backfill by time limits; size ages and is bounded as the live order is. There is one rule, and
    every command, page and the nightly check use it.

    Attributes
    ----------
    window : pair of datetime
        First and last submission that count.
    jobs : int
        How many count.
    draws : int
        0 where every way of drawing was refused, and ``ratios`` are of the window itself.
    over : ResampledUnit
        What was drawn.
    own_mean_s : float
        Mean wait under plain FIFO + EASY, s, over the draws.
    ratios : mapping
        For predictions and size the ratios to plain FIFO + EASY, one for each draw; empty where hardly any job waits.
    refused : mapping
        For each way of drawing that was refused, the wait under plain FIFO + EASY over that in the window.
    recorded : RecordedWaits, optional
        None where too few starts are known, or where Helios acts.
    """

    window: tuple[datetime, datetime]
    jobs: int
    draws: int
    over: ResampledUnit
    own_mean_s: float
    ratios: Mapping[CheckedOrder, Sequence[Ratios]]
    refused: Mapping[ResampledUnit, WaitRatio] = field(default_factory=dict)
    recorded: RecordedWaits | None = None

    @property
    def has_no_waits(self) -> bool:
        """Whether hardly any job waits under plain FIFO + EASY."""
        return self.own_mean_s < LEAST_WAIT_S

    @property
    def is_comparable(self) -> bool:
        """Whether plain FIFO + EASY may be what the site runs."""
        return self.recorded is None or not self.recorded.differs

    @property
    def best(self) -> CheckedOrder:
        """The order of the three that this queue should have.

        It is by size where predictions are not better than size beyond chance.
        """
        if self.has_no_waits:
            return CheckedOrder.OWN
        predictions, size = (self.mean(order).effect is Effect.SHORTER for order in NAMES)
        if size and not (predictions and self.beside_size.effect is Effect.SHORTER):
            return CheckedOrder.SIZE
        return CheckedOrder.PREDICTIONS if predictions else CheckedOrder.OWN

    def mean(self, order: CheckedOrder) -> WaitRatio:
        """Return the effect, the mean wait beside plain FIFO + EASY."""
        return WaitRatio.of([ratios.mean for ratios in self.ratios[order]])

    def longest(self, order: CheckedOrder) -> WaitRatio:
        """Return the price, the longest wait beside plain FIFO + EASY."""
        return WaitRatio.of([ratios.longest for ratios in self.ratios[order]])

    def large(self, order: CheckedOrder) -> WaitRatio:
        """Return what large jobs wait beside plain FIFO + EASY.

        NaN without such jobs.
        """
        return WaitRatio.of([ratios.large for ratios in self.ratios[order]])

    @property
    def beside_size(self) -> WaitRatio:
        """Mean wait under predictions over that under size."""
        pairs = zip(self.ratios[CheckedOrder.PREDICTIONS], self.ratios[CheckedOrder.SIZE], strict=True)
        return WaitRatio.of([predictions.mean / size.mean for predictions, size in pairs])

    def sentences(self) -> list[str]:
        """Return the verdict in sentences, the decision first."""
        recorded = [] if self.recorded is None else self.recorded.sentences()
        if self.has_no_waits:
            return [NOBODY_WAITS, *recorded]
        # Nothing is claimed of the site where the replay is not what it runs.
        sentences = [_decision(self), *recorded] if self.is_comparable else [*recorded, _decision(self)]
        for order, name in NAMES.items():
            by_size = {
                SIZE_NAMES[size]: geometric_mean([one.by_size.get(size, float("nan")) for one in self.ratios[order]])
                for size in SIZE_CLASSES
            }
            sizes = "".join(f"; {size} x {ratio:.2f}" for size, ratio in by_size.items() if isfinite(ratio))
            mean = self.mean(order)
            sentences.append(
                f"{name}: mean wait {mean} of {PLAIN}, {mean.effect}{sizes}; longest wait {self.longest(order)}."
            )
        return [*sentences, self._method()]

    def _method(self) -> str:
        first, last = self.window
        where = f"{self.jobs:,} jobs submitted from {first:%Y-%m-%d} to {last:%Y-%m-%d}"
        moved = "".join(
            f" Refused, as another queue: {DRAW_METHODS[over]}; {PLAIN} then waits {ratio} of the window's."
            for over, ratio in self.refused.items()
        )
        if not self.draws:
            return f"One replay of {where}, without intervals, so nothing is told apart from chance.{moved}"
        seeds = " These draws cannot show that other jobs might have come: take seven days or more."
        return (
            f"Over {self.draws} draws of {where}, {DRAW_METHODS[self.over]}; geometric means, 95 % intervals in "
            f"brackets. Small: {100 * LEAST_EFFECT:.0f} % or less, however sure. {PLAIN[0].upper()}{PLAIN[1:]}: first "
            "in, first out, with backfill by time limits, as all of them have."
            f"{seeds if self.over is ResampledUnit.SEEDS else ''}{moved}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        first, last = self.window
        compared: dict[str, Any] = {}
        if not self.has_no_waits:
            compared = {
                "orders": {
                    order.value: {
                        "mean": self.mean(order).to_json(),
                        "longest": self.longest(order).to_json(),
                        "large": self.large(order).to_json(),
                    }
                    for order in NAMES
                },
                "predictions_to_size": self.beside_size.to_json(),
            }
        return {
            "best": self.best.value,
            "comparable": self.is_comparable,
            "sentences": self.sentences(),
            "from": first.isoformat(),
            "to": last.isoformat(),
            "jobs": self.jobs,
            "draws": self.draws,
            "over": self.over.value if self.draws else None,
            "refused": {over.value: ratio.to_json() for over, ratio in self.refused.items()},
            "own_mean_wait_s": self.own_mean_s,
            "recorded_wait": None if self.recorded is None else self.recorded.to_json(),
            **compared,
            "ratios": {order.value: plain(ratios) for order, ratios in self.ratios.items()},
        }


def compare_recorded(recorded_s: NDArray[np.float64] | None, replayed_s: NDArray[np.int64]) -> RecordedWaits | None:
    """Return recorded waits beside those of the same jobs in a replay.

    None where too few starts are known, which are NaN.
    """
    if recorded_s is None:
        return None
    known = np.isfinite(recorded_s)
    if known.mean() < LEAST_RECORDED:
        return None
    return RecordedWaits(
        jobs=int(known.sum()),
        recorded_s=float(recorded_s[known].mean()),
        replayed_s=float(replayed_s[known].mean()),
    )


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of ratios, NaN without any."""
    known = [log(value) for value in values if isfinite(value)]
    return exp(sum(known) / len(known)) if known else float("nan")


def _decision(verdict: OrderVerdict) -> str:
    """Return the verdict with its effect and its price."""
    best, here = verdict.best, verdict.is_comparable
    if best is CheckedOrder.OWN:
        found = [f"{NAMES[order].lower()} {(mean := verdict.mean(order))}, {mean.effect}" for order in NAMES]
        what = "Keep the site's own order and run Helios in shadow mode:" if here else "In this replay"
        return (
            f"{what} no order is told to wait shorter than {PLAIN} by more than {100 * LEAST_EFFECT:.0f} %: "
            f"{'; '.join(found)}."
        )
    mean, longest, large, beside = verdict.mean(best), verdict.longest(best), verdict.large(best), verdict.beside_size
    price = f"longest wait x {longest.ratio:.{DIGITS}f}"
    if isfinite(large.ratio):
        price += f", jobs of a node and more x {large.ratio:.{DIGITS}f}"
    gain = f"mean wait {mean} of {PLAIN}; {price}."
    by, name = {
        CheckedOrder.PREDICTIONS: ("predictions", "qssf, the default"),
        CheckedOrder.SIZE: ("size", "fewest GPUs first, aged"),
    }[best]
    what = f"Order by {by} here" if here else f"In this replay an order by {by} is best"
    unsure = best is CheckedOrder.SIZE and beside.ratio < 1 - LEAST_EFFECT
    more = " More draws may tell: helios whatif --draws 20." if unsure else ""
    return f"{what} ({name}): {gain} Predictions beside size: mean wait {beside}, {beside.effect}.{more}"
