"""Models take the batches of a loader as each would alone."""

from __future__ import annotations

import gc
import multiprocessing
import random
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from helios.errors import UsageError
from helios.training.fused import FusedTrainer, epoch_batches
from helios.training.fused.loaders import IndexReader, Position
from tests.unit.training.fused.alone import (
    CLASSES,
    DATA,
    DEVICE,
    DTYPE,
    THREE,
    VECTORS,
    a_trainer,
    largest_difference,
    sgd,
    small_mlp,
)  # fmt: skip

EPOCHS = 2


class Noisy(Dataset):  # type: ignore[misc]  # because torch is not followed: it is optional
    """Samples that are moved at random each time."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        moved = 0.1 * torch.randn(6, dtype=DTYPE) + random.random() + np.random.rand()
        return VECTORS[index] + moved, CLASSES[index]


class Stream(IterableDataset):  # type: ignore[misc]  # as above
    """Samples in a random order, whose number is not known before."""

    def __iter__(self) -> Iterator[Any]:
        for index in torch.randperm(40):
            yield VECTORS[index] + 0.1 * torch.randn(6, dtype=DTYPE), CLASSES[index]


def shuffled(**options: Any) -> DataLoader[Any]:
    return DataLoader(Noisy(), **{"batch_size": 16, "shuffle": True, **options})


def ordinary_loop(loader: Any, configuration: Mapping[str, Any], epochs: int = EPOCHS) -> Mapping[str, Any]:
    """Train one model by an ordinary loop of PyTorch."""
    torch.manual_seed(configuration.get("seed", 0))
    model = small_mlp(configuration).to(DEVICE)
    optimizer = sgd(configuration)(model)
    for epoch in range(epochs):
        for inputs, target in epoch_batches(loader, configuration.get("seed", 0), epoch):
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs.to(DEVICE)), target.to(DEVICE)).backward()
            optimizer.step()
    state: Mapping[str, Any] = model.state_dict()
    return state


def from_loader(loader: Any, configurations: Any = THREE, **options: Any) -> FusedTrainer:
    return a_trainer(configurations, data=loader, **{"batch_size": None, **options})


LOADERS: dict[str, Callable[[], Any]] = {
    "last batch is small": shuffled,
    "last batch is dropped": lambda: shuffled(drop_last=True),
    "workers": lambda: shuffled(num_workers=2),
    "generator of its own": lambda: shuffled(generator=torch.Generator().manual_seed(5)),
    "stream": lambda: DataLoader(Stream(), batch_size=16),
    "stream with workers": lambda: DataLoader(Stream(), batch_size=40, num_workers=1, persistent_workers=True),
    "list of batches": lambda: [(VECTORS[:16], CLASSES[:16]), (VECTORS[16:40], CLASSES[16:40])],
}


@pytest.mark.parametrize(
    ("kind", "way"),
    [*((kind, "traced") for kind in LOADERS), ("last batch is small", "vmap"), ("stream", "vmap"),
     ("last batch is small", "serial"), ("stream", "serial")],
)  # fmt: skip
def test_fused_models_end_where_each_ends_alone(kind: str, way: str) -> None:
    trainer = from_loader(LOADERS[kind](), way=way)
    trainer.train(epochs=EPOCHS)
    for number, configuration in enumerate(THREE):
        alone = ordinary_loop(LOADERS[kind](), configuration)
        assert largest_difference(trainer.model(number).state_dict(), alone) < 1e-9


def test_batches_are_the_same_for_any_number_of_workers() -> None:
    one, other = (list(epoch_batches(shuffled(num_workers=workers), 3, 1)) for workers in (0, 2))
    assert all(
        torch.equal(a, b) for mine, theirs in zip(one, other, strict=True) for a, b in zip(mine, theirs, strict=True)
    )


def test_reading_leaves_the_programs_random_numbers_alone() -> None:
    generator = torch.Generator().manual_seed(1)

    def draw() -> list[float]:
        return [float(torch.rand(1, generator=generator)), float(torch.rand(1)), random.random(), np.random.rand()]

    def seed() -> None:
        generator.manual_seed(1)
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)

    seed()
    expected = draw()
    seed()
    list(epoch_batches(shuffled(generator=generator), 3, 1))
    list(epoch_batches(DataLoader(Stream()), 3, 1))
    assert draw() == expected


@pytest.mark.parametrize(
    ("kind", "way"),
    [("last batch is small", "traced"), ("workers", "traced"), ("stream", "traced"), ("stream", "serial")],
)
def test_a_checkpoint_amid_an_epoch_goes_on_at_its_batch(kind: str, way: str) -> None:
    started = from_loader(LOADERS[kind](), way=way)
    started.train(steps=4)
    kept = started.checkpoint(1)
    trainer = from_loader(LOADERS[kind](), [THREE[0]], way=way)
    trainer.train(steps=1)  # the other one is at another place of its epoch
    number = trainer.add(THREE[1], kept)
    losses = []
    trainer.train(steps=5, on_epoch=lambda _, reached: losses.extend(e for e in reached if e.number == number))
    assert largest_difference(trainer.model(number).state_dict(), ordinary_loop(LOADERS[kind](), THREE[1], 3)) < 1e-9
    started.train(steps=5)
    expected = [epoch["training_loss"] for epoch in started._find(1)[1].history]
    assert [each.training_loss for each in losses] == pytest.approx(expected[1:])


def test_a_stored_run_goes_on_at_its_batch(tmp_path: Path) -> None:
    started = from_loader(shuffled(), way="traced")
    started.train(steps=4)
    started.save(tmp_path / "run")
    trainer = FusedTrainer.load(tmp_path / "run", small_mlp, functional.cross_entropy, shuffled(), device=DEVICE)
    trainer.train(steps=2)
    assert largest_difference(trainer.model(2).state_dict(), ordinary_loop(shuffled(), THREE[2])) < 1e-9


class Counted(Noisy):
    read = 0

    def __getitem__(self, index: int) -> Any:
        Counted.read += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("way", ["traced", "serial"])
def test_models_with_one_data_seed_share_what_is_read(way: str) -> None:
    same = [{**each, "data_seed": 7} for each in THREE]
    trainer = from_loader(DataLoader(Counted(), batch_size=20, shuffle=True), same, way=way)
    Counted.read = 0
    trainer.train(epochs=2)
    assert Counted.read == 2 * 40


def test_workers_read_ahead_of_the_models() -> None:
    reader = IndexReader(shuffled(num_workers=2))
    wanted = [Position(seed, 0, 0) for seed in range(3)]
    reader.read(wanted)
    batches = reader._batches
    wanted = [position.following() for position in wanted]
    reader.read(wanted)
    assert reader._batches is batches


@pytest.mark.parametrize("dataset", [Noisy, Stream])
def test_workers_end_by_themselves_with_the_trainer_that_read(
    dataset: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[BaseProcess] = []

    def terminate(worker: BaseProcess) -> None:  # which PyTorch does 5 s later
        killed.append(worker)
        worker.kill()

    gc.collect()
    trainer = from_loader(DataLoader(dataset(), batch_size=8, num_workers=2), way="serial")
    trainer.train(steps=1)
    assert multiprocessing.active_children() != []
    del trainer
    monkeypatch.setattr(BaseProcess, "terminate", terminate)
    gc.collect()
    assert (multiprocessing.active_children(), killed) == ([], [])


def test_no_worker_is_left_after_an_epoch_of_batches() -> None:
    gc.collect()
    list(epoch_batches(shuffled(num_workers=2), 3, 1))
    assert multiprocessing.active_children() == []


def test_a_worker_sees_the_users_dataset(tmp_path: Path) -> None:
    def note(_: int) -> None:
        worker = torch.utils.data.get_worker_info()
        assert worker is not None
        (tmp_path / type(worker.dataset).__name__).touch()

    list(epoch_batches(shuffled(num_workers=1, worker_init_fn=note), 0, 0))
    assert (tmp_path / "Noisy").exists()


def test_a_batch_size_beside_that_of_a_loader_is_refused() -> None:
    with pytest.raises(UsageError, match="batch_size is 32, and that of the loader 16"):
        from_loader(shuffled(), batch_size=32)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (iter([(VECTORS, CLASSES)]), "cannot be read again"),
        ([], "gives no batch"),
        ([{"x": VECTORS, "y": CLASSES}], "no target"),
        ([(VECTORS, CLASSES), [VECTORS, CLASSES]], "is made as"),
    ],
)
def test_data_that_cannot_be_used_are_refused(data: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        from_loader(data).train(epochs=1)


def test_validation_data_of_a_loader_give_the_same_loss() -> None:
    batches = DataLoader(TensorDataset(*DATA), batch_size=24)
    reached: list[Any] = []
    for data, validation in ((shuffled(), batches), (shuffled(), DataLoader(TensorDataset(*DATA), batch_size=64))):
        trainer = from_loader(data, validation=validation)
        trainer.train(epochs=1, on_epoch=lambda _, epochs: reached.append([e.validation_loss for e in epochs]))
    assert reached[0] == pytest.approx(reached[1])


def test_batches_of_other_shapes_train_one_by_one() -> None:
    def pad(samples: Any) -> Any:
        length = 3 + int(samples[0][1])
        return torch.stack([vector[:3].repeat(length) for vector, _ in samples]), torch.stack([c for _, c in samples])

    def build(configuration: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Unflatten(1, (1, -1)), nn.AdaptiveAvgPool1d(6), nn.Flatten(), nn.Linear(6, 3)).to(DTYPE)

    trainer = from_loader(DataLoader(Noisy(), batch_size=2, shuffle=True, collate_fn=pad), build=build, way="auto")
    assert "give all the same data_seed" in str(trainer.obstacles[0])
    trainer.train(epochs=1)
