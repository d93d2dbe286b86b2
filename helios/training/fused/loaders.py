"""Batches from DataLoaders of PyTorch, for models that train together.

A batch depends on the model's own ``data_seed``, the epoch and its place in the epoch alone: not on the models beside
it, the number of workers, or where a run was interrupted. So random numbers are seeded anew for each batch, and one
loader with the user's settings serves all models.
"""

from __future__ import annotations

import copy
import random
import sys
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from helios.errors import UsageError
from helios.training.fused.batches import Batch
from helios.training.fused.configurations import Member, mix_seeds

SEEDS_OF_NUMPY = 2**32
"""Seeds that ``numpy.random.seed`` takes are below."""
END = object()
"""What a pass gives after its last batch."""


@dataclass(frozen=True)
class Position:
    """Place of a batch in the data of one seed."""

    seed: int
    epoch: int
    batch: int

    @property
    def draws_seed(self) -> int:
        """Seed of what is drawn as the batch is made."""
        return mix_seeds(mix_seeds(self.seed, self.epoch), self.batch)

    def following(self) -> Position:
        """Return the place after this one in the epoch."""
        return replace(self, batch=self.batch + 1)


class LoaderBatches:
    """Takes the batches of each epoch from a loader.

    Models at the same place of the same ``data_seed`` share a batch, which is read once.

    Parameters
    ----------
    loader : iterable
        A DataLoader, or any object that can be iterated again.
    in_order : bool
        Whether only all batches are read, from the first to the last.

    Raises
    ------
    UsageError
        It can be iterated once only, or has no batch.
    """

    def __init__(self, loader: Any, device: torch.device, *, in_order: bool = False) -> None:
        if not isinstance(loader, Iterable) or hasattr(loader, "__next__"):
            raise UsageError(
                f"Data of {type(loader).__name__} cannot be read again for each epoch and model.",
                hint="Return tensors, DataLoaders, or an object whose __iter__ starts anew.",
            )
        self._device = device
        self._reader = IndexReader(loader) if _has_indices(loader) and not in_order else PassReader(loader)
        self.layout: TreeSpec | None = None
        self.steps_per_epoch = self._reader.count_batches()
        first = Position(0, 0, 0)
        if not self._reader.has(first):
            raise UsageError("The loader gives no batch.", hint="Is its dataset smaller than a batch?")
        (self._first,) = self._read([first])
        self._reader.keep(set())

    def _read(self, positions: Sequence[Position]) -> list[Batch]:
        """Return the tensors of batches on the device."""
        return [self._flatten(batch) for batch in self._reader.read(positions)]

    def _flatten(self, batch: Any) -> Batch:
        leaves, layout = tree_flatten(batch)
        self.layout = self.layout or layout
        if layout != self.layout:
            raise UsageError(
                f"A batch is made as {layout}, and the first one as {self.layout}.",
                hint="Have the loader make all batches alike.",
            )
        return [leaf.to(self._device, non_blocking=True) if hasattr(leaf, "to") else leaf for leaf in leaves]

    def samples_to_check(self) -> tuple[Batch, Batch]:
        """Return the first batch, and another seed's of the same shapes."""
        (other,) = self._read([Position(1, 0, 0)])
        self._reader.keep(set())
        shapes = ([getattr(leaf, "shape", None) for leaf in batch] for batch in (self._first, other))
        return self._first, other if next(shapes) == next(shapes) else self._first

    def read_all(self) -> Iterator[Batch]:
        """Return all batches of an epoch, the same each time."""
        position = Position(0, 0, 0)
        while self._reader.has(position):
            yield self._read([position])[0]
            position = position.following()

    def next_batches(self, members: Sequence[Member], count: int = 1) -> list[Iterable[Batch]]:
        """Return the next batch of each model."""
        del count
        first = next(member for member in members if member.alive)
        positions = [_position(member if member.alive else first) for member in members]
        different = list(dict.fromkeys(positions))
        found = dict(zip(different, self._read(different), strict=True))
        return [[found[position]] for position in positions]

    def next_batch(self, members: Sequence[Member]) -> Batch:
        """Return what each model takes next, with the models as first dimension.

        It has lists in place of tensors where the models' batches have other shapes.
        """
        batches = [batch for (batch,) in self.next_batches(members)]
        columns = [list(column) for column in zip(*batches, strict=True)]
        if all(batch is batches[0] for batch in batches):
            return [column[0].expand(len(members), *column[0].shape) for column in columns]
        ragged = any(leaf.shape != column[0].shape for column in columns for leaf in column)
        return columns if ragged else [torch.stack(column) for column in columns]

    def most_in_a_row(self, member: Member) -> int:
        """Return one, since models in turn share what is read."""
        del member
        return 1

    def is_epoch_end(self, member: Member) -> bool:
        """Return whether the last batch that a model took ended an epoch."""
        return not self._reader.has(_position(member))

    def forget(self, members: Sequence[Member]) -> None:
        """Close what was read for models that have left."""
        self._reader.keep({_position(member) for member in members if member.alive})


