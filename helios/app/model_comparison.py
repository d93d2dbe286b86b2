"""Comparison of a new model with the promoted one, and what follows.

No model is scored on jobs that it learned from: the same recipe, stopped earlier, is scored in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.app.prepared_history import FEWEST_SCORED, PreparedHistory
from helios.errors import ModelUnreadable, NotEnoughHistory
from helios.model import AuditStep, ModelRecord
from helios.ports import Progress
from helios.predict.comparison import Comparison
from helios.predict.duration import SHRINKAGE, DurationModel
from helios.predict.model_record import from_record

INCUMBENT = "active"
"""Name of the promoted model in a nightly comparison; the new one is ``model``."""
WIDER = (1, 4, 12)
"""Multiples of the days to score on, tried in order until enough jobs ended in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOutcome:
    """Decision about a model that was trained or named by a person.

    Attributes
    ----------
    step : AuditStep, optional
        None where nothing was decided and all stays as it was.
    model_id : str
        The model that the decision is about.
    promoted, previous : str
        The model that predicts from now on, and until now; ``SHRINKAGE`` where no model does.
    why : str
        For a person.
    comparison : Comparison, optional
        The scores that it rests on. None where nothing was scored.
    days : float, optional
        Length of the stretch that was scored.
    """

    step: AuditStep | None
    model_id: str
    promoted: str
    previous: str
    why: str
    comparison: Comparison | None = None
    days: float | None = None

    @property
    def did(self) -> str:
        """The outcome in a word or two."""
        return "kept, not promoted" if self.promoted != self.model_id else "promoted" if self.step else "kept"

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self) | {"comparison": None if self.comparison is None else self.comparison.to_json()}


def decide_against_controls(same: TrainingOutcome, comparison: Comparison | None) -> TrainingOutcome:
    """Decide where only shrinkage predicts so far."""
    kept = replace(same, step=AuditStep.KEPT, comparison=comparison)
    if comparison is None:
        return replace(kept, why="its history is too short to judge it on")
    behind = [name for name in comparison.against if not comparison.against[name].ahead]
    if behind:
        return replace(kept, why=f"it is not ahead of {' and '.join(behind)}: {_figures(comparison)}")
    return replace(
        kept,
        step=AuditStep.PROMOTED,
        promoted=same.model_id,
        why=f"it is ahead of the controls: {_figures(comparison)}",
    )


def backtest_in(record: ModelRecord) -> Comparison | None:
    """Return the comparison stored in a record's scores.

    None where the history was too short for one.
    """
    return Comparison.from_json(record.scores) if record.scores.get("against") else None


def compare_with_incumbent(
    studied: PreparedHistory,
    record: ModelRecord,
    candidate: DurationModel,
    incumbent: ModelRecord | None,
    *,
    seed: int,
    days: float,
    at: datetime,
    progress: Progress,
) -> TrainingOutcome:
    """Decide about ``candidate``, stored as ``record``, on the last days before ``at``.

    Parameters
    ----------
    incumbent : ModelRecord, optional
        The promoted model. None where shrinkage predicts. One that cannot be read is not scored, and the decision is
        the same as without one.
    days : float
        Length of the stretch to score on; four and twelve times that where too few jobs ended in it.
    """
    previous = incumbent.model_id if incumbent else SHRINKAGE
    same = TrainingOutcome(step=AuditStep.KEPT, model_id=record.model_id, promoted=previous, previous=previous, why="")
    opponent, unreadable = load_incumbent(incumbent)
    if opponent is not None and previous == record.model_id:
        return replace(same, why="nothing new has ended since it was trained")
    stretches = (days * factor for factor in WIDER)
    interval = next(
        (one for one in stretches if len(studied.scored_jobs(at - timedelta(one), at)) >= FEWEST_SCORED), None
    )
    comparison = None
    if interval is not None:
        since = at - timedelta(days=interval)
        comparison = _compare_unseen(studied, candidate, opponent, since=since, at=at, seed=seed, progress=progress)
    if opponent is None:
        alone = replace(same, promoted=SHRINKAGE, days=interval if comparison else None)
        decided = decide_against_controls(alone, comparison or backtest_in(record))
        return replace(decided, why=f"{unreadable}{decided.why}")
    if interval is None:
        why = f"fewer than {FEWEST_SCORED} jobs ended in {days * WIDER[-1]:g} days: too few to judge"
        return replace(same, why=why)
    if comparison is None:
        return replace(same, why="too few jobs ended that neither of the two had learned from")
    return _decide_against_incumbent(replace(same, comparison=comparison, days=interval), comparison)


