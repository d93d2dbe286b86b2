"""Models of other frameworks train in the elastic loop as in an ordinary one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, Dataset, TensorDataset

from helios.errors import UsageError
from helios.training.elastic import fit_hugging_face, fit_lightning
from helios.training.elastic.adapters import CALLED
from helios.training.lightning_modules import HOOKS

INPUTS = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
TARGET = (INPUTS[:, 0] > 0).long()
DATA = TensorDataset(INPUTS, TARGET)
IN_ORDER = DataLoader(DATA, shuffle=False)

try:
    from lightning.pytorch import LightningModule
except ImportError:
    LightningModule = nn.Module


class Net(LightningModule):  # type: ignore[misc]  # because the package need not be installed
    """A module as its documentation has them, where ``configured`` is what it gives for an optimiser."""

    def __init__(self, configured: str = "list") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.configured, self.layer = configured, nn.Linear(4, 2)

    def training_step(self, batch: Any, _: int) -> Any:
        loss = functional.cross_entropy(self.layer(batch[0]), batch[1])
        self.log("train_loss", loss)
        return {"loss": loss}

    def validation_step(self, batch: Any, _: int) -> None:
        assert not self.training
        self.log_dict({"val_acc": (self.layer(batch[0]).argmax(1) == batch[1]).float().mean()}, prog_bar=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
        schedule = StepLR(optimizer, 1, gamma=0.5)
        return {
            "one": optimizer,
            "list": ([optimizer], [schedule]),
            "mapping": {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "epoch"}},
            "plateau": {"optimizer": optimizer, "lr_scheduler": ReduceLROnPlateau(optimizer)},
            "two": [optimizer, optimizer],
        }[self.configured]


def ordinary(*, halves: bool) -> Any:
    """Return the weight after two epochs of an ordinary loop."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    for epoch in range(2):
        for start in range(0, 64, 16):
            optimizer.zero_grad()
            functional.cross_entropy(layer(INPUTS[start : start + 16]), TARGET[start : start + 16]).backward()
            optimizer.step()
        optimizer.param_groups[0]["lr"] = 0.5 ** (epoch + 2) if halves else 0.5
    return layer.weight


@pytest.mark.parametrize("configured", ["one", "list", "mapping"])
def test_a_lightning_module_trains_as_in_an_ordinary_loop(configured: str) -> None:
    module = Net(configured)
    fit_lightning(module, IN_ORDER, batch=16, epochs=2)
    torch.testing.assert_close(module.layer.weight, ordinary(halves=configured != "one"))


def test_what_a_lightning_module_logs_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HELIOS_REPORT", str(tmp_path / "report"))
    fit_lightning(Net(), IN_ORDER, batch=16, epochs=2, validation=DataLoader(DATA, batch_size=32))
    reports = [json.loads(line) for line in (tmp_path / "report").read_text().splitlines()]
    (first, second) = (report for report in reports if "val_acc" in report)
    assert (first["step"], second["step"]) == (4, 8)
    assert second["train_loss"] < first["train_loss"]


@pytest.mark.parametrize(("configured", "message"), [("plateau", "ReduceLROnPlateau follows"), ("two", "2 optimisers")])
def test_what_needs_lightnings_own_loop_is_refused(configured: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fit_lightning(Net(configured), DATA, batch=16, epochs=2)


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_of_lightning_is_called_or_refused(hook: str) -> None:
    called: list[str] = []
    kind = type("Hooked", (Net,), {hook: lambda *_: called.append(hook)})
    with nullcontext() if hook in CALLED else pytest.raises(UsageError, match=f"Hooked has the hook {hook}, "):
        fit_lightning(kind(), DATA, batch=16, epochs=2, validation=DataLoader(DATA, batch_size=32))
    assert set(called) == {hook} & set(CALLED)


class Rows(Dataset[Mapping[str, Any]]):  # type: ignore[misc]  # torch is not followed
    """Data as Hugging Face has them."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, place: int) -> Mapping[str, Any]:
        return {"inputs": INPUTS[place], "labels": TARGET[place]}


class Classifier(nn.Module):  # type: ignore[misc]  # torch is not followed
    """A model as Hugging Face has them, which computes its own loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 2)

    def forward(self, inputs: Any, labels: Any) -> Mapping[str, Any]:
        logits = self.layer(inputs)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def trainer(folder: Path, **arguments: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    values = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "num_train_epochs": 30}
    options = transformers.TrainingArguments(
        output_dir=str(folder), use_cpu=True, report_to=[], learning_rate=0.05, **{**values, **arguments}
    )
    return transformers.Trainer(model=Classifier(), args=options, train_dataset=Rows())


def test_what_a_trainer_of_hugging_face_was_made_for_is_trained(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    fit_hugging_face(made)
    with torch.no_grad():
        assert float(made.model(INPUTS, TARGET)["loss"]) < 0.3
    assert {*made.lr_scheduler.get_last_lr()} == {0.0}


@pytest.mark.parametrize(("name", "value"), [("max_steps", 10), ("fp16", True)])
def test_arguments_that_this_loop_does_not_know_are_refused(name: str, value: Any) -> None:
    arguments = SimpleNamespace(**{"max_steps": -1, "fp16": False, name: value})
    with pytest.raises(UsageError, match=f"{name} is set"):
        fit_hugging_face(SimpleNamespace(args=arguments, model=None))
