"""The page of all nodes."""

from __future__ import annotations

from collections.abc import Mapping

from helios.app.explain import node_status
from helios.report.html import PageSection, TableCells
from helios.web.page import Page, Reader
from helios.web.site import Site


def nodes_page(site: Site, _: Reader, __: Mapping[str, str]) -> Page:
    """Return the page of all nodes."""
    site.refuse_history("Nodes are")
    found = node_status(site.operations.node_cycles)
    lines = [f"Helios is paused {found.paused}."] if found.paused else []
    lines += [f"{found.protected[:1].upper()}{found.protected[1:]}."] if found.protected else []
    lines += [f"Nodes cannot be put to sleep here: {found.cannot}"] if found.cannot else []
    lines += [f"{node} failed to wake: {what}" for node, what in found.quarantined.items()]
    lines += [f"No node is put to sleep: {found.use_unknown}"] if found.use_unknown else []
    values = found.to_json()
    pools = values["pools"]
    header = [(name.replace("_", " ").capitalize(), place == 0) for place, name in enumerate(pools[0])] if pools else []
    rows = [tuple("" if value is None else str(value) for value in pool.values()) for pool in pools]
    sections = [
        PageSection(sentences=lines or [f"Nodes as of {found.taken_at:%Y-%m-%d %H:%M:%S} UTC."]),
        PageSection(title="Pools of nodes", tables=[TableCells(header=header, rows=rows)]),
    ]
    if found.spare is not None:
        sections.append(PageSection(title="Why so many stay awake", sentences=tuple(found.spare.sentences())))
    return Page(title="Nodes", sections=sections, values=values)
