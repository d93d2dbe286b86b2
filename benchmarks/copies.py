"""What drawing a week twice gives away to predictions.

    python -m benchmarks.copies [TRACE] [--nodes 100] [--from 2020-04-01] [--to 2020-05-06]

The table compares how well jobs are predicted in drawn timelines the first time that their week is drawn and later
times, beside the history as it was, and beside a predictor that would learn from copies.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))


from helios.app.history import LoadedHistory, read_file
from helios.app.replay_cluster import parse_nodes
from helios.app.resampling import redraw, resampled_predictor, resampler_for
from helios.app.scenarios import Scenario
from helios.app.whatif import ReplaySetup, WhatIfRequest, predictor_for, prepare_replay
from helios.choices import Policy, ResampledUnit, RunTimes
from helios.ports import ReplayPredictor
from helios.predict.scores import spearman
from helios.simulate import Backfill

TRACES = Path(os.environ.get("HELIOS_TRACES", Path(__file__).parents[2] / "shared" / "traces"))
FIFO = Scenario(policy=Policy.FIFO, backfill=Backfill.EASY, estimates=RunTimes.LIMIT)


def main() -> None:
    """Print the table."""
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
    given_away(history, request)


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
    return parser.parse_args()


if __name__ == "__main__":
    main()
