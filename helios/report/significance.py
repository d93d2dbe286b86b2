"""Differences between replays that are beyond chance and their summary in sentences.

Within one window: jobs wait behind each other, so that there are far fewer independent observations than jobs. Whole
blocks of time are resampled, weeks where there are enough of them (block bootstrap: Kunsch, Annals of Statistics 17(3),
1989; Davison and Hinkley, Bootstrap Methods and their Application, 1997, ch. 8). All replays use the same blocks, so
that differences are paired. Intervals are computed on the logarithm of the ratio of two waits, each with a second
added, because waits are skewed and one bad day dominates a sum. The coverage for skewed figures is still too low, see
benchmarks/sweep.py.

Over draws: one replay is no evidence, because a seed changes the mean wait of three weeks by up to 40 %. So the verdict
on the live order compares three orders on the same draws, by the logarithm of the ratio of their waits in each draw.

The sentences of a what-if begin with this verdict. The replay of the window as it was then explains who waits longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from math import exp, expm1, isfinite, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.choices import ResampledUnit
from helios.metrics.queue import DAY_S, FEWEST_DAYS, QueueSummary
from helios.metrics.statistics import CONFIDENCE, confidence_interval, mean_interval
from helios.model import SIZE_CLASSES, SIZE_NAMES
from helios.model.frames import plain
from helios.report.whatif import SAME_S, Run, WhatIf, by_user, compare_sizes, noticed_s
from helios.units import change, duration, duration_in_words, percent

SMALL_PART = 0.02
"""Share of the time to completion below which waiting is called a small part of it."""
PROPOSALS = ("qssf", "service", "sjf")
"""Policies that Helios can run live, the first that was replayed; other replays are controls."""
RESAMPLES = 1_000
WEEK_S = 7 * DAY_S
FEWEST_WEEKS = 4
"""Fewest weeks to resample. With fewer, days are resampled."""
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

CHANCE_CHANGE = 0.1
"""Relative difference of mean waits below which it is called chance."""
LEAST_WAIT_S = 1.0
"""Mean wait in the site's own order below which no order can change anything."""
NOBODY_WAITS = "Hardly any job waits in the site's own order, so no order of the queue can change anything."
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

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitComparison:
    """A wait in a replay and in the baseline, with their difference.

    They differ unless :attr:`Difference.is_none`. Where the window is too short for an interval, they differ if a
    person would notice.
    """

    new_s: float
    old_s: float
    difference: Difference

    @property
    def differs(self) -> bool:
        """Whether there is a difference to report."""
        return not self.difference.is_none and (self.difference.low is not None or self.is_noticed)

    @property
    def is_noticed(self) -> bool:
        """Whether a person would notice the difference, by chance or not."""
        return abs(self.new_s - self.old_s) > noticed_s(self.old_s)

    @property
    def is_longer(self) -> bool:
        """Whether the wait grows."""
        return self.new_s > self.old_s

    @property
    def in_words(self) -> str:
        """Both waits in words, as ``1 h instead of 2 h (-50 %)``.

        If both have the same words, the new one with the difference, as ``17 min, 18 s less``.
        """
        new, old = duration_in_words(self.new_s), duration_in_words(self.old_s)
        if new == old:
            difference = duration_in_words(abs(self.new_s - self.old_s))
            return f"{new}, {difference} {'more' if self.is_longer else 'less'}{self.relative_change}"
        return f"{new} instead of {old}{self.relative_change}"

    @property
    def relative_change(self) -> str:
        """The relative difference in brackets, empty where there was no wait."""
        return f" ({change(self.new_s, self.old_s)})" if self.old_s else ""


def verdict(result: WhatIf, differences: Differences | None = None) -> list[str]:
    """Return the headline and the explanation of a what-if."""
    return [*headline(result), *explanation(result, differences)]


def headline(result: WhatIf) -> list[str]:
    """Return the verdict on the live order, or why there is none."""
    if result.check is not None:
        return result.check.sentences()
    return [NOBODY_WAITS if has_no_waits(result) else SINGLE_REPLAY]


def explanation(result: WhatIf, differences: Differences | None = None) -> list[str]:
    """Describe who waits longer in the replay, and what true run times would do.

    Parameters
    ----------
    differences : Differences, optional
        Differences over repeats. None where there is only the one replay.
    """
    baseline, chosen = result.baseline, propose_scenario(result)
    if has_no_waits(result):
        return []
    if chosen is None:
        return [
            f"{baseline.label}: the mean wait is {duration_in_words(baseline.summary.mean_wait_s)}.",
            *_oracle_only_sentence(result),
        ]
    if differences is None:
        differences = compare_blocks(result)
    return [
        *_mean_wait_sentences(chosen, result, differences),
        compare_sizes(baseline.summary, chosen.summary),
        *_small_gain_sentence(baseline),
        *_size_sentences(chosen, result, differences),
        *_user_sentence(chosen, result),
        *_longest_wait_sentence(chosen, result, differences),
        *_oracle_sentence(chosen, result, differences),
    ]


