"""What nodes drew, and what sleep saved or would save.

In sentences, tables and as JSON: the ledger of a real cluster's nodes, and the replays of `energy whatif`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Group, RenderableType
from rich.markup import escape

from helios.model.frames import plain
from helios.report.admin.sacct_format import Field, FieldKind, ReportTable, as_json, declare_fields
from helios.report.tables import figure, plain_table
from helios.units import DAY_S, count_in_words, duration_in_words, percent, rounded_duration

if TYPE_CHECKING:  # it imports numba, which the ledger does not need
    from helios.services.energy_saving import Choice

ALWAYS_ON = "always_on"
TIMERS_MIN = (30, 10)
"""Settings of Slurm's idle timer to compare with, min; sentences use the first."""
FINE_BELOW = 100
"""Totals below it are written with a decimal."""

PUBLISHED, ORACLE, TIMER = "ces_published", "oracle", "idle_timer_30min"
FORESEEING = (ORACLE, "foresight")
MIDDLE, WIDE = 100, 150
"""Terminal columns from which less important figures are shown too, and from which all are."""
POLICY_COLUMNS = ("Asleep", "In use", "Wake-ups a day", "Nodes each", "Short, node h", "kWh", "Saved kWh")
"""Of a page."""
FRONT_COLUMNS = (
    *("Spare", "Asleep", "Saved kWh", "Delayed", "of jobs", "Wait, s", "Cycles", "GPUs", "of oracle"),
    "kWh a delay",
)
"""Of the table of spare nodes. Delayed is a share of submissions, Wait an average over all jobs, Cycles are those of a
node a day, GPUs the share of powered ones in use. The last is what the last node costs for each delay it spares."""


def timer_name(minutes: int) -> str:
    """Return the name of an idle timer in JSON, as ``idle_timer_30min``."""
    return f"idle_timer_{minutes}min"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """Savings against another way to run the same nodes.

    With the same jobs at the same times.

    Attributes
    ----------
    against : str
        ``always_on``, ``idle_timer_30min``, ``idle_timer_10min``.
    kwh : float
        Below zero: the other way would have drawn less.
    low_kwh, high_kwh : float
        95 % of resampled days, widened by the band of the wattages; of less than five days the band alone.
    cost, co2_kg : float
    wakes : int
        How often a node would have been woken for a job.
    """

    against: str
    kwh: float
    low_kwh: float
    high_kwh: float
    cost: float
    co2_kg: float
    wakes: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EnergyLedger:
    """Node hours, energy and savings of a window.

    Attributes
    ----------
    by : str
        ``day``, ``partition`` or ``node``: what a row is.
    nodes : int
    days : int
        Calendar days that the window touches.
    rows : DataFrame
        A column for each field of :func:`fields_by`.
    total : mapping
        The same, over all rows.
    savings : tuple of Saving
        Savings against always on, then against each of ``TIMERS_MIN``.
    wakes : int
        How often a node was woken.
    helios_node_hours, helios_kwh, helios_cost : float
        Node hours asleep because Helios asked for it, and what they saved against staying on.
    unseen_kwh, unseen_cost : float
        What nodes without a job would have drawn, at the most, where it is not known whether they were awake.
    levels : DataFrame
        For figures: ``time``, ``ended_at``, and mean nodes ``busy``, ``idle``, ``asleep``, ``moving``, ``out``,
        ``unknown``; ``wanted``: nodes that Helios wanted awake, NaN where unknown.
    daily : DataFrame
        For figures: ``time``, and kWh saved against each policy, ``always_on``, ``idle_timer_30min``, ...
    band : float
        How far off the wattages may be, as a share.
    watts : mapping
        The model's figures.
    notes : tuple of str
        What was assumed, and what is not known.
    """

    cluster: str
    timezone: str
    begin: datetime
    end: datetime
    by: str
    nodes: int
    days: int
    currency: str
    rows: pd.DataFrame
    total: Mapping[str, Any]
    savings: tuple[Saving, ...]
    wakes: int
    helios_node_hours: float
    helios_kwh: float
    helios_cost: float
    unseen_kwh: float
    unseen_cost: float
    levels: pd.DataFrame
    daily: pd.DataFrame
    band: float
    watts: Mapping[str, float]
    notes: tuple[str, ...] = ()

    @property
    def slept(self) -> bool:
        """Whether any node is known to have slept."""
        return float(self.total["asleep_h"]) > 0

    def saving_against(self, policy: str) -> Saving:
        """Return the saving against a policy."""
        return next(saving for saving in self.savings if saving.against == policy)

    def to_json(self) -> dict[str, Any]:
        """Return plain values.

        Lengths are node hours, energies kWh.
        """
        table = as_json(energy_answer(self))
        names = ("cluster", "timezone", "days", "nodes", "by", "currency", "wakes")
        return {
            **{name: getattr(self, name) for name in names},
            "from": self.begin.isoformat(),
            "to": self.end.isoformat(),
            "rows": table["rows"],
            "total": table["total"],
            "savings": [asdict(saving) for saving in self.savings],
            "by_helios": {
                "asleep_node_hours": self.helios_node_hours,
                "saved_kwh": self.helios_kwh,
                "saved_cost": self.helios_cost,
            },
            "unseen": {"at_most_kwh": self.unseen_kwh, "at_most_cost": self.unseen_cost},
            "model": {**self.watts, "band": self.band},
            "summary": energy_sentences(self),
            "notes": list(self.notes),
        }


