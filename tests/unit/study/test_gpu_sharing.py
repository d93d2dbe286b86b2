"""Sharing of GPUs, beside a walk over every second in plain Python."""

from __future__ import annotations

import numpy as np
import pytest

from helios.metrics.job_use import freed_by_timeout_s
from helios.study.gpu_sharing import OneGpuJobs, share_gpus
from tests.contract.test_job_use import use, use_frame

GPU_MIB = 100.0


def one_gpu_jobs(*rows: tuple[int, int, float, float], group: list[int] | None = None) -> OneGpuJobs:
    """Return jobs of (start, end, memory, utilization) that use what was predicted."""
    started_s, ended_s, memory, utilization = (np.array(column) for column in zip(*rows, strict=True))
    return OneGpuJobs(
        started_s=started_s,
        ended_s=ended_s,
        group=np.array(group or [0] * len(rows)),
        predicted_mib=memory.astype(np.float64),
        predicted_use=utilization.astype(np.float64),
        memory_mib=memory.astype(np.float64),
        utilization=utilization.astype(np.float64),
        gpu_mib=np.full(len(rows), GPU_MIB),
    )


def second_by_second(jobs: OneGpuJobs, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return time shared, overflows, run time and GPU time by use, of a plain walk over seconds."""
    n = len(jobs.started_s)
    gpus: list[list[int]] = []
    shared, overflow, taken, held = np.zeros(n), np.zeros(n, dtype=bool), np.zeros(n), np.zeros(n)
    for second in range(int(jobs.ended_s.max())):
        gpus = [kept for gpu in gpus if (kept := [job for job in gpu if jobs.ended_s[job] > second])]
        for job in np.flatnonzero(jobs.started_s == second):
            fits = [
                gpu
                for gpu in gpus
                if len(gpu) < most
                and jobs.group[gpu[0]] == jobs.group[job]
                and jobs.predicted_mib[[*gpu, job]].sum() <= GPU_MIB
                and jobs.predicted_use[[*gpu, job]].sum() < 100
            ]
            fullest = max(fits, key=lambda gpu: jobs.predicted_mib[gpu].sum(), default=None)
            if fullest is None:
                gpus.append([int(job)])
            else:
                fullest.append(int(job))
        for gpu in gpus:
            slowdown = max(1.0, jobs.utilization[gpu].sum() / 100) if len(gpu) > 1 else 1.0
            for job in gpu:
                taken[job] += slowdown
                held[job] += slowdown / len(gpu)
                shared[job] += len(gpu) > 1
                overflow[job] |= len(gpu) > 1 and jobs.memory_mib[gpu].sum() > GPU_MIB
    return shared, overflow, taken, held


@pytest.mark.parametrize("most", [2, 4])
def test_sharing_equals_a_walk_over_every_second(most: int) -> None:
    rng = np.random.default_rng(most)
    n = 60
    # Sums of powers of two are exact, and no two GPUs are equally full.
    predicted = rng.permutation(np.linspace(2, 60, n).round(3))
    started_s = rng.integers(0, 150, n)
    jobs = OneGpuJobs(
        started_s=started_s,
        ended_s=started_s + rng.integers(1, 80, n),
        group=rng.integers(0, 2, n),
        predicted_mib=predicted,
        predicted_use=rng.choice([1.0, 30.0, 60.0], n),
        memory_mib=predicted * rng.choice([0.9, 1.3], n),
        utilization=rng.uniform(0, 100, n),
        gpu_mib=np.full(n, GPU_MIB),
    )
    found = share_gpus(jobs, most=most)
    shared, overflow, taken, held = second_by_second(jobs, most)
    np.testing.assert_allclose(found.shared_s, shared)
    np.testing.assert_array_equal(found.did_overflow, overflow)
    np.testing.assert_allclose(found.taken_s[:, 0], taken)
    np.testing.assert_allclose(found.gpu_s[:, 0], held)
    assert overflow.any()
    assert (shared > 0).mean() > 0.5


def test_two_jobs_that_fit_hold_one_gpu() -> None:
    found = share_gpus(one_gpu_jobs((0, 10, 40, 20), (0, 10, 50, 30)), most=2)
    assert found.gpu_s[:, 0].sum() == 10
    assert found.gpu_s[:, 2].sum() == pytest.approx(10 * 2 / 1.31)
    assert not found.did_overflow.any()


@pytest.mark.parametrize(
    "other", [(0, 10, 61, 20), (0, 10, 40, 80), (10, 20, 40, 20)], ids=["memory", "use", "after it"]
)
def test_jobs_that_do_not_fit_have_their_own_gpus(other: tuple[int, int, float, float]) -> None:
    found = share_gpus(one_gpu_jobs((0, 10, 40, 20), other), most=4)
    assert found.gpu_s[:, 0].tolist() == [10, 10]
    assert found.shared_s.sum() == 0


def test_jobs_of_which_something_is_unknown_share_nothing() -> None:
    jobs = one_gpu_jobs((0, 10, 40, 20), (0, 10, np.nan, 20), (0, 10, 40, np.nan), group=[0, 0, 0])
    assert share_gpus(jobs, most=4).shared_s.sum() == 0
    assert jobs.may_share.tolist() == [True, False, False]


def test_timeout_frees_what_follows_it_of_a_session_known_to_idle() -> None:
    frame = use_frame(
        use("1", is_interactive=1, longest_idle_s=5 * 3600.0),
        use("2", is_interactive=1, utilization=0.0),
        use("3", is_interactive=0, utilization=0.0),
        use("4", is_interactive=1, utilization=0.4),
        use("5", utilization=0.0),
        use("6", is_interactive=1, longest_idle_s=60.0),
    )
    freed = freed_by_timeout_s(frame, np.full(6, 10 * 3600.0))
    assert freed.tolist() == pytest.approx([3 * 3600, 8 * 3600, 0, np.nan, np.nan, 0], nan_ok=True)
