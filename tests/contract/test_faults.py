"""Whatever fails, and wherever the process dies: nothing is lost, nothing is half.

A sample of the points in every run, every point with ``-m nightly``.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

from helios.errors import HeliosError
from helios.model import APPLIED_CHANGES, DECISIONS
from helios.warehouse import Warehouse
from helios.warehouse.engine import engine_for
from helios.warehouse.migrate import migrations_folder
from tests.builders import a_batch, a_job
from tests.faults import Faults, copied, counted, failing_at, spread
from tests.postgres import fresh_database

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
ROOT = Path(__file__).parents[2]
SOME = 3
ALL = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Something that writes to a database: what comes before it, and what it does."""

    before: Callable[[str], None]
    act: Callable[[str], None]


def a_loaded_database(url: str) -> None:
    with Warehouse.open(url) as warehouse:
        warehouse.load([a_batch(a_job(job_id="0"))], cluster="v", path="p", sha256="0", format="sacct", timezone="UTC")
        warehouse.ledger("v").acquire(holder="me", now=NOW, lasts=timedelta(minutes=3))
        warehouse.ledger("v").record(token=1, decisions=meant("1"), applied_changes=applied("1"))


def load(url: str) -> None:
    batches = [
        a_batch(a_job(job_id="1", user="ann"), a_job(job_id="0"), rejects=((7, "no end", "x"),)),
        a_batch(a_job(job_id="2", user="bea"), a_job(job_id="3")),
    ]
    with Warehouse.open(url) as warehouse:
        warehouse.load(batches, cluster="v", path="q", sha256="1", format="sacct", timezone="UTC")


def record(url: str) -> None:
    with Warehouse.open(url) as warehouse:
        warehouse.ledger("v").record(token=1, decisions=meant("2", "3"), applied_changes=applied("2", "3"))


def the_first_schema(url: str) -> None:
    first = ScriptDirectory(migrations_folder()).get_revision("0001")
    assert first is not None
    engine = engine_for(url)
    with engine.execution_options(helios_writes=True).begin() as connection:
        with Operations.context(MigrationContext.configure(connection)):
            first.module.upgrade()
        connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"))
        connection.execute(text("INSERT INTO alembic_version VALUES ('0001')"))
        connection.execute(text("INSERT INTO clusters (name) VALUES ('kept')"))
    engine.dispose()


def upgrade(url: str) -> None:
    with Warehouse.open(url, create=False) as warehouse:
        warehouse.upgrade()


SCENARIOS = {
    "load": Scenario(before=a_loaded_database, act=load),
    "record": Scenario(before=a_loaded_database, act=record),
    "first": Scenario(before=lambda url: None, act=upgrade),
    "upgrade": Scenario(before=the_first_schema, act=upgrade),
}


def meant(*jobs: str) -> pd.DataFrame:
    texts = {"service": "qssf", "mode": "active", "action": "Reorder", "reason": "short", "outcome": "meant"}
    return DECISIONS.conform(pd.DataFrame({"target": list(jobs), "decided_at": NOW} | texts))


def applied(*jobs: str) -> pd.DataFrame:
    one = {"setting": "order", "service": "qssf", "mode": "active", "value": 1.0, "written_at": NOW, "overridden": 0}
    return APPLIED_CHANGES.conform(pd.DataFrame({"job_id": list(jobs), "submitted_at": NOW} | one))


# Numbers and times that a database gives; PostgreSQL leaves out numbers of what was undone.
NAMED = {"partition", "account", "user"}
"""Columns of sums with numbers of texts."""
NUMBERS = {
    "expires_at",
    "name_id",
    "load_id",
    "reject_id",
    "decision_id",
    "mode_id",
    "cycle_id",
    "promotion_id",
    "loaded_at",
}


