"""``sacct --json`` of all releases, against ``sacct --parsable2`` of the same jobs."""

import json
from copy import deepcopy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.errors import FormatUnknown, NothingUnderstood
from helios.ingest import TraceFormat, open_trace
from helios.ingest.sacct_json import lift_records
from tests.examples import examples
from tests.unit.ingest.builders import (
    DATA_PARSERS,
    a_file,
    a_json_file,
    a_json_job,
    a_sacct_file,
    read,
    rejects_of,
    the_job,
)

# Both were printed by Slurm 22.05.8 within a second, of 16 jobs: done, failed, killed, timed out, requeued, cancelled,
# pending, two arrays, a heterogeneous job, names with a bar and with a newline.
RECORDED = Path(__file__).parent / "recorded"

ordered = ["submitted_at", "job_id"]


def differences(left: pd.DataFrame, right: pd.DataFrame) -> dict[tuple[str, str], tuple[object, object]]:
    """Return job and column of each difference, and both values."""
    left, right = (jobs.sort_values(ordered, ignore_index=True).astype(object) for jobs in (left, right))
    left, right = (jobs.where(jobs.notna(), None) for jobs in (left, right))
    return {
        (left.at[row, "job_id"], column): (left.at[row, column], right.at[row, column])
        for row in left.index
        for column in left.columns
        if left.at[row, column] != right.at[row, column]
    }


def test_a_real_accounting_gives_the_jobs_of_its_parsable_export():
    found = read(RECORDED / "sacct-22.05.json").jobs
    expected = read(RECORDED / "sacct-22.05.txt").jobs
    assert len(found) == 16
    assert differences(found, expected) == {("4", "exit_code"): (None, "3:0"), ("15", "time_limit_s"): (None, np.inf)}


def test_a_real_accounting_is_recognised_and_its_times_are_absolute():
    trace = open_trace(RECORDED / "sacct-22.05.json")
    assert (trace.format, trace.cluster, trace.assumed_timezone) == (TraceFormat.SACCT_JSON, "dev", None)


def parsable(job_id, shown, *, state, times, limit_minutes, gpus, cpus, memory_mib, exit_code):
    """The same job as ``sacct --parsable2`` prints it."""
    tres = f"billing={cpus},cpu={cpus}{f',gres/gpu={gpus}' * bool(gpus)},mem={memory_mib}M,node=1"
    submitted, eligible, started, ended = map(str, times)
    return {
        **{"JobIDRaw": str(job_id), "JobID": shown, "Cluster": "ada", "User": "ann", "Group": "staff"},
        **{"Account": "vision", "QOS": "normal", "Partition": "gpu", "State": state, "JobName": "fit"},
        **{"ExitCode": f"{exit_code[0]}:{exit_code[1]}", "Submit": submitted, "Eligible": eligible, "Start": started},
        **{"End": ended, "TimelimitRaw": str(limit_minutes), "AllocNodes": "1", "ReqCPUS": str(cpus), "NodeList": "n1"},
        **{"ReqTRES": tres, "AllocTRES": tres, "ReqMem": f"{memory_mib}M"},
    }


ends = st.sampled_from(["COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY"])
moments = st.lists(st.integers(1_600_000_000, 1_800_000_000), min_size=4, max_size=4).map(
    lambda times: tuple(sorted(times))
)


@settings(deadline=None, max_examples=examples(15))
@given(data=st.data(), data_parser=st.sampled_from(DATA_PARSERS), job_id=st.integers(1, 2**31))
def test_a_job_is_the_same_in_every_json_and_in_parsable_text(tmp_path_factory, data, data_parser, job_id):
    folder = tmp_path_factory.mktemp("both")
    minutes = st.integers(1, 10_000)
    limits = minutes if data_parser == "v0.0.38" else minutes | st.just("UNLIMITED")
    facts = {
        "state": data.draw(ends),
        "times": data.draw(moments),
        "limit_minutes": data.draw(limits),
        "gpus": data.draw(st.integers(0, 64)),
        "cpus": data.draw(st.integers(1, 512)),
        "memory_mib": data.draw(st.integers(1, 10**7)),
        "exit_code": data.draw(st.sampled_from([(1, 0), (0, 9), (127, 0)])),
    }
    part, member = data.draw(st.sampled_from(["", "array", "het"])), data.draw(st.integers(0, 99))
    shown = {"": str(job_id), "array": f"7_{member}", "het": f"7+{member}"}[part]
    job = a_json_job(data_parser=data_parser, job_id=job_id, **facts, **({part: (7, member)} if part else {}))
    text = parsable(job_id, shown, **facts)
    found = read(a_json_file(folder, job, name="json")).jobs
    assert differences(found, read(a_sacct_file(folder, text)).jobs) == {}


