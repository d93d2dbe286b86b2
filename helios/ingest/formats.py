"""The formats Helios reads: a new one is a module with a ``LAYOUT``, a member and a line here."""

from __future__ import annotations

from enum import StrEnum

from helios.ingest import helios_csv, sacct, swf
from helios.ingest.draft import Layout


class TraceFormat(StrEnum):
    """A format of history files."""

    HELIOS = "helios"
    SACCT = "sacct"
    SWF = "swf"


LAYOUTS: dict[TraceFormat, Layout] = {
    TraceFormat.HELIOS: helios_csv.LAYOUT,
    TraceFormat.SACCT: sacct.LAYOUT,
    TraceFormat.SWF: swf.LAYOUT,
}
