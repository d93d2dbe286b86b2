"""``helios why`` lists the runs of a job that was requeued, with their sum."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from helios.app.explain import explain
from helios.app.explain_past import JobUnknown, explain_past
from helios.errors import UsageError
from helios.model import JOBS
from helios.report.job import JobRuns
from tests.builders import a_batch, a_job
from tests.unit.app.sites import FakeSite

HOUR, MINUTE = pd.Timedelta(hours=1), pd.Timedelta(minutes=1)


@pytest.fixture
def fake_site(tmp_path: Path) -> FakeSite:
    return FakeSite(tmp_path)


def a_run(fake_site: FakeSite, number: int, **values: Any) -> dict[str, Any]:
    """Return one of three runs of an hour with 2 GPUs and 8 CPUs, the first two interrupted."""
    submitted = pd.Timestamp(fake_site.cluster.now) - pd.Timedelta(days=2) + number * (HOUR + 2 * MINUTE)
    times = {"submitted_at": submitted, "started_at": submitted + MINUTE, "ended_at": submitted + MINUTE + HOUR}
    state = ("PREEMPTED", "NODE_FAIL", "COMPLETED")[number]
    sizes = {"gpus": 2, "cpus": 8.0, "nodes": 1.0, "node_list": f"n{number}"}
    return a_job(job_id="7", state=state, run_time_s=3600.0, **times) | sizes | values


def load(fake_site: FakeSite, *jobs: dict[str, Any], content: str = "1", cluster: str = "dev") -> None:
    with fake_site.warehouse() as warehouse:
        warehouse.load([a_batch(*jobs)], cluster=cluster, path="p", sha256=content, format="sacct", timezone=None)


def load_three(fake_site: FakeSite, **values: Any) -> None:
    load(fake_site, *(a_run(fake_site, number, restart=number, **values) for number in range(3)))


def runs_of(fake_site: FakeSite, job: str = "7") -> JobRuns:
    found = explain(fake_site.cycles, job).runs
    assert found is not None
    return found


def test_every_run_of_a_requeued_job_is_listed(fake_site: FakeSite) -> None:
    load_three(fake_site)
    runs = runs_of(fake_site).runs
    assert runs[["number", "state", "node_list", "run_time_s", "gpu_hours", "cpu_hours"]].to_numpy().tolist() == [
        [0, "PREEMPTED", "n0", 3600.0, 2.0, 8.0],
        [1, "NODE_FAIL", "n1", 3600.0, 2.0, 8.0],
        [2, "COMPLETED", "n2", 3600.0, 2.0, 8.0],
    ]


def test_the_runs_are_summed_and_those_before_the_last_are_lost(fake_site: FakeSite) -> None:
    load_three(fake_site)
    assert runs_of(fake_site).total == {
        "run_time_s": 3 * 3600.0,
        "gpu_hours": 6.0,
        "cpu_hours": 24.0,
        "lost_gpu_hours": 4.0,
        "lost_cpu_hours": 16.0,
    }


def test_the_runs_are_told_in_words_and_in_json(fake_site: FakeSite) -> None:
    load_three(fake_site)
    told = explain(fake_site.cycles, "7")
    text = "\n".join(told.lines())
    assert "It was run 3 times, 3 h in all: 6.00 GPU hours and 24.00 CPU hours." in text
    assert "Lost to requeues: 4.00 GPU hours and 16.00 CPU hours" in text
    assert "NODE_FAIL, on n1, ran 1 h, 2.00 GPU hours and 8.00 CPU hours." in text
    assert [run["number"] for run in told.to_json()["runs"]["runs"]] == [0, 1, 2]


def test_a_job_that_ran_once_is_told_without_a_list(fake_site: FakeSite) -> None:
    load(fake_site, a_run(fake_site, 2))
    assert not [line for line in explain(fake_site.cycles, "7").lines() if line.startswith(("It was run", "Run "))]


def test_the_parts_of_a_resized_job_are_not_lost(fake_site: FakeSite) -> None:
    load(fake_site, a_run(fake_site, 0, state="RESIZING"), a_run(fake_site, 1, state="COMPLETED", restart=1))
    assert runs_of(fake_site).total["lost_gpu_hours"] == 0


def test_hours_of_a_run_without_an_end_are_unknown_and_not_zero(fake_site: FakeSite) -> None:
    load(
        fake_site,
        a_run(fake_site, 0, ended_at=None, run_time_s=None),
        a_run(fake_site, 1, restart=1, state="COMPLETED"),
    )
    found = runs_of(fake_site)
    assert found.runs["gpu_hours"].isna().tolist() == [True, False]
    assert "at least, since 1 of its runs are not known" in "\n".join(found.lines())


def test_gpu_hours_are_unknown_where_gpus_are_not_recorded(fake_site: FakeSite) -> None:
    load_three(fake_site, gpus=float("nan"))
    found = runs_of(fake_site)
    assert pd.isna(found.total["gpu_hours"]) and found.total["cpu_hours"] == 24
    assert "unknown GPU hours and 24.00 CPU hours" in "\n".join(found.lines())


def test_runs_that_the_history_lacks_are_counted_as_unknown(fake_site: FakeSite) -> None:
    load(fake_site, a_run(fake_site, 1, restart=1), a_run(fake_site, 2, restart=2))
    assert runs_of(fake_site).unknown == 1


def test_an_id_that_was_used_years_ago_is_another_job(fake_site: FakeSite) -> None:
    old = pd.Timestamp(fake_site.cluster.now) - pd.Timedelta(days=1500)
    times = {"submitted_at": old, "started_at": old, "ended_at": old + HOUR}
    load(
        fake_site,
        a_run(fake_site, 0, **times),
        a_run(fake_site, 1, restart=1, submitted_at=old + HOUR + MINUTE),
        content="old",
    )
    load(
        fake_site,
        a_run(fake_site, 0, user="bob"),
        a_run(fake_site, 1, restart=1, user="bob", state="COMPLETED"),
        content="new",
    )
    assert len(runs_of(fake_site).runs) == 2


def test_an_old_job_of_an_id_that_was_used_again_is_named(fake_site: FakeSite) -> None:
    submitted = pd.Timestamp(fake_site.cluster.now) - pd.Timedelta(days=20)
    load(fake_site, a_run(fake_site, 2, submitted_at=submitted, user="carol"), a_run(fake_site, 2))
    assert any("the job of carol submitted" in line for line in explain(fake_site.cycles, "7").lines())


def test_a_job_that_runs_again_is_told_its_earlier_runs(fake_site: FakeSite) -> None:
    load(fake_site, a_run(fake_site, 0))
    fake_site.cluster.submit(job_id="7", restart=1, user="alice", gpus=2, cpus=8.0)
    fake_site.cluster.start("7")
    fake_site.cluster.tick(timedelta(minutes=30))
    found = runs_of(fake_site)
    assert found.runs["gpu_hours"].round(6).tolist() == [2.0, 1.0]
    assert found.runs["state"].tolist() == ["PREEMPTED", "RUNNING"]


def test_a_job_older_than_the_last_two_months_is_found(fake_site: FakeSite) -> None:
    old = pd.Timestamp(fake_site.cluster.now) - pd.Timedelta(days=400)
    load(fake_site, a_run(fake_site, 2, submitted_at=old, started_at=old, ended_at=old + HOUR))
    assert explain(fake_site.cycles, "7").state == "COMPLETED"


def test_a_part_of_a_heterogeneous_job_is_found_as_squeue_names_it(fake_site: FakeSite) -> None:
    load(
        fake_site, *(a_job(job_id=f"{15 + n}", het_job_id="15", het_job_offset=float(n), gpus=n + 1) for n in range(2))
    )
    assert explain_past(fake_site.url, "dev", "15+1", now=fake_site.cluster.now).gpus == 2


@pytest.mark.parametrize(("name", "job"), [("14_3", "14"), ("14_[1-4]", "14"), ("14_7", "20")])
def test_tasks_of_an_array_are_found_as_squeue_names_them(fake_site: FakeSite, name: str, job: str) -> None:
    fake_site.cluster.submit(job_id="14", array_job_id="14", array_task_id="1-4%2", tasks=4)
    fake_site.cluster.submit(job_id="20", array_job_id="14", array_task_id="7")
    fake_site.cluster.start("20")
    assert explain(fake_site.cycles, name).job_id == job


def test_a_task_that_no_array_holds_is_unknown(fake_site: FakeSite) -> None:
    fake_site.cluster.submit(job_id="14", array_job_id="14", array_task_id="1-4%2", tasks=4)
    with pytest.raises(JobUnknown, match="14_9"):
        explain(fake_site.cycles, "14_9")


def test_several_tasks_that_have_ended_are_refused_with_the_form_that_works(fake_site: FakeSite) -> None:
    load(fake_site, a_job(job_id="15", array_job_id="14", array_task_id="1"))
    with pytest.raises(JobUnknown) as refused:
        explain(fake_site.cycles, "14_[1-4]")
    assert "helios why 14_1" in refused.value.hint


def test_a_step_is_refused_with_its_job(fake_site: FakeSite) -> None:
    with pytest.raises(UsageError) as refused:
        explain(fake_site.cycles, "14_3.batch")
    assert "helios why 14_3" in refused.value.hint


def test_a_job_requeued_a_moment_ago_has_runs_of_unknown_time() -> None:
    waits = JOBS.conform(pd.DataFrame([a_job(job_id="7", restart=1, state="PENDING", started_at=None, ended_at=None)]))
    lines = list(JobRuns.of(waits.assign(run_time_s=float("nan")), now=waits["submitted_at"].iloc[0]).lines())
    assert lines[0].startswith("It was run 2 times, for an unknown time")
