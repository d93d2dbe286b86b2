"""The power domain as a site runs it: its daemon, its command line, its own services, on nodes that really sleep."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.rig import Rig
from tests.live.test_daemon import Site
from tests.live.test_power import OWN_WEIGHTS, Helios, asleep, little_demand_for_all
from tests.story.shell import run_command
from tests.waiting import TEST_TIMEOUT_S

__all__ = ["little_demand_for_all"]


@pytest.fixture
def site(sleepy: Rig, tmp_path: Path, little_demand_for_all: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Helios with node_fill_order active, and n1 and n4 asleep because of it."""
    monkeypatch.setenv("SLURM_CONF", sleepy.environment["SLURM_CONF"])
    helios = Helios(sleepy, tmp_path)
    helios.another().read()
    helios.sleeps("n1", "n4")
    (tmp_path / "helios.toml").write_text("[services.node_fill_order]\nevery_s = 1\n")
    made = Site(sleepy, tmp_path)
    made.helios("mode", "node_fill_order", "active", "--reason", "a test")
    yield made
    made.end()
    sleepy.run("scontrol", "reconfigure")


def answer(site: Site, *words: str) -> dict[str, object]:
    """Run a command of Helios, and return its answer."""
    done = run_command(words, folder=site.folder, environment=site.environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout))


def test_a_plan_changes_nothing_and_a_pause_wakes_all(site: Site) -> None:
    plan = answer(site, "power", "run-cycle", "--as", "active", "--json")
    assert plan["decisions"]
    assert site.rig.weights() == OWN_WEIGHTS
    assert asleep(site.rig, "n1")
    site.helios("pause", "--reason", "a test")
    site.rig.until(lambda: site.rig.nodes()["n1"] == site.rig.nodes()["n4"] == "IDLE")


def test_a_stopped_daemon_leaves_the_nodes_as_if_it_had_never_been(site: Site) -> None:
    daemon = site.start()
    site.rig.until(lambda: site.rig.weights() != OWN_WEIGHTS)
    daemon.terminate()
    assert daemon.wait(TEST_TIMEOUT_S) == 0, site.log()
    site.rig.until(lambda: set(site.rig.nodes().values()) == {"IDLE"})
    assert site.rig.weights() == OWN_WEIGHTS
