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
MINUTE = pd.Timedelta(minutes=1)
SAME_DECISION = ["service", "mode", "action", "after", "outcome"]
"""Columns of ``DECISIONS`` in which consecutive entries are equal that are one event."""
NOT_RECORDED = "Not recorded: Slurm's reasons while it waited."
NOT_ESTIMATED = "No estimate of its start was kept."
NOT_MEASURED = "What it used of what it held was not measured."


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """One event of a job's life.

    Attributes
    ----------
    at : datetime
        Aware, UTC.
    kind : str
        ``submitted``, ``eligible``, ``predicted``, ``estimated``, ``decided``, ``started`` or ``ended``.
    text : str
        What happened, for a person.
    """

    at: datetime
    kind: str
    text: str


def job_events(
    runs: pd.DataFrame, predictions: pd.DataFrame, decisions: pd.DataFrame, estimates: pd.DataFrame
) -> list[JobEvent]:
    """Return the events of a job, oldest first.

    Parameters
    ----------
    runs : DataFrame
        As :class:`helios.report.job.JobRuns` has them.
    predictions : DataFrame
        ``PREDICTIONS`` of the job with ``made_at``, oldest first.
    decisions : DataFrame
        Columns of ``DECISIONS``, oldest first.
    estimates : DataFrame
        Estimates of its start with ``started_at``, oldest first.
    """
    events = [
        *_run_events(runs),
        *(
            JobEvent(at=made["made_at"].to_pydatetime(), kind="predicted", text=_prediction_words(made))
            for made in predictions.to_dict("records")
        ),
        *(
            JobEvent(at=made["made_at"].to_pydatetime(), kind="estimated", text=_estimate_words(made))
            for made in estimates.to_dict("records")
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


def _estimate_words(made: Mapping[Hashable, Any]) -> str:
    return f"Its start was estimated {start_interval(made)}"


def start_interval(made: Mapping[Hashable, Any]) -> str:
    """Return the interval of an estimate of a start in words."""
    first, middle, last = (
        f"{made[name]:%Y-%m-%d %H:%M}" if pd.notna(made[name]) else "" for name in ("p10_at", "p50_at", "p90_at")
    )
    horizon = f"later than {made['horizon_at']:%Y-%m-%d %H:%M} UTC"
    if not first:
        return horizon
    if not middle:
        return f"after {first} UTC, most likely {horizon}"
    return f"between {first} and {last or horizon}{' UTC' if last else ''}, most likely about {middle} UTC"


def was_inside(made: Mapping[Hashable, Any]) -> bool:
    """Return whether a job started inside the interval of an estimate, to a minute."""
    first, last = (made[name] if pd.notna(made[name]) else made["horizon_at"] for name in ("p10_at", "p90_at"))
    is_early = made["started_at"] < first - MINUTE
    return not is_early and (pd.isna(made["p90_at"]) or bool(made["started_at"] <= last + MINUTE))


def estimate_lines(estimates: pd.DataFrame) -> Iterator[str]:
    """Yield what was said of a start and what came.

    Parameters
    ----------
    estimates : DataFrame
        Estimates with ``started_at`` and ``ended_at``, oldest first. Those of the last run count.
    """
    if estimates.empty:
        return
    estimates = estimates[estimates["submitted_at"] == estimates["submitted_at"].iloc[-1]]
    first = estimates.iloc[0].to_dict()
    often = f"{len(estimates):,} estimates were kept; the first" if len(estimates) > 1 else "The estimate"
    said = f"{often}, of {first['made_at']:%Y-%m-%d %H:%M} UTC, said that it starts {start_interval(first)}."
    if pd.isna(first["started_at"]):
        yield said if pd.isna(first["ended_at"]) else f"{said} It never started."
        return
    came = f"It started {first['started_at']:%Y-%m-%d %H:%M} UTC"
    if was_inside(first):
        yield f"{said} {came}, as estimated."
        return
    is_early = pd.isna(first["p10_at"]) or first["started_at"] < first["p10_at"]
    bound = first["p10_at"] if is_early else first["p90_at"]
    bound = first["horizon_at"] if pd.isna(bound) else bound
    apart = duration_in_words(abs((first["started_at"] - bound).total_seconds()))
    yield f"{said} {came}, {apart} {'before' if is_early else 'after'} that."


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
