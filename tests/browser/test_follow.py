"""Pages that follow the queue: they change in place, and say when they could not be read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Route

from tests.browser.rig import Reader
from tests.browser.sites import LiveSite

EVERY_MS = 12_000
"""Longer than the time between two requests of a page."""


@pytest.fixture
def page(browser: Browser, live_site: LiveSite) -> Iterator[Page]:
    reader = Reader(browser, live_site)
    reader.page.clock.install()
    yield reader.open("/queue")
    reader.close()


def test_a_page_changes_in_place_and_keeps_the_focus(page: Page) -> None:
    changed = page.content().replace("</h1>", " changed</h1>")
    page.route("**/queue", lambda route: route.fulfill(body=changed, content_type="text/html"))
    link = page.locator("tbody a").nth(2)
    link.focus()
    page.evaluate("document.querySelector('main').kept = true")
    page.clock.fast_forward(EVERY_MS)
    page.wait_for_function("document.querySelector('h1').textContent.endsWith('changed')")
    assert page.evaluate("document.querySelector('main').kept")
    assert page.evaluate("document.activeElement.textContent") == link.text_content()
    assert page.locator("#updated").text_content().startswith("Updated at ")


def test_a_page_that_is_not_answered_says_since_when(page: Page) -> None:
    def refuse(route: Route) -> None:
        route.fulfill(status=503, body="")

    page.route("**/queue", refuse)
    page.clock.fast_forward(EVERY_MS)
    page.wait_for_selector("#as-of.old")
    assert page.locator("#updated").text_content().startswith("Not updated since ")
    page.unroute("**/queue", refuse)
    page.clock.fast_forward(2 * EVERY_MS)
    page.wait_for_selector("#as-of:not(.old)")
