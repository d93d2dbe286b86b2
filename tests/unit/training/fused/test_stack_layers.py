"""Each layer that can be fused: K models in a stack end where each ends alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from tests.unit.training.fused.alone import (
    CLASSES,
    DEVICE,
    DTYPE,
    FUSED,
    a_trainer,
    largest_difference,
    sgd,
    train_alone,
)

IMAGES = torch.randn(64, 2, 6, 6, dtype=DTYPE, generator=torch.Generator().manual_seed(1))
SERIES = torch.randn(64, 4, 6, dtype=DTYPE, generator=torch.Generator().manual_seed(2))
WORDS = torch.randint(9, (64, 4), generator=torch.Generator().manual_seed(3))
CONFIGURATIONS = [{"lr": 0.05 * (1 + k), "momentum": 0.4 * k, "seed": k} for k in range(3)]


class Last(nn.Module):
    """A recurrent layer, and a linear one on its last output."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.layer = kind(6, 5, batch_first=True)
        self.out = nn.Linear(5, 3)

    def forward(self, series: Any) -> Any:
        return self.out(self.layer(series)[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(6, 2, batch_first=True)
        self.out = nn.Linear(6, 3)

    def forward(self, series: Any) -> Any:
        return self.out(self.layer(series, series, series)[0].mean(1))


class Masked(nn.Module):
    """A transformer that sees earlier positions only, of which one is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
        self.out = nn.Linear(6, 3)
        self.register_buffer("later", torch.ones(4, 4, dtype=torch.bool).triu(1))

    def forward(self, series: Any) -> Any:
        padding = torch.zeros_like(series[:, :, 0], dtype=torch.bool)
        padding[:, 1] = series[:, 1, 0] > 0
        hidden = self.layer(series, src_mask=self.later, src_key_padding_mask=padding)
        attended = nn.functional.scaled_dot_product_attention(hidden, series, hidden, is_causal=True)
        return self.out(attended.mean(1))


class Mean(nn.Module):
    def forward(self, series: Any) -> Any:
        return series.mean(1)


class Tied(nn.Module):
    """Two layers with one weight, a parameter that is frozen and one that the loss does not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.second.weight = self.first.weight
        self.frozen = nn.Parameter(torch.rand(6), requires_grad=False)
        self.unused = nn.Parameter(torch.rand(2))

    def forward(self, series: Any) -> Any:
        return self.out(self.second(self.first(series[:, 0]).relu() * self.frozen))


class Counting(nn.Module):
    """A buffer that is read, changed in place and read again."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 3)
        self.register_buffer("count", torch.zeros(6))

    def forward(self, series: Any) -> Any:
        before = series[:, 0] * self.count
        self.count[:2].add_(0.01)
        return self.out(before + series[:, 1] * self.count + series[:, 0] * self.count)


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, groups=4, padding=1),
        nn.GroupNorm(2, 4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


LAYERS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "linear": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(24, 5), nn.PReLU(), nn.Linear(5, 3), nn.SiLU()), SERIES),
    "convolutions, normalisation, pooling": (convolutions, IMAGES),
    "transposed convolution": (
        lambda: nn.Sequential(nn.ConvTranspose2d(2, 3, 2), nn.AvgPool2d(3), nn.Flatten(), nn.Linear(12, 3)),
        IMAGES,
    ),
    "one-dimensional convolution": (
        lambda: nn.Sequential(nn.Conv1d(4, 3, 3), nn.BatchNorm1d(3), nn.GELU(), nn.Flatten(), nn.Linear(12, 3)),
        SERIES,
    ),
    "GRU": (lambda: Last(nn.GRU), SERIES),
    "LSTM": (lambda: Last(nn.LSTM), SERIES),
    "attention": (Attention, SERIES),
    "transformer": (
        lambda: nn.Sequential(
            nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True), nn.LayerNorm(6), Mean(), nn.Linear(6, 3)
        ),
        SERIES,
    ),
    "attention with masks": (Masked, SERIES),
    "embedding with padding": (
        lambda: nn.Sequential(nn.Embedding(9, 6, padding_idx=0), Mean(), nn.Linear(6, 3)),
        WORDS,
    ),
    "bag of embeddings": (lambda: nn.Sequential(nn.EmbeddingBag(9, 6), nn.Linear(6, 3)), WORDS),
    "tied, frozen and unused parameters": (Tied, SERIES),
    "a buffer that changes within a step": (Counting, SERIES),
    "weight norm": (lambda: nn.Sequential(nn.Flatten(), weight_norm(nn.Linear(24, 5)), nn.Linear(5, 3)), SERIES),
    "weight norm of before": (
        lambda: nn.Sequential(nn.Flatten(), nn.utils.weight_norm(nn.Linear(24, 5)), nn.Linear(5, 3)),
        SERIES,
    ),
}


@pytest.mark.parametrize("way", FUSED)
@pytest.mark.parametrize("layer", LAYERS)
def test_fused_models_end_where_each_ends_alone(layer: str, way: str) -> None:
    make, inputs = LAYERS[layer]

    def build(configuration: Mapping[str, Any]) -> nn.Module:
        return make().to(DTYPE)

    trainer = a_trainer(CONFIGURATIONS, build=build, data=(inputs, CLASSES), way=way)
    assert trainer.way == way
    trainer.train(steps=50)
    for number, configuration in enumerate(CONFIGURATIONS):
        alone = train_alone(configuration, sgd(configuration), build=build, data=(inputs, CLASSES))
        assert largest_difference(trainer.model(number).state_dict(), alone) < 1e-5


def test_compiled_models_end_where_each_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == "cpu":  # without its compiler for C++, which takes 20 s
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    make, inputs = LAYERS["convolutions, normalisation, pooling"]

    def build(configuration: Mapping[str, Any]) -> nn.Module:
        return make().to(DTYPE)

    trainer = a_trainer(CONFIGURATIONS, build=build, data=(inputs, CLASSES), way="compiled")
    trainer.train(steps=10)
    assert trainer.way == "compiled"
    for number, configuration in enumerate(CONFIGURATIONS):
        alone = train_alone(configuration, sgd(configuration), build=build, data=(inputs, CLASSES), steps=10)
        assert largest_difference(trainer.model(number).state_dict(), alone) < 1e-5


def test_large_gradients_are_stored_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helios.training.fused.ways.LARGE", 1)
    trainer = a_trainer(CONFIGURATIONS, way="traced")
    trainer.train(steps=10)
    alone = train_alone(CONFIGURATIONS[2], sgd(CONFIGURATIONS[2]), steps=10)
    assert largest_difference(trainer.model(2).state_dict(), alone) < 1e-5
    (step,) = trainer._engine._traced.values()
    assert "out =" in inspect.getsource(inspect.getclosurevars(step).nonlocals["run"])
