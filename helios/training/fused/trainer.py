"""The trainer of many models at once.

Epochs, schedules, early stopping, and models that leave and join.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from helios.errors import ConfigurationInvalid, UsageError
from helios.training.fused.batches import Batches, TensorBatches, as_tensors, check_batch_size, is_ragged, is_tensors
from helios.training.fused.choice import choose_way
from helios.training.fused.configurations import OPTIMIZERS, Member, check_configuration, make_member, mix_seeds
from helios.training.fused.loaders import LoaderBatches
from helios.training.fused.models import Models, isolate_random_state
from helios.training.fused.objective import Loss, Objective, TrainingStep
from helios.training.fused.stack import RECORDED, Separate, Stack
from helios.training.fused.structure import difference
from helios.training.fused.ways import Obstacle, autocast, silence_warnings

WAYS = ("auto", "traced", "vmap", "serial", "compiled", "graph", "streams")
PRECISIONS = {None: None, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """What one model reached in one epoch.

    Attributes
    ----------
    metrics : mapping
        What the step returns beside the loss, of the validation data, or of training if there are none.
    """

    number: int
    epoch: int
    step: int
    training_loss: float
    validation_loss: float | None
    metrics: Mapping[str, float] = field(default_factory=dict)


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
    loss : callable, optional
        Loss of the model's output and the target, either a mean over the batch or one value per sample.
    data : (inputs, target) or iterable
        Tensors with the samples as first dimension; ``inputs`` may be several. An incomplete last batch of an epoch
        is left out. Or a DataLoader, or any object that gives the batches of an epoch each time that it is iterated.
    configurations : iterable of mapping
        One per model. Keys: those of the optimiser (``lr``, ``momentum``, ...), ``groups``, ``schedule``, ``seed``,
        ``data_seed``, ``clip_norm``, ``early_stopping``, ``steps``, ``epochs``, and ``model`` for what ``build`` needs.
    optimizer : str
        ``sgd``, ``adam``, ``adamw`` or ``adadelta``.
    batch_size : int, optional
        Samples of a step, where the data are tensors.
    step : callable, optional
        In place of ``loss``: ``step(model, batch)`` returns the mean loss, or a dictionary with it under ``loss`` and
        metrics. A batch of tensors is ``(*inputs, target)``, one of a loader is as that gives it.
    validation : (inputs, target) or iterable, optional
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
    steps_per_epoch : int, optional
        Number of batches. None for an iterable whose number is known at its end.
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
        loss: Loss | None,
        data: Any,
        configurations: Iterable[Mapping[str, Any]],
        *,
        optimizer: str = "sgd",
        batch_size: int | None = None,
        step: TrainingStep | None = None,
        validation: Any = None,
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
        check_batch_size(data, batch_size)
        self._batches: Batches = (
            TensorBatches(as_tensors(data, self.device), batch_size or 1)
            if is_tensors(data)
            else LoaderBatches(data, self.device)
        )
        self._objective = Objective(loss, step, self._batches.layout)
        self._validation = None if validation is None else make_validation(validation, self._batches, self.device)
        self.steps_per_epoch = self._batches.steps_per_epoch
        self.finished: dict[int, Finished] = {}
        self.obstacles: list[Obstacle] = []
        self.steps_taken = 0
        self._next_number = 0
        checked = [check_configuration(number, each, optimizer) for number, each in enumerate(given)]
        self.measured_s: dict[str, float] = {}
        self._models = Models(
            build,
            self._objective,
            optimizer,
            device=self.device,
            precision=self._precision,
            first=checked[0],
            batches=self._batches,
        )
        # Of each model over the batches of its epoch: the loss and the metrics.
        self._sums = torch.zeros(0, 1 + len(self._objective.names), dtype=torch.float64, device=self.device)
        self._engine = self._make_engine(way)
        if isinstance(self._engine, Stack):
            stand_in = make_member(checked[0], self._engine.parameters_of(self._models.template))
            self._engine.reserve(len(given), stand_in)
            self._sums = self._sums.new_zeros(len(given), self._sums.shape[1])
        for each in given:
            self.add(each)
        if isinstance(self._engine, Stack) and way == "auto":
            batch = self._batches.next_batch(self._engine.members)
            if is_ragged(batch):
                reason = "their shapes differ from model to model: give all the same data_seed"
                self.obstacles = [Obstacle("the batches", reason)]
                self._engine.way = "serial"
            else:
                self.measured_s = choose_way(self._engine, self._models, batch, compiles=compiles)
            if self._engine.way == "serial":
                self._engine = self._models.separate(self._engine)

    @property
    def way(self) -> str:
        """How gradients are computed."""
        return self._engine.way

    def validation_outputs(self, model: nn.Module) -> tuple[torch.Tensor, Any]:
        """Return a model's output of all validation data, and their target."""
        assert self._validation is not None
        outputs, targets = [], []
        with torch.no_grad(), autocast(self.device, self._precision):
            for batch in self._validation.read_all():
                inputs, target = self._objective.split(batch)
                outputs.append(model(*inputs))
                targets.append(target)
        return torch.cat(outputs), torch.cat(targets)

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
        self._batches.forget(self._engine.members)
        if row == len(self._sums):
            self._sums = torch.cat([self._sums, self._sums[:0].new_zeros(1, self._sums.shape[1])])
        self._sums[row] = 0.0 if checkpoint is None else torch.tensor(checkpoint["sums"])
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
            self._batches.forget(self._engine.members)
            self._sums = self._sums[torch.tensor(alive, dtype=torch.int64, device=self.device)]

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
        if epochs is None and steps is None:
            ends = [self._find(number)[1].configuration for number in self.numbers]
            if any(each.steps == each.epochs == math.inf for each in ends):
                raise UsageError(
                    "Nothing says when training ends.",
                    hint="Give epochs or steps, or each configuration its steps or epochs.",
                )
        left = math.inf if steps is None else steps
        until: dict[int, float] = {}
        if epochs is not None and self.steps_per_epoch is not None:
            left = min(left, epochs * self.steps_per_epoch)
        elif epochs is not None:
            until = {member.configuration.number: member.epoch + epochs for member in self._engine.members}
        with isolate_random_state(self.device), silence_warnings():
            while left > 0 and self.numbers:
                if until and all(self._find(n)[1].epoch >= until.get(n, 0) for n in self.numbers):
                    break
                count = self._steps_together(left)
                self._take_steps(count, on_epoch)
                left -= count

    def step(self, on_epoch: Callable[[FusedTrainer, Sequence[Epoch]], None] | None = None) -> torch.Tensor:
        """Take one step of each model, and return the losses of ``numbers``."""
        return self._take_steps(1, on_epoch)

    def _steps_together(self, left: float) -> int:
        """Return how many steps separate models take in turn.

        Until an epoch or a model ends.
        """
        if isinstance(self._engine, Stack):
            return 1
        members = [member for member in self._engine.members if member.alive]
        in_a_row = min(self._batches.most_in_a_row(member) for member in members)
        until_end = min(member.configuration.steps - member.step for member in members)
        return int(max(1, min(left, in_a_row, until_end)))

    def _take_steps(self, count: int, on_epoch: Callable[[FusedTrainer, Sequence[Epoch]], None] | None) -> torch.Tensor:
        if not self.numbers:
            raise UsageError("No model is in training.", hint="Add one with trainer.add(...).")
        self._settle()
        engine, batches = self._engine, self._batches
        alive = [row for row, member in enumerate(engine.members) if member.alive]
        if isinstance(engine, Separate):
            each = batches.next_batches(engine.members, count)
            values, sums = engine.step(each, self._handle_failure)
            self._sums += sums
        else:
            batch = batches.next_batch(engine.members)
            values, failed = engine.step(batch, mix_seeds(self.steps_taken, 0))
            for row in alive:
                engine.members[row].step += 1
                engine.members[row].batch += 1
            self._sums += values
            for row, what in failed.items():
                self._handle_failure(engine.members[row], what)
        self.steps_taken += count
        self._after_step(on_epoch)
        return values[:, 0] if len(alive) == len(values) else values[alive, 0]

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
            if self._batches.is_epoch_end(member):
                ended.append(row)
        reached = self._end_epochs(ended) if ended else []
        if changed or reached:
            self._engine.refresh()
        for member in self._engine.members:
            ends = member.configuration
            if member.alive and (member.step >= ends.steps or member.epoch >= ends.epochs):
                self.remove(ends.number, "all its steps are done")
        if reached and on_epoch is not None:
            on_epoch(self, reached)

    def _end_epochs(self, rows: Sequence[int]) -> list[Epoch]:
        names = self._objective.names
        validation = None if self._validation is None else self._engine.evaluate(self._validation.read_all()).tolist()
        reached = []
        for row in rows:
            member = self._engine.members[row]
            training = (self._sums[row] / member.batch).tolist()
            member.epoch, member.batch = member.epoch + 1, 0
            values = training if validation is None else validation[row]
            epoch = {
                "number": member.configuration.number,
                "epoch": member.epoch,
                "step": member.step,
                "training_loss": training[0],
                "validation_loss": None if validation is None else validation[row][0],
                "metrics": dict(zip(names, values[1:], strict=True)),
            }
            member.history.append(epoch)
            reached.append(Epoch(**epoch))
            loss = values[0]
            member.advance_schedules("epoch", loss)
            if loss < member.best - member.configuration.min_delta:
                member.best, member.epochs_without_gain = loss, 0
            else:
                member.epochs_without_gain += 1
            self._sums[row] = 0.0
            if member.epochs_without_gain >= member.configuration.patience:
                self.remove(member.configuration.number, f"no gain in {member.epochs_without_gain} epochs")
        return reached

    def checkpoint(self, number: int) -> dict[str, Any]:
        """Return one model as ordinary ``state_dict``s, with its configuration and progress.

        ``model`` loads into the unfused model, and ``optimizer`` and ``schedules`` into those of ``make_optimizer``.
        ``add`` takes the whole back.
        """
        row, member = self._find(number)
        return self._engine.checkpoint(row) | member.state_dict() | {"sums": self._sums[row].tolist()}

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
            "sums": self._sums,
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
        loss: Loss | None,
        data: Any,
        *,
        step: TrainingStep | None = None,
        validation: Any = None,
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
            step=step,
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
        trainer._sums.copy_(state["sums"])
        trainer.steps_taken, trainer._next_number = state["steps_taken"], state["next_number"]
        for each in state["finished"]:
            history = tuple(Epoch(**epoch) for epoch in each["history"])
            trainer.finished[each["number"]] = Finished(**{**each, "history": history})
        return trainer


def make_validation(data: Any, training: Batches, device: torch.device) -> Batches:
    """Return the source of validation data.

    Raises
    ------
    UsageError
        Its batches are not made as those of training.
    """
    if is_tensors(data):
        tensors = as_tensors(data, device)
        found: Batches = TensorBatches(tensors, len(tensors[-1]))
    else:
        found = LoaderBatches(data, device, in_order=True)
    if found.layout != training.layout:
        raise UsageError(
            f"A batch of validation data is made as {found.layout}, and one of training as {training.layout}.",
            hint="Have both be tensors, or loaders that make batches alike.",
        )
    return found
