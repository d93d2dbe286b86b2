"""Least rights on a real PostgreSQL: what a daemon's role can do, and what it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pandas as pd
import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import DatabaseError

from helios.app.controllers import grant_roles
from helios.config import Settings
from helios.errors import LeaseLost, UsageError
from helios.model import APPLIED_CHANGES, APPLIED_NODE_CHANGES, DECISIONS, MODES, NODE_TALLIES, FrameKind
from helios.ports import Domain
from helios.warehouse import Horizon, Warehouse
from helios.warehouse.engine import engine_for
from tests.builders import a_batch, a_job
from tests.postgres import fresh_database

NOW = datetime.now(UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def granted(postgres: str) -> Iterator[dict[str, str]]:
    """URLs of one database for the owner, and for each role as ``helios db grant`` left it."""
    roles = {name: f"helios_{name}_{uuid4().hex[:8]}" for name in ("jobs", "nodes", "reader")}
    with fresh_database(postgres) as owner:
        with engine_for(owner).begin() as connection:
            for role in roles.values():
                connection.execute(text(f"CREATE ROLE {role} LOGIN"))
        with Warehouse.open(owner) as warehouse:
            warehouse.load([a_batch(a_job())], cluster="venus", path="p", sha256="1", format="sacct", timezone="UTC")
        settings = Settings.model_validate({"database": {"url": owner}})
        grant_roles(settings, **roles)
        grant_roles(settings, **roles)  # as after an upgrade
        yield {"owner": owner} | {
            name: make_url(owner).set(username=role).render_as_string(hide_password=False)
            for name, role in roles.items()
        }
        with engine_for(owner).begin() as connection:
            for role in roles.values():
                connection.execute(text(f"DROP OWNED BY {role}"))
                connection.execute(text(f"DROP ROLE {role}"))


def rows(kind: FrameKind, **values: object) -> pd.DataFrame:
    return kind.conform(pd.DataFrame([values]))


def a_mode(service: str) -> pd.DataFrame:
    return rows(MODES, service=service, mode="active", set_at=NOW, set_by="me", reason="because")


def decided(service: str, *, at: datetime = NOW) -> pd.DataFrame:
    texts = {"mode": "active", "action": "Cycle", "target": "venus", "reason": "because", "outcome": "meant"}
    return rows(DECISIONS, decided_at=at, service=service, **texts)


def applied(kind: FrameKind) -> pd.DataFrame:
    one = {"setting": "power", "service": "s", "mode": "active", "written_at": NOW, "overridden": 0}
    of_job = {"job_id": "1", "submitted_at": NOW, "value": 1.0}
    return rows(kind, **(one | (of_job if kind is APPLIED_CHANGES else {"node": "n1", "value": "asleep"})))


def refused(url: str, act: str) -> bool:
    """Return whether PostgreSQL refuses a role one of the things that its daemon would do for a domain."""
    with Warehouse.open(url) as warehouse:
        acts = {
            "lease of jobs": lambda: warehouse.ledger("venus").acquire(holder="me", now=NOW, lasts=MINUTE),
            "lease of nodes": lambda: warehouse.ledger("venus", Domain.NODES).acquire(
                holder="me", now=NOW, lasts=MINUTE
            ),
            "memory of jobs": lambda: warehouse.remember("venus", "cycle", "{}", at=NOW),
            "memory of nodes": lambda: warehouse.remember("venus", "nodes", "{}", at=NOW),
            "pause": lambda: warehouse.remember("venus", "paused", "{}", at=NOW),
            "mode of qssf": lambda: warehouse.add_modes("venus", a_mode("qssf")),
            "mode of ces": lambda: warehouse.add_modes("venus", a_mode("ces")),
            "decision of qssf": lambda: warehouse.add_decisions("venus", decided("qssf")),
            "decision of ces": lambda: warehouse.add_decisions("venus", decided("ces")),
            "history": lambda: warehouse.load(
                [a_batch(a_job(job_id="2"))], cluster="venus", path="p", sha256=url, format="sacct", timezone="UTC"
            ),
            "tallies": lambda: warehouse.add_node_tallies("venus", NODE_TALLIES.empty()),
            "upgrade": lambda: engine_for(url).connect().exec_driver_sql("CREATE TABLE more (number INTEGER)"),
        }
        try:
            acts[act]()
        except Exception as refusal:
            assert "permission denied" in str(refusal) or "row-level security" in str(refusal), refusal
            return True
    return False


OF_JOBS = ("lease of jobs", "memory of jobs", "mode of qssf", "decision of qssf", "history")
OF_NODES = ("lease of nodes", "memory of nodes", "mode of ces", "decision of ces")


@pytest.mark.parametrize("act", [*OF_JOBS, *OF_NODES, "pause", "upgrade"])
def test_each_role_does_the_business_of_its_domain_and_not_the_others(granted: dict[str, str], act: str) -> None:
    with Warehouse.open(granted["owner"]) as warehouse:  # rows of both domains are there
        for domain in Domain:
            warehouse.ledger("venus", domain).acquire(holder="me", now=NOW, lasts=MINUTE)
        for name in ("cycle", "nodes", "paused"):
            warehouse.remember("venus", name, "{}", at=NOW)
    may = {"jobs": act in {*OF_JOBS, "pause"}, "nodes": act in {*OF_NODES, "pause"}, "reader": False}
    assert {role: not refused(granted[role], act) for role in may} == may


@pytest.mark.parametrize(("role", "domain"), [("jobs", Domain.NODES), ("nodes", Domain.JOBS)])
def test_state_of_a_domain_is_written_by_its_own_role_alone(granted: dict[str, str], role: str, domain: Domain) -> None:
    kinds = {Domain.JOBS: APPLIED_CHANGES, Domain.NODES: APPLIED_NODE_CHANGES}
    own = Domain.JOBS if role == "jobs" else Domain.NODES
    with Warehouse.open(granted["owner"]) as warehouse:
        tokens = {each: warehouse.ledger("venus", each).acquire(holder="me", now=NOW, lasts=MINUTE) for each in Domain}
    with Warehouse.open(granted[role]) as warehouse:

        def write(each: Domain) -> None:
            warehouse.ledger("venus", each).record(
                token=tokens[each] or 0, decisions=DECISIONS.empty(), applied_changes=applied(kinds[each])
            )

        write(own)
        assert len(warehouse.ledger("venus", own).applied_changes()) == 1
        with pytest.raises(LeaseLost):  # of the other's lease it sees what it may write: nothing
            write(domain)
    other = "applied_changes" if domain is Domain.JOBS else "applied_node_changes"
    with engine_for(granted[role]).connect() as connection, pytest.raises(DatabaseError, match="permission denied"):
        connection.exec_driver_sql(f"DELETE FROM {other}")


def test_no_daemon_deletes_what_the_audit_says_of_the_last_week(granted: dict[str, str]) -> None:
    with Warehouse.open(granted["owner"]) as warehouse:
        for days in (0, 6, 500):
            warehouse.add_decisions("venus", decided("qssf", at=NOW - timedelta(days=days)))
    everything = dict.fromkeys(("audit", "shadow", "cycles", "predictions", "readings"), NOW + MINUTE)
    with Warehouse.open(granted["jobs"]) as warehouse:
        assert warehouse.forget("venus", Horizon(**everything))["decisions"] == 1
        assert len(warehouse.decisions("venus")) == 2


def test_who_only_reads_reads_all(granted: dict[str, str]) -> None:
    with Warehouse.open(granted["reader"]) as warehouse:
        assert len(warehouse.jobs("venus")) == 1
        assert warehouse.ledger("venus").applied_changes().empty


def test_a_role_that_nothing_holds_back_is_refused(granted: dict[str, str]) -> None:
    settings = Settings.model_validate({"database": {"url": granted["owner"]}})
    with pytest.raises(UsageError, match="no role"):
        grant_roles(settings, jobs="nobody_of_that_name", nodes=None, reader=None)
    with pytest.raises(UsageError, match="superuser"):
        grant_roles(settings, jobs=str(make_url(granted["owner"]).username), nodes=None, reader=None)


def test_on_sqlite_there_are_no_roles_and_it_says_what_there_is(tmp_path: Path) -> None:
    settings = Settings.model_validate({"database": {"url": f"sqlite:///{tmp_path / 'helios.db'}"}})
    with pytest.raises(UsageError, match="no roles") as refusal:
        grant_roles(settings, jobs="a", nodes="b", reader=None)
    assert "file of its own" in refusal.value.hint
