"""What is known of the use of a run, whatever the sources that measured it."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.model import JOB_USE, UseQuality, UseSource
from helios.units import HOUR_S, MINUTE_S

RUN = ("submitted_at", "job_id", "restart")
"""Columns by which a run is known."""
IDLE = 1.0
"""Utilization, %, below which a GPU is idle."""
UTILIZATION_ENDS = (1.0, 10.0, 25.0, 50.0, 75.0)
"""Where the next class of utilization begins, %."""
UTILIZATION_CLASSES = ("idle (<1 %)", "1-10 %", "10-25 %", "25-50 %", "50-75 %", ">=75 %", "unknown")
MEMORY_ENDS = (0.25, 0.5, 0.75)
"""Where the next class of held memory begins, as a share of the GPU's."""
MEMORY_CLASSES = ("<1/4", "1/4-1/2", "1/2-3/4", ">=3/4", "unknown")
IDLE_TIMEOUT_S = 2 * HOUR_S
"""Time without use after which an interactive session may well be ended, s."""
COVERED = 0.9
"""Share of a run that a measurement must cover to stand for it."""
EARLY_S, LOADING_S = 15 * MINUTE_S, 5 * MINUTE_S
"""When a run is predicted a second time, s after its start, and how long it may load until then."""
DISAGREE = 20.0
"""Points of utilization, %, from which whole measurements of one run contradict each other."""
_TRUST = (UseQuality.OK, UseQuality.PARTIAL, UseQuality.SHORT, UseQuality.NONE, UseQuality.BROKEN)
"""Qualities, the most trusted first."""
_OF_GPUS = tuple(
    name
    for name in JOB_USE.names[JOB_USE.names.index("busy_means") : JOB_USE.names.index("cpu_s")]
    if not name.startswith("gpu_memory")
)
_EXTENT = ("busy_means", "samples", "covered_s", "gpus_measured")
"""What is said of a measurement, whether or not it found any use of GPUs."""
_ALONE = ("gpu_memory_peak_mib", "gpu_memory_total_mib")
_MEMORY = ("memory_peak_mib", "memory_limit_mib")
_GROUPS = (_OF_GPUS, _ALONE, ("cpu_s",), _MEMORY, ("is_mig",), ("is_shared",), ("is_interactive",))
"""Columns that are taken from one source together, the first that has any of them."""


def one_row_a_run(use: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each run, of what its most trusted source knows.

    Parameters
    ----------
    use : DataFrame
        Columns of ``JOB_USE``.

    Returns
    -------
    DataFrame
        Columns of ``JOB_USE``, without two rows of a run, in the order of ``use``. ``source`` is that of the use of
        GPUs where it is known. A whole measurement comes before a partial one. Of broken records nothing is known, and
        measurements that contradict each other are broken.
    """
    rows = use.astype(dict.fromkeys(("source", "busy_means", "quality"), "object")).reset_index(drop=True)
    # A number for each run: an index of three levels takes ten times as long.
    rows["run"] = rows.groupby([*RUN], sort=False).ngroup()
    rows.loc[contradict(rows), "quality"] = UseQuality.BROKEN
    sources, qualities = (
        pd.Categorical(rows[name], categories=[*order]).codes
        for name, order in (("source", UseSource), ("quality", _TRUST))
    )
    rows.loc[rows["quality"] == UseQuality.BROKEN, [name for columns in _GROUPS for name in columns]] = np.nan
    ordered = rows.iloc[np.lexsort([sources, qualities])]
    runs = ordered.drop_duplicates("run").set_index("run").sort_index()
    for columns in _GROUPS:
        is_known = ordered[[name for name in columns if name not in _EXTENT]].notna().any(axis=1)
        known = ordered[is_known].drop_duplicates("run").set_index("run")
        taken = [*columns, *(("source", "quality") if columns is _OF_GPUS else ())]
        runs.loc[known.index, taken] = known[taken]
    return JOB_USE.conform(runs.reset_index(drop=True))


def contradict(use: pd.DataFrame) -> NDArray[np.bool_]:
    """Return the rows of whole measurements of a run that contradict each other.

    They mean the same by busy, and their utilization is more than ``DISAGREE`` apart.
    """
    whole = use.loc[(use["quality"] == UseQuality.OK) & use["utilization"].notna(), [*RUN, "busy_means", "utilization"]]
    same = whole[whole.duplicated([*RUN, "busy_means"], keep=False)].groupby([*RUN, "busy_means"], observed=True)
    apart = same["utilization"].transform("max") - same["utilization"].transform("min")
    return np.asarray(use.index.isin(apart.index[apart > DISAGREE]))


def stands_for_run(use: pd.DataFrame) -> pd.Series[bool]:
    """Return whether what is known of its GPUs stands for each run.

    It does not of a GPU that other jobs shared, of some of its GPUs, or of less than ``COVERED`` of the run.

    Parameters
    ----------
    use : DataFrame
        Columns of ``JOB_USE``, one row for each run, with ``gpus`` and ``run_time_s`` of ``JOBS``.
    """
    step_s = (use["covered_s"] / use["samples"]).fillna(0.0)  # the first sample may come that late
    is_part = (use["gpus_measured"] < use["gpus"]) | (use["covered_s"] + step_s < COVERED * use["run_time_s"])
    return (use["quality"] == UseQuality.OK) & (use["is_shared"] != 1) & ~is_part


def use_of_runs(use: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return what each run used, a row for each, unknown where it was not measured.

    Parameters
    ----------
    use : DataFrame
        Columns of ``JOB_USE``, one row for each run.
    runs : DataFrame
        Columns ``RUN``.
    """
    return use.set_index([*RUN]).reindex(pd.MultiIndex.from_frame(runs[[*RUN]])).reset_index()


def freed_by_timeout_s(
    use: pd.DataFrame, run_time_s: NDArray[np.float64], timeout_s: float = IDLE_TIMEOUT_S
) -> NDArray[np.float64]:
    """Return the time that ending idle interactive sessions frees at least, s.

    A session ends once it was idle for the time-out; that its user begins another after its longest idle time is
    allowed for. It is 0 of other runs, and NaN where it is not known whether a run is a session, or when it idled.

    Parameters
    ----------
    use : DataFrame
        Columns of ``JOB_USE``, one row for each run.
    run_time_s : float64 array of shape (n_runs,)
    """
    is_session = use["is_interactive"].to_numpy(dtype=np.float64)
    # No sample of a busy GPU: idle from begin to end.
    never_busy = (use["utilization_max"] < IDLE) | (use["idle_share"] >= 1) | (use["utilization"] == 0)
    idle_s = np.where(never_busy, run_time_s, use["longest_idle_s"].to_numpy(dtype=np.float64))
    freed = np.clip(np.minimum(idle_s, run_time_s) - timeout_s, 0.0, None)
    return np.where(is_session == 1, freed, np.where(is_session == 0, 0.0, np.nan))


def utilization_class(percent: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the place of each utilization in ``UTILIZATION_CLASSES``.

    It is the last where a utilization is not known.
    """
    return _place(percent, UTILIZATION_ENDS)


def memory_class(peak_mib: NDArray[np.float64], total_mib: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the place of each peak of GPU memory in ``MEMORY_CLASSES``.

    It is the last where a peak or a size is not known.
    """
    return _place(peak_mib / np.where(total_mib > 0, total_mib, np.nan), MEMORY_ENDS)


def _place(values: NDArray[np.float64], ends: tuple[float, ...]) -> NDArray[np.int64]:
    return np.where(np.isnan(values), len(ends) + 1, np.searchsorted(ends, values, side="right"))
