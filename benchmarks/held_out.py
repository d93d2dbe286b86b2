"""Every claim on traces that nothing was chosen on: learn on everything before, judge on the next four weeks, go on.

    python -m benchmarks.held_out DIR [--only predictions orders] [--draws 5] [--json]

``DIR`` has traces of any format that Helios reads. Of each trace

- predictions: the model trained on what had happened before each window, against every control there, quantile trees
  of the same features among them;
- orders: waits under Helios' order against plain FIFO + EASY (by time limits) and against size, equally aged,
  over draws of each window, on a machine that its jobs keep busy.

The worst window comes first. ``--json`` prints one row a figure: question, trace, window, ours, control, ratio.
"""

from __future__ import annotations

import argparse
import json
import sys
from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
from numpy.typing import NDArray

from benchmarks import draws
from helios.app.history import LoadedHistory, read_file
from helios.errors import HeliosError
from helios.predict.causal_stats import COLUMN
from helios.predict.duration import train_on
from helios.predict.job_table import JobTable
from helios.predict.scores import QUANTILES, Scores, evaluation_set, pinball_losses, scores_for
from helios.predict.timeline import RecordedWalk, empty_calibration, untrained

WINDOW_S = 28 * 86_400
FEWEST_SCORED = 200
MOST_JOBS = 200_000
"""Jobs of a trace that are read, the last ones."""
MOST_WINDOWS = 6
"""Windows of a trace, the last ones."""
LAST_ENDED = 100
"""Ended jobs of a partition and size that the running median is of."""
TREES = "quantile trees"
TREE_ROUNDS = 250
TREE_PARAMETERS = {
    "objective": "quantile",
    "num_leaves": 31,
    "learning_rate": 0.08,
    "min_data_in_leaf": 40,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "lambda_l2": 1.0,
    "seed": 0,
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "verbose": -1,
}
"""Parameters of LightGBM for the control, fixed before a window was judged. They are not tried again here."""

QUESTIONS = ["predictions", "orders"]
Row = dict[str, Any]
Floats = NDArray[np.float64]


