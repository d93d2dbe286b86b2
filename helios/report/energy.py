"""What the nodes of a cluster drew, and what sleep saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

import pandas as pd

from helios.report.admin.sacct_format import Field, FieldKind, ReportTable, as_json, declare_fields
from helios.units import DAY_S, duration_in_words, percent

ALWAYS_ON = "always_on"
TIMERS_MIN = (30, 10)
"""Settings of Slurm's idle timer to compare with, min; sentences use the first."""
FINE_BELOW = 100
"""Totals below it are written with a decimal."""


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
            f"What Helios would save: helios whatif energy --cluster {ledger.cluster}"
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