def _position(member: Member) -> Position:
    return Position(member.configuration.data_seed or 0, member.epoch, member.batch)


def _has_indices(loader: Any) -> bool:
    """Return whether a loader chooses samples by their indices, in PyTorch's own way."""
    return (
        isinstance(loader, DataLoader)
        and type(loader).__iter__ is DataLoader.__iter__
        and not isinstance(loader.dataset, IterableDataset)
        and loader.batch_sampler is not None
    )


class IndexReader:
    """Reads batches of a dataset with indices, at any place.

    The samplers of the given loader choose the indices. A copy of it reads them, with its workers ahead of the models.
    """

    def __init__(self, loader: Any) -> None:
        self._requests = _Requests(loader)
        self._expected: list[Position] = []
        self._batches: Iterator[Any] = iter(())
        self._loader = copy.copy(loader)
        vars(self._loader).update(
            dataset=_SeededDataset(loader.dataset),
            batch_sampler=self._requests,
            worker_init_fn=partial(_start_worker, loader.worker_init_fn),
            persistent_workers=loader.num_workers > 0,
            _iterator=None,
        )
        # Nothing here refers back to the reader. As a part of garbage in a cycle the workers' queues would be closed
        # first, and PyTorch would wait for 5 s for each worker, which nobody tells to end.
        weakref.finalize(self, _end_workers, self._loader).atexit = False  # where PyTorch ends them

    def count_batches(self) -> int:
        """Return how many batches an epoch has."""
        return len(self._requests.order(0, 0))

    def has(self, position: Position) -> bool:
        """Return whether there is such a batch."""
        return self._requests.has(position)

    def read(self, positions: Sequence[Position]) -> list[Any]:
        """Return batches, and read ahead if these were expected."""
        with kept_draws(self._requests.generators):
            if list(positions) != self._expected:
                self._requests.wanted = list(positions)
                self._batches = iter(self._loader)
            batches = [next(self._batches) for _ in positions]
        self._expected = [self._requests.after(position) for position in positions]
        return batches

    def keep(self, positions: set[Position]) -> None:
        """Do nothing, since any place can be read."""


def _end_workers(loader: Any) -> None:
    """Have the workers of a loader that nobody reads from end."""
    if loader._iterator is not None:
        loader._iterator._shutdown_workers()


class _Requests:
    """Sampler of a loader that is told what to read."""

    def __init__(self, loader: Any) -> None:
        self._samplers = [loader.batch_sampler, loader.sampler, getattr(loader.batch_sampler, "sampler", None)]
        self.generators = _generators(loader, *self._samplers)
        self._orders: dict[tuple[int, int], list[Sequence[Any]]] = {}
        self.wanted: list[Position] = []

    def order(self, seed: int, epoch: int) -> list[Sequence[Any]]:
        """Return the indices of each batch of an epoch."""
        key = (seed, epoch)
        if key not in self._orders:
            if len(self._orders) > 2 * len(self.wanted) + 2:
                del self._orders[next(iter(self._orders))]
            with seeded_draws(mix_seeds(seed, epoch), self.generators):
                for sampler in self._samplers:
                    if hasattr(sampler, "set_epoch"):
                        sampler.set_epoch(epoch)
                self._orders[key] = [_packed(indices) for indices in self._samplers[0]]
        return self._orders[key]

    def has(self, position: Position) -> bool:
        """Return whether there is such a batch."""
        return position.batch < len(self.order(position.seed, position.epoch))

    def after(self, position: Position) -> Position:
        """Return the place that a model goes to from another."""
        following = position.following()
        return following if self.has(following) else Position(position.seed, position.epoch + 1, 0)

    def __iter__(self) -> Iterator[tuple[int, list[Any]]]:
        """Return the seeds and indices of batches, as models take them."""
        positions = self.wanted
        while True:
            for position in positions:
                yield position.draws_seed, list(self.order(position.seed, position.epoch)[position.batch])
            positions = [self.after(position) for position in positions]


