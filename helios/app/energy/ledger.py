"""Energy ledger of a real cluster, with the savings of sleeping nodes.

Everything follows from what each node did at each moment (:mod:`helios.app.energy.node_states`) and from the energy
model in :mod:`helios.metrics.node_usage`. Time that was not read is unknown, never asleep. Savings compare with the
same jobs at the same times on the same nodes under another policy of sleep.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.energy.idle_timer import idle_gaps, split_by_timer
from helios.app.energy.node_states import SPARE, NodePowerState, NodeTimes, Spans, count_wakes, sum_by_bin
from helios.app.energy.node_tallies import tally_states
from helios.app.energy.recorded_nodes import RecordedNodes, recorded_nodes
from helios.app.energy.tariff import Tariff, tariff_from
from helios.app.reports import ReportContext, ReportQuery, open_context
from helios.config import Energy
from helios.metrics.node_usage import NodeSeconds, energy_kwh
from helios.report.energy import ALWAYS_ON, TIMERS_MIN, EnergyLedger, Saving, timer_name
from helios.units import HOUR_S, percent
from helios.warehouse import Warehouse

Amounts = Mapping[str, NDArray[np.float64]]
"""Amounts by name, of groups of nodes in intervals of time."""
DRAWS = 2_000
"""Bootstrap samples of the days; with so many, the ends of the interval move by less than a twentieth of its width."""
FEWEST_DAYS = 5
BAND = 0.2
"""Relative error of the model's wattages. Nodes of one make differ by about a tenth, and sites rarely measure them."""
LEAD = timedelta(days=1)
"""How long before a window nodes are followed, so that idle timers do not start with it."""
MOST_LEVELS = 400
"""Most points of a figure of node counts; a reader cannot distinguish more."""
_WATTS = ("node_idle_w", "gpu_busy_w", "cpu_busy_w", "node_sleep_w", "boot_w", "cooling_factor", "boot_s", "shutdown_s")
KNOWN_STATES = frozenset(NodePowerState) - {NodePowerState.UNSEEN, NodePowerState.UNKNOWN}
_LEVELS = ("busy", "idle", "asleep", "out", "falling_asleep", "waking", "unseen", "unknown")


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
        total={name: float(rows[name].sum(min_count=1)) for name in rows.columns if name != "line"} | {"line": "all"},
        savings=tuple(_saving(name, pools, by_day, woken=account.wakes_under(name)) for name in _policies()),
        wakes=count_wakes(recorded.times, begin_s=int(edges_s[0])),
        helios_node_hours=float(helios_s.sum()) / HOUR_S,
        helios_kwh=float(helios_kwh.sum()),
        helios_cost=float(tariff.cost_of(helios_kwh, edges_s=edges_s)[0].sum()),
        unseen_kwh=float(unseen_kwh.sum()),
        unseen_cost=float(tariff.cost_of(unseen_kwh, edges_s=edges_s)[0].sum()),
        levels=_levels(pools, counted["wanted"], edges_s),
        daily=pd.DataFrame(
            {
                "time": dates,
                **{policy: np.where(_are_known(by_day), by_day[f"{policy} kwh"], np.nan) for policy in _policies()},
            }
        ),
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
    known = _are_known(sums)
    amounts = [name for name in table.columns.astype("str") if name.endswith(("kwh", "cost", "co2_kg"))]
    return table.assign(**{name: table[name].where(known) for name in amounts})


def _are_known(sums: Amounts) -> NDArray[np.bool_]:
    """Return in which rows anything is known.

    What nodes drew in the others is unknown, not none.
    """
    known: NDArray[np.bool_] = np.any([sums[f"{state.name.lower()}_s"] > 0 for state in KNOWN_STATES], axis=0)
    return known


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
