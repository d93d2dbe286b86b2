"""Levels of partitions from files: one grid over the time that all cover, and gaps where one has no row."""

from pathlib import Path

import pytest

from benchmarks.recorded_levels import read_partition_levels
from helios.errors import FormatUnknown, UsageError

HEADER = "time,total_gpu_num,running_gpu_num,pending_gpu_num,idle_gpu_num"


def a_file(folder: Path, name: str, *rows: str, header: str = HEADER) -> Path:
    path = folder / f"{name}.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def minute(number: int, total: int = 8, running: int = 5, pending: int = 0) -> str:
    return f"2020-05-01 00:{number:02d}:00,{total},{running},{pending},{total - running}"


def test_the_time_that_all_files_cover_is_read(tmp_path: Path) -> None:
    one = a_file(tmp_path, "vc1", *(minute(number, running=number) for number in range(4)))
    two = a_file(tmp_path, "vc2", *(minute(number, pending=3) for number in range(2, 6)))
    levels = read_partition_levels([one, two], timezone="Asia/Shanghai")
    assert levels.names == ("vc1", "vc2")
    assert levels.start_s == 1_588_262_400 + 120
    assert levels.used.tolist() == [[2, 3], [5, 5]]
    assert levels.waiting.tolist() == [[0, 0], [3, 3]]
    assert levels.capacity.tolist() == [[8, 8], [8, 8]]


def test_a_step_without_a_row_is_a_gap(tmp_path: Path) -> None:
    one = a_file(tmp_path, "vc1", *(minute(number) for number in (0, 1, 3, 4)))
    levels = read_partition_levels([one], timezone="UTC")
    assert levels.gaps.tolist() == [False, False, True, False, False]
    assert levels.notes == ("vc1.csv: 1 steps have no row; they are left out.",)


def test_files_without_a_common_time_are_refused(tmp_path: Path) -> None:
    one, two = a_file(tmp_path, "vc1", minute(0), minute(1)), a_file(tmp_path, "vc2", minute(8), minute(9))
    with pytest.raises(UsageError, match="no time in common"):
        read_partition_levels([one, two], timezone="UTC")


def test_no_file_at_all_is_refused() -> None:
    with pytest.raises(UsageError):
        read_partition_levels([], timezone="UTC")


def test_a_series_of_nodes_is_not_taken_for_one_of_partitions(tmp_path: Path) -> None:
    with pytest.raises(FormatUnknown):
        read_partition_levels([a_file(tmp_path, "gpu", "x", header="time,active,total")], timezone="UTC")
