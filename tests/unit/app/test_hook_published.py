"""When the priority hook has a table: only while Helios acts."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from helios.app.modes import PAUSE_FILE, set_mode
from helios.app.operations import Operations
from helios.model import Mode
from helios.slurm.hook_table import TABLE, read_table
from tests.unit.app.sites import FakeSite


class Published:
    """A site whose qssf is active and whose hook has a table."""

    def __init__(self, folder: Path) -> None:
        self.fake_site = FakeSite(folder, hook={"publish": True})
        self.fake_site.learn()
        self.fake_site.cluster.submit(user="alice")
        self.operations = Operations(
            self.fake_site.settings,
            open_cluster=lambda _: self.fake_site.live_cluster(),
            clock=lambda: self.fake_site.cluster.now,
        )
        self.set(Mode.ACTIVE)
        assert self.operations.cycle().suspended == ()
        self.operations.publish_hook()
        assert self.rows > 0

    def set(self, mode: Mode) -> None:
        set_mode(self.fake_site.url, "dev", "qssf", mode, by="root", reason="", now=self.fake_site.cluster.now)

    @property
    def table(self) -> Path:
        return self.fake_site.folder / "state" / TABLE

    @property
    def rows(self) -> int:
        return len(read_table(self.table, self.fake_site.cluster.now).rows)

    def later(self, minutes: int = 10) -> None:
        self.fake_site.cluster.tick(timedelta(minutes=minutes))
        self.fake_site.read()


@pytest.fixture
def site(tmp_path: Path) -> Published:
    return Published(tmp_path)


def test_a_suspended_helios_has_no_hook_table(site: Published) -> None:
    site.fake_site.skew_s = 3600.0
    site.later()
    assert site.operations.cycle().suspended != ()
    site.operations.publish_hook()
    assert not site.table.exists()
    site.fake_site.skew_s = 0.0
    site.later()
    site.operations.cycle()
    site.operations.publish_hook()
    assert site.rows > 0


def test_for_one_cycle_of_waiting_the_table_stays_as_it_is(site: Published) -> None:
    before = site.table.read_bytes()
    site.fake_site.controller = "ctl since tuesday"
    site.later()
    assert "one cycle to settle" in site.operations.cycle().suspended[0]
    assert site.operations.publish_hook() == ""
    assert site.table.read_bytes() == before
    site.later()
    assert site.operations.cycle().suspended == ()
    site.operations.publish_hook()
    assert site.table.read_bytes() != before


def test_a_service_that_sits_out_does_not_reach_the_table(site: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> list[object]:
        raise RuntimeError("a defect")

    with monkeypatch.context() as patched:
        patched.setattr(site.operations.cycles.services["qssf"], "decide", fails)
        for _ in range(3):
            site.later()
            site.operations.cycle()
    site.operations.publish_hook()
    assert site.rows == 0


def test_a_pause_that_comes_while_the_rows_are_made_is_minded(site: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    service = site.operations.cycles.services["qssf"]
    decide = service.decide

    def decide_slowly(snapshot: object) -> object:
        (site.fake_site.folder / "state" / PAUSE_FILE).touch()
        return decide(snapshot)  # type: ignore[arg-type]

    monkeypatch.setattr(service, "decide", decide_slowly)
    site.operations.publish_hook()
    assert not site.table.exists()


def test_a_service_that_is_a_shadow_again_leaves_no_rows(site: Published) -> None:
    site.set(Mode.SHADOW)
    site.operations.publish_hook()
    assert site.rows == 0


def test_without_a_table_the_log_says_that_new_jobs_have_no_place(site: Published) -> None:
    unpublished = site.fake_site.another(hook={"publish": False}).settings
    operations = Operations(
        unpublished, open_cluster=lambda _: site.fake_site.live_cluster(), clock=lambda: site.fake_site.cluster.now
    )
    assert operations.publish_hook() == "the hook's table was removed"
    assert "new jobs have no place until the next cycle" in operations.publish_hook()
    site.set(Mode.SHADOW)
    assert operations.publish_hook() == ""
