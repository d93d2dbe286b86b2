"""Helios as a whole on a real Slurm: what it does, what it leaves alone, and how it is stopped."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pytest

from helios.app.explain import explain
from helios.app.explain_past import JobUnknown
from helios.app.modes import PAUSE_FILE, pause, resume, set_mode
from helios.app.operations import Operations, summarise_release
from helios.changes import CHANGED
from helios.cli.control import scope
from helios.config import Settings
from helios.control import CycleReport, ServiceMode
from helios.errors import ClusterUnavailable, HeliosError, WarehouseUnavailable
from helios.model import Mode
from helios.slurm.hook_table import TABLE, read_table
from helios.warehouse import Warehouse
from tests.builders import a_batch, a_job
from tests.live.meanwhile import Meanwhile
from tests.live.rig import Rig

RELEASE = Path(__file__).parents[2] / "deploy" / "slurm" / "helios-release.sh"


class Helios:
    """Helios on the rig, its history read."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.rig, self.folder, self.state = rig, folder, folder / "state"
        self.url = f"sqlite:///{folder / 'helios.db'}"
        self.operations = self.another()

    def another(self, *, state: str = "state", url: str = "", **sections: dict[str, object]) -> Operations:
        """Return a Desk as another process would have it."""
        plain: dict[str, object] = {
            "database": {"url": url or self.url},
            "slurm": {"backend": "commands"},
            "control": {"state_folder": str(self.folder / state)},
            "history": {"start": f"{datetime.now(UTC) - timedelta(hours=2):%Y-%m-%dT%H:%M:%S}"},
            "services": {"qssf": {"every_s": 1}},
        }
        return Operations(Settings.model_validate(plain | sections))

    def set(self, mode: Mode, **scope: object) -> None:
        now = datetime.now(UTC)
        set_mode(self.url, self.rig.name, "qssf", mode, by="root", reason="a test", now=now, **scope)  # type: ignore[arg-type]  # because the options are named

    def cycle(self, operations: Operations | None = None) -> CycleReport:
        cycles = (operations or self.operations).cycles
        return cycles.cycle(modes=cycles.modes())

    def cycle_that_asks(self, operations: Operations | None = None) -> CycleReport:
        """Take cycles until the service is due again and was asked."""
        reports: list[CycleReport] = []
        self.rig.until(lambda: reports.append(self.cycle(operations)) or reports[-1].counts.get("qssf"))
        return reports[-1]

    def ran_before(self) -> None:
        """Load past jobs of all users, beside which a few seconds of the jobs that run now change no prediction."""
        now = pd.Timestamp(datetime.now(UTC)).floor("s")
        rows = [
            a_job(
                job_id=f"{90_000 + 30 * of + n}",
                user=user,
                run_time_s=run_time_s,
                gpus=gpus,
                time_limit_s=7_200.0,
                submitted_at=now - pd.Timedelta(hours=40 - n),
            )
            for of, (user, gpus, run_time_s) in enumerate(
                (("alice", 8, 5_000.0), ("bob", 1, 300.0), ("carol", 2, 1_200.0))
            )
            for n in range(30)
        ]
        with Warehouse.open(self.url) as warehouse:
            warehouse.load(
                [a_batch(*rows)], cluster=self.rig.name, path="past", sha256="1", format="sacct", timezone="UTC"
            )

    def knows_the_end_of(self, job: str) -> bool:
        """Read the accounting, and say whether the job is known to be over."""
        self.operations.read()
        with Warehouse.open(self.url) as warehouse:
            jobs = warehouse.jobs(self.rig.name)
        return bool((jobs.loc[jobs["job_id"] == job, "state"] == "COMPLETED").any())

    def jobs_set(self) -> int:
        return sum(value != 0 for value in self.rig.site_factors().values())


@pytest.fixture
def meanwhile(tmp_path: Path) -> Meanwhile:
    folder = tmp_path / "commands"
    folder.mkdir()
    return Meanwhile.of_path(folder)


@pytest.fixture
def helios(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Helios]:
    """A full cluster, three jobs of three users waiting, qssf active and nothing done yet."""
    monkeypatch.setenv("SLURM_CONF", rig.environment["SLURM_CONF"])
    rig.fill()
    waiting = [rig.submit(user=user, gpus=gpus, limit="120") for user, gpus in (("alice", 8), ("bob", 1), ("carol", 2))]
    rig.until(lambda: set(waiting) <= set(rig.site_factors()))
    made = Helios(rig, tmp_path)
    made.ran_before()
    made.operations.read()
    made.set(Mode.ACTIVE)
    yield made
    made.operations.cycles.site.close()


