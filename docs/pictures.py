"""Make the pictures of the documentation from today's pages, so that they cannot be old. Run: make pictures.

Needs Chromium. ``helios try`` makes the pages; with a folder as argument, those that it has made there are taken.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

IMAGES = Path(__file__).parent / "images"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTH = 1100
COLOURS = 128
"""Of a picture; a page has few, and so it stays small."""


def top(page: str) -> str:
    """Return a page as it is."""
    return page


def of_users(page: str) -> str:
    """Return a page with nothing but its section about users."""
    sections = re.findall(r"<section.*?</section>", page, flags=re.DOTALL)
    (wanted,) = (section for section in sections if "<h2>Wait by user</h2>" in section)
    for section in sections:
        page = page if section == wanted else page.replace(section, "", 1)
    return page


PICTURES: dict[str, tuple[Callable[[str], str], int]] = {
    "report.png": (top, 1112),
    "whatif-users.png": (of_users, 1054),
}
"""Each picture with what it shows of the page, and its height, pixels."""


def take(page: Path, picture: Path, *, height: int, browser: str) -> None:
    """Write the top of a page as a picture."""
    command = [browser, "--headless", "--hide-scrollbars", f"--screenshot={picture}"]
    command += ["--no-sandbox"] if os.geteuid() == 0 else []  # else it does not start as root
    command += [f"--window-size={WIDTH},{height}", "--force-device-scale-factor=1", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True)
    with Image.open(picture) as image:
        image.convert("P", palette=Image.Palette.ADAPTIVE, colors=COLOURS).save(picture, optimize=True)


def main(folder: Path) -> None:
    """Make every picture from the page that ``helios try`` writes."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"No browser was found to take pictures with: {', '.join(BROWSERS)}")
    report = folder / "report.html"
    if not report.is_file():
        subprocess.run([sys.executable, "-m", "helios", "try", "--out", folder], check=True)
    for name, (cut, height) in PICTURES.items():
        page = folder / f"{name}.html"
        page.write_text(cut(report.read_text(encoding="utf-8")), encoding="utf-8")
        take(page.resolve(), IMAGES / name, height=height, browser=browser)
        page.unlink()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with TemporaryDirectory(prefix="helios-pictures-") as made:
            main(Path(made))
