"""An administrator looks after models: trains, compares, promotes, regrets."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from helios.ingest import synthetic_trace, write_helios_csv
from tests.story.shell import Helios, shell


def a_site(folder: Path) -> Helios:
    """Return a site with eight days of history."""
    write_helios_csv(synthetic_trace(start=datetime(2020, 9, 1, tzinfo=UTC), days=8), folder / "venus.csv.gz")
    helios = shell(folder, HELIOS_MODEL_JUDGED_DAYS="2")
    helios("trace", "load", "venus.csv.gz", "--timezone", "UTC")
    return helios


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Helios:
    """A site with a model in charge."""
    helios = a_site(tmp_path_factory.mktemp("models"))
    helios("model", "train", "--to", "2020-09-04", "--promote")
    return helios


def test_models_are_trained_compared_promoted_and_rolled_back(tmp_path: Path) -> None:
    site = a_site(tmp_path)
    assert "No model yet" in site("model", "list").out
    first = site("model", "train", "--to", "2020-09-04", "--promote", "--json").json
    assert first["outcome"]["promoted"] == first["model_id"]
    assert first["digest"]
    second = site("model", "train", "--to", "2020-09-05", "--json").json
    assert second["outcome"]["promoted"] == first["model_id"]
    told = site("model", "evaluate", "--model", first["model_id"], "--model", second["model_id"], "--json").json
    assert told["jobs"] > 500
    assert {"shrinkage", "user_last", first["model_id"]} == set(told["against"])
    site("model", "promote", second["model_id"], "--why", "fresher")
    assert [model["promoted"] for model in site("model", "list", "--json").json["models"]] == [True, False]
    assert (
        f"{first['model_id']} is active again: too new"
        in site("model", "promote", "--previous", "--why", "too new").out
    )
    assert f"* active: {first['model_id']}" in site("model", "list").out
    decisions = site("model", "list", "--json").json["decisions"]
    assert [one["why"] for one in decisions][-2:] == ["fresher", "too new"]


def test_drift_is_shown_for_the_model_promoted(site: Helios) -> None:
    told = site("model", "drift", "--to", "2020-09-07", "--json").json
    (promoted,) = [model["model_id"] for model in site("model", "list", "--json").json["models"] if model["promoted"]]
    assert told["model_id"] == promoted
    assert told["inputs"]
    assert "Week from" in site("model", "drift").out


def test_a_model_that_is_not_there_is_named(site: Helios) -> None:
    assert "'nobody'" in site("model", "promote", "nobody", code=1).err
    assert "--previous" in site("model", "promote", code=2).err
    assert "same model twice" in site("model", "evaluate", "--model", "a", "--model", "a", code=2).err


def test_a_model_is_compared_with_another_one_only(site: Helios) -> None:
    assert "--model A --model B" in site("model", "evaluate", "--model", "a", code=2).err
