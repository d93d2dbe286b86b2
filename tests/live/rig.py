"""A private Slurm cluster for one test session, and the few things tests do to it."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import IO

import pytest

from tests.reaper import REAPER
from tests.waiting import TEST_TIMEOUT_S, until

DEVCLUSTER = Path(__file__).parents[2] / "deploy" / "devcluster" / "devcluster"
USERS = ("alice", "bob", "carol")
_TAKEN: list[IO[str]] = []
"""Locks of the ports that this process has taken."""
SLEEPY = {
    "POWER": "1",
    "NODES": "8",
    "SWITCHES": "2",
    "NODE_OPTIONS": "n1 Feature=ib Weight=10\nn2 Feature=ib Weight=10\nn3 Feature=ib Weight=10\n"
    "n4 Weight=20\nn5 Feature=big Weight=20\nn6 Weight=50\nn7 Weight=50\nn8 Weight=50",
    "PARTITIONS": "PartitionName=gpu Nodes=n[1-6] Default=YES MaxTime=7-0 DefMemPerCPU=1000 PriorityJobFactor=1\n"
    "PartitionName=debug Nodes=n[6-7] MaxTime=7-0 DefMemPerCPU=1000 PriorityJobFactor=1\n"
    "PartitionName=login Nodes=n8 MaxTime=7-0 DefMemPerCPU=1000 PriorityJobFactor=1",
    "SUSPEND_TIMEOUT": "2",
    "RESUME_TIMEOUT": "40",
    "SUSPEND_EXC_NODES": "n7",
    "SUSPEND_EXC_PARTS": "login",
}
"""Settings of a cluster whose nodes sleep: partitions that share n6, two switches, features, weights, exclusions."""


class Rig:
    """A cluster below ``folder``; ``settings`` are devcluster's environment variables, without their prefix."""

    def __init__(self, folder: Path, *, settings: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.settings = {"FOLDER": str(folder), "PORT": str(_free_ports()), "USERS": " ".join(USERS)} | dict(
            settings or {}
        )
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": os.environ.get("HOME", "/root"),
            "SLURM_CONF": str(folder / "conf" / "slurm.conf"),
        }

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.settings.get("NAME", "dev")

    def control(self, *words: str) -> str:
        """Run devcluster with ``words``: up, down, wipe, start D, stop D, restart D."""
        settings = {f"DEVCLUSTER_{name}": value for name, value in self.settings.items()}
        done = subprocess.run(
            [str(DEVCLUSTER), *words],
            check=False,
            env=self.environment | settings,
            capture_output=True,
            text=True,
            timeout=TEST_TIMEOUT_S,
        )
        assert done.returncode == 0, f"devcluster {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def run(self, *words: str, user: str | None = None, check: bool = True, given: str | None = None) -> str:
        """Run a command on the cluster, as ``user`` if one is named, and return what it printed."""
        prefix = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups"] if user else []
        done = subprocess.run(
            [*prefix, *words],
            check=False,
            env=self.environment | ({"USER": user, "LOGNAME": user} if user else {}),
            capture_output=True,
            text=True,
            input=given,
            timeout=TEST_TIMEOUT_S,
            cwd="/",
        )
        assert not check or done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout + ("" if check else done.stderr)

    def submit(
        self,
        *options: str,
        seconds: float = 600,
        user: str = "alice",
        gpus: int = 1,
        limit: str = "60",
        partition: str = "gpu",
        name: str = "train",
    ) -> str:
        """Submit a job that sleeps, and return its id; ``options`` are sbatch's own."""
        asked = [f"--gres=gpu:{gpus}"] if gpus else []
        return self.run(
            "sbatch",
            "--parsable",
            f"--time={limit}",
            f"--partition={partition}",
            f"--job-name={name}",
            "--output=/dev/null",
            "--mem=100",
            *asked,
            *options,
            f"--wrap=sleep {seconds}",
            user=user,
        ).strip()

    def fill(self) -> list[str]:
        """Occupy every GPU for long, so that whatever comes next stays pending; wait until that runs."""
        gpus, nodes = self.settings.get("GPUS", "8"), int(self.settings.get("NODES", "4"))
        jobs = [self.submit(gpus=int(gpus), limit="600", name="filler", seconds=36_000) for _ in range(nodes)]
        self.until(lambda: len(self.lines("squeue", "-h", "-t", "R", "-o", "%i", "-n", "filler")) >= nodes)
        return jobs

    def lines(self, *words: str) -> list[str]:
        """Return the lines that a command prints, without empty ones."""
        return [line for line in self.run(*words).splitlines() if line.strip()]

    def site_factors(self) -> dict[str, int]:
        """Return the site factor of every eligible pending job, as sprio says it."""
        rows = [line.split() for line in self.lines("sprio", "-h", "-o", "%i %S")]
        return {row[0]: int(row[1]) for row in rows}

    def show_job(self, job: str) -> dict[str, str]:
        """Return what ``scontrol show job`` says of a job, field by field."""
        words = self.run("scontrol", "-o", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def job_state(self, job: str) -> str:
        """Return what ``scontrol show job`` says the job's state is."""
        return self.show_job(job)["JobState"]

    def nodes(self) -> dict[str, str]:
        """Return what ``scontrol show node`` says each node's state is: IDLE, IDLE+POWERED_DOWN, MIXED+DRAIN, ..."""
        rows = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in self._node_lines()]
        return {row["NodeName"]: row["State"] for row in rows}

    def weights(self) -> dict[str, int]:
        """Return the weight of every node."""
        rows = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in self._node_lines()]
        return {row["NodeName"]: int(row["Weight"]) for row in rows}

    def _node_lines(self) -> list[str]:
        return self.lines("scontrol", "-o", "show", "node")

    def power(self, node: str, state: str) -> str:
        """Ask Slurm itself, as an admin would, for ``power_down`` or ``power_up``, and return its answer."""
        return self.run("scontrol", "update", f"nodename={node}", f"state={state}", check=False)

    def boots(self, node: str, how: str | int) -> None:
        """Have ``node`` boot so from now on: in a number of seconds, ``never``, or ``fails``."""
        self.control("boot", node, str(how))

    def switched(self) -> list[tuple[str, str, str]]:
        """Return what Slurm asked of the nodes' power, in order: off, on or failed; the node; the jobs on it then."""
        file = self.folder / "log" / "power.log"
        rows = [[*line.split(), ""][1:4] for line in file.read_text().splitlines()] if file.exists() else []
        return [(what, node, jobs.strip(",")) for what, node, jobs in rows]

    def machines_on(self) -> set[str]:
        """Return the nodes whose slurmd really runs."""
        pids = {file.name.split(".")[1]: file for file in (self.folder / "run").glob("slurmd.*.pid")}
        return {node for node, file in pids.items() if _runs(file)}

    def put_to_sleep(self, *nodes: str) -> None:
        """Have idle nodes asleep, and wait for it."""
        self.power(",".join(nodes), "power_down")
        self.until(lambda: all("POWERED_DOWN" in (state := self.nodes()[n]) and "POWERING" not in state for n in nodes))

    def wake_all(self) -> None:
        """Have every node awake, idle and bootable again, whatever a test did to it."""
        for node in self.nodes():
            (self.folder / "boot" / node).unlink(missing_ok=True)
        try:
            self.until(lambda: self._wake_what_sleeps() == {"IDLE"})
        except AssertionError as reason:
            late = [node for node, state in self.nodes().items() if state != "IDLE"]
            logs = [self.log(name) for name in ("slurmctld", "power", *(f"slurmd.{node}" for node in late))]
            raise AssertionError("\n".join((f"{reason}; {self.nodes()}", *logs))) from reason

    def _wake_what_sleeps(self) -> set[str]:
        """Do what can be done now about every node that is not idle, and return the states that were seen."""
        nodes = self.nodes()
        for node, flags in ((node, state.split("+")) for node, state in nodes.items()):
            if "DOWN" in flags or "DRAIN" in flags:
                self.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
            elif "POWERED_DOWN" in flags and not {"POWERING_DOWN", "POWERING_UP", "POWER_UP"} & set(flags):
                self.power(node, "power_up")
        return set(nodes.values())

    def log(self, daemon: str) -> str:
        """Return the end of a daemon's log."""
        file = self.folder / "log" / f"{daemon}.log"
        return "\n".join(file.read_text(errors="replace").splitlines()[-30:]) if file.exists() else ""

    def empty(self) -> None:
        """Cancel every job and wait until none is left."""
        if jobs := self.lines("squeue", "-h", "-o", "%A"):
            self.run("scancel", *sorted(set(jobs)), check=False)
        self.until(lambda: not self.lines("squeue", "-h", "-o", "%i"))

    @staticmethod
    def until(claim: Callable[[], object], *, longest_s: float = TEST_TIMEOUT_S) -> None:
        """Wait for a real daemon to make ``claim`` true, at most ``longest_s``."""
        until(claim, longest_s=longest_s)


