"""A small convolutional network on scikit-learn's digits, of which a pool trains many in one process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # because it ships no types
from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]  # as above
from torch import nn

loss = nn.functional.cross_entropy


def build(configuration: Mapping[str, Any]) -> nn.Module:
    """Return a network of the width that is asked for."""
    width = configuration["model"].get("width", 8)
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * width, 10),
    )


def data() -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    """Return three quarters of the images for training, and the rest to judge by."""
    images, digits = load_digits(return_X_y=True)
    split = train_test_split(images / 16.0, digits, test_size=0.25, random_state=0, stratify=digits)
    inputs, test_inputs = (torch.tensor(part, dtype=torch.float32).reshape(-1, 1, 8, 8) for part in split[:2])
    labels, test_labels = (torch.tensor(part) for part in split[2:])
    return (inputs, labels), (test_inputs, test_labels)


def metrics(output: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the share of digits that are read right."""
    return {"accuracy": (output.argmax(dim=1) == target).float().mean()}
