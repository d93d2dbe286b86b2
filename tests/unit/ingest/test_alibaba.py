import gzip

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.errors import FormatUnknown
from helios.ingest import TraceFormat, open_trace
from tests.examples import examples
from tests.unit.ingest.builders import a_file, a_pai_file, a_pai_job, a_pai_task, read, rejects_of, the_job


def sized(folder, *tasks):
    return the_job(a_pai_file(folder, a_pai_job(), tasks=tasks))


def test_submission_comes_from_the_job_table_and_start_from_the_tasks(tmp_path):
    job = sized(tmp_path, a_pai_task(task="worker", start="4550950.0"), a_pai_task(task="ps", start="4550900.0"))
    seconds = [int(job[name].timestamp()) for name in ("submitted_at", "started_at", "ended_at")]
    assert seconds == [4550879, 4550900, 4551416] and job["run_time_s"] == 516


def test_hours_and_weekdays_are_those_of_shanghai(tmp_path):
    path = a_pai_file(tmp_path, a_pai_job(start="0000000.5"))
    assert open_trace(path).timezone == "Asia/Shanghai" and not any("assumed" in note for note in read(path).notes)


def test_the_published_example_asks_for_14_cpus_and_1_gpu(tmp_path):
    worker = a_pai_task(task="worker", instances="2.0", cpu="400.0", gpu="50.0", memory="10")
    job = sized(tmp_path, a_pai_task(task="ps", cpu="600.0", gpu="", kind="", memory="2"), worker)
    assert job[["cpus", "gpus", "memory_mib"]].tolist() == [14, 1, 22 * 1024]


@pytest.mark.parametrize(
    ("instances", "per_cent", "gpus"),
    [
        ("1.0", "50.0", 0.5),
        ("2.0", "50.0", 1),
        ("3.0", "10.0", 0.3),
        ("8.0", "100.0", 8),
        ("1.0", "", 0),
        ("10.0", "10.0", 1),
    ],
)
def test_fractions_of_gpus_are_summed_over_the_job(tmp_path, instances, per_cent, gpus):
    assert sized(tmp_path, a_pai_task(instances=instances, gpu=per_cent))["gpus"] == gpus


def test_kinds_of_gpu_are_those_of_the_tasks_that_ask_for_some(tmp_path):
    tasks = [a_pai_task(kind="V100"), a_pai_task(kind="T4"), a_pai_task(kind="T4"), a_pai_task(gpu="", kind="CPU")]
    assert sized(tmp_path, *tasks)["gpu_type"] == "T4,V100"


@pytest.mark.parametrize(
    ("status", "state"),
    [("Terminated", "COMPLETED"), ("Failed", "FAILED"), ("Running", "RUNNING"), ("Waiting", "PENDING")],
)
def test_their_words_for_states_are_slurms(tmp_path, status, state):
    assert the_job(a_pai_file(tmp_path, a_pai_job(status=status)))["state"] == state


@pytest.mark.parametrize("end", ["", "0", "0.0"])
def test_a_time_of_zero_or_none_is_unknown(tmp_path, end):
    job = the_job(a_pai_file(tmp_path, a_pai_job(end=end), tasks=[a_pai_task(start=end)]))
    assert job[["started_at", "ended_at", "run_time_s"]].isna().all()


def test_a_job_without_tasks_has_no_start_and_is_told(tmp_path):
    batch = read(a_pai_file(tmp_path, a_pai_job(name="lost"), a_pai_job(name="j1", inst="i2")))
    lost = batch.jobs[batch.jobs["job_id"] == "lost"].iloc[0]
    assert pd.isna(lost["started_at"]) and np.isnan(lost["cpus"]) and np.isnan(lost["gpus"])
    assert any("1 job has no task" in note for note in batch.notes)


def test_a_group_tag_is_the_name_where_the_table_is_there(tmp_path):
    jobs = [a_pai_job(name="j1", inst="i1"), a_pai_job(name="j2", inst="i2"), a_pai_job(name="j3", inst="i3")]
    tags = ["i2,ann,V100M32,fbeb14,nmt", "i1,ann,,0a1b2c,", "i3,ann,,,"]
    batch = read(a_pai_file(tmp_path, *jobs, tags=tags))
    assert batch.jobs["name"].fillna("-").tolist() == ["0a1b2c", "fbeb14", "-"]
    assert any("1 job has no group tag" in note for note in batch.notes)


def test_without_the_tag_table_jobs_have_no_names(tmp_path):
    assert pd.isna(the_job(a_pai_file(tmp_path, a_pai_job()))["name"])


