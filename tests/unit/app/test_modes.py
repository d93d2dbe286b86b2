from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from helios.app.modes import PAUSE_FILE, current_modes, is_paused, pause, pause_here, resume, set_mode
from helios.errors import UsageError
from helios.model import Mode
from tests.unit.app.sites import put_empty_database

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return put_empty_database(tmp_path / "helios.db")


def change(url: str, mode: Mode, **scope: object) -> None:
    set_mode(url, "dev", "qssf", mode, by="root", reason="trial", now=NOON, **scope)  # type: ignore[arg-type]  # because the options are named


def test_a_service_nobody_spoke_of_is_a_shadow(url: str) -> None:
    assert current_modes(url, "dev", ["qssf"])["qssf"].mode is Mode.SHADOW


def test_the_last_word_counts(url: str) -> None:
    change(url, Mode.ACTIVE)
    change(url, Mode.CANARY, partitions=("gpu", "debug"), percent=10)
    found = current_modes(url, "dev", ["qssf", "soft_limits"])
    assert (found["qssf"].mode, found["qssf"].partitions, found["qssf"].percent) == (Mode.CANARY, ("gpu", "debug"), 10)
    assert found["soft_limits"].mode is Mode.SHADOW


def test_a_canary_must_be_narrowed(url: str) -> None:
    with pytest.raises(UsageError, match="canary"):
        change(url, Mode.CANARY)
    with pytest.raises(UsageError, match="percent"):
        change(url, Mode.CANARY, percent=0)
    assert current_modes(url, "dev", ["qssf"])["qssf"].mode is Mode.SHADOW


def test_only_a_canary_is_narrowed(url: str) -> None:
    with pytest.raises(UsageError, match="canary"):
        change(url, Mode.ACTIVE, partitions=("gpu",))


@pytest.mark.parametrize("partition", ["", " ", "gpu,debug"])
def test_a_partition_without_a_name_does_not_become_all_partitions(url: str, partition: str) -> None:
    with pytest.raises(UsageError, match="no partition"):
        change(url, Mode.CANARY, partitions=(partition,), percent=10)
    assert current_modes(url, "dev", ["qssf"])["qssf"].mode is Mode.SHADOW


def test_a_pause_is_seen_and_undone(url: str, tmp_path: Path) -> None:
    assert is_paused(url, "dev", tmp_path) is None
    assert pause(url, "dev", tmp_path, by="root", reason="maintenance", now=NOON) == (True, [])
    found = is_paused(url, "dev", tmp_path)
    assert found is not None
    assert "root" in str(found) and "maintenance" in str(found)
    resume(url, "dev", tmp_path, now=NOON)
    assert is_paused(url, "dev", tmp_path) is None


def test_a_pause_is_seen_on_another_machine(url: str, tmp_path: Path) -> None:
    pause(url, "dev", tmp_path / "here", by="root", reason="", now=NOON)
    assert is_paused(url, "dev", tmp_path / "there") is not None


@pytest.mark.parametrize("content", [b"", b"stop!", b"\xff\xfe", b"[1]", b'"text"', b"[" * 200_000])
def test_whatever_the_file_holds_it_is_a_pause(url: str, tmp_path: Path, content: bytes) -> None:
    (tmp_path / PAUSE_FILE).write_bytes(content)
    assert is_paused(url, "dev", tmp_path) is not None


def test_a_file_that_leads_nowhere_is_a_pause(url: str, tmp_path: Path) -> None:
    (tmp_path / PAUSE_FILE).symlink_to(tmp_path / "nowhere")
    assert is_paused(url, "dev", tmp_path) is not None


def test_one_of_two_places_that_can_be_written_is_enough(url: str, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    paused, problems = pause(url, "dev", tmp_path / "taken", by="root", reason="", now=NOON)
    assert paused
    assert len(problems) == 1 and "PAUSED" in problems[0]
    assert is_paused(url, "dev", tmp_path / "elsewhere") is not None


def test_no_place_that_can_be_written_is_no_pause(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    url = f"sqlite:///{tmp_path / 'taken' / 'x.db'}"
    paused, problems = pause(url, "dev", tmp_path / "taken", by="root", reason="", now=NOON)
    assert (paused, len(problems)) == (False, 2)


def test_a_pause_writes_through_no_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    state = tmp_path / "state"
    state.mkdir()
    (state / PAUSE_FILE).symlink_to(victim)
    assert pause_here(state, by="root", reason="maintenance", now=NOON) == []
    assert victim.read_text() == "precious"
    assert not (state / PAUSE_FILE).is_symlink() and "maintenance" in (state / PAUSE_FILE).read_text()


def test_a_pipe_as_pause_file_pauses_without_a_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / PAUSE_FILE)
    assert is_paused("sqlite:///none", "dev", tmp_path) is not None
