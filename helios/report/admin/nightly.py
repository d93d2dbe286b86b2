"""The nightly report, as page and mail."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from email.message import EmailMessage
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.ticker import FuncFormatter, MultipleLocator
from numpy.typing import NDArray

from helios.actions import Result
from helios.model.nodes import fold
from helios.report.admin.decisions import ShadowDay, service_days, shadow_table, with_results
from helios.report.admin.predictions import prediction_accuracy, worst_predictions
from helios.report.admin.sacct_format import (
    CUT,
    FieldKind,
    ReportTable,
    as_lines,
    chosen_fields,
    declare_fields,
    write_values,
)
from helios.report.admin.usage import epoch_s, levels, queue_at, usage_by, wait_s
from helios.report.charts import BLUE, GREY, ORANGE, PALE, canvas, date_axis, local_times, nodes_over_time, saved_by_day
from helios.report.energy import EnergyLedger, energy_answer, energy_sentences, savings
from helios.report.html import PageSection, render_sections
from helios.report.tables import counted
from helios.units import change, duration, duration_in_words

WEEKS_BEFORE = 4
MOST_WAITING, MOST_PARTITIONS, MOST_WORST, MOST_REASONS = 10, 12, 8, 3
FAILED_WAKE = "FailedWake"
"""``action`` of the audit entry that control writes when a node did not wake."""
TICKS_S = (1, 5, 15, 60, 300, 900, 3_600, 3 * 3_600, 6 * 3_600, 12 * 3_600, 86_400, 2 * 86_400, 7 * 86_400)
WORST = declare_fields(
    ("JobID", "job_id", FieldKind.TEXT, 12, "Job"),
    ("User", "user", FieldKind.TEXT, 10, "User"),
    ("GPUs", "gpus", FieldKind.SIZE, 5, "GPUs"),
    ("Predicted", "p50_s", FieldKind.LENGTH, 11, "Predicted median run time"),
    ("Ran", "run_time_s", FieldKind.LENGTH, 11, "True run time"),
    ("OffBy", "off_by", FieldKind.FACTOR, 7, "Factor between them"),
    ("MissedH", "missed_hours", FieldKind.DECIMAL, 8, "GPU hours (of CPU jobs, hours) wrongly foreseen"),
)
DAYS = declare_fields(
    ("Day", "line", FieldKind.TEXT, 22, "Day, or the mean of the days before"),
    ("Started", "started", FieldKind.COUNT, 7, "Jobs that started"),
    ("MeanWait", "mean_wait_s", FieldKind.LENGTH, 10, "Their wait, mean"),
    ("P50Wait", "p50_wait_s", FieldKind.LENGTH, 10, "Their wait, median"),
    ("P95Wait", "p95_wait_s", FieldKind.LENGTH, 10, "Wait that one of 20 exceeds"),
    ("MaxWait", "longest_wait_s", FieldKind.LENGTH, 10, "Their longest wait"),
)
TIE = "\N{NO-BREAK SPACE}"


WIDTH = 76
"""Columns of the mail. RFC 5322 recommends at most 78."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NightEnergy:
    """What the nodes drew.

    Attributes
    ----------
    day : EnergyLedger
        Energy of the day, by partition.
    days : EnergyLedger
        Energy of the day and the days before, by day.
    """

    day: EnergyLedger
    days: EnergyLedger


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Night:
    """Everything that a nightly report is computed from.

    Frames are as the warehouse returns them.

    Attributes
    ----------
    begin, end : datetime
        The day, aware.
    jobs : DataFrame
        Columns of ``JOBS``: submitted before ``end``, as far back as four weeks and the longest wait before.
    past : DataFrame
        ``user``, ``ended_at`` and ``run_time_s`` of all jobs known.
    predictions, decisions, cycles : DataFrame
        Decisions and cycles of the day; predictions of ``jobs``.
    shadow : ShadowDay
    energy : NightEnergy, optional
        None where no node of the cluster is known.
    order : tuple of str
        Sentences of the last check of the queue order. Empty where there was none.
    changes : tuple of str
        Statements of the study that changed in the last seven days beyond chance.
    use : tuple of str
        How far off predictions of use were.
    """

    cluster: str
    timezone: str
    begin: datetime
    end: datetime
    jobs: pd.DataFrame
    past: pd.DataFrame
    predictions: pd.DataFrame
    decisions: pd.DataFrame
    cycles: pd.DataFrame
    shadow: ShadowDay
    energy: NightEnergy | None = None
    order: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    use: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Digest:
    """Content of a nightly report, from which page and mail are made.

    Attributes
    ----------
    subject : str
        For a mail, without line breaks.
    alarming : bool
        Whether something failed.
    sections : sequence of PageSection
        The most important first. Their tables are :class:`ReportTable` and fit a mail.
    """

    cluster: str
    timezone: str
    begin: datetime
    subject: str
    alarming: bool
    sections: Sequence[PageSection]


