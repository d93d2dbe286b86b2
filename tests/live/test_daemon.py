"""The daemon on a real Slurm: it acts, and however it ends, nothing of it is left."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.disks import fill, small_disk
from tests.live.rig import Rig
from tests.story.shell import run_command
from tests.waiting import TEST_TIMEOUT_S

DEPLOY = Path(__file__).parents[2] / "deploy"


class Site:
    """A daemon with an active service on the rig's cluster."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.rig, self.folder = rig, folder
        self.environment = rig.environment | {
            "HELIOS_DATABASE_URL": f"sqlite:///{folder / 'helios.db'}",
            "HELIOS_CONTROL_STATE_FOLDER": str(folder / "state"),
            "HELIOS_HISTORY_START": f"{datetime.now(UTC) - timedelta(hours=1):%Y-%m-%dT%H:%M:%S}",
            "HELIOS_DAEMON_LISTEN": "",
            "HELIOS_DAEMON_CYCLE_S": "5",
            "HELIOS_DAEMON_INGEST_S": "30",
        }
        self.daemon: subprocess.Popen[bytes] | None = None

    def helios(self, *words: str) -> None:
        done = run_command(words, folder=self.folder, environment=self.environment)
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            self.daemon = subprocess.Popen(
                [sys.executable, "-m", "helios", "daemon", "--no-nightly"],
                cwd=self.folder,
                env=self.environment,
                stderr=log,
            )
        return self.daemon

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def until_all_are_set(self) -> None:
        self.rig.until(lambda: (factors := self.rig.site_factors()) and all(factors.values()))

    def end(self) -> None:
        if self.daemon is not None:
            self.daemon.kill()
            self.daemon.wait()


@pytest.fixture
def site(rig: Rig, tmp_path: Path) -> Iterator[Site]:
    """A full cluster, three jobs waiting, and qssf active."""
    made = active(rig, tmp_path)
    yield made
    made.end()


@pytest.fixture
def crowded(rig: Rig, tmp_path: Path) -> Iterator[Site]:
    """The same with all of Helios' files on a small disk, which is full once jobs are set."""
    with small_disk(tmp_path / "disk") as disk:
        made = active(rig, disk)
        made.start()
        made.until_all_are_set()
        fill(disk)
        yield made
        made.end()


def active(rig: Rig, folder: Path) -> Site:
    rig.fill()
    for user in ("alice", "bob", "carol"):
        rig.submit(user=user)
    made = Site(rig, folder)
    made.helios("trace", "sync")
    made.helios("mode", "qssf", "active", "--reason", "a test")
    return made


def test_a_stopped_daemon_leaves_the_cluster_as_if_it_had_never_been(site: Site) -> None:
    daemon = site.start()
    site.until_all_are_set()
    daemon.terminate()
    assert daemon.wait(TEST_TIMEOUT_S) == 0, site.log()
    assert set(site.rig.site_factors().values()) == {0}
    assert "nothing is left" in site.log()


def strangers(rig: Rig) -> tuple[str, str]:
    """Submit a job with a user's --time-min=7, and one whose SiteFactor an admin set to 537."""
    users, admins = rig.submit("--time-min=7", limit="120"), rig.submit(limit="120")
    rig.until(lambda: {users, admins} <= set(rig.site_factors()))
    rig.run("scontrol", "update", f"JobId={admins}", "SiteFactor=537")
    return users, admins


def test_strangers_values_alone_end_a_stop_and_a_pause_with_3(site: Site) -> None:
    users, admins = strangers(site.rig)
    daemon = site.start()
    site.until_all_are_set()
    daemon.terminate()
    assert daemon.wait(TEST_TIMEOUT_S) == 3, site.log()
    paused = run_command(("pause", "--json"), folder=site.folder, environment=site.environment)
    assert paused.returncode == 3, paused.stdout + paused.stderr
    assert admins in json.loads(paused.stdout)["strangers"]
    factors = site.rig.site_factors()
    assert (factors.pop(admins), set(factors.values())) == (537, {0})
    assert site.rig.show_job(users)["TimeMin"] == "00:07:00"


def test_foreign_values_beside_a_hidden_one_end_a_pause_with_1(site: Site) -> None:
    daemon = site.start()
    site.until_all_are_set()
    daemon.send_signal(signal.SIGKILL)
    daemon.wait(TEST_TIMEOUT_S)
    site.rig.run("scontrol", "hold", next(iter(site.rig.site_factors())))
    strangers(site.rig)
    assert run_command(("pause",), folder=site.folder, environment=site.environment).returncode == 1


