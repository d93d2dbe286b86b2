"""The trainer of many models at once.

Epochs, schedules, early stopping, and models that leave and join.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from helios.errors import ConfigurationInvalid, UsageError
from helios.training.fused.batches import Batches, as_batch
from helios.training.fused.choice import choose_way
from helios.training.fused.configurations import OPTIMIZERS, Member, check_configuration, make_member, mix_seeds
from helios.training.fused.models import Models, isolate_random_state
from helios.training.fused.stack import RECORDED, Separate, Stack, difference
from helios.training.fused.ways import Loss, Obstacle, silence_warnings

WAYS = ("auto", "traced", "vmap", "serial", "compiled", "graph", "streams")
PRECISIONS = {None: None, "float16": torch.float16, "bfloat16": torch.bfloat16}


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
        self._options: dict[str, Any] = {
            "optimizer": optimizer,
            "batch_size": batch_size,
            "precision": precision,
            "on_nan": on_nan,
        }
        self._optimizer = optimizer
        self._precision = PRECISIONS[precision]
        samples = as_batch(data, self.device)
        self._validation = as_batch(validation, self.device) if validation is not None else None
        self._batches = Batches(*samples, batch_size)
        self.steps_per_epoch = self._batches.steps_per_epoch
        self.finished: dict[int, Finished] = {}
        self.obstacles: list[Obstacle] = []
        self.steps_taken = 0
        self._next_number = 0
        self._loss_sums = torch.zeros(0, dtype=torch.float64, device=self.device)
        checked = [check_configuration(number, each, optimizer) for number, each in enumerate(given)]
        self.measured_s: dict[str, float] = {}
        self._models = Models(
            build,
            loss,
            optimizer,
            device=self.device,
            precision=self._precision,
            first=checked[0],
            batches=self._batches,
        )
        self._engine = self._make_engine(way)
        if isinstance(self._engine, Stack):
            stand_in = make_member(checked[0], self._engine.parameters_of(self._models.template))
            self._engine.reserve(len(given), stand_in)
            self._loss_sums = self._loss_sums.new_zeros(len(given))
        for each in given:
            self.add(each)
        if isinstance(self._engine, Stack) and way == "auto":
            batch = self._batches.next_batch(self._engine.members)
            self.measured_s = choose_way(self._engine, self._models, *batch, compiles=compiles)
            if self._engine.way == "serial":
                self._engine = self._models.separate(self._engine)

    @property
    def way(self) -> str:
        """How gradients are computed."""
        return self._engine.way

    @property
    def numbers(self) -> list[int]:
        """The numbers of the configurations that are in training."""
        return [member.configuration.number for member in self._engine.members if member.alive]

    def _make_engine(self, way: str) -> Stack | Separate:
        if way == "serial":
            return self._models.make_separate()
        self.obstacles = self._models.find_obstacles(self._batches)
        if self.obstacles:
            return self._models.make_separate()
        stack = self._models.make_stack()
        stack.way = "traced" if way == "auto" else way
        return stack

    def add(self, configuration: Mapping[str, Any], checkpoint: Mapping[str, Any] | None = None) -> int:
        """Add a model, new or from a checkpoint, and return its number.

        Raises
        ------
        ConfigurationInvalid
            The configuration is refused, or its model has another structure.
        """
        number = self._next_number
        checked = check_configuration(number, configuration, self._optimizer)
        model = self._models.make_model(checked.given, checked.seed)
        if text := difference(self._models.settings, model):
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
        self._batches.orders = None
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
            self._batches.orders = None
            self._loss_sums = self._loss_sums[torch.tensor(alive, dtype=torch.int64, device=self.device)]

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
        with isolate_random_state(self.device), silence_warnings():
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
        engine, batches = self._engine, self._batches
        alive = [row for row, member in enumerate(engine.members) if member.alive]
        if isinstance(engine, Separate):
            samples = [batches.next_samples(member, count) for member in engine.members]
            losses, sums = engine.step(batches.inputs, batches.target, samples, batches.size, self._handle_failure)
            self._loss_sums += sums
        else:
            inputs, target = batches.next_batch(engine.members)
            losses, failed = engine.step(inputs, target, mix_seeds(self.steps_taken, batches.n_samples))
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
        model = self._models.make_model(stored["configuration"], 0)
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
