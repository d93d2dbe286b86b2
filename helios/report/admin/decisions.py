"""Reports of the audit log.

Which decisions were made, what came of them, and what the shadow decisions of one day would have brought. The last is
estimated by a replay of that day; ``SHADOW_LIMITS`` says what the replay leaves out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.actions import Result
from helios.metrics.queue import mean_by_size
from helios.model import DECISIONS, Mode, Sizes
from helios.report.admin.sacct_format import FieldKind, ReportTable, declare_fields
from helios.report.gains import compare_sizes
from helios.units import duration_in_words

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

MOVED_S = 60
"""Difference of waits above which a job counts as moved, s."""
SAME = 0.02
"""Relative difference of mean waits below which two replays count as equal."""
SHADOW_LIMITS = (
    "An estimate: each job gets one urgency for the whole day, the first that was decided for it, so that promotions "
    "of long waiters are left out and the longest wait is the worse for it.",
    "Only jobs submitted by the end of the day are replayed; what came later would have delayed some of them.",
    "The replay knows partitions, GPUs and time limits, not fairshare, QOS limits, reservations, dependencies or "
    "drained nodes: compare the two replays with each other, not with the record.",
)
SHADOW_FIELDS = declare_fields(
    ("Line", "line", FieldKind.TEXT, 26, "What happened, or which replay"),
    ("Jobs", "jobs", FieldKind.COUNT, 7, "Jobs submitted that day that ran"),
    ("MeanWait", "mean_wait_s", FieldKind.LENGTH, 11, "Mean wait"),
    ("P50Wait", "median_wait_s", FieldKind.LENGTH, 11, "Median wait"),
    ("P99Wait", "p99_wait_s", FieldKind.LENGTH, 11, "Wait that one job in a hundred exceeds"),
    ("MaxWait", "max_wait_s", FieldKind.LENGTH, 11, "Longest wait"),
    ("Queued", "queued_jobs", FieldKind.COUNT, 7, "Jobs that waited at all"),
)
MOVED = declare_fields(
    ("JobID", "job_id", FieldKind.TEXT, 12, "Job"),
    ("User", "user", FieldKind.TEXT, 12, "User"),
    ("Size", "size", FieldKind.SIZE, 6, "GPUs, in a cluster without any CPUs"),
    ("Urgency", "urgency", FieldKind.DECIMAL, 8, "As decided first; a SiteFactor where that is what was written down"),
    ("Wait", "wait_s", FieldKind.LENGTH, 11, "Wait replayed under plain FIFO + EASY"),
    ("WouldWait", "would_wait_s", FieldKind.LENGTH, 11, "Wait replayed as decided"),
)
_URGENCY = re.compile(r"urgency\s*(-?\d+(?:\.\d+)?(?:e-?\d+)?)")
_SITE_FACTOR = re.compile(r"SiteFactor\s*(-?\d+)")


def decision_rows(
    decisions: pd.DataFrame,
    *,
    title: str,
    services: Collection[str] = (),
    targets: Collection[str] = (),
    results: Collection[str] = (),
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
    chosen = (("service", services), ("target", targets), ("result", results))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowWaits:
    """Waits of the same jobs, as recorded or in one replay.

    Attributes
    ----------
    jobs, queued_jobs : int
    mean_wait_s, median_wait_s, p99_wait_s, max_wait_s : float
    mean_wait_s_by_size : dict of float or None
        For each of :data:`helios.model.SIZE_CLASSES`.
    """

    jobs: int
    mean_wait_s: float
    median_wait_s: float
    p99_wait_s: float
    max_wait_s: float
    mean_wait_s_by_size: dict[str, float | None]
    queued_jobs: int

    @classmethod
    def of(cls, waited_s: NDArray[Any], classes: NDArray[np.int64]) -> ShadowWaits:
        """Summarize the waits of at least one job, in s.

        ``classes`` are the size classes of the jobs.
        """
        return cls(
            jobs=len(waited_s),
            mean_wait_s=float(np.mean(waited_s)),
            median_wait_s=float(np.median(waited_s)),
            p99_wait_s=float(np.percentile(waited_s, 99)),
            max_wait_s=float(np.max(waited_s)),
            mean_wait_s_by_size=mean_by_size(waited_s, classes),
            queued_jobs=int(np.count_nonzero(waited_s > 0)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowDay:
    """Effect that the shadow decisions of a day would have had.

    Attributes
    ----------
    begin : datetime
        Begin of the day, aware.
    timezone : str
        Time zone of the cluster.
    decided : int
        Number of jobs for which a shadow decided another place.
    earlier, later : int
        Number of the day's jobs that would have started earlier, or later, by more than a minute.
    recorded, without, with_decisions : ShadowWaits or None
        Waits as recorded, as replayed under FIFO with EASY backfill by time limits, and as replayed with the decided
        urgencies. None where there is nothing to measure.
    moved : DataFrame
        ``job_id``, ``user``, ``size``, ``urgency``, ``wait_s`` and ``would_wait_s`` of the replayed jobs that would
        have moved, the largest difference first.
    notes : tuple of str
    """

    begin: datetime
    timezone: str
    decided: int
    earlier: int = 0
    later: int = 0
    recorded: ShadowWaits | None
    without: ShadowWaits | None = None
    with_decisions: ShadowWaits | None = None
    moved: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=[field.column for field in MOVED]))
    notes: tuple[str, ...] = ()

    @property
    def sentences(self) -> list[str]:
        """The estimate as sentences."""
        return list(_sentences(self))

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        waits = {"recorded": self.recorded, "without": self.without, "with": self.with_decisions}
        return {
            "day": self.begin.isoformat(),
            "decided": self.decided,
            "earlier": self.earlier,
            "later": self.later,
            **{name: found and asdict(found) for name, found in waits.items()},
            "moved": self.moved.to_dict(orient="records"),
            "notes": list(self.notes),
        }


def decided_urgencies(decisions: pd.DataFrame) -> dict[str, float]:
    """Return the first urgency that a shadow decided for each job.

    Decisions recorded without a number are left out.

    Parameters
    ----------
    decisions : DataFrame
        Columns of ``DECISIONS``, oldest first.

    Returns
    -------
    dict
        The recorded urgency or SiteFactor. The numbers can only be compared with each other.
    """
    rows = with_results(decisions)
    is_order = (rows["mode"] == Mode.SHADOW) & (rows["action"] == "Reorder") & (rows["result"] == Result.WOULD)
    urgencies: dict[str, float] = {}
    for target, *texts in rows[is_order.to_numpy()][["target", "after", "remark"]].itertuples(index=False):
        written = [text for text in texts if isinstance(text, str)]
        found = (pattern.search(text) for text in written for pattern in (_URGENCY, _SITE_FACTOR))
        if number := next(filter(None, found), None):
            urgencies.setdefault(str(target), float(number[1]))
    return urgencies


def replayed_urgencies(jobs: pd.DataFrame, decided: Mapping[str, float]) -> NDArray[np.float64]:
    """Return the urgency decided for each job.

    It is that of the job or of its array's record, and 0 where nothing was decided.
    """
    own, of_array = (jobs[name].astype("object").map(decided).astype("float64") for name in ("job_id", "array_job_id"))
    return np.asarray(own.fillna(of_array).fillna(0.0), dtype=np.float64)


def moved_jobs(
    jobs: pd.DataFrame,
    *,
    size: Sizes,
    urgency: NDArray[np.float64],
    wait_s: NDArray[np.int64],
    would_wait_s: NDArray[np.int64],
) -> pd.DataFrame:
    """Return the jobs whose wait differs between two replays.

    Only differences above ``MOVED_S`` count. The largest comes first.

    Parameters
    ----------
    jobs : DataFrame
        Columns of ``JOBS``.
    size, urgency, wait_s, would_wait_s : arrays of shape (len(jobs),)
        GPUs or CPUs, the decided urgency, and the waits in the replays without and with it, s.
    """
    table = jobs[["job_id", "user"]].assign(size=size, urgency=urgency, wait_s=wait_s, would_wait_s=would_wait_s)
    table["difference_s"] = would_wait_s - wait_s
    moved = table[(table["difference_s"].abs() > MOVED_S).to_numpy()]
    order = moved["difference_s"].abs().sort_values(ascending=False, kind="stable").index
    return moved.loc[order].reset_index(drop=True).astype({"user": "object"})


def shadow_table(day: ShadowDay, *, title: str) -> ReportTable:
    """Show recorded waits beside both replays."""
    lines = (
        ("as recorded", day.recorded),
        ("replayed, plain FIFO + EASY", day.without),
        ("replayed, as decided", day.with_decisions),
    )
    rows = [{"line": name, **asdict(waits)} for name, waits in lines if waits is not None]
    return ReportTable(
        title=title,
        fields=SHADOW_FIELDS,
        rows=pd.DataFrame(rows, columns=[field.column for field in SHADOW_FIELDS]),
        empty="Nothing of that day can be compared.",
        notes=day.notes,
        timezone=day.timezone,
    )


def moved_table(day: ShadowDay, *, most: int) -> ReportTable:
    """Show the ``most`` jobs that would have moved furthest."""
    return ReportTable(
        title="Jobs that would have moved furthest",
        fields=MOVED,
        rows=day.moved.head(most),
        empty="No job would have moved by more than a minute.",
        timezone=day.timezone,
    )


def _sentences(day: ShadowDay) -> Iterator[str]:
    if not day.decided:
        yield "No shadow decided another place for any job that day."
        return
    yield f"A shadow would have given {day.decided:,} job{'' if day.decided == 1 else 's'} another place."
    if day.without is None or day.with_decisions is None:
        return
    old, new = day.without.mean_wait_s, day.with_decisions.mean_wait_s
    if abs(new - old) <= max(SAME * old, 1.0):
        yield f"In the replay that makes no difference to the mean wait: {duration_in_words(new)}."
    else:
        yield (
            f"In the replay the mean wait {'falls' if new < old else 'grows'} from {duration_in_words(old)} to "
            f"{duration_in_words(new)}; jobs that start earlier: {day.earlier:,}, later: {day.later:,}."
        )
    yield compare_sizes(day.without, day.with_decisions)
