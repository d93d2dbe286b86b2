"""What an admin asks: each report's frames out of the warehouse, handed to the pure functions that answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from helios.app.desk import LONGEST_HELD, Ask, opened
from helios.config import Energy
from helios.report.admin.accuracy import prediction_accuracy
from helios.report.admin.answer import Answer
from helios.report.admin.audit import decision_lines, service_days
from helios.report.admin.people import usage_by
from helios.report.admin.queue import queue_at, queue_over_time
from helios.report.admin.shadow import ShadowDay
from helios.report.energy.ledger import EnergyLedger


def usage_report(ask: Ask, *, group: str) -> Answer:
    """Report jobs, hours, waits and failures of jobs submitted in the window, by user, account or partition."""
    with opened(ask) as desk:
        jobs = desk.jobs(desk.since, desk.until)
        return desk.finished(
            usage_by(
                group,
                jobs,
                predictions=desk.warehouse.predictions(desk.cluster, since=desk.since, until=desk.until),
                at=desk.until,
                title=desk.title(f"Jobs by {group}"),
                timezone=desk.timezone,
            )
        )


def queue_report(ask: Ask) -> Answer:
    """Report the queue at the window's end; where a start is given, over the window."""
    with opened(ask) as desk:
        if ask.start is None:
            jobs = desk.jobs(desk.until - LONGEST_HELD, desk.until)
            predictions = desk.warehouse.predictions(desk.cluster, since=desk.until - LONGEST_HELD, until=desk.until)
            title = f"{desk.cluster}: the queue at {desk.written(desk.until)} ({desk.timezone})"
            return desk.finished(
                queue_at(jobs, predictions=predictions, at=desk.until, title=title, timezone=desk.timezone)
            )
        return desk.finished(
            queue_over_time(
                desk.jobs(desk.since - LONGEST_HELD, desk.until),
                since=desk.since,
                until=desk.until,
                title=desk.title("The queue"),
                timezone=desk.timezone,
            )
        )


def prediction_report(ask: Ask, *, by: str | None = None) -> Answer:
    """Report how far off predictions of jobs submitted in the window were, beside the user's last ended run."""
    with opened(ask) as desk:
        past = desk.warehouse.jobs(desk.cluster, until=desk.until, columns=["user", "ended_at", "run_time_s"])
        return desk.finished(
            prediction_accuracy(
                desk.jobs(desk.since, desk.until),
                predictions=desk.warehouse.predictions(desk.cluster, since=desk.since, until=desk.until),
                past=past,
                title=desk.title("Predicted and true run times"),
                by=by,
                timezone=desk.timezone,
            )
        )


def decision_report(
    ask: Ask,
    *,
    services: Collection[str] = (),
    job_ids: Collection[str] = (),
    results: Collection[str] = (),
    modes: Collection[str] = (),
    actions: Collection[str] = (),
) -> Answer:
    """Report the audit's lines of the window; users, accounts and partitions choose the jobs they are about."""
    with opened(ask) as desk:
        decisions = desk.warehouse.decisions(desk.cluster, since=desk.since, until=desk.until)
        if ask.users or ask.accounts or ask.partitions:
            about = desk.jobs(desk.since - LONGEST_HELD, desk.until)
            ids = {*about["job_id"].dropna(), *about["array_job_id"].dropna(), *ask.partitions}
            decisions = decisions[decisions["target"].isin(list(ids))]
        return decision_lines(
            decisions,
            title=desk.title("Decisions"),
            services=services,
            targets=job_ids,
            results=results,
            modes=modes,
            actions=actions,
            timezone=desk.timezone,
        )


def service_report(ask: Ask, *, services: Collection[str] = ()) -> Answer:
    """Report per day and service what was proposed, done and refused, and when Helios kept still."""
    with opened(ask) as desk:
        return service_days(
            desk.warehouse.decisions(desk.cluster, since=desk.since, until=desk.until),
            title=desk.title("Services"),
            turns=desk.warehouse.turns(desk.cluster, since=desk.since, until=desk.until),
            services=services,
            timezone=desk.timezone,
        )


def energy_report(ask: Ask, *, energy: Energy, by: str = "day") -> EnergyLedger:
    """Report what the nodes did and drew in the window, and what sleep saved, by day, partition or node."""
    with opened(ask) as desk:
        return desk.ledger(desk.since, desk.until, energy=energy, by=by)


def shadow_report(
    ask: Ask,
    *,
    day: str,
    nodes: Mapping[str, int] | None = None,
    gpus_per_node: int = 8,
    default_time_limit_s: int = 7 * 86_400,
) -> tuple[str, ShadowDay]:
    """Report the cluster, and what the shadow decisions of ``day`` (as sacct writes one) would have changed.

    Without ``nodes`` the cluster's own are taken from the warehouse; where it knows none, the peak demand.
    """
    with opened(ask) as desk:
        begin, end = desk.day(day)
        return desk.cluster, desk.shadow(
            begin, end, nodes=nodes, gpus_per_node=gpus_per_node, default_time_limit_s=default_time_limit_s
        )
