"""Energy ledger of a real cluster, with the savings of sleeping nodes.

Everything follows from what each node did at each moment (:mod:`helios.app.energy.node_states`) and from the energy
model in :mod:`helios.metrics.node_usage`. Time that was not read is unknown, never asleep. Savings compare with the
same jobs at the same times on the same nodes under another policy of sleep.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.errors import EmptyDataError, ParserError

from helios.app.energy.node_states import (
    SPARE,
    NodePowerState,
    NodeTimes,
    RecordedNodes,
    Spans,
    count_wakes,
    recorded_nodes,
    seconds,
    sum_by_bin,
)
from helios.app.reports import ReportContext, ReportQuery, open_context
from helios.config import Energy
from helios.errors import FileUnreadable, FormatUnknown
from helios.metrics.node_usage import NodeSeconds, energy_kwh
from helios.report.energy import ALWAYS_ON, TIMERS_MIN, EnergyLedger, Saving, timer_name
from helios.units import percent
from helios.warehouse import Warehouse

# What Slurm's own idle timer would have done with the same jobs at the same times, node by node.
#
# A node that was idle for the timer's length falls asleep. It starts to wake early enough to be up for its next job.
# In truth the job would have waited for that boot. The comparison therefore favours the timer, and the savings against
# it are rather too small than too large.

Amounts = Mapping[str, NDArray[np.float64]]
"""Amounts by name, of groups of nodes in intervals of time."""
DRAWS = 2_000
"""Bootstrap samples of the days; with so many, the ends of the interval move by less than a twentieth of its width."""
FEWEST_DAYS = 5

HOLDS_S = 1_800
"""Longest time for which a count holds, s. Cycles are minutes apart; a daemon that did not run counted nothing."""
LEAST_SEEN = 0.5
"""Share of an interval that counts must cover for a result."""

TIME, PRICE, CARBON = "time", "price_per_kwh", "co2_g_per_kwh"
G_PER_KG = 1_000

_HINT = (
    "Write it as time,price_per_kwh,co2_g_per_kwh with a line an hour: 2026-11-20T14:00+01:00,0.31,412 "
    "(one of the two may be left out; a time without a zone is UTC; prices may be below zero)."
)

HOUR_S = 3_600
BAND = 0.2
"""Relative error of the model's wattages. Nodes of one make differ by about a tenth, and sites rarely measure them."""
LEAD = timedelta(days=1)
"""How long before a window nodes are followed, so that idle timers do not start with it."""
MOST_LEVELS = 400
"""Most points of a figure of node counts; a reader cannot distinguish more."""
_WATTS = ("node_idle_w", "gpu_busy_w", "cpu_busy_w", "node_sleep_w", "boot_w", "cooling_factor", "boot_s", "shutdown_s")

_LEVELS = ("busy", "idle", "asleep", "out", "falling_asleep", "waking", "unseen", "unknown")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gaps:
    """Intervals in which a node was in service and held no job.

    Attributes
    ----------
    spans : Spans
    woken : bool array of shape (n,)
        Whether a job on that node ended the interval.
    """

    spans: Spans
    woken: NDArray[np.bool_]


def idle_gaps(times: NodeTimes) -> Gaps:
    """Return each node's maximal intervals without a job while in service.

    The node is idle, asleep, falling asleep or waking in them.
    """
    spare = np.isin(times.state, SPARE)
    follows = np.append(False, times.node[1:] == times.node[:-1]) if len(times.node) else np.array([], dtype=bool)
    before = np.append(False, spare[:-1]) if len(spare) else spare
    first = spare & ~(follows & before)
    last = spare & ~np.append((follows & spare)[1:], False) if len(spare) else spare
    ends = np.flatnonzero(last)
    after = np.minimum(ends + 1, len(times.node) - 1)
    woken = (after > ends) & (times.node[after] == times.node[ends]) & (times.state[after] == NodePowerState.BUSY)
    spans = Spans(node=times.node[first], start_s=times.start_s[first], end_s=times.end_s[ends])
    return Gaps(spans=spans, woken=woken)


