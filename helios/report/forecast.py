"""What a judged forecast of node demand says: for a program, as a table, and in plain sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from helios.predict.demand.evaluation import (
    EMPIRICAL,
    HELIOS,
    JUDGED_H,
    PERSISTENCE,
    UPPER,
    ForecastVerdict,
    MostScore,
    PointScore,
)

SURE = 2.0
"""Standard errors over days from which a difference is not laid to chance."""
NAMES = {
    HELIOS: "Helios",
    PERSISTENCE: "as now",
    "same_hour_last_week": "same hour last week",
    "max_of_last_3_h": "most of the last 3 h",
    EMPIRICAL: "now + empirical quantile",
}
_PINBALL_SAID = (
    f"pinball of the rows: loss of the bound at {UPPER:g} on the most needed within the horizon; a method without "
    "quantiles takes what it expects for that bound."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastReport:
    """A judged forecast.

    Attributes
    ----------
    kind : str
        ``series`` or ``cluster``.
    name, unit : str
        Of what, and what is counted: ``node`` or ``GPU``.
    window_s : (int, int)
        Begin and end of what was judged, s since the epoch.
    step_s : int
    verdict : Verdict
    source : str
        What forecast at last.
    notes : tuple of str
    """

    kind: str
    name: str
    unit: str
    window_s: tuple[int, int]
    step_s: int
    verdict: ForecastVerdict
    source: str
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain values; what a method does not say is null."""
        since, until = (datetime.fromtimestamp(at, UTC).isoformat() for at in self.window_s)
        return {
            self.kind: self.name,
            "from": since,
            "to": until,
            "step_s": self.step_s,
            "unit": self.unit,
            "steps": self.verdict.steps,
            "source": self.source,
            "rows": [_row(score) for score in self.verdict.points],
            "most_needed": [_most_row(score) for score in self.verdict.most],
            "verdict": sentences(self),
            "notes": [*self.notes, _PINBALL_SAID],
        }


def forecast_table(report: ForecastReport) -> RenderableType:
    """Lay the methods side by side, the best figure of each column bold; below them what it comes to."""
    since, until = (datetime.fromtimestamp(at, UTC) for at in report.window_s)
    caption = (
        f"{escape(report.name)}: busy {report.unit}s, {report.verdict.steps:,} steps of {report.step_s // 60} minutes "
        f"from {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC; {escape(report.source)}."
    )
    legend = (
        f"[dim]MAE in {report.unit}s, then SMAPE. Most needed: pinball loss at {UPPER:g}, and how often the bound was "
        f"enough; {100 * UPPER:.0f} % is right. Best: bold.[/]"
    )
    parts: list[RenderableType] = [caption, "", _points_table(report), "", _most_table(report), ""]
    return Group(*parts, *(escape(sentence) for sentence in sentences(report)), legend)


def sentences(report: ForecastReport) -> list[str]:
    """Say what the figures come to; also when there is nothing to gain."""
    ours = [score for score in report.verdict.points if score.method == HELIOS]
    said = [_against_persistence(ours)] if ours else []
    return said + [sentence for sentence in (_against_empirical(report.verdict.most),) if sentence]


def _against_persistence(ours: Sequence[PointScore]) -> str:
    better = [score.horizon_h for score in ours if _gain(score) > 0 and _is_sure(score)]
    worse = [score.horizon_h for score in ours if _gain(score) < 0 and _is_sure(score)]
    alike = [score.horizon_h for score in ours if score.horizon_h not in (*better, *worse)]
    parts = []
    if better:
        parts.append(f"beats persistence at {_hours(better)}")
    if alike:
        parts.append(f"{'' if parts else 'is '}no better or worse than it at {_hours(alike)}".strip())
    if worse:
        parts.append(f"is worse than it at {_hours(worse)}")
    said = "; ".join(parts) + "."
    if not better:
        said = said.replace("than it", "than persistence", 1)
    return f"The forecast {said}"


def _against_empirical(scores: Sequence[MostScore]) -> str:
    ours = {score.horizon_h: score for score in scores if score.method == HELIOS and score.level == UPPER}
    theirs = {score.horizon_h: score for score in scores if score.method == EMPIRICAL and score.level == UPPER}
    if not ours:
        return ""
    change = sum(1 - ours[hour].pinball / theirs[hour].pinball for hour in ours if theirs[hour].pinball > 0) / len(ours)
    off, their_off = (
        sum(abs(score.coverage - UPPER) for score in those.values()) / len(those) for those in (ours, theirs)
    )
    way = "smaller" if change > 0 else "larger"
    return (
        f"The bound on the most needed at {UPPER:g}: loss {abs(100 * change):.0f} % {way} than that of now plus the "
        f"empirical quantile; its coverage is {100 * off:.1f} points off {100 * UPPER:.0f} %, that of the other "
        f"{100 * their_off:.1f}."
    )


def _hours(hours: Sequence[int]) -> str:
    words = [str(hour) for hour in hours]
    return f"{', '.join(words[:-1])} and {words[-1]} h" if len(words) > 1 else f"{words[0]} h"


def _gain(score: PointScore) -> float:
    return score.better or 0.0


def _is_sure(score: PointScore) -> bool:
    return score.sure_by is not None and abs(_gain(score)) > SURE * score.sure_by


def _points_table(report: ForecastReport) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=True)
    table.add_column("Expected")
    for hour in JUDGED_H:
        table.add_column(f"{hour} h", justify="right")
        table.add_column("", justify="right")
    scores = {(score.method, score.horizon_h): score for score in report.verdict.points}
    best = {
        hour: min((score.mae for score in report.verdict.points if score.horizon_h == hour), default=0.0)
        for hour in JUDGED_H
    }
    for method in dict.fromkeys(score.method for score in report.verdict.points):
        cells = []
        for hour in JUDGED_H:
            score = scores.get((method, hour))
            mae = "-" if score is None else f"{score.mae:.2f}"
            bold = score is not None and score.mae == best[hour]
            cells += [f"[bold]{mae}[/]" if bold else mae, "" if score is None else f"{score.smape:.1f} %"]
        table.add_row(NAMES[method], *cells)
    return table


def _most_table(report: ForecastReport) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=True)
    table.add_column("Most needed")
    for hour in JUDGED_H:
        table.add_column(f"{hour} h", justify="right")
        table.add_column("", justify="right")
    upper = [score for score in report.verdict.most if score.level == UPPER]
    best = {hour: min((score.pinball for score in upper if score.horizon_h == hour), default=0.0) for hour in JUDGED_H}
    for method in dict.fromkeys(score.method for score in upper):
        cells = []
        for hour in JUDGED_H:
            score = next((one for one in upper if (one.method, one.horizon_h) == (method, hour)), None)
            loss = "-" if score is None else f"{score.pinball:.2f}"
            bold = score is not None and score.pinball == best[hour]
            cells += [f"[bold]{loss}[/]" if bold else loss, "" if score is None else f"{100 * score.coverage:.0f} %"]
        table.add_row(NAMES[method], *cells)
    return table


def _row(score: PointScore) -> dict[str, Any]:
    return {
        "method": score.method,
        "horizon_h": score.horizon_h,
        "smape": score.smape,
        "mae": score.mae,
        "pinball": score.pinball,
        "mae_mean": score.mae_mean,
        "mae_better_than_persistence": score.better,
        "mae_better_standard_error": score.sure_by,
    }


def _most_row(score: MostScore) -> dict[str, Any]:
    return {
        "method": score.method,
        "horizon_h": score.horizon_h,
        "level": score.level,
        "pinball": score.pinball,
        "coverage": score.coverage,
    }
