"""How many models fit in memory."""

from __future__ import annotations

import pytest
from torch.nn import functional

from helios.training.fused import models_that_fit, peak_bytes
from helios.training.fused.stack import OutOfMemory
from tests.unit.training.fused.alone import BATCH, DATA, small_mlp


def test_as_many_models_fit_as_can_be_run() -> None:
    options = {"batch_size": BATCH, "way": "vmap"}
    arguments = (small_mlp, functional.cross_entropy, DATA, {"lr": 0.1})
    memory = peak_bytes(6, *arguments, **options)
    count = models_that_fit(memory, *arguments, **options)
    assert 5 <= count <= 6
    assert peak_bytes(count, *arguments, **options) <= memory


def test_no_model_in_too_little_memory() -> None:
    with pytest.raises(OutOfMemory):
        models_that_fit(100, small_mlp, functional.cross_entropy, DATA, {"lr": 0.1}, batch_size=BATCH)
