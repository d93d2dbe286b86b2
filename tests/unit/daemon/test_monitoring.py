"""The dashboard and the alert rules name what the daemon exports."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from helios.actions import Result
from helios.app.cycle_summary import CycleTally
from helios.daemon.metrics import Metrics
from helios.model import Mode
from tests.unit.daemon.builders import NOON, HandSet, a_cycle

FOLDER = Path(__file__).parents[3] / "deploy" / "monitoring"
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
RULES = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Names of all samples that the daemon can export, each with its labels."""
    metrics = Metrics(times=HandSet().times)
    tally = CycleTally(service="qssf", mode=Mode.SHADOW, result=Result.WOULD, jobs=1)
    metrics.record_cycle(a_cycle(tallies=(tally,), modes={"qssf": Mode.SHADOW}))
    metrics.succeeded("cycle", at=NOON)
    metrics.failed("cycle")
    metrics.left_out("cycle")
    samples: dict[str, set[str]] = {"up": {"job"}}
    for family in metrics.registry.collect():
        suffix = "_total" if family.type == "counter" else ""
        labels = {label for sample in family.samples for label in sample.labels}
        samples[family.name + suffix] = labels
        samples |= {sample.name: set(sample.labels) for sample in family.samples}
    samples["helios_node_changes_total"] |= {"change"}
    samples["helios_node_cycles_total"] |= {"outcome"}
    return samples


def asked() -> Iterator[Any]:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield pytest.param(target["expr"], target["legendFormat"], id=panel["title"])
    for rule in RULES:
        yield pytest.param(rule["expr"], "", id=rule["alert"])


@pytest.mark.parametrize(("expression", "legend"), list(asked()))
def test_what_is_asked_for_is_exported(expression: str, legend: str, exported: dict[str, set[str]]) -> None:
    names = set(re.findall(r"\b(?:helios_\w+|up)\b(?!\s*\()", expression))
    assert names
    assert names <= set(exported)
    labels = set().union(*(exported[name] for name in names))
    chosen = re.findall(r"\{([^}]*)\}", expression)
    used = {text.split("=")[0].strip("!~ ") for group in chosen for text in group.split(",")}
    grouped = {label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")}
    assert used | grouped | set(re.findall(r"\{\{(\w+)\}\}", legend)) <= labels


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not installed")
def test_prometheus_takes_the_rules() -> None:
    subprocess.run(["promtool", "check", "rules", FOLDER / "alerts.yml"], check=True, capture_output=True)


def test_each_alert_says_what_to_do() -> None:
    for rule in RULES:
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["annotations"]["action"]
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
