"""What the daemon's night does with the settings it was given."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path

from helios.app.controller_state import NIGHTLY_LEVELS
from helios.app.model_drift import DRIFTED
from helios.app.nightly import NightlyRun, _notify, delete_old_rows, nightly_pages, run_nightly
from helios.app.sync import AccountingSource, SyncResult, sync_history
from helios.config import Settings
from helios.control import ServiceMode
from helios.errors import HeliosError
from helios.model import NODE_EVENTS, Mode, Snapshot
from helios.testing import a_node, a_snapshot
from helios.warehouse import Warehouse
from tests.prometheus_rig import Server, success
from tests.servers import ChatServer
from tests.unit.app.sites import FakeSite


def a_night(fake_site: FakeSite, *, seen: Snapshot | None = None, **model: object) -> NightlyRun:
    def nothing_read(_: timedelta) -> SyncResult:
        raise HeliosError("slurmdbd is away")

    def look() -> Snapshot:
        if seen is not None:
            return seen
        raise HeliosError("slurmctld is away")

    settings = Settings.model_validate(
        fake_site.settings.model_dump() | {"model": model, "report": {"folder": str(fake_site.folder / "reports")}}
    )
    return run_nightly(
        settings=settings, cluster="dev", now=fake_site.cluster.now, read=nothing_read, read_snapshot=look
    )


def test_a_night_trains_a_model_and_asks_prometheus(tmp_path: Path) -> None:
    fake_site = FakeSite(tmp_path)
    fake_site.learn(jobs=150)
    with Server(lambda _: success({"resultType": "scalar", "result": [1, "0"]})) as server:
        fake_site.settings = fake_site.another(prometheus={"url": server.url}).settings
        done = a_night(fake_site)
    problems = [problem.message for problem in done.problems]
    assert problems[:-1] == ["slurmdbd is away", "slurmctld is away"]
    assert problems[-1].startswith("The clock of Prometheus")
    assert any(step.startswith("model ") for step in done.done)


def test_the_nightly_report_says_what_the_check_of_the_order_found(tmp_path: Path) -> None:
    fake_site = FakeSite(tmp_path)
    fake_site.learn(jobs=150)
    nodes = a_snapshot(nodes=[a_node(partitions="gpu", gpus=1)], taken_at=fake_site.cluster.now)
    done = a_night(fake_site, seen=nodes)
    (line,) = [step for step in done.done if step.startswith("order checked: ")]
    assert done.report is not None
    said = unescape(" ".join(done.report.page.read_text().split()))
    assert "Whether the order helps" in said
    assert line.removeprefix("order checked: ") in said


def test_the_night_does_not_check_an_order_that_nobody_uses(tmp_path: Path) -> None:
    fake_site = FakeSite(tmp_path, services={"qssf": {"order": "service"}})
    fake_site.learn(jobs=150)
    nodes = a_snapshot(nodes=[a_node(partitions="gpu", gpus=1)], taken_at=fake_site.cluster.now)
    assert not [step for step in a_night(fake_site, seen=nodes).done if "order" in step]


def test_the_night_deletes_what_is_old_and_says_so(tmp_path: Path) -> None:
    fake_site = FakeSite(tmp_path)
    fake_site.learn()
    fake_site.cluster.submit(user="alice")
    fake_site.cycles.cycle(modes={"qssf": ServiceMode(mode=Mode.SHADOW)})
    fake_site.cluster.tick(timedelta(days=59))
    assert not any("deleted" in step for step in a_night(fake_site).done)
    fake_site.cluster.tick(timedelta(days=2))
    assert "deleted because they were old: 1 shadow decisions" in a_night(fake_site).done
    with fake_site.warehouse() as warehouse:
        assert warehouse.decisions("dev").empty
        assert len(warehouse.cycles("dev")) == 1
        assert not warehouse.jobs("dev").empty


def test_the_notes_that_reading_the_accounting_leaves_are_those_that_are_deleted(tmp_path: Path) -> None:
    fake_site = FakeSite(tmp_path)

    def printed(start: datetime, end: datetime, path: Path) -> None:
        columns = "JobID|User|Account|Partition|State|Submit|Start|End|AllocTRES|JobName"
        path.write_text(
            f"{columns}\n{start:%d}|ann|a|gpu|COMPLETED|{start:%FT%T}|{start:%FT%T}|{start:%FT%T}|cpu=1|x\n"
        )

    accounting = AccountingSource(jobs=printed, node_events=lambda start, end: NODE_EVENTS.empty())
    step = {"start": fake_site.cluster.now - timedelta(days=3), "window": timedelta(days=1), "overlap": timedelta(0)}
    sync_history(accounting, url=fake_site.url, cluster="dev", now=fake_site.cluster.now, **step)
    with fake_site.warehouse() as warehouse:
        assert len(warehouse.loads("dev")) == 3
    told = delete_old_rows(
        fake_site.url, "dev", fake_site.settings.retention, now=datetime.now(UTC) + timedelta(days=61)
    )
    assert "2 readings" in told  # the last one stays: by it others know whether anything is new


def test_nightly_reports_are_closed_to_other_accounts(tmp_path: Path) -> None:
    fake_site = FakeSite(tmp_path)
    fake_site.learn()
    earlier = nightly_pages(
        fake_site.settings, "dev", "2019-11-20", tmp_path / "reports", now=fake_site.cluster.now
    ).page
    earlier.chmod(0o644)  # as an older Helios left it
    report = nightly_pages(fake_site.settings, "dev", "yesterday", tmp_path / "reports", now=fake_site.cluster.now)
    files = [earlier, report.page, report.mail]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o640}
    assert (tmp_path / "reports").stat().st_mode & 0o777 == 0o750


def test_the_night_keeps_the_levels_of_its_study_for_the_metrics(tmp_path: Path) -> None:
    fake_site = FakeSite(tmp_path)
    fake_site.learn(jobs=150)
    done = a_night(fake_site)
    assert done.report is not None
    assert done.report.levels
    with Warehouse.open(fake_site.settings.database.url) as warehouse:
        kept = json.loads(warehouse.remembered("dev", NIGHTLY_LEVELS) or "")
    assert kept == dict(done.report.levels)


def test_the_night_notifies_of_its_report_once_and_of_each_drift(tmp_path: Path) -> None:
    with ChatServer() as server:
        fake_site = FakeSite(tmp_path, notify={"webhook": server.url})
        fake_site.learn(jobs=150)
        report = a_night(fake_site).report
        server.bodies.clear()
        for line in ("3 of 20 inputs changed", "4 of 20 inputs changed", "", "3 of 20 inputs changed"):
            with Warehouse.open(fake_site.settings.database.url) as warehouse:
                warehouse.remember("dev", DRIFTED, line, at=fake_site.cluster.now)
            _notify(fake_site.settings, "dev", report, now=fake_site.cluster.now)
    assert [body["event"] for body in server.bodies] == ["drift", "drift"]
    assert "3 of 20 inputs changed" in server.bodies[0]["text"]


def test_a_night_whose_webhook_is_away_says_so_and_writes_its_report(tmp_path: Path) -> None:
    fake_site = FakeSite(tmp_path, notify={"webhook": "http://127.0.0.1:1/"})
    fake_site.learn(jobs=150)
    done = a_night(fake_site)
    assert done.report is not None
    assert any("No notice by webhook" in problem.message for problem in done.problems)
