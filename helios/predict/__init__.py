"""Expectation: how long jobs will run, from what was known when they were submitted."""

from helios.predict.duration import DurationModel, HistoryPredictor, train
from helios.predict.evaluate import Evaluation, Figures, evaluate
from helios.predict.features import FeatureMatrix, JobTable, causal_features
from helios.predict.online import OnlinePredictor
from helios.predict.registry import from_record, to_record

__all__ = [
    "DurationModel",
    "Evaluation",
    "FeatureMatrix",
    "Figures",
    "HistoryPredictor",
    "JobTable",
    "OnlinePredictor",
    "causal_features",
    "evaluate",
    "from_record",
    "to_record",
    "train",
]
