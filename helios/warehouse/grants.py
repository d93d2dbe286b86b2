"""PostgreSQL roles with least privileges for the two daemons and for readers.

Whoever may write the tables that control node power (the applied node changes, the nodes' lease, the modes of their
services, their controller's stored state) is in effect an administrator of Slurm. The jobs' daemon has only an
operator's rights, so its role may not write them, and the nodes' role may not write those of jobs. Tables that both
write are divided by row-level security. The owner of the tables is not bound by it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta

import sqlalchemy as sa

from helios.choices import Domain
from helios.errors import UsageError
from helios.warehouse.engine import writing

YOUNGEST_DELETED = timedelta(days=7)
"""No daemon can delete younger rows of the audit log, whatever its configuration says."""
_OF_JOBS: Mapping[str, str] = {
    "clusters": "INSERT, UPDATE",
    "names": "INSERT",
    "jobs": "INSERT, UPDATE",
    "loads": "INSERT, UPDATE, DELETE",
    "rejects": "INSERT, DELETE",
    "nodes": "INSERT, DELETE",
    "node_events": "INSERT, DELETE",
    "models": "INSERT, DELETE",
    "promotions": "INSERT",
    "predictions": "INSERT, DELETE",
    "decisions": "INSERT, DELETE",
    "leases": "INSERT, UPDATE",
    "applied_changes": "INSERT, DELETE",
    "memories": "INSERT, DELETE",
    "modes": "INSERT",
    "cycles": "INSERT, DELETE",
    "coverage": "INSERT, DELETE",
}
_OF_NODES: Mapping[str, str] = {
    "clusters": "INSERT",
    "decisions": "INSERT",
    "leases": "INSERT, UPDATE",
    "applied_node_changes": "INSERT, DELETE",
    "node_tallies": "INSERT, DELETE",
    "memories": "INSERT, DELETE",
    "modes": "INSERT",
}


def grant(
    engine: sa.Engine,
    *,
    jobs: str,
    nodes: str | None,
    reader: str | None,
    node_services: Collection[str],
    node_memories: Collection[str],
    common_memories: Collection[str],
) -> None:
    """Give each role exactly the privileges that its daemon needs.

    Earlier privileges are revoked. All happens in one transaction.

    Parameters
    ----------
    engine : Engine
        A PostgreSQL database, connected as the owner of the tables.
    jobs, nodes, reader : str
        Existing roles. With ``nodes`` or ``reader`` None there is no such role.
    node_services : collection of str
        Services whose modes the nodes' role may set. The jobs' role may set all others.
    node_memories, common_memories : collection of str
        Names of stored texts that only the nodes' role may write, and that both may write. The jobs' role may write all
        others.

    Raises
    ------
    UsageError
        The database is SQLite, a role does not exist or cannot be restricted, or two roles are the same.
    WarehouseUnavailable
        The database refused: the connected user must own the tables.
    """
    if engine.dialect.name != "postgresql":
        raise UsageError(
            "A SQLite file has no roles: whoever may write it may write all of it.",
            hint="Give each domain a file of its own (database.url), or trust one user with both, or use PostgreSQL.",
        )
    roles = [role for role in (jobs, nodes, reader) if role]
    if len(set(roles)) < len(roles):
        raise UsageError(
            "Two daemons or readers were given the same role.",
            hint="Each needs a role of its own. Make one: CREATE ROLE helios_nodes LOGIN",
        )
    of_nodes = f"service IN ({_texts(node_services)})"
    rows = {
        "leases": (f"domain = '{Domain.JOBS}'", f"domain = '{Domain.NODES}'"),
        "modes": (f"NOT ({of_nodes})", of_nodes),
        "memories": (
            f"name NOT IN ({_texts(node_memories)})",
            f"name IN ({_texts([*node_memories, *common_memories])})",
        ),
        "decisions": (f"NOT ({of_nodes})", f"{of_nodes} OR service = 'helios'"),
    }
    with writing(engine, alone=True) as connection:
        for role in roles:
            _refuse_unfit(connection, role)
        for statement in _statements(connection, roles, rows, jobs=jobs, nodes=nodes):
            connection.exec_driver_sql(statement)


def _refuse_unfit(connection: sa.Connection, role: str) -> None:
    found = connection.exec_driver_sql(
        "SELECT rolsuper OR rolbypassrls OR rolname = current_user FROM pg_roles WHERE rolname = %s", (role,)
    ).scalar_one_or_none()
    if found is None:
        raise UsageError(f"There is no role {role!r} in this database.", hint=f"Make it: CREATE ROLE {role} LOGIN")
    if found:
        raise UsageError(
            f"Role {role!r} is a superuser, or the one you are connected as: grants do not limit it.",
            hint="Connect as the owner of the tables, and give the daemons roles of their own.",
        )


def _statements(
    connection: sa.Connection, roles: list[str], rows: Mapping[str, tuple[str, str]], *, jobs: str, nodes: str | None
) -> Iterator[str]:
    """Yield the statements that revoke and grant.

    ``rows`` has, for each table that both daemons write, the conditions of the rows of jobs and of nodes.
    """
    quote = connection.dialect.identifier_preparer.quote
    schema = quote(str(connection.exec_driver_sql("SELECT current_schema()").scalar_one()))
    for role in map(quote, roles):
        yield f"REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM {role}"
        yield f"REVOKE CREATE ON SCHEMA {schema} FROM {role}"
        yield f"GRANT USAGE ON SCHEMA {schema} TO {role}"
        yield f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}"
    for name, rights in ((jobs, _OF_JOBS), (nodes, _OF_NODES)):
        if name:
            yield f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {quote(name)}"
            yield from (f"GRANT {some} ON {schema}.{table} TO {quote(name)}" for table, some in rights.items())
    for table in rows:
        yield f"ALTER TABLE {schema}.{table} ENABLE ROW LEVEL SECURITY"
        for policy in ("helios_read", "helios_jobs", "helios_nodes", "helios_old"):
            yield f"DROP POLICY IF EXISTS {policy} ON {schema}.{table}"
        yield f"CREATE POLICY helios_read ON {schema}.{table} FOR SELECT USING (true)"
    for table, (of_the_jobs, of_the_nodes) in rows.items():
        yield _policy(f"{schema}.{table}", "helios_jobs", quote(jobs), of_the_jobs)
        if nodes:
            yield _policy(f"{schema}.{table}", "helios_nodes", quote(nodes), of_the_nodes)
    age_us = YOUNGEST_DELETED // timedelta(microseconds=1)
    old = f"decided_at < (extract(epoch FROM now()) * 1000000)::bigint - {age_us}"
    yield f"CREATE POLICY helios_old ON {schema}.decisions FOR DELETE TO {quote(jobs)} USING ({old})"


def _policy(table: str, name: str, role: str, rows: str) -> str:
    if table.endswith(".decisions"):  # the audit log is appended to, never changed
        return f"CREATE POLICY {name} ON {table} FOR INSERT TO {role} WITH CHECK ({rows})"
    return f"CREATE POLICY {name} ON {table} FOR ALL TO {role} USING ({rows}) WITH CHECK ({rows})"


def _texts(values: Collection[str]) -> str:
    quoted = ["'" + value.replace("'", "''") + "'" for value in values]
    return ", ".join(quoted) or "''"
