"""Migrations on both databases, with rows in the tables that they change."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, make_url, text

from helios.app.controllers import grant_roles
from helios.config import Settings
from helios.errors import HeliosError, SchemaOutdated
from helios.model import CYCLES, ModelRecord
from helios.ports import Domain
from helios.warehouse import Warehouse, migrate
from helios.warehouse.columns import stored_time
from helios.warehouse.engine import engine_for
from tests.builders import a_batch, a_job
from tests.postgres import fresh_database

VERSIONS = Path(__file__).parents[2] / "db" / "migrations" / "versions"
NOON = datetime(2020, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
AT = stored_time(NOON)
CLUSTER = {"cluster_id": 1, "name": "venus", "timezone": "UTC"}
LEASE = {"cluster_id": 1, "token": 3, "holder": "me", "expires_at": AT}
APPLIED = {"cluster_id": 1, "service": "qssf", "mode": "active", "after": "a", "written_at": AT}
CYCLE = {"cluster_id": 1, "taken_at": AT, "seconds": 0.5, "pending": 4, "running": 3, "acted": 2, "counts": "{}"}
DECISION = {"cluster_id": 1, "decided_at": AT, "service": "helios", "mode": "active", "target": "t", "reason": "r"}
OF_0005: dict[str, list[dict[str, Any]]] = {
    "clusters": [CLUSTER],
    "leases": [LEASE | {"office": "jobs"}, LEASE | {"office": "nodes", "token": 8}],
    "standings": [
        APPLIED | {"lever": "order", "job_id": job, "submitted_at": AT, "value": 0.5, "admins": admins}
        for job, admins in (("7", 0), ("8", 1))
    ],
    "node_standings": [APPLIED | {"lever": "power", "node": "n1", "value": "asleep", "own": "o", "admins": 1}],
    "turns": [CYCLE | {"gpus_pending": 9, "gpus_running": 8, "still": still} for still in (None, "paused")],
    "memories": [{"cluster_id": 1, "name": name, "text": name, "written_at": AT} for name in ("nodes", "turn")],
    "decisions": [DECISION | {"action": action} for action in ("Turn", "Restore", "RestoreNodes", "Reorder")],
}


def revisions_after(revision: str = "") -> list[str]:
    """Return the later revisions by the names of their files."""
    names = sorted(path.name.partition("_")[0] for path in VERSIONS.glob("0*.py"))
    return [name for name in names if name > revision]


def move(database: str, way: str, revision: str) -> None:
    """Run migrations up or down to a revision, which the warehouse itself never does."""
    scripts = ScriptDirectory(migrate.migrations_folder())
    steps = {"up": scripts._upgrade_revs, "down": scripts._downgrade_revs}[way]
    with engine_for(database).begin() as connection:
        options: Any = {"fn": lambda found, _context: steps(revision, found)}
        context = MigrationContext.configure(connection, opts=options)
        with Operations.context(context):
            context.run_migrations()


def fill(database: str, rows_of: dict[str, list[dict[str, Any]]]) -> None:
    """Insert rows by table."""
    with engine_for(database).begin() as connection:
        for table, rows in rows_of.items():
            for row in rows:
                values = ", ".join(f":{name}" for name in row)
                columns = ", ".join(f'"{name}"' for name in row)
                connection.execute(text(f"INSERT INTO {table} ({columns}) VALUES ({values})"), row)


def stored(database: str, table: str, like: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a table with the columns of ``like``, in its order where they are the same."""
    query = text("SELECT {} FROM {}".format(", ".join(f'"{name}"' for name in like[0]), table))
    with engine_for(database).connect() as connection:
        rows = [dict(row._mapping) for row in connection.execute(query)]
    return sorted(rows, key=lambda row: like.index(row) if row in like else -1)


def read(warehouse: Warehouse) -> dict[str, Any]:
    """Return what the warehouse reads of the rows of revision 0005."""
    jobs, nodes = (warehouse.ledger("venus", domain).applied_changes() for domain in Domain)
    leases = {domain: warehouse.lease("venus", domain=domain) or {} for domain in Domain}
    cycles = CYCLES.check(warehouse.cycles("venus"))
    return {
        "tokens": [leases[domain]["token"] for domain in Domain],
        "jobs": jobs[["setting", "job_id", "value", "overridden"]].to_numpy().tolist(),
        "nodes": nodes[["setting", "node", "value", "own", "overridden"]].to_numpy().tolist(),
        "cycles": [(row.taken_at, row.pending, row.suspended) for row in cycles.fillna({"suspended": ""}).itertuples()],
        "memories": [warehouse.remembered("venus", name) for name in ("cycle", "nodes", "turn")],
        "actions": sorted(warehouse.decisions("venus")["action"]),
    }


