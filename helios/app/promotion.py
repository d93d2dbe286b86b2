"""A new model against what is in charge: who judges it, on which jobs, and what follows.

No model is judged on jobs that it learned from: in its place stands the same recipe stopped earlier.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from helios.app.outcome import SHRINKAGE, Outcome
from helios.app.study import FEWEST_JUDGED, Study
from helios.errors import ModelUnreadable, NotEnoughHistory
from helios.model import ModelRecord, Step
from helios.ports import Progress
from helios.predict.contest import Against, Contest
from helios.predict.duration import DurationModel
from helios.predict.registry import from_record

RIVAL = "in charge"
"""Name of the model in charge in a night's contest; the new one is ``model``."""
WIDER = (1, 4, 12)
"""How many times the days to judge on are taken, until enough jobs ended in them."""


def settled(record: ModelRecord, rival: ModelRecord | None, *, decided: bool, promote_it: bool) -> Outcome:
    """Decide about a model that was trained by hand.

    Parameters
    ----------
    rival : ModelRecord, optional
        The model in charge; None: shrinkage is.
    decided : bool
        Whether anything was ever decided; where not, the newest model would be in charge.
    """
    opponent, unreadable = _readable(rival)
    previous = rival.model_id if rival and opponent else SHRINKAGE
    same = Outcome(step=None, model_id=record.model_id, in_charge=previous, previous=previous, why="")
    if promote_it:
        return replace(same, step=Step.PROMOTED, in_charge=record.model_id, why="promoted as it was trained")
    if previous == record.model_id:
        return replace(same, why="it is the model in charge, trained again with the same result")
    if previous != SHRINKAGE:
        return replace(same, step=None if decided else Step.KEPT, why=f"{previous} is in charge")
    decided_now = against_the_controls(same, backtest_in(record))
    return replace(decided_now, why=f"{unreadable}{decided_now.why}")


def against_the_controls(same: Outcome, contest: Contest | None) -> Outcome:
    """Decide where nothing but shrinkage is in charge."""
    kept = replace(same, step=Step.KEPT, contest=contest)
    if contest is None:
        return replace(kept, why="its history is too short to judge it on")
    behind = [name for name in contest.against if not contest.against[name].ahead]
    if behind:
        return replace(kept, why=f"it is not ahead of {' and '.join(behind)}: {_figures(contest)}")
    return replace(
        kept, step=Step.PROMOTED, in_charge=same.model_id, why=f"it is ahead of the controls: {_figures(contest)}"
    )


def backtest_in(record: ModelRecord) -> Contest | None:
    """Return the contest that a record's scores are; None: its history was too short for one."""
    return Contest.from_json(record.scores) if record.scores.get("against") else None


def _stood_in(name: str, judged: DurationModel) -> str:
    return f"{name} has seen these jobs: judged is its recipe stopped at {judged.trained_until:%Y-%m-%d}."


def judged(
    studied: Study,
    record: ModelRecord,
    candidate: DurationModel,
    rival: ModelRecord | None,
    *,
    seed: int,
    days: float,
    at: datetime,
    progress: Progress,
) -> Outcome:
    """Decide about ``candidate``, kept as ``record``, on the last days before ``at``.

    Parameters
    ----------
    rival : ModelRecord, optional
        The model in charge; one that cannot be read leaves the field to shrinkage. None: shrinkage is.
    days : float
        Length of the stretch to judge on; four and twelve times that where too few jobs ended in it.
    """
    previous = rival.model_id if rival else SHRINKAGE
    same = Outcome(step=Step.KEPT, model_id=record.model_id, in_charge=previous, previous=previous, why="")
    opponent, unreadable = _readable(rival)
    if opponent is not None and previous == record.model_id:
        return replace(same, why="nothing new has ended since it was trained")
    if opponent is None:
        alone = replace(same, in_charge=SHRINKAGE)
        decided = _against_shrinkage(studied, record, candidate, alone, days=days, at=at, seed=seed, progress=progress)
        return replace(decided, why=f"{unreadable}{decided.why}")
    stretch = _days_with_enough(studied, days=days, at=at)
    if stretch is None:
        return replace(
            same, why=f"fewer than {FEWEST_JUDGED} jobs ended in {days * WIDER[-1]:g} days: too few to judge"
        )
    since = at - timedelta(days=stretch)
    contest = _duel(studied, candidate, opponent, since=since, at=at, seed=seed, progress=progress)
    if contest is None:
        return replace(same, why="too few jobs ended that neither of the two had learned from")
    return _against_the_rival(replace(same, contest=contest, days=stretch), contest)


