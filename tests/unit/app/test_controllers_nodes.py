"""Cycles on nodes, put together with the warehouse, the undo file and the pause."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from helios.actions import NodeOutcome
from helios.app.controllers import NODES_RELEASED_FILE, NodeController, delete_damaged_state
from helios.app.explain import NodeUnknown, explain_node, node_status
from helios.app.modes import pause_here, resume
from helios.app.node_use import NodeUseRecord
from helios.app.operations import operations_for, summarise_node_release
from helios.changes import Change
from helios.config import LoadedSettings, Settings
from helios.control import ServiceMode
from helios.errors import HeliosError, MemoryDamaged
from helios.model import Mode, NodePower, Snapshot
from helios.ports import Domain
from helios.services.registry import build
from helios.slurm.undo_file import UNDO_FILE, read_undo, write_undo
from helios.testing import a_use
from tests.unit.app.node_sites import ACTIVE, NodeTown, down

ASLEEP, FALLING, AWAKE, WAKING = NodePower.ASLEEP, NodePower.FALLING_ASLEEP, NodePower.AWAKE, NodePower.WAKING


@pytest.fixture
def town(tmp_path: Path) -> NodeTown:
    return NodeTown(tmp_path)


def test_a_node_put_to_sleep_is_in_all_four_records(town: NodeTown) -> None:
    report = town.cycle(*down("n1"))
    assert report.slept == ("n1",)
    assert town.nodes.power_of("n1") in {FALLING, ASLEEP}
    assert read_undo(town.state / UNDO_FILE).asleep == ("n1",)
    with town.warehouse() as warehouse:
        assert list(warehouse.ledger("dev", domain=Domain.NODES).applied_changes()["node"]) == ["n1"]
        made = warehouse.decisions("dev", since=town.nodes.now - timedelta(hours=1))
        tallies = warehouse.node_tallies(
            "dev", town.nodes.now - timedelta(hours=1), town.nodes.now + timedelta(hours=1)
        )
    assert "n1" in set(made["target"])
    assert tallies["total"].max() == 6


def test_the_two_domains_have_a_lease_each(town: NodeTown) -> None:
    with town.warehouse() as warehouse:
        ledger = warehouse.ledger("dev", domain=Domain.JOBS)
        assert ledger.acquire(holder="another", now=town.nodes.now, lasts=timedelta(hours=1)) is not None
    assert town.cycle(*down("n1")).slept == ("n1",)


def test_a_plan_changes_nothing_anywhere(town: NodeTown) -> None:
    town.nodes.tick(timedelta(minutes=1))
    town.read()
    town.says.actions = list(down("n1"))
    writes = town.nodes.writes
    report = town.cycles.plan(modes={"says": ACTIVE})
    assert "would" in report.decisions.set_index("target").loc["n1", "outcome"]
    assert town.nodes.writes == writes
    assert town.nodes.power_of("n1") == AWAKE
    assert not (town.state / UNDO_FILE).exists()


def test_a_plan_without_a_cycle_before_it_looks_twice(town: NodeTown, monkeypatch: pytest.MonkeyPatch) -> None:
    look = town.nodes.snapshot

    def a_second_later() -> Snapshot:
        town.nodes.tick(timedelta(seconds=1))
        return look()

    town.nodes.tick(timedelta(days=1))  # what was seen idle then may have run a job since
    town.read()
    monkeypatch.setattr(town.nodes, "snapshot", a_second_later)
    town.says.actions = list(down("n1"))
    report = town.cycles.plan(modes={"says": ACTIVE})
    assert "would" in report.decisions.set_index("target").loc["n1", "outcome"]
    assert town.cycles.remembered().looked_at != report.taken_at


def test_a_restart_forgets_neither_what_sleeps_nor_how_often_it_slept(town: NodeTown) -> None:
    town.cycle(*down("n1"))
    town.cycles = town.another()
    assert town.cycles.remembered().slept["n1"]
    town.cycle(*down("n1"))
    status = node_status(town.cycles)
    assert list(status.applied_changes["node"]) == ["n1"]
    assert int(status.pools["by_helios"].sum()) == 1


def test_a_release_wakes_everything_and_empties_record_and_file(town: NodeTown) -> None:
    town.cycle(*down("n1", "n2"))
    town.nodes.tick(timedelta(hours=2))
    report = town.cycles.release("an admin asked")
    assert report.clean
    assert {town.nodes.power_of(node) for node in ("n1", "n2")} <= {WAKING, AWAKE}
    assert read_undo(town.state / UNDO_FILE).asleep == ()
    assert node_status(town.cycles).applied_changes.empty


def test_a_pause_by_file_wakes_everything_with_the_database_gone(town: NodeTown) -> None:
    town.cycle(*down("n1"))
    town.nodes.tick(timedelta(hours=2))
    database = town.folder / "helios.db"
    database.write_bytes(b"not a database at all" * 100)
    pause_here(town.state, by="root", reason="the database is gone", now=town.nodes.now)
    report = town.cycles.cycle(modes=town.cycles.modes())
    assert town.nodes.power_of("n1") in {WAKING, AWAKE}
    assert report.suspended
    assert read_undo(town.state / UNDO_FILE).asleep == ()


def test_what_a_kill_switch_without_database_woke_is_nobodys_will(town: NodeTown) -> None:
    town.cycle(*down("n1"))
    town.nodes.tick(timedelta(hours=1))
    town.nodes.admin_powers_up("n1")  # as helios-release.sh does
    town.nodes.tick(timedelta(hours=1))
    (town.state / NODES_RELEASED_FILE).touch()
    town.cycle()
    assert not (town.state / NODES_RELEASED_FILE).exists()
    assert "n1" not in town.cycles.remembered().keep_off
    assert town.cycle(*down("n1")).slept == ("n1",)


def test_a_shadow_puts_nothing_to_sleep_and_the_status_says_what_would(town: NodeTown) -> None:
    report = town.cycle(*down("n1"), mode=ServiceMode(mode=Mode.SHADOW))
    assert report.slept == ()
    assert town.nodes.power_of("n1") == AWAKE
    status = node_status(town.cycles)
    assert list(status.applied_changes["mode"]) == ["shadow"]
    assert int(status.pools["by_helios"].sum()) == 0


def test_a_person_is_told_of_a_failed_wake_and_clears_it(town: NodeTown) -> None:
    town.nodes.fail_wakes("n1")
    town.cycle(*down("n1"))
    town.nodes.tick(timedelta(hours=1))
    town.cycles.release("an admin asked")
    town.nodes.tick(timedelta(hours=2))
    town.cycle()
    assert "n1" in node_status(town.cycles).quarantined
    story = " ".join(explain_node(town.cycles, "n1").facts)
    assert "failed to wake" in story
    assert "helios power clear n1" in story
    town.cycles.clear("n1")
    assert not node_status(town.cycles).quarantined


def test_nobody_can_ask_about_a_node_that_is_not_there(town: NodeTown) -> None:
    with pytest.raises(NodeUnknown):
        explain_node(town.cycles, "n99")


def test_an_unreadable_memory_stops_writes_until_a_resume(town: NodeTown) -> None:
    with town.warehouse() as warehouse:
        warehouse.remember("dev", "nodes", "{", at=town.nodes.now)
    with pytest.raises(MemoryDamaged):
        town.cycle(*down("n1"))
    resume(town.settings.database.url, "dev", town.state, now=town.nodes.now)
    with town.warehouse() as warehouse:
        delete_damaged_state(warehouse, "dev", at=town.nodes.now)
    town.cycle()
    assert town.cycle(*down("n1")).slept == ("n1",)


def test_a_resume_keeps_a_memory_that_can_be_read(town: NodeTown) -> None:
    town.cycle(*down("n1"))
    with town.warehouse() as warehouse:
        delete_damaged_state(warehouse, "dev", at=town.nodes.now)
    assert town.cycles.remembered().slept["n1"]


def test_a_standby_leaves_the_leaders_memory_alone(town: NodeTown) -> None:
    town.cycle(*down("n1"))
    standby = town.another()
    standby.holder = "another machine"
    town.nodes.tick(timedelta(minutes=1))
    report = standby.cycle(modes={"says": ACTIVE})
    assert not report.leads
    assert town.cycles.remembered().slept["n1"]


def test_the_daemons_summary_counts_every_node_once(town: NodeTown) -> None:
    town.cycle(*down("n1"))
    town.nodes.tick(timedelta(minutes=1))
    town.read()
    town.cycles.modes = lambda: {"says": ACTIVE}  # type: ignore[method-assign]  # nobody set one here
    town.says.actions = list(down("n1"))
    summary = town.cycles.summary()
    assert sum(summary.nodes.values()) == 6
    assert summary.by_helios == 1
    assert "5 idle" in summary.line()


def test_a_record_of_use_that_fails_leaves_cycles_and_pause(town: NodeTown, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> None:
        raise ZeroDivisionError("a defect of the record")

    town.cycle(*down("n1"))
    town.nodes.tick(timedelta(hours=2))
    town.cycles = NodeController(town.site(), town.settings, clock=lambda: town.nodes.now)
    town.cycles.services = {"says": town.says}
    monkeypatch.setattr(NodeUseRecord, "__call__", breaks)
    report = town.cycle(*down("n2"))
    assert report.slept == ()
    assert any("ZeroDivisionError" in note for note in report.notes)
    pause_here(town.state, by="root", reason="enough", now=town.nodes.now)
    assert town.cycle().woken == ("n1",)


def test_a_pause_beside_another_state_folder_leaves_the_memory_of_the_leader(town: NodeTown) -> None:
    town.cycle(*down("n1"))
    town.nodes.tick(timedelta(minutes=2))
    settings = town.settings.model_copy(
        update={"control": town.settings.control.model_copy(update={"state_folder": str(town.folder / "alice")})}
    )
    alice = NodeController(town.site(), settings, clock=lambda: town.nodes.now)
    protected = replace(town.cycles.remembered(), protected_at=town.nodes.now)
    steer = town.nodes.steer

    def a_cycle_ends_meanwhile(changes: Sequence[Change[str]]) -> list[NodeOutcome]:
        with town.warehouse() as warehouse:
            warehouse.remember("dev", "nodes", protected.to_json(), at=town.nodes.now)
        return steer(changes)

    town.nodes.steer = a_cycle_ends_meanwhile  # type: ignore[method-assign]  # a moment that no test can hit else
    report = alice.release("paused by alice")
    assert report.woken == ("n1",)
    assert town.cycles.remembered().protected
    assert "n1" in town.cycles.remembered().wakes
    assert not (town.folder / "alice" / UNDO_FILE).exists()


def test_without_database_and_undo_file_a_release_says_that_it_knows_nothing(town: NodeTown) -> None:
    town.cycle(*down("n1"))
    (town.folder / "helios.db").write_bytes(b"not a database at all" * 100)
    settings = town.settings.model_copy(
        update={"control": town.settings.control.model_copy(update={"state_folder": str(town.folder / "alice")})}
    )
    report = NodeController(town.site(), settings, clock=lambda: town.nodes.now).release("paused by alice")
    assert report.remaining is None
    with pytest.raises(HeliosError, match="not known"):
        summarise_node_release(report)


def test_a_standby_keeps_no_undo_file_from_the_time_when_it_led(town: NodeTown) -> None:
    town.cycle(*down("n1"))
    with town.warehouse() as warehouse:
        ledger, later = warehouse.ledger("dev", domain=Domain.NODES), town.nodes.now + timedelta(hours=1)
        assert ledger.acquire(holder="another", now=later, lasts=timedelta(hours=2)) is not None
    town.nodes.tick(timedelta(hours=1))
    assert not town.cycle().leads
    assert not (town.state / UNDO_FILE).exists()


def test_a_release_says_how_many_nodes_have_their_own_weight_again(town: NodeTown) -> None:
    own = {node: round(town.nodes.weight_of(node)) for node in ("n2", "n3")}
    write_undo(town.state / UNDO_FILE, weights=own)
    for node, weight in own.items():
        town.nodes.admin_sets_weight(node, weight + 1)
    assert "2 given back their weight" in summarise_node_release(town.cycles.release("an admin asked"))


def test_a_daemon_without_a_service_on_nodes_reverts_what_is_on_record(tmp_path: Path) -> None:
    settings = Settings.model_validate({"control": {"state_folder": str(tmp_path)}, "services": {}})
    configuration = LoadedSettings(settings=settings, origins={}, files=())
    assert operations_for(configuration).nodes is None
    write_undo(tmp_path / UNDO_FILE, weights={"n1": 10})
    assert operations_for(configuration).nodes is not None


def test_a_plan_says_why_ces_asks_for_nothing(town: NodeTown) -> None:
    town.cycles.services = {"ces": build("ces", {})}
    town.cycles.expect = lambda snapshot: replace(snapshot, use=a_use({"gpu": 6}, at=snapshot.taken_at))  # type: ignore[method-assign]  # what is counted is not what is tested here
    report = town.cycles.plan(modes={"ces": ACTIVE})
    assert any(
        note.startswith("ces asks for nothing: 0 of 6 nodes of gpu in use, at most 6 in the last 30 min")
        for note in report.notes
    )
