"""What families of job names add over exact names and stems, on names made up for it; and how fast they are found.

No public trace has readable job names, so the first table is of invented jobs whose names tell of them as people's do.
It can show that families find kin where there is kin, and do no harm where there is none; not what a real site gains.

Usage: python -m benchmarks.names [JOBS]
"""

from __future__ import annotations

import hashlib
import string
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.model import JOBS
from helios.predict.job_table import JobNameFamilies, JobTable, causal_features, past_mean_s
from helios.predict.scores import spearman

TASKS = {"train": 9.5, "pretrain": 10.8, "finetune": 8.5, "eval": 6.5, "debug": 4.5, "preprocess": 7.0}
MODELS = {
    "resnet": -0.6,
    "vit": 0.3,
    "bert": 0.2,
    "gpt": 1.0,
    "unet": -0.2,
    "yolo": 0.0,
    "wav2vec": 0.5,
    "diffusion": 0.8,
}
SETS = {"imagenet": 0.8, "cifar": -1.0, "coco": 0.4, "wikitext": 0.0, "librispeech": 0.5, "kitti": -0.3}
TWISTS = (
    "baseline",
    "nodrop",
    "fixed",
    "warmup",
    "ema",
    "final",
    "clean",
    "amp",
    "wide",
    "tiny",
    "cosine",
    "noaug",
    "rerun",
)
NOISE, OF_PROJECT = 0.5, 0.7

STYLES = {
    "only numbers vary": "{task}_{model}{size}_{data}_lr{rate}_seed{run}",
    "words vary": "{task}-{model}-{data}-{twists}-v{few}",
    "date and word in front": "2024-{month:02}-{day:02}_{twist}_{task}_{model}_{data}",
    "script of a sweep": "sweep-{few}/{task}_{model}_{run}.sh",
    "unrelated words": "{twist}_{other}{few}",
    "hash": "{hash}",
}


def named(style: str, rng: np.random.Generator, *, task: str, model: str, data: str) -> str:
    """Return the name of one job of a campaign in ``style``."""
    run, twists = int(rng.integers(1000)), [str(one) for one in rng.choice(TWISTS, 3, replace=False)]
    return STYLES[style].format(
        **{"task": task, "model": model, "data": data, "run": run, "few": run % 7, "twist": twists[0]},
        size=rng.choice([18, 50, 101]),
        rate=rng.choice([0.1, 0.01, 3e-4]),
        twists="-".join(twists[: rng.integers(1, 4)]),
        other=twists[1],
        month=rng.integers(1, 13),
        day=rng.integers(1, 29),
        hash=hashlib.sha256(f"{task}{model}{data}{run}".encode()).hexdigest(),
    )


def invented(n: int, style: str, *, seed: int = 0, users: int = 60) -> pd.DataFrame:
    """Return ``n`` jobs, columns of ``JOBS``: how long they run is their campaign's, which their names tell."""
    rng = np.random.default_rng(seed)
    per_campaign = 12
    campaigns = n // per_campaign + 1
    who = np.minimum(rng.zipf(1.5, campaigns) - 1, users - 1)
    own = rng.normal(0, 0.7, users)
    begin = np.sort(rng.uniform(0, 180 * 86_400, campaigns))
    rows = []
    for campaign in range(campaigns):
        # A user has two models and two data sets, and all tasks: names of one user share words, campaigns recur.
        user = int(who[campaign])
        model = list(MODELS)[(user * 3 + rng.integers(2)) % len(MODELS)]
        data = list(SETS)[(user * 5 + rng.integers(2)) % len(SETS)]
        task = str(rng.choice(list(TASKS)))
        project = OF_PROJECT * np.random.default_rng(crc32(f"{user} {task} {model} {data}".encode())).normal()
        level = TASKS[task] + MODELS[model] + SETS[data] + own[user] + project
        for at_s in begin[campaign] + np.cumsum(rng.exponential(1_800, rng.integers(1, 2 * per_campaign))):
            name = named(style, rng, task=task, model=model, data=data)
            rows.append((user, name, at_s, np.exp(level + NOISE * rng.normal())))
    rows.sort(key=lambda row: row[2])
    return _as_jobs(rows[:n])


