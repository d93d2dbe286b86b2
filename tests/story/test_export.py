"""A person gives a history away, as it is or anonymous."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from helios.ingest import synthetic_trace, write_helios_csv
from tests.story.shell import Helios, shell


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Helios:
    """A site with two days of history."""
    folder = tmp_path_factory.mktemp("site")
    write_helios_csv(synthetic_trace(start=datetime(2020, 9, 1, tzinfo=UTC), days=2), folder / "venus.csv.gz")
    helios = shell(folder, HELIOS_CONTROL_STATE_FOLDER=str(folder / "state"))
    helios("trace", "load", "venus.csv.gz", "--timezone", "Asia/Shanghai")
    return helios


def test_what_is_exported_loads_again_and_is_described_alike(site: Helios, tmp_path: Path) -> None:
    answer = site("trace", "export", "--cluster", "venus", "--out", tmp_path / "out", "--layout", "parquet")
    assert "jobs.parquet" in answer.out
    site("trace", "load", tmp_path / "out" / "jobs.parquet", "--cluster", "moved")
    one, other = (site("trace", "describe", "--cluster", name, "--json").json for name in ("venus", "moved"))
    assert one | {"cluster": ""} == other | {"cluster": ""}


def test_a_refused_anonymous_export_says_what_lowers_the_risk(site: Helios, tmp_path: Path) -> None:
    answer = site(
        "trace", "export", "--cluster", "venus", "--anonymous", "--round", "1min", "--out", tmp_path / "out", code=1
    )
    assert "Nothing was exported" in answer.err and "--round 1d or 7d" in answer.err and "--accept-risk" in answer.err
    assert not (tmp_path / "out").exists()


def test_an_anonymous_export_shows_risk_and_loss_and_where_the_key_is(site: Helios, tmp_path: Path) -> None:
    options = ("--anonymous", "--round", "1h", "--accept-risk", "--out", tmp_path / "out")
    answer = site("trace", "export", "--cluster", "venus", *options)
    assert "by a list of each user's jobs or hours" in answer.out and "Replayed mean wait, fifo" in answer.out
    assert "export-keys/venus-" in answer.err
    found = site("trace", "export", "--cluster", "venus", *options, "--json").json
    assert found["risk"]["jobs"] == found["jobs"] and found["loss"]["jobs"]["after"] == found["jobs"]


@pytest.mark.parametrize(
    "options",
    [("--round", "1h"), ("--accept-risk",), ("--key", "x"), ("--layout", "xml"), ("--anonymous", "--round", "7min0")],
)
def test_options_that_make_no_sense_are_misuse(site: Helios, tmp_path: Path, options: tuple[str, ...]) -> None:
    site("trace", "export", "--cluster", "venus", "--out", tmp_path / "out", *options, code=2)
    assert not (tmp_path / "out").exists()
