"""Choice of the way to compute gradients, by measurement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch

from helios.training.fused.batches import Batch
from helios.training.fused.configurations import make_member
from helios.training.fused.models import Models
from helios.training.fused.stack import RECORDED, Stack
from helios.training.fused.ways import CannotFuse, fastest, silence_warnings


def choose_way(stack: Stack, models: Models, batch: Batch, *, compiles: bool) -> dict[str, float]:
    """Choose the fastest way by measuring all, and return their times.

    Parameters
    ----------
    batch : list of Tensor
        A batch of each model.
    compiles : bool
        Whether ``compiled`` is measured too.

    Returns
    -------
    dict of str to float
        Time of a step of all models, s. The stack's way is the fastest; with ``serial`` it should not be a stack.
    """
    separate = models.make_separate()
    configuration = stack.members[0].configuration
    model = models.make_model(configuration.given, configuration.seed)
    member = make_member(configuration, separate.parameters_of(model))

    # As many in a row as a model takes of an epoch, more or less: the first finds nothing in the cache.
    in_a_row = max(len(stack.members), 16)

    def one_alone() -> None:
        for _ in range(in_a_row):
            separate.take_step(member, model, [tensor[0] for tensor in batch])
        _wait(models.device)

    def all_by(way: str) -> None:
        stack.way = way
        stack.step(batch, 0)
        _wait(models.device)

    ways: dict[str, Callable[[], None]] = {"serial": one_alone, "vmap": partial(all_by, "vmap")}
    others = ["traced", *(RECORDED if models.device.type == "cuda" else ()), *(["compiled"] if compiles else [])]
    with stack.steps_without_effect(), silence_warnings():
        for way in others:
            try:
                all_by(way)
            except (CannotFuse, RuntimeError, NotImplementedError):
                continue  # what make_fx cannot record runs by vmap
            if stack.way == way:  # and not another one, for want of memory
                ways[way] = partial(all_by, way)
            stack.forget()
        times = fastest(ways) if models.device.type == "cpu" else _time_each_way(ways, stack)
    times["serial"] *= len(stack.members) / in_a_row
    stack.way = min(times, key=lambda way: times[way])
    return times


def _time_each_way(ways: Mapping[str, Callable[[], None]], stack: Stack) -> dict[str, float]:
    """Return the shortest time of each way, s, one after another."""
    times: dict[str, float] = {}
    for way, run in ways.items():
        times |= fastest({way: run})
        stack.forget()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return times


def _wait(device: torch.device) -> None:
    """Wait until the GPU has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
