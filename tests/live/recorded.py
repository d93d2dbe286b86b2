"""A recording of real Slurm: sleeping jobs of a compressed trace, and when each was submitted, started, ended."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pandas as pd

from helios.app.slurm_whatif_jobs import SlurmJobs, slurm_jobs
from helios.app.slurm_whatif_pool import pooled_easy
from helios.model import JOBS, seconds_of
from helios.model.slurm_site import SlurmSite
from helios.report.tables import Fidelity, fidelity
from helios.simulate.slurm import SlurmLatency, replay_slurm
from helios.slurm.site import read_site
from tests.live.rig import Rig
from tests.live.stretch import ACCOUNTS, Submission

SHARES = {"vision": 3, "speech": 1, "alice": 2, "carol": 1, "bob": 1}
TEXTS = ("slurm.conf", "qos.txt", "assoc.txt")
SOURCE = "Slurm 22.05.8; sizes, order of run times and gaps after HeliosData, Venus (CC-BY-4.0), compressed"
COLUMNS = (
    "job_id", "array_job_id", "array_task_id", "user", "account", "partition", "qos", "nice", "submitted_s",
    "eligible_s", "started_s", "ended_s", "limit_s", "nodes", "cpus", "memory_mib", "gpus", "node_list", "started_by",
)  # fmt: skip


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

    ``jobs`` has ``COLUMNS``; its times are seconds since ``began_s``, the second of the first submission since the
    epoch (Slurm rounds its plans by the clock), to the millisecond, from the controller's log; they agree with what
    ``sacct`` says, which knows whole seconds. The controller was up at ``started_s``, from when it counts its periods:
    where a replay has to begin.
    """

    jobs: pd.DataFrame
    began_s: int
    started_s: float
    texts: Mapping[str, str]

    def write(self, folder: Path) -> None:
        """Write it down, so that it can be judged without Slurm."""
        folder.mkdir(parents=True, exist_ok=True)
        table = self.jobs.to_csv(index=False, lineterminator="\n")
        head = f"# {SOURCE}\n# seconds since the epoch at 0: {self.began_s}\n# controller up at: {self.started_s}\n"
        (folder / "jobs.csv").write_text(head + table)
        for name, text in self.texts.items():
            (folder / name).write_text(text)

    @classmethod
    def read(cls, folder: Path) -> Recording:
        """Read what was written down."""
        began, started = (line.rpartition(":")[2] for line in (folder / "jobs.csv").read_text().split("\n", 3)[1:3])
        jobs = pd.read_csv(folder / "jobs.csv", comment="#", dtype={"array_job_id": "str", "array_task_id": "str"})
        texts = {name: (folder / name).read_text() for name in TEXTS}
        return cls(jobs=jobs, began_s=int(began), started_s=float(started), texts=texts)

    @property
    def site(self) -> SlurmSite:
        """How Slurm was set up."""
        return site_of(self.texts)


def record(rig: Rig, asked: list[Submission]) -> Recording:
    """Submit everything at its time, wait until all is over, and return what became of it."""
    began, by_id = time.monotonic(), {}
    for one in asked:
        pause_s = began + one.after_s - time.monotonic()
        if pause_s > 0:
            time.sleep(pause_s)  # the arrivals of a trace come at their time: that is the recording
        by_id[one.submit(rig)] = one
    _wait_for_the_end(rig)
    tasks = sum(max(1, one.tasks) for one in asked)
    rig.until(lambda: len([row for row in _accounted(rig) if row["State"] == "COMPLETED"]) >= tasks)
    logged = _logged(rig)
    first_s = float(int(min(logged["submitted"].values())))  # a whole second: Slurm counts its intervals in them
    rows = [_row(row, by_id, logged, first_s) for row in _accounted(rig)]
    return Recording(
        jobs=pd.DataFrame(rows, columns=COLUMNS).sort_values(["submitted_s", "job_id"], ignore_index=True),
        began_s=int(first_s),
        started_s=round(_controller_up_s(rig) - first_s, 3),
        texts=texts_of(rig),
    )


def texts_of(rig: Rig) -> Mapping[str, str]:
    """Return what tells how a cluster is set up, by ``TEXTS``."""
    conf = _nameless((rig.folder / "conf" / "slurm.conf").read_text(), rig)
    qos, assoc = (rig.run("sacctmgr", "show", *what, "-P") for what in (["qos"], ["assoc", "tree"]))
    return dict(zip(TEXTS, (conf, qos, assoc), strict=True))


def site_of(texts: Mapping[str, str]) -> SlurmSite:
    """Return how Slurm was set up, as its files say."""
    conf, qos, assoc = (texts[name] for name in TEXTS)
    return read_site(conf, sacctmgr_qos=qos, sacctmgr_assoc=assoc)


def _nameless(conf: str, rig: Rig) -> str:
    """Return a ``slurm.conf`` that names neither this machine nor where the cluster was on it."""
    host = re.search(r"^SlurmctldHost=([^(\s]+)", conf, re.MULTILINE)
    assert host is not None
    conf = conf.replace(str(rig.folder), "/srv/slurm")
    return re.sub(rf"(?<==){re.escape(host[1])}\b", "head", conf)


def _wait_for_the_end(rig: Rig, *, longest_s: float = 7200.0) -> None:
    limit = time.monotonic() + longest_s
    while rig.lines("squeue", "-h", "-o", "%i"):
        assert time.monotonic() < limit, "jobs are still in the queue"
        time.sleep(2)  # seldom: whoever asks takes the controller's locks


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
_BACKFILL = re.compile(_STAMP + "sched/backfill: _attempt_backfill: beginning", re.MULTILINE)


def backfill_began_s(log: str) -> list[float]:
    """Return when each backfill pass began, s since the epoch, as a controller's log says."""
    return [_moment_s(found["at"]) for found in _BACKFILL.finditer(log)]


def _accounted(rig: Rig) -> list[Mapping[str, str]]:
    rows = rig.run("env", "SLURM_TIME_FORMAT=%s", "sacct", "-a", "-X", "-n", "-P", "-S", "now-1day", f"-o{FIELDS}")
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


def as_jobs(recorded: Recording) -> pd.DataFrame:
    """Return recorded jobs as history, columns of ``JOBS``, in submission order; ``nice`` is not history."""
    recording, began = recorded.jobs, pd.Timestamp(recorded.began_s, unit="s", tz="UTC")
    times = {
        name.replace("_s", "_at"): began + pd.to_timedelta((recording[name] * 1000).round(), unit="ms")
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


def as_submitted(recording: Recording) -> SlurmJobs:
    """Return the jobs of a recording as they were asked for, ``nice`` included."""
    jobs = slurm_jobs(as_jobs(recording), recording.site, nice=recording.jobs["nice"].to_numpy())
    assert not jobs.notes, jobs.notes
    return jobs


def known_latency(recording: Recording) -> SlurmLatency:
    """Return the controller of a recording: when it began to count its periods."""
    return SlurmLatency(controller_started_s=recording.began_s + recording.started_s)


def held_against(recording: Recording) -> list[Fidelity]:
    """Replay a recording under the configuration and the arrivals that it had, and judge that beside naive controls.

    Times limits, sizes, users and true run times are given, and when the controller began to count; then the same
    without that, which a replay of history has not.
    """
    jobs = as_submitted(recording)
    known = known_latency(recording)
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
