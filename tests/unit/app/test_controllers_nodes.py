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
from tests.unit.app.node_sites import ACTIVE, FakeNodeSite, down

ASLEEP, FALLING, AWAKE, WAKING = NodePower.ASLEEP, NodePower.FALLING_ASLEEP, NodePower.AWAKE, NodePower.WAKING


@pytest.fixture
def fake_site(tmp_path: Path) -> FakeNodeSite:
    return FakeNodeSite(tmp_path)


def test_a_node_put_to_sleep_is_in_all_four_records(fake_site: FakeNodeSite) -> None:
    report = fake_site.cycle(*down("n1"))
    assert report.slept == ("n1",)
    assert fake_site.nodes.power_of("n1") in {FALLING, ASLEEP}
    assert read_undo(fake_site.state / UNDO_FILE).asleep == ("n1",)
    with fake_site.warehouse() as warehouse:
        assert list(warehouse.ledger("dev", domain=Domain.NODES).applied_changes()["node"]) == ["n1"]
        made = warehouse.decisions("dev", since=fake_site.nodes.now - timedelta(hours=1))
        tallies = warehouse.node_tallies(
            "dev", fake_site.nodes.now - timedelta(hours=1), fake_site.nodes.now + timedelta(hours=1)
        )
    assert "n1" in set(made["target"])
    assert tallies["total"].max() == 6


def test_the_two_domains_have_a_lease_each(fake_site: FakeNodeSite) -> None:
    with fake_site.warehouse() as warehouse:
        ledger = warehouse.ledger("dev", domain=Domain.JOBS)
        assert ledger.acquire(holder="another", now=fake_site.nodes.now, lasts=timedelta(hours=1)) is not None
    assert fake_site.cycle(*down("n1")).slept == ("n1",)


def test_a_plan_changes_nothing_anywhere(fake_site: FakeNodeSite) -> None:
    fake_site.nodes.tick(timedelta(minutes=1))
    fake_site.read()
    fake_site.says.actions = list(down("n1"))
    writes = fake_site.nodes.writes
    report = fake_site.cycles.plan(modes={"says": ACTIVE})
    assert "would" in report.decisions.set_index("target").loc["n1", "outcome"]
    assert fake_site.nodes.writes == writes
    assert fake_site.nodes.power_of("n1") == AWAKE
    assert not (fake_site.state / UNDO_FILE).exists()


