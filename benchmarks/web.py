"""Time of each page of the web site on a large warehouse: ``python -m benchmarks.web [JOBS] [--url URL]``.

Every page is asked with an empty cache, for the week at the end of the history. Beside wall time stand CPU seconds, and
a plain reading of the jobs of the same week, which no page of them can do without.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
from starlette.testclient import TestClient

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.study import JOBS_A_DAY, START
from helios.app.history import ingest
from helios.app.reports import ReportQuery, open_context
from helios.config import Settings
from helios.ingest import synthetic_trace, write_helios_csv
from helios.study.study import load_study, store_study, study
from helios.web.application import Access, web_application
from helios.web.site import Site

TOKEN = "a token of this benchmark"
PAGES = (
    "/",
    "/history",
    "/jobs",
    "/waiting",
    "/partitions",
    "/accounts",
    "/users",
    "/users/{user}",
    "/predictions",
    "/decisions",
    "/services",
    "/advice",
    "/study",
    "/reports",
)
TIMES = 10


def timed(work: Callable[[], object]) -> tuple[list[float], list[float]]:
    """Return wall and CPU times of several runs, ms."""
    walls, cpus = [], []
    for _ in range(TIMES):
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        work()
        walls.append(1e3 * (time.perf_counter() - wall_s))
        cpus.append(1e3 * (time.process_time() - cpu_s))
    return walls, cpus


def show(name: str, status: object, times: tuple[list[float], list[float]]) -> None:
    """Print a row."""
    wall_ms, cpu_ms = times
    figures = (np.median(wall_ms), np.quantile(wall_ms, 0.95), np.median(cpu_ms), np.quantile(cpu_ms, 0.95))
    print(f"{name:24s} {status!s:>6s}" + "".join(f" {figure:8.0f}" for figure in figures))


def main() -> None:
    """Print a row for each page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="?", type=int, default=1_000_000)
    parser.add_argument("--url", help="an empty database; default: a SQLite file of its own")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, url = Path(name), asked.url or f"sqlite:///{name}/helios.db"
        jobs = synthetic_trace(profile="saturn", start=START, days=int(asked.jobs / JOBS_A_DAY) + 1).head(asked.jobs)
        write_helios_csv(jobs, folder / "jobs.csv.gz")
        ingest(folder / "jobs.csv.gz", url=url, timezone="UTC")
        end = jobs["submitted_at"].max().to_pydatetime() + timedelta(hours=1)
        user = str(jobs["user"].iloc[-1])
        settings = Settings.model_validate(
            {"database": {"url": url}, "control": {"state_folder": name}, "report": {"folder": name}}
        )

        loaded, records = load_study(url=url, cluster=None, window=lambda *_: (end - timedelta(weeks=1), end))
        store_study(study(loaded, records=records), folder, energy=settings.energy, now=end)
        del loaded, records

        def read() -> None:
            with open_context(ReportQuery(url=url, now=end)) as context:
                context.jobs()

        print(f"{len(jobs):,} jobs, {url.partition(':')[0]}")
        print(f"{'page':24s} {'status':>6s} {'p50 ms':>8s} {'p95 ms':>8s} {'CPU p50':>8s} {'CPU p95':>8s}")
        show("reading the week", "-", timed(read))
        for path in PAGES:
            status: list[object] = []

            def ask(path: str = path, status: list[object] = status) -> None:
                site = Site(settings, clock=lambda: end)
                site.live = lambda: "no cluster here"  # type: ignore[method-assign]  # what is timed is the warehouse
                with TestClient(web_application(site, Access(token=TOKEN)), base_url="http://127.0.0.1") as web:
                    answer = web.get(path.format(user=user), headers={"Authorization": f"Bearer {TOKEN}"})
                    status.append(answer.status_code)

            times = timed(ask)
            show(path, status[-1], times)


if __name__ == "__main__":
    main()