def test_an_active_service_moves_jobs_and_what_it_wrote_is_read_back(helios: Helios) -> None:
    report = helios.cycle()
    assert report.suspended == ()
    factors = helios.rig.site_factors()
    done = report.decisions[report.decisions["action"] == "Reorder"]
    assert dict(zip(done["target"], done["after"], strict=True)) == {
        job: f"SiteFactor {value}" for job, value in factors.items() if value
    }
    assert all(abs(value) % 100 == 37 for value in factors.values() if value)


def test_a_shadow_leaves_the_cluster_as_it_is(helios: Helios) -> None:
    helios.set(Mode.SHADOW)
    report = helios.cycle()
    assert {line.split(":")[0] for line in report.decisions["outcome"]} >= {"would"}
    assert helios.jobs_set() == 0


def test_a_canary_of_another_partition_changes_nothing_here(helios: Helios) -> None:
    helios.set(Mode.CANARY, partitions=("debug",))
    helios.cycle()
    assert helios.jobs_set() == 0
    assert "debug" in scope(ServiceMode(mode=Mode.CANARY, partitions=("debug",)))


def test_going_back_to_shadow_takes_back_what_was_set(helios: Helios) -> None:
    helios.cycle()
    assert helios.jobs_set() > 0
    helios.set(Mode.SHADOW)
    helios.cycle()
    assert helios.jobs_set() == 0


def test_a_second_cycle_of_a_quiet_queue_writes_nothing(helios: Helios) -> None:
    first = helios.cycle_that_asks()
    again = helios.cycle_that_asks()
    assert again.acted == 0, (first.suspended, first.counts, again.decisions.to_string())
    assert again.counts["qssf"]["unchanged"] == 3


def test_what_an_admin_sets_stands(helios: Helios) -> None:
    job = next(iter(helios.rig.site_factors()))
    helios.rig.run("scontrol", "update", f"JobId={job}", "SiteFactor=500")
    helios.cycle()
    assert helios.rig.site_factors()[job] == 500
    helios.operations.release("a test")
    assert helios.rig.site_factors()[job] == 500


def test_what_an_admin_sets_while_a_cycle_reads_stands_and_is_named(helios: Helios, meanwhile: Meanwhile) -> None:
    through = helios.another(slurm={"backend": "commands", "commands": str(meanwhile.folder)})
    helios.cycle_that_asks()  # tells which job the next one changes
    job = next(job for job, value in helios.rig.site_factors().items() if value)
    helios.operations.release("a test")
    words = ("scontrol", "update", f"JobId={job}", "SiteFactor=-500")
    meanwhile(lambda: helios.rig.run(*words), before_a_block=True)
    report = helios.cycle_that_asks(through)
    through.cycles.site.close()
    assert helios.rig.site_factors()[job] == -500
    (line,) = report.decisions[report.decisions["target"] == job].to_dict("records")
    assert CHANGED in line["outcome"] and "SiteFactor -500" in line["outcome"]
    with Warehouse.open(helios.url) as warehouse:
        assert job not in set(warehouse.ledger(helios.rig.name).applied_changes()["job_id"])


def test_what_an_admin_sets_while_a_pause_reads_stands(helios: Helios, meanwhile: Meanwhile) -> None:
    helios.cycle()
    job = next(job for job, value in helios.rig.site_factors().items() if value)
    through = helios.another(slurm={"backend": "commands", "commands": str(meanwhile.folder)})
    meanwhile(lambda: helios.rig.run("scontrol", "update", f"JobId={job}", "SiteFactor=-500"))
    assert "nothing is left" in summarise_release(through.release("enough"))
    through.cycles.site.close()
    assert {factor for other, factor in helios.rig.site_factors().items() if other != job} == {0}
    assert helios.rig.site_factors()[job] == -500


def test_an_admin_who_takes_a_job_back_twice_has_it_for_good(helios: Helios) -> None:
    helios.cycle()
    job = max(helios.rig.site_factors().items(), key=lambda item: abs(item[1]))[0]
    for _ in range(2):
        helios.rig.run("scontrol", "update", f"JobId={job}", "SiteFactor=0")
        helios.cycle_that_asks()
    assert helios.rig.site_factors()[job] == 0
    helios.cycle_that_asks()
    assert helios.rig.site_factors()[job] == 0
    assert "theirs" in "\n".join(explain(helios.operations.cycles, job).lines())


