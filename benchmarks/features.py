"""Causal features of 1,000,000 jobs, beside pandas computing two of them with a leak, in one run.

Usage: python -m benchmarks.features [JOBS]
"""

import sys
import time
from collections.abc import Callable

import numpy as np
import pandas as pd

from helios.predict.causal_stats import FEATURES
from helios.predict.job_table import JobTable, causal_features


def a_table(n: int, *, seed: int = 0) -> JobTable:
    """Return ``n`` jobs of 2,000 users in bursts, with Zipf activity and log-normal run times."""
    rng = np.random.default_rng(seed)
    submitted_s = 1_600_000_000 + np.cumsum(rng.integers(0, 30, n))
    user = np.minimum(np.repeat(rng.zipf(1.3, n // 8 + 1), 8)[:n], 2_000).astype(np.int32)
    run_time_s = np.ceil(np.exp(rng.normal(6, 2, n)))
    name = (user * 16 + rng.integers(0, 16, n)).astype(np.int32)
    local_s = submitted_s + 8 * 3600
    started_s = submitted_s + rng.integers(0, 7200, n)
    return JobTable(
        submitted_s=submitted_s,
        started_s=started_s,
        ended_s=started_s + run_time_s.astype(np.int64),
        run_time_s=run_time_s,
        user=user,
        account=user % 200,
        partition=user % 11,
        name=name,
        stem=name // 4,
        family=name // 8,
        failed=(rng.random(n) < 0.2).astype(np.float64),
        gpus=np.exp2(rng.integers(0, 6, n)).astype(np.float64),
        cpus=np.full(n, 8.0),
        nodes=np.ones(n),
        time_limit_s=rng.choice([3600.0, 86400.0, np.inf], n),
        memory_mib=np.full(n, np.nan),
        hour=(local_s // 3600 % 24).astype(np.float64),
        weekday=((local_s // 86400 + 3) % 7).astype(np.float64),
    )


def leaky_pandas(table: JobTable) -> pd.DataFrame:
    """Return each user's previous run time and mean so far *by submission*: jobs not yet ended leak in."""
    runs = pd.DataFrame({"user": table.user, "log_run": np.log1p(table.run_time_s)})
    by_user = runs.groupby("user")["log_run"]
    last = by_user.shift()
    mean = by_user.transform(lambda runs: runs.shift().expanding().mean())
    return pd.DataFrame({"last": last, "mean": mean})


def seconds(function: Callable[[JobTable], object], table: JobTable) -> float:
    """Return how long ``function`` takes once."""
    started = time.perf_counter()
    function(table)
    return time.perf_counter() - started


def main() -> None:
    """Print the figures."""
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    first_call_s = seconds(causal_features, a_table(1_000))
    table = a_table(n)
    ours_s, pandas_s = seconds(causal_features, table), seconds(leaky_pandas, table)
    print(f"first call (compiles, or reads the cache)   {first_call_s:8.2f} s")
    print(f"causal_features, {len(FEATURES)} features, {n:,} jobs {ours_s:8.2f} s  {n / ours_s:12,.0f} jobs/s")
    print(f"pandas, 2 features, by submission (leaks)   {pandas_s:8.2f} s  {n / pandas_s:12,.0f} jobs/s")


if __name__ == "__main__":
    main()
