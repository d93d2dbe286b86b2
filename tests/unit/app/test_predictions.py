from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pandas as pd
import pytest

from helios.app.predictions import LivePredictions, job_keys, worth_storing
from helios.model import PREDICTIONS, QUEUE
from helios.predict.duration import train
from helios.predict.model_record import to_record
from helios.testing import NOON, a_node, a_pending_job, a_running_job, a_snapshot, frame_of
from helios.warehouse import Warehouse
from tests.builders import a_batch, a_job
from tests.unit.app.sites import put_empty_database


@pytest.fixture
def url(tmp_path: Path) -> str:
    return put_empty_database(tmp_path / "helios.db")


def load(url: str, *, run_time_s: float, first: int = 0, jobs: int = 30, since: timedelta = timedelta(days=2)) -> None:
    rows = [
        a_job(job_id=str(first + n), run_time_s=run_time_s, submitted_at=NOON - since + timedelta(minutes=n))
        for n in range(jobs)
    ]
    with Warehouse.open(url) as warehouse:
        warehouse.load([a_batch(*rows)], cluster="venus", path="x", sha256=f"{first}", format="sacct", timezone="UTC")


def predictions(url: str) -> LivePredictions:
    return LivePredictions(url=url, cluster="venus", last_jobs=1000)


def test_an_unknown_cluster_still_gets_predictions(url: str) -> None:
    seen = predictions(url)(a_snapshot(pending=[a_pending_job()]))
    assert list(seen.pending["source"]) == ["shrinkage: all"]


def test_the_snapshot_is_given_back_with_predictions_and_nothing_else_changed(url: str) -> None:
    load(url, run_time_s=60.0)
    snapshot = a_snapshot(pending=[a_pending_job(), a_pending_job(user="bob")])
    seen = predictions(url)(snapshot)
    QUEUE.check(seen.pending)
    names = [name for name in QUEUE.names if name not in PREDICTIONS.names]
    pd.testing.assert_frame_equal(seen.pending[names], snapshot.pending[names])
    assert seen.pending["p50_s"].between(30, 200).all()


def test_what_is_loaded_meanwhile_is_known_at_the_next_look(url: str) -> None:
    load(url, run_time_s=60.0)
    look = predictions(url)
    snapshot = a_snapshot(pending=[a_pending_job()])
    before = look(snapshot).pending["p50_s"].iloc[0]
    load(url, run_time_s=3000.0, first=100)
    assert look(snapshot).pending["p50_s"].iloc[0] > 2 * before


def test_what_is_loaded_meanwhile_is_learned_by_the_predictor_that_there_is(url: str) -> None:
    load(url, run_time_s=60.0)
    look = predictions(url)
    before = look.knowledge
    load(url, run_time_s=3000.0, first=100)
    after = look.knowledge
    assert after.predictor is before.predictor
    assert len(after.history) == 60
    with Warehouse.open(url) as warehouse:
        pd.testing.assert_frame_equal(after.history, warehouse.jobs("venus"), check_categorical=False)


def test_a_job_first_read_while_open_is_learned_at_its_end(url: str) -> None:
    load(url, run_time_s=60.0)
    look = predictions(url)
    began = NOON - timedelta(days=1)
    for name, ended in (("open", {"ended_at": None, "run_time_s": float("nan")}), ("over", {"run_time_s": 80_000.0})):
        row = a_job(job_id="9", submitted_at=began, **ended)
        with Warehouse.open(url) as warehouse:
            warehouse.load([a_batch(row)], cluster="venus", path="x", sha256=name, format="sacct", timezone="UTC")
        assert look.knowledge.history["ended_at"].count() == (30 if name == "open" else 31)
    assert len(look.knowledge.history) == 31


def test_a_history_loaded_late_is_found_though_its_jobs_ended_long_ago(url: str) -> None:
    load(url, run_time_s=60.0, since=timedelta(days=30), jobs=1)
    load(url, run_time_s=60.0, first=100)
    look = predictions(url)
    before = look.knowledge
    load(url, run_time_s=3000.0, first=200, since=timedelta(days=20))
    after = look.knowledge
    assert after.predictor is not before.predictor
    assert len(after.history) == 61


