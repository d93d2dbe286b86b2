"""Models as text: the same again for the same jobs, damage found, old ones refused with what to do."""

import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest

from helios.errors import ModelUnreadable
from helios.model import JOBS
from helios.predict.duration import Trees, train
from helios.predict.job_table import JobTable, causal_features
from helios.predict.model_record import (
    FORMAT,
    TRAINED_ON,
    arrays_in,
    describe_provenance,
    digest_jobs,
    from_record,
    inputs_in,
    rows_learned_from,
    stored_arrays,
    to_record,
)
from helios.predict.timeline import Calibration
from tests.unit.predict.crafted import with_leaves
from tests.unit.predict.traces_of import a_campaign
from tests.unit.predict.walks import walked

NOW = datetime(2024, 4, 1, tzinfo=UTC)
JOBS_ = a_campaign(400)


@pytest.fixture(scope="module")
def model():
    return train(JOBS_, cluster="lab")


def kept(model, jobs=JOBS_, *, at=NOW, seed=0, scores=None):
    table = JobTable.from_frame(jobs)
    provenance = describe_provenance(model, jobs, table=table, features=causal_features(table).X, seed=seed)
    return to_record(model, trained_at=at, scores=scores, provenance=provenance)


def resealed(record, change):
    """Return ``record`` with its text changed by somebody who knows how to seal it."""
    artifact = json.loads(record.artifact)
    del artifact["sha256"]
    change(artifact)
    sealed = json.dumps(artifact, sort_keys=True, separators=(",", ":"))
    artifact["sha256"] = hashlib.sha256(sealed.encode()).hexdigest()
    return replace(record, artifact=json.dumps(artifact))


def test_the_same_jobs_and_seed_give_the_same_bytes(model):
    again = train(JOBS_.copy(), cluster="lab")
    one, other = kept(model), kept(again, at=datetime(2025, 1, 1, tzinfo=UTC))
    assert (one.model_id, one.artifact) == (other.model_id, other.artifact)


def test_a_model_comes_back_with_its_backtest(model):
    backtest = Trees(until=NOW, jobs=300, text=model.trees.text, tail=model.trees.tail)
    whole = replace(model, backtest=backtest, trained=False)
    assert from_record(kept(whole)) == whole


def test_a_model_comes_back_with_its_calibration(model):
    calibration = Calibration(
        offsets=np.linspace(-0.2, 0.3, 6).reshape(2, 3),
        counts=np.array([[7.0, 1e-310, 0.0], [1.0, 2.0, 3.0]]),
        outlived=np.array([0.05]),
    )
    back = from_record(kept(replace(model, calibration=calibration)))
    assert back.model_id == replace(model, calibration=calibration).model_id
    for found, expected in zip(back.calibration, calibration, strict=True):
        assert found.tobytes() == expected.tobytes()
    assert back.trees.tail.tobytes() == model.trees.tail.tobytes()
    assert from_record(kept(replace(model, calibration=None))).calibration is None


def test_the_manifest_says_what_the_model_was_made_of(model):
    manifest = kept(model, seed=3, scores={"jobs": 5}).manifest
    assert manifest["first_submission"] == JOBS_["submitted_at"].min().isoformat()
    assert manifest["last_submission"] == JOBS_["submitted_at"].max().isoformat()
    assert (manifest["seed"], manifest["jobs"], manifest["cluster"]) == (3, 400, "lab")
    assert manifest["parameters"]["num_leaves"] > 1
    assert manifest["versions"]["lightgbm"]
    assert manifest["scores"] == {"jobs": 5}
    assert inputs_in(manifest).jobs == 400
    assert inputs_in({}) is None


def test_the_digest_does_not_depend_on_the_order_of_loading():
    shuffled = JOBS_.sample(frac=1, random_state=1)
    other_codes = JOBS_.assign(
        user=JOBS_["user"]
        .cat.add_categories(["aaron"])
        .cat.reorder_categories(["aaron", *reversed(JOBS_["user"].cat.categories)])
    )
    assert digest_jobs(shuffled) == digest_jobs(JOBS_) == digest_jobs(other_codes)


@pytest.mark.parametrize(
    "change",
    [
        lambda jobs: jobs.iloc[:-1],
        lambda jobs: jobs.assign(run_time_s=jobs["run_time_s"] + (jobs.index == 7)),
        lambda jobs: jobs.assign(name="other"),
        lambda jobs: jobs.assign(restart=jobs["restart"] + (jobs.index == 7).astype("int32")),
    ],
    ids=["one fewer", "one second", "names", "restart"],
)
def test_the_digest_changes_with_whatever_training_reads(change):
    assert digest_jobs(change(JOBS_)) != digest_jobs(JOBS_)


def test_training_needs_no_other_columns_than_are_named(model):
    assert train(JOBS_[list(TRAINED_ON)], cluster="lab") == model
    assert set(TRAINED_ON) < set(JOBS.names)


