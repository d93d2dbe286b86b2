"""Numbers for what jobs have in common, which stay as they are when more jobs come.

A whole history is numbered at once by factorizing its columns (:func:`helios.predict.features.groups_of`). A live
predictor cannot: the user who comes tomorrow must not move the numbers under which it has learned of all others.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from itertools import repeat
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.predict.features import ALIKE, JobTable, Names, belongs, columns_alike
from helios.predict.history import LEVELS
from helios.predict.names import Families

_DIGITS = re.compile(r"\d+")
_KEPT_LISTS = 64


class Codes:
    """Numbers of values, counted up in the order in which values are first seen."""

    def __init__(self, known: Mapping[Hashable, int] | None = None) -> None:
        self._known = {} if known is None else known
        self._fresh: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._known) + len(self._fresh)

    def aside(self) -> Codes:
        """Return codes that know all of these; what they are asked beyond leaves these as they are."""
        return Codes(self._fresh)

    def of(self, values: Iterable[Hashable]) -> list[int]:
        """Return the number of each value; one never seen before gets the next."""
        known, fresh, first = self._known, self._fresh, len(self._known)
        if not known:
            return [fresh.setdefault(value, len(fresh)) for value in values]
        return [known[value] if value in known else fresh.setdefault(value, first + len(fresh)) for value in values]


class Vocabulary:
    """A :class:`helios.predict.features.Coding` that grows, and the numbers of groups of jobs that are alike.

    Old values and old groups keep their numbers. Groups of all levels are numbered in one row, from 0.
    """

    def __init__(self) -> None:
        self._columns: dict[str, Codes] = {}
        self._names, self._stems, self._groups = Codes(), Codes(), Codes()
        self._families = Families()
        self._stem_of: list[int] = []  # by number of the name
        self._is_aside = False
        self._texts: dict[int, tuple[pd.Index[Any], list[Any]]] = {}

    @property
    def n_groups(self) -> int:
        """How many groups are numbered."""
        return len(self._groups)

    def aside(self) -> Vocabulary:
        """Return a vocabulary that knows all of this one and forgets the rest with itself."""
        other = Vocabulary()
        other._columns = {name: codes.aside() for name, codes in self._columns.items()}
        other._names, other._stems, other._groups = self._names.aside(), self._stems.aside(), self._groups.aside()
        other._families = self._families.aside()
        other._stem_of, other._is_aside, other._texts = self._stem_of, True, self._texts
        return other

    def codes(self, name: str, column: Any) -> NDArray[np.int32]:
        """See :class:`helios.predict.features.Coding`."""
        texts = self._texts_of(column.categories)
        numbers = self._columns.setdefault(name, Codes())
        if len(column) > len(texts):
            # One entry more than there are categories answers for the code -1 of a missing value.
            of_category = np.array([*numbers.of(texts), -1], dtype=np.int32)
            return np.asarray(of_category[column.codes])
        codes = column.codes.tolist()
        known = iter(numbers.of(texts[code] for code in codes if code >= 0))
        return np.array([-1 if code < 0 else next(known) for code in codes], dtype=np.int32)

    def _texts_of(self, categories: pd.Index[Any]) -> list[Any]:
        """Return categories as a list; of the frame asked about last it is kept, for it is often asked about again."""
        kept = self._texts.get(id(categories))
        if kept is None or kept[0] is not categories:
            if len(self._texts) >= _KEPT_LISTS:
                self._texts.clear()
            kept = self._texts[id(categories)] = (categories, categories.tolist())
        return kept[1]

    def name_codes(self, names: Any, user: NDArray[np.int32]) -> Names:
        """See :class:`helios.predict.features.Coding`."""
        texts = names.tolist()
        known = np.array([isinstance(text, str) for text in texts], dtype=np.bool_)
        named = [text for text in texts if isinstance(text, str)]
        numbers = self._names.of(named)
        codes = np.full((3, len(texts)), -1, dtype=np.int32)
        codes[:2, known] = numbers, self._stems_of(numbers, named)
        place, uniques = pd.factorize(np.array(named, dtype=object))
        codes[2, known] = self._families.codes(user[known], place.astype(np.int32), list(uniques))
        return Names(*codes)

    def groups(self, table: JobTable) -> NDArray[np.int32]:
        """Return each job's group at each of ``LEVELS``, of shape (table.n, len(LEVELS)); -1: none.

        Parameters
        ----------
        table : JobTable
            Coded by this vocabulary.
        """
        columns = {name: values.tolist() for name, values in columns_alike(table).items()}
        groups = np.full((table.n, len(LEVELS)), -1, dtype=np.int32)
        for level, name in enumerate(LEVELS):
            keys = zip(repeat(level, table.n), *(columns[part] for part in ALIKE[name]), strict=True)
            member = belongs(table, name)
            if member.all():
                groups[:, level] = self._groups.of(keys)
            else:
                groups[member, level] = self._groups.of(key for key, is_in in zip(keys, member, strict=True) if is_in)
        return groups

    def _stems_of(self, numbers: list[int], names: list[str]) -> list[int]:
        """Return the stem of each name; that of a name seen before is not worked out again."""
        old = self._stem_of
        fresh = {number: name for number, name in zip(numbers, names, strict=True) if number >= len(old)}
        stems = self._stems.of([_DIGITS.sub("", name) for name in fresh.values()])
        stem_of = dict(zip(fresh, stems, strict=True))
        found = [old[number] if number < len(old) else stem_of[number] for number in numbers]
        if not self._is_aside:
            old.extend(stems)  # new names are numbered in the order in which they are met
        return found
