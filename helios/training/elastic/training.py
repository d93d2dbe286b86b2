"""Training loop of a worker, in which others may come and go between two steps."""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Any

import helios_task
import torch
import torch.distributed as dist

from helios.errors import UsageError
from helios.training.elastic import group
from helios.training.elastic.gradients import Gradients, Noise
from helios.training.elastic.link import OWN, PART, TRIAL, WAITS, Link, Message, find_difference
from helios.training.elastic.samples import Part, SampleOrder, split

CHECKPOINT = "elastic.pt"
REPORT_S = 10.0
"""Between two reports of how fast and how noisy steps are."""
NOISE_EVERY, HALVES_EVERY = 8, 64
"""Steps between two that measure the noise, and two whose batch a single worker passes in halves for that.

Norms cost 6 % of a step of a small model; so they cost less than 1 %."""
MEET, SAVE, PAUSE, STOP = 1, 2, 4, 8
"""What the first worker wishes, as bits."""
REQUESTS = {"checkpoint": SAVE, "pause": PAUSE, "stop": STOP}
RULES = ("linear", "sqrt", "adascale")


@dataclass
class Standing:
    """Where training stands, the same for all workers.

    Attributes
    ----------
    position : int
        Samples of the epoch that are done.
    updates : int
        Steps that changed the parameters.
    progress : float
        The same in steps of the smallest batch.
    factor : float
        Of the learning rate, when the batch was last changed, at ``changed``.
    """

    batch: int
    epoch: int = 0
    position: int = 0
    updates: int = 0
    progress: float = 0.0
    factor: float = 1.0
    changed: int | None = None
    noise: Noise = field(default_factory=Noise)


class DataEpoch:
    """One pass over the data, of which each worker has its part.

    Attributes
    ----------
    number : int
        From 0.
    """

    def __init__(self, training: Training, number: int) -> None:
        self._training, self.number = training, number

    def __iter__(self) -> Iterator[Any]:
        """Yield what to pass through the model, part by part."""
        yield from self._training._load_parts(self.number)


