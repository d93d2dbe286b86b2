"""A manager asks what the sleeping nodes brought: the command, its table, its JSON, its plots, its nightly page."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from helios.app.nightly import nightly_pages
from helios.config import Settings
from helios.model import NODE_EVENTS, NODES, REJECTS, Batch, in_submission_order
from helios.warehouse import Warehouse
from tests.builders import a_job, jobs_frame
from tests.story.shell import Helios, shell
from tests.traces import TRACES, needs_traces

BEGIN = pd.Timestamp("2026-11-01T00:00:00Z")
WINDOW = ("-S", "2026-11-03", "-E", "2026-11-16")


def a_fortnight(url: str) -> None:
    """Four nodes: each works six hours a day from 8:00, n3 and n4 sleep at night."""
    hour = pd.Timedelta(hours=1)
    days = [BEGIN + pd.Timedelta(days=day) for day in range(16)]
    jobs = [
        a_job(
            submitted_at=day + 7.9 * hour,
            started_at=day + 8 * hour,
            run_time_s=6 * 3600.0,
            gpus=32,
            node_list="n[1-4]",
            partition="gpu",
        )
        for day in days
    ]
    sleep = [
        {"node": node, "state": "IDLE~", "started_at": day + 16 * hour, "ended_at": day + 31 * hour}
        for day in days
        for node in ("n3", "n4")
    ]
    with Warehouse.open(url) as warehouse:
        batch = Batch(jobs=in_submission_order(jobs_frame(*jobs)), rejects=REJECTS.empty(), bytes_read=0)
        warehouse.load([batch], cluster="venus", path="sacct a", sha256="0", format="sacct", timezone="UTC")
        nodes = [{"name": f"n{number}", "partition": "gpu", "gpus": 8} for number in range(1, 5)]
        warehouse.add_nodes("venus", NODES.conform(pd.DataFrame(nodes)))
        warehouse.add_node_events("venus", NODE_EVENTS.conform(pd.DataFrame(sleep)))
        for source in ("jobs", "node_events"):
            end = BEGIN + pd.Timedelta(days=16)
            warehouse.add_coverage("venus", source=source, started_at=BEGIN, ended_at=end, read_at=end)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("energy")
    a_fortnight(f"sqlite:///{made / 'helios.db'}")
    return made


@pytest.fixture
def helios(folder: Path) -> Helios:
    return shell(folder)


def test_the_report_says_what_sleep_saved_and_its_json_adds_up(helios: Helios) -> None:
    said = helios("report", "energy", *WINDOW)
    assert len(said.out.splitlines()) > 14 and "2026-11-16" in said.out
    assert "Nodes asleep saved" in said.out and "against leaving them on" in said.out
    answer: dict[str, Any] = helios("report", "energy", *WINDOW, "--json").json
    total = answer["total"]
    hours = sum(total[f"{state}_h"] for state in ("busy", "idle", "asleep", "moving", "out", "unknown"))
    assert hours == pytest.approx(14 * 24 * answer["nodes"])
    assert total["asleep_h"] == pytest.approx(14 * 2 * 15)
    kwh = answer["savings"][0]["kwh"]
    moving_j = 14 * 2 * (120 + 300) * (1000 - 800)
    assert kwh == pytest.approx((14 * 2 * 15 * 3600 * (800 - 15) - moving_j) * 1.3 / 3.6e6)
    assert np.sum([row["saved_kwh"] for row in answer["rows"]]) == pytest.approx(kwh)


def test_rows_may_be_partitions_or_nodes_and_forms_are_sacct_s(helios: Helios) -> None:
    assert helios("report", "energy", *WINDOW, "--by", "node", "-nP", "-o", "node,asleeph").out.splitlines() == [
        "n1|0",
        "n2|0",
        "n3|210",
        "n4|210",
    ]
    assert helios("report", "energy", *WINDOW, "--by", "partition", "-P", "-o", "partition,busyh").out.splitlines() == [
        "Partition|BusyH",
        "gpu|336",
    ]


def test_the_report_is_also_a_page(helios: Helios, folder: Path) -> None:
    helios("report", "energy", *WINDOW, "--report", folder / "energy.html")
    assert "Nodes asleep saved" in (folder / "energy.html").read_text()


def test_the_nightly_page_and_mail_tell_it_too(folder: Path) -> None:
    settings = Settings.model_validate({"database": {"url": f"sqlite:///{folder}/helios.db"}})
    answer = nightly_pages(settings, None, "2026-11-16", folder / "nights", now=datetime.now(UTC))
    assert "What nodes asleep saved" in answer.page.read_text()
    assert "Nodes asleep saved" in answer.mail.read_text()


@needs_traces
def test_a_real_dump_of_jobs_alone_says_what_it_cannot_know(tmp_path: Path) -> None:
    helios = shell(tmp_path)
    trace = TRACES / "sacct_raw_phillips_dec2016.txt.gz"
    helios("trace", "load", trace, "--cluster", "phillips", "--timezone", "America/New_York")
    window = ("-S", "2016-12-31", "-E", "2017-01-01")
    answer = helios("report", "energy", *window, "--json").json
    assert answer["nodes"] > 40 and answer["total"]["busy_h"] > 500
    assert answer["total"]["idle_h"] == answer["total"]["asleep_h"] == 0
    assert answer["unseen"]["at_most_kwh"] > 0
    assert any("node events were never read" in note for note in answer["notes"])
