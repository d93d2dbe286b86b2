"""The kill switch that needs no Python, on a real Slurm."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from helios.actions import JobSetting
from helios.slurm.hook_table import HookRow
from helios.slurm.undo_file import JOBS_FILE
from tests.live.hooked import Hooked, hooked, hooked_cluster
from tests.live.meanwhile import Meanwhile
from tests.live.rig import roomy_folder
from tests.waiting import TEST_TIMEOUT_S

__all__ = ["hooked", "hooked_cluster"]

SCRIPT = Path(__file__).parents[2] / "deploy" / "slurm" / "helios-release.sh"
# All that the script may use: Slurm's own commands and what POSIX (and every mktemp) has.
TOOLS = ("sh", "awk", "sed", "sort", "uniq", "head", "tr", "env", "date", "mktemp", "mkdir", "rm", "cp", "mv", "cat")
TOOLS += ("sleep", "ls", "id")
SLURMS = ("squeue", "sprio", "scontrol")
SETPRIV = shutil.which("setpriv") or "setpriv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    status: int
    said: str


@pytest.fixture
def path() -> Iterator[Path]:
    """A PATH on which there is no Python, and that every user can read."""
    folder = roomy_folder()
    for tool in (*TOOLS, *SLURMS):
        found = shutil.which(tool)
        assert found, tool
        (folder / tool).symlink_to(found)
    shutil.copy(SCRIPT, folder / SCRIPT.name)  # another user may not be able to read the repository
    yield folder
    shutil.rmtree(folder)


def release(
    hooked: Hooked, path: Path, *options: str, user: str | None = None, more: Mapping[str, str] | None = None
) -> Ran:
    prefix = [SETPRIV, "--reuid", user, "--regid", user, "--clear-groups"] if user else []
    done = subprocess.run(
        [*prefix, str(path / SCRIPT.name), "--state", str(hooked.state), *options],
        check=False,
        env={"PATH": str(path), "SLURM_CONF": hooked.rig.environment["SLURM_CONF"]} | dict(more or {}),
        capture_output=True,
        text=True,
        timeout=TEST_TIMEOUT_S,
    )
    return Ran(status=done.returncode, said=done.stdout + done.stderr)


def a_job(hooked: Hooked, site_factor: int, *options: str, by_helios: bool = True) -> str:
    job = hooked.rig.submit(*options, limit="600")
    if by_helios and site_factor:
        hooked.wrote(job, site_factor)
    hooked.rig.run("scontrol", "update", f"jobid={job}", f"SiteFactor={site_factor}")
    return job


def a_job_with_minimum(hooked: Hooked, minutes: int, *, by_helios: bool = False) -> str:
    job = hooked.rig.submit(f"--time-min={minutes}", limit="7-00:00:00")
    if by_helios:
        hooked.wrote(job, minutes, JobSetting.SOFT_LIMIT)
    return job


def minimum(hooked: Hooked, job: str) -> str:
    return hooked.rig.show_job(job)["TimeMin"]


def test_what_helios_set_is_taken_back_and_what_others_set_stands(hooked: Hooked, path: Path) -> None:
    boosted, lowered, small, overridden, untouched = jobs = [
        a_job(hooked, n, by_helios=n % 100 == 37 or n == -2537) for n in (4037, -2537, 37, 777, 0)
    ]
    hooked.rig.until(lambda: hooked.rig.site_factors().keys() == set(jobs))
    ran = release(hooked, path)
    assert ran.status == 0, ran.said
    assert hooked.rig.site_factors() == {boosted: 0, lowered: 0, small: 0, overridden: 777, untouched: 0}


@pytest.mark.parametrize("minutes", [7, 17, 67, 1447, 4327])
def test_a_soft_limit_of_helios_is_taken_back(hooked: Hooked, path: Path, minutes: int) -> None:
    job = a_job_with_minimum(hooked, minutes, by_helios=True)
    ran = release(hooked, path)
    assert ran.status == 0, ran.said
    assert minimum(hooked, job) == "N/A"


@pytest.mark.parametrize("minutes", [6, 7, 17, 25, 70, 1440, 1450])
def test_a_users_own_minimum_stands(hooked: Hooked, path: Path, minutes: int) -> None:
    job = a_job_with_minimum(hooked, minutes)
    before = minimum(hooked, job)
    ran = release(hooked, path)
    assert ran.status == 0, ran.said
    assert minimum(hooked, job) == before


def test_helios_is_paused_and_the_hook_has_no_table(hooked: Hooked, path: Path) -> None:
    hooked.publish(HookRow(user="alice", partition="gpu", site_factor=4037))
    assert release(hooked, path).status == 0
    assert (hooked.state / "PAUSED").exists()
    assert (hooked.state / "RELEASED").exists()  # what it reverted is nobody's will: Helios may set it again
    assert not hooked.table.exists()


def test_a_hook_table_elsewhere_is_paused_and_removed_too(hooked: Hooked, path: Path, tmp_path: Path) -> None:
    table = tmp_path / "a folder" / "table"
    table.parent.mkdir()
    table.touch()
    assert release(hooked, path, "--table", str(table)).status == 0
    assert [each.name for each in table.parent.iterdir()] == ["PAUSED"]


def test_a_dry_run_changes_nothing(hooked: Hooked, path: Path) -> None:
    hooked.publish(HookRow(user="bob", partition="gpu", site_factor=4037))
    job, limited = a_job(hooked, 4037), a_job_with_minimum(hooked, 17, by_helios=True)
    ran = release(hooked, path, "--dry-run")
    assert ran.status == 0, ran.said
    assert "would set SiteFactor of 1 pending" in ran.said
    assert "would set TimeMin of 1 pending" in ran.said
    assert (hooked.place_of(job), minimum(hooked, limited)) == (4037, "00:17:00")
    assert hooked.table.exists()
    assert not (hooked.state / "PAUSED").exists()


def test_arrays_and_tasks_split_off_them_are_taken_back(hooked: Hooked, path: Path) -> None:
    array = a_job(hooked, 4037, "--array=0-459%3")
    split = ",".join(f"{array}_{task}" for task in range(450))
    hooked.wrote(array, 137)
    hooked.rig.run("scontrol", "update", f"jobid={split}", "SiteFactor=137")
    # More than fit one call of scontrol.
    hooked.rig.until(lambda: list(hooked.rig.site_factors().values()).count(137) == 450)
    ran = release(hooked, path)
    assert ran.status == 0, ran.said
    assert set(hooked.rig.site_factors().values()) == {0}


def test_components_of_a_heterogeneous_job_are_taken_back(hooked: Hooked, path: Path) -> None:
    words = ["sbatch", "--parsable", "--time=60", "--output=/dev/null", "--mem=100", "--wrap=true", ":", "--mem=100"]
    leader = hooked.rig.run(*words, user="alice").strip()
    for component in (0, 1):
        hooked.wrote(str(int(leader) + component), 4037)
        hooked.rig.run("scontrol", "update", f"jobid={leader}+{component}", "SiteFactor=4037")
    hooked.rig.until(lambda: list(hooked.rig.site_factors().values()) == [4037, 4037])
    ran = release(hooked, path)
    assert ran.status == 0, ran.said
    assert list(hooked.rig.site_factors().values()) == [0, 0]


def test_a_job_of_several_partitions_is_taken_back(hooked: Hooked, path: Path) -> None:
    job = hooked.rig.submit("--partition=gpu,short", limit="60")
    hooked.wrote(job, 4037)
    hooked.rig.run("scontrol", "update", f"jobid={job}", "SiteFactor=4037")
    ran = release(hooked, path)
    assert ran.status == 0, ran.said
    assert hooked.place_of(job) == 0


def test_a_task_that_an_admin_touched_keeps_its_place(hooked: Hooked, path: Path) -> None:
    array = a_job(hooked, 4037, "--array=1-8")
    hooked.rig.run("scontrol", "update", f"jobid={array}_5", "SiteFactor=500")
    hooked.rig.until(lambda: sorted(hooked.rig.site_factors().values()) == [500, 4037])
    ran = release(hooked, path)
    assert ran.status == 0, ran.said
    assert sorted(hooked.rig.site_factors().values()) == [0, 500]


def test_a_marked_value_without_a_record_is_left_and_named(hooked: Hooked, path: Path) -> None:
    job = a_job(hooked, 537, by_helios=False)
    hooked.rig.until(lambda: job in hooked.rig.site_factors())
    ran = release(hooked, path)
    assert ran.status == 3
    assert f"in no record: {job} (SiteFactor=537); not touched" in ran.said
    assert hooked.place_of(job) == 537
    assert release(hooked, path, "--by-mark").status == 0
    assert hooked.place_of(job) == 0


def test_a_place_that_an_admin_sets_while_it_reads_stands(hooked: Hooked, path: Path) -> None:
    theirs, ours = a_job(hooked, 4037), a_job(hooked, 5037)
    hooked.rig.until(lambda: hooked.rig.site_factors() == {theirs: 4037, ours: 5037})
    Meanwhile(path)(lambda: hooked.rig.run("scontrol", "update", f"jobid={theirs}", "SiteFactor=-500"))
    ran = release(hooked, path)
    assert ran.status == 0, ran.said
    assert hooked.rig.site_factors() == {theirs: -500, ours: 0}


HIDING = {"held": ("--hold",), "waits for a time": ("--begin=now+2hours",), "waits for a job": ("--dependency",)}


def hidden_job(hooked: Hooked, how: str, site_factor: int, *, by_helios: bool) -> str:
    options = HIDING[how]
    if options == ("--dependency",):
        options = (f"--dependency=afterany:{hooked.rig.submit()}",)
    return a_job(hooked, site_factor, *options, by_helios=by_helios)


@pytest.mark.parametrize("how", HIDING)
def test_a_hidden_value_of_an_admin_survives(hooked: Hooked, path: Path, how: str) -> None:
    job = hidden_job(hooked, how, 600, by_helios=False)
    before = hooked.rig.show_job(job)["Priority"]
    ran = release(hooked, path, "--hidden")
    assert ran.status == 0, ran.said
    assert hooked.rig.show_job(job)["Priority"] == before


@pytest.mark.parametrize("how", HIDING)
def test_a_hidden_value_of_helios_is_named_and_taken_back_on_demand(hooked: Hooked, path: Path, how: str) -> None:
    job = hidden_job(hooked, how, 4037, by_helios=True)
    before = hooked.rig.show_job(job)["Priority"]
    ran = release(hooked, path)
    assert ran.status == 1
    assert f"{job} (SiteFactor 4037)" in ran.said
    assert hooked.rig.show_job(job)["Priority"] == before
    ran = release(hooked, path, "--hidden")
    assert ran.status == 0, ran.said
    assert f"job {job}: priority {'0' if how == 'held' else '100000'}, was {before}" in ran.said


def test_what_the_hook_wrote_is_taken_back(hooked: Hooked, path: Path) -> None:
    hooked.publish(HookRow(user="alice", partition="gpu", site_factor=4037))
    job = hooked.rig.submit()
    assert hooked.place_of(job) == 4037
    ran = release(hooked, path)
    assert ran.status == 0, ran.said
    assert hooked.place_of(job) == 0


def test_a_job_whose_priority_an_admin_set_meanwhile_keeps_it(hooked: Hooked, path: Path) -> None:
    job = a_job(hooked, 4037)
    hooked.rig.run("scontrol", "update", f"jobid={job}", "Priority=500")
    ran = release(hooked, path)
    assert (ran.status, f"{job} (SiteFactor 4037)" in ran.said) == (1, True), ran.said
    assert hooked.rig.show_job(job)["Priority"] == "500"


def test_it_says_so_where_it_may_not_write(hooked: Hooked, path: Path) -> None:
    job = a_job(hooked, 4037)
    hooked.state.chmod(0o755)
    (hooked.state / JOBS_FILE).chmod(0o644)
    ran = release(hooked, path, user="alice")
    assert ran.status == 1
    assert f"still stand: {job}" in ran.said
    assert "PAUSED cannot be created" in ran.said


@pytest.mark.parametrize("mode", [0o755, 0o750])
def test_it_says_so_where_it_may_not_read_what_helios_wrote(hooked: Hooked, path: Path, mode: int) -> None:
    a_job(hooked, 4037)
    hooked.state.chmod(mode)
    ran = release(hooked, path, user="alice")
    assert ran.status == 1
    assert "jobs.undo was not read" in ran.said


def test_without_an_answer_of_slurm_helios_is_paused_and_failure_told(hooked: Hooked, path: Path) -> None:
    (path / "sprio").unlink()
    (path / "sprio").write_text("#!/bin/sh\necho 'sprio: error: no answer' >&2\nexit 1\n")
    (path / "sprio").chmod(0o755)
    ran = release(hooked, path)
    assert ran.status == 1
    assert "Slurm does not answer" in ran.said
    assert (hooked.state / "PAUSED").exists()


def test_a_tool_that_fails_is_no_proof_that_nothing_is_left(hooked: Hooked, path: Path) -> None:
    a_job(hooked, 4037)
    (path / "awk").unlink()
    (path / "awk").write_text("#!/bin/sh\nexit 1\n")
    (path / "awk").chmod(0o755)
    assert release(hooked, path).status == 1


def test_what_the_caller_has_in_the_environment_does_not_blind_it(hooked: Hooked, path: Path) -> None:
    job = a_job(hooked, 4037)
    blinding = {"SQUEUE_STATES": "R", "SQUEUE_USERS": "bob", "SPRIO_FORMAT": "%Y", "SQUEUE_FORMAT": "%j"}
    ran = release(hooked, path, more=blinding)
    assert ran.status == 0, ran.said
    assert hooked.place_of(job) == 0


def test_it_can_be_said_twice(hooked: Hooked, path: Path) -> None:
    job = a_job(hooked, 4037)
    assert [release(hooked, path).status for _ in range(2)] == [0, 0]
    assert hooked.place_of(job) == 0


def test_a_cluster_without_jobs_is_released(hooked: Hooked, path: Path) -> None:
    assert release(hooked, path).status == 0


@pytest.mark.parametrize(
    "options", [["--stat"], ["--state"], ["now"], ["--wait", "long"], ["--jobs-only", "--nodes-only"]]
)
def test_misuse_does_nothing(hooked: Hooked, path: Path, options: list[str]) -> None:
    hooked.publish(HookRow(user="alice", partition="gpu", site_factor=4037), now=datetime.now(UTC))
    assert release(hooked, path, *options).status == 2
    assert hooked.table.exists()