def test_the_first_kill_switch_a_command_leaves_nothing(helios: Helios) -> None:
    helios.cycle()
    now = datetime.now(UTC)
    pause(helios.url, helios.rig.name, helios.state, by="root", reason="enough", now=now)
    assert "nothing is left" in summarise_release(helios.another().release("enough"))
    assert helios.jobs_set() == 0
    assert any("enough" in reason for reason in helios.cycle().suspended)
    assert helios.jobs_set() == 0
    resume(helios.url, helios.rig.name, helios.state, now=now)
    helios.cycle_that_asks()
    assert helios.jobs_set() > 0


def test_the_second_kill_switch_a_file_leaves_nothing(helios: Helios) -> None:
    helios.cycle()
    (helios.state / PAUSE_FILE).touch()
    helios.cycle()
    assert helios.jobs_set() == 0


def test_the_file_works_with_the_database_gone(helios: Helios) -> None:
    helios.cycle()
    (helios.state / PAUSE_FILE).touch()
    helios.cycle(helios.another(url=f"sqlite:///{helios.folder}/helios.db/gone.db", history={"start": ""}))
    assert helios.jobs_set() == 0


def test_after_the_shell_script_nothing_is_left_and_helios_stays_paused(helios: Helios) -> None:
    helios.cycle()
    environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "SLURM_CONF": helios.rig.environment["SLURM_CONF"]}
    done = subprocess.run(
        ["sh", str(RELEASE), "--state", str(helios.state)],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert helios.jobs_set() == 0
    assert helios.cycle().suspended != ()
    assert helios.jobs_set() == 0


def by_pause(helios: Helios) -> str:
    now = datetime.now(UTC)
    pause(helios.url, helios.rig.name, helios.state, by="root", reason="enough", now=now)
    with suppress(HeliosError):
        return summarise_release(helios.another().release("enough"))
    return ""


def by_file(helios: Helios) -> str:
    (helios.state / PAUSE_FILE).touch()
    return "; ".join(helios.cycle().suspended)


def by_script(helios: Helios) -> str:
    environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "SLURM_CONF": helios.rig.environment["SLURM_CONF"]}
    words = ["sh", str(RELEASE), "--state", str(helios.state)]
    return subprocess.run(words, env=environment, check=False, capture_output=True, text=True).stdout


@pytest.mark.parametrize("kill", [by_pause, by_file, by_script])
def test_a_kill_switch_leaves_values_of_users_and_admins(helios: Helios, kill: Callable[[Helios], str]) -> None:
    """Issue 13, A1: a user's own --time-min=7 and 17, an admin's place on held, --begin and dependent jobs."""
    rig = helios.rig
    users = [rig.submit(f"--time-min={minutes}", limit="120") for minutes in (7, 17)]
    own = [rig.show_job(job)["TimeMin"] for job in users]
    hidden = {
        rig.submit("--begin=now+2hours", limit="120"): 600,
        rig.submit(f"--dependency=afterany:{users[0]}", limit="120"): 700,
    }
    for job, place in hidden.items():
        rig.run("scontrol", "update", f"JobId={job}", f"SiteFactor={place}")
    held = rig.submit(limit="120")
    rig.run("scontrol", "update", f"JobId={held}", "SiteFactor=500")
    rig.run("scontrol", "hold", held)
    before = {job: rig.show_job(job)["Priority"] for job in hidden}
    helios.cycle()
    kill(helios)
    assert [rig.show_job(job)["TimeMin"] for job in users] == own
    assert {job: rig.show_job(job)["Priority"] for job in hidden} == before
    rig.run("scontrol", "release", held)
    rig.until(lambda: held in rig.site_factors())
    assert rig.site_factors().pop(held) == 500
    assert all(value in (0, 500) for value in rig.site_factors().values())


def test_a_later_cycle_takes_back_what_a_pause_could_not_read(helios: Helios) -> None:
    helios.cycle()
    job = next(job for job, value in helios.rig.site_factors().items() if value)
    helios.rig.run("scontrol", "hold", job)
    now = datetime.now(UTC)
    pause(helios.url, helios.rig.name, helios.state, by="root", reason="enough", now=now)
    with pytest.raises(HeliosError, match=f"Slurm hides whether they still carry what Helios set: {job}"):
        summarise_release(helios.another().release("enough"))
    helios.rig.run("scontrol", "release", job)
    helios.rig.until(lambda: helios.rig.site_factors().get(job))
    helios.cycle()
    assert helios.jobs_set() == 0


def test_what_another_helios_set_is_proved_by_the_database(helios: Helios) -> None:
    helios.cycle()
    assert helios.jobs_set() > 0
    assert "nothing is left" in summarise_release(helios.another(state="elsewhere").release("enough"))
    assert helios.jobs_set() == 0


