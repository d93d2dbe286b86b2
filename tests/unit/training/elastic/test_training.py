"""Training without a launcher, which is one worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from helios.errors import UsageError
from helios.training.elastic import Training

INPUTS = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(INPUTS, INPUTS.sum(1, keepdim=True))


def make(width: int = 1, *, lr: float = 0.1, **options: Any) -> Training:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, width))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    return Training(model, optimizer, DATA, **{"batch": 16, "epochs": 2, **options})


def train(training: Training) -> Any:
    for epoch in training:
        for inputs, target in epoch:
            (training._model(inputs) - target).square().mean().backward()
            training.step()
    return training._model[0].weight.detach().clone()


def test_a_checkpoint_is_gone_on_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = train(make(epochs=4))
    monkeypatch.setenv("HELIOS_CHECKPOINTS", str(tmp_path))
    half = make(epochs=2)
    train(half)
    half.save()
    assert torch.equal(train(make(epochs=4)), whole)


def test_a_checkpoint_of_another_model_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HELIOS_CHECKPOINTS", str(tmp_path))
    make().save()
    with pytest.raises(UsageError, match=r"another model: in it 0.bias is \(1,\) torch.float32 and not \(2,\)"):
        make(2)


def test_a_batch_above_the_data_is_refused() -> None:
    with pytest.raises(UsageError, match="there are 64"):
        make(batch=65)


def test_gradients_are_clipped_as_a_whole() -> None:
    training = make(clip_norm=0.5, lr=1.0, epochs=1, batch=64)
    before = training._model[0].weight.detach().clone(), training._model[0].bias.detach().clone()
    train(training)
    change = [new.detach() - old for new, old in zip(training._model[0].parameters(), before, strict=True)]
    assert float(sum(part.square().sum() for part in change) ** 0.5) == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize(("rule", "factor"), [("linear", 4.0), ("sqrt", 2.0)])
def test_the_learning_rate_follows_the_batch(rule: str, factor: float) -> None:
    training = make(learning_rate=rule, warm_up=10)
    training._place.batch, training._place.changed = 64, 0
    factors = []
    for updates in (0, 5, 10, 99):
        training._place.updates = updates
        factors.append(training._factor())
    assert factors == pytest.approx([1.0, (1 + factor) / 2, factor, factor])


def test_a_loop_that_is_left_goes_on_with_the_next_epoch() -> None:
    training, seen = make(epochs=3), []
    for epoch in training:
        for inputs, target in epoch:
            (training._model(inputs) - target).square().mean().backward()
            training.step()
            seen.append(epoch.number)
            break
    assert seen == sorted(seen)
    assert set(seen) == {0, 1, 2}


@pytest.mark.parametrize(("steps", "refusal"), [(0, "A part was left out"), (2, "step\\(\\) has no part")])
def test_each_part_takes_one_step(steps: int, refusal: str) -> None:
    training = make()
    with pytest.raises(UsageError, match=refusal):
        for epoch in training:
            for inputs, target in epoch:
                (training._model(inputs) - target).square().mean().backward()
                for _ in range(steps):
                    training.step()
