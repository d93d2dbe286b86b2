"""A trained model as text, and back: JSON with LightGBM's own text inside, nothing that executes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from helios.errors import ModelUnreadable
from helios.model import ModelRecord
from helios.predict.duration import DurationModel
from helios.predict.history import FEATURES

FORMAT = "helios-duration-1"


def to_record(model: DurationModel, *, trained_at: datetime, scores: Mapping[str, Any] | None = None) -> ModelRecord:
    """Return ``model`` as a record that the warehouse can keep.

    Parameters
    ----------
    trained_at : datetime
        Now, aware; this room has no clock.
    scores : mapping, optional
        Figures of its evaluation.
    """
    artifact = {
        "format": FORMAT,
        "cluster": model.cluster,
        "trained_until": model.trained_until.isoformat(),
        "jobs": model.jobs,
        "features": model.features,
        "texts": model.texts,
    }
    return ModelRecord(
        model_id=model.model_id,
        cluster=model.cluster,
        trained_at=trained_at,
        trained_until=model.trained_until,
        jobs=model.jobs,
        features=model.features,
        scores=dict(scores or {}),
        artifact=json.dumps(artifact),
    )


def from_record(record: ModelRecord) -> DurationModel:
    """Return the model that ``record`` holds.

    Raises
    ------
    ModelUnreadable
        The text is damaged, or the model was trained on features that this version does not compute.
    """
    try:
        artifact = json.loads(record.artifact)
        if artifact["format"] != FORMAT or tuple(artifact["features"]) != FEATURES:
            raise ValueError("it was trained by another version of Helios, on other features")
        return DurationModel(
            cluster=artifact["cluster"],
            trained_until=datetime.fromisoformat(artifact["trained_until"]),
            jobs=artifact["jobs"],
            features=FEATURES,
            texts=tuple(artifact["texts"]),
        )
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as reason:
        raise ModelUnreadable(
            f"Model {record.model_id} cannot be read: {reason}", remedy="Train it anew: helios model train."
        ) from reason
