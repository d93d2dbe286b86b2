"""Optimisers that update all models of a stack at once.

``torch.optim`` refuses a tensor of learning rates. The formulas and their order are those of PyTorch's own
single-tensor implementations. All parameters of a model lie in one row, so that a step takes few operators.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from helios.training.fused.configurations import Member

BLOCK = {"cpu": 2**20}
BLOCK_ELSEWHERE = 2**26
"""Elements that are updated at once, by device: temporary arrays stay small, and on the CPU in its cache."""

Values = dict[str, torch.Tensor]
"""Hyperparameters, one column of a value per model; what is zero for all of them is left out."""

STATE = {
    "sgd": ("momentum_buffer",),
    "adam": ("exp_avg", "exp_avg_sq"),
    "adamw": ("exp_avg", "exp_avg_sq"),
    "adadelta": ("square_avg", "acc_delta"),
}
"""Arrays that an optimiser keeps, by the names that they have in PyTorch's checkpoints."""


def _sgd(parameters: torch.Tensor, gradients: torch.Tensor, state: Values, values: Values) -> None:
    if "weight_decay" in values:
        gradients.addcmul_(parameters, values["weight_decay"])
    update = gradients
    if "momentum" in values:
        buffer = state["momentum_buffer"].mul_(values["momentum"])
        if "keep" in values:
            buffer.addcmul_(gradients, values["keep"])
        else:
            buffer.add_(gradients)
        update = buffer
        if "from_buffer" in values:
            update = gradients.mul_(values["from_gradient"]).addcmul_(buffer, values["from_buffer"])
    parameters.addcmul_(update, values["minus_lr"])


def _adam(parameters: torch.Tensor, gradients: torch.Tensor, state: Values, values: Values) -> None:
    if "weight_decay" in values:
        gradients.addcmul_(parameters, values["weight_decay"])
    if "shrink" in values:
        parameters.mul_(values["shrink"])
    mean, square = state["exp_avg"], state["exp_avg_sq"]
    mean.lerp_(gradients, values["new_mean"])
    square.mul_(values["beta2"]).addcmul_(gradients.square_(), values["new_square"])
    update = torch.sqrt(square).div_(values["root_correction2"]).add_(values["eps"])
    torch.div(mean, update, out=update)
    parameters.addcmul_(update, values["minus_step_size"])


def _adadelta(parameters: torch.Tensor, gradients: torch.Tensor, state: Values, values: Values) -> None:
    if "weight_decay" in values:
        gradients.addcmul_(parameters, values["weight_decay"])
    square, accumulated = state["square_avg"], state["acc_delta"]
    square.mul_(values["rho"]).addcmul_(gradients.square(), values["new"])
    deviation = square.add(values["eps"]).sqrt_()
    delta = accumulated.add(values["eps"]).sqrt_().div_(deviation).mul_(gradients)
    accumulated.mul_(values["rho"]).addcmul_(delta.square(), values["new"])
    parameters.addcmul_(delta, values["minus_lr"])


UPDATES: Mapping[str, Callable[[torch.Tensor, torch.Tensor, Values, Values], None]] = {
    "sgd": _sgd,
    "adam": _adam,
    "adamw": _adam,
    "adadelta": _adadelta,
}


