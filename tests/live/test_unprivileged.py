"""What an account without any privilege can do to Helios on a real Slurm: nothing of docs/threat-model.md.

Everything is tried as ``alice``, who may submit jobs and no more, or by what needs no account at all.
"""

from __future__ import annotations

import email
import email.policy
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from helios.slurm.accounting import SACCT_FIELDS
from helios.warehouse import Warehouse
from tests.live.rig import Rig, roomy_folder
from tests.story.shell import run_command
from tests.waiting import TEST_TIMEOUT_S

RELEASE = Path(__file__).parents[2] / "deploy" / "slurm" / "helios-release.sh"
NAMES = 100
FORGED = 900_000
"""Job ids from here on are in no accounting of this cluster."""
ON_SCREENS = ("\x1b[2J\x1b[31mforged\x1b[0m", "\x1b]0;title\x07", "\x9b31mforged", "[bold red]forged[/]")
"""Names that a terminal or the library that draws on it would follow; each is asked about, which takes a second."""
FEW_FILES = 256
"""Open files that a daemon may have here, so that a small flood would be enough."""


class Service:
    """Helios as an account of its own has it, in a folder that anybody may enter as far as Helios lets them."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.rig, self.folder, self.state = rig, folder, folder / "state"
        self.listen = f"127.0.0.1:{free_port()}"
        self.environment = rig.environment | {
            "HELIOS_DATABASE_URL": f"sqlite:///{folder / 'warehouse' / 'helios.db'}",
            "HELIOS_CONTROL_STATE_FOLDER": str(self.state),
            "HELIOS_REPORT_FOLDER": str(folder / "reports"),
            "HELIOS_SLURM_BACKEND": "commands",
            "HELIOS_DAEMON_LISTEN": self.listen,
            "HELIOS_DAEMON_CYCLE_S": "2",
            "HELIOS_DAEMON_INGEST_S": "30",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        }

    def run(self, *words: str, cwd: Path = Path("/"), **more: str) -> subprocess.CompletedProcess[str]:
        return run_command(words, folder=cwd, environment=self.environment | more, errors="surrogateescape")

    def says(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def daemon(self, ending: ExitStack) -> subprocess.Popen[bytes]:
        """Start a daemon that may open few files; it is killed in the end."""
        log = ending.enter_context((self.folder / "log").open("ab"))
        words = ["prlimit", f"--nofile={FEW_FILES}", sys.executable, "-m", "helios", "daemon", "--no-nightly"]
        started = subprocess.Popen(words, env=self.environment, cwd="/", stderr=log, stdout=log)
        ending.callback(started.wait)
        ending.callback(started.kill)
        return started

    def until_placed(self, job: str, daemon: subprocess.Popen[bytes]) -> None:
        """Wait until a cycle has given a pending job its place; a daemon that ends gives none."""
        self.rig.until(lambda: self.rig.site_factors().get(job) or daemon.poll() is not None)
        assert daemon.poll() is None, (self.folder / "log").read_text()[-3000:]


@pytest.fixture(scope="module")
def installed(cluster: Rig) -> Iterator[Service]:
    """Helios with an active service, after its first cycle."""
    folder = roomy_folder()
    try:
        made = Service(cluster, folder)
        (folder / "warehouse").mkdir(mode=0o750)
        made.says("trace", "sync")
        made.says("mode", "qssf", "active", "--reason", "a test")
        made.says("cycle", "--apply")
        yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def service(rig: Rig, installed: Service) -> Service:
    """The same on a full cluster."""
    rig.fill()
    return installed


def by_alice(rig: Rig, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program as alice."""
    alone = ["setpriv", "--reuid", "alice", "--regid", "alice", "--clear-groups", *words]
    return subprocess.run(alone, env=rig.environment, cwd="/", check=False, capture_output=True, text=True)


def free_port() -> int:
    with closing(socket.socket()) as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])


def address(listen: str) -> tuple[str, int]:
    host, port = listen.split(":")
    return host, int(port)


def test_no_lock_can_be_held_by_another_account(service: Service) -> None:
    locks = sorted(service.state.glob("*.lock"))
    assert locks
    held = [lock.name for lock in locks if by_alice(service.rig, "flock", "-n", str(lock), "true").returncode == 0]
    assert not held


