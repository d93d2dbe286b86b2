"""How many nodes will be needed: forecasts of a past demand, made as they would have been then, and judged."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from helios.app.watched import Watched
from helios.errors import NotEnoughHistory
from helios.model import STEP_S, NodeSeries
from helios.ports import Progress, in_silence
from helios.predict.demand import Calendar, walk_forward
from helios.predict.demand.judge import judge
from helios.report.forecast import ForecastReport


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastQuestion:
    """Which stretch to judge, and with what.

    Attributes
    ----------
    since, until : datetime, optional
        Forecasts made in [since, until) are judged, against what came before ``until``; all before ``since`` is
        history. Without ``since`` the last third is judged.
    calendar : Calendar
    history_days : int
        Days that are learned from.
    """

    since: datetime | None
    until: datetime | None
    calendar: Calendar
    history_days: int


def evaluate_forecasts(
    watched: Watched, question: ForecastQuestion, *, progress: Progress = in_silence
) -> ForecastReport:
    """Forecast at every step of the window from what was known then, and judge that beside rules without a model.

    Raises
    ------
    NotEnoughHistory
        The window does not lie within the series.
    """
    series = watched.series
    from_step, until_step = _window(series, question)
    busy, total = series.active[:until_step], series.total[:until_step]
    forecasts = walk_forward(
        busy,
        total,
        start_s=series.start_s,
        from_step=from_step,
        until_step=until_step,
        calendar=question.calendar,
        state=None if watched.state is None else watched.state.rows(0, until_step),
        history_steps=question.history_days * 86_400 // STEP_S,
        progress=progress,
    )
    return ForecastReport(
        kind=watched.kind,
        name=series.name,
        unit=watched.unit,
        window_s=(series.start_s + from_step * STEP_S, series.start_s + until_step * STEP_S),
        step_s=STEP_S,
        verdict=judge(
            busy, total, forecasts, gaps=series.gaps[:until_step], start_s=series.start_s, from_step=from_step
        ),
        source=forecasts.source,
        notes=series.notes,
    )


def _window(series: NodeSeries, question: ForecastQuestion) -> tuple[int, int]:
    def step_of(moment: datetime) -> int:
        return -(-(int(moment.timestamp()) - series.start_s) // STEP_S)

    until_step = len(series) if question.until is None else min(step_of(question.until), len(series))
    from_step = 2 * until_step // 3 if question.since is None else max(step_of(question.since), 0)
    if until_step - from_step <= 3_600 // STEP_S:
        first, last = (datetime.fromtimestamp(at, question.calendar.zone) for at in (series.start_s, series.end_s))
        raise NotEnoughHistory(
            f"Nothing lies between --from and --to; the series spans {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M}.",
            remedy="Choose --from and --to within it, at least some hours apart.",
        )
    return from_step, until_step
