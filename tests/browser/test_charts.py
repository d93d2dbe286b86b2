"""Charts in a browser: what is drawn, what picks a window, and what is there for who cannot see them."""

from __future__ import annotations

import re
from datetime import datetime
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import Opener
from tests.browser.rig import TIMEOUT_MS
from tests.browser.sites import MANAGER, LiveSite, ServedSite
from tests.waiting import until

CHARTS = "/history?from=now-4weeks"
PAINTED = """canvas => {
    const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let coloured = 0;
    for (let at = 0; at < data.length; at += 4) {
        const [low, high] = [Math.min, Math.max].map(pick => pick(data[at], data[at + 1], data[at + 2]));
        coloured += data[at + 3] > 0 && high - low > 40;
    }
    return coloured;
}"""
"""Number of pixels of a canvas that have a colour, which axes and grids have not."""


def drawn(page: Page) -> Page:
    """Return the page once all its charts are drawn."""
    expect(page.locator("figure.chart:not(:has(canvas))")).to_have_count(0, timeout=TIMEOUT_MS)
    return page


@pytest.mark.parametrize("name", ["live_site", "venus_site", pytest.param("cedar_site", marks=pytest.mark.nightly)])
def test_every_chart_is_drawn(reader: Opener, request: pytest.FixtureRequest, name: str) -> None:
    site: ServedSite = request.getfixturevalue(name)
    page = drawn(reader(site).open("/history"))
    painted = {
        figure.get_attribute("data-chart"): figure.locator("canvas").evaluate(PAINTED)
        for figure in page.locator("figure.chart").all()
    }
    assert painted and min(painted.values()) > 20, painted


def test_a_value_between_unknown_ones_is_a_point(reader: Opener, live_site: LiveSite) -> None:
    somebody = reader(live_site)

    def leave_one(route: Route) -> None:
        if "text/html" in route.request.headers["accept"]:
            route.continue_()
            return
        told = route.fetch().json()
        for line in told["charts"]["p50_wait"]["lines"]:
            line["values"] = [600.0 if at == 1 else None for at in range(len(line["values"]))]
        route.fulfill(json=told)

    somebody.page.route("**/history*", leave_one)
    page = drawn(somebody.open(CHARTS))
    assert page.locator("figure.chart[data-chart=p50_wait] canvas").evaluate(PAINTED) > 5


def test_the_table_behind_a_chart_has_the_numbers_of_the_json(reader: Opener, live_site: LiveSite) -> None:
    page = drawn(reader(live_site).open(CHARTS))
    charts = page.evaluate("fetch(location.href, {headers: {Accept: 'application/json'}}).then(it => it.json())")[
        "charts"
    ]
    figure = page.locator("figure.chart[data-chart=waiting]")
    figure.locator("summary").click()
    heads = figure.locator("details thead th").all_inner_texts()
    rows = [row.locator("td").all_inner_texts() for row in figure.locator("details tbody tr").all()]
    lines = {line["name"]: line["values"][::-1] for line in charts["waiting"]["lines"]}
    shown = {head: [float(row[place].replace(",", "")) for row in rows] for place, head in enumerate(heads) if place}
    assert {name: values[: len(rows)] for name, values in lines.items()} == {
        name: pytest.approx(values, abs=0.0051) for name, values in shown.items()
    }


def test_dragging_over_a_chart_picks_its_window(reader: Opener, live_site: LiveSite) -> None:
    page = drawn(reader(live_site).open(CHARTS))
    over = page.locator("figure.chart .u-over").first
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + box["height"] / 2, steps=4)
    with page.expect_navigation():
        page.mouse.up()
    picked = {name: datetime.fromisoformat(text) for name, (text,) in parse_qs(urlsplit(page.url).query).items()}
    days = (picked["to"] - picked["from"]).total_seconds() / 86_400
    assert days == pytest.approx(7.0, abs=0.5), picked
    assert f"{picked['from']:%Y-%m-%d}" in page.locator("#as-of").inner_text()


def test_without_scripts_a_chart_is_a_picture(reader: Opener, live_site: LiveSite) -> None:
    page = reader(live_site, java_script_enabled=False).open(CHARTS)
    pictures = page.locator("figure.chart noscript img, figure.chart img").all()
    assert len(pictures) == page.locator("figure.chart").count() > 0
    for picture in pictures:
        picture.scroll_into_view_if_needed()
        box = picture.bounding_box()
        assert box is not None and box["height"] > 100
        answer = page.request.get(f"{live_site.address}{picture.get_attribute('src')}")
        assert (answer.status, answer.headers["content-type"]) == (200, "image/svg+xml")


def test_a_screen_reader_is_told_what_a_chart_shows(reader: Opener, live_site: LiveSite) -> None:
    page = drawn(reader(live_site).open(CHARTS))
    for figure in page.locator("figure.chart").all():
        title = re.sub(r" \(.*", "", figure.locator("figcaption").inner_text())
        assert title in (figure.get_by_role("img").first.get_attribute("aria-label") or "")


def test_a_chart_follows_the_scheme_of_colours(reader: Opener, live_site: LiveSite) -> None:
    page = drawn(reader(live_site, color_scheme="light").open(CHARTS))
    canvas = page.locator("figure.chart canvas").first
    before = canvas.evaluate("it => it.toDataURL()")
    page.emulate_media(color_scheme="dark")
    until(lambda: page.evaluate("document.querySelector('figure.chart canvas')?.toDataURL()") != before)
    assert canvas.evaluate(PAINTED) > 20


def test_a_chart_fits_a_window_that_becomes_narrow(reader: Opener, live_site: LiveSite) -> None:
    page = drawn(reader(live_site).open(CHARTS))
    page.set_viewport_size({"width": 360, "height": 800})
    ends = "[...document.querySelectorAll('figure.chart canvas')].map(it => it.getBoundingClientRect().right)"
    until(lambda: max(page.evaluate(ends)) <= 360)


def test_a_manager_sees_charts_without_a_user(reader: Opener, live_site: LiveSite) -> None:
    page = drawn(reader(live_site, user=MANAGER).open(CHARTS))
    assert "alice" not in page.content()
    assert page.locator("figure.chart").count() > 2
