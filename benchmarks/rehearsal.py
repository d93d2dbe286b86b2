"""Services in the loop: jobs per second of a replay in which a service acts, beside the compiled policy, in one run.

    python -m benchmarks.service replay [--jobs N] [--only kth,philly] [--with-model]

The traces are KTH-SP2 on its 100 nodes and Philly per virtual cluster at 40 % of its nodes, from the folder that
HELIOS_TRACES names. All replays have the same jobs, the same machine, EASY by the users' limits (7 days where there is
none) and the same predictor, which knows the run times and costs next to nothing. QSSF is asked at every event where
something may start, has neither grid nor promotion, and is compared with the compiled policy start by start. As sites
run it, it has both, and is asked every 30 s. The night owl is the package of docs/write-a-service.md, unchanged.

Rates are per CPU second, set-up included, compilation not; the better of two replays. With ``--with-model`` jobs are
predicted as in ``helios whatif --service``, by a model that is trained on the way, which is most of what a service
replay costs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests/thirdparty/helios-night-owl"))

from helios_night_owl import NightOwl

from helios.actions import Action
from helios.app.history import read_file
from helios.app.replay_cluster import parse_nodes
from helios.app.service_replay import PREDICT_AGAIN_S, ReplayedService, replay_services
from helios.app.whatif import ReplaySetup, WhatIfRequest, predictor_for, prepare_replay
from helios.model import Snapshot
from helios.ports import Service
from helios.services.qssf import Qssf, shortest_service_first
from helios.simulate import Backfill, Replay, SimCluster, replay
from tests.traces import TRACES

AT_ONCE = timedelta(0)
SITE_FACTOR_MOST = 10_000
PHILLY = "6214e9=26,7f04ca=13,11cb48=6,b436b2=26,ee9e8c=26,e13805=6,6c71a0=13,2869ce=6,ed69ec=3,103959=3,0e4a51=13"
MACHINES: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "kth": ("KTH-SP2-1996-2.1-cln.swf.gz", None, {"nodes": {"all": 100}, "gpus_per_node": 1}),
    "philly": (
        "philly_vc_aug-oct2017.csv.gz",
        "America/Los_Angeles",
        {"nodes": parse_nodes(PHILLY), "skip_oversized": True},
    ),
}


class Oracle:
    """A predictor that knows every run time."""

    def __init__(self, setup: ReplaySetup) -> None:
        self.quantiles_s = np.repeat(setup.workload.run_time_s.astype(np.float64)[:, None], 3, axis=1)
        self.source, self.sources = np.zeros(len(setup.workload), dtype=np.int16), ["oracle"]

    def ended(self, jobs: NDArray[np.int64], ended_s: NDArray[np.int64]) -> None:
        """Learn nothing."""

    def submitted(self, jobs: NDArray[np.int64], now_s: int) -> NDArray[np.float64]:  # noqa: ARG002  because of the port
        """Tell the run times."""
        return self.quantiles_s[jobs]

    def waiting(self, jobs: NDArray[np.int64], now_s: int, **running: Any) -> NDArray[np.float64]:  # noqa: ARG002
        """Tell them again."""
        return self.quantiles_s[jobs]


class Silent:
    """A service that proposes nothing."""

    every = AT_ONCE

    def decide(self, snapshot: Snapshot) -> Iterable[Action]:  # noqa: ARG002  because of the port
        """Propose nothing."""
        return ()


def paper() -> Qssf:
    """Return QSSF as the paper has it."""
    return Qssf(Qssf.Options(order="service", levels=0, promote_after_s=float("inf")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to have a service in the loop."""

    title: str
    service: Callable[[], Service]
    every: timedelta = AT_ONCE
    jobwise: bool = True
    site_factor_most: int | None = SITE_FACTOR_MOST
    predict_again_s: int | None = None


DEFAULT = Qssf(Qssf.Options())
AGAIN = Way(
    title="  and predicted again", service=lambda: DEFAULT, every=DEFAULT.every, predict_again_s=PREDICT_AGAIN_S
)
WAYS = [
    Way(title="qssf, jobwise, exact", service=paper, site_factor_most=None),
    Way(title="qssf, whole queue, exact", service=paper, site_factor_most=None, jobwise=False),
    Way(title="qssf as sites run it", service=lambda: DEFAULT, every=DEFAULT.every),
    AGAIN,
    Way(title="night owl", service=lambda: NightOwl(NightOwl.Options()), every=NightOwl.every),
    Way(title="a silent service", service=Silent),
]


