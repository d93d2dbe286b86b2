"""The worker itself, run by the binding over a small package that behaves as pyslurm 25.11.2 does, quirks included."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helios.errors import ClusterRefused, ClusterUnavailable
from helios.slurm.backend import UNLIMITED, JobUpdate, NodeUpdate, RawJob, RawNode
from helios.slurm.pyslurm_backend import WORKER, PyslurmBackend
from tests.unit.slurm.fake_pyslurm import PYSLURM
from tests.waiting import TEST_TIMEOUT_S, until


def a_job(**given: Any) -> dict[str, Any]:
    """Return a pending job of user 0 as pyslurm gives it; task 0, zeros and UNLIMITED are None there."""
    nothing = (
        "account array_id array_task_id array_tasks_parallel array_tasks_waiting eligible_time heterogeneous_id"
        " allocated_nodes qos reservation start_time time_limit time_limit_min tres_per_task memory"
    )
    return (
        dict.fromkeys(nothing.split())
        | {
            "id": 7,
            "name": b"train".hex(),
            "state": "PENDING",
            "state_reason": "Priority",
            "requeue_count": 0,
            "heterogeneous_offset": 4294967294,
            "user_id": 0,
            "group_id": 0,
            "partition": "gpu",
            "submit_time": 1_700_000_000,
            "num_nodes": 1,
            "cpus": 4,
            "ntasks": 1,
            "tres": {"mem": 2048, "gres": {"gpu": 2}},
            "gres_per_node": {},
            "priority": 100,
            "is_cronjob": False,
            "nice": 0,
        }
        | given
    )


def a_node(**given: Any) -> dict[str, Any]:
    return {
        "name": "n1",
        "partitions": ["gpu", "all"],
        "state": "IDLE",
        "configured_gres": {"gpu:a100": 8},
        "allocated_gres": {},
        "total_cpus": 64,
        "allocated_cpus": 0,
        "real_memory": 512_000,
        "weight": 20,
        "active_features": [],
        "last_busy_time": 1_700_000_100,
        "reason": None,
    } | given


class Site:
    """What the package sees, and what was written to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "pyslurm.py").write_text(PYSLURM)
        self.environment = {**os.environ, "PYTHONPATH": str(folder), "PYSLURM_STATE": str(folder / "state")}
        self.now = 0.0
        self.backend = PyslurmBackend(environment=self.environment, timeout_s=TEST_TIMEOUT_S, clock=lambda: self.now)
        self.has()

    def has(self, **state: Any) -> None:
        (self.folder / "state").write_text(json.dumps({"jobs": [], "nodes": []} | state))

    def job(self, **given: Any) -> RawJob:
        self.has(jobs=[a_job(**given)])
        (job,) = self.backend.queue()
        return job

    def node(self, **given: Any) -> RawNode:
        self.has(nodes=[a_node(**given)])
        (node,) = self.backend.nodes()
        return node

    def written(self) -> list[Any]:
        return [json.loads(line) for line in (self.folder / "state.written").read_text().splitlines()]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    with site.backend:
        yield site


def test_a_pending_job_is_read_with_every_key(site: Site) -> None:
    assert site.job(eligible_time=1_700_000_001, start_time=1_700_009_000, time_limit=60, account="vision") == {
        "job_id": "7",
        "restart": 0,
        "array_job_id": None,
        "array_tasks": None,
        "tasks": 1,
        "het_job_id": None,
        "het_job_offset": None,
        "name": "train",
        "user": "root",
        "group": "root",
        "account": "vision",
        "qos": None,
        "partition": "gpu",
        "state": "PENDING",
        "reason": "Priority",
        "submitted": 1_700_000_000,
        "eligible": 1_700_000_001,
        "started": None,
        "planned_start": 1_700_009_000,
        "time_limit_s": 3600,
        "time_min_s": None,
        "nodes": 1,
        "cpus": 4,
        "gpus": 2,
        "gpu_type": None,
        "shards": 0,
        "mps": 0,
        "memory_mib": 2048.0,
        "node_list": None,
        "priority": 100,
        "reservation": None,
        "cron": False,
        "nice": 0,
    }


