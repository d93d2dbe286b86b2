"""Options of CES and the daily choice of its sizing rule.

One kernel runs all rules, the published rule and the idle timer included. Nodes above a floor and a reserve are put to
sleep, with a dead band and a hold-off so that the level does not oscillate. The floor is the recent maximum or an upper
quantile of future demand. More nodes may be woken than are needed at the moment, as a node woken early costs less than
a job that waits.

The replayed rules are the published rule, Slurm's idle timer, and the recent maximum plus a share of the nodes, with
and without the forecast. By default the published rule stays unless another was no worse in every single week, as the
best of many rules over some weeks together is mostly a lucky one (docs/decisions/0026).

The choice is causal. The rule of a day is chosen from the steps before its midnight (UTC), and the level follows from
use and forecasts as known at each step. So the state is a function of the history of demand, and a restart loses
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from itertools import product
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.jit import cached_jit, inline_jit
from helios.model import STEP_S
from helios.units import count_in_words

DAY = 86_400 // STEP_S
"""Steps of a day."""
WEEK = 7 * DAY
LEAST_WEEKS = 3
"""Whole weeks with forecasts below which the published rule is used without a comparison."""
MARGIN_OF_TUNING = 0.75
"""Share of the accepted wake-ups that is allowed in the replay, as the best of hundreds of rules is also lucky."""
PLAIN_STEPS, PLAIN_NODES = 18, 5.0
"""The plain rule keeps the most nodes of the last 3 h and 5 more."""
RECENT: tuple[tuple[int, tuple[int, float] | None], ...] = (
    (PLAIN_STEPS, None),
    (4 * PLAIN_STEPS, None),
    (6, (3_600, 0.9)),
    (6, (10_800, 0.9)),
    (18, (21_600, 0.5)),
    (6, (43_200, 0.9)),
)
"""Floors: steps of the recent maximum, and horizon (s) and quantile of the forecast if it is used."""
LONGEST_S = max(coming[0] for _, coming in RECENT if coming)
"""Longest horizon of a forecast that is used, s."""
TIMERS = {"idle timer of 30 min": 4, "idle timer of 1 h": 7}
"""Steps of the recent maximum that act as such a timer, one more than the steps for which a node must be idle."""
RESERVE_SHARES, EXTRA_SHARES = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12), (0.0, 0.03, 0.06)
"""Reserve when nodes are put to sleep, and what is added to it when some are woken, as shares of the pool."""

PUBLISHED = "published rule"
FIRST_RECENT = 2 + len(TIMERS)
"""Row of the first recent maximum among the floors, after those of the published rule and of the timers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CesOptions:
    """Options of the energy-saving service (CES).

    Attributes
    ----------
    every_s : int
        Time between two decisions, s.
    rule : str
        ``helios``, chosen by replay each day; ``published``, the rule of the paper, made causal; or ``max_3h``, the
        maximum of the last three hours plus five nodes, without a forecast. The last two are baselines.
    mechanism : str
        ``sleep`` to power nodes down, or ``keep_awake`` to let the cluster's idle timer do it, except for listed nodes.
    risk : float, optional
        Largest share of time in which fewer nodes are awake than are needed, so that a job waits for a boot. None for
        that of the published rule.
    wake_ups_per_day : float, optional
        How often a day, on average, nodes of a pool may be woken. None for no oftener than the published rule in any
        past week, with no more nodes short.
    penalty : float
        Node hours of sleep that one node hour short outweighs.
    spare : int
        Number of idle nodes of a pool below which nodes are woken ahead of need.
    weeks : int
        Most weeks of history on which a rule is chosen.
    sigma : float, optional
        Published rule: nodes kept in reserve. None, here and below, for its authors' value for a pool of this size.
    hold_s : int, optional
        Published rule: hold-off after a wake, s.
    xi_h, xi_p : float, optional
        Published rule: nodes by which use must have fallen, and be expected to fall.
    h_s, f_s : int, optional
        Published rule: the horizons of both, s.
    """

    every_s: int = STEP_S
    rule: Literal["helios", "published", "max_3h"] = "helios"
    mechanism: Literal["sleep", "keep_awake"] = "sleep"
    risk: float | None = None
    wake_ups_per_day: float | None = None
    penalty: float = 100.0
    spare: int = 2
    weeks: int = 8
    sigma: float | None = None
    hold_s: int | None = None
    xi_h: float | None = None
    xi_p: float | None = None
    h_s: int | None = None
    f_s: int | None = None

    def __post_init__(self) -> None:
        for valid, message in (
            (self.every_s > 0, "every_s must be positive"),
            (self.risk is None or 0 < self.risk < 1, "risk must lie between 0 and 1"),
            (0 < (self.wake_ups_per_day or 1.0) < np.inf, "wake_ups_per_day must be positive and finite"),
            (0 <= self.penalty < np.inf, "penalty must be finite and not negative"),
            (self.spare >= 0, "spare must not be negative"),
            (1 <= self.weeks <= 26, "weeks must lie between 1 and 26"),
            (0 <= (self.sigma or 0.0) < np.inf, "sigma must be finite and not negative"),
            ((self.hold_s or 0) >= 0, "hold_s must not be negative"),
            (self.h_s is None or self.h_s >= STEP_S, f"h_s must be at least {STEP_S}"),
            (self.f_s is None or self.f_s >= STEP_S, f"f_s must be at least {STEP_S}"),
        ):
            if not valid:
                raise ValueError(message)


