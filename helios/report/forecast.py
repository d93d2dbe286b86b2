"""Report of an evaluated forecast of node demand.

As JSON, as a table and in sentences.
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

SURE = 2.0
"""Standard errors over days above which a difference is not ascribed to chance."""
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
        Of what, and what is counted: ``node`` or ``GPU``.
    window_s : (int, int)
        Begin and end of what was evaluated, s since the epoch.
    step_s : int
    verdict : ForecastVerdict
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
        """Return plain values.

        Null: the method does not predict it.
        """
        since, until = (datetime.fromtimestamp(at, UTC).isoformat() for at in self.window_s)
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
    """Compare the methods, the best figure of each column bold.

    Below them a summary in sentences.
    """
    since, until = (datetime.fromtimestamp(at, UTC) for at in report.window_s)
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
    """Summarize the figures in sentences, also when there is nothing to gain."""
    scores_of_helios = [score for score in report.verdict.points if score.method == HELIOS]
    found = [
        _against_persistence(scores_of_helios) if scores_of_helios else "",
        _against_empirical(report.verdict.most),
    ]
    return [sentence for sentence in found if sentence]


def _against_persistence(scores_of_helios: Sequence[PointScore]) -> str:
    gains = {score.horizon_h: (score.better or 0.0, score.sure_by) for score in scores_of_helios}
    sure = {hour: gain for hour, (gain, by) in gains.items() if by is not None and abs(gain) > SURE * by}
    better, worse = ([hour for hour, gain in sure.items() if (gain > 0) is way] for way in (True, False))
    alike = [hour for hour in gains if hour not in sure]
    parts = []
    if better:
        parts.append(f"beats persistence at {_hours(better)}")
    if alike:
        parts.append(f"{'' if parts else 'is '}no better or worse than it at {_hours(alike)}".strip())
    if worse:
        parts.append(f"is worse than it at {_hours(worse)}")
    compared = "; ".join(parts)
    if not better:
        compared = compared.replace("than it", "than persistence", 1)
    return f"The forecast {compared}."


def _against_empirical(scores: Sequence[MostScore]) -> str:
    helios = {score.horizon_h: score for score in scores if score.method == HELIOS and score.level == UPPER}
    empirical = {score.horizon_h: score for score in scores if score.method == EMPIRICAL and score.level == UPPER}
    if not helios:
        return ""
    change = sum(
        1 - helios[hour].pinball / empirical[hour].pinball for hour in helios if empirical[hour].pinball > 0
    ) / len(helios)
    off, their_off = (
        sum(abs(score.coverage - UPPER) for score in those.values()) / len(those) for those in (helios, empirical)
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


def _score_table(head: str, figures: dict[tuple[str, int], tuple[float, str]]) -> RenderableType:
    """Return a table of figures by method and horizon.

    Each figure has a second one beside it; the smallest of each horizon is bold.
    """
    table = plain_table(head, *(name for hour in JUDGED_H for name in (f"{hour} h", "")))
    least = {hour: min((cell[0] for (_, at), cell in figures.items() if at == hour), default=0.0) for hour in JUDGED_H}
    for method in dict.fromkeys(method for method, _ in figures):
        cells: list[str] = []
        for hour in JUDGED_H:
            if found := figures.get((method, hour)):
                cells += [f"[bold]{found[0]:.2f}[/]" if found[0] == least[hour] else f"{found[0]:.2f}", found[1]]
            else:
                cells += ["-", ""]
        table.add_row(NAMES[method], *cells)
    return table