def split_by_timer(gaps: Gaps, *, timer_s: float, boot_s: float, shutdown_s: float) -> dict[NodePowerState, Spans]:
    """Return what an idle timer would have done in these gaps.

    Parameters
    ----------
    timer_s : float
        Idle time after which a node falls asleep, s; inf for nodes that stay awake.
    """
    start, end = gaps.spans.start_s, gaps.spans.end_s
    dozes = end if np.isinf(timer_s) else np.minimum(start + int(timer_s), end)
    sleeps = np.minimum(dozes + int(shutdown_s), end)
    wakes = np.where(gaps.woken, np.maximum(end - int(boot_s), sleeps), end)
    cuts = {
        NodePowerState.IDLE: (start, dozes),
        NodePowerState.FALLING_ASLEEP: (dozes, sleeps),
        NodePowerState.ASLEEP: (sleeps, wakes),
        NodePowerState.WAKING: (wakes, end),
    }
    return {state: Spans(node=gaps.spans.node, start_s=first, end_s=last) for state, (first, last) in cuts.items()}


def ledger_interval(saved_by_day: NDArray[np.float64], *, band: float) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of a sum over days.

    It is widened by ``band``, the relative error of the energy model. With fewer than ``FEWEST_DAYS`` days only the
    band counts, because so few do not show how days differ.
    """
    total = float(saved_by_day.sum())
    low, high = total, total
    if len(saved_by_day) >= FEWEST_DAYS:
        # Seeded: the same history gives the same interval.
        picks = np.random.default_rng(0).integers(len(saved_by_day), size=(DRAWS, len(saved_by_day)))
        low, high = (float(end) for end in np.quantile(saved_by_day[picks].sum(axis=1), [0.025, 0.975]))
    return low - band * abs(low), high + band * abs(high)


# Node counts of each control cycle, as node seconds. They check the accounting and say which sleep Helios caused.


def tally_states(tallies: pd.DataFrame, *, edges_s: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
    """Return node counts (``NODE_TALLIES``) as node seconds of all pools between ``edges_s``.

    Returns
    -------
    dict of float64 arrays of shape (n_intervals,)
        In service (``total``), ``asleep``, asleep because Helios asked for it (``helios``), and ``wanted`` awake by a
        service. Pools for which no service was called count as wanted with the nodes that were awake; NaN where no
        service was called for any pool. All are NaN where too little of the interval was covered.
    """
    if tallies.empty:
        return dict.fromkeys(("total", "asleep", "helios", "wanted"), np.full(len(edges_s) - 1, np.nan))
    rows = tallies.sort_values(["pool", "taken_at"], kind="stable")
    pool = rows["pool"].cat.codes.to_numpy().astype(np.int64)
    start_s = seconds(rows["taken_at"])
    same = np.append(pool[1:] == pool[:-1], False)
    end_s = np.where(same, np.minimum(np.append(start_s[1:], 0), start_s + HOLDS_S), start_s + HOLDS_S).astype(np.int64)
    one_group = np.zeros(int(pool.max()) + 1, dtype=np.int64)

    def summed(weight: NDArray[np.float64]) -> NDArray[np.float64]:
        spans = Spans(node=pool, start_s=start_s, end_s=end_s, weight=weight)
        found: NDArray[np.float64] = sum_by_bin(spans, edges_s=edges_s, group=one_group, n_groups=1)[0]
        return found

    asleep, falling, total, by_helios = (
        rows[name].to_numpy(dtype=np.float64) for name in ("asleep", "falling_asleep", "total", "by_helios")
    )
    counts = {
        "total": total,
        "asleep": asleep,
        "helios": by_helios * asleep / np.maximum(asleep + falling, 1),
        "wanted": np.where(rows["wanted"].isna(), total - asleep - falling, rows["wanted"]),
    }
    seen = summed(np.ones(len(pool))) / (len(np.unique(pool)) * np.diff(edges_s))
    enough = seen >= LEAST_SEEN
    # The covered part of an interval stands for the rest of it.
    share = np.where(enough, seen, 1.0)
    found = {name: np.where(enough, summed(count) / share, np.nan) for name, count in counts.items()}
    called = summed(rows["wanted"].notna().to_numpy().astype(np.float64)) > 0
    found["wanted"] = np.where(called, found["wanted"], np.nan)
    return found


# Price and carbon of a kWh, from a file of hourly values or from two constants.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tariff:
    """Price and carbon of a kWh over time, as step functions.

    Attributes
    ----------
    since_s : int64 array of shape (n,)
        From when each value holds, s since the epoch, ascending. Empty where the constants always hold.
    price_per_kwh, co2_g_per_kwh : float64 arrays of shape (n,)
    before : pair of float
        Price and carbon before the first of them, the constants of the configuration.
    source : str
        The file; empty for the configuration.
    """

    since_s: NDArray[np.int64]
    price_per_kwh: NDArray[np.float64]
    co2_g_per_kwh: NDArray[np.float64]
    before: tuple[float, float]
    source: str = ""

    def cost_of(
        self, kwh: NDArray[np.float64], *, edges_s: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return cost and kg of carbon dioxide of energy in time intervals.

        The energy is taken to be drawn evenly within each interval.

        Parameters
        ----------
        kwh : array of shape (..., n)
        edges_s : array of shape (n + 1,)
            Where the intervals begin and the last one ends, s since the epoch, ascending.
        """
        price = self._means(self.price_per_kwh, self.before[0], edges_s)
        carbon = self._means(self.co2_g_per_kwh, self.before[1], edges_s)
        return kwh * price, kwh * carbon / G_PER_KG

    def notes(self, begin_s: int, end_s: int) -> list[str]:
        """Return notes on times in [begin_s, end_s) without values in the file.

        Each says what was used instead.
        """
        if not self.source:
            return []
        said = []
        if len(self.since_s) == 0 or begin_s < self.since_s[0]:
            first = "nothing" if len(self.since_s) == 0 else f"only from {_written(self.since_s[0])} on"
            said.append(f"{self.source} tells prices {first}: before it those of [energy] are taken.")
        if len(self.since_s) and end_s > self.since_s[-1] + _step_s(self.since_s):
            said.append(
                f"{self.source} ends at {_written(self.since_s[-1])}: the last price and carbon hold from there on."
            )
        return said

    def _means(self, values: NDArray[np.float64], before: float, edges_s: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the mean of a step function within each interval."""
        if len(values) == 0:
            return np.full(len(edges_s) - 1, before)
        first = min(int(edges_s[0]), int(self.since_s[0]) - 1)
        last = max(int(edges_s[-1]), int(self.since_s[-1]) + 1)
        knots = np.concatenate([[first], self.since_s, [last]])
        areas = np.concatenate([[0.0], np.cumsum(np.diff(knots) * np.concatenate([[before], values]))])
        means: NDArray[np.float64] = np.diff(np.interp(edges_s, knots, areas)) / np.diff(edges_s)
        return means


def tariff_from(energy: Energy) -> Tariff:
    """Return the tariff of the configuration, constants or a file.

    Raises
    ------
    FileUnreadable
        The file is not there, or not readable.
    FormatUnknown
        It lacks a column, or a line has no time or no number.
    """
    before = (energy.price_per_kwh, energy.co2_g_per_kwh)
    if not energy.hourly:
        since_s, nothing = np.zeros(0, dtype=np.int64), np.zeros(0)
        return Tariff(since_s=since_s, price_per_kwh=nothing, co2_g_per_kwh=nothing, before=before)
    path = Path(energy.hourly).expanduser()
    try:
        table = pd.read_csv(path, dtype="str", skipinitialspace=True)
    except (OSError, UnicodeDecodeError) as reason:
        raise FileUnreadable(f"{path} cannot be read: {reason}", hint="Correct energy.hourly.") from reason
    except (ParserError, EmptyDataError) as reason:
        raise FormatUnknown(f"{path} is not a CSV file: {reason}", hint=_HINT) from reason
    table.columns = table.columns.str.strip()
    if TIME not in table or not {PRICE, CARBON} & set(table.columns):
        there = ", ".join(map(str, table.columns)) or "none"
        raise FormatUnknown(f"{path} has the columns {there}.", hint=_HINT)
    moments = pd.to_datetime(table[TIME], utc=True, errors="coerce", format="ISO8601")
    _refuse(moments.isna(), table, path, TIME, "no time")
    told = pd.DataFrame({TIME: moments.to_numpy(dtype="datetime64[s]").astype(np.int64)})
    for name, constant in zip((PRICE, CARBON), before, strict=True):
        told[name] = pd.to_numeric(table[name], errors="coerce") if name in table else constant
        _refuse(~np.isfinite(told[name]), table, path, name, "no number")
    # Of several lines with one time the last counts.
    told = told.sort_values(TIME, kind="stable").drop_duplicates(TIME, keep="last")
    since_s, price, carbon = (told[name].to_numpy() for name in (TIME, PRICE, CARBON))
    return Tariff(
        since_s=since_s,
        price_per_kwh=price.astype(np.float64),
        co2_g_per_kwh=carbon.astype(np.float64),
        before=before,
        source=str(path),
    )


def _refuse(wrong: pd.Series, table: pd.DataFrame, path: Path, name: str, what: str) -> None:
    """Raise FormatUnknown for the first wrong value of a column."""
    for row in np.flatnonzero(wrong.to_numpy())[:1]:
        raise FormatUnknown(f"{path}, line {row + 2}: {name} is {table[name].iloc[row]!r}, {what}.", hint=_HINT)


def _step_s(since_s: NDArray[np.int64]) -> int:
    return int(np.median(np.diff(since_s))) if len(since_s) > 1 else HOUR_S


def _written(moment_s: int) -> str:
    return f"{datetime.fromtimestamp(int(moment_s), tz=UTC):%Y-%m-%d %H:%M} UTC"


def energy_report(query: ReportQuery, *, energy: Energy, by: str = "day") -> EnergyLedger:
    """Report node states, energy and savings by day, partition or node."""
    with open_context(query) as context:
        ledger = read_ledger(context, context.since, context.until, energy=energy, by=by)
        return ledger if context.live else replace(ledger, notes=(f"This is {context.label}.", *ledger.notes))


def read_ledger(context: ReportContext, since: datetime, until: datetime, *, energy: Energy, by: str) -> EnergyLedger:
    """Return the energy ledger of a report's cluster in [since, until)."""
    warehouse, timezone = context.warehouse, context.timezone
    return energy_ledger(warehouse, context.cluster, timezone=timezone, since=since, until=until, energy=energy, by=by)


def energy_ledger(
    warehouse: Warehouse,
    cluster: str,
    *,
    timezone: str,
    since: datetime,
    until: datetime,
    energy: Energy,
    by: str = "day",
) -> EnergyLedger:
    """Return the energy ledger of [since, until).

    Parameters
    ----------
    timezone : str
        Zone of the cluster's days.
    by : str
        What one row stands for: ``day``, ``partition`` (nodes of the same partitions and GPUs) or ``node``.

    Raises
    ------
    NotEnoughHistory
        No job of the window names its nodes, and no node of the cluster is known.
    FileUnreadable, FormatUnknown
        The file of hourly prices cannot be used.
    """
    tariff = tariff_from(energy)
    recorded = recorded_nodes(warehouse, cluster, since=since - LEAD, until=until, energy=energy)
    edges_s, day = _edges(since, until, timezone)
    days, first = int(day[-1]) + 1, pd.Timestamp(since).tz_convert(timezone).normalize()
    dates = [first + pd.DateOffset(days=later) for later in range(days)]
    counted = tally_states(warehouse.node_tallies(cluster, since - timedelta(hours=1), until), edges_s=edges_s)
    account = _Account(recorded=recorded, edges_s=edges_s, energy=energy, tariff=tariff)
    pools = account.amounts(recorded.pool, len(recorded.pools))
    by_day = {name: np.bincount(day, weights=amount.sum(axis=0)).astype(np.float64) for name, amount in pools.items()}
    if by == "day":
        rows = _table([f"{moment:%Y-%m-%d}" for moment in dates], by_day)
    elif by == "partition":
        rows = _table(recorded.pools, {name: amount.sum(axis=1) for name, amount in pools.items()})
    else:
        each = account.amounts(np.arange(len(recorded.nodes), dtype=np.int64), len(recorded.nodes))
        rows = _table(recorded.nodes, {name: amount.sum(axis=1) for name, amount in each.items()})
    rates = account.rates
    helios_s = np.where(np.isnan(counted["helios"]), pools["helios"].sum(axis=0), counted["helios"])
    helios_kwh = helios_s * (rates[NodePowerState.IDLE] - rates[NodePowerState.ASLEEP])
    unseen_kwh = pools["unseen_s"].sum(axis=0) * rates[NodePowerState.IDLE]
    return EnergyLedger(
        cluster=cluster,
        timezone=timezone,
        begin=since,
        end=until,
        by=by,
        nodes=len(recorded.nodes),
        days=days,
        currency=energy.currency,
        rows=rows,
        total={name: float(rows[name].sum()) for name in rows.columns if name != "line"} | {"line": "all"},
        savings=tuple(_saving(name, pools, by_day, woken=account.wakes_under(name)) for name in _policies()),
        wakes=count_wakes(recorded.times, begin_s=int(edges_s[0])),
        helios_node_hours=float(helios_s.sum()) / HOUR_S,
        helios_kwh=float(helios_kwh.sum()),
        helios_cost=float(tariff.cost_of(helios_kwh, edges_s=edges_s)[0].sum()),
        unseen_kwh=float(unseen_kwh.sum()),
        unseen_cost=float(tariff.cost_of(unseen_kwh, edges_s=edges_s)[0].sum()),
        levels=_levels(pools, counted["wanted"], edges_s),
        daily=pd.DataFrame({"time": dates, **{policy: by_day[f"{policy} kwh"] for policy in _policies()}}),
        band=BAND,
        watts={name: float(getattr(energy, name)) for name in _WATTS},
        notes=tuple(_notes(account, pools, counted, days=days)),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Account:
    """Computation of node seconds, energy and cost from recorded node states."""

    recorded: RecordedNodes
    edges_s: NDArray[np.int64]
    energy: Energy
    tariff: Tariff

    @property
    def rates(self) -> Mapping[NodePowerState, float]:
        """What a node draws in each state, kWh per second.

        States without an entry (out of service, unseen, unknown) count as nothing.
        """
        of = {
            NodePowerState.BUSY: NodeSeconds(busy=1),
            NodePowerState.IDLE: NodeSeconds(idle=1),
            NodePowerState.ASLEEP: NodeSeconds(asleep=1),
            NodePowerState.FALLING_ASLEEP: NodeSeconds(falling_asleep=1),
            NodePowerState.WAKING: NodeSeconds(waking=1),
        }
        return {state: energy_kwh(seconds, self.energy) for state, seconds in of.items()}

    def amounts(self, group: NDArray[np.int64], n_groups: int) -> dict[str, NDArray[np.float64]]:
        """Return every amount by node group and time interval.

        Arrays have shape (n_groups, n_intervals).
        """
        times = self.recorded.times

        def in_bins(spans: Spans) -> NDArray[np.float64]:
            return sum_by_bin(spans, edges_s=self.edges_s, group=group, n_groups=n_groups)

        seconds = {state: in_bins(times.where(times.state == state)) for state in NodePowerState}
        gpus, cpus = in_bins(self.recorded.gpus), in_bins(self.recorded.cpus)
        load = gpus * energy_kwh(NodeSeconds(gpus_busy=1), self.energy)
        load += cpus * energy_kwh(NodeSeconds(cpus_busy=1), self.energy)
        kwh = sum((seconds[state] * rate for state, rate in self.rates.items()), load)
        idle = seconds[NodePowerState.IDLE] * self.rates[NodePowerState.IDLE]
        asleep = times.where((times.state == NodePowerState.ASLEEP) & times.by_helios)
        found = {f"{state.name.lower()}_s": amount for state, amount in seconds.items()}
        found |= {"gpu_s": gpus, "kwh": kwh, "idle_kwh": idle, "helios": in_bins(asleep)}
        found["cost"], found["co2_kg"] = self.tariff.cost_of(kwh, edges_s=self.edges_s)
        found["idle_cost"], _ = self.tariff.cost_of(idle, edges_s=self.edges_s)
        for policy, timer_s in _policies().items():
            found |= self._saved(policy, self._under(times, timer_s, in_bins) - self._spare(seconds))
        return found

    def wakes_under(self, policy: str) -> int:
        """Return how often a job would have found its node asleep."""
        gaps = idle_gaps(self.recorded.times)
        length_s = gaps.spans.end_s - gaps.spans.start_s
        return int((gaps.woken & (length_s > _policies()[policy]) & (gaps.spans.end_s > self.edges_s[0])).sum())

    def _under(self, times: NodeTimes, timer_s: float, in_bins: Any) -> NDArray[np.float64]:
        would = split_by_timer(
            idle_gaps(times), timer_s=timer_s, boot_s=self.energy.boot_s, shutdown_s=self.energy.shutdown_s
        )
        return self._spare({state: in_bins(spans) for state, spans in would.items()})

    def _spare(self, seconds: Mapping[NodePowerState, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return the energy that nodes in service without a job drew, kWh.

        Only this part differs between policies.
        """
        drawn: NDArray[np.float64] = np.sum([seconds[state] * self.rates[state] for state in SPARE], axis=0)
        return drawn

    def _saved(self, policy: str, kwh: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        cost, co2_kg = self.tariff.cost_of(kwh, edges_s=self.edges_s)
        return {f"{policy} kwh": kwh, f"{policy} cost": cost, f"{policy} co2_kg": co2_kg}


def _policies() -> dict[str, float]:
    """Return the idle timer (s) of each policy that is compared with."""
    return {ALWAYS_ON: np.inf} | {timer_name(minutes): 60.0 * minutes for minutes in TIMERS_MIN}


def _edges(since: datetime, until: datetime, timezone: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the bounds of hours, and the day of each.

    Hours are also cut at local midnight. Days are numbered from 0.
    """
    begin_s, end_s = (int(moment.timestamp()) for moment in (since, until))
    hours = np.arange(-(-begin_s // HOUR_S) * HOUR_S, end_s, HOUR_S, dtype=np.int64)
    first = pd.Timestamp(since).tz_convert(timezone).normalize()
    midnights_s = []
    while first.timestamp() < end_s:
        first += pd.DateOffset(days=1)
        midnights_s.append(min(int(first.timestamp()), end_s))
    midnights = np.array(midnights_s, dtype=np.int64)
    edges_s = np.unique(np.concatenate([[begin_s], hours, midnights, [end_s]])).astype(np.int64)
    return edges_s, np.searchsorted(midnights, edges_s[:-1], side="right").astype(np.int64)


def _table(lines: Sequence[str], sums: Amounts) -> pd.DataFrame:
    hours = {name.removesuffix("_s") + "_h": sums[name] / HOUR_S for name in sums if name.endswith("_s")}
    table = pd.DataFrame({"line": pd.Series(list(lines), dtype="str"), **hours})
    table["moving_h"] = table["falling_asleep_h"] + table["waking_h"]
    table["unknown_h"] += table["unseen_h"]
    for name in ("kwh", "cost", "co2_kg", "idle_kwh", "idle_cost"):
        table[name] = sums[name]
    for name in ("kwh", "cost", "co2_kg"):
        table[f"saved_{name}"] = sums[f"{ALWAYS_ON} {name}"]
    for minutes in TIMERS_MIN:
        table[f"saved_{minutes}min_kwh"] = sums[f"{timer_name(minutes)} kwh"]
    return table


def _saving(
    policy: str,
    pools: Amounts,
    by_day: Amounts,
    *,
    woken: int,
) -> Saving:
    saved_by_day = by_day[f"{policy} kwh"]
    low, high = ledger_interval(saved_by_day, band=BAND)
    return Saving(
        against=policy,
        kwh=float(saved_by_day.sum()),
        low_kwh=low,
        high_kwh=high,
        cost=float(pools[f"{policy} cost"].sum()),
        co2_kg=float(pools[f"{policy} co2_kg"].sum()),
        wakes=woken,
    )


def _levels(pools: Amounts, wanted_s: NDArray[np.float64], edges_s: NDArray[np.int64]) -> pd.DataFrame:
    """Return the mean number of nodes in each state over time.

    Points are hours, or several hours where a figure could not show more.
    """
    first = np.arange(0, len(edges_s) - 1, max(1, -(-(len(edges_s) - 1) // MOST_LEVELS)))
    ends_s = np.append(edges_s[first], edges_s[-1])
    length_s = np.diff(ends_s)
    of = {name: np.add.reduceat(pools[f"{name}_s"].sum(axis=0), first) / length_s for name in _LEVELS}
    unknown = of.pop("unseen") + of.pop("unknown")
    moving = of.pop("falling_asleep") + of.pop("waking")
    # NaN where the wanted number is unknown in any part of the interval.
    wanted = np.add.reduceat(wanted_s, first) / length_s
    return pd.DataFrame(
        {
            "time": pd.to_datetime(ends_s[:-1], unit="s", utc=True),
            "ended_at": pd.to_datetime(ends_s[1:], unit="s", utc=True),
            **of,
            "moving": moving,
            "unknown": unknown,
            "wanted": wanted,
        }
    )


def _notes(
    account: _Account,
    pools: Amounts,
    counted: Amounts,
    *,
    days: int,
) -> Iterator[str]:
    """Yield what is not known and what was assumed, most important first."""
    energy, edges_s = account.energy, account.edges_s
    yield from account.recorded.notes
    total_s = len(account.recorded.nodes) * float(edges_s[-1] - edges_s[0])
    unknown_s = float(pools["unknown_s"].sum() + pools["unseen_s"].sum())
    if unknown_s > 0:
        share = percent(unknown_s / total_s, 0 if unknown_s >= 0.1 * total_s else 1)
        share = "Less than 0.1 %" if unknown_s < 0.0005 * total_s else share
        yield f"{share} of the node hours are unknown: no energy is counted for them, and no saving."
    yield from _mismatch(pools, counted)
    if days < FEWEST_DAYS:
        window = f"{days} day{'s' if days > 1 else ''}"
        yield f"The window is {window}: too few to say how days differ; intervals are those of the wattages alone."
    else:
        yield "Intervals: 95 % of what days like these could have come to, widened by the error of the wattages."
    yield (
        f"Wattages are those of [energy] (awake {energy.node_idle_w:g} W, a GPU in use {energy.gpu_busy_w:g} W more, "
        f"asleep {energy.node_sleep_w:g} W, cooling x {energy.cooling_factor:g}) and taken to be right to "
        f"{percent(BAND)}; falling asleep and waking to last {energy.shutdown_s:g} s and {energy.boot_s:g} s. "
        f"Costs are in {energy.currency}."
    )
    yield from account.tariff.notes(int(edges_s[0]), int(edges_s[-1]))


def _mismatch(pools: Amounts, counted: Amounts) -> Iterator[str]:
    seen = ~np.isnan(counted["asleep"])
    looked, told = float(counted["asleep"][seen].sum()), float(pools["asleep_s"].sum(axis=0)[seen].sum())
    if abs(looked - told) > 0.1 * max(looked, told) and abs(looked - told) > HOUR_S:
        yield (
            f"Helios saw {looked / HOUR_S:,.0f} node hours asleep, Slurm's accounting tells of {told / HOUR_S:,.0f} in "
            "the same time; the accounting is counted (a sleeping node that was resumed or undrained drops out of it)."
        )
    served = sum(pools[f"{state.name.lower()}_s"].sum(axis=0) for state in (NodePowerState.BUSY, *SPARE))[seen].sum()
    in_service = float(counted["total"][seen].sum())
    if served > 1.05 * in_service > 0:
        yield (
            f"Helios counted {in_service / HOUR_S:,.0f} node hours in service, the ledger {served / HOUR_S:,.0f} in "
            "the same time: nodes that left the cluster, or that are down without a word in the accounting, count as "
            "idle."
        )