def test_no_file_can_be_read_or_written_by_another_account(service: Service) -> None:
    service.run("nightly")
    service.run("hook", "--publish", HELIOS_HOOK_PUBLISH="true")
    kept = [path for path in service.folder.rglob("*") if path.is_file() and path.name != "log"]
    assert {"helios.db"} < {path.name for path in kept}
    found = by_alice(service.rig, "find", str(service.folder), "-type", "f", "(", "-readable", "-o", "-writable", ")")
    open_ones = {Path(line).name for line in found.stdout.splitlines()} - {"log"}
    assert not open_ones


def test_nothing_can_be_put_into_helios_folders_by_another_account(service: Service) -> None:
    folders = [path for path in service.folder.rglob("*") if path.is_dir()]
    put = [
        str(folder)
        for folder in (service.folder, *folders)
        if by_alice(service.rig, "touch", str(folder / "PAUSED")).returncode == 0
    ]
    assert folders and not put


def test_a_port_that_is_taken_does_not_stop_cycles(service: Service) -> None:
    with ExitStack() as ending:
        squatter = ending.enter_context(closing(socket.socket()))  # whose process it is makes no difference to TCP
        squatter.bind(address(service.listen))
        squatter.listen()
        service.until_placed(service.rig.submit(user="bob"), service.daemon(ending))


