"""Reader of Slurm's accounting as ``sacct`` prints it.

A file has a header line and any delimiter, or is a raw dump without a header. Field names and their meaning: sacct(1),
"Job Accounting Fields". Any choice and order of fields is read. The delimiter is found between the names in the header.

A delimiter of a single character can be written into a job name, and with it the whole record of another job. A longer
one that nobody could guess separates records reliably.

Records are then separated by counting delimiters, as ``sacct --parsable --delimiter=WORD`` neither quotes nor escapes.
A delimiter that nobody could know when the fields were written occurs in none of them. So the text between two
delimiters is one field, whatever line breaks it holds, and a fixed number of fields is one record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from helios.errors import FileUnreadable, FormatUnknown, HostlistInvalid
from helios.ingest.delimited import DelimitedRows, Translation, read_rows
from helios.ingest.job_rows import FileReading, JobRows, Layout, Refused
from helios.ingest.lines import LONGEST_LINE_BYTES, REPLACED, Block, Decoded, RowTexts, decode, file_sha256, head
from helios.ingest.parse import (
    NOT_A_TIME,
    Instants,
    Mask,
    Reason,
    all_digits,
    category,
    distinct_texts,
    has_utc_offset,
    known_values,
    spans,
    strings,
    without,
)
from helios.ingest.repair import Dialect, distinct_names
from helios.model import JobState
from helios.model.gpu_parts import USUAL_MPS, Places, gpus_asked, gpus_of_shares, is_slice, part_of_gpu, places
from helios.model.nodes import expand

MIB_PER_UNIT = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3, "E": 1024.0**4}

# slurm.h MEM_PER_CPU: the flag bit that means "per CPU", in a 32-bit word up to Slurm 16.05 and a 64-bit one
# since. sacct of that time printed it as part of the number: 2147486648Mn is 3,000 MiB per CPU, as AllocTRES of the
# same rows confirms (8 CPUs, mem=24000M).
_MEMORY_PER_CPU_FLAGS = (2**63, 2**31)

# Slurm makes the number of a GRES type from the bytes of its name: g + (p << 8) + (u << 16). Up to 17.11 sacct
# printed that number instead of "gpu" where the plugin was not loaded.
_GPU_NAMES = frozenset({"gpu", str(ord("g") + (ord("p") << 8) + (ord("u") << 16))})

_PER = re.compile(r"PER_(JOB|NODE|SOCKET|TASK):")
"""What the entries behind it are for each of, in ReqGRES of Slurm 19.05 and 20.02."""

_MOST_RESTARTS = 2**16
"""Slurm keeps 16 bits of it (slurm.h restart_cnt); larger numbers are NO_VAL."""

# Texts whose values are remembered from one block of rows to the next.
_REMEMBERED = 50_000

_MEMORY = re.compile(r"(\d{1,20}(?:\.\d+)?)([KMGTPE]?)B?([cn]?)", re.ASCII)
# A pending array is printed as 12_[3-7%2], and cut to 12_[3,5,7,... where it is long.
_JOB_ID = r"^(?P<master>\d+)(?:_(?P<task>\d+|\[[^\]]*\]?))?(?:\+(?P<offset>\d{1,9}))?"

# The 26 fields of a dump without a header, as in Open XDMoD's shredder and its reference data.
RAW_FIELDS = (
    *("jobid", "jobidraw", "cluster", "partition", "qos", "account", "group", "gid", "user", "uid"),
    *("submit", "eligible", "start", "end", "elapsed", "exitcode", "state", "nnodes", "ncpus", "reqcpus"),
    *("reqmem", "reqtres", "alloctres", "timelimit", "nodelist", "jobname"),
)

# Columns of JOBS and the sacct fields that give them, the best first.
SOURCES = {
    "job_id": ("jobidraw", "jobid"),
    "name": ("jobname", "name"),
    "user": ("user", "username", "uid"),
    "group": ("group", "gid"),
    "account": ("account",),
    "qos": ("qos", "qosraw"),
    "partition": ("partition",),
    "state": ("state", "jobstate"),
    "exit_code": ("exitcode",),
    "submitted_at": ("submit", "submittime"),
    "eligible_at": ("eligible", "eligibletime"),
    "started_at": ("start", "starttime"),
    "ended_at": ("end", "endtime"),
    "tres_requested": ("reqtres", "tresreq"),
    "tres_allocated": ("alloctres", "tresalloc"),
    "node_list": ("nodelist", "nodes"),
}
_SUBMIT_LINE = "submitline"
_OTHER_FIELDS = (
    *("jobid", "cluster", "clustername", "elapsed", "elapsedraw", "timelimit", "timelimitraw", "nnodes", "allocnodes"),
    *("reqnodes", "reqcpus", "ncpus", "alloccpus", "reqmem", "reqgres", "allocgres", "suspended", "restarts", "sluid"),
    *("ntasks", _SUBMIT_LINE, "dbindex"),
)
FIELDS_READ = (*(field for fields in SOURCES.values() for field in fields), *_OTHER_FIELDS)
"""The fields that ``translate`` reads."""
_LABELS = ("group", "account", "qos", "partition", "exit_code", "tres_requested", "tres_allocated", "node_list")
_FREE_TEXT = (
    *("jobname", "name", "comment", "admincomment", "systemcomment", "submitline", "workdir", "constraints"),
    *("wckey", "extra", "stdin", "stdout", "stderr", "container", "account"),
)
"""Fields that users write freely. Those likeliest to hold separators and newlines come first."""
_UNREAD_FIELDS = (
    *("allocnodes", "associd", "avecpu", "avecpufreq", "avediskread", "avediskwrite", "avepages", "averss"),
    *("avevmsize", "blockid", "consumedenergy", "consumedenergyraw", "cputime", "cputimeraw"),
    *("derivedexitcode", "failednode", "flags", "layout", "licenses", "maxdiskread", "maxdiskwrite"),
    *("maxpages", "maxrss", "maxvmsize", "mcslabel", "mincpu", "ntasks", "planned", "plannedcpu"),
    *("plannedcpuraw", "priority", "qosreq", "reason", "reqcpufreq", "reqcpufreqgov", "reqcpufreqmax"),
    *("reqcpufreqmin", "reservation", "reservationid", "reserved", "segmentsize"),
    *("systemcpu", "totalcpu", "usercpu", "wckeyid", "end", "uid"),
)
_KNOWN = {
    *RAW_FIELDS,
    *_OTHER_FIELDS,
    *_FREE_TEXT,
    *_UNREAD_FIELDS,
    *(name for names in SOURCES.values() for name in names),
}
_LONGEST_DELIMITER = 128
_GUESSABLE_BYTES = 8
"""Shorter delimiters can be guessed, or found by trial."""
_UNFINISHED = (JobState.PENDING.value, JobState.RUNNING.value, JobState.SUSPENDED.value)
"""Base states of jobs that have not ended, whatever end a row has (``sacct --truncate`` prints that of the window)."""
_FLAGS = (JobState.REQUEUED.value, JobState.RESIZING.value)
"""States of records that have ended where they have an end.