def nightly_digest(night: Night) -> Digest:
    """Compute the content of a nightly report."""
    zone = night.timezone
    daily = daily_waits(night)
    services = service_days(night.decisions, cycles=night.cycles, title="Services", timezone=zone)
    # Predictions are compared on jobs that ended in the day: of those submitted in it, mostly short ones have ended.
    ended = _jobs_of_day(night, "ended_at")
    known: Any = {"predictions": night.predictions, "timezone": zone}
    partitions = usage_by(
        "partition", night.jobs, since=night.begin, until=night.end, now=night.end, title="Partitions", **known
    )
    waiting = _waiting(queue_at(night.jobs, at=night.end, title="", **known), night)
    accuracy = prediction_accuracy(ended, past=night.past, title="Predictions of jobs that ended", by="all", **known)
    shadow = shadow_table(night.shadow, title="The shadow's day")
    decisions, failed_wakes = night.decisions, list(_failed_wake_sentences(night.decisions))
    alarms = [
        *_result_sentences(
            night.decisions, Result.MISMATCH, "Something else was read back than was written: {:,} times"
        ),
        *_result_sentences(decisions, Result.FAILED, "The cluster refused or did not answer: {:,} times"),
    ]
    refused = _result_sentences(decisions, Result.REFUSED, "{:,} changes were refused by guards")
    unchanged = not _total(services, "done") and not _total(services, "would")
    activity = [
        *failed_wakes,
        *(["Helios changed nothing on the cluster."] if unchanged else []),
        *alarms,
        *refused,
        *_suspension_sentences(night.cycles, services),
    ]
    columns = "service%-8,mode%-6,cycles,proposed,done,would,refused,mismatch,failed,suspended"
    sections = [
        PageSection(title="What Helios did", sentences=activity, tables=[_select(services, columns)]),
        PageSection(
            title="How long jobs waited",
            figures=[partial(waits_by_day, daily, zone)],
            tables=[
                _waits_table(daily, night),
                _select(partitions, "partition,jobs,meanwait,p50wait,p95wait,maxwait,failed", most=MOST_PARTITIONS),
            ],
        ),
        PageSection(
            title="Who waits longest",
            figures=[partial(queue_by_hour, levels(night.jobs, edges_s=_hours(night)), zone)],
            tables=[_select(waiting, "partition%-12,user%-12,waiting,meanwait,oldest,oldestjob", most=MOST_WAITING)],
        ),
        *([_energy_section(night.energy)] if night.energy else []),
        *([PageSection(title="What changed this week", sentences=night.changes)] if night.changes else []),
        *([PageSection(title="Whether the order helps", sentences=night.order)] if night.order else []),
        PageSection(
            title="How far off predictions were",
            tables=[
                _select(accuracy, "jobs,offby,bias,inside,above,lastrun,same"),
                ReportTable(
                    title="Worst predictions",
                    fields=WORST,
                    rows=worst_predictions(ended, night.predictions, most=MOST_WORST),
                    empty="No predicted job ended that day.",
                    timezone=night.timezone,
                ),
            ],
        ),
        *([PageSection(title="How far off predictions of use were", sentences=night.use)] if night.use else []),
        PageSection(
            title="What the shadow would have changed",
            sentences=night.shadow.sentences,
            tables=[_select(shadow, "line,meanwait,p50wait,p99wait,maxwait")],
            notes=night.shadow.notes,
        ),
    ]
    alarming = bool(failed_wakes or alarms)
    subject = _subject(night, services, daily, alarming=alarming)
    return Digest(
        cluster=night.cluster, timezone=zone, begin=night.begin, subject=subject, alarming=alarming, sections=sections
    )


