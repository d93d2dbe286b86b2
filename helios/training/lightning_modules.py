"""Hooks and optimisers of modules that PyTorch Lightning trains.

Fused and elastic training run loops of their own, which call a hook or refuse it. They do not import Lightning.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from helios.errors import UsageError

VALIDATION_HOOKS = (
    *("on_validation_start", "on_validation_epoch_start", "on_validation_epoch_end", "on_validation_end"),
    *("on_validation_batch_start", "on_validation_batch_end", "on_validation_model_eval", "on_validation_model_train"),
    "on_validation_model_zero_grad",
)
SETUP_HOOKS = ("setup", "configure_model")
HOOKS = (
    *VALIDATION_HOOKS,
    *SETUP_HOOKS,
    *("prepare_data", "teardown", "configure_callbacks", "configure_sharded_model"),
    *("on_fit_start", "on_fit_end", "on_train_start", "on_train_end", "on_train_epoch_start", "on_train_epoch_end"),
    *("on_train_batch_start", "on_train_batch_end", "on_before_batch_transfer", "transfer_batch_to_device"),
    *("on_after_batch_transfer", "on_before_zero_grad", "optimizer_zero_grad", "on_before_backward", "backward"),
    *("on_after_backward", "configure_gradient_clipping", "on_before_optimizer_step", "optimizer_step"),
    *("lr_scheduler_step", "on_save_checkpoint", "on_load_checkpoint"),
)
"""All that ``Trainer.fit`` of Lightning 2.6 calls, but steps, optimisers, and loaders where data are given."""


def check_module(module: Any, called: Collection[str]) -> None:
    """Refuse a module that needs Lightning's own loop.

    Parameters
    ----------
    called : collection of str
        Hooks that need not be refused.

    Raises
    ------
    UsageError
        It has another hook, or optimises by itself.
    """
    if not getattr(module, "automatic_optimization", True):
        raise UsageError("Modules with manual optimization are not known here.", hint="Train them with Lightning.")
    for kind in type(module).__mro__:
        if kind.__module__.partition(".")[0] in {"lightning", "pytorch_lightning", "torch"}:
            break
        if found := [name for name in HOOKS if name in vars(kind) and name not in called]:
            raise UsageError(
                f"{kind.__name__} has the hook {found[0]}, which would not be called.",
                hint="Remove it, or train with a loop of your own.",
            )


def set_up(module: Any) -> None:
    """Have a module make what it makes at the start of ``Trainer.fit``."""
    call(module, "setup", "fit")
    call(module, "configure_model")


def call(module: Any, hook: str, *arguments: Any) -> None:
    """Call a hook, where a module has it."""
    getattr(module, hook, _ignore)(*arguments)


def _ignore(*_: Any) -> None:
    """Do nothing."""


def read_optimizer(module: Any) -> tuple[Any, list[dict[str, Any]]]:
    """Return the optimiser of a module, and each schedule with its settings.

    Raises
    ------
    UsageError
        There is not one optimiser.
    """
    made, schedules = module.configure_optimizers(), []
    if isinstance(made, tuple | list) and len(made) == 2 and all(isinstance(part, list | tuple) for part in made):
        made, schedules = made
    optimizers = made if isinstance(made, list | tuple) else [made]
    if len(optimizers) != 1 or optimizers[0] is None:
        count = len(optimizers) if made is not None else 0
        raise UsageError(f"configure_optimizers gives {count} optimisers.", hint="One can be trained with.")
    optimizer = optimizers[0]
    if isinstance(optimizer, Mapping):
        schedule = optimizer.get("lr_scheduler")
        optimizer, schedules = optimizer["optimizer"], [] if schedule is None else [schedule]
    return optimizer, [dict(each) if isinstance(each, Mapping) else {"scheduler": each} for each in schedules]