slurmdbd stores these flags in place of the base state when it closes the record of a run or of one size
(as_mysql_job_complete() in as_mysql_job.c); slurmctld prints the same words of jobs that wait or run.
"""

_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d.*|\d{9,11}|Unknown|None|N/A|", re.ASCII)
_OF_CSV = (",", ";", "\t")
"""Delimiters of files that quote what holds a delimiter, as spreadsheets and pandas write them."""
_TRES = rb"(?:billing|cpu|energy|mem|node|pages|vmem|(?:bb|fs|gres|ic|license)/[^=,\n]+)=[^=,\n]*"
_TRES_RUN = re.compile(rb"(?<![^,\n])" + _TRES + rb"(?:," + _TRES + rb")+(?![^,\n])")
_BRACKETED = re.compile(rb"(?<![^,\n])[\w.-]+\[[-\d]+(?:,[-\d]+)+\][\w.-]*(?![^,\n])")
_TRES_LIST = re.compile(r"(?:[^=,|]+=[^=,|]*(?:,[^=,|]+=[^=,|]*)*)?")
_FORMS = {
    **dict.fromkeys(("submit", "eligible", "start", "end"), _TIME),
    **dict.fromkeys(("reqtres", "tresreq", "alloctres", "tresalloc"), _TRES_LIST),
    **dict.fromkeys(("nodelist", "nodes"), re.compile(r"[^=|\s]*|None assigned")),
    **dict.fromkeys(("nnodes", "reqcpus", "ncpus", "alloccpus", "elapsedraw"), re.compile(r"[\d.KMG]*", re.ASCII)),
    "state": re.compile(r"[A-Za-z_ +\d]*", re.ASCII),
}
"""Forms of fields that tell whether a broken row was put together rightly."""
_TIME_CUT = re.compile(r"[-0-9T: ]*|[A-Z][a-z]*", re.ASCII)
_TWO_TIMES = re.compile(rb"^[^\n]*\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[^\n]*\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d")
_NODES_AND_COUNT = (("nodelist", "nodes"), ("nnodes", "allocnodes"))
_ID_START = re.compile(r"\d+([_+.]\S*)?", re.ASCII)

STEPS = "job steps are no jobs of their own and were skipped"
REJOINED = "rows broken by a newline or a bar in a field were put together again"
FORGEABLE = (
    "rows have a delimiter that users can write into the names of their jobs: a crafted name can forge rows of others,"
    " which cannot be told from true ones; export with a random delimiter (docs/formats.md)"
)
REVOKED = "jobs ran on another cluster of the federation (REVOKED): here they have neither a start nor hours"
SUSPENDED = (
    "jobs were suspended: their run time is Elapsed, without the suspension, and they held their GPUs from start to end"
)
RESIZED = (
    "jobs have a start before their submission, as later sizes of a resized job have: they count from their submission"
)
ELAPSED_DIFFERS = (
    "jobs have an Elapsed other than end minus start minus suspension: where it is not 0, their run time is Elapsed"
)
END_FROM_ELAPSED = "jobs have an end before their start: it was found from Elapsed"
ROUNDING_S = 1.0
"""Difference of Elapsed and the times that is no contradiction, s."""
SHARDS = "jobs hold shards of GPUs (gres/shard), counted by the shards of a GPU on their nodes"
UNKNOWN_SHARDS = (
    "jobs hold shards of GPUs (gres/shard), and the shards of a GPU are not known: their GPUs are not recorded;"
    " give the nodes: setting ingest.gpus_from, or helios trace load --gpus-from slurm.conf (docs/formats.md, Parts of"
    " a GPU)"
)
MPS_SHARES = "jobs hold a share of a GPU (gres/mps), counted by the shares of a GPU on their nodes"
ASSUMED_MPS = (
    f"jobs hold a share of a GPU (gres/mps), counted as per cent: {USUAL_MPS:g} shares of a GPU are assumed; give the"
    " nodes: setting ingest.gpus_from, or helios trace load --gpus-from slurm.conf"
)
MIG_SLICES = "jobs hold MIG slices, each counted by its compute slices: 1g is 1/7 of a GPU, 1/4 of an A30"
ODD_SLICES = "jobs hold MIG slices of an unknown profile, each counted as a whole GPU"
ASKED_PER_TASK = "jobs asked for GPUs for each task or socket, whose number is not recorded: so is that of their GPUs"
NEVER_STARTED = "jobs were cancelled before they started: their start is left unknown"

EXPORT = (
    "Export it with: TZ=UTC sacct --allusers --duplicates --allocations --parsable "
    '--delimiter="$(cat /proc/sys/kernel/random/uuid)" --format=JobIDRaw,User,Account,Partition,State,Submit,Eligible,'
    "Start,End,ElapsedRaw,Timelimit,NNodes,ReqTRES,AllocTRES,NodeList,JobName -S 2026-09-01 -E 2026-10-01"
)

_MARK = b"\0"
"""Replaces the delimiter while a block is read; NUL bytes of the file itself are replaced before."""
_SHOWN = b"|"
_REPLACEMENT = "\ufffd".encode()
_LARGEST_BLOCK_BYTES = 256 << 20
_NEWLINE = ord("\n")


class Tres(NamedTuple):
    """Amounts in a TRES or GRES list.

    NaN and None where the list does not name them.

    Attributes
    ----------
    gpus : float
        GPUs, each MIG slice as its part of one.
    shards, mps : float
        Shares of ``gres/shard`` and ``gres/mps``.
    per : str
        What the GPUs and shares of a list in ``ReqGRES`` are for each of: JOB, NODE, SOCKET or TASK.
    slices, odd_slices : bool
        Whether it names MIG slices, and some that are counted as whole GPUs.
    """

    gpus: float = np.nan
    gpu_type: str | None = None
    cpus: float = np.nan
    nodes: float = np.nan
    memory_mib: float = np.nan
    shards: float = np.nan
    mps: float = np.nan
    per: str = "NODE"
    slices: bool = False
    odd_slices: bool = False
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
    """Parse TRES lists, as ``cpu=8,gres/gpu=2,mem=62.50G``."""
    return DistinctColumn(texts, _tres, Tres())


def gres_lists(texts: pa.Array) -> DistinctColumn[Tres]:
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
        # Most files have plain numbers only, and the pattern is slow.
        rows = len(texts)
        nothing, nowhere = pa.nulls(rows, pa.string()), np.zeros(rows, dtype=np.bool_)
        return JobIds(nowhere, nowhere, nothing, nothing, nothing, np.full(rows, np.nan))
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


def _matches(texts: pa.Array, pattern: str) -> Mask:
    return np.asarray(pc.fill_null(pc.match_substring_regex(texts, pattern), False))


@lru_cache(maxsize=_REMEMBERED)
def _tres(text: str) -> Tres:
    """Parse a TRES list.

    An example of one is ``cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=62.50G,node=1``.
    """
    counts: dict[str, float] = {}
    typed: dict[str, dict[str, float]] = {}
    for entry in filter(None, text.split(",")):
        name, _, amount = entry.partition("=")
        value = _memory(amount).mib if name == "mem" else _amount(amount)
        if value is None:
            return Tres(readable=False)
        if name.startswith("gres/") and ":" in name:
            of, _, kind = name.partition(":")
            typed.setdefault(of, {})[kind] = value
        else:
            counts[name] = value
    kinds = typed.get("gres/gpu", {})
    # With both in AccountingStorageTRES, Slurm lists a typed GPU under gres/gpu too: they are the same GPUs.
    untyped = counts.get("gres/gpu", np.nan) - sum(kinds.values())
    shards, mps = (
        counts.get(name, sum(typed[name].values()) if name in typed else np.nan) for name in ("gres/shard", "gres/mps")
    )
    return Tres(
        **_counted(kinds, untyped),
        cpus=counts.get("cpu", np.nan),
        nodes=counts.get("node", np.nan),
        memory_mib=counts.get("mem", np.nan),
        shards=shards,
        mps=mps,
    )


def _counted(kinds: Mapping[str, float], untyped: float) -> dict[str, Any]:
    """Return GPUs by type and without one as fields of ``Tres``."""
    held = [kind for kind, count in kinds.items() if count]
    parts = {kind: part_of_gpu(kind) for kind in held}
    total = sum(count * (parts.get(kind) or 1.0) for kind, count in kinds.items())
    slices = any(map(is_slice, held))
    if not kinds:
        total = untyped
    elif not np.isnan(untyped):
        # Fewer in all than by type is a contradiction, which Slurm does not print.
        total += max(untyped, 0.0) if slices else untyped
    return {
        "gpus": total,
        "gpu_type": ",".join(sorted(held)) or None,
        "slices": slices,
        "odd_slices": None in parts.values(),
    }


@lru_cache(maxsize=_REMEMBERED)
def _gres(text: str) -> Tres:
    amounts: dict[str, dict[str, dict[str, float]]] = {}
    per = ""
    # An index list, as (IDX:0-1), may hold commas itself.
    for word in re.sub(r"\([^)]*\)", "", text).split(","):
        entry = word.strip()
        if prefix := _PER.match(entry):
            per, entry = prefix[1], entry[prefix.end() :]
        name, *rest = re.split(r"[:=]", entry.removeprefix("gres:").removeprefix("gres/"))
        name = "gpu" if name in _GPU_NAMES else name
        count = _amount(rest[-1]) if rest else 1.0
        kind = ":".join(rest[:-1] if count is not None else rest)
        kinds = amounts.setdefault(per, {}).setdefault(name, {})
        kinds[kind] = kinds.get(kind, 0.0) + (1.0 if count is None else count)
    # A job may ask for GPUs in several ways, of which the sum for the job says most.
    known = [
        per for per in ("JOB", "NODE", "", "TASK", "SOCKET") if {"gpu", "shard", "mps"} & amounts.get(per, {}).keys()
    ]
    if not known:
        return Tres()
    found = amounts[known[0]]
    gpus = found.get("gpu", {})
    shards, mps = (sum(found[name].values()) if name in found else np.nan for name in ("shard", "mps"))
    untyped = gpus.pop("", 0.0 if gpus else np.nan)
    return Tres(**_counted(gpus, untyped), shards=shards, mps=mps, per=known[0] or "NODE")


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


def fits(start: bytes) -> bool:
    """Return whether a file's first bytes come from sacct."""
    # JSON is often one line, in which a job's name may look like a header or a row.
    return start.lstrip()[:1] not in (b"{", b"[") and (_header(start) is not None or _is_raw(start))