class SizingParameters(NamedTuple):
    """Parameters of the rule for one pool.

    Attributes
    ----------
    floor : int
        Row of the array of floors, below which the level never falls.
    down, up : float
        Nodes kept above the floor when others are put to sleep, and above the busy ones when some are woken.
    band : float
        Fewer nodes than this are not put to sleep.
    hold_steps : int
        Nothing is put to sleep for so many steps after a wake.
    margin : float
        Nodes are woken as soon as fewer than this are idle.
    """

    floor: int
    down: float
    up: float
    band: float
    hold_steps: int
    margin: float


class SizingScore(NamedTuple):
    """Results of settings over some weeks.

    Each array has the shape (n_settings, n_weeks).

    Attributes
    ----------
    asleep : array
        Nodes asleep, summed over steps.
    wakes : array
        Number of steps in which nodes were woken.
    missing : array
        Nodes that were needed and not awake, summed over steps.
    short : array
        Number of steps in which some were missing.
    """

    asleep: NDArray[np.float64]
    wakes: NDArray[np.float64]
    missing: NDArray[np.float64]
    short: NDArray[np.float64]


@inline_jit
def _next_level(  # noqa: PLR0917 - numba kernels are called by position
    busy: float, total: float, floor: float, setting: SizingParameters, powered: float, held_until: int, step: int
) -> tuple[float, int]:
    """Return the level after a step, and the step at which the hold-off ends."""
    # The level is not clipped to the nodes in service, as nodes that fail and return were not put to sleep.
    if busy + setting.margin > powered and powered < total:
        return max(powered, min(total, busy + setting.up)), step + setting.hold_steps
    if step >= held_until:
        target = max(floor + setting.down, busy + setting.margin)
        if target <= powered - setting.band:
            return target, held_until
    return powered, held_until


@cached_jit
def walk_levels(  # noqa: PLR0917 - numba kernels are called by position
    busy: NDArray[np.float64],
    total: NDArray[np.float64],
    floor: NDArray[np.float64],
    setting: SizingParameters,
    powered: float,
    held_until: int,
    first: int,
    levels: NDArray[np.float64],
) -> tuple[float, int]:
    """Run the rule over consecutive steps.

    Parameters
    ----------
    busy, total, floor : float64 arrays of shape (n_steps,)
        Most nodes busy in each step, nodes in service, and lower bound of the level, as known at its end.
    powered, held_until : float, int
        Level and end of the hold-off (a step number) before the first step.
    first : int
        Number of the first step.
    levels : float64 array of shape (n_steps,)
        Output: the nodes to be awake from the end of each step on.

    Returns
    -------
    powered, held_until : float, int
        The same after the last step.
    """
    for t in range(len(busy)):
        powered, held_until = _next_level(busy[t], total[t], floor[t], setting, powered, held_until, first + t)
        levels[t] = powered
    return powered, held_until


