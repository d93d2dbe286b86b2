"""Words of a job's name, without what varies from run to run."""

from __future__ import annotations

import re
from functools import lru_cache

LONGEST_NAME = 128
"""Letters of a name that are read. Time grows with their square, and a user may submit any name."""

# Ids of a run: UUIDs, and long hexadecimal numbers with at least one digit, so that words are kept.
_RUN_ID = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<![a-z0-9])(?=[a-f]*[0-9])[0-9a-f]{7,}(?![a-z0-9])"
)
_MAY_HOLD_RUN_ID = re.compile(r"[0-9a-f]{7}")  # checked first, since most names have none and it is ten times as fast
_NO_WORD = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?|[\W_])+")
_EXTENSION = re.compile(r"\.[a-z]{1,6}$")


@lru_cache(maxsize=65_536)
def split_words(name: str) -> str:
    """Return the words of a job's name in lower case, in order.

    Path, extension, numbers and ids are removed. Empty where nothing is left, because a hash or a number shows no
    relation.
    """
    file = _EXTENSION.sub("", name[-LONGEST_NAME:].lower().rstrip("/").rpartition("/")[2])
    if _MAY_HOLD_RUN_ID.search(file):
        file = _RUN_ID.sub(" ", file)
    return _NO_WORD.sub(" ", file).strip()