def has_no_waits(result: WhatIf) -> bool:
    """Return whether waits are too short in every replay to be compared."""
    return max(run.summary.mean_wait_s for run in result.runs) < SAME_S


def propose_scenario(result: WhatIf) -> Run | None:
    """Return the replay that the sentences explain, or None where only the baseline is feasible.

    It is the site's live setting, or else what Helios does live by default. If neither was replayed, it is the replay
    with the smallest mean wait: of the first of ``PROPOSALS`` that was replayed, or else of all feasible replays.
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
        return next((replay.figures for replay in (self.baseline, *self.others) if replay.label == label), {})

    @property
    def shown(self) -> list[str]:
        """The criteria with any known difference."""
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
    """Return the compared figures of a replay, s, from its summary or the summary's JSON."""
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


def compare_blocks(result: WhatIf) -> Differences:
    """Compare the replays of a what-if without repeats, by resampling blocks of time.

    Only means get intervals. These do not cover everything, see :attr:`Differences.not_covered`.
    """
    baseline = result.baseline
    baseline_figures = whatif_figures(baseline.summary)
    over, block = _blocks(baseline.submitted_s)

    def compare(run: Run) -> ComparedReplay:
        figures = whatif_figures(run.summary)
        differences: dict[str, Difference | None] = {}
        for name, new in figures.items():
            old = baseline_figures[name]
            differences[name] = None if new is None or old is None else Difference.from_draws(new, old)
        for name, counted in (("mean_wait_s", None), ("mean_wait_large_s", run.size_class > 0)):
            if over is not None and differences[name] is not None:
                differences[name] = mean_wait_difference(run, baseline, counted)
        return ComparedReplay(label=run.label, figures=figures, differences=differences)

    return Differences(
        over=over,
        blocks=int(block.max(initial=-1)) + 1 if over else 0,
        repeats=0,
        baseline=ComparedReplay(label=baseline.label, figures=baseline_figures, differences={}),
        others=tuple(compare(run) for run in result.runs if run is not baseline),
    )


def mean_wait_difference(run: Run, baseline: Run, is_counted: NDArray[np.bool_] | None = None) -> Difference | None:
    """Return the difference of mean waits.

    The rule is that of :func:`compare_blocks`.

    Parameters
    ----------
    is_counted : array of shape (n_jobs,), optional
        Jobs that count, all by default. The result is None without any.
    """
    selected = np.ones(len(run.wait_s), dtype=bool) if is_counted is None else is_counted
    if not selected.any():
        return None
    waits = np.stack([run.wait_s, baseline.wait_s]).astype(np.float64)[:, selected]
    over, block = _blocks(baseline.submitted_s)
    new_s, old_s = waits.mean(axis=1).tolist()
    if over is None:
        return Difference.from_draws(new_s, old_s)
    blocks = int(block.max()) + 1
    # How often each block is drawn; always the same.
    counts = np.random.default_rng(0).multinomial(blocks, np.full(blocks, 1 / blocks), size=RESAMPLES).astype(float)
    jobs = np.bincount(block[selected], minlength=blocks).astype(np.float64)
    sums = np.stack([np.bincount(block[selected], weights=wait_s, minlength=blocks) for wait_s in waits], axis=1)
    drawn_jobs = counts @ jobs
    draws = (counts @ sums)[drawn_jobs > 0] / drawn_jobs[drawn_jobs > 0, None]
    return Difference.from_draws(new_s, old_s, draws, independent=int(np.count_nonzero(jobs)))


def format_signed(seconds: float) -> str:
    """Write a difference with its sign, as ``+1h05m``."""
    text = duration(abs(seconds))
    return text if text == "0s" else f"{'+' if seconds > 0 else '-'}{text}"


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
    """Return the geometric mean of ratios without NaN, or NaN where there are none."""
    known = [log(value) for value in values if isfinite(value)]
    return exp(sum(known) / len(known)) if known else float("nan")


def _mean_wait_sentences(chosen: Run, result: WhatIf, differences: Differences) -> list[str]:
    """Name the two replays that are compared, with their mean waits.

    A replay that is the best of several is called so, because it was chosen with hindsight.
    """
    waits = _compare_waits(chosen, result, differences, "mean_wait_s")
    if waits is None:
        return []
    where = f"Over {differences.repeats} repeats" if differences.repeats else "In the replay of the window as it was"
    is_given = chosen.is_live_default or result.is_live(chosen)
    same_policy = 1 if is_given else sum(run.policy == chosen.policy for run in result.feasible)
    best_of = f", the best of {same_policy} such replays," if same_policy > 1 else ""
    today = ", what a Slurm site has today" if result.baseline.is_today else ""
    sentences = [
        f"{where} the mean wait under {chosen.label}{best_of} is {waits.in_words}. "
        f"Compared with {result.baseline.label}{today}."
    ]
    if waits.is_noticed and not waits.differs:
        sentences.append(f"The mean wait: no difference that chance does not explain, {_interval(waits.difference)}.")
    if differences.repeats:
        sentences.append(
            "The longest wait and that of jobs of a node and more are means over the repeats, too, the rest is of one "
            "replay."
        )
    return sentences


