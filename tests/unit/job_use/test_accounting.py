"""What jobs used, as sacct prints it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from helios.job_use import accounting
from helios.job_use.accounting import read_sacct
from helios.job_use.records import UseCounts
from tests.use_files import comment, of_node, summary

HOUR = 3600
BEGIN = 1_780_000_000
FIELDS = "JobIDRaw|Submit|Start|End|State|AllocTRES|NTasks|MaxRSS|AdminComment\n"
TRES = "cpu=8,gres/gpu:a100=1,gres/gpu=1,mem=16G,node=1"
MEASURED = comment(summary(of_node()))


def job(job_id: object, text: str = "", *, start: int = 100, end: int = 100 + HOUR, tres: str = TRES) -> str:
    return f"{job_id}|{BEGIN}|{BEGIN + start}|{BEGIN + end}|COMPLETED|{tres}|||{text}\n"


def step(name: str, size: str, *, tasks: object = 1, start: int = 100, end: int = 100 + HOUR) -> str:
    return f"{name}|{BEGIN + start}|{BEGIN + start}|{BEGIN + end}|COMPLETED|{TRES}|{tasks}|{size}|\n"


def read(folder: Path, *rows: str, counts: UseCounts | None = None) -> pd.DataFrame:
    (folder / "use.txt").write_text(FIELDS + "".join(rows))
    found = read_sacct(folder / "use.txt", counts=counts or UseCounts())
    return pd.concat([part.jobs for part in found], ignore_index=True)


def peaks(folder: Path, *rows: str) -> dict[str, float]:
    jobs = read(folder, *rows)
    memory = jobs[jobs["source"] == "sacct"]
    return dict(zip(memory["job_id"], memory["memory_peak_mib"], strict=True))


def test_a_comment_of_jobstats_is_that_of_its_job(tmp_path: Path) -> None:
    counts = UseCounts()
    found = read(tmp_path, job(1, MEASURED), job(2), job(3, "see ticket 5|6"), job(4, "JS1:Short"), counts=counts)
    assert found[["job_id", "source", "quality"]].values.tolist() == [
        ["1", "jobstats", "ok"],
        ["4", "jobstats", "short"],
    ]
    assert found["started_at"][0] == pd.Timestamp(BEGIN + 100, unit="s", tz="UTC")
    assert counts.other_text == 1


def test_jobs_that_run_have_no_use_yet(tmp_path: Path) -> None:
    running = job(1, MEASURED).replace("COMPLETED", "RUNNING")
    assert read(tmp_path, running, job(2, MEASURED).replace(str(BEGIN + 100 + HOUR), "Unknown")).empty


def test_a_summary_of_another_length_than_the_run_is_not_whole(tmp_path: Path) -> None:
    found = read(tmp_path, job(1, MEASURED, end=100 + 2 * HOUR), job(2, MEASURED, end=100 + HOUR // 2))
    assert found["quality"].tolist() == ["partial", "broken"]


def test_a_comment_on_all_runs_of_a_job_is_of_the_last(tmp_path: Path) -> None:
    found = read(tmp_path, job(1, MEASURED, start=100, end=100 + HOUR), job(1, MEASURED, start=9000, end=9000 + HOUR))
    assert found["started_at"].tolist() == [pd.Timestamp(BEGIN + 9000, unit="s", tz="UTC")]


@pytest.mark.parametrize(
    ("name", "steps", "is_session"),
    [
        ("bash", ("batch",), 0.0),  # a batch job of that name
        ("train", ("batch", "0"), 0.0),
        ("interactive", ("interactive", "extern"), 1.0),
        ("bash", ("0",), 1.0),  # srun --pty bash
        ("train", ("0",), None),  # srun train
        ("train", ("extern",), None),
    ],
)
def test_steps_tell_shells_from_batch_jobs(
    name: str, steps: tuple[str, ...], is_session: float | None, tmp_path: Path
) -> None:
    rows = [f"{job(1)[:-1]}|{name}", *(f"{step(f'1.{one}', '1G')[:-1]}|{one}" for one in steps)]
    fields = f"{FIELDS[:-1]}|JobName\n"
    (tmp_path / "use.txt").write_text(fields + "".join(f"{row}\n" for row in rows))
    (found,) = read_sacct(tmp_path / "use.txt", counts=UseCounts())
    (value,) = found.jobs["is_interactive"]
    assert value == is_session if is_session is not None else pd.isna(value)


def test_typed_slices_are_known_by_what_was_allocated(tmp_path: Path) -> None:
    slices = job(1, MEASURED, tres="gres/gpu:1g.10gb=1,gres/gpu=1")
    whole = job(2, comment(summary(of_node(gpu_utilization=None))))
    assert read(tmp_path, slices, whole)["is_mig"].tolist() == [1.0, 0.0]


def test_memory_is_that_of_steps_that_run_together(tmp_path: Path) -> None:
    rows = [
        *(job(1), step("1.batch", "1024M"), step("1.extern", "0")),
        step("1.0", "2G", tasks=2, start=100, end=200),
        step("1.1", str(3 * 2**30), start=200, end=300),
        *(job(2), step("2.batch", "")),
        *(job("3"), step("3.0", "512K")),
    ]
    assert peaks(tmp_path, *rows) == {"1": 5 * 1024.0, "3": 0.5}


def test_a_task_with_more_memory_than_was_allocated_is_broken(tmp_path: Path) -> None:
    found = read(tmp_path, job(1), step("1.0", "17G"), job(2), step("2.0", "5G", tasks=4))
    assert found[["memory_peak_mib", "memory_limit_mib", "quality"]].values.tolist() == [
        [17408.0, 16384.0, "broken"],
        [16384.0, 16384.0, "ok"],  # one of four tasks had 5 GiB, and together they cannot have had 20
    ]


def test_steps_belong_to_the_job_before_them(tmp_path: Path) -> None:
    assert peaks(tmp_path, step("9.0", "4G"), step("1.1", "4G"), job(1), step("2.0", "4G"), step("1.0", "1G")) == {
        "1": 1024.0
    }


def test_ids_of_arrays_and_of_parts_of_jobs_are_kept(tmp_path: Path) -> None:
    found = read(tmp_path, job("12_3", MEASURED), job("15+0", MEASURED), job("15+1", MEASURED))
    assert found["job_id"].tolist() == ["12_3", "15+0", "15+1"]


def test_steps_in_the_next_block_are_of_the_job_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "ROWS_AT_ONCE", 2)
    rows = [text for n in range(1, 6) for text in (job(n), step(f"{n}.batch", "1G"), step(f"{n}.0", "1G"))]
    assert peaks(tmp_path, *rows) == {str(n): 2048.0 for n in range(1, 6)}