def common_jobs(
    studied: PreparedHistory, models: Mapping[str, DurationModel], *, now: datetime
) -> tuple[dict[str, DurationModel], tuple[str, ...], NDArray[np.int64]]:
    """Return jobs that two models can both be scored on.

    These were submitted after both had stopped learning. Where they are too few, the backtest of the later model
    replaces it, then both backtests do.

    Returns
    -------
    models : dict of DurationModel
    notes : tuple of str
        Notes on the models that are replaced by their backtests.
    rows : array
        Rows of the jobs.

    Raises
    ------
    NotEnoughHistory
        There are too few all the same.
    """
    backtests = {name: model.backtest_model() for name, model in models.items()}
    latest = max(models, key=lambda name: models[name].trained_until)
    for replaced in ((), (latest,), tuple(models)):
        chosen = {name: backtests[name] if name in replaced else model for name, model in models.items()}
        known = {name: model for name, model in chosen.items() if model is not None}
        if len(known) < len(models):
            continue
        rows = studied.scored_jobs(max(model.trained_until for model in known.values()), now)
        if len(rows) >= FEWEST_SCORED:
            stopped = {name: f"{known[name].trained_until:%Y-%m-%d}" for name in replaced}
            notes = (
                f"{name} has seen these jobs: judged is its recipe stopped at {day}." for name, day in stopped.items()
            )
            return known, tuple(notes), rows
    raise NotEnoughHistory(
        f"Fewer than {FEWEST_SCORED} jobs ended that neither model had learned from.",
        hint="Wait until more have ended, or train both until an earlier day: helios model train --to DATE",
    )


def _decide_against_incumbent(same: TrainingOutcome, comparison: Comparison) -> TrainingOutcome:
    worse = [
        f"worse than {'the active model' if name == INCUMBENT else name} in {' and '.join(against.worse_in)}"
        for name, against in comparison.against.items()
        if name in {INCUMBENT, SHRINKAGE} and against.worse_in
    ]
    if worse:
        return replace(same, why=f"the new model is {' and '.join(worse)}: {_figures(comparison)}")
    return replace(
        same,
        step=AuditStep.PROMOTED,
        promoted=same.model_id,
        why=f"the new model is no worse than the active one and than shrinkage: {_figures(comparison)}",
    )


def load_incumbent(incumbent: ModelRecord | None) -> tuple[DurationModel | None, str]:
    """Return the model of a record, or why there is none."""
    if incumbent is None:
        return None, ""
    try:
        return from_record(incumbent), ""
    except ModelUnreadable as reason:
        return None, f"{reason.message}; "


def _compare_unseen(
    studied: PreparedHistory,
    candidate: DurationModel,
    opponent: DurationModel | None,
    *,
    since: datetime,
    at: datetime,
    seed: int,
    progress: Progress,
) -> Comparison | None:
    """Compare models that learned nothing from the stretch.

    None where there are none, or too few jobs came after them.
    """
    # A model that had not stopped learning by then is scored by its backtest, which stopped earlier, if it has one.
    is_newer = opponent is not None and opponent.trained_until > since
    backtest = opponent.backtest_model() if opponent is not None and is_newer else None
    incumbent = backtest or opponent
    begin = since if incumbent is None else max(since, incumbent.trained_until)
    # A backtest is scored beside a backtest: otherwise the one that stopped later would win by that.
    challenger = candidate.backtest_model() if backtest else None
    try:
        challenger = challenger or studied.train(until=begin, seed=seed, progress=progress)
    except NotEnoughHistory:
        challenger = candidate.backtest_model()
    if challenger is None:
        return None
    models = {"model": challenger} | ({INCUMBENT: incumbent} if incumbent else {})
    rows = studied.scored_jobs(max(begin, challenger.trained_until), at)
    return studied.comparison(models, rows, challenger="model") if len(rows) >= FEWEST_SCORED else None


def _figures(comparison: Comparison) -> str:
    """Return a comparison's figures in words.

    These are the log error and the rank correlation of each.
    """
    scores, errors, ranks = comparison.scores, [], []
    for name in (comparison.challenger, *comparison.against):
        called = {"model": "new", "user_last": "user's last"}.get(name, name)
        rank = scores[name].spearman
        errors.append(f"{called} {scores[name].median_abs_log_error:.2f}")
        ranks.append(f"{called} {'-' if rank is None else f'{rank:.2f}'}")
    return f"on {comparison.jobs:,} jobs, log error {', '.join(errors)}; rank correlation {', '.join(ranks)}"
