"""The whole path on a real PostgreSQL, by nothing but its URL."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from helios.ingest import synthetic_trace, write_helios_csv
from tests.postgres import fresh_database, postgres_server
from tests.story.shell import Helios, shell


@pytest.fixture(scope="module")
def helios(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Helios]:
    with postgres_server() as server, fresh_database(server) as url:
        yield shell(tmp_path_factory.mktemp("site"), HELIOS_DATABASE_URL=url)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "venus.csv.gz"
    write_helios_csv(synthetic_trace(start=datetime(2020, 9, 1, tzinfo=UTC), days=4), path)
    return path


def test_a_trace_is_loaded_learned_from_and_replayed(helios: Helios, trace: Path) -> None:
    loaded = helios("trace", "load", trace, "--json").json
    assert loaded["jobs_new"] > 1000
    assert helios("trace", "load", trace, "--json").json["jobs_new"] == 0
    assert helios("model", "train", "--json").json["jobs"] > 1000
    assert helios("model", "evaluate", "--draws", "0", "--json").json["spearman"] > 0
    replays = ("--policy", "fifo", "--draws", "0")
    answer = helios("whatif", "--nodes", "100", *replays, "--json").json
    assert answer["runs"][0]["jobs"] == loaded["jobs_new"]
    assert "already at" in helios("db", "upgrade").out
