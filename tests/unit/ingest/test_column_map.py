"""The maps that come with Helios, each on a few made-up rows in the shape of its table."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from helios.errors import UsageError
from helios.ingest import open_trace, read_map
from tests.unit.ingest.test_mapped import AT, a_file, a_parquet, moments, read

PER_CPU = 1 << 63
A_JOB = {
    **dict.fromkeys(
        ("job_db_inx", "mod_time", "deleted", "exit_code", "id_array_job", "het_job_id", "time_suspended"), 0
    ),
    "account": "vision",
    "cpus_req": 4,
    "job_name": "fit",
    "id_assoc": 5,
    "id_array_task": 4294967294,
    "array_task_str": None,
    "id_job": 7,
    "id_qos": 1,
    "id_user": 1001,
    "id_group": 100,
    "het_job_offset": 4294967294,
    "mem_req": 4000,
    "nodelist": "n[1-2]",
    "nodes_alloc": 2,
    "partition": "gpu",
    "state": 3,
    "timelimit": 90,
    "time_submit": AT,
    "time_eligible": AT + 10,
    "time_start": AT + 60,
    "time_end": AT + 3660,
    "restart_cnt": None,
    "tres_alloc": "1=8,2=8000,3=18446744073709551614,4=2,5=8,1001=4,1002=4",
    "tres_req": "1=4,2=8000,4=2,1001=4",
}
OTHERS = {
    "%s_assoc_table": [{"id_assoc": 5, "user": "ann", "acct": "vision"}, {"id_assoc": 6, "user": "", "acct": "x"}],
    "qos_table": [{"id": 1, "name": "normal"}],
    "tres_table": [
        {"id": 1001, "type": "gres", "name": "gpu"},
        {"id": 1002, "type": "gres", "name": "gpu:a100"},
        {"id": 5, "type": "billing", "name": ""},
    ],
}


def sql(value):
    return "NULL" if value is None else str(value) if isinstance(value, int) else f"'{value}'"


def a_table(name, rows):
    columns = "".join(f"  `{each}` text,\n" for each in rows[0])
    values = ",\n".join(f"({','.join(map(sql, row.values()))})" for row in rows)
    return f"CREATE TABLE `{name}` (\n{columns}  PRIMARY KEY (`x`)\n);\nINSERT INTO `{name}` VALUES\n{values};\n"


def a_dump(folder, *jobs, cluster="venus", others=OTHERS):
    tables = [a_table(f"{cluster}_job_table", [A_JOB | job for job in jobs])]
    tables += [a_table(name.replace("%s", cluster), rows) for name, rows in others.items()]
    return a_file(folder, "".join(tables), f"{cluster}.sql")


def one(folder, **job):
    return read(a_dump(folder, job), "slurmdbd").jobs.iloc[0]


def test_slurmdbd_gives_the_columns_of_sacct(tmp_path):
    job = one(tmp_path)
    texts = [job[name] for name in ("job_id", "name", "user", "group", "account", "qos", "partition", "state")]
    assert texts == ["7", "fit", "ann", "100", "vision", "normal", "gpu", "COMPLETED"]
    assert [job[name] for name in ("nodes", "cpus", "cpus_requested", "gpus", "memory_mib")] == [2, 8, 4, 4, 8000]
    assert (job["gpu_type"], job["exit_code"], job["time_limit_s"], job["node_list"]) == ("a100", "0:0", 5400, "n[1-2]")
    assert [job[name].timestamp() - AT for name in ("submitted_at", "eligible_at", "started_at", "ended_at")] == [
        *(0, 10, 60, 3660)
    ]
    assert job["tres_requested"] == "cpu=4,gres/gpu=4,mem=8000M,node=2"


def test_slurmdbd_names_the_cluster_of_the_file(tmp_path):
    assert open_trace(a_dump(tmp_path, {}), columns=read_map("slurmdbd")).cluster == "venus"


def test_a_suspended_job_of_slurmdbd_worked_less_than_it_held(tmp_path):
    assert one(tmp_path, time_suspended=600)["run_time_s"] == 3000


@pytest.mark.parametrize(("limit", "expected"), [(4294967295, np.inf), (4294967294, np.nan), (1, 60.0)])
def test_limits_of_slurmdbd_are_minutes_or_words_of_slurm(tmp_path, limit, expected):
    np.testing.assert_equal(one(tmp_path, timelimit=limit)["time_limit_s"], expected)


@pytest.mark.parametrize(("memory", "expected"), [(4000, 8000.0), (PER_CPU + 500, 2000.0), (0, np.nan)])
def test_memory_of_slurmdbd_is_of_a_node_or_of_a_cpu(tmp_path, memory, expected):
    job = one(tmp_path, mem_req=memory, tres_req="1=4,4=2", tres_alloc="1=4,4=2")
    np.testing.assert_equal(job["memory_mib"], expected)


def test_a_pending_job_of_slurmdbd_has_neither_start_nor_end(tmp_path):
    job = one(tmp_path, state=0, time_start=0, time_end=0, nodelist="None assigned", tres_alloc="")
    assert (job["state"], job["gpus"], job["cpus"]) == ("PENDING", 4, 4)
    assert pd.isna(job["started_at"]) and pd.isna(job["ended_at"]) and pd.isna(job["run_time_s"])


def test_parts_of_arrays_and_heterogeneous_jobs_are_told(tmp_path):
    jobs = [
        {"id_job": 7, "id_array_job": 3, "id_array_task": 4},
        {"id_job": 8, "id_array_job": 8, "array_task_str": "5-7%2", "state": 0, "time_start": 0, "time_end": 0},
        {"id_job": 10, "het_job_id": 9, "het_job_offset": 1},
    ]
    found = read(a_dump(tmp_path, *jobs), "slurmdbd").jobs
    assert found["array_job_id"].tolist()[:2] == ["3", "8"] and found["array_task_id"].tolist()[:2] == ["4", "[5-7%2]"]
    assert (found["het_job_id"].iloc[2], found["het_job_offset"].iloc[2]) == ("9", 1)


def test_runs_of_a_requeued_job_of_slurmdbd_are_numbered(tmp_path):
    first = {"state": 0x400, "time_end": AT + 100}
    second = {"job_db_inx": 1, "time_submit": AT + 100, "time_eligible": AT + 220, "time_start": AT + 230}
    found = read(a_dump(tmp_path, first, second), "slurmdbd").jobs
    assert found[["state", "restart"]].values.tolist() == [["REQUEUED", 0], ["COMPLETED", 1]]


def test_deleted_rows_of_slurmdbd_are_counted_and_left_out(tmp_path):
    found = read(a_dump(tmp_path, {}, {"id_job": 8, "deleted": 1}), "slurmdbd")
    assert found.jobs["job_id"].tolist() == ["7"] and [
        note for note in found.notes if note.startswith("1 row was left")
    ]


def test_without_associations_users_are_numbers_and_a_note_says_so(tmp_path):
    found = read(a_dump(tmp_path, {}, others={}), "slurmdbd")
    assert found.jobs["user"].tolist() == ["1001"] and found.jobs["qos"].isna().all()
    assert [note for note in found.notes if "venus_assoc_table" in note and "not in the dump" in note]


def test_gpus_without_the_table_of_tres_are_noted(tmp_path):
    found = read(a_dump(tmp_path, {}, others={}), "slurmdbd")
    assert [note for note in found.notes if "the TRES 1001" in note and "'7'" in note]


def two_clusters(folder):
    paths = [a_dump(folder, {"id_job": number}, cluster=name) for number, name in ((7, "venus"), (8, "mars"))]
    return a_file(folder, "".join(path.read_text() for path in paths), "both.sql")


def test_a_dump_of_two_clusters_asks_which(tmp_path):
    with pytest.raises(UsageError, match=r"several clusters: mars, venus(.|\n)*--cluster"):
        read(two_clusters(tmp_path), "slurmdbd")


def test_of_two_clusters_the_named_one_is_read(tmp_path):
    assert read(two_clusters(tmp_path), "slurmdbd", cluster="mars").jobs["job_id"].tolist() == ["8"]


def test_a_dump_of_an_old_slurm_is_read(tmp_path):
    # Slurm 2.5 has no TRES, no arrays and no memory; GPUs are in gres_alloc, a sum over the nodes.
    newer = {
        "id_array_job",
        "id_array_task",
        "array_task_str",
        "het_job_id",
        "het_job_offset",
        "mem_req",
        "restart_cnt",
    }
    row = {name: value for name, value in A_JOB.items() if name not in newer | {"tres_alloc", "tres_req"}}
    row |= {"cpus_alloc": 16, "gres_req": "gpu:2", "gres_alloc": "gpu:4", "gres_used": ""}
    job = read(a_file(tmp_path, a_table("old_job_table", [row])), "slurmdbd").jobs.iloc[0]
    assert (job["cpus"], job["gpus"], job["nodes"]) == (16, 4, 2)


def test_jobcomp_mysql_says_that_it_has_no_submissions(tmp_path):
    row = {
        **{"jobid": 7, "uid": 1001, "user_name": "ann", "gid": 100, "group_name": "users", "name": "fit", "state": 6},
        **{"partition": "gpu", "timelimit": "90", "starttime": AT, "endtime": AT + 5400, "nodelist": "n1"},
        **{"nodecnt": 1, "proc_cnt": 8},
    }
    never = row | {"jobid": 8, "state": 4, "starttime": 0, "timelimit": "UNLIMITED"}
    found = read(a_file(tmp_path, a_table("jobcomp_table", [row, never])), "jobcomp-mysql")
    jobs = found.jobs
    assert jobs[["state", "time_limit_s", "cpus"]].values.tolist() == [["TIMEOUT", 5400, 8], ["CANCELLED", np.inf, 8]]
    assert moments(jobs, "submitted_at") == [AT, AT + 5400] and moments(jobs, "started_at") == [AT, None]
    assert [note for note in found.notes if "does not record submissions" in note]
    assert jobs["gpus"].isna().all()


def test_jobcomp_elasticsearch_reads_its_documents(tmp_path):
    document = {
        **{"jobid": 7, "username": "ann", "groupname": "users", "@start": "2023-11-14T22:14:20"},
        **{"@end": "2023-11-14T23:14:20", "@submit": "2023-11-14T22:13:20", "@eligible": "2023-11-14T22:13:20"},
        **{"elapsed": 3600, "partition": "gpu", "nodes": "n1", "total_cpus": 8, "total_nodes": 1, "exit_code": "0:0"},
        **{"state": "COMPLETED", "time_limit": 5400, "job_name": "fit", "account": "vision"},
        **{
            "tres_alloc": "cpu=8,mem=8000M,node=1,billing=8,gres/gpu=4",
            "tres_req": "cpu=8,mem=8000M,node=1,gres/gpu=4",
        },
    }
    other = document | {"jobid": 8, "array_job_id": 5, "array_task_id": 1, "@start": "Unknown", "state": "CANCELLED"}
    lines = "\n".join(json.dumps({"_index": "slurm", "_source": each}) for each in (document, other))
    jobs = read(a_file(tmp_path, lines), "jobcomp-elasticsearch").jobs
    assert jobs[["gpus", "cpus", "memory_mib", "time_limit_s"]].iloc[0].tolist() == [4, 8, 8000, 5400]
    assert moments(jobs, "submitted_at") == [AT, AT] and moments(jobs, "started_at") == [AT + 60, None]
    assert jobs["array_task_id"].tolist()[1] == "1"


def test_f_data_is_read(tmp_path):
    path = a_parquet(
        tmp_path,
        **{
            "jid": ["jid_7"],
            "usr": ["usr_1"],
            "jnam": ["jnam_3"],
            "cnumr": [96],
            "cnumat": [96],
            "nnumr": [2],
            "nnuma": [2],
        },
        **{"adt": ["2023-11-15 07:13:20"], "qdt": ["2023-11-15 07:13:25"], "sdt": ["2023-11-15 07:14:20"]},
        **{"edt": ["2023-11-15 08:14:20"], "elpl": [7200.0], "duration": [3600.0], "exit state": ["completed"]},
        **{"mszl": [2.0**64], "jobenv_req": ["jobenv_0"], "embedding": [[0.1, 0.2]]},
    )
    job = read(path, "f-data").jobs.iloc[0]
    assert (job["job_id"], job["user"], job["state"], job["nodes"], job["cpus"]) == (
        "jid_7",
        "usr_1",
        "COMPLETED",
        2,
        96,
    )
    assert (job["time_limit_s"], job["run_time_s"], job["gpus"]) == (7200, 3600, 0)
    assert [job[name].timestamp() - AT for name in ("submitted_at", "eligible_at", "started_at")] == [0, 5, 60]


def test_pm100_is_read(tmp_path):
    late = {"submit_time": 0, "eligible_time": 0, "start_time": 60, "end_time": 3660}
    at = {name: pa.array([(AT + s) * 10**9], pa.timestamp("ns", tz="UTC")) for name, s in late.items()}
    path = a_parquet(
        tmp_path,
        **{"job_id": [7], "user_id": [12], "group_id": [3], "partition": ["1"], "qos": ["0"], "job_state": ["TIMEOUT"]},
        **{
            "run_time": [3600],
            "time_limit": [60.0],
            "num_nodes_alloc": [2],
            "num_nodes_req": [2],
            "num_cores_alloc": [64],
        },
        **{
            "num_cores_req": [64],
            "num_gpus_alloc": [8],
            "num_gpus_req": [8],
            "nodes": ["[1, 2]"],
            "mem_alloc": [475.0],
        },
        **at,
        **{"node_power_consumption": [[500.0, 600.0]]},
    )
    job = read(path, "pm100").jobs.iloc[0]
    assert (job["job_id"], job["user"], job["state"], job["gpus"], job["cpus"]) == ("7", "12", "TIMEOUT", 8, 64)
    assert (job["time_limit_s"], job["run_time_s"]) == (3600, 3600) and job["started_at"].timestamp() == AT + 60


def test_mit_supercloud_is_read(tmp_path):
    names = "id_job,id_array_job,id_array_task,id_user,time_submit,time_eligible,time_start,time_end,timelimit,state"
    names += ",nodes_alloc,cpus_req,mem_req,nodelist,tres_req,tres_alloc"
    row = f"7,0,4294967294,99,{AT},{AT},{AT + 60},{AT + 3660},4294967295,5,1,40,{PER_CPU + 9000}"
    row += ',"[\'r1-n2\']","1=40,2=360000,4=1,1002=2","1=40,2=360000,4=1,5=40,1002=2"'
    job = read(a_file(tmp_path, f"{names}\n{row}\n"), "mit-supercloud").jobs.iloc[0]
    assert (job["job_id"], job["user"], job["state"], job["gpus"], job["gpu_type"]) == ("7", "99", "FAILED", 2, "volta")
    assert (job["cpus"], job["memory_mib"], job["time_limit_s"], job["run_time_s"]) == (40, 360000, np.inf, 3600)


def test_alibaba_2023_is_read(tmp_path):
    names = (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
    )
    rows = [
        "pod-1,88000,327680,8,1000,,Burstable,Succeeded,900,4600,960",
        "pod-2,4500,15258,0,0,V100M16|V100M32,BE,Running,1000,1500,1000.0",
        "pod-3,1000,1024,1,220,,LS,Pending,2000,3000,",
    ]
    jobs = read(a_file(tmp_path, "\n".join([names, *rows]) + "\n"), "alibaba-2023").jobs
    assert jobs["gpus"].tolist() == [8, 0, 0.22] and jobs["cpus"].tolist() == [88, 4.5, 1]
    assert jobs["run_time_s"].tolist()[:2] == [3640, 500] and jobs["ended_at"].isna().tolist() == [False, False, True]
    assert jobs["state"].astype(object).fillna("").tolist() == ["COMPLETED", "", "PENDING"]
