"""Parsers of texts in Slurm's own formats.

They read job ids, TRES and GRES lists, and requested memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from helios.ingest.checks import Mask
from helios.ingest.parse import all_digits, distinct_texts, without

MIB_PER_UNIT = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3, "E": 1024.0**4}

# slurm.h MEM_PER_CPU: the flag bit that means "per CPU", in a 32-bit word up to Slurm 16.05 and a 64-bit one
# since. sacct of that time printed it as part of the number: 2147486648Mn is 3,000 MiB per CPU, as AllocTRES of the
# same rows confirms (8 CPUs, mem=24000M).
_MEMORY_PER_CPU_FLAGS = (2**63, 2**31)

# Slurm makes the number of a GRES type from the bytes of its name: g + (p << 8) + (u << 16). Up to 17.11 sacct
# printed that number instead of "gpu" where the plugin was not loaded.
_GPU_NAMES = frozenset({"gpu", str(ord("g") + (ord("p") << 8) + (ord("u") << 16))})

# Texts whose values are remembered from one block of rows to the next.
_REMEMBERED = 50_000

_MEMORY = re.compile(r"(\d{1,20}(?:\.\d+)?)([KMGTPE]?)B?([cn]?)", re.ASCII)
# A pending array is printed as 12_[3-7%2], and cut to 12_[3,5,7,... where it is long.
_JOB_ID = r"^(?P<master>\d+)(?:_(?P<task>\d+|\[[^\]]*\]?))?(?:\+(?P<offset>\d{1,9}))?"


class Tres(NamedTuple):
    """Amounts in a TRES list.

    NaN and None where the list does not name them.
    """

    gpus: float = np.nan
    gpu_type: str | None = None
    cpus: float = np.nan
    nodes: float = np.nan
    memory_mib: float = np.nan
    readable: bool = True


class ParsedTexts(NamedTuple):
    """A parsed ReqMem text.

    Attributes
    ----------
    mib : float
        MiB for the job, for each CPU or for each node; NaN where unknown.
    each_cpu, each_node : bool
        Whether ``mib`` is for each CPU or for each node.
    readable : bool
        Whether the text was understood.
    """

    mib: float = np.nan
    each_cpu: bool = False
    each_node: bool = False
    readable: bool = True


class JobIds(NamedTuple):
    """Parts of Slurm job ids, each of shape (n_rows,)."""

    is_step: Mask
    is_unreadable: Mask
    array_job_id: pa.Array
    array_task_id: pa.Array
    het_job_id: pa.Array
    het_job_offset: NDArray[np.float64]


Entry = TypeVar("Entry", bound=Tres | ParsedTexts)


class DistinctColumn(Generic[Entry]):
    """A column of texts, each distinct one parsed once.

    Parameters
    ----------
    texts : pyarrow.StringArray
        The column.
    read : callable
        Parses one text.
    missing : Tres or ParsedTexts
        Entry of rows without a text.
    """

    def __init__(self, texts: pa.Array, read: Callable[[str], Entry], missing: Entry) -> None:
        codes, distinct = distinct_texts(texts)
        self.codes: NDArray[np.int32] = codes
        self.entries: list[Entry] = [*(read(text) for text in distinct), missing]

    def floats(self, name: str) -> NDArray[np.float64]:
        """Return one field of each row's entry, shape (n_rows,)."""
        return np.array([getattr(entry, name) for entry in self.entries], dtype=np.float64)[self.codes]

    def texts(self, name: str) -> pa.Array:
        """Return one field of each row's entry as text."""
        places = np.where(self.codes < 0, len(self.entries) - 1, self.codes).astype(np.int64)
        return pa.array([getattr(entry, name) for entry in self.entries], pa.string()).take(pa.array(places))

    @property
    def unreadable(self) -> Mask:
        """Mask of rows whose text was not understood, shape (n_rows,)."""
        return ~self.floats("readable").astype(np.bool_)


def tres_lists(texts: pa.Array) -> DistinctColumn[Tres]:
    """Parse TRES lists.

    An example of one is ``cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=62.50G,node=1``.
    """
    return DistinctColumn(texts, _tres, Tres())


def gpus_per_node(texts: pa.Array) -> DistinctColumn[Tres]:
    """Parse the GPUs and their type in GRES lists.

    Examples are ``gpu:a100:2`` and ``gres:gpu:2(IDX:0-1)``.
    """
    return DistinctColumn(texts, _gres, Tres())


def memories(texts: pa.Array) -> DistinctColumn[ParsedTexts]:
    """Parse ReqMem texts.

    0 is unknown, since it means all memory of the node in Slurm.
    """
    return DistinctColumn(texts, _memory, ParsedTexts())


