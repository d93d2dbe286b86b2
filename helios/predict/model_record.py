"""Storage of a trained model as text.

The text is JSON with LightGBM's own text inside. Nothing in it can be executed.

It has the trees, a manifest of what they were trained on, and a digest that is checked on reading. It does not have the
current time, so that the same jobs, seed and versions give the same text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.errors import ModelUnreadable
from helios.model import ModelRecord
from helios.predict.distribution import PAIR_FEATURES
from helios.predict.drift import Inputs, training_inputs
from helios.predict.duration import MOST_JOBS, MOST_PAIRS, TAIL_POINTS, DurationModel, Trees
from helios.predict.job_table import TRAINING_COLUMNS, JobTable
from helios.predict.timeline import Calibration, empty_calibration
from helios.predict.trees import read_trees

FORMAT = "helios-duration-3"
OLDER_FORMATS = ("helios-duration-1", "helios-duration-2")
"""Formats that are refused by name, because their models have no distribution, only quantiles."""
MOST_BYTES = 64 * 1024 * 1024
"""Longest text of a model that is read. Those of Helios have about 3 MiB."""
TRAINED_ON = ("job_id", "restart", *TRAINING_COLUMNS)
"""Columns of ``JOBS`` that training reads, and those that identify a job. Training needs no others."""


def describe_provenance(
    model: DurationModel, jobs: pd.DataFrame, *, table: JobTable, features: NDArray[np.float32], seed: int
) -> dict[str, Any]:
    """Return what ``model`` was trained on and how, as plain values.

    They are the first and last submission, the SHA-256 of the jobs, the seed, the parameters, and the distributions of
    the features (:mod:`helios.predict.evaluation`).

    Parameters
    ----------
    jobs : DataFrame
        Jobs with the columns ``TRAINED_ON``, in submission order: those it was trained on and later ones.
    table, features
        The same jobs as a table, and their features.
    """
    from helios.predict.duration import PARAMETERS, ROUNDS  # noqa: PLC0415 - LightGBM, which reading a model does not need

    rows = rows_learned_from(table, model.trained_until)
    submitted = jobs["submitted_at"].iloc[rows]
    return {
        "first_submission": submitted.min().to_pydatetime().isoformat(),
        "last_submission": submitted.max().to_pydatetime().isoformat(),
        "digest": digest_jobs(jobs.iloc[rows]),
        "seed": seed,
        "parameters": PARAMETERS | {"rounds": ROUNDS, "most_jobs": MOST_JOBS, "most_pairs": MOST_PAIRS},
        "inputs": training_inputs(features, table, rows).to_json(),
    }


def rows_learned_from(table: JobTable, until: datetime) -> NDArray[np.int64]:
    """Return the jobs that a model learned from, in submission order."""
    return np.flatnonzero((table.ended_s < int(np.ceil(until.timestamp()))) & np.isfinite(table.run_time_s))


def digest_jobs(jobs: pd.DataFrame) -> str:
    """Return the SHA-256 of the columns of ``jobs`` that training reads.

    It does not depend on the order of the jobs.
    """
    # The text of categories is hashed, not their codes, which depend on what else was loaded.
    row_hashes = pd.util.hash_pandas_object(jobs[list(TRAINED_ON)], index=False, categorize=True).to_numpy()
    return hashlib.sha256(np.sort(row_hashes).astype("<u8").tobytes()).hexdigest()


def to_record(
    model: DurationModel,
    *,
    trained_at: datetime,
    scores: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> ModelRecord:
    """Return ``model`` as a record for the warehouse.

    Parameters
    ----------
    trained_at : datetime
        The current time, aware. It is not part of the model's text.
    scores : mapping, optional
        Scores of its evaluation as plain values.
    provenance : mapping, optional
        Result of :func:`describe_provenance`; None to leave it out of the manifest.
    """
    manifest = _manifest(model, scores=scores or {}) | dict(provenance or {})
    artifact = {
        "format": FORMAT,
        "manifest": manifest,
        "trees": _stored(model.trees),
        "backtest": None if model.backtest is None else _stored(model.backtest),
        "levels": None if model.calibration is None else stored_arrays(model.calibration.by_name()),
    }
    return ModelRecord(
        model_id=model.model_id,
        cluster=model.cluster,
        trained_at=trained_at,
        trained_until=model.trained_until,
        jobs=model.jobs,
        features=PAIR_FEATURES,
        scores=manifest["scores"],
        manifest=manifest,
        artifact=_canonical(artifact | {"sha256": _sha256(artifact)}),
    )


def from_record(record: ModelRecord) -> DurationModel:
    """Return the model of a record.

    Everything is checked, because a digest does not protect against somebody who can write to the database.

    Raises
    ------
    ModelUnreadable
        The text is damaged or inconsistent, or the model was trained on features that this version does not compute.
    """
    try:
        artifact = _parse_artifact(record.artifact)
        manifest = artifact["manifest"]
        if manifest["cluster"] != record.cluster:
            raise ValueError("it was trained for another cluster")
        return DurationModel(
            cluster=record.cluster,
            trees=_parse_trees(artifact["trees"]),
            trained=_parse_bool(manifest["trained"]),
            calibration=_parse_calibration(artifact["levels"]),
            backtest=None if artifact["backtest"] is None else _parse_trees(artifact["backtest"]),
        )
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError) as reason:
        raise ModelUnreadable(
            f"Model {record.model_id} cannot be read: {reason}",
            hint="Train a new one: helios model train --promote. Or go back to the one before: "
            "helios model promote --previous.",
        ) from reason


def inputs_in(manifest: Mapping[str, Any]) -> Inputs | None:
    """Return the distributions of the training features in a manifest, or None.

    Raises
    ------
    ModelUnreadable
        They are damaged.
    """
    inputs = manifest.get("inputs")
    try:
        return Inputs.from_json(inputs) if inputs else None
    except (KeyError, TypeError, ValueError, AttributeError) as reason:
        raise ModelUnreadable(
            f"What a model says of its training cannot be read: {reason!r}",
            hint="Train a new model: helios model train.",
        ) from reason


def stored_arrays(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Return arrays of floats or integers as plain values, without loss."""
    return {
        name: {
            "dtype": array.dtype.str,
            "shape": list(array.shape),
            "values": [_plain(value) for value in array.ravel()],
        }
        for name, array in arrays.items()
    }