NEW_NAMES = {
    "tokens": [3, 8],
    "jobs": [["order", "7", 0.5, 0], ["order", "8", 0.5, 1]],
    "nodes": [["power", "n1", "asleep", "o", 1]],
    "cycles": [(NOON, 4, ""), (NOON, 4, "paused")],
    "memories": ["turn", "nodes", None],
    "actions": ["Cycle", "Reorder", "Revert", "RevertNodes"],
}


def test_an_upgrade_brings_new_names_and_a_downgrade_the_old(database: str) -> None:
    move(database, "up", "0005")
    fill(database, OF_0005)
    with Warehouse.open(database, create=False) as warehouse:
        assert warehouse.upgrade() == revisions_after("0005")
        assert read(warehouse) == NEW_NAMES
    move(database, "down", "0005")
    assert {table: stored(database, table, rows) for table, rows in OF_0005.items()} == OF_0005
    move(database, "up", migrate.HEAD)
    with Warehouse.open(database) as warehouse:
        assert read(warehouse) == NEW_NAMES
        warehouse.add_cycles("venus", CYCLES.conform(warehouse.cycles("venus").tail(1)))  # numbered after the others
        assert len(warehouse.cycles("venus")) == 3


STATE = '{"asked_at": {"packing": "2020"}, "cycle": "{\\"said\\": {\\"packing\\": [], \\"repacking\\": []}}"}'
OF_0006: dict[str, list[dict[str, Any]]] = {
    "clusters": [CLUSTER],
    "modes": [
        {"mode_id": number, "cluster_id": 1, "service": service, "mode": "active", "set_at": AT}
        | {"set_by": "me", "reason": f"a trial of {service}"}
        for number, service in enumerate(("packing", "ces"), start=1)
    ],
    "decisions": [DECISION | {"action": "FillFirst", "service": service} for service in ("packing", "qssf")],
    "applied_changes": [
        APPLIED
        | {"service": service, "setting": "order", "job_id": "7", "submitted_at": AT, "value": 0.5, "overridden": 0}
        for service in ("packing",)
    ],
    "applied_node_changes": [
        APPLIED
        | {"service": service, "setting": "weight", "node": service, "value": "tier 1", "own": "1", "overridden": 0}
        for service in ("packing", "ces")
    ],
    "cycles": [CYCLE | {"gpus_pending": 9, "gpus_running": 8, "counts": '{"qssf": {}, "packing": {"done": 2}}'}],
    "memories": [{"cluster_id": 1, "name": "nodes", "text": STATE, "written_at": AT}],
}


