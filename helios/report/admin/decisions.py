"""Reports of the audit log.

Which decisions were made, and per service and day what came of them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pandas as pd

from helios.actions import Result
from helios.model import DECISIONS
from helios.report.admin.sacct_format import FieldKind, ReportTable, declare_fields

CONTROL = "helios"
CYCLE = "Cycle"
"""``action`` of an audit entry about a whole cycle, as DECISIONS declares it."""
RESULTS = tuple(str(result) for result in Result)

LINES = declare_fields(
    ("Time", "decided_at", FieldKind.MOMENT, 19, "When it was decided"),
    ("Service", "service", FieldKind.TEXT, 11, "Who asked for it; helios: control itself"),
    ("Mode", "mode", FieldKind.TEXT, 7, "off, shadow, canary, active or paused"),
    ("Action", "action", FieldKind.TEXT, 9, "Reorder, SoftLimit, Revert, ...; Cycle: a line about a whole cycle"),
    ("Target", "target", FieldKind.TEXT, 10, "Job id, partition, node or cluster"),
    ("Result", "result", FieldKind.TEXT, 9, f"What became of it: {', '.join(RESULTS)}"),
    ("Remark", "remark", FieldKind.TEXT, 30, "What more there is to say of the result"),
    ("Before", "before", FieldKind.TEXT, 16, "What was read before"),
    ("After", "after", FieldKind.TEXT, 16, "What was read back"),
    ("Reason", "reason", FieldKind.TEXT, 29, "Why"),
    ("Model", "model_id", FieldKind.TEXT, 20, "What predicted"),
)
_CYCLES = "Cycles with an entry in the audit log; of helios every cycle, where recorded"
BY_SERVICE = declare_fields(
    ("Day", "day", FieldKind.TEXT, 10, "Day, on the cluster's clock"),
    ("Service", "service", FieldKind.TEXT, 12, "Service; helios: control itself"),
    ("Mode", "mode", FieldKind.TEXT, 8, "Its mode at the day's end"),
    ("ModeChgs", "mode_changes", FieldKind.COUNT, 8, "How often its mode changed that day"),
    ("Cycles", "cycles", FieldKind.COUNT, 6, _CYCLES),
    ("Proposed", "proposed", FieldKind.COUNT, 8, "Changes of jobs and nodes; what already was so is not counted"),
    ("Done", "done", FieldKind.COUNT, 4, "Written and read back"),
    ("Would", "would", FieldKind.COUNT, 5, "Of a shadow: would have been written"),
    ("Refused", "refused", FieldKind.COUNT, 7, "A guard, or a check before the write, refused it"),
    ("Mismatch", "mismatch", FieldKind.COUNT, 8, "Something else was read back"),
    ("Failed", "failed", FieldKind.COUNT, 6, "The cluster refused or did not answer"),
    ("Postponed", "postponed", FieldKind.COUNT, 9, "The budget was spent; asked again"),
    ("Gone", "gone", FieldKind.COUNT, 5, "The job started or ended meanwhile, or there is no such node"),
    ("Suspended", "suspended", FieldKind.COUNT, 9, "Cycles in which Helios was suspended and wrote nothing"),
    ("SuspendedReason", "suspended_reason", FieldKind.TEXT, 30, "The most frequent reason why it was suspended"),
)
SHOWN_BY_SERVICE = tuple(
    field.name for field in BY_SERVICE if field.name not in {"ModeChgs", "Postponed", "Gone", "SuspendedReason"}
)


def decision_rows(
    decisions: pd.DataFrame,
    *,
    title: str,
    services: Collection[str] = (),
    targets: Collection[str] = (),
    results: Collection[str] = (),
    modes: Collection[str] = (),
    actions: Collection[str] = (),
    timezone: str = "UTC",
) -> ReportTable:
    """Report the audit entries, oldest first.

    An empty collection selects all.

    Parameters
    ----------
    decisions : DataFrame
        Columns of ``DECISIONS``.
    """
    rows = with_results(decisions)
    chosen = (("service", services), ("target", targets), ("result", results), ("mode", modes), ("action", actions))
    for column, names in chosen:
        if names:
            lowered = {name.lower() for name in names}
            rows = rows[rows[column].astype("str").str.lower().isin(lowered)]
    return ReportTable(
        title=title,
        fields=LINES,
        shown=("Time", "Service", "Mode", "Action", "Target", "Result", "Reason"),
        rows=rows.reset_index(drop=True),
        empty="Nothing was decided in this window." if decisions.empty else "No such decision in this window.",
        timezone=timezone,
    )


def with_results(decisions: pd.DataFrame) -> pd.DataFrame:
    """Return ``decisions`` with ``outcome`` split into ``result`` and ``remark``.

    ``result`` is the text before the first colon, of entries about a job or node the value of a
    :class:`~helios.actions.Result`; ``remark`` is the text after it.
    """
    parts = decisions["outcome"].astype("str").str.partition(":") if len(decisions) else pd.DataFrame(columns=[0, 1, 2])
    return decisions.assign(result=parts[0].str.strip(), remark=parts[2].str.strip())


def service_days(
    decisions: pd.DataFrame,
    *,
    title: str,
    cycles: pd.DataFrame | None = None,
    services: Collection[str] = (),
    timezone: str = "UTC",
) -> ReportTable:
    """Count cycles, outcomes and changes of mode by day and service.

    Also suspended cycles, with their most frequent reason.

    Parameters
    ----------
    decisions : DataFrame
        Columns of ``DECISIONS``, oldest first.
    cycles : DataFrame, optional
        Columns of ``CYCLES``; they are counted as the service ``helios``. None or empty: only cycles that left an
        audit entry are known.
    """
    known = cycles is not None and not cycles.empty
    lines = pd.concat([_count_decisions(decisions, cycles_known=known), _count_cycles(cycles)], ignore_index=True)
    table = _with_days(lines.sort_values("at", kind="stable", ignore_index=True), timezone)
    if services:
        table = table[table["service"].isin(list(services))]
    return ReportTable(
        title=title,
        fields=BY_SERVICE,
        shown=SHOWN_BY_SERVICE,
        rows=_by_day_and_service(table),
        empty="Nothing was decided in this window.",
        notes=() if known else ("Only cycles with an entry in the audit log are counted.",),
        timezone=timezone,
    )


def _count_decisions(decisions: pd.DataFrame, *, cycles_known: bool) -> pd.DataFrame:
    """Return the counted fields of each audit entry.

    Outcomes of changes, and suspended cycles unless the table of cycles counts them.
    """
    rows = with_results(decisions)
    about_cycle = (rows["action"] == CYCLE).to_numpy()
    known = rows["result"].isin(RESULTS).to_numpy()
    # Control records a suspended cycle only when its reasons change, so the table of cycles counts better.
    suspended = about_cycle & ~known & (not cycles_known)
    return pd.DataFrame(
        {
            "at": rows["decided_at"].array,
            "service": rows["service"].astype("object").array,
            "mode": rows["mode"].astype("object").array,
            "proposed": known & ~about_cycle,
            "is_suspended": suspended,
            "suspended_reason": rows["reason"].astype("object").where(pd.Series(suspended, index=rows.index)).array,
            **{f"is_{name}": (rows["result"] == name).fillna(False).to_numpy() for name in RESULTS},
        }
    )


def _count_cycles(cycles: pd.DataFrame | None) -> pd.DataFrame:
    if cycles is None or cycles.empty:
        return _count_decisions(DECISIONS.empty(), cycles_known=True)
    suspended = cycles["suspended"].astype("str").str.replace("\n", "; ").astype("object")
    suspended = suspended.where(suspended.notna() & (suspended != ""))
    counts = dict.fromkeys(["proposed", *(f"is_{name}" for name in RESULTS)], False)
    return pd.DataFrame(
        {
            "at": cycles["taken_at"].array,
            "service": CONTROL,
            "mode": None,
            **counts,
            "is_suspended": suspended.notna().array,
            "suspended_reason": suspended.array,
        }
    )


def _with_days(table: pd.DataFrame, timezone: str) -> pd.DataFrame:
    before = table.groupby("service")["mode"].transform(lambda modes: modes.ffill().shift())
    # Control itself has no mode: its entries have off, active or paused there.
    changed = before.notna() & table["mode"].notna() & (before != table["mode"]) & (table["service"] != CONTROL)
    day = pd.to_datetime(table["at"], utc=True).dt.tz_convert(timezone).dt.strftime("%Y-%m-%d")
    return table.assign(day=day, mode_changed=changed)


def _by_day_and_service(table: pd.DataFrame) -> pd.DataFrame:
    groups = table.groupby(["day", "service"], sort=True)
    counted = {"mode_changes": "mode_changed", "proposed": "proposed", "suspended": "is_suspended"}
    counted |= {name: f"is_{name}" for name in RESULTS}
    rows = groups[list(counted.values())].sum().rename(columns={held: name for name, held in counted.items()})
    # Control itself has no mode: its entries have off, active or paused there.
    rows["mode"] = groups["mode"].last().where(rows.index.get_level_values("service") != CONTROL)
    rows["cycles"] = groups["at"].nunique()
    rows["suspended_reason"] = groups["suspended_reason"].agg(_most_frequent)
    return rows.reset_index()


def _most_frequent(reasons: pd.Series[Any]) -> str | None:
    counts = reasons.value_counts()
    return None if counts.empty else str(counts.index[0])
