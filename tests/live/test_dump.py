"""A dump of Slurm's own database, and that it gives the rows that sacct gives."""

from __future__ import annotations

import gzip
import subprocess
from pathlib import Path

import pandas as pd

from helios.app.history import read_file
from tests.live.rig import Rig

FIELDS = (
    "JobIDRaw,JobID,Cluster,User,UID,GID,Account,Partition,QOS,State,Submit,Eligible,Start,End,ElapsedRaw,Suspended,"
    "Timelimit,AllocNodes,ReqCPUS,ReqMem,ReqTRES,AllocTRES,ExitCode,NodeList,JobName"
)
DELIMITER = "b7f3a3c1e5d94e0c"
NAMES = ("it's a \\ b", "two\nlines\t(ö),NULL;", "'),('x")


def dumped(rig: Rig, path: Path) -> Path:
    """Write a compressed dump of the whole accounting database."""
    socket = f"--socket={rig.folder / 'mysql' / 'mysql.sock'}"
    dump = subprocess.run(["mysqldump", "--no-defaults", socket, "slurm_acct_db"], check=True, capture_output=True)
    path.write_bytes(gzip.compress(dump.stdout))
    return path


def exported(rig: Rig, path: Path) -> Path:
    """Write the same history as sacct prints it."""
    words = (
        "-a",
        "-D",
        "-X",
        "--noconvert",
        "--parsable",
        f"--delimiter={DELIMITER}",
        "-S",
        "now-2days",
        "-E",
        "now+1hour",
    )
    path.write_text(rig.run("env", "TZ=UTC", "sacct", *words, f"--format={FIELDS}"))
    return path


def submitted(rig: Rig) -> list[str]:
    """Submit jobs of every kind that the database tells apart, and wait until it has what became of them."""
    named = [rig.submit(name=name, seconds=0, gpus=2) for name in NAMES]
    array, unlimited = rig.submit("--array=0-2%2", seconds=0), rig.submit(seconds=0, gpus=0, limit="10080")
    batch = ("sbatch", "--parsable", "--output=/dev/null")
    per_cpu = rig.run(*batch, "--mem-per-cpu=200", "-n3", "--wrap=exit 3", user="bob").strip()
    killed = rig.run(*batch, "--mem=100", "--wrap=kill -9 $$", user="bob").strip()
    mixed = rig.run(*batch, "--mem=100", "-n1", ":", "-n2", "--mem=100", "--wrap=true", user="bob").strip()
    requeued, cancelled, suspended = rig.submit(), rig.submit(gpus=4), rig.submit()
    for job in (requeued, cancelled, suspended):
        rig.until(lambda job=job: rig.job_state(job) == "RUNNING")
    rig.run("scontrol", "suspend", suspended)
    rig.until(lambda: rig.job_state(suspended) == "SUSPENDED")
    rig.run("scontrol", "requeue", requeued)
    rig.run("scancel", cancelled)
    rig.run("scontrol", "resume", suspended)
    rig.until(lambda: rig.job_state(suspended) == "RUNNING")
    rig.run("scancel", suspended)
    jobs = [*named, array, unlimited, per_cpu, killed, mixed, cancelled, suspended]

    def ended() -> set[str]:
        asked = ("sacct", "-n", "-P", "-X", "-D", "-o", "JobID,State,End", "-j", ",".join([*jobs, requeued]))
        lines = [line.split("|") for line in rig.lines(*asked)]
        over = {name for name, state, end in lines if end != "Unknown"} if len(lines) > len(jobs) + 3 else set()
        waits = {name for name, state, _ in lines if state == "PENDING"} & {requeued}
        return over if waits and {f"{array}_{task}" for task in range(3)} <= over else set()

    rig.until(lambda: {*jobs, requeued} - {array, mixed} <= ended())
    return [*jobs, requeued]


def rows(path: Path, jobs: list[str], *, columns: str | None = None) -> pd.DataFrame:
    """Return the jobs of a file, those of this test alone."""
    found = read_file(path, columns=columns, cluster="dev", timezone="UTC").jobs
    mine = found["job_id"].isin(jobs) | found["array_job_id"].isin(jobs) | found["het_job_id"].isin(jobs)
    return found[mine].sort_values(["job_id", "submitted_at"]).reset_index(drop=True)


def test_a_dump_gives_the_rows_of_sacct(rig: Rig, tmp_path: Path) -> None:
    jobs = submitted(rig)
    told = rows(exported(rig, tmp_path / "sacct.txt"), jobs)
    read = rows(dumped(rig, tmp_path / "dump.sql.gz"), jobs, columns="slurmdbd")
    assert {"COMPLETED", "FAILED", "CANCELLED", "REQUEUED"} <= {*told["state"]} and {*NAMES} <= {*told["name"]}
    assert told["het_job_id"].notna().any() and told["array_task_id"].notna().any() and told["restart"].max() == 1
    both = read.merge(told[["job_id", "submitted_at"]])  # sacct leaves out what was never eligible
    pd.testing.assert_frame_equal(both, told, check_categorical=False, check_dtype=False)