def energy_levels(ledger: EnergyLedger) -> dict[str, float]:
    """Return the figures that dashboards show, by name."""
    saved = ledger.saving_against(ALWAYS_ON)
    return {
        "used_kwh": float(ledger.total["kwh"]),
        "idle_kwh": float(ledger.total["idle_kwh"]),
        "saved_kwh": saved.kwh,
        "saved_low_kwh": saved.low_kwh,
        "saved_high_kwh": saved.high_kwh,
        "saved_to_timer_kwh": ledger.saving_against(timer_name(TIMERS_MIN[0])).kwh,
        "saved_cost": saved.cost,
        "saved_co2_kg": saved.co2_kg,
        "asleep_node_h": float(ledger.total["asleep_h"]),
    }


def fields_by(by: str) -> tuple[Field, ...]:
    """Return the fields of the report by ``day``, ``partition`` or ``node``."""
    return declare_fields(
        (by.capitalize(), "line", FieldKind.TEXT, 10 if by == "day" else 12, f"The {by}"),
        ("BusyH", "busy_h", FieldKind.COUNT, 7, "Node hours with a job"),
        ("IdleH", "idle_h", FieldKind.COUNT, 7, "Node hours awake without a job"),
        ("AsleepH", "asleep_h", FieldKind.COUNT, 7, "Node hours asleep"),
        ("MovingH", "moving_h", FieldKind.DECIMAL, 7, "Node hours falling asleep and waking"),
        ("OutH", "out_h", FieldKind.COUNT, 6, "Node hours out of service: down, drained; not in kWh"),
        ("UnknownH", "unknown_h", FieldKind.COUNT, 8, "Node hours of which nothing is known; not in kWh"),
        ("kWh", "kwh", FieldKind.COUNT, 7, "Drawn by the building, by the model"),
        ("Cost", "cost", FieldKind.COUNT, 6, "What that cost, in energy.currency"),
        ("IdlekWh", "idle_kwh", FieldKind.COUNT, 7, "Drawn by idle nodes"),
        ("Saved", "saved_kwh", FieldKind.COUNT, 7, "kWh saved by sleep against leaving all nodes on"),
        ("vs30min", "saved_30min_kwh", FieldKind.COUNT, 7, "kWh saved against Slurm's idle timer of 30 min"),
        ("vs10min", "saved_10min_kwh", FieldKind.COUNT, 7, "kWh saved against Slurm's idle timer of 10 min"),
        ("FallingH", "falling_asleep_h", FieldKind.DECIMAL, 8, "Node hours falling asleep"),
        ("WakingH", "waking_h", FieldKind.DECIMAL, 8, "Node hours waking"),
        ("UnseenH", "unseen_h", FieldKind.COUNT, 8, "Node hours without a job of which node events were not read"),
        ("GPUHours", "gpu_h", FieldKind.COUNT, 8, "GPU hours held by jobs"),
        ("CO2kg", "co2_kg", FieldKind.COUNT, 7, "Carbon dioxide, kg"),
        ("IdleCost", "idle_cost", FieldKind.COUNT, 8, "What idle nodes cost"),
        ("SavedCost", "saved_cost", FieldKind.COUNT, 9, "Money saved against leaving all nodes on"),
        ("SavedCO2", "saved_co2_kg", FieldKind.COUNT, 8, "Carbon dioxide saved likewise, kg"),
    )


