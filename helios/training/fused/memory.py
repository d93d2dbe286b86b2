"""Memory that training many models takes, and how many fit.

It is known from a run of one and a run of two (the rule of Hydro, OSDI'23).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from helios.errors import HeliosError
from helios.training.fused.objective import Loss
from helios.training.fused.stack import OutOfMemory
from helios.training.fused.trainer import FusedTrainer


class MemoryCount(TorchDispatchMode):  # type: ignore[misc]  # because torch is not followed: it is optional
    """Counts the bytes of all tensors that are made and still exist."""

    def __init__(self) -> None:
        super().__init__()
        self.now: int = 0
        self.peak: int = 0
        self._known: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: Any) -> None:
        key = storage._cdata
        if key in self._known or storage.device.type == "meta":
            return
        size = storage.nbytes()

        def freed(_: Any) -> None:
            self.now -= size
            self._known.pop(key, None)

        self._known[key] = weakref.ref(storage, freed)
        self.now += size
        self.peak = max(self.peak, self.now)


def peak_bytes(
    n_models: int,
    build: Callable[[Mapping[str, Any]], nn.Module],
    loss: Loss | None,
    data: Any,
    configuration: Mapping[str, Any],
    *,
    steps: int = 2,
    **options: Any,
) -> int:
    """Return the peak memory of training equal models.

    It is the largest sum of all tensors, or CUDA's reserved memory. The data are not counted on the CPU.
    ``options`` are those of ``FusedTrainer``.
    """
    device = torch.device(options.get("device", "cpu"))
    options = {"way": "traced", **options}

    count = MemoryCount()
    with count:
        trainer = FusedTrainer(build, loss, data, [configuration] * n_models, **options)
        count.peak = count.now  # what the checks before training took is free again
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        trainer.train(steps=steps)
    return int(torch.cuda.max_memory_reserved(device)) if device.type == "cuda" else count.peak


def models_that_fit(
    memory_bytes: int,
    build: Callable[[Mapping[str, Any]], nn.Module],
    loss: Loss | None,
    data: Any,
    configuration: Mapping[str, Any],
    *,
    most: int = 1_024,
    **options: Any,
) -> int:
    """Return how many models of one configuration fit in ``memory_bytes``.

    With s bytes for one model and d for two, floor((memory - s) / (d - s)) + 1 fit. That is tried out, and halved
    until it holds. ``options`` are those of ``FusedTrainer``.

    Raises
    ------
    OutOfMemory
        One model does not fit.
    """

    def peak(count: int) -> int:
        return peak_bytes(count, build, loss, data, configuration, **options)

    one, two = peak(1), peak(2)
    if one > memory_bytes:
        raise OutOfMemory(
            f"One model takes {one:,} bytes of {memory_bytes:,}.", hint="Make the batch or the model smaller."
        )
    count = most if two <= one else min(most, (memory_bytes - one) // (two - one) + 1)
    while count > 2 and not _fits(peak, count, memory_bytes):
        count //= 2
    return 1 if count == 2 and two > memory_bytes else int(count)


def _fits(peak: Callable[[int], int], count: int, memory_bytes: int) -> bool:
    try:
        return peak(count) <= memory_bytes
    except (HeliosError, RuntimeError) as error:
        if isinstance(error, OutOfMemory) or "out of memory" in str(error).lower():
            return False
        raise
