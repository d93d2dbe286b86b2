"""The way that is measured to be the fastest."""

from __future__ import annotations

import pytest
import torch

from tests.unit.training.fused.alone import THREE, WAYS, a_trainer, assert_as_alone, noisy


@pytest.mark.parametrize("fast", WAYS)
def test_the_fastest_is_taken(fast: str, monkeypatch: pytest.MonkeyPatch) -> None:
    times = {way: 1e-9 if way == fast else 1.0 for way in WAYS}
    monkeypatch.setattr("helios.training.fused.choice.fastest", lambda ways: {way: times[way] for way in ways})
    trainer = a_trainer(THREE, way="auto")
    assert trainer.way == fast
    trainer.train(steps=10)
    assert_as_alone(trainer, 2, THREE[2], steps=10)


def test_compiling_is_measured_only_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    monkeypatch.setattr(torch, "compile", lambda graph, **_: compiled.append("once") or graph)
    assert a_trainer(THREE, way="auto").measured_s.keys().isdisjoint({"compiled"})
    assert compiled == []
    assert "compiled" in a_trainer(THREE, way="auto", compiles=True).measured_s
    assert compiled == ["once"]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_measuring_leaves_no_trace(optimizer: str) -> None:
    momentum = {"momentum": 0.9} if optimizer == "sgd" else {"weight_decay": 0.1}
    configurations = [{"lr": 0.1, "seed": k, **momentum} for k in range(3)]
    measured, not_measured = (
        a_trainer(configurations, build=noisy, optimizer=optimizer, way=way) for way in ("auto", "serial")
    )
    for number in measured.numbers:
        ours, theirs = measured.checkpoint(number), not_measured.checkpoint(number)
        assert all(torch.equal(ours["model"][name], theirs["model"][name]) for name in theirs["model"])
        assert ours["optimizer"] == theirs["optimizer"]
        assert ours["progress"] == theirs["progress"]
