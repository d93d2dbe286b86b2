"""Events of a job's life, from runs, predictions and decisions."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pandas as pd

from helios.model import Mode
from helios.units import duration_in_words

# The outcome of a change, by helios.actions.Result.
ACTIVITY = {
    "done": "set {after}",
    "would": "would have set {after}",
    "refused": "requested {after} and was refused",
    "mismatch": "set {after}, and something else was read back",
    "failed": "could not set {after}",
}
UNDONE = "reverted what Helios had set, if anything"
SAME_DECISION = ["service", "mode", "action", "after", "outcome"]
"""Columns of ``DECISIONS`` in which consecutive entries are equal that are one event."""
NOT_RECORDED = "Not recorded: Slurm's reasons while it waited, and earlier estimates of its start."
NOT_MEASURED = "What it used of what it held was not measured."


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """One event of a job's life.

    Attributes
    ----------
    at : datetime
        Aware, UTC.
    kind : str
        ``submitted``, ``eligible``, ``predicted``, ``decided``, ``started`` or ``ended``.
    text : str
        What happened, for a person.
    """

    at: datetime
    kind: str
    text: str


def job_events(runs: pd.DataFrame, predictions: pd.DataFrame, decisions: pd.DataFrame) -> list[JobEvent]:
    """Return the events of a job, oldest first.

    Parameters
    ----------
    runs : DataFrame
        As :class:`helios.report.job.JobRuns` has them.
    predictions : DataFrame
        ``PREDICTIONS`` of the job with ``made_at``, oldest first.
    decisions : DataFrame
        Columns of ``DECISIONS``, oldest first.
    """
    events = [
        *_run_events(runs),
        *(
            JobEvent(at=made["made_at"].to_pydatetime(), kind="predicted", text=_prediction_words(made))
            for made in predictions.to_dict("records")
        ),
        *_decision_events(decisions),
    ]
    return sorted(events, key=lambda event: event.at)


def _run_events(runs: pd.DataFrame) -> Iterator[JobEvent]:
    for run in runs.to_dict("records"):
        again = f"Submitted again, as run {run['number']}" if run["number"] else "Submitted"
        waits = pd.notna(run["eligible_at"]) and run["eligible_at"] > run["submitted_at"]
        nodes = f" on {run['node_list']}" if isinstance(run["node_list"], str) else ""
        ran = "" if pd.isna(run["run_time_s"]) else f" after {duration_in_words(run['run_time_s'])}"
        state = run["state"] if isinstance(run["state"], str) else "Ended, in an unknown state"
        for kind, text in (
            ("submitted", again),
            ("eligible", "Could start from now on"),
            ("started", f"Started{nodes}"),
            ("ended", f"{state}{ran}"),
        ):
            if pd.notna(run[f"{kind}_at"]) and (kind != "eligible" or waits):
                yield JobEvent(at=run[f"{kind}_at"].to_pydatetime(), kind=kind, text=text)


def _prediction_words(made: Mapping[Hashable, Any]) -> str:
    low, middle, high = (duration_in_words(made[name]) for name in ("p10_s", "p50_s", "p90_s"))
    return f"Predicted run time: {middle}, in 8 of 10 such cases {low} to {high} (by {made['source']})"


def _decision_events(decisions: pd.DataFrame) -> Iterator[JobEvent]:
    """Yield the decisions, equal ones after each other as one."""
    if decisions.empty:
        return
    timed = decisions[decisions["decided_at"].notna()]
    entries = timed.astype(object).where(timed.notna(), "")
    changed = (entries[SAME_DECISION] != entries[SAME_DECISION].shift()).any(axis=1).cumsum()
    for _, same in entries.groupby(changed, sort=False):
        first, last = same.iloc[0].to_dict(), same["decided_at"].iloc[-1]
        often = f", {len(same):,} times until {last:%Y-%m-%d %H:%M} UTC" if len(same) > 1 else ""
        yield JobEvent(at=first["decided_at"].to_pydatetime(), kind="decided", text=f"{decision_words(first)}{often}")


def decision_words(entry: Mapping[Hashable, Any]) -> str:
    """Describe service, outcome and reason of an audit entry."""
    result, place = str(entry["outcome"]).partition(":")[0], entry["after"] or "its place"
    activity = UNDONE if entry["action"] == "Revert" else ACTIVITY.get(result, "{result} {after}")
    description = activity.format(result=result, after=place).strip()
    if entry["action"] == "Yield":
        description = f"on its yield: {entry['outcome']}"
    who = f"{entry['service']} ({entry['mode']})" if entry["mode"] in set(Mode) else str(entry["service"])
    return f"{who} {description}: {entry['reason']}"
