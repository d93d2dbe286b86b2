"""The priority hook inside a real slurmctld."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from benchmarks.hook_rate import clocked, script_with_clock
from helios.slurm.hook_table import HookRow, read_table, retract
from helios.warehouse import Warehouse
from tests.builders import a_batch, a_job
from tests.live.hooked import HOUR, ODD_PARTITION, ODD_USER, Hooked, hooked, hooked_cluster, script_for
from tests.story.shell import run_command

__all__ = ["hooked", "hooked_cluster"]

# Of a site that has a script of its own: it calls the hook, and sets a SiteFactor by the job's name.
SITES_OWN = """\
pcall(dofile, "{hook}")
function slurm_job_submit(job_desc, part_list, submit_uid)
    if job_desc.name == "preset" then job_desc.site_factor = 777 end
    if helios_hook then helios_hook.submit(job_desc, part_list, submit_uid) end
    return slurm.SUCCESS
end
function slurm_job_modify() return slurm.SUCCESS end
return slurm.SUCCESS
"""


def alices(site_factor: int = 4037, **more: object) -> HookRow:
    return HookRow(user="alice", partition="gpu", site_factor=site_factor, **more)  # type: ignore[arg-type]  # HookRow's


def test_a_job_has_its_place_from_the_first_moment(hooked: Hooked) -> None:
    hooked.publish(alices(4037))
    job = hooked.rig.submit()
    assert f"JobId={job} InitPrio=104037 " in hooked.log()


def test_a_negative_place_is_a_negative_site_factor(hooked: Hooked) -> None:
    hooked.publish(alices(-2537))
    assert hooked.site_factor() == -2537


def test_a_job_of_an_unknown_user_is_left_alone(hooked: Hooked) -> None:
    hooked.publish(alices(4037))
    assert hooked.site_factor(user="bob") == 0


@pytest.mark.parametrize(
    ("asked", "gpus", "limit_min"),
    [
        ({"gpus": 2, "limit": "60"}, 2, 60),
        ({"gpus": 2, "limit": "2:00:00"}, 2, 120),
        ({"gpus": 4, "limit": "60"}, 4, 60),
        ({"gpus": 0, "limit": "60"}, 0, 60),
        ({"gpus": 2, "limit": "60", "user": "bob"}, 2, 60),
        ({"gpus": 1, "limit": "60", "user": "bob"}, 1, 60),
    ],
)
def test_the_controller_finds_the_row_that_the_table_names(
    hooked: Hooked, asked: dict[str, object], gpus: int, limit_min: int
) -> None:
    hooked.publish(
        alices(137, gpus=2, limit_min=60),
        alices(237, gpus=2),
        alices(337),
        HookRow(partition="gpu", gpus=2, site_factor=437),
    )
    row = read_table(hooked.table, datetime.now(UTC)).row_for(
        user=str(asked.get("user", "alice")), partition="gpu", gpus=gpus, limit_min=limit_min
    )
    assert hooked.site_factor(**asked) == (row.site_factor if row else 0)


@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        (["--gpus=6", "-N2"], 6),
        (["--gpus-per-task=2", "--ntasks=3"], 6),
        (["--gpus-per-node=a100:3", "-N2"], 6),
        (["--gres=gpu:a100:5"], 5),
        (["--gres=gpu"], 1),
        (["--array=0-9", "--gres=gpu:3"], 3),
    ],
)
def test_gpus_are_counted_however_they_are_asked_for(hooked: Hooked, options: list[str], gpus: int) -> None:
    hooked.publish(*(alices(100 * n + 37, gpus=n) for n in range(1, 9)))
    assert hooked.site_factor(*options, gpus=0) == 100 * gpus + 37


def test_gpus_that_only_slurm_can_count_are_looked_up_without_them(hooked: Hooked) -> None:
    hooked.publish(alices(137, gpus=2), alices(237))
    assert hooked.site_factor("--gpus-per-socket=1", "--sockets-per-node=2", "-N1", gpus=0) == 237


def test_a_job_without_partition_goes_by_the_default_one(hooked: Hooked) -> None:
    hooked.publish(alices(4037))
    words = ["sbatch", "--parsable", "--time=60", "--output=/dev/null", "--mem=100", "--wrap=true"]
    job = hooked.rig.run(*words, user="alice").strip()
    assert hooked.place_of(job) == 4037


def test_a_job_without_limit_goes_by_the_partitions_own(hooked: Hooked) -> None:
    hooked.publish(HookRow(user="alice", partition="short", gpus=1, limit_min=30, site_factor=4037))
    words = ["sbatch", "--parsable", "--partition=short", "--output=/dev/null", "--gres=gpu:1", "--wrap=true"]
    job = hooked.rig.run(*words, user="alice").strip()
    assert hooked.place_of(job) == 4037


def test_odd_names_are_found(hooked: Hooked) -> None:
    hooked.publish(HookRow(user=ODD_USER, partition=ODD_PARTITION, site_factor=4037))
    assert hooked.site_factor(user=ODD_USER, partition=ODD_PARTITION) == 4037


def test_a_soft_limit_is_set_with_the_place(hooked: Hooked) -> None:
    hooked.publish(alices(4037, time_min=17))
    assert hooked.rig.show_job(hooked.rig.submit(limit="60"))["TimeMin"] == "00:17:00"


def test_a_users_own_minimum_stands(hooked: Hooked) -> None:
    hooked.publish(alices(4037, time_min=17))
    job = hooked.rig.submit("--time-min=25", limit="60")
    assert hooked.rig.show_job(job)["TimeMin"] == "00:25:00"
    assert hooked.place_of(job) == 4037


def test_a_soft_limit_above_the_limit_does_not_refuse_the_job(hooked: Hooked) -> None:
    hooked.publish(alices(4037, time_min=67))
    assert hooked.rig.show_job(hooked.rig.submit(limit="60"))["TimeMin"] == "N/A"


def test_a_job_submitted_held_is_left_alone(hooked: Hooked) -> None:
    hooked.publish(alices(4037))
    job = hooked.rig.submit("--hold")
    hooked.rig.run("scontrol", "release", job)
    assert hooked.place_of(job) == 0


def test_components_of_a_heterogeneous_job_are_left_alone(hooked: Hooked) -> None:
    hooked.publish(alices(4037))
    words = ["sbatch", "--parsable", "--time=60", "--output=/dev/null", "--mem=100", "--wrap=true", ":", "--mem=100"]
    leader = int(hooked.rig.run(*words, user="alice"))
    assert [hooked.place_of(str(job)) for job in (leader, leader + 1)] == [0, 0]


def test_a_job_in_a_reservation_is_left_alone(hooked: Hooked) -> None:
    hooked.publish(alices(4037))
    asked = ["ReservationName=course", "StartTime=now", "Duration=60", "Users=alice", "Nodes=n1"]
    hooked.rig.run("scontrol", "create", "reservation", *asked)
    try:
        assert hooked.site_factor("--reservation=course") == 0
    finally:
        hooked.rig.empty()
        hooked.rig.run("scontrol", "delete", "ReservationName=course")


def test_an_update_of_a_job_passes_unchanged(hooked: Hooked) -> None:
    job = hooked.rig.submit()
    hooked.publish(alices(4037, time_min=17))
    hooked.rig.run("scontrol", "update", f"jobid={job}", "TimeLimit=30", user="alice")
    shown = hooked.rig.show_job(job)
    assert (shown["TimeLimit"], shown["TimeMin"]) == ("00:30:00", "N/A")
    assert hooked.place_of(job) == 0


def test_a_new_generation_is_noticed_without_reconfiguring(hooked: Hooked) -> None:
    hooked.publish(alices(4037))
    first = hooked.site_factor()
    hooked.publish(alices(-1137))
    assert (first, hooked.site_factor()) == (4037, -1137)


def test_a_retracted_table_is_noticed_at_once(hooked: Hooked) -> None:
    hooked.publish(alices(4037))
    first = hooked.site_factor()
    retract(hooked.table)
    assert (first, hooked.site_factor()) == (4037, 0)


@pytest.mark.parametrize("where", ["PAUSED", "hook/PAUSED"])
def test_a_pause_file_stops_the_hook_and_its_removal_starts_it(hooked: Hooked, where: str) -> None:
    hooked.publish(alices(4037))
    (hooked.state / where).touch()
    paused = hooked.site_factor()
    (hooked.state / where).unlink()
    assert (paused, hooked.site_factor()) == (0, 4037)


def test_a_pause_file_that_cannot_be_opened_stops_the_hook(hooked: Hooked) -> None:
    hooked.publish(alices(4037))
    (hooked.state / "PAUSED").symlink_to("PAUSED")  # a loop: root may open any other file
    assert hooked.site_factor() == 0


def test_a_table_that_expires_is_no_longer_believed(hooked: Hooked) -> None:
    hooked.publish(alices(4037), lasts=timedelta(seconds=4))
    fresh = hooked.site_factor()
    hooked.rig.until(lambda: hooked.site_factor() == 0)
    assert fresh == 4037


def test_a_table_from_the_future_is_not_believed(hooked: Hooked) -> None:
    hooked.publish(alices(4037), now=datetime.now(UTC) + HOUR, lasts=2 * HOUR)
    assert hooked.site_factor() == 0


DAMAGES = {
    "cut in the last line": lambda text: text[:-2],
    "cut in a row": lambda text: text[: len(text) // 2],
    "cut after the first line": lambda text: text.split(b"\n")[0] + b"\n",
    "empty": lambda text: b"",
    "longer than its end": lambda text: text + b"x\n",
    "a digit of a row flipped": lambda text: text.replace(b" 4037 ", b" 9037 "),
    "its expiry flipped": lambda text: re.sub(rb"^(helios-hook 1 \d+ \d+) \d+", rb"\1 9999999999", text),
    "of a later format": lambda text: text.replace(b"helios-hook 1", b"helios-hook 2", 1),
    "prose": lambda text: b"There is no table today.\n" * 3,
    "binary": lambda text: bytes(range(256)) * 50,
    "a header that claims too many rows": lambda text: re.sub(rb"^(\S+ 1 \d+ \d+ \d+) \d+ \d+", rb"\1 9999999 8", text),
    "a header that claims too many bytes": lambda text: re.sub(
        rb"^(\S+ 1 \d+ \d+ \d+ \d+) \d+", rb"\1 99999999999", text
    ),
    "one line of 50 MB": lambda text: b"x" * 50_000_000,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_table_leaves_jobs_as_submitted(hooked: Hooked, damage: str) -> None:
    hooked.publish(alices(4037, time_min=17))
    hooked.table.write_bytes(DAMAGES[damage](hooked.table.read_bytes()))
    job = hooked.rig.submit(limit="60")
    assert hooked.place_of(job) == 0
    assert hooked.rig.show_job(job)["TimeMin"] == "N/A"


@pytest.mark.parametrize("kind", ["folder", "loop", "nothing"])
def test_a_table_that_is_no_file_leaves_jobs_as_submitted(hooked: Hooked, kind: str) -> None:
    retract(hooked.table)
    if kind == "folder":
        hooked.table.mkdir(parents=True)
    elif kind == "loop":
        hooked.table.parent.mkdir(parents=True, exist_ok=True)
        hooked.table.symlink_to(hooked.table)
    try:
        assert hooked.site_factor() == 0
    finally:
        if kind == "folder":
            hooked.table.rmdir()


def test_a_good_table_after_a_damaged_one_is_used(hooked: Hooked) -> None:
    hooked.publish(alices(4037))
    hooked.table.write_bytes(hooked.table.read_bytes()[:-3])
    damaged = hooked.site_factor()
    hooked.publish(alices(4037))
    assert (damaged, hooked.site_factor()) == (0, 4037)


def test_a_lasting_problem_is_logged_once_a_minute(hooked: Hooked) -> None:
    hooked.use(script_for(hooked.table))  # forgets when it logged last
    before = hooked.log().count("helios_hook:")
    began = time.monotonic()
    for _ in range(5):
        hooked.rig.submit()
    minutes = int((time.monotonic() - began) // 60)
    assert 1 <= hooked.log().count("helios_hook:") - before <= 1 + minutes


def test_a_sites_own_script_can_call_the_hook(hooked: Hooked) -> None:
    beside = hooked.state / "helios_hook.lua"
    beside.parent.mkdir(parents=True, exist_ok=True)
    beside.write_text(script_for(hooked.table))
    hooked.publish(alices(4037))
    hooked.use(SITES_OWN.format(hook=beside))
    try:
        assert hooked.site_factor() == 4037
        assert hooked.site_factor(name="preset") == 777
    finally:
        hooked.use(script_for(hooked.table))


def test_a_script_that_fails_inside_submits_the_job_unchanged(hooked: Hooked) -> None:
    hooked.publish(alices(4037))
    hooked.use(script_for(hooked.table).replace("local site, minutes =", "error('broken')\n    local site, minutes ="))
    try:
        assert hooked.site_factor() == 0
    finally:
        hooked.use(script_for(hooked.table))


def test_a_restarted_controller_has_the_hook_at_once(hooked: Hooked) -> None:
    hooked.publish(alices(4037))
    hooked.rig.control("restart", "slurmctld")
    assert hooked.site_factor() == 4037


def test_the_hook_costs_the_controller_little(hooked: Hooked) -> None:
    hooked.publish(
        alices(4037), *(HookRow(user=f"user{n}", partition="gpu", gpus=4, site_factor=137) for n in range(20_000))
    )
    hooked.use(script_with_clock(hooked.table))
    try:
        first_us, each_us = clocked(hooked.rig)
    finally:
        hooked.use(script_for(hooked.table))
    # 26 us and 28 ms were measured; a twentieth of what one sbatch takes, 10 ms, is 500 us.
    assert each_us < 500
    assert first_us < 500_000


class Helios:
    """``helios`` in a shell, on the hooked cluster, with a history of alice's short jobs."""

    def __init__(self, hooked: Hooked, folder: Path) -> None:
        # A place must depend neither on the clock, so the order does not age, nor on a second of the prediction, so the
        # run time lies in the middle of a step of the grid.
        (folder / "asked.toml").write_text('[services.qssf]\nevery_s = 1\norder = "service"\n')
        self.environment = hooked.rig.environment | {
            "HELIOS_CONFIG": str(folder / "asked.toml"),
            "HELIOS_DATABASE_URL": f"sqlite:///{folder / 'helios.db'}",
            "HELIOS_CONTROL_STATE_FOLDER": str(hooked.state),
            "HELIOS_SLURM_BACKEND": "commands",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        }
        now = datetime.now(UTC)
        ran = [
            a_job(job_id=f"past{n}", user="alice", partition="gpu", run_time_s=100.0, submitted_at=now - n * HOUR)
            for n in range(2, 40)
        ]
        with Warehouse.open(self.environment["HELIOS_DATABASE_URL"]) as warehouse:
            warehouse.load([a_batch(*ran)], cluster="dev", path="past", sha256="1", format="sacct", timezone="UTC")
        self.says("trace", "sync")

    def run(self, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
        return run_command(words, folder=Path("/"), environment=self.environment | settings)

    def says(self, *words: str, **settings: str) -> str:
        done = self.run(*words, **settings)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def fails(self, **settings: str) -> set[str]:
        """Return the checks of the doctor that fail, of those about the hook."""
        done = self.run("doctor", "--json", **settings)
        failing = {it["check"] for it in json.loads(done.stdout) if it["verdict"] == "fail"}
        assert done.returncode == bool(failing)
        return failing & {"hook", "priority hook"}


@pytest.fixture
def helios(hooked: Hooked, tmp_path: Path) -> Helios:
    return Helios(hooked, tmp_path)


def test_a_new_job_has_what_the_next_cycle_would_give_it(hooked: Hooked, helios: Helios) -> None:
    helios.says("mode", "qssf", "active", "--reason", "a test")
    helios.says("hook", "--publish", HELIOS_HOOK_PUBLISH="true")
    job = hooked.rig.submit(user="alice")
    at_submission = hooked.place_of(job)
    assert at_submission > 0 and at_submission % 100 == 37
    cycle = json.loads(helios.says("cycle", "--apply", "--json"))
    assert (cycle["acted"], cycle["suspended"]) == (0, [])
    assert hooked.place_of(job) == at_submission
    hooked.publish()
    later = hooked.rig.submit(user="alice")
    assert hooked.place_of(later) == 0
    # A cycle within a second of the last one does not ask the service.
    acted: list[int] = []
    hooked.rig.until(lambda: acted.append(json.loads(helios.says("cycle", "--apply", "--json"))["acted"]) or acted[-1])  # type: ignore[func-returns-value]  # because None goes on
    assert acted[-1] == 1
    assert hooked.place_of(later) == at_submission


def test_the_doctor_fails_while_new_jobs_get_no_place(hooked: Hooked, helios: Helios) -> None:
    publishes = {"HELIOS_HOOK_PUBLISH": "true"}
    assert helios.fails() == set()
    assert "hook.publish is false" in helios.says("mode", "qssf", "active", "--reason", "a test")
    assert helios.fails() == {"hook"}
    assert helios.fails(**publishes) == {"hook"}, "there is no table"
    helios.says("hook", "--publish", **publishes)
    assert helios.fails(**publishes) == set()
    hooked.use("function slurm_job_submit() return slurm.SUCCESS end function slurm_job_modify() return 0 end")
    try:
        assert helios.fails(**publishes) == {"priority hook"}
    finally:
        hooked.use(script_for(hooked.table))
