"""The pages of the queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from helios.app import reports
from helios.model import Snapshot, seconds_of
from helios.report.admin.sacct_format import FieldKind, ReportTable, as_json, declare_fields
from helios.report.html import PageSection
from helios.report.tables import counted
from helios.units import as_count, duration
from helios.web.page import Page, Reader, Section
from helios.web.pages.report_page import CHOICE, report_page
from helios.web.site import Site
from helios.web.table import DataTable

QUEUE = declare_fields(
    ("JobID", "job_id", FieldKind.TEXT, 12, "Job id"),
    ("User", "user", FieldKind.TEXT, 12, "User"),
    ("Account", "account", FieldKind.TEXT, 12, "Account"),
    ("Partition", "partition", FieldKind.TEXT, 12, "Partition"),
    ("QOS", "qos", FieldKind.TEXT, 8, "QOS"),
    ("GPUs", "gpus", FieldKind.SIZE, 6, "GPUs of one task of an array"),
    ("Tasks", "tasks", FieldKind.COUNT, 6, "Tasks of the array that wait"),
    ("Waited", "waited_s", FieldKind.LENGTH, 10, "Since it could have started"),
)
RUNNING = declare_fields(
    ("JobID", "job_id", FieldKind.TEXT, 12, "Job id"),
    ("User", "user", FieldKind.TEXT, 12, "User"),
    ("Account", "account", FieldKind.TEXT, 12, "Account"),
    ("Partition", "partition", FieldKind.TEXT, 12, "Partition"),
    ("GPUs", "gpus", FieldKind.SIZE, 6, "GPUs held"),
    ("CPUs", "cpus", FieldKind.SIZE, 6, "CPUs held"),
    ("Ran", "ran_s", FieldKind.LENGTH, 10, "Since its start"),
    ("Left", "left_s", FieldKind.LENGTH, 10, "Until its time limit"),
    ("Nodes", "node_list", FieldKind.TEXT, 16, "Nodes it runs on, in Slurm's text"),
)
SHORT = ("JobID", "User", "Partition", "GPUs", "Waited", "Reason")
"""Fields of the first page."""
OF_ADMINS = declare_fields(
    ("Reason", "reason", FieldKind.TEXT, 16, "Why it has not started, in Slurm's word"),
    ("Predicted", "p50_s", FieldKind.LENGTH, 10, "Run time that half of such jobs stay below"),
    ("MiddleOf10", "middle", FieldKind.TEXT, 16, "Run times of the middle 8 of 10 such jobs"),
)


def queue_page(site: Site, reader: Reader, _: Mapping[str, str]) -> Page:
    """Return the page of all waiting jobs."""
    site.refuse_history("A queue is")
    live = site.live()
    if isinstance(live, str):
        return unread_page(live)
    rows, values = waiting_jobs(live, reader), count_jobs(live, reader)
    lines = [count_sentence(values, reader)]
    lines += ["Predicted: half of such jobs run shorter."] if reader.is_admin and len(rows) else []
    section = Section(
        title="Waiting, the next one first",
        sentences=lines,
        data=DataTable(answer=queue_table(rows, reader), key="queue"),
    )
    return Page(
        title="Queue",
        subtitle=f"{live.cluster} as of {live.taken_at:%Y-%m-%d %H:%M:%S} UTC.",
        sections=[section],
        values={**values, "queue": queue_records(rows, reader)},
        follows=True,
    )


def running_page(site: Site, reader: Reader, _: Mapping[str, str]) -> Page:
    """Return the page of all running jobs."""
    site.refuse_history("A queue is")
    live = site.live()
    if isinstance(live, str):
        return unread_page(live)
    table = running_table(live, reader.visible_part(live).running)
    values = count_jobs(live, reader)
    return Page(
        title="Running",
        subtitle=f"{live.cluster} as of {live.taken_at:%Y-%m-%d %H:%M:%S} UTC.",
        sections=[
            Section(sentences=[count_sentence(values, reader)], data=DataTable(answer=table, key="jobs")),
        ],
        values={**values, "jobs": as_json(table)["rows"]},
        follows=True,
    )


def running_table(live: Snapshot, running: pd.DataFrame) -> ReportTable:
    """Return running jobs of a queue as a table."""
    ran_s = np.maximum(live.taken_at.timestamp() - seconds_of(running["started_at"]), 0.0)
    rows = running.assign(ran_s=ran_s, left_s=np.maximum(running["time_limit_s"] - ran_s, 0.0))
    shown = rows[[field.column for field in RUNNING]]
    return ReportTable(title="Running jobs", fields=RUNNING, rows=shown, empty="Nothing runs.")


def waiting_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of waiting jobs by partition and user."""
    return report_page("Who waits", reports.queue_report(site.report_query(reader, given)), form_fields=CHOICE[1:])


