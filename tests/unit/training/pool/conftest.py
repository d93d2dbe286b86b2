"""Fixtures for sweeps."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from helios.training.pool.sweep import TrainingSweep
from helios.training.pool.sweep_file import read_training_sweep


@pytest.fixture
def python_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment that runs the tests need not be on the path."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")


@pytest.fixture
def sweep(tmp_path: Path) -> Callable[[str], TrainingSweep]:
    """Read a sweep file from a text, beside a program."""
    for name in ("train.py", "models.py"):
        (tmp_path / name).write_text("")

    def read(text: str) -> TrainingSweep:
        (tmp_path / "sweep.toml").write_text(text)
        return read_training_sweep(tmp_path / "sweep.toml")

    return read
