"""Trials in real containers of Charliecloud, as an account without privileges.

The account may read every file, since the tests' Python may be in a folder that only root enters; it has no other
capability. The image is a root file system of debootstrap, kept as an archive from session to session.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from helios.errors import UsageError
from helios.training.pool.containers import find_container
from helios.training.pool.sweep_file import read_training_sweep
from tests.live.rig import roomy_folder
from tests.reaper import REAPER
from tests.waiting import TEST_TIMEOUT_S, until

ACCOUNT = 42_424
"""Of nobody."""
AS_ACCOUNT = (
    "setpriv",
    f"--reuid={ACCOUNT}",
    f"--regid={ACCOUNT}",
    "--clear-groups",
    "--inh-caps=-all,+dac_read_search",
    "--ambient-caps=-all,+dac_read_search",
)
UNNEEDED = ("var/cache/apt", "var/lib/apt", "usr/share/doc", "usr/share/locale", "usr/share/man")

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="debootstrap and another account need root"),
    *(
        pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} is not here")
        for name in ("ch-run", "debootstrap", "setpriv")
    ),
]


@pytest.fixture(scope="module")
def archive() -> Path:
    """A root file system of Debian with Python, as an archive."""
    kept = Path.home() / ".cache" / "helios-devcluster" / "container.tar"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        root = roomy_folder() / "root"
        asked = ["--format", "$(CODENAME) $(SITE)", "Created-By: Packages", "Origin: Debian"]
        listed = subprocess.run(["apt-get", "indextargets", *asked], capture_output=True, text=True, check=False)
        releases = [line.split() for line in listed.stdout.splitlines() if "-" not in line.split()[0]]
        if not releases:
            pytest.skip("this is no Debian")
        suite, mirror = releases[0]
        options = ["--foreign", "--variant=minbase", "--include=python3"]
        made = subprocess.run(
            ["unshare", "--mount", "debootstrap", *options, suite, str(root), mirror],
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            pytest.skip(f"debootstrap failed: {made.stdout[-500:]}")
        # Unpacked is enough, and takes half the time of a system that is configured.
        for package in root.glob("var/cache/apt/archives/*.deb"):
            unpack = f"dpkg-deb --fsys-tarfile {package} | tar --extract --keep-directory-symlink --directory={root}"
            subprocess.run(["sh", "-c", unpack], check=True)
        (root / "proc").unlink(missing_ok=True)
        (root / "proc").mkdir()
        for name in ("passwd", "group"):
            (root / "etc" / name).touch()
        for name in UNNEEDED:
            shutil.rmtree(root / name, ignore_errors=True)
        part = kept.with_suffix(".part")
        subprocess.run(["tar", "--create", f"--file={part}", f"--directory={root}", "."], check=True)
        part.rename(kept)
        shutil.rmtree(root)
    return kept


@pytest.fixture(scope="module")
def image(archive: Path) -> Path:
    """The same as a folder of the account."""
    root = roomy_folder() / "image"
    root.mkdir()
    subprocess.run(["tar", "--extract", f"--file={archive}", f"--directory={root}", "--exclude=./dev/*"], check=True)
    subprocess.run(["chown", "-R", f"{ACCOUNT}:{ACCOUNT}", str(root)], check=True)
    words = [*AS_ACCOUNT, "env", "USER=nobody", "ch-run", str(root), "--", "true"]
    tried = subprocess.run(words, capture_output=True, text=True, check=False, cwd="/")
    if tried.returncode:
        pytest.skip(f"an account may not start containers here: {tried.stderr}")
    return root


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of the account, from which every process is gone in the end."""
    made = roomy_folder()
    os.chown(made, ACCOUNT, ACCOUNT)
    yield made
    until(lambda: not processes())


def processes() -> list[str]:
    """What runs as the account."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.uids().real == ACCOUNT and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline())[:200])
        except psutil.Error:
            continue
    return found


PROGRAM = """
import json, os, sys
told = {"x": float(sys.argv[1]), "server": os.getppid(), "uid": os.getuid(), "names": len(os.environ),
        "outside": float("OUTSIDE" in os.environ), "inside": float(os.path.exists("/etc/debian_version")),
        "imported": float("decimal" in sys.modules)}