def lacks(start: bytes) -> str:
    """Return the missing parts of a file of sacct.

    Empty where its first line is not sacct's.
    """
    first, _, rest = start.partition(b"\n")
    words = first.decode("utf-8", errors="replace").lower().split()
    if len(words) > 2 and set(words) <= _KNOWN and re.match(rb"-+( +-+)+ *$", rest.partition(b"\n")[0]):
        return "is sacct's table for a screen, which cuts long values off: it was printed without --parsable."
    if _TWO_TIMES.search(first) and (count := max(first.count(mark) for mark in (b"|", b",", b";", b"\t"))):
        return (
            f"has rows like sacct's and no line of names: put the {count + 1} names that --format had before it, with "
            "the same delimiter between them."
        )
    line = first.decode("utf-8", errors="replace").strip().lower()
    names = max((re.split(mark, line) for mark in (r"\|", ";", ",", r"\t")), key=len)
    known = {name.strip() for name in names} & _KNOWN
    if len(known) < max(2, len(names) / 2):
        return ""
    needed = {"a job id (JobIDRaw)": ("jobid", "jobidraw"), "the submission (Submit)": ("submit", "submittime")}
    missing = [told for told, names in needed.items() if known.isdisjoint(names)]
    return f"is sacct's, and its header line lacks {' and '.join(missing)}." if missing else ""


