"""Loss of a model's output, or a step that the user wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import TreeSpec, tree_leaves, tree_map, tree_unflatten

from helios.errors import HeliosError, UsageError
from helios.training.fused.batches import Batch

Loss = Callable[[Any, Any], Any]
TrainingStep = Callable[[nn.Module, Any], Any]
"""Returns the loss of a model on a batch, or a dictionary with it under ``loss`` and metrics."""
LOSS_HINT = "Return the mean over the batch, or one value per sample, as PyTorch's losses with reduction='none' do."


class LossInvalid(HeliosError):
    """The loss is neither a mean nor one value per sample."""


class Objective:
    """Computes the loss and the metrics of a model on a batch.

    Parameters
    ----------
    layout : TreeSpec, optional
        How a batch is made of its tensors. None for the inputs, and the target last.

    Attributes
    ----------
    names : tuple of str
        Metrics that the step returns beside the loss, known after :meth:`check`.
    constants : tuple of str
        Those of them that are no tensors, which a recorded step would not compute anew.

    Raises
    ------
    UsageError
        There is not one of ``loss`` and ``step``, or a loss with batches that have no target.
    """

    def __init__(self, loss: Loss | None, step: TrainingStep | None, layout: TreeSpec | None) -> None:
        if (loss is None) == (step is None):
            raise UsageError("One of loss and step says what is minimised.", hint="Give one of both.")
        self._loss, self._step, self._layout = loss, step, layout
        self.names: tuple[str, ...] = ()
        self.constants: tuple[str, ...] = ()

    def as_given(self, batch: Batch) -> Any:
        """Return a batch as the loader gave it, of tensors as a tuple."""
        return tuple(batch) if self._layout is None else tree_unflatten(batch, self._layout)

    def split(self, batch: Batch) -> tuple[Sequence[Any], Any]:
        """Return the inputs of the model, and the target.

        Raises
        ------
        UsageError
            The batch is no sequence of inputs and a target.
        """
        given = self.as_given(batch)
        if not isinstance(given, tuple | list) or len(given) < 2:
            raise UsageError(
                f"A batch is a {type(given).__name__}, of which loss(output, target) has no target.",
                hint="Write step(model, batch) in place of loss, or have the loader give (inputs, target).",
            )
        *inputs, target = given
        return (inputs[0] if len(inputs) == 1 and isinstance(inputs[0], tuple | list) else inputs), target

    def __call__(self, model: nn.Module, batch: Batch) -> tuple[Any, tuple[Any, ...]]:
        """Return the mean loss, and the metrics in the order of ``names``."""
        if self._loss is not None:
            inputs, target = self.split(batch)
            return _mean(self._loss(model(*inputs), target)), ()
        loss, metrics = self._read(self._run(model, batch))
        return loss, tuple(_as_number(metrics[name], loss) for name in self.names)

    def _run(self, model: nn.Module, batch: Batch) -> Any:
        assert self._step is not None
        return self._step(model, self.as_given(batch))

    @staticmethod
    def _read(result: Any) -> tuple[Any, Mapping[str, Any]]:
        metrics = dict(result) if isinstance(result, Mapping) else {"loss": result}
        return metrics.pop("loss", None), metrics

    def check(self, model: nn.Module, batch: Batch) -> Any:
        """Return the loss, having refused what is none.

        Raises
        ------
        LossInvalid
            It is no number, neither a mean nor per sample, or grows with the batch.
        """
        if self._loss is not None:
            inputs, target = self.split(batch)
            output = model(*inputs)
            with torch.no_grad():
                check_loss(self._loss, output, target)
            return _mean(self._loss(output, target))
        loss, metrics = self._read(self._run(model, batch))
        if not isinstance(loss, torch.Tensor) or not loss.is_floating_point() or loss.dim():
            raise LossInvalid(
                "The step returned no loss.", hint="Return a tensor with one number, or a dictionary with it as 'loss'."
            )
        for name, value in metrics.items():
            if getattr(value, "numel", lambda: 1)() != 1:
                raise LossInvalid(f"The metric {name!r} of the step is no number.", hint="Return its mean.")
        self.names = tuple(sorted(metrics))
        self.constants = tuple(name for name in self.names if not torch.is_tensor(metrics[name]))
        return loss


def _mean(value: Any) -> Any:
    return value if value.dim() == 0 else value.mean()


def _as_number(value: Any, loss: Any) -> Any:
    return value.detach().to(loss.dtype).reshape(()) if torch.is_tensor(value) else loss.new_tensor(float(value))


def count_samples(batch: Batch) -> int:
    """Return the samples of a batch, by its first tensor."""
    return next((len(leaf) for leaf in batch if torch.is_tensor(leaf) and leaf.dim()), 1)


def check_loss(loss: Loss, output: Any, target: Any) -> None:
    """Refuse a loss that is neither a mean nor per sample.

    Raises
    ------
    LossInvalid
        It has another shape, or grows with the batch.
    """
    value = loss(output, target)
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        raise LossInvalid("The loss is no tensor of floating-point numbers.", hint=LOSS_HINT)
    if value.dim() == 0:
        # A mean does not change when each sample is there twice; a sum doubles.
        twice = loss(*tree_map(lambda tensor: torch.cat([tensor, tensor]), (output, target)))
        if not torch.allclose(twice, value, rtol=1e-3, atol=1e-6, equal_nan=True):
            raise LossInvalid(
                f"The loss of a batch with each sample twice is {twice.item():.6g}, not {value.item():.6g}: no mean.",
                hint=LOSS_HINT,
            )
    elif value.shape != (samples := count_samples(tree_leaves(target)),):
        raise LossInvalid(f"The loss has the shape {tuple(value.shape)} for {samples} samples.", hint=LOSS_HINT)
