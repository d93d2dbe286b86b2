"""What a what-if says in plain sentences, computed from its figures; also when there is nothing to gain."""

from __future__ import annotations

import numpy as np

from helios.metrics import SIZE_CLASSES, standard_error_of_mean
from helios.report.whatif import Run, WhatIf
from helios.report.words import change, spoken_duration

SAME = 0.02
"""Relative difference of waits below which a replay is called no different."""
SAME_S = 1.0
"""Difference below which nobody would notice, s."""
SURE = 2.0
"""Standard errors from which a difference is not laid to a few odd days (about 95 % of chance is less)."""
SMALL_PART = 0.02
"""Share of the time to completion below which waiting is called a small part of it."""
PROPOSALS = ("qssf", "sjf")
"""Policies that Helios proposes, the first that was replayed; other replays are controls."""
ACTS = {
    "qssf": "Ordering the queue by predicted service",
    "sjf": "Ordering the queue by predicted run time",
    "fewest_gpus": "Starting the jobs with the fewest {unit}s first",
    "fifo": "Keeping the order of submission",
}
JOBS_OF = {"1": "jobs of 1 {unit}", "2-8": "jobs of 2 to 8 {unit}s", ">8": "jobs above 8 {unit}s"}
WHO = {"1": "The smallest jobs", "2-8": "Middle-sized jobs", ">8": "Large jobs"}


def verdict(result: WhatIf) -> list[str]:
    """Return the sentences: what would change, who pays, what the naive control does, what perfect knowledge would."""
    today, proposed = result.baseline, _proposed(result)
    if nobody_waits(result):
        return ["Hardly any job waited in this replay, so no order of the queue can change anything."]
    if proposed is None:
        return [f"{today.label}: the mean wait is {spoken_duration(today.summary.mean_wait_s)}.", *_bound_alone(result)]
    return [
        _mean(proposed, result),
        *_how_sure(proposed, today),
        _compared(proposed, result),
        *_small_part(today),
        *_who_pays(proposed, result),
        *_longest(proposed, today),
        *_against_control(proposed, result),
        *_against_oracle(proposed, result),
    ]


def nobody_waits(result: WhatIf) -> bool:
    """Return whether waits are so short in every replay that comparing them says nothing."""
    return max(run.summary.mean_wait_s for run in result.runs) < SAME_S


def _proposed(result: WhatIf) -> Run | None:
    """Return the replay to speak of: of what Helios proposes, else of all that can be had, the smallest mean wait."""
    for policy in PROPOSALS:
        if found := _best(result, policy):
            return found
    return min(result.feasible, key=lambda run: run.summary.mean_wait_s, default=None)


def _best(result: WhatIf, policy: str) -> Run | None:
    having = [run for run in result.feasible if run.policy == policy]
    return min(having, key=lambda run: run.summary.mean_wait_s, default=None)


def _mean(proposed: Run, result: WhatIf) -> str:
    new, old = proposed.summary.mean_wait_s, result.baseline.summary.mean_wait_s
    act = ACTS.get(proposed.policy, "This order").format(unit=result.unit)
    if not _differ(new, old):
        return (
            f"{act} would have made no difference to the mean wait: {spoken_duration(new)} instead of "
            f"{spoken_duration(old)}."
        )
    verb = "cut" if new < old else "lengthened"
    return (
        f"{act} would have {verb} the mean wait from {spoken_duration(old)} to {spoken_duration(new)}"
        f"{_in_brackets(new, old)}."
    )


def _compared(proposed: Run, result: WhatIf) -> str:
    """Say which replays are compared, and among how many the proposed one was picked with hindsight."""
    alike = sum(run.policy == proposed.policy for run in result.feasible)
    picked = f", the best of {alike} such replays," if alike > 1 else ""
    today = ", what a Slurm site has today" if result.baseline.is_today else ""
    return f"Compared: {proposed.label}{picked} with {result.baseline.label}{today}."


def _how_sure(proposed: Run, today: Run) -> list[str]:
    """Say so where a difference may be chance."""
    if not _differ(proposed.summary.mean_wait_s, today.summary.mean_wait_s) or not _may_be_chance(proposed, today):
        return []
    return ["This may be chance, for days differ as much: replay a longer window before relying on it."]


def _small_part(today: Run) -> list[str]:
    share = today.summary.mean_wait_s / max(today.summary.mean_jct_s, 1.0)
    if share >= SMALL_PART:
        return []
    return [f"There is little to gain: waiting is {100 * share:.1f} % of the time from submission to end."]