def energy_answer(ledger: EnergyLedger) -> ReportTable:
    """Return the ledger as a table in the style of sacct."""
    fields = tuple(_adjust_precision(field, ledger.total) for field in fields_by(ledger.by))
    hidden = {"FallingH", "WakingH", "UnseenH", "GPUHours", "CO2kg", "IdleCost", "SavedCost", "SavedCO2", "vs10min"}
    window = " to ".join(
        f"{pd.Timestamp(moment).tz_convert(ledger.timezone):%Y-%m-%d %H:%M}" for moment in (ledger.begin, ledger.end)
    )
    return ReportTable(
        title=f"{ledger.cluster}: energy of {ledger.nodes:,} nodes, {window} ({ledger.timezone})",
        fields=fields,
        shown=tuple(field.name for field in fields if field.name not in hidden),
        rows=ledger.rows[[field.column for field in fields]],
        total=ledger.total,
        empty="No node is known.",
        notes=ledger.notes,
        timezone=ledger.timezone,
    )


def _adjust_precision(field: Field, total: Mapping[str, Any]) -> Field:
    """Return the field with a decimal where its total is small.

    Whole numbers would hide most of a small cluster's day.
    """
    fine = field.kind is FieldKind.COUNT and abs(total[field.column]) < FINE_BELOW
    return replace(field, kind=FieldKind.DECIMAL) if fine else field


def energy_sentences(ledger: EnergyLedger) -> list[str]:
    """Summarize the ledger in sentences, the most important first."""
    return [*(_sleep_sentences(ledger) if ledger.slept else _no_sleep_sentences(ledger)), *_unseen_sentences(ledger)]


def savings(ledger: EnergyLedger) -> str:
    """Describe what sleep saved, with its uncertainty.

    The comparisons are with nodes that stay on, and with Slurm's idle timer.
    """
    saved, timer = ledger.saving_against(ALWAYS_ON), ledger.saving_against(timer_name(TIMERS_MIN[0]))
    # A cycle costs energy too: many short ones can cost more than they save.
    verb, sign = ("saved", 1) if saved.kwh >= 0 else ("cost", -1)
    low, high = sorted((sign * saved.low_kwh, sign * saved.high_kwh))
    against_timer = f"{_kwh(timer.kwh)} of it more than Slurm's idle timer of {TIMERS_MIN[0]} min would have"
    if timer.kwh < 0:
        against_timer = f"Slurm's idle timer of {TIMERS_MIN[0]} min would have saved {_kwh(-timer.kwh)} more"
    return (
        f"Nodes asleep {verb} {_kwh(abs(saved.kwh))} ({_rounded(low)} to {_rounded(high)}) and "
        f"{_money(abs(saved.cost), ledger)} in {_days(ledger)} against leaving them on; "
        f"{against_timer}."
    )


def _sleep_sentences(ledger: EnergyLedger) -> Iterator[str]:
    yield savings(ledger)
    timer = ledger.saving_against(timer_name(TIMERS_MIN[0]))
    times = "time" if ledger.wakes == 1 else "times"
    yield f"Nodes were woken {ledger.wakes:,} {times}; with that timer it would have been {timer.wakes:,}."
    if ledger.helios_node_hours > 0:
        yield (
            f"{_rounded(ledger.helios_node_hours)} of {_rounded(ledger.total['asleep_h'])} node hours asleep were "
            f"Helios' doing: {_kwh(ledger.helios_kwh)}, {_money(ledger.helios_cost, ledger)}, before what waking them "
            "took."
        )
    else:
        yield "Helios put none of these nodes to sleep: Slurm's own idle timer did, or an admin."
    yield f"{_idle(ledger)}."


def _no_sleep_sentences(ledger: EnergyLedger) -> Iterator[str]:
    yield f"No node is known to have slept in {_days(ledger)}."
    if ledger.total["idle_h"] > 0:
        yield f"{_idle(ledger)}."
    timer = ledger.saving_against(timer_name(TIMERS_MIN[0]))
    if timer.kwh < 0:
        yield (
            f"Slurm's idle timer of {TIMERS_MIN[0]} min would have saved {_kwh(-timer.kwh)} "
            f"({_rounded(-timer.high_kwh)} to {_rounded(-timer.low_kwh)}), {_money(-timer.cost, ledger)}. "
            f"What Helios would save: helios energy whatif --cluster {ledger.cluster}"
        )


