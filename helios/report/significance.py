"""Differences between replays that are beyond chance.

Repeats of replays get intervals, on the logarithm of the ratio of two waits, each with a second added, because waits
are skewed and one bad day dominates a sum. The coverage for skewed figures is still too low, see benchmarks/sweep.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import expm1, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.choices import ResampledUnit
from helios.metrics.queue import QueueSummary
from helios.metrics.statistics import CONFIDENCE, confidence_interval
from helios.model import SIZE_CLASSES
from helios.report.order_check import NOBODY_WAITS
from helios.report.whatif import SAME_S, Run, WhatIf
from helios.units import duration

PROPOSALS = ("qssf", "service", "sjf")
"""Policies that Helios can run live, the first that was replayed; other replays are controls."""
NOTICED_S = 1.0
"""Smallest noticeable difference, s."""
CHANCE_RATIO = 5.0
"""Ratio of two waits that chance cannot explain. A seed changes a replay by +-40 %, a month by up to 3 x."""
CRITERIA = {
    "mean_wait_s": "Mean wait",
    "p99_wait_s": "p99",
    "max_wait_s": "Longest",
    "mean_wait_large_s": "Mean, node+",
}
"""Compared figures; node+ is the mean wait of jobs of a node and more."""

SINGLE_REPLAY = (
    "A single replay is no evidence: other arrivals move its mean wait by up to 40 %. helios whatif --draws 5 gives a "
    "verdict."
)

Floats = NDArray[np.float64]


def headline(result: WhatIf) -> list[str]:
    """Return the verdict on the live order, and the recorded wait."""
    if result.check is not None:
        return [*result.check.sentences(), *result.recorded_sentences()]
    return [NOBODY_WAITS if has_no_waits(result) else SINGLE_REPLAY, *result.recorded_sentences()]


def has_no_waits(result: WhatIf) -> bool:
    """Return whether waits are too short in every replay to be compared."""
    return max(run.summary.mean_wait_s for run in result.runs) < SAME_S


def propose_scenario(result: WhatIf) -> Run | None:
    """Return the replay that a page compares with the baseline.

    It is the site's live setting, or else what Helios does live by default. If neither was replayed, it is the replay
    with the smallest mean wait: of the first of ``PROPOSALS`` that was replayed, or else of all feasible replays.
    None where only the baseline is feasible.
    """
    chosen = [run for run in result.feasible if result.is_live(run)]
    chosen = chosen or [run for run in result.feasible if run.is_live_default]
    for policy in PROPOSALS:
        chosen = chosen or [run for run in result.feasible if run.policy == policy]
    return min(chosen or result.feasible, key=lambda run: run.summary.mean_wait_s, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Difference of a figure from the baseline's, s.

    ``low`` and ``high`` are its ``CONFIDENCE`` interval, None where unknown. ``ratio`` is that of the two figures, each
    with a second added.
    """

    value: float
    ratio: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def from_draws(cls, new_s: float, old_s: float, draws: Floats, *, independent: int | None = None) -> Difference:
        """Return a difference with its interval.

        Parameters
        ----------
        draws : array of shape (n_draws, 2)
            New and old figures in the same draws, s.
        independent : int, optional
            As in :func:`helios.metrics.statistics.confidence_interval`.
        """
        ratio = (new_s + NOTICED_S) / (old_s + NOTICED_S)
        pairs = np.log(draws + NOTICED_S)
        bounds = confidence_interval(pairs[:, 0] - pairs[:, 1], value=log(ratio), independent=independent)
        low, high = (None if bound is None else (old_s + NOTICED_S) * expm1(bound) for bound in bounds)
        return cls(value=new_s - old_s, ratio=ratio, low=low, high=high)

    @property
    def is_none(self) -> bool:
        """Whether it is explained by chance, or too small to notice."""
        if abs(self.value) < NOTICED_S:
            return True
        if not 1 / CHANCE_RATIO < self.ratio < CHANCE_RATIO:
            return False
        return self.low is not None and self.high is not None and self.low <= 0 <= self.high

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        none = None if self.low is None else self.is_none
        return {"value": self.value, "ratio": self.ratio, "low": self.low, "high": self.high, "no_difference": none}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedReplay:
    """One replay, compared with the baseline.

    Attributes
    ----------
    figures : mapping of float or None
        For each of ``CRITERIA``, s, the mean over the repeats. None for no such job.
    differences : mapping of Difference or None
        To the baseline; None where one of the two has no figure.
    """

    label: str
    figures: Mapping[str, float | None]
    differences: Mapping[str, Difference | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """Differences over repeats of a what-if with their intervals.

    Attributes
    ----------
    over : ResampledUnit
        What was resampled.
    blocks : int
        Number of weeks or days to draw from. 0 with users and seeds.
    repeats : int
        Replays of each scenario.
    baseline : ComparedReplay
        The replay that the others are compared with.
    others : tuple of ComparedReplay
    """

    over: ResampledUnit
    blocks: int
    repeats: int
    baseline: ComparedReplay
    others: tuple[ComparedReplay, ...]

    def of(self, label: str, name: str) -> Difference | None:
        """Return the difference of a replay's figure from the baseline's.

        None where there is no such replay or job.
        """
        return next((other.differences[name] for other in self.others if other.label == label), None)

    @property
    def shown(self) -> list[str]:
        """The criteria with any known difference."""
        return [name for name in CRITERIA if any(other.differences[name] for other in self.others)]

    @property
    def method(self) -> str:
        """Description of how the intervals were computed."""
        how = f"Means and 95 % intervals over {self.repeats} replays"
        if self.over is ResampledUnit.SEEDS:
            return f"{how}, arrivals drawn anew within their hour."
        if self.over is ResampledUnit.USERS:
            return f"{how}, each user's jobs moved by a whole number of days."
        return f"{how} of {self.blocks} {self.over} drawn anew from {self.blocks}."

    @property
    def not_covered(self) -> str:
        """Description of what the intervals leave out."""
        if self.over is ResampledUnit.SEEDS:
            return (
                "They leave out that other jobs might have come: a window of seven days or more tells, drawn by days."
            )
        sample = "this window" if self.over is ResampledUnit.USERS else f"these {self.over}"
        return f"They leave out what {sample} never saw: growth, new users, a change of habits by the new order."

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "over": self.over,
            "blocks": self.blocks,
            "repeats": self.repeats,
            "confidence": CONFIDENCE,
            "baseline": {"label": self.baseline.label, "figures": dict(self.baseline.figures)},
            "others": [
                {
                    "label": other.label,
                    "figures": dict(other.figures),
                    "differences": {
                        name: difference and difference.to_json() for name, difference in other.differences.items()
                    },
                }
                for other in self.others
            ],
            "how": self.method,
            "not_covered": self.not_covered,
        }


