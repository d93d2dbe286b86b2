"""Report of the nodes that will be needed tomorrow."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape

from helios.predict.node_demand import AS_NOW, HELIOS, RANGE, WEEK_AGO, HourScore
from helios.report.tables import plain_table
from helios.units import bar, percent

QUIET_H = 4
"""Length of the stretch for maintenance that is named, h."""
METHODS = {HELIOS: "Helios", AS_NOW: "as now", WEEK_AGO: "a week ago"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededHour:
    """Nodes needed in an hour, the most at once.

    Attributes
    ----------
    begin : datetime
        On the site's clock.
    expected, low, high : float
    """

    begin: datetime
    expected: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastReport:
    """Forecast of the nodes needed tomorrow.

    Attributes
    ----------
    kind : str
        ``series`` or ``cluster``: what ``name`` names.
    made_at : datetime
        Nothing from then on was used.
    nodes : float
        Nodes there are.
    hours : tuple of NeededHour
    scored_from : datetime
        From then on past forecasts were scored.
    scores : tuple of HourScore
    notes : tuple of str
    """

    kind: str
    name: str
    made_at: datetime
    nodes: float
    hours: tuple[NeededHour, ...]
    scored_from: datetime
    scores: tuple[HourScore, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            self.kind: self.name,
            "made_at": self.made_at.isoformat(),
            "nodes": self.nodes,
            "hours": [asdict(hour) | {"begin": hour.begin.isoformat()} for hour in self.hours],
            "range": list(RANGE),
            "scored_from": self.scored_from.isoformat(),
            "scores": [asdict(score) for score in self.scores],
            "summary": forecast_sentences(self),
            "notes": list(self.notes),
        }


def forecast_table(report: ForecastReport) -> RenderableType:
    """Return the hours of tomorrow and the scores as tables."""
    hours = plain_table("Hour", "Expected", "Range", "Free", "", right_from=1)
    for hour in report.hours:
        hours.add_row(
            f"{hour.begin:%H:%M}",
            f"{hour.expected:.0f}",
            f"{hour.low:.0f}-{hour.high:.0f}",
            f"{report.nodes - hour.high:.0f}",
            bar(hour.expected / report.nodes if report.nodes else 0.0),
        )
    hours.columns[-1].justify = "left"
    scores = plain_table("Hours ahead", *METHODS.values(), "Within the range")
    for ahead in dict.fromkeys(score.ahead_h for score in report.scores):
        row = {score.method: score for score in report.scores if score.ahead_h == ahead}
        errors = [f"{row[method].error:.1f}" for method in METHODS]
        scores.add_row(str(ahead), *errors, percent(row[HELIOS].within))
    day = report.hours[0].begin if report.hours else report.made_at
    return Group(
        f"{escape(report.name)}: nodes needed on {day:%A, %Y-%m-%d} ({day:%Z}), as of {report.made_at:%Y-%m-%d %H:%M}.",
        "",
        *(escape(sentence) for sentence in forecast_sentences(report)),
        "",
        hours,
        "",
        f"[dim]Mean error in nodes of forecasts made each hour since {report.scored_from:%Y-%m-%d}:[/]",
        scores,
    )


def forecast_sentences(report: ForecastReport) -> list[str]:
    """Return the quietest hours, and how good such forecasts are."""
    sentences = []
    stretches = [report.hours[first : first + QUIET_H] for first in range(len(report.hours) - QUIET_H + 1)]
    if stretches:
        quiet = min(stretches, key=lambda hours: max(hour.high for hour in hours))
        end, most = quiet[-1].begin + timedelta(hours=1), max(hour.high for hour in quiet)
        sentences.append(
            f"Fewest nodes are needed from {quiet[0].begin:%H:%M} to {end:%H:%M}: at most {most:.0f} of "
            f"{report.nodes:.0f} ({RANGE[1]:.0%} of such hours), so that {report.nodes - most:.0f} can be worked on."
        )
    ahead = max((score.ahead_h for score in report.scores if score.ahead_h <= 24), default=None)
    errors = {score.method: score.error for score in report.scores if score.ahead_h == ahead}
    if errors:
        plain = min((AS_NOW, WEEK_AGO), key=lambda method: errors[method])
        better = errors[HELIOS] < errors[plain]
        sentences.append(
            f"{ahead} h ahead such forecasts were off by {errors[HELIOS]:.1f} nodes on average, "
            f"{'less' if better else 'no less'} than {METHODS[plain]} ({errors[plain]:.1f})."
        )
    return sentences
