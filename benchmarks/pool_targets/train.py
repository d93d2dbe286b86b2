"""Small trainings of six kinds, each with a metric that gets better slowly: ``train.py KIND --steps N``.

Digits and breast cancer are data that scikit-learn ships; text is the source of Python's own standard library. What is
computed at a step depends on the seed and the step alone, so that every run needs as many steps to a value.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import helios_task
import torch
from sklearn.datasets import load_breast_cancer, load_digits  # type: ignore[import-untyped]  # it ships no types
from torch import Tensor, nn
from torch.nn import functional

CHARACTERS = 128
"""Other characters than ASCII are left out."""
CONTEXT = 48
"""Characters that a model of text sees."""
SOURCES = ("argparse", "ast", "bdb", "cgitb", "cmd", "codecs")
"""Modules of the standard library; not every version of Python has all."""


@dataclass(frozen=True)
class Training:
    """A model, what a step minimises, and what is reported after every so many steps."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[], Tensor]
    value: Callable[[], float]
    every: int


def digits(size: int = 8) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return images and labels, those for validation last."""
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    images = functional.interpolate(images, size=(size, size), mode="bilinear")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], torch.tensor(labels)[order]
    return images[:1_300], labels[:1_300], images[1_300:], labels[1_300:]


def classifier(model: nn.Module, optimizer: torch.optim.Optimizer, size: int, batch: int, every: int) -> Training:
    """Return the training of a classifier of digits, of which a fifth have a random label."""
    images, labels, test_images, test_labels = digits(size)
    noisy = torch.rand(len(labels), generator=torch.Generator().manual_seed(1)) < 0.2
    labels = torch.where(noisy, torch.randint(10, labels.shape, generator=torch.Generator().manual_seed(2)), labels)

    def loss() -> Tensor:
        chosen = torch.randint(len(images), (batch,))
        return functional.cross_entropy(model(images[chosen] + 0.3 * torch.randn(batch, 1, size, size)), labels[chosen])

    def value() -> float:
        return float((model(test_images).argmax(1) == test_labels).float().mean())

    return Training(model, optimizer, loss, value, every)


def mlp() -> Training:
    """Return the training of a perceptron on digits, by accuracy."""
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )
    return classifier(model, torch.optim.SGD(model.parameters(), lr=2e-3), 8, 32, 300)


def cnn() -> Training:
    """Return the training of convolutions on digits of 16 x 16 pixels, by accuracy."""
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(1_152, 10)
    )
    return classifier(model, torch.optim.SGD(model.parameters(), lr=4e-4, momentum=0.5), 16, 32, 150)


def logistic() -> Training:
    """Return a logistic regression on breast cancer, whose columns are badly scaled, by loss."""
    rows, labels = load_breast_cancer(return_X_y=True)
    x = torch.tensor(rows, dtype=torch.float32)
    x = (x - x[:400].mean(0)) / x[:400].std(0) * torch.logspace(0, -1.5, x.shape[1])
    y = torch.tensor(labels, dtype=torch.float32)
    model = nn.Linear(x.shape[1], 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=3e-4)

    def loss() -> Tensor:
        chosen = torch.randint(400, (8,))
        return functional.binary_cross_entropy_with_logits(model(x[chosen])[:, 0], y[chosen])

    def value() -> float:
        return float(functional.binary_cross_entropy_with_logits(model(x[400:])[:, 0], y[400:]))

    return Training(model, optimizer, loss, value, 4_000)


def autoencoder() -> Training:
    """Return the training of an autoencoder of digits, by the error of a pixel."""
    images, _, tests, _ = digits()
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 6), nn.Linear(6, 256), nn.Tanh(), nn.Linear(256, 64)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def loss() -> Tensor:
        batch = images[torch.randint(len(images), (64,))]
        return functional.mse_loss(model(batch), batch.flatten(1))

    def value() -> float:
        return float(functional.mse_loss(model(tests), tests.flatten(1)).sqrt())

    return Training(model, optimizer, loss, value, 300)


class Gru(nn.Module):  # type: ignore[misc]  # because torch is not followed
    """Says the next character after each."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Embedding(CHARACTERS, 48)
        self.gru = nn.GRU(48, 96, batch_first=True)
        self.outside = nn.Linear(96, CHARACTERS)

    def forward(self, text: Tensor) -> Tensor:
        """Return a number for each next character."""
        return self.outside(self.gru(self.inside(text))[0])


class Transformer(nn.Module):  # type: ignore[misc]  # as above
    """Says the next character after each, by attention."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.place = nn.Embedding(CHARACTERS, 64), nn.Parameter(0.02 * torch.randn(CONTEXT, 64))
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        self.outside = nn.Linear(64, CHARACTERS)

    def forward(self, text: Tensor) -> Tensor:
        """Return a number for each next character."""
        hidden = self.layers(self.inside(text) + self.place, mask=self.mask, is_causal=True)
        return self.outside(hidden)


def text_model(model: nn.Module, lr: float, batch: int, every: int) -> Training:
    """Return the training of a model of text: bits that a character needs."""
    files = (Path(json.__file__).parent.parent / f"{name}.py" for name in SOURCES)
    text = "".join(file.read_text() for file in files if file.exists())
    letters = torch.tensor([ord(letter) for letter in text if ord(letter) < CHARACTERS])
    split = len(letters) * 9 // 10
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    places = torch.arange(CONTEXT + 1)
    tests = letters[torch.arange(split, len(letters) - CONTEXT - 1, 211)[:, None] + places]

    def error(rows: Tensor) -> Tensor:
        return functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    def loss() -> Tensor:
        return error(letters[torch.randint(split - CONTEXT - 1, (batch, 1)) + places])

    return Training(model, optimizer, loss, lambda: float(error(tests)) / math.log(2), every)


KINDS: dict[str, tuple[str, Callable[[], Training]]] = {
    "logistic": ("val_loss", logistic),
    "mlp": ("val_acc", mlp),
    "autoencoder": ("val_rmse", autoencoder),
    "cnn": ("val_acc", cnn),
    "gru": ("val_bits", lambda: text_model(Gru(), 5e-4, 16, 40)),
    "transformer": ("val_bits", lambda: text_model(Transformer(), 5e-4, 16, 40)),
}
"""Name of the metric, and what makes the training."""


def main() -> None:
    """Train, report, and save a checkpoint when it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--steps", type=int, required=True)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    metric, make = KINDS[asked.kind]
    training = make()
    step = 0
    if (latest := helios_task.latest_checkpoint()) is not None:
        saved = torch.load(latest)
        training.model.load_state_dict(saved["model"])
        training.optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    while step < asked.steps:
        torch.manual_seed(step)
        for _ in range(training.every):
            training.optimizer.zero_grad()
            training.loss().backward()
            training.optimizer.step()
        step += training.every
        training.model.eval()
        with torch.no_grad():
            value = training.value()
        training.model.train()
        values: dict[str, Any] = {metric: value, "cpu_s": time.process_time()}
        helios_task.report(step=step, progress=min(1.0, step / asked.steps), **values)
        if (request := helios_task.requested()) is not None:
            with helios_task.save_checkpoint("training.pt", step=step) as path:
                state = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
                torch.save({**state, "step": step}, path)
            if request != "checkpoint":
                return


if __name__ == "__main__":
    main()
