"""Reader of what jobs used, as sacct prints it.

A site records it if it sets ``JobAcctGatherType``, and use of GPUs if ``AccountingStorageTRES`` names ``gres/gpuutil``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from helios.errors import AnswerNotUnderstood
from helios.slurm.parse import length_s

USAGE_FIELDS = "JobIDRaw,User,Partition,State,ElapsedRaw,AllocTRES,TotalCPU,NTasks,MaxRSS,TRESUsageInTot,JobName"
"""Fields that are read. The name is the last, since only it may hold a delimiter."""
COLUMNS = ("job_id", "user", "partition", "name", "state", "run_time_s", "nodes", "gpus", "cpus", "memory_mib")
USED = ("cpu_s", "used_memory_mib", "gpu_percent")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)", re.ASCII)
_BYTES = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4, "P": 1024**5}
_MIB = 1024**2


def read_usage(text: str, *, delimiter: str = "|") -> pd.DataFrame:
    """Return what each ended job had and used.

    Parameters
    ----------
    text : str
        Output of ``sacct --parsable2 --format=USAGE_FIELDS`` without ``--allocations``, with or without its header. A
        job may be in it twice.

    Returns
    -------
    DataFrame
        ``COLUMNS``, and ``USED``, NaN where it is not recorded: CPU seconds; MiB, the sum over steps of the largest
        that each task had, so at least what the job had at once; per cent of one GPU, summed in the same way.

    Raises
    ------
    AnswerNotUnderstood
        No line has these fields.
    """
    names = USAGE_FIELDS.split(",")
    rows = [line.split(delimiter, len(names) - 1) for line in text.split("\n") if line.strip()]
    known = [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names) and row != names]
    if rows and not known and rows != [names]:
        raise AnswerNotUnderstood(
            "No line has the fields of what jobs used.",
            hint=f"Write it with: sacct --parsable2 --noconvert --starttime=now-4weeks --format={USAGE_FIELDS}",
        )
    jobs: dict[str, dict[str, object]] = {}
    steps: dict[str, dict[str, Mapping[str, str]]] = {}
    for row in known:
        job, dot, step = row["JobIDRaw"].partition(".")
        if dot:
            steps.setdefault(job, {})[step] = row
        elif (job_values := _job(row)) is not None:
            jobs[job] = job_values
    found = [{"job_id": job, **values, **_used(steps.get(job, {}).values())} for job, values in jobs.items()]
    return pd.DataFrame(found, columns=[*COLUMNS, *USED])


def _job(row: Mapping[str, str]) -> dict[str, object] | None:
    """Return what an ended job had, else None."""
    state = row["State"].partition(" ")[0]
    if not row["ElapsedRaw"].isdigit() or not int(row["ElapsedRaw"]) or state in {"PENDING", "RUNNING", "SUSPENDED"}:
        return None
    had = _amounts(row["AllocTRES"])
    return {
        "user": row["User"],
        "partition": row["Partition"],
        "name": row["JobName"],
        "state": state,
        "run_time_s": float(row["ElapsedRaw"]),
        "nodes": had.get("node", np.nan),
        "gpus": had.get("gres/gpu", 0.0),
        "cpus": had.get("cpu", np.nan),
        "memory_mib": had.get("mem", np.nan) / _MIB,
    }


def _used(steps: Iterable[Mapping[str, str]]) -> dict[str, float]:
    """Return the sums over a job's steps, NaN if unknown."""
    sums = dict.fromkeys(USED, np.nan)
    for step in steps:
        used = _amounts(step["TRESUsageInTot"])
        tasks = float(step["NTasks"]) if step["NTasks"].isdigit() else 1.0
        peak = used.get("mem", _size(step["MaxRSS"]) * tasks)
        if np.isnan(peak):
            continue  # nothing was gathered for this step
        seconds = length_s(step["TotalCPU"].partition(".")[0])
        amounts = (seconds if isinstance(seconds, float) else 0.0, peak / _MIB, used.get("gres/gpuutil", np.nan))
        for name, amount in zip(USED, amounts, strict=True):
            sums[name] = np.nansum([sums[name], amount]) if not np.isnan(amount) else sums[name]
    return sums


def _amounts(text: str) -> dict[str, float]:
    pairs = (entry.partition("=") for entry in text.split(",") if "=" in entry)
    return {name: size for name, _, amount in pairs if not np.isnan(size := _size(amount))}


def _size(text: str) -> float:
    found = _SIZE.fullmatch(text)
    return float(found[1]) * _BYTES[found[2]] if found else np.nan
