"""Training on a Dask cluster: a real scheduler, workers that are processes, and what becomes of losing one."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest

from helios.errors import DaskUnavailable, TrainingBroken
from helios.ingest import write_helios_csv
from helios.predict.dask_training import DaskTrainer, _report_callback, _scatter
from helios.predict.duration import TrainingSet, train, train_locally
from helios.predict.model_record import from_record, to_record
from tests.story.shell import shell
from tests.unit.predict.traces_of import a_campaign
from tests.unit.predict.walks import quantiles_of

distributed = pytest.importorskip("distributed", reason="the extra [dask] is not installed")
cloudpickle = pytest.importorskip("cloudpickle")


def a_cluster(workers: int) -> Any:
    return distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=":0", memory_limit=0
    )


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with a_cluster(2) as cluster:
        yield cluster.scheduler_address


@pytest.fixture
def doomed() -> Iterator[tuple[str, dict[str, int]]]:
    """Address and the workers' process ids of a cluster that a test may break."""
    with a_cluster(2) as cluster, distributed.Client(cluster, set_as_default=False) as client:
        yield cluster.scheduler_address, client.run(os.getpid)


def a_training_set(n: int, *, seed: int = 0) -> TrainingSet:
    """Return pairs whose ends depend on two of six features, with noise that grows with a third."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((n, 6)).astype(np.float32)
    features[rng.random(features.shape) < 0.05] = np.nan
    known = np.nan_to_num(features)
    odds = 1.5 * known[:, 0] + np.abs(known[:, 1]) + np.exp(0.3 * known[:, 2]) * rng.standard_normal(n)
    return TrainingSet(features=features, ended=(odds > 1).astype(np.float32), names=tuple("abcdef"))


def parameters_in(text: str) -> dict[str, str]:
    lines = text[text.index("\nparameters:") :].splitlines()
    return dict(line.strip("[]").split(": ", 1) for line in lines if line.startswith("["))


def loss(text: str, asked: TrainingSet) -> float:
    said = np.clip(lightgbm.Booster(model_str=text).predict(asked.features), 1e-6, 1 - 1e-6)
    return float(-np.mean(np.where(asked.ended > 0, np.log(said), np.log(1 - said))))


def test_trees_grown_on_two_workers_predict_as_well_as_those_grown_here(address: str) -> None:
    # Not the same trees: each worker bins a share of the features from its own half of the rows.
    training_set, later = a_training_set(8000), a_training_set(4000, seed=1)
    here = train_locally(training_set, seed=0)
    there = DaskTrainer(address=address)(training_set, seed=0)
    assert loss(there, later) == pytest.approx(loss(here, later), rel=0.05)
    answers = [lightgbm.Booster(model_str=text).predict(later.features) for text in (here, there)]
    assert np.corrcoef(answers)[0, 1] > 0.98


def test_trees_of_dask_have_the_local_parameters_and_tell_no_address(address: str) -> None:
    training_set = a_training_set(5000)
    here, there = (
        parameters_in(trainer(training_set, seed=4)) for trainer in (train_locally, DaskTrainer(address=address))
    )
    where = {"machines", "local_listen_port", "time_out", "num_threads"}
    assert {name: value for name, value in there.items() if here[name] != value} == {
        "tree_learner": "data",
        "num_machines": "2",
    }
    assert set(here) - set(there) == where


def test_a_model_grown_on_dask_is_stored_and_read_back(address: str) -> None:
    jobs = a_campaign(4500)
    model = train(jobs, cluster="lab", trainer=DaskTrainer(address=address))
    here = train(jobs, cluster="lab")
    assert from_record(to_record(model, trained_at=datetime(2026, 1, 1, tzinfo=UTC))) == model
    assert (model.jobs, model.trained_until) == (here.jobs, here.trained_until)
    asked = a_campaign(1000, seed=3)
    ours, theirs = (np.log1p(quantiles_of(asked, model=replace(each, trained=True))) for each in (here, model))
    assert np.median(np.abs(ours - theirs), axis=0) == pytest.approx([0, 0, 0], abs=0.1)


def test_few_rows_go_to_one_worker_and_grow_the_local_trees(address: str) -> None:
    training_set = a_training_set(2500)
    there = DaskTrainer(address=address)(training_set, seed=5)
    here = train_locally(training_set, seed=5)
    assert "num_machines: 1]" in there
    assert there.split("\nparameters:")[0] == here.split("\nparameters:")[0]


def test_rows_are_dealt_in_cycle_and_each_worker_holds_its_own(address: str) -> None:
    training_set = a_training_set(5)
    with distributed.Client(address, set_as_default=False) as client, client.as_current():
        workers = sorted(client.nthreads())
        dealt = _scatter(client, workers, training_set)
        assert [len(held) for held in client.has_what().values()] == [2, 2]
        np.testing.assert_array_equal(dealt["y"].compute(), training_set.ended[[0, 2, 4, 1, 3]])
        np.testing.assert_array_equal(dealt["X"].compute(), training_set.features[[0, 2, 4, 1, 3]])


def test_a_worker_without_helios_can_read_what_tells_the_progress() -> None:
    sent = cloudpickle.dumps(_report_callback("topic")).hex()
    read = f"import sys, cloudpickle; sys.modules['helios'] = None; cloudpickle.loads(bytes.fromhex('{sent}'))"
    subprocess.run([sys.executable, "-c", read], check=True)


def test_progress_is_heard_while_the_workers_learn_and_never_cycles_back(address: str) -> None:
    heard: list[float] = []
    DaskTrainer(address=address)(a_training_set(5000), seed=0, progress=lambda step, done: heard.append(done))
    assert heard == sorted(heard)
    assert heard[-1] == 1.0
    assert len(set(heard)) > 10


def test_the_command_trains_there_and_what_fails_there_writes_nothing(tmp_path: Path, address: str) -> None:
    helios = shell(tmp_path, HELIOS_MODEL_DASK="nowhere")
    write_helios_csv(a_campaign(4500), tmp_path / "lab.csv")
    helios("trace", "load", tmp_path / "lab.csv", "--cluster", "lab")
    refused = helios("model", "train", code=1)
    assert "No Dask scheduler answers at nowhere" in refused.err
    assert "tcp://HOST:8786" in refused.err
    assert helios("model", "list", "--json").json["models"] == []
    trained = shell(tmp_path, HELIOS_MODEL_DASK=address)("model", "train", "--json").json
    assert (trained["jobs"], trained["cluster"]) == (4500, "lab")


def test_an_address_where_nobody_answers_is_named_with_what_to_try() -> None:
    with pytest.raises(DaskUnavailable, match=r"answers at tcp://127.0.0.1:9.*(?s:.)*tcp://HOST:8786"):
        DaskTrainer(address="tcp://127.0.0.1:9", connect_s=0.5)(a_training_set(300), seed=0)


def test_a_scheduler_without_workers_is_refused_with_how_to_start_some() -> None:
    with a_cluster(0) as cluster, pytest.raises(DaskUnavailable, match=f"dask worker {cluster.scheduler_address}"):
        DaskTrainer(address=cluster.scheduler_address)(a_training_set(300), seed=0)


def test_without_dask_the_extra_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(DaskUnavailable, match=r"pip install 'helios-slurm\[dask\]'"):
        DaskTrainer(address="tcp://127.0.0.1:9")(a_training_set(300), seed=0)


def test_a_worker_killed_during_the_training_is_named(doomed: tuple[str, dict[str, int]]) -> None:
    address, process_of = doomed
    lost = sorted(process_of)[0]
    killed: list[float] = []

    def kill(step: str, done: float) -> None:
        if not killed:
            killed.append(done)
            os.kill(process_of[lost], signal.SIGKILL)

    with pytest.raises(TrainingBroken, match=f"1 of 2 Dask workers were lost during the training: {lost}"):
        DaskTrainer(address=address)(a_training_set(20_000), seed=0, progress=kill)
    assert killed[0] < 0.1


def test_a_worker_that_falls_silent_is_not_waited_for_longer_than_said(doomed: tuple[str, dict[str, int]]) -> None:
    address, process_of = doomed
    silent = process_of[sorted(process_of)[0]]
    impatient = replace(DaskTrainer(address=address), longest_s=2.0)
    try:
        with pytest.raises(TrainingBroken, match="had not grown the trees after 2 s"):
            impatient(
                a_training_set(20_000),
                seed=0,
                progress=lambda step, done: os.kill(silent, signal.SIGSTOP),
            )
    finally:
        os.kill(silent, signal.SIGKILL)
