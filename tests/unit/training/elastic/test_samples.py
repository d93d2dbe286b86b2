"""How a batch is split, and which data can be handed over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from helios.errors import UsageError
from helios.training.elastic.samples import SampleOrder, split

DATA = TensorDataset(torch.arange(50))


class Batches(BatchSampler):  # type: ignore[misc]  # torch is not followed
    """Batches of a kind of its own."""


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(50))


@given(st.integers(1, 300), st.integers(1, 16), st.none() | st.integers(1, 40), st.booleans())
def test_every_sample_is_taken_once(batch: int, size: int, most: int | None, halves: bool) -> None:
    size = min(size, batch)
    parts = [part for rank in range(size) for part in split(batch, size, rank, most, halves=halves)]
    assert [sample for first, last in parts for sample in range(first, last)] == list(range(batch))


@given(st.integers(1, 300), st.integers(1, 16), st.integers(2, 40))
def test_no_pass_takes_more_than_the_memory_holds(batch: int, size: int, most: int) -> None:
    size = min(size, batch)
    parts = [part for rank in range(size) for part in split(batch, size, rank, most)]
    assert max(last - first for first, last in parts) <= most


def test_data_go_on_at_any_position_in_the_same_order() -> None:
    order = SampleOrder(DATA, seed=5)
    whole = iter(lambda: [(0, 10)], None)
    batches = [batch[0].tolist() for batch in order.load(2, 0, 10, whole)]
    later = [batch[0].tolist() for batch in order.load(2, 20, 10, whole)]
    assert later == batches[2:]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (Stream(), "Stream has no place"),
        (DataLoader(Stream()), "Stream has no place"),
        (
            DataLoader(DATA, sampler=WeightedRandomSampler([1.0] * 50, 50)),
            "WeightedRandomSampler cannot be handed over",
        ),
        (DataLoader(DATA, sampler=RandomSampler(DATA, replacement=True)), "RandomSampler cannot be handed over"),
        (DataLoader(DATA, sampler=RandomSampler(DATA, num_samples=10)), "RandomSampler cannot be handed over"),
        (DataLoader(DATA, batch_sampler=Batches(SequentialSampler(DATA), 5, False)), "Batches cannot be handed over"),
    ],
)
def test_data_without_a_place_are_refused(data: object, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        SampleOrder(data, seed=0)
