"""What stops Helios, with other parts of it down, at a bad moment, or twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from helios.actions import Outcome
from helios.app.controller_state import CycleUnderWay, hold_cycle_lock
from helios.app.modes import PAUSE_FILE, RELEASED_FILE, resume, set_mode
from helios.app.operations import Operations
from helios.changes import Change
from helios.cli.main import application
from helios.control import ServiceMode
from helios.errors import ClusterUnavailable, HeliosError, StrangersLeft, WarehouseUnavailable
from helios.model import Mode
from helios.slurm.hook_table import TABLE
from helios.warehouse import Warehouse
from tests.unit.app.sites import Town

ACTIVE = {"qssf": ServiceMode(mode=Mode.ACTIVE)}


@pytest.fixture
def town(tmp_path: Path) -> Town:
    """Two jobs wait, and Helios has ordered both."""
    town = Town(tmp_path)
    town.learn()
    town.cluster.submit(user="bob")
    town.cluster.submit(user="alice")
    assert town.cycles.cycle(modes=ACTIVE).acted == 2
    return town


def operations(town: Town, **sections: object) -> Operations:
    settings = town.settings.model_validate(town.settings.model_dump() | sections)
    return Operations(settings, open_cluster=lambda _: town.site(), clock=lambda: town.cluster.now)


def jobs_set(town: Town) -> int:
    return sum(town.cluster.site_factor_of(job) != 0 for job in town.cluster.queue)


def set_back_by_hand(town: Town) -> None:
    """Do what helios-release.sh does."""
    for job in town.cluster.queue:
        town.cluster.admin_sets_site_factor(job, 0)


def minutes_pass(town: Town, number: int = 1) -> None:
    town.cluster.tick(timedelta(minutes=number))


def test_a_pause_by_file_works_with_a_damaged_memory(town: Town) -> None:
    with town.warehouse() as warehouse:
        warehouse.remember("dev", "cycle", "{", at=town.cluster.now)
    (town.folder / "state" / PAUSE_FILE).touch()
    town.cycles.cycle(modes=ACTIVE)
    assert jobs_set(town) == 0


def test_a_memory_that_is_unreadable_for_a_moment_is_not_begun_anew(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    with town.warehouse() as warehouse:
        before = warehouse.remembered("dev", "cycle")

    def fails(*_: object) -> str:
        raise WarehouseUnavailable("the connection was lost")

    minutes_pass(town)
    with monkeypatch.context() as patched:
        patched.setattr(Warehouse, "remembered", fails)
        report = town.another().cycle(modes=ACTIVE)
    assert any("connection was lost" in reason for reason in report.suspended)
    with town.warehouse() as warehouse:
        assert warehouse.remembered("dev", "cycle") == before


def test_a_release_removes_jobs_marks_though_the_hooks_table_cannot_be_removed(town: Town) -> None:
    (town.folder / "state" / TABLE).mkdir(parents=True)
    with pytest.raises(HeliosError, match=r"cannot be removed.*2 jobs set back"):
        operations(town).release("enough")
    assert jobs_set(town) == 0


def test_a_hidden_value_is_an_error_and_is_taken_back_on_demand(town: Town) -> None:
    job = town.cluster.queue[0]
    town.cluster.hold(job)
    with pytest.raises(HeliosError, match=f"Slurm hides whether they still carry what Helios set: {job}"):
        operations(town).revert_everything("enough")
    assert jobs_set(town) == 1
    _, _, told = operations(town).revert_everything("enough", hidden=True)
    assert "nothing is left" in told
    assert jobs_set(town) == 0


def strangers(town: Town) -> tuple[str, str]:
    """Submit a job with a user's --time-min=7, and one whose SiteFactor an admin set to 537."""
    users, admins = town.cluster.submit(), town.cluster.submit()
    town.cluster.admin_sets_time_min(users, 7)
    town.cluster.admin_sets_site_factor(admins, 537)
    return users, admins


def test_strangers_values_alone_are_named_left_and_end_a_stop_with_3(town: Town) -> None:
    users, admins = strangers(town)
    with pytest.raises(StrangersLeft, match=f"bear Helios' mark and are in no record: {users}, {admins}; not") as left:
        operations(town).release_on_stop("SIGTERM")
    assert left.value.exit_code == 3
    assert (town.cluster.time_min_of(users), town.cluster.site_factor_of(admins)) == (7, 537)
    assert jobs_set(town) == 1


def test_strangers_values_beside_helios_own_end_a_stop_with_1(town: Town) -> None:
    town.cluster.hold(town.cluster.queue[0])
    strangers(town)
    with pytest.raises(HeliosError, match="in no record") as left:
        operations(town).release_on_stop("SIGTERM")
    assert left.value.exit_code == 1


def test_without_the_database_no_value_is_known_to_be_a_strangers(town: Town) -> None:
    strangers(town)
    lost = {"url": f"sqlite:///{town.folder}/state/identity/gone.db"}
    with pytest.raises(HeliosError, match="in no record") as left:
        operations(town, database=lost).release_on_stop("SIGTERM")
    assert left.value.exit_code == 1


def test_a_release_needs_no_service_with_options_that_can_be_used(town: Town) -> None:
    operations(town, services={"qssf": {"no_such_option": 1}}).release("enough")
    assert jobs_set(town) == 0


def test_no_cycle_of_this_machine_runs_beside_a_release(town: Town) -> None:
    apply, refused = town.cluster.apply, []

    def apply_and_try(changes: Sequence[Change[float]]) -> list[Outcome]:
        with pytest.raises(CycleUnderWay), hold_cycle_lock(town.folder / "state"):
            pass
        refused.append(True)
        return apply(changes)

    town.cluster.apply = apply_and_try  # type: ignore[method-assign]
    town.cycles.release("enough")
    assert refused


