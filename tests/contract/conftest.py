"""The databases that every contract suite of the warehouse runs on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import fresh_database, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL of a running PostgreSQL server, one for each test process."""
    with postgres_server() as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.xdist_group("postgres"))])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of an empty database, on each of the two kinds."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'helios.db'}"
        return
    with fresh_database(request.getfixturevalue("postgres")) as url:
        yield url
