"""The example power programs for Slurm, run as Slurm runs them, on machines that are files."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.story.stand_ins import LINES, PASSWORD, POWER, MachineRoom
from tests.waiting import TEST_TIMEOUT_S, until

WITH_SECRET = [way for way in LINES if way != "cloud"]


@pytest.fixture
def room(tmp_path: Path) -> MachineRoom:
    return MachineRoom(folder=tmp_path)


@pytest.mark.parametrize("way", LINES)
def test_every_back_end_switches_only_what_is_not_so_already(tmp_path: Path, way: str) -> None:
    room = MachineRoom(folder=tmp_path, way=way)
    room.write("leaves/n1", "2\n")
    ran = room.run("off", "--wait", "n1,n2")
    assert (ran.status, room.is_on("n1"), room.is_on("n2"), room.is_on("n3")) == (0, False, False, True), ran.said
    assert "it was off" in room.run("off", "--wait", "n1").said
    assert room.run("state", "n1,n3").said.splitlines().count("n1: off") == 1
    assert room.run("on", "--wait", "n1,n2").status == 0
    assert (room.is_on("n1"), room.is_on("n2")) == (True, True)
    assert "it was on" in room.run("on", "--wait", "n1").said


@pytest.mark.parametrize("way", WITH_SECRET)
def test_the_secret_is_in_no_command_line_environment_or_log(tmp_path: Path, way: str) -> None:
    room = MachineRoom(folder=tmp_path, way=way)
    room.write("password", "another")  # so that it is refused, and said why
    said = room.run("on", "--wait", "n1").said
    room.write("password", PASSWORD)
    said += room.run("off", "--wait", "n1").said
    seen = [said, *(room.read(name) for name in ("argv", "seen", "log", "syslog"))]
    assert all(seen)
    assert not [text for text in seen if PASSWORD in text or PASSWORD.replace("\\", "\\\\") in text]


def test_what_a_tool_repeats_of_the_secret_is_masked(tmp_path: Path) -> None:
    room = MachineRoom(folder=tmp_path, way="ipmitool")
    room.write("password", "another")
    assert room.run("on", "--wait", "n1").status == 1
    assert "Invalid password ***" in room.read("log")


@pytest.mark.parametrize(
    ("way", "mode"),
    [
        *((way, 0o640) for way in WITH_SECRET),
        *((WITH_SECRET[0], mode) for mode in (0o604, 0o644, 0o660, 0o602, 0o700)),
    ],
)
def test_a_secret_that_others_could_read_or_write_is_refused(tmp_path: Path, way: str, mode: int) -> None:
    room = MachineRoom(folder=tmp_path, way=way)
    (tmp_path / "secret").chmod(mode)
    ran = room.run("off", "--wait", "n1")
    assert (ran.status, room.is_on("n1"), room.read("argv")) == (1, True, "")
    assert "its owner alone can read" in room.read("log")


def test_a_secret_of_somebody_else_is_refused(room: MachineRoom) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(room.folder / "secret", 12345, 0)
    assert room.run("off", "--wait", "n1").status == 1
    assert "must belong to" in room.read("log")


def test_a_password_in_the_settings_is_refused(tmp_path: Path) -> None:
    room = MachineRoom(folder=tmp_path, more="password=hunter2")
    assert room.run("off", "--wait", "n1").status == 1
    assert "secret=FILE" in room.read("log")
    assert "hunter2" not in room.read("log") + room.read("seen")


def test_a_password_is_not_sent_without_encryption(tmp_path: Path) -> None:
    room = MachineRoom(folder=tmp_path, way="redfish")
    room.write("power.conf", room.read("power.conf").replace("https:", "http:"))
    assert room.run("off", "--wait", "n1").status == 1
    assert "would show the password" in room.read("log")
    assert room.read("argv") == ""


ELSEWHERE = [
    "https://evil.example/redfish/v1/Systems/1",
    "http://n1-bmc/redfish/v1/Systems/1",
    "https://n1-bmc.evil.example/redfish/v1",
    "https://n1-bmc@evil.example/redfish/v1",
    "@evil.example/redfish/v1",
    ".evil.example/redfish/v1",
    "//evil.example/redfish/v1",
    "/redfish/../../other",
    "/other/v1",
    "/redfish/v1?x=1",
    "file:///etc/passwd",
]


@pytest.mark.parametrize(
    ("way", "target"), [*(("redfish", target) for target in ELSEWHERE), ("redfish session", ELSEWHERE[0])]
)
def test_a_controller_cannot_have_the_password_sent_elsewhere(tmp_path: Path, way: str, target: str) -> None:
    room = MachineRoom(folder=tmp_path, way=way)
    room.write("target", target)
    assert room.run("off", "--wait", "n1").status == 1
    assert room.is_on("n1")
    assert "names an address that is not its own" in room.read("log")
    assert all(line.split()[1].startswith("https://n1-bmc/redfish/v1/") for line in room.read("asked").splitlines())
    assert "POST https://n1-bmc/redfish/v1/Systems" not in room.read("asked")


def test_a_target_that_names_the_controller_itself_is_a_path_there(tmp_path: Path) -> None:
    room = MachineRoom(folder=tmp_path, way="redfish")
    room.write("target", "https://n1-bmc/redfish/v1/Systems/1/Actions/ComputerSystem.Reset")
    assert room.run("off", "--wait", "n1").status == 0
    assert not room.is_on("n1")


def test_a_session_s_token_is_not_sent_elsewhere(tmp_path: Path) -> None:
    room = MachineRoom(folder=tmp_path, way="redfish session")
    room.write("location", "https://evil.example/redfish/v1/SessionService/Sessions")
    assert room.run("off", "--wait", "n1").status == 0
    assert "evil" not in room.read("asked")


def test_curl_speaks_https_alone_without_redirects_or_own_settings(tmp_path: Path) -> None:
    room = MachineRoom(folder=tmp_path, way="redfish")
    assert room.run("off", "--wait", "n1").status == 0
    calls = [line for line in room.read("argv").splitlines() if "curl" in line]
    assert calls
    for call in calls:
        assert "curl -q " in call
        assert "--proto =https " in call and "--max-redirs 0 " in call and "--globoff " in call
        assert "-L" not in call.split() and "--location" not in call


def test_one_node_s_failure_does_not_stop_the_others_and_is_told(room: MachineRoom) -> None:
    room.write("fails/n2", "9\n")
    ran = room.run("off", "--wait", "n1,n2,n3")
    assert ran.status == 1
    assert [room.is_on(node) for node in ("n1", "n2", "n3", "n4")] == [False, True, False, True]
    assert "off n2 failed: ipmipower: n2-bmc: connection timeout (try 1 of 1)" in room.read("log")
    assert "off n2 failed" in room.read("syslog")


def test_a_controller_that_hangs_is_given_up_and_the_others_are_served(room: MachineRoom) -> None:
    room.configure(timeout=5)  # which is enough for n2 also on a busy machine
    room.write("hangs/n1", "")
    ran = room.run("off", "--wait", "n1,n2")
    assert (ran.status, room.is_on("n1"), room.is_on("n2")) == (1, True, False)
    assert "off n1 failed: given up after 5 s" in room.read("log")


def test_what_fails_is_tried_again(room: MachineRoom) -> None:
    room.configure(tries=3)
    room.write("fails/n1", "2\n")
    assert room.run("off", "--wait", "n1").status == 0
    assert "off n1 done: it is off (try 3)" in room.read("log")


def test_slurm_gets_its_answer_while_the_work_goes_on(
    room: MachineRoom,
) -> None:
    room.write("hangs/n1", "")
    started = room.start("n1", program="suspend")
    said, _ = started.communicate(timeout=TEST_TIMEOUT_S)  # returns when nobody holds the output any more
    assert (started.returncode, said) == (0, "")
    until((room.folder / "hung" / "n1").exists)
    with pytest.raises(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)
    (room.folder / "fifo").write_text("go\n")
    until(lambda: "off n1 done" in room.read("log"))
    assert not room.is_on("n1")


def test_it_works_as_slurm_starts_it_with_nothing_open(room: MachineRoom) -> None:
    room.run("-c", 'exec "$0" n1 <&- >&- 2>&-', str(POWER / "suspend"), program="/bin/sh")
    until(lambda: "off n1 done" in room.read("log"))
    assert not room.is_on("n1")


def test_a_node_that_is_wanted_back_while_it_goes_off_comes_back(room: MachineRoom) -> None:
    room.write("hangs/n1", "")
    assert room.run("n1", program="suspend").status == 0
    until((room.folder / "hung" / "n1").exists)
    waking = room.start("on", "--wait", "n1")
    until(lambda: waking.poll() is not None or is_waited_for(room.folder / "state" / "n1.lock"))
    (room.folder / "fifo").write_text("go\n")
    assert "on n1 done" in waking.communicate(timeout=TEST_TIMEOUT_S)[0]
    assert room.is_on("n1")
    assert "off n1 done" in room.read("log")  # it was off in between: a node that Slurm wakes must have booted


def is_waited_for(lock: Path) -> bool:
    """Say whether a process waits for the lock of a file: Linux marks its line with an arrow."""
    return any(
        "->" in line and f":{lock.stat().st_ino} " in line for line in Path("/proc/locks").read_text().splitlines()
    )


def test_an_order_that_is_overtaken_is_not_tried_again(room: MachineRoom) -> None:
    room.configure(tries=3)
    room.write("fails/n1", "1\n")
    room.write("hook", f"#!/bin/sh\necho on 9 >{room.folder}/state/n1.wanted\n", mode=0o755)
    assert room.run("off", "--wait", "n1").status == 0
    assert "off n1 dropped: something newer is wanted of it" in room.read("log")
    assert room.is_on("n1")


def test_a_machine_still_going_off_does_not_count_as_on(room: MachineRoom) -> None:
    room.configure(timeout=1)
    room.write("leaves/n1", "never\n")
    assert room.run("off", "--wait", "n1").status == 1
    room.write("leaving/n1", "3\n")
    room.configure()
    assert "on n1 done: it is on (try 1)" in room.run("on", "--wait", "n1").said
    assert room.is_on("n1")
    assert "--on" in room.read("argv")  # it was seen to be off, and switched on


@pytest.mark.parametrize("way", ["ipmipower", "redfish"])
def test_a_machine_that_ignores_requests_is_forced_off_if_configured(tmp_path: Path, way: str) -> None:
    room = MachineRoom(folder=tmp_path, way=way, more="force=yes grace=0")
    room.write("leaves/n1", "never\n")
    assert room.run("off", "--wait", "n1").status == 0
    assert not room.is_on("n1")


def test_a_node_with_a_job_is_not_switched_off(room: MachineRoom) -> None:
    room.write("jobs/n1", "4711\n")
    assert room.run("off", "--wait", "n1").status == 1
    assert "off n1 refused: job 4711 is there" in room.read("log")
    assert (room.is_on("n1"), room.read("argv")) == (True, "")


def test_a_silent_slurm_stops_switching_off_but_not_on(room: MachineRoom) -> None:
    room.write("no_answer", "")
    room.write("machines/n2", "off\n")
    assert room.run("off", "--wait", "n1").status == 1
    assert room.run("on", "--wait", "n2").status == 0
    assert (room.is_on("n1"), room.is_on("n2")) == (True, True)


def test_a_node_without_a_line_is_told_and_the_others_are_served(room: MachineRoom) -> None:
    ran = room.run("off", "--wait", "n9,n1")
    assert (ran.status, room.is_on("n1")) == (1, False)
    assert "off n9 failed" in room.read("log")


def test_no_more_machines_at_once_than_allowed(room: MachineRoom) -> None:
    room.configure(parallel=2)
    assert room.run("off", "--wait", "n1,n2,n3,n4").status == 0
    assert max(int(line) for line in room.read("at_once").split()) <= 2


def test_a_session_is_given_back_whatever_happens(tmp_path: Path) -> None:
    room = MachineRoom(folder=tmp_path, way="redfish session")
    assert room.run("off", "--wait", "n1").status == 0
    room.write("leaves/n2", "never\n")
    room.configure(timeout=1)
    assert room.run("off", "--wait", "n2").status == 1
    assert not list((tmp_path / "sessions").iterdir())


def test_a_check_asks_no_machine_and_names_what_is_wrong(room: MachineRoom) -> None:
    assert sorted(room.run("check").said.splitlines()) == [f"n{n}: in order" for n in (1, 2, 3, 4)]
    (room.folder / "secret").chmod(0o644)
    ran = room.run("check", "n1")
    assert ran.status == 1
    assert "n1: PROBLEM: the secret" in ran.said
    assert room.read("argv") == ""


@pytest.mark.parametrize("words", [(), ("off",), ("off", "n1", "n2"), ("reboot", "n1")])
def test_misuse_is_said_and_changes_nothing(room: MachineRoom, words: tuple[str, ...]) -> None:
    ran = room.run(*words)
    assert (ran.status, "usage:" in ran.said) == (2, True)


def test_settings_that_cannot_be_read_are_told_to_syslog(room: MachineRoom) -> None:
    room.write("power.conf", f"folder {room.folder / 'state'}\ntries many\n")
    assert room.run("n1", program="suspend").status == 2
    assert "many is not a whole number" in room.read("syslog")


@pytest.mark.parametrize("name", ["parallel", "timeout"])
def test_there_is_always_a_limit(tmp_path: Path, name: str) -> None:
    room = MachineRoom(folder=tmp_path, settings={name: 0})
    assert room.run("off", "--wait", "n1").status == 2
    assert room.is_on("n1")


def test_the_example_of_settings_is_read(room: MachineRoom) -> None:
    lines = (POWER / "power.conf.example").read_text().splitlines()
    room.write("power.conf", "\n".join(line.removeprefix("# ") if "# nodes " in line[:8] else line for line in lines))
    (room.folder / "power.conf").write_text(
        room.read("power.conf").replace("/var/lib/slurm-power", str(room.folder / "state"))
    )
    assert "bmc.secret is not there" in room.run("check", "gpu[01-16]").said


@pytest.mark.parametrize("shell", ["sh", "dash", "bash"])
def test_the_programs_are_plain_shell(shell: str) -> None:
    if not (found := shutil.which(shell)):
        pytest.skip(f"no {shell} here")
    for program in [POWER / "suspend", POWER / "resume", *POWER.glob("*.sh")]:
        subprocess.run([found, "-n", str(program)], check=True)
