"""Processes of one state folder are kept apart, and told from those of any other machine."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from helios.app import controller_state
from helios.app.controller_state import (
    LOCK,
    LOCK_OF_NODES,
    CycleUnderWay,
    DaemonRuns,
    hold_cycle_lock,
    hold_daemon_lock,
    process_identity,
)
from helios.ports import Domain


def test_a_lock_of_an_older_helios_is_closed_to_others_too(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch(0o644)
    for lock in (LOCK, LOCK_OF_NODES):
        with hold_cycle_lock(tmp_path, lock=lock):
            assert (tmp_path / lock).stat().st_mode & 0o777 == 0o600


def test_who_holds_a_lock_is_named_by_its_process(tmp_path: Path) -> None:
    with (
        hold_cycle_lock(tmp_path),
        pytest.raises(CycleUnderWay, match=rf"\(process {os.getpid()}\)"),
        hold_cycle_lock(tmp_path),
    ):
        pass


def test_cycles_on_jobs_and_on_nodes_do_not_wait_for_each_other(tmp_path: Path) -> None:
    with hold_cycle_lock(tmp_path), hold_cycle_lock(tmp_path, lock=LOCK_OF_NODES):
        pass


def test_a_lock_ends_with_its_cycle(tmp_path: Path) -> None:
    with hold_cycle_lock(tmp_path):
        pass
    with hold_cycle_lock(tmp_path):
        pass


def test_a_link_in_the_place_of_a_lock_is_refused(tmp_path: Path) -> None:
    (tmp_path / LOCK).symlink_to(tmp_path / "made by root")
    with pytest.raises(Exception, match="cannot be written"), hold_cycle_lock(tmp_path):
        pass
    assert not (tmp_path / "made by root").exists()


def test_one_daemon_for_each_domain_of_a_state_folder(tmp_path: Path) -> None:
    jobs, nodes, both = ([Domain.JOBS], [Domain.NODES], list(Domain))
    with hold_daemon_lock(tmp_path, domains=jobs):
        with (
            pytest.raises(DaemonRuns, match="acts on jobs with the state folder"),
            hold_daemon_lock(tmp_path, domains=both),
        ):
            pass
        with hold_daemon_lock(tmp_path, domains=nodes):  # what was refused holds nothing
            pass


def test_a_daemon_s_lock_keeps_no_cycle_away(tmp_path: Path) -> None:
    with hold_daemon_lock(tmp_path, domains=list(Domain)), hold_cycle_lock(tmp_path):
        pass


def test_processes_with_one_state_folder_have_one_identity_that_nobody_else_reads(tmp_path: Path) -> None:
    first = process_identity(tmp_path)
    assert process_identity(tmp_path) == first
    assert (tmp_path / "identity").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["identity"]


def test_another_folder_is_another_identity(tmp_path: Path) -> None:
    assert process_identity(tmp_path / "a") != process_identity(tmp_path / "b")


def test_the_same_folder_on_another_machine_is_another_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = process_identity(tmp_path)
    (tmp_path / "boot_id").write_text("the other machine's")
    monkeypatch.setattr(controller_state, "BOOT", tmp_path / "boot_id")
    assert process_identity(tmp_path) != here


def test_without_a_stored_number_a_process_has_one_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    nowhere = tmp_path / "file" / "state"
    assert process_identity(nowhere) == process_identity(nowhere) != process_identity(tmp_path)


def test_the_process_that_came_second_takes_the_first_one_s_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def beaten(source: Path, target: Path) -> None:
        target.write_text("the first one's\n")
        link(source, target)

    monkeypatch.setattr(os, "link", beaten)
    second = process_identity(tmp_path)
    monkeypatch.undo()
    assert process_identity(tmp_path) == second
    assert [path.name for path in tmp_path.iterdir()] == ["identity"]


def test_a_lock_that_a_stranger_took_before_it_was_closed_still_locks(tmp_path: Path) -> None:
    with (tmp_path / LOCK).open("a") as stranger:
        fcntl.flock(stranger, fcntl.LOCK_EX)
        with pytest.raises(CycleUnderWay), hold_cycle_lock(tmp_path):
            pass
