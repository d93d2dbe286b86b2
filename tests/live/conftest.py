"""One cluster for the whole session; every test finds it empty."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.rig import Rig, missing

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep all live tests on one worker: they share the cluster."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("live"))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    if why := missing():
        # CI installs Slurm: there a skip would hide that nothing was tested.
        (pytest.fail if os.environ.get("CI") else pytest.skip)(why)
    rig = Rig(tmp_path_factory.mktemp("slurm"))
    # Slurm's daemons and users must reach it.
    for folder in (rig.folder, *rig.folder.parents[:3]):
        if folder.owner() == "root" and folder != Path("/"):
            folder.chmod(0o755 if folder != Path("/tmp") else 0o1777)
    try:
        rig.control("up")
        yield rig
    finally:
        rig.control("wipe")


@pytest.fixture
def rig(cluster: Rig) -> Iterator[Rig]:
    """The session's cluster, without jobs before and after."""
    cluster.empty()
    yield cluster
    cluster.empty()