def _unseen_sentences(ledger: EnergyLedger) -> Iterator[str]:
    total = ledger.total
    if total["unseen_h"] > 0:
        yield (
            f"Of {total['unseen_h']:,.0f} node hours without a job it is not known whether the nodes were awake; had "
            f"they been, they would have drawn {_kwh(ledger.unseen_kwh)} ({_money(ledger.unseen_cost, ledger)})."
        )


def _idle(ledger: EnergyLedger) -> str:
    total = ledger.total
    hours = (ledger.end - ledger.begin).total_seconds() / 3_600
    share = percent(total["idle_kwh"] / total["kwh"]) if total["kwh"] else "nothing"
    return (
        f"Idle nodes, {total['idle_h'] / hours:,.1f} on average, drew {_kwh(total['idle_kwh'])} and cost "
        f"{_money(total['idle_cost'], ledger)}, {share} of all"
    )


def _days(ledger: EnergyLedger) -> str:
    days = (ledger.end - ledger.begin).total_seconds() / DAY_S
    if days < 0.95:
        return duration_in_words(days * DAY_S)
    written = f"{days:.0f}" if abs(days - round(days)) < 0.05 else f"{days:.1f}"
    return "a day" if written == "1" else f"{written} days"


def _kwh(kwh: float) -> str:
    return f"{_rounded(kwh)} kWh"


def _rounded(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 10 else f"{number:,.1f}"


def _money(cost: float, ledger: EnergyLedger) -> str:
    return f"{cost:,.0f} {ledger.currency}" if abs(cost) >= 10 else f"{cost:,.2f} {ledger.currency}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyResult:
    """What one policy of sleeping did in the window.

    Attributes
    ----------
    policy : str
        ``always_on``, ``idle_timer_10min``, ``max_3h_plus_5``, ``ces_published``, ``ces``, ``foresight``,
        ``oracle``, ``node_fill_order``, ``ces+node_fill_order``, ``spare_nodes``, ``timer_and_spare``, ...
    mean_sleeping_nodes : float
        Nodes not powered (neither awake nor on the way), averaged over time.
    node_utilization_before, node_utilization_after : float
        Busy nodes over those in service, and over those powered; fractions.
    wakeups_per_day, sleeps_per_day : float
        Moments at which nodes were sent to wake, or to sleep; several nodes at once count once, as in the paper.
    wakeups_per_day_interval : pair of float
        Exact 95 % interval of the rate, were wake-ups a Poisson process: their number is small.
    nodes_per_wakeup : float, optional
        None where nothing woke.
    short_node_events_per_day : float
        How often fewer nodes were awake than were needed.
    node_hours_short : float
        How many were missing, times how long, in the whole window.
    jobs_delayed : int, optional
        Jobs that waited for a boot. None on a node series, which has no jobs.
    share_of_jobs_delayed : float, optional
        Share of the jobs submitted in the window.
    mean_delay_s, longest_delay_s : float, optional
        Delay of the delayed jobs, s. 0 where none was.
    submissions_delayed, share_of_submissions_delayed : optional
        Minutes in which a job was submitted that waited for a boot, and their share of those with submissions. Each
        partition counts for itself.
    added_wait_s : float, optional
        Delay by boots, averaged over all jobs, s.
    cycles_per_node_day : float, optional
        How often a node was woken a day.
    gpu_utilization : float, optional
        GPUs in use over those of powered nodes; None where the cluster is counted in CPUs.
    share_of_oracle : float, optional
        Energy saved, as a share of what the oracle saves.
    energy_kwh : float
        Energy in the window by the model of ``helios.metrics.node_usage`` and the configuration.
    cost, co2_kg : float, optional
        None where no price, or no carbon dioxide of a kWh, is known.
    currency : str
        Currency of the cost.
    saved_kwh : float
        Energy saved against ``always_on``, had that done as much work: a policy under which jobs start earlier does
        more of it within the window.
    """

    policy: str
    mean_sleeping_nodes: float
    node_utilization_before: float
    node_utilization_after: float
    wakeups_per_day: float
    sleeps_per_day: float
    short_node_events_per_day: float
    jobs_delayed: int | None = None
    mean_delay_s: float | None = None
    energy_kwh: float
    wakeups_per_day_interval: tuple[float, float]
    nodes_per_wakeup: float | None
    node_hours_short: float
    share_of_jobs_delayed: float | None = None
    longest_delay_s: float | None = None
    cost: float | None
    currency: str
    co2_kg: float | None
    saved_kwh: float
    submissions_delayed: int | None = None
    share_of_submissions_delayed: float | None = None
    added_wait_s: float | None = None
    cycles_per_node_day: float | None = None
    gpu_utilization: float | None = None
    share_of_oracle: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain values.

        What is not a finite number is null.
        """
        found: dict[str, Any] = plain(self)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenRule:
    """A rule that CES chose by replaying the past of a pool.

    Attributes
    ----------
    pool : str
    days : int, optional
        Days of the replay that it was in force; None where only the last rule is known.
    choice : Choice
        The last one of this rule.
    """

    pool: str
    days: int | None
    choice: Choice

    @property
    def rule(self) -> str:
        """Name of the rule."""
        return self.choice.rule.name if self.choice.rule else "all nodes awake"

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        found = {"pool": self.pool, "rule": self.rule, "days": self.days, "reason": self.choice.reason}
        return found | {"hindsight": [asdict(score) for score in self.choice.hindsight]}


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
    chosen : tuple of ChosenRule
        Rules of CES, the one in force for most days first.
    front : tuple of FrontRow
        The rule for nodes awake by its number of spare nodes, fewest first; empty on a series.
    spare : tuple of ChosenSpare
        The rule of each pool under the policy ``spare_nodes``.
    """

    kind: str
    name: str
    window: tuple[datetime, datetime]
    total_nodes: float
    policies: tuple[PolicyResult, ...]
    notes: tuple[str, ...] = ()
    chosen: tuple[ChosenRule, ...] = ()
    front: tuple[FrontRow, ...] = ()
    spare: tuple[ChosenSpare, ...] = ()

    @property
    def days(self) -> float:
        """Length of the window."""
        first, end = self.window
        return (end - first).total_seconds() / 86_400

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
            "policies": [result.to_json() for result in self.policies],
            "chosen": [rule.to_json() for rule in self.chosen],
            "front": [row.to_json() for row in self.front],
            "spare": [asdict(choice) for choice in self.spare],
            "notes": list(self.notes),
        }


