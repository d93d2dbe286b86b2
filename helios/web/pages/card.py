"""The card of a reader's own jobs, for a frame on another page."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from helios.app.clusters import NOT_LIVE
from helios.report.admin.sacct_format import FieldKind, ReportTable, as_json, declare_fields
from helios.report.html import PageSection
from helios.web.page import Page, Reader
from helios.web.site import Site

CARD_ROWS = 8
"""Jobs on the card, which is a part of somebody else's page. JSON has as many."""
FIELDS = declare_fields(
    ("JobID", "job_id", FieldKind.TEXT, 12, "Job id"),
    ("State", "state", FieldKind.TEXT, 8, "running or waiting"),
    ("Partition", "partition", FieldKind.TEXT, 12, "Partition"),
    ("GPUs", "gpus", FieldKind.SIZE, 6, "GPUs of one task of an array"),
    ("Since", "since_s", FieldKind.LENGTH, 10, "Since its start, or since it could have started"),
)


def card_page(site: Site, reader: Reader, _: Mapping[str, str]) -> Page:
    """Return the card of the own jobs that run and wait.

    Where no proxy names the reader it has all jobs.
    """
    title = "Your jobs" if reader.user else "Jobs"
    live = f"This is a {NOT_LIVE}." if site.history() else site.live()
    if isinstance(live, str):
        return Page(title=title, sections=[PageSection(sentences=[live])], values={"problem": live}, is_card=True)
    shown = Reader(user=reader.user).visible_part(live) if reader.user else live
    jobs = pd.concat(
        [
            shown.running.assign(state="running", since=shown.running["started_at"]),
            shown.pending.assign(
                state="waiting", since=shown.pending["eligible_at"].fillna(shown.pending["submitted_at"])
            ),
        ]
    )
    since_s = (pd.Timestamp(live.taken_at) - jobs["since"]).dt.total_seconds().clip(lower=0)
    rows = jobs.assign(since_s=since_s)[[field.column for field in FIELDS]].head(CARD_ROWS)
    table = ReportTable(title=title, fields=FIELDS, rows=rows)
    running, pending = len(shown.running), int(shown.pending["tasks"].clip(lower=1).sum())
    values = {"cluster": live.cluster, "taken_at": live.taken_at.isoformat(), "running": running, "pending": pending}
    line = f"{running:,} {'runs' if running == 1 else 'run'}, {pending:,} {'waits' if pending == 1 else 'wait'}."
    notes = [f"The first {CARD_ROWS} of {len(jobs):,}."] if len(jobs) > CARD_ROWS else []
    return Page(
        title=title,
        subtitle=f"{live.cluster} as of {live.taken_at:%H:%M} UTC.",
        sections=[PageSection(sentences=[line], tables=[table], notes=notes)],
        values={**values, "jobs": as_json(table)["rows"]},
        follows=True,
        is_card=True,
    )
