"""The formats Helios reads: a new one is a module with a ``LAYOUT``, a member and a line here."""

from __future__ import annotations

from enum import StrEnum

from helios.ingest import acme, helios_csv, pai, philly, sacct, sacct_json, swf
from helios.ingest.draft import Layout


class TraceFormat(StrEnum):
    """A format of history files."""

    HELIOS = "helios"
    SACCT = "sacct"
    SACCT_JSON = "sacct-json"
    SWF = "swf"
    PHILLY = "philly"
    PAI = "pai"
    ACME = "acme"


# In the order in which they are tried: AcmeTrace has all columns of Helios, and more.
LAYOUTS: dict[TraceFormat, Layout] = {
    TraceFormat.ACME: acme.LAYOUT,
    TraceFormat.HELIOS: helios_csv.LAYOUT,
    TraceFormat.SACCT: sacct.LAYOUT,
    TraceFormat.SACCT_JSON: sacct_json.LAYOUT,
    TraceFormat.SWF: swf.LAYOUT,
    TraceFormat.PHILLY: philly.LAYOUT,
    TraceFormat.PAI: pai.LAYOUT,
}