with open(os.environ["HELIOS_REPORT"], "a") as file:
    file.write(json.dumps(told) + "\\n")
with open(os.path.join(os.environ["HELIOS_CHECKPOINTS"], "done"), "w") as file:
    file.write(sys.argv[1])
"""


def write_sweep(
    folder: Path, image: Path | str, *, program: str = PROGRAM, values: Sequence[Any] = (1, 2, 3, 4), runtime: str = ""
) -> Path:
    (folder / "program.py").write_text(program)
    path = folder / "sweep.toml"
    chosen = f', runtime = "{runtime}"' if runtime else ""
    path.write_text(
        f'command = "python3 program.py {{x}}"\ncontainer = {{ image = "{image}"{chosen} }}\n'
        f"[parameters]\nx = {json.dumps(list(values))}\n"
    )
    return path


def start(sweep: Path, *words: str, user: Sequence[str] = AS_ACCOUNT, **more: str) -> subprocess.Popen[str]:
    command = [*user, sys.executable, "-m", "helios", "pool", "run", str(sweep), "--slots", "2", "--json", *words]
    environment = {**os.environ, "OUTSIDE": "1", "TMPDIR": str(sweep.parent), **more}
    return subprocess.Popen(
        command, cwd="/", env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run(sweep: Path, *words: str, user: Sequence[str] = AS_ACCOUNT, **more: str) -> dict[str, Any]:
    out, errors = start(sweep, *words, user=user, **more).communicate(timeout=TEST_TIMEOUT_S)
    assert out, errors
    result: dict[str, Any] = json.loads(out)
    return result


def test_trials_run_one_after_another_in_few_containers(image: Path, folder: Path) -> None:
    trials = run(write_sweep(folder, image, runtime="charliecloud"))["trials"]
    assert [trial["state"] for trial in trials] == ["finished"] * 4
    reports = [trial["metrics"] for trial in trials]
    assert [report["x"] for report in reports] == [1, 2, 3, 4]
    assert {(report["inside"], report["outside"], report["uid"]) for report in reports} == {(1, 0, ACCOUNT)}
    assert len({report["server"] for report in reports}) <= 2
    assert (folder / "sweep.pool/trials/00003/checkpoints/done").read_text() == "4"


def test_a_module_is_imported_once_in_each_container(image: Path, folder: Path) -> None:
    trials = run(write_sweep(folder, image, runtime="charliecloud"), "--warm", "decimal")["trials"]
    assert [trial["metrics"]["imported"] for trial in trials] == [1, 1, 1, 1]
    assert len({trial["metrics"]["server"] for trial in trials}) <= 2


def test_sweeps_of_one_pool_have_containers_of_their_own(image: Path, folder: Path) -> None:
    sweep = write_sweep(folder, image, runtime="charliecloud")
    other = folder / "other.toml"
    other.write_text(sweep.read_text().replace("x = [1, 2, 3, 4]", "x = [5, 6, 7]"))
    answers = run(sweep, str(other))["sweeps"]
    told = [[trial["metrics"] for trial in answer["trials"]] for answer in answers]
    assert [[report["x"] for report in reports] for reports in told] == [[1, 2, 3, 4], [5, 6, 7]]
    servers = [{report["server"] for report in reports} for reports in told]
    assert not servers[0] & servers[1]


def test_an_archive_is_unpacked_once(archive: Path, folder: Path) -> None:
    copy = folder / "image.tar"
    shutil.copy(archive, copy)
    copy.chmod(0o644)
    sweep = write_sweep(folder, "image.tar", values=[1, 2])
    assert [trial["state"] for trial in run(sweep)["trials"]] == ["finished"] * 2
    (unpacked,) = (folder / f"helios-images-{ACCOUNT}").glob("*/bin")
    before = unpacked.parent.stat().st_ctime_ns
    assert run(sweep, "--folder", str(folder / "again"))["trials"][0]["state"] == "finished"
    assert unpacked.parent.stat().st_ctime_ns == before


def test_a_folder_outside_of_the_image_is_bound(image: Path, folder: Path) -> None:
    elsewhere = Path("/opt/helios-test-data")
    elsewhere.mkdir(exist_ok=True)
    REAPER.remove(elsewhere)
    (elsewhere / "data").write_text("7")
    program = 'import os; open(os.environ["HELIOS_REPORT"], "a").write(\'{"read": %s}\\n\' % open("DATA").read())'
    sweep = write_sweep(folder, image, program=program.replace("DATA", str(elsewhere / "data")), values=[1])
    sweep.write_text(sweep.read_text().replace(" }", f', runtime = "charliecloud", binds = ["{elsewhere}"] }}', 1))
    (trial,) = run(sweep)["trials"]
    assert trial["metrics"] == {"read": 7}


GROWS = """
import sys, time
kept = []
for _ in range(int(sys.argv[1])):
    kept.append(bytearray(b"x" * (8 << 20)))
    time.sleep(0.01)
