"""The dashboard and the alert rules name what the daemon exports."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_open
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from helios.actions import Result
from helios.app.controller_state import CycleTally, NodeCycleSummary
from helios.app.controllers import count_states
from helios.daemon.health import Metrics
from helios.model import NODE_TALLIES, Mode
from helios.report.nodes import PoolRule, SpareNodes
from tests.unit.daemon.builders import NOON, HandSet, a_cycle

FOLDER = Path(__file__).parents[3] / "deploy" / "monitoring"
DASHBOARDS = [json.loads((FOLDER / name).read_text()) for name in ("dashboard.json", "energy.json")]
PANELS = [panel for dashboard in DASHBOARDS for panel in dashboard["panels"]]
RULES = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
STATES = count_states(SimpleNamespace(tallies=NODE_TALLIES.empty()))  # type: ignore[arg-type]  # its tallies are all


@pytest.fixture(scope="module")
def metrics() -> Metrics:
    """Metrics of a daemon in which everything has happened once."""
    metrics = Metrics(times=HandSet().times)
    tally = CycleTally(service="qssf", mode=Mode.SHADOW, result=Result.WOULD, jobs=1)
    metrics.record_cycle(a_cycle(tallies=(tally,), modes={"qssf": Mode.SHADOW}))
    rule = PoolRule(pool="gpu", spare=4, memory_s=1_800, reason="so", submissions=100, delayed=1)
    spare = SpareNodes(rules=(rule,), accepted=0.01, cycles={"n1": 2})
    metrics.record_cycle(NodeCycleSummary(seconds=0.1, nodes=STATES, slept=1, spare=spare))
    metrics.record_success("cycle", at=NOON)
    metrics.record_failure("cycle")
    metrics.record_skip("cycle")
    return metrics


@pytest.fixture(scope="module")
def exported(metrics: Metrics) -> dict[str, set[str]]:
    """Names of all samples that the daemon can export, each with its labels."""
    samples: dict[str, set[str]] = {"up": {"job"}}
    for family in metrics.registry.collect():
        suffix = "_total" if family.type == "counter" else ""
        labels = {label for sample in family.samples for label in sample.labels}
        samples[family.name + suffix] = labels
        samples |= {sample.name: set(sample.labels) for sample in family.samples}
    return samples


def asked() -> Iterator[Any]:
    for panel in PANELS:
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


FIRES_AT = {
    "HeliosIsDown": ('up{job="helios"}', "0x5500"),
    "HeliosCyclesFail": ('helios_task_last_success_timestamp_seconds{task="cycle"}', "0x5500"),
    "HeliosNightFails": ('helios_task_last_success_timestamp_seconds{task="nightly"}', "0x5500"),
    "HeliosIsSuspended": ('helios_suspended{domain="nodes"}', "1x5500"),
    "HeliosHistoryIsOld": ("helios_history_age_seconds", "3601x5500"),
    "HeliosModelIsOld": ("helios_model_age_seconds", "259201x5500"),
    "HeliosBreakerIsOpen": ('helios_breaker_state{domain="jobs",state="open"}', "1x5500"),
    "HeliosWritesDoNotHold": ('helios_decisions_total{result="mismatch"}', "0+1x5500"),
    "HeliosNodesFailToWake": ("helios_nodes_quarantined", "1x5500"),
    "HeliosGpusHeldIdle": ("helios_held_gpus_idle", "11x5500"),
}
"""A series at which each alert fires, a value each minute."""
WELL = {
    'up{job="helios"}': "1x5500",
    'helios_task_last_success_timestamp_seconds{task="cycle"}': "0+60x5500",
    'helios_task_last_success_timestamp_seconds{task="nightly"}': "0+60x5500",
    'helios_suspended{domain="jobs"}': "0x5500",
    'helios_suspended{domain="nodes"}': "0x5500",
    "helios_history_age_seconds": "300x5500",
    "helios_model_age_seconds": "86400x5500",
    'helios_breaker_state{domain="jobs",state="open"}': "0x5500",
    'helios_decisions_total{result="mismatch"}': "3x5500",
    "helios_nodes_quarantined": "0x5500",
    "helios_protected": "0x5500",
    "helios_held_gpus_measured": "100x5500",
    "helios_held_gpus_idle": "10x5500",
}


def promtool(*words: str | Path, text: bytes = b"") -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool (Debian: prometheus) is not installed")
    done = subprocess.run(["promtool", *words], check=False, capture_output=True, input=text)
    assert done.returncode == 0, done.stdout + done.stderr


def test_names_are_those_of_openmetrics(metrics: Metrics) -> None:
    promtool("check", "metrics", text=generate_latest(metrics.registry))
    families = {family.name for family in text_string_to_metric_families(generate_open(metrics.registry).decode())}
    assert families == {family.name for family in metrics.registry.collect()}


def test_the_documents_name_every_metric(exported: dict[str, set[str]]) -> None:
    text = (FOLDER.parents[1] / "docs" / "operate.md").read_text()
    families = {re.sub(r"_(bucket|count|sum|created|info)$", "", name) for name in exported} - {"up"}
    counters = {name.removesuffix("_total") for name in families if name.endswith("_total")}
    assert [name for name in sorted(families - counters) if name not in text] == []


def test_prometheus_takes_the_rules_and_the_queries_of_the_dashboards(tmp_path: Path) -> None:
    promtool("check", "rules", FOLDER / "alerts.yml")
    queries = [target["expr"] for panel in PANELS for target in panel["targets"]]
    rules = [{"record": f"query_{number}", "expr": query} for number, query in enumerate(queries)]
    written = tmp_path / "queries.yml"
    written.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", "--lint=none", written)


@pytest.mark.parametrize("alert", [None, *(rule["alert"] for rule in RULES)])
def test_an_alert_fires_at_its_fault_and_no_other_does(alert: str | None, tmp_path: Path) -> None:
    series = WELL | dict([FIRES_AT[alert]] if alert else [])
    expected = []
    for rule in RULES:
        name, fires = rule["alert"], rule["alert"] == alert
        labels = dict(re.findall(r'(\w+)="([^"]*)"', FIRES_AT[name][0])) | rule["labels"]
        of_it = [{"exp_labels": labels, "exp_annotations": rule["annotations"]}] if fires else []
        expected.append({"eval_time": "90h", "alertname": name, "exp_alerts": of_it})
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    test = {"interval": "1m", "input_series": inputs, "alert_rule_test": expected}
    written, rules = tmp_path / "test.yml", [str(FOLDER / "alerts.yml")]
    written.write_text(yaml.safe_dump({"rule_files": rules, "evaluation_interval": "5m", "tests": [test]}))
    promtool("test", "rules", written)


def test_each_alert_says_what_to_do() -> None:
    for rule in RULES:
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["annotations"]["action"]
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard["uid"])
def test_panels_do_not_overlap_and_have_ids_of_their_own(dashboard: Any) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    assert dashboard["templating"]["list"][0]["type"] == "datasource"


def test_each_node_state_in_a_query_is_exported() -> None:
    named = {
        state
        for panel in PANELS
        for target in panel["targets"]
        for states in re.findall(r'helios_nodes\{state=~?"([^"]*)"', target["expr"])
        for state in states.split("|")
    }
    assert named
    assert named <= STATES.keys()
