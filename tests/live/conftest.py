"""One cluster for the whole session; every test finds it empty."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.rig import Rig, missing, roomy_folder

HERE = Path(__file__).parent
OWN = {"test_proof": "proof", "test_pyslurm": "pyslurm"}
"""Tests with clusters of their own, and the groups that they are kept in."""


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep live tests that share a cluster on one worker."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group(OWN.get(item.path.stem, "live")))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Rig]:
    if why := missing():
        # CI installs Slurm: there a skip would hide that nothing was tested.
        (pytest.fail if os.environ.get("CI") else pytest.skip)(why)
    rig = Rig(roomy_folder())
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
