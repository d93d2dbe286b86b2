"""Prometheus metrics of decisions, predictions and the daemon itself.

Metrics of jobs and nodes come from Slurm's own exporters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from itertools import product
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from helios import __version__
from helios.app.cycle_summary import Breaker, CycleSummary, NodeCycleSummary
from helios.daemon.health import TaskTimes
from helios.model import Mode
from helios.units import HOUR_S

SECONDS = (0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 30, 60, 120)

KWH_J = 3.6e6
LEVELS: Mapping[str, tuple[str, str, float]] = {
    "utilization": ("helios_gpus_in_use_ratio", "Share of the GPUs in service that were in use", 1.0),
    "idle_while_jobs_wait_elsewhere": (
        "helios_gpu_idle_elsewhere_seconds",
        "GPU seconds that idled in one partition while jobs that fit waited in another",
        HOUR_S,
    ),
    "idle_nodes": ("helios_node_time_idle_ratio", "Share of node time in idle spells longer than an hour", 1.0),
    "long_failures": (
        "helios_gpu_time_failed_ratio",
        "Share of GPU time in jobs that failed after more than an hour",
        1.0,
    ),
    "hours_at_time_limit": (
        "helios_gpu_time_cut_at_limit_ratio",
        "Share of GPU time in jobs cut at their limit",
        1.0,
    ),
}
"""Gauges of the study of the last seven days by the statement's name, with the factor of its unit."""
ENERGY_LEVELS: Mapping[str, tuple[str, str, float]] = {
    "used_kwh": ("helios_energy_used_joules", "Drawn by the building for all nodes", KWH_J),
    "idle_kwh": ("helios_energy_idle_joules", "Drawn by nodes without a job", KWH_J),
    "saved_kwh": ("helios_energy_saved_joules", "Saved by sleep against leaving all nodes on", KWH_J),
    "saved_low_kwh": ("helios_energy_saved_low_joules", "Lower end of what sleep saved, 95 %", KWH_J),
    "saved_high_kwh": ("helios_energy_saved_high_joules", "Upper end of what sleep saved, 95 %", KWH_J),
    "saved_to_timer_kwh": (
        "helios_energy_saved_to_timer_joules",
        "Saved by sleep against an idle timer of 30 minutes",
        KWH_J,
    ),
    "saved_cost": ("helios_energy_saved_cost", "Money saved by sleep, in energy.currency", 1.0),
    "saved_co2_kg": ("helios_energy_saved_co2_grams", "Carbon dioxide saved by sleep", 1000.0),
    "asleep_node_h": ("helios_node_asleep_seconds", "Node seconds asleep", HOUR_S),
}
"""Gauges of the energy report of the last fourteen days, likewise."""