def render_nightly(digest: Digest) -> str:
    """Return the page of a night."""
    return render_sections(
        f"{digest.cluster}, {pd.Timestamp(digest.begin).tz_convert(digest.timezone):%Y-%m-%d}",
        f"Times on the cluster's own clock ({digest.timezone}).",
        digest.sections,
        alarming=digest.alarming,
        footer="Written by Helios from history and its own audit; to write it, nothing on the cluster was read or "
        "changed.",
    )


def as_text(digest: Digest) -> str:
    """Return the digest as plain text of at most ``WIDTH`` columns."""
    return "\n".join(line.rstrip() for line in _lines(digest)) + "\n"


def as_mail(digest: Digest, *, page: str, page_name: str, recipient: str) -> bytes:
    """Return the digest as a mail with the page attached.

    The message is complete: ``sendmail -t < FILE`` sends it.

    The page is an attachment, because mail readers do not draw the figures of an HTML body. There is no date, which
    sendmail adds, so that the same digest gives the same bytes.

    Parameters
    ----------
    page, page_name : str
        The HTML page and the name of its file.
    recipient : str
        Its address.
    """
    message = EmailMessage()
    message["Subject"] = digest.subject
    message["From"] = "helios"
    message["To"] = recipient
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(as_text(digest))
    message.add_attachment(page, subtype="html", filename=page_name)
    message.set_boundary(f"=_helios_{digest.begin:%Y%m%d}")
    return message.as_bytes()


def daily_waits(night: Night) -> pd.DataFrame:
    """Return queue levels and wait quantiles of the last days.

    There is a row for each day, the day of the report last. ``p50_wait_s`` and ``p95_wait_s`` are of the jobs that
    started on that day.
    """
    local = pd.Timestamp(night.begin).tz_convert(night.timezone)
    days = [local - pd.DateOffset(days=days_back) for days_back in range(7 * WEEKS_BEFORE, 0, -1)]
    edges_s = epoch_s([*days, local, pd.Timestamp(night.end)])
    rows = levels(night.jobs, edges_s=edges_s)
    started_s = night.jobs["started_at"].to_numpy(dtype="datetime64[s]").astype(np.int64)
    day = np.searchsorted(edges_s, started_s, side="right") - 1
    waits, rows_range = pd.Series(wait_s(night.jobs)).groupby(day), range(len(rows))
    p50, p95 = (waits.quantile(share).reindex(rows_range).to_numpy() for share in (0.5, 0.95))
    return rows.assign(p50_wait_s=p50, p95_wait_s=p95)


def waits_by_day(daily: pd.DataFrame, timezone: str, *, narrow: bool = False) -> str | None:
    """Draw mean and p95 wait of the jobs started on each day.

    The result is None where no start is known.
    """
    if daily["mean_wait_s"].isna().all():
        return None
    days = local_times(daily["time"], timezone)
    with canvas("Mean and p95 wait of each day of the last four weeks", height=2.4, narrow=narrow) as drawing:
        axes = drawing.panels[0]
        colours = [PALE] * (len(days) - 1) + [ORANGE]
        axes.bar(days, daily["p95_wait_s"], color=colours, width=0.8, label="one in 20 waits longer")
        axes.plot(days, daily["mean_wait_s"], color=BLUE, marker="o", ms=3.5, lw=1.4, label="mean")
        axes.set_ylim(bottom=0)
        top_s = float(daily["p95_wait_s"].max())
        axes.yaxis.set_major_locator(MultipleLocator(next((tick for tick in TICKS_S if top_s <= 4 * tick), top_s / 4)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: duration(seconds) if seconds else "0"))
        date_axis(axes, narrow=narrow, offset=False)
        drawing.figure.legend(loc="outside lower center", ncols=2)
    return drawing.svg


