"""The databases that every contract suite of the warehouse runs on."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from helios.warehouse import Warehouse
from tests.postgres import fresh_database, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL of a running PostgreSQL server, one for each test process."""
    with postgres_server() as url:
        yield url


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the schema made, to be copied: making it anew is most of a short test."""
    path = tmp_path_factory.mktemp("template") / "helios.db"
    Warehouse.open(f"sqlite:///{path}").close()
    return path


@pytest.fixture(scope="session")
def postgres_template(postgres: str) -> Iterator[str]:
    """Name of a PostgreSQL database with the schema made, to be copied."""
    with fresh_database(postgres) as url:
        Warehouse.open(url).close()
        yield str(make_url(url).database)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a database on each of the two kinds: with the schema for who asks for ``warehouse`` too, else empty."""
    made = "warehouse" in request.fixturenames
    if request.param == "sqlite":
        path = tmp_path / "helios.db"
        if made:
            shutil.copy(request.getfixturevalue("sqlite_template"), path)
        yield f"sqlite:///{path}"
        return
    template = request.getfixturevalue("postgres_template") if made else "template0"
    with fresh_database(request.getfixturevalue("postgres"), template=template) as url:
        yield url
