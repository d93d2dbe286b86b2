"""Why a prediction is what it is: the shrinkage's steps, what the trees changed, and the past jobs most like it.

Both parts work on the logarithm of run time, so each of their steps is a factor, and the factors multiply to the
prediction. The trees' part is LightGBM's own (TreeSHAP; Lundberg et al. 2020, doi 10.1038/s42256-019-0138-9).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.predict.basis import BASES, basis_of
from helios.predict.calibration import calibrated_alone, nothing_learned
from helios.predict.duration import LEVEL, Z90, DurationModel, HistoryPredictor
from helios.predict.features import JobTable, events_of
from helios.predict.forest import grow
from helios.predict.history import (
    FEATURES,
    IN_CHAIN,
    LEVELS,
    NEIGHBOURS,
    PRIOR_LOG_RUN,
    PSEUDO_JOBS,
    USER,
    Events,
    History,
    nothing_known,
    walk,
)
from helios.predict.model_text import trees_alone
from helios.predict.resemblance import Precedent, Resemblance, precedent, resembling

PRIOR, NEIGHBOURHOOD = "prior", "neighbours"
"""Steps beside ``LEVELS``: before anything has ended, and the user's last jobs, near ones counting more."""
EVERY_JOB, AFTERWARDS = "every_job", "afterwards"
"""Corrections that no feature makes: what the trees give any job, and what is done to their answer."""

_ANCHOR, _ANCHOR_SD, _NEIGHBOUR_WEIGHT = (FEATURES.index(name) for name in ("anchor", "anchor_sd", "neighbour_weight"))
# Columns of History.sums and History.counts.
_WEIGHT, _SUM, _ENDED = 0, 1, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the shrinkage, from the widest group of jobs to the narrowest.

    Attributes
    ----------
    level : str
        One of ``LEVELS``, ``PRIOR`` for the first or ``NEIGHBOURHOOD`` for the last.
    jobs : int
        Jobs of the group that had ended.
    weight : float
        What they count together, older ones less.
    run_time_s : float
        The run time expected after this step.
    factor : float
        By how much the step changed it; 1 for the first.
    """

    level: str
    jobs: int
    weight: float
    run_time_s: float
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A prediction and everything it is made of.

    (1 + ``steps[0].run_time_s``) times all factors, of ``steps`` and of ``corrections``, is 1 + ``quantiles_s[1]``.

    Attributes
    ----------
    quantiles_s : tuple of float
        p10, p50 and p90 of the run time, s.
    source : str
        Id of what predicted.
    basis : str
        One of ``BASES``: which jobs the prediction rests on.
    steps : tuple of Step
        The shrinkage.
    corrections : dict of str to float
        Factor by feature, of the trees that gave the median; ``EVERY_JOB`` and ``AFTERWARDS`` beside them. Without
        trees only the latter.
    features : dict of str to float
        What was known at submission, by name; NaN: unknown.
    precedent : Precedent, optional
        The last ended jobs of its basis; None: nothing had ended.
    resembling : tuple of Resemblance
        Past jobs most like it, the most alike first.
    """

    quantiles_s: tuple[float, float, float]
    source: str
    basis: str
    steps: tuple[Step, ...]
    corrections: dict[str, float]
    features: dict[str, float]
    precedent: Precedent | None
    resembling: tuple[Resemblance, ...]


def explain_last(
    jobs: pd.DataFrame, *, model: DurationModel | None = None, timezone: str = "UTC", alike: int = 5
) -> Explained:
    """Explain the prediction of the last of ``jobs`` at its submission.

    Parameters
    ----------
    jobs : DataFrame
        Columns of ``JOBS``, in submission order. Of a job before the last only what had ended by then counts.
    model : DurationModel, optional
        None: shrinkage alone.
    alike : int
        How many past jobs to name.

    Raises
    ------
    FrameInvalid
        ``jobs`` is empty or not in submission order.
    """
    table = JobTable.from_frame(jobs, timezone=timezone)
    history, events, row = _known_at_the_end(table)
    predictor = model or HistoryPredictor()
    learned = (model.calibration if model else None) or nothing_learned()
    quantiles = calibrated_alone(row, predictor.predict(row), learned)[0]
    basis = BASES[int(basis_of(row)[0])]
    return Explained(
        quantiles_s=(float(quantiles[0]), float(quantiles[1]), float(quantiles[2])),
        source=predictor.model_id,
        basis=basis,
        steps=_steps(history, events, row[0]),
        corrections=_corrections(model, row, np.log1p(quantiles[1])),
        features={name: float(value) for name, value in zip(FEATURES, row[0], strict=True)},
        precedent=precedent(table, basis),
        resembling=resembling(table, most=alike),
    )


