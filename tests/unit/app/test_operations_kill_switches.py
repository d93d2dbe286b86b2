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
from tests.unit.app.sites import FakeSite

ACTIVE = {"qssf": ServiceMode(mode=Mode.ACTIVE)}


@pytest.fixture
def fake_site(tmp_path: Path) -> FakeSite:
    """Two jobs wait, and Helios has ordered both."""
    fake_site = FakeSite(tmp_path)
    fake_site.learn()
    fake_site.cluster.submit(user="bob")
    fake_site.cluster.submit(user="alice")
    assert fake_site.cycles.cycle(modes=ACTIVE).acted == 2
    return fake_site


def operations(fake_site: FakeSite, **sections: object) -> Operations:
    settings = fake_site.settings.model_validate(fake_site.settings.model_dump() | sections)
    return Operations(settings, open_cluster=lambda _: fake_site.live_cluster(), clock=lambda: fake_site.cluster.now)


def jobs_set(fake_site: FakeSite) -> int:
    return sum(fake_site.cluster.site_factor_of(job) != 0 for job in fake_site.cluster.queue)


def set_back_by_hand(fake_site: FakeSite) -> None:
    """Do what helios-release.sh does."""
    for job in fake_site.cluster.queue:
        fake_site.cluster.admin_sets_site_factor(job, 0)


def minutes_pass(fake_site: FakeSite, number: int = 1) -> None:
    fake_site.cluster.tick(timedelta(minutes=number))


def test_a_pause_by_file_works_with_a_damaged_memory(fake_site: FakeSite) -> None:
    with fake_site.warehouse() as warehouse:
        warehouse.remember("dev", "cycle", "{", at=fake_site.cluster.now)
    (fake_site.folder / "state" / PAUSE_FILE).touch()
    fake_site.cycles.cycle(modes=ACTIVE)
    assert jobs_set(fake_site) == 0