def test_the_jobs_learned_from_are_those_that_had_ended():
    table = JobTable.from_frame(JOBS_)
    until = JOBS_["submitted_at"].iloc[300].to_pydatetime()
    rows = rows_learned_from(table, until)
    assert rows.tolist() == np.flatnonzero((JOBS_["ended_at"] < pd.Timestamp(until)).to_numpy()).tolist()


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_a_changed_character_is_found(model, place):
    record = kept(model)
    at = int(len(record.artifact) * place)
    while not record.artifact[at].isdigit():
        at += 1
    changed = record.artifact[:at] + str((int(record.artifact[at]) + 1) % 10) + record.artifact[at + 1 :]
    with pytest.raises(ModelUnreadable, match="cannot be read") as refused:
        from_record(replace(record, artifact=changed))
    assert "helios model train" in refused.value.hint


def no_text(artifact):
    artifact["trees"]["text"] = ""


def no_backtest_s_text(artifact):
    artifact["backtest"] = artifact["trees"] | {"text": "x"}


def another_cluster(artifact):
    artifact["manifest"]["cluster"] = "elsewhere"


def a_calibration_without_groups(artifact):
    one = {"dtype": "<f8", "shape": [0], "values": []}
    artifact["levels"] = {"offsets": one, "counts": one, "outlived": one}


def a_calibration_of_gigabytes(artifact):
    one = {"dtype": "<U1000000000", "shape": [1], "values": ["x"]}
    artifact["levels"] = {"offsets": one, "counts": one, "outlived": one}


def a_calibration_that_is_not_finite(artifact):
    shapes = {"offsets": [2, 3], "counts": [2, 3], "outlived": [1]}
    artifact["levels"] = {
        name: {"dtype": "<f8", "shape": shape, "values": ["inf"] * int(np.prod(shape))}
        for name, shape in shapes.items()
    }


def a_tail(values, shape=None):
    def change(artifact):
        tail = {"dtype": "<f8", "shape": shape or [2, len(values) // 2], "values": values}
        artifact["trees"]["tail"] = {"tail": tail}

    return change


def trained_by_a_number(artifact):
    artifact["manifest"]["trained"] = 1


def trained_by_a_text(artifact):
    artifact["manifest"]["trained"] = "1"


def a_time_without_zone(artifact):
    artifact["trees"]["until"] = "2024-01-01T00:00:00"


@pytest.mark.parametrize(
    "change",
    [
        no_text,
        no_backtest_s_text,
        another_cluster,
        a_calibration_without_groups,
        a_calibration_of_gigabytes,
        a_calibration_that_is_not_finite,
        a_tail([]),
        a_tail([1.0, 2.0, 0.5, 1.0]),
        a_tail([2.0, 1.0, 1.0, 0.5]),
        a_tail([1.0, "nan", 1.0, 0.5]),
        a_tail([1.0, 2.0, 1.0, 0.5], [4]),
        a_tail([0.0, 1.0] * 1000),
        trained_by_a_number,
        trained_by_a_text,
        a_time_without_zone,
    ],
)
def test_a_lie_with_a_valid_digest_is_refused(model, change):
    with pytest.raises(ModelUnreadable, match="cannot be read"):
        from_record(resealed(kept(model), change))


def test_a_deeply_nested_text_is_refused(model):
    with pytest.raises(ModelUnreadable, match="cannot be read"):
        from_record(replace(kept(model), artifact="[" * 200_000))


def test_leaves_of_any_size_give_a_finite_prediction(model):
    for value in ("100000000", "-100000000"):
        trees = replace(model.trees, text=with_leaves(model.trees.text, value))
        assert np.isfinite(walked(JOBS_, model=replace(model, trees=trees)).predicted).all()


def test_a_damaged_word_on_the_training_is_refused():
    with pytest.raises(ModelUnreadable, match="cannot be read"):
        inputs_in({"inputs": {"spreads": {"x": 1}}})


def test_features_of_another_version_are_refused_by_name(model):
    def other(artifact):
        artifact["manifest"]["features"][0] = "shoe_size"

    with pytest.raises(ModelUnreadable, match="other features"):
        from_record(resealed(kept(model), other))


def test_a_text_of_the_first_format_is_refused_as_old():
    record = replace(kept_record_of_the_first_format(), model_id="lab-1")
    with pytest.raises(ModelUnreadable, match="older Helios") as refused:
        from_record(record)
    assert "helios model train" in refused.value.hint


def kept_record_of_the_first_format():
    artifact = {
        "format": "helios-duration-1",
        "cluster": "lab",
        "trained_until": "2024-01-01T00:00:00+00:00",
        "jobs": 1,
        "features": [],
        "texts": [],
    }
    record = to_record(train(JOBS_, cluster="lab"), trained_at=NOW)
    return replace(record, artifact=json.dumps(artifact), manifest={})


def test_a_format_of_the_future_is_refused(model):
    def newer(artifact):
        artifact["format"] = "helios-duration-9"

    with pytest.raises(ModelUnreadable, match=f"helios-duration-9.*{FORMAT}"):
        from_record(resealed(kept(model), newer))


def test_arrays_come_back_exactly():
    arrays = {
        "small": np.array([0.1, np.nan, np.inf, -np.inf, -0.0, 1e-310]),
        "single": np.array([[0.1, 2.5]], dtype=np.float32),
        "whole": np.array([2**62, -1]),
        "bytes": np.array([[1], [2]], dtype=np.int8),
        "none": np.empty((0, 3)),
    }
    back = arrays_in(json.loads(json.dumps(stored_arrays(arrays), allow_nan=False)))
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype
        assert back[name].shape == array.shape
        assert back[name].tobytes() == array.tobytes()
