"""Confidence intervals of the differences between the replays of a what-if.

Jobs wait behind each other, so that there are far fewer independent observations than jobs. Therefore whole blocks of
time are resampled, weeks where there are enough of them (block bootstrap: Kunsch, Annals of Statistics 17(3), 1989;
Davison and Hinkley, Bootstrap Methods and their Application, 1997, ch. 8). All replays use the same draws, so that
differences are paired. Intervals are computed on the logarithm of the ratio of two waits, each with a second added,
because waits are skewed and one bad day dominates a sum. The coverage for skewed figures is still too low, see
benchmarks/sweep.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import expm1, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.choices import ResampledUnit
from helios.metrics.queue import DAY_S, FEWEST_DAYS, QueueSummary
from helios.metrics.statistics import CONFIDENCE, confidence_interval
from helios.report.whatif import Run, WhatIf
from helios.units import duration

RESAMPLES = 1_000
WEEK_S = 7 * DAY_S
FEWEST_WEEKS = 4
"""Fewest weeks to resample. With fewer, days are resampled."""
NOTICED_S = 1.0
"""Smallest noticeable difference, s."""
CHANCE_RATIO = 5.0
"""Ratio of two waits that chance cannot explain. A seed changes a replay by +-40 %, a month by up to 3 x."""
CRITERIA = {"mean_wait_s": "Mean wait", "p99_wait_s": "p99", "max_wait_s": "Longest", "mean_wait_large_s": "Mean, >8"}

Floats = NDArray[np.float64]


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
    def from_draws(
        cls, new_s: float, old_s: float, draws: Floats | None = None, *, independent: int | None = None
    ) -> Difference:
        """Return a difference with its interval.

        Parameters
        ----------
        draws : array of shape (n_draws, 2)
            New and old figures in the same draws, s.
        independent : int, optional
            As in :func:`helios.metrics.statistics.confidence_interval`.
        """
        ratio = (new_s + NOTICED_S) / (old_s + NOTICED_S)
        pairs = np.log((np.empty((0, 2)) if draws is None else draws) + NOTICED_S)
        bounds = confidence_interval(pairs[:, 0] - pairs[:, 1], value=log(ratio), independent=independent)
        low, high = (None if bound is None else (old_s + NOTICED_S) * expm1(bound) for bound in bounds)
        return cls(value=new_s - old_s, ratio=ratio, low=low, high=high)

    @property
    def is_none(self) -> bool:
        """Whether chance alone explains it, or nobody would notice."""
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
        For each of ``CRITERIA``, s: of the one replay, or the mean over the repeats. None for no such job.
    differences : mapping of Difference or None
        To the baseline; None where one of the two has no figure.
    """

    label: str
    figures: Mapping[str, float | None]
    differences: Mapping[str, Difference | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """Differences of a what-if with their intervals.

    Attributes
    ----------
    over : ResampledUnit, optional
        What was resampled. None where the window is too short for anything.
    blocks : int
        Number of weeks or days to draw from. 0 with users and seeds.
    repeats : int
        Replays of each scenario. 0 for the one replay, cut into blocks afterwards.
    baseline : ComparedReplay
        The replay that the others are compared with.
    others : tuple of ComparedReplay
    """

    over: ResampledUnit | None
    blocks: int
    repeats: int
    baseline: ComparedReplay
    others: tuple[ComparedReplay, ...]

    def of(self, label: str, name: str) -> Difference | None:
        """Return the difference of a replay's figure from the baseline's.

        None where there is no such replay or job.
        """
        return next((other.differences[name] for other in self.others if other.label == label), None)

    def figures(self, label: str) -> Mapping[str, float | None]:
        """Return the figures of a replay, s.

        Empty where there is no such replay.
        """
        return next((one.figures for one in (self.baseline, *self.others) if one.label == label), {})

    @property
    def shown(self) -> list[str]:
        """The criteria of which any difference is known."""
        return [name for name in CRITERIA if any(other.differences[name] for other in self.others)]

    @property
    def method(self) -> str:
        """Description of how the intervals were computed."""
        if self.over is None:
            return f"Fewer than {FEWEST_DAYS} days were replayed: nothing tells how sure these differences are."
        if not self.repeats:
            return (
                f"95 % intervals of the one replay: its {self.blocks} {self.over} drawn anew {RESAMPLES:,} times, "
                "waits as they are."
            )
        how = f"Means and 95 % intervals over {self.repeats} replays"
        if self.over is ResampledUnit.SEEDS:
            return f"{how}, arrivals drawn anew within their hour."
        if self.over is ResampledUnit.USERS:
            return f"{how}, each user's jobs moved by a whole number of days."
        return f"{how} of {self.blocks} {self.over} drawn anew from {self.blocks}."

    @property
    def not_covered(self) -> str:
        """Description of what the intervals leave out."""
        if self.over is None:
            return "--repeat 10 replays it with arrivals drawn anew."
        if not self.repeats:
            return (
                f"They take {self.over} for independent, though jobs of one make those of the next wait, and say "
                "nothing of p99 and the longest wait: --repeat 20 does."
            )
        if self.over is ResampledUnit.SEEDS:
            return (
                "They leave out that other jobs might have come: a window of seven days or more tells, drawn by days."
            )
        seen = "this window" if self.over is ResampledUnit.USERS else f"these {self.over}"
        return f"They leave out what {seen} never saw: growth, new users, a change of habits by the new order."

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
                    "differences": {name: found and found.to_json() for name, found in other.differences.items()},
                }
                for other in self.others
            ],
            "how": self.method,
            "not_covered": self.not_covered,
        }


