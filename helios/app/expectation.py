"""What a model makes of the past: train, keep, judge."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from helios.app.history import History
from helios.model import ModelRecord
from helios.ports import Progress, in_silence
from helios.warehouse import Warehouse

if TYPE_CHECKING:
    from helios.predict import Evaluation


def learn(
    history: History,
    *,
    url: str,
    until: datetime | None,
    seed: int,
    made_at: datetime,
    progress: Progress = in_silence,
) -> ModelRecord:
    """Train a duration model on what had ended before ``until`` and keep it in the warehouse.

    Raises
    ------
    NotEnoughHistory
        Too few jobs had ended; nothing was written.
    """
    from helios.predict import to_record, train  # noqa: PLC0415 - numba and LightGBM; the daemon learns in one chore

    model = train(
        history.jobs,
        cluster=history.cluster,
        until=until,
        seed=seed,
        timezone=history.timezone,
        progress=progress,
    )
    record = to_record(model, trained_at=made_at)
    with Warehouse.open(url) as warehouse:
        warehouse.add_model(record)
    return record


def judge(
    history: History,
    *,
    train_until: datetime | None,
    test_fraction: float,
    gpu_only: bool = False,
    seed: int = 0,
    progress: Progress = in_silence,
) -> Evaluation:
    """Train on the earlier part of a history and judge on the later, beside the naive controls.

    Parameters
    ----------
    train_until : datetime, optional
        The split; where None, the last ``test_fraction`` by submission order is the test.

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
        seed=seed,
        timezone=history.timezone,
        progress=progress,
    )
