"""The jobs of a replay as the compiled loops read and write them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NEVER = np.iinfo(np.int64).max


class Book(NamedTuple):
    """One value for each job, a partition's jobs together and in the order in which they arrive."""

    submitted_s: NDArray[np.int64]
    run_time_s: NDArray[np.int64]
    gpus: NDArray[np.int64]
    rank: NDArray[np.int64]  # place in the order of the policy
    by_size: NDArray[np.int64]  # jobs, those of one second from the smallest to the largest
    started_s: NDArray[np.int64]  # the first start
    ended_s: NDArray[np.int64]
    queued_s: NDArray[np.int64]
    left_s: NDArray[np.int64]  # of a waiting job: run time left
    last_s: NDArray[np.int64]  # of a running job: when nothing will be left
    stopped_s: NDArray[np.int64]  # the last time
    stops: NDArray[np.int64]
    waiting: NDArray[np.int64]  # room for a list of jobs, as are the others
    running: NDArray[np.int64]
    elected: NDArray[np.int64]
    refused: NDArray[np.int64]
