"""Charts of the pages of predictions and energy."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from helios.app.energy.ledger import energy_ledger
from helios.config import Energy
from helios.model import GPU_USE, JOB_USE, NODES, PREDICTIONS
from helios.web.pages.work import energy_charts, prediction_charts
from tests.builders import a_batch, a_job
from tests.unit.app.sites import FakeSite
from tests.unit.app.test_nightly import a_night
from tests.unit.web.test_pages import HTML, JSON, client


def test_predicted_and_true_run_times_stand_by_the_day(tmp_path: Path) -> None:
    fake_site = FakeSite(tmp_path)
    now = pd.Timestamp(fake_site.cluster.now).floor("D") + pd.Timedelta(hours=9)
    ago = {4: 100.0, 2: 300.0, 1: 50.0}
    jobs = [
        a_job(job_id=f"{days}-{n}", submitted_at=now - pd.Timedelta(days=days), run_time_s=run_s)
        for days, run_s in ago.items()
        for n in range(3)
    ]
    batch = a_batch(*jobs)
    key = batch.jobs[["job_id", "submitted_at", "restart"]]
    predicted = key.assign(**dict.fromkeys(PREDICTIONS.names, 150.0) | {"source": "shrinkage"})
    with fake_site.warehouse() as warehouse:
        warehouse.load([batch], cluster="dev", path="x", sha256="2", format="sacct", timezone="UTC")
        warehouse.add_predictions("dev", predicted, made_at=fake_site.cluster.now)
    fake_site.read()
    with client(fake_site) as web:
        found = web.get("/predictions", headers=JSON).json()["charts"]["run_times"]
        assert "charts" not in web.get("/predictions?by=size", headers=JSON).json()
        assert "How good estimates of starts were is unknown" in web.get("/predictions", headers=HTML).text
    lines = {line["name"]: line["values"] for line in found["lines"]}
    assert lines["Predicted"] == [150.0, None, 150.0, 150.0]  # nobody submitted on the second day
    assert lines["True"] == [100.0, None, 300.0, 50.0]


def test_predictions_of_use_are_judged_each_night(tmp_path: Path) -> None:
    fake_site = FakeSite(tmp_path)
    fake_site.learn()
    with fake_site.warehouse() as warehouse:
        jobs = warehouse.jobs("dev")
        use = jobs[["submitted_at", "job_id", "restart"]].assign(source="jobstats", quality="ok")
        use["utilization"] = np.where(jobs["user"] == "alice", 0.0, 70.0)
        warehouse.add_job_use("dev", JOB_USE.conform(use), GPU_USE.empty())
    night = a_night(fake_site).report
    assert night is not None
    assert night.levels["use_idle_auc_at_submission"] > 0.8
    assert night.levels["use_error_at_submission"] < 15
    sentence = "Use predicted after 15 minutes: too few runs to judge, 0 of 20."
    assert "How far off predictions of use were" in night.page.read_text()
    with client(fake_site, user_header="X-Remote-User", admins=frozenset({"root"})) as web:
        page = web.get("/predictions", headers={**HTML, "X-Remote-User": "root"}).text
        told = web.get("/predictions", headers={**JSON, "X-Remote-User": "root"}).json()
        of_user = web.get("/predictions", headers={**JSON, "X-Remote-User": "bob"}).json()
    assert sentence in page and sentence in told["use"] and of_user["use"] == []


@pytest.mark.parametrize("timezone", ["UTC", "Europe/Berlin", "America/Sao_Paulo"])
def test_a_day_begins_at_local_midnight(timezone: str) -> None:
    days = ["2018-11-03", "2018-11-04", "2018-11-05"]  # in Sao Paulo the second one began at one o'clock
    rows = pd.DataFrame({"group": days} | dict.fromkeys(["p50_s", "run_time_s", "off_by", "naive_off_by"], 1.0))
    chart = prediction_charts(rows, timezone)[0]
    begins = [pd.Timestamp(time, unit="s", tz=timezone) for time in chart.times]
    assert [f"{begin:%Y-%m-%d}" for begin in begins] == days
    assert list(chart.lines[0].values) == [1.0] * 3


def test_a_day_of_which_nothing_is_known_has_no_energy(tmp_path: Path) -> None:
    fake_site = FakeSite(tmp_path)
    begin, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 4, tzinfo=UTC)
    job = a_job(submitted_at=pd.Timestamp(begin), run_time_s=3_600.0, node_list="n1")
    with fake_site.warehouse() as warehouse:
        warehouse.load([a_batch(job)], cluster="dev", path="x", sha256="2", format="sacct", timezone="UTC")
        warehouse.add_nodes("dev", NODES.conform(pd.DataFrame([{"name": "n1", "partition": "gpu", "gpus": 8}])))
        ledger = energy_ledger(warehouse, "dev", timezone="UTC", since=begin, until=end, energy=Energy())
    assert ledger.rows["kwh"].notna().tolist() == [True, False, False]
    charts = {chart.name: chart for chart in energy_charts(ledger)}
    drawn = charts["drawn"].lines[0].values
    assert drawn[0] is not None and drawn[0] > 0
    assert list(drawn[1:]) == [None, None]
    states = {line.name: line.values for line in charts["node_states"].lines}
    assert states["unknown"][-1] == 1.0


def test_without_names_of_nodes_energy_is_said_to_be_unknown(tmp_path: Path) -> None:
    fake_site = FakeSite(tmp_path)
    fake_site.learn()
    with client(fake_site) as web:
        page, found = web.get("/energy", headers=HTML), web.get("/energy", headers=JSON)
    assert (page.status_code, found.status_code) == (200, 200)
    assert "no node of dev is known" in page.text and 'name="from"' in page.text
    assert "helios " not in page.text and "-S" not in page.text
    assert found.json()["total"] is None