class Metrics:
    """Metrics of one daemon, in their own registry.

    Attributes
    ----------
    registry : CollectorRegistry
        Registry for ``/metrics``.
    """

    def __init__(self, *, times: TaskTimes) -> None:
        self.registry = registry = CollectorRegistry()
        self._times = times
        self._last: CycleSummary | None = None
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        Info("helios_build", "What runs", registry=registry).info({"version": __version__})
        self._decisions = counter(
            "helios_decisions",
            "Jobs or nodes for which a service proposed something, by what became of it",
            ["service", "mode", "result"],
        )
        self._predictions = counter("helios_predictions", "Run times predicted in cycles")
        self._cycles = counter(
            "helios_cycles", "Cycles taken: acted, quiet (nothing to change), suspended", ["outcome"]
        )
        self._seconds = Histogram("helios_cycle_seconds", "Length of a cycle", buckets=SECONDS, registry=registry)
        self._success = gauge("helios_task_last_success_timestamp_seconds", "When it last ended well", ["task"])
        self._failures = counter("helios_task_failures", "Runs that failed", ["task"])
        self._left_out = counter("helios_task_left_out", "Times left out since work was still going on", ["task"])
        self._mode = gauge("helios_service_mode", "1: its mode now", ["service", "mode"])
        self._modes: dict[str, Mapping[str, Mode]] = {}
        self._breaker = gauge("helios_breaker_state", "1: its state now", ["domain", "state"])
        self._lease = gauge("helios_lease_held", "1: this Helios is the one that writes", ["domain"])
        self._suspended = gauge("helios_suspended", "1: a guard kept the last cycle from acting", ["domain"])
        history = gauge("helios_history_age_seconds", "Since the history was read; NaN: it never was")
        history.set_function(lambda: self._age_s(lambda cycle: cycle.history_read_at))
        model = gauge("helios_model_age_seconds", "Since the model was trained; NaN: there is none")
        model.set_function(lambda: self._age_s(lambda cycle: cycle.model_trained_at))
        self._node_cycles = counter("helios_node_cycles", "Cycles taken on nodes: acted, quiet, suspended", ["outcome"])
        self._node_changes = counter("helios_node_changes", "Nodes put to sleep, woken, weighed anew", ["change"])
        self._levels = {
            level: (gauge(name, f"{what} in the last {days} days, from the nightly report; NaN: not known"), factor)
            for days, levels in (("seven", LEVELS), ("fourteen", ENERGY_LEVELS))
            for level, (name, what, factor) in levels.items()
        }
        self._nodes = gauge("helios_nodes", "Nodes by what they do, at the last cycle on nodes", ["state"])
        self.record_levels({})
        self._by_helios = gauge("helios_nodes_asleep", "Nodes asleep or falling asleep because Helios asked for it")
        self._protected = gauge("helios_protected", "1: too many nodes failed to wake, nothing is put to sleep")
        self._quarantined = gauge("helios_nodes_quarantined", "Nodes that failed to wake and are left alone")

    def record_cycle(self, cycle: CycleSummary | NodeCycleSummary) -> None:
        """Count a cycle and set the gauges of its state."""
        outcome = "suspended" if cycle.suspended else "acted" if cycle.acted else "quiet"
        for tally in cycle.tallies:
            labels = {"service": tally.service, "mode": str(tally.mode), "result": tally.result.value}
            self._decisions.labels(**labels).inc(tally.jobs)
        domain = "nodes" if isinstance(cycle, NodeCycleSummary) else "jobs"
        self._modes[domain] = cycle.modes
        self._mode.clear()
        for modes in self._modes.values():
            for service, each in product(modes, Mode):
                self._mode.labels(service=service, mode=each.value).set(each == modes[service])
        for state in get_args(Breaker):
            self._breaker.labels(domain=domain, state=state).set(state == cycle.breaker)
        self._lease.labels(domain=domain).set(cycle.lease_held)
        self._suspended.labels(domain=domain).set(bool(cycle.suspended))
        if isinstance(cycle, NodeCycleSummary):
            self._record_nodes(cycle, outcome)
            return
        self._last = cycle
        self._cycles.labels(outcome=outcome).inc()
        self._seconds.observe(cycle.seconds)
        self._predictions.inc(cycle.predictions)

    def _record_nodes(self, cycle: NodeCycleSummary, outcome: str) -> None:
        self._node_cycles.labels(outcome=outcome).inc()
        for change, number in (("sleep", cycle.slept), ("wake", cycle.woken), ("weight", cycle.weighed)):
            self._node_changes.labels(change=change).inc(number)
        self._nodes.clear()
        for state, number in cycle.nodes.items():
            self._nodes.labels(state=state).set(number)
        self._by_helios.set(cycle.by_helios)
        self._protected.set(bool(cycle.protected))
        self._quarantined.set(cycle.quarantined)

    def record_levels(self, levels: Mapping[str, float]) -> None:
        """Set the gauges of the last nightly report."""
        for level, (gauge, factor) in self._levels.items():
            gauge.set(levels.get(level, float("nan")) * factor)

    def record_success(self, task: str, *, at: datetime) -> None:
        """Record when a task last succeeded."""
        self._success.labels(task=task).set(at.timestamp())

    def record_failure(self, task: str) -> None:
        """Count a failure of a task."""
        self._failures.labels(task=task).inc()

    def record_skip(self, task: str) -> None:
        """Count a skipped run of a task."""
        self._left_out.labels(task=task).inc()

    def _age_s(self, moment: Callable[[CycleSummary], datetime | None]) -> float:
        since = None if self._last is None else moment(self._last)
        return float("nan") if since is None else (self._times.now() - since).total_seconds()
