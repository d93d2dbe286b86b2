"""Models of one structure, and whether they can be fused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, redirect_stdout
from io import StringIO
from typing import Any

import torch
from torch import nn

from helios.errors import UsageError
from helios.training.fused.batches import Batch, Batches
from helios.training.fused.configurations import Configuration, check_configuration, make_member
from helios.training.fused.objective import Objective
from helios.training.fused.stack import Separate, Stack, seed_device
from helios.training.fused.structure import changed_attribute, named_trained, named_untrained, settings_of
from helios.training.fused.ways import (
    Obstacle,
    autocast,
    exact_convolutions,
    find_failure,
    find_sparse,
    silence_warnings,
)

AGREES_WITHIN = {torch.float64: 1e-8, torch.float32: 5e-3}
"""Largest difference between fused and separate gradients, as part of the largest gradient: rounding, not a fault."""


class Models:
    """Makes models of one structure, and what trains them.

    Parameters
    ----------
    first : Configuration
        Its model shows the structure.
    batches : Batches
        The first samples are tried with it.

    Attributes
    ----------
    template : Module
        A model that is never trained.
    settings : dict
        What it had in common with the others when it was made.
    is_random : bool
        Whether a step draws random numbers.
    unused : set of str
        Parameters that have no part in the loss.
    """

    def __init__(
        self,
        build: Callable[[Mapping[str, Any]], nn.Module],
        objective: Objective,
        optimizer: str,
        *,
        device: torch.device,
        precision: torch.dtype | None,
        first: Configuration,
        batches: Batches,
    ) -> None:
        self.objective, self.device, self.precision = objective, device, precision
        self._build, self._optimizer, self._first = build, optimizer, first.given
        self.template = self.make_model(first.given, first.seed)
        self.settings = settings_of(self.template)
        self.is_random, self.unused = self._look_at_model(batches)

    def make_model(self, configuration: Mapping[str, Any], seed: int) -> nn.Module:
        """Return a new model, as it is for this seed."""
        with isolate_random_state(self.device):
            torch.manual_seed(seed)
            return self._build(configuration).to(self.device).train()

    def make_stack(self) -> Stack:
        """Return an empty stack, which trains models together."""
        return Stack(
            self.template,
            self.objective,
            self._optimizer,
            device=self.device,
            precision=self.precision,
            is_random=self.is_random,
            unused=self.unused,
        )

    def make_separate(self) -> Separate:
        """Return an empty engine, which trains models one after another."""
        return Separate(self.objective, device=self.device, precision=self.precision, is_random=self.is_random)

    def separate(self, stack: Stack) -> Separate:
        """Return the models of a stack as they are, each for itself."""
        engine = self.make_separate()
        for row, member in enumerate(stack.members):
            stored = stack.checkpoint(row)
            model = self.make_model(member.configuration.given, member.configuration.seed)
            model.load_state_dict(stored["model"])
            new = make_member(member.configuration, engine.parameters_of(model))
            new.load_state_dict(member.state_dict())
            engine.add(new, model, stored["optimizer"])
        return engine

    def find_obstacles(self, batches: Batches) -> list[Obstacle]:
        """Return why the models cannot be fused.

        A step of two of them is tried, and compared with separate steps.
        """
        two = batches.samples_to_check()
        if seen := self._visible_obstacles(two[0]):
            return seen
        configuration = check_configuration(0, {}, self._optimizer)
        stack = self.make_stack()
        seeds = (0, 1)
        models = [self.make_model(self._first, seed) for seed in seeds]
        for model in models:
            stack.add(make_member(configuration, stack.parameters_of(model)), model, None)
        batch = [torch.stack(leaves) for leaves in zip(*two, strict=True)]
        with isolate_random_state(self.device), silence_warnings(), exact_convolutions(self.device):
            with redirect_stdout(StringIO()) as printed:
                obstacle = find_failure(self.template, lambda: stack.compute_gradients(batch, 0))
            if obstacle:
                return [obstacle]
            if printed.getvalue():
                return [Obstacle("the model or the step", "it prints, which would be done once for all models")]
            if self.is_random:  # then two steps differ by their random numbers
                return []
            for row, model in enumerate(models):
                with autocast(self.device, self.precision):
                    value, _ = self.objective(model, two[row])
                (value * 65_536.0 if self.precision is torch.float16 else value).backward()
                if wrong := self._first_mismatch(stack, row, model):
                    return [Obstacle(wrong, "fused, it changes in another way than alone")]
        return []

    def _visible_obstacles(self, batch: Batch) -> list[Obstacle]:
        """Return what stands in the way without a trial."""
        obstacles = find_sparse(self.template)
        if kinds := sorted({type(leaf).__name__ for leaf in batch if not isinstance(leaf, torch.Tensor)}):
            obstacles.append(Obstacle("the batch", f"it holds what is no tensor: {', '.join(kinds)}"))
        for name in self.objective.constants:
            obstacles.append(Obstacle("the step", f"its metric {name!r} is no tensor"))
        dtypes = {own.dtype for _, own in named_trained(self.template)}
        if len(dtypes) > 1:
            obstacles.append(
                Obstacle("the model itself", f"its parameters are of several types, {sorted(map(str, dtypes))}")
            )
        if (changed := changed_attribute(self.settings, self.template)) is not None:
            obstacles.append(Obstacle(changed, "it is no tensor, and changes as the model runs"))
        return obstacles

    def _look_at_model(self, batches: Batches) -> tuple[bool, set[str]]:
        """Return whether a step draws random numbers, and the unused parameters."""
        if not named_trained(self.template):
            raise UsageError("The model has no parameters to train.", hint="See requires_grad.")
        batch, _ = batches.samples_to_check()
        kept = [tensor.clone() for _, tensor in named_untrained(self.template)]
        with isolate_random_state(self.device):
            seed_device(self.device, 0)
            before = _random_state(self.device)
            with autocast(self.device, self.precision):
                value = self.objective.check(self.template, batch)
            is_random = not torch.equal(before, _random_state(self.device))
        names = [name for name, _ in named_trained(self.template)]
        found = torch.autograd.grad(value, [own for _, own in named_trained(self.template)], allow_unused=True)
        with torch.no_grad():
            for (_, tensor), before in zip(named_untrained(self.template), kept, strict=True):
                tensor.copy_(before)
        return is_random, {name for name, own in zip(names, found, strict=True) if own is None}

    def _first_mismatch(self, stack: Stack, row: int, model: nn.Module) -> str | None:
        """Return the first tensor that changes in another way in the stack."""
        offsets = stack.optimizer.offsets
        tolerance = AGREES_WITHIN.get(stack.parameters.dtype, 0.05) if self.precision is None else 0.2
        largest = _largest(stack.gradients[row])
        for at, (name, own) in enumerate(named_trained(model)):
            ours = stack.gradients[row, offsets[at] : offsets[at + 1]]
            if own.grad is not None and not _agree(ours, own.grad.reshape(-1), tolerance, largest):
                return name
        for name, tensor in named_untrained(model):
            if tensor.is_floating_point():
                same = _agree(stack.buffers[name][row], tensor, tolerance, _largest(tensor))
            else:
                same = torch.equal(stack.buffers[name][row], tensor)
            if not same:
                return name
        return None


def isolate_random_state(device: torch.device) -> AbstractContextManager[None]:
    """Leave the caller's random numbers as they are."""
    context: AbstractContextManager[None] = torch.random.fork_rng([device] if device.type == "cuda" else [])
    return context


def _random_state(device: torch.device) -> torch.Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _largest(tensor: torch.Tensor) -> float:
    """Return the largest finite absolute value, 0 if there is none."""
    finite = tensor[tensor.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _agree(one: torch.Tensor, other: torch.Tensor, tolerance: float, scale: float) -> bool:
    return bool(torch.allclose(one, other.to(one), rtol=tolerance, atol=tolerance * max(scale, 1e-12), equal_nan=True))
