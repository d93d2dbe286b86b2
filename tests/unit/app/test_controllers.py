from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pandas as pd
import pytest

from helios.app.controller_state import hold_cycle_lock
from helios.app.model_registry import promote
from helios.app.modes import PAUSE_FILE, set_mode
from helios.control import ServiceMode
from helios.errors import HeliosError, MemoryDamaged, ServiceInvalid
from helios.model import Mode
from helios.warehouse import Warehouse
from tests.unit.app.sites import FakeSite

SHADOW = {"qssf": ServiceMode(mode=Mode.SHADOW)}
ACTIVE = {"qssf": ServiceMode(mode=Mode.ACTIVE)}


@pytest.fixture
def fake_site(tmp_path: Path) -> FakeSite:
    fake_site = FakeSite(tmp_path)
    fake_site.learn()
    return fake_site


def two_jobs(fake_site: FakeSite) -> tuple[str, str]:
    return fake_site.cluster.submit(user="bob"), fake_site.cluster.submit(user="alice")


def test_a_shadow_writes_nothing_and_says_what_it_would(fake_site: FakeSite) -> None:
    two_jobs(fake_site)
    report = fake_site.cycles.cycle(modes=SHADOW)
    assert report.suspended == ()
    assert (report.acted, fake_site.cluster.writes) == (0, 0)
    assert set(report.decisions["outcome"].str.split(":").str[0]) >= {"would"}


def test_an_active_service_brings_the_short_job_forward(fake_site: FakeSite) -> None:
    long, short = two_jobs(fake_site)
    assert fake_site.cluster.queue == [long, short]
    report = fake_site.cycles.cycle(modes=ACTIVE)
    assert fake_site.cluster.queue == [short, long]
    assert report.acted == 2
    with fake_site.warehouse() as warehouse:
        assert len(warehouse.ledger("dev").applied_changes()) == 2
        assert set(warehouse.predictions("dev")["job_id"]) == {long, short}


def test_modes_are_those_that_were_set(fake_site: FakeSite) -> None:
    two_jobs(fake_site)
    assert fake_site.cycles.summary().acted == 0
    set_mode(fake_site.url, "dev", "qssf", Mode.ACTIVE, by="root", reason="trial", now=fake_site.cluster.now)
    fake_site.cluster.tick(timedelta(minutes=1))
    summary = fake_site.cycles.summary()
    assert summary.acted == 2
    assert summary.modes == {"qssf": Mode.ACTIVE}
    assert summary.lease_held and summary.breaker == "closed" and summary.predictions == 2


def test_a_cycle_is_written_down_for_the_reports(fake_site: FakeSite) -> None:
    two_jobs(fake_site)
    fake_site.cycles.cycle(modes=ACTIVE)
    with fake_site.warehouse() as warehouse:
        row = warehouse.cycles("dev").iloc[0]
    assert (row["pending"], row["acted"], row["gpus_pending"]) == (2, 2, 2)
    assert json.loads(row["counts"])["qssf"]["done"] == 2


def test_memory_outlives_the_process(fake_site: FakeSite) -> None:
    two_jobs(fake_site)
    fake_site.cycles.cycle(modes=ACTIVE)
    fake_site.controller = "ctl since tuesday"
    assert any("controller changed" in reason for reason in fake_site.another().cycle(modes=ACTIVE).suspended)


def test_predictions_are_stored_when_they_change_and_not_every_cycle(fake_site: FakeSite) -> None:
    two_jobs(fake_site)
    for _ in range(3):
        fake_site.cycles.cycle(modes=SHADOW)
        fake_site.cluster.tick(timedelta(minutes=1))
    with fake_site.warehouse() as warehouse:
        assert len(warehouse.predictions("dev")) == 2


def test_a_pause_by_file_takes_everything_back_in_the_next_cycle(fake_site: FakeSite) -> None:
    two_jobs(fake_site)
    fake_site.cycles.cycle(modes=ACTIVE)
    (fake_site.folder / "state").mkdir(exist_ok=True)
    (fake_site.folder / "state" / PAUSE_FILE).touch()
    fake_site.cluster.tick(timedelta(minutes=1))
    report = fake_site.cycles.cycle(modes=ACTIVE)
    assert [fake_site.cluster.site_factor_of(job) for job in fake_site.cluster.queue] == [0, 0]
    assert any("paused" in reason for reason in report.suspended)


