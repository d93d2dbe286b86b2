"""Codes and group numbers that do not change when jobs are added.

For a whole history, :func:`helios.predict.job_table.job_groups` factorizes the columns. In a live prediction, one more
user must not change the numbers of the groups that were learned from.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import compress, repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.predict.causal_stats import LEVELS
from helios.predict.job_table import (
    LEVEL_COLUMNS,
    JobNameFamilies,
    JobTable,
    NameCodes,
    group_members,
    grouping_columns,
)

if TYPE_CHECKING:
    pass

_DIGITS = re.compile(r"\d+")
_CACHED_LISTS = 64
_FEW_NAMES = 50
"""Number of names below which pandas is slower than a loop."""


class Codes:
    """Codes of values, numbered in the order in which values first appear."""

    def __init__(self, known: Mapping[Hashable, int] | None = None) -> None:
        self._known = {} if known is None else known
        self._new: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._known) + len(self._new)

    def overlay(self) -> Codes:
        """Return an object that starts with these codes.

        New values in it do not change this object, which must not be an overlay itself.
        """
        return Codes(self._new)

    def encode(self, values: Iterable[Hashable]) -> list[int]:
        """Return each value's code, the next free one if new."""
        known, new, first = self._known, self._new, len(self._known)
        if not known:
            return [new.setdefault(value, len(new)) for value in values]
        return [known[value] if value in known else new.setdefault(value, first + len(new)) for value in values]


class GrowingCoding:
    """``Coding`` of a growing history, with numbers of groups.

    Known values and groups keep their numbers. The groups of all levels are numbered together, from 0.
    """

    def __init__(self) -> None:
        self._columns: dict[str, Codes] = {}
        self._names, self._stems, self._groups = Codes(), Codes(), Codes()
        self._families = JobNameFamilies()
        self._name_stems: list[int] = []  # stem of each name, by their codes
        self._is_overlay = False
        self._category_lists: dict[int, tuple[pd.Index[Any], list[Any]]] = {}  # by id of the index

    @property
    def n_groups(self) -> int:
        """Number of groups so far."""
        return len(self._groups)

    def overlay(self) -> GrowingCoding:
        """Return an object that starts with these codes.

        New values in it do not change this object, which must not be an overlay itself.
        """
        other = GrowingCoding()
        other._columns = {name: codes.overlay() for name, codes in self._columns.items()}
        other._names, other._stems, other._groups = self._names.overlay(), self._stems.overlay(), self._groups.overlay()
        other._families = self._families.overlay()
        other._name_stems, other._is_overlay, other._category_lists = self._name_stems, True, self._category_lists
        return other

    def encode(self, name: str, column: Any) -> NDArray[np.int32]:
        """See ``Coding``."""
        categories = self._category_list(column.categories)
        codes = self._columns.setdefault(name, Codes())
        if len(column) > len(categories):
            # The additional last entry is for the code -1 of a missing value.
            category_codes = np.array([*codes.encode(categories), -1], dtype=np.int32)
            return np.asarray(category_codes[column.codes])
        positions = column.codes.tolist()
        present = iter(codes.encode(categories[position] for position in positions if position >= 0))
        return np.array([-1 if position < 0 else next(present) for position in positions], dtype=np.int32)

    def _category_list(self, categories: pd.Index[Any]) -> list[Any]:
        """Return categories as a list, which is cached because frames often share them."""
        cached = self._category_lists.get(id(categories))
        if cached is None or cached[0] is not categories:
            if len(self._category_lists) >= _CACHED_LISTS:
                self._category_lists.clear()
            cached = self._category_lists[id(categories)] = (categories, categories.tolist())
        return cached[1]

    def encode_names(self, names: Any, user: NDArray[np.int32] | None = None) -> NameCodes:
        """See ``Coding``.

        Without ``user`` there are no families.
        """
        texts = list(names)
        codes = np.full((3, len(texts)), -1, dtype=np.int32)
        rows = [row for row, text in enumerate(texts) if isinstance(text, str)]
        if rows:
            texts = [texts[row] for row in rows]
            name_codes = self._names.encode(texts)
            codes[:2, rows] = name_codes, self._encode_stems(name_codes, texts)
            if user is not None and len(texts) < _FEW_NAMES:
                codes[2, rows] = [self._families.code(*job) for job in zip(user[rows].tolist(), texts, strict=True)]
            elif user is not None:
                position, uniques = pd.factorize(np.array(texts, dtype=object))
                codes[2, rows] = self._families.codes(user[rows], position.astype(np.int32), list(uniques))
        return NameCodes(*codes)

    def groups(self, table: JobTable, *, levels: Sequence[int] = range(len(LEVELS))) -> NDArray[np.int32]:
        """Return each job's group at each of ``LEVELS``, -1 for none.

        The result has the shape (table.n, len(LEVELS)).

        Parameters
        ----------
        table : JobTable
            Encoded by this object.
        levels : sequence of int
            Positions of the levels that are needed. The others stay -1.
        """
        columns = {name: values.tolist() for name, values in grouping_columns(table).items()}
        members = group_members(table, [LEVELS[level] for level in levels])
        groups = np.full((table.n, len(LEVELS)), -1, dtype=np.int32)
        for level in levels:
            name = LEVELS[level]
            keys = zip(repeat(level, table.n), *(columns[column] for column in LEVEL_COLUMNS[name]), strict=True)
            member = members[name]
            if member is None:
                groups[:, level] = self._groups.encode(keys)
            elif member.any():
                groups[member, level] = self._groups.encode(compress(keys, member))
        return groups

    def _encode_stems(self, name_codes: list[int], names: list[str]) -> list[int]:
        """Return the code of each name's stem, computed once a name."""
        known = self._name_stems
        new = {code: name for code, name in zip(name_codes, names, strict=True) if code >= len(known)}
        new_stems = dict(zip(new, self._stems.encode(_DIGITS.sub("", name) for name in new.values()), strict=True))
        stems = [known[code] if code < len(known) else new_stems[code] for code in name_codes]
        if not self._is_overlay:
            known.extend(new_stems.values())  # in the order of the codes of new names
        return stems
