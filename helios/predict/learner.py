"""Growing the trees: one ensemble for each quantile, here or on other machines.

The seam is narrow on purpose: what is to be learned goes in as arrays, LightGBM's own text comes out, so that a model
is the same kind of thing wherever it was grown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any, Protocol

import lightgbm
import numpy as np
from numpy.typing import NDArray

from helios.ports import Progress, in_silence

ROUNDS = 250
PARAMETERS = {
    "objective": "quantile",
    "num_leaves": 31,  # against 15: docs/predictions.md
    "learning_rate": 0.08,
    "min_data_in_leaf": 40,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "lambda_l2": 1.0,
    # Half as many bins as before, and every feature in every tree (before: 70 %): the loss on KTH and SDSC-BLUE is the
    # same or lower, and Dask's workers exchange half as much. What else was tried is in docs/scale.md.
    "max_bin": 63,
    # The three quantiles learn side by side, one thread each: same trees on every machine, and no
    # OpenMP barrier to wait at when the machine is busy with something else.
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "verbose": -1,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lesson:
    """What trees are to learn.

    Attributes
    ----------
    features : float32 array of shape (n_jobs, n_features)
        NaN: unknown.
    residual : float64 array of shape (n_jobs,)
        log1p of the run time in s, less the shrinkage anchor.
    weight : float64 array of shape (n_jobs,), optional
        None: all alike, which takes a third of the time.
    names : tuple of str
        Of the columns of ``features``.
    """

    features: NDArray[np.float32]
    residual: NDArray[np.float64]
    names: tuple[str, ...]
    weight: NDArray[np.float64] | None = None


class Learner(Protocol):
    """Grows trees."""

    def __call__(
        self, lesson: Lesson, *, quantiles: Sequence[float], seed: int, progress: Progress = in_silence
    ) -> tuple[str, ...]:
        """Return LightGBM's text of one ensemble for each of ``quantiles``."""
        ...


def learn_here(
    lesson: Lesson, *, quantiles: Sequence[float], seed: int, progress: Progress = in_silence
) -> tuple[str, ...]:
    """Be a :class:`Learner` on this machine, one thread for each quantile; the same seed gives the same trees."""
    learn = _learner(lesson, len(quantiles), seed, progress)
    with ThreadPoolExecutor(len(quantiles)) as side_by_side:
        return tuple(side_by_side.map(learn, quantiles))


def _learner(lesson: Lesson, n_ensembles: int, seed: int, progress: Progress) -> Callable[[float], str]:
    binned = lightgbm.Dataset(
        lesson.features,
        lesson.residual,
        weight=lesson.weight,
        feature_name=list(lesson.names),
        params=PARAMETERS,
        free_raw_data=True,
    ).construct()
    rounds_done, lock = 0, Lock()

    def tell(_: Any) -> None:
        nonlocal rounds_done
        with lock:
            rounds_done += 1
            progress("Learning run times", rounds_done / (ROUNDS * n_ensembles))

    def learn(quantile: float) -> str:
        parameters = PARAMETERS | {"alpha": quantile, "seed": seed}
        booster = lightgbm.train(parameters, binned, ROUNDS, callbacks=[tell])
        return str(booster.model_to_string())

    return learn