def test_a_pause_by_file_works_with_the_database_gone(fake_site: FakeSite) -> None:
    two_jobs(fake_site)
    fake_site.cycles.cycle(modes=ACTIVE)
    (fake_site.folder / "state").mkdir(exist_ok=True)
    (fake_site.folder / "state" / PAUSE_FILE).touch()
    broken = fake_site.another(database={"url": f"sqlite:///{fake_site.folder}/state/{PAUSE_FILE}/helios.db"})
    broken.cycle(modes=ACTIVE)
    assert [fake_site.cluster.site_factor_of(job) for job in fake_site.cluster.queue] == [0, 0]


def test_without_the_database_nothing_is_written(fake_site: FakeSite) -> None:
    two_jobs(fake_site)
    broken = fake_site.another(database={"url": f"sqlite:///{fake_site.folder}/helios.db/helios.db"})
    report = broken.cycle(modes=ACTIVE)
    assert report.suspended != ()
    assert fake_site.cluster.writes == 0


def test_a_release_without_the_lease_leaves_nothing_and_is_in_the_audit(fake_site: FakeSite) -> None:
    two_jobs(fake_site)
    fake_site.cycles.cycle(modes=ACTIVE)
    other = fake_site.another(control={"state_folder": str(fake_site.folder / "elsewhere")})
    report = other.release("a person asked")
    assert report.clean and report.recorded
    assert [fake_site.cluster.site_factor_of(job) for job in fake_site.cluster.queue] == [0, 0]
    with fake_site.warehouse() as warehouse:
        assert "a person asked" in set(warehouse.decisions("dev")["reason"])


def test_a_release_works_with_the_database_gone(fake_site: FakeSite) -> None:
    two_jobs(fake_site)
    fake_site.cycles.cycle(modes=ACTIVE)
    broken = fake_site.another(database={"url": f"sqlite:///{fake_site.folder}/helios.db/helios.db"})
    report = broken.release("a person asked")
    assert report.clean and not report.recorded
    assert [fake_site.cluster.site_factor_of(job) for job in fake_site.cluster.queue] == [0, 0]


def test_a_second_helios_stands_by(fake_site: FakeSite) -> None:
    two_jobs(fake_site)
    fake_site.cycles.cycle(modes=SHADOW)
    other = fake_site.another(control={"state_folder": str(fake_site.folder / "elsewhere")})
    assert any("standing by" in reason for reason in other.cycle(modes=ACTIVE).suspended)
    assert fake_site.cluster.writes == 0


def test_history_that_was_never_read_is_a_reason_to_suspend(tmp_path: Path) -> None:
    fake_site = FakeSite(tmp_path)
    two_jobs(fake_site)
    assert any("never read" in reason for reason in fake_site.cycles.cycle(modes=ACTIVE).suspended)
    assert fake_site.cluster.writes == 0


def test_an_unknown_clock_is_a_reason_to_suspend(fake_site: FakeSite) -> None:
    two_jobs(fake_site)
    fake_site.skew_s = None
    assert any("clock" in reason for reason in fake_site.cycles.cycle(modes=ACTIVE).suspended)
    assert fake_site.cluster.writes == 0


def test_a_damaged_memory_is_not_forgotten(fake_site: FakeSite) -> None:
    with fake_site.warehouse() as warehouse:
        warehouse.remember("dev", "cycle", "{", at=fake_site.cluster.now)
    with pytest.raises(MemoryDamaged, match="resume"):
        fake_site.cycles.cycle(modes=ACTIVE)


def test_an_option_that_does_not_exist_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ServiceInvalid, match="promote_after_s"):
        FakeSite(tmp_path, services={"qssf": {"promote_afer_s": 10}})


def test_a_plan_shows_what_an_active_service_would_do_without_a_trace(fake_site: FakeSite) -> None:
    two_jobs(fake_site)
    report = fake_site.cycles.plan(modes=ACTIVE)
    assert {line.split(":")[0] for line in report.decisions["outcome"]} >= {"would"}
    assert fake_site.cluster.writes == 0
    with fake_site.warehouse() as warehouse:
        assert warehouse.decisions("dev").empty and warehouse.cycles("dev").empty
        assert warehouse.ledger("dev").applied_changes().empty


