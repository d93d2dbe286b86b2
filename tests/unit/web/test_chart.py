"""Charts as data: the same values as JSON, as a table and as a picture."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from helios.web.chart import Chart, ChartKind, Line
from helios.web.picture import draw_chart


def chart(kind: ChartKind = "stack") -> Chart:
    return Chart(
        name="use",
        title="GPUs in use",
        unit="GPUs",
        kind=kind,
        times=[1_700_000_000 + 86_400 * day for day in range(5)],
        lines=[
            Line(name="gpu", values=[1.0, 2.0, None, 4.0, 5.5]),
            Line(name="debug", values=[0.0, 0.5, 0.5, 0.5, None]),
            Line(name="Capacity", values=[8.0] * 5, is_bound=True),
        ],
        timezone="America/Toronto",
    )


def test_what_is_unknown_is_null_in_json_and_empty_in_the_table() -> None:
    assert chart().to_json()["lines"][0]["values"][2] is None
    cells = chart().to_cells(most=3)
    assert [name for name, _ in cells.header] == ["From", "gpu", "debug", "Capacity"]
    assert cells.rows == [
        ("2023-11-18 17:13", "5.5", "", "8"),
        ("2023-11-17 17:13", "4", "0.5", "8"),
        ("2023-11-16 17:13", "", "0.5", "8"),
    ]


@pytest.mark.parametrize("kind", ["line", "stack", "bars"])
def test_a_picture_names_every_line_and_what_it_shows(kind: ChartKind) -> None:
    picture = draw_chart(chart(kind))
    root = ElementTree.fromstring(picture)
    assert root.get("aria-label") == "GPUs in use"
    assert len(root.findall(".//{http://www.w3.org/2000/svg}path")) > 10


def test_a_chart_without_any_value_is_empty() -> None:
    nothing = Chart(name="x", title="x", unit="", times=[0], lines=[Line(name="x", values=[None])])
    assert nothing.is_empty and not chart().is_empty
