"""A person types into one folder after the other."""

from pathlib import Path

import pytest

from tests.story.shell import Helios, shell


@pytest.fixture
def helios(tmp_path: Path) -> Helios:
    return shell(tmp_path)