class Training:
    """Training of a model by workers that come and go.

    Parameters
    ----------
    model, optimizer : Module, Optimizer
        As for one device, on the device where they stay.
    data : Dataset or DataLoader
        With a length and a place. The order is drawn anew for each epoch, unless a loader does not shuffle.
    batch : int
        Samples of a step over all workers. The optimiser's learning rates belong to it.
    epochs : int
        How often the data are passed.
    state : sequence
        Whatever else changes in training, such as schedules or averages of weights: with ``state_dict``.
    learning_rate : str
        How learning rates follow another batch: ``linear``, ``sqrt`` or ``adascale`` (by how noisy gradients are).
    warm_up : int
        Steps in which they do so.
    clip_norm : float, optional
        Largest norm of the gradient of a step.
    seed : int
        Of the order, and of what each worker draws in a step.

    Attributes
    ----------
    first : bool
        Whether this worker is the one that validates and reports.
    workers : int
        How many train now.

    Raises
    ------
    UsageError
        The data have no place, sizes do not fit, or a checkpoint is of another model.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        data: Any,
        *,
        batch: int,
        epochs: int,
        state: Sequence[Any] = (),
        learning_rate: str = "linear",
        warm_up: int = 100,
        clip_norm: float | None = None,
        seed: int = 0,
    ) -> None:
        if learning_rate not in RULES:
            raise UsageError(f"learning_rate is {learning_rate!r}.", hint=f"Known: {', '.join(RULES)}.")
        self._model, self._optimizer, self._others = model, optimizer, tuple(state)
        self._samples = SampleOrder(data, seed)
        self._base, self._epochs, self._rule, self._warm_up = batch, epochs, learning_rate, warm_up
        self._clip_norm, self._seed = clip_norm, seed
        parameters = [each for part in optimizer.param_groups for each in part["params"] if each.requires_grad]
        self._device = parameters[0].device
        self._gradients = Gradients(parameters, list(model.buffers()), self._device)
        self._place = Standing(batch)
        self._times: list[tuple[float, float]] = []  # of steps and of exchanges since the last report, s
        self._rank, self.workers, self._nodes, self._smallest, self._most = 0, 1, 1, batch, None
        self._due = self._wish = 0
        self._is_fetched = False
        self._parts: list[Part] = []
        self._loader: Any = None
        self._began_s = self._reported_s = time.monotonic()
        if batch < 1 or self._samples.count < batch:
            raise UsageError(f"A batch of {batch} needs as many samples; there are {self._samples.count}.")
        self._link = Link.open()
        if self._link is None:
            self._restore()
        else:
            self._link.on_lost = group.abort
            own = {"version of torch": str(torch.__version__), "size of a batch": str(batch)}
            self._join(ready={**own, **self._description()})

    @property
    def first(self) -> bool:
        """Return whether this is the first worker."""
        return self._rank == 0

    @property
    def updates(self) -> int:
        """Return how many steps have changed the parameters."""
        return self._place.updates

    def __iter__(self) -> Iterator[DataEpoch]:
        """Yield epochs from where training stands."""
        while (number := self._place.epoch) < self._epochs:
            yield DataEpoch(self, number)
            if self._place.epoch == number:  # the program went on before the epoch's end
                self._place.position = self._samples.count
                self._parts, self._loader, self._is_fetched = [], None, False
                list(self._load_parts(number))

    def step(self) -> bool:
        """Use the gradients of this part, and return whether the parameters were changed.

        They are changed with the last part of a step. Gradients are cleared.
        """
        place = self._place
        if not self._is_fetched:
            raise UsageError("step() has no part to add.", hint="Call it once for each part, after backward().")
        self._is_fetched = False
        first, last = self._parts.pop(0)
        self._gradients.add(last - first, place.batch)
        if self._parts:
            return False
        wish, began_s = self._read_wish(), time.monotonic()
        exchanged = None
        # What has failed keeps its connections open until the exception is gone, so that others would wait for ever.
        with suppress(*((RuntimeError,) if self.workers > 1 else ())):
            exchanged = self._gradients.exchange(place.batch, rank=self._rank, size=self.workers, wish=wish)
        if exchanged is None:
            self._gradients.restore()
            self._join(whole=False)
            return False
        self._note(PART)
        self._due, shown = exchanged
        sync_s = time.monotonic() - began_s if self.workers > 1 else 0.0
        self._report()  # of the steps before this one, which all workers have made
        place.noise.add(*shown, place.batch)
        if self._clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._gradients.parameters, self._clip_norm)
        factor, groups = self._factor(), self._optimizer.param_groups
        rates = [part["lr"] for part in groups]  # as schedules see them
        for part in groups:
            part["lr"] = part["lr"] * factor
        self._optimizer.step()
        for part, rate in zip(groups, rates, strict=True):
            part["lr"] = rate
        for parameter in self._gradients.parameters:
            parameter.grad = None
        place.updates += 1
        place.position += place.batch
        place.progress += place.noise.gain(place.batch, self._smallest)
        self._times.append((time.monotonic() - self._began_s, sync_s))
        self._note(OWN)
        return True

    def save(self) -> None:
        """Save a checkpoint, if this is the first worker."""
        if self.first:
            with helios_task.save_checkpoint(CHECKPOINT, step=self.updates) as path:
                torch.save({**self._state(), "description": self._description()}, path)

    def _load_parts(self, number: int) -> Iterator[Any]:
        """Yield what to pass, and do what is due between two steps."""
        while self._place.epoch == number:
            self._note(PART)
            if self._parts:
                if self._is_fetched:
                    raise UsageError("A part was left out.", hint="Call step() for each part, after backward().")
                self._is_fetched = True
                yield next(self._loader)
            elif self._due:
                self._attend()
            elif self._place.position + self._place.batch > self._samples.count:
                self._end_epoch()
            else:
                self._begin_step()
        self._note(OWN)

    def _begin_step(self) -> None:
        place = self._place
        if self._loader is None:
            parts = map(self._split, count(place.updates))
            self._loader = self._samples.load(place.epoch, place.position, place.batch, parts)
        self._began_s = time.monotonic()
        self._parts = self._split(place.updates)
        self._gradients.clear(measures=place.updates % NOISE_EVERY == 0)
        seed = (self._seed * 1_000_003 + place.updates) * 65_537 + self._rank
        torch.manual_seed(seed % 2**63)
        random.seed(seed)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed(seed % 2**32)

    def _split(self, updates: int) -> list[Part]:
        halves = self.workers == 1 and updates % HALVES_EVERY == 0
        return split(self._place.batch, self.workers, self._rank, self._most, halves=halves)

    def _end_epoch(self) -> None:
        """Go on to the next epoch once all workers have come so far."""
        wish, wished = torch.tensor([float(self._read_wish())], device=self._device), None
        with suppress(*((RuntimeError,) if self.workers > 1 else ())):
            if self.workers > 1:
                dist.all_reduce(wish)
            wished = int(wish)
        if wished is None:
            self._join(whole=False)
            return
        self._due = wished
        if not self._due:
            self._place.epoch, self._place.position, self._loader = self._place.epoch + 1, 0, None
            self._report(now=True)

    def _read_wish(self) -> int:
        """Return what the first worker wishes, before it waits for the others."""
        if self.first:
            self._wish |= REQUESTS.get(helios_task.requested() or "", 0)
            self._wish |= MEET if self._link is not None and self._link.meeting else 0
        self._note(WAITS)
        return self._wish

    def _note(self, doing: str) -> None:
        if self._link is not None:
            self._link.note(doing)

    def _attend(self) -> None:
        """Do what all workers know to be due."""
        due, self._due, self._wish = self._due, 0, 0
        if due & (SAVE | PAUSE):
            self._note(OWN)
            self.save()
            self._note(PART)
        if due & (PAUSE | STOP):
            group.leave()
            raise SystemExit(0)
        if due & MEET:
            self._join(whole=True)

    def _join(self, **message: Any) -> None:
        """Go on with whom the launcher says, from the furthest state."""
        assert self._link is not None  # because without a launcher there is nobody to lose
        self._parts, self._loader = [], None
        is_new = "ready" in message
        whole = message.get("whole", True)
        while True:
            place = self._place
            if not whole:
                group.leave()
            arrived = {"at": [place.updates, place.epoch], "whole": whole}
            go = self._link.meet(**(message if is_new else {"arrived": arrived})).get("go")
            if go is None:
                group.leave()
                raise SystemExit(0)
            try:
                self._form(go, is_new=is_new)
                break
            except RuntimeError:
                if is_new:  # its state may be that of no step
                    raise
                whole = False
        if go["batch"] is not None and go["batch"] != self._place.batch:
            self._place.factor, self._place.changed = self._factor(), self._place.updates
            self._place.batch = go["batch"]
        self._times, self._reported_s = [], time.monotonic()
        self._note(PART)
        if self._rank == 0:
            self._link.send(going=self._place.batch)

    def _form(self, go: Message, *, is_new: bool) -> None:
        """Form a group, and take over its state if needed."""
        for name in TRIAL:
            os.environ.pop(name, None)
        os.environ |= go["environment"]
        if go["keep"]:
            return
        group.leave()
        self._rank, self.workers = group.form(go)
        settings = go["settings"]
        self._nodes = settings["nodes"]
        os.environ |= {"RANK": str(self._rank), "WORLD_SIZE": str(self.workers)}
        self._smallest = (settings.get("batch") or [self._base])[0]
        _, self._most = settings.get("local_batch") or (1, None)
        if go["at"] is None and self._rank == 0:
            self._restore()
        if self.workers > 1:
            updates, epoch = go["at"] or (-1, 0)
            behind = is_new or self._place.updates < updates
            state = self._state() if self._rank == go["source"] else None
            state = group.hand_over(state, go["source"], receives=behind, device=self._device, key=settings["key"])
            if state is not None:
                self._load(state)
            elif self._place.epoch < epoch:  # it has made the same steps, and the others know that
                self._place.epoch, self._place.position = epoch, 0

    def _state(self) -> dict[str, Any]:
        """Return all that training depends on."""
        return {
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "others": [each.state_dict() for each in self._others],
            "place": asdict(self._place),
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        for other, own in zip(self._others, state["others"], strict=True):
            other.load_state_dict(own)
        self._place = Standing(**{**state["place"], "noise": Noise(**state["place"]["noise"])})

    def _description(self) -> dict[str, str]:
        """Return what has to be the same for a state to fit."""
        tensors = self._model.state_dict().items()
        model = {name: f"{tuple(value.shape)} {value.dtype}" for name, value in tensors if hasattr(value, "shape")}
        kinds = [type(self._optimizer).__name__, *(type(each).__name__ for each in self._others)]
        return {**model, "what trains it": " ".join(kinds), "number of samples": str(self._samples.count)}

    def _restore(self) -> None:
        """Go on from the last checkpoint, if there is one."""
        if not os.environ.get("HELIOS_CHECKPOINTS"):
            return
        path = helios_task.checkpoint_folder() / CHECKPOINT
        if not path.exists():
            return
        state = torch.load(path, map_location=self._device, weights_only=False)
        if found := find_difference(state.get("description", {}), self._description()):
            hint = "Remove it, or use another folder of checkpoints."
            raise UsageError(f"{path} is of another model: in it {found}.", hint=hint)
        self._load(state)

    def _factor(self) -> float:
        """Return by what learning rates are multiplied now."""
        place = self._place
        scale = place.batch / self._base
        rules = {"linear": scale, "sqrt": scale**0.5, "adascale": place.noise.gain(place.batch, self._base)}
        if place.changed is None:
            return 1.0
        done = min(1.0, (place.updates - place.changed) / max(1, self._warm_up))
        return float(place.factor + done * (rules[self._rule] - place.factor))

    def _report(self, *, now: bool = False) -> None:
        """Report how training goes, where it is time to."""
        if not self.first or not (now or time.monotonic() - self._reported_s > REPORT_S):
            return
        place = self._place
        parts = split(place.batch, self.workers, 0, self._most)
        elastic: dict[str, Any] = {
            "devices": self.workers, "nodes": self._nodes, "local": parts[0][1] - parts[0][0],
            "accumulation": len(parts) - 1, "epoch": place.epoch, "epochs": self._epochs,
            "progress": round(place.progress, 3),
        }  # fmt: skip
        if self._times:
            # As profiles have it: one pass and the exchange, without further passes of the same step.
            step_s, sync_s = map(statistics.median, zip(*self._times, strict=True))
            elastic |= {"step_s": max(0.0, step_s - sync_s) / len(parts) + sync_s, "sync_s": sync_s}
        if (noise := place.noise.of(self._smallest)) is not None:
            elastic |= dict(zip(("square", "variance"), noise, strict=True))
        done = (place.epoch + place.position / self._samples.count) / self._epochs
        helios_task._write({"step": place.updates, "progress": min(1.0, done), "elastic": elastic})
        self._times, self._reported_s = [], time.monotonic()
