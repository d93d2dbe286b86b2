"""What a program writes is read in bounded steps, whatever it writes."""

from __future__ import annotations

import json
import math
import os
import stat
import struct
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.training.pool import reports
from helios.training.pool.event_files import EventReader, masked_crc, parse_event
from helios.training.pool.reports import Report, ReportReader, TaskRequest, parse_report, write_request
from tests.examples import examples

EVENTS = Path(__file__).parent / "events.out.tfevents.torch"
"""Written by torch.utils.tensorboard.SummaryWriter of PyTorch 2.13 with TensorBoard 2.21."""


def test_a_line_is_metrics_and_what_has_a_meaning_of_its_own() -> None:
    line = {"step": 3, "progress": 0.5, "accuracy": 0.9, "loss": 2, "checkpoint": "a.pt", "message": "so far"}
    assert parse_report(json.dumps({**line, "time_s": 12.5, "answer": "pause"}).encode()) == Report(
        step=3,
        progress=0.5,
        metrics={"accuracy": 0.9, "loss": 2.0},
        checkpoint="a.pt",
        message="so far",
        answer=TaskRequest.PAUSE,
        time_s=12.5,
    )


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"3",
        b"null",
        b"{",
        b"{}",
        b"\xff\xfe",
        b'{"time_s": 3}',
        b'{"step": "3"}',
        b'{"step": true}',
        b'{"step": -1}',
        b'{"step": NaN}',
        b'{"progress": Infinity}',
        b'{"a\\u001b[2J": 1}',
        b'{"": 1}',
        b'{"message": "\\u001b\\u0007"}',
        b'{"answer": "dance"}',
        b'{"a": {"b": 1}}',
        b"[" * 60_000,
        b'{"a":' * 10_000,
        b'{"step": ' + b"9" * 5_000 + b"}",
        b'{"' + b"n" * 101 + b'": 1}',
    ],
)
def test_what_is_no_report_is_none(line: bytes) -> None:
    assert parse_report(line) is None


def test_what_is_not_finite_is_named_and_no_value() -> None:
    report = parse_report(b'{"loss": NaN, "a": -Infinity, "b": 1e400, "c": ' + b"9" * 400 + b', "d": 1}')
    assert report == Report(metrics={"d": 1.0}, not_finite=("loss", "a", "b", "c"))


def test_values_are_cut_to_what_a_page_can_show() -> None:
    told = {f"m{number}": number for number in range(200)}
    report = parse_report(json.dumps({"progress": 7, "message": "\x1b[31mred\n" + "x" * 5_000, **told}).encode())
    assert report is not None
    assert report.progress == 1.0
    assert len(report.metrics) == reports.MOST_METRICS
    assert report.message is not None
    assert report.message.startswith("[31mred xxx")
    assert len(report.message) <= reports.LONGEST_MESSAGE


def steps(found: list[Report]) -> list[int | None]:
    return [report.step for report in found]


