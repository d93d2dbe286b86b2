"""Models that leave, join and resume; what stops one model alone; what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from helios.errors import ConfigurationInvalid, HeliosError, UsageError
from helios.training.fused import FusedTrainer, epoch_order, make_optimizer
from helios.training.fused.objective import LossInvalid
from helios.training.fused.stack import OutOfMemory
from tests.examples import examples
from tests.unit.training.fused.alone import (
    BATCH,
    CLASSES,
    DATA,
    DEVICE,
    DTYPE,
    FUSED,
    THREE,
    VECTORS,
    WAYS,
    a_trainer,
    assert_as_alone,
    largest_difference,
    noisy,
    small_mlp,
    train_alone,
)


class TestLeavingAndJoining:
    @pytest.mark.parametrize("way", WAYS)
    def test_models_that_stay_are_as_alone(self, way: str) -> None:
        trainer = a_trainer(THREE, way=way)
        trainer.train(steps=20)
        trainer.remove(0)
        trainer.train(steps=30)
        assert_as_alone(trainer, 1, THREE[1])
        assert_as_alone(trainer, 0, THREE[0], steps=20)

    @pytest.mark.parametrize("way", WAYS)
    def test_a_model_that_takes_anothers_place_is_as_alone(self, way: str) -> None:
        trainer = a_trainer(THREE, way=way)
        trainer.train(steps=10)
        trainer.remove(1)
        assert trainer.add({"lr": 0.1, "momentum": 0.9, "seed": 9}) == 3
        trainer.train(steps=20)
        assert trainer.numbers == ([0, 3, 2] if way != "serial" else [0, 2, 3])
        assert_as_alone(trainer, 3, {"lr": 0.1, "momentum": 0.9, "seed": 9}, steps=20)
        assert_as_alone(trainer, 2, THREE[2], steps=30)

    def test_a_model_more_makes_the_stack_larger(self) -> None:
        trainer = a_trainer(THREE[:1])
        trainer.train(steps=10)
        trainer.add(THREE[2])
        trainer.train(steps=10)
        assert_as_alone(trainer, 0, THREE[0], steps=20)
        assert_as_alone(trainer, 1, THREE[2], steps=10)

    def test_arrays_shrink(self) -> None:
        trainer = a_trainer(THREE)
        trainer.remove(1)
        trainer.train(steps=1)
        assert trainer._engine.parameters.shape[0] == 2

    def test_one_of_many_leaves_without_another_trace(self) -> None:
        trainer = a_trainer([{"lr": 0.1, "seed": k} for k in range(5)], way="traced")
        trainer.train(steps=1)
        trainer.remove(2)
        trainer.train(steps=3)
        assert len(trainer._engine._traced) == 1
        assert trainer.numbers == [0, 1, 3, 4]

    def test_each_model_ends_after_its_own_steps(self) -> None:
        trainer = a_trainer([{**THREE[0], "steps": 5}, {**THREE[1], "steps": 9}])
        trainer.train()
        assert {number: each.step for number, each in trainer.finished.items()} == {0: 5, 1: 9}
        assert_as_alone(trainer, 0, THREE[0], steps=5)

    def test_a_model_without_gain_stops_early(self) -> None:
        trainer = a_trainer([{"lr": 0.0, "early_stopping": {"patience": 2}}, {"lr": 0.1}], validation=DATA)
        trainer.train(epochs=5)
        assert (trainer.finished[0].step, trainer.finished[0].reason) == (3 * 4, "no gain in 2 epochs")
        assert trainer.numbers == [1]

    def test_a_callback_prunes_at_the_end_of_an_epoch(self) -> None:
        def keep_the_best(trainer: FusedTrainer, reached: Any) -> None:
            best = min(reached, key=lambda epoch: epoch.validation_loss)
            for epoch in reached:
                if epoch.number != best.number and epoch.epoch == 2:
                    trainer.remove(epoch.number, "pruned")

        trainer = a_trainer(THREE, validation=DATA)
        trainer.train(epochs=3, on_epoch=keep_the_best)
        assert len(trainer.numbers) == 1
        assert {each.step for each in trainer.finished.values()} == {8}


class TestCheckpoints:
    @pytest.mark.parametrize("way", WAYS)
    def test_a_stored_run_continues_bit_for_bit(self, way: str, tmp_path: Path) -> None:
        configurations = [
            {**each, "schedule": {"name": "one_cycle", "max_lr": 0.2, "total_steps": 50}, "momentum": 0.5}
            for each in THREE
        ]
        options = {"build": noisy, "way": way, "validation": DATA}
        through = a_trainer(configurations, **options)
        through.train(steps=11)
        through.remove(0)
        through.save(tmp_path / "run")
        through.train(steps=13)
        resumed = FusedTrainer.load(
            tmp_path / "run", noisy, functional.cross_entropy, DATA, validation=DATA, device=DEVICE
        )
        resumed.train(steps=13)
        assert resumed.numbers == through.numbers == [1, 2]
        assert resumed.way == way
        for number in (0, 1, 2):
            ours, theirs = resumed.model(number).state_dict(), through.model(number).state_dict()
            assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
        assert resumed.checkpoint(1)["progress"] == through.checkpoint(1)["progress"]

    @pytest.mark.parametrize("optimizer", ["sgd", "adam", "adadelta"])
    def test_a_checkpoint_goes_on_in_pytorch_and_comes_back(self, optimizer: str) -> None:
        schedule = {"name": "step", "step_size": 2, "gamma": 0.7, "per": "step"}
        extra = {"momentum": 0.9} if optimizer == "sgd" else {}
        configuration = {"lr": 0.05, **extra, "schedule": schedule}
        trainer = a_trainer([configuration, {"lr": 0.1}], optimizer=optimizer)
        trainer.train(steps=10)
        stored = trainer.checkpoint(0)

        model = small_mlp(configuration)
        model.load_state_dict(stored["model"])
        alone, (scheduler,) = make_optimizer(configuration, model.named_parameters(), optimizer=optimizer)
        alone.load_state_dict(stored["optimizer"])
        scheduler.scheduler.load_state_dict(stored["schedules"][0])
        for step in range(10, 16):
            epoch, at = divmod(step, 4)
            samples = epoch_order(64, 0, epoch)[at * BATCH : (at + 1) * BATCH]
            alone.zero_grad()
            functional.cross_entropy(model(VECTORS[samples]), CLASSES[samples]).backward()
            alone.step()
            scheduler.scheduler.step()
        trainer.train(steps=6)
        assert largest_difference(trainer.model(0).state_dict(), model.state_dict()) < 1e-5

        stored["progress"]["step"] = 16
        merged = {
            **stored,
            "model": model.state_dict(),
            "optimizer": alone.state_dict(),
            "schedules": [scheduler.scheduler.state_dict()],
        }
        back = trainer.add(configuration, merged)
        trainer.train(steps=10)
        ours, theirs = trainer.model(back).state_dict(), trainer.model(0).state_dict()
        assert largest_difference(ours, theirs) < 1e-5


class TestFailures:
    @pytest.mark.parametrize("way", WAYS)
    def test_a_model_that_diverges_stops_alone(self, way: str) -> None:
        trainer = a_trainer([THREE[0], {"lr": 1e307, "weight_decay": 10.0, "seed": 1}, THREE[2]], way=way)
        trainer.train(steps=50)
        assert trainer.finished[1].reason.endswith("is not finite")
        assert all(tensor.isfinite().all() for tensor in trainer.finished[1].checkpoint["model"].values())
        assert_as_alone(trainer, 0, THREE[0])
        assert_as_alone(trainer, 2, THREE[2])

    def test_the_place_of_a_model_that_diverged_computes_nothing_infinite(self) -> None:
        configurations = [{"lr": 0.1, "seed": k} for k in range(4)]
        trainer = a_trainer([*configurations, {"lr": 1e307, "weight_decay": 10.0}], way="traced")
        trainer.train(steps=20)
        assert trainer.numbers == [0, 1, 2, 3]
        assert trainer._engine.parameters.shape[0] == 5
        assert trainer._engine.parameters.abs().max() < 100

    @pytest.mark.parametrize("way", ["vmap", "serial"])
    def test_a_model_that_diverges_can_skip(self, way: str) -> None:
        def build(configuration: Mapping[str, Any]) -> nn.Module:
            model = small_mlp(configuration)
            with torch.no_grad():
                model[0].bias.mul_(configuration["model"])
            return model

        configurations = [{"lr": 0.1, "model": math.nan}, {"lr": 0.1, "model": 1.0}]
        trainer = a_trainer(configurations, build=build, on_nan="skip", way=way)
        trainer.train(steps=3)
        assert trainer.numbers == [0, 1]
        start = trainer._models.make_model(configurations[0], 0).state_dict()
        assert torch.equal(trainer.model(0).state_dict()["0.weight"], start["0.weight"])

    @pytest.mark.parametrize("way", ["vmap", "serial"])
    def test_an_overflow_halves_one_models_scale(self, way: str) -> None:
        def build(configuration: Mapping[str, Any]) -> nn.Module:
            model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
            with torch.no_grad():
                model[2].weight.mul_(configuration["model"])
            return model

        configurations = [{"lr": 0.01, "model": 1e3}, {"lr": 0.01, "model": 1.0}]
        data = (VECTORS.float(), CLASSES)
        trainer = a_trainer(configurations, build=build, data=data, precision="float16", way=way)
        trainer.train(steps=1)
        scales = [member.scale for member in trainer._engine.members]
        assert scales == [32_768.0, 65_536.0]
        assert torch.equal(trainer.model(0)[0].weight, trainer._models.make_model(configurations[0], 0)[0].weight)
        assert not torch.equal(trainer.model(1)[0].weight, trainer._models.make_model(configurations[1], 0)[0].weight)

    def test_too_little_memory_halves_the_models_at_once_and_loses_no_step(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def build(configuration: Mapping[str, Any]) -> nn.Module:
            return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).to(DTYPE)

        trainer = a_trainer(THREE, build=build)
        compute = trainer._engine.functional.step

        def step(parameters: Any, *others: Any) -> Any:
            losses = compute(parameters, *others)
            if len(losses) > 1:
                raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB.")
            return losses

        monkeypatch.setattr(trainer._engine.functional, "step", step)
        trainer.train(steps=50)
        assert trainer._engine.at_once == 1
        for number, configuration in enumerate(THREE):
            assert_as_alone(trainer, number, configuration, build=build)

    def test_one_model_that_does_not_fit_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        trainer = a_trainer(THREE)

        def step(*given: Any) -> Any:
            raise RuntimeError("CUDA out of memory.")

        monkeypatch.setattr(trainer._engine.functional, "step", step)
        with pytest.raises(OutOfMemory, match="One model"):
            trainer.train(steps=1)


class TestWays:
    @pytest.mark.parametrize("way", ["graph", "streams"])
    def test_what_needs_a_gpu_is_refused_without_one(self, way: str) -> None:
        with pytest.raises(UsageError, match="NVIDIA"):
            a_trainer(THREE, way=way, device="cpu")

    @pytest.mark.parametrize("way", WAYS)
    def test_each_model_draws_its_own_dropout(self, way: str) -> None:
        def build(configuration: Mapping[str, Any]) -> nn.Module:
            return nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)).to(DTYPE)

        trainer = a_trainer([{"lr": 0.1}, {"lr": 0.1}], build=build, way=way)
        losses = trainer.step()
        assert losses[0] != losses[1]

    def test_what_a_model_draws_by_itself_is_given_by_its_seed(self) -> None:
        given = {"lr": 0.1, "seed": 7}
        ended = []
        for others in ([], [{"lr": 0.2, "seed": 3}]):
            trainer = a_trainer([*others, given], build=noisy, way="serial")
            trainer.train(steps=9)
            ended.append(trainer.model(len(others)).state_dict())
        assert all(torch.equal(ended[0][name], ended[1][name]) for name in ended[0])

    def test_the_callers_random_numbers_stay_as_they_are(self) -> None:
        torch.manual_seed(5)
        before = torch.get_rng_state()
        a_trainer(THREE, build=noisy, way="auto").train(steps=3)
        assert torch.equal(torch.get_rng_state(), before)

    def test_validation_is_the_loss_of_the_model_in_evaluation(self) -> None:
        trainer = a_trainer(THREE, build=noisy, validation=DATA)
        trainer.train(epochs=1)
        model = trainer.model(2).eval().cpu()
        expected = functional.cross_entropy(model(VECTORS), CLASSES).item()
        assert trainer.checkpoint(2)["progress"]["history"][0]["validation_loss"] == pytest.approx(expected)


class TestRefusals:
    @pytest.mark.parametrize(
        ("configurations", "number", "key"),
        [
            ([{"lr": 0.1}, {"lrr": 0.1}], 1, "lrr"),
            ([{"batch_size": 4}], 0, "batch_size"),
            ([{"lr": 0.1}, {"lr": 0.1}, {"lr": -1.0}], 2, "lr"),
            ([{"lr": math.nan}], 0, "lr"),
            ([{"lr": 0.1, "nesterov": True}], 0, "nesterov"),
            ([{"betas": (0.9, 0.99)}], 0, "betas"),
            ([{"schedule": {"name": "sometimes"}}], 0, "schedule"),
            ([{"schedule": {"name": "step"}}], 0, "schedule"),
            ([{"groups": [{"parameters": ["nothing.*"]}]}], 0, "groups"),
            ([{"groups": [{"lr": 0.1}]}], 0, "groups"),
            ([{"clip_norm": 0.0}], 0, "clip_norm"),
            ([{"seed": "one"}], 0, "seed"),
            ([{"early_stopping": {"patiense": 3}}], 0, "patiense"),
        ],
    )
    def test_a_configuration_is_named_with_its_key(self, configurations: Any, number: int, key: str) -> None:
        with pytest.raises(ConfigurationInvalid, match=f"Configuration {number}, key '{key}'") as caught:
            a_trainer(configurations)
        assert caught.value.hint

    def test_a_key_is_suggested(self) -> None:
        with pytest.raises(ConfigurationInvalid, match="Did you mean 'momentum'"):
            a_trainer([{"momentun": 0.9}])

    @pytest.mark.parametrize(
        ("other", "text"),
        [
            (lambda: nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3)), "'0.weight'"),
            (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), "'1' is ReLU, not Tanh"),
        ],
    )
    def test_models_of_other_shapes_are_refused(self, other: Callable[[], nn.Module], text: str) -> None:
        def build(configuration: Mapping[str, Any]) -> nn.Module:
            return other().to(DTYPE) if configuration.get("model") else small_mlp(configuration)

        with pytest.raises(ConfigurationInvalid, match="Configuration 1, key 'model'") as caught:
            a_trainer([{"lr": 0.1}, {"lr": 0.1, "model": 1}], build=build)
        assert text in str(caught.value)

    def test_models_with_other_settings_are_refused(self) -> None:
        def build(configuration: Mapping[str, Any]) -> nn.Module:
            return nn.Sequential(nn.Dropout(configuration["model"]), nn.Linear(6, 3)).to(DTYPE)

        with pytest.raises(ConfigurationInvalid, match=r"attribute 'p' of module '0' is 0[.]5, not 0[.]1"):
            a_trainer([{"model": 0.1}, {"model": 0.5}], build=build)

    def test_models_with_other_settings_in_a_table_are_refused(self) -> None:
        def build(configuration: Mapping[str, Any]) -> nn.Module:
            model = small_mlp(configuration)
            model.settings = {"scale": configuration["model"]}
            return model

        with pytest.raises(ConfigurationInvalid, match="attribute 'settings'"):
            a_trainer([{"model": 1.0}, {"model": 2.0}], build=build)

    @pytest.mark.parametrize(
        "loss",
        [
            lambda output, target: functional.cross_entropy(output, target, reduction="sum"),
            lambda output, target: output,
            lambda output, target: 3.0,
        ],
    )
    def test_a_loss_that_is_no_mean_is_refused(self, loss: Callable[..., Any]) -> None:
        with pytest.raises(LossInvalid):
            FusedTrainer(small_mlp, loss, DATA, [{"lr": 0.1}], batch_size=BATCH)

    def test_a_loss_per_sample_is_averaged(self) -> None:
        def loss(output: Any, target: Any) -> Any:
            return functional.cross_entropy(output, target, reduction="none")

        trainer = FusedTrainer(small_mlp, loss, DATA, THREE, batch_size=BATCH, way="vmap")
        trainer.train(steps=10)
        assert_as_alone(trainer, 1, THREE[1], steps=10)

    @pytest.mark.parametrize(
        ("configurations", "options"),
        [
            ([], {}),
            ([{}], {"optimizer": "lion"}),
            ([{}], {"batch_size": 65}),
            ([{}], {"precision": "int8"}),
            ([{}], {"data": (VECTORS, CLASSES[:5])}),
            ([3], {}),
        ],
    )
    def test_other_misuse_is_refused_with_a_hint(self, configurations: Any, options: dict[str, Any]) -> None:
        with pytest.raises(UsageError) as caught:
            a_trainer(configurations, **options)
        assert caught.value.hint

    def test_training_without_an_end_is_refused(self) -> None:
        with pytest.raises(HeliosError, match="Nothing says when"):
            a_trainer(THREE).train()

    def test_a_step_of_no_model_is_refused(self) -> None:
        trainer = a_trainer(THREE[:1])
        trainer.remove(0)
        with pytest.raises(UsageError, match="No model is in training"):
            trainer.step()

    def test_a_model_that_has_left_cannot_leave_again(self) -> None:
        trainer = a_trainer(THREE)
        trainer.remove(0)
        with pytest.raises(UsageError, match="not in training"):
            trainer.remove(0)


@given(
    rates=st.lists(st.tuples(st.floats(1e-4, 0.3), st.floats(0, 0.95), st.floats(0, 0.1)), min_size=1, max_size=4),
    leaves_at=st.integers(1, 20),
    width=st.integers(1, 5),
    way=st.sampled_from(FUSED),
)
@settings(max_examples=examples(6))
def test_any_configurations_train_as_alone(
    rates: list[tuple[float, float, float]], leaves_at: int, width: int, way: str
) -> None:
    def build(configuration: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(6, width), nn.Sigmoid(), nn.Linear(width, 3)).to(DTYPE)

    configurations = [
        {"lr": lr, "momentum": momentum, "weight_decay": decay, "seed": seed}
        for seed, (lr, momentum, decay) in enumerate(rates)
    ]
    trainer = a_trainer(configurations, build=build, way=way)
    trainer.train(steps=leaves_at)
    if len(rates) > 1:
        trainer.remove(0)
    trainer.train(steps=20 - leaves_at)
    for number, each in enumerate(configurations):
        own = {key: each[key] for key in ("lr", "momentum", "weight_decay")}
        steps = leaves_at if number == 0 and len(rates) > 1 else 20
        alone = train_alone(
            each, lambda model, own=own: torch.optim.SGD(model.parameters(), **own), build=build, steps=steps
        )
        assert largest_difference(trainer.model(number).state_dict(), alone) < 1e-5