def with_new_name(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows as migration 0007 leaves them: names are renamed, words in texts for a person are not."""

    def renamed(column: str, value: Any) -> Any:
        if column == "service" and value == "packing":
            return "node_fill_order"
        if column not in {"counts", "text"}:
            return value
        return value.replace('"packing"', '"node_fill_order"').replace('\\"packing\\"', '\\"node_fill_order\\"')

    return [{column: renamed(column, value) for column, value in row.items()} for row in rows]


def test_packing_becomes_node_fill_order_everywhere_and_back_again(database: str) -> None:
    move(database, "up", "0006")
    fill(database, OF_0006)
    renamed = {table: with_new_name(rows) for table, rows in OF_0006.items()}
    assert renamed["memories"][0]["text"].count("node_fill_order") == 2
    move(database, "up", migrate.HEAD)
    assert {table: stored(database, table, rows) for table, rows in renamed.items()} == renamed
    with Warehouse.open(database) as warehouse:
        assert set(warehouse.modes("venus")["service"]) == {"node_fill_order", "ces"}
    move(database, "down", "0006")
    assert {table: stored(database, table, rows) for table, rows in OF_0006.items()} == OF_0006


def test_no_constraint_index_or_sequence_keeps_an_old_name(database: str) -> None:
    move(database, "up", migrate.HEAD)
    names = [index["name"] for index in inspect(engine_for(database)).get_indexes("cycles")]
    assert names == ["ix_cycles_cluster_id_taken_at"]
    if make_url(database).get_backend_name() == "postgresql":  # on SQLite they have none, or cannot be renamed
        with engine_for(database).connect() as connection:
            query = "SELECT conname FROM pg_constraint UNION SELECT relname FROM pg_class"
            found = {str(name) for (name,) in connection.execute(text(query))}
        assert {"pk_cycles", "fk_applied_changes_cluster_id_clusters", "cycles_cycle_id_seq"} <= found
        old = {name for name in found if "standings" in name or "turn" in name}
        assert not {name for name in old if not name.endswith("_not_null")}  # which PostgreSQL 18 names by itself


@pytest.fixture
def roles(postgres: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Return the URL of a filled database at revision 0005, and the names of three roles that may not do anything."""
    names = {name: f"helios_{name}_{uuid4().hex[:8]}" for name in ("jobs", "nodes", "reader")}
    with fresh_database(postgres) as owner:
        move(owner, "up", migrate.HEAD)
        with engine_for(owner).begin() as connection:
            for role in names.values():
                connection.execute(text(f"CREATE ROLE {role} LOGIN"))
        yield owner, names
        with engine_for(owner).begin() as connection:
            for role in names.values():
                connection.execute(text(f"DROP OWNED BY {role}"))
                connection.execute(text(f"DROP ROLE {role}"))


def rights(database: str) -> list[tuple[Any, ...]]:
    """Return who may do what with which table, and the rows that row-level security leaves."""
    granted = "SELECT relname::text, relacl::text FROM pg_class WHERE relnamespace = 'public'::regnamespace"
    policies = "SELECT tablename || policyname, coalesce(qual, '') || coalesce(with_check, '') FROM pg_policies"
    with engine_for(database).connect() as connection:
        return sorted((str(name), str(acl)) for name, acl in connection.execute(text(f"{granted} UNION {policies}")))


def test_grants_and_policies_survive_the_new_names(roles: tuple[str, dict[str, str]]) -> None:
    owner, names = roles
    grant_roles(Settings.model_validate({"database": {"url": owner}}), **names)
    granted = rights(owner)
    assert any("domain" in rows for _, rows in granted)
    move(owner, "down", "0005")
    before = dict(rights(owner))
    assert any("'packing'" in rows for rows in before.values())
    assert not any("node_fill_order" in rows for rows in before.values())
    assert before["standings"] == dict(granted)["applied_changes"]
    assert any("office" in rows for rows in before.values())
    fill(owner, OF_0005)
    move(owner, "up", migrate.HEAD)
    assert rights(owner) == granted
    with Warehouse.open(make_url(owner).set(username=names["jobs"]).render_as_string(hide_password=False)) as warehouse:
        assert read(warehouse) == NEW_NAMES
        token = warehouse.ledger("venus").acquire(holder="me", now=NOON, lasts=MINUTE)
        assert token == 3
        warehouse.remember("venus", "cycle", "{}", at=NOON)
        warehouse.add_cycles("venus", CYCLES.conform(warehouse.cycles("venus").tail(1)))
        with pytest.raises(Exception, match=r"row-level security|permission denied"):
            warehouse.ledger("venus", Domain.NODES).acquire(holder="you", now=NOON, lasts=MINUTE)


def test_an_older_schema_is_refused_and_the_upgrade_keeps_what_is_there(database: str) -> None:
    with Warehouse.open(database) as first:
        first.load([a_batch(a_job())], cluster="venus", path="p", sha256="1", format="sacct", timezone="UTC")
    move(database, "down", "0001")
    with pytest.raises(SchemaOutdated, match="helios db upgrade"):
        Warehouse.open(database)
    with Warehouse.open(database, create=False) as older:
        assert older.upgrade() == revisions_after("0001")
    with Warehouse.open(database) as newer:
        assert len(newer.jobs("venus")) == 1
        assert newer.cycles("venus").empty


def test_models_survive_the_way_to_manifests_and_back(database: str) -> None:
    record = ModelRecord(
        model_id="m1",
        cluster="venus",
        trained_at=NOON,
        trained_until=NOON - MINUTE,
        jobs=7,
        features=("user_mean_s", "gpus"),
        scores={"spearman": 0.5},
        artifact="tree\n{'é'}",
    )
    with Warehouse.open(database) as warehouse:
        warehouse.add_model(record)
    move(database, "down", "0003")
    move(database, "up", migrate.HEAD)
    with Warehouse.open(database) as warehouse:
        assert warehouse.model("venus") == record
        assert warehouse.promotions("venus").empty


def test_the_lease_of_the_jobs_survives_the_way_to_domains_and_back(database: str) -> None:
    with Warehouse.open(database) as warehouse:
        token = warehouse.ledger("venus").acquire(holder="a", now=NOON, lasts=MINUTE)
        warehouse.ledger("venus", Domain.NODES).acquire(holder="b", now=NOON, lasts=MINUTE)
        before = warehouse.lease("venus")
    move(database, "down", "0002")
    with engine_for(database).connect() as connection:
        assert connection.execute(text("SELECT token, holder FROM leases")).all() == [(token, "a")]
    move(database, "up", migrate.HEAD)
    with Warehouse.open(database) as warehouse:
        assert warehouse.lease("venus") == before
        assert warehouse.lease("venus", domain=Domain.NODES) is None


def test_runs_stored_by_an_older_schema_are_continued_by_later_readings(database: str) -> None:
    ended = {"started_at": NOON, "ended_at": NOON + MINUTE, "run_time_s": 60.0, "state": "PREEMPTED"}
    later = NOON + 2 * MINUTE
    with Warehouse.open(database) as first:
        batch = a_batch(a_job(job_id="7", submitted_at=NOON, eligible_at=NOON, **ended))
        first.load([batch], cluster="venus", path="p", sha256="1", format="sacct", timezone="UTC")
    move(database, "down", "0010")
    with Warehouse.open(database, create=False) as older:
        assert older.upgrade() == revisions_after("0010")
        again = a_job(job_id="7", submitted_at=later, eligible_at=later, started_at=later, ended_at=later + MINUTE)
        older.load([a_batch(again)], cluster="venus", path="p", sha256="2", format="sacct", timezone="UTC")
        assert older.jobs("venus")["restart"].tolist() == [0, 1]


def stored_gpus(database: str) -> list[Any]:
    """Return the GPUs of the stored jobs, by job, as SQL by hand sees them."""
    with engine_for(database).connect() as connection:
        return [row[0] for row in connection.execute(text("SELECT gpus FROM jobs_readable ORDER BY job_id"))]


OLD_RUN = {
    **dict.fromkeys(("pool", "user", "program", "family", "device_kind", "device_model", "outcome"), "x"),
    **{
        "number": 0,
        "attempt": 1,
        "parameters": "{}",
        "speeds": "[]",
        "metrics": "{}",
        "started_at": AT,
        "seconds": 1.0,
    },
}


def test_runs_of_trials_stored_without_curves_have_empty_ones(database: str) -> None:
    move(database, "up", "0013")
    fill(database, {"trial_runs": [OLD_RUN]})
    with Warehouse.open(database, create=False) as warehouse:
        assert warehouse.upgrade() == revisions_after("0013")
        (run,) = warehouse.trial_runs(user="x")
        assert (run.seconds, run.metric, run.direction, run.curve) == (1.0, "", "", ())
    move(database, "down", "0013")
    assert stored(database, "trial_runs", [OLD_RUN]) == [OLD_RUN]


@pytest.fixture
def parts(database: str) -> str:
    """Return a database with a job of two GPUs, one of a quarter, one of unknown GPUs and one of none."""
    jobs = [a_job(job_id=str(number), gpus=gpus) for number, gpus in enumerate((2.0, 0.25, math.nan, 0.0))]
    with Warehouse.open(database) as warehouse:
        warehouse.load([a_batch(*jobs)], cluster="venus", path="p", sha256="1", format="sacct", timezone="UTC")
    return database


def test_parts_of_a_gpu_and_unknown_ones_are_read_as_stored(parts: str) -> None:
    with Warehouse.open(parts) as warehouse:
        assert warehouse.jobs("venus")["gpus"].tolist()[:2] == [2.0, 0.25]
        assert warehouse.jobs("venus")["gpus"].isna().tolist() == [False, False, True, False]
    assert stored_gpus(parts) == [2.0, 0.25, None, 0.0]


def test_a_downgrade_stores_whole_gpus_and_none_for_unknown(parts: str) -> None:
    move(parts, "down", "0011")
    assert stored_gpus(parts) == [2, 1, 0, 0]
    columns = {column["name"]: column for column in inspect(engine_for(parts)).get_columns("jobs")}
    assert (str(columns["gpus"]["type"]), columns["gpus"]["nullable"]) == ("INTEGER", False)


def test_jobs_of_an_older_schema_take_parts_of_a_gpu(parts: str) -> None:
    move(parts, "down", "0011")
    with Warehouse.open(parts, create=False) as warehouse:
        assert warehouse.upgrade() == revisions_after("0011")
        later = a_batch(a_job(job_id="1", gpus=0.5), a_job(job_id="8", gpus=math.nan))
        warehouse.load([later], cluster="venus", path="p", sha256="2", format="sacct", timezone="UTC")
    assert stored_gpus(parts) == [2.0, 0.5, 0.0, 0.0, None]


def test_a_table_of_jobs_changed_by_hand_is_not_upgraded(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'helios.db'}"
    move(database, "up", "0011")
    with engine_for(database).begin() as connection:
        connection.execute(text("ALTER TABLE jobs RENAME COLUMN gpus TO devices"))
    with Warehouse.open(database, create=False) as warehouse, pytest.raises(HeliosError, match="changed by hand"):
        warehouse.upgrade()
    assert migrate.revision(engine_for(database)) == "0011"
