"""Reader of the summaries that jobstats writes into AdminComment.

A summary is ``JS1:`` and base64 of gzip of JSON, made from Prometheus when a job ends. Source: jobstats.py and
db_handler.py of https://github.com/PrincetonUniversity/jobstats (1.0). It gives for each node the CPU seconds and the
memory of the job, and for each GPU the mean of its utilization (NVML: a kernel ran) and the most memory held.
"""

from __future__ import annotations

import re
import zlib
from binascii import a2b_base64
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic_core import from_json

from helios.model import LONGEST_GPU, BusyMeans, UseQuality

MARK = "JS1:"
"""What a summary begins with. sacctmgr of Slurm 22.05 writes it and all that follows in small letters, which breaks it;
scontrol does not."""
_WITHOUT_SUMMARY = {"short": UseQuality.SHORT, "none": UseQuality.NONE}
"""Words in place of a summary: the job ran for less than two samples, or Prometheus knew nothing of it."""
_BODY = re.compile("[Jj][Ss]1:([A-Za-z0-9+/]*={0,2})")
_MOST_BYTES = 4 << 20
"""Most bytes of an unpacked summary: 1,000 nodes of 8 GPUs have 0.5 MB."""
_NAME = re.compile(r"[\w.:/-]{1,255}", re.ASCII)
"""What a node or a GPU may be called."""
_MOST_NAMES = 10_000
_MOST = 1e18
"""No number of a summary is as large: bytes, seconds and per cent."""
_MIB = 1024.0**2

GPU_VALUES = ("utilization", "gpu_memory_peak_mib", "gpu_memory_total_mib")
_OF_NODE = ("total_time", "used_memory", "total_memory")
_OF_GPU = ("gpu_utilization", "gpu_used_memory", "gpu_total_memory")


class Summaries(NamedTuple):
    """What jobs and their GPUs used.

    Attributes
    ----------
    jobs : DataFrame
        Columns of ``JOB_USE`` without the key, with a row for each text.
    gpus : DataFrame
        ``node``, ``gpu`` and ``GPU_VALUES``, with a row for each GPU; ``record`` is the position of its job.
    """

    jobs: pd.DataFrame
    gpus: pd.DataFrame


def read_summaries(comments: Sequence[str]) -> Summaries:
    """Return what texts with ``MARK`` say.

    Nothing is corrected: more memory used than there is, is kept and makes the quality ``BROKEN``. ``covered_s`` is the
    time over which the summary was made. Its samples are not known. A text that cannot be read gives a row without
    values, ``BROKEN`` too.
    """
    # Numbers are collected first and checked as columns, which takes a third of the time.
    rows = _Rows()
    for record, comment in enumerate(comments):
        found = _BODY.search(comment)
        text = found[1] if found else ""
        if quality := _WITHOUT_SUMMARY.get(text.lower()):
            rows.jobs += (None, None, quality)
        else:
            rows.add(record, _unpacked(text))
    return rows.summaries()


def _unpacked(text: str) -> Any:
    """Return the JSON of a summary, None where there is none."""
    unzip = zlib.decompressobj(wbits=31)  # gzip with its checksum
    try:
        content = unzip.decompress(a2b_base64(text), _MOST_BYTES)
        return from_json(content, allow_inf_nan=False) if unzip.eof else None
    except (ValueError, zlib.error):  # ValueErrors: no base64, no JSON, nested too deeply
        return None


@lru_cache(_MOST_NAMES)
def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


