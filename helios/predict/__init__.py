"""Expectation: how long jobs will run, from what was known when they were submitted."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from helios.predict.duration import DurationModel, HistoryPredictor, train
    from helios.predict.evaluation import Evaluation, Figures, evaluate
    from helios.predict.features import FeatureMatrix, JobTable, causal_features
    from helios.predict.live import LivePredictor
    from helios.predict.online import OnlinePredictor
    from helios.predict.registry import from_record, to_record

__all__ = [
    "DurationModel",
    "Evaluation",
    "FeatureMatrix",
    "Figures",
    "HistoryPredictor",
    "JobTable",
    "LivePredictor",
    "OnlinePredictor",
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
    "FeatureMatrix": "features",
    "Figures": "evaluation",
    "HistoryPredictor": "duration",
    "JobTable": "features",
    "LivePredictor": "live",
    "OnlinePredictor": "online",
    "causal_features": "features",
    "evaluate": "evaluation",
    "from_record": "registry",
    "to_record": "registry",
    "train": "duration",
}


def __getattr__(name: str) -> Any:
    if name not in _FROM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_FROM[name]}"), name)