def energy_table(result: EnergyWhatIf, *, width: int) -> RenderableType:
    """Compare the policies in a table.

    Parameters
    ----------
    width : int
        Columns of the terminal; from ``MIDDLE`` and from ``WIDE`` on, less important figures are shown too.
    """
    first, end = result.window
    head = (
        f"{escape(result.name)}: {result.total_nodes:,.0f} nodes, {first:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} "
        f"({first:%Z}), {result.days:.1f} days."
    )
    columns, rows = front_rows(result)
    if width < MIDDLE:
        columns, rows = columns[: len(FRONT_COLUMNS)], [row[: len(FRONT_COLUMNS)] for row in rows]
    front = [front_title(result), plain_table(*columns, rows=rows), ""]
    sentences = [*energy_verdict(result), *result.notes]
    return Group(
        *(head, "", _table(result, width=width), ""),
        *(front if result.front else ()),
        *(escape(sentence) for sentence in sentences),
    )


def energy_verdict(result: EnergyWhatIf) -> list[str]:
    """Compare CES with its controls in sentences."""
    ces = result.of("ces")
    if ces is None:
        return spare_sentences(result)
    sentences = [
        f"CES keeps {ces.mean_sleeping_nodes:.1f} of {result.total_nodes:,.0f} nodes asleep and wakes some "
        f"{ces.wakeups_per_day:.2f} times a day: {ces.saved_kwh:,.0f} kWh{_share_saved(ces)} less than leaving all on."
    ]
    sentences += _savings_sentences(ces, result.of(ALWAYS_ON))
    for name, what in ((PUBLISHED, "the rule as published"), ("max_3h_plus_5", "max of 3 h + 5 nodes")):
        if control := result.of(name):
            nodes = ces.mean_sleeping_nodes - control.mean_sleeping_nodes
            wakes = ces.wakeups_per_day - control.wakeups_per_day
            asleep = f"{abs(nodes):.1f} nodes {'more' if nodes >= 0 else 'fewer'} asleep"
            joined = "and" if (nodes >= 0) == (wakes <= 0) else "but"
            fewer = f"{abs(wakes):.2f} wake-ups a day {'fewer' if wakes <= 0 else 'more'}"
            sentences.append(f"That is {asleep} {joined} {fewer} than {what}.")
    if timer := result.of(TIMER):
        kwh = ces.saved_kwh - timer.saved_kwh
        short = (
            f"{timer.node_hours_short:,.1f} node hours short instead of {ces.node_hours_short:,.1f}"
            if timer.jobs_delayed is None
            else f"{timer.jobs_delayed:,} jobs delayed instead of {ces.jobs_delayed or 0:,}"
        )
        sentences.append(
            f"Slurm's idle timer of 30 min would save {abs(kwh):,.0f} kWh {'less' if kwh >= 0 else 'more'}, for "
            f"{timer.wakeups_per_day:.1f} wake-ups a day and {short}."
        )
    if ces.jobs_delayed == 0:
        sentences.append("No job waited for a node to boot.")
    elif ces.jobs_delayed is not None:
        longest = duration_in_words(ces.longest_delay_s or 0.0)
        share = percent(ces.share_of_jobs_delayed, 3)
        sentences.append(f"{ces.jobs_delayed:,} jobs ({share}) waited for a node to boot, {longest} at the most.")
    return [*sentences, *map(_rule_sentence, result.chosen), *spare_sentences(result)]


