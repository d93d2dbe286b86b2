"""Modules of PyTorch Lightning as models that train together.

It looks at what a module has and does not import Lightning. What only Lightning's own loop does, such as manual
optimisation or hooks around a step, is refused instead of left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.optim import lr_scheduler

from helios.errors import UsageError
from helios.training.fused.configurations import OPTIMIZERS
from helios.training.lightning_modules import SETUP_HOOKS, VALIDATION_HOOKS, check_module, read_optimizer, set_up

OF_THE_OPTIMIZER = ("lr", "learning_rate", "momentum", "weight_decay", "betas", "eps", "epochs", "seed")
"""Settings of a module that only ``configure_optimizers`` looks at: models that differ in them train together."""
FLAGS = ("amsgrad", "maximize", "foreach", "capturable", "differentiable", "fused")
SCHEDULES: dict[type[Any], tuple[str, tuple[str, ...]]] = {
    lr_scheduler.StepLR: ("step", ("step_size", "gamma")),
    lr_scheduler.MultiStepLR: ("multi_step", ("milestones", "gamma")),
    lr_scheduler.CosineAnnealingLR: ("cosine", ("T_max", "eta_min")),
    lr_scheduler.LinearLR: ("warmup", ("start_factor", "end_factor", "total_iters")),
}
"""Schedules whose arguments can be read back."""
Make = Callable[[Mapping[str, Any]], nn.Module]


def _ignore(*_: Any, **__: Any) -> None:
    """Log nothing, since there is no trainer of Lightning."""


def from_lightning(
    make: Make, data: Callable[[], Any]
) -> tuple[Make, Callable[..., Any], Callable[[], Any], Callable[[Mapping[str, Any]], dict[str, Any]]]:
    """Return ``build``, ``step``, ``data`` and ``configure`` of modules that PyTorch Lightning trains.

    The loss on validation data is that of ``training_step`` in evaluation mode.

    Parameters
    ----------
    make : callable
        Makes a module from a configuration.
    data : callable
        Returns training data, and optionally validation data, as tensors or loaders.

    Raises
    ------
    UsageError
        When a module is made that Lightning trains in a way that is not known here.
    """

    def make_module(configuration: Mapping[str, Any]) -> nn.Module:
        module = make(configuration)
        check_module(module, called=(*SETUP_HOOKS, *VALIDATION_HOOKS))  # validation_step is not called either
        set_up(module)
        return module

    def build(configuration: Mapping[str, Any]) -> nn.Module:
        return _without_trainer(make_module(configuration))

    def step(module: Any, batch: Any) -> Any:
        output = module.training_step(batch, 0)
        return output["loss"] if isinstance(output, Mapping) else output

    def configure(configuration: Mapping[str, Any]) -> dict[str, Any]:
        return read_optimizers(make_module(configuration))

    return build, step, data, configure


def _without_trainer(module: nn.Module) -> nn.Module:
    """Return a module that logs nothing, without settings that only its optimiser has."""
    for name in ("log", "log_dict"):
        setattr(module, name, _ignore)
    own = vars(module)
    for name in OF_THE_OPTIMIZER:
        own.pop(name, None)
    for name in ("_hparams", "_hparams_initial"):  # of save_hyperparameters()
        if isinstance(own.get(name), Mapping):
            left = {key: value for key, value in own[name].items() if key not in OF_THE_OPTIMIZER}
            own[name] = type(own[name])(left)
    return module


def read_optimizers(module: Any) -> dict[str, Any]:
    """Return the configuration that ``configure_optimizers`` describes.

    Raises
    ------
    UsageError
        It is not one optimiser that trains together, with schedules whose arguments can be read.
    """
    made, schedules = read_optimizer(module)
    name = next((name for name, (kind, _) in OPTIMIZERS.items() if type(made) is kind), None)
    if name is None:
        raise UsageError(f"{type(made).__name__} cannot be fused.", hint=f"Known: {', '.join(OPTIMIZERS)}.")
    keys = OPTIMIZERS[name][1]
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    groups = []
    for group in made.param_groups:
        if flags := [flag for flag in FLAGS if group.get(flag)]:
            raise UsageError(f"{flags[0]} of {type(made).__name__} cannot be fused.", hint="Leave it out.")
        values = {key: group.get("initial_lr", group[key]) if key == "lr" else group[key] for key in keys}
        groups.append({"parameters": [names[id(own)] for own in group["params"]], **values})
    trained = {id(own) for own in module.parameters() if own.requires_grad}
    if trained - {id(own) for group in made.param_groups for own in group["params"]}:
        raise UsageError("Some parameters have no optimiser.", hint="Set requires_grad = False for them.")
    configuration: dict[str, Any] = {"optimizer": name}
    if len(groups) == 1:
        configuration |= {key: value for key, value in groups[0].items() if key != "parameters"}
    else:
        configuration["groups"] = groups
    if schedules:
        configuration["schedule"] = [_read_schedule(each) for each in schedules]
    return configuration


def _read_schedule(settings: Mapping[str, Any]) -> dict[str, Any]:
    schedule = settings["scheduler"]
    if type(schedule) not in SCHEDULES or settings.get("frequency", 1) != 1:
        known = ", ".join(kind.__name__ for kind in SCHEDULES)
        raise UsageError(f"The schedule {type(schedule).__name__} cannot be read.", hint=f"Known: {known}.")
    name, keys = SCHEDULES[type(schedule)]
    values = {key: getattr(schedule, key) for key in keys}
    if "milestones" in values:
        values["milestones"] = sorted(values["milestones"].elements())
    return {"name": name, "per": settings.get("interval", "epoch"), **values}
