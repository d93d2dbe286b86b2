"""Few-valued text, kept once and referred to by number."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
from sqlalchemy import BigInteger, Connection, cast, select

from helios.warehouse.bulk import Bulk
from helios.warehouse.schema import names

T = TypeVar("T")

# Texts named in one statement: a few MB of parameters.
CHUNK = 20_000


class NameBook:
    """Numbers for texts and texts for numbers, within one transaction.

    Parameters
    ----------
    connection : Connection
        The transaction; a number that it gave to a new text is gone if it is undone.
    bulk : Bulk
        Transport to the same database.
    """

    def __init__(self, connection: Connection, bulk: Bulk) -> None:
        self._connection = connection
        self._bulk = bulk
        self._numbers: dict[str, int] = {}

    def numbers(self, texts: Sequence[str]) -> list[int]:
        """Return the number of each text, giving one to a text that has none."""
        unknown = list(dict.fromkeys(text for text in texts if text not in self._numbers))
        for chunk in _chunks(unknown):
            self._learn(dict(zip(map(_digest, chunk), chunk, strict=True)))
        return [self._numbers[text] for text in texts]

    def texts(self, numbers: Sequence[int]) -> dict[int, str]:
        """Return the text of each number."""
        found: dict[int, str] = {}
        for chunk in _chunks(list(numbers)):
            wanted = cast(self._bulk.elements(json.dumps(chunk)), BigInteger)
            rows = self._connection.execute(
                select(names.c.name_id, names.c.text).where(names.c.name_id.in_(select(wanted)))
            )
            found.update((int(number), str(text)) for number, text in rows)
        return found

    def _learn(self, by_digest: dict[str, str]) -> None:
        digests = list(by_digest)
        self._bulk.insert(self._connection, names, pa.table({"digest": digests, "text": list(by_digest.values())}))
        wanted = self._bulk.elements(json.dumps(digests))
        query = select(names.c.digest, names.c.name_id).where(names.c.digest.in_(select(wanted)))
        self._numbers.update((by_digest[digest], number) for digest, number in self._connection.execute(query))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _chunks(values: list[T]) -> Iterator[list[T]]:
    for start in range(0, len(values), CHUNK):
        yield values[start : start + CHUNK]
