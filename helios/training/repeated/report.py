"""Repeated jobs by user or group, and the queue with them packed.

Every amount is an interval. Its lower end counts arrays and equal names and takes the least that sharing a GPU gains,
its upper end counts all bursts of alike jobs and takes the most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.metrics.history import StudyHistory
from helios.metrics.trials import FEW_GPUS, SENT_WITHIN_S, Trials, repeated_amounts, sum_by_user
from helios.report.admin.sacct_format import Field, FieldKind, ReportTable, as_json, declare_fields, plain_values
from helios.units import duration_in_words, percent

BY_USER = declare_fields(
    ("User", "user", FieldKind.TEXT, 12, "User of the jobs"),
    ("Groups", "groups", FieldKind.COUNT, 6, "Groups of repeated jobs, at most"),
    ("Jobs", "jobs", FieldKind.COUNT, 7, "Jobs of these groups that were submitted or ran in the window"),
    ("GPUHours", "gpu_hours", FieldKind.DECIMAL, 9, "GPU hours of all the user's jobs in the window"),
    ("OneGPUh", "one_gpu_hours", FieldKind.DECIMAL, 9, "Of these, in jobs of one GPU"),
    ("RepeatMin", "repeated_hours_low", FieldKind.DECIMAL, 9, "GPU hours of arrays and equal names, few GPUs each"),
    ("RepeatMax", "repeated_hours_high", FieldKind.DECIMAL, 9, "GPU hours of all bursts of alike jobs, few GPUs each"),
    ("FuseMin", "fusible_hours_low", FieldKind.DECIMAL, 9, "Of RepeatMin, in jobs of one GPU: these look fusible"),
    ("FuseMax", "fusible_hours_high", FieldKind.DECIMAL, 9, "Of RepeatMax, in jobs of one GPU: these may be fusible"),
    ("SavedMin", "saved_hours_low", FieldKind.DECIMAL, 8, "GPU hours that packing saves at least"),
    ("SavedMax", "saved_hours_high", FieldKind.DECIMAL, 8, "GPU hours that packing saves at most"),
)
SHOWN_BY_USER = ("User", "Groups", "Jobs", "GPUHours", "FuseMin", "FuseMax", "SavedMin", "SavedMax")
BY_GROUP = declare_fields(
    ("User", "user", FieldKind.TEXT, 12, "User of the jobs"),
    ("Name", "name", FieldKind.TEXT, 13, "Name of the first job"),
    ("FirstJob", "first_job", FieldKind.TEXT, 10, "Id of the first job"),
    ("Submitted", "submitted_at", FieldKind.MOMENT, 19, "When the first job was submitted"),
    ("Evidence", "evidence", FieldKind.TEXT, 11, "Array, equal names, alike names or alike sizes; the weakest counts"),
    ("GPUs", "gpus", FieldKind.SIZE, 4, "GPUs of each job"),
    ("Jobs", "jobs", FieldKind.COUNT, 6, "Jobs that were submitted or ran in the window"),
    ("GPUHours", "gpu_hours", FieldKind.DECIMAL, 9, "GPU hours of the group in the window"),
    ("SavedMin", "saved_hours_low", FieldKind.DECIMAL, 8, "GPU hours that packing saves at least"),
    ("SavedMax", "saved_hours_high", FieldKind.DECIMAL, 8, "GPU hours that packing saves at most"),
)
SHOWN_BY_GROUP = ("User", "Name", "FirstJob", "Evidence", "GPUs", "Jobs", "GPUHours", "SavedMax")
REPLAYS = declare_fields(
    ("Replay", "replay", FieldKind.TEXT, 26, "Which jobs are packed, and how much sharing gains"),
    ("Packed", "packed", FieldKind.COUNT, 7, "Jobs that share a GPU"),
    ("MeanWait", "mean_wait_s", FieldKind.LENGTH, 10, "Mean wait of all other jobs"),
    ("P90Wait", "p90_wait_s", FieldKind.LENGTH, 10, "Wait that one other job in ten exceeds"),
    ("Less", "less_s", FieldKind.LENGTH, 10, "By how much MeanWait is shorter than with nothing packed"),
    ("Trials", "trials_s", FieldKind.LENGTH, 10, "Mean time from submission to result of the jobs that may be packed"),
)
GROUPS_BY = {"user": (BY_USER, SHOWN_BY_USER), "group": (BY_GROUP, SHOWN_BY_GROUP)}
WHAT_IT_IS = (
    "Names and times are evidence, not proof: nobody knows from the accounting whether jobs run the same program.",
    "How busy a GPU was and how much of its memory was used are not in the accounting. So the gain of sharing is taken "
    "from measurements elsewhere, of two of the same program: 1.26 on average on a V100, 1.09 on a P100, .98 on a K80. "
    "1.00 saves nothing. Different programs gain more (1.87 on a card of 24 GB, 1.31 on a V100), but repeated jobs are "
    "the same one. Trials measured on your GPUs say more: --gain LOW,HIGH",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedReplay:
    """Waits in a replay of the queue, with some jobs packed.

    Attributes
    ----------
    replay : str
        Name of the packed jobs and of the way to pack them.
    packed : int
        Jobs of the window that share a GPU.
    gain : float, optional
        Sum of the speeds of two trials on one GPU. None where nothing is packed.
    mean_wait_s, p90_wait_s : float
        Waits of the jobs that no replay packs.
    trials_s : float
        Mean time from submission to result of the jobs that some replay packs.
    less_s, trials_less_s : float, optional
        Reduction of both means by packing. Negative where they grow.
    less_low_s, less_high_s, trials_less_low_s, trials_less_high_s : float, optional
        In nine of ten draws the differences lie between these. None where there are too few draws.
    """

    replay: str
    packed: int
    gain: float | None
    mean_wait_s: float
    p90_wait_s: float
    trials_s: float
    less_s: float | None = None
    less_low_s: float | None = None
    less_high_s: float | None = None
    trials_less_s: float | None = None
    trials_less_low_s: float | None = None
    trials_less_high_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialsReport:
    """Repeated jobs of a window, and what packing them would have changed.

    Attributes
    ----------
    table : ReportTable
        Report by user or by group.
    totals : dict
        Sums over all users, as in a row of ``BY_USER``.
    gains : pair of float
        Least and most that sharing gains.
    names_known : bool
        Whether names or arrays are recorded, without which nothing is sure.
    replays : sequence of PackedReplay
        The first with nothing packed. Empty where nothing could be replayed.
    draws : int
        Draws behind the ranges of the replays.
    replay_notes : tuple of str
    """

    table: ReportTable
    totals: Mapping[str, Any]
    gains: tuple[float, float]
    names_known: bool
    replays: Sequence[PackedReplay] = ()
    draws: int = 0
    replay_notes: tuple[str, ...] = ()

    @property
    def sentences(self) -> list[str]:
        """The report as sentences."""
        return list(_sentences(self))

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            **as_json(self.table),
            "sums": {name: value for name, value in plain_values(self.totals).items() if name != "user"},
            "gains": list(self.gains),
            "names_known": self.names_known,
            "draws": self.draws,
            "replays": [asdict(one) for one in self.replays],
            "replay_notes": list(self.replay_notes),
        }

    def replay_table(self) -> ReportTable:
        """Return the waits of all replays."""
        columns = [field.column for field in REPLAYS]
        return ReportTable(
            title="The queue replayed, first in, first out with EASY backfill",
            fields=REPLAYS,
            rows=pd.DataFrame([asdict(one) for one in self.replays], columns=columns),
            empty="Nothing was replayed.",
            notes=self.replay_notes,
        )


def trials_by(
    by: str,
    history: StudyHistory,
    trials: Trials,
    *,
    chosen: NDArray[np.bool_],
    gains: tuple[float, float],
    title: str,
    most: int | None = None,
) -> tuple[ReportTable, dict[str, Any]]:
    """Return the table of repeated jobs, and the sums over all users.

    Parameters
    ----------
    by : str
        A key of ``GROUPS_BY``.
    chosen : bool array of shape (n_jobs,)
        The jobs that are reported.
    most : int, optional
        Rows. None for all.
    """
    fields, shown = GROUPS_BY[by]
    jobs = repeated_amounts(history, trials, chosen, gains)
    users = sum_by_user(jobs)[[field.column for field in BY_USER]]
    total = {"user": "total"} | {str(name): value for name, value in users.drop(columns="user").sum().items()}
    rows = users[users["groups"] > 0] if by == "user" else _group_rows(jobs, history, trials, chosen)
    key = "fusible_hours_high" if by == "user" else "gpu_hours"
    rows = rows.sort_values([key, "jobs", "user"], ascending=[False, False, True], kind="stable").reset_index(drop=True)
    notes = [f"The {most:,} largest of {len(rows):,} are shown; --json has all."] if most and len(rows) > most else []
    answer = ReportTable(
        title=title,
        fields=fields,
        shown=shown,
        rows=rows.head(most) if most else rows,
        total=total if by == "user" else None,
        empty="No jobs of few GPUs were repeated within minutes.",
        notes=tuple(notes),
        timezone=history.timezone,
    )
    return answer, total


def _group_rows(jobs: pd.DataFrame, history: StudyHistory, trials: Trials, chosen: NDArray[np.bool_]) -> pd.DataFrame:
    """Return a row for each group that has jobs in the window."""
    grouped = jobs[jobs["group"] >= 0].groupby("group", sort=False)
    sums = grouped[["jobs", "gpu_hours", "saved_hours_low", "saved_hours_high"]].sum()
    first = grouped["position"].first().to_numpy()
    of_array = pd.Series(trials.of_array[chosen & (history.size > 0)], index=jobs.index)
    arrays = of_array[jobs["group"] >= 0].groupby(jobs["group"]).all().reindex(sums.index).to_numpy(dtype=bool)
    named = history.stem.known[first]
    recorded = history.jobs.iloc[first]
    sums["evidence"] = np.select(
        [grouped["sure"].all().to_numpy() & arrays, grouped["sure"].all().to_numpy(), named],
        ["array", "equal names", "alike names"],
        default="alike sizes",
    )
    sums["user"] = grouped["user"].first()
    sums["name"] = recorded["name"].to_numpy(dtype=object)
    sums["first_job"] = recorded["job_id"].to_numpy(dtype=object)
    sums["submitted_at"] = recorded["submitted_at"].array
    sums["gpus"] = history.size[first]
    return sums.reset_index(drop=True)[[field.column for field in BY_GROUP]]


def _sentences(found: TrialsReport) -> Iterator[str]:
    total, (low, high) = found.totals, found.gains
    hours = float(total["gpu_hours"])
    if not hours or not total["groups"]:
        return
    ends = [float(total[f"fusible_hours_{end}"]) for end in ("low", "high")]
    yield (
        f"Between {_hours(ends[0])} and {_hours(ends[1])} of {_hours(hours)} GPU hours "
        f"({percent(ends[0] / hours, 1)} to {percent(ends[1] / hours, 1)}) were in repeated jobs of one GPU, which one "
        f"user sent within {SENT_WITHIN_S // 60} minutes of each other. These look fusible, and two may share a GPU."
    )
    more = [float(total[f"repeated_hours_{end}"]) - end_h for end, end_h in zip(("low", "high"), ends, strict=True)]
    if more[1] > 0:
        yield f"Repeated jobs of 2 to {FEW_GPUS} GPUs had {_hours(more[0])} to {_hours(more[1])} more; they stay as is."
    if not found.names_known:
        yield "Neither names nor arrays are recorded here, so nothing is sure, and the lower ends are 0."
    yield (
        f"Two on a GPU would have saved {_hours(total['saved_hours_low'])} to {_hours(total['saved_hours_high'])} GPU "
        f"hours, if sharing gains {low:.2f} to {high:.2f} times the work of one."
    )
    yield from _replay_sentences(found)


def _replay_sentences(found: TrialsReport) -> Iterator[str]:
    """Say what changes for the others, and whether draws agree on it."""
    packed = found.replays[1:]
    if not packed:
        return
    less = [one.less_s or 0.0 for one in packed]
    if max(map(abs, less)) < 1:
        yield "In the replay everybody else would have waited as long as before."
    else:
        span = _span(min(less), max(less), ("less", "more"))
        yield f"In the replay everybody else would have waited {span} on average."
    ranges = [(one.less_low_s, one.less_high_s) for one in packed]
    lows = [low for low, _ in ranges if low is not None]
    highs = [high for _, high in ranges if high is not None]
    if lows and highs:
        yield (
            f"In nine of ten draws of the window it is {_span(min(lows), max(highs), ('less', 'more'))}"
            + (", so it may be chance." if min(lows) <= 0 else ".")
        )
    own = [one.trials_less_s or 0.0 for one in packed]
    yield f"The trials themselves would have been done {_span(min(own), max(own), ('sooner', 'later'))} on average."


def _span(low: float, high: float, words: tuple[str, str]) -> str:
    """Return an interval such as ``2 min more to 5 h less``."""
    one, other = (words[0] if value >= 0 else words[1] for value in (low, high))
    texts = [duration_in_words(abs(value)) for value in (low, high)]
    if one != other:
        return f"{texts[0]} {one} to {texts[1]} {other}"
    if low < 0:
        texts.reverse()
    return f"{texts[0]} {one}" if texts[0] == texts[1] else f"{texts[0]} to {texts[1]} {one}"


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 10 or hours == 0 else f"{hours:.1f}"


def fields_of_trials(by: str) -> tuple[Field, ...]:
    """Return the fields of ``trials_by``."""
    return GROUPS_BY[by][0]
