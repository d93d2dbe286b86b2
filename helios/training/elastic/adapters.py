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
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader

from helios.errors import UsageError
from helios.training.elastic.training import Training
from helios.training.lightning_modules import SETUP_HOOKS, call, check_module, read_optimizer, set_up

CALLED = (
    *SETUP_HOOKS,
    *("on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_epoch_end", "on_train_end", "on_fit_end"),
    *("on_validation_start", "on_validation_epoch_start", "on_validation_epoch_end", "on_validation_end", "teardown"),
)
"""Hooks of a Lightning module that are called here."""
OWN_KEYS = ("step", "progress", "checkpoint", "message")
"""Parameters of a report, which are no metrics."""


def fit_lightning(
    module: Any, data: Any, *, batch: int, epochs: int, validation: Iterable[Any] | None = None, **options: Any
) -> Training:
    """Train a module of PyTorch Lightning, as ``Trainer.fit`` does.

    What it logs is reported to the pool at the end of each epoch, as means.

    Parameters
    ----------
    module : LightningModule
        With ``training_step``, ``configure_optimizers``, and ``validation_step`` where there are such data.
    data, batch, epochs, **options
        As of :class:`~helios.training.elastic.Training`.
    validation : iterable, optional
        Batches that the first worker validates with after each epoch.

    Raises
    ------
    UsageError
        The module needs Lightning's own loop.
    """
    check_module(module, CALLED)
    set_up(module)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    module.to(device)
    optimizer, schedules = read_optimizer(module)
    for each in schedules:
        if isinstance(each["scheduler"], ReduceLROnPlateau) or each.get("frequency", 1) != 1:
            kind = type(each["scheduler"]).__name__
            raise UsageError(f"{kind} follows a metric or a frequency.", hint="Write the loop yourself.")
    logged: dict[str, list[float]] = defaultdict(list)

    def log(name: str, value: Any, **_: Any) -> None:
        logged[name].append(float(value.detach() if isinstance(value, torch.Tensor) else value))

    def log_dict(values: Mapping[str, Any], **_: Any) -> None:
        for name, value in values.items():
            log(name, value)

    module.log, module.log_dict = log, log_dict
    schedulers = [each["scheduler"] for each in schedules]
    training = Training(module, optimizer, data, batch=batch, epochs=epochs, state=schedulers, **options)
    call(module, "on_fit_start")
    call(module, "on_train_start")
    for epoch in training:
        module.train()
        call(module, "on_train_epoch_start")
        for number, inputs in enumerate(epoch):
            output = module.training_step(_move(inputs, device), number)
            (output["loss"] if isinstance(output, Mapping) else output).backward()
            if training.step():
                _advance(schedules, "step")
        if training.first and validation is not None:
            _validate(module, validation, device)
        call(module, "on_train_epoch_end")
        _advance(schedules, "epoch")
        if training.first:
            means: dict[str, Any] = {name: fmean(values) for name, values in logged.items() if name not in OWN_KEYS}
            helios_task.report(step=training.updates, **means)
        logged.clear()
    call(module, "on_train_end")
    call(module, "on_fit_end")
    call(module, "teardown", "fit")
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


def _validate(module: Any, batches: Iterable[Any], device: torch.device) -> None:
    """Validate a Lightning module as its loop does."""
    module.eval()
    with torch.no_grad():
        call(module, "on_validation_start")
        call(module, "on_validation_epoch_start")
        for number, inputs in enumerate(batches):
            module.validation_step(_move(inputs, device), number)
        call(module, "on_validation_epoch_end")
        call(module, "on_validation_end")
    module.train()


def _move(inputs: Any, device: torch.device) -> Any:
    """Return inputs on a device, whatever holds them."""
    return tree_map(lambda each: each.to(device) if hasattr(each, "to") else each, inputs)


def _advance(schedules: list[dict[str, Any]], interval: str) -> None:
    for each in schedules:
        if each.get("interval", "epoch") == interval:
            each["scheduler"].step()