def _as_jobs(rows: list[tuple[int, str, float, float]]) -> pd.DataFrame:
    user, name, at_s, run_s = zip(*rows, strict=True)
    submitted = pd.Timestamp("2024-01-01T00:00:00Z") + pd.to_timedelta(np.floor(at_s), unit="s")
    run = np.maximum(np.round(run_s), 1.0)
    columns: dict[str, Any] = {
        "job_id": np.arange(len(rows)).astype(str),
        "user": [f"u{one}" for one in user],
        "name": name,
        "partition": "gpu",
        "state": "COMPLETED",
        "submitted_at": submitted,
        "started_at": submitted,
        "ended_at": submitted + pd.to_timedelta(run, unit="s"),
        "run_time_s": run,
        "time_limit_s": 172_800.0,
        "gpus": 1,
    }
    return JOBS.conform(pd.DataFrame(columns))


def known_by(table: JobTable, names: list[str]) -> dict[str, JobTable]:
    """Return the table as it would be if predictions knew less of names, or families in place of stems."""
    none = np.full(table.n, -1, dtype=np.int32)
    return {
        "no names": replace(table, name=none, stem=none),
        "exact name": replace(table, stem=none),
        "name and stem": table,
        "name and family": replace(table, stem=JobNameFamilies().codes(table.user, table.name, names)),
    }


def gain(jobs: pd.DataFrame, label: str) -> None:
    """Print how well shrinkage orders and hits the last half of ``jobs``, by what it knows of names."""
    table = JobTable.from_frame(jobs)
    _, names = pd.factorize(jobs["name"])
    judged = (np.arange(table.n) >= table.n // 2) & np.isfinite(table.run_time_s)
    fresh = judged & ~pd.DataFrame({"user": table.user, "name": table.name}).duplicated().to_numpy()
    print(f"{label}: {judged.sum():,} jobs judged, {fresh.sum() / judged.sum():.0%} with a name new to their user")
    for known, its in known_by(table, list(names)).items():
        predicted = past_mean_s(causal_features(its).X)
        all_of_them, new = (_figures(predicted[rows], table.run_time_s[rows]) for rows in (judged, fresh))
        print(f"  {known:<16} {all_of_them}   new names {new}")


def _figures(predicted: NDArray[np.float64], truth: NDArray[np.float64]) -> str:
    error = np.median(np.abs(np.log1p(predicted) - np.log1p(truth)))
    return f"rank correlation {spearman(predicted, truth) or np.nan:.3f}, median abs log error {error:.3f}"


def speed(n_jobs: int, n_names: int, make: Callable[[np.random.Generator, int], str], label: str) -> None:
    """Print what it costs to give ``n_jobs`` jobs their families."""
    rng = np.random.default_rng(0)
    names = [make(rng, number) for number in range(n_names)]
    name = rng.integers(0, n_names, n_jobs).astype(np.int32)
    name[:n_names] = np.arange(n_names)
    user = np.minimum(rng.zipf(1.3, n_names), 500).astype(np.int32)[name]
    families, begin = JobNameFamilies(), time.process_time()
    of_job = families.codes(user, name, names)
    took = time.process_time() - begin
    print(f"{label}: {n_jobs:,} jobs, {n_names:,} names, {of_job.max() + 1:,} families: {took:.2f} s of one core")


def _letters(rng: np.random.Generator, _: int) -> str:
    return "".join(rng.choice(list(string.ascii_lowercase), rng.integers(6, 24)))


def _words(rng: np.random.Generator, run: int) -> str:
    return named("words vary", rng, task=str(rng.choice(list(TASKS))), model="vit", data="coco") + f"_{run}"


def main(n: int) -> None:
    """Print what families are worth by style of names, then what they cost."""
    for style in STYLES:
        gain(invented(n, style), style)
    speed(1_000_000, 200_000, _words, "Names")
    speed(1_000_000, 200_000, _letters, "Random letters")
    speed(300_000, 300_000, _letters, "Each job a new name of random letters")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