def _packed(indices: Any) -> Sequence[Any]:
    try:
        return array("q", indices)
    except (TypeError, OverflowError):
        return list(indices)


@dataclass(frozen=True)
class _SeededDataset:
    """Dataset that draws each batch from a seed of its own."""

    dataset: Any

    def __getitems__(self, request: tuple[int, list[Any]]) -> Any:
        seed, indices = request
        _seed(seed)
        together = getattr(self.dataset, "__getitems__", None)
        return together(indices) if together else [self.dataset[index] for index in indices]


def _start_worker(given: Callable[[int], None] | None, number: int) -> None:
    """Run the user's function for a new worker, which sees the user's dataset."""
    worker = get_worker_info()
    assert worker is not None
    object.__setattr__(worker, "dataset", worker.dataset.dataset)  # it refuses changes, and nobody else asks here
    if given is not None:
        given(number)


class PassReader:
    """Reads batches of anything that is iterated from its beginning.

    A place amid an epoch is reached by reading what is before it.
    """

    def __init__(self, loader: Any) -> None:
        self._given = loader
        self._passes: dict[Position, tuple[Iterator[Any], Any]] = {}
        """Passes by their next batch, which has been read, so that the end is known."""
        self._ends: set[Position] = set()

    def count_batches(self) -> None:
        """Return None, as the number of batches is known at the end."""

    def has(self, position: Position) -> bool:
        """Return whether a batch exists, once its predecessor was read."""
        if position.batch == 0 and position not in self._passes and position not in self._ends:
            self._start(position)
        return position not in self._ends

    def _start(self, position: Position) -> None:
        """Begin a pass, and read up to a place."""
        loader = self._given
        if getattr(loader, "persistent_workers", False):  # of which a loader has one set
            loader = copy.copy(loader)
            loader._iterator = None
        at = replace(position, batch=0)
        with seeded_draws(at.draws_seed, _generators(loader, getattr(loader, "sampler", None))):
            batches = iter(loader)
            self._keep_ahead(at, batches, next(batches, END))
        while at != position:
            (batch,) = self.read([at])
            del batch
            at = at.following()

    def _keep_ahead(self, position: Position, batches: Iterator[Any], batch: Any) -> None:
        if batch is END:
            self._ends.add(position)
        else:
            self._passes[position] = (batches, batch)

    def read(self, positions: Sequence[Position]) -> list[Any]:
        """Return batches, and read the next one of each."""
        found = []
        for position in positions:
            if position not in self._passes:
                self._start(position)
            batches, batch = self._passes.pop(position)
            following = position.following()
            with seeded_draws(following.draws_seed):
                self._keep_ahead(following, batches, next(batches, END))
            found.append(batch)
        return found

    def keep(self, positions: set[Position]) -> None:
        """Close the passes at other places."""
        self._passes = {position: each for position, each in self._passes.items() if position in positions}


def _seed(seed: int) -> None:
    """Seed what datasets draw from."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % SEEDS_OF_NUMPY)


@contextmanager
def kept_draws(generators: Sequence[Any] = ()) -> Iterator[None]:
    """Leave the program's random numbers as they are."""
    generators = [torch.default_generator, *generators]
    states = [generator.get_state() for generator in generators]
    numpy = sys.modules.get("numpy")
    python_state, numpy_state = random.getstate(), numpy.random.get_state() if numpy else None
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        random.setstate(python_state)
        if numpy:
            numpy.random.set_state(numpy_state)


@contextmanager
def seeded_draws(seed: int, generators: Sequence[Any] = ()) -> Iterator[None]:
    """Draw from a seed, and leave the program's random numbers as they are."""
    with kept_draws(generators):
        _seed(seed)
        for generator in generators:
            generator.manual_seed(seed)
        yield


def _generators(*parts: Any) -> list[torch.Generator]:
    """Return the generators that a loader or its samplers have."""
    found = [getattr(part, "generator", None) for part in parts]
    return [each for each in found if isinstance(each, torch.Generator)]


def epoch_batches(loader: Any, data_seed: int, epoch: int) -> Iterator[Any]:
    """Return a loader's batches of an epoch for a model's seed."""
    reader = IndexReader(loader) if _has_indices(loader) else PassReader(loader)
    position = Position(data_seed, epoch, 0)
    while reader.has(position):
        yield reader.read([position])[0]
        position = position.following()
