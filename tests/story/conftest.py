"""A person types into one folder after the other; what a module of stories shares, one worker tells."""

from pathlib import Path

import pytest

from tests.story.shell import Helios, shell

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the stories of a module on one worker, which then sets its site up once; those of a group stay there."""
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


@pytest.fixture
def helios(tmp_path: Path) -> Helios:
    return shell(tmp_path)
