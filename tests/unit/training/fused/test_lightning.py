"""Modules of PyTorch Lightning train as they do alone; what only its loop does is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from helios.errors import ConfigurationInvalid, UsageError
from helios.training.fused import FusedTrainer, from_lightning

try:
    from lightning.pytorch import LightningModule, Trainer
except ImportError:
    LightningModule, Trainer = nn.Module, None  # what is looked at is there too

torch.manual_seed(0)
INPUTS = torch.randn(64, 4)
TARGET = (INPUTS[:, 0] > 0).long()


class Net(LightningModule):  # type: ignore[misc]  # because the package need not be installed
    """A module as its documentation has them."""

    def __init__(self, lr: float, *, weight: float = 1.0, optimizers: Callable[[Any], Any] | None = None) -> None:
        super().__init__()
        self.lr, self.weight, self.optimizers_of = lr, weight, optimizers
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

    def training_step(self, batch: Any, _: int) -> Any:
        inputs, target = batch
        loss = self.weight * functional.cross_entropy(self.layers(inputs), target)
        if Trainer is not None:
            self.log("loss", loss)
        return {"loss": loss}

    def configure_optimizers(self) -> Any:
        if self.optimizers_of is not None:
            return self.optimizers_of(self)
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)]


def make(configuration: Mapping[str, Any]) -> nn.Module:
    return Net(configuration["lr"], **configuration.get("model", {}))


def data() -> Any:
    return INPUTS, TARGET


def configurations(*rates: float, **model: Any) -> list[dict[str, Any]]:
    *_, configure = from_lightning(make, data)
    told = [configure({"lr": lr, "model": model}) | {"seed": 3, "data_seed": None, "model": model} for lr in rates]
    assert {each.pop("optimizer") for each in told} == {"sgd"}
    return told


def by_hand(lr: float, epochs: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    module = Net(lr)
    if Trainer is not None:
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(INPUTS, TARGET), batch_size=16)
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        Trainer(max_epochs=epochs, accelerator="cpu", enable_model_summary=False, **quiet).fit(module, loader)
        return dict(module.state_dict())
    (optimizer,), (schedule,) = module.configure_optimizers()
    for _ in range(epochs):
        for batch in zip(INPUTS.split(16), TARGET.split(16), strict=True):
            optimizer.zero_grad()
            module.training_step(batch, 0)["loss"].backward()
            optimizer.step()
        schedule.step()
    return dict(module.state_dict())


def test_modules_are_trained_as_lightning_does() -> None:
    build, step, tensors, _ = from_lightning(make, data)
    trainer = FusedTrainer(build, None, tensors(), configurations(0.1, 0.3), step=step, batch_size=16, way="vmap")
    assert (trainer.obstacles, trainer.way) == ([], "vmap")
    trainer.train(epochs=5)
    for number, lr in enumerate((0.1, 0.3)):
        for name, tensor in by_hand(lr, 5).items():
            ours = trainer.model(number).state_dict()[name]
            torch.testing.assert_close(ours, tensor, rtol=1e-4, atol=1e-6)


def test_modules_that_differ_in_their_step_do_not_train_together() -> None:
    build, step, tensors, _ = from_lightning(make, data)
    trainer = FusedTrainer(build, None, tensors(), configurations(0.1, weight=1.0), step=step, batch_size=16)
    with pytest.raises(ConfigurationInvalid, match="weight"):
        trainer.add(configurations(0.1, weight=2.0)[0])


class Kept(Net):
    """A module that keeps its settings as Lightning's documentation has it."""

    def __init__(self, lr: float, weight: float) -> None:
        super().__init__(lr, weight=weight)
        if Trainer is not None:
            self.save_hyperparameters()
        else:  # which keeps them so
            self._hparams = {"lr": lr, "weight": weight}


def test_saved_hyperparameters_of_the_optimiser_part_no_modules() -> None:
    build, step, tensors, configure = from_lightning(lambda given: Kept(given["lr"], given["model"]["weight"]), data)
    model = {"weight": 2.0}
    told = [configure({"lr": lr, "model": model}) | {"model": model} for lr in (0.1, 0.2)]
    assert {each.pop("optimizer") for each in told} == {"sgd"}
    trainer = FusedTrainer(build, None, tensors(), told, step=step, batch_size=16, way="vmap")
    assert (trainer.obstacles, len(trainer.numbers)) == ([], 2)


def test_modules_take_the_batches_of_a_loader() -> None:
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(INPUTS, TARGET), batch_size=16)
    build, step, loaders, _ = from_lightning(make, lambda: loader)
    trainer = FusedTrainer(build, None, loaders(), configurations(0.1, 0.3), step=step, way="vmap")
    trainer.train(epochs=5)
    for name, tensor in by_hand(0.3, 5).items():
        torch.testing.assert_close(trainer.model(1).state_dict()[name], tensor, rtol=1e-4, atol=1e-6)


class Hooked(Net):
    def on_after_backward(self) -> None:
        """Do something that nobody would call."""


class Fitted(Net):
    def on_fit_start(self) -> None:
        """Do something that nobody would call."""


class Manual(Net):
    automatic_optimization = False


def adam(module: nn.Module, **more: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(module.parameters(), lr=0.1, **more)


def decaying(module: nn.Module) -> dict[str, Any]:
    optimizer = adam(module)
    return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)}


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (lambda: Hooked(0.1), "hook on_after_backward"),
        (lambda: Fitted(0.1), "hook on_fit_start"),
        (lambda: Manual(0.1), "manual optimization"),
        (lambda: Net(0.1, optimizers=lambda m: [adam(m), adam(m)]), "2 optimisers"),
        (lambda: Net(0.1, optimizers=lambda m: torch.optim.RMSprop(m.parameters())), "RMSprop cannot"),
        (lambda: Net(0.1, optimizers=lambda m: adam(m, amsgrad=True)), "amsgrad"),
        (lambda: Net(0.1, optimizers=lambda m: adam(m.layers[0])), "no optimiser"),
        (lambda: Net(0.1, optimizers=decaying), "ExponentialLR cannot"),
    ],
)
def test_what_only_lightning_does_is_refused(module: Callable[[], nn.Module], message: str) -> None:
    *_, configure = from_lightning(lambda _: module(), data)
    with pytest.raises(UsageError, match=message):
        configure({})


def test_groups_and_schedules_are_read() -> None:
    def optimizers(module: Any) -> Any:
        first, last = module.layers[0], module.layers[2]
        groups = [{"params": first.parameters(), "lr": 0.01}, {"params": last.parameters()}]
        optimizer = torch.optim.AdamW(groups, lr=0.1, weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.5, total_iters=4)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    *_, configure = from_lightning(lambda _: Net(0.1, optimizers=optimizers), data)
    told = configure({})
    assert told["optimizer"] == "adamw"
    assert [(group["lr"], group["parameters"]) for group in told["groups"]] == [
        (0.01, ["layers.0.weight", "layers.0.bias"]),
        (0.1, ["layers.2.weight", "layers.2.bias"]),
    ]
    expected = {"name": "warmup", "per": "step", "start_factor": 0.5, "end_factor": 1.0, "total_iters": 4}
    assert told["schedule"] == [expected]
