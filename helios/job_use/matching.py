"""Matching of what jobs used to the runs in the warehouse.

Ids come again when Slurm's counter begins anew, and a requeued job has one id and several runs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

RUN_COLUMNS = ("submitted_at", "job_id", "restart", "started_at")
"""Columns of ``JOBS`` by which runs are matched."""


class Matches(NamedTuple):
    """Runs of some records.

    Attributes
    ----------
    rows : array of int64
        Position of each record's run, -1 for none.
    is_used_again : array of bool
        Records whose id several jobs had, and which do not say when.
    """

    rows: NDArray[np.int64]
    is_used_again: NDArray[np.bool_]


def match_runs(records: pd.DataFrame, runs: pd.DataFrame) -> Matches:
    """Return the run that each record is of.

    A record that knows its start is of the run with this id and start. One that knows its submission only, is of the
    last run of that job. One that knows neither is of the last run of the only job with this id.

    Parameters
    ----------
    records : DataFrame
        ``job_id``, ``submitted_at`` and ``started_at``, NaT where not known.
    runs : DataFrame
        ``RUN_COLUMNS`` of all runs with these ids.
    """
    runs = runs.assign(row=np.arange(len(runs))).sort_values(["submitted_at", "restart"], kind="stable")
    jobs = runs.drop_duplicates(["job_id", "submitted_at"], keep="last")
    used_again = jobs.loc[jobs["job_id"].duplicated(), "job_id"]
    has_start, has_submission = (records[name].notna().to_numpy() for name in ("started_at", "submitted_at"))
    found = np.full(len(records), -1)
    for chosen, known, names in (
        (has_start, runs, ["job_id", "started_at"]),
        (~has_start & has_submission, jobs, ["job_id", "submitted_at"]),
        (~has_start & ~has_submission, jobs, ["job_id"]),
    ):
        if chosen.any():
            # Two runs that cannot be told apart are no match, and so is an id that several jobs had.
            places = known[[*names, "row"]].drop_duplicates(names, keep=False)
            rows = records.loc[chosen, names].merge(places, how="left", on=names)["row"]
            found[chosen] = rows.fillna(-1).to_numpy(dtype=np.int64)
    is_used_again = ~has_start & ~has_submission & records["job_id"].isin(used_again).to_numpy()
    return Matches(found, is_used_again)
