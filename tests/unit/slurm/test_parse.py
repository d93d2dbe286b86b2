"""Numbers as Slurm writes them."""

from __future__ import annotations

import pytest

from helios.slurm import parse


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0:45", 45.0),
        ("30:00", 1800.0),
        ("1:00:00", 3600.0),
        ("1-02:03:04", 93_784.0),
        ("7-00:00:00", 604_800.0),
        ("UNLIMITED", "UNLIMITED"),
        ("0:00", None),
        ("N/A", None),
        ("INVALID", None),
    ],
)
def test_a_length_is_read(text: str, seconds: float | str | None) -> None:
    assert parse.length_s(text) == seconds


@pytest.mark.parametrize(
    ("text", "moment"), [("1795255120", 1_795_255_120), ("1", 1), ("0", None), ("N/A", None), ("", None)]
)
def test_a_time_is_read(text: str, moment: int | None) -> None:
    assert parse.time_s(text) == moment


@pytest.mark.parametrize(("text", "count"), [("12", 12), ("4-8", 4), ("2K", 2048), ("1.5K", 1536), ("", None)])
def test_a_count_is_read(text: str, count: int | None) -> None:
    assert parse.whole(text) == count


@pytest.mark.parametrize(
    ("text", "mib"),
    [("100M", 100.0), ("1.5G", 1536.0), ("2T", 2_097_152.0), ("512K", 0.5), ("300", 300.0), ("?", None)],
)
def test_memory_is_read(text: str, mib: float | None) -> None:
    assert parse.memory_mib(text) == mib


@pytest.mark.parametrize(
    ("text", "count", "kind"),
    [
        ("cpu=4,mem=8G,gres/gpu=2", 2, None),
        ("gres/gpu=3,gres/gpu:a100=2,gres/gpu:v100=1", 3, None),
        ("gres/gpu=2,gres/gpu:a100=2", 2, "a100"),
        ("gres/gpu:a100:2", 2, "a100"),
        ("gres:gpu:a100:2", 2, "a100"),
        ("gres:gpu", 1, None),
        ("gpu:a100:8(S:0-1)", 8, "a100"),
        ("gpu:a100:4(S:0,2),gpu:h100:4(S:1,3),shard:8", 8, None),
        ("gpu:1g.5gb:7(S:0-1)", 7, "1g.5gb"),
        ("gres/gpu=3,gres/gpu:1g.5gb=3", 3, "1g.5gb"),
        ("gres/gpu:2g.10gb=1,gres/gpu:a100_3g.20gb=1", 2, None),
        ("gpu:4090:2", 2, "4090"),
        ("gpu:2(S:0-1)", 2, None),
        ("gres:shard:4", 0, None),
        ("N/A", 0, None),
    ],
)
def test_gpus_are_counted_once_whatever_the_notation(text: str, count: int, kind: str | None) -> None:
    assert parse.gpus(text) == parse.Gpus(count=count, type=kind)


@pytest.mark.parametrize(
    ("text", "count"), [("7", 1), ("0-9", 10), ("0-9:3", 4), ("0,3,6,9,20-29%2", 14), ("[0-99]", 100), ("", 1)]
)
def test_array_tasks_are_counted(text: str, count: int) -> None:
    assert parse.tasks(text) == count


def test_a_release_is_told_from_a_version() -> None:
    assert [parse.release(text) for text in ("22.05.8", "25.11.2-rc1", "?")] == [(22, 5), (25, 11), (0, 0)]
