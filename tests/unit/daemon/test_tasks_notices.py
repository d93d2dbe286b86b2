"""What the daemon tells people: from its cycles, beside them, and never at their cost."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from helios.app.controller_state import CycleSummary, DaemonOperations, NodeCycleSummary
from helios.app.notify import NoticeNotSent, Notices, notices_in
from helios.app.status import status
from helios.config import Settings
from helios.daemon import tasks as daemon_tasks
from tests.servers import ChatServer
from tests.unit.daemon.builders import PATIENCE_S, Blocked, ToyChores, a_cycle, eventually
from tests.unit.daemon.test_tasks_scheduler import OFTEN_S, started

SUSPENDED = a_cycle(suspended=("paused: by root",))


@dataclass
class Telling(ToyChores):
    """Tasks of a daemon that tells people."""

    observe: Callable[[CycleSummary | NodeCycleSummary], None] = lambda _: None
    notify: Callable[[], str] = lambda: ""

    def tasks(self) -> DaemonOperations:
        return replace(super().tasks(), observe=self.observe, notify=self.notify)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_tasks, "NOTIFY_S", OFTEN_S)


def test_a_suspension_is_told_once_however_many_cycles_and_daemons_see_it(tmp_path: Path) -> None:
    with ChatServer() as server:
        settings = Settings.model_validate(
            {"control": {"state_folder": str(tmp_path)}, "notify": {"webhook": server.url, "settle_s": 0}}
        )
        for _ in range(2):
            notices = Notices(settings, sender="jobs", cluster=lambda: "venus")
            toys = Telling(
                cycle=SUSPENDED,
                observe=lambda summary, notices=notices: notices.observe("jobs", notices_in(summary)),
                notify=notices.send_due,
            )
            with started(toys):
                assert eventually(lambda: bool(server.bodies))
                cycles = toys.count("cycle")
                assert eventually(lambda before=cycles, toys=toys: toys.count("cycle") > before + 3)
    assert [(body["event"], body["subject"]) for body in server.bodies] == [
        ("suspended", "nothing is done on jobs: paused: by root")
    ]


def test_a_mail_server_that_hangs_holds_up_no_cycle_and_no_heartbeat() -> None:
    hangs = Blocked()
    toys = Telling(notify=lambda: hangs() or "")  # type: ignore[func-returns-value]
    with started(toys) as ticking:
        assert hangs.enter.wait(PATIENCE_S)
        cycles, beats = toys.count("cycle"), ticking.beats
        assert eventually(lambda: toys.count("cycle") > cycles + 3 and ticking.beats > beats + 3)
        hangs.let_go()


def test_a_notice_that_failed_shows_in_health_and_status(tmp_path: Path) -> None:
    def refused() -> str:
        raise NoticeNotSent("No notice by mail (smtp.site.example:587): refused", hint="Try: helios notify --test")

    with started(Telling(notify=refused)) as ticking:
        assert eventually(lambda: bool(ticking.health.of("notify").problem) and not ticking.health.reasons())
        report = ticking.health.report()
    assert report["healthy"]
    assert "smtp.site.example" in report["tasks"]["notify"]["problem"]
    (tmp_path / "health.json").write_text(json.dumps(report))
    settings = Settings.model_validate(
        {"control": {"state_folder": str(tmp_path)}, "database": {"url": f"sqlite:///{tmp_path}/helios.db"}}
    )
    daemon = status(settings, cluster="dev", now=datetime.now(UTC))[0]
    assert "smtp.site.example" in daemon.message


@pytest.mark.parametrize("changes", [{"lease_held": False}, {"problem": "slurmctld is away"}], ids=["standby", "blind"])
def test_a_cycle_that_knows_nothing_tells_nothing(changes: dict[str, object]) -> None:
    seen: list[object] = []
    toys = Telling(cycle=a_cycle(suspended=("paused",), **changes), observe=seen.append)
    with started(toys):
        assert eventually(lambda: toys.count("cycle") >= 2)
    assert not seen


def test_protected_mode_is_a_cause_of_its_own() -> None:
    summary = NodeCycleSummary(seconds=0.1, protected="3 wakes failed", suspended=("paused: by root",))
    assert [notice.event for notice in notices_in(summary)] == ["suspended", "protected"]
