"""Keys of texts and of clusters.

Texts with few distinct values, such as user names, are stored once and referred to by number.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
import sqlalchemy as sa

from helios.errors import NoSuchCluster
from helios.model import TIME
from helios.warehouse.bulk import Bulk
from helios.warehouse.schema import clusters, jobs, names

T = TypeVar("T")

# Texts in one statement: a few MB of parameters.
CHUNK = 20_000


class StringTable:
    """Numbers for texts and texts for numbers, within one transaction.

    Parameters
    ----------
    connection : Connection
        The transaction. If it is rolled back, the numbers of new texts are lost with it.
    bulk : Bulk
        Transport to the same database.
    """

    def __init__(self, connection: sa.Connection, bulk: Bulk) -> None:
        self._connection = connection
        self._bulk = bulk
        self._numbers: dict[str, int] = {}

    def numbers(self, texts: Sequence[str]) -> list[int]:
        """Return the number of each text, new or known."""
        unknown = list(dict.fromkeys(text for text in texts if text not in self._numbers))
        for chunk in _chunks(unknown):
            self._add(dict(zip(map(_digest, chunk), chunk, strict=True)))
        return [self._numbers[text] for text in texts]

    def texts(self, numbers: Sequence[int]) -> dict[int, str]:
        """Return the text of each number."""
        found: dict[int, str] = {}
        for chunk in _chunks(list(numbers)):
            wanted = sa.cast(self._bulk.elements(json.dumps(chunk)), sa.BigInteger)
            rows = self._connection.execute(
                sa.select(names.c.name_id, names.c.text).where(names.c.name_id.in_(sa.select(wanted)))
            )
            found.update((int(number), str(text)) for number, text in rows)
        return found

    def _add(self, by_digest: dict[str, str]) -> None:
        digests = list(by_digest)
        self._bulk.insert(self._connection, names, pa.table({"digest": digests, "text": list(by_digest.values())}))
        wanted = self._bulk.elements(json.dumps(digests))
        query = sa.select(names.c.digest, names.c.name_id).where(names.c.digest.in_(sa.select(wanted)))
        self._numbers.update((by_digest[digest], number) for digest, number in self._connection.execute(query))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _chunks(values: list[T]) -> Iterator[list[T]]:
    for start in range(0, len(values), CHUNK):
        yield values[start : start + CHUNK]


# Clusters, by their name.

CLUSTERS = {
    "name": "str",
    "timezone": "object",
    "jobs": "int64",
    "gpu_jobs": "int64",
    "first_submitted_at": TIME,
    "last_submitted_at": TIME,
}


def find_cluster_id(connection: sa.Connection, name: str) -> int:
    """Return the number of a known cluster.

    Raises
    ------
    NoSuchCluster
        There is none of that name; the hint names those that exist.
    """
    found = connection.execute(sa.select(clusters.c.cluster_id).where(clusters.c.name == name)).scalar_one_or_none()
    if found is None:
        known = connection.execute(sa.select(clusters.c.name).order_by(clusters.c.name)).scalars().all()
        hint = f"Loaded are: {', '.join(known)}" if known else "Load some history first: helios trace load FILE"
        raise NoSuchCluster(f"No cluster {name!r} is in the warehouse.", hint=hint)
    return int(found)


def cluster_id_for_loading(connection: sa.Connection, *, name: str, timezone: str | None = None) -> int:
    """Return the number of a cluster, new or known.

    ``timezone`` is stored if none was known before.
    """
    found = connection.execute(sa.select(clusters).where(clusters.c.name == name)).one_or_none()
    if found is None:
        made = connection.execute(sa.insert(clusters).values(name=name, timezone=timezone))
        assert made.inserted_primary_key is not None
        return int(made.inserted_primary_key[0])
    if found.timezone is None and timezone is not None:
        connection.execute(sa.update(clusters).where(clusters.c.name == name).values(timezone=timezone))
    return int(found.cluster_id)


def cluster_timezone(connection: sa.Connection, name: str) -> str | None:
    """Return the time zone of a cluster.

    None if the cluster or its zone is not known.
    """
    return connection.execute(sa.select(clusters.c.timezone).where(clusters.c.name == name)).scalar_one_or_none()


def known_clusters(*, counts: bool) -> sa.Select[tuple[object, ...]]:
    """Return the query of all clusters and the span of their history.

    The columns are those of ``CLUSTERS``. The span comes from an index, whereas ``counts`` of jobs read every job.
    """
    sizes = {"jobs": sa.func.count(), "gpu_jobs": sa.func.count(sa.case((jobs.c.gpus > 0, 1)))} if counts else {}
    submitted_at = jobs.c.submitted_at
    ends = {"first_submitted_at": sa.func.min(submitted_at), "last_submitted_at": sa.func.max(submitted_at)}
    of_cluster = jobs.c.cluster_id == clusters.c.cluster_id
    columns = (
        sa.select(value).select_from(jobs).where(of_cluster).scalar_subquery().label(name)
        for name, value in (sizes | ends).items()
    )
    return sa.select(clusters.c.name, clusters.c.timezone, *columns).order_by(clusters.c.name)
