"""The pages of an energy ledger and an energy what-if: self-contained HTML files in the look of the other reports."""

from __future__ import annotations

from helios.report.admin.nightly_page import PAGES, TableCells, inline, to_cells
from helios.report.energy import EnergyLedger, energy_answer, energy_sentences
from helios.report.energy_charts import nodes_over_time, saved_by_day
from helios.report.energy_whatif import EnergyWhatIf, PolicyResult, energy_figure, energy_verdict
from helios.units import percent

_BEFORE_JOBS = ("Asleep", "In use", "Wake-ups a day", "Nodes each", "Short, node h")
_AFTER_JOBS = ("kWh", "Saved kWh")


def render_energy(ledger: EnergyLedger) -> str:
    """Return the page."""
    answer = energy_answer(ledger)
    return PAGES.get_template("energy.html.j2").render(
        title=answer.title,
        ledger=ledger,
        sentences=energy_sentences(ledger),
        figures={"nodes": inline(nodes_over_time, ledger), "saved": inline(saved_by_day, ledger)},
        table=to_cells(answer),
    )


def render_energy_whatif(found: EnergyWhatIf) -> str:
    """Return the page of an energy what-if."""
    jobs = any(policy.jobs_delayed is not None for policy in found.policies)
    figures = (*_BEFORE_JOBS, *(("Jobs delayed",) if jobs else ()), *_AFTER_JOBS)
    return PAGES.get_template("energy_whatif.html.j2").render(
        title=f"Nodes asleep: {found.name}",
        found=found,
        sentences=energy_verdict(found),
        figure=inline(energy_figure, found),
        table=TableCells(
            header=[("Policy", True), *((name, False) for name in figures)],
            rows=[_policy_cells(policy, jobs=jobs) for policy in found.policies],
        ),
    )


def _policy_cells(policy: PolicyResult, *, jobs: bool) -> tuple[str, ...]:
    low, high = policy.wakeups_per_day_interval
    each, delayed = policy.nodes_per_wakeup, policy.jobs_delayed
    return (
        policy.policy,
        f"{policy.mean_sleeping_nodes:.1f}",
        percent(policy.node_utilization_after, 1),
        f"{policy.wakeups_per_day:.2f} ({low:.2f}-{high:.2f})",
        "-" if each is None else f"{each:.1f}",
        f"{policy.node_hours_short:,.1f}",
        *(("-" if delayed is None else f"{delayed:,}",) if jobs else ()),
        f"{policy.energy_kwh:,.0f}",
        f"{policy.saved_kwh + 0.0:,.0f}",
    )
