"""The power domain as a site runs it: its daemon, its command line, its own services, on nodes that really sleep."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.rig import Rig
from tests.live.test_daemon import Site
from tests.live.test_power import OWN_WEIGHTS, Helios, asleep, use_is_known
from tests.prometheus_rig import RealPrometheus
from tests.story.shell import run_command
from tests.waiting import TEST_TIMEOUT_S

__all__ = ["use_is_known"]


@pytest.fixture
def site(sleepy: Rig, tmp_path: Path, use_is_known: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Helios after an upgrade: without a service that is gone, n1 and n4 asleep and n3 weighed because of it."""
    monkeypatch.setenv("SLURM_CONF", sleepy.environment["SLURM_CONF"])
    helios = Helios(sleepy, tmp_path)
    helios.another().read()
    helios.sleeps("n1", "n4")
    helios.weighed_by_an_earlier_release("n3")
    (tmp_path / "helios.toml").write_text("")
    made = Site(sleepy, tmp_path)
    yield made
    made.end()
    sleepy.run("scontrol", "reconfigure")


def answer(site: Site, *words: str) -> dict[str, object]:
    """Run a command of Helios, and return its answer."""
    done = run_command(words, folder=site.folder, environment=site.environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout))


def test_a_plan_changes_nothing_and_a_pause_wakes_all(site: Site) -> None:
    with (site.folder / "helios.toml").open("a") as file:
        file.write("[services.ces]\n")
    plan = answer(site, "cycle", "nodes", "--as", "active", "--json")
    assert plan["decisions"]
    assert site.rig.weights() == OWN_WEIGHTS | {"n3": 11}
    assert asleep(site.rig, "n1")
    site.helios("pause", "--reason", "a test")
    site.rig.until(lambda: site.rig.nodes()["n1"] == site.rig.nodes()["n4"] == "IDLE")
    assert site.rig.weights() == OWN_WEIGHTS


def test_a_daemon_gives_back_what_a_service_that_is_gone_had_set(site: Site) -> None:
    daemon = site.start()
    site.rig.until(lambda: site.rig.weights() == OWN_WEIGHTS)
    site.rig.until(lambda: set(site.rig.nodes().values()) == {"IDLE"})
    daemon.terminate()
    assert daemon.wait(TEST_TIMEOUT_S) == 0, site.log()


MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"


@pytest.fixture
def prometheus(site: Site) -> Iterator[RealPrometheus]:
    """A Prometheus that has read the metrics of a daemon after a night and some cycles."""
    port = int(site.rig.settings["PORT"]) + 120
    folder = site.folder / "prometheus"
    folder.mkdir()
    with RealPrometheus(folder, targets=[port], rules=MONITORING / "alerts.yml") as server:
        site.environment["HELIOS_DAEMON_LISTEN"] = f"127.0.0.1:{port}"
        (site.folder / "helios.toml").write_text("[services.ces]\n")
        site.helios("nightly")
        site.start()
        site.rig.until(lambda: any(value > 1 for _, value in server.values("helios_node_cycles_total")))
        yield server


def test_a_prometheus_reads_what_the_dashboards_show(prometheus: RealPrometheus) -> None:
    asked = {
        target["expr"]
        for name in ("dashboard.json", "energy.json")
        for panel in json.loads((MONITORING / name).read_text())["panels"]
        for target in panel["targets"]
    }
    found = {query: prometheus.values(query) for query in asked}
    # A rate needs two samples of a series, and nothing failed or was changed here.
    assert [query for query, values in found.items() if not values and "rate(" not in query] == []
    assert sum(value for _, value in found["helios_nodes"]) == 8
    assert {rule["health"] for rule in prometheus.rules()} == {"ok"}
    assert [rule["name"] for rule in prometheus.rules() if rule["state"] == "firing"] == []
