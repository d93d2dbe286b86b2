"""A page that is left open follows the queue, and says when it no longer does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from helios.web import site as web_site
from tests.browser.conftest import Opener
from tests.browser.sites import LiveSite, TraceSite

JOB = "40001"


@pytest.fixture
def moving_site(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveSite]:
    """A site of its own, whose queue is read anew for each page."""
    monkeypatch.setattr(web_site, "LIVE_S", 0.0)
    site = LiveSite(tmp_path, is_empty=True)
    yield site
    site.close()


def later(page: Page, *, seconds: int) -> None:
    """Let so much time pass for the page, whose timers run at once."""
    page.clock.fast_forward(1_000 * seconds)


def test_a_new_job_appears_without_a_reload(reader: Opener, moving_site: LiveSite) -> None:
    somebody = reader(moving_site)
    somebody.page.clock.install()
    page = somebody.open("/queue")
    page.evaluate("window.is_same = true")
    moving_site.fake_site.cluster.submit(job_id=JOB, user="alice")
    later(page, seconds=15)
    page.get_by_role("link", name=JOB).wait_for()
    assert page.evaluate("window.is_same")


def test_a_page_whose_server_is_gone_says_since_when(reader: Opener, moving_site: LiveSite) -> None:
    somebody = reader(moving_site)
    somebody.page.clock.install()
    page = somebody.open("/queue")
    moving_site.close()
    later(page, seconds=15)
    page.get_by_text("Not updated since").wait_for()
    somebody.problems.clear()  # a connection was refused


def test_focus_and_what_was_typed_stay_when_the_page_follows(reader: Opener, moving_site: LiveSite) -> None:
    somebody = reader(moving_site)
    somebody.page.clock.install()
    page = somebody.open("/queue")
    page.get_by_role("searchbox").first.fill("half a na")
    moving_site.fake_site.cluster.submit(job_id=JOB, user="alice")
    later(page, seconds=15)
    page.get_by_role("link", name=JOB).wait_for()
    assert page.evaluate("[document.activeElement.name, document.activeElement.value]") == ["q", "half a na"]


def test_a_history_of_long_ago_says_that_it_is_old(reader: Opener, venus_site: TraceSite) -> None:
    assert "ago" in reader(venus_site).open("/users").locator("main").inner_text()
