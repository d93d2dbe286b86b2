"""Names, numbers and time zones of the stored clusters."""

from __future__ import annotations

import sqlalchemy as sa

from helios.errors import NoSuchCluster
from helios.private_files import require_cluster_name
from helios.warehouse.schema import clusters, jobs


def find_cluster_id(connection: sa.Connection, name: str) -> int:
    """Return the number of a known cluster.

    Raises
    ------
    NoSuchCluster
        There is none of that name; the hint names those that exist.
    """
    query = sa.select(clusters.c.cluster_id).where(clusters.c.name == name)
    cluster_id = connection.execute(query).scalar_one_or_none()
    if cluster_id is None:
        known = connection.execute(sa.select(clusters.c.name).order_by(clusters.c.name)).scalars().all()
        hint = f"Loaded are: {', '.join(known)}" if known else "Load some history first: helios trace load FILE"
        raise NoSuchCluster(f"No cluster {name!r} is in the warehouse.", hint=hint)
    return int(cluster_id)


def cluster_id_for_loading(connection: sa.Connection, *, name: str, timezone: str | None = None) -> int:
    """Return the number of a cluster, which is made if it is new.

    ``timezone`` is stored if none was known before.

    Raises
    ------
    UsageError
        It would be new, and its name is none, such as a path.
    """
    row = connection.execute(sa.select(clusters).where(clusters.c.name == name)).one_or_none()
    if row is None:
        new = {"name": require_cluster_name(name), "timezone": timezone}
        result = connection.execute(sa.insert(clusters).values(**new))
        assert result.inserted_primary_key is not None
        return int(result.inserted_primary_key[0])
    if row.timezone is None and timezone is not None:
        connection.execute(sa.update(clusters).where(clusters.c.name == name).values(timezone=timezone))
    return int(row.cluster_id)


def cluster_timezone(connection: sa.Connection, name: str) -> str | None:
    """Return the time zone of a cluster, None if either is unknown."""
    return connection.execute(sa.select(clusters.c.timezone).where(clusters.c.name == name)).scalar_one_or_none()


def known_clusters() -> sa.Select[tuple[object, ...]]:
    """Return the query of all clusters and the spans of their histories."""
    submitted_at = jobs.c.submitted_at
    span = {"first_submitted_at": sa.func.min(submitted_at), "last_submitted_at": sa.func.max(submitted_at)}
    in_cluster = jobs.c.cluster_id == clusters.c.cluster_id
    columns = (
        sa.select(value).select_from(jobs).where(in_cluster).scalar_subquery().label(name)
        for name, value in span.items()
    )
    return sa.select(clusters.c.name, clusters.c.timezone, *columns).order_by(clusters.c.name)
