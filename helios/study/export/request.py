"""What an export is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from helios.app.record import refuse_reversed
from helios.choices import ExportLayout
from helios.errors import UsageError
from helios.study.export.anonymous import WEEK_S
from helios.units import DAY_S, duration_in_words

ANONYMOUS = "anonymous"
"""Name of the cluster in an anonymous export."""
MANIFEST, RISK, LOSS = "export.json", "risk.json", "loss.json"
RISK_BOUND = 0.2
"""Largest share of the jobs that any measured attack may give to their user. A fifth is what six real histories reach
with submissions true to the day, and none with hours (docs/decisions/0038)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """What to export.

    Attributes
    ----------
    out : Path
        The folder; made if missing.
    layouts : sequence of ExportLayout
        One file for each.
    since, until : datetime, optional
        Only jobs submitted in [since, until).
    anonymous : bool
        What follows is for anonymous exports.
    round_s : int
        Step to which submissions are true, s.
    accept_risk : bool
        Whether a risk above the bound is accepted, and no job left out.
    key_file : Path, optional
        The key; made if missing. None for a new one in ``key_folder``.
    """

    out: Path
    layouts: Sequence[ExportLayout] = tuple(ExportLayout)
    since: datetime | None = None
    until: datetime | None = None
    anonymous: bool = False
    round_s: int = DAY_S
    accept_risk: bool = False
    key_file: Path | None = None
    key_folder: Path = Path()

    def __post_init__(self) -> None:
        refuse_reversed(self.since, self.until)
        if self.round_s < 1 or WEEK_S % self.round_s:
            raise UsageError(
                f"Times cannot be rounded to {duration_in_words(self.round_s)}: it does not divide a week.",
                hint="Write --round 1min, 10min, 1h, 6h, 1d or 7d",
            )
