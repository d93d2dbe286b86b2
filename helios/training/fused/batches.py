"""Batches that each model takes in its own order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from helios.errors import UsageError
from helios.training.fused.configurations import Member, epoch_order


class Batches:
    """Takes the batches of each epoch from the samples.

    Attributes
    ----------
    size : int
        Samples of a batch.
    steps_per_epoch : int
        Number of complete batches.
    orders : Tensor, optional
        Order of the samples of each model in its epoch. None where models were added or left.

    Raises
    ------
    UsageError
        There are fewer samples than a batch has.
    """

    def __init__(self, inputs: list[torch.Tensor], target: torch.Tensor, size: int) -> None:
        self.inputs, self.target, self.size = inputs, target, size
        self.n_samples = len(target)
        if not 0 < size <= self.n_samples:
            raise UsageError(
                f"A batch of {size} samples cannot be taken from {self.n_samples}.",
                hint="Give a batch_size between 1 and the number of samples.",
            )
        self.steps_per_epoch = self.n_samples // size
        self.orders: torch.Tensor | None = None

    def next_samples(self, member: Member, count: int = 1) -> torch.Tensor:
        """Return the samples of a model's next steps."""
        epoch, at = divmod(member.step, self.steps_per_epoch)
        if member.order is None or member.order_epoch != epoch:
            order = epoch_order(self.n_samples, member.configuration.data_seed, epoch)
            member.order, member.order_epoch = order.to(self.target.device), epoch
        return member.order[at * self.size : (at + count) * self.size]

    def next_batch(self, members: Sequence[Member]) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Return the samples that each model takes next, in its own order."""
        places = {member.step % self.steps_per_epoch for member in members if member.alive}
        if len({(member.configuration.data_seed, member.step) for member in members}) == 1:
            # All take the same: it is fetched and stored once.
            samples = self.next_samples(members[0])
            shared = [tensor[samples] for tensor in (*self.inputs, self.target)]
            batch = [tensor.expand(len(members), *tensor.shape) for tensor in shared]
            return batch[:-1], batch[-1]
        if len(places) == 1:
            at = places.pop()
            if at == 0 or self.orders is None:
                for member in members:
                    self.next_samples(member)
                self.orders = torch.stack([member.order for member in members if member.order is not None])
            samples = self.orders[:, at * self.size : (at + 1) * self.size]
        else:
            samples = torch.stack([self.next_samples(member) for member in members])
        batch = [tensor[samples] for tensor in (*self.inputs, self.target)]
        return batch[:-1], batch[-1]


def as_batch(data: tuple[Any, torch.Tensor], device: torch.device) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return the inputs and the target on a device."""
    inputs, target = data
    inputs = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
    lengths = {len(tensor) for tensor in (*inputs, target)}
    if len(lengths) != 1:
        raise UsageError(f"Inputs and target have {sorted(lengths)} samples.", hint="Give each sample one target.")
    return [tensor.to(device) for tensor in inputs], target.to(device)
