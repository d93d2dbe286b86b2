"""Nobody is kept out: axe-core finds nothing, nothing is wider than the screen, and colours may be forced."""

from __future__ import annotations

from typing import Literal

import pytest

from helios.web.routes import ROUTES
from tests.browser.conftest import Opener
from tests.browser.rig import overflow_px, violations
from tests.browser.sites import LiveSite, TraceSite

LOOKS: tuple[tuple[int, Literal["light", "dark"], bool | None], ...] = (
    (1_100, "light", None),
    (1_100, "dark", True),
    (360, "light", False),
)
"""Width of the window, pixels, scheme of colours, and whether these are asked about: alone, not, or with all else.

Colours are the same on a phone, and the dark ones break no other rule.
"""
PATHS = [route.path for route in ROUTES]
MOVING = """() => [...document.querySelectorAll("*")].filter(it => {
    const style = getComputedStyle(it), longest = text => Math.max(...text.split(",").map(parseFloat));
    return longest(style.transitionDuration) > 0.01 || longest(style.animationDuration) > 0.01;
}).map(it => it.outerHTML.slice(0, 100))"""

BROKEN = """() => [...document.querySelectorAll("main tbody td:not(.long)")].filter(cell => {
    const text = document.createRange();
    text.selectNodeContents(cell);
    const tops = [...text.getClientRects()].map(it => it.top);
    return cell.innerText.length < 10 && Math.max(...tops) - Math.min(...tops) > 10;
}).map(cell => cell.innerText)"""
"""Short values of tables that stand on several lines."""


@pytest.mark.parametrize("path", PATHS)
def test_axe_finds_nothing_and_nothing_is_wider_than_the_screen(reader: Opener, live_site: LiveSite, path: str) -> None:
    address = live_site.filled(path)
    assert address is not None, f"no name of the live site for {path}"
    page = reader(live_site).open(address)
    found = []
    for width, scheme, colours in LOOKS:
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        found += [f"{width} px, {scheme}: {line}" for line in violations(page, colours=colours)]
        if (wider := overflow_px(page)) > 0:
            found.append(f"{width} px: {wider} px wider")
    assert found == []


@pytest.mark.parametrize("name", ["venus_site", pytest.param("cedar_site", marks=pytest.mark.nightly)])
def test_a_history_without_slurm_fits_a_phone(reader: Opener, request: pytest.FixtureRequest, name: str) -> None:
    site: TraceSite = request.getfixturevalue(name)
    somebody = reader(site, width=360)
    wider = {}
    for path in filter(None, map(site.filled, PATHS)):
        page = somebody.open(path)
        wider[path] = overflow_px(page)
    somebody.problems.clear()  # a page that a history does not have answers 404
    assert {path: pixels for path, pixels in wider.items() if pixels > 0} == {}


def test_short_values_stay_whole_on_a_phone(reader: Opener, live_site: LiveSite) -> None:
    page = reader(live_site, width=360).open("/energy")
    assert page.evaluate(BROKEN) == []


def test_a_first_page_without_slurm_has_no_violation(reader: Opener, venus_site: TraceSite) -> None:
    assert violations(reader(venus_site, width=360).open("/")) == []


def test_a_page_that_keeps_people_out_would_be_found(reader: Opener, live_site: LiveSite) -> None:
    page = reader(live_site).page
    page.set_content('<!DOCTYPE html><html><body><p style="color:#bbb">pale</p><img src="data:,"></body></html>')
    told = " ".join(violations(page))
    assert "image-alt" in told and "html-has-lang" in told and "color-contrast" in told


def test_a_request_to_another_host_would_be_found(reader: Opener, live_site: LiveSite) -> None:
    somebody = reader(live_site)
    somebody.page.set_content('<img alt="" src="http://127.0.0.2:9/x.png">')
    somebody.page.wait_for_load_state("load")
    assert "asks another host: http://127.0.0.2:9/x.png" in somebody.problems
    somebody.problems.clear()


def test_a_violation_of_the_policy_would_be_found(reader: Opener, live_site: LiveSite) -> None:
    somebody = reader(live_site)
    page = somebody.open("/")
    page.evaluate("document.body.append(Object.assign(document.createElement('script'), {textContent: '1'}))")
    assert "Content Security Policy" in " ".join(somebody.problems)
    somebody.problems.clear()


def test_nothing_moves_for_who_wants_less_motion(reader: Opener, live_site: LiveSite) -> None:
    assert reader(live_site, reduced_motion="reduce").open("/").evaluate(MOVING) == []


def test_forced_colours_leave_the_page_of_today_marked(reader: Opener, live_site: LiveSite) -> None:
    page = reader(live_site, forced_colors="active").open("/")
    assert violations(page) == []
    marked = page.locator("nav a[aria-current]").first
    assert marked.evaluate("it => getComputedStyle(it).borderTopStyle") != "none"
