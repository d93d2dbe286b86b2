"""Configurations of a fused run, and their optimisers and schedules.

Each model has an optimiser and schedules of PyTorch itself. In a stack they hold empty tensors: they check values,
keep learning rates and momenta by PyTorch's own rules, and give checkpoints their ordinary form. The arithmetic for
all models at once is in :mod:`helios.training.fused.stack`.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch.optim import lr_scheduler

from helios.errors import ConfigurationInvalid

ADAM = ("lr", "betas", "eps", "weight_decay")
OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], tuple[str, ...]]] = {
    "sgd": (torch.optim.SGD, ("lr", "momentum", "dampening", "nesterov", "weight_decay")),
    "adam": (torch.optim.Adam, ADAM),
    "adamw": (torch.optim.AdamW, ADAM),
    "adadelta": (torch.optim.Adadelta, ("lr", "rho", "eps", "weight_decay")),
}
"""Optimisers, and the keys of a configuration that each takes."""

SCHEDULES: dict[str, tuple[Callable[..., Any], str]] = {
    "step": (lr_scheduler.StepLR, "epoch"),
    "multi_step": (lr_scheduler.MultiStepLR, "epoch"),
    "cosine": (lr_scheduler.CosineAnnealingLR, "epoch"),
    "warmup": (lr_scheduler.LinearLR, "epoch"),
    "one_cycle": (lr_scheduler.OneCycleLR, "step"),
    "plateau": (lr_scheduler.ReduceLROnPlateau, "epoch"),
}
"""Schedules, and whether each moves on at a step or at the end of an epoch, as PyTorch's documentation uses them."""

OTHER_KEYS = ("groups", "schedule", "seed", "data_seed", "clip_norm", "early_stopping", "steps", "epochs", "model")
NOT_FUSIBLE = ("batch_size", "optimizer", "loss", "data", "precision", "device", "amsgrad")
"""Keys that all models of a fused run have in common."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One model's settings, checked."""

    number: int
    given: Mapping[str, Any]
    optimizer: str
    hyperparameters: Mapping[str, Any]
    groups: tuple[Mapping[str, Any], ...]
    schedules: tuple[Mapping[str, Any], ...]
    seed: int
    data_seed: int | None
    clip_norm: float
    patience: float
    min_delta: float
    steps: float
    epochs: float

    @property
    def draws_seed(self) -> int:
        """Seed of what the model draws as it trains.

        Models without a seed start equal, and draw by their numbers.
        """
        return self.seed if "seed" in self.given else self.number

    def invalid(self, key: str, message: str, hint: str = "") -> ConfigurationInvalid:
        """Return the error that names this configuration and a key."""
        return ConfigurationInvalid(f"Configuration {self.number}, key {key!r}: {message}", hint=hint)


@dataclass
class Schedule:
    """A schedule of PyTorch, and when it moves on."""

    scheduler: Any
    per: str
    needs_loss: bool


