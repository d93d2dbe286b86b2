"""Which databases are taken, and what an operator reads when one cannot be used."""

from __future__ import annotations

import builtins
import os
import sqlite3
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from helios.errors import WarehouseUnavailable
from helios.model import APPLIED_CHANGES, DECISIONS
from helios.warehouse import Warehouse, engine
from helios.warehouse.engine import engine_for, redact_url, sqlite_file, writing
from tests.builders import a_batch, a_job


def refusal(url: str) -> WarehouseUnavailable:
    with pytest.raises(WarehouseUnavailable) as caught:
        Warehouse.open(url).close()
    return caught.value


@pytest.mark.parametrize("url", ["", "helios.db", "sqlite:/helios.db", "://"])
def test_what_is_no_url_is_refused_with_the_two_forms(url: str) -> None:
    assert "sqlite:///PATH or postgresql://USER@HOST/DATABASE" in refusal(url).hint


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:////var/lib/helios.db", "/var/lib/helios.db"),
        ("sqlite:///helios.db", "helios.db"),
        ("sqlite://", None),
        ("sqlite:///:memory:", None),
        ("sqlite:///file:helios.db?mode=ro&uri=true", None),
        ("postgresql://helios@db/helios", None),
    ],
)
def test_a_url_names_a_file_only_where_sqlite_keeps_one(url: str, path: str | None) -> None:
    assert sqlite_file(url) == (None if path is None else Path(path))


def test_other_databases_are_refused_by_name() -> None:
    assert "'mysql'" in refusal("mysql://root@host/helios").message


def test_a_missing_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    importing = builtins.__import__

    def without_psycopg(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("psycopg"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return importing(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_psycopg)
    assert "pip install 'helios-slurm[postgres]'" in refusal("postgresql://helios@localhost/helios").hint


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_every_spelling_of_postgresql_means_psycopg_3(scheme: str) -> None:
    assert engine_for(f"{scheme}://helios@db/helios").dialect.driver == "psycopg"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://helios:sesame@127.0.0.1:1/helios",
        "postgresql://helios@127.0.0.1:1/helios?password=sesame",
        "postgresql://helios:sesame@[broken/helios",
    ],
)
def test_no_error_shows_a_password(url: str) -> None:
    assert "sesame" not in str(refusal(url))


def test_a_shown_url_keeps_everything_but_its_secrets() -> None:
    url = engine_for("postgresql://helios:sesame@db/helios?password=sesame&sslmode=require").url
    assert redact_url(url) == "postgresql+psycopg://helios:***@db/helios?sslmode=require"


def test_a_server_that_does_not_answer_is_an_error_with_a_hint() -> None:
    assert "the database is running" in refusal("postgresql://helios@127.0.0.1:1/helios").hint


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_text("JobID|User|State\n" * 100)
    assert "something else" in refusal(f"sqlite:///{path}").hint
    assert path.read_text() == "JobID|User|State\n" * 100


def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    assert "unable to open" in refusal(f"sqlite:///{tmp_path}").message


def test_a_path_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in refusal(f"sqlite:///{tmp_path / 'file' / 'helios.db'}").message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "writable" in refusal(f"sqlite:///{tmp_path / 'helios.db'}").hint


def test_the_user_s_own_data_folder_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    path = tmp_path / "data" / "helios" / "helios.db"
    Warehouse.open(f"sqlite:///{path}").close()
    assert path.is_file()


def test_a_mistyped_folder_is_refused_and_not_made(tmp_path: Path) -> None:
    path = tmp_path / "hleios" / "helios.db"
    assert f"mkdir -p {path.parent}" in refusal(f"sqlite:///{path}").hint
    assert not path.parent.exists()


def modes(folder: Path) -> dict[str, str]:
    return {path.name: f"{stat.S_IMODE(path.stat().st_mode):o}" for path in folder.iterdir()}


def test_a_new_database_and_its_files_are_private_to_the_owner(tmp_path: Path) -> None:
    with Warehouse.open(f"sqlite:///{tmp_path / 'helios.db'}") as warehouse:
        warehouse.try_to_write()
        assert modes(tmp_path) == {"helios.db": "600", "helios.db-wal": "600", "helios.db-shm": "600"}


def test_a_readable_database_is_closed_to_others_when_opened(tmp_path: Path) -> None:
    with Warehouse.open(f"sqlite:///{tmp_path / 'helios.db'}?timeout=1") as other:  # an engine of its own
        other.try_to_write()
        for file in tmp_path.iterdir():
            file.chmod(0o644)
        with Warehouse.open(f"sqlite:///{tmp_path / 'helios.db'}") as warehouse:
            warehouse.try_to_write()
            assert set(modes(tmp_path).values()) == {"640"}  # a group that a site let in stays in


