"""Maps from columns of a foreign table to those of Helios.

A map is a TOML file. Those of common tables are beside this module, in the folder ``maps``. ``docs/formats.md``
describes the keys.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from helios.errors import UsageError
from helios.ingest.sacct import FIELDS_READ
from helios.model import JOBS, TIME

FOLDER = Path(__file__).parent / "maps"
NEEDED = ("job_id", "submitted_at")
SACCT_NEEDED = ("jobidraw", "submit")
SLURM_STATE, WAIT_STATUS, TRES_IDS = "slurm state", "wait status", "tres ids"

EPOCH_UNITS = {"epoch s": 1.0, "epoch ms": 1e3, "epoch us": 1e6, "epoch ns": 1e9}
"""Ticks of a second."""
DURATION_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "minutes": 60.0, "hours": 3_600.0, "days": 86_400.0}
"""Length in seconds."""
_DECIMAL = {f"{prefix}B": 1e3**power / 2**20 for power, prefix in enumerate(("", "k", "M", "G", "T"))}
MEMORY_UNITS = _DECIMAL | {f"{prefix}iB": 2.0 ** (10 * power - 20) for power, prefix in enumerate("KMGT", start=1)}
"""Size in MiB."""
COUNT_UNITS = {"": 1.0, "milli": 1e-3, "percent": 1e-2}
"""Parts of a whole one."""
TRES_NAMES = {"gres/gpu": "gpus", "cpu": "cpus", "node": "nodes", "mem": "memory_mib"}
"""Attributes of ``sacct.Tres``."""
DURATIONS = ("run_time_s", "time_limit_s")
COUNTS = tuple(column.name for column in JOBS.columns if column.dtype in ("float64", "int32"))
SACCT_TIMES = ("submit", "eligible", "start", "end")
TIMES = tuple(column.name for column in JOBS.columns if column.dtype == TIME)


def _texts(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _source(value: Any) -> Any:
    return {"column": value} if isinstance(value, str | list) else value


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Lookup(_Strict):
    """Another table of a dump, in which a value is looked up."""

    table: str
    key: str
    value: str


Texts = Annotated[list[str], BeforeValidator(_texts)]


class ColumnSource(_Strict):
    """Where the values of one column come from.

    Attributes
    ----------
    column : list of str
        Columns of the file; the first known value of a row counts.
    template : list of str
        Texts with names of columns in braces; the first counts whose columns are known. Without any it is a constant.
    unit : str
        Unit of the numbers, form of the texts, or format of the times.
    missing : list
        Values that mean unknown.
    values : dict of str to str
        What values stand for; others are left as they are.
    tres, gres : str, optional
        What is taken from a TRES or GRES list.
    times : str, optional
        Column by which the numbers are multiplied.
    lookup : Lookup, optional
        Table of a dump in which the values are looked up.
    optional : bool
        Whether the file may lack the column.
    """

    column: Texts = []
    template: Texts = []
    unit: str = ""
    missing: list[str | int | float] = []
    values: dict[str, str] = {}
    tres: str | None = None
    gres: str | None = None
    times: str | None = None
    lookup: Lookup | None = None
    optional: bool = False

    @property
    def alternatives(self) -> list[list[str]]:
        """Each alternative as texts and names of columns by turns.

        The first and the last are texts.
        """
        return [["", name, ""] for name in self.column] + [re.split(r"{([^{}]+)}", text) for text in self.template]


class MapKind(NamedTuple):
    """What the columns of a map are.

    Attributes
    ----------
    names : collection of str
        Columns that a map may give.
    needed : tuple of str
        Those that it must give.
    units : callable
        Returns the units that a column of a name and source may have.
    """

    names: Collection[str]
    needed: tuple[str, ...]
    units: Callable[[str, ColumnSource], Iterable[str]]


class _Keys(_Strict):
    timezone: str | None = None
    table: str | None = None
    note: str = ""
    keep: dict[str, list[str | int]] = {}
    tres: dict[str, str] = {}
    columns: dict[str, Annotated[ColumnSource, BeforeValidator(_source)]] = {}
    sacct: dict[str, Annotated[ColumnSource, BeforeValidator(_source)]] = {}


@dataclass(frozen=True, kw_only=True)
class ColumnMap:
    """A map as it was read from its file.

    Attributes
    ----------
    name : str
        The file's path, or the name of a map of Helios.
    sha256 : str
        SHA-256 of the file, in hex digits.
    keys : BaseModel
        Its checked keys.
    columns_needed : tuple of str
        Columns of Helios that it must give.
    """

    name: str
    sha256: str
    keys: _Keys
    columns_needed: tuple[str, ...] = NEEDED

    @property
    def is_sacct(self) -> bool:
        """Whether it gives fields of sacct in place of columns of Helios."""
        return bool(self.keys.sacct)

    @property
    def needed(self) -> tuple[str, ...]:
        """Names of the id and of the submission among the sources."""
        return SACCT_NEEDED if self.is_sacct else self.columns_needed

    @property
    def sources(self) -> dict[str, ColumnSource]:
        """Sources by the name of the column or field that they give."""
        return self.keys.sacct or self.keys.columns

    @property
    def has_local_times(self) -> bool:
        """Whether some times may carry no zone."""
        names = SACCT_TIMES if self.is_sacct else TIMES
        return any(self.sources[name].unit not in EPOCH_UNITS for name in names if name in self.sources)

    @cached_property
    def wanted(self) -> tuple[str, ...]:
        """Columns of the file that are read."""
        named = [name for source in self.sources.values() for parts in source.alternatives for name in parts[1::2]]
        others = [source.times for source in self.sources.values() if source.times]
        return tuple(dict.fromkeys([*named, *others, *self.keys.keep]))

    def check_columns(self, file: Path, names: list[str]) -> None:
        """Refuse a file that lacks a column.

        Raises
        ------
        UsageError
            The message names the column, where it is used, and what is near.
        """
        for place, missing in self._missing({*names}):
            near = get_close_matches(missing, names, n=1)
            raise UsageError(
                f"{file} has no column {missing!r}, which {self.name} names for {place}."
                + (f" Did you mean {near[0]!r}?" if near else ""),
                hint=f"Its columns are: {', '.join(names)}",
            )

    def _missing(self, there: set[str]) -> Iterator[tuple[str, str]]:
        for name, source in self.sources.items():
            choices = [parts[1::2] for parts in source.alternatives]
            if not source.optional and not any(map(there.issuperset, choices)):
                yield name, next(column for column in choices[0] if column not in there)
            if source.times and source.times not in there:
                yield name, source.times
        yield from (("keep", column) for column in self.keys.keep if column not in there)


def read_map(given: str, kind: MapKind | None = None) -> ColumnMap:
    """Read a map file, or a map of Helios by its name.

    It is of jobs where no other ``kind`` is given.

    Raises
    ------
    UsageError
        There is none, or a key or value in it is wrong.
    """
    known = {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}
    path = known.get(given, Path(given))
    try:
        content = path.read_bytes()
        document = tomllib.loads(content.decode())
    except (OSError, ValueError, RecursionError) as reason:  # ValueErrors: no UTF-8, no TOML; the last by nesting
        if not path.is_file():
            raise UsageError(
                f"There is no map {given!r}.",
                hint=f"Write a file (docs/formats.md), or name one of: {', '.join(known)}",
            ) from reason
        raise UsageError(f"{given} is no TOML file: {reason}.", hint="docs/formats.md shows one.") from reason
    try:
        keys = _Keys.model_validate(document)
    except ValidationError as reason:
        error = reason.errors()[0]
        place = _Place(given, content, tuple(part for part in map(str, error["loc"]) if "function-" not in part))
        if error["type"] == "extra_forbidden":
            known_keys = ColumnSource.model_fields if len(place.keys) > 2 else _Keys.model_fields
            raise place.error("is no key of a map", place.keys[-1], known_keys) from reason
        raise place.error(f"is not understood ({error['msg']})") from reason
    kind = kind or MapKind(JOBS.names, NEEDED, _units)
    _check(given, content, keys, kind)
    digest = sha256(content).hexdigest()
    return ColumnMap(name=given, sha256=digest, keys=keys, columns_needed=kind.needed)


@dataclass(frozen=True)
class _Place:
    """A key of a map."""

    file: str
    content: bytes
    keys: tuple[str, ...]

    def error(self, what: str, written: str = "", known: Iterable[str] = ()) -> UsageError:
        """Return the error that names the key, its line, and what is near."""
        key = re.escape(self.keys[-1])
        wanted = re.compile(rf'\s*\[?"?{key}"?\s*[=\]]|.*[{{,]\s*{key}\s*='.encode())
        lines = (number for number, text in enumerate(self.content.splitlines(), start=1) if wanted.match(text))
        line, near = next(lines, None), get_close_matches(written, [*known], n=1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        at = self.file + (f", line {line}" if line else "")
        hint = f"There are: {', '.join(filter(None, known))}" if known else "docs/formats.md describes maps."
        return UsageError(f"{at}: {'.'.join(self.keys)} {what}.{meant}", hint=hint)


def _check(given: str, content: bytes, keys: _Keys, kind: MapKind) -> None:
    """Refuse names and units that are none."""
    section, known, needed = (
        ("sacct", FIELDS_READ, SACCT_NEEDED) if keys.sacct else ("columns", kind.names, kind.needed)
    )
    if keys.sacct and keys.columns:
        raise _Place(given, content, ("columns",)).error("cannot stand beside [sacct]")
    sources = keys.sacct or keys.columns
    for name, source in sources.items():
        place = _Place(given, content, (section, name))
        if name not in known:
            what = "is no field of sacct that Helios reads" if keys.sacct else "is no column of Helios"
            raise place.error(what, name, known)
        if bool(source.column) == bool(source.template):
            raise place.error("needs either a column or a template")
        units = kind.units(name, source)
        if source.unit not in units and not ("%" in source.unit and name in TIMES):
            what = f"has the unit {source.unit!r}, which is none" if source.unit else "needs the unit of its numbers"
            raise place.error(what, source.unit, units)
        if source.tres and source.tres not in TRES_NAMES:
            raise place.error(f"has no TRES {source.tres!r}", source.tres, TRES_NAMES)
        if source.times and name not in COUNTS:
            raise place.error("cannot be multiplied: times is for numbers")
    for name in needed:
        if name not in sources:
            raise _Place(given, content, (section,)).error(f"lacks {name}")


def _units(name: str, source: ColumnSource) -> Iterable[str]:
    """Return the units that a column or a field of sacct may have."""
    kinds: dict[str, Iterable[str]] = {
        **dict.fromkeys(TIMES, ("", *EPOCH_UNITS)),
        **dict.fromkeys(COUNTS, COUNT_UNITS),
        **dict.fromkeys(DURATIONS, DURATION_UNITS),
        **dict.fromkeys(("tres_requested", "tres_allocated", "reqtres", "alloctres"), ("", TRES_IDS)),
        **dict.fromkeys(("exit_code", "exitcode"), ("", WAIT_STATUS)),
        "memory_mib": MEMORY_UNITS,
        "state": ("", SLURM_STATE),
    }
    return ("", TRES_IDS) if source.tres or source.gres else kinds.get(name, ("",))
