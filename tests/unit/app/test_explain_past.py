"""A job of the warehouse is explained where Slurm does not answer."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pandas as pd
import pytest

from helios.app.explain_past import explain_job, explain_past
from helios.errors import ClusterUnavailable, NoSuchCluster
from helios.report.job import JobExplanation
from tests.builders import a_batch, a_job
from tests.unit.app.sites import FakeSite

SILENT = "slurmctld does not answer"


@pytest.fixture
def fake_site(tmp_path: Path) -> FakeSite:
    """A site with Slurm's commands, whose controller does not answer."""
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text('#!/bin/sh\n[ "$1" = --version ] && echo slurm 22.05.8\n')
    scontrol.chmod(0o755)
    fake_site = FakeSite(tmp_path, slurm={"commands": str(scontrol.parent)})
    fake_site.learn()
    return fake_site


def ask(fake_site: FakeSite, job_id: str, *, cluster: str | None = None) -> JobExplanation:
    def live() -> JobExplanation:
        raise ClusterUnavailable(SILENT)

    return explain_job(fake_site.settings, job_id, cluster=cluster, live=live, now=fake_site.cluster.now)


def test_a_job_of_the_history_is_explained_without_slurm(fake_site: FakeSite) -> None:
    found = ask(fake_site, "alice3")
    assert found.run_time_s == 60
    assert SILENT in found.remarks[-1]


def test_an_unknown_job_may_be_in_the_queue_that_cannot_be_read(fake_site: FakeSite) -> None:
    with pytest.raises(ClusterUnavailable) as refused:
        ask(fake_site, "404")
    assert "No job 404 is in the history of dev." in refused.value.message
    assert SILENT in refused.value.message


def test_of_several_histories_the_hint_says_to_choose_one(fake_site: FakeSite) -> None:
    with fake_site.warehouse() as warehouse:
        options = {"path": "v", "sha256": "v", "format": "sacct", "timezone": "UTC"}
        warehouse.load([a_batch(a_job(job_id="v1"))], cluster="venus", **options)  # type: ignore[arg-type]  # all texts
    with pytest.raises(NoSuchCluster, match="dev, venus") as refused:
        ask(fake_site, "alice3")
    assert "--cluster" in refused.value.hint
    assert ask(fake_site, "v1", cluster="venus").job_id == "v1"


def test_a_job_of_the_past_has_its_predictions_as_they_were_made(fake_site: FakeSite) -> None:
    now = pd.Timestamp(fake_site.cluster.now)
    with fake_site.warehouse() as warehouse:
        job = warehouse.jobs("dev").query("job_id == 'alice3'")[["job_id", "submitted_at", "restart"]]
        for hours, p50_s in ((2, 70.0), (1, 90.0)):
            quantiles = {"p10_s": 30.0, "p50_s": p50_s, "p90_s": 100.0, "typical_s": 70.0, "mean_s": 70.0}
            made = job.assign(**quantiles, truncated_mean_s=70.0, source="m1")
            warehouse.add_predictions("dev", made, made_at=now - timedelta(hours=hours))
    found = explain_past(fake_site.url, "dev", "alice3", now=fake_site.cluster.now)
    assert found.p50_s == 70
    assert found.predictions["p50_s"].tolist() == [70, 90]
    assert [event.kind for event in found.events()] == ["submitted", "started", "ended", "predicted", "predicted"]


def test_what_is_not_recorded_is_said(fake_site: FakeSite) -> None:
    lines = explain_past(fake_site.url, "dev", "alice3", now=fake_site.cluster.now).lines()
    assert any(line.startswith("Not recorded: Slurm's reasons") for line in lines)


def test_a_past_job_is_compared_with_alike_jobs_of_its_user(fake_site: FakeSite) -> None:
    lines = explain_past(fake_site.url, "dev", "alice3", now=fake_site.cluster.now).lines()
    assert any("longer than 0 % of 39 alike jobs of its user" in line for line in lines)
