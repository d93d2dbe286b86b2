"""Cohorts, which stand for users in an anonymous export.

A pseudonym of one user is found by the number of its jobs, and by three jobs that somebody knows. One of several
users who ask for the same is found, too, and then names none of them: so no attack needs to be foreseen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

FEWEST_USERS = 3
"""Users of a cohort. Of two, each would know the other."""
MOST_OF_ONE = 0.5
"""Largest share of one user in the jobs of a cohort: whoever takes all for that user's errs at least as often."""


def owners(jobs: pd.DataFrame) -> NDArray[np.int64]:
    """Return each job's user as a number.

    Jobs of unknown users have a negative one of their own.
    """
    codes = jobs["user"].cat.codes.to_numpy().astype(np.int64)
    return np.where(codes < 0, -1 - np.arange(len(jobs)), codes)


def number_rows(columns: pd.DataFrame) -> NDArray[np.int64]:
    """Return a number for each row, the same for equal rows."""
    return columns.groupby(list(columns), dropna=False, sort=False, observed=True).ngroup().to_numpy().astype(np.int64)


def count_by_owner(kinds: NDArray[np.int64], owner: NDArray[np.int64]) -> pd.DataFrame:
    """Return jobs by kind and owner, of a kind the largest first.

    Returns
    -------
    DataFrame
        Columns ``kind``, ``owner``, ``jobs``, and of the kind ``total`` and ``users``.
    """
    counts = pd.DataFrame({"kind": kinds, "owner": owner}).value_counts(sort=False).rename("jobs").reset_index()
    counts = counts.sort_values(["kind", "jobs", "owner"], ascending=[True, False, True], ignore_index=True)
    of_kind = counts.groupby("kind")["jobs"]
    return counts.assign(total=of_kind.transform("sum"), users=of_kind.transform("size"))


def shared_kinds(kinds: NDArray[np.int64], owner: NDArray[np.int64], *, most_of_one: float = MOST_OF_ONE) -> Any:
    """Return kinds of jobs that enough users share without a dominant one."""
    first = count_by_owner(kinds, owner).drop_duplicates("kind")
    is_shared = (first["users"] >= FEWEST_USERS) & (first["jobs"] <= most_of_one * first["total"])
    return first["kind"].to_numpy()[is_shared]


def choose_cohorts(kinds: NDArray[np.int64], owner: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each job's cohort among the users of its kind.

    Users with about as many jobs of the kind are together. The cohort is -1 where one user has more than half of a
    kind, or too few users have it.
    """
    counts = count_by_owner(kinds, owner)
    counts = counts[np.isin(counts["kind"], shared_kinds(kinds, owner))]
    cohorts: list[int] = []
    cohort, kind, members, largest, total, jobs_left, users_left = -1, -1, 0, 0, 0, 0, 0
    for one, jobs, all_jobs, all_users in counts[["kind", "jobs", "total", "users"]].to_numpy():
        if one != kind:
            kind, jobs_left, users_left, is_full = one, all_jobs, all_users, True
        # The last users of a kind join the cohort before where they are too few or too unlike for one of their own.
        if is_full and users_left >= FEWEST_USERS and jobs <= MOST_OF_ONE * jobs_left:
            cohort, members, largest, total = cohort + 1, 0, jobs, 0
        members, total, jobs_left, users_left = members + 1, total + jobs, jobs_left - jobs, users_left - 1
        is_full = members >= FEWEST_USERS and largest <= MOST_OF_ONE * total
        cohorts.append(cohort)
    table = pd.Series(cohorts, index=pd.MultiIndex.from_frame(counts[["kind", "owner"]]), dtype=np.int64)
    found = table.reindex(pd.MultiIndex.from_arrays([kinds, owner]), fill_value=-1)
    return np.asarray(found, dtype=np.int64)


def jobs_to_leave_out(
    kinds: NDArray[np.int64],
    owner: NDArray[np.int64],
    hours: NDArray[np.float64],
    *,
    most: float,
    random: np.random.Generator,
) -> NDArray[np.bool_]:
    """Return the jobs to leave out so that few give their user.

    Where one user has more than half of a kind, the jobs beyond half go. Kinds that hide most jobs for the fewest hours
    come first, until users who have more than half of a kind have at most the share ``most`` of all jobs in them.
    """
    first = count_by_owner(kinds, owner).drop_duplicates("kind").set_index("kind")
    first = first[(first["owner"] >= 0) & (first["jobs"] > MOST_OF_ONE * first["total"])]
    beyond = 2 * first["jobs"] - first["total"]
    theirs = pd.DataFrame({"kind": kinds, "owner": owner, "hours": hours}).groupby(["kind", "owner"])["hours"].mean()
    mean_hours = theirs.reindex(pd.MultiIndex.from_frame(first["owner"].reset_index())).to_numpy()
    first = first.assign(beyond=beyond, price=beyond * mean_hours / first["jobs"]).sort_values("price", ascending=False)
    first = first[first["jobs"].cumsum() > most * len(kinds)]
    place = random.permutation(len(kinds))
    shuffled = pd.DataFrame({"kind": kinds[place], "owner": owner[place], "place": place})
    shuffled = shuffled.merge(first[["owner", "beyond"]].reset_index(), on=["kind", "owner"])
    gone = shuffled[shuffled.groupby("kind").cumcount() < shuffled["beyond"]]["place"]
    left_out = np.zeros(len(kinds), dtype=np.bool_)
    left_out[gone] = True
    return left_out