def staged(name: str, jobs: int) -> ReplaySetup:
    """Return the first ``jobs`` of a trace on its machine."""
    trace, timezone, machine = MACHINES[name]
    history = read_file(TRACES / trace, timezone=timezone)
    submitted = history.jobs["submitted_at"]
    until = submitted.iloc[jobs] if jobs < len(submitted) else None
    return prepare_replay(history, WhatIfRequest(scenarios=(), until=until, **machine))


def compiled(setup: ReplaySetup) -> Replay:
    """Replay with QSSF as a policy of the core."""
    return replay(
        setup.workload,
        setup.machine.shape,
        backfill=Backfill.EASY,
        order=shortest_service_first,
        estimate_s=setup.limit_s,
        predictor=Oracle(setup),
    )


def known_beforehand(setup: ReplaySetup) -> Replay:
    """Replay with QSSF as a policy of the core that knows all predictions before it begins."""
    return replay(
        setup.workload,
        setup.machine.shape,
        backfill=Backfill.EASY,
        order=shortest_service_first,
        run_time_s=setup.workload.run_time_s.astype(np.float64),
        estimate_s=setup.limit_s,
    )


def played(setup: ReplaySetup, way: Way, predictor: Any) -> tuple[SimCluster, ReplayedService]:
    """Replay with a service acting."""
    cluster = SimCluster(
        setup.workload,
        setup.machine.shape,
        setup.machine.jobs,
        estimates_s=setup.limit_s,
        site_factor_most=way.site_factor_most,
    )
    active = ReplayedService(name=way.title, service=way.service(), every=way.every)
    replay_services(cluster, [active], predictor=predictor, jobwise=way.jobwise, predict_again_s=way.predict_again_s)
    return cluster, active


def timed(work: Callable[..., Any], times: int = 2) -> tuple[float, Any]:
    """Return the least CPU time of several, s, and the last result."""
    best = np.inf
    for _ in range(times):
        start = time.process_time()
        result = work()
        best = min(best, time.process_time() - start)
    return best, result


def compare(name: str, jobs: int, *, with_model: bool) -> None:
    """Print the rates on one trace."""
    setup = staged(name, jobs)
    print(f"\n{name}: {len(setup.workload):,} jobs, {setup.machine.shape.total_gpus:,} GPUs or CPUs")
    print(f"  {'':<26}{'jobs/s':>10}{'of compiled':>13}{'asks':>9}{'mean wait':>12}   starts as compiled")
    of_s, policy = timed(lambda: compiled(setup))
    line("compiled policy", policy.wait_s, took_s=of_s, of_s=of_s)
    took_s, _ = timed(lambda: known_beforehand(setup))
    line("  told all beforehand", policy.wait_s, took_s=took_s, of_s=of_s)
    for way in WAYS:
        took_s, (cluster, active) = timed(lambda way=way: played(setup, way, Oracle(setup)))
        other = int((cluster.started_s != policy.started_s).sum())
        wait_s = cluster.started_s - setup.workload.submitted_s
        verdict = f"all but {other:,}" if other else "all"
        line(way.title, wait_s, took_s=took_s, of_s=of_s, asks=f"{active.asked:,}", verdict=verdict)
    if with_model:
        model = predictor_for(setup, None, WhatIfRequest(scenarios=()))
        took_s, (cluster, active) = timed(lambda: played(setup, AGAIN, model), 1)
        wait_s = cluster.started_s - setup.workload.submitted_s
        line("  by a model", wait_s, took_s=took_s, of_s=of_s, asks=f"{active.asked:,}")


def line(
    title: str, wait_s: NDArray[np.int64], *, took_s: float, of_s: float, asks: str = "", verdict: str = ""
) -> None:
    """Print one row."""
    rate, share, wait = len(wait_s) / took_s, of_s / took_s, wait_s.mean()
    print(f"  {title:<26}{rate:>10,.0f}{share:>13.1%}{asks:>9}{wait:>10,.0f} s   {verdict}", flush=True)


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=sys.maxsize, help="Only the first so many of each trace")
    parser.add_argument("--only", default=",".join(MACHINES))
    parser.add_argument("--with-model", action="store_true")
    given = parser.parse_args()
    for name in given.only.split(","):
        if not (TRACES / MACHINES[name][0]).is_file():
            print(f"{MACHINES[name][0]} is not in the folder of traces; set HELIOS_TRACES to where it is.")
            continue
        compare(name, given.jobs, with_model=given.with_model)


if __name__ == "__main__":
    main()
