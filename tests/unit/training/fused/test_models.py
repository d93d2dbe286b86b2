"""Models that cannot be fused, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from tests.unit.training.fused.alone import CLASSES, DTYPE, THREE, a_trainer, assert_as_alone


class Counting(nn.Module):
    def forward(self, values: Any) -> Any:
        return values * values.mean().item()


class Deciding(nn.Module):
    def forward(self, values: Any) -> Any:
        return values if values.sum() > 0 else -values


def spectral() -> nn.Module:
    return spectral_norm(nn.Linear(6, 6)).to(DTYPE)


class Replacing(nn.Module):
    """It makes a new tensor its buffer, which is lost in a fused step."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6, dtype=DTYPE))

    def forward(self, values: Any) -> Any:
        self.mean = 0.9 * self.mean + 0.1 * values.detach().mean(0)
        return values - self.mean


class Calls(nn.Module):
    """It counts in Python, which is done once for all models of a fused step."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, values: Any) -> Any:
        self.calls += 1
        return values * (1 + 1 / self.calls)


class TestObstacles:
    @pytest.mark.parametrize(
        ("module", "named", "reason"),
        [
            (Counting, "0 (Counting)", "reads a number out of a tensor"),
            (Deciding, "0 (Deciding)", "control flow"),
            (Replacing, "0.mean", "another way than alone"),
            (Calls, "0.calls", "is no tensor"),
            (spectral, "0.parametrizations.weight.0 (_SpectralNorm)", "Batching rule"),
        ],
    )
    def test_it_is_named_and_the_models_are_trained_one_by_one(
        self, module: Callable[[], nn.Module], named: str, reason: str
    ) -> None:
        def build(configuration: Mapping[str, Any]) -> nn.Module:
            return nn.Sequential(module(), nn.Linear(6, 3).to(DTYPE))

        trainer = a_trainer(THREE, build=build, way="auto")
        (obstacle,) = trainer.obstacles
        assert obstacle.module == named
        assert reason in obstacle.reason
        trainer.train(steps=50)
        assert_as_alone(trainer, 1, THREE[1], build=build)

    def test_a_sparse_embedding_is_found(self) -> None:
        def build(configuration: Mapping[str, Any]) -> nn.Module:
            return nn.Sequential(nn.Embedding(9, 3, sparse=True), nn.Flatten()).to(DTYPE)

        trainer = a_trainer([{"lr": 0.1}], build=build, data=(torch.arange(64).remainder(9)[:, None], CLASSES))
        assert [str(each) for each in trainer.obstacles] == ["0 (Embedding): its gradients are sparse (sparse=True)"]
        trainer.train(steps=2)

    def test_what_cannot_be_recorded_is_not_traced(self) -> None:
        class Alternating(nn.Module):
            calls = 0

            def forward(self, values: Any) -> Any:
                Alternating.calls += 1
                return values * (Alternating.calls % 2 + 1)

        def build(configuration: Mapping[str, Any]) -> nn.Module:
            return nn.Sequential(Alternating(), nn.Linear(6, 3).to(DTYPE))

        trainer = a_trainer(THREE, build=build, way="auto")
        assert trainer.way != "traced"
