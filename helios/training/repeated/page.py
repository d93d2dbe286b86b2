"""Page of a report of repeated jobs."""

from __future__ import annotations

from helios.report.html import PageSection, render_sections
from helios.training.repeated.report import TrialsReport


def render_trials(report: TrialsReport) -> str:
    """Return the page of a report of repeated jobs."""
    sections = [
        PageSection(sentences=report.sentences or [report.table.empty]),
        PageSection(title="Repeated jobs", tables=[report.table], notes=report.table.notes),
        PageSection(title="The queue replayed", tables=[report.replay_table()], notes=report.replay_notes),
    ]
    if not report.replays:
        sections.pop()
    subtitle = (
        "Groups of alike jobs of few GPUs that one user sent within minutes. Lower ends count arrays and equal names, "
        f"upper ends all bursts of alike jobs. Times on the cluster's own clock ({report.table.timezone})."
    )
    return render_sections(report.table.title, subtitle, sections)
