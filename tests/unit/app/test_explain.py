from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from helios.app.explain_past import JobUnknown, explain_prediction, explain_read, newly_trained_model, stored_model
from helios.app.history import LoadedHistory, load_history
from helios.predict.duration import DurationModel, train
from helios.predict.model_record import to_record
from helios.report.prediction import PredictionSteps
from tests.builders import a_job, jobs_frame
from tests.unit.app.sites import FakeSite


@pytest.fixture
def fake_site(tmp_path: Path) -> FakeSite:
    fake_site = FakeSite(tmp_path)
    fake_site.learn()
    return fake_site


def no_model(_: datetime) -> tuple[None, tuple[str, ...]]:
    return None, ()


def told(fake_site: FakeSite, job: str) -> PredictionSteps:
    history = load_history(url=fake_site.url, cluster="dev")
    return explain_prediction(history, job, choose=no_model)


def a_history(*jobs: dict[str, Any]) -> LoadedHistory:
    return LoadedHistory(cluster="dev", jobs=jobs_frame(*jobs), timezone="UTC")


def test_a_past_job_is_explained_by_what_was_known_at_its_submission(fake_site: FakeSite) -> None:
    last = told(fake_site, "alice39")
    assert last.run_time_s == 60.0
    assert any("39 ended jobs of alice" in line for line in last.lines())
    assert last.explained.quantiles_s[1] == pytest.approx(60.0, rel=0.2)
    assert [past.job_id for past in last.alike] == ["alice38", "alice37", "alice36", "alice35", "alice34"]


def test_jobs_that_were_submitted_later_play_no_part(fake_site: FakeSite) -> None:
    early = told(fake_site, "alice3")
    assert any("3 ended jobs of alice" in line for line in early.lines())
    assert {past.job_id for past in early.alike} <= {f"{user}{n}" for user in ("alice", "bob") for n in range(3)}


def test_the_last_run_of_a_requeued_job_is_meant() -> None:
    runs = [a_job(job_id="7", restart=n, run_time_s=100.0 * (n + 1), started_at=f"2020-01-0{n + 2}") for n in range(2)]
    assert explain_prediction(a_history(*runs), "7", choose=no_model).run_time_s == 200.0


def test_a_task_is_found_by_its_number_in_the_array() -> None:
    history = a_history(a_job(job_id="12", array_job_id="10", array_task_id="3"))
    assert explain_read(history, "10_3").job_id == "12"


def test_an_unknown_job_is_an_error_that_names_the_ids_near_it() -> None:
    history = a_history(*(a_job(job_id=str(number)) for number in (100, 101, 102, 450)))
    with pytest.raises(JobUnknown, match=r"400 is in the history"):
        explain_prediction(history, "400", choose=no_model)


def test_where_no_model_is_kept_shrinkage_is_explained_and_said(fake_site: FakeSite) -> None:
    history = load_history(url=fake_site.url, cluster="dev")
    alone = explain_prediction(history, "alice39", choose=stored_model(history, url=fake_site.url))
    assert alone.explained.source.startswith("shrinkage")
    assert "helios model train" in alone.notes[0]


@pytest.fixture
def busy(tmp_path: Path) -> tuple[FakeSite, LoadedHistory, DurationModel, DurationModel]:
    """Return a fake site with enough history for two models, one of before the last days and one of all."""
    fake_site = FakeSite(tmp_path)
    fake_site.learn(jobs=200)
    history = load_history(url=fake_site.url, cluster="dev")
    cut = history.jobs["submitted_at"].iloc[300].to_pydatetime()
    # Two users are too few for Helios to believe the trees by itself.
    models = [replace(train(history.jobs, cluster="dev", until=until), trained=True) for until in (cut, None)]
    with fake_site.warehouse() as warehouse:
        for model in models:
            warehouse.add_model(to_record(model, trained_at=fake_site.cluster.now))
    return fake_site, history, models[0], models[1]


def test_a_job_is_explained_by_the_model_of_its_day(
    busy: tuple[FakeSite, LoadedHistory, DurationModel, DurationModel],
) -> None:
    fake_site, history, early, _ = busy
    choose = stored_model(history, url=fake_site.url)
    of_the_end = explain_prediction(history, "alice199", choose=choose)
    assert of_the_end.explained.source == early.model_id
    assert of_the_end.notes == ()
    assert "may know this very job" in explain_prediction(history, "alice3", choose=choose).notes[0]


def test_for_a_trace_a_model_learns_from_jobs_that_ended_before() -> None:
    jobs = [a_job(job_id=str(number), run_time_s=30.0 + number % 7) for number in range(1, 400)]
    history = a_history(*jobs)
    choose = newly_trained_model(history, seed=0)
    late = explain_prediction(history, "399", choose=choose)
    assert late.explained.source.startswith("dev-2020")
    model, _ = choose(history.jobs["submitted_at"].iloc[398].to_pydatetime())
    assert model is not None
    assert model.trained_until == history.jobs["submitted_at"].iloc[398]
    early = explain_prediction(history, "20", choose=choose)
    assert early.explained.source.startswith("shrinkage")
    assert "takes at least" in early.notes[0]