class _Rows:
    """Values of jobs, nodes and GPUs as they stand in the summaries."""

    def __init__(self) -> None:
        # Values row after row: Python's garbage collection would go through tuples again and again.
        self.jobs, self.nodes, self.gpus = list[Any](), list[Any](), list[Any]()

    def add(self, record: int, found: Any) -> None:
        """Add a summary."""
        nodes = found.get("nodes", {}) if isinstance(found, dict) else None
        if not isinstance(nodes, dict):
            self.jobs += (None, None, UseQuality.BROKEN)
            return
        is_odd = False
        for node, values in nodes.items():
            if not isinstance(values, dict):
                is_odd = True
                continue
            self.nodes += (record, *map(values.get, _OF_NODE))
            used, peak, total = (values.get(name) or {} for name in _OF_GPU)
            if not (isinstance(used, dict) and isinstance(peak, dict) and isinstance(total, dict) and _is_name(node)):
                is_odd = True
                continue
            for gpu in {**used, **peak, **total}:
                if len(gpu) > LONGEST_GPU or not _is_name(gpu):
                    is_odd = True
                else:
                    self.gpus += (record, node, gpu, used.get(gpu), peak.get(gpu), total.get(gpu))
        quality = UseQuality.BROKEN if is_odd else None if nodes else UseQuality.NONE
        self.jobs += (found.get("gpus"), found.get("total_time"), quality)

    def summaries(self) -> Summaries:
        """Return them, checked and summed."""
        held, wall, given = _columns(self.jobs, 3)
        size = len(held)
        node_at, *of_nodes = _columns(self.nodes, 1 + len(_OF_NODE))
        gpu_at, node, gpu, *of_gpus = _columns(self.gpus, 3 + len(_OF_GPU))
        at, gpu_job = np.array(node_at, dtype=np.int64), np.array(gpu_at, dtype=np.int64)
        broken = np.zeros(size, dtype=np.bool_)
        everything = np.arange(size)

        def numbers(values: Sequence[Any], places: NDArray[np.int64], unit: float = 1.0) -> NDArray[np.float64]:
            found = _floats(values)
            is_none = ~((found >= 0) & (found < _MOST) | np.isnan(found))
            broken[places[is_none]] = True
            found[is_none] = np.nan
            return found / unit

        gpus, seconds = numbers(held, everything), numbers(wall, everything)
        cpu_s, memory, limit = (
            numbers(values, at, unit) for values, unit in zip(of_nodes, (1.0, _MIB, _MIB), strict=True)
        )
        used, peak, total = (
            numbers(values, gpu_job, unit) for values, unit in zip(of_gpus, (1.0, _MIB, _MIB), strict=True)
        )
        broken[at[memory > limit]] = broken[gpu_job[(peak > total) | (used > 100.0)]] = True
        has_nodes = np.bincount(at, minlength=size) > 0
        measured, of_use = (
            np.bincount(gpu_job, known, size) for known in (~np.isnan(used) | ~np.isnan(peak), ~np.isnan(used))
        )
        # A summary of MIG slices has no utilization at all, since NVML knows none.
        is_part = (measured < gpus) | (of_use > 0) & (of_use < measured)
        qualities = np.array(given, dtype=object)
        is_open = qualities == np.array(None)
        qualities[is_open] = np.where(is_part, UseQuality.PARTIAL.value, UseQuality.OK.value)[is_open]
        qualities[broken] = UseQuality.BROKEN
        sums = {"cpu_s": cpu_s, "memory_peak_mib": memory, "memory_limit_mib": limit}
        with np.errstate(invalid="ignore"):
            mean = np.bincount(gpu_job, np.nan_to_num(used), size) / of_use
        jobs = {
            "quality": qualities,
            "busy_means": np.where(of_use > 0, BusyMeans.KERNEL.value, np.array(None)),
            "covered_s": seconds,
            "gpus_measured": np.where(has_nodes, measured, np.nan),
            "utilization": mean,
            "gpu_memory_peak_mib": _largest(peak, gpu_job, size),
            "gpu_memory_total_mib": _largest(total, gpu_job, size),
            **{name: np.where(has_nodes, np.bincount(at, values, size), np.nan) for name, values in sums.items()},
            "is_mig": np.where(measured > 0, of_use == 0, np.nan),
        }
        values = dict(zip(GPU_VALUES, (used, peak, total), strict=True))
        return Summaries(pd.DataFrame(jobs), pd.DataFrame({"record": gpu_job, "node": node, "gpu": gpu, **values}))


def _columns(values: list[Any], number: int) -> list[list[Any]]:
    return [values[place::number] for place in range(number)]


def _floats(values: Sequence[Any]) -> NDArray[np.float64]:
    """Return numbers, NaN where they are missing and infinite where they are none."""
    if {*map(type, values)} <= {int, float, type(None)}:
        with suppress(OverflowError):  # a whole number beyond all floats
            return np.array(values, dtype=np.float64)
    known = (np.inf if type(value) not in (int, float, type(None)) else value for value in values)
    return np.array([np.inf if value and value > _MOST else value for value in known], dtype=np.float64)


def _largest(values: NDArray[np.float64], places: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    """Return the largest known value at each place."""
    found = np.full(size, np.nan)
    np.fmax.at(found, places, values)
    return found
