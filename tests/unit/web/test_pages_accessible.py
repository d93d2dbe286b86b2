"""Every page in a real Chromium: axe-core finds nothing, and nothing is wider than the screen.

It needs Chromium, and axe-core (``npm install axe-core``) in this folder, or where HELIOS_TEST_AXE says.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from helios.study.study import load_study, store_study, study
from helios.web.routes import ROUTES
from tests.builders import a_trial_run
from tests.unit.app.sites import FakeSite
from tests.unit.web.test_pages import ACTIVE, HTML, client

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ROOT = Path(__file__).parents[3]
AXE = Path(os.environ.get("HELIOS_TEST_AXE", ROOT / "node_modules" / "axe-core" / "axe.min.js"))
WIDTHS = (360, 1100)
SCHEMES = {"light": 1, "dark": 0}
RUN = """
<script>
addEventListener("load", async () => {
  const found = {};
  for (const frame of document.querySelectorAll("iframe")) {
    const inside = frame.contentWindow;
    const {violations} = await inside.axe.run({runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]});
    const root = inside.document.documentElement;
    found[frame.name] = {
      violations: violations.map(it => it.id + ": " + it.nodes.map(node => node.html.slice(0, 200)).join(" ")),
      overflow: root.scrollWidth - root.clientWidth,
      dark: inside.matchMedia("(prefers-color-scheme: dark)").matches,
      seen: inside.document.body.innerText.length,
    };
  }
  document.body.innerHTML = "<pre></pre>";
  document.querySelector("pre").textContent = "AXE" + JSON.stringify(found) + "AXE";
});
</script>"""

pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="Chromium (Debian: chromium) is not installed"),
    pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not here: npm install axe-core, or HELIOS_TEST_AXE"),
]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Every page of a site with waiting jobs, decisions, a study and a report."""
    folder = tmp_path_factory.mktemp("fake_site")
    fake_site = FakeSite(folder, report={"folder": str(folder / "reports")})
    fake_site.learn()
    for user in ("bob", "alice"):
        job = fake_site.cluster.submit(user=user)
    fake_site.cycles.cycle(modes=ACTIVE)
    with fake_site.warehouse() as warehouse:
        runs = [
            a_trial_run(number, outcome=outcome, parameters={"lr": 10.0**-number, "kind": outcome})
            for number, outcome in enumerate(("finished", "pruned", "finished"))
        ]
        warehouse.add_trial_runs(runs, user="bob")
    now = fake_site.cluster.now
    loaded, records = load_study(
        url=fake_site.settings.database.url, cluster="dev", window=lambda *_: (now - timedelta(weeks=4), now)
    )
    store_study(study(loaded, records=records), folder / "reports", energy=fake_site.settings.energy, now=now)
    (folder / "reports" / "night.html").write_text("<title>A night</title>")
    names = {"user": "bob", "job": job, "pool": "p"}
    paths = [re.sub(r"\{(\w+)\}", lambda found: names.get(found[1], found[0]), route.path) for route in ROUTES]
    with client(fake_site) as web:
        return {path: web.get(path, headers=HTML).text for path in paths if "{" not in path}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_page_keeps_anybody_out(pages: dict[str, str], tmp_path: Path, scheme: str) -> None:
    found = examined(pages, tmp_path, scheme)
    assert len(found) == len(pages) * len(WIDTHS)
    assert {it["dark"] for it in found.values()} == {scheme == "dark"}
    assert min(it["seen"] for it in found.values()) > 100
    assert {name: it["violations"] for name, it in found.items() if it["violations"]} == {}
    assert {name: it["overflow"] for name, it in found.items() if it["overflow"] > 0} == {}


def test_a_page_that_keeps_people_out_would_be_found(tmp_path: Path) -> None:
    bad = '<!DOCTYPE html><html><body><img src="x.png"><p style="color:#bbb">pale</p></body></html>'
    told = " ".join(examined({"/bad": bad}, tmp_path, "light")["/bad 360"]["violations"])
    assert "image-alt" in told and "html-has-lang" in told and "color-contrast" in told


def examined(pages: dict[str, str], folder: Path, scheme: str) -> dict[str, Any]:
    """Return what axe and the window say of each page at each width."""
    script = f'<script src="{AXE.resolve().as_uri()}"></script>'
    frames = [
        f'<iframe name="{html.escape(path)} {width}" style="border: 0; width: {width}px; height: 900px" '
        f'srcdoc="{html.escape(text + script)}"></iframe>'
        for path, text in pages.items()
        for width in WIDTHS
    ]
    harness = folder / f"{scheme}.html"
    harness.write_text(f"<!DOCTYPE html><meta name=color-scheme content='light dark'>{RUN}{''.join(frames)}")
    command = [BROWSER, "--headless", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom"]
    command += ["--no-sandbox"] if os.geteuid() == 0 else []
    command += [f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}", "--virtual-time-budget=120000"]
    command += [f"--user-data-dir={folder / 'profile'}", harness.as_uri()]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300, check=True)
    told = re.search(r"AXE(\{.*\})AXE", done.stdout, re.DOTALL)
    assert told is not None, done.stderr[-2000:]
    return dict(json.loads(html.unescape(told[1])))
