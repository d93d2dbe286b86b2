"""What a sweep costs on Dask beside one process, how often intervals hold, what drawing a week twice gives away.

    python -m benchmarks.sweep [TRACE] [--nodes 100] [--from 2020-04-01] [--to 2020-05-06] [--workers 2] [--repeats 10]

Three tables. The first replays the same cells here and in processes and compares the lines, which must be the same. The
second draws weeks from a made-up site whose weeks differ by a known law, and counts how often the 95 % interval holds
the true difference, beside 1.96 standard deviations of the draws, and beside the standard error of their mean. The
third compares how well jobs are predicted in drawn timelines the first time that their week is drawn and later times,
beside the history as it was, and beside a predictor that would learn from copies.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import sqrt
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

from helios.app.history import LoadedHistory, read_file
from helios.app.replay_cluster import parse_nodes
from helios.app.resampling import redraw, resampled_predictor, resampler_for
from helios.app.scenarios import Scenario
from helios.app.sweep import Engine, SweepPlan, cross_options, run_here, run_in_processes, run_on_this_machine, sweep
from helios.app.whatif import ReplaySetup, WhatIfRequest, predictor_for, prepare_replay
from helios.choices import Policy, ResampledUnit, RunTimes
from helios.metrics.statistics import confidence_interval
from helios.ports import ReplayPredictor
from helios.predict.scores import spearman
from helios.simulate import Backfill

TRACES = Path(os.environ.get("HELIOS_TRACES", Path(__file__).parents[2] / "shared" / "traces"))
SITES = 1_000
FIFO = Scenario(policy=Policy.FIFO, backfill=Backfill.EASY, estimates=RunTimes.LIMIT)


def main() -> None:
    """Print all three."""
    options = parsed()
    if not options.trace.exists():
        print(f"skipped: no trace at {options.trace}; set HELIOS_TRACES to their folder")
        return
    history = read_file(options.trace, timezone="Asia/Shanghai")
    request = WhatIfRequest(
        scenarios=(),
        nodes=parse_nodes(options.nodes),
        since=pd.Timestamp(options.since, tz=history.timezone),
        until=pd.Timestamp(options.until, tz=history.timezone),
    )
    costs(history, request, options.workers, options.repeats)
    coverage()
    given_away(history, request)


def costs(history: LoadedHistory, request: WhatIfRequest, workers: int, times: int) -> None:
    """Print wall and CPU seconds of the same sweep in one process and several."""
    plan = SweepPlan(policies=[Policy.FIFO, Policy.SJF, Policy.FEWEST_GPUS], run_times=[RunTimes.TRUE], repeats=times)
    asked = cross_options(plan, base=request, timezone=history.timezone)
    engines: dict[str, Engine] = {
        "one process": run_here,
        f"Dask, {workers} processes": partial(run_in_processes, workers=workers),
        f"as helios does with --workers {workers}": partial(run_on_this_machine, workers=workers),
    }
    print(f"{len(asked.cells)} cells of {history.cluster}, run times true; {os.getloadavg()[0]:.0f} programs were busy")
    written = []
    for name, engine in engines.items():
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out.jsonl"
            began, used = time.perf_counter(), cpu_s()
            sweep(history, asked, out=out, engine=engine)
            print(f"  {name:31s} {time.perf_counter() - began:7.1f} s, CPU {cpu_s() - used:7.1f} s")
            written.append(sorted(out.read_bytes().splitlines()))
    print(f"  lines {'are the same, to the byte' if written[0] == written[1] else 'DIFFER'}\n")


def cpu_s() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def coverage() -> None:
    """Print how often intervals from drawn weeks hold the truth, for weeks that are normal and that are skewed."""
    print(f"share of {SITES:,} made-up sites whose 95 % interval from 20 draws holds the true difference")
    print("  weeks  law        this interval  1.96 sd of draws  1.96 se of their mean")
    rng = np.random.default_rng(0)
    laws: list[tuple[str, Callable[[int], np.ndarray], float]] = [
        ("normal", lambda n: rng.normal(100, 50, n), 100.0),
        ("lognormal", lambda n: rng.lognormal(0, 1, n), float(np.exp(0.5))),
    ]
    for weeks in (4, 8, 26):
        for law, draw, truth in laws:
            ours = plain = naive = 0
            for _ in range(SITES):
                site = draw(weeks)
                draws = site[rng.integers(0, weeks, size=(20, weeks))].mean(axis=1)
                low, high = confidence_interval(draws, value=float(draws.mean()), independent=weeks)
                ours += low is not None and high is not None and low <= truth <= high
                half, off = 1.96 * float(np.std(draws, ddof=1)), abs(float(draws.mean()) - truth)
                plain += off <= half
                naive += off <= half / sqrt(len(draws))
            print(f"  {weeks:5d}  {law:10s} {ours / SITES:13.1%} {plain / SITES:17.1%} {naive / SITES:22.1%}")
    print()


def given_away(history: LoadedHistory, request: WhatIfRequest) -> None:
    """Print how well jobs are predicted in the history and in draws, whether copies teach or not."""
    setup = prepare_replay(history, replace(request, scenarios=(FIFO,)))
    resampler = resampler_for(setup, ResampledUnit.WEEKS)
    found: dict[str, list[tuple[float, float]]] = {
        "history as it was": [judged(setup, resampled_predictor(setup, None, request), setup.counted)]
    }
    for repeat in range(1, 6):
        drawn = redraw(setup, resampler, repeat=repeat, seed=0)
        assert drawn.first is not None
        again = drawn.first != np.arange(len(drawn.first))
        for taught, predictor in (
            ("", resampled_predictor(drawn, None, request)),
            (", were copies learned from", predictor_for(drawn, None, request)),
        ):
            medians = predicted(predictor, drawn)
            for name, rows in (("drawn first", ~again), ("drawn again", again)):
                if (rows & drawn.counted).any():
                    found.setdefault(name + taught, []).append(errors(medians, drawn, rows & drawn.counted))
    print(f"predictions when drawing {resampler.blocks} weeks anew, 5 draws, every job started at once")
    print("  jobs of weeks                          rank correlation  median log error")
    for name, figures in found.items():
        rank, error = np.mean(figures, axis=0)
        print(f"  {name:38s} {rank:16.3f} {error:17.3f}")


def judged(setup: ReplaySetup, predictor: ReplayPredictor, rows: np.ndarray) -> tuple[float, float]:
    """Return the errors of the medians predicted for ``rows``."""
    return errors(predicted(predictor, setup), setup, rows)


def errors(medians: np.ndarray, setup: ReplaySetup, rows: np.ndarray) -> tuple[float, float]:
    """Return rank correlation and median log error of ``rows``."""
    p50, true = medians[rows], setup.workload.run_time_s[rows]
    error = float(np.median(np.abs(np.log1p(p50) - np.log1p(true))))
    return spearman(p50, true.astype(np.float64)) or 0.0, error


def predicted(predictor: ReplayPredictor, setup: ReplaySetup) -> np.ndarray:
    """Return the predicted medians, s, when every job starts at its submission."""
    work = setup.workload
    ends_s = work.submitted_s + work.run_time_s
    order = np.lexsort((np.arange(len(work)), ends_s))
    medians, told = np.empty(len(work)), 0
    for now_s, first in zip(*np.unique(work.submitted_s, return_index=True), strict=True):
        until = int(np.searchsorted(ends_s[order], now_s))
        if until > told:
            predictor.ended(order[told:until], ends_s[order[told:until]])
            told = until
        these = np.arange(first, np.searchsorted(work.submitted_s, now_s, side="right"))
        medians[these] = predictor.submitted(these, int(now_s))[:, 1]
    return medians


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path, default=TRACES / "helios_venus_mar-aug2020.csv.gz")
    parser.add_argument("--nodes", default="100")
    parser.add_argument("--from", dest="since", default="2020-04-01")
    parser.add_argument("--to", dest="until", default="2020-05-06")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=10)
    return parser.parse_args()


if __name__ == "__main__":
    main()