def score_levels(
    busy: NDArray[np.float64],
    total: NDArray[np.float64],
    floors: NDArray[np.float64],
    grid: NDArray[np.float64],
    *,
    powered: float,
    week_steps: int,
) -> SizingScore:
    """Run every row of ``grid`` and return scores week by week.

    Rows are :class:`SizingParameters`. ``powered`` nodes are awake at first; the steps are a multiple of
    ``week_steps``.
    """
    out = np.zeros((len(grid), len(busy) // week_steps, 4))
    _score_rows(busy, total, np.ascontiguousarray(floors), grid, powered, week_steps, out)
    return SizingScore(asleep=out[:, :, 0], wakes=out[:, :, 1], missing=out[:, :, 2], short=out[:, :, 3])


@cached_jit
def _score_rows(  # noqa: PLR0917 - numba kernels are called by position
    busy: NDArray[np.float64],
    total: NDArray[np.float64],
    floors: NDArray[np.float64],
    grid: NDArray[np.float64],
    start: float,
    week_steps: int,
    out: NDArray[np.float64],
) -> None:
    for row in range(len(grid)):
        floor = int(grid[row, 0])
        setting = SizingParameters(floor, grid[row, 1], grid[row, 2], grid[row, 3], int(grid[row, 4]), grid[row, 5])
        powered, held_until = start, 0
        for t in range(len(busy)):
            week = out[row, t // week_steps]
            missing = min(busy[t], total[t]) - powered
            if missing > 0:
                week[2] += missing
                week[3] += 1.0
            level, held_until = _next_level(busy[t], total[t], floors[floor, t], setting, powered, held_until, t)
            if level > powered:
                week[1] += 1.0
            powered = level
            week[0] += max(total[t] - level, 0.0)


def highest_of_last(values: NDArray[np.float64], n_steps: int) -> NDArray[np.float64]:
    """Return the maximum over the last ``n_steps`` at each position.

    At the beginning it is over as many values as there are.
    """
    highest: NDArray[np.float64] = pd.Series(values).rolling(n_steps, min_periods=1).max().to_numpy(copy=True)
    return highest


# The published rule puts nodes to sleep only where use has fallen and is expected to fall. In this form its floor is
# infinite everywhere else.
#
# Source: Hu, Sun, Yan, Wen, Zhang, "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU
# Datacenters", SC'21, section 4.3, doi 10.1145/3458817.3476223, with the values of its released scripts. Their forecast
# for three hours ahead contains true values of two of these hours. Here it uses only what was known.


class PublishedRule(NamedTuple):
    """Parameters of the published rule.

    Attributes
    ----------
    recent_steps : int
        Steps of the recent mean that the number of busy nodes is compared with.
    xi_h, xi_p : float
        Nodes by which use must have fallen, and be expected to fall, for some to be put to sleep.
    reserve : float
        Nodes kept above the busy ones, the paper's sigma.
    hold_steps : int
        Nothing is put to sleep for so many steps after a wake.
    """

    recent_steps: int
    xi_h: float
    xi_p: float
    reserve: float
    hold_steps: int

    def setting(self, floor: int) -> SizingParameters:
        """Return the rule as a setting over the given row of floors."""
        return SizingParameters(floor, self.reserve, self.reserve, 1.0, self.hold_steps, 0.0)


def published_floor(
    busy: NDArray[np.float64], soon: NDArray[np.float64], later: NDArray[np.float64], rule: PublishedRule
) -> NDArray[np.float64]:
    """Return the floor of the published rule.

    It is inf where nothing may be put to sleep.

    Parameters
    ----------
    busy : float64 array of shape (n_steps,)
        Most nodes busy in each step.
    soon, later : float64 arrays of shape (n_steps,)
        Expected mean of busy nodes over the horizon of the rule, and over twice that; NaN without a forecast.
    """
    recent = np.full(len(busy), np.nan)
    summed = np.concatenate([[0.0], np.cumsum(busy)])
    steps = min(rule.recent_steps, len(busy))
    recent[steps:] = (summed[steps:-1] - summed[: -1 - steps]) / steps
    falls = (recent - busy >= rule.xi_h) & (busy - soon >= rule.xi_p) & ~(soon < later)
    return np.where(falls, busy, np.inf)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KnownDemand:
    """Demand and forecasts of one pool at the end of each step.

    See :class:`helios.model.Demand`.

    Attributes
    ----------
    busy, total : float64 arrays of shape (n_steps,)
    most : float64 array of shape (n_steps, n_ahead, n_levels)
    soon, later : float64 arrays of shape (n_steps,)
        Expected mean of busy nodes over the horizon of the published rule, and over twice that.
    ahead_s : tuple of int
    levels : tuple of float
    ended_s : int
        End of the last step.
    published : PublishedRule
        With the values for a pool of this size.
    """

    busy: NDArray[np.float64]
    total: NDArray[np.float64]
    most: NDArray[np.float64]
    soon: NDArray[np.float64]
    later: NDArray[np.float64]
    ahead_s: tuple[int, ...]
    levels: tuple[float, ...]
    ended_s: int
    published: PublishedRule

    @property
    def day_of(self) -> NDArray[np.int64]:
        """Day of each step's end, days since the epoch."""
        return training_days(self.ended_s, len(self.busy))

    def steps(self, first: int, after: int) -> KnownDemand:
        """Return the steps ``first`` to ``after`` - 1."""
        columns = {name: getattr(self, name)[first:after] for name in ("busy", "total", "most", "soon", "later")}
        return replace(self, ended_s=self.ended_s - STEP_S * (len(self.busy) - after), **columns)


def training_days(ended_s: int, n_steps: int) -> NDArray[np.int64]:
    """Return the day of each step's end, days since the epoch.

    The last step ends at ``ended_s``.
    """
    return (ended_s - STEP_S * np.arange(n_steps - 1, -1, -1, dtype=np.int64)) // 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule with its name for a person."""

    name: str
    setting: SizingParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleScore:
    """Results of a rule in the weeks of the choice.

    Attributes
    ----------
    rule : str
    asleep : float
        Nodes asleep, averaged over time.
    wake_ups_per_day : float
    node_hours_short : float
        Hours in which a node was needed and not awake, in whole steps.
    """

    rule: str
    asleep: float
    wake_ups_per_day: float
    node_hours_short: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The rule of a day.

    Attributes
    ----------
    rule : Rule, optional
        None where nothing may sleep.
    reason : str
        The reason, for a person.
    hindsight : tuple of RuleScore
        Scores of the chosen rule, the published one, the plain one and the idle timers; empty with too few weeks.
    """

    rule: Rule | None
    reason: str
    hindsight: tuple[RuleScore, ...] = ()


Memo = MutableMapping[bytes, Choice]
"""Choices by a digest of their inputs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SizingPlan:
    """Levels and choices over a period.

    Attributes
    ----------
    levels : float64 array of shape (n_steps,)
        Nodes to be awake from the end of each step on.
    choices : tuple of (int, Choice)
        First step of each day and what was chosen for it.
    """

    levels: NDArray[np.float64]
    choices: tuple[tuple[int, Choice], ...]


def plan_sizing(
    demand: KnownDemand, options: CesOptions, *, from_step: int = 0, memo: Memo | None = None
) -> SizingPlan:
    """Run the rules from ``from_step`` on, with a choice at each midnight.

    Before ``from_step`` all nodes are awake.
    """
    levels = demand.total.copy()
    day_of = demand.day_of
    if from_step >= len(day_of):
        return SizingPlan(levels=levels, choices=())
    day_starts = [from_step, *(np.flatnonzero(np.diff(day_of[from_step:])) + from_step + 1).tolist()]
    choices: list[tuple[int, Choice]] = []
    powered, held_until = float("nan"), 0
    memo = {} if memo is None else memo
    key = _key_maker(demand, options, day_of)
    for first, after in zip(day_starts, [*day_starts[1:], len(demand.busy)], strict=True):
        weeks = _weeks_before(demand, day_of, int(day_of[first]), options.weeks)
        if (inputs := key(*weeks)) not in memo:
            memo[inputs] = choose_rule(demand.steps(*weeks), options)
        choice = memo[inputs]
        choices.append((first, choice))
        if choice.rule is None:
            powered, held_until = float(demand.total[first:after].max()), 0
            continue
        if first == from_step:
            powered = _first_level(demand, choice.rule.setting, from_step)
        powered, held_until = _walk(
            demand, choice.rule.setting, (first, after), state=(powered, held_until), levels=levels
        )
    return SizingPlan(levels=levels, choices=tuple(choices))


def levels_of(demand: KnownDemand, setting: SizingParameters, *, from_step: int) -> NDArray[np.float64]:
    """Return the nodes awake under one rule after each step from ``from_step`` on."""
    levels = demand.total.copy()
    if from_step < len(levels):
        start = _first_level(demand, setting, from_step)
        _walk(demand, setting, (from_step, len(levels)), state=(start, 0), levels=levels)
    return levels[from_step:]


def _first_level(demand: KnownDemand, setting: SizingParameters, step: int) -> float:
    """Return the nodes awake when a rule begins."""
    return float(min(demand.busy[step] + setting.up, demand.total[step]))


def published_rule(demand: KnownDemand) -> Rule:
    """Return the published rule."""
    return Rule(name=PUBLISHED, setting=demand.published.setting(0))


def plain_rule() -> Rule:
    """Return the recent maximum plus some nodes."""
    name = f"{_floor_names()[FIRST_RECENT]} and {PLAIN_NODES:g} nodes"
    return Rule(name=name, setting=SizingParameters(FIRST_RECENT, PLAIN_NODES, PLAIN_NODES, 1.0, 0, 0.0))


def choose_rule(demand: KnownDemand, options: CesOptions) -> Choice:
    """Return the best rule over the last whole weeks.

    By default only rules are admitted that in each week slept no less than the published rule, woke no oftener and had
    no more nodes short. With ``wake_ups_per_day`` all are that woke seldom enough. The best admitted rule is the one
    with the most sleep, less the penalty for nodes short.
    """
    n_weeks = len(demand.busy) // WEEK
    if n_weeks < LEAST_WEEKS:
        reason = f"forecasts of {count_in_words(n_weeks, 'whole week')} are known, and it takes {LEAST_WEEKS} to choose"
        return Choice(rule=published_rule(demand), reason=reason)
    rules = list(candidate_rules(demand, float(options.spare)))
    score = score_levels(
        demand.busy,
        demand.total,
        np.array([_floor(demand, row) for row in range(FIRST_RECENT + len(RECENT))]),
        np.array([rule.setting for rule in rules], dtype=np.float64),
        powered=_first_level(demand, rules[0].setting, 0),
        week_steps=WEEK,
    )
    admitted = _admitted(score, options)
    value = score.asleep.sum(axis=1) - options.penalty * score.missing.sum(axis=1)
    best = int(np.argmax(np.where(admitted, value, -np.inf)))
    chosen = rules[best] if admitted[best] else None
    shown = {0, *(index for index, rule in enumerate(rules) if rule.name in TIMERS or rule.name == plain_rule().name)}
    return Choice(
        rule=chosen,
        reason=_reason(chosen, options, n_weeks),
        hindsight=tuple(
            RuleScore(
                rule=rules[index].name,
                asleep=float(score.asleep[index].sum()) / len(demand.busy),
                wake_ups_per_day=float(score.wakes[index].sum()) / (7 * n_weeks),
                node_hours_short=float(score.missing[index].sum()) * STEP_S / 3_600,
            )
            for index in [best] * (chosen is not None) + sorted(shown - {best})
        ),
    )


def _weeks_before(demand: KnownDemand, day_of: NDArray[np.int64], day: int, weeks: int) -> tuple[int, int]:
    """Return the range of steps of the whole weeks with forecasts before ``day``.

    They end at a midnight, as otherwise each further step would change the choice.
    """
    after = int(np.searchsorted(day_of, day))
    forecast = np.flatnonzero(~np.isnan(demand.soon[:after]))
    n_weeks = (after - int(forecast[0])) // WEEK if len(forecast) else 0
    return after - WEEK * min(n_weeks, weeks), after


def _admitted(score: SizingScore, options: CesOptions) -> NDArray[np.bool_]:
    n_steps = score.wakes.shape[1] * WEEK
    admitted = np.ones(len(score.wakes), dtype=np.bool_)
    if options.risk is not None:
        admitted &= score.short.sum(axis=1) <= options.risk * n_steps
    if options.wake_ups_per_day is not None:
        # No wake-up in these weeks does not mean none ever, so the limit is at least half a one.
        most = MARGIN_OF_TUNING * options.wake_ups_per_day * n_steps / DAY
        few_wakes: NDArray[np.bool_] = score.wakes.sum(axis=1) <= max(most, 0.5)
        return admitted & few_wakes
    no_worse = (score.asleep >= score.asleep[0]) & (score.wakes <= score.wakes[0]) & (score.missing <= score.missing[0])
    every_week: NDArray[np.bool_] = no_worse.all(axis=1)
    return admitted & every_week


def _reason(chosen: Rule | None, options: CesOptions, n_weeks: int) -> str:
    if chosen is None:
        return f"no rule kept to the risk and the wake-ups accepted in the last {n_weeks} weeks, so nothing sleeps"
    if options.wake_ups_per_day is not None:
        most = f"{MARGIN_OF_TUNING:g} x {options.wake_ups_per_day:g} wake-ups a day"
        return f"most sleep of the last {n_weeks} weeks at {most} or fewer, less {options.penalty:g} x node hours short"
    if chosen.name == PUBLISHED:
        return f"it is better here: no other rule was at least as good in each of the last {n_weeks} weeks"
    return f"no worse than the published rule in each of the last {n_weeks} weeks, and the most sleep of such rules"


# The rules.


def candidate_rules(demand: KnownDemand, spare: float) -> Iterator[Rule]:
    """Yield the rules to try, the published one first.

    Some of them wake nodes ahead of need once fewer than ``spare`` are idle.
    """
    names, published = _floor_names(), demand.published
    yield published_rule(demand)
    for down, up, margin in product((0.5, 1.0), (1.0, 1.5), (0.0, 1.0)):
        setting = SizingParameters(
            1, down * published.reserve, up * published.reserve, 1.0, published.hold_steps, margin
        )
        yield Rule(name=f"{names[1]}, {setting.down:g} to {setting.up:g} in reserve", setting=setting)
    for timer in TIMERS:
        yield Rule(name=timer, setting=SizingParameters(names.index(timer), 0.0, 0.0, 0.5, 0, 0.0))
    yield plain_rule()
    total = float(demand.total.max())
    for floor, share, more, margin in product(
        range(FIRST_RECENT, len(names)), RESERVE_SHARES, EXTRA_SHARES, sorted({0.0, spare})
    ):
        down, up = (max(round(part * total), margin) for part in (share, share + more))
        name = f"{names[floor]} and {down:g} nodes, {up:g} on a wake-up"
        yield Rule(name=name, setting=SizingParameters(floor, down, up, 1.0, 0, margin))


def _floor_names() -> list[str]:
    """Return the names of the floors, by row."""
    recent = []
    for steps, coming in RECENT:
        name = f"the most of the last {steps * STEP_S // 3_600} h"
        recent.append(f"{name} or the {coming[1]:g} quantile of the next {coming[0] // 3_600} h" if coming else name)
    return [PUBLISHED, "published rule above the most of the last hour", *TIMERS, *recent]


def _floor(demand: KnownDemand, row: int) -> NDArray[np.float64]:
    """Return a lower bound of the level, of shape (n_steps,)."""
    if row < FIRST_RECENT - len(TIMERS):
        falls = published_floor(demand.busy, demand.soon, demand.later, demand.published)
        return falls if row == 0 else np.where(np.isinf(falls), falls, highest_of_last(demand.busy, 6))
    if row < FIRST_RECENT:
        return highest_of_last(demand.busy, list(TIMERS.values())[row - FIRST_RECENT])
    steps, coming = RECENT[row - FIRST_RECENT]
    recent = highest_of_last(demand.busy, steps)
    return recent if coming is None else np.maximum(recent, _future_quantile(demand, *coming))


def _future_quantile(demand: KnownDemand, ahead_s: int, level: float) -> NDArray[np.float64]:
    """Return a quantile of the future maximum, or the past maximum without a forecast."""
    before = highest_of_last(demand.busy, ahead_s // STEP_S)
    if ahead_s not in demand.ahead_s or level not in demand.levels:
        return before
    coming = demand.most[:, demand.ahead_s.index(ahead_s), demand.levels.index(level)]
    return np.where(np.isnan(coming), before, coming)


def _walk(
    demand: KnownDemand,
    setting: SizingParameters,
    steps: tuple[int, int],
    *,
    state: tuple[float, int],
    levels: NDArray[np.float64],
) -> tuple[float, int]:
    """Run a rule over a range of steps and return its last state."""
    first, after = steps
    floor = _floor(demand.steps(max(0, first - DAY), after), setting.floor)[first - after :]
    busy, total = demand.busy[first:after], demand.total[first:after]
    # As floats, since numba would compile anew for integers.
    row, down, up, band, hold_steps, margin = setting
    setting = SizingParameters(row, float(down), float(up), float(band), hold_steps, float(margin))
    return walk_levels(busy, total, floor, setting, *state, first, levels[first:after])


def _forecasts_used(demand: KnownDemand) -> Iterator[tuple[int, int]]:
    """Yield the positions of the horizons and levels that floors use."""
    for _, coming in RECENT:
        if coming and coming[0] in demand.ahead_s and coming[1] in demand.levels:
            yield demand.ahead_s.index(coming[0]), demand.levels.index(coming[1])


def _key_maker(demand: KnownDemand, options: CesOptions, day_of: NDArray[np.int64]) -> Callable[[int, int], bytes]:
    """Return a function that makes the memo's key of a range of days.

    Its parameters are the first steps of the first day and of the day after the last. The key is a digest of all inputs
    of a choice on these days. The weeks of adjacent days overlap, so the digest of each day is computed once.
    """
    inputs = repr((options, demand.ahead_s, demand.levels, demand.published)).encode()
    coming = [demand.most[:, ahead, level] for ahead, level in _forecasts_used(demand)]
    values = np.stack((demand.busy, demand.total, demand.soon, demand.later, *coming))
    begins = np.flatnonzero(np.diff(day_of)) + 1
    offset = int(begins[0]) % DAY if len(begins) else 0
    days = [_digest(values[:, first : first + DAY].tobytes()) for first in range(offset, len(day_of), DAY)]
    return lambda first, after: _digest(inputs + b"".join(days[(first - offset) // DAY : (after - offset) // DAY]))


@lru_cache(maxsize=1_024)  # some months of a few pools; from one step to the next nearly all days are the same
def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=16).digest()