def test_a_running_job_has_a_start_and_no_plan(site: Site) -> None:
    job = site.job(state="RUNNING", start_time=1_700_000_500, allocated_nodes="n[1-2]", state_reason="None")
    assert (job["started"], job["planned_start"], job["node_list"]) == (1_700_000_500, None, "n[1-2]")
    assert job["reason"] is None


@pytest.mark.parametrize(
    ("shown", "meant"), [("CONFIGURING", "RUNNING"), ("REQUEUED", "PENDING"), ("SUSPENDED", "SUSPENDED")]
)
def test_a_flag_that_hides_the_state_is_looked_through(site: Site, shown: str, meant: str) -> None:
    assert site.job(state=shown)["state"] == meant


def test_named_jobs_are_read_with_their_tasks_alone(site: Site) -> None:
    site.has(
        jobs=[a_job(id=5), a_job(id=6, array_id=6, array_tasks_waiting="1-3"), a_job(id=8, array_id=6), a_job(id=9)]
    )
    assert [job["job_id"] for job in site.backend.queue(["6", "9", "404"])] == ["6", "8", "9"]


def test_jobs_that_are_over_are_left_out(site: Site) -> None:
    over = ["COMPLETED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"]
    site.has(jobs=[a_job(id=number, state=state) for number, state in enumerate([*over, "COMPLETING"], 1)])
    assert [job["state"] for job in site.backend.queue()] == ["COMPLETING"]


def test_a_pending_array_is_one_record_of_many_tasks(site: Site) -> None:
    job = site.job(array_id=7, array_tasks_waiting="1,3,5-9:2", array_tasks_parallel=2)
    assert (job["array_job_id"], job["array_tasks"], job["tasks"]) == ("7", "1,3,5-9:2%2", 5)


def test_task_0_of_an_array_is_told_from_no_task(site: Site) -> None:
    job = site.job(state="RUNNING", array_id=6, array_task_id=None)
    assert (job["array_job_id"], job["array_tasks"], job["tasks"]) == ("6", "0", 1)


def test_the_first_component_of_a_heterogeneous_job_is_number_0(site: Site) -> None:
    job = site.job(heterogeneous_id=7, heterogeneous_offset=None)
    assert (job["het_job_id"], job["het_job_offset"]) == ("7", 0)


def test_no_limit_is_unlimited(site: Site) -> None:
    assert site.job(time_limit=None)["time_limit_s"] == UNLIMITED


def test_a_name_that_is_not_utf8_keeps_its_bytes(site: Site) -> None:
    name = site.job(name=b"a|b\n\xff\xfe".hex())["name"]
    assert name is not None and name.encode("utf-8", "surrogateescape") == b"a|b\n\xff\xfe"


def test_a_user_without_a_name_is_a_number(site: Site) -> None:
    job = site.job(user_id=3_999_999_999, group_id=3_999_999_998)
    assert (job["user"], job["group"]) == ("3999999999", "3999999998")


def test_gpus_come_from_tres_and_their_type_from_what_was_asked(site: Site) -> None:
    job = site.job(tres={"gres": {"gpu": 6, "gpumem": 9}}, gres_per_node={"gres/gpu:a100": 2}, num_nodes=3)
    assert (job["gpus"], job["gpu_type"]) == (6, "a100")


def test_gpus_counted_with_and_without_type_are_counted_once(site: Site) -> None:
    job = site.job(tres={"gres": {"gpu": 4, "gpu:h100": 4}})
    assert (job["gpus"], job["gpu_type"]) == (4, "h100")


@pytest.mark.parametrize(
    "asked",
    [
        {"gres_per_node": {"gpu:a100": 2}, "num_nodes": 3},
        {"tres_per_task": {"gres": {"gpu": 1}}, "ntasks": 6},
    ],
)
def test_without_accounting_of_gpus_the_request_is_believed(site: Site, asked: dict[str, Any]) -> None:
    assert site.job(tres={"mem": 1}, **asked)["gpus"] == 6