@dataclass
class Member:
    """A model in training, with its progress and its settings in force."""

    configuration: Configuration
    parameters: Sequence[torch.Tensor]
    optimizer: torch.optim.Optimizer
    schedules: list[Schedule]
    groups: list[int] = field(default_factory=list)
    step: int = 0
    epoch: int = 0
    batch: int = 0  # of the epoch, that is next
    scale: float = 65_536.0  # the first scale of torch.amp.GradScaler
    steps_without_overflow: int = 0
    best: float = math.inf
    epochs_without_gain: int = 0
    alive: bool = True
    order: torch.Tensor | None = None
    order_epoch: int = -1
    history: list[dict[str, Any]] = field(default_factory=list)

    PROGRESS = (
        "step",
        "epoch",
        "batch",
        "scale",
        "steps_without_overflow",
        "best",
        "epochs_without_gain",
        "alive",
        "history",
    )

    def __post_init__(self) -> None:
        owner = {id(own): at for at, group in enumerate(self.optimizer.param_groups) for own in group["params"]}
        self.groups = [owner[id(own)] for own in self.parameters]

    def group_of(self, parameter: int) -> dict[str, Any]:
        """Return the optimiser's group that a parameter is in."""
        group: dict[str, Any] = self.optimizer.param_groups[self.groups[parameter]]
        return group

    def packed_order(self) -> list[int]:
        """Return the parameters in the order in which PyTorch's checkpoints number them."""
        return sorted(range(len(self.groups)), key=lambda at: (self.groups[at], at))

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a resumed run, without arrays."""
        return {
            "number": self.configuration.number,
            "configuration": dict(self.configuration.given),
            "schedules": [schedule.scheduler.state_dict() for schedule in self.schedules],
            "progress": {name: getattr(self, name) for name in self.PROGRESS},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        for schedule, stored in zip(self.schedules, state["schedules"], strict=True):
            schedule.scheduler.load_state_dict(stored)
        for name, value in state["progress"].items():
            setattr(self, name, list(value) if name == "history" else value)

    def advance_schedules(self, per: str, loss: float | None = None) -> bool:
        """Advance the schedules of one kind.

        Returns whether there were any.
        """
        due = [schedule for schedule in self.schedules if schedule.per == per]
        for schedule in due:
            if schedule.needs_loss:
                schedule.scheduler.step(loss)
            else:
                schedule.scheduler.step()
        return bool(due)


def check_configuration(number: int, given: Mapping[str, Any], optimizer: str) -> Configuration:
    """Return a configuration, or refuse it with its number and the key.

    Raises
    ------
    ConfigurationInvalid
        A key is unknown or the same for all models, or a value makes no sense.
    """
    if not isinstance(given, Mapping):
        raise ConfigurationInvalid(f"Configuration {number} is no mapping.", hint="Write it as {'lr': 0.1}.")
    own_keys = OPTIMIZERS[optimizer][1]
    configuration = Configuration(
        number=number,
        given=dict(given),
        optimizer=optimizer,
        hyperparameters={key: given[key] for key in own_keys if key in given},
        groups=tuple(given.get("groups", ())),
        schedules=_as_tuple(given.get("schedule")),
        seed=given.get("seed", 0),
        data_seed=given.get("data_seed", given.get("seed", 0)),
        clip_norm=math.inf if (norm := given.get("clip_norm")) is None else norm,
        patience=(given.get("early_stopping") or {}).get("patience", math.inf),
        min_delta=(given.get("early_stopping") or {}).get("min_delta", 0.0),
        steps=math.inf if (steps := given.get("steps")) is None else steps,
        epochs=math.inf if (epochs := given.get("epochs")) is None else epochs,
    )
    _refuse_keys(configuration, given, (*own_keys, *OTHER_KEYS))
    for group in configuration.groups:
        _refuse_keys(configuration, group, (*own_keys, "parameters"))
        if not group.get("parameters"):
            raise configuration.invalid("groups", "a group names no parameters.", "Add 'parameters': ['*.bias'].")
    _refuse_keys(configuration, given.get("early_stopping") or {}, ("patience", "min_delta"))
    for key in ("clip_norm", "patience", "steps", "epochs"):
        if not getattr(configuration, key) > 0:
            raise configuration.invalid(key, f"{getattr(configuration, key)} is not above 0.", "Leave it out for none.")
    for key in ("seed", "data_seed"):
        value = getattr(configuration, key)
        if not isinstance(value, int) and not (key == "data_seed" and value is None):
            raise configuration.invalid(key, f"{value!r} is no integer.", "Give an integer.")
    make_optimizer(configuration, [])
    return configuration


def _as_tuple(given: Any) -> tuple[Mapping[str, Any], ...]:
    if given is None:
        return ()
    return (given,) if isinstance(given, Mapping) else tuple(given)


def _refuse_keys(configuration: Configuration, given: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse keys that no model may have of its own, and NaN."""
    for key, value in given.items():
        if key == "model":
            continue  # it is for build
        if key in known:
            numbers = value if isinstance(value, tuple | list) else (value,)
            if any(isinstance(number, float) and math.isnan(number) for number in numbers):
                raise configuration.invalid(key, "the value is not a number.", "Give a finite number.")
            continue
        if key in NOT_FUSIBLE:
            raise configuration.invalid(
                key, "it is the same for all models that train together.", "Start one trainer for each of its values."
            )
        near = difflib.get_close_matches(str(key), known, n=1)
        hint = (
            f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known)}. What build needs goes into 'model'."
        )
        raise configuration.invalid(str(key), "it is unknown.", hint)


