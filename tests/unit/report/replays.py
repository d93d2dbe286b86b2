"""Replays for reports, made of a few waits."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from helios.choices import ResampledUnit
from helios.metrics.queue import summarize_queue
from helios.report.verdict import CheckedOrder, OrderVerdict, Ratios, RecordedWaits
from helios.report.whatif import Run, WhatIf


def a_run(
    waits: list[int], *, gpus: list[int] | None = None, run_time_s: int = 600, every_s: int = 60, **overrides: Any
) -> Run:
    """A replay of jobs, one each ``every_s`` seconds, that waited ``waits`` seconds."""
    n = len(waits)
    submitted = 1_600_000_000 + every_s * np.arange(n, dtype=np.int64)
    wait = np.array(waits, dtype=np.int64)
    size = np.array(gpus or [1] * n, dtype=np.int32)
    ran = np.full(n, run_time_s, dtype=np.int64)
    named = {"policy": "fifo", "run_times": None, "estimates": "limit", "backfill": "easy", **overrides}
    return Run(
        **named,
        summary=summarize_queue(
            submitted_s=submitted,
            ended_s=submitted + wait + ran,
            run_time_s=ran,
            gpus=size,
            total_gpus=64,
            node=8,
        ),
        submitted_s=submitted,
        started_s=submitted + wait,
        ended_s=submitted + wait + ran,
        wait_s=wait,
        gpus=size,
        users=np.zeros(n, dtype=np.int64),
    )


def qssf(waits: list[int], **overrides: Any) -> Run:
    return a_run(waits, **{"policy": "qssf", "run_times": "predicted", **overrides})


def fewest_gpus(waits: list[int], **overrides: Any) -> Run:
    return a_run(waits, **{"policy": "fewest_gpus", **overrides})


def an_oracle(waits: list[int], **overrides: Any) -> Run:
    return qssf(waits, **{"run_times": "true", "estimates": "true", **overrides})


def a_what_if(*runs: Run, **overrides: Any) -> WhatIf:
    return WhatIf(
        **{
            "cluster": "venus",
            "partitions": {"gpu": 8},
            "gpus_per_node": 8,
            "resource": "gpus",
            "window": (datetime(2020, 9, 13, tzinfo=UTC), datetime(2020, 9, 14, tzinfo=UTC)),
            "runs": runs,
            "notes": (),
            **overrides,
        }
    )


def a_verdict(
    predictions: Sequence[float],
    size: Sequence[float],
    *,
    own_mean_s: float = 600,
    by_size: dict[str, float] | None = None,
    large: float = float("nan"),
    recorded_s: float | None = None,
    **overrides: Any,
) -> OrderVerdict:
    """A verdict whose draws have these ratios of mean waits to plain FIFO + EASY."""
    ratios = {
        order: [Ratios(mean=mean, longest=1.2, large=large, by_size=by_size or {}) for mean in means]
        for order, means in ((CheckedOrder.PREDICTIONS, predictions), (CheckedOrder.SIZE, size))
    }
    recorded = None if recorded_s is None else RecordedWaits(jobs=9, recorded_s=recorded_s, replayed_s=own_mean_s)
    return OrderVerdict(
        **{
            "window": (datetime(2026, 9, 1, tzinfo=UTC), datetime(2026, 9, 28, tzinfo=UTC)),
            "jobs": 1_000,
            "draws": len(predictions),
            "over": ResampledUnit.USERS,
            "own_mean_s": own_mean_s,
            "ratios": ratios,
            "recorded": recorded,
            **overrides,
        }
    )