def windows(submitted_s: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield the windows to judge, s since the epoch.

    Each is four weeks long and comes after at least four others; the last ``MOST_WINDOWS`` are taken. A shorter trace
    has one window, its last 30 %.
    """
    first_s, last_s = int(submitted_s[0]), int(submitted_s[-1]) + 1
    if last_s - first_s < 2 * WINDOW_S:
        yield int(submitted_s[int(0.7 * len(submitted_s))]), last_s
        return
    for begin_s in range(first_s + WINDOW_S, last_s - WINDOW_S // 4, WINDOW_S)[-MOST_WINDOWS:]:
        yield begin_s, min(begin_s + WINDOW_S, last_s)


def day(moment_s: int) -> str:
    """Return the day of a moment."""
    return f"{datetime.fromtimestamp(moment_s, UTC):%Y-%m-%d}"


def running_quantiles(table: JobTable, first: int) -> Floats:
    """Return p10, p50 and p90 of the last ended jobs of each job's partition and size, s; NaN before one has ended."""
    found = np.full((table.n, 3), np.nan)
    ends, told = table.ends(), 0
    kept: dict[Any, tuple[deque[float], list[float]]] = defaultdict(lambda: (deque(), []))
    keys = list(zip(table.partition.tolist(), np.nan_to_num(table.size, nan=-1.0).tolist(), strict=True))
    for job in range(table.n):
        while told < len(ends) and table.ended_s[ends[told]] < table.submitted_s[job]:
            run_s = float(table.run_time_s[ends[told]])
            if np.isfinite(run_s):
                order, ranked = kept[keys[ends[told]]]
                order.append(run_s)
                insort(ranked, run_s)
                if len(order) > LAST_ENDED:
                    del ranked[bisect_left(ranked, order.popleft())]
            told += 1
        ranked = kept[keys[job]][1] if keys[job] in kept else []
        if job >= first and ranked:
            found[job] = [ranked[int(share * (len(ranked) - 1))] for share in QUANTILES]
    return found


def control_quantiles(table: JobTable, features: NDArray[np.float32], first: int) -> dict[str, Floats]:
    """Return p10, p50 and p90 by the rules that need no model, s; one number three times where they have no more."""
    running = running_quantiles(table, first)
    median_s = np.nanmedian(table.run_time_s[:first])
    last_s = np.expm1(features[:, COLUMN.user_last_1].astype(np.float64))
    limit_s = np.where(np.isfinite(table.time_limit_s), table.time_limit_s, median_s)
    running = np.where(np.isnan(running), median_s, running)
    return {
        "median of partition and size": running,
        "user's last": np.repeat(np.where(np.isnan(last_s), running[:, 1], last_s)[:, None], 3, axis=1),
        "time limit": np.repeat(limit_s[:, None], 3, axis=1),
    }


def tree_quantiles(table: JobTable, features: NDArray[np.float32], begin_s: int, rows: NDArray[np.int64]) -> Floats:
    """Return p10, p50 and p90 of jobs by one LightGBM model each, s: the standard way to predict run times with bounds.

    They learn the log of the run time from the features that ours has at submission, of the jobs that had ended before
    ``begin_s``. Nothing is calibrated, and quantiles that cross are sorted.
    """
    past = np.flatnonzero((table.ended_s < begin_s) & np.isfinite(table.run_time_s))
    learned = lightgbm.Dataset(features[past], np.log1p(table.run_time_s[past]), params=TREE_PARAMETERS)
    found = [
        lightgbm.train(TREE_PARAMETERS | {"alpha": share}, learned, TREE_ROUNDS).predict(features[rows])
        for share in QUANTILES
    ]
    return np.expm1(np.maximum(np.sort(np.column_stack(found), axis=1), 0.0))


def prediction_rows(name: str, history: LoadedHistory) -> Iterator[Row]:
    """Judge predictions of each window by a model that learned from everything before."""
    table = JobTable.from_frame(history.jobs, timezone=history.timezone)
    for begin_s, end_s in windows(table.submitted_s):
        walk, last = RecordedWalk(table), int(np.searchsorted(table.submitted_s, end_s))
        first = int(np.searchsorted(table.submitted_s, begin_s))
        rows = np.flatnonzero(np.isfinite(table.run_time_s[:last]) & (np.arange(last) >= first))
        if len(rows) < FEWEST_SCORED:
            too_few = f"{len(rows)} jobs have a run time, {FEWEST_SCORED} are needed"
            print(f"{name}, {day(begin_s)} to {day(end_s)}: predictions left out, {too_few}", file=sys.stderr)
            continue
        try:
            model = train_on(walk, table, cluster="x", until=datetime.fromtimestamp(begin_s, UTC), seed=0)
        except HeliosError:
            continue
        plain = walk.branch(calibration=empty_calibration())
        walk.to(end_s, model=model.kernel)
        plain.to(end_s, model=untrained())
        features = walk.timeline.state.features
        judged = evaluation_set(table, features, rows)
        ours, shrinkage = (scores_for(one.predicted[rows], judged) for one in (walk, plain))
        controls = {"shrinkage": shrinkage}
        by_rule = {rule: found[rows] for rule, found in control_quantiles(table, features, first).items()}
        for control, quantiles in (by_rule | {TREES: tree_quantiles(table, features, begin_s, rows)}).items():
            loss = float(pinball_losses(quantiles, judged.run_time_s).mean())
            controls[control] = replace(scores_for(quantiles[:, 1], judged), pinball_log=loss)
        where = {"trace": name, "window": f"{day(begin_s)} to {day(end_s)}", "jobs": len(rows)}
        yield from compared(where, ours, controls)


COMPARED: dict[str, tuple[Callable[[Scores], float | None], bool]] = {
    "pinball": (lambda scores: scores.pinball_log, True),
    "log error": (lambda scores: scores.median_abs_log_error, True),
    "rank": (lambda scores: scores.spearman, False),
    "misallocated": (lambda scores: scores.misallocated, True),
}
"""Figure of each question, and whether less is better."""


def compared(where: Row, ours: Scores, controls: dict[str, Scores]) -> Iterator[Row]:
    """Yield a row for each figure, beside the control that is best in it."""
    for question, (figure, less) in COMPARED.items():
        mine = figure(ours)
        others = {name: value for name, scores in controls.items() if (value := figure(scores)) is not None}
        if mine is None or not others:
            continue
        best = (min if less else max)(others, key=lambda name: others[name])
        ratio = mine / others[best] if others[best] else None
        found = {"ours": mine, "control": others[best], "ratio": ratio, "best": best, "controls": others}
        yield {"question": question, **where, **found}
    mine, other = ours.pinball_log, controls[TREES].pinball_log
    if mine is not None and other:
        beside = {"ours": mine, "control": other, "ratio": mine / other, "best": TREES}
        yield {"question": "pinball beside quantile trees", **where, **beside}
    covered = ours.coverage_p10_p90
    yield {"question": "coverage", **where, "ours": covered, "control": 0.8, "ratio": (covered or 0.0) / 0.8}


def traces(folder: Path) -> list[Path]:
    """Return the files of a folder that may be traces of jobs."""
    return sorted(path for path in folder.iterdir() if path.is_file() and path.suffix.lower() not in {".md", ".py"})


def rows_of(path: Path, asked: argparse.Namespace) -> Iterator[Row]:
    """Yield every row of a trace."""
    if not path.is_file():
        return
    try:
        history = read_file(path)
    except HeliosError as reason:
        print(f"{path.name}: left out: {reason}", file=sys.stderr)
        return
    jobs = history.jobs.iloc[-MOST_JOBS:].reset_index(drop=True)
    history = LoadedHistory(cluster=history.cluster, jobs=jobs, timezone=history.timezone)
    if "predictions" in asked.only:
        yield from prediction_rows(path.name, history)
    if "orders" in asked.only:
        spans = list(windows(JobTable.from_frame(jobs).submitted_s))
        yield from draws.rows(path.name, history, spans, draws=asked.draws)


def badness(row: Row) -> float:
    """Return how bad a figure is beside its control: its ratio, or how far off where 1 is best.

    A ratio to nothing is None.
    """
    ratio = np.inf if row["ratio"] is None else row["ratio"]
    if row["question"] == "coverage":
        return abs(ratio - 1.0)
    return -ratio if row["question"] == "rank" else ratio


def table_of(rows: list[Row]) -> str:
    """Return the rows by question, the worst first."""
    lines = []
    for question in dict.fromkeys(row["question"] for row in rows):
        mine = [row for row in rows if row["question"] == question]
        mine.sort(key=badness, reverse=True)
        known = [row["ratio"] for row in mine if row["ratio"]]
        middle = f"geometric mean of the ratios {np.exp(np.mean(np.log(known))):.3f}" if known else ""
        lines.append(f"\n{question}: {len(mine)} windows, {middle}")
        for row in mine:
            ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f}"
            beside = row.get("best") or row.get("against") or ""
            figures = f"{row['ours']:>10.3f} {row['control']:>10.3f} {ratio:>6}  {beside}"
            lines.append(f"  {row['trace'][:40]:<40} {row['window']:<24} {figures}")
    return "\n".join(lines)


def main(words: list[str] | None = None) -> None:
    """Print the table or its rows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.held_out", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of traces")
    parser.add_argument("--only", nargs="+", choices=QUESTIONS, default=QUESTIONS)
    parser.add_argument("--draws", type=int, default=5, help="draws of each window of orders (default 5)")
    parser.add_argument("--json", action="store_true", help="print rows, one a line")
    asked = parser.parse_args(words)
    paths = traces(asked.folder)
    found: list[Row] = []
    for path in paths:
        print(f"{path.name} ...", file=sys.stderr, flush=True)
        for row in rows_of(path, asked):
            found.append(row)
            if asked.json:
                print(json.dumps(row), flush=True)
    if not asked.json:
        print(table_of(found))


if __name__ == "__main__":
    main()