def test_what_is_kept_does_not_grow_for_ever(url: str) -> None:
    load(url, run_time_s=60.0)
    look = LivePredictions(url=url, cluster="venus", last_jobs=40)
    assert len(look.knowledge.history) == 30
    load(url, run_time_s=60.0, first=100, since=timedelta(days=1))
    assert len(look.knowledge.history) == 60
    load(url, run_time_s=60.0, first=200, since=timedelta(hours=9))
    assert len(look.knowledge.history) == 40


def test_a_running_job_is_expected_to_last_longer_than_it_has(url: str) -> None:
    load(url, run_time_s=600.0)
    rows = [
        a_running_job(
            job_id=str(n), started_at=NOON - timedelta(minutes=minutes), submitted_at=NOON - timedelta(days=1)
        )
        for n, minutes in enumerate((0, 11, 30))
    ]
    seen = predictions(url)(a_snapshot(running=rows))
    QUEUE.check(seen.running)
    started, young, old = seen.running.sort_values("job_id")["p50_s"]
    assert started < young < old
    assert old > 1800
    assert seen.running["source"].str.startswith("shrinkage: ").all()


def test_shrinkage_predicts_where_the_promoted_model_cannot_be_read(url: str) -> None:
    load(url, run_time_s=60.0)
    rows = [a_job(job_id=str(n), submitted_at=NOON - timedelta(days=9) + timedelta(minutes=n)) for n in range(300)]
    record = to_record(train(a_batch(*rows).jobs, cluster="venus"), trained_at=NOON)
    look, snapshot = predictions(url), a_snapshot(pending=[a_pending_job()])
    with Warehouse.open(url) as warehouse:
        warehouse.add_model(replace(record, artifact=record.artifact[:-9]))
    assert look(snapshot).pending["source"].str.startswith("shrinkage: ").all()
    assert f"Model {record.model_id} cannot be read" in look.knowledge.problem
    assert look.knowledge.trained_at is None
    later = replace(record, model_id=f"{record.model_id}-again", trained_at=NOON + timedelta(days=1))
    with Warehouse.open(url) as warehouse:
        warehouse.add_model(later)
    assert list(look(snapshot).pending["source"]) == [record.model_id]
    assert look.knowledge.problem == ""


def test_nothing_is_read_again_while_nothing_changes(url: str) -> None:
    load(url, run_time_s=60.0)
    look = predictions(url)
    assert look.knowledge is look.knowledge


def test_a_model_is_used_from_the_moment_it_is_kept(url: str) -> None:
    load(url, run_time_s=60.0, jobs=300)
    look = predictions(url)
    snapshot = a_snapshot(pending=[a_pending_job()])
    look(snapshot)
    with Warehouse.open(url) as warehouse:
        model = train(warehouse.jobs("venus"), cluster="venus")
        warehouse.add_model(to_record(model, trained_at=NOON))
    assert list(look(snapshot).pending["source"]) == [model.model_id]
    assert look.knowledge.trained_at == NOON


def queue(*p50_s: float) -> pd.DataFrame:
    return frame_of(QUEUE, [a_pending_job(job_id=str(n), p50_s=p50) for n, p50 in enumerate(p50_s)])


def test_a_prediction_is_stored_once_and_again_when_it_has_moved() -> None:
    stored = dict.fromkeys(job_keys(queue(100.0, 100.0, 100.0)), 100.0)
    worth = worth_storing(queue(101.0, 300.0, 30.0, 5.0), stored)
    assert list(worth["job_id"]) == ["1", "2", "3"]


def test_a_job_without_prediction_is_not_stored() -> None:
    assert worth_storing(queue(float("nan")), {}).empty


def test_the_longest_own_wait_of_the_history_is_seen_with_it(url: str) -> None:
    with Warehouse.open(url) as warehouse:
        began = NOON - timedelta(hours=30)
        jobs = [
            a_job(job_id="1", submitted_at=began, started_at=began, run_time_s=5 * 3600.0, gpus=8),
            a_job(
                job_id="2",
                submitted_at=began,
                started_at=began + timedelta(hours=5),
                run_time_s=4 * 3600.0,
                gpus=8,
            ),
        ]
        warehouse.load([a_batch(*jobs)], cluster="venus", path="x", sha256="x", format="sacct", timezone="UTC")
    look, snapshot = predictions(url), a_snapshot(nodes=[a_node(partitions="gpu", gpus=8)])
    assert look(snapshot).longest_own_wait_s == pytest.approx(5 * 3600)
    assert math.isnan(predictions(f"{url}.other")(snapshot).longest_own_wait_s)
