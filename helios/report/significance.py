"""How sure a what-if is: each replay's difference to the baseline, with an interval that chance alone would explain.

Jobs wait behind each other, so that the number of jobs says little of the number of observations. What is drawn anew is
whole stretches of time, weeks where there are enough of them (block bootstrap: Kunsch, Annals of Statistics 17(3),
1989; Davison and Hinkley, Bootstrap Methods and their Application, 1997, ch. 8). All replays see the same draw, so that
differences are paired. With few stretches the spread of such draws is too small by (k - 1) / k and far from normal:
hence Student's t with k - 1 degrees of freedom, fewer where the draws are few too (Hesterberg, The American
Statistician 69(4), 2015, sections 3 and 5). What is skewed is held less often: benchmarks/sweep.py prints how often.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from helios.metrics.queue import DAY_S, FEWEST_DAYS, QueueSummary
from helios.report.whatif import Run, WhatIf
from helios.units import duration

CONFIDENCE = 0.95
RESAMPLES = 1_000
WEEK_S = 7 * DAY_S
FEWEST_WEEKS = 4
"""Weeks below which their spread says too little; then days are drawn."""
NOTICED_S = 1.0
"""Difference below which nobody would notice, s."""
CRITERIA = {"mean_wait_s": "Mean wait", "p99_wait_s": "p99", "max_wait_s": "Longest", "mean_wait_large_s": "Mean, >8"}


class ResampledUnit(StrEnum):
    """What is drawn anew."""

    WEEKS = "weeks"
    DAYS = "days"
    SEEDS = "seeds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A figure less the baseline's, s, and between what it lies with ``CONFIDENCE``; None: nothing tells."""

    value: float
    low: float | None
    high: float | None

    @property
    def is_none(self) -> bool:
        """Whether chance alone explains it, or nobody would notice."""
        if abs(self.value) < NOTICED_S:
            return True
        return self.low is not None and self.high is not None and self.low <= 0 <= self.high

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        known = self.low is not None
        return {
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "no_difference": self.is_none if known else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One replay beside the baseline.

    Attributes
    ----------
    label : str
        Of the replay.
    figures : mapping of float or None
        For each of ``CRITERIA``, s: of the one replay, or the mean over the repeats; None: no such job.
    differences : mapping of Difference or None
        To the baseline; None where one of the two has no figure.
    """

    label: str
    figures: Mapping[str, float | None]
    differences: Mapping[str, Difference | None]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "label": self.label,
            "figures": dict(self.figures),
            "differences": {name: found.to_json() if found else None for name, found in self.differences.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """How sure the differences of a what-if are.

    Attributes
    ----------
    over : Over, optional
        What was drawn anew; None: the window is too short for anything.
    blocks : int
        How many weeks or days there were to draw from; 0 with seeds.
    repeats : int
        Replays of each plan; 0: the one replay, cut into blocks afterwards.
    baseline : Compared
        What the others are compared with.
    others : tuple of Compared
    """

    over: ResampledUnit | None
    blocks: int
    repeats: int
    baseline: Compared
    others: tuple[Compared, ...]

    def of(self, label: str, name: str) -> Difference | None:
        """Return how far that replay's figure is from the baseline's; None: no such replay, or no such job."""
        return next((other.differences[name] for other in self.others if other.label == label), None)

    def figures(self, label: str) -> Mapping[str, float | None]:
        """Return the figures of that replay, s; empty: no such replay."""
        return next((one.figures for one in (self.baseline, *self.others) if one.label == label), {})

    @property
    def told(self) -> str:
        """Say how the intervals came about."""
        if self.over is None:
            return f"Fewer than {FEWEST_DAYS} days were replayed: nothing tells how sure these differences are."
        if not self.repeats:
            return (
                f"95 % intervals of the one replay: its {self.blocks} {self.over} drawn anew {RESAMPLES:,} times, "
                "waits as they are."
            )
        if self.over is ResampledUnit.SEEDS:
            return f"Means and 95 % intervals over {self.repeats} replays, arrivals drawn anew within their hour."
        return (
            f"Means and 95 % intervals over {self.repeats} replays of {self.blocks} {self.over} drawn anew from "
            f"{self.blocks}."
        )

    @property
    def not_covered(self) -> str:
        """Say what the intervals leave out."""
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
        return (
            f"They leave out what these {self.over} never saw: growth, new users, a change of habits by the new order."
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "over": self.over.value if self.over else None,
            "blocks": self.blocks,
            "repeats": self.repeats,
            "confidence": CONFIDENCE,
            "baseline": {"label": self.baseline.label, "figures": dict(self.baseline.figures)},
            "others": [other.to_json() for other in self.others],
            "how": self.told,
            "not_covered": self.not_covered,
        }


def whatif_figures(summary: QueueSummary | Mapping[str, Any]) -> dict[str, float | None]:
    """Return the figures of a replay that are compared, from its summary or the summary's JSON, s."""
    told = summary.to_json() if isinstance(summary, QueueSummary) else summary
    names = ("mean_wait_s", "p99_wait_s", "max_wait_s")
    return {name: told[name] for name in names} | {"mean_wait_large_s": told["mean_wait_s_by_size"][">8"]}


def over_repeats(
    replays: Mapping[str, Sequence[Mapping[str, float | None]]], *, baseline: str, over: ResampledUnit, blocks: int
) -> Differences:
    """Compare replays that were repeated over the same draws.

    Parameters
    ----------
    replays : mapping
        By label the figures of each repeat, as :func:`whatif_figures`; the same number for all, in the same order.
    baseline : str
        A label.
    blocks : int
        Weeks or days drawn from; with seeds it does not count.
    """
    arrays = {label: {name: _array(figures, name) for name in CRITERIA} for label, figures in replays.items()}
    independent = None if over is ResampledUnit.SEEDS else blocks
    base = arrays[baseline]

    def compared(label: str) -> Compared:
        return Compared(
            label=label,
            figures={name: _mean(values) for name, values in arrays[label].items()},
            differences={name: _repeated(arrays[label][name] - base[name], independent) for name in CRITERIA},
        )

    return Differences(
        over=over,
        blocks=0 if independent is None else blocks,
        repeats=len(replays[baseline]),
        baseline=Compared(label=baseline, figures=compared(baseline).figures, differences={}),
        others=tuple(compared(label) for label in replays if label != baseline),
    )


def of_one_replay(result: WhatIf) -> Differences:
    """Compare the replays of a what-if that was made once: what is drawn anew is stretches of its jobs' waits.

    Conditional on the replay, and on means only: see :attr:`Differences.not_covered`.
    """
    base = result.baseline
    over, block = _blocks(base.submitted_s)
    blocks = int(block.max(initial=-1)) + 1
    counts = _draws(blocks) if over else None
    return Differences(
        over=over,
        blocks=blocks if over else 0,
        repeats=0,
        baseline=Compared(label=base.label, figures=whatif_figures(base.summary), differences={}),
        others=tuple(_cut(run, base, block, counts) for run in result.runs if run is not base),
    )


def between(run: Run, base: Run, counted: NDArray[np.bool_] | None = None) -> Difference | None:
    """Return how much longer jobs wait on average in ``run`` than in ``base``, by the rule of :func:`of_one_replay`.

    Parameters
    ----------
    counted : array of shape (n_jobs,), optional
        Which jobs; None: all. Without any the answer is None.
    """
    longer_s = (run.wait_s - base.wait_s).astype(np.float64)
    kept = np.ones(len(longer_s), dtype=bool) if counted is None else counted
    if not kept.any():
        return None
    over, block = _blocks(base.submitted_s)
    if over is None:
        return Difference(value=float(longer_s[kept].mean()), low=None, high=None)
    return _redrawn(longer_s[kept], block[kept], _draws(int(block.max()) + 1))


def confidence_interval(
    draws: NDArray[np.float64], *, value: float, independent: int | None
) -> tuple[float | None, float | None]:
    """Return the ``CONFIDENCE`` interval around ``value`` from its redrawn values.

    Parameters
    ----------
    draws : array of shape (n_draws,)
    independent : int, optional
        Weeks or days drawn from, whose number bounds what draws can know; None: each draw is an observation.
    """
    n = len(draws)
    if n < 2 or (independent is not None and independent < 2):
        return None, None
    # Both the draws and what they are drawn from are few: the doubts about the spread add up.
    degrees = n - 1.0 if independent is None else 1 / (1 / (n - 1) + 1 / (independent - 1))
    wider = 1.0 if independent is None else independent / (independent - 1)
    half = student_quantile(degrees) * sqrt(wider + 1 / n) * float(np.std(draws, ddof=1))
    return value - half, value + half


def student_quantile(degrees: float) -> float:
    """Return Student's t below which (1 + ``CONFIDENCE``) / 2 lies.

    From 2 degrees of freedom on by the expansion in their inverse, to 1 % (from 4 on to .1 %; Abramowitz and Stegun,
    26.7.5); below, that of one.
    """
    if degrees < 2:
        return 12.7062
    x, n = NormalDist().inv_cdf((1 + CONFIDENCE) / 2), degrees
    return (
        x
        + (x**3 + x) / (4 * n)
        + (5 * x**5 + 16 * x**3 + 3 * x) / (96 * n**2)
        + (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / (384 * n**3)
        + (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / (92_160 * n**4)
    )


def differences_table(found: Differences) -> RenderableType:
    """Show each replay's difference to the baseline with its interval below; readable at 80 columns."""
    table = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=True)
    table.add_column("Difference", overflow="fold")
    shown = [name for name in CRITERIA if any(other.differences[name] for other in found.others)]
    for name in shown:
        table.add_column(CRITERIA[name], justify="right", no_wrap=True)
    table.add_row(
        f"[dim]{escape(found.baseline.label)}[/]", *(duration(found.baseline.figures[name]) for name in shown)
    )
    for other in found.others:
        table.add_row(escape(other.label), *(_cell(other.differences[name]) for name in shown))
    return Group(f"{found.told} {found.not_covered}", "", table)


def _cell(found: Difference | None) -> str:
    if found is None:
        return "-"
    if found.low is None or found.high is None:
        return signed(found.value)
    interval = f"[dim]{signed(found.low)}..{signed(found.high)}[/]"
    return f"no difference\n{interval}" if found.is_none else f"[bold]{signed(found.value)}[/]\n{interval}"


def signed(seconds: float) -> str:
    """Write a difference with its sign, as ``+1h05m``."""
    text = duration(abs(seconds))
    return text if text == "0s" else f"{'+' if seconds > 0 else '-'}{text}"


def _array(figures: Sequence[Mapping[str, float | None]], name: str) -> NDArray[np.float64]:
    return np.array([figure[name] for figure in figures], dtype=np.float64)  # None becomes NaN


def _mean(values: NDArray[np.float64]) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def _repeated(draws: NDArray[np.float64], independent: int | None) -> Difference | None:
    known = draws[~np.isnan(draws)]
    if not len(known):
        return None
    value = float(known.mean())
    low, high = confidence_interval(known, value=value, independent=independent)
    return Difference(value=value, low=low, high=high)


def _blocks(submitted_s: NDArray[np.int64]) -> tuple[ResampledUnit | None, NDArray[np.int64]]:
    """Return what the jobs' time is cut into, and each job's week or day, counted from the first that has jobs."""
    since_s = submitted_s - submitted_s.min()
    if since_s.max() >= (FEWEST_WEEKS - 1) * WEEK_S + WEEK_S // 2:
        return ResampledUnit.WEEKS, _numbered(since_s // WEEK_S)
    days = _numbered(since_s // DAY_S)
    return (ResampledUnit.DAYS if days.max() + 1 >= FEWEST_DAYS else None), days


def _numbered(of: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.unique(of, return_inverse=True)[1].astype(np.int64)


def _draws(blocks: int) -> NDArray[np.float64]:
    """Return how often each block is drawn, an array of shape (RESAMPLES, blocks); always the same."""
    drawn = np.random.default_rng(0).multinomial(blocks, np.full(blocks, 1 / blocks), size=RESAMPLES)
    return drawn.astype(np.float64)


def _cut(run: Run, base: Run, block: NDArray[np.int64], counts: NDArray[np.float64] | None) -> Compared:
    figures, before = whatif_figures(run.summary), whatif_figures(base.summary)
    longer_s = (run.wait_s - base.wait_s).astype(np.float64)
    differences: dict[str, Difference | None] = {}
    for name in CRITERIA:
        new, old = figures[name], before[name]
        differences[name] = None if new is None or old is None else Difference(value=new - old, low=None, high=None)
    for name, counted in (("mean_wait_s", np.ones(len(longer_s), dtype=bool)), ("mean_wait_large_s", run.gpus > 8)):
        if counts is not None and differences[name] is not None:
            differences[name] = _redrawn(longer_s[counted], block[counted], counts)
    return Compared(label=run.label, figures=figures, differences=differences)


def _redrawn(longer_s: NDArray[np.float64], block: NDArray[np.int64], counts: NDArray[np.float64]) -> Difference:
    """Return the mean of ``longer_s`` and its interval, blocks drawn ``counts`` times."""
    jobs = np.bincount(block, minlength=counts.shape[1]).astype(np.float64)
    sums = np.bincount(block, weights=longer_s, minlength=counts.shape[1])
    drawn_jobs = counts @ jobs
    drawn = (counts @ sums)[drawn_jobs > 0] / drawn_jobs[drawn_jobs > 0]
    value = float(longer_s.mean())
    low, high = confidence_interval(drawn, value=value, independent=int(np.count_nonzero(jobs)))
    return Difference(value=value, low=low, high=high)
