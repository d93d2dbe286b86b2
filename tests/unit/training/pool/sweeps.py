"""Texts of sweep files, and how tests read them."""

from __future__ import annotations

from collections.abc import Callable

from helios.training.pool.search import NextTrial, Search
from helios.training.pool.sweep import TrainingSweep

COMMAND = 'command = "python train.py --lr {lr} --width {width}"\n'
GRID = COMMAND + "[parameters]\nlr = [0.1, 0.01]\nwidth = [32, 64, 128]\n"
SEARCH = """\
command = "python train.py --lr {lr} --width {width}"
[parameters]
lr = { low = 1e-4, high = 1e-1, log = true }
width = [32, 64, 128]
[search]
trials = 12
metric = "accuracy"
seed = 1
"""
CONDITIONAL = """\
command = "python train.py --optimizer {optimizer} --momentum {momentum} --lr {lr}"
[parameters]
optimizer = ["adam", "sgd"]
momentum = { values = [0.9, 0.99], when = { optimizer = "sgd" } }
lr = { low = 0.1, high = 1.0 }
[search]
trials = 12
metric = "accuracy"
seed = 1
"""
Reader = Callable[[str], TrainingSweep]


def ask_all(search: Search) -> list[NextTrial]:
    return list(iter(search.ask, None))
