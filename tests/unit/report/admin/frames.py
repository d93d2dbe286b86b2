"""Frames that admin reports are asked of: predictions and decisions, naming only what matters."""

from typing import Any

import pandas as pd

from helios.model import CYCLES, DECISIONS, PREDICTIONS

DAY = pd.Timestamp("2026-11-20T00:00:00Z")


def at(clock: str) -> pd.Timestamp:
    """A moment of the day, as 08:30."""
    return DAY + pd.Timedelta(f"{clock}:00")


def predictions_frame(*rows: dict[str, Any]) -> pd.DataFrame:
    """Predictions as the warehouse gives them; p10 and p90 are half and twice the median unless given."""
    names = ["submitted_at", "job_id", "restart", "made_at", *PREDICTIONS.names]
    frame = pd.DataFrame([_prediction(row) for row in rows], columns=names)
    for name in ("submitted_at", "made_at"):
        frame[name] = pd.to_datetime(frame[name], utc=True).astype("datetime64[us, UTC]")
    numbers = dict.fromkeys(PREDICTIONS.names[:-1], float)
    return frame.astype({"job_id": "str", "restart": "int32", "source": "category"} | numbers)


def predicted(job: dict[str, Any], p50_s: float, **overrides: Any) -> dict[str, Any]:
    """A prediction for a job as ``tests.builders.a_job`` makes it."""
    return {
        "job_id": job["job_id"],
        "submitted_at": job["submitted_at"],
        "restart": job["restart"],
        "p50_s": p50_s,
    } | overrides


def decisions_frame(*rows: dict[str, Any]) -> pd.DataFrame:
    """Decisions of qssf in shadow at noon, unless said otherwise."""
    ordinary = {
        "decided_at": at("12:00"),
        "service": "qssf",
        "mode": "shadow",
        "action": "Reorder",
        "target": "1",
        "reason": "short",
        "outcome": "would",
    }
    return DECISIONS.conform(pd.DataFrame([ordinary | row for row in rows])) if rows else DECISIONS.empty()


def cycles_frame(*suspended: str | None) -> pd.DataFrame:
    """Cycles a minute apart from noon on, each with its reasons for keeping still."""
    if not suspended:
        return CYCLES.empty()
    moments = [at("12:00") + pd.Timedelta(minutes=number) for number in range(len(suspended))]
    return CYCLES.conform(pd.DataFrame({"taken_at": moments, "suspended": list(suspended)}))


def _prediction(row: dict[str, Any]) -> dict[str, Any]:
    p50_s = row["p50_s"]
    return {
        "made_at": row["submitted_at"],
        "restart": 0,
        "p10_s": p50_s / 2,
        "p90_s": p50_s * 2,
        "source": "model-1",
    } | row