def test_a_job_without_tres_has_the_memory_it_asked_for(site: Site) -> None:
    assert site.job(tres=None, memory=100)["memory_mib"] == 100
    assert site.job(tres=None, memory=None)["memory_mib"] is None


def test_a_node_is_read_with_every_key(site: Site) -> None:
    assert site.node(state="IDLE*+DRAIN", reason="a fan", active_features=["ib", "nvme"]) == {
        "name": "n1",
        "partitions": "gpu,all",
        "state": "IDLE",
        "flags": "NOT_RESPONDING+DRAIN",
        "cpus": 64,
        "cpus_held": 0,
        "gpus": 8,
        "gpus_held": 0,
        "gres": "gpu:a100:8",
        "gpu_type": "a100",
        "memory_mib": 512_000,
        "weight": 20,
        "features": "ib,nvme",
        "idle_since": 1_700_000_100,
        "reason": "a fan",
    }


def test_a_busy_node_is_not_idle_since_anything(site: Site) -> None:
    node = site.node(state="MIXED", allocated_gres={"gpu": 3, "gpu:a100": 3}, weight=None)
    assert (node["idle_since"], node["gpus_held"], node["flags"]) == (None, 3, None)
    assert node["weight"] == 0


def test_settings_are_written_as_scontrol_writes_them(site: Site) -> None:
    site.has(
        config={
            "scheduler_parameters": {"bf_interval": 2, "time_min_as_soft_limit": True},
            "priority_flags": ["ACCRUE_ALWAYS", "NO_FAIR_TREE"],
            "private_data": [],
            "suspend_time": "UNLIMITED",
            "min_job_age": 300,
        }
    )
    settings = site.backend.configuration()
    assert settings["SchedulerParameters"] == "bf_interval=2,time_min_as_soft_limit"
    assert settings["PriorityFlags"] == "ACCRUE_ALWAYS,NO_FAIR_TREE"
    assert settings["PrivateData"] == "none"
    assert settings["SuspendTime"] == "INFINITE"
    assert settings["MinJobAge"] == "300 sec"
    assert settings["SuspendProgram"] == "(null)"
    assert settings["SLURM_VERSION"] == "25.11.4"


def test_zero_is_written_although_pyslurm_drops_it(site: Site) -> None:
    site.has(jobs=[a_job()])
    assert site.backend.change([JobUpdate(job_id="7", site_factor=0, time_min=0)]) == [""]
    assert site.written() == [[7, {"site_factor": 0, "time_min": 0}]]


def test_only_the_setting_that_is_named_is_written(site: Site) -> None:
    site.has(jobs=[a_job()])
    site.backend.change([JobUpdate(job_id="7", site_factor=-2537), JobUpdate(job_id="7", time_min=17)])
    assert site.written() == [[7, {"site_factor": -2537}], [7, {"time_min": 17}]]


def test_slurms_no_is_an_answer_and_stops_no_other(site: Site) -> None:
    site.has(jobs=[a_job()])
    changes = [JobUpdate(job_id="8", site_factor=137), JobUpdate(job_id="7", site_factor=137)]
    assert site.backend.change(changes) == ["Invalid job id specified", ""]


@pytest.mark.parametrize(
    ("errno", "error"), [(1800, ClusterUnavailable), (5004, ClusterUnavailable), (2002, ClusterRefused)]
)
def test_slurms_errors_are_told_apart(site: Site, errno: int, error: type[Exception]) -> None:
    site.has(error=errno)
    with pytest.raises(error, match="Slurm says no"):
        site.backend.queue()


def test_no_connection_means_nothing_was_written_and_no_answer_means_nobody_knows(site: Site) -> None:
    site.backend.versions()
    site.has(error=1800)
    with pytest.raises(ClusterUnavailable):
        site.backend.change([JobUpdate(job_id="7", site_factor=137)])
    site.has(error=5004)
    (answer,) = site.backend.change([JobUpdate(job_id="7", site_factor=137)])
    assert answer.startswith("not known")


