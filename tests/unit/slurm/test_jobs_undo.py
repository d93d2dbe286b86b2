"""The record of what Helios wrote to jobs outlasts a crash, is read by a shell, and does not grow for ever."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helios.actions import JobSetting
from helios.slurm.hook_table import PUBLISHED, TABLE, HookRow, publish, read_published, render, retract
from helios.slurm.undo_file import JOBS_FILE, JobsUndo, UndoEntry, UndoNotWritten
from tests.unit.slurm.slurm import START, a_raw_job

HOUR_S = 3600


def now_s() -> int:
    """Return the time, s since the epoch, as of now: what is published is published then."""
    return int(datetime.now(UTC).timestamp())


def a_value(
    job_id: str = "1", value: int = 4037, *, submitted: int = START, setting: JobSetting = JobSetting.ORDER
) -> UndoEntry:
    return UndoEntry(setting=setting, job_id=job_id, submitted=submitted, value=value)


def has_record(folder: Path, value: int = 4037, **job: object) -> bool:
    undo = JobsUndo(folder)
    undo.refresh()
    return undo.has_record(JobSetting.ORDER, a_raw_job("1", **job), value)


def test_another_process_reads_what_was_written_and_the_file_is_not_everybodys(tmp_path: Path) -> None:
    JobsUndo(tmp_path).add([a_value()])
    assert has_record(tmp_path)
    assert (tmp_path / JOBS_FILE).stat().st_mode & 0o777 == 0o640
    assert (tmp_path / JOBS_FILE).read_text() == f"site_factor\t1\t{START}\t4037\n"


def test_a_process_sees_what_another_adds(tmp_path: Path) -> None:
    undo = JobsUndo(tmp_path)
    undo.refresh()
    JobsUndo(tmp_path).add([a_value()])
    undo.refresh()
    assert undo.has_record(JobSetting.ORDER, a_raw_job("1"), 4037)


def test_a_line_that_a_crash_cut_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / JOBS_FILE).write_text(f"site_factor\t1\t{START}\t4")
    undo = JobsUndo(tmp_path)
    undo.refresh()
    undo.add([a_value("2", 537)])
    assert (tmp_path / JOBS_FILE).read_text() == f"site_factor\t2\t{START}\t537\n"
    assert not has_record(tmp_path)


@given(st.binary(max_size=200))
def test_a_damaged_file_proves_nothing_and_raises_nothing(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    folder = tmp_path_factory.mktemp("state")
    (folder / JOBS_FILE).write_bytes(data)
    assert not has_record(folder)


def test_a_full_disk_is_an_error_and_nothing_counts_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    undo = JobsUndo(tmp_path)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for _ in range(2):
        with pytest.raises(UndoNotWritten, match="No space left"):
            undo.add([a_value()])
        (tmp_path / JOBS_FILE).unlink()
        undo.refresh()
    assert not undo.has_record(JobSetting.ORDER, a_raw_job("1"), 4037)


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / JOBS_FILE).symlink_to(victim)
    with pytest.raises(UndoNotWritten):
        JobsUndo(tmp_path).add([a_value()])
    assert victim.read_text() == "precious"


def test_jobs_that_are_gone_are_forgotten_now_and_then(tmp_path: Path) -> None:
    undo = JobsUndo(tmp_path)
    alive = [a_raw_job(str(number)) for number in range(1_000_000, 1_000_010)]
    for cycle in range(60):
        gone = [a_value(str(100 * cycle + number), 137) for number in range(100)]
        undo.add([*gone, *(a_value(job["job_id"], 100 * cycle + 137) for job in alive)], queue=alive)
    assert len((tmp_path / JOBS_FILE).read_text().splitlines()) < 2_000
    again = JobsUndo(tmp_path)
    again.refresh()
    assert all(again.has_record(JobSetting.ORDER, job, 100 * 59 + 137) for job in alive)


def test_what_already_stands_there_is_not_written_again(tmp_path: Path) -> None:
    undo = JobsUndo(tmp_path)
    for _ in range(3):
        undo.add([a_value()])
    assert len((tmp_path / JOBS_FILE).read_text().splitlines()) == 1


def test_a_value_seen_gone_may_come_back(tmp_path: Path) -> None:
    undo = JobsUndo(tmp_path)
    undo.add([a_value()])
    undo.add([a_value(value=0)])
    assert undo.last(JobSetting.ORDER, a_raw_job("1")) == 0
    assert has_record(tmp_path)


def test_of_a_requeued_job_the_latest_submission_tells_the_last_value(tmp_path: Path) -> None:
    undo = JobsUndo(tmp_path)
    for later, value in ((0, 137), (2, 337), (1, 237), (9, 937)):
        undo.add([a_value(value=value, submitted=START + later)])
    requeued = a_raw_job("1", submitted=START + 5, restart=3)
    assert undo.last(JobSetting.ORDER, requeued) == 337
    assert [undo.has(JobSetting.ORDER, requeued, value) for value in (137, 237, 337, 937)] == [True, True, True, False]
    assert undo.last(JobSetting.ORDER, a_raw_job("1", submitted=START + 5)) == 0  # not requeued: another job


def test_the_ledger_proves_what_it_names_and_no_earlier_value(tmp_path: Path) -> None:
    undo = JobsUndo(tmp_path)
    undo.load([a_value("1"), a_value("2", 37)])
    assert undo.has_record(JobSetting.ORDER, a_raw_job("1"), 4037)
    assert not undo.has_record(JobSetting.ORDER, a_raw_job("1", submitted=START + 1), 4037)
    assert not undo.has(JobSetting.ORDER, a_raw_job("1"), 4037)  # it is in no file yet
    undo.load([a_value("2", 37)])
    assert not undo.has_record(JobSetting.ORDER, a_raw_job("1"), 4037)


ROW = HookRow(user="ann+o@lab", partition="gpu", gpus=1, limit_min=60, site_factor=4037, time_min=17)


def published(folder: Path, *rows: HookRow) -> None:
    now = datetime.now(UTC)
    publish(folder / TABLE, render(rows, generation=1, now=now, lasts=timedelta(hours=1)))


@pytest.mark.parametrize(
    ("job", "since_s", "proved"),
    [
        ({}, 0, True),
        ({"user": "bob"}, 0, False),
        ({"partition": "cpu"}, 0, False),
        ({}, -HOUR_S, False),
    ],
)
def test_a_place_of_the_hook_is_proved_by_user_partition_and_time(
    tmp_path: Path, job: dict[str, object], since_s: int, proved: bool
) -> None:
    published(tmp_path, ROW)
    assert has_record(tmp_path, **({"user": "ann+o@lab", "submitted": now_s() + since_s} | job)) is proved


@pytest.mark.parametrize(("limit_s", "proved"), [(3600.0, True), (7200.0, False), ("UNLIMITED", False)])
def test_the_time_limit_proves_a_soft_limit_of_the_hook_too(tmp_path: Path, limit_s: float | str, proved: bool) -> None:
    published(tmp_path, ROW)
    undo = JobsUndo(tmp_path)
    undo.refresh()
    job = a_raw_job("1", user="ann+o@lab", submitted=now_s(), time_limit_s=limit_s)
    assert undo.has_record(JobSetting.SOFT_LIMIT, job, 17) is proved


def test_what_is_published_no_longer_is_remembered_for_jobs_from_then(tmp_path: Path) -> None:
    published(tmp_path, ROW)
    published(tmp_path)
    assert has_record(tmp_path, user="ann+o@lab", submitted=now_s())
    assert not has_record(tmp_path, user="ann+o@lab", submitted=now_s() + HOUR_S)


def test_a_table_that_is_removed_proves_nothing_of_later_jobs(tmp_path: Path) -> None:
    published(tmp_path, ROW)
    retract(tmp_path / TABLE)
    assert not has_record(tmp_path, user="ann+o@lab", submitted=now_s() + HOUR_S)


def test_what_was_published_long_ago_is_forgotten(tmp_path: Path) -> None:
    (tmp_path / PUBLISHED).parent.mkdir()
    (tmp_path / PUBLISHED).write_text("1 2 site_factor alice gpu * 4037\n")
    published(tmp_path, ROW)
    assert {what[1] for what in read_published(tmp_path / PUBLISHED).spans} == {"ann%2Bo%40lab"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file in another user's folder")
def test_what_root_makes_in_the_services_folder_is_the_services(tmp_path: Path) -> None:
    os.chown(tmp_path, 65533, 65532)
    JobsUndo(tmp_path).add([a_value()])
    (tmp_path / PUBLISHED).parent.mkdir()
    os.chown(tmp_path / PUBLISHED.parent, 65533, 65532)
    published(tmp_path, ROW)
    for file in (JOBS_FILE, PUBLISHED, TABLE):
        found = (tmp_path / file).stat()
        assert (found.st_uid, found.st_gid) == (65533, 65532)