def test_a_release_does_not_wait_for_ever_for_a_cycle(town: Town) -> None:
    hasty = town.another(slurm={"timeout_s": 0.01})
    with hold_cycle_lock(town.folder / "state"):
        report = hasty.release("enough")
    assert jobs_set(town) == 0
    assert any("under way" in note for note in report.notes)


def test_a_pause_in_the_middle_of_a_cycle_stops_it(town: Town) -> None:
    late = [town.cluster.submit(user=user) for user in ("alice", "bob")]
    decide = town.cycles.services["qssf"].decide

    def decide_slowly(snapshot: object) -> object:
        (town.folder / "state" / PAUSE_FILE).touch()
        return decide(snapshot)  # type: ignore[arg-type]

    town.cycles.services["qssf"].decide = decide_slowly  # type: ignore[method-assign, assignment]
    minutes_pass(town, 10)
    town.read()
    report = town.cycles.cycle(modes=ACTIVE)
    assert any("broken off: paused" in note for note in report.notes)
    assert [town.cluster.site_factor_of(job) for job in late] == [0, 0]


def by_shell_script(town: Town) -> None:
    set_back_by_hand(town)
    (town.folder / "state" / RELEASED_FILE).touch()


def by_another_helios(town: Town) -> None:
    assert town.another(control={"state_folder": str(town.folder / "elsewhere")}).release("a test").clean


def by_shell_script_and_resume(town: Town) -> None:
    set_back_by_hand(town)
    resume(town.url, "dev", town.folder / "state", now=town.cluster.now)


@pytest.mark.parametrize("kill", [by_shell_script, by_another_helios, by_shell_script_and_resume])
def test_kill_switches_do_not_make_helios_keep_off_jobs_for_good(town: Town, kill: Callable[[Town], None]) -> None:
    for _ in range(3):
        kill(town)
        assert jobs_set(town) == 0
        for _ in range(3):
            minutes_pass(town, 10)
            town.read()
            report = town.another().cycle(modes=ACTIVE)
            assert report.suspended == ()
        assert jobs_set(town) == 2
    with town.warehouse() as warehouse:
        assert "HandsOff" not in set(warehouse.decisions("dev")["action"])


def test_a_standby_that_ends_before_its_first_cycle_leaves_the_leaders_jobs(town: Town) -> None:
    standby = operations(town, control={"state_folder": str(town.folder / "elsewhere")})
    assert "another Helios" in standby.release_on_stop("SIGTERM")
    assert jobs_set(town) == 2


def test_whose_lease_ran_out_is_no_longer_the_leader(town: Town) -> None:
    minutes_pass(town, 60)
    standby = operations(town, control={"state_folder": str(town.folder / "elsewhere")})
    assert "nothing is left" in standby.release_on_stop("SIGTERM")
    assert jobs_set(town) == 0


def test_a_standby_writes_no_cycle_down_for_the_reports(town: Town) -> None:
    town.another(control={"state_folder": str(town.folder / "elsewhere")}).cycle(modes=ACTIVE)
    with town.warehouse() as warehouse:
        assert list(warehouse.cycles("dev")["pending"]) == [2]


def pause_command(monkeypatch: pytest.MonkeyPatch, state: Path, url: str) -> str:
    def away(_: object) -> None:
        raise ClusterUnavailable("the controller is away")

    monkeypatch.setenv("HELIOS_DATABASE_URL", url)
    monkeypatch.setenv("HELIOS_CONTROL_STATE_FOLDER", str(state))
    monkeypatch.setattr(Operations.__init__, "__kwdefaults__", Operations.__init__.__kwdefaults__ | {"opens": away})
    result = CliRunner().invoke(application, ["pause", "--reason", "enough"])
    assert result.exit_code != 0
    return f"{result.output} {result.exception}"


@pytest.mark.parametrize("clusters", [0, 2], ids=["warehouse gone", "several clusters"])
def test_a_pause_is_recorded_with_the_cluster_away_and_its_name_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clusters: int
) -> None:
    url = f"sqlite:///{tmp_path}/helios.db" if clusters else f"sqlite:///{tmp_path}/no/helios.db"
    (tmp_path / "no").touch()
    for name in ("venus", "earth")[:clusters]:
        set_mode(url, name, "qssf", Mode.SHADOW, by="root", reason="", now=Town(tmp_path).cluster.now)
    said = pause_command(monkeypatch, tmp_path / "state", url)
    assert (tmp_path / "state" / PAUSE_FILE).exists()
    assert "is paused" in said


@pytest.mark.parametrize("there", [True, False])
def test_a_pause_without_a_database_reaches_the_daemon_of_the_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    (tmp_path / "no").touch()
    beside = tmp_path / "state-power"
    beside.mkdir()
    if not there:  # as of another user
        monkeypatch.setattr("helios.cli.control._pause_nodes_daemon", lambda *_, **__: False)
    said = pause_command(monkeypatch, tmp_path / "state", f"sqlite:///{tmp_path}/no/helios.db")
    assert (beside / PAUSE_FILE).exists() is there
    assert (f"touch {beside / PAUSE_FILE}" in " ".join(said.split())) is not there


def test_a_resume_ends_the_pause_that_the_script_left(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    left = town.folder / "state-power" / PAUSE_FILE
    left.parent.mkdir()
    left.touch()
    monkeypatch.setenv("HELIOS_DATABASE_URL", town.settings.database.url)
    monkeypatch.setenv("HELIOS_CONTROL_STATE_FOLDER", town.settings.control.state_folder)
    assert CliRunner().invoke(application, ["resume", "--cluster", "dev"]).exit_code == 0
    assert not left.exists()
