"""What sharing GPUs saves on measured jobs of MIT SuperCloud, by what is known of them beforehand.

The jobs of one GPU hardly overlap there, so each draw has a thousand of them, with repetition, begin at random moments
of so long a time that 40 run at once. What is known of a job: what was predicted at its submission (no users are known,
so it is the same for all); what was predicted after 15 minutes, in which it runs alone; its true peak and mean; and, as
a control, the median of all.

Usage: python -m benchmarks.sharing DIRECTORY [DRAWS]     (with supercloud/)
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.job_use import EARLY, SAMPLE_S, runs_of, supercloud
from helios.predict.job_use import predict_use, predict_use_again
from helios.study.gpu_sharing import OneGpuJobs, share_gpus

GPU_MIB = 32_510.0
"""Memory of a V100 of 32 GiB as its driver says it."""
JOBS, AT_ONCE = 1_000, 40
Floats = NDArray[np.float64]


def known_before(directory: Path) -> tuple[dict[str, tuple[Floats, Floats, int]], Floats, Floats, NDArray[np.int64]]:
    """Return what is known of each job, as memory, use and time alone; its peak, mean and run time."""
    jobs = supercloud(directory)
    runs = runs_of(jobs)
    first = predict_use(runs)
    again = predict_use_again(
        runs,
        after_s=EARLY * SAMPLE_S,
        utilization=jobs["early_utilization"].to_numpy(),
        memory_mib=jobs["early_memory_mib"].to_numpy(),
        before=first,
    )
    one = (jobs["gpus"] == 1).to_numpy() & ~np.isnan(first.memory_mib)
    peak, mean = runs.memory_mib[one], runs.utilization[one]
    known = {
        "predicted at submission": (first.memory_mib[one], first.utilization[one], 0),
        "predicted after 15 minutes": (again.memory_mib[one], again.utilization[one], EARLY * SAMPLE_S),
        "known": (peak, mean, 0),
        "control: the median of all": (np.full(len(peak), np.median(peak)), np.full(len(peak), np.median(mean)), 0),
    }
    return known, peak, mean, (runs.ended_s - runs.asked_s)[one]


def main() -> None:
    """Print what each knowledge saves."""
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    known, peak, mean, run_s = known_before(Path(sys.argv[1]))
    draws = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    print(f"{len(peak)} jobs of one GPU; mean of {draws} draws, and between what nine of ten lie")
    for most in (2, 4):
        for name, (memory, use, alone_s) in known.items():
            rows: list[list[float]] = []
            for draw in range(draws):
                rng = np.random.default_rng(draw)
                job = rng.integers(0, len(peak), JOBS)
                started_s = rng.integers(0, int(run_s[job].sum() / AT_ONCE), JOBS)
                jobs = OneGpuJobs(
                    started_s=started_s + alone_s,
                    ended_s=started_s + run_s[job],
                    group=np.zeros(JOBS, dtype=np.int64),
                    predicted_mib=memory[job],
                    predicted_use=use[job],
                    memory_mib=peak[job],
                    utilization=mean[job],
                    gpu_mib=np.full(JOBS, GPU_MIB),
                )
                found = share_gpus(jobs, most=most)
                shared = found.shared_s > 0
                ran_s = (jobs.ended_s - jobs.started_s).astype(np.float64)
                slower = found.taken_s[shared] / ran_s[shared, None]
                rows.append(
                    [
                        (ran_s - found.gpu_s[:, 0]).sum() / run_s[job].sum(),
                        found.did_overflow.sum() / max(shared.sum(), 1),
                        *(slower.mean(axis=0) if shared.any() else (np.nan,) * 3),
                    ]
                )
            middle = np.mean(rows, axis=0).tolist()
            low, high = np.quantile([row[0] for row in rows], (0.05, 0.95)).tolist()
            print(
                f"  {most} to a GPU, {name:28s} saves {middle[0]:6.1%} ({low:.1%} to {high:.1%}) of their hours; "
                f"overflow {middle[1]:5.1%}; slowdown {middle[2]:.2f} (mild {middle[3]:.2f}, harsh {middle[4]:.2f})"
            )


if __name__ == "__main__":
    main()