def test_a_plan_without_a_cycle_before_it_looks_twice(fake_site: FakeNodeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    look = fake_site.nodes.snapshot

    def a_second_later() -> Snapshot:
        fake_site.nodes.tick(timedelta(seconds=1))
        return look()

    fake_site.nodes.tick(timedelta(days=1))  # what was seen idle then may have run a job since
    fake_site.read()
    monkeypatch.setattr(fake_site.nodes, "snapshot", a_second_later)
    fake_site.says.actions = list(down("n1"))
    report = fake_site.cycles.plan(modes={"says": ACTIVE})
    assert "would" in report.decisions.set_index("target").loc["n1", "outcome"]
    assert fake_site.cycles.remembered().looked_at != report.taken_at


def test_a_restart_forgets_neither_what_sleeps_nor_how_often_it_slept(fake_site: FakeNodeSite) -> None:
    fake_site.cycle(*down("n1"))
    fake_site.cycles = fake_site.another()
    assert fake_site.cycles.remembered().slept["n1"]
    fake_site.cycle(*down("n1"))
    status = node_status(fake_site.cycles)
    assert list(status.applied_changes["node"]) == ["n1"]
    assert int(status.pools["by_helios"].sum()) == 1


def test_a_release_wakes_everything_and_empties_record_and_file(fake_site: FakeNodeSite) -> None:
    fake_site.cycle(*down("n1", "n2"))
    fake_site.nodes.tick(timedelta(hours=2))
    report = fake_site.cycles.release("an admin asked")
    assert report.clean
    assert {fake_site.nodes.power_of(node) for node in ("n1", "n2")} <= {WAKING, AWAKE}
    assert read_undo(fake_site.state / UNDO_FILE).asleep == ()
    assert node_status(fake_site.cycles).applied_changes.empty


def test_a_pause_by_file_wakes_everything_with_the_database_gone(fake_site: FakeNodeSite) -> None:
    fake_site.cycle(*down("n1"))
    fake_site.nodes.tick(timedelta(hours=2))
    database = fake_site.folder / "helios.db"
    database.write_bytes(b"not a database at all" * 100)
    pause_here(fake_site.state, by="root", reason="the database is gone", now=fake_site.nodes.now)
    report = fake_site.cycles.cycle(modes=fake_site.cycles.modes())
    assert fake_site.nodes.power_of("n1") in {WAKING, AWAKE}
    assert report.suspended
    assert read_undo(fake_site.state / UNDO_FILE).asleep == ()


def test_what_a_kill_switch_without_database_woke_is_nobodys_will(fake_site: FakeNodeSite) -> None:
    fake_site.cycle(*down("n1"))
    fake_site.nodes.tick(timedelta(hours=1))
    fake_site.nodes.admin_powers_up("n1")  # as helios-release.sh does
    fake_site.nodes.tick(timedelta(hours=1))
    (fake_site.state / NODES_RELEASED_FILE).touch()
    fake_site.cycle()
    assert not (fake_site.state / NODES_RELEASED_FILE).exists()
    assert "n1" not in fake_site.cycles.remembered().keep_off
    assert fake_site.cycle(*down("n1")).slept == ("n1",)


def test_a_shadow_puts_nothing_to_sleep_and_the_status_says_what_would(fake_site: FakeNodeSite) -> None:
    report = fake_site.cycle(*down("n1"), mode=ServiceMode(mode=Mode.SHADOW))
    assert report.slept == ()
    assert fake_site.nodes.power_of("n1") == AWAKE
    status = node_status(fake_site.cycles)
    assert list(status.applied_changes["mode"]) == ["shadow"]
    assert int(status.pools["by_helios"].sum()) == 0


def test_a_person_is_told_of_a_failed_wake_and_clears_it(fake_site: FakeNodeSite) -> None:
    fake_site.nodes.fail_wakes("n1")
    fake_site.cycle(*down("n1"))
    fake_site.nodes.tick(timedelta(hours=1))
    fake_site.cycles.release("an admin asked")
    fake_site.nodes.tick(timedelta(hours=2))
    fake_site.cycle()
    assert "n1" in node_status(fake_site.cycles).quarantined
    story = " ".join(explain_node(fake_site.cycles, "n1").facts)
    assert "failed to wake" in story
    assert "helios power --clear n1" in story
    fake_site.cycles.clear("n1")
    assert not node_status(fake_site.cycles).quarantined


def test_nobody_can_ask_about_a_node_that_is_not_there(fake_site: FakeNodeSite) -> None:
    with pytest.raises(NodeUnknown):
        explain_node(fake_site.cycles, "n99")


def test_an_unreadable_memory_stops_writes_until_a_resume(fake_site: FakeNodeSite) -> None:
    with fake_site.warehouse() as warehouse:
        warehouse.remember("dev", "nodes", "{", at=fake_site.nodes.now)
    with pytest.raises(MemoryDamaged):
        fake_site.cycle(*down("n1"))
    resume(fake_site.settings.database.url, "dev", fake_site.state, now=fake_site.nodes.now)
    with fake_site.warehouse() as warehouse:
        delete_damaged_state(warehouse, "dev", at=fake_site.nodes.now)
    fake_site.cycle()
    assert fake_site.cycle(*down("n1")).slept == ("n1",)


def test_a_resume_keeps_a_memory_that_can_be_read(fake_site: FakeNodeSite) -> None:
    fake_site.cycle(*down("n1"))
    with fake_site.warehouse() as warehouse:
        delete_damaged_state(warehouse, "dev", at=fake_site.nodes.now)
    assert fake_site.cycles.remembered().slept["n1"]


def test_a_standby_leaves_the_leaders_memory_alone(fake_site: FakeNodeSite) -> None:
    fake_site.cycle(*down("n1"))
    standby = fake_site.another()
    standby.holder = "another machine"
    fake_site.nodes.tick(timedelta(minutes=1))
    report = standby.cycle(modes={"says": ACTIVE})
    assert not report.leads
    assert fake_site.cycles.remembered().slept["n1"]


def test_the_daemons_summary_counts_every_node_once(fake_site: FakeNodeSite) -> None:
    fake_site.cycle(*down("n1"))
    fake_site.nodes.tick(timedelta(minutes=1))
    fake_site.read()
    fake_site.cycles.modes = lambda: {"says": ACTIVE}  # type: ignore[method-assign]  # nobody set one here
    fake_site.says.actions = list(down("n1"))
    summary = fake_site.cycles.summary()
    assert sum(summary.nodes.values()) == 6
    assert summary.by_helios == 1
    assert "5 idle" in summary.line()


def test_a_record_of_use_that_fails_leaves_cycles_and_pause(
    fake_site: FakeNodeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object) -> None:
        raise ZeroDivisionError("a defect of the record")

    fake_site.cycle(*down("n1"))
    fake_site.nodes.tick(timedelta(hours=2))
    fake_site.cycles = NodeController(fake_site.live_cluster(), fake_site.settings, clock=lambda: fake_site.nodes.now)
    fake_site.cycles.services = {"says": fake_site.says}
    monkeypatch.setattr(NodeUseRecord, "__call__", breaks)
    report = fake_site.cycle(*down("n2"))
    assert report.slept == ()
    assert any("ZeroDivisionError" in note for note in report.notes)
    pause_here(fake_site.state, by="root", reason="enough", now=fake_site.nodes.now)
    assert fake_site.cycle().woken == ("n1",)


def test_a_pause_beside_another_state_folder_leaves_the_memory_of_the_leader(fake_site: FakeNodeSite) -> None:
    fake_site.cycle(*down("n1"))
    fake_site.nodes.tick(timedelta(minutes=2))
    settings = fake_site.settings.model_copy(
        update={
            "control": fake_site.settings.control.model_copy(update={"state_folder": str(fake_site.folder / "alice")})
        }
    )
    alice = NodeController(fake_site.live_cluster(), settings, clock=lambda: fake_site.nodes.now)
    protected = replace(fake_site.cycles.remembered(), protected_at=fake_site.nodes.now)
    steer = fake_site.nodes.steer

    def a_cycle_ends_meanwhile(changes: Sequence[Change[str]]) -> list[NodeOutcome]:
        with fake_site.warehouse() as warehouse:
            warehouse.remember("dev", "nodes", protected.to_json(), at=fake_site.nodes.now)
        return steer(changes)

    fake_site.nodes.steer = a_cycle_ends_meanwhile  # type: ignore[method-assign]  # a moment that no test can hit else
    report = alice.release("paused by alice")
    assert report.woken == ("n1",)
    assert fake_site.cycles.remembered().protected
    assert "n1" in fake_site.cycles.remembered().wakes
    assert not (fake_site.folder / "alice" / UNDO_FILE).exists()


def test_without_database_and_undo_file_a_release_says_that_it_knows_nothing(fake_site: FakeNodeSite) -> None:
    fake_site.cycle(*down("n1"))
    (fake_site.folder / "helios.db").write_bytes(b"not a database at all" * 100)
    settings = fake_site.settings.model_copy(
        update={
            "control": fake_site.settings.control.model_copy(update={"state_folder": str(fake_site.folder / "alice")})
        }
    )
    report = NodeController(fake_site.live_cluster(), settings, clock=lambda: fake_site.nodes.now).release(
        "paused by alice"
    )
    assert report.remaining is None
    with pytest.raises(HeliosError, match="not known"):
        summarise_node_release(report)


def test_a_standby_keeps_no_undo_file_from_the_time_when_it_led(fake_site: FakeNodeSite) -> None:
    fake_site.cycle(*down("n1"))
    with fake_site.warehouse() as warehouse:
        ledger, later = warehouse.ledger("dev", domain=Domain.NODES), fake_site.nodes.now + timedelta(hours=1)
        assert ledger.acquire(holder="another", now=later, lasts=timedelta(hours=2)) is not None
    fake_site.nodes.tick(timedelta(hours=1))
    assert not fake_site.cycle().leads
    assert not (fake_site.state / UNDO_FILE).exists()


def test_a_release_says_how_many_nodes_have_their_own_weight_again(fake_site: FakeNodeSite) -> None:
    own = {node: round(fake_site.nodes.weight_of(node)) for node in ("n2", "n3")}
    write_undo(fake_site.state / UNDO_FILE, weights=own)
    for node, weight in own.items():
        fake_site.nodes.admin_sets_weight(node, weight + 1)
    assert "2 given back their weight" in summarise_node_release(fake_site.cycles.release("an admin asked"))


def test_a_daemon_without_a_service_on_nodes_reverts_what_is_on_record(tmp_path: Path) -> None:
    settings = Settings.model_validate({"control": {"state_folder": str(tmp_path)}, "services": {}})
    configuration = LoadedSettings(settings=settings, origins={}, files=())
    assert operations_for(configuration).nodes is None
    write_undo(tmp_path / UNDO_FILE, weights={"n1": 10})
    assert operations_for(configuration).nodes is not None


def test_a_plan_says_why_ces_asks_for_nothing(fake_site: FakeNodeSite) -> None:
    fake_site.cycles.services = {"ces": build("ces", {})}
    fake_site.cycles.expect = lambda snapshot: replace(snapshot, use=a_use({"gpu": 6}, at=snapshot.taken_at))  # type: ignore[method-assign]  # what is counted is not what is tested here
    report = fake_site.cycles.plan(modes={"ces": ACTIVE})
    assert any(
        note.startswith("ces asks for nothing: 0 of 6 nodes of gpu in use, at most 6 in the last 30 min")
        for note in report.notes
    )


def ces_on(fake_site: FakeNodeSite, in_use: int = 3) -> None:
    """Have ces on the fake_site's nodes, of which so many were in use for weeks."""
    fake_site.cycles.services = {"ces": build("ces", {})}
    fake_site.cycles.expect = lambda snapshot: replace(
        snapshot, use=a_use({"gpu": in_use}, nodes=6, at=snapshot.taken_at)
    )  # type: ignore[method-assign]  # what is counted is not what is tested here


def test_the_status_names_the_rule_and_its_reason(fake_site: FakeNodeSite) -> None:
    ces_on(fake_site)
    spare = node_status(fake_site.cycles).spare
    assert spare is not None
    (first, *_) = spare.sentences()
    assert first.startswith("gpu, most in use of the last 30 min and 0 spare nodes: 0.00 % of submissions")


def test_the_status_says_why_the_use_of_nodes_is_unknown(fake_site: FakeNodeSite) -> None:
    def unknown(snapshot: Snapshot) -> Snapshot:
        raise HeliosError("nobody knows", hint="Read more.")

    fake_site.cycles.services = {"ces": build("ces", {})}
    fake_site.cycles.expect = unknown  # type: ignore[method-assign]  # as above
    found = node_status(fake_site.cycles)
    assert found.use_unknown == "nobody knows Read more."
    assert "No node is put to sleep: nobody knows Read more." in list(found.parts())


def test_a_job_that_waits_for_a_boot_counts_as_a_delayed_submission(fake_site: FakeNodeSite) -> None:
    fake_site.nodes.admin_powers_down("n1")
    fake_site.nodes.tick(timedelta(minutes=5))
    for _ in range(6):
        fake_site.nodes.submit(nodes=1)
    for _ in range(2):
        fake_site.cycle()
    ces_on(fake_site)
    status = node_status(fake_site.cycles).spare
    assert status is not None
    assert sum(rule.delayed for rule in status.rules) == 1
