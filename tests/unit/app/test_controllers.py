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
from tests.unit.app.sites import Town

SHADOW = {"qssf": ServiceMode(mode=Mode.SHADOW)}
ACTIVE = {"qssf": ServiceMode(mode=Mode.ACTIVE)}


@pytest.fixture
def town(tmp_path: Path) -> Town:
    town = Town(tmp_path)
    town.learn()
    return town


def two_jobs(town: Town) -> tuple[str, str]:
    return town.cluster.submit(user="bob"), town.cluster.submit(user="alice")


def test_a_shadow_writes_nothing_and_says_what_it_would(town: Town) -> None:
    two_jobs(town)
    report = town.cycles.cycle(modes=SHADOW)
    assert report.suspended == ()
    assert (report.acted, town.cluster.writes) == (0, 0)
    assert set(report.decisions["outcome"].str.split(":").str[0]) >= {"would"}


def test_an_active_service_brings_the_short_job_forward(town: Town) -> None:
    long, short = two_jobs(town)
    assert town.cluster.queue == [long, short]
    report = town.cycles.cycle(modes=ACTIVE)
    assert town.cluster.queue == [short, long]
    assert report.acted == 2
    with town.warehouse() as warehouse:
        assert len(warehouse.ledger("dev").applied_changes()) == 2
        assert set(warehouse.predictions("dev")["job_id"]) == {long, short}


def test_modes_are_those_that_were_set(town: Town) -> None:
    two_jobs(town)
    assert town.cycles.summary().acted == 0
    set_mode(town.url, "dev", "qssf", Mode.ACTIVE, by="root", reason="trial", now=town.cluster.now)
    town.cluster.tick(timedelta(minutes=1))
    summary = town.cycles.summary()
    assert summary.acted == 2
    assert summary.modes == {"qssf": Mode.ACTIVE}
    assert summary.lease_held and summary.breaker == "closed" and summary.predictions == 2


def test_a_cycle_is_written_down_for_the_reports(town: Town) -> None:
    two_jobs(town)
    town.cycles.cycle(modes=ACTIVE)
    with town.warehouse() as warehouse:
        row = warehouse.cycles("dev").iloc[0]
    assert (row["pending"], row["acted"], row["gpus_pending"]) == (2, 2, 2)
    assert json.loads(row["counts"])["qssf"]["done"] == 2


def test_memory_outlives_the_process(town: Town) -> None:
    two_jobs(town)
    town.cycles.cycle(modes=ACTIVE)
    town.controller = "ctl since tuesday"
    assert any("controller changed" in reason for reason in town.another().cycle(modes=ACTIVE).suspended)


def test_predictions_are_stored_when_they_change_and_not_every_cycle(town: Town) -> None:
    two_jobs(town)
    for _ in range(3):
        town.cycles.cycle(modes=SHADOW)
        town.cluster.tick(timedelta(minutes=1))
    with town.warehouse() as warehouse:
        assert len(warehouse.predictions("dev")) == 2


def test_a_pause_by_file_takes_everything_back_in_the_next_cycle(town: Town) -> None:
    two_jobs(town)
    town.cycles.cycle(modes=ACTIVE)
    (town.folder / "state").mkdir(exist_ok=True)
    (town.folder / "state" / PAUSE_FILE).touch()
    town.cluster.tick(timedelta(minutes=1))
    report = town.cycles.cycle(modes=ACTIVE)
    assert [town.cluster.site_factor_of(job) for job in town.cluster.queue] == [0, 0]
    assert any("paused" in reason for reason in report.suspended)


def test_a_pause_by_file_works_with_the_database_gone(town: Town) -> None:
    two_jobs(town)
    town.cycles.cycle(modes=ACTIVE)
    (town.folder / "state").mkdir(exist_ok=True)
    (town.folder / "state" / PAUSE_FILE).touch()
    broken = town.another(database={"url": f"sqlite:///{town.folder}/state/{PAUSE_FILE}/helios.db"})
    broken.cycle(modes=ACTIVE)
    assert [town.cluster.site_factor_of(job) for job in town.cluster.queue] == [0, 0]


def test_without_the_database_nothing_is_written(town: Town) -> None:
    two_jobs(town)
    broken = town.another(database={"url": f"sqlite:///{town.folder}/helios.db/helios.db"})
    report = broken.cycle(modes=ACTIVE)
    assert report.suspended != ()
    assert town.cluster.writes == 0


def test_a_release_without_the_lease_leaves_nothing_and_is_in_the_audit(town: Town) -> None:
    two_jobs(town)
    town.cycles.cycle(modes=ACTIVE)
    other = town.another(control={"state_folder": str(town.folder / "elsewhere")})
    report = other.release("a person asked")
    assert report.clean and report.recorded
    assert [town.cluster.site_factor_of(job) for job in town.cluster.queue] == [0, 0]
    with town.warehouse() as warehouse:
        assert "a person asked" in set(warehouse.decisions("dev")["reason"])


def test_a_release_works_with_the_database_gone(town: Town) -> None:
    two_jobs(town)
    town.cycles.cycle(modes=ACTIVE)
    broken = town.another(database={"url": f"sqlite:///{town.folder}/helios.db/helios.db"})
    report = broken.release("a person asked")
    assert report.clean and not report.recorded
    assert [town.cluster.site_factor_of(job) for job in town.cluster.queue] == [0, 0]