def drafts(reading: FileReading) -> Iterator[JobRows]:
    """Yield a sacct file as translated rows.

    Raises
    ------
    FormatUnknown
        There is neither a header line with a job id and a submit time, nor the 26 fields of a raw dump.
    """
    start = head(reading.path)
    dialect = _dialect(start)
    if dialect is None:
        neither = "is not sacct's: it has neither a header line with JobID and Submit nor 26 raw fields."
        raise FormatUnknown(f"{reading.path} {lacks(start) or neither}", hint=EXPORT)
    is_quoted = dialect.quoted and b'"' in start  # then a name that holds a delimiter is in quotes
    forgeable = len(dialect.separator) < _GUESSABLE_BYTES and not {*_FREE_TEXT}.isdisjoint(dialect.names)
    forgeable &= not is_quoted
    for rows in _rows(reading, dialect, fields_read(reading)):
        reading.tally[REJOINED] += rows.rejoined
        reading.tally[FORGEABLE] += len(rows) * forgeable
        yield translate(rows, reading)


def read_fields(reading: FileReading, fields: Sequence[str]) -> Iterator[DelimitedRows]:
    """Yield some fields of jobs and steps as texts.

    Names of fields are in lower case.

    Raises
    ------
    FormatUnknown
        There is no header line with a job id.
    """
    dialect = _dialect(head(reading.path), needs_submit=False)
    if dialect is None:
        raise FormatUnknown(f"{reading.path} is not sacct's: it has no header line with JobIDRaw or JobID.")
    return _rows(reading, dialect, fields)


def _rows(reading: FileReading, dialect: Dialect, fields: Sequence[str]) -> Iterator[DelimitedRows]:
    read = read_counted if len(dialect.separator) > 1 else read_rows
    return read(reading, dialect, fields)


def _digest(path: Path) -> str:
    dialect = _dialect(head(path))
    return counts_digest(path, dialect) if dialect and len(dialect.separator) > 1 else file_sha256(path)


LAYOUT = Layout(fits=fits, drafts=drafts, local_times=lambda start: not has_utc_offset(start), digest=_digest)


def fields_read(reading: FileReading) -> Sequence[str]:
    """Return the fields that ``translate`` reads, without long ones that are not needed."""
    return FIELDS_READ if reading.site else [name for name in FIELDS_READ if name != _SUBMIT_LINE]


def translate(rows: DelimitedRows, reading: FileReading) -> JobRows:
    """Return rows of sacct's fields, translated into columns of ``JOBS``.

    The columns of ``rows`` have the names of sacct's fields in lower case.
    """
    return _SacctTranslation(rows, reading).translated()


def _header(start: bytes, *, needs_submit: bool = True) -> tuple[tuple[str, ...], str] | None:
    """Return the field names in a header line, and their delimiter.

    Of all possible delimiters, the one that gives the most known names is taken. None where no line of names is found.
    """
    line = start.partition(b"\n")[0].decode("utf-8", errors="replace")
    if '"' in line:
        line = line.replace('"', "")  # no name of a field holds a delimiter
    choices = {"|", *_OF_CSV} | {
        line[len(first) : until]
        for first in filter(line.lower().startswith, _KNOWN)
        for second in _KNOWN
        if 0 < (until := line.lower().find(second, len(first) + 1)) - len(first) <= _LONGEST_DELIMITER
    }
    found = [(tuple(name.strip().lower() for name in line.split(choice)), choice) for choice in sorted(choices)]
    # A long delimiter that occurs only once is chance: an unknown name and the bars around it may lie between two
    # known ones.
    headers = [
        (names, choice)
        for names, choice in found
        if not {"jobid", "jobidraw"}.isdisjoint(names)
        and not (needs_submit and {"submit", "submittime"}.isdisjoint(names))
        if len(choice) == 1 or len(names) > 2
    ]

    def known_names(header: tuple[Sequence[str], str]) -> tuple[int, int]:
        return sum(1 if name in _KNOWN else -1 for name in header[0] if name), -len(header[0])

    return max(headers, key=known_names, default=None)


def _is_raw(start: bytes) -> bool:
    lines = start.decode("utf-8", errors="replace").split("\n")[:50]
    rows = [row for line in lines if len(row := line.split("|", len(RAW_FIELDS) - 1)) == len(RAW_FIELDS)]
    return any(row[RAW_FIELDS.index("submit")] and _times_look_right(RAW_FIELDS, row) for row in rows)


def _dialect(start: bytes, *, needs_submit: bool = True) -> Dialect | None:
    found = _header(start, needs_submit=needs_submit)
    if found is None and not (needs_submit and _is_raw(start)):
        return None
    names, delimiter = found or (RAW_FIELDS, "|")
    header = start.partition(b"\n")[0] if found else None
    separator, of_csv = delimiter.encode(), delimiter in _OF_CSV
    closes = len(separator) > 1 and not names[-1]
    if len(separator) > 1 and not closes and names[0] in _FREE_TEXT:
        raise FormatUnknown(
            f"Its first column, {names[0]}, can hold line breaks, and no delimiter closes a row.",
            hint="Export it with --parsable in place of --parsable2, or with JobIDRaw first.",
        )
    # A field that was requested twice and the empty one that --parsable adds get names of their own.
    names = distinct_names(names[:-1] if closes else names)
    unclosed = (*_FREE_TEXT, *SOURCES["node_list"]) if separator == b"," else _FREE_TEXT
    return Dialect(
        names=names,
        separator=separator,
        header=header,
        closes=closes,
        quoted=of_csv,
        prepare=_quote_lists if separator == b"," else None,
        free_text=tuple(names.index(name) for name in unclosed if name in names),
        begins_row=lambda fields: _begins_row(names, fields),
        plausible=lambda fields: _look_right(names, fields),
    )