def spare_sentences(result: EnergyWhatIf) -> list[str]:
    """Return why each pool keeps its number of spare nodes."""
    return [
        f"spare_nodes keeps in {choice.pool} as many nodes awake as were in use in the last "
        f"{rounded_duration(choice.memory_s)}, and {choice.reason}."
        for choice in result.spare
    ]


def front_title(result: EnergyWhatIf) -> str:
    """Return the head of the table of spare nodes."""
    pools = "" if len(result.spare) < 2 else " in each pool"
    return f"The rule spare_nodes with other numbers of spare nodes{pools}:"


def front_rows(result: EnergyWhatIf) -> tuple[list[str], list[list[str]]]:
    """Return the heads and the rows of the table of spare nodes.

    After those of ``FRONT_COLUMNS`` comes the money saved, where a price is known.
    """
    always_on = result.of(ALWAYS_ON)
    if always_on is None or always_on.cost is None:
        return [*FRONT_COLUMNS], [_front_cells(row) for row in result.front]
    saved = [always_on.cost - (row.result.cost or 0.0) for row in result.front]
    cells = [[*_front_cells(row), f"{cost:,.0f}"] for row, cost in zip(result.front, saved, strict=True)]
    return [*FRONT_COLUMNS, f"Saved {always_on.currency}"], cells


def _front_cells(row: FrontRow) -> list[str]:
    result, price = row.result, "-"
    if row.last_spares_day is not None and row.last_costs_kwh_day is not None and row.last_spares_day > 0:
        price = f"{row.last_costs_kwh_day / row.last_spares_day:,.0f}"
    return [
        str(row.spare),
        f"{result.mean_sleeping_nodes:.1f}",
        f"{result.saved_kwh + 0.0:,.0f}",
        percent(result.share_of_submissions_delayed, 2),
        percent(result.share_of_jobs_delayed, 2),
        figure(result.added_wait_s, 1),
        figure(result.cycles_per_node_day, 2),
        percent(result.gpu_utilization),
        percent(result.share_of_oracle),
        price,
    ]


def _rule_sentence(rule: ChosenRule) -> str:
    """Return a sentence on the rule that CES used, and why."""
    when = "" if rule.days is None else f" on {count_in_words(rule.days, 'day')}"
    scores = "; ".join(
        f"{score.rule} {score.asleep:.1f} asleep, {score.wake_ups_per_day:.2f} wake-ups a day, "
        f"{score.node_hours_short:.1f} node hours short"
        for score in rule.choice.hindsight
    )
    return f"CES used the {rule.rule.removeprefix('the ')} for {rule.pool}{when}: {rule.choice.reason}." + (
        f" On those weeks: {scores}." if scores else ""
    )


