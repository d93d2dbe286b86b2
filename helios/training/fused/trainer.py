"""The trainer of many models at once.

Batches, epochs, schedules, early stopping, and models that leave and join. How many models fit in memory is known from
a run of one and a run of two (the rule of Hydro, OSDI'23).
"""

from __future__ import annotations

import math
import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from helios.errors import ConfigurationInvalid, HeliosError, UsageError
from helios.training.fused.configurations import (
    OPTIMIZERS,
    Member,
    check_configuration,
    epoch_order,
    make_member,
    mix_seeds,
)
from helios.training.fused.stack import (
    RECORDED,
    OutOfMemory,
    Separate,
    Stack,
    difference,
    named_trained,
    named_untrained,
    seed_device,
)
from helios.training.fused.ways import (
    CannotFuse,
    Loss,
    Obstacle,
    autocast,
    check_loss,
    exact_convolutions,
    fastest,
    find_failure,
    find_sparse,
    mean_loss,
    silence_warnings,
)

WAYS = ("auto", "traced", "vmap", "serial", "compiled", "graph", "streams")
PRECISIONS = {None: None, "float16": torch.float16, "bfloat16": torch.bfloat16}
SAMPLES_TO_CHECK = 16
"""Most samples of the batch with which it is checked whether a model can be fused."""
AGREES_WITHIN = {torch.float64: 1e-8, torch.float32: 5e-3}
"""Largest difference between fused and separate gradients, as part of the largest gradient: rounding, not a fault."""


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """What one model reached in one epoch."""

    number: int
    epoch: int
    step: int
    training_loss: float
    validation_loss: float | None


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A model that has left, why, and its checkpoint."""

    number: int
    reason: str
    step: int
    checkpoint: Mapping[str, Any]
    history: tuple[Epoch, ...]


class FusedTrainer:
    """Trains many models of one structure in one process.

    Each is trained as if it were alone.

    Parameters
    ----------
    build : callable
        Makes a model from a configuration. The random state is seeded with the configuration's ``seed`` before.
    loss : callable
        Loss of the model's output and the target, either a mean over the batch or one value per sample.
    data : (inputs, target)
        Tensors with the samples as first dimension; ``inputs`` may be several. An incomplete last batch of an epoch
        is left out.
    configurations : iterable of mapping
        One per model. Keys: those of the optimiser (``lr``, ``momentum``, ...), ``groups``, ``schedule``, ``seed``,
        ``data_seed``, ``clip_norm``, ``early_stopping``, ``steps``, and ``model`` for what ``build`` needs.
    optimizer : str
        ``sgd``, ``adam``, ``adamw`` or ``adadelta``.
    validation : (inputs, target), optional
        Its loss is computed at the end of each epoch. Early stopping and plateau schedules look at it, or at the
        training loss if there is none.
    precision : str, optional
        ``float16`` or ``bfloat16`` for mixed precision.
    on_nan : str
        What becomes of a model whose loss or gradient is not finite: ``stop``, or ``skip`` the step.
    way : str
        ``auto`` measures ``traced``, ``vmap`` and ``serial``, on a GPU ``graph`` and ``streams`` too, and takes the
        fastest. They are described in ``helios/training/fused/ways.py``.
    compiles : bool
        Whether ``auto`` measures ``compiled`` too. PyTorch compiles for 5 to 30 s.

    Attributes
    ----------
    way : str
        How gradients are computed.
    steps_per_epoch : int
        Number of complete batches.
    obstacles : list of Obstacle
        Why the models cannot be fused, if so: they are trained one after another.
    finished : dict of int to Finished
        The models that have left, by the numbers of their configurations.

    Raises
    ------
    ConfigurationInvalid
        A configuration is refused; the message has its number and the key.
    LossInvalid
        The loss is neither a mean nor per sample.
    """

    def __init__(
        self,
        build: Callable[[Mapping[str, Any]], nn.Module],
        loss: Loss,
        data: tuple[Any, torch.Tensor],
        configurations: Iterable[Mapping[str, Any]],
        *,
        optimizer: str = "sgd",
        batch_size: int,
        validation: tuple[Any, torch.Tensor] | None = None,
        device: str | torch.device = "cpu",
        precision: str | None = None,
        on_nan: str = "stop",
        way: str = "auto",
        compiles: bool = False,
    ) -> None:
        for name, value, known in (
            ("optimizer", optimizer, OPTIMIZERS),
            ("precision", precision, PRECISIONS),
            ("on_nan", on_nan, ("stop", "skip")),
            ("way", way, WAYS),
        ):
            if value not in known:
                choices = ", ".join(str(choice) for choice in known)
                raise UsageError(f"{name} is {value!r}.", hint=f"Known: {choices}.")
        given = list(configurations)
        if not given:
            raise ConfigurationInvalid("There are no configurations.", hint="Give at least one: [{'lr': 0.1}].")
        self.device = torch.device(device)
        if way in RECORDED and self.device.type != "cuda":
            raise UsageError(f"way is {way!r}, which is for NVIDIA GPUs.", hint="Leave it out, or give device='cuda'.")
        self._build = build
        self._loss = loss
        self._options: dict[str, Any] = {
            "optimizer": optimizer,
            "batch_size": batch_size,
            "precision": precision,
            "on_nan": on_nan,
        }
        self._optimizer = optimizer
        self._batch_size = batch_size
        self._precision = PRECISIONS[precision]
        self._inputs, self._target = self._as_batch(data)
        self._n_samples = len(self._target)
        self._validation = self._as_batch(validation) if validation is not None else None
        if not 0 < batch_size <= self._n_samples:
            raise UsageError(
                f"A batch of {batch_size} samples cannot be taken from {self._n_samples}.",
                hint="Give a batch_size between 1 and the number of samples.",
            )
        self.steps_per_epoch = self._n_samples // batch_size
        self.finished: dict[int, Finished] = {}
        self.obstacles: list[Obstacle] = []
        self.steps_taken = 0
        self._next_number = 0
        self._loss_sums = torch.zeros(0, dtype=torch.float64, device=self.device)
        self._orders: torch.Tensor | None = None
        checked = [check_configuration(number, each, optimizer) for number, each in enumerate(given)]
        self._first = checked[0].given
        self.measured_s: dict[str, float] = {}
        self._template = self._make_model(checked[0].given, checked[0].seed)
        self._is_random, self._unused = self._look_at_model()
        self._engine = self._make_engine(way)
        if isinstance(self._engine, Stack):
            stand_in = make_member(checked[0], self._engine.parameters_of(self._template))
            self._engine.reserve(len(given), stand_in)
            self._loss_sums = self._loss_sums.new_zeros(len(given))
        for each in given:
            self.add(each)
        if isinstance(self._engine, Stack) and way == "auto":
            self._choose_way(compiles)

    @property
    def way(self) -> str:
        """How gradients are computed."""
        return self._engine.way

    @property
    def numbers(self) -> list[int]:
        """The numbers of the configurations that are in training."""
        return [member.configuration.number for member in self._engine.members if member.alive]

    # Before training

    def _as_batch(self, data: tuple[Any, torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
        inputs, target = data
        inputs = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
        lengths = {len(tensor) for tensor in (*inputs, target)}
        if len(lengths) != 1:
            raise UsageError(f"Inputs and target have {sorted(lengths)} samples.", hint="Give each sample one target.")
        return [tensor.to(self.device) for tensor in inputs], target.to(self.device)

    def _make_model(self, configuration: Mapping[str, Any], seed: int) -> nn.Module:
        with self._isolate_random_state():
            torch.manual_seed(seed)
            return self._build(configuration).to(self.device).train()

    def _look_at_model(self) -> tuple[bool, set[str]]:
        """Return whether a step draws random numbers, and the unused parameters."""
        if not named_trained(self._template):
            raise UsageError("The model has no parameters to train.", hint="See requires_grad.")
        size = min(self._batch_size, SAMPLES_TO_CHECK)
        inputs, target = [tensor[:size] for tensor in self._inputs], self._target[:size]
        kept = [tensor.clone() for _, tensor in named_untrained(self._template)]
        with self._isolate_random_state():
            seed_device(self.device, 0)
            before = self._random_state()
            with autocast(self.device, self._precision):
                output = self._template(*inputs)
                with torch.no_grad():
                    check_loss(self._loss, output, target, size)
                value = mean_loss(self._loss, output, target)
            is_random = not torch.equal(before, self._random_state())
        names = [name for name, _ in named_trained(self._template)]
        found = torch.autograd.grad(value, [own for _, own in named_trained(self._template)], allow_unused=True)
        with torch.no_grad():
            for (_, tensor), before in zip(named_untrained(self._template), kept, strict=True):
                tensor.copy_(before)
        return is_random, {name for name, own in zip(names, found, strict=True) if own is None}

    def _isolate_random_state(self) -> AbstractContextManager[None]:
        """Leave the caller's random numbers as they are."""
        context: AbstractContextManager[None] = torch.random.fork_rng(
            [self.device] if self.device.type == "cuda" else []
        )
        return context

    def _random_state(self) -> torch.Tensor:
        return torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else torch.get_rng_state()

    def _make_engine(self, way: str) -> Stack | Separate:
        separate = Separate(self._loss, device=self.device, precision=self._precision, is_random=self._is_random)
        if way == "serial":
            return separate
        self.obstacles = self._find_obstacles()
        if self.obstacles:
            return separate
        stack = self._make_stack()
        stack.way = "traced" if way == "auto" else way
        return stack

    def _make_stack(self) -> Stack:
        return Stack(
            self._template,
            self._loss,
            self._optimizer,
            device=self.device,
            precision=self._precision,
            is_random=self._is_random,
            unused=self._unused,
        )

    def _find_obstacles(self) -> list[Obstacle]:
        """Return why the models cannot be fused.

        A step of two of them is tried, and compared with separate steps.
        """
        if sparse := find_sparse(self._template):
            return sparse
        kinds = {own.dtype for _, own in named_trained(self._template)}
        if len(kinds) > 1:
            return [Obstacle("the model itself", f"its parameters are of several types, {sorted(map(str, kinds))}")]
        configuration = check_configuration(0, {}, self._optimizer)
        stack = self._make_stack()
        seeds = (0, 1)
        models = [self._make_model(self._first, seed) for seed in seeds]
        for model in models:
            stack.add(make_member(configuration, stack.parameters_of(model)), model, None)
        size = min(self._batch_size, SAMPLES_TO_CHECK)
        inputs = [torch.stack([tensor[:size], tensor[-size:]]) for tensor in self._inputs]
        target = torch.stack([self._target[:size], self._target[-size:]])
        with self._isolate_random_state(), silence_warnings(), exact_convolutions(self.device):
            obstacle = find_failure(self._template, lambda: stack.compute_gradients(inputs, target, 0))
            if obstacle:
                return [obstacle]
            if self._is_random:  # then two steps differ by their random numbers
                return []
            for row, model in enumerate(models):
                with autocast(self.device, self._precision):
                    value = mean_loss(self._loss, model(*(tensor[row] for tensor in inputs)), target[row])
                (value * 65_536.0 if self._precision is torch.float16 else value).backward()
                if wrong := self._first_mismatch(stack, row, model):
                    return [Obstacle(wrong, "fused, it changes in another way than alone")]
        return []

    def _first_mismatch(self, stack: Stack, row: int, model: nn.Module) -> str | None:
        """Return the first tensor that changes in another way in the stack."""
        offsets = stack.optimizer.offsets
        tolerance = AGREES_WITHIN.get(stack.parameters.dtype, 0.05) if self._precision is None else 0.2
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

    def _choose_way(self, compiles: bool) -> None:
        """Choose the fastest way by measuring all."""
        stack = self._engine
        assert isinstance(stack, Stack)
        inputs, target = self._next_batch()
        separate = Separate(self._loss, device=self.device, precision=self._precision, is_random=self._is_random)
        configuration = stack.members[0].configuration
        model = self._make_model(configuration.given, configuration.seed)
        member = make_member(configuration, separate.parameters_of(model))

        # As many in a row as a model takes of an epoch, more or less: the first finds nothing in the cache.
        in_a_row = max(len(stack.members), 16)

        def one_alone() -> None:
            for _ in range(in_a_row):
                separate.take_step(member, model, [tensor[0] for tensor in inputs], target[0])
            self._wait()

        def all_by(way: str) -> None:
            stack.way = way
            stack.step(inputs, target, 0)
            self._wait()

        ways: dict[str, Callable[[], None]] = {"serial": one_alone, "vmap": partial(all_by, "vmap")}
        others = ["traced", *(RECORDED if self.device.type == "cuda" else ()), *(["compiled"] if compiles else [])]
        with stack.steps_without_effect(), silence_warnings():
            for way in others:
                try:
                    all_by(way)
                except (CannotFuse, RuntimeError, NotImplementedError):
                    continue  # what make_fx cannot record runs by vmap
                if stack.way == way:  # and not another one, for want of memory
                    ways[way] = partial(all_by, way)
                stack.forget()
            times = fastest(ways) if self.device.type == "cpu" else self._time_each_way(ways, stack)
        times["serial"] *= len(stack.members) / in_a_row
        self.measured_s = times
        stack.way = min(times, key=lambda way: times[way])
        if stack.way == "serial":
            self._switch_to_separate()

    def _time_each_way(self, ways: Mapping[str, Callable[[], None]], stack: Stack) -> dict[str, float]:
        """Return the shortest time of each way, s, one after another."""
        times: dict[str, float] = {}
        for way, run in ways.items():
            times |= fastest({way: run})
            stack.forget()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        return times

    def _wait(self) -> None:
        """Wait until the GPU has done its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _switch_to_separate(self) -> None:
        """Go on with models that are trained one after another."""
        stack = self._engine
        engine = Separate(self._loss, device=self.device, precision=self._precision, is_random=self._is_random)
        self._engine = engine
        for row, member in enumerate(stack.members):
            stored = stack.checkpoint(row)
            model = self._make_model(member.configuration.given, member.configuration.seed)
            model.load_state_dict(stored["model"])
            new = make_member(member.configuration, engine.parameters_of(model))
            new.load_state_dict(member.state_dict())
            engine.add(new, model, stored["optimizer"])

    # Models join and leave

    def add(self, configuration: Mapping[str, Any], checkpoint: Mapping[str, Any] | None = None) -> int:
        """Add a model, new or from a checkpoint, and return its number.

        Raises
        ------
        ConfigurationInvalid
            The configuration is refused, or its model has another structure.
        """
        number = self._next_number
        checked = check_configuration(number, configuration, self._optimizer)
        model = self._make_model(checked.given, checked.seed)
        if text := difference(self._template, model):
            raise checked.invalid(
                "model", text, "Models train together only if they have the same structure and settings."
            )
        if checkpoint is not None:
            model.load_state_dict(checkpoint["model"])
        member = make_member(checked, self._engine.parameters_of(model))
        row = self._engine.add(member, model, checkpoint["optimizer"] if checkpoint is not None else None)
        if checkpoint is not None:
            member.load_state_dict(checkpoint)
            self._engine.refresh()
        self._orders = None
        if row == len(self._loss_sums):
            self._loss_sums = torch.cat([self._loss_sums, self._loss_sums.new_zeros(1)])
        self._loss_sums[row] = 0.0
        self._next_number += 1
        return number

    def remove(self, number: int, reason: str = "removed") -> Finished:
        """Have a model leave, and return it."""
        _, member = self._find(number)
        finished = Finished(
            number=number,
            reason=reason,
            step=member.step,
            checkpoint=self.checkpoint(number),
            history=tuple(Epoch(**each) for each in member.history),
        )
        self.finished[number] = finished
        member.alive = False
        return finished

    def _find(self, number: int) -> tuple[int, Member]:
        for row, member in enumerate(self._engine.members):
            if member.alive and member.configuration.number == number:
                return row, member
        raise UsageError(f"Model {number} is not in training.", hint=f"In training: {self.numbers}.")

    def _settle(self) -> None:
        members = self._engine.members
        if all(member.alive for member in members):
            return
        alive = [row for row, member in enumerate(members) if member.alive]
        self._engine.compact()
        if len(self._engine.members) == len(alive):
            self._orders = None
            self._loss_sums = self._loss_sums[torch.tensor(alive, dtype=torch.int64, device=self.device)]

    # Training

    def train(
        self,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        on_epoch: Callable[[FusedTrainer, Sequence[Epoch]], None] | None = None,
    ) -> None:
        """Train until no model is left.

        It stops earlier after the given number of epochs or steps.

        Parameters
        ----------
        on_epoch : callable, optional
            Called with this trainer and what each model reached at the end of its epoch. It may remove and add models.
        """
        if (
            epochs is None
            and steps is None
            and any(self._find(n)[1].configuration.steps == math.inf for n in self.numbers)
        ):
            raise UsageError(
                "Nothing says when training ends.", hint="Give epochs or steps, or each configuration its steps."
            )
        left = min(math.inf if steps is None else steps, math.inf if epochs is None else epochs * self.steps_per_epoch)
        with self._isolate_random_state(), silence_warnings():
            while left > 0 and self.numbers:
                count = self._steps_together(left)
                self._take_steps(count, on_epoch)
                left -= count

    def step(self, on_epoch: Callable[[FusedTrainer, Sequence[Epoch]], None] | None = None) -> torch.Tensor:
        """Take one step of each model, and return the losses of ``numbers``."""
        return self._take_steps(1, on_epoch)

    def _steps_together(self, left: float) -> int:
        """Return how many steps separate models take in turn.

        Until an epoch or a model ends: parameters that stay in the processor's cache save a tenth of the time.
        """
        if isinstance(self._engine, Stack):
            return 1
        members = [member for member in self._engine.members if member.alive]
        until_epoch = min(self.steps_per_epoch - member.step % self.steps_per_epoch for member in members)
        until_end = min(member.configuration.steps - member.step for member in members)
        return int(max(1, min(left, until_epoch, until_end)))

    def _take_steps(self, count: int, on_epoch: Callable[[FusedTrainer, Sequence[Epoch]], None] | None) -> torch.Tensor:
        if not self.numbers:
            raise UsageError("No model is in training.", hint="Add one with trainer.add(...).")
        self._settle()
        engine = self._engine
        alive = [row for row, member in enumerate(engine.members) if member.alive]
        if isinstance(engine, Separate):
            samples = [self._next_samples(member, count) for member in engine.members]
            losses, sums = engine.step(self._inputs, self._target, samples, self._batch_size, self._handle_failure)
            self._loss_sums += sums
        else:
            inputs, target = self._next_batch()
            losses, failed = engine.step(inputs, target, mix_seeds(self.steps_taken, self._n_samples))
            for row in alive:
                engine.members[row].step += 1
            self._loss_sums += losses
            for row, what in failed.items():
                self._handle_failure(engine.members[row], what)
        self.steps_taken += count
        self._after_step(on_epoch)
        return losses if len(alive) == len(losses) else losses[alive]

    def _handle_failure(self, member: Member, what: str) -> None:
        overflow = what == "gradient" and self._precision is torch.float16  # the scale has been halved
        if member.alive and self._options["on_nan"] == "stop" and not overflow:
            self.remove(member.configuration.number, f"its {what} is not finite")

    def _next_samples(self, member: Member, count: int = 1) -> torch.Tensor:
        """Return the samples of a model's next steps."""
        epoch, at = divmod(member.step, self.steps_per_epoch)
        if member.order is None or member.order_epoch != epoch:
            order = epoch_order(self._n_samples, member.configuration.data_seed, epoch)
            member.order, member.order_epoch = order.to(self.device), epoch
        return member.order[at * self._batch_size : (at + count) * self._batch_size]

    def _next_batch(self) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Return the samples that each model takes next, in its own order."""
        members = self._engine.members
        places = {member.step % self.steps_per_epoch for member in members if member.alive}
        if len({(member.configuration.data_seed, member.step) for member in members}) == 1:
            # All take the same: it is fetched and stored once.
            samples = self._next_samples(members[0])
            shared = [tensor[samples] for tensor in (*self._inputs, self._target)]
            batch = [tensor.expand(len(members), *tensor.shape) for tensor in shared]
            return batch[:-1], batch[-1]
        if len(places) == 1:
            at = places.pop()
            if at == 0 or self._orders is None:
                for member in members:
                    self._next_samples(member)
                self._orders = torch.stack([member.order for member in members if member.order is not None])
            samples = self._orders[:, at * self._batch_size : (at + 1) * self._batch_size]
        else:
            samples = torch.stack([self._next_samples(member) for member in members])
        batch = [tensor[samples] for tensor in (*self._inputs, self._target)]
        return batch[:-1], batch[-1]

    def _after_step(self, on_epoch: Callable[[FusedTrainer, Sequence[Epoch]], None] | None) -> None:
        changed, ended = False, []
        for row, member in enumerate(self._engine.members):
            if not member.alive:
                continue
            if member.schedules:
                changed |= member.advance_schedules("step")
            if member.step % self.steps_per_epoch == 0:
                ended.append(row)
        reached = self._end_epochs(ended) if ended else []
        if changed or reached:
            self._engine.refresh()
        for member in self._engine.members:
            if member.alive and member.step >= member.configuration.steps:
                self.remove(member.configuration.number, "all its steps are done")
        if reached and on_epoch is not None:
            on_epoch(self, reached)

    def _end_epochs(self, rows: Sequence[int]) -> list[Epoch]:
        validation = self._engine.evaluate(*self._validation).tolist() if self._validation is not None else None
        training = (self._loss_sums / self.steps_per_epoch).tolist()
        reached = []
        for row in rows:
            member = self._engine.members[row]
            epoch = {
                "number": member.configuration.number,
                "epoch": member.step // self.steps_per_epoch,
                "step": member.step,
                "training_loss": training[row],
                "validation_loss": validation[row] if validation is not None else None,
            }
            member.history.append(epoch)
            reached.append(Epoch(**epoch))
            loss = validation[row] if validation is not None else training[row]
            member.advance_schedules("epoch", loss)
            if loss < member.best - member.configuration.min_delta:
                member.best, member.epochs_without_gain = loss, 0
            else:
                member.epochs_without_gain += 1
            self._loss_sums[row] = 0.0
            if member.epochs_without_gain >= member.configuration.patience:
                self.remove(member.configuration.number, f"no gain in {member.epochs_without_gain} epochs")
        return reached

    # Checkpoints

    def checkpoint(self, number: int) -> dict[str, Any]:
        """Return one model as ordinary ``state_dict``s, with its configuration and progress.

        ``model`` loads into the unfused model, and ``optimizer`` and ``schedules`` into those of ``make_optimizer``.
        ``add`` takes the whole back.
        """
        row, member = self._find(number)
        return self._engine.checkpoint(row) | member.state_dict()

    def model(self, number: int) -> nn.Module:
        """Return a model with its current or final parameters."""
        stored = self.finished[number].checkpoint if number in self.finished else self.checkpoint(number)
        model = self._make_model(stored["configuration"], 0)
        model.load_state_dict(stored["model"])
        return model

    def save(self, path: str | Path) -> None:
        """Store the whole run for ``load``, which continues it bit for bit.

        A run that is killed meanwhile finds the file of before.
        """
        state = {
            "options": self._options,
            "way": self.way,
            "members": [member.state_dict() for member in self._engine.members],
            "arrays": self._engine.state_dict(),
            "loss_sums": self._loss_sums,
            "steps_taken": self.steps_taken,
            "next_number": self._next_number,
            "finished": [
                {**vars(each), "checkpoint": dict(each.checkpoint), "history": [vars(epoch) for epoch in each.history]}
                for each in self.finished.values()
            ],
        }
        path = Path(path)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    @classmethod
    def load(
        cls,
        path: str | Path,
        build: Callable[[Mapping[str, Any]], nn.Module],
        loss: Loss,
        data: tuple[Any, torch.Tensor],
        *,
        validation: tuple[Any, torch.Tensor] | None = None,
        device: str | torch.device = "cpu",
    ) -> FusedTrainer:
        """Return the trainer that ``save`` stored, given the same functions and data."""
        state = torch.load(path, map_location=device, weights_only=True)
        members = state["members"]
        if not members:
            raise UsageError("No model of the stored run is in training.", hint="Its file has them under 'finished'.")
        trainer = cls(
            build,
            loss,
            data,
            [member["configuration"] for member in members],
            validation=validation,
            device=device,
            way=state["way"],
            **state["options"],
        )
        engine = trainer._engine
        for member, stored in zip(engine.members, members, strict=True):
            member.configuration = check_configuration(
                stored["number"], stored["configuration"], state["options"]["optimizer"]
            )
            member.load_state_dict(stored)
        engine.load_state_dict(state["arrays"])
        trainer._loss_sums.copy_(state["loss_sums"])
        trainer.steps_taken, trainer._next_number = state["steps_taken"], state["next_number"]
        for each in state["finished"]:
            history = tuple(Epoch(**epoch) for epoch in each["history"])
            trainer.finished[each["number"]] = Finished(**{**each, "history": history})
        return trainer


def _largest(tensor: torch.Tensor) -> float:
    """Return the largest finite absolute value, 0 if there is none."""
    finite = tensor[tensor.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _agree(one: torch.Tensor, other: torch.Tensor, tolerance: float, scale: float) -> bool:
    return bool(torch.allclose(one, other.to(one), rtol=tolerance, atol=tolerance * max(scale, 1e-12), equal_nan=True))


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
    loss: Loss,
    data: tuple[Any, torch.Tensor],
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
    loss: Loss,
    data: tuple[Any, torch.Tensor],
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
