"""Each optimiser and schedule: K models in a stack end where PyTorch's own end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.unit.training.fused.alone import CLASSES, DEVICE, VECTORS, a_trainer, largest_difference, sgd, train_alone

SCHEDULERS = torch.optim.lr_scheduler
PYTORCH = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adadelta": torch.optim.Adadelta,
}
HYPERPARAMETERS: list[tuple[str, list[dict[str, Any]]]] = [
    ("sgd", [{"lr": 0.1}, {"lr": 0.2, "weight_decay": 0.01}]),
    ("sgd", [{"lr": 0.1, "momentum": 0.9}, {"lr": 0.05}, {"lr": 0.1, "momentum": 0.5, "dampening": 0.3}]),
    ("sgd", [{"lr": 0.1, "momentum": 0.9, "nesterov": True}, {"lr": 0.1, "momentum": 0.8}]),
    ("adam", [{"lr": 0.01}, {"lr": 0.003, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1}]),
    ("adamw", [{"lr": 0.01}, {"lr": 0.003, "betas": (0.5, 0.9), "eps": 1e-4, "weight_decay": 0.1}]),
    ("adadelta", [{"lr": 1.0}, {"lr": 0.5, "rho": 0.8, "eps": 1e-5, "weight_decay": 0.1}]),
]


@pytest.mark.parametrize(("name", "settings"), HYPERPARAMETERS)
def test_an_optimiser_has_one_value_per_model(name: str, settings: list[dict[str, Any]]) -> None:
    configurations = [{**each, "seed": seed} for seed, each in enumerate(settings)]
    trainer = a_trainer(configurations, optimizer=name)
    trainer.train(steps=50)
    for number, each in enumerate(settings):
        alone = train_alone(configurations[number], lambda model, each=each: PYTORCH[name](model.parameters(), **each))
        assert largest_difference(trainer.model(number).state_dict(), alone) < 1e-5


SCHEDULES: list[tuple[str, dict[str, Any], str, Callable[[Any], Any]]] = [
    ("sgd", {"name": "step", "step_size": 3, "gamma": 0.5}, "epoch", lambda o: SCHEDULERS.StepLR(o, 3, 0.5)),
    ("sgd", {"name": "multi_step", "milestones": [2, 7]}, "epoch", lambda o: SCHEDULERS.MultiStepLR(o, [2, 7])),
    ("adam", {"name": "cosine", "T_max": 9}, "epoch", lambda o: SCHEDULERS.CosineAnnealingLR(o, 9)),
    (
        "sgd",
        {"name": "warmup", "start_factor": 0.1, "total_iters": 20, "per": "step"},
        "step",
        lambda o: SCHEDULERS.LinearLR(o, 0.1, total_iters=20),
    ),
    (
        "sgd",
        {"name": "one_cycle", "max_lr": 0.3, "total_steps": 60},
        "step",
        lambda o: SCHEDULERS.OneCycleLR(o, 0.3, 60),
    ),
    (
        "adamw",
        {"name": "one_cycle", "max_lr": 0.1, "total_steps": 60},
        "step",
        lambda o: SCHEDULERS.OneCycleLR(o, 0.1, 60),
    ),
    (
        "sgd",
        {"name": "plateau", "patience": 0, "threshold": 0.05},
        "epoch",
        lambda o: SCHEDULERS.ReduceLROnPlateau(o, patience=0, threshold=0.05),
    ),
]


@pytest.mark.parametrize("way", ["vmap", "serial"])
@pytest.mark.parametrize(("name", "schedule", "per", "make"), SCHEDULES)
def test_a_schedule_is_pytorchs_own(
    way: str, name: str, schedule: dict[str, Any], per: str, make: Callable[[Any], Any]
) -> None:
    momentum = {"momentum": 0.9} if name == "sgd" else {}
    configurations = [{"lr": 0.1, **momentum, "schedule": schedule}, {"lr": 0.02, **momentum, "seed": 1}]
    trainer = a_trainer(configurations, optimizer=name, way=way)
    trainer.train(steps=50)
    schedules = [{f"per_{per}": make}, {}]
    for number, each in enumerate(configurations):
        own = {"lr": each["lr"], **momentum}
        alone = train_alone(each, lambda model, own=own: PYTORCH[name](model.parameters(), **own), **schedules[number])
        assert largest_difference(trainer.model(number).state_dict(), alone) < 1e-5


def test_groups_of_parameters_have_values_of_their_own() -> None:
    configurations = [
        {"lr": 0.1, "momentum": 0.9, "groups": [{"parameters": ["*.bias"], "lr": 0.5, "weight_decay": 0.1}]},
        {"lr": 0.2, "groups": [{"parameters": ["0.*"], "momentum": 0.5}]},
        {"lr": 0.1},
    ]

    def grouped(model: Any) -> Any:
        biases = {"params": [model[0].bias, model[2].bias], "lr": 0.5, "weight_decay": 0.1}
        return torch.optim.SGD([biases, {"params": [model[0].weight, model[2].weight]}], lr=0.1, momentum=0.9)

    def halved(model: Any) -> Any:
        first = {"params": list(model[0].parameters()), "momentum": 0.5}
        return torch.optim.SGD([first, {"params": list(model[2].parameters())}], lr=0.2)

    trainer = a_trainer(configurations)
    trainer.train(steps=50)
    for number, make in enumerate([grouped, halved, sgd(configurations[2])]):
        alone = train_alone(configurations[number], make)
        assert largest_difference(trainer.model(number).state_dict(), alone) < 1e-5


def test_each_model_is_clipped_at_its_own_norm() -> None:
    configurations = [{"lr": 0.5, "clip_norm": 0.1}, {"lr": 0.5}]
    trainer = a_trainer(configurations)
    trainer.train(steps=50)
    for number, configuration in enumerate(configurations):
        alone = train_alone(configuration, sgd(configuration))
        assert largest_difference(trainer.model(number).state_dict(), alone) < 1e-5


def test_more_elements_than_one_block_are_all_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helios.training.fused.optimizers.BLOCK", {DEVICE: 10})
    trainer = a_trainer([{"lr": 0.1, "momentum": 0.9}, {"lr": 0.2, "seed": 1}])
    trainer.train(steps=10)
    alone = train_alone({"seed": 1}, sgd({"lr": 0.2}), steps=10)
    assert largest_difference(trainer.model(1).state_dict(), alone) < 1e-5


def test_single_precision_differs_by_rounding_alone() -> None:
    def build(configuration: Any) -> Any:
        return torch.nn.Linear(6, 3)

    data = (VECTORS.float(), CLASSES)
    configuration = {"lr": 0.01, "betas": (0.8, 0.95)}
    trainer = a_trainer([configuration, {"lr": 0.1}], optimizer="adam", build=build, data=data)
    trainer.train(steps=50)
    alone = train_alone(
        configuration, lambda model: torch.optim.Adam(model.parameters(), **configuration), build=build, data=data
    )
    assert largest_difference(trainer.model(0).state_dict(), alone) < 1e-4
