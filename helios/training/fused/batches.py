"""Batches that each model takes in its own order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch.utils._pytree import TreeSpec

from helios.errors import UsageError
from helios.training.fused.configurations import Member, epoch_order

SAMPLES_TO_CHECK = 16
"""Most samples of the batch with which it is checked whether a model can be fused."""
EVALUATED_AT_ONCE = 1_024
"""Samples of validation data in one batch."""
Batch = list[Any]
"""The tensors of a batch, as PyTorch flattens it: of tensors the inputs, and the target last."""


class Batches(Protocol):
    """Source of training data.

    Attributes
    ----------
    layout : TreeSpec, optional
        How a batch is made of its tensors. None for the inputs and the target.
    steps_per_epoch : int, optional
        Batches of an epoch, None where that is known at its end.
    """

    layout: TreeSpec | None
    steps_per_epoch: int | None

    def samples_to_check(self) -> tuple[Batch, Batch]:
        """Return two batches of equal shapes, to try models with."""

    def next_batch(self, members: Sequence[Member]) -> Batch:
        """Return what each model takes next, with the models as first dimension.

        It has lists in place of tensors where the models' batches have other shapes.
        """

    def next_batches(self, members: Sequence[Member], count: int = 1) -> Sequence[Iterable[Batch]]:
        """Return the batches of each model's next steps."""

    def most_in_a_row(self, member: Member) -> int:
        """Return how many steps one model may take before the others do."""

    def is_epoch_end(self, member: Member) -> bool:
        """Return whether the last batch that a model took ended an epoch."""

    def read_all(self) -> Iterable[Batch]:
        """Return all batches of an epoch, for evaluation."""

    def forget(self, members: Sequence[Member]) -> None:
        """Forget what was prepared for others than these models."""


class TensorBatches:
    """Takes the batches of each epoch from samples in memory.

    An incomplete last batch is left out.

    Attributes
    ----------
    orders : Tensor, optional
        Order of the samples of each model in its epoch. None where models were added or left.
    """

    layout: TreeSpec | None = None

    def __init__(self, tensors: Batch, size: int) -> None:
        self.tensors, self.size = tensors, size
        self.n_samples = len(tensors[-1])
        self.steps_per_epoch: int | None = self.n_samples // size
        self.orders: torch.Tensor | None = None

    def samples_to_check(self) -> tuple[Batch, Batch]:
        """Return the first and the last samples."""
        size = min(self.size, SAMPLES_TO_CHECK)
        return [tensor[:size] for tensor in self.tensors], [tensor[-size:] for tensor in self.tensors]

    def _order(self, member: Member) -> torch.Tensor:
        """Return the order of the samples in a model's epoch."""
        if member.order is None or member.order_epoch != member.epoch:
            order = epoch_order(self.n_samples, member.configuration.data_seed, member.epoch)
            member.order, member.order_epoch = order.to(self.tensors[-1].device), member.epoch
        return member.order

    def _next_samples(self, member: Member, count: int = 1) -> torch.Tensor:
        return self._order(member)[member.batch * self.size : (member.batch + count) * self.size]

    def next_batch(self, members: Sequence[Member]) -> Batch:
        """Return the samples that each model takes next, in its own order."""
        first = next(member for member in members if member.alive)
        takers = [member if member.alive else first for member in members]  # what has left runs on unheeded
        if len({(member.configuration.data_seed, member.step) for member in takers}) == 1:
            # All take the same: it is fetched and stored once.
            samples = self._next_samples(first)
            shared = [tensor[samples] for tensor in self.tensors]
            return [tensor.expand(len(members), *tensor.shape) for tensor in shared]
        if all(member.batch == first.batch for member in takers):
            if first.batch == 0 or self.orders is None:
                self.orders = torch.stack([self._order(member) for member in takers])
            samples = self.orders[:, first.batch * self.size : (first.batch + 1) * self.size]
        else:
            samples = torch.stack([self._next_samples(member) for member in takers])
        return [tensor[samples] for tensor in self.tensors]

    def next_batches(self, members: Sequence[Member], count: int = 1) -> list[Iterable[Batch]]:
        """Return the batches of each model's next steps."""
        orders = [self._next_samples(member, count) for member in members if member.alive]
        return [([tensor[samples] for tensor in self.tensors] for samples in each.split(self.size)) for each in orders]

    def most_in_a_row(self, member: Member) -> int:
        """Return how many steps are left of the epoch.

        Parameters that stay in the processor's cache save a tenth of the time.
        """
        return self.n_samples // self.size - member.batch

    def is_epoch_end(self, member: Member) -> bool:
        """Return whether the last batch that a model took ended an epoch."""
        return member.batch == self.steps_per_epoch

    def read_all(self) -> Iterator[Batch]:
        """Return all samples, as batches for evaluation."""
        for start in range(0, self.n_samples, EVALUATED_AT_ONCE):
            yield [tensor[start : start + EVALUATED_AT_ONCE] for tensor in self.tensors]

    def forget(self, members: Sequence[Member]) -> None:
        """Forget the orders of the models."""
        del members
        self.orders = None


def is_tensors(data: Any) -> bool:
    """Return whether data are samples in memory, inputs and target."""
    return isinstance(data, Sequence) and len(data) == 2 and isinstance(data[1], torch.Tensor)


def check_batch_size(data: Any, size: int | None) -> None:
    """Refuse a size of batches that data do not have.

    Raises
    ------
    UsageError
        Tensors need one, of at most their samples. A loader has its own.
    """
    if not is_tensors(data):
        own = getattr(data, "batch_size", None)
        if size not in {None, own}:
            raise UsageError(f"batch_size is {size}, and that of the loader {own}.", hint="Leave batch_size out.")
    elif size is None:
        raise UsageError("Data in tensors need a batch_size.", hint="Say how many samples a step takes.")
    elif not 0 < size <= len(data[1]):
        raise UsageError(
            f"A batch of {size} samples cannot be taken from {len(data[1])}.",
            hint="Give a batch_size between 1 and the number of samples.",
        )


def as_tensors(data: tuple[Any, torch.Tensor], device: torch.device) -> Batch:
    """Return the inputs and the target on a device."""
    inputs, target = data
    inputs = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
    lengths = {len(tensor) for tensor in (*inputs, target)}
    if len(lengths) != 1:
        raise UsageError(f"Inputs and target have {sorted(lengths)} samples.", hint="Give each sample one target.")
    return [tensor.to(device) for tensor in (*inputs, target)]


def is_ragged(batch: Batch) -> bool:
    """Return whether the models' batches have different shapes."""
    return any(isinstance(leaf, list) for leaf in batch)
