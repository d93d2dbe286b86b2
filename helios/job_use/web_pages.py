"""The page of GPUs that are held and not used now."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pandas as pd

from helios.job_use.idle_gpus import MINUTES, last_held_gpus
from helios.metrics.job_use import IDLE
from helios.report.admin.sacct_format import FieldKind, ReportTable, as_json, declare_fields
from helios.report.tables import counted
from helios.warehouse import Warehouse
from helios.web.page import Page, Reader, Role, Route, Section
from helios.web.site import Site
from helios.web.table import DataTable

GPUS = declare_fields(
    ("JobID", "job_id", FieldKind.TEXT, 12, "The job that holds it"),
    ("User", "user", FieldKind.TEXT, 12, "Whose job"),
    ("Node", "node", FieldKind.TEXT, 12, "Its node"),
    ("GPU", "gpu", FieldKind.TEXT, 12, "Number or UUID"),
    ("Process", "process", FieldKind.TEXT, 8, "Whether a process of the job holds memory of it; empty: not known"),
    ("MemoryMiB", "memory_mib", FieldKind.COUNT, 10, "Most memory held on it, MiB"),
)


def idle_gpus_page(site: Site, reader: Reader, _: Mapping[str, str]) -> Page:
    """Return the page of held GPUs without use, as Prometheus said last."""
    site.refuse_history("Idle GPUs are")
    with Warehouse.open(site.settings.database.url) as warehouse:
        held: Mapping[str, Any] | None = last_held_gpus(warehouse, site.name())
    shown = [gpu for gpu in held["idle"] if reader.may_see(gpu["user"] or "")] if held else []
    words = {True: "yes", False: "no", None: ""}
    rows = pd.DataFrame(shown, columns=["job_id", "user", "node", "gpu", "has_process", "memory_mib"])
    rows = rows.assign(process=[words[gpu["has_process"]] for gpu in shown])[[field.column for field in GPUS]]
    table = ReportTable(title="Idle GPUs", fields=GPUS, rows=rows, empty="No GPU was held without use.")
    values = {"at": held["at"] if held else None, "idle": as_json(table)["rows"]}
    if held is None:
        lines = [
            "It is not known which GPUs are held without use.",
            "The daemon asks Prometheus: setting prometheus.url",
        ]
        return Page(title="Idle GPUs", sections=[Section(sentences=lines)], values=values)
    whose = f" of {held['measured']:,} measured" if reader.is_admin else " of your jobs"
    lines = [
        f"{counted(len(shown), 'GPU')}{whose} had no use for {MINUTES} minutes: all samples below {IDLE:g} %. "
        f"Measured by {held['exporter']}, where busy means that {held['busy_means']}.",
        "GPUs that several jobs share do not count, and nothing is cancelled.",
    ]
    at = datetime.fromisoformat(str(held["at"])).astimezone(UTC)
    return Page(
        title="Idle GPUs",
        subtitle=f"As of {at:%Y-%m-%d %H:%M} UTC.",
        sections=[Section(sentences=lines, data=DataTable(answer=table, key="idle"))],
        values=values,
    )


ROUTES = (
    Route(
        "/idle-gpus",
        "GPUs that running jobs hold and do not use",
        idle_gpus_page,
        menu_name="Idle GPUs",
        readers=Role.USER,
        needs_slurm=True,
    ),
)
