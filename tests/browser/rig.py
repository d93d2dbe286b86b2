"""A Chromium that reads pages as a person does, and that notes what no page may do."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Locator, Page, Request, sync_playwright

from tests.browser.sites import ADMIN, TOKEN, USER_HEADER, ServedSite

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
COOKIE = "helios_token"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
TIMEOUT_MS = 60_000
"""When a step gives up. A loaded machine takes long."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


class Reader:
    """Somebody who reads a site in a browser of their own.

    Attributes
    ----------
    page : Page
        The open page.
    problems : list of str
        Requests to other hosts, violations of the content security policy, errors of scripts, answers that failed.
    received : int
        Bytes of all answers, as they were sent.
    clicks : int
        Clicks and keys so far.
    """

    def __init__(
        self, browser: Browser, site: ServedSite, *, user: str = ADMIN, width: int = 1_280, **given: Any
    ) -> None:
        self.site = site
        self.problems: list[str] = []
        self.context: BrowserContext = browser.new_context(
            viewport={"width": width, "height": 900}, extra_http_headers={USER_HEADER: user}, **given
        )
        self.context.set_default_timeout(TIMEOUT_MS)
        self.context.add_cookies([{"name": COOKIE, "value": TOKEN, "url": site.address}])
        self.context.on("request", self._note_request)
        self.page: Page = self.context.new_page()
        self.received = self.clicks = 0
        network = self.context.new_cdp_session(self.page)
        network.send("Network.enable")
        network.on("Network.loadingFinished", self._note_answer)
        self.page.on("pageerror", lambda error: self.problems.append(f"script: {error}"))
        self.page.on("console", lambda said: self.problems.append(said.text) if said.type == "error" else None)

    def open(self, path: str) -> Page:
        """Open a page of the site."""
        self.page.goto(f"{self.site.address}{path}")
        return self.page

    def click(self, what: Locator) -> None:
        """Click on something, and wait for the page behind it, if it opens one."""
        self.clicks += 1
        what.click()
        self.page.wait_for_load_state("load")

    def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            self.clicks += 1
            self.page.keyboard.press(key)

    def close(self) -> None:
        """Close everything that this reader has open."""
        self.context.close()

    def _note_answer(self, event: dict[str, Any]) -> None:
        self.received += int(event["encodedDataLength"])

    def _note_request(self, request: Request) -> None:
        if not request.url.startswith((f"{self.site.address}/", "data:", "blob:")):
            self.problems.append(f"asks another host: {request.url}")


def axe_source() -> str:
    """Return the script of axe-core."""
    package = find_spec("axe_playwright_python")
    assert package is not None and package.submodule_search_locations
    return Path(package.submodule_search_locations[0], "axe.min.js").read_text(encoding="utf-8")


def violations(page: Page, *, colours: bool | None = None) -> list[str]:
    """Return what axe-core finds on the open page, each with what it is about: all, of colours alone, or of all else.

    Those of colours take more than half of the time.
    """
    if not page.evaluate("typeof axe == 'object'"):
        page.evaluate(axe_source())
    found = page.evaluate(
        """async ({rules, colours}) => {
            const named = axe.getRules(rules).filter(
                rule => colours === null || rule.tags.includes("cat.color") === colours
            );
            const told = await axe.run({
                runOnly: {type: "rule", values: named.map(rule => rule.ruleId)}, resultTypes: ["violations"]
            });
            return told.violations.map(it => it.id + ": " + it.nodes.map(at => at.html.slice(0, 200)).join(" "));
        }""",
        {"rules": RULES, "colours": colours},
    )
    return [str(line) for line in found]


def overflow_px(page: Page) -> int:
    """Return by how many pixels the open page is wider than its window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))
