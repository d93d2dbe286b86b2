"""Models of PyTorch Lightning and of Hugging Face's Trainer in the elastic loop.

It looks at what they have and imports neither. Their own loops do not run: what only these call, such as callbacks and
loggers, is not called, and a model that needs it is refused.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

import helios_task
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader

from helios.errors import UsageError
from helios.training.elastic.training import Training

HOOKS = ("optimizer_step", "optimizer_zero_grad", "backward", "lr_scheduler_step", "configure_gradient_clipping")
"""Methods of a Lightning module that change a step, and that nobody calls here."""
OWN_KEYS = ("step", "progress", "checkpoint", "message")
"""Parameters of a report, which are no metrics."""


def fit_lightning(
    module: Any, data: Any, *, batch: int, epochs: int, validation: Iterable[Any] = (), **options: Any
) -> Training:
    """Train a module of PyTorch Lightning, as ``Trainer.fit`` does.

    What it logs is reported to the pool at the end of each epoch, as means.

    Parameters
    ----------
    module : LightningModule
        With ``training_step``, ``configure_optimizers``, and ``validation_step`` where there are such data.
    data, batch, epochs, **options
        As of :class:`~helios.training.elastic.Training`.
    validation : iterable
        Batches that the first worker validates with after each epoch.

    Raises
    ------
    UsageError
        The module needs Lightning's own loop.
    """
    _check_module(module)
    device = _device()
    module.to(device)
    optimizer, schedules = _read_optimizers(module.configure_optimizers())
    logged: dict[str, list[float]] = defaultdict(list)

    def log(name: str, value: Any, **_: Any) -> None:
        logged[name].append(float(value.detach() if isinstance(value, torch.Tensor) else value))

    def log_dict(values: Mapping[str, Any], **_: Any) -> None:
        for name, value in values.items():
            log(name, value)

    module.log, module.log_dict = log, log_dict
    schedulers = [schedule for schedule, _ in schedules]
    training = Training(module, optimizer, data, batch=batch, epochs=epochs, state=schedulers, **options)
    for epoch in training:
        module.train()
        for number, inputs in enumerate(epoch):
            output = module.training_step(_move(inputs, device), number)
            (output["loss"] if isinstance(output, Mapping) else output).backward()
            if training.step():
                _advance(schedules, "step")
        _advance(schedules, "epoch")
        if training.first:
            module.eval()
            with torch.no_grad():
                for number, inputs in enumerate(validation):
                    module.validation_step(_move(inputs, device), number)
            means: dict[str, Any] = {name: fmean(values) for name, values in logged.items() if name not in OWN_KEYS}
            helios_task.report(step=training.updates, **means)
        logged.clear()
    return training


def fit_hugging_face(trainer: Any, *, batch: int | None = None, **options: Any) -> Training:
    """Train what a Trainer of Hugging Face was made for, as ``Trainer.train`` does.

    Model, data, collator, loss, optimiser, schedule and clipping are the Trainer's.

    Parameters
    ----------
    batch : int, optional
        Samples of a step over all workers. By default those of one device with its accumulation.
    **options
        As of :class:`~helios.training.elastic.Training`.

    Raises
    ------
    UsageError
        The arguments ask for what this loop does not do.
    """
    arguments, model = trainer.args, trainer.model
    for name, hint in (("max_steps", "Set num_train_epochs."), ("fp16", "Use bf16, or neither.")):
        if (value := getattr(arguments, name, 0)) and value > 0:
            raise UsageError(f"{name} is set, which elastic training does not know.", hint=hint)
    batch = batch or arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps
    epochs = math.ceil(arguments.num_train_epochs)
    trainer.create_optimizer_and_scheduler(num_training_steps=epochs * (len(trainer.train_dataset) // batch))
    device = next(model.parameters()).device
    training = Training(
        model,
        trainer.optimizer,
        DataLoader(trainer.train_dataset, collate_fn=trainer.data_collator, shuffle=True),
        batch=batch,
        epochs=epochs,
        state=[trainer.lr_scheduler],
        **{"clip_norm": arguments.max_grad_norm or None, "seed": arguments.seed, **options},
    )
    for epoch in training:
        model.train()
        losses = []
        for inputs in epoch:
            with trainer.compute_loss_context_manager():
                loss = trainer.compute_loss(model, _move(inputs, device))
            loss.backward()
            losses.append(loss.item())
            if training.step():
                trainer.lr_scheduler.step()
        if training.first and losses:
            helios_task.report(step=training.updates, loss=fmean(losses))
    return training


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _move(inputs: Any, device: torch.device) -> Any:
    """Return inputs on a device, whatever holds them."""
    if isinstance(inputs, torch.Tensor):
        return inputs.to(device)
    if isinstance(inputs, Mapping):
        return {name: _move(value, device) for name, value in inputs.items()}
    if isinstance(inputs, list | tuple):
        moved = [_move(value, device) for value in inputs]
        return type(inputs)(*moved) if hasattr(inputs, "_fields") else type(inputs)(moved)
    return inputs


def _check_module(module: Any) -> None:
    if not getattr(module, "automatic_optimization", True):
        raise UsageError("A module with manual optimization cannot change its size.", hint="Write the loop yourself.")
    for kind in type(module).__mro__:
        if kind.__module__.partition(".")[0] in {"lightning", "pytorch_lightning", "torch"}:
            return
        if found := [name for name in HOOKS if name in vars(kind)]:
            raise UsageError(f"{kind.__name__}.{found[0]} would not be called.", hint="Write the loop yourself.")


def _read_optimizers(made: Any) -> tuple[Any, list[tuple[Any, str]]]:
    """Return the optimiser of ``configure_optimizers``, and its schedules with when they advance."""
    schedules: Any = []
    if isinstance(made, Mapping):
        made, schedules = made["optimizer"], made.get("lr_scheduler") or []
    elif isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], list | tuple):
        made, schedules = made
    optimizers = made if isinstance(made, list | tuple) else [made]
    if len(optimizers) != 1:
        raise UsageError(f"configure_optimizers gives {len(optimizers)} optimisers.", hint="One can be trained with.")
    found = []
    for each in schedules if isinstance(schedules, list | tuple) else [schedules]:
        about = each if isinstance(each, Mapping) else {"scheduler": each}
        if isinstance(about["scheduler"], ReduceLROnPlateau) or about.get("frequency", 1) != 1:
            raise UsageError(
                f"{type(about['scheduler']).__name__} follows a metric or a frequency.", hint="Write the loop yourself."
            )
        found.append((about["scheduler"], about.get("interval", "epoch")))
    return optimizers[0], found


def _advance(schedules: list[tuple[Any, str]], interval: str) -> None:
    for schedule, own in schedules:
        if own == interval:
            schedule.step()