def test_a_table_beside_it_may_be_packed(tmp_path):
    path = a_pai_file(tmp_path, a_pai_job(), tasks=None)
    (tmp_path / "pai_task_table.csv.gz").write_bytes(gzip.compress(a_pai_task(gpu="800.0").encode() + b"\n"))
    assert the_job(path)["gpus"] == 8


def test_without_the_task_table_the_error_says_where_to_put_it(tmp_path):
    with pytest.raises(FormatUnknown, match=r"(?s)how many GPUs.*pai_task_table\.csv"):
        read(a_pai_file(tmp_path, a_pai_job(), tasks=None))


def test_the_task_table_alone_is_an_error_that_names_the_job_table(tmp_path):
    a_pai_file(tmp_path, a_pai_job())
    with pytest.raises(FormatUnknown, match=r"(?s)table of tasks.*pai_job_table\.csv"):
        read(tmp_path / "pai_task_table.csv")


def test_another_table_is_not_the_job_table(tmp_path):
    with pytest.raises(FormatUnknown, match="six fields"):
        read(a_file(tmp_path, "a,b,c\n"), format=TraceFormat.PAI)


def test_the_published_header_may_be_put_on_top(tmp_path):
    header = "job_name,inst_id,user,status,start_time,end_time"
    assert len(read(a_pai_file(tmp_path, header, a_pai_job())).jobs) == 1


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (a_pai_job(start="soon"), "number is not understood"),
        (a_pai_job(start="99999999999999"), "time is not understood"),
        (a_pai_job(start=""), "no submit time"),
        (a_pai_job(end="4550000.0"), "negative run time"),
        (a_pai_job(status="Gone"), "unknown state"),
        (a_pai_job(name=""), "no job id"),
        ("a,b,c", "wrong number of fields"),
    ],
)
def test_a_job_that_makes_no_sense_is_rejected_with_its_reason(tmp_path, row, reason):
    path = a_pai_file(tmp_path, a_pai_job(name="first", inst="i0"), row)
    assert rejects_of(path) == [(2, reason)]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (a_pai_task(gpu="half"), "number is not understood"),
        (a_pai_task(cpu="-100"), "negative size"),
        (a_pai_task(job=""), "no job id"),
        ("j1,worker", "wrong number of fields"),
    ],
)
def test_an_impossible_task_is_rejected_with_the_name_of_its_table(tmp_path, row, reason):
    batch = read(a_pai_file(tmp_path, a_pai_job(), tasks=[a_pai_task(gpu="100"), row]))
    (line, found, text), *others = batch.rejects.itertuples(index=False)
    assert (line, found, text, others) == (2, reason, f"pai_task_table: {row}", [])
    assert batch.jobs["gpus"].tolist() == [1]


def test_another_task_table_makes_it_another_file(tmp_path):
    path = a_pai_file(tmp_path, a_pai_job())
    before = open_trace(path).sha256
    a_file(tmp_path, a_pai_task(gpu="800") + "\n", name="pai_task_table.csv")
    assert open_trace(path).sha256 != before


tasks = st.lists(
    st.tuples(
        st.integers(0, 4), st.integers(1, 9), st.sampled_from([None, 10, 25, 50, 100, 800]), st.integers(1, 10**6)
    ),
    max_size=30,
)


@settings(deadline=None, max_examples=examples(20))
@given(tasks=tasks, rows_per_batch=st.sampled_from([2, 7, 100]))
def test_sizes_and_starts_are_those_that_adding_up_one_by_one_finds(tmp_path_factory, tasks, rows_per_batch):
    jobs = [a_pai_job(name=f"j{number}", inst=f"i{number}", start="0.5", end="2000000") for number in range(5)]
    rows = [
        a_pai_task(job=f"j{job}", instances=str(count), gpu="" if asked is None else str(asked), start=str(start))
        for job, count, asked, start in tasks
    ]
    path = a_pai_file(tmp_path_factory.mktemp("pai"), *jobs, tasks=[*rows, a_pai_task(job="other")])
    found = read(path, rows_per_batch=rows_per_batch).jobs.set_index("job_id")
    for number in range(5):
        mine = [(count, asked or 0, start) for job, count, asked, start in tasks if job == number]
        if mine:
            assert found.loc[f"j{number}", "gpus"] == sum(count * asked for count, asked, _ in mine) / 100
        else:
            assert pd.isna(found.loc[f"j{number}", "gpus"])
        started = found.loc[f"j{number}", "started_at"]
        assert started.timestamp() == min(start for *_, start in mine) if mine else pd.isna(started)