def queue_by_hour(hourly: pd.DataFrame, timezone: str, *, narrow: bool = False) -> str | None:
    """Draw the hourly means of waiting and running jobs of the day.

    GPUs are drawn instead of jobs where any are used or waited for. The result is None where nothing waited or ran.
    """
    if not (hourly["waiting"].any() or hourly["running"].any()):
        return None
    gpus = bool(hourly["running_gpus"].any() or hourly["waiting_gpus"].any())
    unit, suffix = ("GPUs", "_gpus") if gpus else ("jobs", "")
    # The last hour is drawn to its end.
    hourly = pd.concat([hourly, hourly.tail(1).assign(time=hourly["time"].iloc[-1] + pd.Timedelta(hours=1))])
    hours = local_times(hourly["time"], timezone)
    with canvas(f"Waiting and running {unit} of the day by hour", height=2.2, narrow=narrow) as drawing:
        axes = drawing.panels[0]
        axes.fill_between(hours, hourly[f"running{suffix}"], step="post", color=PALE, label=f"{unit} in use")
        axes.step(hours, hourly[f"waiting{suffix}"], where="post", color=BLUE, lw=1.8, label=f"{unit} waited for")
        axes.set_ylim(bottom=0)
        axes.set_ylabel(unit, color=GREY)
        date_axis(axes, narrow=narrow, offset=False)
        drawing.figure.legend(loc="outside lower center", ncols=2)
    return drawing.svg


def _lines(digest: Digest) -> Iterator[str]:
    yield from _wrap(digest.subject)
    yield "=" * WIDTH
    for section in digest.sections:
        yield from ("", section.title.upper())
        for sentence in (*section.sentences, *section.notes):
            yield from _wrap(write_values(sentence, FieldKind.TEXT), "* ", "  ")
        for table in section.tables:
            if isinstance(table, ReportTable) and len(table.rows):
                lines = as_lines(table, chosen_fields(table, None))
                yield from ("", table.title[:WIDTH])
                yield from (line if len(line) <= WIDTH else line[: WIDTH - 1] + CUT for line in lines)
    yield ""
    yield from _wrap(f"Times on the cluster's own clock ({digest.timezone}).")


def _wrap(text: str, first: str = "", later: str = "") -> list[str]:
    """Wrap text at ``WIDTH`` columns, keeping each number with its unit."""
    joined = re.sub(r"(?<=\d) (?=(?:h|min|s|days?|%|weeks)\b)", TIE, text)
    lines = textwrap.wrap(joined, WIDTH, initial_indent=first, subsequent_indent=later)
    return [line.replace(TIE, " ") for line in lines]


def _select(table: ReportTable, columns: str, *, most: int | None = None) -> ReportTable:
    """Return the first rows, with ``--format`` columns."""
    return replace(
        table, shown=tuple(columns.split(",")), rows=table.rows.head(len(table.rows) if most is None else most)
    )


def _energy_section(energy: NightEnergy) -> PageSection:
    savings_of_days = [savings(energy.days)] if energy.days.slept and energy.days.days > 1 else []
    table = _select(energy_answer(energy.day), "partition,busyh,idleh,asleeph,kwh,cost,idlekwh,saved,vs30min")
    return PageSection(
        title="What nodes asleep saved",
        sentences=[*energy_sentences(energy.day), *savings_of_days],
        figures=[partial(nodes_over_time, energy.day), partial(saved_by_day, energy.days)],
        tables=[replace(table, title="Energy")],
        notes=energy.day.notes,
    )


def _hours(night: Night) -> NDArray[np.int64]:
    first_s, last_s = epoch_s([pd.Timestamp(night.begin), pd.Timestamp(night.end)])
    return np.append(np.arange(first_s, last_s, 3_600, dtype=np.int64), last_s)


def _jobs_of_day(night: Night, column: str) -> pd.DataFrame:
    """Return the jobs whose time ``column`` falls in the day."""
    moment = night.jobs[column]
    inside = (moment >= pd.Timestamp(night.begin)) & (moment < pd.Timestamp(night.end))
    return night.jobs[inside.to_numpy()]


def _total(services: ReportTable, column: str) -> int:
    return int(services.rows[column].sum()) if len(services.rows) else 0