def whatif_figures(summary: QueueSummary | Mapping[str, Any]) -> dict[str, float | None]:
    """Return the figures of a replay that are compared, s.

    They come from its summary, or from the summary's JSON.
    """
    found = summary.to_json() if isinstance(summary, QueueSummary) else summary
    names = ("mean_wait_s", "p99_wait_s", "max_wait_s")
    return {name: found[name] for name in names} | {"mean_wait_large_s": found["mean_wait_s_by_size"][">8"]}


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
        figures_here, base = arrays[label], arrays[baseline]
        return ComparedReplay(
            label=label,
            figures={
                name: float(np.nanmean(values)) if not np.isnan(values).all() else None
                for name, values in figures_here.items()
            },
            differences={name: _of_draws(figures_here[name], base[name], independent) for name in CRITERIA},
        )

    return Differences(
        over=over,
        blocks=independent or 0,
        repeats=len(replays[baseline]),
        baseline=compare(baseline),
        others=tuple(compare(label) for label in replays if label != baseline),
    )


def compare_blocks(result: WhatIf) -> Differences:
    """Compare the replays of a what-if by resampling blocks of time.

    It is for a what-if without repeats. Only means are compared, given the one replay, see
    :attr:`Differences.not_covered`.
    """
    base = result.baseline
    before = whatif_figures(base.summary)
    over, block = _blocks(base.submitted_s)

    def compare(run: Run) -> ComparedReplay:
        figures = whatif_figures(run.summary)
        found: dict[str, Difference | None] = {}
        for name, new in figures.items():
            old = before[name]
            found[name] = None if new is None or old is None else Difference.from_draws(new, old)
        for name, counted in (("mean_wait_s", None), ("mean_wait_large_s", run.gpus > 8)):
            if over is not None and found[name] is not None:
                found[name] = mean_wait_difference(run, base, counted)
        return ComparedReplay(label=run.label, figures=figures, differences=found)

    return Differences(
        over=over,
        blocks=int(block.max(initial=-1)) + 1 if over else 0,
        repeats=0,
        baseline=ComparedReplay(label=base.label, figures=before, differences={}),
        others=tuple(compare(run) for run in result.runs if run is not base),
    )


def mean_wait_difference(run: Run, base: Run, counted: NDArray[np.bool_] | None = None) -> Difference | None:
    """Return the difference of mean waits.

    The rule is that of :func:`compare_blocks`.

    Parameters
    ----------
    counted : array of shape (n_jobs,), optional
        Jobs that count, all by default. The result is None without any.
    """
    kept = np.ones(len(run.wait_s), dtype=bool) if counted is None else counted
    if not kept.any():
        return None
    waits = np.stack([run.wait_s, base.wait_s]).astype(np.float64)[:, kept]
    over, block = _blocks(base.submitted_s)
    new_s, old_s = waits.mean(axis=1).tolist()
    if over is None:
        return Difference.from_draws(new_s, old_s)
    blocks = int(block.max()) + 1
    # How often each block is drawn; always the same.
    counts = np.random.default_rng(0).multinomial(blocks, np.full(blocks, 1 / blocks), size=RESAMPLES).astype(float)
    jobs = np.bincount(block[kept], minlength=blocks).astype(np.float64)
    sums = np.stack([np.bincount(block[kept], weights=wait_s, minlength=blocks) for wait_s in waits], axis=1)
    drawn_jobs = counts @ jobs
    draws = (counts @ sums)[drawn_jobs > 0] / drawn_jobs[drawn_jobs > 0, None]
    return Difference.from_draws(new_s, old_s, draws, independent=int(np.count_nonzero(jobs)))


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


def _blocks(submitted_s: NDArray[np.int64]) -> tuple[ResampledUnit | None, NDArray[np.intp]]:
    """Return the unit of time to resample, and each job's block.

    Blocks are weeks, else days, numbered from the first that has jobs. None where there are too few days.
    """
    since_s = submitted_s - submitted_s.min()
    if since_s.max() >= (FEWEST_WEEKS - 1) * WEEK_S + WEEK_S // 2:
        return ResampledUnit.WEEKS, np.unique(since_s // WEEK_S, return_inverse=True)[1]
    days = np.unique(since_s // DAY_S, return_inverse=True)[1]
    return (ResampledUnit.DAYS if days.max() + 1 >= FEWEST_DAYS else None), days
