"""Tables of advice, a row for each kind, user or group of jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from helios.report.admin.sacct_format import FieldKind, ReportTable, declare_fields
from helios.report.advice import Advice

KINDS: Mapping[str, tuple[str, str]] = {
    "limit_too_long": ("Time limit far above the run time", "Ask for less time: such jobs fit into gaps"),
    "limit_too_short": ("Ended at the time limit", "Ask for more time, or save and resume"),
    "memory_too_large": ("Memory that is not used", "Ask for less memory"),
    "memory_too_small": ("Ran out of memory", "Ask for more memory"),
    "cpus_unused": ("CPUs that are not used", "Ask for fewer CPUs"),
    "gpus_idle": ("GPUs held and not used", "Check that the program uses a GPU, or ask for none"),
    "gpus_idle_inside": ("More GPUs held than used", "Ask for fewer GPUs"),
    "session_idle": ("Sessions that rest on GPUs", "End a session when the work is done"),
    "packing": ("Repeated small jobs", "Let two share a GPU in a pool, which measures the gain"),
}
"""What was found and what to do, by kind of advice."""
HOURS = (
    ("GPUHours", "gpu_hours", FieldKind.DECIMAL, 9, "GPU hours of the jobs"),
    ("CPUHours", "cpu_hours", FieldKind.DECIMAL, 9, "CPU hours of the jobs, of those without GPUs"),
    ("Jobs", "jobs", FieldKind.COUNT, 7, "Jobs of which it is said"),
)
SUMMED = declare_fields(
    ("Found", "found", FieldKind.TEXT, 32, "What was found"),
    ("User", "user", FieldKind.TEXT, 12, "Whose jobs"),
    *HOURS,
    ("Groups", "groups", FieldKind.COUNT, 6, "Groups of alike jobs"),
    ("Users", "users", FieldKind.COUNT, 6, "Users"),
    ("JobID", "example", FieldKind.TEXT, 12, "The last job of the group with most hours"),
    ("Do", "remedy", FieldKind.TEXT, 40, "What to do"),
    ("Try", "option", FieldKind.TEXT, 24, "What to ask for instead, in the group with most hours"),
)
GROUP = declare_fields(
    ("Group", "which", FieldKind.TEXT, 40, "The alike jobs"),
    ("User", "user", FieldKind.TEXT, 12, "Whose jobs"),
    *HOURS,
    ("JobID", "example", FieldKind.TEXT, 12, "The last of them"),
    ("Says", "sentence", FieldKind.TEXT, 60, "What the jobs show"),
    ("Try", "option", FieldKind.TEXT, 24, "What to ask for instead"),
    ("Evidence", "evidence", FieldKind.TEXT, 40, "What it rests on"),
)
NONE = "No advice: nothing stands out that enough alike jobs show."


def advice_by_kind(advice: Iterable[Advice], *, by_user: bool = False) -> ReportTable:
    """Return the sums of each kind of advice, that on most GPU hours first.

    With ``by_user`` each user has a row for each kind. Kinds may be of the same jobs, so they have no total.
    """
    groups = _groups(advice)
    keys = ["kind", "user"] if by_user else ["kind"]
    hidden = "users" if by_user else "user"
    fields = tuple(field for field in SUMMED if field.column != hidden)
    # Rows are sorted by hours, so that the first of a kind is that with most.
    by_key = groups.groupby(keys, sort=False, as_index=False)
    sums = by_key.agg(
        **({} if by_user else {"users": ("user", "nunique")}),
        jobs=("jobs", "sum"),
        groups=("kind", "size"),
        example=("example", "first"),
        option=("option", "first"),
    )
    hours = ["gpu_hours", "cpu_hours"]
    sums[hours] = by_key[hours].sum(min_count=1)[hours]
    sums["found"], sums["remedy"] = ([KINDS[kind][place] for kind in sums["kind"]] for place in (0, 1))
    title = "Advice by kind and user" if by_user else "Advice by kind"
    return ReportTable(title=title, fields=fields, rows=_by_hours(sums), empty=NONE)


def advice_groups(advice: Iterable[Advice]) -> ReportTable:
    """Return a row for each piece of advice, with its evidence."""
    return ReportTable(title="Advice by group of jobs", fields=GROUP, rows=_groups(advice), empty=NONE)


def _groups(advice: Iterable[Advice]) -> pd.DataFrame:
    pieces: Sequence[Advice] = list(advice)
    rows = pd.DataFrame(
        {
            "kind": [piece.kind for piece in pieces],
            **{name: [getattr(piece, name) for piece in pieces] for name in ("user", "which", "sentence", "option")},
            "gpu_hours": [piece.hours if piece.resource == "GPU" else np.nan for piece in pieces],
            "cpu_hours": [piece.hours if piece.resource == "CPU" else np.nan for piece in pieces],
            "jobs": [piece.jobs for piece in pieces],
            "example": [piece.example for piece in pieces],
            "evidence": [str(piece.interval) for piece in pieces],
        }
    )
    return _by_hours(rows)


def _by_hours(rows: pd.DataFrame) -> pd.DataFrame:
    ordered = rows.sort_values(["gpu_hours", "cpu_hours"], ascending=False, na_position="last", kind="stable")
    return ordered.reset_index(drop=True)
