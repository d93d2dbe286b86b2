"""Gradients of all workers, their mean, and how noisy they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist

DECAY = 0.95
"""Weight of what was measured before, each time that the noise is measured."""


@dataclass
class Noise:
    """Running means of the gradient's square and of its variance.

    The variance is that of one sample.

    With gradients g_i of parts of b_i samples, and G of all B, the expectation of |g_i|^2 is |g|^2 + v / b_i, and that
    of |G|^2 is |g|^2 + v / B (McCandlish, arXiv 1812.06162; parts need not be of one size).
    """

    square: float = 0.0
    variance: float = 0.0
    weight: float = 0.0

    def add(self, parts: float, squares: float, inverses: float, whole: float, batch: int) -> None:
        """Add what a step shows.

        ``squares`` and ``inverses``: sums of |g_i|^2 and 1 / b_i over its parts. ``whole``: |G|^2.
        """
        if parts < 2:
            return
        variance = (squares / parts - whole) / (inverses / parts - 1 / batch)
        if math.isfinite(variance):
            self.weight = DECAY * self.weight + 1
            self.variance += (variance - self.variance) / self.weight
            self.square += (whole - variance / batch - self.square) / self.weight

    def of(self, smallest: int) -> tuple[float, float] | None:
        """Return square and variance at the smallest batch, or None."""
        return (max(0.0, self.square), max(0.0, self.variance / smallest)) if self.weight else None

    def gain(self, batch: int, smallest: int) -> float:
        """Return what a step is worth in those of the smallest batch.

        It is 1 while unknown.
        """
        scale, (square, variance) = batch / smallest, self.of(smallest) or (0.0, 0.0)
        return (variance + square) / (variance / scale + square) if variance + square > 0 else 1.0


class Gradients:
    """Sum of the gradients of a step, over passes and then over workers.

    With them go what changes in buffers, who has a gradient at all, and the wishes of the first worker, so that one
    exchange is all that a step needs.
    """

    def __init__(self, parameters: Sequence[Any], buffers: Sequence[Any], device: torch.device) -> None:
        self.parameters, self.buffers = list(parameters), list(buffers)
        kinds = [tensor.dtype for tensor in (*self.parameters, *self.buffers) if tensor.is_floating_point()]
        sizes = [tensor.numel() for tensor in (*self.parameters, *self.buffers)]
        self.count = sum(sizes[: len(self.parameters)])
        others = (len(self.parameters), 4)
        self.flat = torch.zeros(
            sum(sizes) + sum(others), dtype=reduce(torch.promote_types, kinds, torch.float32), device=device
        )
        *views, self._present, self._sums = self.flat.split([*sizes, *others])
        shaped = [view.view_as(each) for view, each in zip(views, (*self.parameters, *self.buffers), strict=True)]
        self._sum, self._changes = shaped[: len(self.parameters)], shaped[len(self.parameters) :]
        self.clear()

    def clear(self, *, measures: bool = False) -> None:
        """Begin a step, in which the noise is measured or not."""
        self.flat.zero_()
        self._measures = measures
        self._squares: list[Any] = []
        self._inverses = self._samples = 0.0
        self._before = [buffer.clone() for buffer in self.buffers]
        for parameter in self.parameters:
            parameter.grad = None

    def restore(self) -> None:
        """Forget the step, also what it did to buffers."""
        with torch.no_grad():
            for buffer, before in zip(self.buffers, self._before, strict=True):
                buffer.copy_(before)
        self.clear()

    def add(self, samples: int, batch: int) -> None:
        """Add the gradients of a pass over some samples."""
        pairs = [
            (view, each.grad) for view, each in zip(self._sum, self.parameters, strict=True) if each.grad is not None
        ]
        if pairs:
            weight = samples / batch
            if self._measures:
                norms = torch._foreach_norm([grad for _, grad in pairs])
                self._squares.append(torch.stack([norm.to(self.flat.dtype) for norm in norms]).square().sum())
            for view, grad in pairs:
                view.add_(grad, alpha=weight)
            self._present += torch.tensor([each.grad is not None for each in self.parameters], device=self.flat.device)
        self._inverses += 1 / samples
        self._samples += samples
        for each in self.parameters:
            each.grad = None

    def exchange(self, batch: int, *, rank: int, size: int, wish: int) -> tuple[int, tuple[float, float, float, float]]:
        """Sum over workers, and give parameters their gradients.

        Returns the wish of the first worker, and what :meth:`Noise.add` takes.

        Raises
        ------
        RuntimeError
            A worker has died.
        """
        if size > 1:  # each worker is one part
            share = self._samples / batch
            squares, inverses, parts = self._norm(share), 1 / self._samples, int(self._measures)
            for change, buffer, before in zip(self._changes, self.buffers, self._before, strict=True):
                weight = share if buffer.is_floating_point() else float(rank == 0)
                new, old = buffer.to(change.dtype), before.to(change.dtype)
                change.copy_(torch.where(new == old, 0.0, weight * (new - old)))  # also of what is infinite
        else:
            squares, inverses, parts = sum(self._squares), self._inverses, len(self._squares)
        self._sums.copy_(torch.stack([torch.as_tensor(float(value)) for value in (parts, squares, inverses, wish)]))
        if size > 1:
            _wait(self.flat)
            dist.all_reduce(self.flat)
            _wait(self.flat)
            with torch.no_grad():
                for change, buffer, before in zip(self._changes, self.buffers, self._before, strict=True):
                    buffer.copy_(before + change.to(buffer.dtype))
        for view, each, present in zip(self._sum, self.parameters, self._present.tolist(), strict=True):
            each.grad = view.to(each.dtype) if present else None
        parts, squares, inverses, wished = self._sums.tolist()
        return round(wished), (parts, squares, inverses, self._norm(1.0))

    def _norm(self, share: float) -> float:
        """Return the square of the norm of a mean over this share."""
        gradient = self.flat[: self.count]
        return float(gradient.dot(gradient)) / share**2 if self._measures else 0.0


def _wait(tensor: Any) -> None:
    """Wait for the GPU, since an update needs all gradients."""
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()
