"""A recording of real Slurm: sleeping jobs of a compressed trace, and when each was submitted, started, ended."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
import pandas as pd

from helios.app.slurm_controls import pooled_easy
from helios.app.slurm_jobs import seconds_of, slurm_jobs
from helios.model import JOBS
from helios.model.site import SlurmSite
from helios.report.fidelity import Fidelity, fidelity
from helios.simulate.slurmlike import SlurmLatency, replay_slurm
from helios.slurm.site_files import read_site
from tests.live.rig import Rig
from tests.traces import TRACES

TRACE = TRACES / "helios_venus_mar-aug2020.csv.gz"
FIRST = 52_000
"""Where in Venus (jobs with GPUs, by submission) the stretch begins: jobs of all sizes, in bursts."""
LARGEST_GPUS, GPUS, GPUS_PER_NODE = 16, 64, 8
OFFERED = 1.0
"""GPU seconds submitted for each that the rig has: a queue grows, and most of the time something can start."""
ACCOUNTS = {"alice": "vision", "bob": "speech", "carol": "vision"}
SETTINGS = {
    "NAME": "fidelity",
    "NODES": str(GPUS // GPUS_PER_NODE),
    "GPUS": str(GPUS_PER_NODE),
    "CPUS": "32",
    "MEMORY": "256000",
    "PARTITIONS": "PartitionName=gpu Nodes=n[1-8] Default=YES MaxTime=2:00:00 DefMemPerCPU=1000 PriorityJobFactor=1\n"
    "PartitionName=debug Nodes=n[5-8] MaxTime=30 DefMemPerCPU=1000 PriorityJobFactor=10",
    "CONF": "SchedulerParameters=bf_interval=2,bf_resolution=10,bf_window=120,bf_continue,bf_max_job_test=200\n"
    "PriorityWeightAge=5000\nPriorityMaxAge=0:20:00\nPriorityWeightFairshare=2000\nPriorityWeightJobSize=1000\n"
    "PriorityWeightPartition=500\nPriorityWeightQOS=2000\nPriorityCalcPeriod=1\nPriorityDecayHalfLife=0:05:00\n"
    "Epilog=/bin/true",
}
"""Slurm's own defaults, but for what has to be as short as the jobs are: minutes for days. With an epilog, as most
sites have one, an end makes a pass at once; without, it is a race that nobody can foretell."""
SHARES = {"vision": 3, "speech": 1, "alice": 2, "carol": 1, "bob": 1}
TEXTS = ("slurm.conf", "qos.txt", "assoc.txt")
SOURCE = "Slurm 22.05.8; sizes, order of run times and gaps after HeliosData, Venus (CC-BY-4.0), compressed"
BEGAN = pd.Timestamp("2026-01-01", tz="UTC")
"""When a recording is said to begin, where it stands for history."""
COLUMNS = (
    "job_id", "array_job_id", "array_task_id", "user", "account", "partition", "qos", "nice", "submitted_s",
    "eligible_s", "started_s", "ended_s", "limit_s", "nodes", "cpus", "memory_mib", "gpus", "node_list", "started_by",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What is asked of Slurm, ``after_s`` the first."""

    after_s: float
    user: str
    gpus: int
    cpus_per_gpu: int
    run_time_s: float
    limit_min: int
    partition: str = "gpu"
    qos: str = "normal"
    nice: int = 0
    begin_s: int = 0
    tasks: int = 0

    def submit(self, rig: Rig) -> str:
        """Hand it in, and return the job's id."""
        nodes = max(1, -(-self.gpus // GPUS_PER_NODE))
        each = self.gpus // nodes
        asked = [f"--gres=gpu:{each}"] if self.gpus else []
        asked += [f"--nice={self.nice}"] if self.nice else []
        asked += [f"--begin=now+{self.begin_s}"] if self.begin_s else []
        asked += [f"--array=0-{self.tasks - 1}"] if self.tasks else []
        return rig.run(
            "sbatch",
            "--parsable",
            "--output=/dev/null",
            f"--nodes={nodes}",
            f"--ntasks={nodes}",
            f"--cpus-per-task={max(1, each) * self.cpus_per_gpu}",
            f"--time={self.limit_min}",
            f"--partition={self.partition}",
            f"--qos={self.qos}",
            *asked,
            f"--wrap=sleep {self.run_time_s:g}",
            user=self.user,
        ).strip()


def submissions(jobs: int, *, shortest_s: float = 4.0, seed: int = 1) -> list[Submission]:
    """Return a stretch of Venus, squeezed: run times from ``shortest_s`` to 35 times that, in the same order."""
    rng = np.random.default_rng(seed)
    trace = pd.read_csv(TRACE, parse_dates=["submit_time"]).query("gpu_num > 0")
    chosen = trace.sort_values(["submit_time", "job_id"]).iloc[FIRST : FIRST + jobs]
    gpus = np.minimum(chosen["gpu_num"].to_numpy(), LARGEST_GPUS)
    gpus = np.where(gpus > GPUS_PER_NODE, LARGEST_GPUS, gpus)
    run_time_s = np.round(shortest_s * np.maximum(chosen["duration"].to_numpy() / 16, 1) ** 0.38, 1)
    gap_s = np.minimum(np.diff(chosen["submit_time"].to_numpy().astype("datetime64[s]").astype(np.int64)), 1800)
    after_s = np.concatenate([[0.0], np.cumsum(gap_s)])
    after_s *= float((gpus * run_time_s).sum()) / GPUS / OFFERED / after_s[-1]
    return [
        _dressed(rng, after_s=float(at), gpus=int(size), run_time_s=float(runs), tasks=8 * (place == jobs // 3))
        for place, (at, size, runs) in enumerate(zip(after_s, gpus, run_time_s, strict=True))
    ]


def _dressed(rng: np.random.Generator, *, after_s: float, gpus: int, run_time_s: float, tasks: int) -> Submission:
    """Give a job of the trace what the trace does not tell."""
    partition = rng.choice(["gpu", "debug", "gpu,debug"], p=[0.8, 0.14, 0.06])
    shortest_min = int(np.ceil((run_time_s + 5) / 60))
    over = [0, 1, 3, 8, 25] if partition == "gpu" else [0, 1, 3]
    return Submission(
        after_s=after_s,
        user=str(rng.choice(list(ACCOUNTS), p=[0.5, 0.3, 0.2])),
        gpus=1 if tasks else int(gpus * (rng.random() > 0.04)),
        cpus_per_gpu=int(rng.choice([1, 2, 4], p=[0.2, 0.5, 0.3])),
        run_time_s=run_time_s,
        limit_min=shortest_min + int(rng.choice(over)),
        partition=str(partition),
        qos=str(rng.choice(["normal", "high"], p=[0.92, 0.08])),
        nice=int(rng.choice([0, 500], p=[0.95, 0.05])),
        begin_s=int(rng.choice([0, 45], p=[0.98, 0.02])),
        tasks=tasks,
    )


def give_shares(rig: Rig) -> None:
    """Give users and accounts unequal shares, and let Slurm know."""
    for name, shares in SHARES.items():
        kind = "user" if name in ACCOUNTS else "account"
        rig.run("sacctmgr", "-i", "-Q", "modify", kind, "where", f"name={name}", "set", f"fairshare={shares}")
    wanted = [f"{name}|{shares}" for name, shares in SHARES.items() if name in ACCOUNTS]
    rig.until(lambda: set(wanted) <= set(rig.lines("sshare", "-a", "-h", "-P", "-o", "user,rawshares")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What became of some jobs under a real Slurm, and how that was set up.

    ``jobs`` has ``COLUMNS``; its times are seconds since the second of the first submission, to the millisecond, from
    the controller's log; they agree with what ``sacct`` says, which knows whole seconds. The controller was up at
    ``started_s``, from when it counts its periods: where a replay has to begin.
    """

    jobs: pd.DataFrame
    started_s: float
    texts: Mapping[str, str]

    def write(self, folder: Path) -> None:
        """Write it down, so that it can be judged without Slurm."""
        folder.mkdir(parents=True, exist_ok=True)
        table = self.jobs.to_csv(index=False, lineterminator="\n")
        (folder / "jobs.csv").write_text(f"# {SOURCE}\n# controller up at: {self.started_s}\n{table}")
        for name, text in self.texts.items():
            (folder / name).write_text(text)

    @classmethod
    def read(cls, folder: Path) -> Recording:
        """Read what was written down."""
        head = (folder / "jobs.csv").read_text().split("\n", 2)[1]
        jobs = pd.read_csv(folder / "jobs.csv", comment="#", dtype={"array_job_id": "str", "array_task_id": "str"})
        texts = {name: (folder / name).read_text() for name in TEXTS}
        return cls(jobs=jobs, started_s=float(head.rpartition(":")[2]), texts=texts)

    @property
    def site(self) -> SlurmSite:
        """How Slurm was set up, as its files say."""
        conf, qos, assoc = (self.texts[name] for name in TEXTS)
        return read_site(conf, sacctmgr_qos=qos, sacctmgr_assoc=assoc)


def record(rig: Rig, asked: list[Submission]) -> Recording:
    """Submit everything at its time, wait until all is over, and return what became of it."""
    began, by_id = time.monotonic(), {}
    for one in asked:
        pause_s = began + one.after_s - time.monotonic()
        if pause_s > 0:
            time.sleep(pause_s)  # the arrivals of a trace come at their time: that is the recording
        by_id[one.submit(rig)] = one
    rig.until(lambda: not rig.lines("squeue", "-h", "-o", "%i"), longest_s=900)
    tasks = sum(max(1, one.tasks) for one in asked)
    rig.until(lambda: len([row for row in _accounted(rig) if row["State"] == "COMPLETED"]) >= tasks)
    logged = _logged(rig)
    first_s = float(int(min(logged["submitted"].values())))  # a whole second: Slurm counts its intervals in them
    rows = [_row(row, by_id, logged, first_s) for row in _accounted(rig)]
    return Recording(
        jobs=pd.DataFrame(rows, columns=COLUMNS).sort_values(["submitted_s", "job_id"], ignore_index=True),
        started_s=round(_controller_up_s(rig) - first_s, 3),
        texts=dict(
            zip(
                TEXTS,
                (
                    (rig.folder / "conf" / "slurm.conf").read_text(),
                    rig.run("sacctmgr", "show", "qos", "-P"),
                    rig.run("sacctmgr", "show", "assoc", "tree", "-P"),
                ),
                strict=True,
            )
        ),
    )


FIELDS = "JobIDRaw,JobID,State,User,Account,QOS,Submit,Eligible,Start,End,TimelimitRaw,AllocTRES,NodeList"
_STAMP = r"^\[(?P<at>[-\dT:.]+)\] "
_JOB = r"JobId=(?:\d+_\d+\()?(?P<job>\d+)"
_EVENTS = {
    event: re.compile(_STAMP + words, re.MULTILINE)
    for event, words in {
        "submitted": rf"_slurm_rpc_submit_batch_job: {_JOB} ",
        "main": rf"sched: Allocate {_JOB}",
        "backfill": rf"sched/backfill: _start_job: Started {_JOB}",
        "ended": rf"_job_complete: {_JOB}\)? done",
    }.items()
}


def _accounted(rig: Rig) -> list[Mapping[str, str]]:
    rows = rig.run("env", "SLURM_TIME_FORMAT=%s", "sacct", "-a", "-X", "-n", "-P", "-S", "now-1hour", f"-o{FIELDS}")
    return [dict(zip(FIELDS.split(","), row.split("|"), strict=True)) for row in rows.splitlines()]


def _logged(rig: Rig) -> dict[str, dict[str, float]]:
    """Return when each job was submitted, started by the main or the backfill scheduler, and ended."""
    text = (rig.folder / "log" / "slurmctld.log").read_text(errors="replace")
    return {
        event: {found["job"]: _moment_s(found["at"]) for found in pattern.finditer(text)}
        for event, pattern in _EVENTS.items()
    }


def _moment_s(text: str) -> float:
    return datetime.fromisoformat(text).astimezone().timestamp()  # the log is in local time, to the millisecond


def _controller_up_s(rig: Rig) -> float:
    text = (rig.folder / "log" / "slurmctld.log").read_text(errors="replace")
    found = re.search(_STAMP + "Running as primary controller", text, re.MULTILINE)
    assert found is not None
    return _moment_s(found["at"])


def _row(
    row: Mapping[str, str],
    by_id: Mapping[str, Submission],
    logged: Mapping[str, Mapping[str, float]],
    first_s: float,
) -> dict[str, object]:
    job, (master, _, task) = row["JobIDRaw"], row["JobID"].partition("_")
    asked, tres = by_id[master], dict(part.split("=") for part in row["AllocTRES"].split(","))
    started_by = next((how for how in ("main", "backfill") if job in logged[how]), "submission")
    times = {
        "submitted_s": (logged["submitted"][master], row["Submit"]),
        "eligible_s": (logged["submitted"][master] + asked.begin_s, row["Eligible"]),
        "started_s": (logged[started_by].get(job, float(row["Start"])), row["Start"]),
        "ended_s": (logged["ended"].get(job, float(row["End"])), row["End"]),
    }  # fmt: skip
    return {
        "job_id": job,
        "array_job_id": master if task else "",
        "array_task_id": task,
        "user": row["User"],
        "account": row["Account"],
        "partition": asked.partition,
        "qos": row["QOS"],
        "nice": asked.nice,
        **{name: round(_agreed(name, job, at, float(told)) - first_s, 3) for name, (at, told) in times.items()},
        "limit_s": 60 * int(row["TimelimitRaw"]),
        "nodes": int(tres["node"]),
        "cpus": int(tres["cpu"]),
        "memory_mib": _mib(tres["mem"]),
        "gpus": int(tres.get("gres/gpu", 0)),
        "node_list": row["NodeList"],
        "started_by": started_by,
    }


def _agreed(name: str, job: str, at_s: float, told_s: float) -> float:
    assert abs(at_s - told_s) < 2.5, f"{name} of job {job}: the log says {at_s}, sacct {told_s}"
    return at_s


def _mib(text: str) -> int:
    return round(float(text[:-1]) * {"M": 1, "G": 1024}[text[-1]])


def as_jobs(recording: pd.DataFrame) -> pd.DataFrame:
    """Return recorded jobs as history, columns of ``JOBS``, in submission order; ``nice`` is not history."""
    times = {
        name.replace("_s", "_at"): BEGAN + pd.to_timedelta((recording[name] * 1000).round(), unit="ms")
        for name in ("submitted_s", "eligible_s", "started_s", "ended_s")
    }
    same = ("user", "account", "partition", "qos", "nodes", "cpus", "memory_mib", "gpus", "node_list")
    text = recording[["job_id", "array_job_id", "array_task_id"]].astype("str")
    return JOBS.conform(
        recording[list(same)].assign(
            **times,
            **text.where(recording[text.columns].notna() & (text != ""), None),
            state="COMPLETED",
            run_time_s=recording["ended_s"] - recording["started_s"],
            time_limit_s=recording["limit_s"].astype("float64"),
        )
    )


def held_against(recording: Recording) -> list[Fidelity]:
    """Replay a recording under the configuration and the arrivals that it had, and judge that beside naive controls.

    Times limits, sizes, users and true run times are given, and when the controller began to count; then the same
    without that, which a replay of history has not.
    """
    jobs = slurm_jobs(as_jobs(recording.jobs), recording.site, nice=recording.jobs["nice"].to_numpy())
    assert not jobs.notes, jobs.notes
    known = SlurmLatency(controller_started_s=BEGAN.timestamp() + recording.started_s)
    eligible_s = jobs.workload.column("eligible_s")
    replays = {
        "Slurm's rules": replay_slurm(jobs.workload, recording.site, latency=known).started_s,
        "Slurm's rules, phases unknown": replay_slurm(jobs.workload, recording.site).started_s,
        "FIFO + EASY (limit), all GPUs pooled": pooled_easy(
            jobs, recording.site, resource="gpus", default_time_limit_s=7200
        ),
        "At once, in order of submission": eligible_s,
    }
    recorded_s = seconds_of(jobs.jobs["started_at"])
    return [
        fidelity(name, eligible_s=eligible_s, recorded_s=recorded_s, replayed_s=replayed_s)
        for name, replayed_s in replays.items()
    ]
