"""Every page in a Chromium: ``python -m benchmarks.web_browser [--site live] [--as alice] [--page /study]``.

For each page of three histories it prints the bytes as sent, with what the page loads, the time from the request to the
end of loading, and the height in a window of 360 pixels; then the time, clicks and bytes to the last answer of what
people come for (``tests/browser/journeys.py``), the first time and again. With ``--shots FOLDER`` pictures are taken
instead: each page whole, at four widths, light and dark. Needs Chromium and the real traces.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import Browser, FloatRect

from helios.web.routes import ROUTES
from tests.browser.journeys import journeys
from tests.browser.rig import Reader, chromium
from tests.browser.sites import ADMIN, SITES, ServedSite

PHONE_PX = 360
WIDTHS = (PHONE_PX, 768, 1_280, 2_560)
SCHEMES: tuple[Literal["light"], Literal["dark"]] = ("light", "dark")
MOST_PX = 6_000
"""Height at which a picture is cut; what is below repeats what is above."""


def weigh(reader: Reader, path: str, name: str) -> None:
    """Print the row of a page."""
    began = time.perf_counter()
    answer = reader.page.goto(f"{reader.site.address}{path}")
    loaded_ms = 1e3 * (time.perf_counter() - began)
    status = 0 if answer is None else answer.status
    height = reader.page.evaluate("document.documentElement.scrollHeight")
    print(f"{name + ' ' + path:40s} {status:6d} {reader.received / 1e3:8.1f} {loaded_ms:8.0f} {height:8d}")


def travel(browser: Browser, site: ServedSite, name: str) -> None:
    """Print the row of each journey on a site, with a new browser and again with what it has kept."""
    for journey, (user, make) in journeys(site).items():
        with closing(Reader(browser, site, user=user)) as reader:
            for again in ("", ", again"):
                reader.clicks, reader.received, began = 0, 0, time.perf_counter()
                answers = len(make(reader))
                seconds = time.perf_counter() - began
                print(
                    f"{name + ': ' + journey + again:40s} {answers:2d} answers {seconds:5.1f} s "
                    f"{reader.clicks:3d} clicks {reader.received / 1e3:8.1f} KB"
                )


def take(reader: Reader, path: str, name: str, folder: Path) -> None:
    """Take pictures of a page, unless this reader has none."""
    page = reader.page
    answer = page.goto(f"{reader.site.address}{path}")
    if answer is None or answer.status == 404:
        return
    words = "-".join(filter(None, [name, *path.split("/")]))
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        height = min(int(page.evaluate("document.documentElement.scrollHeight")), MOST_PX)
        clip: FloatRect = {"x": 0, "y": 0, "width": width, "height": height}
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=folder / f"{words}_{width}_{scheme}.png", full_page=True, clip=clip)


def look(browser: Browser, site: ServedSite, name: str, paths: list[str], asked: argparse.Namespace) -> None:
    """Weigh the pages of a site or take their pictures."""
    for path in filter(None, map(site.filled, paths)):
        with closing(Reader(browser, site, user=asked.user, width=PHONE_PX)) as reader:
            if asked.shots:
                take(reader, path, name, asked.shots)
            else:
                weigh(reader, path, name)


def main() -> None:
    """Look at all pages that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", choices=SITES, help="only this history")
    parser.add_argument("--page", default="/", help="only pages whose path begins so")
    parser.add_argument("--as", dest="user", default=ADMIN, help="who reads; an admin by default")
    parser.add_argument("--shots", type=Path, metavar="FOLDER", help="take pictures")
    asked = parser.parse_args()
    if asked.shots:
        asked.shots.mkdir(parents=True, exist_ok=True)
    else:
        print(f"{'page':40s} {'status':>6s} {'KB':>8s} {'ms':>8s} {'px high':>8s}")
    paths = [route.path for route in ROUTES if route.path.startswith(asked.page)]
    with chromium() as browser:
        for name in [asked.site] if asked.site else SITES:
            with tempfile.TemporaryDirectory() as folder, closing(SITES[name](Path(folder))) as site:
                look(browser, site, name, paths, asked)
                if not asked.shots:
                    travel(browser, site, name)


if __name__ == "__main__":
    main()