def test_a_memory_that_is_unreadable_for_a_moment_is_not_begun_anew(
    fake_site: FakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_site.warehouse() as warehouse:
        before = warehouse.remembered("dev", "cycle")

    def fails(*_: object) -> str:
        raise WarehouseUnavailable("the connection was lost")

    minutes_pass(fake_site)
    with monkeypatch.context() as patched:
        patched.setattr(Warehouse, "remembered", fails)
        report = fake_site.another().cycle(modes=ACTIVE)
    assert any("connection was lost" in reason for reason in report.suspended)
    with fake_site.warehouse() as warehouse:
        assert warehouse.remembered("dev", "cycle") == before


def test_a_release_removes_jobs_marks_though_the_hooks_table_cannot_be_removed(fake_site: FakeSite) -> None:
    (fake_site.folder / "state" / TABLE).mkdir(parents=True)
    with pytest.raises(HeliosError, match=r"cannot be removed.*2 jobs set back"):
        operations(fake_site).release("enough")
    assert jobs_set(fake_site) == 0


def test_a_hidden_value_is_an_error_and_is_taken_back_on_demand(fake_site: FakeSite) -> None:
    job = fake_site.cluster.queue[0]
    fake_site.cluster.hold(job)
    with pytest.raises(HeliosError, match=f"Slurm hides whether they still carry what Helios set: {job}"):
        operations(fake_site).revert_everything("enough")
    assert jobs_set(fake_site) == 1
    _, _, told = operations(fake_site).revert_everything("enough", hidden=True)
    assert "nothing is left" in told
    assert jobs_set(fake_site) == 0


def strangers(fake_site: FakeSite) -> tuple[str, str]:
    """Submit a job with a user's --time-min=7, and one whose SiteFactor an admin set to 537."""
    users, admins = fake_site.cluster.submit(), fake_site.cluster.submit()
    fake_site.cluster.admin_sets_time_min(users, 7)
    fake_site.cluster.admin_sets_site_factor(admins, 537)
    return users, admins


def test_strangers_values_alone_are_named_left_and_end_a_stop_with_3(fake_site: FakeSite) -> None:
    users, admins = strangers(fake_site)
    with pytest.raises(StrangersLeft, match=f"bear Helios' mark and are in no record: {users}, {admins}; not") as left:
        operations(fake_site).release_on_stop("SIGTERM")
    assert left.value.exit_code == 3
    assert (fake_site.cluster.time_min_of(users), fake_site.cluster.site_factor_of(admins)) == (7, 537)
    assert jobs_set(fake_site) == 1


def test_strangers_values_beside_helios_own_end_a_stop_with_1(fake_site: FakeSite) -> None:
    fake_site.cluster.hold(fake_site.cluster.queue[0])
    strangers(fake_site)
    with pytest.raises(HeliosError, match="in no record") as left:
        operations(fake_site).release_on_stop("SIGTERM")
    assert left.value.exit_code == 1


def test_without_the_database_no_value_is_known_to_be_a_strangers(fake_site: FakeSite) -> None:
    strangers(fake_site)
    lost = {"url": f"sqlite:///{fake_site.folder}/state/identity/gone.db"}
    with pytest.raises(HeliosError, match="in no record") as left:
        operations(fake_site, database=lost).release_on_stop("SIGTERM")
    assert left.value.exit_code == 1


def test_a_release_needs_no_service_with_options_that_can_be_used(fake_site: FakeSite) -> None:
    operations(fake_site, services={"qssf": {"no_such_option": 1}}).release("enough")
    assert jobs_set(fake_site) == 0


def test_no_cycle_of_this_machine_runs_beside_a_release(fake_site: FakeSite) -> None:
    apply, refused = fake_site.cluster.apply, []

    def apply_and_try(changes: Sequence[Change[float]]) -> list[Outcome]:
        with pytest.raises(CycleUnderWay), hold_cycle_lock(fake_site.folder / "state"):
            pass
        refused.append(True)
        return apply(changes)

    fake_site.cluster.apply = apply_and_try  # type: ignore[method-assign]
    fake_site.cycles.release("enough")
    assert refused


def test_a_release_does_not_wait_for_ever_for_a_cycle(fake_site: FakeSite) -> None:
    hasty = fake_site.another(slurm={"timeout_s": 0.01})
    with hold_cycle_lock(fake_site.folder / "state"):
        report = hasty.release("enough")
    assert jobs_set(fake_site) == 0
    assert any("under way" in note for note in report.notes)


def test_a_pause_in_the_middle_of_a_cycle_stops_it(fake_site: FakeSite) -> None:
    late = [fake_site.cluster.submit(user=user) for user in ("alice", "bob")]
    decide = fake_site.cycles.services["qssf"].decide

    def decide_slowly(snapshot: object) -> object:
        (fake_site.folder / "state" / PAUSE_FILE).touch()
        return decide(snapshot)  # type: ignore[arg-type]

    fake_site.cycles.services["qssf"].decide = decide_slowly  # type: ignore[method-assign, assignment]
    minutes_pass(fake_site, 10)
    fake_site.read()
    report = fake_site.cycles.cycle(modes=ACTIVE)
    assert any("broken off: paused" in note for note in report.notes)
    assert [fake_site.cluster.site_factor_of(job) for job in late] == [0, 0]


def by_shell_script(fake_site: FakeSite) -> None:
    set_back_by_hand(fake_site)
    (fake_site.folder / "state" / RELEASED_FILE).touch()


def by_another_helios(fake_site: FakeSite) -> None:
    assert fake_site.another(control={"state_folder": str(fake_site.folder / "elsewhere")}).release("a test").clean


def by_shell_script_and_resume(fake_site: FakeSite) -> None:
    set_back_by_hand(fake_site)
    resume(fake_site.url, "dev", fake_site.folder / "state", now=fake_site.cluster.now)


@pytest.mark.parametrize("kill", [by_shell_script, by_another_helios, by_shell_script_and_resume])
def test_kill_switches_do_not_make_helios_keep_off_jobs_for_good(
    fake_site: FakeSite, kill: Callable[[FakeSite], None]
) -> None:
    for _ in range(3):
        kill(fake_site)
        assert jobs_set(fake_site) == 0
        for _ in range(3):
            minutes_pass(fake_site, 10)
            fake_site.read()
            report = fake_site.another().cycle(modes=ACTIVE)
            assert report.suspended == ()
        assert jobs_set(fake_site) == 2
    with fake_site.warehouse() as warehouse:
        assert "HandsOff" not in set(warehouse.decisions("dev")["action"])


def test_a_standby_that_ends_before_its_first_cycle_leaves_the_leaders_jobs(fake_site: FakeSite) -> None:
    standby = operations(fake_site, control={"state_folder": str(fake_site.folder / "elsewhere")})
    assert "another Helios" in standby.release_on_stop("SIGTERM")
    assert jobs_set(fake_site) == 2


def test_whose_lease_ran_out_is_no_longer_the_leader(fake_site: FakeSite) -> None:
    minutes_pass(fake_site, 60)
    standby = operations(fake_site, control={"state_folder": str(fake_site.folder / "elsewhere")})
    assert "nothing is left" in standby.release_on_stop("SIGTERM")
    assert jobs_set(fake_site) == 0


def test_a_standby_writes_no_cycle_down_for_the_reports(fake_site: FakeSite) -> None:
    fake_site.another(control={"state_folder": str(fake_site.folder / "elsewhere")}).cycle(modes=ACTIVE)
    with fake_site.warehouse() as warehouse:
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
        set_mode(url, name, "qssf", Mode.SHADOW, by="root", reason="", now=FakeSite(tmp_path).cluster.now)
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


def test_a_resume_ends_the_pause_that_the_script_left(fake_site: FakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    left = fake_site.folder / "state-power" / PAUSE_FILE
    left.parent.mkdir()
    left.touch()
    monkeypatch.setenv("HELIOS_DATABASE_URL", fake_site.settings.database.url)
    monkeypatch.setenv("HELIOS_CONTROL_STATE_FOLDER", fake_site.settings.control.state_folder)
    assert CliRunner().invoke(application, ["resume", "--cluster", "dev"]).exit_code == 0
    assert not left.exists()
