"""Models that are trained as a stack or one after another.

A stack keeps the parameters of each model in one row of an array. Both forms hold the same members, take the same
batches and give the same checkpoints, so that a run can go from one to the other.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from helios.errors import HeliosError
from helios.training.fused.batches import Batch, is_ragged
from helios.training.fused.configurations import Member, mix_seeds
from helios.training.fused.objective import Objective, count_samples
from helios.training.fused.optimizers import StackedOptimizer
from helios.training.fused.structure import named_trained, named_untrained
from helios.training.fused.ways import Functional, Recording, Step, autocast, own_copy, trace

GROW_AFTER = 2_000
"""Steps without overflow after which a gradient scale doubles, as in ``torch.amp.GradScaler``."""
MOST_SHAPES = 8
"""Shapes of batches for which a step is recorded: others, as of texts of any length, run by ``vmap``."""
RECORDED = ("graph", "streams")
"""Ways that are CUDA graphs."""
Chunk = tuple[slice, list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]
"""Rows that are computed together, and their parameters, buffers and gradients."""


class OutOfMemory(HeliosError):
    """Not even one model fits in the memory of the device."""


def seed_device(device: torch.device, seed: int) -> None:
    """Seed the random numbers of one device, faster than ``torch.manual_seed``."""
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def _update_scale(member: Member, failure: str | None) -> None:
    """Adapt each model's gradient scale to overflows."""
    member.steps_without_overflow = 0 if failure else member.steps_without_overflow + 1
    if failure:
        member.scale *= 0.5
    elif member.steps_without_overflow == GROW_AFTER:
        member.scale, member.steps_without_overflow = member.scale * 2, 0