"""


@pytest.mark.parametrize("user", [AS_ACCOUNT, ()], ids=["account", "root"])
def test_a_memory_limit_holds(image: Path, folder: Path, user: Sequence[str]) -> None:
    """Root may make control groups on many machines; the account is watched."""
    sweep = write_sweep(folder, image, program=GROWS, values=[2, 200], runtime="charliecloud")
    os.chown(folder, *((ACCOUNT, ACCOUNT) if user else (0, 0)))
    small, large = run(sweep, "--memory", "300M", user=user)["trials"]
    assert (small["state"], large["state"]) == ("finished", "failed"), small
    assert "memory" in large["reason"]
    assert large["peak_memory_mib"] < 900


FORKS = """
import os, time
if os.fork() == 0:
    os.setsid()
open(os.path.join(os.environ["HELIOS_TRIAL_FOLDER"], f"pid{os.getpid()}"), "w").close()
time.sleep(600)
"""


@pytest.mark.parametrize("killed", [("coordinator",), ("agent",), ("container",), ("coordinator", "agent")])
def test_a_kill_leaves_no_container_mount_or_process(image: Path, folder: Path, killed: tuple[str, ...]) -> None:
    running = start(write_sweep(folder, image, program=FORKS, values=[1, 2], runtime="charliecloud"))
    until(lambda: len(list((folder / "sweep.pool").glob("trials/*/pid*"))) == 4)
    first = {int(file.name[3:]) for file in (folder / "sweep.pool").glob("trials/*/pid*")}
    coordinator = psutil.Process(running.pid)
    (agent,) = coordinator.children()
    victims = {"coordinator": [coordinator], "agent": [agent], "container": agent.children()}
    chosen = [process for name in killed for process in victims[name]]
    for process in chosen:
        process.suspend()
    for process in chosen:
        process.kill()
    until(lambda: not any(map(psutil.pid_exists, first)))
    if "coordinator" not in killed:
        running.send_signal(signal.SIGINT)
    running.communicate(timeout=TEST_TIMEOUT_S)
    until(lambda: not processes())
    mounts = Path("/proc/self/mountinfo").read_text()
    assert str(image) not in mounts
    assert str(folder) not in mounts


def refusal(sweep: Path, folder: Path) -> str:
    with pytest.raises(UsageError) as refused:
        find_container(read_training_sweep(sweep), folder / "pool", gpus=False)
    return refused.value.message


def test_an_image_that_cannot_run_here_is_refused(image: Path, folder: Path) -> None:
    foreign = folder / "foreign"
    for name in ("bin", "dev", "etc", "proc", "sys", "tmp", "usr/bin", "home"):
        (foreign / name).mkdir(parents=True)
    for name in ("passwd", "group"):
        (foreign / "etc" / name).touch()
    other = "aarch64" if platform.machine() == "x86_64" else "x86_64"
    header = bytearray(Path(sys.executable).read_bytes()[:64])
    header[18:20] = {"aarch64": 183, "x86_64": 62}[other].to_bytes(2, "little")
    (foreign / "usr/bin/python3").write_bytes(header)
    (foreign / "usr/bin/python3").chmod(0o755)
    assert f"is for {other}" in refusal(write_sweep(folder, foreign), folder)
    (foreign / "usr/bin/python3").unlink()
    assert "cannot be started here" in refusal(write_sweep(folder, foreign), folder)
    sweep = write_sweep(folder, image)
    sweep.write_text(sweep.read_text().replace("python3 program.py", "nothing-such"))
    assert "'nothing-such' is not in the container image" in refusal(sweep, folder)