def job_ids(texts: pa.Array) -> JobIds:
    """Split Slurm job ids into their parts.

    Ids are ``12``, ``12_3`` and ``12_[4-9]`` (job arrays), and ``12+1`` (heterogeneous jobs). Ids with a dot are steps.
    """
    if all_digits(texts):
        return _plain_ids(len(texts))
    parts = pc.extract_regex(texts, _JOB_ID)
    master, task, offset = (without(pc.struct_field(parts, name), "") for name in ("master", "task", "offset"))
    step = _matches(texts, _JOB_ID + r"\.")
    return JobIds(
        is_step=step,
        is_unreadable=~_matches(texts, _JOB_ID + "$") & ~step & texts.is_valid().to_numpy(zero_copy_only=False),
        array_job_id=pc.if_else(task.is_valid(), master, pa.scalar(None, pa.string())),
        array_task_id=task,
        het_job_id=pc.if_else(offset.is_valid(), master, pa.scalar(None, pa.string())),
        het_job_offset=pc.cast(offset, pa.float64()).to_numpy(zero_copy_only=False),
    )


def _plain_ids(rows: int) -> JobIds:
    # Most files have plain numbers only, and the pattern above is slow.
    nothing, nowhere = pa.nulls(rows, pa.string()), np.zeros(rows, dtype=np.bool_)
    return JobIds(nowhere, nowhere, nothing, nothing, nothing, np.full(rows, np.nan))


def _matches(texts: pa.Array, pattern: str) -> Mask:
    return np.asarray(pc.fill_null(pc.match_substring_regex(texts, pattern), False))


@lru_cache(maxsize=_REMEMBERED)
def _tres(text: str) -> Tres:
    counts: dict[str, float] = {}
    typed: dict[str, float] = {}
    for entry in filter(None, text.split(",")):
        name, _, amount = entry.partition("=")
        value = _memory(amount).mib if name == "mem" else _amount(amount)
        if value is None:
            return Tres(readable=False)
        if name.startswith("gres/gpu:"):
            typed[name.removeprefix("gres/gpu:")] = value
        else:
            counts[name] = value
    # With both in AccountingStorageTRES, Slurm lists a typed GPU under gres/gpu too: they are the same GPUs.
    gpus = counts.get("gres/gpu", sum(typed.values()) if typed else np.nan)
    return Tres(
        gpus=gpus,
        gpu_type=",".join(sorted(kind for kind, count in typed.items() if count)) or None,
        cpus=counts.get("cpu", np.nan),
        nodes=counts.get("node", np.nan),
        memory_mib=counts.get("mem", np.nan),
    )


@lru_cache(maxsize=_REMEMBERED)
def _gres(text: str) -> Tres:
    gpus, kinds = np.nan, set()
    # An index list, as (IDX:0-1), may hold commas itself.
    for entry in re.sub(r"\([^)]*\)", "", text).split(","):
        name, *rest = re.split(r"[:=]", entry.strip().removeprefix("gres:").removeprefix("gres/"))
        if name not in _GPU_NAMES:
            continue
        count = _amount(rest[-1]) if rest else 1.0
        kind = rest[:-1] if count is not None else rest
        kinds.update(kind)
        gpus = (0.0 if np.isnan(gpus) else gpus) + (1.0 if count is None else count)
    return Tres(gpus=gpus, gpu_type=",".join(sorted(kinds)) or None)


def _memory(text: str) -> ParsedTexts:
    found = _MEMORY.fullmatch(text.strip())
    if not found:
        return ParsedTexts(readable=text.strip() in {"", "?", "Unknown", "None", "N/A"})
    number, unit, each = float(found[1]), found[2] or "M", found[3]
    # Whole numbers are compared: a float has too few digits for 2**63 plus a few thousand.
    whole = int(found[1]) if found[1].isdigit() else 0
    for flag in _MEMORY_PER_CPU_FLAGS:
        if unit == "M" and whole >= flag:
            number, each = float(whole - flag), "c"
            break
    return ParsedTexts(mib=number * MIB_PER_UNIT[unit] or np.nan, each_cpu=each == "c", each_node=each == "n")


def _amount(text: str) -> float | None:
    scale = {"K": 1024.0, "M": 1024.0**2, "G": 1024.0**3, "T": 1024.0**4}.get(text[-1:], 1.0)
    digits = text[:-1] if scale > 1 else text
    try:
        value = float(digits)
    except ValueError:
        return None
    return value * scale if np.isfinite(value) else None
