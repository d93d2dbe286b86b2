"""The oracle: a model trained alone, by PyTorch's own optimisers and schedules in an ordinary loop.

``HELIOS_TEST_DEVICE=cuda`` runs the tests of fused training on a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from helios.training.fused import FusedTrainer, epoch_order

torch.set_num_threads(1)
torch.backends.cudnn.allow_tf32 = False  # else convolutions on a GPU keep three digits

DEVICE = os.environ.get("HELIOS_TEST_DEVICE", "cpu")
FUSED = ("traced", "vmap", "graph", "streams") if DEVICE == "cuda" else ("traced", "vmap")
WAYS = (*FUSED, "serial")

BATCH = 16
STEPS = 50
DTYPE = torch.float64
_generator = torch.Generator().manual_seed(0)
VECTORS = torch.randn(64, 6, dtype=DTYPE, generator=_generator)
CLASSES = torch.randint(3, (64,), generator=_generator)
DATA = (VECTORS, CLASSES)
THREE = [{"lr": 0.1 * (1 + k), "momentum": 0.4 * k, "seed": k} for k in range(3)]


def small_mlp(configuration: Mapping[str, Any]) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(DTYPE)


def train_alone(
    configuration: Mapping[str, Any],
    make: Callable[[nn.Module], Any],
    *,
    build: Callable[[Mapping[str, Any]], nn.Module] = small_mlp,
    data: Any = DATA,
    per_step: Callable[[Any], Any] | None = None,
    per_epoch: Callable[[Any], Any] | None = None,
    steps: int = STEPS,
) -> dict[str, Any]:
    """Return the model's ``state_dict``; ``make`` gives the optimiser, ``per_step`` and ``per_epoch`` a schedule."""
    torch.manual_seed(configuration.get("seed", 0))
    model = build(configuration).to(DEVICE)
    optimizer = make(model)
    step_schedule = per_step(optimizer) if per_step else None
    epoch_schedule = per_epoch(optimizer) if per_epoch else None
    inputs, target = (tensor.to(DEVICE) for tensor in data)
    per_epoch_steps, total = len(target) // BATCH, 0.0
    for step in range(steps):
        epoch, at = divmod(step, per_epoch_steps)
        order = epoch_order(len(target), configuration.get("data_seed", configuration.get("seed", 0)), epoch)
        samples = order[at * BATCH : (at + 1) * BATCH]
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs[samples]), target[samples])
        loss.backward()
        if "clip_norm" in configuration:
            nn.utils.clip_grad_norm_(model.parameters(), configuration["clip_norm"])
        optimizer.step()
        total += loss.item()
        if step_schedule:
            step_schedule.step()
        if at == per_epoch_steps - 1:
            if epoch_schedule:
                plateau = isinstance(epoch_schedule, torch.optim.lr_scheduler.ReduceLROnPlateau)
                epoch_schedule.step(*([total / per_epoch_steps] if plateau else []))
            total = 0.0
    return model.state_dict()


def sgd(configuration: Mapping[str, Any]) -> Callable[[nn.Module], Any]:
    return lambda model: torch.optim.SGD(
        model.parameters(), lr=configuration["lr"], momentum=configuration.get("momentum", 0.0)
    )


def a_trainer(configurations: list[dict[str, Any]], **options: Any) -> FusedTrainer:
    given = {"batch_size": BATCH, "way": "vmap", "build": small_mlp, "data": DATA, "device": DEVICE, **options}
    build, data = given.pop("build"), given.pop("data")
    return FusedTrainer(build, functional.cross_entropy, data, configurations, **given)


def largest_difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    """Return the largest difference of two ``state_dict``s, relative to the largest value of each tensor."""
    assert list(ours) == list(theirs)
    pairs = [(ours[name].cpu().double(), theirs[name].cpu().double()) for name in theirs]
    return max(((own - other).abs().max() / other.abs().max().clamp(min=1e-3)).item() for own, other in pairs)


def noisy(configuration: Mapping[str, Any]) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3)).to(DTYPE)


def assert_as_alone(trainer: FusedTrainer, number: int, configuration: Mapping[str, Any], **options: Any) -> None:
    alone = train_alone(configuration, sgd(configuration), **options)
    assert largest_difference(trainer.model(number).state_dict(), alone) < 1e-5
