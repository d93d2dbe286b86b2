"""The verdict on a live order, from the same draws of three orders.

One replay is no evidence, because a seed changes the mean wait of three weeks by up to 40 %. So the verdict goes by the
logarithm of the ratio of their waits in each draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from math import exp, isfinite, log
from typing import Any

import numpy as np

from helios.choices import ResampledUnit
from helios.metrics.statistics import mean_interval
from helios.model import SIZE_CLASSES, SIZE_NAMES
from helios.model.frames import plain

CHANCE_CHANGE = 0.1
"""Relative difference of mean waits below which it is called chance."""
LEAST_WAIT_S = 1.0
"""Mean wait in the site's own order below which no order can change anything."""
NOBODY_WAITS = "Hardly any job waits in the site's own order, so no order of the queue can change anything."
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """Waits under an order, relative to the site's own order.

    ``large`` is the mean wait of jobs of a node and more, ``by_size`` that of each size class; NaN without such jobs.
    """

    mean: float
    longest: float
    large: float
    by_size: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitRatio:
    """Geometric mean over draws of a ratio of mean waits.

    ``low`` and ``high`` are its 95 % interval, None where there are too few draws.
    """

    ratio: float
    low: float | None
    high: float | None

    @property
    def is_shorter(self) -> bool:
        """Whether waits are shorter beyond chance."""
        return self.high is not None and self.high < 1 and self.ratio <= 1 - CHANCE_CHANGE

    @property
    def is_longer(self) -> bool:
        """Whether waits are longer beyond chance."""
        return self.low is not None and self.low > 1 and self.ratio >= 1 + CHANCE_CHANGE

    def __str__(self) -> str:
        """Return it as ``x 0.47 (0.40 to 0.55)``."""
        interval = "" if self.low is None or self.high is None else f" ({self.low:.2f} to {self.high:.2f})"
        return f"x {self.ratio:.2f}{interval}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderCheck:
    """Waits under each order that a site could use.

    All three have EASY backfill by time limits; size ages and is bounded as the live order is.

    Attributes
    ----------
    window : pair of datetime
        First and last submission that count.
    draws : int
    over : ResampledUnit
        What was drawn.
    own_mean_s : float
        Mean wait in the site's own order, s, over the draws.
    ratios : mapping
        For predictions and size the ratios to the site's own order, one for each draw; empty where hardly any job
        waits.
    """

    window: tuple[datetime, datetime]
    draws: int
    over: ResampledUnit
    own_mean_s: float
    ratios: Mapping[CheckedOrder, Sequence[Ratios]]

    @property
    def has_no_waits(self) -> bool:
        """Whether hardly any job waits in the site's own order."""
        return self.own_mean_s < LEAST_WAIT_S

    @property
    def best(self) -> CheckedOrder:
        """The order that this site should have.

        It is by size where predictions are not better than size beyond chance.
        """
        if self.has_no_waits:
            return CheckedOrder.OWN
        predictions, size = (
            self.beside_own(order).is_shorter for order in (CheckedOrder.PREDICTIONS, CheckedOrder.SIZE)
        )
        if size and not (predictions and self.beside_size.is_shorter):
            return CheckedOrder.SIZE
        return CheckedOrder.PREDICTIONS if predictions else CheckedOrder.OWN

    def beside_own(self, order: CheckedOrder) -> WaitRatio:
        """Compare the mean wait with that of the site's order."""
        return _compare([ratios.mean for ratios in self.ratios[order]])

    @property
    def beside_size(self) -> WaitRatio:
        """Mean wait under predictions over that under size."""
        pairs = zip(self.ratios[CheckedOrder.PREDICTIONS], self.ratios[CheckedOrder.SIZE], strict=True)
        return _compare([predictions.mean / size.mean for predictions, size in pairs])

    def sentences(self) -> list[str]:
        """Return the verdict in sentences, the decision first."""
        if self.has_no_waits:
            return [NOBODY_WAITS]
        first, last = self.window
        seeds_note = " These draws cannot show that other jobs might have come: take seven days or more."
        sentences = [_decision(self)]
        for order, name in (
            (CheckedOrder.PREDICTIONS, "Predictions (qssf)"),
            (CheckedOrder.SIZE, "Size, equally aged"),
        ):
            found = self.ratios[order]
            by_size = {
                SIZE_NAMES[size]: geometric_mean([ratios.by_size.get(size, float("nan")) for ratios in found])
                for size in SIZE_CLASSES
            }
            sizes = ", ".join(f"{size} x {ratio:.2f}" for size, ratio in by_size.items() if isfinite(ratio))
            longest = geometric_mean([ratios.longest for ratios in found])
            waits = f"mean wait {self.beside_own(order)} of the site's own order{f'; {sizes}' if sizes else ''}"
            sentences.append(f"{name}: {waits}; longest wait x {longest:.2f}.")
        sentences.append(
            f"Over {self.draws} draws of {first:%Y-%m-%d} to {last:%Y-%m-%d}, {DRAW_METHODS[self.over]}; "
            "geometric means, 95 % intervals in brackets; less than 10 % is called chance. The site's own order: "
            "first in, first out. All with EASY backfill by time limits, as on a live Slurm."
            f"{seeds_note if self.over is ResampledUnit.SEEDS else ''}"
        )
        return sentences

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        first, last = self.window
        compared = {}
        if not self.has_no_waits:
            ratios = {order.value: asdict(self.beside_own(order)) for order in self.ratios}
            compared = {"mean_wait_ratio": ratios, "mean_wait_ratio_to_size": asdict(self.beside_size)}
        return {
            "best": self.best.value,
            "sentences": self.sentences(),
            "from": first.isoformat(),
            "to": last.isoformat(),
            "draws": self.draws,
            "over": self.over.value,
            "own_mean_wait_s": self.own_mean_s,
            **compared,
            "ratios": {order.value: plain(order_ratios) for order, order_ratios in self.ratios.items()},
        }


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of ratios, NaN without any."""
    known = [log(value) for value in values if isfinite(value)]
    return exp(sum(known) / len(known)) if known else float("nan")


def _compare(ratios: Sequence[float]) -> WaitRatio:
    logs = np.log(ratios)
    low, high = (None if bound is None else exp(bound) for bound in mean_interval(logs))
    return WaitRatio(ratio=exp(float(logs.mean())), low=low, high=high)


def _decision(check: OrderCheck) -> str:
    predictions, size = check.beside_own(CheckedOrder.PREDICTIONS), check.beside_own(CheckedOrder.SIZE)
    if check.best is CheckedOrder.PREDICTIONS:
        beside = " and beats size, equally aged" if check.beside_size.is_shorter else ""
        return f"Order by predictions here (qssf, the default): it beats the site's own order{beside}, beyond chance."
    if check.best is CheckedOrder.SIZE:
        unsure = (
            " More draws may tell: helios whatif --draws 20." if check.beside_size.ratio <= 1 - CHANCE_CHANGE else ""
        )
        return (
            "Order by size here (fewest GPUs first, aged): it beats the site's own order beyond chance, and "
            f"predictions are not ahead of it beyond chance: {check.beside_size}.{unsure}"
        )
    worse = [name for name, order_ratio in (("predictions", predictions), ("size", size)) if order_ratio.is_longer]
    behind = f"; longer beyond chance: {' and '.join(worse)}" if worse else ""
    return f"Keep the site's own order and run Helios in shadow mode: nothing beats it beyond chance{behind}."
