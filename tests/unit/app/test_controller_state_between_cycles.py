"""What a domain keeps between cycles is read back; word of a kill switch is heard once, and a pause is heard."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from helios.actions import Result
from helios.app.controller_state import ControllerStateStore, cycle_tallies, modes_or_off
from helios.app.modes import PAUSE_FILE
from helios.control import ControllerState, ServiceMode
from helios.errors import MemoryDamaged, WarehouseUnavailable
from helios.model import Mode
from helios.warehouse import Warehouse

NOW = datetime(2026, 9, 1, tzinfo=UTC)
UNAVAILABLE = WarehouseUnavailable("gone", hint="Wait.")


@pytest.fixture
def warehouse(tmp_path: Path) -> Iterator[Warehouse]:
    with Warehouse.open(f"sqlite:///{tmp_path / 'helios.db'}") as opened:
        yield opened


@pytest.fixture
def keeping(tmp_path: Path) -> ControllerStateStore[ControllerState]:
    return ControllerStateStore(
        kind=ControllerState,
        cluster="venus",
        folder=tmp_path,
        memory="cycle",
        released="released",
        released_file="RELEASED",
    )


def leave_word(keeping: ControllerStateStore[ControllerState], warehouse: Warehouse) -> None:
    (keeping.folder / "RELEASED").touch()
    warehouse.remember("venus", "released", "alice", at=NOW)


def test_what_is_kept_is_read_back(keeping: ControllerStateStore[ControllerState], warehouse: Warehouse) -> None:
    assert keeping.read(warehouse) == ControllerState()
    kept = ControllerState(asked_at={"qssf": NOW})
    keeping.write(warehouse, kept, at=NOW)
    assert keeping.read(warehouse) == kept


def test_both_kill_switches_are_heard_until_a_cycle_has_gone_by_them(
    keeping: ControllerStateStore[ControllerState], warehouse: Warehouse
) -> None:
    leave_word(keeping, warehouse)
    heard = keeping.reverted_by(warehouse)
    assert heard == {"RELEASED": "helios-release.sh", "released": "alice"}
    keeping.forget(warehouse, heard, at=NOW)
    assert keeping.reverted_by(warehouse) == {}


def test_word_that_was_left_meanwhile_is_not_forgotten(
    keeping: ControllerStateStore[ControllerState], warehouse: Warehouse
) -> None:
    leave_word(keeping, warehouse)
    keeping.forget(warehouse, {}, at=NOW)
    assert set(keeping.reverted_by(warehouse)) == {"RELEASED", "released"}


def test_word_in_a_file_is_heard_without_a_warehouse(keeping: ControllerStateStore[ControllerState]) -> None:
    (keeping.folder / "RELEASED").touch()
    assert set(keeping.reverted_by(UNAVAILABLE)) == {"RELEASED"}


def test_a_damaged_memory_stands_in_the_way_unless_helios_is_paused(
    keeping: ControllerStateStore[ControllerState], warehouse: Warehouse
) -> None:
    warehouse.remember("venus", "cycle", "{", at=NOW)
    with pytest.raises(MemoryDamaged):
        keeping.read_or_problem(warehouse, paused=lambda: False)
    memory, problem = keeping.read_or_problem(warehouse, paused=lambda: True)
    assert memory == ControllerState()
    assert isinstance(problem, MemoryDamaged)


def test_modes_that_cannot_be_read_are_off_only_where_somebody_paused(tmp_path: Path) -> None:
    def unreadable() -> dict[str, ServiceMode]:
        raise UNAVAILABLE

    with pytest.raises(WarehouseUnavailable):
        modes_or_off(unreadable, folder=tmp_path, services=["qssf"])
    (tmp_path / PAUSE_FILE).touch()
    assert modes_or_off(unreadable, folder=tmp_path, services=["qssf"]) == {"qssf": ServiceMode(mode=Mode.OFF)}


def test_a_service_that_nobody_set_a_mode_for_is_counted_as_active() -> None:
    counts = {"qssf": {Result.DONE: 2}, "restore": {Result.GONE: 1}}
    counted = cycle_tallies(counts, {"qssf": ServiceMode(mode=Mode.SHADOW)})
    assert [(it.service, it.mode, it.result, it.jobs) for it in counted] == [
        ("qssf", "shadow", Result.DONE, 2),
        ("restore", "active", Result.GONE, 1),
    ]