def roomy_folder() -> Path:
    """Make a folder that Slurm's users can enter; pytest closes its own to everybody else.

    Where nobody removes it before, it goes with the process, and so does every process that has to do with it.
    """
    folder = Path(tempfile.mkdtemp(prefix="helios-live-"))
    folder.chmod(0o755)
    REAPER.remove(folder)
    return folder


def skip_without_slurm() -> None:
    """Skip where no cluster can be brought up."""
    if why := missing():
        # CI installs Slurm: there a skip would hide that nothing was tested.
        (pytest.fail if os.environ.get("CI") else pytest.skip)(why)


def missing() -> str:
    """Return why no cluster can be brought up here; empty: one can."""
    if os.geteuid() != 0:
        return "a live Slurm needs root: it starts jobs as other users"
    lacking = [name for name in ("slurmctld", "slurmdbd", "slurmd", "munged", "mariadbd") if not _found(name)]
    return f"not installed: {', '.join(lacking)}; say: deploy/devcluster/devcluster install" if lacking else ""


def _found(program: str) -> bool:
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is not None


def _free_ports(wanted: Sequence[int] = (17, 19, 101, 104, 108, 112)) -> int:
    """Return the first of a block of free ports, which no other session takes while this process lives.

    Ports are free until a daemon listens, so two workers could find the same ones.
    """
    # Below 32768: from there on ports are lent to whoever connects somewhere.
    for base in range(10_000 + os.getpid() % 97 * 150, 32_000, 150):
        lock = (Path(tempfile.gettempdir()) / f"helios-ports-{base}.lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            continue
        if all(_is_free(base + port) for port in wanted):
            _TAKEN.append(lock)
            return base
        lock.close()
    raise AssertionError("no free ports")


def _runs(pid_file: Path) -> bool:
    try:
        return b"slurmd" in Path(f"/proc/{int(pid_file.read_text())}/cmdline").read_bytes()
    except (OSError, ValueError):
        return False


def _is_free(port: int) -> bool:
    with closing(socket.socket()) as door:
        return door.connect_ex(("127.0.0.1", port)) != 0
