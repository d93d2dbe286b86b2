"""Slurm's ways to write a number: lengths, times, memory, TRES, GRES, array tasks.

Sources: squeue(1), scontrol(1), and what 22.05 printed on a running cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from helios.slurm.backend import UNLIMITED, Length

_NONE = frozenset({"", "N/A", "(null)", "None", "Unknown", "NONE", "n/a", "none", "INVALID"})
_LENGTH = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(?:(\d+):)?(\d+)", re.ASCII)
_SIZE = re.compile(r"([\d.]+)([KMGTPE]?)", re.ASCII)
_MIB = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3, "E": 1024.0**4}
_COUNT = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4, "P": 1024**5, "E": 1024**6}
_GRES = re.compile(r"(?:gres[:/])?gpu(?::(?P<type>[A-Za-z][^:=(,]*))?(?:[:=](?P<count>\d+))?(?:\(.*\))?", re.ASCII)
_remembered = lru_cache(maxsize=20_000)
"""A queue says the same few things thousands of times."""
_OUTSIDE_BRACKETS = re.compile(r",(?![^(\[]*[)\]])")


def text(value: str) -> str | None:
    """Return ``value``, or None where Slurm means that there is none."""
    return None if value in _NONE else value


def time_s(value: str) -> int | None:
    """Return a time printed with ``SLURM_TIME_FORMAT=%s``; None: not known or not set."""
    return int(value) if value.isascii() and value.isdigit() and int(value) > 0 else None


@_remembered
def length_s(value: str) -> Length:
    """Return a length as ``1-02:03:04``, ``UNLIMITED`` or ``0:00``, in seconds; None: not set, or 0."""
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
    """Return a count as ``12``, ``4-8`` (the least) or ``2K`` (1,024 each); None: none given."""
    found = _SIZE.match(value)
    return round(float(found[1]) * _COUNT[found[2]]) if found and found[1] != "." else None


@_remembered
def memory_mib(value: str) -> float | None:
    """Return an amount of memory as ``100M`` or ``1.5T`` in MiB; None: none given."""
    found = _SIZE.fullmatch(value)
    return float(found[1]) * _MIB[found[2]] if found else None


@_remembered
def tres(value: str) -> Mapping[str, str]:
    """Return ``cpu=4,mem=8G,gres/gpu:a100=2`` as a mapping."""
    return MappingProxyType(dict(part.split("=", 1) for part in value.split(",") if "=" in part))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """A number of GPUs and their type; None: any, several, or untyped."""

    count: int
    type: str | None


@_remembered
def gpus(value: str) -> Gpus:
    """Return the GPUs of a list of TRES or GRES: ``gres/gpu=2``, ``gres:gpu:a100:2``, ``gpu:a100:8(S:0-1)``.

    Where a list says the same once with and once without types, as TRES do, it is counted once.
    """
    typed: dict[str, int] = {}
    plain = 0
    for part in _OUTSIDE_BRACKETS.split(value):
        if found := _GRES.fullmatch(part.strip()):
            count = int(found["count"] or 1)
            if found["type"]:
                typed[found["type"]] = typed.get(found["type"], 0) + count
            else:
                plain += count
    kind = next(iter(typed)) if len(typed) == 1 else None
    return Gpus(count=max(plain, sum(typed.values())), type=kind)


@_remembered
def tasks(value: str) -> int:
    """Return how many tasks ``0,3,6,20-29%2`` names, steps as in ``0-9:3`` included."""
    count = 0
    for part in value.strip("[]").partition("%")[0].split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        if first.isdigit():
            count += (int(last or first) - int(first)) // int(step or 1) + 1
    return max(count, 1)


def join_words(numbers: Iterable[int]) -> str:
    """Return array tasks as Slurm names them: ``0,3,6,20-29``."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def release(version: str) -> tuple[int, int]:
    """Return a version as ``22.05.8`` as (22, 5); (0, 0): not understood."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)