def _savings_sentences(policy: PolicyResult, always_on: PolicyResult | None) -> list[str]:
    """Return a policy's savings in money and CO2, where known."""
    if always_on is None:
        return []
    saved = []
    if policy.cost is not None and always_on.cost is not None:
        saved.append(f"{always_on.cost - policy.cost:,.0f} {policy.currency}")
    if policy.co2_kg is not None and always_on.co2_kg is not None:
        saved.append(f"{always_on.co2_kg - policy.co2_kg:,.0f} kg of CO2")
    return [f"That saves {' and '.join(saved)}."] if saved else []


def money_columns(result: EnergyWhatIf) -> list[str]:
    """Return the columns of money and carbon dioxide, where known."""
    first = next(iter(result.policies), None)
    known = {"Cost": first and first.cost, "CO2 kg": first and first.co2_kg}
    return [name for name, value in known.items() if value is not None]


def _table(result: EnergyWhatIf, *, width: int) -> RenderableType:
    jobs = any(policy.jobs_delayed is not None for policy in result.policies)
    names = [*_columns(jobs=jobs, width=width), *(money_columns(result) if width >= MIDDLE else [])]
    table = plain_table("Policy", *names)
    table.columns[0].no_wrap = True
    baseline = result.of(ALWAYS_ON)
    for policy in result.policies:
        style = "dim" if policy.policy in FORESEEING else "bold" if policy.policy.startswith("ces") else None
        style = None if policy.policy == PUBLISHED else style
        cells = _cells(policy, baseline)
        table.add_row(policy.policy, *(cells[name] for name in names), style=style)
    return table


def _columns(*, jobs: bool, width: int) -> list[str]:
    """Return the columns for which the terminal has room."""
    names = ["Asleep", "Used", "Wakes/day", "95 %"]
    names += ["Short node-h"] if not jobs or width >= MIDDLE else []
    names += ["Delayed"] if jobs else []
    names += ["Longest"] if jobs and width >= MIDDLE else []
    names += ["Sleeps/day", "Nodes/wake", "Short/day"] if width >= WIDE else []
    return [*names, "MWh", "Saved"]


def _cells(policy: PolicyResult, baseline: PolicyResult | None) -> dict[str, str]:
    """Return the cells of a policy by heading.

    The headings are those of the terminal and those of the page.
    """
    low, high = policy.wakeups_per_day_interval
    saved = policy.saved_kwh / baseline.energy_kwh if baseline and baseline.energy_kwh else None
    in_use, each = percent(policy.node_utilization_after, 1), figure(policy.nodes_per_wakeup, 1)
    delayed = "-" if policy.jobs_delayed is None else f"{policy.jobs_delayed:,}"
    short = f"{policy.node_hours_short:,.1f}"
    return {
        "Asleep": f"{policy.mean_sleeping_nodes:.1f}",
        "Used": in_use,
        "In use": in_use,
        "Wakes/day": f"{policy.wakeups_per_day:.2f}",
        "Wake-ups a day": f"{policy.wakeups_per_day:.2f} ({low:.2f}-{high:.2f})",
        "95 %": f"{low:.2f}-{high:.2f}",
        "Short node-h": short,
        "Short, node h": short,
        "Delayed": delayed,
        "Jobs delayed": delayed,
        "Longest": duration_in_words(policy.longest_delay_s) if policy.longest_delay_s else "-",
        "Sleeps/day": f"{policy.sleeps_per_day:.2f}",
        "Nodes/wake": each,
        "Nodes each": each,
        "Short/day": f"{policy.short_node_events_per_day:.2f}",
        "kWh": f"{policy.energy_kwh:,.0f}",
        "MWh": f"{policy.energy_kwh / 1e3:,.1f}",
        "Saved": percent(saved, 1),
        "Saved kWh": f"{policy.saved_kwh + 0.0:,.0f}",
        "Cost": "-" if policy.cost is None else f"{policy.cost:,.0f} {policy.currency}",
        "CO2 kg": "-" if policy.co2_kg is None else f"{policy.co2_kg:,.0f}",
    }


def policy_cells(policy: PolicyResult, names: Sequence[str]) -> list[str]:
    """Return the row of a policy on a page, its name first."""
    cells = _cells(policy, None)
    return [policy.policy, *(cells[name] for name in names)]


def _share_saved(policy: PolicyResult) -> str:
    whole = policy.energy_kwh + policy.saved_kwh
    return f" ({percent(policy.saved_kwh / whole, 1)})" if whole > 0 else ""