def test_asking_a_missing_file_for_its_revision_does_not_make_it(tmp_path: Path) -> None:
    path = tmp_path / "helios.db"
    with Warehouse.open(f"sqlite:///{path}", create=False) as warehouse:
        assert warehouse.revision() is None
    assert not path.exists()


def test_a_second_writer_is_told_that_another_is_at_work(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'helios.db'}"
    Warehouse.open(url).close()
    first = sqlite3.connect(tmp_path / "helios.db", isolation_level=None)
    first.execute("BEGIN IMMEDIATE")
    with Warehouse.open(f"{url}?timeout=0") as second, pytest.raises(WarehouseUnavailable, match="Another process"):
        second.load([a_batch(a_job())], cluster="c", path="p", sha256="s", format="sacct", timezone=None)
    first.close()


def test_a_writer_holds_its_place_from_the_beginning(tmp_path: Path) -> None:
    engine = engine_for(f"sqlite:///{tmp_path / 'helios.db'}?timeout=0")
    with writing(engine), pytest.raises(WarehouseUnavailable, match="Another process"), writing(engine):
        pass


def test_readers_are_not_kept_waiting_by_a_writer(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'helios.db'}?timeout=0"
    with Warehouse.open(url) as reader:
        writer = sqlite3.connect(tmp_path / "helios.db", isolation_level=None)
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("INSERT INTO clusters (name) VALUES ('unfinished')")
        assert reader.clusters().empty
        writer.close()


def test_whatever_is_committed_is_on_the_disk(tmp_path: Path) -> None:
    """With synchronous = NORMAL a WAL database syncs nothing at a commit: a power cut would undo announced intents."""
    with Warehouse.open(f"sqlite:///{tmp_path / 'helios.db'}") as warehouse:
        seen = []
        for what in ("synchronous", "journal_mode"):
            event.listen(
                warehouse._engine,
                "commit",
                lambda connection, what=what: seen.append(connection.exec_driver_sql(f"PRAGMA {what}").scalar()),
            )
        ledger, now = warehouse.ledger("venus"), datetime(2026, 1, 1, tzinfo=UTC)
        token = ledger.acquire(holder="me", now=now, lasts=timedelta(minutes=3))
        ledger.record(token=token or 0, decisions=DECISIONS.empty(), applied_changes=APPLIED_CHANGES.empty())
        warehouse.remember("venus", "cycle", "{}", at=now)
        ledger.release(holder="me")
    assert len(seen) >= 8
    assert set(seen) == {2, "wal"}  # 2: FULL


@pytest.fixture
def read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a database that was closed, on what looks like a read-only mount."""
    file = tmp_path / "helios.db"
    with Warehouse.open(f"sqlite:///{file}") as warehouse:
        warehouse.load([a_batch(a_job())], cluster="c", path="p", sha256="s", format="sacct", timezone=None)
    monkeypatch.setattr(engine, "is_mounted_read_only", lambda _: True)
    return file


def test_a_closed_database_on_a_read_only_mount_can_be_read(read_only: Path) -> None:
    with Warehouse.open(f"sqlite:///{read_only}") as warehouse:
        assert len(warehouse.jobs("c")) == 1
        assert warehouse.ledger("c").applied_changes().empty
        assert [file.name for file in read_only.parent.iterdir()] == ["helios.db"]


def test_a_database_on_a_read_only_mount_is_not_written(read_only: Path) -> None:
    with Warehouse.open(f"sqlite:///{read_only}") as warehouse, pytest.raises(WarehouseUnavailable, match="readonly"):
        warehouse.remember("c", "cycle", "{}", at=datetime.now(UTC))


def test_an_unclosed_database_on_a_read_only_mount_says_what_to_copy(read_only: Path) -> None:
    read_only.with_name("helios.db-wal").write_bytes(b"changes")
    with Warehouse.open(f"sqlite:///{read_only}", create=False) as warehouse:
        with pytest.raises(WarehouseUnavailable, match="was not closed") as refused:
            warehouse.revision()
        assert "helios.db-wal together" in refused.value.hint


def test_a_warehouse_in_memory_works() -> None:
    with Warehouse.open("sqlite://") as warehouse:
        warehouse.load([a_batch(a_job())], cluster="c", path="p", sha256="s", format="sacct", timezone=None)
        assert len(warehouse.jobs("c")) == 1


def test_an_error_of_the_caller_is_not_disguised_as_the_databases() -> None:
    def failing() -> Any:
        raise ValueError("of the caller")
        yield

    with Warehouse.open("sqlite://") as warehouse, pytest.raises(ValueError, match="of the caller"):
        warehouse.load(failing(), cluster="c", path="p", sha256="s", format="sacct", timezone=None)
