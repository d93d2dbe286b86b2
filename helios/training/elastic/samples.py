"""Which samples each worker takes, whatever their number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from helios.errors import UsageError

SAMPLERS = (RandomSampler, SequentialSampler)
"""Those whose order is kept here."""
Part = tuple[int, int]
"""First sample of a step's batch, and the one after the last, that are passed through the model together."""


def split(batch: int, size: int, rank: int, most: int | None, *, halves: bool = False) -> list[Part]:
    """Return the parts of a batch that a worker passes.

    Sizes differ by one at most. With ``halves`` there are two at least.
    """
    first, last = batch * rank // size, batch * (rank + 1) // size
    largest = math.ceil(batch / size)
    passes = min(max(math.ceil(largest / (most or largest)), 2 if halves else 1), last - first)
    edges = [first + (last - first) * each // passes for each in range(passes + 1)]
    return list(pairwise(edges))


class SampleOrder:
    """Data in an order that depends on the seed and the epoch alone.

    What is left of an epoch after the last whole batch is not used.

    Raises
    ------
    UsageError
        No place in the data can be kept.
    """

    def __init__(self, data: Any, seed: int) -> None:
        dataset = data.dataset if isinstance(data, DataLoader) else data
        if isinstance(dataset, IterableDataset) or not all(
            hasattr(dataset, name) for name in ("__getitem__", "__len__")
        ):
            raise UsageError(
                f"{type(dataset).__name__} has no place that can be handed over.",
                hint="Give a dataset with __len__ and __getitem__, or a DataLoader of one.",
            )
        loader = data if isinstance(data, DataLoader) else DataLoader(data, shuffle=True)
        for sampler, known in ((loader.sampler, SAMPLERS), (loader.batch_sampler, (BatchSampler,))):
            if type(sampler) not in known or any(
                getattr(sampler, name, None) for name in ("replacement", "_num_samples")
            ):
                raise UsageError(
                    f"The place of a {type(sampler).__name__} cannot be handed over.", hint="Leave it out."
                )
        self.count = len(dataset)
        self._dataset, self._seed = dataset, seed
        self._shuffled = isinstance(loader.sampler, RandomSampler)
        names = ("collate_fn", "num_workers", "pin_memory", "timeout", "worker_init_fn", "prefetch_factor")
        self._options = {name: getattr(loader, name) for name in names}

    def order(self, epoch: int) -> Any:
        """Return the numbers of all samples in the order of an epoch."""
        if not self._shuffled:
            return torch.arange(self.count)
        return torch.randperm(self.count, generator=torch.Generator().manual_seed(self._seed + epoch))

    def load(self, epoch: int, position: int, batch: int, parts: Iterator[Sequence[Part]]) -> Iterator[Any]:
        """Yield what a worker passes, part by part, from a position.

        ``parts`` are those of each step.
        """
        order = self.order(epoch)

        def choose() -> Iterator[list[int]]:
            for start in range(position, self.count - batch + 1, batch):
                for first, last in next(parts):
                    yield order[start + first : start + last].tolist()

        return iter(DataLoader(self._dataset, batch_sampler=choose(), **self._options))
