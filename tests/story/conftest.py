"""A person types into one folder after the other."""

import sys
from pathlib import Path

import pytest

from tests.story.shell import Helios, shell


@pytest.fixture
def helios(tmp_path: Path) -> Helios:
    return shell(tmp_path)


@pytest.fixture
def sweep(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Return a sweep file with the module's ``SWEEP``, beside its ``TRAIN``."""
    (tmp_path / "train.py").write_text(request.module.TRAIN)
    path = tmp_path / "sweep.toml"
    path.write_text(request.module.SWEEP.format(python=sys.executable))
    return path