def unread_page(problem: str) -> Page:
    """Return the page of a queue that cannot be read."""
    lines = ["The queue cannot be read now.", problem, "The pages of the history do not need it."]
    return Page(title="Now", sections=[PageSection(sentences=lines)], values={"problem": problem}, follows=True)


def count_jobs(live: Snapshot, reader: Reader) -> dict[str, Any]:
    """Return how much waits and runs of what a reader may see."""
    shown = reader.visible_part(live)
    gpus = as_count(float((shown.running["gpus"] * shown.running["tasks"].clip(lower=1)).sum()))
    return {
        "cluster": live.cluster,
        "taken_at": live.taken_at.isoformat(),
        "pending": int(shown.pending["tasks"].clip(lower=1).sum()),
        "running": len(shown.running),
        "gpus_in_use": gpus,
    }


def count_sentence(values: Mapping[str, Any], reader: Reader) -> str:
    """Return how much waits and runs as a sentence."""
    tasks, running = values["pending"], values["running"]
    wait, run = "job waits" if tasks == 1 else "jobs wait", "runs" if running == 1 else "run"
    whose = "" if reader.is_admin else "Of yours, "
    return f"{whose}{tasks:,} {wait}, {running:,} {run} on {counted(values['gpus_in_use'], 'GPU')}."


def waiting_jobs(live: Snapshot, reader: Reader) -> pd.DataFrame:
    """Return the waiting jobs that a reader may see, the next one first."""
    pending = reader.visible_part(live).pending.sort_values("priority", ascending=False, kind="stable")
    waited_s = live.taken_at.timestamp() - seconds_of(pending["eligible_at"].fillna(pending["submitted_at"]))
    return pending.assign(waited_s=np.maximum(waited_s, 0.0))


def queue_table(rows: pd.DataFrame, reader: Reader) -> ReportTable:
    """Return waiting jobs as a table, for an admin with reasons and predictions."""
    fields = QUEUE
    if reader.is_admin:  # predictions and reasons rest on everybody's jobs; those of own jobs are on the jobs' pages
        middle = [
            "" if np.isnan(high) else f"{duration(low)} to {duration(high)}"
            for low, high in zip(rows["p10_s"], rows["p90_s"], strict=True)
        ]
        rows, fields = rows.assign(middle=middle), (*QUEUE, *OF_ADMINS)
    has_arrays = bool((rows["tasks"] > 1).any())
    shown = tuple(field.name for field in fields if has_arrays or field.name != "Tasks")
    return ReportTable(title="Waiting jobs", fields=fields, shown=shown, rows=rows, empty="Nothing waits.")


def short_queue_table(rows: pd.DataFrame, reader: Reader) -> ReportTable:
    """Return waiting jobs with the columns that have room beside another table."""
    table = queue_table(rows, reader)
    hidden = () if reader.is_admin else ("User", "Reason")
    return replace(table, shown=tuple(name for name in SHORT if name not in hidden))


def queue_records(rows: pd.DataFrame, reader: Reader) -> list[dict[str, Any]]:
    """Return rows as plain values, missing ones as None."""
    names: Sequence[str] = ("job_id", "user", "account", "partition", "qos", "gpus", "tasks", "waited_s")
    names = (*names, "reason", "p10_s", "p50_s", "p90_s") if reader.is_admin else names
    chosen = rows[list(names)].astype(object)
    records = chosen.where(chosen.notna(), None).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in records]