class Separate:
    """Models that PyTorch trains one after another.

    Used where models cannot be fused, and where fusing is slower.
    """

    way = "serial"

    def __init__(
        self, objective: Objective, *, device: torch.device, precision: torch.dtype | None, is_random: bool
    ) -> None:
        self.members: list[Member] = []
        self.models: list[nn.Module] = []
        self.objective = objective
        self.device = device
        self.precision = precision
        self.is_random = is_random

    def parameters_of(self, model: nn.Module) -> list[tuple[str, torch.Tensor]]:
        """Return the parameters of a member's optimiser."""
        return list(named_trained(model))

    def add(self, member: Member, model: nn.Module, optimizer_state: Mapping[str, Any] | None) -> int:
        """Take a model in, and return its row."""
        if optimizer_state is not None:
            member.optimizer.load_state_dict(copy.deepcopy(dict(optimizer_state)))
        self.members.append(member)
        self.models.append(model)
        return len(self.members) - 1

    def compact(self) -> None:
        """Drop the models that have left."""
        self.models = [model for model, member in zip(self.models, self.members, strict=True) if member.alive]
        self.members = [member for member in self.members if member.alive]

    def refresh(self) -> None:
        """Do nothing, because each optimiser has its own values."""

    def step(
        self, batches: Sequence[Iterable[Batch]], handle_failure: Callable[[Member, str], None]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take each model's steps, and return last and summed losses and metrics.

        ``batches`` are one or more of each model.
        """
        rows, sums = [], []
        for member, model, own in zip(self.members, self.models, batches, strict=True):
            total = torch.zeros(1 + len(self.objective.names), dtype=torch.float64, device=self.device)
            for count, batch in enumerate(own):
                if count:
                    member.advance_schedules("step")
                row, failure = self.take_step(member, model, batch)
                member.step += 1
                member.batch += 1
                total += row
                if failure:
                    handle_failure(member, failure)
                if not member.alive:
                    break
            rows.append(row)
            sums.append(total)
        return torch.stack(rows), torch.stack(sums)

    def take_step(self, member: Member, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, str | None]:
        """Take one step of one model.

        Returns its loss and metrics, and the name of a value that is not finite.
        """
        if self.is_random:
            seed_device(self.device, mix_seeds(mix_seeds(member.configuration.draws_seed, 0), member.step))
        member.optimizer.zero_grad()
        with autocast(self.device, self.precision):
            loss, metrics = self.objective(model, batch)
        scaled = self.precision is torch.float16
        (loss * member.scale if scaled else loss).backward()
        gradients = [own.grad for own in member.parameters if own.grad is not None]
        if scaled:
            for gradient in gradients:
                gradient.div_(member.scale)
        failure = self._failure(loss, gradients)
        if not failure:
            if member.configuration.clip_norm < math.inf:
                nn.utils.clip_grad_norm_(member.parameters, member.configuration.clip_norm)
            member.optimizer.step()
        if scaled:
            _update_scale(member, failure)
        return torch.stack([loss.detach(), *metrics]), failure

    @staticmethod
    def _failure(loss: torch.Tensor, gradients: Sequence[torch.Tensor]) -> str | None:
        if not math.isfinite(loss.item()):
            return "loss"
        total = torch.stack([gradient.sum() for gradient in gradients]).sum() if gradients else loss
        if math.isfinite(total.item()):
            return None
        return None if all(gradient.isfinite().all() for gradient in gradients) else "gradient"

    def evaluate(self, batches: Iterable[Batch]) -> torch.Tensor:
        """Return each model's mean loss and metrics over all samples given."""
        for model in self.models:
            model.eval()
        try:
            with torch.no_grad(), autocast(self.device, self.precision):
                return _mean_over_batches(batches, self._evaluate_batch)
        finally:
            for model in self.models:
                model.train()

    def _evaluate_batch(self, batch: Batch) -> torch.Tensor:
        rows = [self.objective(model, batch) for model in self.models]
        return torch.stack([torch.stack([loss, *metrics]) for loss, metrics in rows])

    def checkpoint(self, row: int) -> dict[str, Any]:
        """Return a model's and its optimiser's ordinary ``state_dict``."""
        return copy.deepcopy(
            {"model": self.models[row].state_dict(), "optimizer": self.members[row].optimizer.state_dict()}
        )

    def state_dict(self) -> dict[str, Any]:
        """Return all arrays."""
        return {"rows": [self.checkpoint(row) for row in range(len(self.members))]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take all arrays over."""
        for row, stored in enumerate(state["rows"]):
            self.models[row].load_state_dict(stored["model"])
            self.members[row].optimizer.load_state_dict(stored["optimizer"])


class Stack:
    """Models that are trained in one stack.

    Parameters
    ----------
    template : nn.Module
        A model, for its structure. It is not trained.
    unused : set of str
        Parameters that the loss does not depend on.
    """

    def __init__(
        self,
        template: nn.Module,
        objective: Objective,
        optimizer: str,
        *,
        device: torch.device,
        precision: torch.dtype | None,
        is_random: bool,
        unused: set[str],
    ) -> None:
        self.way = "vmap"
        self.members: list[Member] = []
        self.template = template
        self.device = device
        self.precision = precision
        self.is_random = is_random
        self.names = [name for name, _ in named_trained(template)]
        self.shapes = [parameter.shape for _, parameter in named_trained(template)]
        self.functional = Functional(
            template, objective, self.names, [n for n, _ in named_untrained(template)], precision
        )
        skipped = [at for at, name in enumerate(self.names) if name in unused]
        self.optimizer = StackedOptimizer(optimizer, [shape.numel() for shape in self.shapes], skipped, device)
        dtype = named_trained(template)[0][1].dtype
        self.parameters = torch.zeros(0, self.optimizer.offsets[-1], dtype=dtype, device=device)
        self.gradients = torch.zeros_like(self.parameters)
        self.buffers = {name: tensor.new_zeros(0, *tensor.shape) for name, tensor in named_untrained(template)}
        self.at_once = 0
        """Models whose gradients are computed together, 0 for all. Less after the memory was too small."""
        self._keys = _state_keys(template)
        self._traced: dict[Any, Step] = {}
        self._parked: set[int] = set()
        self._chunks: dict[int, list[Chunk]] = {}
        self._recordings: dict[Any, Recording] = {}
        self._clip: torch.Tensor | None = None

    def parameters_of(self, model: nn.Module) -> list[tuple[str, torch.Tensor]]:
        """Return placeholders for a member's optimiser."""
        return [(name, torch.zeros(0, requires_grad=True)) for name, _ in named_trained(model)]

    def reserve(self, count: int, stand_in: Member) -> None:
        """Reserve space for models.

        Growing one by one would need the memory twice.
        """
        stand_in.alive = False
        self._resize([], count)
        self.members = [stand_in] * count

    def add(self, member: Member, model: nn.Module, optimizer_state: Mapping[str, Any] | None) -> int:
        """Add a model, and return its row."""
        free = [row for row, other in enumerate(self.members) if not other.alive]
        if free:
            row = free[0]
            self.members[row] = member
            self._parked.discard(row)
        else:
            row = len(self.members)
            self._resize(list(range(row)), 1)
            self.members.append(member)
        with torch.no_grad():
            for at, (_, parameter) in enumerate(named_trained(model)):
                self.parameters[row, self.optimizer.offsets[at] : self.optimizer.offsets[at + 1]] = parameter.reshape(
                    -1
                )
            for name, tensor in named_untrained(model):
                self.buffers[name][row] = tensor
        self.optimizer.clear_row(row)
        self.refresh()
        if optimizer_state is not None:
            self.optimizer.load_row_state(row, member, optimizer_state)
            self.refresh()
        return row

    def compact(self) -> None:
        """Shrink the arrays after models have left.

        It waits until a quarter has left, except with ``vmap``. Until then those rows run on unheeded: every other
        number of models must be traced anew.
        """
        alive = [row for row, member in enumerate(self.members) if member.alive]
        gone = len(self.members) - len(alive)
        if gone and (self.way == "vmap" or gone * 4 >= len(self.members)):
            self._resize(alive, 0)
            self.members = [self.members[row] for row in alive]
            if self.members:
                self.refresh()
        else:
            # Copies of a model in training: what has left may hold what is not finite.
            for row, member in enumerate(self.members):
                if not member.alive and row not in self._parked:
                    self._parked.add(row)
                    for group in member.optimizer.param_groups:
                        group["lr"] = 0.0  # else it diverges again
                    self.parameters[row] = self.parameters[alive[0]]
                    for buffer in self.buffers.values():
                        buffer[row] = buffer[alive[0]]
                    self.optimizer.clear_row(row)
                    self.refresh()

    def _resize(self, rows: Sequence[int], added: int) -> None:
        kept = torch.tensor(rows, dtype=torch.int64, device=self.device)

        def resized(array: torch.Tensor) -> torch.Tensor:
            return torch.cat([array[kept], array.new_zeros(added, *array.shape[1:])])

        self.optimizer.resize(resized)
        self.gradients = torch.zeros(0, device=self.device)  # freed before the larger ones are made
        self.parameters = resized(self.parameters)
        self.gradients = torch.zeros_like(self.parameters)
        self.buffers = {name: resized(buffer) for name, buffer in self.buffers.items()}
        self.forget()
        self._parked = set()

    def refresh(self) -> None:
        """Read the hyperparameters in force from the members' own optimisers."""
        self.optimizer.refresh(self.members, self.parameters)
        norms = [member.configuration.clip_norm for member in self.members]
        if min(norms) < math.inf:
            self._clip = torch.tensor(norms, dtype=self.parameters.dtype, device=self.device)
        else:
            self._clip = None

    @property
    def _side_by_side(self) -> bool:
        """Whether models run as parallel operators on a GPU."""
        return self.way == "streams" or (self.way == "compiled" and self.device.type == "cuda")

    def step(self, batch: Batch, seed: int) -> tuple[torch.Tensor, dict[int, str]]:
        """Take a step of each model, and return losses, metrics and failures."""
        values = self.compute_gradients(batch, seed)
        scaled = self.precision is torch.float16
        if scaled:
            self.gradients.div_(self._scales().to(self.gradients.dtype).unsqueeze(1))
        failed = self._failures(values[:, 0])
        if self._clip is not None:
            norms = torch.linalg.vector_norm(self.gradients, 2, dim=1)
            factors = (self._clip / (norms + 1e-6)).clamp_(max=1.0)  # as torch.nn.utils.clip_grad_norm_
            self.gradients.mul_(factors.unsqueeze(1))
        if failed:
            rows = torch.tensor([row for row in range(len(self.members)) if row not in failed], dtype=torch.int64)
            if len(rows):
                self.optimizer.step(self.parameters, self.gradients, rows.to(self.device))
        else:
            self.optimizer.step(self.parameters, self.gradients)
        if scaled:
            for row, member in enumerate(self.members):
                _update_scale(member, failed.get(row))
        return values, failed

    def _failures(self, losses: torch.Tensor) -> dict[int, str]:
        # Finite sums prove that all is finite, at the cost of one look at the gradients.
        if math.isfinite((self.gradients.sum() + losses.sum()).item()):
            return {}
        failed = dict.fromkeys((~self.gradients.isfinite().all(1)).nonzero().flatten().tolist(), "gradient")
        return failed | dict.fromkeys((~losses.isfinite()).nonzero().flatten().tolist(), "loss")

    def _scales(self) -> torch.Tensor:
        return torch.tensor([member.scale for member in self.members], device=self.device)

    def compute_gradients(self, batch: Batch, seed: int) -> torch.Tensor:
        """Fill the gradients, and return the losses and metrics.

        If the memory is too small, half as many models are computed together from then on. Nothing of the step is
        lost: parameters change later, and running statistics are put back.

        Raises
        ------
        OutOfMemory
            One model alone is too large.
        """
        while True:
            try:
                with self._restore_buffers_on_error():
                    return self._compute(batch, seed)
            except RuntimeError as error:  # torch.OutOfMemoryError is one, under two names since PyTorch 2.4
                text = str(error).lower()
                if "out of memory" not in text and "can't allocate memory" not in text:
                    raise
                together = self.at_once or len(self.members)
                if self._side_by_side:  # which holds what each model computes at the same time
                    self.way = "graph"
                elif together == 1:
                    raise OutOfMemory(
                        "One model does not fit in the memory of the device.", hint="Make the batch smaller."
                    ) from error
                else:
                    self.at_once = math.ceil(together / 2)
            self.forget()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def forget(self) -> None:
        """Drop compiled code for other arrays."""
        self._chunks = {}
        self._recordings = {}

    def _compute(self, batch: Batch, seed: int) -> torch.Tensor:
        if self.is_random:
            seed_device(self.device, seed)
        scales = [self._scales()] if self.precision is torch.float16 else []
        if (self.way in RECORDED or self._side_by_side) and not is_ragged(batch):
            recording = self._recording_for(batch, scales)
            if recording is not None:
                return recording.replay([*batch, *scales])
        values = [call() for call in self._calls(batch, scales)]
        return values[0] if len(values) == 1 else torch.cat(values)

    def _calls(self, batch: Batch, scales: Sequence[torch.Tensor]) -> list[Callable[[], torch.Tensor]]:
        """Return what computes the gradients, losses and metrics of each chunk."""
        calls: list[Callable[[], torch.Tensor]] = []
        ragged = is_ragged(batch)
        for rows, parameters, buffers, gradients in self._current_chunks(each=ragged):
            part = [torch.stack(leaf[rows]) if ragged else leaf[rows] for leaf in batch]
            arguments = (parameters, buffers, gradients, [scale[rows] for scale in scales], part)
            calls.append(partial(self.functional.step if ragged else self._step_for(arguments), *arguments))
        return calls

    def _recording_for(self, batch: Batch, scales: Sequence[torch.Tensor]) -> Recording | None:
        """Return the recording for such a batch, None where there are too many."""
        key = (self.way, *((tensor.shape, tensor.stride()[0]) for tensor in batch))
        if key not in self._recordings:
            if len(self._recordings) >= MOST_SHAPES:
                return None
            own = [own_copy(tensor) for tensor in (*batch, *scales)]
            with self._preserve_state():
                calls = self._calls(own[: len(batch)], own[len(batch) :])
                self._recordings[key] = Recording(calls, own, self.device, side_by_side=self._side_by_side)
        return self._recordings[key]

    def _step_for(self, arguments: tuple[Any, ...]) -> Step:
        if self.way == "vmap":
            return self.functional.step
        parameters, *_, batch = arguments
        compiled, rows = self.way == "compiled", parameters[0].shape[0]
        # Strides too: a batch that all models share has other operators.
        key = (compiled, rows, *((tensor.shape, tensor.stride()[0]) for tensor in batch))
        if key not in self._traced:
            if sum(known[:2] == key[:2] for known in self._traced) >= MOST_SHAPES:
                return self.functional.step
            with self._preserve_state():
                self._traced[key] = trace(self.functional.step, arguments, twice=not self._traced, compiled=compiled)
        return self._traced[key]

    def _current_chunks(self, *, each: bool = False) -> list[Chunk]:
        rows = len(self.members)
        together = 1 if self._side_by_side or each else min(self.at_once or rows, rows)
        if together not in self._chunks:
            self._chunks[together] = self._make_chunks(together)
        return self._chunks[together]

    def _make_chunks(self, together: int) -> list[Chunk]:
        rows, offsets = len(self.members), self.optimizer.offsets
        buffers = list(self.buffers.values())

        def views(array: torch.Tensor, part: slice) -> list[torch.Tensor]:
            return [array[part, offsets[at] : offsets[at + 1]].view(-1, *shape) for at, shape in enumerate(self.shapes)]

        parts = [slice(start, min(start + together, rows)) for start in range(0, rows, together)]
        return [
            (part, views(self.parameters, part), [buffer[part] for buffer in buffers], views(self.gradients, part))
            for part in parts
        ]

    @contextmanager
    def _restore_buffers_on_error(self) -> Iterator[None]:
        """Restore buffers if a step fails midway."""
        # What is recorded has its memory already.
        kept = [] if self._recordings else [(buffer, buffer.clone()) for buffer in self.buffers.values()]
        try:
            yield
        except BaseException:
            for buffer, before in kept:
                buffer.copy_(before)
            raise

    @contextmanager
    def _preserve_state(self) -> Iterator[None]:
        """Restore buffers and random state after a ``with`` block."""
        kept = [(buffer, buffer.clone()) for buffer in self.buffers.values()]
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            try:
                yield
            finally:
                for buffer, before in kept:
                    buffer.copy_(before)

    @contextmanager
    def steps_without_effect(self) -> Iterator[None]:
        """Have steps change nothing, to measure them before the first one."""
        groups = [group for member in self.members for group in member.optimizer.param_groups]
        rates, scales = [group["lr"] for group in groups], [member.scale for member in self.members]
        with self._preserve_state():
            for group in groups:
                group["lr"] = 0.0
            self.refresh()
            try:
                yield
            finally:
                for group, rate in zip(groups, rates, strict=True):
                    group["lr"] = rate
                for row, (member, scale) in enumerate(zip(self.members, scales, strict=True)):
                    member.scale, member.steps_without_overflow = scale, 0
                    self.optimizer.clear_row(row)
                self.refresh()

    def evaluate(self, batches: Iterable[Batch]) -> torch.Tensor:
        """Return each model's mean loss and metrics over all samples given."""
        self.template.eval()
        try:
            with torch.no_grad():
                return _mean_over_batches(batches, self._evaluate_batch)
        finally:
            self.template.train()

    def _evaluate_batch(self, batch: Batch) -> torch.Tensor:
        values = []
        for rows, parameters, buffers, _ in self._current_chunks():
            shared = [tensor.expand(rows.stop - rows.start, *tensor.shape) for tensor in batch]
            values.append(self.functional.evaluate(parameters, buffers, shared))
        return torch.cat(values)

    def checkpoint(self, row: int) -> dict[str, Any]:
        """Return a model's and its optimiser's ordinary ``state_dict``."""
        place = {name: at for at, name in enumerate(self.names)}
        offsets = self.optimizer.offsets
        model = {}
        for key, name in self._keys.items():
            if name in place:
                at = place[name]
                model[key] = self.parameters[row, offsets[at] : offsets[at + 1]].reshape(self.shapes[at]).clone()
            else:
                model[key] = self.buffers[name][row].clone()
        return {"model": model, "optimizer": self.optimizer.row_state(row, self.members[row], self.shapes)}

    def state_dict(self) -> dict[str, Any]:
        """Return all arrays."""
        return {
            "parameters": self.parameters.clone(),
            "buffers": {name: buffer.clone() for name, buffer in self.buffers.items()},
            "optimizer": {name: array.clone() for name, array in self.optimizer.state.items()},
            "updates": self.optimizer.updates.clone(),
            "param_groups": [member.optimizer.state_dict()["param_groups"] for member in self.members],
            "at_once": self.at_once,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take all arrays over."""
        for member, groups in zip(self.members, state["param_groups"], strict=True):
            member.optimizer.load_state_dict({"state": {}, "param_groups": groups})
        self.parameters.copy_(state["parameters"])
        for name, buffer in self.buffers.items():
            buffer.copy_(state["buffers"][name])
        self.optimizer.state = {name: array.to(self.device) for name, array in state["optimizer"].items()}
        self.optimizer.updates.copy_(state["updates"])
        self.at_once = state["at_once"]
        self.forget()
        self.refresh()


def _mean_over_batches(batches: Iterable[Batch], evaluate: Callable[[Batch], torch.Tensor]) -> torch.Tensor:
    """Return the mean over the samples of all batches."""
    total: Any = 0.0
    n_samples = 0
    for batch in batches:
        count = count_samples(batch)
        total = total + evaluate(batch) * count
        n_samples += count
    mean: torch.Tensor = total / n_samples
    return mean


def _state_keys(model: nn.Module) -> dict[str, str]:
    """Return each key of a ``state_dict`` with the name of its tensor.

    A tensor that modules share has several keys.
    """
    names = {id(tensor): name for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
    return {
        key: names[id(tensor)]
        for key, tensor in model.state_dict(keep_vars=True).items()
        if isinstance(tensor, torch.Tensor)
    }
