"""Report of an evaluated forecast of node demand.

It has the forms of JSON, a table and sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape

from helios.predict.demand.forecaster import (
    EMPIRICAL,
    HELIOS,
    JUDGED_H,
    PERSISTENCE,
    UPPER,
    ForecastVerdict,
    MostScore,
    PointScore,
)
from helios.report.tables import plain_table

SIGNIFICANT_ERRORS = 2.0
"""Standard errors over days above which a difference is taken to be beyond chance."""
NAMES = {
    HELIOS: "Helios",
    PERSISTENCE: "as now",
    "same_hour_last_week": "same hour last week",
    "max_of_last_3_h": "most of the last 3 h",
    EMPIRICAL: "now + empirical quantile",
}
_JSON_NAMES = {"better": "mae_better_than_persistence", "sure_by": "mae_better_standard_error"}
_PINBALL_NOTE = (
    f"pinball of the rows: loss of the bound at {UPPER:g} on the most needed within the horizon; a method without "
    "quantiles takes what it expects for that bound."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastReport:
    """An evaluated forecast of node demand.

    Attributes
    ----------
    kind : str
        ``series`` or ``cluster``.
    name, unit : str
        Name of the series or cluster, and the counted unit, ``node`` or ``GPU``.
    window_s : (int, int)
        Begin and end of the evaluation, s since the epoch.
    step_s : int
    verdict : ForecastVerdict
    source : str
        Name of the method that forecast last.
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
        """Return plain values, null for what a method does not predict."""
        since, until = (datetime.fromtimestamp(at_s, UTC).isoformat() for at_s in self.window_s)
        return {
            self.kind: self.name,
            "from": since,
            "to": until,
            "step_s": self.step_s,
            "unit": self.unit,
            "steps": self.verdict.steps,
            "source": self.source,
            "rows": [
                {_JSON_NAMES.get(name, name): value for name, value in asdict(score).items()}
                for score in self.verdict.points
            ],
            "most_needed": [asdict(score) for score in self.verdict.most],
            "verdict": sentences(self),
            "notes": [*self.notes, _PINBALL_NOTE],
        }


def forecast_table(report: ForecastReport) -> RenderableType:
    """Return tables of the methods with the best figures in bold, and a summary."""
    since, until = (datetime.fromtimestamp(at_s, UTC) for at_s in report.window_s)
    caption = (
        f"{escape(report.name)}: busy {report.unit}s, {report.verdict.steps:,} steps of {report.step_s // 60} minutes "
        f"from {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC; {escape(report.source)}."
    )
    legend = (
        f"[dim]MAE in {report.unit}s, then SMAPE. Most needed: pinball loss at {UPPER:g}, and how often the bound was "
        f"enough; {100 * UPPER:.0f} % is right. Best: bold.[/]"
    )
    points = {(score.method, score.horizon_h): (score.mae, f"{score.smape:.1f} %") for score in report.verdict.points}
    most = {
        (score.method, score.horizon_h): (score.pinball, f"{100 * score.coverage:.0f} %")
        for score in report.verdict.most
        if score.level == UPPER
    }
    tables = (_score_table("Expected", points), "", _score_table("Most needed", most))
    return Group(caption, "", *tables, "", *(escape(sentence) for sentence in sentences(report)), legend)


def sentences(report: ForecastReport) -> list[str]:
    """Return the comparison with persistence and with the empirical quantile."""
    scores_of_helios = [score for score in report.verdict.points if score.method == HELIOS]
    texts = [
        _against_persistence(scores_of_helios) if scores_of_helios else "",
        _against_empirical(report.verdict.most),
    ]
    return [sentence for sentence in texts if sentence]


def _against_persistence(scores_of_helios: Sequence[PointScore]) -> str:
    gains = {score.horizon_h: (score.better or 0.0, score.sure_by) for score in scores_of_helios}
    significant = {
        hour: gain
        for hour, (gain, error) in gains.items()
        if error is not None and abs(gain) > SIGNIFICANT_ERRORS * error
    }
    better, worse = (
        [hour for hour, gain in significant.items() if (gain > 0) is is_better] for is_better in (True, False)
    )
    similar = [hour for hour in gains if hour not in significant]
    parts = []
    if better:
        parts.append(f"beats persistence at {_hours(better)}")
    if similar:
        parts.append(f"{'' if parts else 'is '}no better or worse than it at {_hours(similar)}".strip())
    if worse:
        parts.append(f"is worse than it at {_hours(worse)}")
    comparison = "; ".join(parts)
    if not better:
        comparison = comparison.replace("than it", "than persistence", 1)
    return f"The forecast {comparison}."


def _against_empirical(scores: Sequence[MostScore]) -> str:
    helios = {score.horizon_h: score for score in scores if score.method == HELIOS and score.level == UPPER}
    empirical = {score.horizon_h: score for score in scores if score.method == EMPIRICAL and score.level == UPPER}
    if not helios:
        return ""
    change = sum(
        1 - helios[hour].pinball / empirical[hour].pinball for hour in helios if empirical[hour].pinball > 0
    ) / len(helios)
    error, empirical_error = (
        sum(abs(score.coverage - UPPER) for score in method_scores.values()) / len(method_scores)
        for method_scores in (helios, empirical)
    )
    direction = "smaller" if change > 0 else "larger"
    return (
        f"The bound on the most needed at {UPPER:g}: loss {abs(100 * change):.0f} % {direction} than that of now plus "
        f"the empirical quantile; its coverage is {100 * error:.1f} points off {100 * UPPER:.0f} %, that of the other "
        f"{100 * empirical_error:.1f}."
    )


def _hours(hours: Sequence[int]) -> str:
    words = [str(hour) for hour in hours]
    return f"{', '.join(words[:-1])} and {words[-1]} h" if len(words) > 1 else f"{words[0]} h"


def _score_table(head: str, figures: dict[tuple[str, int], tuple[float, str]]) -> RenderableType:
    """Return a table of figures by method and horizon.

    Each figure has a second one beside it. The smallest figure of each horizon is bold.
    """
    table = plain_table(head, *(name for hour in JUDGED_H for name in (f"{hour} h", "")))
    smallest = {
        hour: min((cell[0] for (_, horizon), cell in figures.items() if horizon == hour), default=0.0)
        for hour in JUDGED_H
    }
    for method in dict.fromkeys(method for method, _ in figures):
        cells: list[str] = []
        for hour in JUDGED_H:
            if cell := figures.get((method, hour)):
                cells += [f"[bold]{cell[0]:.2f}[/]" if cell[0] == smallest[hour] else f"{cell[0]:.2f}", cell[1]]
            else:
                cells += ["-", ""]
        table.add_row(NAMES[method], *cells)
    return table
