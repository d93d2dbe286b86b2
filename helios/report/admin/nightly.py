"""The nightly report of a day, as a page and as a mail."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from email.message import EmailMessage
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.actions import Result
from helios.model.hostlist import fold
from helios.report.admin.decisions import service_days, with_results
from helios.report.admin.predictions import prediction_accuracy, worst_predictions
from helios.report.admin.queue import levels, queue_at
from helios.report.admin.sacct_format import (
    CUT,
    FieldKind,
    ReportTable,
    as_lines,
    chosen_fields,
    declare_fields,
    write_values,
)
from helios.report.admin.shadow import ShadowDay, shadow_table
from helios.report.admin.usage import usage_by, wait_s
from helios.report.energy import EnergyLedger, energy_answer, energy_sentences, savings
from helios.units import change, duration_in_words, percent

WEEKS_BEFORE = 4
MOST_WAITING, MOST_PARTITIONS, MOST_WORST, MOST_REASONS = 10, 12, 8, 3
FAILED_WAKE = "FailedWake"
"""``action`` of the audit entry that control writes when a node did not wake."""
SAME = 0.05
"""Relative difference of a day's waits to the weeks before below which it is called ordinary."""
WORST = declare_fields(
    ("JobID", "job_id", FieldKind.TEXT, 12, "Job"),
    ("User", "user", FieldKind.TEXT, 10, "User"),
    ("GPUs", "gpus", FieldKind.COUNT, 5, "GPUs"),
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


DID, WAITS, QUEUE = "What Helios did", "How long jobs waited", "Who waits longest"
ENERGY, ACCURACY = "What nodes asleep saved", "How far off predictions were"
WIDTH = 76
"""Columns of the mail; RFC 5322 asks for at most 78."""
TIE = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NightEnergy:
    """What the nodes drew.

    Attributes
    ----------
    day : EnergyLedger
        Of the day, by partition.
    days : EnergyLedger
        Of it and the days before, by day.
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
        None: no node of the cluster is known.
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Section:
    """A part of a report.

    Attributes
    ----------
    sentences : sequence of str
        The most important first.
    tables : sequence of ReportTable
        Each shows columns that fit a mail.
    """

    title: str
    sentences: Sequence[str] = ()
    tables: Sequence[ReportTable] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Digest:
    """Content of a nightly report.

    Attributes
    ----------
    subject : str
        For a mail, without line breaks.
    alarming : bool
        Whether something did not go as it should.
    sections : sequence of Section
        The most important first.
    daily : DataFrame
        A row for each day of the four weeks and the day: ``time``, ``submitted``, ``started``, waits, GPUs.
    hourly : DataFrame
        The queue of the day, as :func:`~helios.report.admin.queue.levels` gives it.
    energy : NightEnergy, optional
        None: no node of the cluster is known.
    """

    cluster: str
    timezone: str
    begin: datetime
    subject: str
    alarming: bool
    sections: Sequence[Section]
    daily: pd.DataFrame
    hourly: pd.DataFrame
    energy: NightEnergy | None = None


def nightly_digest(night: Night) -> Digest:
    """Compute the content of a nightly report."""
    zone, predictions = night.timezone, night.predictions
    daily = daily_waits(night)
    services = service_days(night.decisions, cycles=night.cycles, title="Services", timezone=zone)
    submitted, ended = _of_the_day(night, "submitted_at"), _of_the_day(night, "ended_at")
    partitions = usage_by(
        "partition", submitted, predictions=predictions, at=night.end, title="Partitions", timezone=zone
    )
    waiting = queue_at(night.jobs, predictions=predictions, at=night.end, title="Waiting longest", timezone=zone)
    failed_wakes, alarms = list(_failed_wakes(night.decisions)), list(_alarms(night.decisions))
    did = [
        *failed_wakes,
        *_acts(services),
        *alarms,
        *_refusals(night.decisions),
        *_suspensions(night.cycles, services),
    ]
    columns = "service%-8,mode%-6,cycles,proposed,done,would,refused,mismatch,failed,suspended"
    sections = [
        Section(title=DID, sentences=did, tables=[_shown(services, columns)]),
        Section(
            title=WAITS,
            sentences=list(_waits(daily)),
            tables=[
                _days(daily, night),
                _shown(partitions, "partition,jobs,meanwait,p50wait,p95wait,maxwait,failed", most=MOST_PARTITIONS),
            ],
        ),
        Section(
            title=QUEUE,
            sentences=list(_waiters(waiting, at=_end_of(night))),
            tables=[
                _shown(
                    replace(waiting, rows=waiting.rows[waiting.rows["waiting"] > 0], total=None),
                    "partition%-12,user%-12,waiting,meanwait,oldest,oldestjob",
                    most=MOST_WAITING,
                )
            ],
        ),
        *([_energy_section(night.energy)] if night.energy else []),
        Section(title=ACCURACY, sentences=list(_accuracy(ended, night)), tables=[_worst(ended, night)]),
        Section(
            title="What the shadow would have changed",
            sentences=night.shadow.sentences,
            tables=[
                _shown(shadow_table(night.shadow, title="The shadow's day"), "line,meanwait,p50wait,p99wait,maxwait")
            ],
            notes=night.shadow.notes,
        ),
    ]
    alarming = bool(failed_wakes or alarms)
    return Digest(
        cluster=night.cluster,
        timezone=zone,
        begin=night.begin,
        subject=_subject(night, services, daily, alarming=alarming),
        alarming=alarming,
        sections=sections,
        daily=daily,
        hourly=levels(night.jobs, edges_s=_hours(night)),
        energy=night.energy,
    )


def as_text(digest: Digest) -> str:
    """Return the digest as plain text of at most ``WIDTH`` columns.

    The most important comes first.
    """
    return "\n".join(line.rstrip() for line in _lines(digest)) + "\n"


def as_mail(digest: Digest, *, page: str, page_name: str, sender: str, recipient: str) -> bytes:
    """Return the digest as a mail with the page attached.

    The message is complete: ``sendmail -t < FILE`` sends it.

    The page is an attachment and not an alternative: mail readers do not draw the figures of an HTML body. Without a
    date, which sendmail adds, the same digest gives the same bytes.

    Parameters
    ----------
    page, page_name : str
        The HTML page and the name of its file.
    sender, recipient : str
        Addresses.
    """
    message = EmailMessage()
    message["Subject"] = digest.subject
    message["From"] = sender
    message["To"] = recipient
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(as_text(digest))
    message.add_attachment(page, subtype="html", filename=page_name)
    message.set_boundary(f"=_helios_{digest.begin:%Y%m%d}")
    return message.as_bytes()


def _lines(digest: Digest) -> Iterator[str]:
    yield from _wrapped(digest.subject)
    yield "=" * WIDTH
    for section in digest.sections:
        yield from ("", section.title.upper())
        for sentence in (*section.sentences, *section.notes):
            yield from _wrapped(write_values(sentence, FieldKind.TEXT), "* ", "  ")
        for table in section.tables:
            if len(table.rows):
                lines = as_lines(table, chosen_fields(table, None))
                yield from ("", table.title[:WIDTH])
                yield from (line if len(line) <= WIDTH else line[: WIDTH - 1] + CUT for line in lines)
    yield ""
    yield from _wrapped(f"Times on the cluster's own clock ({digest.timezone}).")


def _wrapped(text: str, first: str = "", then: str = "") -> list[str]:
    """Wrap text at ``WIDTH`` columns, keeping each number with its unit."""
    tied = re.sub(r"(?<=\d) (?=(?:h|min|s|days?|%|weeks)\b)", TIE, text)
    lines = textwrap.wrap(tied, WIDTH, initial_indent=first, subsequent_indent=then)
    return [line.replace(TIE, " ") for line in lines]


def _shown(table: ReportTable, columns: str, *, most: int | None = None) -> ReportTable:
    """Return the first rows of a table with columns as ``--format`` names them."""
    return replace(
        table, shown=tuple(columns.split(",")), rows=table.rows.head(len(table.rows) if most is None else most)
    )


def _energy_section(energy: NightEnergy) -> Section:
    before = [savings(energy.days)] if energy.days.slept and energy.days.days > 1 else []
    table = _shown(energy_answer(energy.day), "partition,busyh,idleh,asleeph,kwh,cost,idlekwh,saved,vs30min")
    return Section(
        title=ENERGY,
        sentences=[*energy_sentences(energy.day), *before],
        tables=[replace(table, title="Energy")],
        notes=energy.day.notes,
    )


def daily_waits(night: Night) -> pd.DataFrame:
    """Return queue levels and wait quantiles of the last days.

    A row for each of the days before, then one for the day. ``p50_wait_s`` and ``p95_wait_s`` are of the jobs that
    started on that day.
    """
    local = pd.Timestamp(night.begin).tz_convert(night.timezone)
    days = [local - pd.DateOffset(days=back) for back in range(7 * WEEKS_BEFORE, 0, -1)]
    edges_s = _edges([*days, local, pd.Timestamp(night.end)])
    rows = levels(night.jobs, edges_s=edges_s)
    started_s = night.jobs["started_at"].to_numpy(dtype="datetime64[s]").astype(np.int64)
    day = np.searchsorted(edges_s, started_s, side="right") - 1
    waits, places = pd.Series(wait_s(night.jobs)).groupby(day), range(len(rows))
    p50, p95 = (waits.quantile(share).reindex(places).to_numpy() for share in (0.5, 0.95))
    return rows.assign(p50_wait_s=p50, p95_wait_s=p95)


def _edges(moments: list[pd.Timestamp]) -> NDArray[np.int64]:
    return np.array([int(moment.timestamp()) for moment in moments], dtype=np.int64)


def _hours(night: Night) -> NDArray[np.int64]:
    first, last = _edges([pd.Timestamp(night.begin), pd.Timestamp(night.end)])
    return np.append(np.arange(first, last, 3_600, dtype=np.int64), last)


def _of_the_day(night: Night, column: str) -> pd.DataFrame:
    """Return the jobs whose time ``column`` falls in the day.

    Predictions are compared on the jobs that ended in the day: of those submitted in it, mostly short ones have ended.
    """
    moment = night.jobs[column]
    inside = (moment >= pd.Timestamp(night.begin)) & (moment < pd.Timestamp(night.end))
    return night.jobs[inside.to_numpy()]


def _total(services: ReportTable, column: str) -> int:
    return int(services.rows[column].sum()) if len(services.rows) else 0


def _subject(night: Night, services: ReportTable, daily: pd.DataFrame, *, alarming: bool) -> str:
    done, would = _total(services, "done"), _total(services, "would")
    acted = f"{done:,} changes" if done else f"shadow: {would:,} would change" if would else "nothing changed"
    mean, before = daily["mean_wait_s"].iloc[-1], _before(daily, "mean_wait_s")
    waited = "no waits known" if np.isnan(mean) else f"mean wait {duration_in_words(mean)}"
    against = f" ({change(mean, before)})" if before and not np.isnan(mean) else ""
    day = pd.Timestamp(night.begin).tz_convert(night.timezone)
    attention = "ATTENTION, " if alarming else ""
    return f"[helios] {night.cluster} {day:%Y-%m-%d}: {attention}{acted}; {waited}{against}"


def _acts(services: ReportTable) -> Iterator[str]:
    done, would = _total(services, "done"), _total(services, "would")
    if not done and not would:
        yield "Helios changed nothing on the cluster."
    if done:
        yield f"Helios changed something {done:,} times and read it back as asked."
    if would:
        yield f"In shadow it would have changed something {would:,} times; nothing of that was written."


def _failed_wakes(decisions: pd.DataFrame) -> Iterator[str]:
    """Name the nodes that did not wake and need a person."""
    failed = decisions[(decisions["action"] == FAILED_WAKE).to_numpy(dtype=bool)]
    if nodes := fold(failed["target"].astype("str")):
        yield (
            f"Failed to wake: {nodes}. Helios leaves them awake until somebody has checked them: "
            "helios power status, then helios power clear NODE."
        )


def _alarms(decisions: pd.DataFrame) -> Iterator[str]:
    """Describe mismatches and failures with their most frequent reasons."""
    rows = with_results(decisions[(decisions["action"] != FAILED_WAKE).to_numpy(dtype=bool)])
    for result, what in (
        (Result.MISMATCH, "Something else was read back than was written"),
        (Result.FAILED, "The cluster refused or did not answer"),
    ):
        found = rows[(rows["result"] == str(result)).fillna(False).to_numpy()]
        if len(found):
            yield f"{what}: {len(found):,} times{_reasons(found['remark'])}."


def _refusals(decisions: pd.DataFrame) -> Iterator[str]:
    rows = with_results(decisions)
    found = rows[(rows["result"] == str(Result.REFUSED)).fillna(False).to_numpy()]
    if len(found):
        yield f"{len(found):,} proposals were refused by guards{_reasons(found['remark'])}."


def _reasons(remarks: pd.Series[Any]) -> str:
    counts = remarks[remarks.astype("str").str.len() > 0].value_counts().head(MOST_REASONS)
    named = "; ".join(f"{reason} ({number:,})" for reason, number in counts.items())
    return f": {named}" if named else ""


def _suspensions(cycles: pd.DataFrame, services: ReportTable) -> Iterator[str]:
    suspended = _total(services, "suspended")
    if not suspended:
        return
    of = f" of {len(cycles):,}" if len(cycles) else ""
    reasons = services.rows["suspended_reason"].dropna()
    why = f", mostly because {reasons.iloc[0]}" if len(reasons) else ""
    yield f"Helios was suspended (it wrote nothing) in {suspended:,}{of} cycles{why}."


def _before(daily: pd.DataFrame, column: str) -> float | None:
    """Return the mean of a column over the days before.

    Weighted by the jobs that started on each day; None where none started.
    """
    before = daily.iloc[:-1]
    known = before[before[column].notna() & (before["started"] > 0)]
    if known.empty:
        return None
    return float(np.average(known[column], weights=known["started"]))


def _waits(daily: pd.DataFrame) -> Iterator[str]:
    day, before = daily.iloc[-1], _before(daily, "mean_wait_s")
    if np.isnan(day["mean_wait_s"]):
        yield "No job is known to have started that day."
        return
    mean = day["mean_wait_s"]
    yield (
        f"{int(day['started']):,} jobs started; they had waited {duration_in_words(mean)} on average, half of them "
        f"{duration_in_words(day['p50_wait_s'])} or less, one in 20 more than {duration_in_words(day['p95_wait_s'])}, "
        f"the unluckiest {duration_in_words(day['longest_wait_s'])}."
    )
    if before is None:
        yield "No job is known to have started in the four weeks before."
    elif abs(mean - before) <= max(SAME * before, 1.0):
        yield f"That is as in {_before_it(daily)}: {duration_in_words(before)} on average."
    else:
        yield (
            f"That is {'longer' if mean > before else 'shorter'} than in {_before_it(daily)}: "
            f"{duration_in_words(before)} on average ({change(mean, before)})."
        )


def _before_it(daily: pd.DataFrame) -> str:
    """Name the days before that the history knows.

    A young history does not know all of them.
    """
    known = int((daily["started"].iloc[:-1] > 0).sum())
    return f"the {WEEKS_BEFORE} weeks before" if known == 7 * WEEKS_BEFORE else f"{known} days of the weeks before"


def _end_of(night: Night) -> str:
    """Name the moment up to which the report counts.

    The end of the day, or the time of day where the day is not over yet.
    """
    last = pd.Timestamp(night.end).tz_convert(night.timezone)
    return "At the end of the day" if last == last.normalize() else f"At {last:%H:%M}, the day not being over,"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _waiters(waiting: ReportTable, *, at: str) -> Iterator[str]:
    rows = waiting.rows[waiting.rows["waiting"] > 0]
    if rows.empty:
        yield f"{at} nobody waited."
        return
    first = rows.iloc[0]
    waited = f"{_counted(int(rows['waiting'].sum()), 'job')} of {_counted(rows['user'].nunique(), 'user')} waited"
    job = f"job {first['oldest_job']} of {first['user']} in {first['partition']}"
    yield f"{at} {waited}; longest, {duration_in_words(first['oldest_wait_s'])}, {job}."


def _accuracy(ended: pd.DataFrame, night: Night) -> Iterator[str]:
    accuracy = prediction_accuracy(
        ended, predictions=night.predictions, past=night.past, title="", by="all", timezone=night.timezone
    )
    if accuracy.rows.empty:
        yield "No job that had been predicted ended that day."
        return
    row = accuracy.rows.iloc[0]
    naive = "" if np.isnan(row["naive_off_by"]) else (
        f"; on the jobs where both say something, {row['same_off_by']:.1f} against {row['naive_off_by']:.1f} of the "
        "user's last run"
    )  # fmt: skip
    yield f"Half of {int(row['jobs']):,} jobs that ended were predicted within a factor of {row['off_by']:.1f}{naive}."
    yield f"{percent(row['inside'])} lay between the predicted p10 and p90; 80 % is right."


def _days(daily: pd.DataFrame, night: Night) -> ReportTable:
    columns = ["mean_wait_s", "p50_wait_s", "p95_wait_s"]
    before = daily.iloc[:-1]
    day = pd.Timestamp(night.begin).tz_convert(night.timezone)
    rows = [
        {"line": f"{day:%Y-%m-%d}", **daily.iloc[-1][["started", *columns, "longest_wait_s"]].to_dict()},
        {
            "line": f"{WEEKS_BEFORE} weeks before, a day",
            "started": before.loc[before["started"] > 0, "started"].mean(),
            **{name: _before(daily, name) for name in columns},
            "longest_wait_s": before["longest_wait_s"].max(),
        },
    ]
    return ReportTable(
        title="Waits of the jobs that started",
        fields=DAYS,
        shown=tuple(field.name for field in DAYS),
        rows=pd.DataFrame(rows),
        timezone=night.timezone,
    )


def _worst(ended: pd.DataFrame, night: Night) -> ReportTable:
    return ReportTable(
        title="Worst predictions",
        fields=WORST,
        shown=tuple(field.name for field in WORST),
        rows=worst_predictions(ended, night.predictions, most=MOST_WORST),
        empty="No predicted job ended that day.",
        timezone=night.timezone,
    )