def _quote_lists(lines: bytes) -> bytes:
    """Return lines with quotes around lists that hold commas themselves.

    ``sacct --delimiter=,`` quotes nothing. Lines of a file that quotes are returned as they are.
    """
    if b'"' in lines:
        return lines
    return _BRACKETED.sub(rb'"\g<0>"', _TRES_RUN.sub(_quoted_lists, lines))


def _quoted_lists(run: re.Match[bytes]) -> bytes:
    """Return neighbouring TRES lists, each in quotes.

    The names in one list ascend and come once (``gpu:a100`` counts as ``gpu``), so that the next list begins where they
    do not.
    """
    lists: list[dict[bytes, bytes]] = [{}]
    kind_before = b""
    for entry in run[0].split(b","):
        name = entry.partition(b"=")[0]
        kind = name.partition(b":")[0]
        if name in lists[-1] or kind < kind_before:
            lists.append({})
        lists[-1][name], kind_before = entry, kind
    return b",".join(b'"' + b",".join(entries.values()) + b'"' for entries in lists)


def _begins_row(names: Sequence[str], fields: Sequence[str]) -> bool:
    """Return whether a short line begins a row.

    It must begin with a job id and have times where times belong; the last field may be cut.
    """
    if len(fields) < 2 or names[0] not in SOURCES["job_id"] or not _ID_START.fullmatch(fields[0]):
        return False
    last = len(fields) - 1
    places = _time_places(names, len(fields))
    return all((_TIME_CUT if place == last else _TIME).fullmatch(fields[place]) for place in places)


def _times_look_right(names: Sequence[str], fields: Sequence[str]) -> bool:
    return all(_TIME.fullmatch(fields[place]) for place in _time_places(names, len(names)))


def _look_right(names: Sequence[str], fields: Sequence[str]) -> bool:
    """Return whether a repaired row's fields have the forms of their columns."""
    row = dict(zip(names, fields, strict=True))
    if not all(form.fullmatch(row[name]) for name, form in _FORMS.items() if name in row):
        return False
    nodes, count = (next((row[name] for name in sources if name in row), "") for sources in _NODES_AND_COUNT)
    if not count.isdecimal() or not nodes or nodes.startswith("None"):
        return True
    with suppress(HostlistInvalid):
        return len(expand(nodes)) == int(count)
    return False


def _time_places(names: Sequence[str], until: int) -> list[int]:
    return [place for place, name in enumerate(names[:until]) if name in ("submit", "eligible", "start", "end")]


Size = NDArray[np.float64] | DistinctColumn[Tres]
"""A column of sizes, or of TRES lists that have them."""


def with_shares(
    amounts: Mapping[str, NDArray[np.float64]],
    places_of: Callable[[NDArray[np.int64]], Places],
    remarks: dict[str, Mask],
) -> NDArray[np.float64]:
    """Return GPUs, with shares as parts of one.

    The shares count where a job has no whole GPUs.

    Parameters
    ----------
    amounts : mapping of str to array
        The GPUs, shards and MPS shares of each row, named as in ``Tres``.
    places_of : callable
        Returns what is known of the nodes of some rows.
    remarks : dict of str to array
        How the shares were counted is added here.
    """
    held = amounts["gpus"].copy()
    for name, counted, unknown in (("mps", MPS_SHARES, ASSUMED_MPS), ("shards", SHARDS, UNKNOWN_SHARDS)):
        rows = np.flatnonzero((amounts[name] > 0) & ~(amounts["gpus"] > 0))
        if not len(rows):
            continue
        held[rows], assumed = gpus_of_shares(amounts[name][rows], name, places_of(rows))
        doubtful = assumed | np.isnan(held[rows])
        for note, chosen in ((unknown, rows[doubtful]), (counted, rows[~doubtful])):
            remarks.setdefault(note, np.zeros(len(held), dtype=np.bool_))[chosen] = True
    return held