def test_a_silent_controller_has_no_version_and_the_worker_stays(site: Site) -> None:
    site.has(error=1800)
    assert site.backend.versions().controller is None
    pid = site.backend.worker_pid
    site.has()
    assert site.backend.versions().controller == "25.11.4"
    assert site.backend.worker_pid == pid


def test_power_and_weight_of_nodes_are_written_a_weight_of_0_too(site: Site) -> None:
    changes = [NodeUpdate(node="n1", state="POWER_DOWN"), NodeUpdate(node="n2", state="POWER_DOWN")]
    changes += [NodeUpdate(node="n3", weight=0), NodeUpdate(node="nope", weight=1)]
    assert site.backend.change_nodes(changes) == ["", "", "", "Invalid node name specified"]
    assert site.written() == [["n[1-2]", {"state": "POWER_DOWN"}], ["n3", {"weight": 0}]]


def test_a_silent_controller_gives_no_answer_to_a_node_change(site: Site) -> None:
    site.has(error=1800)
    with pytest.raises(ClusterUnavailable):
        site.backend.change_nodes([NodeUpdate(node="n1", weight=1)])


def test_an_import_that_ends_the_process_ends_only_the_worker(site: Site) -> None:
    site.has(fatal=True)
    with pytest.raises(ClusterUnavailable, match=r"Could not establish.*importing pyslurm"):
        site.backend.queue()
    site.has()
    site.now += 60
    assert site.backend.queue() == []


def test_a_library_that_cannot_be_loaded_is_named(site: Site) -> None:
    (site.folder / "pyslurm.py").write_text("raise ImportError('libslurm.so.44: cannot open shared object file')")
    with pytest.raises(ClusterRefused, match=r"libslurm\.so\.44"):
        site.backend.queue()


def test_the_worker_ends_when_helios_is_killed(site: Site) -> None:
    helios = subprocess.Popen(
        [sys.executable, "-c", _A_HELIOS],
        env=site.environment,
        stdout=subprocess.PIPE,
        text=True,
        cwd=WORKER.parents[2],
    )
    assert helios.stdout
    pid = int(helios.stdout.readline())
    assert _runs(pid)
    helios.kill()
    helios.wait()
    helios.stdout.close()
    until(lambda: not _runs(pid))


def test_the_worker_is_a_script_that_needs_nothing_of_helios(site: Site) -> None:
    asked = '{"id": 1, "call": "queue"}\n{"id": 2, "call": "no such call"}\n'
    done = subprocess.run(
        [sys.executable, "-S", str(WORKER)],
        env=site.environment,
        input=asked,
        capture_output=True,
        text=True,
        check=True,
    )
    greeting, versions, queue, error = map(json.loads, done.stdout.splitlines())
    assert greeting["protocol"] == 1
    assert versions["pyslurm"] == "25.11.2"
    assert queue == {"id": 1, "ok": True, "result": []}
    assert error["id"] == 2 and not error["ok"]
    assert "libslurm talks to standard output" in done.stderr


def test_the_worker_is_python_3_9_without_foreign_imports() -> None:
    tree = ast.parse(WORKER.read_text(), feature_version=(3, 9))
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert imported - sys.stdlib_module_names == {"pyslurm"}


_A_HELIOS = """
import time
from helios.slurm.pyslurm_backend import PyslurmBackend
backend = PyslurmBackend()
backend.queue()
print(backend.worker_pid, flush=True)
time.sleep(3600)
"""


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_shards_are_read_beside_gpus(site: Site) -> None:
    job = site.job(tres={"gres": {"shard": 4, "shard:a100": 4}})
    assert (job["gpus"], job["shards"], job["mps"]) == (0, 4, 0)
    assert site.job(tres={"mem": 1}, gres_per_node={"gres/mps": 50}, num_nodes=2)["mps"] == 100


def test_a_node_tells_what_its_gpus_are_divided_into(site: Site) -> None:
    node = site.node(configured_gres={"gpu:a100": 2, "shard": 8}, allocated_gres={"gpu": 1, "shard": 2})
    assert (node["gpus"], node["gpus_held"], node["gres"]) == (2, 1.5, "gpu:a100:2,shard:8")
