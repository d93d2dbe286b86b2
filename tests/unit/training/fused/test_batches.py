"""Batches of models that share their order."""

from __future__ import annotations

from pathlib import Path

from torch.nn import functional

from helios.training.fused import FusedTrainer
from tests.unit.training.fused.alone import DATA, DEVICE, THREE, a_trainer, assert_as_alone, small_mlp


def test_models_with_the_same_order_share_their_batches() -> None:
    configurations = [{**each, "data_seed": 7} for each in THREE]
    trainer = a_trainer(configurations, way="traced")
    inputs = trainer._batches.next_batch(trainer._engine.members)
    assert inputs[0].stride()[0] == 0
    trainer.train(steps=10)
    assert_as_alone(trainer, 1, configurations[1], steps=10)


def test_a_shared_order_is_as_alone_after_one_leaves_later(tmp_path: Path) -> None:
    five = [{"lr": 0.1 * (1 + k), "seed": k, "data_seed": 7} for k in range(5)]
    started = a_trainer(five, way="traced")
    started.train(steps=3)
    started.save(tmp_path / "run")
    trainer = FusedTrainer.load(tmp_path / "run", small_mlp, functional.cross_entropy, DATA, device=DEVICE)
    trainer.train(steps=3)
    trainer.remove(2)
    trainer.train(steps=1)
    assert trainer._batches.next_batch(trainer._engine.members)[0].stride()[0] == 0
    trainer.train(steps=2)
    assert_as_alone(trainer, 4, five[4], steps=9)
    trainer.train(steps=3)
    assert_as_alone(trainer, 1, five[1], steps=12)


def test_orders_are_stacked_once_an_epoch() -> None:
    trainer = a_trainer([*THREE, {"lr": 0.1, "seed": 7}, {"lr": 0.1, "seed": 8}], way="traced")
    trainer.train(steps=1)
    trainer.remove(4)
    trainer.train(steps=1)
    orders = trainer._batches.orders
    trainer.train(steps=2)
    assert trainer._batches.orders is orders  # also beside the place of one that has left
    trainer.train(steps=1)
    assert trainer._batches.orders is not orders
    assert_as_alone(trainer, 1, THREE[1], steps=5)