def _interval(difference: Difference) -> str:
    if difference.low is None or difference.high is None:
        return "in this one replay"
    return f"95 % interval {format_signed(difference.low)}..{format_signed(difference.high)}"


def _small_gain_sentence(baseline: Run) -> list[str]:
    share = baseline.summary.mean_wait_s / max(baseline.summary.mean_jct_s, 1.0)
    if share >= SMALL_PART:
        return []
    return [f"There is little to gain: waiting is {100 * share:.1f} % of the time from submission to end."]


def _size_sentences(chosen: Run, result: WhatIf, differences: Differences) -> list[str]:
    """Name the sizes of job that wait longer.

    Jobs of a node and more are compared as in the table of differences, smaller ones in the one replay.
    """
    compared = (
        ("Jobs of a node and more", _compare_waits(chosen, result, differences, "mean_wait_large_s")),
        ("Jobs below a node", _compare_small(chosen, result)),
    )
    return [
        f"{name} pay: {waits.in_words} on average."
        if waits.differs
        else f"{name}: no difference that chance does not explain; {waits.in_words}."
        for name, waits in compared
        if waits is not None and waits.is_longer and waits.is_noticed
    ]


def _user_sentence(proposed: Run, result: WhatIf) -> list[str]:
    """State how many users wait longer on average, and who most."""
    gains = by_user(proposed, result)
    if len(gains) < 2:
        return []
    losing, worst = sum(gain.loses for gain in gains), gains[0]
    if not losing:
        return [f"None of the {len(gains):,} users waits longer on average."]
    verb = "waits" if losing == 1 else "wait"
    after, before = duration_in_words(worst.after.mean_s), duration_in_words(worst.before.mean_s)
    return [
        f"Of {len(gains):,} users {losing:,} ({percent(losing / len(gains))}) {verb} longer on average, user "
        f"{worst.name} most: {after} instead of {before} over {worst.jobs:,} job{'' if worst.jobs == 1 else 's'}."
    ]


def _longest_wait_sentence(chosen: Run, result: WhatIf, differences: Differences) -> list[str]:
    """Compare the longest waits over repeats.

    That of one replay stands beside the sizes.
    """
    waits = _compare_waits(chosen, result, differences, "max_wait_s")
    if waits is None or not waits.is_noticed or not differences.repeats:
        return []
    old, new = duration_in_words(waits.old_s), duration_in_words(waits.new_s)
    if not waits.differs:
        return [f"The longest wait: no difference that chance does not explain; {waits.in_words}."]
    return [f"The longest wait {'grows' if waits.is_longer else 'falls'} from {old} to {new}{waits.relative_change}."]


def _oracle_sentence(chosen: Run, result: WhatIf, differences: Differences) -> list[str]:
    oracles = [run for run in result.oracles if (run.policy, run.backfill) == (chosen.policy, chosen.backfill)]
    if not oracles:
        return []
    best = min(oracles, key=lambda run: run.summary.mean_wait_s)
    reached, bound = (
        _compare_waits(chosen, result, differences, "mean_wait_s"),
        _compare_waits(best, result, differences, "mean_wait_s"),
    )
    if reached is None or bound is None or bound.is_longer or not bound.differs:
        chance = " that chance does not explain" if bound is not None and bound.is_noticed else ""
        return [f"Even with true run times this order would gain nothing here{chance}."]
    share = round(100 * (reached.old_s - reached.new_s) / (bound.old_s - bound.new_s)) if reached.differs else 0
    if share >= 100:
        return [f"With true run times the same order would do no better: {duration_in_words(bound.new_s)}."]
    return [
        f"With true run times the same order would reach {duration_in_words(bound.new_s)}: "
        f"the predictions realise {f'{share} %' if share > 0 else 'none'} of that gain."
    ]


def _oracle_only_sentence(result: WhatIf) -> list[str]:
    if not result.oracles:
        return []
    bound = min(result.oracles, key=lambda run: run.summary.mean_wait_s)
    return [
        f"Nothing else that can be had was replayed. {bound.label}, which knows the true run times as nobody does, "
        f"reaches {duration_in_words(bound.summary.mean_wait_s)}."
    ]


def _compare_waits(run: Run, result: WhatIf, differences: Differences, name: str) -> WaitComparison | None:
    """Compare a figure of a replay with the baseline's, as in the table of differences.

    None where there is no such job.
    """
    difference, new, old = (
        differences.of(run.label, name),
        differences.figures(run.label),
        differences.figures(result.baseline.label),
    )
    new_s, old_s = new.get(name), old.get(name)
    if difference is None or new_s is None or old_s is None:
        return None
    return WaitComparison(new_s=new_s, old_s=old_s, difference=difference)


def _compare_small(chosen: Run, result: WhatIf) -> WaitComparison | None:
    """Compare the mean wait of jobs below a node in the one replay."""
    small = chosen.size_class == 0
    difference = mean_wait_difference(chosen, result.baseline, small)
    if difference is None:
        return None
    new_s, old_s = (float(run.wait_s[small].mean()) for run in (chosen, result.baseline))
    return WaitComparison(new_s=new_s, old_s=old_s, difference=difference)


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
