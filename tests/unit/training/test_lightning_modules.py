"""The list of hooks is that of Lightning."""

from __future__ import annotations

import pytest

from helios.training.lightning_modules import HOOKS

ELSEWHERE = {"train_dataloader", "val_dataloader"}
"""What is not called where data are given."""


def test_all_hooks_of_lightning_are_known() -> None:
    hooks = pytest.importorskip("lightning.pytorch.core.hooks")
    kinds = (hooks.ModelHooks, hooks.DataHooks, hooks.CheckpointHooks)
    known = {name for kind in kinds for name, value in vars(kind).items() if callable(value) and name[0] != "_"}
    assert {name for name in known if "test" not in name and "predict" not in name} - ELSEWHERE <= set(HOOKS)
