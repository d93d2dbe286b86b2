"""Queue orders by predicted run time.

Each is one formula, shared by the live service and by replays.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LARGE_GPUS = 8
"""Number of GPUs above which a job is large, since it needs more than one whole node of the usual size."""
LARGE_FAVOUR = 20.0
"""Divisor of the service of a large job, chosen on perturbed runs of Philly at 40 % and of Venus on 100 nodes
(docs/ordering.md has the results of other values)."""


def shortest_service_first(
    *,
    submitted_s: NDArray[np.int64],  # noqa: ARG001  because every Order takes it
    gpus: NDArray[np.int32],
    run_time_s: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Order by service, GPUs x run time, smallest first.

    This is the paper's rule.

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


def balanced(
    *,
    submitted_s: NDArray[np.int64],  # noqa: ARG001  because every Order takes it
    gpus: NDArray[np.int32],
    run_time_s: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Order by service, that of jobs above ``LARGE_GPUS`` divided by ``LARGE_FAVOUR``.

    Shortest service first keeps the mean low and starves large jobs, whose service is long because they are large.
    Arguments and result are those of :func:`shortest_service_first`.
    """
    return gpus * run_time_s * weigh_large_jobs(gpus)


def weigh_large_jobs(gpus: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return the factors of ``balanced`` for jobs of so many GPUs."""
    return np.where(gpus > LARGE_GPUS, 1 / LARGE_FAVOUR, 1.0)
