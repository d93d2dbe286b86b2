"""Findings, the values behind the statements of a study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from helios.metrics.study.blocks import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Answer of a history to one question.

    Attributes
    ----------
    number : int
        1 to 20, as in docs/study.md.
    estimate : Estimate
        The value with its interval; in the unit that the question has.
    n : int, optional
        Jobs, nodes, users or partitions that it rests on.
    coverage : float, optional
        Share of them, or of their hours, that the history says enough about.
    hours_per_week : float, optional
        Resource hours at stake in a week, to rank findings by. None where it is not about hours.
    missing : str
        What the history lacks; empty where the value is known.
    parts : dict
        Further figures by name, plain values.
    """

    number: int
    estimate: Estimate = field(default_factory=Estimate)
    n: int | None = None
    coverage: float | None = None
    hours_per_week: float | None = None
    missing: str = ""
    parts: Mapping[str, Any] = field(default_factory=dict)


def unknown_finding(number: int, missing: str, *, n: int | None = None, coverage: float | None = None) -> Finding:
    """Return a finding without a value, with the missing data."""
    return Finding(number=number, missing=missing, n=n, coverage=coverage)
