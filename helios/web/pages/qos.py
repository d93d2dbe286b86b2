"""The page of QOS and reservations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from helios.model import Snapshot
from helios.model.slurm_site import SlurmSite
from helios.report.admin.sacct_format import FieldKind, ReportTable, as_json, declare_fields
from helios.report.html import PageSection
from helios.units import count_in_words
from helios.web.page import Page, Reader, Section
from helios.web.pages.queue import unread_page
from helios.web.site import Site
from helios.web.table import DataTable

QOS = declare_fields(
    ("QOS", "qos", FieldKind.TEXT, 12, "QOS"),
    ("Priority", "priority", FieldKind.COUNT, 8, "Its priority, before Slurm weighs it"),
    (
        "MostGPUsUser",
        "max_gpus_per_user",
        FieldKind.COUNT,
        8,
        "Most GPUs that a user may hold at once; empty: no limit",
    ),
    ("MostJobsUser", "max_jobs_per_user", FieldKind.COUNT, 8, "Most jobs of a user that may run; empty: no limit"),
    ("MostGPUs", "max_gpus", FieldKind.COUNT, 8, "Most GPUs of all together; empty: no limit"),
    ("Running", "running", FieldKind.COUNT, 8, "Jobs that run now"),
    ("RunGPUs", "gpus", FieldKind.SIZE, 8, "GPUs that they hold"),
    ("Waiting", "waiting", FieldKind.COUNT, 8, "Jobs that wait now"),
)
LIMITS = ["name", "priority", "max_gpus_per_user", "max_jobs_per_user", "max_gpus"]
"""What a QOS allows, by its names in ``QosRules``."""
RESERVED = declare_fields(
    ("Reservation", "name", FieldKind.TEXT, 16, "Reservation"),
    ("State", "state", FieldKind.TEXT, 10, "ACTIVE or INACTIVE, in Slurm's word"),
    ("Begin", "begins_at", FieldKind.MOMENT, 19, "Its begin"),
    ("End", "ends_at", FieldKind.MOMENT, 19, "Its end"),
    ("Partition", "partition", FieldKind.TEXT, 12, "Its partition; empty: any"),
    ("NodeCount", "nodes", FieldKind.COUNT, 6, "Nodes"),
    ("Nodes", "node_list", FieldKind.TEXT, 16, "Nodes, in Slurm's text"),
    ("Users", "users", FieldKind.TEXT, 16, "Who may use it"),
    ("Accounts", "accounts", FieldKind.TEXT, 16, "Accounts that may use it"),
    ("Flags", "flags", FieldKind.TEXT, 16, "Slurm's flags"),
)


def qos_page(site: Site, reader: Reader, _: Mapping[str, str]) -> Page:
    """Return the page of QOS with the reader's jobs in them.

    An admin sees reservations, too.
    """
    site.refuse_history("QOS are")
    live = site.live()
    if isinstance(live, str):
        return unread_page(live)
    rules = site.rules()
    table = qos_table(rules, reader.visible_part(live))
    running, waiting = (int(table.rows[name].sum()) for name in ("running", "waiting"))
    whose = "" if reader.is_admin else " of yours"
    counts = f"{count_in_words(running, 'job')}{whose} {'runs' if running == 1 else 'run'} now, and {waiting:,} "
    lines = [f"{counts}{'waits' if waiting == 1 else 'wait'}.", *([rules] if isinstance(rules, str) else [])]
    page = Page(
        title="QOS and reservations" if reader.is_admin else "QOS",
        subtitle=f"{live.cluster} as of {live.taken_at:%Y-%m-%d %H:%M:%S} UTC.",
        sections=[Section(sentences=lines, data=DataTable(answer=table, key="qos"))],
        values={"qos": as_json(table)["rows"], "problem": rules if isinstance(rules, str) else None},
    )
    return _with_reservations(page, site.reservations()) if reader.is_admin else page


def qos_table(rules: SlurmSite | str, live: Snapshot) -> ReportTable:
    """Return each QOS with its jobs.

    They are those that Slurm has or that a job names. What a QOS allows is empty where the rules are not known.
    """
    qos = () if isinstance(rules, str) else rules.qos
    known = pd.DataFrame([{name: getattr(one, name) for name in LIMITS} for one in qos], columns=LIMITS).rename(
        columns={"name": "qos"}
    )
    running, waiting = (
        queue.assign(qos=queue["qos"].astype("object").fillna(""), tasks=queue["tasks"].clip(lower=1))
        for queue in (live.running, live.pending)
    )
    counts = pd.DataFrame(
        {
            "running": running.groupby("qos")["tasks"].sum(),
            "gpus": (running["gpus"] * running["tasks"]).groupby(running["qos"]).sum(),
            "waiting": waiting.groupby("qos")["tasks"].sum(),
        }
    ).fillna(0)
    rows = known.merge(counts.rename_axis("qos").reset_index(), on="qos", how="outer")
    rows[["running", "gpus", "waiting"]] = rows[["running", "gpus", "waiting"]].fillna(0)
    rows = rows.sort_values(["priority", "qos"], ascending=[False, True], ignore_index=True)
    fields = [field.column for field in QOS]
    return ReportTable(title="QOS", fields=QOS, rows=rows[fields], empty="Slurm has no QOS, and no job names one.")


def _with_reservations(page: Page, known: pd.DataFrame | str) -> Page:
    """Return a page with the reservations below, or with why they are not known."""
    title = "Reservations"
    if isinstance(known, str):
        return replace(
            page,
            sections=[*page.sections, PageSection(title=title, sentences=[known])],
            values={**page.values, "reservations": None},
        )
    table = ReportTable(title=title, fields=RESERVED, rows=known, empty="There is no reservation.")
    section = PageSection(title=title, sentences=[table.empty] if known.empty else [], tables=[table])
    return replace(
        page, sections=[*page.sections, section], values={**page.values, "reservations": as_json(table)["rows"]}
    )
