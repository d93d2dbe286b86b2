"""Figures of a pool's trials.

They are curves, parallel coordinates, the importance of parameters, and the metric by parameter. They tell trials
apart by their tone, so that three, twenty-four and five hundred are legible alike.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullLocator

from helios.model.trial_runs import CurvePoint
from helios.report.charts import BLUE, GREEN, canvas, shorten
from helios.report.html import PageSection
from helios.units import count_in_words

FEWEST_EXPLAINED, MOST_EXPLAINED = 20, 200
"""Finished trials from which importance is computed. With fewer it is noise; so many take some 2 s."""
MOST_AXES = 8
"""Parameters of a figure."""
MOST_DRAWN = 500
"""Trials of a figure."""
POINTS_DRAWN = 10_000
"""Points of all curves together, of some 20 bytes each."""
LOG_RATIO = 50.0
"""Largest by smallest value from which an axis is logarithmic where nobody says so."""
MOST_TICKS = 6
MISSING_AT = -0.14
"""Where a trial is that has no such parameter, on an axis from 0 to 1."""
HUGE = 1e30
"""Numbers above are not drawn, since axes overflow."""
FAR = 5.0
"""How many times the middle 96 % of the values all are wide before the others are left out."""
FEWEST_BLUE, SHARE_BLUE = 6, 0.25
"""How many of the finished trials are blue: a share, and of few trials more."""
PRUNED, OTHER, CARD = "#9aa0a6", "#cfd3d8", "#fefefe"
"""Tones that a page in dark colours has other ones of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlottedTrial:
    """A trial as figures show it.

    Attributes
    ----------
    state : str
        How it ended, or what it does.
    value : float, optional
        Last value of the metric. None where there is none, or it is not finite.
    curve : tuple of CurvePoint
    """

    number: int
    parameters: Mapping[str, Any]
    state: str
    value: float | None = None
    curve: tuple[CurvePoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlottedPool:
    """Trials of a pool and what they are compared by.

    Attributes
    ----------
    metric : str
        Empty where they are not compared.
    maximize : bool
    is_log : mapping
        Whether the axis of a parameter is logarithmic, where that is known.
    front : frozenset of int, optional
        Numbers of the best trials by several metrics. None where one metric says which is the best.
    targets : tuple of float
        Values of the metric that were to be reached.
    """

    metric: str
    maximize: bool
    trials: Sequence[PlottedTrial]
    is_log: Mapping[str, bool] = field(default_factory=dict)
    front: frozenset[int] | None = None
    targets: tuple[float, ...] = ()

    @property
    def best(self) -> frozenset[int]:
        """Numbers of the best trials."""
        return frozenset(trial.number for trial in self.ranked[:1]) if self.front is None else self.front

    @property
    def ranked(self) -> list[PlottedTrial]:
        """Finished trials with a value, the best first."""
        known = [trial for trial in self.trials if trial.state == "finished" and trial.value is not None]
        return sorted(known, key=lambda trial: (-1 if self.maximize else 1) * (trial.value or 0.0))

    @property
    def explained(self) -> list[PlottedTrial]:
        """At most ``MOST_EXPLAINED`` of them, spread evenly."""
        ranked = self.ranked
        return ranked[:: max(1, math.ceil(len(ranked) / MOST_EXPLAINED))]

    @property
    def drawn(self) -> list[PlottedTrial]:
        """At most ``MOST_DRAWN`` trials with a value, the best last."""
        ranked = self.ranked
        others = [trial for trial in self.trials if trial.state != "finished" and trial.value is not None]
        room = max(MOST_DRAWN - len(others), MOST_DRAWN // 2)
        return [*others[: MOST_DRAWN - min(room, len(ranked))], *ranked[:room][::-1]]

    @property
    def n_blue(self) -> int:
        """How many of the best trials are blue, with the best itself."""
        count = len(self.ranked)
        return max(math.ceil(SHARE_BLUE * count), min(FEWEST_BLUE, count))

    @property
    def varied(self) -> list[str]:
        """Parameters in which trials with a value differ, at most ``MOST_AXES``."""
        names = dict.fromkeys(name for trial in self.drawn for name in trial.parameters)
        return [name for name in names if len({repr(trial.parameters.get(name)) for trial in self.drawn}) > 1][
            :MOST_AXES
        ]


def pool_figures(pool: PlottedPool) -> list[PageSection]:
    """Return the sections of a page with the figures of a pool."""
    if not pool.metric:
        return []
    left_out = len([trial for trial in pool.trials if trial.value is not None]) - len(pool.drawn)
    notes = [f"The figures leave out {count_in_words(left_out, 'trial')}."] if left_out else []
    explained = importance(pool)
    tones = (
        "Green: the best trial. "
        if pool.front is None
        else "Green: trials that no other equals or beats in every metric. "
    )
    tones += f"Blue: the next {pool.n_blue - 1:,}. " if pool.n_blue > 1 else ""
    tones += "Grey: pruned. Pale: all others."
    return [
        PageSection(
            title=f"{pool.metric} by step", sentences=[tones], figures=[partial(curves_figure, pool)], notes=notes
        ),
        PageSection(
            title=f"Parameters and {pool.metric}",
            sentences=[f"Each line is a trial. {tones}"],
            figures=[partial(parallel_figure, pool)],
        ),
        PageSection(
            title=f"How much each parameter explains of {pool.metric}",
            sentences=[
                f"Share of the variance over {len(pool.explained):,} finished trials that a random "
                "forest finds for each parameter alone (fANOVA, by Optuna). It is a correlation among these trials "
                "and no proof of a cause."
            ]
            if explained
            else [],
            figures=[partial(importance_figure, pool.metric, explained)],
        ),
        PageSection(title=f"{pool.metric} by parameter", sentences=[], figures=[partial(scatter_figure, pool)]),
    ]


def curves_figure(pool: PlottedPool, *, narrow: bool = False) -> str | None:
    """Draw the metric of each trial by step.

    None where no trial has two points.
    """
    trials = [trial for trial in pool.drawn if sum(point.value is not None for point in trial.curve) > 1]
    if not trials:
        return None
    most = max(2, POINTS_DRAWN // len(trials))
    counts = Counter(trial.state for trial in trials)
    parts = ", ".join(f"{count:,} {state}" for state, count in sorted(counts.items()))
    what = f"Curves of {pool.metric} by step: {parts}{_best_in_words(pool)}"
    with canvas(what, height=3.0, narrow=narrow) as drawing:
        axes = drawing.panels[0]
        for style, part in _by_tone(pool, trials):
            points = [_spread(trial.curve, most) for trial in part]
            values = [[_drawable(point.value) for point in line] for line in points]
            axes.plot(_join([[point.step for point in line] for line in points]), _join(values), **style)
        drawn = [point.value for trial in trials for point in trial.curve]
        _metric_axis(axes, pool, [*drawn, *pool.targets])
        for goal in pool.targets:
            axes.axhline(goal, color=PRUNED, linestyle="--", linewidth=0.8)
        axes.xaxis.set_major_locator(MaxNLocator(5 if narrow else 9, integer=True))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_xlabel("step")
    return drawing.svg


def parallel_figure(pool: PlottedPool, *, narrow: bool = False) -> str | None:
    """Draw each trial as a line over parameters and metric.

    The axes stand beside each other, or lie below each other where ``narrow``. None where fewer than two trials have a
    value, or no parameter differs.
    """
    trials, names = pool.drawn, pool.varied
    if len(trials) < 2 or not names:
        return None
    scales = [*(_scale(pool, name, trials) for name in names), _metric_scale(pool)]
    what = (
        f"Parallel coordinates of {count_in_words(len(trials), 'trial')}: "
        f"{', '.join(names)} and {pool.metric}{_best_in_words(pool)}"
    )
    with canvas(what, height=0.62 * len(scales) + 0.3 if narrow else 3.2, narrow=narrow) as drawing:
        axes = drawing.panels[0]
        places = range(len(scales))
        for style, part in _by_tone(pool, trials):
            columns = [scale.places([trial.parameters.get(scale.name) for trial in part]) for scale in scales[:-1]]
            columns.append(scales[-1].places([trial.value for trial in part]))
            at, across = _join([*zip(*columns, strict=True)]), _join([places] * len(part))
            axes.plot(*((at, across) if narrow else (across, at)), **style)
        axes.axis("off")
        axes.grid(visible=False)
        for place, scale in zip(places, scales, strict=True):
            axes.plot(*(((0, 1), (place,) * 2) if narrow else ((place,) * 2, (0, 1))), color="#3c4043", lw=1, zorder=5)
            _label_axis(axes, place, scale, narrow=narrow)
        if narrow:
            axes.set_xlim(-0.2, 1.08)
            axes.set_ylim(len(scales) - 0.5, -0.75)
        else:
            axes.set_xlim(-0.35, len(scales) - 0.45)
            axes.set_ylim(-0.16, 1.14)
    return drawing.svg


def importance_figure(metric: str, explained: Mapping[str, float], *, narrow: bool = False) -> str | None:
    """Draw the importance of each parameter, or nothing where none is known."""
    if not explained:
        return None
    names = sorted(explained, key=explained.__getitem__)
    shares = ", ".join(f"{name} {_share(explained[name])}" for name in names[::-1])
    with canvas(
        f"Importance of the parameters for {metric}: {shares}", height=0.5 + 0.27 * len(names), narrow=narrow
    ) as drawing:
        axes = drawing.panels[0]
        bars = axes.barh(range(len(names)), [explained[name] for name in names], color=BLUE, height=0.6)
        axes.bar_label(bars, [_share(explained[name]) for name in names], padding=4, color="#3c4043")
        axes.set_yticks(range(len(names)), [shorten(name) for name in names])
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(0, 1.15 * max(explained.values()))
        axes.xaxis.set_major_locator(NullLocator())
        axes.grid(visible=False)
        axes.spines["bottom"].set_visible(False)
    return drawing.svg


def scatter_figure(pool: PlottedPool, *, narrow: bool = False) -> str | None:
    """Draw the metric against each parameter. None where no parameter differs."""
    trials, names = pool.drawn, pool.varied
    if not names:
        return None
    columns = len(names) if narrow else min(4, len(names))
    rows = math.ceil(len(names) / columns)
    what = f"{pool.metric} of each trial against {', '.join(names)}{_best_in_words(pool)}"
    height = 1.6 if narrow else 2.3 * rows
    with canvas(what, height=height, narrow=narrow, rows=rows, columns=columns) as drawing:
        for axes in drawing.panels[len(names) :]:
            axes.set_visible(False)
        for name, axes in zip(names, drawing.panels, strict=False):
            scale = _scale(pool, name, trials)
            for style, part in _by_tone(pool, trials):
                places = scale.places([trial.parameters.get(name) for trial in part])
                values = [_drawable(trial.value) for trial in part]
                # A line from a point to itself is a dot, in a third of the text that a marker takes.
                size = {
                    "lw": 3.2 * style["lw"] + (2 if len(trials) <= 100 else 1),
                    "linestyle": "-",
                    "solid_capstyle": "round",
                }
                (dots,) = axes.plot(
                    _join([*zip(places, places, strict=True)]),
                    _join([*zip(values, values, strict=True)]),
                    **style | size,
                )
                dots.get_path().should_simplify = False
            _metric_axis(axes, pool, [trial.value for trial in trials])
            ticks = scale.ticks(ends=False)
            axes.set_xticks([place for place, _ in ticks], [text for _, text in ticks])
            axes.xaxis.set_minor_locator(NullLocator())
            axes.set_xlim(-0.06, 1.06)
            axes.set_xlabel(shorten(name))
            axes.set_ylabel("")
        for axes in drawing.panels if narrow else drawing.panels[::columns]:
            axes.set_ylabel(shorten(pool.metric))
    return drawing.svg


def importance(pool: PlottedPool) -> dict[str, float]:
    """Return the share of the metric's variance that each parameter explains.

    It is Optuna's fANOVA over the parameters that all finished trials have. Empty with fewer than twenty of them, or
    without Optuna and scikit-learn.
    """
    trials = pool.explained
    names = [name for name in pool.varied if all(name in trial.parameters for trial in trials)]
    if len(trials) < FEWEST_EXPLAINED or not names or len({trial.value for trial in trials}) < 2:
        return {}
    try:
        import optuna  # noqa: PLC0415 - optional, and slow to import
        from optuna.importance import FanovaImportanceEvaluator, get_param_importances  # noqa: PLC0415

        evaluator = FanovaImportanceEvaluator(seed=0)
    except ImportError:
        return {}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    spaces: dict[str, Any] = {}
    values: dict[str, list[Any]] = {}
    for name in names:
        scale = _scale(pool, name, trials)
        if scale.is_category:
            spaces[name] = optuna.distributions.CategoricalDistribution([*map(repr, scale.known)])
            values[name] = [repr(trial.parameters[name]) for trial in trials]
        else:
            low, high = scale.known[0], scale.known[-1]
            spaces[name] = optuna.distributions.FloatDistribution(low, high, log=scale.is_log)
            values[name] = [float(trial.parameters[name]) for trial in trials]
    spaces = {name: space for name, space in spaces.items() if not space.single()}
    study = optuna.create_study(direction="maximize" if pool.maximize else "minimize")
    for place, trial in enumerate(trials):
        chosen = {name: values[name][place] for name in spaces}
        study.add_trial(optuna.trial.create_trial(params=chosen, distributions=spaces, value=trial.value))
    found = get_param_importances(study, evaluator=evaluator) if spaces else {}
    return {name: float(share) for name, share in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """Axis from 0 to 1 of a parameter.

    ``known`` has all its values in order. A trial without one is below the axis.
    """

    name: str
    known: Sequence[Any]
    is_category: bool
    is_log: bool
    has_missing: bool

    def places(self, values: Sequence[Any]) -> list[float]:
        """Return where values are."""
        if self.is_category:
            order = {repr(value): place / max(1, len(self.known) - 1) for place, value in enumerate(self.known)}
            return [order.get(repr(value), MISSING_AT) for value in values]
        low, high = self._scaled(self.known[0]), self._scaled(self.known[-1])
        span = high - low
        return [
            (min(1.0, max(0.0, (self._scaled(value) - low) / span)) if span else 0.5)
            if _is_number(value)
            else MISSING_AT
            for value in values
        ]

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.is_log else float(value)

    def ticks(self, *, ends: bool) -> list[tuple[float, str]]:
        """Return place and text of each tick.

        ``ends``: whether the ends of a range are written, too.
        """
        chosen = list(self.known)
        if self.is_category:
            chosen = chosen[:: math.ceil(len(chosen) / (2 * MOST_TICKS))]
        elif len(chosen) > MOST_TICKS or any(gap < 0.1 for gap in np.diff(self.places(chosen))):
            chosen = self._round_values(ends=ends)
        ticks = [*zip(self.places(chosen), map(_tick, chosen), strict=True)]
        return [(MISSING_AT, "none"), *ticks] if self.has_missing else ticks

    def _round_values(self, *, ends: bool) -> list[float]:
        low, high = self.known[0], self.known[-1]
        if self.is_log:
            inside = [10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
            inside = inside[:: math.ceil(max(1, len(inside)) / 4)]
        else:
            inside = [float(value) for value in MaxNLocator(3).tick_values(low, high) if low <= value <= high]
        if len(inside) > 1 and not ends:
            return inside
        places = self.places(inside)
        return [low, *(value for value, at in zip(inside, places, strict=True) if 0.12 < at < 0.88), high]


def _scale(pool: PlottedPool, name: str, trials: Sequence[PlottedTrial]) -> _Scale:
    values = [trial.parameters.get(name) for trial in trials]
    there = [value for value in values if value is not None]
    numbers = all(map(_is_number, there))
    known = sorted(set(there)) if numbers else sorted({repr(value): value for value in there}.values(), key=repr)
    is_log = numbers and bool(known) and known[0] > 0
    if is_log:
        # Of values drawn evenly the middle one is half of the largest.
        is_likely = known[-1] / known[0] >= LOG_RATIO and float(np.median(there)) < known[-1] / 4
        is_log = pool.is_log.get(name, is_likely)
    return _Scale(name=name, known=known, is_category=not numbers, is_log=is_log, has_missing=len(there) < len(values))


def _metric_scale(pool: PlottedPool) -> _Scale:
    values = [trial.value for trial in pool.drawn]
    low, high, is_log = _metric_limits(pool, values)
    return _Scale(name=pool.metric, known=[low, high], is_category=False, is_log=is_log, has_missing=False)


def _metric_limits(pool: PlottedPool, values: Sequence[float | None]) -> tuple[float, float, bool]:
    """Return the ends of the metric's axis and whether it is logarithmic.

    Few values far from all others, but for the best, are outside of it.
    """
    known = np.array([value for value in values if _is_number(value)] or [0.0])
    low, high = float(known.min()), float(known.max())
    near = [float(each) for each in np.quantile(known, [0.02, 0.98])]
    best = [_drawable(trial.value) for trial in pool.ranked[:1] if _is_number(trial.value)]
    if low > 0 and high / low >= LOG_RATIO:
        return low, high, True
    if near[1] > near[0] and high - low > FAR * (near[1] - near[0]):
        low, high = min(near[0], *best, near[1]), max(near[1], *best, near[0])
    return low, high, False


def _metric_axis(axes: Axes, pool: PlottedPool, values: Sequence[float | None]) -> None:
    low, high, is_log = _metric_limits(pool, values)
    if is_log:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.2, high * 1.2)
    else:
        room = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
        axes.set_ylim(low - room, high + room)
        axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.set_ylabel(shorten(pool.metric))


def _by_tone(pool: PlottedPool, trials: Sequence[PlottedTrial]) -> list[tuple[dict[str, Any], list[PlottedTrial]]]:
    """Return each tone's trials and its style, the best last."""
    places, n_blue, best = {trial.number: place for place, trial in enumerate(pool.ranked)}, pool.n_blue, pool.best
    parts: dict[str, list[PlottedTrial]] = {"other": [], "finished": [], "pruned": [], "blue": [], "best": []}
    for trial in trials:
        place = places.get(trial.number)
        if place is None:
            parts["pruned" if trial.state == "pruned" else "other"].append(trial)
        else:
            parts["best" if trial.number in best else "blue" if place < n_blue else "finished"].append(trial)
    thin = 1.2 if len(trials) <= 40 else 0.7
    styles = {
        "other": {"color": OTHER, "lw": thin, "linestyle": "--", "zorder": 2.1},
        "finished": {"color": OTHER, "lw": thin, "zorder": 2.1},
        "pruned": {"color": PRUNED, "lw": thin, "zorder": 2.2},
        "blue": {"color": BLUE, "lw": thin, "alpha": 0.9 if len(trials) <= 40 else 0.6, "zorder": 3},
        "best": {"color": GREEN, "lw": 2.4, "zorder": 4},
    }
    return [(styles[name], part) for name, part in parts.items() if part]


def _join(lines: Sequence[Sequence[float]]) -> list[float]:
    """Return lines as one that is interrupted between them.

    A page draws it faster than many.
    """
    return [each for line in lines for each in (*line, math.nan)]


def _label_axis(axes: Axes, place: int, scale: _Scale, *, narrow: bool) -> None:
    """Write name and ticks of one of parallel axes."""
    common: dict[str, Any] = {"bbox": {"facecolor": CARD, "edgecolor": "none", "pad": 0.6, "alpha": 0.8}, "zorder": 6}
    name = {"color": "#3c4043", "fontsize": "small", "fontweight": "bold", **common}
    tick = {"color": "#5f6368", "fontsize": "x-small", **common}
    if narrow:
        axes.text(0.0, place - 0.3, shorten(scale.name), ha="left", va="center", **name)
        for at, text in scale.ticks(ends=True):
            axes.text(
                at,
                place + 0.08,
                text,
                ha="center" if at < 0 else "left" if at == 0 else "right" if at >= 1 else "center",
                va="top",
                **tick,
            )
        return
    axes.text(place, 1.06, shorten(scale.name), ha="center", va="bottom", **name)
    for at, text in scale.ticks(ends=True):
        axes.text(place - 0.03, at, text, ha="right", va="center", **tick)


def _best_in_words(pool: PlottedPool) -> str:
    return "".join(f"; the best is trial {trial.number} with {trial.value:.5g}" for trial in pool.ranked[:1])


def _drawable(value: float | None) -> float:
    return value if value is not None and _is_number(value) else math.nan


def _spread(points: Sequence[CurvePoint], most: int) -> list[CurvePoint]:
    """Return at most so many points, the first and the last among them."""
    places = np.unique(np.linspace(0, len(points) - 1, min(most, len(points))).astype(int))
    return [points[place] for place in places]


def _tick(value: Any) -> str:
    if not _is_number(value):
        return shorten(str(value))
    if float(value).is_integer() and abs(value) < 1e6:
        return f"{value:,.0f}"
    return re.sub(r"e([+-])0", r"e\1", f"{value:.3g}" if 1e-3 <= abs(value) < 1e6 else f"{value:.1e}").replace(
        ".0e", "e"
    )


def _share(share: float) -> str:
    return "< 1%" if 0 < share < 0.01 else f"{share:.0%}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= HUGE
