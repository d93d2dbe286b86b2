"""Files of lines, written by processes that may be killed at any byte."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helios import lines_file
from helios.lines_file import LinesFile, try_lock


@pytest.fixture
def handle(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "lines", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


def content(handle: int) -> bytes:
    return os.pread(handle, 1_000_000, 0)


def test_a_line_that_a_crash_cut_short_is_removed(handle: int) -> None:
    os.write(handle, b"one\ntwo\nthr")
    file = LinesFile(handle)
    assert file.read() == [b"one", b"two"]
    file.append(b"four\n")
    assert content(handle) == b"one\ntwo\nfour\n"


@given(lines=st.lists(st.text("abc", max_size=9)), partial=st.text("abc", max_size=9), tail=st.integers(1, 12))
def test_skipping_cuts_what_reading_cuts(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], partial: str, tail: int
) -> None:
    path = tmp_path_factory.mktemp("lines") / "lines"
    whole = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(whole + partial.encode())
    with pytest.MonkeyPatch.context() as patch, path.open("r+b") as stream:
        patch.setattr(lines_file, "TAIL_BYTES", tail)
        file = LinesFile(stream.fileno())
        file.skip()
        file.append(b"new\n")
    assert path.read_bytes() == whole + b"new\n"


def test_lines_of_another_process_are_read_once(handle: int) -> None:
    mine, other = LinesFile(handle), LinesFile(handle)
    mine.append(b"one\n")
    assert other.read() == [b"one"]
    assert other.read() == []


def test_a_full_disk_leaves_no_part_of_a_line(handle: int, monkeypatch: pytest.MonkeyPatch) -> None:
    file = LinesFile(handle)
    file.append(b"one\n")
    written = os.pwrite

    def half(handle: int, data: bytes, at: int) -> int:
        if len(data) < 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return written(handle, data[:2], at)

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(OSError, match="No space left"):
        file.append(b"two\n")
    assert content(handle) == b"one\n"


def test_a_lock_is_held_by_one(handle: int, tmp_path: Path) -> None:
    other = os.open(tmp_path / "lines", os.O_RDWR)
    assert try_lock(handle)
    assert not try_lock(other)
    os.close(other)
