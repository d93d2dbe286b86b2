"""Verdict on the live order, over draws of a window.

One replay is no evidence: a seed moves the mean wait of three weeks by up to 40 %. So three orders are replayed on the
same draws, and what counts is the ratio of their waits in each draw, in logarithms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from math import exp, isfinite, log
from typing import Any

import numpy as np

from helios.choices import ResampledUnit
from helios.metrics.statistics import mean_interval
from helios.report.plain import plain

NOTICED = 0.1
"""Relative difference of mean waits below which it is called chance."""
LEAST_WAIT_S = 1.0
"""Mean wait in the site's own order below which no order can change anything."""
NOBODY_WAITS = "Hardly any job waits in the site's own order, so no order of the queue can change anything."
SINGLE_REPLAY = (
    "A single replay is no evidence: other arrivals move its mean wait by up to 40 %. helios whatif --draws 5 gives a "
    "verdict."
)
MOVED = {
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

    ``large`` is the mean wait of large jobs, NaN where there are none.
    """

    mean: float
    longest: float
    large: float


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
        return self.high is not None and self.high < 1 and self.ratio <= 1 - NOTICED

    @property
    def is_longer(self) -> bool:
        """Whether waits are longer beyond chance."""
        return self.low is not None and self.low > 1 and self.ratio >= 1 + NOTICED

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

        Size, where predictions are not ahead of it beyond chance.
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
        return _compare([one.mean for one in self.ratios[order]])

    @property
    def beside_size(self) -> WaitRatio:
        """Mean wait under predictions over that under size."""
        pairs = zip(self.ratios[CheckedOrder.PREDICTIONS], self.ratios[CheckedOrder.SIZE], strict=True)
        return _compare([ours.mean / size.mean for ours, size in pairs])

    def sentences(self) -> list[str]:
        """Return the verdict in sentences, the decision first."""
        if self.has_no_waits:
            return [NOBODY_WAITS]
        return [
            _decision(self),
            *(_order_sentence(self, order) for order in (CheckedOrder.PREDICTIONS, CheckedOrder.SIZE)),
            _method_sentence(self),
        ]

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
            "ratios": {order.value: plain(found) for order, found in self.ratios.items()},
        }


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of ratios, NaN left out.

    NaN where there is no other.
    """
    known = [log(value) for value in values if isfinite(value)]
    return exp(sum(known) / len(known)) if known else float("nan")


def _compare(ratios: Sequence[float]) -> WaitRatio:
    logs = np.log(ratios)
    low, high = (None if bound is None else exp(bound) for bound in mean_interval(logs))
    return WaitRatio(ratio=exp(float(logs.mean())), low=low, high=high)


def _decision(check: OrderCheck) -> str:
    ours, size = check.beside_own(CheckedOrder.PREDICTIONS), check.beside_own(CheckedOrder.SIZE)
    if check.best is CheckedOrder.PREDICTIONS:
        beside = " and beats size, equally aged" if check.beside_size.is_shorter else ""
        return f"Order by predictions here (qssf, the default): it beats the site's own order{beside}, beyond chance."
    if check.best is CheckedOrder.SIZE:
        unsure = " More draws may tell: helios whatif --draws 20." if check.beside_size.ratio <= 1 - NOTICED else ""
        return (
            "Order by size here (fewest GPUs first, aged): it beats the site's own order beyond chance, and "
            f"predictions are not ahead of it beyond chance: {check.beside_size}.{unsure}"
        )
    worse = [name for name, found in (("predictions", ours), ("size", size)) if found.is_longer]
    behind = f"; longer beyond chance: {' and '.join(worse)}" if worse else ""
    return f"Keep the site's own order and run Helios in shadow mode: nothing beats it beyond chance{behind}."


def _order_sentence(check: OrderCheck, order: CheckedOrder) -> str:
    name = {CheckedOrder.PREDICTIONS: "Predictions (qssf)", CheckedOrder.SIZE: "Size, equally aged"}[order]
    found = check.ratios[order]
    longest, large = (geometric_mean([getattr(one, key) for one in found]) for key in ("longest", "large"))
    of_large = f", mean of large jobs x {large:.2f}" if isfinite(large) else ""
    return f"{name}: mean wait {check.beside_own(order)}, longest x {longest:.2f}{of_large} of the site's own order."


def _method_sentence(check: OrderCheck) -> str:
    first, last = check.window
    short = " These draws cannot show that other jobs might have come: take seven days or more."
    return (
        f"Over {check.draws} draws of {first:%Y-%m-%d} to {last:%Y-%m-%d}, {MOVED[check.over]}; geometric means, 95 % "
        "intervals in brackets; less than 10 % is called chance. The site's own order: first in, first out. All with "
        f"EASY backfill by time limits, as on a live Slurm.{short if check.over is ResampledUnit.SEEDS else ''}"
    )