def test_a_flood_of_slow_connections_does_not_stop_cycles(service: Service) -> None:
    with ExitStack() as ending:
        daemon = service.daemon(ending)
        service.until_placed(service.rig.submit(user="bob"), daemon)
        for _ in range(FEW_FILES + 50):
            door = ending.enter_context(closing(socket.socket()))
            door.settimeout(0.2)
            try:
                door.connect(address(service.listen))
                door.send(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
            except OSError:
                continue  # refused: that is what is asked for
        service.until_placed(service.rig.submit(user="carol"), daemon)


@pytest.mark.parametrize("target", ["precious", "not there yet"])
def test_the_release_script_follows_no_link_when_root_runs_it(rig: Rig, target: str) -> None:
    folder = roomy_folder()
    try:
        (folder / "precious").write_text("root's own\n")
        state = folder / "state"
        (state / "hook").mkdir(parents=True)
        names = ("PAUSED", "RELEASED", "RELEASED.nodes", "nodes.undo", "nodes.undo.released", "jobs.undo", "hook/table")
        for name in names:
            (state / name).symlink_to(folder / target)
        for path in (state, state / "hook"):
            shutil.chown(path, "alice", "alice")
        words = [str(RELEASE), "--state", str(state), "--wait", "1"]
        subprocess.run(words, env=rig.environment, cwd="/", check=False, capture_output=True, timeout=TEST_TIMEOUT_S)
        assert (folder / "precious").read_text() == "root's own\n"
        assert sorted(path.name for path in folder.iterdir()) == ["precious", "state"]
    finally:
        shutil.rmtree(folder)


def test_a_configuration_in_somebody_s_folder_runs_no_program_of_theirs(service: Service) -> None:
    folder = roomy_folder()
    try:
        for name in ("scontrol", "squeue", "sprio", "sinfo", "sacct", "sacctmgr", "sdiag"):
            (folder / name).write_text(f"#!/bin/sh\necho {name} >>{folder}/ran\n")
            (folder / name).chmod(0o755)
        (folder / "helios.toml").write_text(f'[slurm]\ncommands = "{folder}"\n')
        for path in (folder, *folder.iterdir()):
            shutil.chown(path, "alice", "alice")
        for command in ("doctor", "cycle"):
            service.run(command, cwd=folder)
            assert not (folder / "ran").exists()
    finally:
        shutil.rmtree(folder)


def test_a_variable_that_helios_does_not_know_is_refused(service: Service) -> None:
    done = service.run("mode", HELIOS_DATABASE_ULR="sqlite:////tmp/another.db")
    assert done.returncode == 2 and "HELIOS_DATABASE_ULR" in done.stderr


def crafted_names() -> list[str]:
    """Return names that try to be more than a name, each once."""
    now = int(time.time())
    facts = {"Cluster": "dev", "User": "bob", "Group": "bob", "Account": "vision", "QOS": "normal", "Partition": "gpu"}
    facts |= {"State": "COMPLETED", "ExitCode": "0:0", "Elapsed": "00:00:01", "Timelimit": "01:00:00", "NNodes": "1"}
    facts |= {"Suspended": "00:00:00"}
    facts |= dict.fromkeys(("Submit", "Eligible", "Start"), str(now - 60)) | {"End": str(now - 59)}
    facts |= {"ReqCPUS": "1", "AllocCPUS": "1", "ReqMem": "100M", "ReqTRES": "cpu=1", "AllocTRES": "cpu=1,gres/gpu=8"}

    def record(number: int, names: list[str]) -> str:
        own = facts | {"JobIDRaw": str(FORGED + number), "JobID": str(FORGED + number), "NodeList": "n1"}
        return "|".join(own.get(name, "forged") for name in names)

    fields = SACCT_FIELDS.split(",")
    breaks = ["\n", "\r\n", "\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\x1e0123456789abcdef"]
    rows = [f"x{end}{record(n, fields)}" for n, end in enumerate(breaks)]
    rows += [f"{record(20 + n, fields)}{end}{record(40 + n, fields)}" for n, end in enumerate(breaks)]
    rows += [f"x{end}{'|'.join(fields)}{end}{record(60 + n, fields)}{end}" for n, end in enumerate(breaks)]
    rows += [f"x{end}{FORGED + 80 + n} bob gpu PENDING 0" for n, end in enumerate(breaks)]
    rows += [f"x{end}{FORGED + 100 + n}|100000|9937|0|0|0|0|100000|0|0|" for n, end in enumerate(breaks)]
    others = [
        "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "</td></tr></table><h1>forged", "&lt;b&gt;",
        "\x1b[2J\x1b[31mforged\x1b[0m", "\x1b]0;title\x07", "\x9b31mforged", "[bold red]forged[/]", "[/]", "[link=x]y",
        "x\nBcc: victim@example.org\n\nforged", "x\r\nSubject: forged", "=cmd|' /C calc'!A0", "@SUM(1)", "-1+1", "+1",
        '{"jobs": []}', '"', "'", "\\", "\\n", "%s%n", "{0}", "${HOME}", "$(touch /tmp/forged)", "`id`", "; id", "|",
        "||||", "../../../etc/passwd", "/dev/null", "~root", "a" * 900, "\udcff\udcfe", "\u202eforged", "\u200b",
        "JobId=1 JobName=x", "x JobState=RUNNING Priority=0", "x\nJobId=900200 JobName=y UserId=bob(1001)",
        "helios_suspended 1\nhelios_suspended 0", "# TYPE helios_suspended gauge", "None", "NULL", "nan", "Unknown",
    ]  # fmt: skip
    names = [*rows, *others]
    assert len(set(names)) == len(names) >= NAMES
    return names


def test_no_crafted_job_name_forges_a_row_anywhere(service: Service) -> None:
    names = crafted_names()
    jobs = {service.rig.submit(user="alice", seconds=0, name=name): name for name in names}
    assert len(jobs) == len(names)

    cycle = json.loads(service.says("cycle", "--as", "active", "--json"))
    assert cycle["pending"] == len(jobs)
    assert {row["target"] for row in cycle["decisions"]} <= {*jobs, "dev", None}
    service.says("cycle", "--apply")

    service.rig.empty()
    asked = ("sacct", "-a", "-X", "-n", "-P", "-u", "alice", "-S", "now-1hour", "-o", "JobIDRaw,End")
    service.rig.until(
        lambda: set(jobs) <= {row.split("|")[0] for row in service.rig.lines(*asked) if not row.endswith("|Unknown")},
    )
    service.says("trace", "sync")
    with Warehouse.open(service.environment["HELIOS_DATABASE_URL"]) as warehouse:
        kept = warehouse.jobs("dev")
        rejected = warehouse.rejects("dev")
    assert len(rejected) == 0
    assert not [job for job in kept["job_id"] if int(job) >= FORGED]
    assert not set(kept.loc[kept["job_id"].isin(list(jobs)), "user"]) - {"alice"}
    assert set(jobs) <= set(kept["job_id"])

    service.says("nightly")
    screens = [service.says("why", job) for job, name in jobs.items() if name in ON_SCREENS]
    assert len(screens) == len(ON_SCREENS)
    screens += [service.says("report", *what.split()) for what in ("queue", "usage", "usage --by account", "decisions")]
    control = {chr(code) for code in [*range(32), *range(127, 160)]} - {"\n"}
    assert not control & set("".join(screens))

    for page in service.folder.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not [word for word in ("<script>alert", "<img src=x", "<h1>forged") if word in text], page
    for mail in service.folder.rglob("*.eml"):
        message = email.message_from_bytes(mail.read_bytes(), policy=email.policy.default)
        assert message["Bcc"] is None and "forged" not in str(message["Subject"])
    assert not Path("/tmp/forged").exists()