def arrays_in(stored: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Return the arrays of which ``stored`` is the result of ``stored_arrays``.

    Raises
    ------
    KeyError, TypeError, ValueError
        The values are not from :func:`stored_arrays`.
    """
    return {
        name: np.array(
            [float(value) if isinstance(value, str) else value for value in array["values"]], dtype=array["dtype"]
        ).reshape(array["shape"])
        for name, array in stored.items()
    }


def _plain(value: Any) -> int | float | str:
    # JSON has no infinity and no NaN.
    plain: int | float = value.item()
    return plain if np.isfinite(plain) else str(plain)


def _manifest(model: DurationModel, *, scores: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "cluster": model.cluster,
        "trained_until": model.trained_until.isoformat(),
        "jobs": model.jobs,
        "features": list(PAIR_FEATURES),
        "trained": model.trained,
        "backtest": None
        if model.backtest is None
        else {"until": model.backtest.until.isoformat(), "jobs": model.backtest.jobs},
        "versions": {"helios": version("helios-slurm"), "lightgbm": version("lightgbm")},
        "scores": dict(scores),
    }


def _parse_artifact(text: str) -> dict[str, Any]:
    if len(text) > MOST_BYTES:
        raise ValueError(f"a text of {len(text):,} bytes is larger than any model ({MOST_BYTES:,})")
    artifact: dict[str, Any] = json.loads(text)
    text_format = artifact["format"]
    if text_format in OLDER_FORMATS:
        raise ValueError(f"it was trained by an older Helios ({text_format}), which predicted another way")
    if text_format != FORMAT:
        raise ValueError(f"its format {text_format!r} is not {FORMAT}, the one that this version of Helios reads")
    expected = artifact.pop("sha256")
    if _sha256(artifact) != expected:
        raise ValueError("its text is not the one that was written (the SHA-256 differs)")
    if tuple(artifact["manifest"]["features"]) != PAIR_FEATURES:
        raise ValueError("it was trained by another version of Helios, on other features")
    return artifact


def _stored(trees: Trees) -> dict[str, Any]:
    return {
        "until": trees.until.isoformat(),
        "jobs": trees.jobs,
        "text": trees.text,
        "tail": stored_arrays({"tail": trees.tail}),
    }


def _parse_trees(stored: Mapping[str, Any]) -> Trees:
    text, tail = stored["text"], arrays_in(stored["tail"])["tail"]
    read_trees(text, features=PAIR_FEATURES)
    if tail.dtype != np.float64 or tail.ndim != 2 or len(tail) != 2 or not 1 <= tail.shape[1] <= TAIL_POINTS:
        raise ValueError("its tail of long runs is of another kind than this version of Helios learns")
    falls = (np.diff(tail[1]) <= 0).all()
    if not (np.isfinite(tail).all() and (np.diff(tail[0]) >= 0).all() and falls and (tail[1] >= 0).all()):
        raise ValueError("its tail of long runs does not fall")
    return Trees(until=_parse_time(stored["until"]), jobs=_parse_count(stored["jobs"]), text=text, tail=tail)


def _parse_calibration(stored: Mapping[str, Any] | None) -> Calibration | None:
    if stored is None:
        return None
    for name, array in empty_calibration().by_name().items():
        if (stored[name]["dtype"], stored[name]["shape"]) != (array.dtype.str, list(array.shape)):
            raise ValueError("its calibration is of another kind than this version of Helios learns")
    calibration = Calibration(**arrays_in(stored))
    if not all(np.isfinite(array).all() for array in calibration):
        raise ValueError("its calibration is not finite")
    return calibration


def _parse_time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"{text} has no time zone")
    return time


def _parse_count(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise ValueError(f"{number!r:.40} is no number of jobs")
    return number


def _parse_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r:.40} is neither true nor false")
    return value


def _sha256(artifact: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(artifact).encode()).hexdigest()


def _canonical(artifact: Mapping[str, Any]) -> str:
    return json.dumps(artifact, sort_keys=True, separators=(",", ":"), allow_nan=False)
