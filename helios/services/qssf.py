"""Quasi-Shortest-Service-First: the queue order of the paper that this project starts from.

Source: Hu, Sun, Yan, Wen, Zhang, "Characterization and Prediction of Deep Learning Workloads in Large-Scale
GPU Datacenters", SC'21, section 4.2, doi 10.1145/3458817.3476223.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def shortest_service_first(
    *,
    submitted_s: NDArray[np.int64],  # noqa: ARG001  because every Order takes it
    gpus: NDArray[np.int32],
    run_time_s: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Order by service, GPUs x run time; smallest first.

    Parameters
    ----------
    submitted_s, gpus, run_time_s : arrays of shape (n_jobs,)
        Submission (s since the epoch), GPUs asked for, and the run time believed in (s).

    Returns
    -------
    array of shape (n_jobs,)
        Service in GPU seconds.
    """
    return gpus * run_time_s