@pytest.mark.parametrize("data_parser", DATA_PARSERS)
def test_each_releases_wording_is_lifted_to_the_same_fields(data_parser):
    facts = {"job_id": 9, "array": (7, 3), "exit_code": (0, 9), "state": "FAILED"}
    assert dict(lift_records(a_json_job(data_parser=data_parser, **facts))) | {"reqmem": None} == (
        dict(lift_records(a_json_job(data_parser="v0.0.43", **facts))) | {"reqmem": None}
    )


def job_of(folder, **fields):
    return the_job(a_json_file(folder, a_json_job(**fields)))


@pytest.mark.parametrize(
    ("words", "state"),
    [
        ("RUNNING", "RUNNING"),
        (["CANCELLED"], "CANCELLED"),
        (["PENDING", "REQUEUED"], "REQUEUED"),
        (["RUNNING", "COMPLETING"], "RUNNING"),
        (["FAILED", "SIGNALING"], "FAILED"),
    ],
)
def test_a_state_is_a_word_or_a_base_state_with_flags(tmp_path, words, state):
    job = {**a_json_job(), "state": {"current": words, "reason": "None"}}
    assert the_job(a_json_file(tmp_path, job))["state"] == state


def test_a_pending_array_shows_its_tasks_as_parsable_text_does(tmp_path):
    array = {"job_id": 17, "limits": {"max": {"running": {"tasks": 2}}}, "task": "0x3A0", "task_id": None}
    job = the_job(
        a_json_file(
            tmp_path, {**a_json_job(job_id=17, state="PENDING", times=(1_700_000_000, 0, 0, 0)), "array": array}
        )
    )
    assert job[["array_job_id", "array_task_id"]].tolist() == ["17", "[5,7-9%2]"]
    assert job[["eligible_at", "started_at", "ended_at", "run_time_s"]].isna().all()


def test_typed_gpus_are_not_counted_twice(tmp_path):
    typed = [{"type": "gres", "name": "gpu", "count": 4}, {"type": "gres", "name": "gpu:a100", "count": 4}]
    job = job_of(tmp_path, tres={"allocated": [], "requested": typed})
    assert job[["gpus", "gpu_type"]].tolist() == [4, "a100"]


def test_memory_for_each_cpu_is_that_of_the_job(tmp_path):
    required = {"CPUs": 8, "memory_per_cpu": {"set": True, "infinite": False, "number": 500}}
    job = job_of(tmp_path, required=required, tres={"allocated": [], "requested": []})
    assert job["memory_mib"] == 4000


@pytest.mark.parametrize("limit", [{"set": False, "infinite": False, "number": 0}, None, 2**32 - 2])
def test_a_limit_that_is_not_set_is_unknown(tmp_path, limit):
    job = a_json_job()
    job["time"]["limit"] = limit
    assert np.isnan(the_job(a_json_file(tmp_path, job))["time_limit_s"])


@pytest.mark.parametrize("limit", [{"set": False, "infinite": True, "number": 0}, 2**32 - 1])
def test_an_infinite_limit_is_unlimited(tmp_path, limit):
    job = a_json_job()
    job["time"]["limit"] = limit
    assert np.isinf(the_job(a_json_file(tmp_path, job))["time_limit_s"])


def test_a_limit_is_in_minutes(tmp_path):
    assert job_of(tmp_path, limit_minutes=90)["time_limit_s"] == 5400


def test_an_eligible_time_printed_as_the_start_is_found_out_and_told(tmp_path):
    job = a_json_job(times=(1_700_000_000, 1_700_000_000, 1_700_000_500, 1_700_000_900))
    job["time"]["start"] = job["time"]["eligible"]
    batch = read(a_json_file(tmp_path, job))
    assert batch.jobs["run_time_s"].tolist() == [400] and any("eligible time in place" in note for note in batch.notes)


def test_a_job_that_was_suspended_keeps_its_start(tmp_path):
    job = a_json_job(times=(1_700_000_000, 1_700_000_000, 1_700_000_000, 1_700_000_900))
    job["time"] |= {"elapsed": 300, "suspended": 600}
    found = the_job(a_json_file(tmp_path, job))
    assert (found["started_at"], found["run_time_s"]) == (pd.Timestamp(1_700_000_000, unit="s", tz="UTC"), 300)


def test_a_user_without_a_name_is_that_of_the_association(tmp_path):
    assert job_of(tmp_path, user="")["user"] == "ann"


def test_names_with_bars_newlines_and_odd_bytes_are_kept_whole(tmp_path):
    text = json.dumps({"jobs": [a_json_job(name="a|b\nc MARK")]}).encode().replace(b"MARK", b"\xff")
    batch = read(a_file(tmp_path, text))
    assert batch.jobs["name"].tolist() == ["a|b\nc \xff"] and any("no UTF-8" in note for note in batch.notes)