def make_optimizer(
    configuration: Configuration | Mapping[str, Any],
    parameters: Iterable[tuple[str, torch.Tensor]],
    *,
    optimizer: str = "sgd",
) -> tuple[torch.optim.Optimizer, list[Schedule]]:
    """Return the ordinary optimiser and schedules that a configuration describes.

    Parameters
    ----------
    configuration : Configuration or mapping
        Configuration of one model.
    parameters : iterable of (name, tensor)
        What ``model.named_parameters()`` gives. Groups of the configuration come first, in their order.
    optimizer : str
        Its name, where ``configuration`` is a mapping.

    Raises
    ------
    ConfigurationInvalid
        PyTorch refuses a value, or a group fits no parameter.
    """
    if not isinstance(configuration, Configuration):
        configuration = check_configuration(0, configuration, optimizer)
    make, _ = OPTIMIZERS[configuration.optimizer]
    named = list(parameters)
    groups = _parameter_groups(configuration, named)
    hyperparameters = dict(configuration.hyperparameters)
    try:
        made = make(groups, **hyperparameters)
    except (ValueError, TypeError) as reason:
        key = _find_invalid_key(make, configuration)
        raise configuration.invalid(key, str(reason), "Give a value that PyTorch's optimiser takes.") from reason
    return made, _make_schedules(configuration, made)


def _parameter_groups(configuration: Configuration, named: list[tuple[str, torch.Tensor]]) -> list[dict[str, Any]]:
    if not named:  # only to check the values
        stand_in = torch.zeros(0, requires_grad=True)
        named = [(pattern, stand_in.clone()) for group in configuration.groups for pattern in group["parameters"][:1]]
        named.append(("", stand_in))
        named = [(name, torch.zeros(0, requires_grad=True)) for name, _ in named]
    left = dict(named)
    groups: list[dict[str, Any]] = []
    for group in configuration.groups:
        own = [name for name in left if any(fnmatchcase(name, pattern) for pattern in group["parameters"])]
        if not own:
            raise configuration.invalid(
                "groups",
                f"no parameter that is left is named like {', '.join(group['parameters'])}.",
                f"Parameters: {', '.join(name for name, _ in named[:8])} ...",
            )
        values = {key: value for key, value in group.items() if key != "parameters"}
        groups.append({"params": [left.pop(name) for name in own], **values})
    return [*groups, {"params": list(left.values())}] if left else groups


def _find_invalid_key(make: Callable[..., Any], configuration: Configuration) -> str:
    """Return the first key with an invalid value."""
    for settings in (configuration.hyperparameters, *configuration.groups):
        for key, value in settings.items():
            if key == "parameters":
                continue
            try:
                make([torch.zeros(0, requires_grad=True)], **{key: value})
            except (ValueError, TypeError):
                return key
    return next(iter(configuration.hyperparameters), "groups")


def _make_schedules(configuration: Configuration, optimizer: torch.optim.Optimizer) -> list[Schedule]:
    schedules = []
    for given in configuration.schedules:
        settings = dict(given)
        name, per = settings.pop("name", None), settings.pop("per", None)
        if name not in SCHEDULES:
            raise configuration.invalid("schedule", f"{name!r} is unknown.", f"Known: {', '.join(SCHEDULES)}.")
        make, usual = SCHEDULES[name]
        per = per or usual
        if per not in {"step", "epoch"} or (name == "plateau" and per == "step"):
            raise configuration.invalid("schedule", f"it cannot move on per {per!r}.", "Say 'step' or 'epoch'.")
        try:
            scheduler = make(optimizer, **settings)
        except (ValueError, TypeError) as reason:
            raise configuration.invalid("schedule", str(reason), f"See PyTorch's {make.__name__}.") from reason
        schedules.append(Schedule(scheduler=scheduler, per=per, needs_loss=name == "plateau"))
    if schedules:
        optimizer.step()  # of parameters without gradients: else the first schedule warns that no step was made
    return schedules


def make_member(configuration: Configuration, named: Sequence[tuple[str, torch.Tensor]]) -> Member:
    """Return a model's settings at its start."""
    optimizer, schedules = make_optimizer(configuration, named)
    return Member(configuration, [parameter for _, parameter in named], optimizer, schedules)


def epoch_order(n_samples: int, data_seed: int | None, epoch: int) -> torch.Tensor:
    """Return an epoch's order of samples, given by seed and epoch alone."""
    if data_seed is None:
        return torch.arange(n_samples)
    generator = torch.Generator().manual_seed(mix_seeds(data_seed, epoch))
    return torch.randperm(n_samples, generator=generator)


def mix_seeds(seed: int, count: int) -> int:
    """Return a seed of 63 bits for one of many random streams."""
    mixed = (seed * 0x9E3779B97F4A7C15 + count * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return (mixed ^ (mixed >> 31)) & 0x7FFFFFFFFFFFFFFF
