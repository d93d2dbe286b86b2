"""One cluster for the whole session, and one whose nodes sleep; every test finds them empty and awake."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from tests.live.chroot import Chroot, NotToBeHad, chroot_folder
from tests.live.rig import SLEEPY, Rig, roomy_folder, skip_without_slurm


@pytest.fixture(scope="session")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chroot]:
    """Slurm of Debian testing with pyslurm, in a chroot; only one session of one worker may have it at a time."""
    try:
        chroot = Chroot(chroot_folder(), tmp_path_factory.mktemp("inside"))
        chroot.take()
    except NotToBeHad as reason:
        # Debian testing moves: where this pair can no longer be made, nothing of ours is broken.
        pytest.skip(f"no pyslurm to be had: {reason}")
    try:
        yield chroot
    finally:
        chroot.leave()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Rig]:
    yield from _brought_up({})


@pytest.fixture(scope="session")
def sleepy_cluster() -> Iterator[Rig]:
    yield from _brought_up(SLEEPY)


def _brought_up(settings: dict[str, str]) -> Iterator[Rig]:
    skip_without_slurm()
    rig = Rig(roomy_folder(), settings=settings)
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


@pytest.fixture
def sleepy(sleepy_cluster: Rig) -> Iterator[Rig]:
    """The session's cluster of nodes that sleep (``SLEEPY``), without jobs, every node awake."""
    try:
        sleepy_cluster.empty()
        sleepy_cluster.wake_all()
    except AssertionError as reason:
        # What one test left behind is not the fault of all that come after it.
        warnings.warn(f"the sleeping cluster was made anew: {reason}", stacklevel=1)
        sleepy_cluster.control("wipe")
        sleepy_cluster.control("up")
        sleepy_cluster.wake_all()
    yield sleepy_cluster
    sleepy_cluster.empty()
