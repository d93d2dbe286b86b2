"""What a model makes of the past: train, keep, judge."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from helios.app.history import History
from helios.model import ModelRecord
from helios.ports import Progress, in_silence
from helios.warehouse import Warehouse

if TYPE_CHECKING:
    from helios.predict import Evaluation
    from helios.predict.learner import Learner


def learn(
    history: History,
    *,
    url: str,
    until: datetime | None,
    seed: int,
    made_at: datetime,
    dask: str = "",
    progress: Progress = in_silence,
) -> ModelRecord:
    """Train a duration model on what had ended before ``until`` and keep it in the warehouse, in charge of nothing.

    Parameters
    ----------
    dask : str
        Address of the Dask scheduler on whose workers the trees are grown; empty: here.

    Raises
    ------
    NotEnoughHistory
        Too few jobs had ended; nothing was written.
    DaskUnavailable, DaskMismatch, TrainingBroken
        The training did not come to its end on the workers of ``dask``; nothing was written.
    """
    from helios.app.study import study  # noqa: PLC0415 - numba and LightGBM; the daemon learns in one chore

    studied = study(history, progress=progress)
    model = studied.train(until=until, seed=seed, progress=progress, learner=learner_at(dask))
    record = studied.record(model, seed=seed, made_at=made_at)
    with Warehouse.open(url) as warehouse:
        warehouse.add_model(record)
    return record


def learner_at(dask: str) -> Learner:
    """Return what grows trees on the workers of the Dask scheduler at ``dask``, or here where that is empty."""
    from helios.predict.dask_learner import DaskLearner  # noqa: PLC0415 - as above
    from helios.predict.learner import learn_here  # noqa: PLC0415 - as above

    return DaskLearner(address=dask) if dask else learn_here


def judge(
    history: History,
    *,
    train_until: datetime | None,
    test_fraction: float,
    gpu_only: bool = False,
    refit_every: timedelta | None = None,
    seed: int = 0,
    progress: Progress = in_silence,
) -> Evaluation:
    """Train on the earlier part of a history and judge on the later, beside the naive controls.

    Parameters
    ----------
    train_until : datetime, optional
        The split; where None, the last ``test_fraction`` by submission order is the test.
    refit_every : timedelta, optional
        How often the trees are grown anew during the test; None: never.

    Raises
    ------
    NotEnoughHistory
        Either part is too short.
    """
    from helios.predict import evaluate  # noqa: PLC0415 - as above

    return evaluate(
        history.jobs,
        cluster=history.cluster,
        train_until=train_until,
        test_fraction=None if train_until else test_fraction,
        gpu_only=gpu_only,
        refit_every=refit_every,
        seed=seed,
        timezone=history.timezone,
        progress=progress,
    )