def _subject(night: Night, services: ReportTable, daily: pd.DataFrame, *, alarming: bool) -> str:
    done, would = _total(services, "done"), _total(services, "would")
    activity = f"{done:,} changes" if done else f"shadow: {would:,} would change" if would else "nothing changed"
    mean, before = daily["mean_wait_s"].iloc[-1], _mean_before(daily, "mean_wait_s")
    wait_text = "no waits known" if np.isnan(mean) else f"mean wait {duration_in_words(mean)}"
    difference = f" ({change(mean, before)})" if before and not np.isnan(mean) else ""
    day = pd.Timestamp(night.begin).tz_convert(night.timezone)
    attention = "ATTENTION, " if alarming else ""
    return f"[helios] {night.cluster} {day:%Y-%m-%d}: {attention}{activity}; {wait_text}{difference}"


def _failed_wake_sentences(decisions: pd.DataFrame) -> Iterator[str]:
    """Name the nodes that did not wake and need a person."""
    failed = decisions[(decisions["action"] == FAILED_WAKE).to_numpy(dtype=bool)]
    if nodes := fold(failed["target"].astype("str")):
        yield (
            f"Failed to wake: {nodes}. Helios leaves them awake until somebody has checked them: "
            "helios power, then helios power --clear NODE."
        )


def _result_sentences(decisions: pd.DataFrame, result: Result, sentence: str) -> Iterator[str]:
    """Count the changes with a result, and name its most frequent reasons."""
    rows = with_results(decisions)
    is_counted = (rows["result"] == str(result)) & (rows["action"] != FAILED_WAKE)
    remarks = rows["remark"][is_counted.fillna(False).to_numpy(dtype=bool)]
    if remarks.empty:
        return
    counts = remarks[remarks.astype("str").str.len() > 0].value_counts().head(MOST_REASONS)
    reasons = "; ".join(f"{reason} ({number:,})" for reason, number in counts.items())
    yield f"{sentence.format(len(remarks))}{': ' if reasons else ''}{reasons}."


def _suspension_sentences(cycles: pd.DataFrame, services: ReportTable) -> Iterator[str]:
    suspended = _total(services, "suspended")
    if not suspended:
        return
    of_total = f" of {len(cycles):,}" if len(cycles) else ""
    reasons = services.rows["suspended_reason"].dropna()
    why = f", mostly because {reasons.iloc[0]}" if len(reasons) else ""
    yield f"Helios was suspended (it wrote nothing) in {suspended:,}{of_total} cycles{why}."


def _mean_before(daily: pd.DataFrame, column: str) -> float | None:
    """Return a column's mean over earlier days, weighted by starts.

    None where none started.
    """
    before = daily.iloc[:-1]
    known = before[before[column].notna() & (before["started"] > 0)]
    if known.empty:
        return None
    return float(np.average(known[column], weights=known["started"]))


def _waiting(queue: ReportTable, night: Night) -> ReportTable:
    """Return who waits at the end of the report, counted in the title."""
    rows = queue.rows[queue.rows["waiting"] > 0]
    last = pd.Timestamp(night.end).tz_convert(night.timezone)
    when = "the end of the day" if last == last.normalize() else f"{last:%H:%M}, the day not being over"
    jobs, users = counted(int(rows["waiting"].sum()), "job"), counted(rows["user"].nunique(), "user")
    return replace(queue, title=f"Waiting at {when}: {jobs} of {users}", rows=rows, total=None)


def _waits_table(daily: pd.DataFrame, night: Night) -> ReportTable:
    columns = ["mean_wait_s", "p50_wait_s", "p95_wait_s"]
    before = daily.iloc[:-1]
    day = pd.Timestamp(night.begin).tz_convert(night.timezone)
    known_days = int((before["started"] > 0).sum())
    whole = known_days == 7 * WEEKS_BEFORE
    rows = [
        {"line": f"{day:%Y-%m-%d}", **daily.iloc[-1][["started", *columns, "longest_wait_s"]].to_dict()},
        {
            "line": f"{WEEKS_BEFORE} weeks before, a day" if whole else f"{known_days} of the days before",
            "started": before.loc[before["started"] > 0, "started"].mean(),
            **{name: _mean_before(daily, name) for name in columns},
            "longest_wait_s": before["longest_wait_s"].max(),
        },
    ]
    return ReportTable(
        title="Waits of the jobs that started", fields=DAYS, rows=pd.DataFrame(rows), timezone=night.timezone
    )
