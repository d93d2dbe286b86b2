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
        self._turn: CycleSummary | None = None
        self._declare_work()
        self._declare_state()
        self._declare_nodes()

    def turned(self, turn: CycleSummary) -> None:
        """Count a turn."""
        self._turn = turn
        self._turns.labels(outcome=_outcome(turn)).inc()
        self._seconds.observe(turn.seconds)
        self._predictions.inc(turn.predictions)
        self._count(turn.tallies)
        self._show_state(turn)

    def turned_nodes(self, turn: NodeCycleSummary) -> None:
        """Count a turn on nodes."""
        self._node_turns.labels(outcome=_outcome(turn)).inc()
        self._count(turn.tallies)
        for did, number in (("sleep", turn.slept), ("wake", turn.woken), ("weight", turn.weighed)):
            self._node_changes.labels(change=did).inc(number)
        self._by_helios.set(turn.by_helios)
        self._protected.set(bool(turn.protected))
        self._quarantined.set(turn.quarantined)

    def _count(self, tallies: Iterable[CycleTally]) -> None:
        for tally in tallies:
            labels = {"service": tally.service, "mode": str(tally.mode), "result": tally.result.value}
            self._decisions.labels(**labels).inc(tally.jobs)

    def succeeded(self, chore: str, *, at: datetime) -> None:
        """Take note when a chore last ended well."""
        self._success.labels(chore=chore).set(at.timestamp())

    def failed(self, chore: str) -> None:
        """Count a failure."""
        self._failures.labels(chore=chore).inc()

    def left_out(self, chore: str) -> None:
        """Count a time that was left out, since the chore or another was still at work."""
        self._left_out.labels(chore=chore).inc()

    def _declare_work(self) -> None:
        self._decisions = Counter(
            "helios_decisions",
            "Jobs or nodes for which a service proposed something, by what became of it",
            ["service", "mode", "result"],
            registry=self.registry,
        )
        self._predictions = Counter("helios_predictions", "Run times predicted in turns", registry=self.registry)
        self._turns = Counter(
            "helios_turns", "Turns taken: acted, quiet (nothing to change), still", ["outcome"], registry=self.registry
        )
        self._seconds = Histogram("helios_turn_seconds", "Length of a turn", buckets=SECONDS, registry=self.registry)
        self._success = Gauge(
            "helios_chore_last_success_timestamp_seconds", "When it last ended well", ["chore"], registry=self.registry
        )
        self._failures = Counter("helios_chore_failures", "Runs that failed", ["chore"], registry=self.registry)
        self._left_out = Counter(
            "helios_chore_left_out", "Times left out since work was still going on", ["chore"], registry=self.registry
        )

    def _declare_nodes(self) -> None:
        self._node_turns = Counter(
            "helios_node_turns", "Turns taken on nodes: acted, quiet, still", ["outcome"], registry=self.registry
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
        history.set_function(lambda: self._age_s(None if self._turn is None else self._turn.history_read_at))
        model = Gauge(
            "helios_model_age_seconds", "Since the model was trained; NaN: there is none", registry=self.registry
        )
        model.set_function(lambda: self._age_s(None if self._turn is None else self._turn.model_trained_at))
        self._mode = Gauge("helios_service_mode", "1: its mode now", ["service", "mode"], registry=self.registry)
        self._breaker = Gauge("helios_breaker_state", "1: its state now", ["state"], registry=self.registry)
        self._lease = Gauge("helios_lease_held", "1: this Helios is the one that writes", registry=self.registry)
        self._still = Gauge("helios_still", "1: a rail kept the last turn from acting", registry=self.registry)

    def _show_state(self, turn: CycleSummary) -> None:
        self._mode.clear()
        for service, mode in turn.modes.items():
            for each in Mode:
                self._mode.labels(service=service, mode=each.value).set(each == mode)
        for state in get_args(Breaker):
            self._breaker.labels(state=state).set(state == turn.breaker)
        self._lease.set(turn.lease_held)
        self._still.set(bool(turn.still))

    def _age_s(self, moment: datetime | None) -> float:
        return UNKNOWN if moment is None else (self._times.now() - moment).total_seconds()


def _outcome(turn: CycleSummary | NodeCycleSummary) -> str:
    if turn.still:
        return "still"
    return "acted" if turn.acted else "quiet"
