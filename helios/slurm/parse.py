"""Parsers of Slurm's notations.

Sources: squeue(1), scontrol(1), and what 22.05 printed on a running cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from helios.slurm.backend import UNLIMITED, Length
from helios.slurm.pyslurm_worker import count_tasks

_NONE = frozenset({"", "N/A", "(null)", "None", "Unknown", "NONE", "n/a", "none", "INVALID"})
_LENGTH = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(?:(\d+):)?(\d+)", re.ASCII)
_SIZE = re.compile(r"(\d{1,18}(?:\.\d*)?|\.\d+)([KMGTPE]?)", re.ASCII)
_MIB = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3, "E": 1024.0**4}
_COUNT = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4, "P": 1024**5, "E": 1024**6}
_GRES = re.compile(
    r"(?:gres[:/])?(?P<name>gpu|shard|mps)(?::(?P<type>(?!\d+(?:\(|$))[^:=(,]+))?(?:[:=](?P<count>\d+))?(?:\(.*\))?",
    re.ASCII,
)
_remembered = lru_cache(maxsize=20_000)
"""Cache of parsed values, since a queue repeats the same few texts thousands of times."""
COMMA_OUTSIDE_BRACKETS = re.compile(r",(?![^(\[]*[)\]])")


def text(value: str) -> str | None:
    """Return ``value``, or None where Slurm's text stands for no value."""
    return None if value in _NONE else value


def time_s(value: str) -> int | None:
    """Return a time printed with ``SLURM_TIME_FORMAT=%s``.

    None where it is not known or not set.
    """
    return int(value) if value.isascii() and value.isdigit() and int(value) > 0 else None


@_remembered
def length_s(value: str) -> Length:
    """Parse a length of time in seconds.

    Accepts texts like ``1-02:03:04``. ``UNLIMITED`` is returned as such, and None for a length that is not set or 0.
    """
    if value == UNLIMITED:
        return UNLIMITED
    found = _LENGTH.fullmatch(value)
    if found is None:
        return None
    days, *clock = found.groups()
    seconds = 86_400.0 * int(days or 0)
    for unit, part in zip((1, 60, 3600), reversed([part for part in clock if part is not None]), strict=False):
        seconds += unit * int(part)
    return seconds or None


@_remembered
def whole(value: str) -> int | None:
    """Parse a count like ``12``, ``4-8`` or ``2K``, or return None.

    Of a range the smaller number counts. K stands for 1,024.
    """
    found = _SIZE.match(value)
    return round(float(found[1]) * _COUNT[found[2]]) if found else None


@_remembered
def memory_mib(value: str) -> float | None:
    """Parse an amount of memory in MiB, or return None.

    For example ``100M`` or ``1.5T``.
    """
    found = _SIZE.fullmatch(value)
    return float(found[1]) * _MIB[found[2]] if found else None


@_remembered
def tres(value: str) -> Mapping[str, str]:
    """Parse a TRES string such as ``cpu=4,mem=8G`` into a mapping."""
    return MappingProxyType(dict(part.split("=", 1) for part in value.split(",") if "=" in part))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """Number of GPUs and their type, None for any, several, or untyped."""

    count: int
    type: str | None


@_remembered
def gres(value: str) -> Mapping[str, Mapping[str, int]]:
    """Parse the GPUs and their shares in a list of TRES or GRES.

    The counts are by name (gpu, shard, mps) and type. Those without a type have "". Examples: ``gres/gpu=2``,
    ``gres:gpu:a100:2``, ``gpu:a100:8(S:0-1),shard:a100:32``.
    """
    counts: dict[str, dict[str, int]] = {}
    for part in COMMA_OUTSIDE_BRACKETS.split(value):
        if found := _GRES.fullmatch(part.strip()):
            kinds, kind = counts.setdefault(found["name"], {}), found["type"] or ""
            kinds[kind] = kinds.get(kind, 0) + int(found["count"] or 1)
    return MappingProxyType(counts)


def gpus(value: str, name: str = "gpu") -> Gpus:
    """Return the GPUs, or shares of another ``name``, in a list.

    Where a list has the same GPUs once with and once without types, as TRES do, they are counted once.
    """
    kinds = gres(value).get(name, {})
    typed = [kind for kind in kinds if kind]
    total = max(kinds.get("", 0), sum(kinds[kind] for kind in typed))
    return Gpus(count=total, type=typed[0] if len(typed) == 1 else None)


@_remembered
def tasks(value: str) -> int:
    """Return the number of array tasks in a text like ``0,3,6,20-29%2``.

    Steps as in ``0-9:3`` are supported.
    """
    return count_tasks(value.strip("[]"))


def join_words(numbers: Iterable[int]) -> str:
    """Return array tasks in Slurm's notation, such as ``0,3,6,20-29``."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def release(version: str) -> tuple[int, int]:
    """Parse a version like ``22.05.8`` into (22, 5).

    Returns (0, 0) where it cannot be parsed.
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)