def _who_pays(proposed: Run, result: WhatIf) -> list[str]:
    """Name every size of job that waits longer; where none does, say whether large jobs gain, for they usually pay."""
    paying = [size for size in reversed(SIZE_CLASSES) if _change_of(size, proposed, result) > 0]
    if paying:
        return [f"{WHO[size]} pay: {_size_sentence(size, proposed, result)}" for size in paying]
    large = SIZE_CLASSES[-1]
    if _change_of(large, proposed, result) < 0:
        return [f"{WHO[large]} gain too: {_size_sentence(large, proposed, result)}"]
    return []


def _change_of(size: str, proposed: Run, result: WhatIf) -> int:
    """Return 1 where that size waits longer than at the baseline, -1 where shorter, 0 where it makes no difference."""
    new = proposed.summary.mean_wait_s_by_size[size]
    old = result.baseline.summary.mean_wait_s_by_size[size]
    if new is None or old is None or not _differ(new, old):
        return 0
    return 1 if new > old else -1


def _size_sentence(size: str, proposed: Run, result: WhatIf) -> str:
    new = proposed.summary.mean_wait_s_by_size[size] or 0.0
    old = result.baseline.summary.mean_wait_s_by_size[size] or 0.0
    return (
        f"{JOBS_OF[size].format(unit=result.unit)} would have waited {spoken_duration(new)} on average instead of "
        f"{spoken_duration(old)}{_in_brackets(new, old)}."
    )


def _longest(proposed: Run, today: Run) -> list[str]:
    new, old = proposed.summary.max_wait_s, today.summary.max_wait_s
    if not _differ(new, old):
        return []
    verb = "grows" if new > old else "falls"
    return [f"The longest wait {verb} from {spoken_duration(old)} to {spoken_duration(new)}{_in_brackets(new, old)}."]


def _against_control(proposed: Run, result: WhatIf) -> list[str]:
    control = _best(result, "fewest_gpus")
    if control is None or proposed.policy not in PROPOSALS:
        return []
    mine, naive = proposed.summary.mean_wait_s, control.summary.mean_wait_s
    if not _differ(mine, naive):
        return [f"But {control.label}, which needs no model, does as well: {spoken_duration(naive)}."]
    if mine > naive:
        return [f"But {control.label}, which needs no model, does better: {spoken_duration(naive)}."]
    if mine > result.baseline.summary.mean_wait_s:
        return [f"{control.label}, which needs no model, does worse still: {spoken_duration(naive)}."]
    claim = "may earn" if _may_be_chance(proposed, control) else "earns"
    return [f"Prediction {claim} its keep: {control.label}, which needs no model, reaches {spoken_duration(naive)}."]


def _against_oracle(proposed: Run, result: WhatIf) -> list[str]:
    knowing = [run for run in result.oracles if (run.policy, run.backfill) == (proposed.policy, proposed.backfill)]
    if not knowing:
        return []
    oracle = min(knowing, key=lambda run: run.summary.mean_wait_s).summary.mean_wait_s
    today, mine = result.baseline.summary.mean_wait_s, proposed.summary.mean_wait_s
    if oracle >= today or not _differ(oracle, today):
        return ["Even with true run times this order would gain nothing here."]
    share = round(100 * (today - mine) / (today - oracle))
    if share >= 100:
        return [f"With true run times the same order would do no better: {spoken_duration(oracle)}."]
    return [
        f"With true run times the same order would reach {spoken_duration(oracle)}: "
        f"the predictions realise {f'{share} %' if share > 0 else 'none'} of that gain."
    ]


def _bound_alone(result: WhatIf) -> list[str]:
    if not result.oracles:
        return []
    bound = min(result.oracles, key=lambda run: run.summary.mean_wait_s)
    return [
        f"Nothing else that can be had was replayed. {bound.label}, which knows the true run times as nobody does, "
        f"reaches {spoken_duration(bound.summary.mean_wait_s)}."
    ]


def _differ(new: float, old: float) -> bool:
    return abs(new - old) > max(SAME * old, SAME_S)


def _may_be_chance(new: Run, old: Run) -> bool:
    """Return whether the difference of two means is within what days differ by; False in windows too short to say."""
    difference = (new.wait_s - old.wait_s).astype(np.float64)
    error = standard_error_of_mean(difference, submitted_s=new.submitted_s)
    return error is not None and abs(float(difference.mean())) < SURE * error


def _in_brackets(new: float, old: float) -> str:
    return f" ({change(new, old)})" if old else ""
