"""What each energy policy would save and delay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape

from helios.model.frames import plain
from helios.report.energy import ALWAYS_ON, TIMERS_MIN, timer_name
from helios.report.tables import figure, plain_table
from helios.units import count_in_words, duration_in_words, percent, rounded_duration

CES, ORACLE, TIMER = "ces", "oracle", timer_name(TIMERS_MIN[0])
WIDE = 100
"""Terminal columns from which less important figures are shown too."""
JOB_COLUMNS = ("Asleep", "kWh/day", "Delayed", "of jobs", "Cycles", "GPUs", "of oracle")
"""Figures of each policy on jobs. Delayed is a share of submissions, Cycles are those of a node a day, GPUs the share
of powered ones in use."""
SERIES_COLUMNS = ("Asleep", "kWh/day", "Short node-h", "Cycles", "In use", "of oracle")
PRICE = "kWh a delay"
"""What the last spare node costs for each delay it spares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyResult:
    """What one policy of sleeping did in the window.

    Attributes
    ----------
    policy : str
        ``always_on``, ``idle_timer_30min``, ``timer_and_spare`` or ``timer_and_floor``, ``max_3h_plus_5``,
        ``ces_published``, ``ces``, ``ces+weights``, ``oracle``.
    mean_sleeping_nodes : float
        Nodes not powered (neither awake nor on the way), averaged over time.
    node_utilization_before, node_utilization_after : float
        Busy nodes over those in service, and over those powered; fractions.
    node_hours_short : float
        How many nodes were needed and not awake, times how long, in the whole window.
    cycles_per_node_day : float
        How often a node was woken a day.
    energy_kwh : float
        Energy in the window by the model of ``helios.metrics.node_usage`` and the configuration.
    saved_kwh : float
        Energy saved against ``always_on``, had that done as much work: a policy under which jobs start earlier does
        more of it within the window.
    cost, co2_kg : float, optional
        None where no price, or no carbon dioxide of a kWh, is known.
    currency : str
        Currency of the cost.
    jobs_delayed : int, optional
        Jobs that waited for a boot. None on a node series, which has no jobs; likewise what follows.
    share_of_jobs_delayed : float, optional
        Share of the jobs submitted in the window.
    mean_delay_s, longest_delay_s : float, optional
        Delay of the delayed jobs, s. 0 where none was.
    submissions_delayed, share_of_submissions_delayed : optional
        Minutes in which a job was submitted that waited for a boot, and their share of those with submissions. Each
        partition counts for itself.
    added_wait_s : float, optional
        Delay by boots, averaged over all jobs, s.
    gpu_utilization : float, optional
        GPUs in use over those of powered nodes; None where the cluster is counted in CPUs.
    share_of_oracle : float, optional
        Energy saved, as a share of what the oracle saves.
    """

    policy: str
    mean_sleeping_nodes: float
    node_utilization_before: float
    node_utilization_after: float
    node_hours_short: float
    cycles_per_node_day: float
    energy_kwh: float
    saved_kwh: float
    cost: float | None
    currency: str
    co2_kg: float | None
    jobs_delayed: int | None = None
    share_of_jobs_delayed: float | None = None
    mean_delay_s: float | None = None
    longest_delay_s: float | None = None
    submissions_delayed: int | None = None
    share_of_submissions_delayed: float | None = None
    added_wait_s: float | None = None
    gpu_utilization: float | None = None
    share_of_oracle: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain values.

        What is not a finite number is null.
        """
        found: dict[str, Any] = plain(self)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class WeeklySaving:
    """Energy that ``ces`` saved more than another policy, compared week by week.

    Attributes
    ----------
    against : str
        The other policy.
    weeks : int
        Whole weeks, of which this is the mean.
    kwh_day : float
    low_kwh_day, high_kwh_day : float, optional
        95 % interval of that mean.
    """

    against: str
    weeks: int
    kwh_day: float
    low_kwh_day: float | None
    high_kwh_day: float | None

    def interval(self, *, sign: int) -> str:
        """Return the interval of the difference times ``sign`` in brackets."""
        if self.low_kwh_day is None or self.high_kwh_day is None:
            return ""
        low, high = sorted((sign * self.low_kwh_day, sign * self.high_kwh_day))
        return f" (95 % of {count_in_words(self.weeks, 'week')}: {low:,.0f} to {high:,.0f})"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontRow:
    """Result of the rule with so many spare nodes in each pool.

    Attributes
    ----------
    spare : int
    result : PolicyResult
    last_costs_kwh_day, last_spares_day : float, optional
        What the last of them costs a day, and how many submissions a day it spares a wait; None without one.
    """

    spare: int
    result: PolicyResult
    last_costs_kwh_day: float | None = None
    last_spares_day: float | None = None

    @property
    def price_kwh(self) -> float | None:
        """What the last of them costs for each delay it spares, kWh.

        None where it spares none.
        """
        if self.last_costs_kwh_day is None or self.last_spares_day is None or self.last_spares_day <= 0:
            return None
        return self.last_costs_kwh_day / self.last_spares_day

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        found: dict[str, Any] = plain(self)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenSpare:
    """Spare nodes of a pool that the weeks before the window suggest.

    Attributes
    ----------
    pool, reason : str
    spare : int
        Nodes awake beyond those in use, and beyond the most of the last ``memory_s``.
    memory_s : int
    """

    pool: str
    spare: int
    memory_s: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyWhatIf:
    """One window under every policy.

    Attributes
    ----------
    kind : str
        ``series`` or ``cluster``: what ``name`` names.
    window : pair of datetime
        First moment that counts, and the first that does not.
    total_nodes : float
        Nodes in service, averaged over the window.
    policies : tuple of PolicyResult
    notes : tuple of str
        What was assumed.
    weekly : tuple of WeeklySaving
        ``ces`` against others, week by week; empty in a window of fewer than three weeks.
    front : tuple of FrontRow
        The rule of ``ces`` by its number of spare nodes, fewest first; empty on a series.
    spare : tuple of ChosenSpare
        The rule of each pool under ``ces``.
    """

    kind: str
    name: str
    window: tuple[datetime, datetime]
    total_nodes: float
    policies: tuple[PolicyResult, ...]
    notes: tuple[str, ...] = ()
    weekly: tuple[WeeklySaving, ...] = ()
    front: tuple[FrontRow, ...] = ()
    spare: tuple[ChosenSpare, ...] = ()

    @property
    def days(self) -> float:
        """Length of the window."""
        first, end = self.window
        return (end - first).total_seconds() / 86_400

    @property
    def has_jobs(self) -> bool:
        """Whether jobs were replayed."""
        return any(policy.jobs_delayed is not None for policy in self.policies)

    def of(self, policy: str) -> PolicyResult | None:
        """Return the result of a policy.

        None where it was not run.
        """
        return next((result for result in self.policies if result.policy == policy), None)

    def without_unknown(self, *, price: bool, co2: bool) -> EnergyWhatIf:
        """Return the results without unknown costs and CO2."""

        def known(policy: PolicyResult) -> PolicyResult:
            return replace(policy, cost=policy.cost if price else None, co2_kg=policy.co2_kg if co2 else None)

        front = (replace(row, result=known(row.result)) for row in self.front)
        return replace(self, policies=tuple(map(known, self.policies)), front=tuple(front))

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        first, end = self.window
        return {
            self.kind: self.name,
            "from": first.isoformat(),
            "to": end.isoformat(),
            "days": self.days,
            "total_nodes": self.total_nodes,
            "summary": energy_verdict(self),
            "policies": [result.to_json() for result in self.policies],
            "weekly": [asdict(saving) for saving in self.weekly],
            "front": [row.to_json() for row in self.front],
            "spare": [asdict(choice) for choice in self.spare],
            "notes": list(self.notes),
        }


def energy_table(result: EnergyWhatIf, *, width: int) -> RenderableType:
    """Return the verdict and the tables for a terminal."""
    first, end = result.window
    head = (
        f"{result.name}: {result.total_nodes:,.0f} nodes, {first:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} "
        f"({first:%Z}), {result.days:.1f} days."
    )
    tables: list[RenderableType] = [_drawn("Policy", *policy_rows(result, wide=width >= WIDE), emphasised=CES)]
    if result.front:
        tables += ["", front_title(result), _drawn("Spare", *front_rows(result, wide=width >= WIDE))]
    sentences = [escape(sentence) for sentence in energy_verdict(result)]
    return Group(escape(head), "", *sentences, "", *tables, "", *map(escape, result.notes))


def energy_verdict(result: EnergyWhatIf) -> list[str]:
    """Return what the default policy comes to, and why."""
    ces, always_on = result.of(CES), result.of(ALWAYS_ON)
    if ces is None or always_on is None:
        return []
    saved = {saving.against: saving for saving in result.weekly}
    verb, sign = ("saves", 1) if ces.saved_kwh >= 0 else ("costs", -1)
    share = percent(abs(ces.saved_kwh) / always_on.energy_kwh, 1) if always_on.energy_kwh else "-"
    interval = saved[ALWAYS_ON].interval(sign=sign) if ALWAYS_ON in saved else ""
    sentences = [
        f"CES {verb} {sign * ces.saved_kwh / result.days:,.0f} kWh a day{interval}, {share} of what all nodes on draw: "
        f"{ces.mean_sleeping_nodes:.1f} of {result.total_nodes:,.0f} nodes are asleep, and a node is woken "
        f"{ces.cycles_per_node_day:.2f} times a day."
    ]
    sentences += _money_sentences(ces, always_on)
    sentences += [_delay_sentence(ces)]
    if timer := result.of(TIMER):
        sentences.append(_timer_sentence(ces, timer, result, saved.get(TIMER)))
    pools = [f"In {choice.pool} " if len(result.spare) > 1 else "" for choice in result.spare]
    return sentences + [
        f"{pool}{'as' if pool else 'As'} many nodes stay awake as were in use in the last "
        f"{rounded_duration(choice.memory_s)}, and {choice.reason}."
        for pool, choice in zip(pools, result.spare, strict=True)
    ]


def _delay_sentence(ces: PolicyResult) -> str:
    if ces.jobs_delayed is None:
        return f"{ces.node_hours_short:,.1f} node hours were short in the window."
    if ces.jobs_delayed == 0:
        return "No job waits for a node to boot."
    longest = duration_in_words(ces.longest_delay_s or 0.0)
    return (
        f"{percent(ces.share_of_submissions_delayed, 2)} of submissions wait for a node to boot ({ces.jobs_delayed:,} "
        f"jobs, {percent(ces.share_of_jobs_delayed, 2)}), {longest} at the most; that adds "
        f"{ces.added_wait_s or 0:.1f} s to the mean wait."
    )


def _timer_sentence(ces: PolicyResult, timer: PolicyResult, result: EnergyWhatIf, weekly: WeeklySaving | None) -> str:
    kwh = (ces.saved_kwh - timer.saved_kwh) / result.days
    interval = weekly.interval(sign=1 if kwh >= 0 else -1) if weekly else ""
    delays = (
        f"{timer.node_hours_short:,.1f} node hours short"
        if timer.jobs_delayed is None
        else f"{percent(timer.share_of_submissions_delayed, 2)} of submissions delayed"
    )
    return (
        f"Slurm's idle timer of {TIMERS_MIN[0]} min saves {abs(kwh):,.0f} kWh a day {'less' if kwh >= 0 else 'more'}"
        f"{interval}, with {delays} and {timer.cycles_per_node_day:.2f} wakes of a node a day."
    )


def _money_sentences(ces: PolicyResult, always_on: PolicyResult) -> list[str]:
    """Return the savings in money and CO2 of the window, where known."""
    saved = []
    if ces.cost is not None and always_on.cost is not None:
        saved.append(f"{always_on.cost - ces.cost:,.0f} {ces.currency}")
    if ces.co2_kg is not None and always_on.co2_kg is not None:
        saved.append(f"{always_on.co2_kg - ces.co2_kg:,.0f} kg of CO2")
    return [f"That saves {' and '.join(saved)} in the window."] if saved else []


def front_title(result: EnergyWhatIf) -> str:
    """Return the head of the table of spare nodes."""
    pools = "" if len(result.spare) < 2 else " in each pool"
    return f"CES with other numbers of spare nodes{pools}:"


def policy_rows(result: EnergyWhatIf, *, wide: bool = True) -> tuple[list[str], list[list[str]]]:
    """Return the heads and the rows of the policies."""
    names = _columns(result, wide=wide)
    return names, [[policy.policy, *_cells(policy, names, result)] for policy in result.policies]


def front_rows(result: EnergyWhatIf, *, wide: bool = True) -> tuple[list[str], list[list[str]]]:
    """Return the heads and the rows of the numbers of spare nodes."""
    names = _columns(result, wide=wide)
    rows = [
        [str(row.spare), *_cells(row.result, names, result), "-" if (kwh := row.price_kwh) is None else f"{kwh:,.0f}"]
        for row in result.front
    ]
    return [*names, PRICE], rows


def _columns(result: EnergyWhatIf, *, wide: bool) -> list[str]:
    names = [*(JOB_COLUMNS if result.has_jobs else SERIES_COLUMNS)]
    if result.has_jobs and wide:
        names.insert(names.index("of jobs") + 1, "Wait, s")
    always_on = result.of(ALWAYS_ON)
    if wide and always_on is not None:
        names += [f"{always_on.currency}/day"] if always_on.cost is not None else []
        names += ["kg CO2/day"] if always_on.co2_kg is not None else []
    return names


def _cells(policy: PolicyResult, names: Sequence[str], result: EnergyWhatIf) -> list[str]:
    """Return the cells of a result under these heads."""
    always_on = result.of(ALWAYS_ON)
    cost, co2_kg = (None, None) if always_on is None else (always_on.cost, always_on.co2_kg)
    cells = {
        "Asleep": f"{policy.mean_sleeping_nodes:.1f}",
        "kWh/day": f"{round(policy.saved_kwh / result.days):,}",
        "Delayed": percent(policy.share_of_submissions_delayed, 2),
        "of jobs": percent(policy.share_of_jobs_delayed, 2),
        "Wait, s": figure(policy.added_wait_s, 1),
        "Short node-h": f"{policy.node_hours_short:,.1f}",
        "Cycles": f"{policy.cycles_per_node_day:.2f}",
        "In use": percent(policy.node_utilization_after),
        "GPUs": percent(policy.gpu_utilization),
        "of oracle": percent(policy.share_of_oracle),
        f"{policy.currency}/day": "-" if cost is None else f"{round((cost - (policy.cost or 0.0)) / result.days):,}",
        "kg CO2/day": "-" if co2_kg is None else f"{round((co2_kg - (policy.co2_kg or 0.0)) / result.days):,}",
    }
    return [cells[name] for name in names]


def _drawn(first: str, names: list[str], rows: list[list[str]], *, emphasised: str = "") -> RenderableType:
    table = plain_table(first, *names)
    table.columns[0].no_wrap = True
    for row in rows:
        table.add_row(*row, style="bold" if row[0] == emphasised else "dim" if row[0] == ORACLE else None)
    return table