def test_a_second_helios_stands_by(town: Town) -> None:
    two_jobs(town)
    town.cycles.cycle(modes=SHADOW)
    other = town.another(control={"state_folder": str(town.folder / "elsewhere")})
    assert any("standing by" in reason for reason in other.cycle(modes=ACTIVE).suspended)
    assert town.cluster.writes == 0


def test_history_that_was_never_read_is_a_reason_to_suspend(tmp_path: Path) -> None:
    town = Town(tmp_path)
    two_jobs(town)
    assert any("never read" in reason for reason in town.cycles.cycle(modes=ACTIVE).suspended)
    assert town.cluster.writes == 0


def test_an_unknown_clock_is_a_reason_to_suspend(town: Town) -> None:
    two_jobs(town)
    town.skew_s = None
    assert any("clock" in reason for reason in town.cycles.cycle(modes=ACTIVE).suspended)
    assert town.cluster.writes == 0


def test_a_damaged_memory_is_not_forgotten(town: Town) -> None:
    with town.warehouse() as warehouse:
        warehouse.remember("dev", "cycle", "{", at=town.cluster.now)
    with pytest.raises(MemoryDamaged, match="resume"):
        town.cycles.cycle(modes=ACTIVE)


def test_an_option_that_does_not_exist_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ServiceInvalid, match="promote_after_s"):
        Town(tmp_path, services={"qssf": {"promote_afer_s": 10}})


def test_a_plan_shows_what_an_active_service_would_do_without_a_trace(town: Town) -> None:
    two_jobs(town)
    report = town.cycles.plan(modes=ACTIVE)
    assert {line.split(":")[0] for line in report.decisions["outcome"]} >= {"would"}
    assert town.cluster.writes == 0
    with town.warehouse() as warehouse:
        assert warehouse.decisions("dev").empty and warehouse.cycles("dev").empty
        assert warehouse.ledger("dev").applied_changes().empty


def test_a_plan_knows_what_stands_already(town: Town) -> None:
    two_jobs(town)
    town.cycles.cycle(modes=ACTIVE)
    report = town.cycles.plan(modes=ACTIVE)
    assert report.counts["qssf"].get("would", 0) == 0
    assert report.counts["qssf"]["unchanged"] == 2


def test_a_plan_of_switching_off_says_what_would_be_taken_back(town: Town) -> None:
    two_jobs(town)
    town.cycles.cycle(modes=ACTIVE)
    taken_back = town.cycles.plan(modes=SHADOW).decisions
    assert list(taken_back["action"]).count("Revert") == 2
    assert sorted(abs(town.cluster.site_factor_of(job)) > 0 for job in town.cluster.queue) == [True, True]


def test_two_processes_of_one_helios_do_not_cycle_at_once(town: Town) -> None:
    with hold_cycle_lock(town.folder / "state"), pytest.raises(HeliosError, match="just now"):
        town.cycles.cycle(modes=SHADOW)


def test_an_endless_wait_does_not_make_cycles_read_all_predictions(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    town.cluster.submit(user="bob", submitted_at=town.cluster.now - timedelta(days=700))
    two_jobs(town)
    asked = []
    predictions_of = Warehouse.predictions_of

    def watched(warehouse: Warehouse, cluster: str, submitted_at: pd.Series) -> pd.DataFrame:
        asked.append(len(submitted_at))
        return predictions_of(warehouse, cluster, submitted_at)

    monkeypatch.setattr(Warehouse, "predictions_of", watched)
    monkeypatch.setattr(Warehouse, "predictions", None)
    for cycles in (town.cycles, town.cycles, town.another()):
        report = cycles.cycle(modes=SHADOW)
        assert not [note for note in report.notes if "stored" in note]
        town.cluster.tick(timedelta(minutes=1))
    monkeypatch.undo()
    assert asked == [3, 3]  # the second turn knows them all
    with town.warehouse() as warehouse:
        assert len(warehouse.predictions("dev")) == 3


def test_an_unreadable_promoted_model_stops_writes_and_says_what_to_do(town: Town) -> None:
    record = town.put_promoted(damaged=True)
    queue = list(two_jobs(town))
    set_mode(town.url, "dev", "qssf", Mode.ACTIVE, by="root", reason="trial", now=town.cluster.now)
    summary = town.cycles.summary()
    assert (town.cluster.queue, town.cluster.writes, summary.problem) == (queue, 0, "")
    assert any(f"Model {record.model_id} cannot be read" in reason for reason in summary.suspended)
    assert any("helios model promote shrinkage" in reason for reason in summary.suspended)
    assert summary.model_trained_at is None


def test_shrinkage_chosen_over_an_unreadable_model_orders_the_queue(town: Town) -> None:
    town.put_promoted(damaged=True)
    long, short = two_jobs(town)
    promote(town.url, "dev", "shrinkage", by="root", why="the model is damaged", now=town.cluster.now)
    town.cycles.cycle(modes=ACTIVE)
    assert town.cluster.queue == [short, long]


def test_an_unreadable_model_does_not_switch_off_the_guard_on_old_history(town: Town) -> None:
    town.put_promoted(damaged=True)
    queue = list(two_jobs(town))
    town.cluster.tick(timedelta(seconds=town.settings.control.oldest_history_s + 60))
    report = town.cycles.cycle(modes=ACTIVE)
    assert any("history was read last" in reason for reason in report.suspended)
    assert (town.cluster.queue, town.cluster.writes) == (queue, 0)
