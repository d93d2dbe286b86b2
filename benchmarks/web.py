"""CPU and wall time of each page's first request on a large warehouse: ``python -m benchmarks.web [--jobs N]``.

A history of N jobs is made from a million of the Saturn profile, repeated with moved times, with a prediction for each
job of its last year. ``--database`` names where: ``sqlite``, ``postgresql`` (a server of its own), or the URL of an
empty database; by default both kinds. ``--keep FOLDER`` makes a SQLite history once and finds it there again.

Each page is asked for its own window and for a wide one, the last year. *Cold*: the first request of a new process
after the start of the server. *Warm*: the first request of a new reader, of whom nothing is kept, in a process that
has answered the same before. CPU time is that of the process, and of PostgreSQL's processes beside; wall time grows
with whatever else the machine does. With ``--pages`` only those that begin with these texts are asked.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
from starlette.testclient import TestClient

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.study import JOBS_A_DAY, START
from helios.app.clusters import keep_complete_part
from helios.app.reports import ReportQuery, open_context
from helios.config import Settings
from helios.ingest import synthetic_trace
from helios.model import JOBS, REJECTS, Batch
from helios.study.study import load_study, store_study, study
from helios.warehouse import Warehouse
from helios.web.application import Access, web_application
from helios.web.site import Site

TOKEN = "a token of this benchmark"
PAGES = (
    *("/", "/history", "/jobs", "/waiting", "/partitions", "/partitions/{partition}", "/accounts"),
    *("/accounts/{account}", "/users", "/users/{user}", "/predictions", "/decisions", "/services", "/energy"),
    *("/advice", "/study", "/reports"),
)
WITHOUT_WINDOW = ("/", "/study", "/reports")
WIDE = timedelta(days=365)
TIMES = 5
CLUSTER = "saturn"
PART = 1_000_000
"""Jobs that are made; what is more repeats them."""
ROWS = 50_000
"""Jobs of a batch."""
ACCOUNTS = 40
Times = tuple[float, float, float]
"""CPU time of the process, of the database server, and wall time, ms."""


def history(n_jobs: int) -> Iterator[Batch]:
    """Yield the jobs in submission order."""
    part = synthetic_trace(profile="saturn", start=START, days=int(min(n_jobs, PART) / JOBS_A_DAY) + 2)
    part = part.head(min(n_jobs, PART))
    users = part["user"].astype("category")
    part = part.assign(account=pd.Categorical([f"lab{code % ACCOUNTS}" for code in users.cat.codes]))
    length = (part["submitted_at"].max() - START).ceil("D")
    for copy in range(-(-n_jobs // len(part))):
        rows = part.head(n_jobs - copy * len(part))
        ids = pd.Series(np.arange(len(rows)) + copy * len(part) + 1, index=rows.index).astype("str")
        moved = {name: rows[name] + copy * length for name in rows.columns if name.endswith("_at")}
        rows = JOBS.conform(rows.assign(job_id=ids, **moved))
        for first in range(0, len(rows), ROWS):
            batch = rows.iloc[first : first + ROWS].reset_index(drop=True)
            yield Batch(jobs=batch, rejects=REJECTS.empty(), bytes_read=0)


def prepare(url: str, folder: str, n_jobs: int) -> None:
    """Load the history, its predictions and its study."""
    began = time.process_time()
    with Warehouse.open(url) as warehouse:
        warehouse.load(history(n_jobs), cluster=CLUSTER, path="p", sha256="0", format="helios", timezone="UTC")
        print(f"made and loaded {n_jobs:,} jobs: {time.process_time() - began:.0f} s of CPU time", flush=True)
        keep_complete_part(warehouse, CLUSTER)
        last = warehouse.clusters()["last_submitted_at"].iloc[0].to_pydatetime()
        columns = ["job_id", "submitted_at", "restart", "run_time_s"]
        jobs = warehouse.jobs(CLUSTER, since=last - WIDE, columns=columns)
        guess = jobs.pop("run_time_s").fillna(60.0) * np.random.default_rng(0).lognormal(0, 1, len(jobs))
        named = {"p10_s": guess / 3, "p50_s": guess, "p90_s": 3 * guess, "typical_s": guess, "mean_s": guess}
        jobs = jobs.assign(**named, truncated_mean_s=guess, source=pd.Categorical(["trees"] * len(jobs)))
        warehouse.add_predictions(CLUSTER, jobs, last)
    settings, now = settings_for(url, folder), last + timedelta(hours=1)
    loaded, records = load_study(url=url, cluster=None, window=lambda *_: (now - timedelta(weeks=1), now))
    store_study(study(loaded, records=records), Path(folder), energy=settings.energy, now=now)


def settings_for(url: str, folder: str) -> Settings:
    """Return settings of a site that has nothing but a warehouse, whatever Slurm this machine has."""
    folders = {"control": {"state_folder": folder}, "report": {"folder": folder}, "slurm": {"commands": folder}}
    return Settings.model_validate({"database": {"url": url}, **folders})


def addresses(url: str, chosen: Sequence[str]) -> tuple[datetime, list[str]]:
    """Return the end of the history and the addresses to ask for."""
    with Warehouse.open(url) as warehouse:
        last = warehouse.clusters()["last_submitted_at"].iloc[0].to_pydatetime()
        kinds = ["user", "account", "partition"]
        jobs = warehouse.jobs(CLUSTER, since=last - timedelta(weeks=1), columns=kinds)
    # The largest of each kind, of which a page has most to read.
    names = {kind: str(jobs[kind].value_counts().index[0]) for kind in kinds}
    wide = f"?from={last - WIDE:%Y-%m-%d}"
    pages = [page.format(**names) for page in PAGES if not chosen or page.startswith(tuple(chosen))]
    return last + timedelta(hours=1), [
        page + window for page in pages for window in ([""] if page in WITHOUT_WINDOW else ["", wide])
    ]


def server_cpu_s(postmaster: int | None) -> float:
    """Return the CPU time that the processes of a PostgreSQL server have taken, s."""
    if postmaster is None:
        return 0.0
    server = psutil.Process(postmaster)
    ended = server.cpu_times()
    spent = ended.children_user + ended.children_system
    for process in server.children():
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        spent += times.user + times.system
    return spent


def ask(settings: Settings, now: datetime, path: str, *, postmaster: int | None) -> tuple[int, int, Times]:
    """Return status, size and times of a new reader's request."""
    site = Site(settings, clock=lambda: now)
    site.live = lambda: "no cluster here"  # type: ignore[method-assign]  # what is timed is the warehouse
    site.prepare()
    with TestClient(web_application(site, Access(token=TOKEN)), base_url="http://127.0.0.1") as web:
        server_s, wall_s, cpu_s = server_cpu_s(postmaster), time.perf_counter(), time.process_time()
        answer = web.get(path, headers={"Authorization": f"Bearer {TOKEN}"})
        cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
        server_s = server_cpu_s(postmaster) - server_s
    return answer.status_code, len(answer.content), (1e3 * cpu_s, 1e3 * server_s, 1e3 * wall_s)