def _known_at_the_end(table: JobTable) -> tuple[History, Events, NDArray[np.float32]]:
    """Return what was learned by the last submission, and that job's features, of shape (1, len(FEATURES))."""
    events = events_of(table)
    history, ends = nothing_known(events), table.ends()
    features = np.empty((table.n, len(FEATURES)), dtype=np.float32)
    # The last job's own arrival is counted too, which touches no mean.
    walk(history, events, np.arange(table.n), ends, table.ended_s[ends], 0, features)
    return history, events, features[-1:]


def _steps(history: History, events: Events, row: NDArray[np.float32]) -> tuple[Step, ...]:
    groups, log_run = events.groups[-1], float(PRIOR_LOG_RUN)
    steps = [Step(level=PRIOR, jobs=0, weight=0.0, run_time_s=float(np.expm1(log_run)), factor=1.0)]
    for level in _chain(groups):
        sums, ended = history.sums[groups[level]], history.counts[groups[level], _ENDED]
        drawn = (sums[_SUM] + PSEUDO_JOBS[level] * log_run) / (sums[_WEIGHT] + PSEUDO_JOBS[level])
        steps.append(_step(LEVELS[level], int(ended), float(sums[_WEIGHT]), log_run, float(drawn)))
        log_run = float(drawn)
    near = history.ring_length[history.ring_of[groups[USER]]] if groups[USER] >= 0 else 0
    weight = float(np.nan_to_num(row[_NEIGHBOUR_WEIGHT]))
    # Ends at the anchor as the predictor knows it, in single precision.
    return (*steps, _step(NEIGHBOURHOOD, int(min(near, NEIGHBOURS)), weight, log_run, float(row[_ANCHOR])))


def _chain(groups: NDArray[np.int32]) -> list[int]:
    """Return the levels that the shrinkage passes through."""
    return [level for level in range(len(LEVELS)) if groups[level] >= 0 and IN_CHAIN[level]]


def _step(level: str, jobs: int, weight: float, before: float, after: float) -> Step:
    return Step(
        level=level,
        jobs=jobs,
        weight=weight,
        run_time_s=float(np.expm1(after)),
        factor=float(np.exp(after - before)),
    )


def _corrections(model: DurationModel | None, row: NDArray[np.float32], log_median: float) -> dict[str, float]:
    """Return the factor of each feature; the last one makes the product exact, whatever is done after the trees."""
    parts = {} if model is None else _contributions(model, row)
    left = float(log_median - float(row[0, _ANCHOR]) - sum(parts.values()))
    return {name: float(np.exp(part)) for name, part in (parts | {AFTERWARDS: left}).items()}


def _contributions(model: DurationModel, row: NDArray[np.float32]) -> dict[str, float]:
    names = (*model.features, EVERY_JOB)
    parts = np.zeros(len(names))
    for ensemble, share in _spoken(model, row).items():
        booster: Any = lightgbm.Booster(model_str=trees_alone(model.texts[ensemble]))
        parts += share * model.trust * booster.predict(row, pred_contrib=True)[0]
        if ensemble == LEVEL:  # it starts from nothing, where the others start from the anchor
            parts[-1] -= share * model.trust * float(row[0, _ANCHOR])
    return {name: float(part) for name, part in zip(names, parts, strict=True)}


def _spoken(model: DurationModel, row: NDArray[np.float32]) -> dict[int, float]:
    """Return which ensembles give the median, and each one's share.

    Quantiles are sorted: where they cross, that of p10 or p90 is in the middle.
    """
    opinions, anchor = grow(model.forest, row)[0], float(row[0, _ANCHOR])
    learned = np.array([opinions[0], (opinions[1] + opinions[LEVEL] - anchor) / 2, opinions[2]])
    untrained = Z90 * float(row[0, _ANCHOR_SD]) * np.array([-1, 0, 1])
    place = int(np.argsort(model.trust * learned + (1 - model.trust) * untrained, kind="stable")[1])
    return {1: 0.5, LEVEL: 0.5} if place == 1 else {place: 1.0}
