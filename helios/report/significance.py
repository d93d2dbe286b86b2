"""Differences between replays that are beyond chance, and their summary in sentences.

Within one window: jobs wait behind each other, so that there are far fewer independent observations than jobs. So whole
blocks of time are resampled, weeks where there are enough of them (block bootstrap: Kunsch, Annals of Statistics 17(3),
1989; Davison and Hinkley, Bootstrap Methods and their Application, 1997, ch. 8). All replays use the same blocks, so
that differences are paired. Intervals are computed on the logarithm of the ratio of two waits, each with a second
added, because waits are skewed and one bad day dominates a sum. The coverage for skewed figures is still too low, see
benchmarks/sweep.py.

Over draws: one replay is no evidence, because a seed moves the mean wait of three weeks by up to 40 %. The verdict on
the live order compares three orders on the same draws, by the ratio of their waits in each, in logarithms.

The verdict of a what-if, in sentences, is that of the check over draws; the replay of the window as it was explains who
gains and who pays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from math import exp, expm1, isfinite, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.choices import ResampledUnit
from helios.metrics.queue import DAY_S, FEWEST_DAYS, SIZE_CLASSES, QueueSummary, size_class
from helios.metrics.statistics import CONFIDENCE, confidence_interval, mean_interval
from helios.model.frames import plain
from helios.report.whatif import SAME_S, Run, WhatIf, by_user, noticed_s
from helios.units import change, duration, duration_in_words, percent

SMALL_PART = 0.02
"""Share of the time to completion below which waiting is called a small part of it."""
PROPOSALS = ("qssf", "service", "sjf")
"""Policies that Helios can run live, the first that was replayed; other replays are controls."""
JOBS_OF = {"1": "jobs of 1 {unit}", "2-8": "jobs of 2 to 8 {unit}s", ">8": "jobs above 8 {unit}s"}
WHO = {"1": "The smallest jobs", "2-8": "Middle-sized jobs", ">8": "Large jobs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitComparison:
    """A wait in a replay and in the baseline, with their difference.

    All in s. They differ if the table of differences says so. Where the window is too short for an interval, they
    differ if a person would notice.
    """

    new_s: float
    old_s: float
    found: Difference

    @property
    def differs(self) -> bool:
        """Whether there is a difference to report."""
        return not self.found.is_none and (self.found.low is not None or self.is_noticed)

    @property
    def is_noticed(self) -> bool:
        """Whether a person would notice the difference, by chance or not."""
        return abs(self.new_s - self.old_s) > noticed_s(self.old_s)

    @property
    def is_longer(self) -> bool:
        """Whether the wait grows."""
        return self.new_s > self.old_s

    @property
    def instead(self) -> str:
        """Both waits in words, as ``1 h instead of 2 h (-50 %)``.

        If they read alike, the new one with the difference, as ``17 min, 18 s less``.
        """
        new, old = duration_in_words(self.new_s), duration_in_words(self.old_s)
        if new == old:
            apart = duration_in_words(abs(self.new_s - self.old_s))
            return f"{new}, {apart} {'more' if self.is_longer else 'less'}{self.ratio}"
        return f"{new} instead of {old}{self.ratio}"

    @property
    def ratio(self) -> str:
        """The relative difference in brackets.

        Empty where there was no wait.
        """
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
    """Describe the result of the replay of the window.

    Who waits longer, and what true run times would do.

    Parameters
    ----------
    differences : Differences, optional
        How sure the differences are, over repeats. None where they come from the one replay alone.
    """
    today, chosen = result.baseline, propose_scenario(result)
    if has_no_waits(result):
        return []
    if chosen is None:
        return [
            f"{today.label}: the mean wait is {duration_in_words(today.summary.mean_wait_s)}.",
            *_oracle_alone(result),
        ]
    sure = differences if differences is not None else compare_blocks(result)
    return [
        *_one_replay(chosen, result, sure),
        *_small_part(today),
        *_who_waits_longer(chosen, result, sure),
        *_which_users(chosen, result),
        *_longest(chosen, result, sure),
        *_against_oracle(chosen, result, sure),
    ]


def has_no_waits(result: WhatIf) -> bool:
    """Return whether waits are too short in every replay to be compared."""
    return max(run.summary.mean_wait_s for run in result.runs) < SAME_S


def propose_scenario(result: WhatIf) -> Run | None:
    """Return the replay that the sentences explain.

    The site's live setting, else what Helios does live by default. Where neither was replayed, that of the first of
    ``PROPOSALS`` that was, or else of all feasible replays, with the smallest mean wait. None where none is feasible
    but the baseline.
    """
    chosen = [run for run in result.feasible if result.is_live(run)]
    chosen = chosen or [run for run in result.feasible if run.is_live_default]
    for policy in PROPOSALS:
        chosen = chosen or [run for run in result.feasible if run.policy == policy]
    return min(chosen or result.feasible, key=lambda run: run.summary.mean_wait_s, default=None)


def _one_replay(chosen: Run, result: WhatIf, sure: Differences) -> list[str]:
    """Name the two replays that are compared, with their mean waits.

    Also among how many the one was picked with hindsight.
    """
    waits = _compare_waits(chosen, result, sure, "mean_wait_s")
    if waits is None:
        return []
    where = f"Over {sure.repeats} repeats" if sure.repeats else "In the replay of the window as it was"
    alike = (
        1
        if chosen.is_live_default or result.is_live(chosen)
        else sum(run.policy == chosen.policy for run in result.feasible)
    )
    picked = f", the best of {alike} such replays," if alike > 1 else ""
    today = ", what a Slurm site has today" if result.baseline.is_today else ""
    sentences = [
        f"{where} the mean wait under {chosen.label}{picked} is {waits.instead}. "
        f"Compared with {result.baseline.label}{today}."
    ]
    if waits.is_noticed and not waits.differs:
        sentences.append(f"The mean wait: no difference that chance does not explain, {_interval(waits.found)}.")
    if sure.repeats:
        sentences.append(
            "The longest wait and that of large jobs are means over the repeats, too, the rest is of one replay."
        )
    return sentences


def _interval(found: Difference) -> str:
    if found.low is None or found.high is None:
        return "in this one replay"
    return f"95 % interval {format_signed(found.low)}..{format_signed(found.high)}"


def _small_part(today: Run) -> list[str]:
    share = today.summary.mean_wait_s / max(today.summary.mean_jct_s, 1.0)
    if share >= SMALL_PART:
        return []
    return [f"There is little to gain: waiting is {100 * share:.1f} % of the time from submission to end."]


def _who_waits_longer(chosen: Run, result: WhatIf, sure: Differences) -> list[str]:
    """Name every size of job that waits longer.

    Large jobs, which usually do, are mentioned whenever their wait differs at all.
    """
    sizes = {size: _compare_size(size, chosen, result, sure) for size in reversed(SIZE_CLASSES)}
    sentences = [
        f"{WHO[size]} pay: {_size_sentence(size, waits, result)}"
        for size, waits in sizes.items()
        if waits is not None and waits.differs and waits.is_longer
    ]
    large = sizes[SIZE_CLASSES[-1]]
    if large is None:
        return sentences
    sentence = _size_sentence(SIZE_CLASSES[-1], large, result)
    if not large.differs and large.is_noticed:
        return [f"{WHO[SIZE_CLASSES[-1]]}: no difference that chance does not explain; {sentence}", *sentences]
    return sentences if sentences or not large.differs else [f"{WHO[SIZE_CLASSES[-1]]} gain too: {sentence}"]


def _size_sentence(size: str, waits: WaitComparison, result: WhatIf) -> str:
    waited, _, rest = waits.instead.partition(" instead of ")
    both = f"{waited} on average instead of {rest}" if rest else f"{waited} on average"
    return f"{JOBS_OF[size].format(unit=result.unit)} would have waited {both}."


def _which_users(proposed: Run, result: WhatIf) -> list[str]:
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


def _longest(chosen: Run, result: WhatIf, sure: Differences) -> list[str]:
    waits = _compare_waits(chosen, result, sure, "max_wait_s")
    if waits is None or not waits.is_noticed:
        return []
    old, new = duration_in_words(waits.old_s), duration_in_words(waits.new_s)
    if not waits.differs:
        return [f"The longest wait: no difference that chance does not explain; {waits.instead}."]
    return [f"The longest wait {'grows' if waits.is_longer else 'falls'} from {old} to {new}{waits.ratio}."]


def _against_oracle(chosen: Run, result: WhatIf, sure: Differences) -> list[str]:
    knowing = [run for run in result.oracles if (run.policy, run.backfill) == (chosen.policy, chosen.backfill)]
    if not knowing:
        return []
    best = min(knowing, key=lambda run: run.summary.mean_wait_s)
    mine, bound = _compare_waits(chosen, result, sure, "mean_wait_s"), _compare_waits(best, result, sure, "mean_wait_s")
    if mine is None or bound is None or bound.is_longer or not bound.differs:
        chance = " that chance does not explain" if bound is not None and bound.is_noticed else ""
        return [f"Even with true run times this order would gain nothing here{chance}."]
    share = round(100 * (mine.old_s - mine.new_s) / (bound.old_s - bound.new_s)) if mine.differs else 0
    if share >= 100:
        return [f"With true run times the same order would do no better: {duration_in_words(bound.new_s)}."]
    return [
        f"With true run times the same order would reach {duration_in_words(bound.new_s)}: "
        f"the predictions realise {f'{share} %' if share > 0 else 'none'} of that gain."
    ]


def _oracle_alone(result: WhatIf) -> list[str]:
    if not result.oracles:
        return []
    bound = min(result.oracles, key=lambda run: run.summary.mean_wait_s)
    return [
        f"Nothing else that can be had was replayed. {bound.label}, which knows the true run times as nobody does, "
        f"reaches {duration_in_words(bound.summary.mean_wait_s)}."
    ]


def _compare_waits(run: Run, result: WhatIf, sure: Differences, name: str) -> WaitComparison | None:
    """Compare a figure of a replay with the baseline's.

    As in the table of differences. None for no such job.
    """
    found, new, old = sure.of(run.label, name), sure.figures(run.label), sure.figures(result.baseline.label)
    new_s, old_s = new.get(name), old.get(name)
    if found is None or new_s is None or old_s is None:
        return None
    return WaitComparison(new_s=new_s, old_s=old_s, found=found)


def _compare_size(size: str, chosen: Run, result: WhatIf, sure: Differences) -> WaitComparison | None:
    """Compare the mean wait of a size with the baseline's.

    Large jobs are compared as in the table of differences, and others by the one replay.
    """
    if size == SIZE_CLASSES[-1]:
        return _compare_waits(chosen, result, sure, "mean_wait_large_s")
    new_s = chosen.summary.mean_wait_s_by_size[size]
    old_s = result.baseline.summary.mean_wait_s_by_size[size]
    found = mean_wait_difference(chosen, result.baseline, size_class(chosen.gpus) == SIZE_CLASSES.index(size))
    if new_s is None or old_s is None or found is None:
        return None
    return WaitComparison(new_s=new_s, old_s=old_s, found=found)


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
        first, last = self.window
        short = " These draws cannot show that other jobs might have come: take seven days or more."
        sentences = [_decision(self)]
        for order, name in (
            (CheckedOrder.PREDICTIONS, "Predictions (qssf)"),
            (CheckedOrder.SIZE, "Size, equally aged"),
        ):
            longest, large = (
                geometric_mean([getattr(one, key) for one in self.ratios[order]]) for key in ("longest", "large")
            )
            waits = f"mean wait {self.beside_own(order)}, longest x {longest:.2f}"
            waits += f", mean of large jobs x {large:.2f}" if isfinite(large) else ""
            sentences.append(f"{name}: {waits} of the site's own order.")
        sentences.append(
            f"Over {self.draws} draws of {first:%Y-%m-%d} to {last:%Y-%m-%d}, {MOVED[self.over]}; geometric means, "
            "95 % intervals in brackets; less than 10 % is called chance. The site's own order: first in, first out. "
            "All with EASY backfill by time limits, as on a live Slurm."
            f"{short if self.over is ResampledUnit.SEEDS else ''}"
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
