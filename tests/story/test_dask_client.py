"""Connections to real Dask schedulers: what is refused, and that none outlives its use."""

import gc
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from helios.dask_client import connect, refuse_other_releases
from helios.errors import DaskMismatch, DaskUnavailable
from helios.predict.dask_training import DaskTrainer
from helios.predict.duration import TrainingSet

distributed = pytest.importorskip("distributed", reason="the extra [dask] is not installed")
NAMES = ("python", "distributed", "lightgbm", "helios-slurm")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", memory_limit=0
    ) as cluster:
        yield cluster


def refuse(client: Any, *, answer_s: float = 30.0) -> None:
    refuse_other_releases(client, "tcp://lab", NAMES, hint="Install the same.", answer_s=answer_s)


def open_clients() -> list[Any]:
    return [each for each in gc.get_objects() if isinstance(each, distributed.Client) and each.status != "closed"]


@pytest.mark.parametrize("address", ["nowhere", "tcp://127.0.0.1:9", "tcp:///"])
def test_a_client_that_could_not_connect_is_closed(address: str) -> None:
    before = open_clients()
    with (
        pytest.raises(DaskUnavailable, match=f"No Dask scheduler answers at {address}: .*(?s:.)*or think again") as why,
        connect(address, connect_s=0.3, instead="think again"),
    ):
        pytest.fail("connected")
    assert why.value.__cause__ is not None, "which keeps the client: it is not closed by having been collected"
    assert open_clients() == before


def test_a_client_is_closed_when_its_use_is_over_however_it_ends(cluster: Any) -> None:
    for reason in (None, KeyboardInterrupt):
        try:
            with connect(cluster.scheduler_address, connect_s=10, instead="") as client:
                assert client.status == "running"
                if reason:
                    raise reason
        except KeyboardInterrupt:
            assert reason
        assert client.status == "closed"


def test_dask_s_own_collections_find_it_only_if_they_shall(cluster: Any) -> None:
    for shall in (True, False):
        with connect(cluster.scheduler_address, connect_s=10, instead="", default=shall) as client:
            if shall:
                assert distributed.get_client() is client
            else:
                with pytest.raises(ValueError, match="No"):
                    distributed.get_client()


@pytest.fixture
def versions_of(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A client, and what it hears of the releases there: tests may change that."""
    with connect(cluster.scheduler_address, connect_s=10, instead="") as client:
        heard = client.get_versions(packages=[*NAMES[1:]])

        async def told(packages: list[str]) -> dict[str, Any]:
            assert packages == [*NAMES[1:]]
            return heard

        refuse(client)
        monkeypatch.setattr(client, "get_versions", told)
        yield client, heard


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("lightgbm", "3.0.0"),
        ("lightgbm", None),
        ("helios-slurm", None),
        ("distributed", "2020.1"),
        ("python", "3.9.1.final.0"),
    ],
)
def test_a_worker_of_another_release_is_refused_by_name(
    versions_of: tuple[Any, dict[str, Any]], name: str, version: str | None
) -> None:
    client, heard = versions_of
    refuse(client)
    odd = sorted(heard["workers"])[1]
    heard["workers"][odd]["packages"][name] = version
    with pytest.raises(DaskMismatch, match=f"{odd} has {name} {version or 'not installed'}, here it is .*(?s:.)*same"):
        refuse(client)


def test_another_patch_of_python_is_no_other_release(versions_of: tuple[Any, dict[str, Any]]) -> None:
    client, heard = versions_of
    major, minor, *_ = heard["client"]["packages"]["python"].split(".")
    for worker in heard["workers"].values():
        worker["packages"]["python"] = f"{major}.{minor}.99.final.0"
    refuse(client)


def test_a_trainer_refuses_them(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def told(client: Any, packages: list[str]) -> dict[str, Any]:
        return {"client": {"packages": {}}, "workers": {"tcp://odd": {"packages": {packages[-1]: "0.1"}}}}

    monkeypatch.setattr(distributed.Client, "get_versions", told)
    training_set = TrainingSet(features=np.zeros((9, 1)), ended=np.zeros(9), names=("one",))
    with pytest.raises(DaskMismatch, match=r"tcp://odd has lightgbm 0.1, here(?s:.)*Or train here"):
        DaskTrainer(address=cluster.scheduler_address)(training_set, seed=0)


def test_a_worker_that_is_stuck_is_not_waited_for_for_ever(cluster: Any) -> None:
    with connect(cluster.scheduler_address, connect_s=10, instead="") as client:
        stuck = next(iter(client.run(os.getpid).values()))
        os.kill(stuck, signal.SIGSTOP)
        try:
            with pytest.raises(DaskUnavailable, match=r"tcp://lab did not say .* within 1 s(?s:.)*restart it"):
                refuse(client, answer_s=1)
        finally:
            os.kill(stuck, signal.SIGCONT)