def test_after_a_killed_daemon_the_script_of_the_unit_takes_everything_back(site: Site) -> None:
    daemon = site.start()
    site.until_all_are_set()
    daemon.send_signal(signal.SIGKILL)
    daemon.wait(TEST_TIMEOUT_S)
    assert all(site.rig.site_factors().values())
    for script in (DEPLOY / "systemd" / "helios-after-crash.sh", DEPLOY / "slurm" / "helios-release.sh"):
        shutil.copy(script, site.folder)
    done = subprocess.run(
        [str(site.folder / "helios-after-crash.sh")],
        env=site.environment | {"SERVICE_RESULT": "signal"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(site.rig.site_factors().values()) == {0}
    assert not (site.folder / "state" / "PAUSED").exists()


def test_a_controller_that_goes_away_and_comes_back_ends_nothing(site: Site) -> None:
    daemon = site.start()
    site.until_all_are_set()
    site.rig.control("stop", "slurmctld")
    site.rig.until(lambda: "Unable to contact" in site.log())
    site.rig.control("start", "slurmctld")
    known = len(site.log())
    # The first cycle after a controller's start only settles; what is written before that may not hold.
    site.rig.until(lambda: "acts again" in site.log()[known:])
    site.until_all_are_set()
    daemon.terminate()
    assert daemon.wait(TEST_TIMEOUT_S) == 0, site.log()
    assert set(site.rig.site_factors().values()) == {0}


STAYS = (
    "job_id", "state", "user", "partition", "gpus", "tasks", "time_limit_s", "source", "run_time_s", "queued",
    "excluded_reason", "remarks",
)  # fmt: skip
"""What is said of a job that does not move on between two questions."""


def said(site: Site, job: str, **environment: str) -> tuple[int, Any, str]:
    """Return the exit status of ``helios why``, what it says, and what it imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "helios", "why", job, "--json"],
        cwd=site.folder,
        env=site.environment | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=TEST_TIMEOUT_S,
    )
    imports, other = [], []
    for line in done.stderr.splitlines():
        (imports if line.startswith("import time:") else other).append(line)
    told = json.loads(done.stdout) if done.returncode == 0 else other
    return done.returncode, told, "\n".join(imports)


def test_the_daemon_answers_why_as_it_is_answered_without_it(site: Site) -> None:
    ended = site.rig.submit(gpus=0, seconds=1, limit="5")
    site.rig.until(lambda: site.rig.lines("sacct", "-n", "-X", "-P", "-j", ended, "-o", "State") == ["COMPLETED"])
    site.helios("trace", "sync")
    running, waiting = (site.rig.lines("squeue", "-h", "-t", state, "-o", "%i")[0] for state in ("R", "PD"))
    site.start()
    site.until_all_are_set()
    for job in (waiting, running, ended, "99999999"):
        answers: list[tuple[int, Any, str]] = []
        # A daemon that is busy for long is not waited for: then the command works it out, too.
        site.rig.until(
            lambda job=job, answers=answers: answers.append(said(site, job)) or "pandas" not in answers[-1][2]
        )
        code, told, imports = answers[-1]
        # Of another setting that no answer depends on: the daemon refuses, and the command works it out.
        code_without, told_without, imports_without = said(site, job, HELIOS_HOOK_MOST_ROWS="77")
        assert "pandas" not in imports and "sqlalchemy" not in imports
        assert "pandas" in imports_without
        if code == 0:
            assert told.keys() == told_without.keys()
            told, told_without = ({name: each[name] for name in STAYS} for each in (told, told_without))
        else:
            told_without = told_without[1:]
        assert (code, told) == (code_without, told_without)


def test_a_pause_on_a_full_disk_reverts_all_and_says_what_lacks(crowded: Site) -> None:
    crowded.end()
    fill(crowded.folder)  # again, as the daemon left room by the files that it removed
    assert all(crowded.rig.site_factors().values())
    done = run_command(("pause", "--reason", "a test"), folder=crowded.folder, environment=crowded.environment)
    assert set(crowded.rig.site_factors().values()) == {0}
    assert done.returncode == 1
    assert "No space left on device" in done.stderr


def test_a_daemon_stopped_on_a_full_disk_reverts_every_job(crowded: Site) -> None:
    assert crowded.daemon is not None
    crowded.daemon.terminate()
    assert crowded.daemon.wait(TEST_TIMEOUT_S) == 0
    assert set(crowded.rig.site_factors().values()) == {0}


def test_a_daemon_obeys_a_pause_file_on_a_full_disk(crowded: Site) -> None:
    (crowded.folder / "state" / "PAUSED").touch()
    crowded.rig.until(lambda: set(crowded.rig.site_factors().values()) == {0})


def test_the_release_script_works_without_room_for_its_own_files(crowded: Site) -> None:
    crowded.end()
    done = subprocess.run(
        [str(DEPLOY / "slurm" / "helios-release.sh"), "--state", str(crowded.folder / "state")],
        env=crowded.environment | {"TMPDIR": str(crowded.folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert set(crowded.rig.site_factors().values()) == {0}
    assert "nothing that Helios is known to have set is left" in done.stdout
