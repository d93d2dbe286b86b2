"""What Prometheus may ask: decisions, predictions, and how the daemon fares. Jobs and nodes Slurm exports itself."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from helios import __version__
from helios.app.cycle_summary import Breaker, CycleSummary, CycleTally, NodeCycleSummary
from helios.daemon.health import TaskTimes
from helios.model import Mode

SECONDS = (0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 30, 60, 120)
UNKNOWN = float("nan")


class Metrics:
    """Figures of one daemon, in a registry of their own.

    Attributes
    ----------
    registry : CollectorRegistry
        What ``/metrics`` shows.
    """

    def __init__(self, *, times: TaskTimes) -> None:
        self.registry = CollectorRegistry()
        self._times = times
        self._cycle: CycleSummary | None = None
        self._declare_work()
        self._declare_state()
        self._declare_nodes()

    def turned(self, cycle: CycleSummary) -> None:
        """Count a cycle."""
        self._cycle = cycle
        self._cycles.labels(outcome=_outcome(cycle)).inc()
        self._seconds.observe(cycle.seconds)
        self._predictions.inc(cycle.predictions)
        self._count(cycle.tallies)
        self._show_state(cycle)

    def turned_nodes(self, cycle: NodeCycleSummary) -> None:
        """Count a cycle on nodes."""
        self._node_cycles.labels(outcome=_outcome(cycle)).inc()
        self._count(cycle.tallies)
        for did, number in (("sleep", cycle.slept), ("wake", cycle.woken), ("weight", cycle.weighed)):
            self._node_changes.labels(change=did).inc(number)
        self._by_helios.set(cycle.by_helios)
        self._protected.set(bool(cycle.protected))
        self._quarantined.set(cycle.quarantined)

    def _count(self, tallies: Iterable[CycleTally]) -> None:
        for tally in tallies:
            labels = {"service": tally.service, "mode": str(tally.mode), "result": tally.result.value}
            self._decisions.labels(**labels).inc(tally.jobs)

    def succeeded(self, task: str, *, at: datetime) -> None:
        """Take note when a task last ended well."""
        self._success.labels(task=task).set(at.timestamp())

    def failed(self, task: str) -> None:
        """Count a failure."""
        self._failures.labels(task=task).inc()

    def left_out(self, task: str) -> None:
        """Count a time that was left out, since the task or another was still at work."""
        self._left_out.labels(task=task).inc()

    def _declare_work(self) -> None:
        self._decisions = Counter(
            "helios_decisions",
            "Jobs or nodes for which a service proposed something, by what became of it",
            ["service", "mode", "result"],
            registry=self.registry,
        )
        self._predictions = Counter("helios_predictions", "Run times predicted in cycles", registry=self.registry)
        self._cycles = Counter(
            "helios_cycles",
            "Cycles taken: acted, quiet (nothing to change), still",
            ["outcome"],
            registry=self.registry,
        )
        self._seconds = Histogram("helios_cycle_seconds", "Length of a cycle", buckets=SECONDS, registry=self.registry)
        self._success = Gauge(
            "helios_task_last_success_timestamp_seconds", "When it last ended well", ["task"], registry=self.registry
        )
        self._failures = Counter("helios_task_failures", "Runs that failed", ["task"], registry=self.registry)
        self._left_out = Counter(
            "helios_task_left_out", "Times left out since work was still going on", ["task"], registry=self.registry
        )

    def _declare_nodes(self) -> None:
        self._node_cycles = Counter(
            "helios_node_cycles", "Cycles taken on nodes: acted, quiet, still", ["outcome"], registry=self.registry
        )
        self._node_changes = Counter(
            "helios_node_changes", "Nodes put to sleep, woken, weighed anew", ["change"], registry=self.registry
        )
        self._by_helios = Gauge(
            "helios_nodes_asleep", "Nodes asleep or falling asleep because Helios asked for it", registry=self.registry
        )
        self._protected = Gauge(
            "helios_protected", "1: too many nodes failed to wake, nothing is put to sleep", registry=self.registry
        )
        self._quarantined = Gauge(
            "helios_nodes_quarantined", "Nodes that failed to wake and are left alone", registry=self.registry
        )

    def _declare_state(self) -> None:
        Info("helios_build", "What runs", registry=self.registry).info({"version": __version__})
        history = Gauge(
            "helios_history_age_seconds", "Since the history was read; NaN: it never was", registry=self.registry
        )
        history.set_function(lambda: self._age_s(None if self._cycle is None else self._cycle.history_read_at))
        model = Gauge(
            "helios_model_age_seconds", "Since the model was trained; NaN: there is none", registry=self.registry
        )
        model.set_function(lambda: self._age_s(None if self._cycle is None else self._cycle.model_trained_at))
        self._mode = Gauge("helios_service_mode", "1: its mode now", ["service", "mode"], registry=self.registry)
        self._breaker = Gauge("helios_breaker_state", "1: its state now", ["state"], registry=self.registry)
        self._lease = Gauge("helios_lease_held", "1: this Helios is the one that writes", registry=self.registry)
        self._suspended = Gauge("helios_suspended", "1: a rail kept the last cycle from acting", registry=self.registry)

    def _show_state(self, cycle: CycleSummary) -> None:
        self._mode.clear()
        for service, mode in cycle.modes.items():
            for each in Mode:
                self._mode.labels(service=service, mode=each.value).set(each == mode)
        for state in get_args(Breaker):
            self._breaker.labels(state=state).set(state == cycle.breaker)
        self._lease.set(cycle.lease_held)
        self._suspended.set(bool(cycle.suspended))

    def _age_s(self, moment: datetime | None) -> float:
        return UNKNOWN if moment is None else (self._times.now() - moment).total_seconds()


def _outcome(cycle: CycleSummary | NodeCycleSummary) -> str:
    if cycle.suspended:
        return "suspended"
    return "acted" if cycle.acted else "quiet"
