"""Three histories with a web page each: two public traces without Slurm, and a live cluster.

The first two are what ``helios web`` serves in a process of its own. The live cluster is made of fakes, and a thread
serves it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from helios.app.live_cluster import LiveCluster
from helios.app.modes import set_mode
from helios.app.operations import Operations
from helios.app.sync import JOBS
from helios.app.sync import NODE_EVENTS as EVENTS
from helios.job_use.idle_gpus import IDLE_GPUS, HeldGpus, IdleGpu
from helios.model import NODE_EVENTS, NODE_TALLIES, NODES, PREDICTIONS, RESERVATIONS, Mode
from helios.model.slurm_site import QosRules
from helios.model.trial_runs import CurvePoint, TrialRun
from helios.slurm.site import read_site
from helios.study.study import load_study, store_study, study
from helios.testing import NOON, FakeNodes, a_node
from helios.web.application import Access, web_application
from helios.web.server import WebServer
from helios.web.site import Site
from tests.builders import a_batch, a_job, a_trial_run
from tests.traces import TRACES
from tests.unit.app.sites import FakeSite
from tests.waiting import until

TOKEN = "a-token-of-this-test"
USER_HEADER = "X-Remote-User"
ADMIN, MANAGER = "root", "mia"
DAYS = 75
"""Length of the live cluster's history: it has three calendar months, two of them whole."""
JOBS_A_DAY = 24
USERS = {"alice": "vision", "bob": "vision", "carol": "language", "dan": "physics", "eve": "physics"}
"""Account of each user of the live cluster."""
ENDS = ("COMPLETED", "COMPLETED", "COMPLETED", "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
BAD_NODE = "n3"
HELD_GPUS = HeldGpus(
    at=NOON.isoformat(),
    exporter="dcgm",
    busy_means="a kernel ran",
    measured=48,
    idle=(
        IdleGpu(job_id="30000", user="alice", node="n1", gpu="0", has_process=None, memory_mib=9_216.0),
        IdleGpu(job_id="30001", user="bob", node="n2", gpu="3", has_process=None, memory_mib=None),
    ),
)
"""GPUs of running jobs without use."""
SLURM_CONF = """
GresTypes=gpu
NodeName=n[1-8] CPUs=64 RealMemory=512000 Gres=gpu:8
PartitionName=gpu Nodes=n[1-6] Default=YES MaxTime=2-00:00:00
PartitionName=short Nodes=n[7-8] MaxTime=2-00:00:00
"""


QOS = (QosRules(name="normal", max_gpus_per_user=32), QosRules(name="high", priority=1_000, max_jobs_per_user=4))
UPGRADE = {
    "name": "upgrade",
    "state": "INACTIVE",
    "begins_at": pd.Timestamp(NOON) + pd.Timedelta(days=2),
    "ends_at": pd.Timestamp(NOON) + pd.Timedelta(days=2, hours=8),
    "nodes": 8.0,
    "node_list": "n[1-8]",
    "users": "root",
    "flags": "MAINT,SPEC_NODES",
}
"""A reservation of the live cluster."""


class ServedSite:
    """A running web page of one history.

    Attributes
    ----------
    address : str
        Begin of its addresses, without a slash at the end.
    names : mapping
        What stands in the addresses of its pages: a job, a user, a node and so on.
    """

    def __init__(self, address: str, names: Mapping[str, str]) -> None:
        self.address, self.names = address.rstrip("/"), names

    def filled(self, path: str) -> str | None:
        """Return a route's path with names of this history, or None where it has none."""
        try:
            return path.format_map(self.names)
        except KeyError:
            return None


class TraceSite(ServedSite):
    """A public trace that ``helios web`` serves on a machine without Slurm."""

    def __init__(
        self,
        folder: Path,
        trace: Path,
        *,
        cluster: str,
        timezone: str,
        names: Mapping[str, str],
        has_study: bool = False,
    ) -> None:
        self._folder = folder
        (folder / "token").write_text(TOKEN)
        (folder / "token").chmod(0o600)
        self._helios("trace", "load", trace, "--cluster", cluster, "--timezone", timezone)
        if has_study:
            self._helios("study", "--keep")
        log = folder / "log"
        with log.open("w") as stream:
            self._process = subprocess.Popen([*HELIOS, "web"], stderr=stream, env=self._environment(), cwd=folder)
        until(lambda: "\n" in log.read_text())
        super().__init__(log.read_text().split()[-1], names)

    def _environment(self) -> dict[str, str]:
        folder = self._folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HELIOS_")}
        return kept | {
            "HELIOS_DATABASE_URL": f"sqlite:///{folder}/helios.db",
            "HELIOS_CONTROL_STATE_FOLDER": str(folder / "state"),
            "HELIOS_REPORT_FOLDER": str(folder / "reports"),
            "HELIOS_WEB_LISTEN": "127.0.0.1:0",
            "HELIOS_WEB_TOKEN_FILE": str(folder / "token"),
            "HELIOS_WEB_USER_HEADER": USER_HEADER,
            "HELIOS_WEB_ADMINS": ADMIN,
            "HELIOS_WEB_MANAGERS": MANAGER,
            "PATH": str(folder),  # where no Slurm is, also on a machine that has one
            "HOME": str(folder),
        }

    def _helios(self, *words: object) -> None:
        subprocess.run(
            [*HELIOS, *map(str, words)], env=self._environment(), cwd=self._folder, capture_output=True, check=True
        )

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


HELIOS = (sys.executable, "-m", "helios")


def venus(folder: Path) -> TraceSite:
    """Serve three weeks of Venus: users and GPUs, but neither starts nor partitions."""
    trace = TRACES / "helios_venus_users_may-jun2020.csv.gz"
    names = {"user": "12", "job": "1"}
    return TraceSite(folder, trace, cluster="venus", timezone="Asia/Shanghai", names=names, has_study=True)


def cedar(folder: Path) -> TraceSite:
    """Serve 40 days of Cedar, a larger cluster: 399 users and 44 partitions."""
    trace = TRACES / "sacct_cedar_may-jun2021.txt.gz"
    names = {"user": "u18301", "job": "57979551", "partition": "p19"}
    return TraceSite(folder, trace, cluster="cedar", timezone="UTC", names=names)


class LiveSite(ServedSite):
    """A cluster of fakes on a Monday noon: a queue, ten weeks of history, and a night in which Helios acted.

    An empty one has neither.
    """

    def __init__(self, folder: Path, *, is_empty: bool = False) -> None:
        self.fake_site = _LiveFakes(folder, report={"folder": str(folder / "reports")})
        (folder / "reports").mkdir()
        if is_empty:
            self.fake_site.learn()
        else:
            self.fake_site.fill()
        operations = Operations(
            self.fake_site.settings,
            open_cluster=lambda settings: self.fake_site.live_cluster(),
            clock=lambda: self.fake_site.cluster.now,
        )
        self.site = Site(self.fake_site.settings, clock=lambda: self.fake_site.cluster.now, operations=operations)
        access = Access(token=TOKEN, user_header=USER_HEADER, admins=frozenset({ADMIN}), managers=frozenset({MANAGER}))
        self._server = WebServer(web_application(self.site, access), listen="127.0.0.1:0")
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        names = {"user": "alice", "account": "vision", "partition": "gpu", "node": BAD_NODE, "pool": "sweep"}
        super().__init__(self._server.address, names | {"job": self.fake_site.requeued})
        self.waiting = self.fake_site.waiting

    def close(self) -> None:
        """Stop serving, once or again."""
        self._server._server.should_exit = True
        self._thread.join()


class _LiveFakes(FakeSite):
    """Fakes of a cluster with eight nodes, one of them bad."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        rows = [a_node(name=f"n{number}", partitions="gpu" if number < 7 else "short") for number in range(1, 9)]
        self.nodes = FakeNodes(name="dev", nodes=rows)
        self.nodes.drain(BAD_NODE, reason="GPU 4 fell off the bus")
        self.nodes.submit(nodes=5)
        super().__init__(folder, **settings)
        self.cluster.nodes = self.nodes.snapshot().nodes.to_dict("records")
        self.requeued, self.waiting = "20000", dict[str, list[str]]()

    def live_cluster(self) -> LiveCluster:
        return replace(
            super().live_cluster(),
            nodes=lambda: self.nodes,
            rules=lambda: replace(read_site(SLURM_CONF), qos=QOS),
            reservations=lambda: RESERVATIONS.conform(pd.DataFrame([UPGRADE])),
        )

    def fill(self) -> None:
        """Load the history, and fill the queue."""
        now = pd.Timestamp(NOON)
        queued = [self._queued(number) for number in range(66)]
        batch = a_batch(*_history(now), *_requeued(self.requeued, now), *queued)
        drained = {"node": BAD_NODE, "state": "DRAIN", "started_at": now - pd.Timedelta(hours=6)}
        with self.warehouse() as warehouse:
            options = {"cluster": "dev", "path": "sacct", "sha256": "1", "format": "sacct", "timezone": "UTC"}
            warehouse.load([batch], **options)  # type: ignore[arg-type]  # all are texts
            warehouse.add_predictions("dev", _predicted(batch.jobs), made_at=NOON - timedelta(days=DAYS))
            warehouse.add_trial_runs([_trial(number) for number in range(6)], user="alice")
            nodes = self.nodes.snapshot().nodes.rename(columns={"partitions": "partition"})
            warehouse.add_nodes("dev", NODES.conform(nodes[["name", "partition", "cpus", "gpus", "memory_mib"]]))
            warehouse.add_node_events("dev", NODE_EVENTS.conform(pd.DataFrame([drained | {"reason": "GPU 4 is lost"}])))
            warehouse.add_node_tallies("dev", _tallies(now))
            warehouse.remember("dev", IDLE_GPUS, json.dumps(asdict(HELD_GPUS)), at=NOON)
            begun, read = NOON - timedelta(days=DAYS), {"ended_at": NOON, "read_at": NOON}
            for source in (JOBS, EVENTS):
                warehouse.add_coverage("dev", source=source, started_at=begun, **read)
        self._night()
        loaded, records = load_study(url=self.url, cluster="dev", window=lambda *_: (NOON - timedelta(weeks=4), NOON))
        folder = Path(self.settings.report.folder)
        store_study(study(loaded, records=records), folder, energy=self.settings.energy, now=NOON)
        (folder / "night.html").write_text("<!DOCTYPE html><html lang=en><title>A night</title><p>Quiet.</p></html>")

    def _queued(self, number: int) -> dict[str, Any]:
        """Queue a job, the first ones as running, and return it as the accounting has it."""
        job_id, runs = str(30_000 + number), number < 6
        user = list(USERS)[number % len(USERS)]
        submitted_at = pd.Timestamp(NOON) - pd.Timedelta(hours=9, minutes=-7 * number)
        row: dict[str, Any] = {
            "user": user,
            "account": USERS[user],
            "name": f"{user}-{('train', 'eval', 'prepare')[number % 3]}",
            "partition": "short" if number % 5 == 4 else "gpu",
            "gpus": (4, 1, 8, 2)[number % 4],
            "submitted_at": submitted_at,
            "time_limit_s": 86_400.0,
        }
        reason = ("Priority", "Resources", "QOSMaxGRESPerUser", "Dependency")[number % 4]
        self.cluster.submit(job_id=job_id, reason=reason, **row)
        if runs:
            node = ("n1", "n2", "n4", "n5", "n7", "n6")[number]
            self.cluster.start(job_id, node_list=node)
            row |= {"started_at": submitted_at, "node_list": node}
        else:
            self.waiting.setdefault(user, []).append(job_id)
            row |= {"started_at": None}
        state = "RUNNING" if runs else "PENDING"
        return a_job(job_id=job_id, state=state, run_time_s=float("nan"), ended_at=None, **row)

    def _night(self) -> None:
        """Have Helios act in the night before, and now."""
        self.cluster.now = self.nodes.now = NOON - timedelta(hours=10)
        set_mode(self.url, "dev", "qssf", Mode.ACTIVE, by=ADMIN, reason="a trial", now=self.cluster.now)
        for _ in range(4):
            self._cycle()
            self.cluster.tick(timedelta(minutes=150))
        self.nodes.tick(timedelta(hours=10))
        self._cycle()

    def _cycle(self) -> None:
        self.read()
        self.cycles.cycle(modes=self.cycles.modes())


def _history(now: pd.Timestamp) -> list[dict[str, Any]]:
    """Return jobs of ten weeks; carol's evaluations are always short, which is what advice is about."""
    draw = np.random.default_rng(48)
    jobs = []
    for number in range(DAYS * JOBS_A_DAY):
        user = str(draw.choice(list(USERS), p=(0.35, 0.25, 0.2, 0.15, 0.05)))
        submitted_at = now - pd.Timedelta(hours=float(draw.uniform(10, 24 * DAYS)))
        is_short = draw.random() < 0.2
        values: dict[str, Any] = {
            "name": f"{user}-{('train', 'eval', 'prepare')[number % 3]}",
            "partition": "short" if is_short else "gpu",
            "node_list": f"n{draw.integers(7, 9) if is_short else draw.integers(1, 7)}",
            "state": str(draw.choice(ENDS)),
            "gpus": int(draw.choice([1, 2, 4, 8], p=(0.5, 0.2, 0.15, 0.15))),
            "run_time_s": float(min(draw.lognormal(8, 1.3), 80_000.0)),
            "time_limit_s": float(draw.choice([86_400, 172_800])),
            "started_at": submitted_at + pd.Timedelta(seconds=float(draw.lognormal(6, 2))),
        }
        if values["name"] == "carol-eval":
            values |= {"state": "COMPLETED", "gpus": 1, "run_time_s": float(draw.uniform(500, 700))}
            values |= {"time_limit_s": 172_800.0, "partition": "gpu", "node_list": "n6"}
        left_s = (now - values["started_at"]).total_seconds() - 60.0
        values["run_time_s"] = min(values["run_time_s"], left_s)
        if left_s > 0:
            job_id = str(10_000 + number)
            jobs.append(a_job(job_id=job_id, user=user, account=USERS[user], submitted_at=submitted_at, **values))
    return jobs


def _requeued(job_id: str, now: pd.Timestamp) -> list[dict[str, Any]]:
    """Return the two runs of a job that was preempted."""
    whole = {"user": "alice", "account": "vision", "name": "alice-train", "gpus": 4, "run_time_s": 3_600.0}
    runs = zip(("PREEMPTED", "COMPLETED"), ("n1", "n4"), (52, 49), (50, 46), strict=True)
    return [
        a_job(
            job_id=job_id,
            restart=restart,
            state=state,
            node_list=node,
            submitted_at=now - pd.Timedelta(hours=submitted),
            started_at=now - pd.Timedelta(hours=started),
            **whole,
        )
        for restart, (state, node, submitted, started) in enumerate(runs)
    ]


def _predicted(jobs: pd.DataFrame) -> pd.DataFrame:
    """Return predictions of all jobs that ended, off by up to a factor of two."""
    jobs = jobs[jobs["run_time_s"].notna()]
    p50_s = jobs["run_time_s"] * np.random.default_rng(7).uniform(0.5, 2.0, len(jobs))
    values = {name: p50_s for name in PREDICTIONS.names if name.endswith("_s")}
    values |= {"p10_s": p50_s / 3, "p90_s": 3 * p50_s}
    return jobs[["job_id", "submitted_at", "restart"]].assign(**values, source="shrinkage")


def _trial(number: int) -> TrialRun:
    outcome = ("finished", "pruned", "failed")[number % 3]
    curve = [CurvePoint(step, 60.0 * step, 1.0 / (step + 1) + 0.1 * number) for step in range(1, 11)]
    return a_trial_run(
        number,
        pool="sweep",
        outcome=outcome,
        parameters={"lr": 10.0 ** -(1 + number), "width": 32 << number},
        started_s=NOON.timestamp() - 80_000.0 + 700.0 * number,
        metrics={"loss": 0.1 + 0.1 * number},
        curve=tuple(curve),
    )


def _tallies(now: pd.Timestamp) -> pd.DataFrame:
    """Return counts of nodes of the last week, some of them asleep at night."""
    moments = pd.date_range(now - pd.Timedelta(days=7), now, freq="30min", inclusive="left")
    rows = [
        {"taken_at": at, "pool": "gpu", "total": 5, "busy": 3, "asleep": asleep, "by_helios": asleep, "wanted": 4.0}
        for at in moments
        for asleep in (2 if at.hour < 6 else 0,)
    ]
    return NODE_TALLIES.conform(pd.DataFrame(rows))


SITES: dict[str, Callable[[Path], LiveSite | TraceSite]] = {"live": LiveSite, "venus": venus, "cedar": cedar}
"""What serves each history from an empty folder."""
