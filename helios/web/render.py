"""A page as HTML, with its menu and links that keep the window."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from helios import __version__
from helios.actions import Result
from helios.app.clusters import NOT_LIVE
from helios.report.html import PageSection, TableCells, filled_sections
from helios.warehouse.use import UNNAMED
from helios.web.chart import Chart
from helios.web.page import MenuPlace, Page, Reader, Route, Section
from helios.web.pages.report_page import WINDOW
from helios.web.pages.work import BY
from helios.web.routes import ROUTES
from helios.web.table import TableView

LINKS = {
    "JobID": "/jobs/",
    "Target": "/jobs/",
    "OldestJob": "/jobs/",
    "User": "/users/",
    "Account": "/accounts/",
    "Partition": "/partitions/",
    "Node": "/nodes/",
    "Report": "/reports/",
    "Pool": "/pools/",
}
"""Addresses of what stands in a column, by its head. A target is linked where it is the number of a job."""
LABELS = {
    "from": "From",
    "to": "To",
    "user": "User",
    "account": "Account",
    "partition": "Partition",
    "by": "Group by",
    "result": "Result",
    "state": "State",
    "name": "Name has",
}
OPTIONS = {
    "by": BY,
    "result": tuple(Result),
    "state": ("PENDING", "RUNNING", "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL"),
}
"""What a browser offers in some fields of a form. Others can be typed."""
HEADS = {
    "JobID": "Job",
    "P50Wait": "Median wait",
    "P50Run": "Median run",
    "LostGPUh": "GPU hours lost",
    "LostCPUh": "CPU hours lost",
    "OverAsk": "Limit / run",
    "PredGPUh": "Predicted GPU hours",
    "RunGPUs": "GPUs held",
    "HeldGPUs": "GPUs held",
    "HeldCPUs": "CPUs held",
    "WaitGPUs": "GPUs waited for",
    "Inside": "Within p10 to p90",
    "Above": "Above p90",
    "LastRun": "Last run off by",
    "Same": "Same jobs off by",
    "Better": "Nearer than last run",
    "Would": "Noted in shadow",
    "MiddleOf10": "Middle 8 of 10",
    "OneGPUh": "Hours of one GPU",
    "MemoryMiB": "Memory (MiB)",
    "OutH": "Hours out",
    "IdlekWh": "Idle kWh",
    "kWh": "kWh",
    "Saved": "kWh saved",
    "vs30min": "kWh against 30 min",
    "vs10min": "kWh against 10 min",
}
"""Heads of columns that their fields' names do not say; others are split into words."""
WORDS = {"H": "hours", "Chgs": "changes"}
"""Short forms at the end of fields' names."""
_NEXT_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})")
WINDOWS = {"Day": "now-1days", "Week": "now-7days", "4 weeks": "now-4weeks", "Year": "now-365days"}
"""Windows that a click picks, by where they begin."""
CHART_ROWS = 60
"""Most times in the table behind a chart. JSON has all."""

_PAGES = Environment(
    loader=ChoiceLoader([PackageLoader("helios.web"), PackageLoader("helios.report")]),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def head_in_words(name: str) -> str:
    """Return the words of a field's name, ``GPU hours`` for ``GPUHours``."""
    if name in HEADS:
        return HEADS[name]
    first, *others = (WORDS.get(word, word) for word in _NEXT_WORD.split(name))
    return " ".join([first, *(word if word.isupper() else word[:1].lower() + word[1:] for word in others)])


_PAGES.filters["head"] = head_in_words
_PAGES.globals["UNNAMED"] = UNNAMED


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Address of a page, as it was asked for.

    Attributes
    ----------
    path : str
    given : mapping
        Its query parameters that the page knows, and the window.
    """

    path: str
    given: Mapping[str, str]

    @property
    def window(self) -> dict[str, str]:
        """The window that was picked, which all links keep."""
        return {name: value for name in WINDOW if (value := self.given.get(name))}

    def to(self, path: str) -> str:
        """Return the address of another page, with the same window."""
        return _with_query(path, self.window)

    def changed(self, **changes: str | int) -> str:
        """Return the address of this page with other parameters.

        An empty one is left out.
        """
        query = {**self.given, **{name.rstrip("_"): str(value) for name, value in changes.items()}}
        return _with_query(quote(self.path), {name: value for name, value in query.items() if value})


def render_page(
    address: Address,
    reader: Reader,
    page: Page,
    *,
    route: Route | None,
    is_history: bool = False,
    age: str = "",
    lines: Sequence[str] = (),
) -> str:
    """Return a page as HTML.

    Parameters
    ----------
    route : Route, optional
        None for a page that is in no place, such as what a search finds.
    is_history : bool
        Whether no live Slurm stands behind the pages.
    age : str
        How old what is shown is, where that is not the present.
    lines : sequence of str
        Sentences before everything else.
    """
    readable = [
        other for other in ROUTES if other.menu_name and other.is_for(reader) and not (is_history and other.needs_slurm)
    ]
    followed = {head: path for head, path in LINKS.items() if _may_follow(path, reader)}
    data = page.data
    return _PAGES.get_template("page.html.j2").render(
        page=page,
        subtitle=page.subtitle.replace(f" ({NOT_LIVE})", "") if age else page.subtitle,
        options=OPTIONS,
        sections=[
            (section, figures, tables, _charts(section), _view(section, address))
            for section, figures, tables in filled_sections(page.sections, has_more=_has_more)
        ],
        age=age,
        lines=lines,
        places=_places(readable),
        place=route.place if route else "",
        below=[other for other in readable if route and other.place is route.place],
        crumbs=_crumbs(route, page, address, readable),
        address=address,
        links=followed,
        fields=[(name, LABELS[name], address.given.get(name, "")) for name in page.form_fields],
        windows={name: address.changed(from_=start, to="", page="") for name, start in WINDOWS.items()}
        if set(WINDOW) <= set(page.form_fields)
        else {},
        kept={name: value for name, value in address.given.items() if name in ("sort",) or name in WINDOW},
        csv=address.changed(format="csv", page="") if data is not None else "",
        reader=reader,
        version=__version__,
    )


def _with_query(path: str, query: Mapping[str, str]) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _may_follow(prefix: str, reader: Reader) -> bool:
    return any(route.path.startswith(f"{prefix}{{") and route.is_for(reader) for route in ROUTES) or (
        prefix == "/reports/" and reader.is_admin
    )


def _has_more(section: PageSection) -> bool:
    return isinstance(section, Section) and bool(section.charts or section.data is not None)


def _charts(section: PageSection) -> list[tuple[Chart, TableCells]]:
    charts = section.charts if isinstance(section, Section) else ()
    return [(chart, chart.to_cells(most=CHART_ROWS)) for chart in charts if not chart.is_empty]


def _view(section: PageSection, address: Address) -> TableView | None:
    data = section.data if isinstance(section, Section) else None
    return None if data is None or data.is_empty else data.view(address.given)


def _places(readable: Sequence[Route]) -> dict[MenuPlace, str]:
    """Return the first page of each place that a reader may see."""
    places: dict[MenuPlace, str] = {}
    for route in readable:
        places.setdefault(route.place, route.path)
    return places


def _crumbs(route: Route | None, page: Page, address: Address, readable: Sequence[Route]) -> list[tuple[str, str]]:
    """Return names and addresses of the pages above one that is in no menu.

    A page that the reader cannot open is no way back.
    """
    if route is None or route.menu_name:
        return []
    above = next((other for other in readable if other.path == route.parent), None)
    crumbs = [(above.menu_name, address.to(above.path))] if above is not None else []
    return [*crumbs, (page.title, "")] if crumbs else []