class StackedOptimizer:
    """State and update of an optimiser for a stack.

    Parameters
    ----------
    name : str
        One of ``STATE``.
    sizes : sequence of int
        Elements of each parameter of one model, in the order of a row.
    unused : collection of int
        Parameters that the loss does not depend on: PyTorch's optimisers leave them alone.
    """

    def __init__(self, name: str, sizes: Sequence[int], unused: Collection[int], device: torch.device) -> None:
        self.name = name
        self.unused = frozenset(unused)
        self.offsets = [0]
        for size in sizes:
            self.offsets.append(self.offsets[-1] + size)
        self.state: Values = {}
        self.updates = torch.zeros(0, 1, dtype=torch.float64, device=device)
        self._blocks: list[tuple[slice, Values]] = []

    def refresh(self, members: Sequence[Member], like: torch.Tensor) -> None:
        """Read the hyperparameters in force from each member's own optimiser."""
        count = len(self.offsets) - 1
        # A span ends where some model's group does, and at a parameter that is left alone.
        ends = {at for member in members for at in range(1, count) if member.groups[at] != member.groups[at - 1]}
        ends |= {edge for at in self.unused for edge in (at, at + 1)} | {0, count}
        width = max(1, BLOCK.get(like.device.type, BLOCK_ELSEWHERE) // max(1, len(members)))
        self._blocks = []
        for first, last in pairwise(sorted(ends)):
            if first in self.unused:
                continue
            values = self._values([member.group_of(first) for member in members], like)
            start, end = self.offsets[first], self.offsets[last]
            self._blocks += [(slice(at, min(at + width, end)), values) for at in range(start, end, width)]
        if self.name != "sgd" or any("momentum" in values for _, values in self._blocks):
            for name in STATE[self.name]:
                if name not in self.state:
                    self.state[name] = torch.zeros_like(like)

    def step(self, parameters: torch.Tensor, gradients: torch.Tensor, rows: torch.Tensor | None = None) -> None:
        """Update every model, or those in ``rows``. The gradients are used up."""
        if rows is not None:
            part = {name: array[rows] for name, array in self.state.items()}
            chosen, updates = parameters[rows], self.updates[rows] + 1
            self._step(chosen, gradients[rows], part, updates, rows)
            parameters[rows], self.updates[rows] = chosen, updates
            for name, array in part.items():
                self.state[name][rows] = array
            return
        self.updates += 1
        self._step(parameters, gradients, self.state, self.updates, None)

    def _step(
        self,
        parameters: torch.Tensor,
        gradients: torch.Tensor,
        state: Values,
        updates: torch.Tensor,
        rows: torch.Tensor | None,
    ) -> None:
        update = UPDATES[self.name]
        previous: Values | None = None
        for columns, every in self._blocks:
            if every is not previous:
                previous = every
                values = every if rows is None else {name: value[rows] for name, value in every.items()}
                values = self._step_values(values, updates, parameters.dtype)
            update(
                parameters[:, columns],
                gradients[:, columns],
                {name: array[:, columns] for name, array in state.items()},
                values,
            )

    def _values(self, groups: Sequence[Mapping[str, Any]], like: torch.Tensor) -> Values:
        """Return one column per hyperparameter.

        It is float64 where it takes part in a bias correction.
        """

        def column(numbers: list[float]) -> torch.Tensor:
            return torch.tensor(numbers, dtype=torch.float64, device=like.device).unsqueeze(1)

        values: dict[str, torch.Tensor] = {}
        decays = [group["weight_decay"] for group in groups]
        if any(decays):
            if self.name == "adamw":
                values["shrink"] = column([1 - group["lr"] * group["weight_decay"] for group in groups])
            else:
                values["weight_decay"] = column(decays)
        if self.name in {"adam", "adamw"}:
            first, second = ([group["betas"][which] for group in groups] for which in (0, 1))
            values |= {"beta2": column(second), "new_mean": column([1 - beta for beta in first])}
            values |= {"new_square": column([1 - beta for beta in second])}
            values |= {"eps": column([group["eps"] for group in groups])}
            values = {name: value.to(like.dtype) for name, value in values.items()}
            return values | {
                "lr": column([group["lr"] for group in groups]),
                "beta1_exact": column(first),
                "beta2_exact": column(second),
            }
        values["minus_lr"] = column([-group["lr"] for group in groups])
        if self.name == "adadelta":
            values |= {"rho": column([group["rho"] for group in groups])}
            values |= {"new": column([1 - group["rho"] for group in groups])}
            values |= {"eps": column([group["eps"] for group in groups])}
        elif any(group["momentum"] for group in groups):
            values["momentum"] = column([group["momentum"] for group in groups])
            keeps = [1 - group["dampening"] if group["momentum"] else 1.0 for group in groups]
            if any(keep != 1 for keep in keeps):
                values["keep"] = column(keeps)
            if any(group["nesterov"] for group in groups):
                values["from_gradient"] = column([float(group["nesterov"]) for group in groups])
                values["from_buffer"] = column([group["momentum"] if group["nesterov"] else 1.0 for group in groups])
        return {name: value.to(like.dtype) for name, value in values.items()}

    def _step_values(self, values: Values, updates: torch.Tensor, dtype: torch.dtype) -> Values:
        """Return the values for the current step of each model."""
        if self.name in {"adam", "adamw"}:
            step_size = values["lr"] / (values["beta1_exact"].pow(updates) - 1)
            root = (1 - values["beta2_exact"].pow(updates)).sqrt_()
            return values | {"minus_step_size": step_size.to(dtype), "root_correction2": root.to(dtype)}
        if "keep" in values:  # PyTorch does not dampen the first update
            return values | {"keep": torch.where(updates == 1, torch.ones_like(values["keep"]), values["keep"])}
        return values

    def resize(self, resized: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Apply a change of rows to each array."""
        self.state = {name: resized(array) for name, array in self.state.items()}
        self.updates = resized(self.updates)

    def clear_row(self, row: int) -> None:
        """Forget one model's past."""
        self.updates[row] = 0
        for array in self.state.values():
            array[row] = 0

    def row_state(self, row: int, member: Member, shapes: Sequence[torch.Size]) -> dict[str, Any]:
        """Return one model's state in the form of PyTorch's own optimiser."""
        stored = dict(member.optimizer.state_dict())
        updates = self.updates[row].item()
        stored["state"] = {}
        for index, at in enumerate(member.packed_order() if updates else ()):
            if at in self.unused:
                continue
            columns = slice(self.offsets[at], self.offsets[at + 1])
            entry = {name: array[row, columns].reshape(shapes[at]).clone() for name, array in self.state.items()}
            if self.name != "sgd":
                entry["step"] = torch.tensor(float(updates))
            elif not member.group_of(at)["momentum"]:
                continue
            stored["state"][index] = entry
        return stored

    def load_row_state(self, row: int, member: Member, stored: Mapping[str, Any]) -> None:
        """Take over one model's state from that of PyTorch's own optimiser."""
        member.optimizer.load_state_dict({"state": {}, "param_groups": stored["param_groups"]})
        order = member.packed_order()
        for index, entry in stored["state"].items():
            at = order[index]
            self.updates[row] = float(entry.get("step", 1.0))
            for name, array in self.state.items():
                if entry.get(name) is not None:
                    array[row, self.offsets[at] : self.offsets[at + 1]] = entry[name].reshape(-1).to(array)
