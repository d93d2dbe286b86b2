"""A step that the user wrote, in place of a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from helios.errors import UsageError
from helios.training.fused import FusedTrainer
from helios.training.fused.objective import LossInvalid
from tests.unit.training.fused.alone import CLASSES, DEVICE, DTYPE, FUSED, THREE, VECTORS, a_trainer, largest_difference

BATCHES = [
    {
        "left": VECTORS[start : start + 16, :4],
        "right": VECTORS[start : start + 16, 2:],
        "class": CLASSES[start : start + 16],
    }
    for start in (0, 16, 32)
]


class Two(nn.Module):
    """Two inputs, and two outputs of which one is a side task."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head, self.side = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 4)

    def forward(self, left: Any, right: Any) -> Any:
        hidden = torch.tanh(self.encoder(left) + self.encoder(right))
        return self.head(hidden), self.side(hidden)


def two(configuration: Mapping[str, Any]) -> nn.Module:
    return Two().to(DTYPE)


def several_terms(model: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a loss with a side task and a penalty on weights, which calls a part of the model as well."""
    output, side = model(batch["left"], batch["right"])
    penalty = model.head.weight.square().sum() + model.encoder(batch["left"]).square().mean()
    loss = functional.cross_entropy(output, batch["class"]) + 0.3 * functional.mse_loss(side, batch["left"])
    return {"loss": loss + 0.01 * penalty, "accuracy": (output.argmax(1) == batch["class"]).double().mean()}


def step_alone(configuration: Mapping[str, Any], step: Callable[..., Any], epochs: int = 2) -> Any:
    torch.manual_seed(configuration["seed"])
    model = two(configuration).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=configuration["lr"], momentum=configuration["momentum"])
    for _ in range(epochs):
        results = []
        for batch in BATCHES:
            result = step(model, {name: tensor.to(DEVICE) for name, tensor in batch.items()})
            results.append({name: float(value.detach()) for name, value in result.items()})
            optimizer.zero_grad()
            result["loss"].backward()
            optimizer.step()
    means = {name: sum(each[name] for each in results) / len(results) for name in results[0]}
    return model.state_dict(), means


def by_step(step: Callable[..., Any], **options: Any) -> FusedTrainer:
    return FusedTrainer(two, None, BATCHES, THREE, step=step, device=DEVICE, **options)


@pytest.mark.parametrize("way", [*FUSED, "serial"])
def test_models_with_a_step_end_where_each_ends_alone(way: str) -> None:
    trainer = by_step(several_terms, way=way)
    trainer.train(epochs=2)
    for number, configuration in enumerate(THREE):
        state, means = step_alone(configuration, several_terms)
        assert largest_difference(trainer.model(number).state_dict(), state) < 1e-9
        epoch = trainer._find(number)[1].history[-1]
        assert {"loss": epoch["training_loss"], **epoch["metrics"]} == pytest.approx(means)


@pytest.mark.parametrize("way", ["traced", "serial"])
def test_metrics_are_those_of_the_validation_data(way: str) -> None:
    reached: list[Any] = []
    trainer = by_step(several_terms, way=way, validation=BATCHES[:1])
    trainer.train(epochs=1, on_epoch=lambda _, epochs: reached.extend(epochs))
    for epoch in reached:
        model = trainer.model(epoch.number).eval()
        with torch.no_grad():
            expected = several_terms(model, {name: tensor.to(DEVICE) for name, tensor in BATCHES[0].items()})
        assert epoch.validation_loss == pytest.approx(float(expected["loss"]))
        assert epoch.metrics == pytest.approx({"accuracy": float(expected["accuracy"])})


def test_a_step_gets_tensors_as_inputs_and_target() -> None:
    def step(model: nn.Module, batch: Any) -> Any:
        inputs, target = batch
        return functional.cross_entropy(model(inputs), target)

    theirs = a_trainer(THREE, way="traced")
    trainer = FusedTrainer(
        theirs._models._build, None, (VECTORS, CLASSES), THREE, step=step, batch_size=16, device=DEVICE
    )
    trainer.train(steps=5)
    theirs.train(steps=5)
    assert largest_difference(trainer.model(1).state_dict(), theirs.model(1).state_dict()) < 1e-9


def reads(model: Any, batch: Any) -> Any:
    result = several_terms(model, batch)
    return {**result, "accuracy": result["accuracy"].item()}


def decides(model: Any, batch: Any) -> Any:
    loss = several_terms(model, batch)["loss"]
    return {"loss": loss if loss > 0 else -loss}


def prints(model: Any, batch: Any) -> Any:
    print("a step")  # noqa: T201 - as people do
    return several_terms(model, batch)


def counts(model: Any, batch: Any) -> Any:
    return {**several_terms(model, batch), "samples": len(batch["class"])}


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (reads, "metric 'accuracy' is no tensor"),
        (decides, "control flow"),
        (prints, "it prints"),
        (counts, "metric 'samples' is no tensor"),
    ],
)
def test_a_step_that_cannot_be_fused_is_taken_one_by_one(step: Callable[..., Any], reason: str) -> None:
    trainer = by_step(step, way="auto")
    assert reason in "; ".join(map(str, trainer.obstacles))
    trainer.train(epochs=2)
    state, _ = step_alone(THREE[1], several_terms)
    assert largest_difference(trainer.model(1).state_dict(), state) < 1e-9


def test_texts_in_a_batch_are_no_obstacle_one_by_one() -> None:
    named = [{**batch, "names": ["a", "b"]} for batch in BATCHES]
    trainer = FusedTrainer(two, None, named, THREE, step=several_terms, device=DEVICE)
    assert [str(each) for each in trainer.obstacles] == ["the batch: it holds what is no tensor: str"]
    trainer.train(epochs=2)
    state, _ = step_alone(THREE[1], several_terms)
    assert largest_difference(trainer.model(1).state_dict(), state) < 1e-9


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (lambda model, batch: None, "returned no loss"),
        (lambda model, batch: {"accuracy": torch.ones(())}, "returned no loss"),
        (
            lambda model, batch: {"loss": model.head.weight.sum(), "each": torch.ones(16)},
            "'each' of the step is no number",
        ),
    ],
)
def test_what_is_no_loss_is_refused(result: Callable[..., Any], text: str) -> None:
    with pytest.raises(LossInvalid, match=text):
        by_step(result)


def test_a_loss_and_a_step_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="One of loss and step"):
        FusedTrainer(two, functional.cross_entropy, BATCHES, THREE, step=several_terms)
