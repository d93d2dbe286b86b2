"""What would have to be reverted on nodes is written down whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helios.errors import FileUnreadable
from helios.slurm.undo_file import NodesUndo, UndoNotWritten, read_undo, write_undo

NODES = st.from_regex(r"[a-z][a-z0-9.-]{0,8}", fullmatch=True)


@given(
    asleep=st.lists(NODES, unique=True),
    weights=st.dictionaries(NODES, st.integers(0, 4_294_967_280)),
    keep_awake=st.one_of(st.none(), st.just(""), st.just("n[1,3-4]:2,login1")),
)
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, asleep: list[str], weights: dict[str, int], keep_awake: str | None
) -> None:
    path = tmp_path_factory.mktemp("state") / "nodes.undo"
    write_undo(path, asleep=asleep, weights=weights, keep_awake=keep_awake)
    assert read_undo(path) == NodesUndo(asleep=tuple(asleep), weights=weights, keep_awake=keep_awake)


def test_the_lines_are_what_the_shell_script_reads(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "nodes.undo"
    write_undo(path, asleep=["n1"], weights={"n2": 20}, keep_awake="(null)")
    assert path.read_text() == "asleep\tn1\nweight\tn2\t20\nkeep_awake\t(null)\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert [file.name for file in path.parent.iterdir()] == ["nodes.undo"]


def test_no_file_is_nothing_to_take_back(tmp_path: Path) -> None:
    assert read_undo(tmp_path / "nodes.undo") == NodesUndo()


def test_an_unwritable_folder_is_an_error_and_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "nodes.undo"
    write_undo(path, asleep=["n1"])

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UndoNotWritten, match="No space left"):
        write_undo(path, asleep=["n1", "n2"])
    assert read_undo(path).asleep == ("n1",)
    assert [file.name for file in tmp_path.iterdir()] == ["nodes.undo"]


@pytest.mark.parametrize("name", ["n1 n2", "n1\tn2", "n[1-2]", "", "n1\nasleep\tn2 ", "knötchen", "$(reboot)"])
def test_a_name_that_the_shell_could_not_read_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UndoNotWritten):
        write_undo(tmp_path / "nodes.undo", asleep=[name])
    assert not (tmp_path / "nodes.undo").exists()


@pytest.mark.parametrize(
    "text", ["asleep\n", "asleep\tn1\tn2\n", "weight\tn1\tmuch\n", "keep_awake\tn1\nkeep_awake\tn2\n", "woken\tn1\n"]
)
def test_a_damaged_file_is_not_half_believed(tmp_path: Path, text: str) -> None:
    (tmp_path / "nodes.undo").write_text("asleep\tn1\n" + text)
    with pytest.raises(FileUnreadable, match="damaged"):
        read_undo(tmp_path / "nodes.undo")
