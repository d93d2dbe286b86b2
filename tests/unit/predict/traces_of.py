"""Builders of job frames, and random small traces full of ties, gaps and unknowns."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from hypothesis import strategies as st

from helios.model import JOBS

EPOCH = pd.Timestamp("2024-03-04T00:00:00Z")
DEFAULTS = {"user": "ada", "partition": "batch", "state": "COMPLETED", "cpus": 4.0, "gpus": 1, "time_limit_s": 7200.0}


def a_trace(*rows: dict) -> pd.DataFrame:
    """Return a jobs frame; a row gives ``submit`` and optionally ``wait``, ``run`` (s) and columns."""
    jobs = pd.DataFrame([_row(number, **row) for number, row in enumerate(rows)])
    for column in ("submitted_at", "started_at", "ended_at"):
        jobs[column] = pd.to_datetime(jobs[column], utc=True)
    return JOBS.conform(jobs)


def _row(number, *, submit=0, wait=0, run=60.0, ended=True, **columns):
    submitted = EPOCH + pd.Timedelta(seconds=submit)
    started = submitted + pd.Timedelta(seconds=wait)
    timed = run is not None
    return (
        DEFAULTS
        | {
            "job_id": str(number),
            "submitted_at": submitted,
            "started_at": started if timed else pd.NaT,
            "ended_at": started + pd.Timedelta(seconds=run or 0) if ended else pd.NaT,
            "run_time_s": float(run) if timed and ended else np.nan,
        }
        | columns
    )


def a_campaign(n, *, seed=0, users=5, noise=0.3, **columns):
    """Return ``n`` jobs of users who each have their own typical run time."""
    rng = np.random.default_rng(seed)
    typical = np.exp(rng.uniform(3, 8, users))
    submit = np.sort(rng.integers(0, 60 * n, n))
    user = rng.integers(0, users, n)
    run = np.round(typical[user] * np.exp(noise * rng.standard_normal(n)))
    return a_trace(
        *(
            {"submit": int(s), "run": float(r), "user": f"u{u}", "wait": int(w)} | columns
            for s, r, u, w in zip(submit, run, user, rng.integers(0, 600, n), strict=True)
        )
    )


@dataclass(frozen=True)
class _Choice:
    gap: int
    row: dict


_rows = st.builds(
    _Choice,
    gap=st.sampled_from([0, 0, 1, 5, 60, 700]),
    row=st.fixed_dictionaries(
        {
            "wait": st.sampled_from([0, 0, 1, 30]),
            "run": st.sampled_from([None, 0.0, 1.0, 4.0, 30.0, 500.0]),
            "ended": st.sampled_from([True, True, True, False]),
            "user": st.sampled_from([None, "ada", "bob"]),
            "account": st.sampled_from([None, "physics"]),
            "partition": st.sampled_from([None, "p", "q"]),
            "name": st.sampled_from([None, "fit1", "fit2", "cook"]),
            "state": st.sampled_from([None, "COMPLETED", "FAILED", "CANCELLED"]),
            "gpus": st.sampled_from([0, 1, 8]),
            "cpus": st.sampled_from([np.nan, 1.0, 16.0]),
            "time_limit_s": st.sampled_from([np.nan, np.inf, 10.0, 600.0]),
        }
    ),
)


@st.composite
def traces(draw, max_size=24):
    choices = draw(st.lists(_rows, min_size=1, max_size=max_size))
    submits = np.cumsum([choice.gap for choice in choices])
    return a_trace(*({"submit": int(s)} | choice.row for s, choice in zip(submits, choices, strict=True)))
