"""Migrations: found, silent, whole, and the same on paper as in the schema."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

from helios.errors import WarehouseUnavailable
from helios.warehouse import migrate
from helios.warehouse.engine import engine_for


def test_the_newest_revision_is_the_newest_migration_of_the_folder() -> None:
    assert ScriptDirectory(migrate.migrations_folder()).get_current_head() == migrate.HEAD


def test_the_migrations_of_a_source_checkout_are_found() -> None:
    assert (migrate.migrations_folder() / "env.py").is_file()


def test_an_upgrade_says_nothing_and_configures_no_logging(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = (logging.root.level, list(logging.root.handlers))
    migrate.upgrade(engine_for(f"sqlite:///{tmp_path / 'helios.db'}"))
    assert capfd.readouterr() == ("", "")
    assert (logging.root.level, list(logging.root.handlers)) == before


def test_a_failing_upgrade_leaves_no_table_behind(tmp_path: Path) -> None:
    engine = engine_for(f"sqlite:///{tmp_path / 'helios.db'}")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE decisions (number INTEGER)"))
    with pytest.raises(WarehouseUnavailable):
        migrate.upgrade(engine)
    assert inspect(engine).get_table_names() == ["decisions"]


def test_a_failing_upgrade_can_be_tried_again(tmp_path: Path) -> None:
    engine = engine_for(f"sqlite:///{tmp_path / 'helios.db'}")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE decisions (number INTEGER)"))
    with pytest.raises(WarehouseUnavailable):
        migrate.upgrade(engine)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE decisions"))
    assert migrate.upgrade(engine)[-1] == migrate.head()


def test_jobs_are_clustered_by_their_key_on_sqlite(tmp_path: Path) -> None:
    engine = engine_for(f"sqlite:///{tmp_path / 'helios.db'}")
    migrate.upgrade(engine)
    with engine.connect() as connection:
        made = connection.execute(text("SELECT sql FROM sqlite_master WHERE name = 'jobs'")).scalar_one()
    assert made.rstrip().endswith("WITHOUT ROWID")
