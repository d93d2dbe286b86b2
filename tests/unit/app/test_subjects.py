"""What the history says of one user, account, partition or node."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from helios.app.reports import ReportQuery, prediction_report
from helios.app.subjects import SubjectUnknown, node_report, subject_report
from helios.model import NODE_EVENTS, NODES
from helios.model.slurm_site import PartitionRules
from helios.warehouse import Warehouse
from tests.builders import a_batch, a_job
from tests.unit.app.sites import put_empty_database

NOW = datetime(2020, 6, 8, tzinfo=UTC)
BEGIN = pd.Timestamp("2020-06-01", tz="UTC")
HOUR = pd.Timedelta(hours=1)


def run(job_id: str, hours: float, **values: Any) -> dict[str, Any]:
    """Return a job of alice that started ``hours`` into the week, after half an hour, and ran for two."""
    started = BEGIN + hours * HOUR
    times = {"submitted_at": started - HOUR / 2, "eligible_at": started - HOUR / 2, "started_at": started}
    sizes = {"gpus": 4, "cpus": 8.0, "partition": "gpu", "account": "lab", "user": "alice", "node_list": "n1"}
    return a_job(**{"job_id": job_id, "run_time_s": 7200.0} | times | sizes | values)


@pytest.fixture
def query(tmp_path: Path) -> ReportQuery:
    url = put_empty_database(tmp_path / "helios.db")
    jobs = [
        run("1", 1),
        run("2", 2, gpus=8, node_list="n[1-2]"),
        run("3", 10, user="bob", account="other", node_list="n2"),
        run("4", 20, partition="cpu", gpus=0, node_list="x1"),
        run("5", 30, node_list="n[3,10-11]"),
    ]
    sizes = {"partition": "gpu", "cpus": 64.0, "gpus": 8, "gpu_type": None, "memory_mib": None}
    nodes = [{"name": name, **sizes} for name in ("n1", "n2", "n9")]
    event = {"node": "n1", "state": "DOWN", "started_at": BEGIN + HOUR, "ended_at": BEGIN + 2 * HOUR, "reason": "fan"}
    with Warehouse.open(url) as warehouse:
        warehouse.load([a_batch(*jobs)], cluster="dev", path="p", sha256="1", format="sacct", timezone="UTC")
        warehouse.add_nodes("dev", NODES.conform(pd.DataFrame(nodes)))
        warehouse.add_node_events("dev", NODE_EVENTS.conform(pd.DataFrame([event])))
    return ReportQuery(url=url, now=NOW, cluster="dev", start="2020-06-01", end="2020-06-07")


def groups(found: Any, table: str) -> list[tuple[str, int]]:
    return [(row["group"], row["jobs"]) for row in found.to_json()[table]]


def test_a_user_has_use_by_partition_and_size(query: ReportQuery) -> None:
    found = subject_report(query, "user", "alice", by=("partition", "account"))
    assert groups(found, "by_partition") == [("gpu", 3), ("cpu", 1)]
    assert groups(found, "by_size") == [("0", 1), ("3-4", 2), ("5-8", 1)]
    assert found.sentences[0] == "4 jobs submitted, 32 GPU hours and 64 CPU hours held."
    assert "waited at most 30 min" in found.sentences[1]


def test_the_last_jobs_come_newest_first(query: ReportQuery) -> None:
    found = subject_report(query, "user", "alice", by=())
    assert [job["job_id"] for job in found.to_json()["jobs"]] == ["5", "4", "2", "1"]


def test_only_the_last_jobs_are_listed(query: ReportQuery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helios.app.subjects.LAST_JOBS", 3)
    found = subject_report(query, "user", "alice", by=())
    assert [job["job_id"] for job in found.to_json()["jobs"]] == ["5", "4", "2"]
    assert found.tables["jobs"].title == "The last 3 jobs"


def test_a_job_that_ran_into_the_window_is_listed_last(query: ReportQuery) -> None:
    found = subject_report(replace(query, start="2020-06-01T02:00", end="2020-06-01T12:00"), "user", "alice", by=())
    assert [job["job_id"] for job in found.to_json()["jobs"]] == ["2", "1"]


def test_jobs_without_gpus_have_their_size_in_cpus(query: ReportQuery) -> None:
    found = subject_report(query, "partition", "cpu", by=("user",))
    assert groups(found, "by_size") == [("5-8", 1)]
    assert found.tables["by_size"].title == "Use and waits by CPUs of the job"


def test_predictions_that_nobody_made_are_of_jobs_that_are_counted(query: ReportQuery) -> None:
    assert prediction_report(query).empty.startswith("Jobs submitted in this window: 5; none was predicted.")


def test_an_account_has_its_users(query: ReportQuery) -> None:
    assert groups(subject_report(query, "account", "other", by=("user",)), "by_user") == [("bob", 1)]


def test_a_partition_has_its_recorded_nodes_and_the_rules_of_slurm(query: ReportQuery) -> None:
    rules = PartitionRules(name="gpu", nodes=("n1", "n2"), max_time_s=7200, exclusive=True)
    found = subject_report(query, "partition", "gpu", by=("user",), rules=rules)
    assert [node["name"] for node in found.to_json()["nodes"]] == ["n1", "n2", "n9"]
    assert "Slurm's rules: 2 nodes, at most 2 h, tier 1." in found.sentences
    assert found.to_json()["rules"]["max_time_s"] == 7200


def test_a_reader_of_own_jobs_sees_no_nodes_and_no_others(query: ReportQuery) -> None:
    own = replace(query, users=("bob",), hides_others=True)
    found = subject_report(own, "partition", "gpu", by=("user",)).to_json()
    assert [row["group"] for row in found["by_user"]] == ["bob"]
    assert "nodes" not in found


def test_nothing_of_a_name_is_said_to_be_nothing(query: ReportQuery) -> None:
    found = subject_report(query, "account", "nobodys", by=("user",))
    assert found.sentences == ("No job was submitted in this window and none held anything in it.",)


def test_hours_of_a_node_are_counted_once_where_jobs_overlap(query: ReportQuery) -> None:
    found = node_report(query, "n1")
    assert found.sentences[0] == "2 jobs ran on it, for 3.0 of 168 hours (2 %)."
    assert [job["job_id"] for job in found.to_json()["jobs"]] == ["2", "1"]
    assert found.to_json()["events"][0]["reason"] == "fan"
    assert found.sentences[1] == "Recorded with 64 CPUs and 8 GPUs, in gpu."


@pytest.mark.parametrize(("node", "jobs"), [("n2", ["3", "2"]), ("n10", ["5"]), ("n3", ["5"]), ("n9", [])])
def test_a_node_is_found_in_lists_of_nodes(query: ReportQuery, node: str, jobs: list[str]) -> None:
    assert [job["job_id"] for job in node_report(query, node).to_json()["jobs"]] == jobs


def test_a_node_that_nothing_names_is_an_error(query: ReportQuery) -> None:
    with pytest.raises(SubjectUnknown, match="n99"):
        node_report(query, "n99")


def test_a_job_that_runs_counts_until_the_end_of_the_record(query: ReportQuery) -> None:
    jobs = [run("6", 160, state="RUNNING", run_time_s=None, ended_at=None, node_list="n9"), run("7", 166)]
    with Warehouse.open(query.url) as warehouse:
        warehouse.load([a_batch(*jobs)], cluster="dev", path="q", sha256="2", format="sacct", timezone="UTC")
    assert node_report(query, "n9").to_json()["busy_hours"] == pytest.approx(8.0, abs=0.1)  # job 7 ends then
