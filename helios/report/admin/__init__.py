"""What an admin asks of a cluster's history, in sacct's habits: pure functions from frames to rows, and rows to text.

``answer`` holds what a report is and how it is written; ``people``, ``queue``, ``accuracy``, ``audit`` and ``shadow``
each answer one question; ``nightly`` puts the most important things first.
"""

from helios.report.admin.sacct_format import (
    Field,
    FieldKind,
    ReportTable,
    as_json,
    as_lines,
    chosen_fields,
    listing,
    moment_in_words,
)

__all__ = ["Field", "FieldKind", "ReportTable", "as_json", "as_lines", "chosen_fields", "listing", "moment_in_words"]
