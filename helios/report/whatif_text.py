"""Summary of a what-if in sentences.

The verdict is that of the check over draws; the replay of the window as it was explains who gains and who pays.
"""

from __future__ import annotations

from dataclasses import dataclass

from helios.metrics.queue import SIZE_CLASSES, size_class
from helios.report.significance import (
    NOBODY_WAITS,
    SINGLE_REPLAY,
    Difference,
    Differences,
    compare_blocks,
    format_signed,
    mean_wait_difference,
)
from helios.report.whatif import SAME_S, Run, WhatIf, by_user, noticed_s
from helios.units import change, duration_in_words, percent

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
    waits = _compare(chosen, result, sure, "mean_wait_s")
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
    waits = _compare(chosen, result, sure, "max_wait_s")
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
    mine, bound = _compare(chosen, result, sure, "mean_wait_s"), _compare(best, result, sure, "mean_wait_s")
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


def _compare(run: Run, result: WhatIf, sure: Differences, name: str) -> WaitComparison | None:
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
        return _compare(chosen, result, sure, "mean_wait_large_s")
    new_s = chosen.summary.mean_wait_s_by_size[size]
    old_s = result.baseline.summary.mean_wait_s_by_size[size]
    found = mean_wait_difference(chosen, result.baseline, size_class(chosen.gpus) == SIZE_CLASSES.index(size))
    if new_s is None or old_s is None or found is None:
        return None
    return WaitComparison(new_s=new_s, old_s=old_s, found=found)
