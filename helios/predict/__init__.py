"""Expectation: how long jobs will run, from what was known when they were submitted."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from helios.predict.duration import DurationModel, HistoryPredictor, train
    from helios.predict.evaluation import Evaluation, Scores, evaluate
    from helios.predict.job_table import FeatureMatrix, JobTable, causal_features
    from helios.predict.live_predictor import LivePredictor
    from helios.predict.model_record import from_record, to_record
    from helios.predict.replay_predictor import ReplayTrainedPredictor

__all__ = [
    "DurationModel",
    "Evaluation",
    "FeatureMatrix",
    "HistoryPredictor",
    "JobTable",
    "LivePredictor",
    "ReplayTrainedPredictor",
    "Scores",
    "causal_features",
    "evaluate",
    "from_record",
    "to_record",
    "train",
]

# What a name is imported from when it is first asked for: numba and LightGBM take half a second, and most of what knows
# this room (a pause, a report, the hook's table) predicts nothing.
_FROM = {
    "DurationModel": "duration",
    "Evaluation": "evaluation",
    "FeatureMatrix": "job_table",
    "Scores": "evaluation",
    "HistoryPredictor": "duration",
    "JobTable": "job_table",
    "LivePredictor": "live_predictor",
    "ReplayTrainedPredictor": "replay_predictor",
    "causal_features": "job_table",
    "evaluate": "evaluation",
    "from_record": "model_record",
    "to_record": "model_record",
    "train": "duration",
}


def __getattr__(name: str) -> Any:
    if name not in _FROM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_FROM[name]}"), name)