def content(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """Return every row of every table, jobs as a person reads them, but for when it was loaded and its number."""
    path = url.removeprefix("sqlite:///")
    if url.startswith("sqlite") and not Path(path).exists():
        return {}
    database = engine_for(url)
    found = {}
    with database.connect() as connection:
        for table in inspect(connection).get_table_names():
            shown = "jobs_readable" if table == "jobs" else table
            rows = [dict(row._mapping) for row in connection.execute(text(f"SELECT * FROM {shown}"))]
            if table == "job_sums":  # a text has another number after a statement that failed
                texts = dict(connection.execute(text("SELECT name_id, text FROM names")).all())
                rows = [{k: texts.get(v, v) if k in NAMED else v for k, v in row.items()} for row in rows]
            found[table] = sorted(tuple(str(v) for k, v in row.items() if k not in NUMBERS) for row in rows)
    database.dispose()
    return found


@pytest.fixture
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Give URLs of new empty databases of one kind."""
    with ExitStack() as held:
        number = 0

        def another() -> str:
            nonlocal number
            number += 1
            if request.param == "sqlite":
                (tmp_path / str(number)).mkdir()
                return f"sqlite:///{tmp_path / str(number) / 'helios.db'}"
            return held.enter_context(fresh_database(request.getfixturevalue("postgres")))

        yield another


KINDS = ["sqlite", "postgresql"]
HOW_MANY = [SOME, pytest.param(ALL, marks=pytest.mark.nightly)]


def ready(fresh: Callable[[], str], scenario: Scenario) -> str:
    url = fresh()
    scenario.before(url)
    return url


@pytest.mark.parametrize("some", HOW_MANY)
@pytest.mark.parametrize("named", SCENARIOS)
@pytest.mark.parametrize("fresh", KINDS, indirect=True)
def test_a_failed_statement_leaves_nothing_half_done_and_can_be_repeated(
    fresh: Callable[[], str], named: str, some: int
) -> None:
    scenario = SCENARIOS[named]
    url = ready(fresh, scenario)
    with counted(Faults()) as whole:
        scenario.act(url)
    before, after = content(ready(fresh, scenario)), content(url)
    assert len(whole.seen) > SOME and before != after
    for number in spread(len(whole.seen), some):
        url = ready(fresh, scenario)
        with counted(failing_at(number)) as faults, pytest.raises(HeliosError):
            scenario.act(url)
        assert content(url) in (before, {}), faults.seen[-1]
        scenario.act(url)
        assert content(url) == after, faults.seen[-1]


@pytest.mark.parametrize("some", HOW_MANY)
@pytest.mark.parametrize("named", SCENARIOS)
def test_a_death_at_any_statement_leaves_all_or_nothing(tmp_path: Path, named: str, some: int) -> None:
    scenario, folder = SCENARIOS[named], tmp_path / "there"
    folder.mkdir()
    url = f"sqlite:///{folder / 'helios.db'}"
    scenario.before(url)
    before = content(url)

    def left(number: int, _kind: str) -> None:
        copied(folder, tmp_path / str(number))

    with counted(Faults(at_each=left)) as faults:
        scenario.act(url)
    after, died = content(url), set()
    for number in spread(len(faults.seen), some * 2):
        url = f"sqlite:///{tmp_path / str(number) / 'helios.db'}"
        found = content(url)
        assert found in (before, after), faults.seen[number - 1]
        died.add(found == after)
        scenario.act(url)
        assert content(url) == after, faults.seen[number - 1]
    assert False in died


@pytest.mark.parametrize("some", [1, pytest.param(ALL, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("named", SCENARIOS)
def test_a_process_that_really_dies_leaves_all_or_nothing(tmp_path: Path, named: str, some: int) -> None:
    scenario = SCENARIOS[named]
    url = f"sqlite:///{tmp_path / 'helios.db'}"
    scenario.before(url)
    before = content(url)
    whole = tmp_path / "whole"
    whole.mkdir()
    scenario.before(f"sqlite:///{whole / 'helios.db'}")
    with counted(Faults()) as faults:
        scenario.act(f"sqlite:///{whole / 'helios.db'}")
    after = content(f"sqlite:///{whole / 'helios.db'}")
    numbers = [len(faults.seen) * 2 // 3] if some == 1 else spread(len(faults.seen), some)
    for number in numbers:
        folder = copied(tmp_path, tmp_path.with_name(f"{tmp_path.name}-{number}"))
        child = [sys.executable, "-m", "tests.faults", named, str(folder), str(number)]
        assert subprocess.run(child, cwd=ROOT, check=False).returncode == 137
        assert content(f"sqlite:///{folder / 'helios.db'}") in (before, after, {}), faults.seen[number - 1]
        scenario.act(f"sqlite:///{folder / 'helios.db'}")
        assert content(f"sqlite:///{folder / 'helios.db'}") == after
