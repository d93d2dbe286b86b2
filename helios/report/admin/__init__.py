"""Reports for administrators from a cluster's history, in the style of sacct.

Pure functions from frames to rows, and from rows to text. ``sacct_format`` defines a report and how it is written;
``usage``, ``queue``, ``predictions``, ``decisions`` and ``shadow`` each answer one question; ``nightly`` combines the
most important parts of a day.
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
