"""Texts that only Slurm writes: job ids, TRES and GRES lists, memory with its hidden flag."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from helios.ingest.checks import Mask
from helios.ingest.parse import distinct_texts

MIB_PER_UNIT = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3, "E": 1024.0**4}

# slurm.h MEM_PER_CPU: the flag bit that says "per CPU", in a 32-bit word up to Slurm 16.05 and a 64-bit one
# since. sacct of those days printed it as part of the number: 2147486648Mn is 3,000 MiB per CPU, which the
# same rows' AllocTRES confirm (8 CPUs, mem=24000M).
_MEMORY_PER_CPU_FLAGS = (2**63, 2**31)

# Slurm numbers GRES types by folding the bytes of the name: g + (p << 8) + (u << 16). Up to 17.11 sacct
# printed that number instead of "gpu" where the plugin was not loaded.
_GPU_NAMES = frozenset({"gpu", str(ord("g") + (ord("p") << 8) + (ord("u") << 16))})

_MEMORY = re.compile(r"(\d{1,20}(?:\.\d+)?)([KMGTPE]?)B?([cn]?)", re.ASCII)
# A pending array is printed as 12_[3-7%2], cut to 12_[3,5,7,... where it is long.
_JOB_ID = r"^(?P<master>\d+)(?:_(?P<task>\d+|\[[^\]]*\]?))?(?:\+(?P<offset>\d{1,9}))?"


class Tres(NamedTuple):
    """What a TRES list names; NaN and None where it does not."""

    gpus: float = np.nan
    gpu_type: str | None = None
    cpus: float = np.nan
    nodes: float = np.nan
    memory_mib: float = np.nan
    readable: bool = True


class ParsedTexts(NamedTuple):
    """A ReqMem text: MiB for the job, for each CPU or for each node; and whether it was understood."""

    mib: float = np.nan
    each_cpu: bool = False
    each_node: bool = False
    readable: bool = True


class JobIds(NamedTuple):
    """The parts of Slurm job ids, each of shape (n_rows,)."""

    is_step: Mask
    is_unreadable: Mask
    array_job_id: pa.Array
    array_task_id: pa.Array
    het_job_id: pa.Array
    het_job_offset: NDArray[np.float64]


Entry = TypeVar("Entry", bound=Tres | ParsedTexts)


class DistinctColumn(Generic[Entry]):
    """A column of texts read once for each distinct one."""

    def __init__(self, texts: pa.Array, read: Callable[[str], Entry], missing: Entry) -> None:
        codes, distinct = distinct_texts(texts)
        self.codes: NDArray[np.int32] = codes
        self.entries: list[Entry] = [*(read(text) for text in distinct), missing]

    def floats(self, name: str) -> NDArray[np.float64]:
        """Return one field of the entries, shape (n_rows,)."""
        return np.array([getattr(entry, name) for entry in self.entries], dtype=np.float64)[self.codes]

    def texts(self, name: str) -> pa.Array:
        """Return one field of the entries as texts, null where it is None."""
        return pa.array([getattr(entry, name) for entry in self.entries], pa.string()).take(pa.array(self._places()))

    @property
    def unreadable(self) -> Mask:
        """Rows whose text was not understood, shape (n_rows,)."""
        return ~self.floats("readable").astype(np.bool_)

    def _places(self) -> NDArray[np.int64]:
        return np.where(self.codes < 0, len(self.entries) - 1, self.codes).astype(np.int64)


def tres_lists(texts: pa.Array) -> DistinctColumn[Tres]:
    """Return what each TRES list names, as ``cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=62.50G,node=1``."""
    return DistinctColumn(texts, _tres, Tres())


def gpus_per_node(texts: pa.Array) -> DistinctColumn[Tres]:
    """Return the GPUs and their type that each GRES list names, as ``gpu:a100:2`` or ``gres:gpu:2(IDX:0-1)``."""
    return DistinctColumn(texts, _gres, Tres())


def memories(texts: pa.Array) -> DistinctColumn[ParsedTexts]:
    """Return what each ReqMem text says; 0 (Slurm: all memory of the node) is unknown."""
    return DistinctColumn(texts, _memory, ParsedTexts())


def job_ids(texts: pa.Array) -> JobIds:
    """Take apart Slurm's JobID: ``12``, ``12_3``, ``12_[4-9]``, ``12+1``, and steps, which have a dot."""
    if _matches(texts, r"^\d+$").all():
        return _plain_ids(len(texts))
    parts = pc.extract_regex(texts, _JOB_ID)
    master, task, offset = (_part(parts, name) for name in ("master", "task", "offset"))
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
    # Most files have nothing but numbers, and the pattern above is slow.
    nothing, nowhere = pa.nulls(rows, pa.string()), np.zeros(rows, dtype=np.bool_)
    return JobIds(nowhere, nowhere, nothing, nothing, nothing, np.full(rows, np.nan))


def _part(parts: pa.StructArray, name: str) -> pa.Array:
    texts = pc.struct_field(parts, name)
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def _matches(texts: pa.Array, pattern: str) -> Mask:
    return np.asarray(pc.fill_null(pc.match_substring_regex(texts, pattern), False))


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
    # Slurm lists a typed GPU under gres/gpu too (AccountingStorageTRES with both): the same GPUs, not more.
    gpus = counts.get("gres/gpu", sum(typed.values()) if typed else np.nan)
    return Tres(
        gpus=gpus,
        gpu_type=",".join(sorted(kind for kind, count in typed.items() if count)) or None,
        cpus=counts.get("cpu", np.nan),
        nodes=counts.get("node", np.nan),
        memory_mib=counts.get("mem", np.nan),
    )


def _gres(text: str) -> Tres:
    gpus, kinds = np.nan, set()
    # An index list, as (IDX:0-1), may hold commas of its own.
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
    # Only whole numbers are compared: a float cannot hold 2**63 and a few thousand at once.
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