def test_a_stopped_controller_suspends_helios_which_then_goes_on_by_itself(helios: Helios) -> None:
    helios.cycle()
    helios.rig.control("stop", "slurmctld")
    try:
        assert any("could not be read" in reason for reason in helios.cycle().suspended)
        with pytest.raises(HeliosError):
            summarise_release(helios.operations.release("while it is away"))
    finally:
        helios.rig.control("start", "slurmctld")
    settled = helios.cycle()
    assert any("controller changed" in reason for reason in settled.suspended)
    helios.rig.until(lambda: len(helios.rig.site_factors()) == 3)
    assert helios.cycle().suspended == ()
    assert helios.jobs_set() > 0


def test_a_stopped_database_of_slurm_loses_no_history(helios: Helios) -> None:
    helios.rig.control("stop", "slurmdbd")
    try:
        with pytest.raises(ClusterUnavailable):
            helios.operations.read()
        assert helios.cycle().suspended == ()
    finally:
        helios.rig.control("start", "slurmdbd")
    job = helios.rig.submit(seconds=0, gpus=0)
    ended = ("sacct", "-n", "-X", "-P", "-j", job, "-o", "State")
    helios.rig.until(lambda: helios.rig.run(*ended).strip() == "COMPLETED")
    helios.rig.until(lambda: helios.knows_the_end_of(job))


def test_two_helioses_never_both_write(helios: Helios) -> None:
    helios.cycle()
    other = helios.another(state="elsewhere")
    report = helios.cycle(other)
    assert any("standing by" in reason for reason in report.suspended)
    assert report.acted == 0


def test_a_full_disk_means_that_nothing_is_done(helios: Helios, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = helios.folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], check=False)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        url = f"sqlite:///{disk / 'helios.db'}"
        full = helios.another(url=url)
        full.read()
        now = datetime.now(UTC)
        set_mode(url, helios.rig.name, "qssf", Mode.ACTIVE, by="root", reason="a test", now=now)
        with (disk / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
            while True:
                filler.write(b"x" * 512)
        with suppress(WarehouseUnavailable):
            assert helios.cycle(full).suspended != ()
        assert helios.jobs_set() == 0
        (disk / "filler").unlink()
        helios.cycle_that_asks(full)
        assert helios.jobs_set() > 0
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_why_tells_a_user_place_prediction_and_activity(helios: Helios) -> None:
    helios.cycle()
    job = helios.rig.run("squeue", "-h", "-u", "bob", "-o", "%i").split()[0]
    said = "\n".join(explain(helios.operations.cycles, job).lines())
    assert "Predicted run time" in said
    assert "of 3 in its partition" in said
    assert "Helios has set SiteFactor" in said


def test_why_explains_a_running_job_an_array_and_an_ended_job(helios: Helios) -> None:
    filler = helios.rig.lines("squeue", "-h", "-t", "R", "-o", "%i")[0]
    assert explain(helios.operations.cycles, filler).state == "RUNNING"
    array = helios.rig.submit("--array=1-5")
    assert explain(helios.operations.cycles, array).tasks == 5
    assert explain(helios.operations.cycles, f"{array}_3").tasks == 5
    over = helios.rig.submit(seconds=0, gpus=0)
    helios.rig.until(lambda: over not in helios.rig.run("squeue", "-h", "-t", "PD,R,CG", "-o", "%i").split())
    helios.rig.until(lambda: helios.knows_the_end_of(over))
    assert "It ran" in "\n".join(explain(helios.operations.cycles, over).lines())
    with pytest.raises(JobUnknown, match="99999999"):
        explain(helios.operations.cycles, "99999999")


def test_the_hook_table_comes_from_the_history_and_a_pause_removes_it(helios: Helios) -> None:
    for user in ("alice", "bob"):
        job = helios.rig.submit(seconds=0, gpus=0, user=user)
        helios.rig.until(lambda job=job: helios.knows_the_end_of(job))
    operations = helios.another(hook={"publish": True})
    assert "rows" in operations.publish_hook()
    table = read_table(helios.state / TABLE, datetime.now(UTC))
    assert {row.user for row in table.rows.values()} >= {"alice", "bob", None}
    (helios.state / PAUSE_FILE).touch()
    assert "removed" in operations.publish_hook()
    assert not (helios.state / TABLE).exists()


def test_a_night_reads_learns_and_reports(helios: Helios) -> None:
    night = helios.another(report={"folder": str(helios.folder / "reports")}).night()
    assert night.problems == ()
    assert night.report is not None and night.report.page.exists() and night.report.mail.exists()
    with Warehouse.open(helios.url) as warehouse:
        assert list(warehouse.nodes(helios.rig.name)["gpus"]) == [8, 8, 8, 8]
