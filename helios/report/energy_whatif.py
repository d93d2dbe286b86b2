"""Results of an energy what-if, one for each policy.

They have the same form on a node series and on a job trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape

from helios.report.charts import BLUE, GREEN, GREY, INK, ORANGE, canvas
from helios.report.plain import plain
from helios.report.tables import figure, plain_table
from helios.services.energy_saving import Choice
from helios.units import count_in_words, duration_in_words, percent

ALWAYS_ON, PUBLISHED, ORACLE, TIMER = "always_on", "ces_published", "oracle", "idle_timer_30min"
FORESEEING = (ORACLE, "foresight")
MIDDLE, WIDE = 100, 150
"""Terminal columns from which less important figures are shown too, and from which all are."""
FAR_RIGHT = 10.0
"""Wake-ups a day above which a name is written to the left of its dot."""
POLICY_COLUMNS = ("Asleep", "In use", "Wake-ups a day", "Nodes each", "Short, node h", "kWh", "Saved kWh")
"""Of a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyResult:
    """What one policy of sleeping did in the window.

    Attributes
    ----------
    policy : str
        ``always_on``, ``idle_timer_10min``, ``max_3h_plus_5``, ``ces_published``, ``ces``, ``foresight``,
        ``oracle``, ``node_fill_order``, ``ces+node_fill_order``, ...
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
    energy_kwh : float
        Energy in the window by the model of ``helios.metrics.energy`` and the configuration.
    cost, co2_kg : float, optional
        None where no price, or no carbon dioxide of a kWh, is known.
    currency : str
        Currency of the cost.
    saved_kwh : float
        Energy saved against ``always_on``.
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
    """

    kind: str
    name: str
    window: tuple[datetime, datetime]
    total_nodes: float
    policies: tuple[PolicyResult, ...]
    notes: tuple[str, ...] = ()
    chosen: tuple[ChosenRule, ...] = ()

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
        policies = (
            replace(policy, cost=policy.cost if price else None, co2_kg=policy.co2_kg if co2 else None)
            for policy in self.policies
        )
        return replace(self, policies=tuple(policies))

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
    sentences = [*energy_verdict(result), *result.notes]
    return Group(head, "", _table(result, width=width), "", *(escape(sentence) for sentence in sentences))


def energy_verdict(result: EnergyWhatIf) -> list[str]:
    """Compare CES with its controls in sentences."""
    ces = result.of("ces")
    if ces is None:
        return []
    sentences = [
        f"CES keeps {ces.mean_sleeping_nodes:.1f} of {result.total_nodes:,.0f} nodes asleep and wakes some "
        f"{ces.wakeups_per_day:.2f} times a day: {ces.saved_kwh:,.0f} kWh{_share_saved(ces)} less than leaving all on."
    ]
    sentences += _money(ces, result.of(ALWAYS_ON))
    for name, what in ((PUBLISHED, "the rule as published"), ("max_3h_plus_5", "max of 3 h + 5 nodes")):
        if control := result.of(name):
            sentences.append(f"{_compare_control(ces, control)} {what}.")
    if timer := result.of(TIMER):
        sentences.append(_compare_timer(ces, timer))
    if ces.jobs_delayed == 0:
        sentences.append("No job waited for a node to boot.")
    elif ces.jobs_delayed is not None:
        longest = duration_in_words(ces.longest_delay_s or 0.0)
        share = percent(ces.share_of_jobs_delayed, 3)
        sentences.append(f"{ces.jobs_delayed:,} jobs ({share}) waited for a node to boot, {longest} at the most.")
    return [*sentences, *map(_rule_sentence, result.chosen)]


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


def energy_figure(result: EnergyWhatIf, *, narrow: bool = False) -> str:
    """Draw nodes asleep against wake-ups a day of each policy.

    As SVG; up and left is better.
    """
    with canvas("Nodes asleep and wake-ups a day, by policy", height=3.4, narrow=narrow) as drawing:
        (axes,) = drawing.panels
        for policy in result.policies:
            low, high = policy.wakeups_per_day_interval
            x, y, colour = policy.wakeups_per_day, policy.mean_sleeping_nodes, _colour(policy.policy)
            axes.plot([low, high], [y, y], color=colour, linewidth=1, alpha=0.5)
            axes.plot([x], [y], "o", color=colour, clip_on=False)
            # Names at the right end would leave the drawing; the two timers lie side by side.
            right, below = x > FAR_RIGHT, policy.policy == "idle_timer_10min"
            aside = (5, -13) if below else (-5, 4) if right else (5, 4)
            place: Any = {"xytext": aside, "textcoords": "offset points", "ha": "right" if right else "left"}
            axes.annotate(policy.policy, (x, y), fontsize="small", color=colour, **place)
        # Timers wake some dozens of times a day and would squeeze all else into a corner.
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xlim(left=0)
        axes.set_ylim(0, 1.12 * max((policy.mean_sleeping_nodes for policy in result.policies), default=1.0) or 1.0)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("wake-ups a day (line: 95 % interval)")
        axes.set_ylabel("nodes asleep, mean")
    return drawing.svg


def _money(policy: PolicyResult, always_on: PolicyResult | None) -> list[str]:
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


def _compare_control(ces: PolicyResult, control: PolicyResult) -> str:
    nodes = ces.mean_sleeping_nodes - control.mean_sleeping_nodes
    wakes = ces.wakeups_per_day - control.wakeups_per_day
    asleep = f"{abs(nodes):.1f} nodes {'more' if nodes >= 0 else 'fewer'} asleep"
    joined = "and" if (nodes >= 0) == (wakes <= 0) else "but"
    return f"That is {asleep} {joined} {abs(wakes):.2f} wake-ups a day {'fewer' if wakes <= 0 else 'more'} than"


def _share_saved(policy: PolicyResult) -> str:
    whole = policy.energy_kwh + policy.saved_kwh
    return f" ({percent(policy.saved_kwh / whole, 1)})" if whole > 0 else ""


def _compare_timer(ces: PolicyResult, timer: PolicyResult) -> str:
    """Compare CES with Slurm's own idle timer.

    With what the timer costs in wake-ups and delays, because it may save more energy.
    """
    kwh = ces.saved_kwh - timer.saved_kwh
    short = (
        f"{timer.node_hours_short:,.1f} node hours short instead of {ces.node_hours_short:,.1f}"
        if timer.jobs_delayed is None
        else f"{timer.jobs_delayed:,} jobs delayed instead of {ces.jobs_delayed or 0:,}"
    )
    return (
        f"Slurm's idle timer of 30 min would save {abs(kwh):,.0f} kWh {'less' if kwh >= 0 else 'more'}, for "
        f"{timer.wakeups_per_day:.1f} wake-ups a day and {short}."
    )


def _colour(policy: str) -> str:
    if policy in FORESEEING:
        return GREY
    if policy == PUBLISHED or policy.startswith("max"):
        return ORANGE
    if policy.startswith("ces"):
        return BLUE
    return GREEN if "node_fill_order" in policy else INK