def whatif_figures(summary: QueueSummary | Mapping[str, Any]) -> dict[str, float | None]:
    """Return the compared figures of a replay's summary, s."""
    summary_json = summary.to_json() if isinstance(summary, QueueSummary) else summary
    names = ("mean_wait_s", "p99_wait_s", "max_wait_s")
    means, jobs = summary_json["mean_wait_s_by_size"], summary_json["jobs_by_size"]
    large = {name: jobs[name] for name in SIZE_CLASSES[1:] if means[name] is not None}
    mean_s = sum(count * means[name] for name, count in large.items()) / sum(large.values()) if large else None
    return {name: summary_json[name] for name in names} | {"mean_wait_large_s": mean_s}


def compare_repeats(
    replays: Mapping[str, Sequence[Mapping[str, float | None]]], *, baseline: str, over: ResampledUnit, blocks: int
) -> Differences:
    """Compare replays that were repeated over the same draws.

    Parameters
    ----------
    replays : mapping
        Figures of each repeat by label, as from :func:`whatif_figures`. All have the same number and order of repeats.
    baseline : str
        A label.
    blocks : int
        Weeks or days drawn from; with users and seeds it does not count.
    """
    independent = blocks if over in {ResampledUnit.WEEKS, ResampledUnit.DAYS} else None
    # None becomes NaN.
    arrays = {
        label: {name: np.array([figure[name] for figure in figures], dtype=np.float64) for name in CRITERIA}
        for label, figures in replays.items()
    }

    def compare(label: str) -> ComparedReplay:
        figures_here, baseline_arrays = arrays[label], arrays[baseline]
        return ComparedReplay(
            label=label,
            figures={
                name: float(np.nanmean(values)) if not np.isnan(values).all() else None
                for name, values in figures_here.items()
            },
            differences={name: _of_draws(figures_here[name], baseline_arrays[name], independent) for name in CRITERIA},
        )

    return Differences(
        over=over,
        blocks=independent or 0,
        repeats=len(replays[baseline]),
        baseline=compare(baseline),
        others=tuple(compare(label) for label in replays if label != baseline),
    )


def format_signed(seconds: float) -> str:
    """Write a difference with its sign, as ``+1h05m``."""
    text = duration(abs(seconds))
    return text if text == "0s" else f"{'+' if seconds > 0 else '-'}{text}"


def _of_draws(new_s: Floats, old_s: Floats, independent: int | None) -> Difference | None:
    pairs = np.stack([new_s, old_s], axis=1)
    known = pairs[~np.isnan(pairs).any(axis=1)]
    if not len(known):
        return None
    mean_new_s, mean_old_s = known.mean(axis=0).tolist()
    return Difference.from_draws(mean_new_s, mean_old_s, known, independent=independent)
