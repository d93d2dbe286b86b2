"""Simple queue orders, the controls of every what-if.

Each is a :class:`helios.ports.Order`. Ties go by submit time, then job id, whatever the order.
"""

# ruff: noqa: ARG001  because every Order takes all three arguments

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from helios.ports import Order


def first_in_first_out(
    *, submitted_s: NDArray[np.int64], gpus: NDArray[np.int32], run_time_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Order by submit time, s since the epoch."""
    return submitted_s.astype(np.float64)


def shortest_job_first(
    *, submitted_s: NDArray[np.int64], gpus: NDArray[np.int32], run_time_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Order by the given run time, s."""
    return run_time_s


def fewest_gpus_first(
    *, submitted_s: NDArray[np.int64], gpus: NDArray[np.int32], run_time_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Order by the number of GPUs.

    It needs no model, and is the control that QSSF has to beat.
    """
    return gpus.astype(np.float64)


ORDERS: dict[str, Order] = {
    "fifo": first_in_first_out,
    "sjf": shortest_job_first,
    "fewest_gpus": fewest_gpus_first,
}
