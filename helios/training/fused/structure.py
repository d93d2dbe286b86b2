"""Structure of models, which those that train together have in common."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations

Settings = dict[tuple[str, str, str], Any]
"""Kinds of modules, shapes of tensors and attributes, by what they are, the module's or tensor's name, and a key."""


def named_trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters that an optimiser is given."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def named_untrained(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return all other tensors of a model."""
    frozen = [(name, parameter) for name, parameter in model.named_parameters() if not parameter.requires_grad]
    return [*frozen, *model.named_buffers()]


def settings_of(model: nn.Module) -> Settings:
    """Return what models have in common that train together.

    It is copied, so that it stays what it was when the model runs.
    """
    settings: Settings = {}
    modules = dict(model.named_modules())
    for name, module in modules.items():
        # A module with a parametrization, as weight_norm, has a class of its own.
        settings["module", name, ""] = type_before_parametrizations(module)
    for name, tensor in [*named_trained(model), *named_untrained(model)]:
        settings["tensor", name, ""] = (tuple(tensor.shape), tensor.dtype, *([] if tensor.requires_grad else ["fixed"]))
    for name, module in modules.items():
        for key, value in vars(module).items():
            # The older weight_norm and spectral_norm compute a tensor from parameters, and keep it.
            computed = isinstance(value, torch.Tensor) and (value.requires_grad or hasattr(module, f"{key}_orig"))
            if is_plain(value) or (isinstance(value, torch.Tensor) and not computed):
                settings["attribute", name, key] = copy.deepcopy(value)
    return settings


def difference(settings: Settings, model: nn.Module) -> str | None:
    """Return how a model differs from these settings, or None."""
    actual = settings_of(model)
    for entry in dict.fromkeys([*settings, *actual]):
        kind, name, key = entry
        value, other = settings.get(entry, "nothing"), actual.get(entry, "nothing")
        if kind == "module" and value is not other:
            names = [each.__name__ if isinstance(each, type) else each for each in (other, value)]
            return f"module {name!r} is {names[0]}, not {names[1]}"
        if kind == "tensor" and value != other:
            return f"tensor {name!r} is {other}, not {value}"
        if kind == "attribute" and entry in settings and not _agree(value, other):
            return f"attribute {key!r} of module {name!r} is {other!r}, not {value!r}"
    return None


def changed_attribute(settings: Settings, model: nn.Module) -> str | None:
    """Return a Python attribute that a model changes as it runs."""
    for (kind, name, key), value in settings_of(model).items():
        before = settings.get((kind, name, key))
        if kind == "attribute" and is_plain(value) and is_plain(before) and value != before:
            return f"{name}.{key}".strip(".")
    return None


def _agree(value: Any, other: Any) -> bool:
    if isinstance(value, torch.Tensor) or isinstance(other, torch.Tensor):
        both = isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor)
        return not both or torch.equal(value, other)
    return bool(value == other)


def is_plain(value: Any) -> bool:
    """Return whether a value consists of numbers and texts alone."""
    if isinstance(value, Mapping):
        return all(is_plain(each) for pair in value.items() for each in pair)
    if isinstance(value, tuple | list):
        return all(is_plain(each) for each in value)
    return value is None or isinstance(value, int | float | str)
