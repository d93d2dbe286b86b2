"""Targets that the trials of a pool reach.

Each report is looked at once, in the order of the file, so that the first one that reaches a target is found however
many are read in one go. What was reached is in the state file, and so is the same after a kill.
"""

from __future__ import annotations

import re
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from helios.targets import TIERS, Target
from helios.training.model import TrialState
from helios.training.pool.deliverables import Deliverables

if TYPE_CHECKING:
    from helios.training.pool.attempts import Attempt
    from helios.training.pool.notes import Notes
    from helios.training.pool.reports import Report
    from helios.training.pool.trials import SweepTrials

SILENT_REPORTS = 20
"""Reports with other metrics alone, after which a target's metric counts as one that is not reported."""
LONGEST_PROBLEM = 500
"""Characters of a problem that those who ask are shown."""
_LESS_IS_BETTER = re.compile(r"(^|[\W_])(loss|err|error|mse|mae|rmse|nll|perplexity|ppl)$", re.IGNORECASE)
_MORE_IS_BETTER = re.compile(r"(^|[\W_])(acc|accuracy|auc|auroc|f1|r2|precision|recall|bleu)$", re.IGNORECASE)
"""Names of metrics that say in which direction they are better."""


def looks_reversed(target: Target, value: float) -> bool:
    """Return whether a first value says that a target has the wrong direction.

    It passes the hardest target. The metric's name says the other direction or, where it says none, the value is away
    from the target by more than the target itself.
    """
    goal = target.values[-1]
    if not target.is_reached(len(target.values) - 1, value):
        return False
    if _LESS_IS_BETTER.search(target.metric) or _MORE_IS_BETTER.search(target.metric):
        return _contradicts_name(target)
    return abs(value - goal) > abs(goal) > 0


def _contradicts_name(target: Target) -> bool:
    """Return whether a metric's name speaks for the other direction."""
    name = _LESS_IS_BETTER if target.maximize else _MORE_IS_BETTER
    return name.search(target.metric) is not None