def test_a_growing_file_is_read_on(tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    reader = ReportReader(path)
    assert reader.read() == []
    assert reader.problem == ""
    with path.open("ab", buffering=0) as file:
        file.write(b'{"step": 1}\n{"st')
        assert steps(reader.read()) == [1]
        file.write(b'ep": 2}\nhello\n\n{"step": 3}')
        assert steps(reader.read()) == [2]
        assert reader.read() == []
    assert steps(reader.read(last=True)) == [3]
    assert reader.read(last=True) == []
    assert (reader.skipped_lines, reader.skipped_bytes) == (1, 0)


@settings(max_examples=examples(50))
@given(st.lists(st.integers(0, 120), max_size=8))
def test_where_a_file_is_cut_changes_nothing(tmp_path_factory: pytest.TempPathFactory, cuts: list[int]) -> None:
    whole = (
        b'{"step": 1}\nnonsense\n{"step": 2, "a": NaN}\n\xff\n{"step": 3}\n[1]\n{"step": 4, "message": "\xc3\xa4"}\n'
    )
    path = tmp_path_factory.mktemp("cut") / "report"
    reader, found, start = ReportReader(path), [], 0
    for end in [*sorted(cuts), len(whole)]:
        with path.open("ab") as file:
            file.write(whole[start:end])
        start = max(start, end)
        found += reader.read()
    assert steps(found) == [1, 2, 3, 4]
    assert reader.skipped_lines == 3


def test_a_replaced_or_shortened_file_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "report"
    reader = ReportReader(path)
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n{"step"')
    assert steps(reader.read()) == [1, 2]
    path.write_bytes(b'{"step": 3}\n')
    assert steps(reader.read()) == [3]
    (tmp_path / "other").write_bytes(b'{"step": 4}\n{"step": 5}\n{"step": 6}\n')
    (tmp_path / "other").replace(path)
    assert steps(reader.read()) == [4, 5, 6]
    assert reader.skipped_lines == 1


def test_gigabytes_are_passed_over_and_said(tmp_path: Path) -> None:
    path = tmp_path / "report"
    reader = ReportReader(path)
    with path.open("wb") as file:
        file.write(b'{"step": 1}\n')
        file.truncate(5 << 40)  # sparse
        file.seek(0, os.SEEK_END)
        file.write(b'\n{"step": 2}\n')
    assert steps(reader.read()) == [2]
    assert reader.skipped_bytes > (5 << 40) - (1 << 20)
    assert reader.skipped_lines == 1


def test_where_reading_goes_on_within_a_line_it_is_no_report(tmp_path: Path) -> None:
    path, reader = tmp_path / "report", ReportReader(tmp_path / "report")
    end = b'{"step": 9}\n' + b"\n" * 100 + b'{"step": 2}\n'
    end = end[:12] + b"\n" * (reports.STEP - len(end)) + end[12:]
    path.write_bytes(b"x" * (reports.FARTHEST_BEHIND + 1) + end)
    found = [step for _ in range(reports.STEP // 1_000 + 2) for step in steps(reader.read())]
    assert found == [2]


def test_one_call_looks_at_so_many_lines(tmp_path: Path) -> None:
    path, reader = tmp_path / "report", ReportReader(tmp_path / "report")
    path.write_text("".join(f'{{"step": {step}}}\n' for step in range(2_500)) + '{"step"')
    found = [steps(reader.read()) for _ in range(4)]
    assert [len(each) for each in found] == [1_000, 1_000, 500, 0]
    assert list(chain(*found)) == list(range(2_500))
    with path.open("a") as file:
        file.write(": 7}\n" * 20_000)
    assert len(reader.read(last=True)) == 0  # none is a report but the first
    assert reader.skipped_lines == 20_000


def test_the_last_call_keeps_the_last_lines(tmp_path: Path) -> None:
    path, reader = tmp_path / "report", ReportReader(tmp_path / "report")
    path.write_text("".join(f'{{"step": {step}}}\n' for step in range(30_000)))
    assert steps(reader.read(last=True)) == list(range(20_000, 30_000))
    assert reader.skipped_lines == 20_000
    assert reader.read(last=True) == []


def test_an_endless_line_is_one_line_and_no_memory(tmp_path: Path) -> None:
    path, reader = tmp_path / "report", ReportReader(tmp_path / "report")
    with path.open("ab", buffering=0) as file:
        for _ in range(20):
            file.write(b'{"a": "' + b"x" * reports.STEP)
            assert reader.read() == []
            assert len(reader._half) <= reports.LONGEST_LINE
        for _ in range(20):
            reader.read()
        file.write(b'"}\n{"step": 1}\n')
        assert steps(reader.read()) == [1]
    assert reader.skipped_lines == 1


def test_links_pipes_folders_and_strangers_files_are_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text('{"step": 1}\n')
    (tmp_path / "link").symlink_to(secret)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "device").symlink_to("/dev/zero")
    for name in ("link", "pipe", "folder", "device"):
        reader = ReportReader(tmp_path / name)
        assert reader.read() == []
        assert reader.problem.startswith(f"{name} is not read: ")
        secret_free = tmp_path / name
        secret_free.rename(tmp_path / f"old-{name}")
        secret_free.write_text('{"step": 2}\n')
        assert steps(reader.read()) == [2]
        assert reader.problem == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_account_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "report"
    path.write_text('{"step": 1}\n')
    os.chown(path, 65_534, 65_534)
    reader = ReportReader(path)
    assert reader.read() == []
    assert "no plain file of this account" in reader.problem


@settings(max_examples=examples(100))
@given(st.lists(st.binary(max_size=60) | st.sampled_from([b"\n", b'{"step": 1}\n', b'{"a": 1']), max_size=20))
def test_garbage_never_fails(tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("garbage") / "report"
    reader = ReportReader(path)
    for part in parts:
        with path.open("ab") as file:
            file.write(part)
        for report in reader.read():
            assert all(math.isfinite(value) for value in report.metrics.values())
    reader.read(last=True)
    assert reader.problem == ""


# Requests.


def test_requests_are_written_whole_and_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "requests"
    write_request(path, TaskRequest.PAUSE)
    assert json.loads(path.read_text()) == {"request": "pause"}
    assert stat.S_IMODE(path.stat().st_mode) & 0o007 == 0
    write_request(path, TaskRequest.PAUSE, by_s=1.5, devices=None)
    assert path.read_text() == '{"request": "pause", "by_s": 1.5}\n'
    write_request(path, None)
    write_request(path, None)
    assert list(tmp_path.iterdir()) == []


def test_a_request_does_not_follow_a_link(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    (tmp_path / "requests").symlink_to(tmp_path / "mine")
    write_request(tmp_path / "requests", TaskRequest.STOP)
    assert (tmp_path / "mine").read_text() == "precious"


# Event files.


def record(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + struct.pack("<I", masked_crc(length)) + event + struct.pack("<I", masked_crc(event))


def scalar(step: int, value: float) -> bytes:
    """An event with ``a = value``, built by hand."""
    inner = b"\x0a\x01a\x15" + struct.pack("<f", value)
    summary = b"\x0a" + bytes([len(inner)]) + inner
    return b"\x09" + struct.pack("<d", 5.0) + b"\x10" + bytes([step]) + b"\x2a" + bytes([len(summary)]) + summary


def test_crc_is_the_published_one() -> None:
    crc = 0xE3069283  # of "123456789", RFC 3720
    assert masked_crc(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_scalars_of_pytorch_are_read(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / EVENTS.name).write_bytes(EVENTS.read_bytes())
    reader = EventReader(tmp_path)
    found = reader.read()
    assert [(report.step, dict(report.metrics), report.not_finite) for report in found] == [
        (0, {"train/loss": 1.0}, ()),
        (1, {"train/loss": 0.5}, ()),
        (1, {"accuracy": 0.5}, ()),
        (2, {"double": 0.25}, ()),
        (3, {}, ("bad",)),
        (2**40, {"last": 7.0}, ()),
    ]
    assert all(report.time_s is not None and report.time_s > 1.7e9 for report in found)
    assert reader.read() == []
    assert (reader.skipped_lines, reader.problem) == (0, "")


def test_event_files_are_read_on_at_any_byte(tmp_path: Path) -> None:
    whole, path = EVENTS.read_bytes(), tmp_path / EVENTS.name
    expected = whole_reports(tmp_path, whole)
    path.unlink()
    reader, found = EventReader(tmp_path), []
    with path.open("ab", buffering=0) as file:
        for byte in whole:
            file.write(bytes([byte]))
            found += reader.read()
    assert found == expected


def whole_reports(folder: Path, content: bytes) -> list[Report]:
    (folder / EVENTS.name).write_bytes(content)
    return EventReader(folder).read()


def test_a_damaged_event_file_gives_what_was_written_or_nothing(tmp_path: Path) -> None:
    whole = EVENTS.read_bytes()
    expected = whole_reports(tmp_path, whole)
    for place in range(len(whole)):
        damaged = whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :]
        (tmp_path / EVENTS.name).write_bytes(damaged)
        reader = EventReader(tmp_path)
        found = reader.read()
        assert found == expected[: len(found)]
        assert len(found) < len(expected) or reader.problem == ""
        assert reader.read() == []


def test_large_events_are_passed_over(tmp_path: Path) -> None:
    image = b"\x2a" + b"\xff" * (3 * reports.STEP)
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(record(scalar(1, 0.5)) + record(image) + record(scalar(2, 0.25)))
    reader = EventReader(tmp_path)
    found = [report for _ in range(3) for report in reader.read()]
    assert [(report.step, report.metrics) for report in found] == [(1, {"a": 0.5}), (2, {"a": 0.25})]


def test_a_large_event_that_is_still_written_is_passed_over(tmp_path: Path) -> None:
    whole = record(bytes(reports.STEP)) + record(scalar(1, 0.5))
    path, reader = tmp_path / "events.out.tfevents.1", EventReader(tmp_path)
    path.write_bytes(whole[: reports.STEP // 2])
    assert [reader.read() for _ in range(2)] == [[], []]
    path.write_bytes(whole)
    assert [report.metrics for _ in range(2) for report in reader.read()] == [{"a": 0.5}]


def test_a_length_that_is_a_lie_reads_nothing(tmp_path: Path) -> None:
    length = struct.pack("<Q", 2**63)
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(length + struct.pack("<I", masked_crc(length)) + scalar(1, 0.5))
    reader = EventReader(tmp_path)
    assert [reader.read() for _ in range(3)] == [[], [], []]


def test_links_and_what_lies_too_deep_are_not_followed(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    (outside / "events.out.tfevents.1").write_bytes(record(scalar(1, 0.5)))
    deep = inside / "a" / "b" / "c" / "d" / "e"
    deep.mkdir(parents=True)
    (inside / "loop").symlink_to(inside)
    (inside / "link").symlink_to(outside)
    (inside / "events.out.tfevents.2").symlink_to(outside / "events.out.tfevents.1")
    os.mkfifo(inside / "events.out.tfevents.3")
    (deep / "events.out.tfevents.4").write_bytes(record(scalar(1, 0.5)))
    assert EventReader(inside).read() == []
    (deep.parent / "events.out.tfevents.4").write_bytes(record(scalar(1, 0.5)))
    assert steps(EventReader(inside).read()) == [1]


@settings(max_examples=examples(200))
@given(st.binary(max_size=80) | st.binary(max_size=40).map(lambda data: b"\x2a" + bytes([len(data)]) + data))
def test_any_bytes_are_an_event_or_refused(data: bytes) -> None:
    try:
        report = parse_event(data)
    except (ValueError, IndexError, struct.error):
        return
    assert report is None or report.metrics or report.not_finite
