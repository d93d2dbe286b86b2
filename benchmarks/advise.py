"""How well proposed time limits fit later jobs: ``python -m benchmarks.advise [TRACES]``.

Advice is given on the jobs that ended in the first half of a recorded history, and judged by the jobs of the same kind
that were submitted in the second. A job that reached its old limit counts as one that does not fit.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from helios.app.history import read_file
from helios.model import JobState
from helios.report import advice
from helios.slurm.parse import length_s

FILES = ("sacct_graham_may-jun2021.txt.gz", "sacct_cedar_may-jun2021.txt.gz", "sacct_raw_phillips_dec2016.txt.gz")


def kinds(jobs: pd.DataFrame) -> dict[object, pd.DataFrame]:
    """Return alike jobs with equal limits, by what they have in common."""
    groups = advice.with_name_words(jobs).groupby([*advice.KEYS, "time_limit_s"], observed=True, dropna=False)
    return dict(list(groups))


def main() -> None:
    """Print a row for each history."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "../shared/traces")
    print(
        f"{'history':36} {'kinds':>6} {'later jobs':>10} {'fit':>7} {'median of kinds':>16} {'limit before/after':>19}"
    )
    for name in FILES:
        jobs = read_file(folder / name, timezone="UTC").jobs
        middle = jobs["submitted_at"].quantile(0.5)
        before, after = jobs[jobs["ended_at"] <= middle], jobs[jobs["submitted_at"] > middle]
        shares, later, fitting, ratios = [], 0, 0, []
        of_kind = kinds(after)
        for kind, alike in kinds(before).items():
            found = [one for one in advice.limit_advice(alike) if one.kind == "limit_too_long"]
            same = of_kind.get(kind)
            if not found or same is None:
                continue
            ran = same[same["state"].isin([JobState.COMPLETED, JobState.TIMEOUT])]
            if ran.empty:
                continue
            proposed_s = float(length_s(found[0].option.removeprefix("--time=")) or 0)
            fits = (ran["run_time_s"] <= proposed_s) & (ran["state"] != JobState.TIMEOUT)
            shares.append(fits.mean())
            later, fitting = later + len(ran), fitting + int(fits.sum())
            ratios.append(float(ran["time_limit_s"].iloc[0]) / proposed_s)
        if not shares:
            print(f"{name:36} no kind with a limit far too long has later jobs")
            continue
        share = fitting / later
        print(
            f"{name:36} {len(shares):6,} {later:10,} {share:7.1%} {np.median(shares):16.1%} {np.median(ratios):19.1f}"
        )


if __name__ == "__main__":
    main()