class _SacctTranslation(Translation):
    """Translation of sacct's fields."""

    def translated(self) -> JobRows:
        """Return the rows, translated."""
        skipped = self._identify()
        if (states := self.rows.column(*SOURCES["state"])) is not None:
            self.read_states(states)
        self.read_times({name: SOURCES[name] for name in ("submitted_at", "eligible_at", "started_at", "ended_at")})
        cluster, restarts = self.rows.column("cluster", "clustername"), self.numbers("restarts")
        self.results.refuse(restarts < 0, Reason.UNREADABLE_NUMBER)
        self.note_runs(
            restarts=np.where(np.abs(restarts) <= _MOST_RESTARTS, restarts, np.nan),
            record=self.rows.column("sluid"),
            serial=self.rows.column("dbindex"),
            cluster=None if cluster is None else known_values(cluster),
        )
        self.jobs["time_limit_s"] = self.durations("timelimit", "timelimitraw", bare_unit_s=60.0)
        elapsed = self.durations("elapsedraw", "elapsed", bare_unit_s=1.0)
        self.results.refuse(elapsed < 0, Reason.NEGATIVE_RUN_TIME)
        self._read_run(elapsed)
        asked, given = self._tres("reqtres", "tresreq"), self._tres("alloctres", "tresalloc")
        counts = self.numbers
        # Before a start, NNodes, NCPUS and AllocCPUS are 0, or what was asked for.
        self._read_size("nodes", (counts("reqnodes"), asked), (counts("allocnodes"), counts("nnodes"), given))
        self._read_size("cpus", (counts("reqcpus"), asked), (given, counts("alloccpus"), counts("ncpus")))
        self._read_gpus(asked, given)
        self.jobs["memory_mib"] = self._first(asked.floats("memory_mib"), self._memory(), given.floats("memory_mib"))
        self._read_labels()
        self.reading.tally[STEPS] += int(skipped.sum())
        named = self.runs.cluster if self.runs else None
        clusters = [] if named is None else pc.unique(named).drop_null().to_pylist()
        return self.draft(skipped=skipped, clusters=frozenset(clusters), asked=self._asked())

    def _read_gpus(self, asked: DistinctColumn[Tres], given: DistinctColumn[Tres]) -> None:
        """Set GPUs, with the parts of them that jobs hold."""
        old_asked, old_given = (gres_lists(self.texts(name)) for name in ("reqgres", "allocgres"))
        lists, times = (asked, given, old_asked, old_given), self._times_asked(old_asked)
        named = np.zeros(len(self.rows), dtype=np.bool_)
        sides: list[dict[str, NDArray[np.float64]]] = [{}, {}]
        for name in ("gpus", "shards", "mps"):
            found = [column.floats(name) for column in lists]
            named |= np.logical_or.reduce([~np.isnan(amounts) for amounts in found])
            # ReqGRES is for each node, AllocGRES the sum over all of them (up to Slurm 20.02).
            sides[0][name], sides[1][name] = self._first(found[0], found[2] * times), self._first(found[1], found[3])
        held = [with_shares(side, self._places, self.remarks) for side in sides]
        self._read_size("gpus", (held[0],), (held[1],))
        self.unnamed = ~named
        self.jobs["gpu_type"] = category(pc.coalesce(*(column.texts("gpu_type") for column in lists)))
        self._count_untyped_slices()
        odd, slices = (
            np.logical_or.reduce([column.floats(name) > 0 for column in lists]) for name in ("odd_slices", "slices")
        )
        self.remarks |= {
            MIG_SLICES: slices & ~odd,
            ODD_SLICES: odd,
            ASKED_PER_TASK: np.isnan(self.jobs["gpus"]) & ~np.isnan(old_asked.floats("gpus")),
        }

    def _asked(self) -> NDArray[np.float64] | None:
        """Return the GPUs in command lines of submissions.

        NaN where they do not say so.
        """
        lines = self.rows.column(_SUBMIT_LINE)
        if lines is None or self.reading.site is None:
            return None
        nodes, tasks = np.nan_to_num(self._requested("nodes"), nan=1.0), self.numbers("ntasks")
        sizes = zip(lines.to_pylist(), nodes.tolist(), tasks.tolist(), strict=True)
        return np.array([np.nan if text is None else gpus_asked(text, nodes=n, tasks=t) for text, n, t in sizes])

    def _times_asked(self, old_asked: DistinctColumn[Tres]) -> NDArray[np.float64]:
        """Return how often each job gets its ReqGRES, NaN if unknown."""
        each = np.array([entry.per for entry in old_asked.entries])[old_asked.codes]
        nodes = np.nan_to_num(self._requested("nodes"), nan=1.0)
        return np.select([each == "NODE", each == "JOB", each == "TASK"], [nodes, 1.0, self.numbers("ntasks")], np.nan)

    def _places(self, rows: NDArray[np.int64]) -> Places:
        """Return what is known of the nodes of some rows."""
        lists, partitions = (
            self.texts(*SOURCES[name]).take(pa.array(rows)).to_pylist() for name in ("node_list", "partition")
        )
        return places(self.reading.site, lists, partitions)

    def _count_untyped_slices(self) -> None:
        """Count untyped GPUs on nodes of MIG slices as such slices."""
        if self.reading.site is None or not self.reading.site.has_slices:
            return
        untyped = self.jobs["gpu_type"].codes < 0
        nowhere = np.zeros(len(self.rows), dtype=np.bool_)
        shared = np.logical_or.reduce([self.remarks.get(note, nowhere) for note in (SHARDS, MPS_SHARES, ASSUMED_MPS)])
        rows = np.flatnonzero(untyped & (self.jobs["gpus"] > 0) & ~shared)
        where = self._places(rows)
        part = np.where(where.named, (where.each("gpus") / where.each("slices"))[where.codes], 1.0)
        for name in ("gpus", "gpus_requested"):
            self.jobs[name][rows] *= np.nan_to_num(part, nan=1.0)

    def _read_run(self, elapsed: NDArray[np.float64]) -> None:
        """Set start, end and run time from the time worked, s."""
        # For a running job sacct prints the elapsed time so far: only jobs that have ended get an end and a run time.
        start, end = self._time("started_at"), self._time("ended_at")
        over = np.ones(len(self.rows), dtype=np.bool_)
        if "state" in self.jobs:
            over = ~self.is_in(_UNFINISHED) & ~(self.is_in(_FLAGS) & np.isnat(end))
        end = np.where(over, end, NOT_A_TIME)
        revoked = self._revoked()
        start = np.where(revoked, NOT_A_TIME, start)
        submitted = self._time("submitted_at")
        # It ended by the clock of the cluster that ran the job.
        end = np.where(revoked & (end < submitted), submitted, end)
        # slurmdbd gives each size of a resized job the start of the job, and the moment of the change as Submit and
        # Eligible (22.05.8); sreport counts it from the hour of that moment.
        resized = (start < submitted) & (submitted == self._time("eligible_at")) & ~(end < submitted)
        elapsed = np.where(resized, elapsed - (submitted - start) / np.timedelta64(1, "s"), elapsed)
        start = np.where(resized, submitted, start)
        # Elapsed is end minus start minus suspension (as_mysql_jobacct_process.c), and 0 where it is not known.
        suspended = np.nan_to_num(self.durations("suspended", bare_unit_s=1.0))
        worked = over & (elapsed > 0) & ~revoked
        span = spans(np.maximum(elapsed + suspended, 0.0))
        start = np.where(np.isnat(start) & worked, end - span, start)
        backwards = worked & (end < start)
        end = np.where((np.isnat(end) & worked) | backwards, start + span, end)
        start = np.where(self._never_started(start, end), NOT_A_TIME, start)
        self.jobs["started_at"], self.jobs["ended_at"] = start, end
        held = (end - start) / np.timedelta64(1, "s")
        differs = over & (np.abs(held - elapsed - suspended) > ROUNDING_S)
        run_time = np.maximum(held - suspended, np.minimum(held, 0.0))
        self.jobs["run_time_s"] = np.where(worked & (differs | np.isnan(held)), elapsed, run_time)
        self.remarks |= {
            RESIZED: resized,
            SUSPENDED: over & (suspended > 0) & ~differs,
            ELAPSED_DIFFERS: differs & ~backwards,
            END_FROM_ELAPSED: backwards,
        }

    def _identify(self) -> Mask:
        raw, shown = self.rows.column("jobidraw", "jobid"), self.rows.column("jobid", "jobidraw")
        assert raw is not None and shown is not None  # because the dialect demands one of them
        parts = job_ids(shown)
        self.refuse(parts.is_unreadable, Reason.UNREADABLE_JOB_ID, "jobid", "jobidraw")
        if raw is not shown:
            self.refuse(job_ids(raw).is_unreadable, Reason.UNREADABLE_JOB_ID, "jobidraw")
        self.jobs["job_id"] = strings(pc.coalesce(raw, shown))
        for name in ("array_job_id", "array_task_id", "het_job_id"):
            self.jobs[name] = strings(getattr(parts, name))
        self.jobs["het_job_offset"] = parts.het_job_offset
        return parts.is_step

    def _time(self, name: str) -> Instants:
        return self.jobs[name] if name in self.jobs else np.full(len(self.rows), NOT_A_TIME)

    def _revoked(self) -> Mask:
        # slurm.h JOB_REVOKED: another cluster of the federation ran the job. Its start and end may stand here, too.
        if "state" not in self.jobs:
            return np.zeros(len(self.rows), dtype=np.bool_)
        revoked = self.is_in((JobState.REVOKED.value,))
        self.reading.tally[REVOKED] += int(revoked.sum())
        return revoked

    def _never_started(self, start: Instants, end: Instants) -> Mask:
        # Up to Slurm 20.02 a job that was cancelled while pending has the time of the cancellation as start and end. A
        # later start is the one that was planned.
        nodes, state = self.rows.column(*SOURCES["node_list"]), self.jobs.get("state")
        if nodes is None or state is None:
            return np.zeros(len(self.rows), dtype=np.bool_)
        unplaced = np.asarray(pc.fill_null(pc.equal(nodes, "None assigned"), False))
        never = np.asarray(unplaced & ((start > end) | ((start == end) & (state == JobState.CANCELLED.value))))
        self.reading.tally[NEVER_STARTED] += int(never.sum())
        return never

    def _read_size(self, name: str, asked: Sequence[Size], given: Sequence[Size]) -> None:
        """Set what a job was allocated, and beside it what it requested.

        A job that never started holds what it requested.
        """
        requested, allocated = (
            self._first(*(size.floats(name) if isinstance(size, DistinctColumn) else size for size in sizes))
            for sizes in (asked, given)
        )
        started = ~np.isnat(self._time("started_at")) | (self.jobs["run_time_s"] > 0)
        self.jobs[name] = np.where(started, self._first(allocated, requested), self._first(requested, allocated))
        self.jobs[f"{name}_requested"] = np.where(requested > 0, requested, np.nan)

    def _tres(self, *fields: str) -> DistinctColumn[Tres]:
        found = tres_lists(self.texts(*fields))
        self.refuse(found.unreadable, Reason.UNREADABLE_TRES, *fields)
        return found

    def _first(self, *choices: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return each row's first known choice that is not 0.

        Slurm prints 0 where nothing is allocated yet. Without such a choice, a row has 0 where a choice is 0, else NaN.
        """
        chosen = np.full(len(self.rows), np.nan)
        for values in choices:
            chosen = np.where((np.isnan(chosen) | (chosen == 0)) & ~np.isnan(values), values, chosen)
        return chosen

    def _requested(self, name: str) -> NDArray[np.float64]:
        return self._first(self.jobs[f"{name}_requested"], self.jobs[name])

    def _memory(self) -> NDArray[np.float64]:
        found = memories(self.texts("reqmem"))
        self.refuse(found.unreadable, Reason.UNREADABLE_NUMBER, "reqmem")
        mib, each_cpu, each_node = (found.floats(name) for name in ("mib", "each_cpu", "each_node"))
        return np.select(
            [each_cpu > 0, each_node > 0],
            [mib * self._requested("cpus"), mib * self._requested("nodes")],
            default=mib,
        )

    def _read_labels(self) -> None:
        for name in _LABELS:
            if self.rows.column(*SOURCES[name]) is not None:
                self.jobs[name] = category(self.texts(*SOURCES[name]))
        users = [texts for field in SOURCES["user"] if (texts := self.rows.column(field)) is not None]
        if users:
            self.jobs["user"] = category(pc.coalesce(*users))
        if self.rows.column(*SOURCES["name"]) is not None:
            self.jobs["name"] = strings(self.texts(*SOURCES["name"]))


def read_counted(reading: FileReading, dialect: Dialect, columns: Sequence[str]) -> Iterator[DelimitedRows]:
    """Yield the records of a file as rows.

    Only the ``columns`` asked for are read, as far as the file has them. The "line" of a row is the number of its
    record, counted from 1 with the header.

    Raises
    ------
    FileUnreadable
        The file cannot be read to its end, or a record does not begin where the one before it ends.
    """
    assert dialect.header is not None  # because the word between its fields is known from it
    wanted, header = dialect.wanted(columns), dialect.header.replace(dialect.separator, _MARK)
    with decode(reading.path) as (raw, text):
        first, rest = 1, b""
        for data, ended in _blocks(reading, dialect, text):
            rest += data
            marked = rest.replace(b"\r\n", b"\n")
            records = _Records(marked, dialect, ended=ended, first=first, path=reading.path)
            yield records.rows(wanted, header, bytes_read=raw.tell())
            first, rest = first + len(records.starts), marked[records.until :]
        reading.tally[REPLACED] += text.replaced


def counts_digest(path: Path, dialect: Dialect) -> str:
    """Return the SHA-256 of a file's text, independent of its delimiter.

    Two exports of the same records with different random delimiters have the same digest.
    """
    digest = sha256()
    with decode(path) as (_, text):
        for piece in _mark_delimiters(text, dialect.separator):
            digest.update(piece)
    return digest.hexdigest()


def _delimiters(dialect: Dialect) -> int:
    """Return the number of delimiters in one record."""
    return len(dialect.names) - (not dialect.closes)


def _blocks(reading: FileReading, dialect: Dialect, text: Decoded) -> Iterator[tuple[bytes, bool]]:
    """Yield a file's marked text in blocks.

    A block holds about ``rows_per_batch`` records. The flag is True for the last block.
    """
    parts: list[bytes] = []
    enough = reading.rows_per_batch * _delimiters(dialect)
    delimiters, size = 0, 0
    for piece in _mark_delimiters(text, dialect.separator):
        parts.append(piece)
        delimiters, size = delimiters + piece.count(_MARK), size + len(piece)
        if size > LONGEST_LINE_BYTES and delimiters < _delimiters(dialect):
            raise FileUnreadable(f"{reading.path} has a record longer than 64 MiB.", hint="It is no table of jobs.")
        if delimiters >= enough or size > _LARGEST_BLOCK_BYTES:
            yield b"".join(parts), False
            parts, delimiters, size = [], 0, 0
    yield b"".join(parts), True


def _mark_delimiters(text: Decoded, delimiter: bytes) -> Iterator[bytes]:
    """Yield a text with each delimiter replaced by ``_MARK``."""
    tail = b""  # because a delimiter may be cut in two by the end of a chunk
    while chunk := text.read():
        joined = (tail + chunk.replace(_MARK, _REPLACEMENT)).replace(delimiter, _MARK)
        kept = len(joined) - _cut_begin(joined, delimiter)
        tail = joined[kept:]
        yield joined[:kept]
    yield tail


def _cut_begin(text: bytes, word: bytes) -> int:
    """Return the length of the longest end of ``text`` that begins ``word``.

    A whole ``word`` does not count.
    """
    return next((count for count in range(min(len(word) - 1, len(text)), 0, -1) if text.endswith(word[:count])), 0)


class _Records:
    """The complete records of a block of marked text.

    ``until`` is the position of the first record that is not complete.

    Raises
    ------
    FileUnreadable
        A record does not begin where the one before it ends.
    """

    def __init__(self, data: bytes, dialect: Dialect, *, ended: bool, first: int, path: Path) -> None:
        self.data, self.dialect, self.first = data, dialect, first
        self.bytes = np.frombuffer(data, dtype=np.uint8)
        marks = np.flatnonzero(self.bytes == 0)
        each = _delimiters(dialect)
        self.marks = marks[: len(marks) // each * each].reshape(-1, each)
        if dialect.closes:  # records begin behind a closing mark and a newline
            nexts = np.minimum(self.marks[:, -1] + 2, len(data) + 1)
        else:  # a record's first field holds no newline, so the record begins after the last one before its first mark
            newlines = np.concatenate([[-1], np.flatnonzero(self.bytes == _NEWLINE)])
            nexts = newlines[np.searchsorted(newlines, marks[each::each]) - 1] + 1
        if not ended:
            # Only the next byte tells where a record ends, and a carriage return may have been cut from its newline.
            nexts = nexts[nexts + 1 < len(data)]
        elif len(nexts) < len(self.marks):
            nexts = np.append(nexts, len(data) + (not data.endswith(b"\n")))
        self.marks = self.marks[: len(nexts)]
        nexts = nexts[: len(self.marks)]
        self.ends = nexts - 1
        self.starts = np.concatenate([[0], nexts])[: len(nexts)].astype(np.int64)
        ending = np.append(self.bytes, np.uint8(_NEWLINE))[self.ends]
        broken = ending != _NEWLINE if dialect.closes else nexts <= self.marks[:, -1]
        if broken.any():
            raise FileUnreadable(
                f"{path}: record {first + int(np.argmax(broken)) + 1:,} does not begin where the one before it ends.",
                hint="The file was damaged, or files with different delimiters were joined; export it again.",
            )
        whole = min(int(nexts[-1]), len(data)) if len(nexts) else 0
        self.unfinished = data[whole:] if ended else b""
        self.until = len(data) if ended else whole

    def rows(self, wanted: list[str], header: bytes, *, bytes_read: int) -> DelimitedRows:
        """Return the records as rows, without repetitions of the header."""
        columns = self._columns(wanted)
        alike = np.flatnonzero(self.ends - self.starts == len(header))
        repeated = [at for at in alike.tolist() if self.data.startswith(header, int(self.starts[at]))]
        kept = np.delete(np.arange(len(self.starts), dtype=np.int64), repeated)
        refused = []
        if self.unfinished.strip():
            text = self.unfinished.replace(_MARK, _SHOWN)
            refused.append(Refused(self.first + len(self.starts), Reason.WRONG_FIELD_COUNT, text))
        block = Block(data=self.data.replace(_MARK, _SHOWN), first_line=self.first, bytes_read=bytes_read)
        return DelimitedRows(
            columns={name: texts.take(pa.array(kept)) for name, texts in columns.items()} if repeated else columns,
            texts=RowTexts(block=block, ends=self.ends, line=kept + self.first),
            refused=refused,
            rejoined=0,
        )

    def _columns(self, wanted: list[str]) -> dict[str, Any]:
        """Return the texts of each wanted column."""
        if not len(self.starts):
            return {name: pa.array([], pa.string()) for name in wanted}
        # Once the marks are removed, a record is its fields one after the other, and then the newline before the next
        # record. Arrow takes such text with an array of offsets, and no field is copied on its own.
        fields, each = len(self.dialect.names), _delimiters(self.dialect)
        begins = np.column_stack([self.starts, self.marks + 1, self.ends])[:, : fields + 1]
        marks_before = np.arange(len(begins))[:, None] * each + np.minimum(np.arange(fields + 1), each)
        bare = self.data.replace(_MARK, b"")
        offsets = np.append((begins - marks_before).ravel(), len(bare)).astype(np.int64)
        pieces = pa.LargeStringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(bare))
        found = {}
        for name in wanted:
            places = np.arange(self.dialect.names.index(name), len(offsets) - 1, fields + 1)
            found[name] = without(pieces.take(pa.array(places)).cast(pa.string()), "")
        return found