def common_ground(
    studied: Study, models: Mapping[str, DurationModel], *, now: datetime
) -> tuple[dict[str, DurationModel], tuple[str, ...], NDArray[np.int64]]:
    """Find jobs that two models can be judged on: those submitted after both had stopped learning.

    Where these are too few, the later of the two is stood in for by its backtest, then both.

    Returns
    -------
    models : dict of DurationModel
    notes : tuple of str
        Which were stood in for.
    rows : array
        Of the jobs.

    Raises
    ------
    NotEnoughHistory
        There are too few all the same.
    """
    backtests = {name: model.as_judged() for name, model in models.items()}
    latest = max(models, key=lambda name: models[name].trained_until)
    for replaced in ((), (latest,), tuple(models)):
        chosen = {name: backtests[name] if name in replaced else model for name, model in models.items()}
        known = {name: model for name, model in chosen.items() if model is not None}
        if len(known) < len(models):
            continue
        rows = studied.judged(max(model.trained_until for model in known.values()), now)
        if len(rows) >= FEWEST_JUDGED:
            return known, tuple(_stood_in(name, known[name]) for name in replaced), rows
    raise NotEnoughHistory(
        f"Fewer than {FEWEST_JUDGED} jobs ended that neither model had learned from.",
        remedy="Wait until more have ended, or train both until an earlier day: helios model train --until",
    )


def _against_shrinkage(
    studied: Study,
    record: ModelRecord,
    candidate: DurationModel,
    same: Outcome,
    *,
    days: float,
    at: datetime,
    seed: int,
    progress: Progress,
) -> Outcome:
    stretch = _days_with_enough(studied, days=days, at=at)
    if stretch is not None:
        since = at - timedelta(days=stretch)
        contest = _duel(studied, candidate, None, since=since, at=at, seed=seed, progress=progress)
        if contest is not None:
            return against_the_controls(replace(same, days=stretch), contest)
    return against_the_controls(same, backtest_in(record))


def _against_the_rival(same: Outcome, contest: Contest) -> Outcome:
    worse = [
        f"worse than {'the model in charge' if name == RIVAL else name} in {' and '.join(against.worse_in)}"
        for name, against in _that_count(contest).items()
        if against.worse_in
    ]
    if worse:
        return replace(same, why=f"the new model is {' and '.join(worse)}: {_figures(contest)}")
    return replace(
        same,
        step=Step.PROMOTED,
        in_charge=same.model_id,
        why=f"the new model is no worse than the one in charge and than shrinkage: {_figures(contest)}",
    )


def _that_count(contest: Contest) -> Mapping[str, Against]:
    return {name: against for name, against in contest.against.items() if name in {RIVAL, SHRINKAGE}}


def _readable(rival: ModelRecord | None) -> tuple[DurationModel | None, str]:
    if rival is None:
        return None, ""
    try:
        return from_record(rival), ""
    except ModelUnreadable as reason:
        return None, f"{reason.fact}; "


def _days_with_enough(studied: Study, *, days: float, at: datetime) -> float | None:
    for factor in WIDER:
        if len(studied.judged(at - timedelta(days=days * factor), at)) >= FEWEST_JUDGED:
            return days * factor
    return None


def _duel(
    studied: Study,
    candidate: DurationModel,
    opponent: DurationModel | None,
    *,
    since: datetime,
    at: datetime,
    seed: int,
    progress: Progress,
) -> Contest | None:
    """Judge stand-ins that know nothing of the stretch; None: there are none, or too few jobs came after them."""
    rival = None if opponent is None else _stopped_by(opponent, since)
    begin = since if rival is None else max(since, rival.trained_until)
    backtests = rival is not None and rival is not opponent
    # A backtest is judged beside a backtest: else the one that stopped later would win by that.
    challenger = candidate.as_judged() if backtests else None
    try:
        challenger = challenger or studied.train(until=begin, seed=seed, progress=progress)
    except NotEnoughHistory:
        challenger = candidate.as_judged()
    if challenger is None:
        return None
    models = {"model": challenger} | ({RIVAL: rival} if rival else {})
    rows = studied.judged(max(begin, challenger.trained_until), at)
    return studied.contest(models, rows, challenger="model") if len(rows) >= FEWEST_JUDGED else None


def _stopped_by(model: DurationModel, moment: datetime) -> DurationModel | None:
    """Return the model if it had stopped learning by then, else its backtest, which stopped earlier, if it has one."""
    return model if model.trained_until <= moment else model.as_judged() or model


def _figures(contest: Contest) -> str:
    """Say a contest's figures in words: the log error and rank correlation of each."""
    scores = contest.scores
    names = [contest.challenger, *contest.against]
    errors = ", ".join(f"{_called(name)} {scores[name].median_abs_log_error:.2f}" for name in names)
    ranks = ", ".join(f"{_called(name)} {_written(scores[name].spearman)}" for name in names)
    return f"on {contest.jobs:,} jobs, log error {errors}; rank correlation {ranks}"


def _called(name: str) -> str:
    return {"model": "new", "user_last": "user's last"}.get(name, name)


def _written(rank: float | None) -> str:
    return "-" if rank is None else f"{rank:.2f}"