def test_exports_behind_each_other_are_one_file(tmp_path):
    first, second = (json.dumps({"jobs": [a_json_job(job_id=number)]}) for number in (1, 2))
    assert read(a_file(tmp_path, f"{first}\n{second}\n")).jobs["job_id"].tolist() == ["1", "2"]


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (a_json_job(state="WEIRD"), "unknown state"),
        (a_json_job(gpus=-1, tres={"requested": "gres/gpu=-1"}), "negative size"),
        (a_json_job(tres={"requested": "gres/gpu=many"}), "TRES or GRES is not understood"),
        (a_json_job(limit_minutes=-5), "negative time limit"),
        (a_json_job(times=(1_700_000_000, 1_700_000_000, 1_700_000_060, 1_700_000_010)), "negative run time"),
        (a_json_job(time={"submission": {"set": False}}), "no submit time"),
        (a_json_job(time={"submission": "noon"}), "time is not understood"),
        (a_json_job(name="a\0b"), "NUL byte"),
        ({}, "no job id"),
        ([], "record is not understood"),
        (a_json_job(job_id=12.5), "job id is not understood"),
    ],
)
def test_an_impossible_job_is_rejected_with_its_number_and_reason(tmp_path, job, reason):
    assert rejects_of(a_json_file(tmp_path, a_json_job(job_id=1), job)) == [(2, reason)]


def test_an_answer_without_jobs_holds_none(tmp_path):
    with pytest.raises(NothingUnderstood, match="no jobs"):
        read(a_json_file(tmp_path))


def test_squeues_json_is_not_taken_for_it(tmp_path):
    with pytest.raises(FormatUnknown, match="squeue"):
        read(a_file(tmp_path, '{"jobs": [{"job_id": 1, "submit_time": 5}]}'), format=TraceFormat.SACCT_JSON)


def test_an_answer_without_jobs_gives_its_own_error(tmp_path):
    errors = [{"description": "slurmdbd is away", "error": "cannot connect", "error_number": 7000}]
    path = a_file(tmp_path, json.dumps({"jobs": [], "errors": errors}))
    with pytest.raises(NothingUnderstood, match="slurmdbd is away: cannot connect"):
        read(path)


def test_errors_beside_jobs_are_noted(tmp_path):
    path = a_file(tmp_path, json.dumps({"jobs": [a_json_job()], "errors": [{"description": "cut"}]}))
    assert read(path).notes == ("1 error stands in the file beside its jobs, which may lack some: cut",)


@pytest.mark.parametrize("before", ["sacct: warning: no data_parser\n", "one\n\n two\r\n", "\n\n"])
def test_text_before_the_json_is_skipped_and_noted(tmp_path, before):
    path = a_file(tmp_path, before + json.dumps({"jobs": [a_json_job(job_id=7)]}))
    batch = read(path)
    assert batch.jobs["job_id"].tolist() == ["7"]
    assert [note for note in batch.notes if "before the JSON" in note]


def test_the_controllers_json_is_refused_with_the_call_that_works(tmp_path):
    path = a_file(
        tmp_path, json.dumps({"jobs": [{"job_id": 1, "submit_time": {"number": 5}, "job_state": ["RUNNING"]}]})
    )
    with pytest.raises(FormatUnknown, match="jobs of one moment") as refused:
        open_trace(path)
    assert "sacct --allusers" in str(refused.value.hint)


values = (
    st.none()
    | st.booleans()
    | st.integers(-2, 2**64)
    | st.sampled_from(["", "x", "0x1F", "é", 1.5, [], {}, {"set": True}])
)


@settings(deadline=None, max_examples=examples(20))
@given(data=st.data(), rows_per_batch=st.integers(1, 3))
def test_every_job_is_a_job_or_a_reject_whatever_its_fields_hold(tmp_path_factory, data, rows_per_batch):
    odd = a_json_job(job_id=2)
    for path in data.draw(st.lists(st.sampled_from(list(paths_of(odd))), min_size=1, max_size=4)):
        place = odd
        for name in path[:-1]:
            place = place[name] if isinstance(place, dict) and isinstance(place.get(name), dict) else {}
        place[path[-1]] = deepcopy(data.draw(values))  # a later path may write into it
    path = a_json_file(tmp_path_factory.mktemp("odd"), a_json_job(job_id=1), odd)
    batch = read(path, rows_per_batch=rows_per_batch)
    assert len(batch.jobs) + len(batch.rejects) == 2


def paths_of(record, before=()):
    for name, value in record.items():
        yield (*before, name)
        if isinstance(value, dict):
            yield from paths_of(value, (*before, name))
