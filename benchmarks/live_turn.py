"""A whole cycle on a real Slurm with many pending jobs: look, predict, decide, check, write, read back, write down.

Beside it, in the same run, the naive way to write the same: one ``scontrol update`` for each job.

Usage: python -m benchmarks.live_turn [PENDING] [HISTORY_DAYS]   (as root, with Slurm installed)
"""

import os
import shutil
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from helios.app.controllers import JobController
from helios.app.history import load_history
from helios.app.live_cluster import open_live_cluster
from helios.app.model_registry import learn
from helios.app.sync import JOBS as JOBS_READ
from helios.config import Settings
from helios.control import CycleReport, ServiceMode
from helios.ingest import synthetic_trace
from helios.model import REJECTS, Batch, Mode
from helios.slurm import shell
from helios.warehouse import Warehouse
from tests.live.rig import Rig, roomy_folder

CYCLE_S = 60
NAIVE_WRITES = 100
WRITES = 500
"""The default of slurm.writes_per_cycle."""
STARTED: Counter[str] = Counter()


def count_processes() -> None:
    """Count every process that the Slurm room starts, by program."""
    start = shell.Shell.start

    def counted(self: shell.Shell, program: str, *words: str, **options: Any) -> Any:
        STARTED[program] += 1
        return start(self, program, *words, **options)

    shell.Shell.start = counted  # type: ignore[method-assign]  # because this is a benchmark


def settings_for(folder: Path, *, writes: int) -> Settings:
    """Return settings of a Helios below ``folder``."""
    return Settings.model_validate(
        {
            "database": {"url": f"sqlite:///{folder / 'helios.db'}"},
            "slurm": {"backend": "commands", "writes_per_cycle": writes},
            "control": {"state_folder": str(folder / "state"), "most_of_one_user": 1.0},
            "services": {"qssf": {"every_s": 1}},
        }
    )


def remember(settings: Settings, cluster: str, *, days: int) -> int:
    """Fill the warehouse with a made-up history and a model; return the number of jobs."""
    now = datetime.now(UTC)
    jobs = synthetic_trace(start=now - timedelta(days=days + 1), days=days)
    with Warehouse.open(settings.database.url) as warehouse:
        batch = Batch(jobs=jobs, rejects=REJECTS.empty(), bytes_read=0)
        warehouse.load([batch], cluster=cluster, path="synthetic", sha256="1", format="helios", timezone="UTC")
        warehouse.add_coverage(
            cluster, source=JOBS_READ, started_at=now - timedelta(days=days), ended_at=now, read_at=now
        )
    history = load_history(url=settings.database.url, cluster=cluster)
    learn(history, url=settings.database.url, until=None, seed=0, made_at=now)
    return len(jobs)


def queue_up(rig: Rig, pending: int) -> None:
    """Submit ``pending`` jobs that will not start."""
    users = ("alice", "bob", "carol")
    with ThreadPoolExecutor(4) as several:
        list(
            several.map(
                lambda n: rig.submit(user=users[n % 3], gpus=1 + n % 8, limit=str(10 + n % 500)), range(pending)
            )
        )
    rig.until(lambda: len(rig.site_factors()) >= pending, longest_s=120)


def cycle(cycles: JobController) -> tuple[CycleReport, float, Counter[str]]:
    """Take one cycle; return what came of it, its seconds and the processes that it started."""
    STARTED.clear()
    began = time.perf_counter()
    report = cycles.cycle(modes={"qssf": ServiceMode(mode=Mode.ACTIVE)})
    return report, time.perf_counter() - began, STARTED.copy()


def say(what: str, report: CycleReport, seconds: float, started: Counter[str]) -> None:
    """Print one cycle."""
    counts = {str(result): number for counted in report.counts.values() for result, number in counted.items()}
    processes = f"{sum(started.values()):>3} processes {dict(started)}"
    print(f"{what:<34} {seconds:6.2f} s   {report.acted:>5,} written   {processes}")
    print(f"{'':<34} {counts} {' '.join(report.suspended)}")


def naive(rig: Rig) -> float:
    """Return the seconds that one ``scontrol update`` a job takes, for one job."""
    jobs = list(rig.site_factors())[:NAIVE_WRITES]
    began = time.perf_counter()
    for job in jobs:
        rig.run("scontrol", "update", f"JobId={job}", "SiteFactor=0")
    return (time.perf_counter() - began) / len(jobs)


def main(pending: int, days: int) -> None:
    """Measure, and print."""
    folder = roomy_folder()
    settings = {"CONF": "", "PARTITIONS": "PartitionName=gpu Nodes=ALL Default=YES MaxTime=7-0 State=DOWN"}
    rig = Rig(folder / "slurm", settings=settings)
    (folder / "slurm").mkdir()
    try:
        rig.control("up")
        os.environ["SLURM_CONF"] = rig.environment["SLURM_CONF"]
        chosen = settings_for(folder, writes=WRITES)
        jobs = remember(chosen, rig.name, days=days)
        queue_up(rig, pending)
        site = open_live_cluster(chosen)
        count_processes()
        print(f"{pending:,} jobs pending, a history of {jobs:,} jobs, a model; Slurm's commands")
        cycles = JobController(site, chosen)
        for number in range(1, 3 + -(-pending // WRITES)):
            quiet = cycle_of(cycles, f"turn {number}")
            time.sleep(1)
        each = naive(rig)
        print(f"naive, one scontrol a job: {1e3 * each:.1f} ms each, {each * pending:.2f} s and {pending:,} processes")
        calls = sum(quiet.values()) * 60 / CYCLE_S
        print(f"steady state, a cycle every {CYCLE_S} s: {calls:.0f} calls of Slurm a minute, for any number of jobs")
        site.close()
    finally:
        rig.control("wipe")
        shutil.rmtree(folder, ignore_errors=True)


def cycle_of(cycles: JobController, what: str) -> Counter[str]:
    """Take a cycle, print it, and return the processes that it started."""
    report, seconds, started = cycle(cycles)
    say(what, report, seconds, started)
    return started


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000, int(sys.argv[2]) if len(sys.argv) > 2 else 60)