class SweepTarget:
    """Keeps how far the trials of a sweep are from its target."""

    def __init__(self, *, trials: SweepTrials, notes: Notes) -> None:
        self._trials, self._notes = trials, notes
        self._target = trials.sweep.target
        self.deliverables = Deliverables(trials=trials, notes=notes)
        self._problem = ""
        self._is_reported, self._silent = False, 0
        self._seen = set[int]()
        self._best: tuple[float, int] | None = None

    @property
    def target(self) -> Target | None:
        """The target that trials have, None where none counts."""
        return None if self._problem else self._target

    @property
    def count_reached(self) -> int:
        """Number of targets that were reached."""
        return len(self._trials.state.reached)

    @property
    def outlook(self) -> dict[str, Any]:
        """The best value so far, and what is expected of the next target."""
        known: dict[str, Any] = {"best": self._best} if self._best else {}
        if self._problem or self._target is None or self.count_reached == len(self._target.values):
            return known | ({"problem": self._problem[:LONGEST_PROBLEM]} if self._problem else {})
        needs = list[dict[str, Any]]()
        for trial in [attempt.trial for attempt in self._trials.running]:
            steps = trial.forecast.second if self.count_reached else trial.forecast.first
            speed = trial.steps_per_s or trial.forecast.steps_per_s
            if steps is not None and speed:
                seconds = [float(f"{count / speed:.2g}") for count in (steps.p10, steps.p50, steps.p90)]
                number = self._trials.identify(trial.number)["number"]
                needs.append({"trial": number, "seconds": seconds, "reached": round(steps.reached, 2)})
        if needs:
            known["need"] = max(needs, key=lambda need: (need["reached"], -need["seconds"][1]))
        return known

    def restore(self) -> None:
        """Look at trials that had ended before the target was said."""
        if self._target is None:
            return
        for record in self._trials.state.trials.values():
            value = record.metrics.get(self._target.metric)
            if record.state is TrialState.FINISHED and value is not None and not self._problem:
                if not self._trials.state.reached and _contradicts_name(self._target):
                    self._reverse(f"its direction is not that of a {self._target.metric}")
                    return
                unknown = dict.fromkeys(("step", "seconds", "time_s", "attempt"))
                self._reach(record.number, value, **unknown)

    def take(self, attempt: Attempt, report: Report, at_s: float) -> None:
        """Take a report of a trial, in the order of its file."""
        if self._target is None:
            return
        metric, number = self._target.metric, attempt.trial.number
        value = report.metrics.get(metric)
        if metric in report.not_finite:
            note = f"{metric} of trial {attempt.trial.label} is not a finite number, so it has no target until it is"
            self._notes.note(note)
            attempt.trial = replace(attempt.trial, target=None)
        elif value is None:
            self._count_silent(attempt, report)
        else:
            if not self._is_reported:
                self._is_reported = True
                self._change("")
            known = [self._best] if self._best else []
            self._best = self._target.best([*known, (value, self._trials.identify(number)["number"])])
            if number not in self._seen:
                self._seen.add(number)
                self._look_at_first(attempt, value)
            if attempt.trial.target is not self.target:
                attempt.trial = replace(attempt.trial, target=self.target)
            if self.target is not None and self._new_tiers(value):
                own = None if attempt.read_s is None else attempt.trial.attempts  # None: of an earlier attempt
                about = {"step": report.step, "seconds": self._seconds(attempt, report, at_s), "attempt": own}
                self._reach(number, value, time_s=round(at_s, 3), **about)
        self.deliverables.confirm(attempt, report)

    def _count_silent(self, attempt: Attempt, report: Report) -> None:
        """Withhold a target whose metric no report has."""
        assert self._target is not None
        self._silent += bool(report.metrics) and not self._is_reported
        if self._silent < SILENT_REPORTS or self._is_reported or self._problem:
            return
        near = get_close_matches(self._target.metric, attempt.metrics, n=1) or sorted(attempt.metrics)[:3]
        self._change(f"{self._silent} reports had no {self._target.metric}, but {', '.join(near)}")

    def _look_at_first(self, attempt: Attempt, value: float) -> None:
        """Say where a trial is beyond its target when it begins."""
        target = self._target
        assert target is not None
        if self._trials.state.reached or not target.is_reached(0, value):
            return
        told = f"the first {target.metric} of trial {attempt.trial.label} is {value:g}"
        if looks_reversed(target, value):
            self._reverse(told)
        else:
            self._notes.note(f"The target {target} is passed at the start, since {told}: a harder one may be meant")

    def _reverse(self, why: str) -> None:
        """Take the target from trials, since the other direction may be meant."""
        assert self._target is not None
        self._change(f"{why}, so that {'<=' if self._target.maximize else '>='} may be meant")

    def _change(self, problem: str) -> None:
        """Give trials the target or take it from them, and say why."""
        if problem == self._problem:
            return
        self._problem = problem
        if problem:
            self._notes.note(f"Trials are without the target {self._target}: {problem}")
        self._update(target=self.target)

    def _update(self, **known: Any) -> None:
        """Update what trials know of their target."""
        for trial in [*self._trials.waiting.values(), *(attempt.trial for attempt in self._trials.running)]:
            self._trials.replace(replace(trial, **known))
        self._trials.changed = True

    def _new_tiers(self, value: float | None) -> list[int]:
        """Return the tiers that a value reaches, and none has before."""
        assert self._target is not None
        left = range(self.count_reached, len(self._target.values))
        return [tier for tier in left if self._target.is_reached(tier, value)]

    def _reach(self, number: int, value: float | None, **about: Any) -> None:
        """Record the targets that a trial's value is first to reach."""
        target, state = self._target, self._trials.state
        assert target is not None
        for tier in self._new_tiers(value):
            own, goal = self._trials.identify(number), target.values[tier]
            known = {"metric": target.metric, "goal": goal, "value": value, **about}
            if not state.record_target(own["number"], tier, **known):
                continue
            self._notes.publish({"event": "target", **own, "tier": tier + 1, **known})
            at = "" if about["step"] is None else f" at step {about['step']:,}"
            label = self._trials.label(own["number"])
            self._notes.note(f"Trial {label} reached the {TIERS[tier]} target, {goal:g}{at}: {target.metric} {value:g}")
            self._update(targets_reached=self.count_reached)

    @staticmethod
    def _seconds(attempt: Attempt, report: Report, at_s: float) -> float | None:
        """Return how long a trial had trained at a report, s."""
        if report.step is not None:
            points = attempt.curve.points
            return next((point.seconds for point in points if point.step >= report.step), None)
        return None if attempt.read_s is None else round(at_s - attempt.curve_from_s - attempt.held_s, 3)
