"""What a what-if says in plain sentences, computed from its figures; also when there is nothing to gain."""

from __future__ import annotations

from helios.metrics import SIZE_CLASSES
from helios.report.whatif import Run, WhatIf
from helios.report.words import change, spoken_duration

SAME = 0.02
"""Relative difference of means below which a replay is called no different; whatif has no error bars yet."""
IDLE_S = 1.0
LARGE = SIZE_CLASSES[-1]


def verdict(result: WhatIf) -> list[str]:
    """Return the sentences: what would change, who pays, what the naive control does, what perfect knowledge would."""
    today = result.baseline
    if max(run.summary.mean_wait_s for run in result.runs) < IDLE_S:
        return ["Hardly any job waited in this replay, so no order of the queue can change anything."]
    proposed = _best(result, "qssf")
    if proposed is None or proposed is today:
        return [f"{today.label}: the mean wait is {spoken_duration(today.summary.mean_wait_s)}."]
    sentences = [_mean(proposed, today), *_who_pays(proposed, today, result.unit)]
    control = _best(result, "fewest_gpus")
    if control is not None:
        sentences.append(_against_control(proposed, control))
    oracle = _oracle_of(result, proposed)
    if oracle is not None:
        sentences += _against_oracle(proposed, oracle, today)
    return sentences


def _best(result: WhatIf, policy: str) -> Run | None:
    """Return the replay of ``policy`` that can be had and has the smallest mean wait."""
    having = [run for run in result.runs if run.policy == policy and not run.is_oracle]
    return min(having, key=lambda run: run.summary.mean_wait_s, default=None)


def _oracle_of(result: WhatIf, run: Run) -> Run | None:
    knowing = [
        other
        for other in result.runs
        if other.policy == run.policy and other.backfill == run.backfill and other.run_times == "true"
    ]
    return next(iter(knowing), None)


def _mean(proposed: Run, today: Run) -> str:
    new, old = proposed.summary.mean_wait_s, today.summary.mean_wait_s
    if abs(new - old) <= SAME * old:
        return (
            f"Ordering the queue by predicted service ({proposed.label}) would have made no difference to the mean "
            f"wait: {spoken_duration(new)} instead of {spoken_duration(old)} ({today.label})."
        )
    verb = "cut" if new < old else "lengthened"
    return (
        f"Ordering the queue by predicted service ({proposed.label}) would have {verb} the mean wait from "
        f"{spoken_duration(old)} ({today.label}) to {spoken_duration(new)} ({change(new, old)})."
    )


def _who_pays(proposed: Run, today: Run, unit: str) -> list[str]:
    sentences = []
    new, old = (run.summary.mean_wait_s_by_size[LARGE] for run in (proposed, today))
    if new is not None and old is not None and abs(new - old) > SAME * old:
        who = "Large jobs pay" if new > old else "Large jobs gain too"
        sentences.append(
            f"{who}: jobs above 8 {unit}s would have waited {spoken_duration(new)} on average instead of "
            f"{spoken_duration(old)} ({change(new, old)})."
        )
    longest, before = proposed.summary.max_wait_s, today.summary.max_wait_s
    if abs(longest - before) > SAME * before:
        verb = "grows" if longest > before else "falls"
        sentences.append(f"The longest wait {verb} from {spoken_duration(before)} to {spoken_duration(longest)}.")
    return sentences


def _against_control(proposed: Run, control: Run) -> str:
    mine, naive = proposed.summary.mean_wait_s, control.summary.mean_wait_s
    if mine < (1 - SAME) * naive:
        return f"Prediction earns its keep: {control.label}, which needs no model, reaches {spoken_duration(naive)}."
    if mine <= (1 + SAME) * naive:
        return f"But {control.label}, which needs no model, does as well: {spoken_duration(naive)}."
    return f"But {control.label}, which needs no model, does better: {spoken_duration(naive)}."


def _against_oracle(proposed: Run, oracle: Run, today: Run) -> list[str]:
    possible = today.summary.mean_wait_s - oracle.summary.mean_wait_s
    gained = today.summary.mean_wait_s - proposed.summary.mean_wait_s
    if possible <= SAME * today.summary.mean_wait_s:
        return ["Even with true run times this order would gain nothing here."]
    return [
        f"With true run times the same order would reach {spoken_duration(oracle.summary.mean_wait_s)}: "
        f"the predictions realise {round(100 * gained / possible)} % of that gain."
    ]
