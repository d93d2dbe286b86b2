"""Crafted names through the readers of formats that quote them: not one forges a row."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from helios.ingest import write_helios_csv
from tests.builders import a_job, jobs_frame
from tests.unit.ingest.builders import (
    a_helios_row,
    a_json_file,
    a_json_job,
    a_philly_attempt,
    a_philly_file,
    a_philly_job,
    read,
)
from tests.unit.ingest.crafted import NAMES

SAYABLE = [name.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for name in NAMES]
FORGED_ROWS = [
    f"{around}\n{a_helios_row(job_id='999', user='bob')},x,3600\n{around}"
    for around in ("", "x", '"', '""', ",", "\n" * 70, '"\n"', "\n" * 70 + '"')
]


def test_sacct_json(tmp_path: Path) -> None:
    jobs = [a_json_job(job_id=number, name=name, user="ann") for number, name in enumerate(SAYABLE, 1)]
    jobs += [a_json_job(job_id=1000 + number, account=name, user="ann") for number, name in enumerate(SAYABLE)]
    batch = read(a_json_file(tmp_path, *jobs))
    submitted = {str(job["job_id"]) for job in jobs}
    assert set(batch.jobs["job_id"]) <= submitted
    assert len(batch.jobs) + len(batch.rejects) == len(jobs)
    assert set(batch.rejects["reason"].astype(str)) <= {"NUL byte"}
    assert set(batch.jobs["user"]) == {"ann"}


def test_philly(tmp_path: Path) -> None:
    jobs = [
        a_philly_job(a_philly_attempt(), jobid=f"application_{number}", user=name, vc=name)
        for number, name in enumerate(SAYABLE)
    ]
    batch = read(a_philly_file(tmp_path, *jobs))
    assert set(batch.jobs["job_id"]) <= {str(job["jobid"]) for job in jobs}
    assert len(batch.jobs) + len(batch.rejects) == len(jobs)


def test_helios_csv(tmp_path: Path) -> None:
    names = [*SAYABLE, *FORGED_ROWS]
    jobs = jobs_frame(*(a_job(job_id=str(number), user=name, partition=name) for number, name in enumerate(names, 1)))
    path = tmp_path / "jobs.csv"
    write_helios_csv(jobs, path)
    header = path.read_bytes().splitlines()[0].decode().split(",")
    assert len(header) == len(FORGED_ROWS[0].strip().split(",")), "a forged row has the columns of a true one"
    batch = read(path)
    assert set(batch.jobs["job_id"]) <= {str(number) for number in range(1, len(names) + 1)}
    assert pd.Series(batch.jobs["user"]).isin(["bob"]).sum() == 0
    assert set(batch.rejects["reason"].astype(str)) == {"NUL byte"}
