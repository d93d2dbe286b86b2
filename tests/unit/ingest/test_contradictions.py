"""Rows of sacct that end oddly, or contradict themselves, and how each is read."""

import numpy as np
import pandas as pd
import pytest

from tests.unit.ingest.builders import a_json_file, a_json_job, a_sacct_file, a_sacct_row, the_job

HOUR_S = 3600


def a_job(folder, **fields):
    return the_job(a_sacct_file(folder, a_sacct_row(**fields)))


# slurm.h: flags that job_state_string() names in place of the base state. slurmdbd stores REQUEUED, RESIZING and
# REVOKED so, together with the end of that record (as_mysql_job.c, as_mysql_job_complete()).
FLAGS_OF_ENDED_RECORDS = ["REQUEUED", "RESIZING", "REQUEUE_HOLD", "SPECIAL_EXIT", "REQUEUE_FED", "RQ", "RS", "SE"]


@pytest.mark.parametrize("state", [*FLAGS_OF_ENDED_RECORDS, "PREEMPTED", "NODE_FAIL", "BOOT_FAIL"])
def test_a_record_with_an_end_has_ended_whatever_its_flag(tmp_path, state):
    job = a_job(tmp_path, State=state)
    assert job["run_time_s"] == HOUR_S and not pd.isna(job["ended_at"])


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "STOPPED", "SI"])
def test_a_job_that_waits_or_runs_has_no_end(tmp_path, state):
    job = a_job(tmp_path, State=state, ElapsedRaw="60")
    assert pd.isna(job["ended_at"]) and np.isnan(job["run_time_s"])


@pytest.mark.parametrize("state", FLAGS_OF_ENDED_RECORDS)
def test_a_flag_without_an_end_has_not_ended(tmp_path, state):
    job = a_job(tmp_path, State=state, End="Unknown", ElapsedRaw="60")
    assert pd.isna(job["ended_at"]) and np.isnan(job["run_time_s"])


def test_a_revoked_sibling_never_ran_here(tmp_path):
    job = a_job(tmp_path, State="REVOKED", NodeList="None assigned", ReqTRES="gres/gpu=2", AllocTRES="")
    assert pd.isna(job["started_at"]) and np.isnan(job["run_time_s"]) and not pd.isna(job["ended_at"])


@pytest.mark.parametrize(
    ("words", "state", "ended"),
    [
        (["PENDING", "REQUEUED"], "REQUEUED", True),
        (["REQUEUED"], "REQUEUED", True),
        (["NODE_FAIL", "REQUEUED"], "NODE_FAIL", True),
        (["FAILED", "REQUEUE_HOLD", "SPECIAL_EXIT"], "FAILED", True),
        (["COMPLETED", "COMPLETING"], "COMPLETED", True),
        (["RUNNING", "RESIZING"], "RESIZING", True),
        (["CANCELLED", "REVOKED"], "REVOKED", True),
        (["PENDING", "REQUEUED"], "PENDING", False),
        (["RUNNING", "RESIZING"], "RUNNING", False),
        (["RUNNING", "COMPLETING", "SIGNALING"], "RUNNING", False),
        (["PENDING", "REQUEUE_HOLD", "SPECIAL_EXIT"], "PENDING", False),
    ],
)
def test_of_a_list_of_states_the_base_state_counts(tmp_path, words, state, ended):
    submitted, started = 1_700_000_000, 1_700_000_060
    times = (submitted, submitted, started, started + HOUR_S if ended else 0)
    job = the_job(a_json_file(tmp_path, a_json_job(times=times) | {"state": {"current": words, "reason": "None"}}))
    assert (job["state"], not pd.isna(job["ended_at"])) == (state, ended)
    ran = ended and state != "REVOKED"
    assert job["run_time_s"] == HOUR_S if ran else np.isnan(job["run_time_s"])