def test_a_plan_knows_what_stands_already(fake_site: FakeSite) -> None:
    two_jobs(fake_site)
    fake_site.cycles.cycle(modes=ACTIVE)
    report = fake_site.cycles.plan(modes=ACTIVE)
    assert report.counts["qssf"].get("would", 0) == 0
    assert report.counts["qssf"]["unchanged"] == 2


def test_a_plan_of_switching_off_says_what_would_be_taken_back(fake_site: FakeSite) -> None:
    two_jobs(fake_site)
    fake_site.cycles.cycle(modes=ACTIVE)
    taken_back = fake_site.cycles.plan(modes=SHADOW).decisions
    assert list(taken_back["action"]).count("Revert") == 2
    assert sorted(abs(fake_site.cluster.site_factor_of(job)) > 0 for job in fake_site.cluster.queue) == [True, True]


def test_two_processes_of_one_helios_do_not_cycle_at_once(fake_site: FakeSite) -> None:
    with hold_cycle_lock(fake_site.folder / "state"), pytest.raises(HeliosError, match="just now"):
        fake_site.cycles.cycle(modes=SHADOW)


def test_an_endless_wait_does_not_make_cycles_read_all_predictions(
    fake_site: FakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_site.cluster.submit(user="bob", submitted_at=fake_site.cluster.now - timedelta(days=700))
    two_jobs(fake_site)
    asked = []
    predictions_of = Warehouse.predictions_of

    def watched(warehouse: Warehouse, cluster: str, submitted_at: pd.Series) -> pd.DataFrame:
        asked.append(len(submitted_at))
        return predictions_of(warehouse, cluster, submitted_at)

    monkeypatch.setattr(Warehouse, "predictions_of", watched)
    monkeypatch.setattr(Warehouse, "predictions", None)
    for cycles in (fake_site.cycles, fake_site.cycles, fake_site.another()):
        report = cycles.cycle(modes=SHADOW)
        assert not [note for note in report.notes if "stored" in note]
        fake_site.cluster.tick(timedelta(minutes=1))
    monkeypatch.undo()
    assert asked == [3, 3]  # the second turn knows them all
    with fake_site.warehouse() as warehouse:
        assert len(warehouse.predictions("dev")) == 3


def test_an_unreadable_promoted_model_stops_writes_and_says_what_to_do(fake_site: FakeSite) -> None:
    record = fake_site.put_promoted(damaged=True)
    queue = list(two_jobs(fake_site))
    set_mode(fake_site.url, "dev", "qssf", Mode.ACTIVE, by="root", reason="trial", now=fake_site.cluster.now)
    summary = fake_site.cycles.summary()
    assert (fake_site.cluster.queue, fake_site.cluster.writes, summary.problem) == (queue, 0, "")
    assert any(f"Model {record.model_id} cannot be read" in reason for reason in summary.suspended)
    assert any("helios model promote shrinkage" in reason for reason in summary.suspended)
    assert summary.model_trained_at is None


def test_shrinkage_chosen_over_an_unreadable_model_orders_the_queue(fake_site: FakeSite) -> None:
    fake_site.put_promoted(damaged=True)
    long, short = two_jobs(fake_site)
    promote(fake_site.url, "dev", "shrinkage", by="root", why="the model is damaged", now=fake_site.cluster.now)
    fake_site.cycles.cycle(modes=ACTIVE)
    assert fake_site.cluster.queue == [short, long]


def test_an_unreadable_model_does_not_switch_off_the_guard_on_old_history(fake_site: FakeSite) -> None:
    fake_site.put_promoted(damaged=True)
    queue = list(two_jobs(fake_site))
    fake_site.cluster.tick(timedelta(seconds=fake_site.settings.control.oldest_history_s + 60))
    report = fake_site.cycles.cycle(modes=ACTIVE)
    assert any("history was read last" in reason for reason in report.suspended)
    assert (fake_site.cluster.queue, fake_site.cluster.writes) == (queue, 0)