def read_week(settings: Settings, now: datetime) -> None:
    """Read the jobs of a week plainly, which no page of them can do without."""
    start = f"{now - timedelta(weeks=1):%Y-%m-%d}"
    with open_context(ReportQuery(url=settings.database.url, now=now, start=start)) as context:
        context.jobs()


def apart(work: Callable[[], Any], *, context: str = "fork") -> Any:
    """Return the result of ``work`` in a process of its own."""
    with get_context(context).Pool(1) as pool:
        return pool.apply(work)


def repeat(work: Callable[[], Any]) -> list[Any]:
    """Return what ``work`` returns several times, after the first time."""
    return [work() for _ in range(TIMES + 1)][1:]


def show(path: str, cold: list[tuple[int, int, Times]], warm: list[tuple[int, int, Times]]) -> None:
    """Print the row of a page."""
    status, size, _ = cold[-1]
    print(f"{path:34s} {status:4d} {size / 1e3:5.0f}", end="")
    for found in (cold, warm):
        times = np.array([spent for *_, spent in found])
        figures = [np.quantile(times[:, column], share) for column in range(3) for share in (0.5, 0.95)]
        print(" |" + "".join(f" {figure:6.0f}" for figure in figures), end="")
    print(flush=True)


def measure(url: str, folder: str, *, chosen: Sequence[str], postmaster: int | None = None) -> None:
    """Print a row for each page. This process itself never opens the database, so that its forks are cold."""
    settings = settings_for(url, folder)
    now, paths = apart(partial(addresses, url, chosen))
    week = apart(partial(repeat, partial(timed, partial(read_week, settings, now))))
    print(f"a plain reading of the jobs of a week: {np.median(week):.0f} ms of CPU time")
    print(f"{'':44s} | {'cold: CPU, server, wall ms':>41s} | {'warm: CPU, server, wall ms':>41s}")
    print(f"{'page':34s} {'':4s} {'KB':>5s}" + (" |" + f"{'p50':>7s}{'p95':>7s}" * 3) * 2)
    for path in paths:
        one = partial(ask, settings, now, path, postmaster=postmaster)
        show(path, [apart(one) for _ in range(TIMES)], apart(partial(repeat, one)))


def timed(work: Callable[[], object]) -> float:
    """Return the CPU time of ``work``, ms."""
    began = time.process_time()
    work()
    return 1e3 * (time.process_time() - began)


@contextmanager
def database(name: str, folder: str) -> Iterator[tuple[str, int | None]]:
    """Provide an empty database, and the process of its server."""
    if name == "sqlite":
        yield f"sqlite:///{folder}/helios.db", None
        return
    if name != "postgresql":
        yield name, None
        return
    from tests.postgres import fresh_database, postgres_server  # noqa: PLC0415 - they bring pytest

    with postgres_server() as server, fresh_database(server) as url:
        pid = Path(server.partition("host=")[2], "data", "postmaster.pid").read_text().split()[0]
        yield url, int(pid)


def main() -> None:
    """Print the table of each database."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--database", nargs="+", default=["sqlite", "postgresql"], help="sqlite, postgresql or a URL")
    parser.add_argument("--pages", nargs="+", default=[], help="begins of addresses, such as /users")
    parser.add_argument("--keep", type=Path, help="a folder for the SQLite file, which is used again")
    asked = parser.parse_args()
    for name in asked.database:
        with ExitStack() as stack:
            folder = str(asked.keep or stack.enter_context(tempfile.TemporaryDirectory()))
            url, postmaster = stack.enter_context(database(name, folder))
            print(f"{asked.jobs:,} jobs, {url.partition(':')[0]}", flush=True)
            if name != "sqlite" or not Path(folder, "helios.db").exists():
                Path(folder).mkdir(parents=True, exist_ok=True)
                apart(partial(prepare, url, folder, asked.jobs), context="spawn")
            measure(url, folder, chosen=asked.pages, postmaster=postmaster)


if __name__ == "__main__":
    main()
