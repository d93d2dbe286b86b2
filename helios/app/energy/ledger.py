"""The energy ledger: what the nodes of a real cluster did, what they drew, and what sleep saved.

Everything follows from what each node did at each moment (:mod:`helios.app.energy.node_states`) and the stated model
of :mod:`helios.energy`; what was not read is unknown, never asleep. Savings are against the same jobs at the same
times on the same nodes (:mod:`helios.app.energy.idle_timer`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.energy.idle_timer import FEWEST_DAYS, gaps_of, interval_of, under_timer
from helios.app.energy.node_states import SPARE, NodeTimes, Spans, State, binned, wakes
from helios.app.energy.recorded import Recorded, recorded_nodes
from helios.app.energy.tallies import Tallied, tallied
from helios.app.energy.tariff import Tariff, tariff_of
from helios.config import Energy
from helios.energy import NodeSeconds, energy_kwh
from helios.report.energy.ledger import ALWAYS_ON, TIMERS_MIN, EnergyLedger, Saving, timer_name
from helios.report.words import percent
from helios.warehouse import Warehouse

HOUR_S = 3_600
BAND = 0.2
"""How far off the wattages of the model may be: nodes of one make differ by about a tenth, sites rarely measure."""
LEAD = timedelta(days=1)
"""How long before a window nodes are followed, so that idle timers do not start with it."""
MOST_LEVELS = 400
"""Points of a figure of levels; more cannot be told apart."""
_WATTS = ("node_idle_w", "gpu_busy_w", "cpu_busy_w", "node_sleep_w", "boot_w", "cooling_factor", "boot_s", "shutdown_s")


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
    """Return the ledger of [since, until).

    Parameters
    ----------
    timezone : str
        Zone of the cluster's days.
    by : str
        What a row of it is: ``day``, ``partition`` (nodes of the same partitions and GPUs) or ``node``.

    Raises
    ------
    NotEnoughHistory
        No job of the window names its nodes, and no node of the cluster is known.
    FileUnreadable, FormatUnknown
        The file of hourly prices.
    """
    tariff = tariff_of(energy)
    recorded = recorded_nodes(warehouse, cluster, since=since - LEAD, until=until, energy=energy)
    edges_s, day = _edges(since, until, timezone)
    looks = tallied(warehouse.node_tallies(cluster, since - timedelta(hours=1), until), edges_s=edges_s)
    book = _Book(recorded=recorded, edges_s=edges_s, energy=energy, tariff=tariff)
    pools = book.amounts(recorded.pool, len(recorded.pools))
    rows = _rows(by, book, pools, day=day, since=since, timezone=timezone)
    helios_s = np.where(np.isnan(looks.helios_s), pools["helios"].sum(axis=0), looks.helios_s)
    helios_kwh = helios_s * (book.rates[State.IDLE] - book.rates[State.ASLEEP])
    unseen_kwh = pools["unseen_s"].sum(axis=0) * book.rates[State.IDLE]
    return EnergyLedger(
        cluster=cluster,
        timezone=timezone,
        begin=since,
        end=until,
        by=by,
        nodes=len(recorded.nodes),
        days=int(day[-1]) + 1,
        currency=energy.currency,
        rows=rows,
        total={name: float(rows[name].sum()) for name in rows.columns if name != "line"} | {"line": "all"},
        savings=tuple(_saving(name, pools, day, woken=book.wakes_under(name)) for name in _policies()),
        wakes=wakes(recorded.times, begin_s=int(edges_s[0])),
        helios_node_hours=float(helios_s.sum()) / HOUR_S,
        helios_kwh=float(helios_kwh.sum()),
        helios_cost=float(tariff.cost_of(helios_kwh, edges_s=edges_s)[0].sum()),
        unseen_kwh=float(unseen_kwh.sum()),
        unseen_cost=float(tariff.cost_of(unseen_kwh, edges_s=edges_s)[0].sum()),
        levels=_levels(pools, looks, edges_s),
        daily=_daily(pools, day, since, timezone),
        band=BAND,
        watts={name: float(getattr(energy, name)) for name in _WATTS},
        notes=tuple(_notes(book, pools, looks, days=int(day[-1]) + 1)),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Book:
    """What turns times of nodes into amounts."""

    recorded: Recorded
    edges_s: NDArray[np.int64]
    energy: Energy
    tariff: Tariff

    @property
    def rates(self) -> Mapping[State, float]:
        """What a node draws in each state, kWh each second; out of service and unknown count nothing."""
        of = {
            State.BUSY: NodeSeconds(busy=1),
            State.IDLE: NodeSeconds(idle=1),
            State.ASLEEP: NodeSeconds(asleep=1),
            State.FALLING_ASLEEP: NodeSeconds(falling_asleep=1),
            State.WAKING: NodeSeconds(waking=1),
        }
        return {state: energy_kwh(seconds, self.energy) for state, seconds in of.items()}

    def amounts(self, group: NDArray[np.int64], n_groups: int) -> dict[str, NDArray[np.float64]]:
        """Return every amount by group of nodes and stretch of time, arrays of shape (n_groups, n_stretches)."""
        times = self.recorded.times

        def in_bins(spans: Spans) -> NDArray[np.float64]:
            return binned(spans, edges_s=self.edges_s, group=group, n_groups=n_groups)

        seconds = {state: in_bins(times.where(times.state == state)) for state in State}
        gpus, cpus = in_bins(self.recorded.gpus), in_bins(self.recorded.cpus)
        load = gpus * energy_kwh(NodeSeconds(gpus_busy=1), self.energy)
        load += cpus * energy_kwh(NodeSeconds(cpus_busy=1), self.energy)
        kwh = sum((seconds[state] * rate for state, rate in self.rates.items()), load)
        idle = seconds[State.IDLE] * self.rates[State.IDLE]
        asleep = times.where((times.state == State.ASLEEP) & times.by_helios)
        found = {f"{state.name.lower()}_s": amount for state, amount in seconds.items()}
        found |= {"gpu_s": gpus, "kwh": kwh, "idle_kwh": idle, "helios": in_bins(asleep)}
        found["cost"], found["co2_kg"] = self.tariff.cost_of(kwh, edges_s=self.edges_s)
        found["idle_cost"], _ = self.tariff.cost_of(idle, edges_s=self.edges_s)
        for policy, timer_s in _policies().items():
            found |= self._saved(policy, self._under(times, timer_s, in_bins) - self._spare(seconds))
        return found

    def wakes_under(self, policy: str) -> int:
        """Return how often a job would have found its node asleep."""
        gaps = gaps_of(self.recorded.times)
        length_s = gaps.spans.end_s - gaps.spans.start_s
        return int((gaps.woken & (length_s > _policies()[policy]) & (gaps.spans.end_s > self.edges_s[0])).sum())

    def _under(self, times: NodeTimes, timer_s: float, in_bins: Any) -> NDArray[np.float64]:
        would = under_timer(
            gaps_of(times), timer_s=timer_s, boot_s=self.energy.boot_s, shutdown_s=self.energy.shutdown_s
        )
        return self._spare({state: in_bins(spans) for state, spans in would.items()})

    def _spare(self, seconds: Mapping[State, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return what nodes in service without a job drew; all else is the same under every policy."""
        drawn: NDArray[np.float64] = np.sum([seconds[state] * self.rates[state] for state in SPARE], axis=0)
        return drawn

    def _saved(self, policy: str, kwh: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        cost, co2_kg = self.tariff.cost_of(kwh, edges_s=self.edges_s)
        return {f"{policy} kwh": kwh, f"{policy} cost": cost, f"{policy} co2_kg": co2_kg}


def _policies() -> dict[str, float]:
    """Return the policies that are compared with, and after how long each puts an idle node to sleep, s."""
    return {ALWAYS_ON: np.inf} | {timer_name(minutes): 60.0 * minutes for minutes in TIMERS_MIN}


def _edges(since: datetime, until: datetime, timezone: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the ends of the hours of a window, cut at midnight too, and the number of the day of each hour."""
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


def _rows(
    by: str,
    book: _Book,
    pools: dict[str, NDArray[np.float64]],
    *,
    day: NDArray[np.int64],
    since: datetime,
    timezone: str,
) -> pd.DataFrame:
    if by == "day":
        lines = [f"{moment:%Y-%m-%d}" for moment in _days(since, timezone, int(day[-1]) + 1)]
        return _table(lines, {name: _by_day(amount, day) for name, amount in pools.items()})
    if by == "partition":
        return _table(list(book.recorded.pools), {name: amount.sum(axis=1) for name, amount in pools.items()})
    nodes = book.recorded.nodes
    each = book.amounts(np.arange(len(nodes), dtype=np.int64), len(nodes))
    return _table(list(nodes), {name: amount.sum(axis=1) for name, amount in each.items()})


def _table(lines: list[str], sums: Mapping[str, NDArray[np.float64]]) -> pd.DataFrame:
    hours = {name.removesuffix("_s") + "_h": sums[name] / HOUR_S for name in sums if name.endswith("_s")}
    table = pd.DataFrame({"line": pd.Series(lines, dtype="str"), **hours})
    table["moving_h"] = table["falling_asleep_h"] + table["waking_h"]
    table["unknown_h"] += table["unseen_h"]
    for name in ("kwh", "cost", "co2_kg", "idle_kwh", "idle_cost"):
        table[name] = sums[name]
    for name in ("kwh", "cost", "co2_kg"):
        table[f"saved_{name}"] = sums[f"{ALWAYS_ON} {name}"]
    for minutes in TIMERS_MIN:
        table[f"saved_{minutes}min_kwh"] = sums[f"{timer_name(minutes)} kwh"]
    return table


def _saving(policy: str, pools: Mapping[str, NDArray[np.float64]], day: NDArray[np.int64], *, woken: int) -> Saving:
    of_day = _by_day(pools[f"{policy} kwh"], day)
    low, high = interval_of(of_day, band=BAND)
    return Saving(
        against=policy,
        kwh=float(of_day.sum()),
        low_kwh=low,
        high_kwh=high,
        cost=float(pools[f"{policy} cost"].sum()),
        co2_kg=float(pools[f"{policy} co2_kg"].sum()),
        wakes=woken,
    )


def _daily(
    pools: Mapping[str, NDArray[np.float64]], day: NDArray[np.int64], since: datetime, timezone: str
) -> pd.DataFrame:
    saved = {policy: _by_day(pools[f"{policy} kwh"], day) for policy in _policies()}
    return pd.DataFrame({"time": _days(since, timezone, int(day[-1]) + 1), **saved})


def _levels(pools: Mapping[str, NDArray[np.float64]], looks: Tallied, edges_s: NDArray[np.int64]) -> pd.DataFrame:
    """Return the mean nodes in each state, of an hour or of as many hours as a figure can show."""
    first = np.arange(0, len(edges_s) - 1, max(1, -(-(len(edges_s) - 1) // MOST_LEVELS)))
    ends_s = np.append(edges_s[first], edges_s[-1])
    length_s = np.diff(ends_s)
    of = {name: np.add.reduceat(pools[f"{name}_s"].sum(axis=0), first) / length_s for name in _LEVELS}
    unknown = of.pop("unseen") + of.pop("unknown")
    moving = of.pop("falling_asleep") + of.pop("waking")
    # A stretch in any part of which nothing was wanted, or not known to be, has no mean.
    wanted = np.add.reduceat(looks.wanted_s, first) / length_s
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


_LEVELS = ("busy", "idle", "asleep", "out", "falling_asleep", "waking", "unseen", "unknown")


def _by_day(amount: NDArray[np.float64], day: NDArray[np.int64]) -> NDArray[np.float64]:
    summed: NDArray[np.float64] = np.bincount(day, weights=amount.sum(axis=0)).astype(np.float64)
    return summed


def _days(since: datetime, timezone: str, number: int) -> list[pd.Timestamp]:
    first = pd.Timestamp(since).tz_convert(timezone).normalize()
    return [first + pd.DateOffset(days=later) for later in range(number)]


def _notes(book: _Book, pools: Mapping[str, NDArray[np.float64]], looks: Tallied, *, days: int) -> Iterator[str]:
    """Say what is not known and what was assumed, the gravest first."""
    energy, edges_s = book.energy, book.edges_s
    yield from book.recorded.notes
    total_s = len(book.recorded.nodes) * float(edges_s[-1] - edges_s[0])
    unknown_s = float(pools["unknown_s"].sum() + pools["unseen_s"].sum())
    if unknown_s > 0:
        share = percent(unknown_s / total_s, 0 if unknown_s >= 0.1 * total_s else 1)
        share = "Less than 0.1 %" if unknown_s < 0.0005 * total_s else share
        yield f"{share} of the node hours are unknown: no energy is counted for them, and no saving."
    yield from _mismatch(pools, looks)
    if days < FEWEST_DAYS:
        counted = f"{days} day{'s' if days > 1 else ''}"
        yield f"The window is {counted}: too few to say how days differ; intervals are those of the wattages alone."
    else:
        yield "Intervals: 95 % of what days like these could have come to, widened by the error of the wattages."
    yield (
        f"Wattages are those of [energy] (awake {energy.node_idle_w:g} W, a GPU in use {energy.gpu_busy_w:g} W more, "
        f"asleep {energy.node_sleep_w:g} W, cooling x {energy.cooling_factor:g}) and taken to be right to "
        f"{percent(BAND)}; falling asleep and waking to last {energy.shutdown_s:g} s and {energy.boot_s:g} s. "
        f"Costs are in {energy.currency}."
    )
    yield from book.tariff.notes(int(edges_s[0]), int(edges_s[-1]))


def _mismatch(pools: Mapping[str, NDArray[np.float64]], looks: Tallied) -> Iterator[str]:
    seen = ~np.isnan(looks.asleep_s)
    looked, told = float(looks.asleep_s[seen].sum()), float(pools["asleep_s"].sum(axis=0)[seen].sum())
    if abs(looked - told) > 0.1 * max(looked, told) and abs(looked - told) > HOUR_S:
        yield (
            f"Helios saw {looked / HOUR_S:,.0f} node hours asleep, Slurm's accounting tells of {told / HOUR_S:,.0f} in "
            "the same time; the accounting is counted (a sleeping node that was resumed or undrained drops out of it)."
        )
    served = sum(pools[f"{state.name.lower()}_s"].sum(axis=0) for state in (State.BUSY, *SPARE))[seen].sum()
    counted = float(looks.total_s[seen].sum())
    if served > 1.05 * counted > 0:
        yield (
            f"Helios counted {counted / HOUR_S:,.0f} node hours in service, the ledger {served / HOUR_S:,.0f} in the "
            "same time: nodes that left the cluster, or that are down without a word in the accounting, count as idle."
        )
