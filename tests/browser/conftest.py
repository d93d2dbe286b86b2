"""One Chromium and three running sites for all tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.browser.rig import CHROMIUM, Reader, chromium
from tests.browser.sites import LiveSite, ServedSite, TraceSite, cedar, venus
from tests.traces import TRACES

Opener = Callable[..., Reader]


@pytest.fixture(scope="package")  # no longer: where it runs, nothing else of the process may use asyncio
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed (make browser)")
    with chromium() as started:
        yield started


@pytest.fixture(scope="package")
def live_site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveSite]:
    with closing(LiveSite(tmp_path_factory.mktemp("live"))) as site:
        yield site


@pytest.fixture(scope="package")
def venus_site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TraceSite]:
    yield from _served(venus, tmp_path_factory)


@pytest.fixture(scope="package")
def cedar_site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TraceSite]:
    yield from _served(cedar, tmp_path_factory)


def _served(serve: Callable[..., TraceSite], folders: pytest.TempPathFactory) -> Iterator[TraceSite]:
    if not TRACES.is_dir():
        pytest.skip(f"real traces are not at {TRACES}; set HELIOS_TRACES to their folder")
    with closing(serve(folders.mktemp(serve.__name__))) as site:
        yield site


@pytest.fixture
def reader(browser: Browser) -> Iterator[Opener]:
    """Return a function that lets somebody read a site; at the end no page may have done what it must not."""
    with ExitStack() as stack:
        readers: list[Reader] = []

        def opened(site: ServedSite, **given: Any) -> Reader:
            readers.append(stack.enter_context(closing(Reader(browser, site, **given))))
            return readers[-1]

        yield opened
        assert [problem for one in readers for problem in one.problems] == []
