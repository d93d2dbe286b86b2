"""What two programs on one GPU gain by measurements of others, and what finding repeated jobs costs.

    python -m benchmarks.trials gains FILE      # throughputs.csv of Gavel (OSDI'20)
    python -m benchmarks.trials speed [JOBS]    # CPU seconds, beside a plain groupby of pandas

``gains`` prints the sum of the speeds of both programs of a pair, each as a share of its speed alone, as a mean over
the pairs that fit on one GPU, and which share of them loses: over all pairs, and over two of the same program with the
same batch size, as the trials of a sweep mostly are. ``speed`` finds the groups of a synthetic history and makes the
table of users; the control sums the hours by user, size and name, without groups.
"""

from __future__ import annotations

import argparse
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

from helios.ingest import synthetic_trace
from helios.metrics.history import read_history
from helios.metrics.trials import GAINS, find_trials
from helios.model import in_submission_order
from helios.training.repeated.report import trials_by

START = datetime(2020, 1, 1, tzinfo=UTC)
PART_DAYS = 27


def gains(path: Path) -> None:
    """Print the gains by GPU."""
    found = pd.read_csv(path)
    found = found[(found["gpus"] == 1) & ~found["gpu"].str.contains("_")]
    alone = found[found["other_model"].isna()].set_index(["gpu", "model"])["steps_per_s"]
    pairs = found[(found["other_gpus"] == 1) & (found["steps_per_s"] > 0) & (found["other_steps_per_s"] > 0)]
    one, other = (alone.reindex(pd.MultiIndex.from_frame(pairs[["gpu", name]])) for name in ("model", "other_model"))
    gain = pairs["steps_per_s"].to_numpy() / one.to_numpy() + pairs["other_steps_per_s"].to_numpy() / other.to_numpy()
    same = (pairs["model"] == pairs["other_model"]).to_numpy()
    for what, chosen in (("all pairs", np.ones(len(gain), dtype=bool)), ("same program", same)):
        for gpu, part in pd.Series(gain[chosen], index=pairs["gpu"][chosen]).groupby(level=0):
            print(f"{what:14s} {gpu:6s} {len(part):4d} pairs  mean {part.mean():.2f}  lose {(part < 1).mean():.0%}")


def speed(n_jobs: int) -> None:
    """Print CPU seconds of the groups and the table, and of the control."""
    part = synthetic_trace(start=START, days=PART_DAYS)
    times = ["submitted_at", "eligible_at", "started_at", "ended_at"]
    copies = []
    for number in range(-(-n_jobs // len(part))):
        later = {name: part[name] + number * pd.Timedelta(days=PART_DAYS) for name in times}
        ids = (part["job_id"].astype(int) + number * len(part)).astype("str")
        copies.append(part.assign(**later, job_id=ids))
    jobs = in_submission_order(pd.concat(copies, ignore_index=True).head(n_jobs))
    begun = time.process_time()
    hours = jobs["gpus"] * jobs["run_time_s"] / 3600
    hours.groupby([jobs["user"], jobs["gpus"], jobs["name"]], observed=True).sum()
    control_s, begun = time.process_time() - begun, time.process_time()
    history = read_history(jobs, cluster="synthetic", timezone="UTC", resource="gpus")
    chosen = np.ones(len(history.size), dtype=bool)
    _, total = trials_by("user", history, find_trials(history), chosen=chosen, gains=GAINS, title="")
    print(f"{len(jobs):,} jobs, {total['groups']:,.0f} groups: {time.process_time() - begun:.1f} CPU s")
    print(f"pandas, sums by user, size and name: {control_s:.1f} CPU s")


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("gains").add_argument("file", type=Path)
    parts.add_parser("speed").add_argument("jobs", type=int, nargs="?", default=1_000_000)
    given = parser.parse_args()
    if given.part == "gains":
        gains(given.file)
    else:
        speed(given.jobs)


if __name__ == "__main__":
    main()
