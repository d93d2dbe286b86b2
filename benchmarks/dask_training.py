"""Training here and on a local Dask cluster of two worker processes, in one run, from few rows to many.

    python -m benchmarks.dask_training [ROWS ...]

Both share this machine's cores, so that the figure is what Dask *costs*: connecting, dealing out the rows, and the
histograms that the workers exchange for every leaf. What it gains takes more machines: see docs/predictions.md.
"""

from __future__ import annotations

import os
import sys
import time
from logging import ERROR

import numpy as np
from distributed import Client, LocalCluster

from benchmarks.features import a_table
from helios.predict.causal_stats import FEATURES
from helios.predict.dask_training import DaskTrainer
from helios.predict.duration import Trainer, TrainingSet, train_locally
from helios.predict.job_table import causal_features

WORKERS = 2


def a_training_set(n_rows: int) -> TrainingSet:
    """Return what the trees would learn from ``n_rows`` made-up jobs."""
    table = a_table(n_rows)
    features = causal_features(table).X
    ended = (np.log1p(table.run_time_s) <= features[:, FEATURES.index("anchor")]).astype(np.float32)
    return TrainingSet(features=features, ended=ended, names=FEATURES)


def cpu_s(client: Client) -> float:
    """Return the processor time that this process and the workers have used, s: other load stretches it less."""
    return time.process_time() + sum(client.run(time.process_time).values())


def cost(trainer: Trainer, training_set: TrainingSet, client: Client) -> tuple[float, float]:
    """Return how long ``trainer`` takes: by the clock on the wall, and of all processors."""
    wall_s, used_s = time.perf_counter(), cpu_s(client)
    trainer(training_set, seed=0)
    return time.perf_counter() - wall_s, cpu_s(client) - used_s


def main() -> None:
    """Print the table."""
    sizes = [int(word) for word in sys.argv[1:]] or [10_000, 100_000, 300_000]
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {WORKERS} workers of one thread")
    with (
        LocalCluster(
            n_workers=WORKERS, threads_per_worker=1, dashboard_address=":0", memory_limit=0, silence_logs=ERROR
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        there = DaskTrainer(address=cluster.scheduler_address)
        cost(there, a_training_set(5_000), client)  # the workers' first import of LightGBM
        for n_rows in sizes:
            training_set = a_training_set(n_rows)
            (here, here_cpu), (far, far_cpu) = (
                cost(trainer, training_set, client) for trainer in (train_locally, there)
            )
            print(
                f"{n_rows:>10,} rows   here {here:8.1f} s (cpu {here_cpu:7.1f})   "
                f"Dask {far:8.1f} s (cpu {far_cpu:7.1f})   ratio {far / here:5.2f} (cpu {far_cpu / here_cpu:5.2f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
