"""Queue orders by predicted run time.

Each is one formula, shared by the live service and by replays.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

LARGE_GPUS = 8
"""Number of GPUs above which a job is large, since it needs more than one whole node of the usual size."""


def shortest_service_first(
    *,
    submitted_s: NDArray[np.int64],  # noqa: ARG001  because every Order takes it
    gpus: NDArray[np.int32],
    run_time_s: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Order by service, GPUs x run time, smallest first.

    With the median of a predicted run time this is the paper's rule, with the mean of the run time cut at
    :data:`helios.ports.HORIZON_S` Helios'.

    Parameters
    ----------
    submitted_s, gpus, run_time_s : arrays of shape (n_jobs,)
        Submission (s since the epoch), requested GPUs, and assumed run time (s).

    Returns
    -------
    array of shape (n_jobs,)
        Service in GPU seconds.
    """
    return gpus * run_time_s


def divide_large_jobs(order: Callable[..., NDArray[np.float64]], divisor: float) -> Callable[..., NDArray[np.float64]]:
    """Return an order in which the key of jobs above ``LARGE_GPUS`` is divided."""

    def divided(
        *, submitted_s: NDArray[np.int64], gpus: NDArray[np.int32], run_time_s: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        keys = order(submitted_s=submitted_s, gpus=gpus, run_time_s=run_time_s)
        return np.where(gpus > LARGE_GPUS, keys / divisor, keys)

    return divided
