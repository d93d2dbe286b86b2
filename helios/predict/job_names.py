"""Families of similar job names of one user.

People name jobs after what they do and then vary a number, a word or a date, such as ``train_resnet50_lr0.1_seed3`` and
``train_resnet50_lr0.01_seed4``. A name is first reduced to its words. Then it joins the most similar of the names that
lead its user's families (leader clustering, one pass: Hartigan 1975), or starts a new family. The similarity is
rapidfuzz's. Only the last ``MOST_LEADERS`` leaders of a user are compared, so that a user with a million names costs no
more per name than one with a hundred. A name's family is fixed when it is first submitted, from earlier names alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rapidfuzz import fuzz, process

from helios.model.jobs import split_words

LEAST_LIKENESS = 80.0
"""Least similarity of two names in one family, 0 to 100 (twice the common letters, in order, by all letters)."""
MOST_LEADERS = 64
"""Leaders of a user with which a new name is compared, those that were joined last."""
NO_FAMILY = -1


class JobNameFamilies:
    """Families of job names, assigned at the first submission.

    They are numbered from 0 in order of creation. Each belongs to one user.
    """

    def __init__(self) -> None:
        self._family: dict[tuple[int, str], int] = {}
        # The leaders' words by user and family. The one joined last comes last.
        self._leaders: dict[int, dict[int, str]] = {}
        self._founded = 0
        self._beneath: JobNameFamilies | None = None

    def aside(self) -> JobNameFamilies:
        """Return a copy that shares all known families.

        New names in the copy do not change this object.
        """
        other = JobNameFamilies()
        other._beneath, other._founded = self, self._founded
        return other

    def code(self, user: int, name: str | None) -> int:
        """Return the family of a job called ``name`` that ``user`` submits now.

        The same name always has the same family.

        Parameters
        ----------
        user : int
            Number of the user; negative if unknown.

        Returns
        -------
        int
            ``NO_FAMILY`` where the user is unknown or the name has no words.
        """
        return self._of_words(user, split_words(name)) if user >= 0 and name else NO_FAMILY

    def codes(self, user: NDArray[np.int32], name: NDArray[np.int32], names: Sequence[str]) -> NDArray[np.int32]:
        """Return the families of many jobs, in the order of their submission.

        They are the same as from :meth:`code` one by one.

        Parameters
        ----------
        user : int32 array of shape (n,)
            As for :meth:`code`.
        name : int32 array of shape (n,)
            Positions in ``names``; -1 without a name.
        """
        words, of_name = _words_of_all(names)
        word = np.append(of_name, NO_FAMILY)[name]
        pair = np.where((user >= 0) & (word >= 0), user.astype(np.int64) * (len(words) + 1) + word, -1)
        place, pairs = pd.factorize(pair)
        family = np.array([self._of_pair(int(one), words) for one in pairs], dtype=np.int32)
        return family[place] if len(family) else np.empty(0, dtype=np.int32)

    def _of_pair(self, pair: int, words: Sequence[str]) -> int:
        user, word = divmod(pair, len(words) + 1)
        return NO_FAMILY if pair < 0 else self._of_words(user, words[word])

    def _of_words(self, user: int, words: str) -> int:
        if not words:
            return NO_FAMILY
        family = self._known(user, words)
        if family is None:
            family = self._family[user, words] = self._join_or_found(user, words)
        return family

    def _known(self, user: int, words: str) -> int | None:
        family = self._family.get((user, words))
        return self._beneath._known(user, words) if family is None and self._beneath else family

    def _leaders_of(self, user: int) -> dict[int, str]:
        if user not in self._leaders:
            self._leaders[user] = dict(self._beneath._leaders_of(user)) if self._beneath else {}
        return self._leaders[user]

    def _join_or_found(self, user: int, words: str) -> int:
        leaders = self._leaders_of(user)
        nearest = process.extractOne(words, leaders, scorer=fuzz.ratio, score_cutoff=LEAST_LIKENESS)
        if nearest is not None:
            family = int(nearest[2])
            leaders[family] = leaders.pop(family)
            return family
        if len(leaders) == MOST_LEADERS:
            del leaders[next(iter(leaders))]
        family, self._founded = self._founded, self._founded + 1
        leaders[family] = words
        return family


def _words_of_all(names: Sequence[str]) -> tuple[Sequence[str], NDArray[np.int64]]:
    """Return the distinct words of ``names``, and each name's position among them.

    -1 for a name without words.
    """
    of_name, words = pd.factorize(np.array([split_words(name) or None for name in names], dtype=object))
    return list(words), of_name
