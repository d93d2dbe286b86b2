"""A closed warehouse leaves no file of its database open."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from threading import Barrier, Event

import pytest

from helios.control import ServiceMode
from helios.model import Mode
from helios.warehouse import Warehouse
from tests.unit.app.sites import FakeSite, put_empty_database

ROUNDS = 50
CYCLES = 5


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    """What only a garbage collection closes stays open for minutes in a daemon."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_garbage_collection")
def test_warehouses_that_close_while_others_read_leave_no_file(tmp_path: Path) -> None:
    url, both = put_empty_database(tmp_path / "helios.db"), Barrier(2)

    def use(_: int) -> None:
        for _ in range(ROUNDS):
            with Warehouse.open(url) as warehouse:
                both.wait()
                warehouse.clusters()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(use, range(2)))
    assert open_files(tmp_path) == []


@pytest.mark.usefixtures("no_garbage_collection")
def test_a_warehouse_within_another_does_not_close_its_connection(tmp_path: Path) -> None:
    url = put_empty_database(tmp_path / "helios.db")
    with Warehouse.open(url) as warehouse:
        warehouse.clusters()
        before = open_files(tmp_path)
        with Warehouse.open(url) as inner:
            inner.clusters()
        assert open_files(tmp_path) == before
    assert open_files(tmp_path) == []


@pytest.mark.usefixtures("no_garbage_collection")
def test_cycles_beside_a_reader_leave_no_file(tmp_path: Path) -> None:
    fake_site, ended = FakeSite(tmp_path), Event()
    fake_site.learn()
    fake_site.cluster.submit()

    def read() -> None:
        while not ended.wait(0.01):
            with fake_site.warehouse() as warehouse:
                warehouse.clusters()

    with ThreadPoolExecutor(1) as beside:
        reader = beside.submit(read)
        try:
            for _ in range(CYCLES):
                fake_site.cluster.tick(timedelta(minutes=1))
                fake_site.cycles.cycle(modes={"qssf": ServiceMode(mode=Mode.ACTIVE)})
        finally:
            ended.set()
        reader.result()
    assert open_files(tmp_path) == []


def open_files(folder: Path) -> list[str]:
    """Return the files in a folder that this process has open."""
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            links.append(str(descriptor.readlink()))
    return sorted(link for link in links if link.startswith(str(folder)))
