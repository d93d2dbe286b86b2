"""Controllers of the jobs and of the nodes of a live cluster.

Each runs the control cycle of :mod:`helios.control` on its domain. That of the jobs connects it with the warehouse, the
predictions and the configured services, and that of the nodes with the undo file and the recorded use too.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pandas as pd

from helios.actions import JobSetting
from helios.app.controller_state import (
    LOCK,
    LOCK_OF_NODES,
    Controller,
    CycleSummary,
    NodeCycleSummary,
    ReadOnlyLedger,
    between_cycles,
    hold_cycle_lock,
    now_utc,
    open_controller_warehouse,
    other_leader,
    read_until,
)
from helios.app.live_cluster import LiveCluster
from helios.app.modes import PAUSED, RELEASED, RELEASED_FILE
from helios.app.predictions import LivePredictions, job_keys, worth_storing
from helios.changes import Key
from helios.choices import Domain
from helios.config import Settings
from helios.control import (
    AppliedChanges,
    ControllerState,
    CycleReport,
    JobDomain,
    NodeControllerState,
    NodeCycleReport,
    NodeDomain,
    Preconditions,
    ServiceMode,
    ShadowCluster,
    ShadowNodes,
    Tolerance,
    Undo,
    clear_failed_wakes,
    release,
    release_nodes,
)
from helios.control.observed import observed_nodes
from helios.control.state import APART
from helios.control.yields import Yields, YieldStore, in_memory
from helios.errors import HeliosError, MemoryDamaged, NoSuchCluster
from helios.model import APPLIED_NODE_CHANGES, CYCLES, PREDICTIONS, Mode, NodePower, NodeUse, Snapshot
from helios.ports import NodeCluster
from helios.report.nodes import PoolRule, SpareNodes
from helios.services.registry import installed
from helios.services.targets import TARGETS
from helios.slurm.undo_file import UNDO_FILE, read_undo, write_undo
from helios.warehouse import Warehouse

if TYPE_CHECKING:
    from helios.app.node_use import NodeUseRecord


JOBS_MEMORY = "cycle"
YIELDS_MEMORY = "yields"

NODES_MEMORY = "nodes"
NODES_RELEASED = "released_nodes"
"""Name of the warehouse's note that a release reverted node changes that are still recorded as applied."""
NODES_RELEASED_FILE = "RELEASED.nodes"
"""File with the same note, of a release without a database."""
TALLY_EVERY = timedelta(minutes=9)
"""Time between stored counts of the nodes, about a step of the forecast; after a change they are stored at once."""
TALLIES_KEPT = timedelta(days=400)

EARLIER_NODE_SERVICES = {"node_fill_order"}
"""Services of releases up to 0.1. What is recorded of them on nodes is reverted, and audited, under their names."""


class JobController(Controller[ControllerState]):
    """Controller of the jobs of one cluster."""

    domain, lock, kind = Domain.JOBS, LOCK, ControllerState
    memory, released, released_file = JOBS_MEMORY, RELEASED, RELEASED_FILE

    def __init__(self, site: LiveCluster, settings: Settings, *, clock: Callable[[], datetime] = now_utc) -> None:
        super().__init__(site, settings, clock=clock)
        self.predictions = LivePredictions(
            url=settings.database.url, cluster=site.name, last_jobs=settings.history.jobs_for_predictions
        )
        self._predicted: pd.DataFrame | None = None
        self._yields = in_memory()
        self._stored: dict[tuple[str, int], float] = {}

    def cycle(self, *, modes: Mapping[str, ServiceMode]) -> CycleReport:
        """Run one control cycle on the cluster.

        See :class:`helios.control.Cycle`. Without the warehouse nothing is changed, except that a pause by file
        still reverts everything.

        Raises
        ------
        MemoryDamaged
            The controller's stored state cannot be read; nothing was done.
        """
        began = time.monotonic()
        with self.begin_cycle() as (memory, warehouse, released):
            self._load_applied_changes(warehouse)
            self._predicted = None
            domain = JobDomain(self.site.cluster, self.settings, self._yields_of_cycle(warehouse))
            why = "; ".join(released.values())
            report = self.run_cycle(domain, modes, ledger=self.ledger(warehouse), memory=memory, released=why)
            return self._store_cycle(warehouse, report, seconds=time.monotonic() - began, released=released)

    def plan(self, *, modes: Mapping[str, ServiceMode]) -> CycleReport:
        """Return what ``cycle`` would do now.

        Nothing is written: it runs on a shadow cluster and a read-only ledger.

        Raises
        ------
        WarehouseUnavailable, MemoryDamaged
            The record of applied changes or the controller's stored state cannot be read.
        """
        with Warehouse.open(self.settings.database.url) as warehouse:
            applied_changes, memory = warehouse.ledger(self.site.name).applied_changes(), self.store.read(warehouse)
        self.site.load_applied_changes(applied_changes, keep=False)
        real = applied_changes[applied_changes["mode"] != Mode.SHADOW]
        applied: dict[Key, float] = {
            (JobSetting(setting), str(job)): float(value)
            for setting, job, value in zip(real["setting"], real["job_id"], real["value"], strict=True)
        }
        simulated = ShadowCluster(
            snapshot=self.site.cluster.snapshot, applied=applied, tolerance=Tolerance.of(self.settings.slurm)
        )
        self._predicted = None
        with open_controller_warehouse(self.settings.database.url) as warehouse_or_error:
            report: CycleReport = self.run_cycle(
                JobDomain(simulated, self.settings, self._yields_of_cycle(warehouse_or_error, acts=False)),
                modes,
                ledger=ReadOnlyLedger(applied_changes),
                memory=replace(memory, asked_at={}),
            )
        return report

    def _yields_of_cycle(self, warehouse: Warehouse | HeliosError, *, acts: bool = True) -> Yields | None:
        if TARGETS not in self.settings.services:
            return None
        return Yields(self.site.cluster, self.settings.control, self.yield_store(warehouse), acts=acts)

    def yield_store(self, warehouse: Warehouse | HeliosError) -> YieldStore:
        """Return the store of requests to yield, which raises where there is no warehouse."""

        def load() -> str:
            if isinstance(warehouse, HeliosError):
                raise warehouse
            with suppress(NoSuchCluster):
                return warehouse.remembered(self.site.name, YIELDS_MEMORY) or ""
            return ""

        def save(text: str) -> None:
            if isinstance(warehouse, HeliosError):
                raise warehouse
            warehouse.remember(self.site.name, YIELDS_MEMORY, text, at=self.clock())

        self._yields.load, self._yields.save = load, save
        return self._yields

    def summary(self) -> CycleSummary:
        """Run a cycle and summarise it for the daemon.

        Raises
        ------
        WarehouseUnavailable
            The warehouse cannot be read. What a pause by file asks for was done all the same.
        """
        began, modes = time.monotonic(), self.modes()
        report = self.cycle(modes=modes)
        with Warehouse.open(self.settings.database.url) as warehouse:
            lease = warehouse.lease(self.site.name)
            read_at = read_until(warehouse, self.site.name)
        knowledge = self.predictions.knowledge
        fields = self.summary_fields(report, modes, report.memory, began_s=began)
        notes = (*report.notes, *filter(None, [knowledge.problem]))
        return CycleSummary(
            pending=report.pending,
            running=report.running,
            acted=report.acted,
            predictions=0 if self._predicted is None else len(self._predicted),
            history_read_at=read_at,
            model_trained_at=knowledge.trained_at,
            lease_held=lease is None or lease["holder"] in {None, self.holder},
            **(fields | {"notes": notes}),
        )

    def release(self, reason: str, *, hidden: bool = False) -> CycleReport:
        """Revert everything that Helios set and verify that nothing is left.

        It needs no database. See :func:`helios.control.cycle`.
        """
        within_s = self.settings.slurm.timeout_s
        with (
            between_cycles(self.folder, within_s=within_s, lock=LOCK) as disturbed,
            open_controller_warehouse(self.settings.database.url) as warehouse,
        ):
            now = self.clock()
            ledger = self.ledger(warehouse)
            self._load_applied_changes(warehouse)
            with suppress(HeliosError):
                self.yield_store(warehouse).drop(reason, now=now)
            report = release(
                cluster=self.site.cluster,
                ledger=ledger,
                now=now,
                holder=self.holder,
                reason=reason,
                hidden=hidden,
            )
            report = replace(report, notes=(*report.notes, *disturbed))
            if report.recorded or isinstance(warehouse, HeliosError):
                return report
            try:  # another Helios holds the lease; what a person did is audited all the same
                warehouse.add_decisions(self.site.name, report.decisions)
                warehouse.remember(self.site.name, RELEASED, f"{reason} ({self.holder})", at=now)
            except HeliosError:
                return report
        return replace(report, recorded=True)

    def _load_applied_changes(self, warehouse: Warehouse | HeliosError) -> None:
        """Give the cluster the record of applied changes.

        Changes of another Helios that led before are recorded nowhere else on this machine.
        """
        with suppress(HeliosError):
            self.site.load_applied_changes(self.ledger(warehouse).applied_changes(), keep=True)

    def expect(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with predictions of run times."""
        expected = self.predictions(snapshot)
        self._predicted = expected.pending
        return expected

    def conditions(self) -> Preconditions:
        """Return the preconditions of a cycle, with those about the model."""
        conditions = super().conditions()
        if conditions.paused:
            return conditions
        knowledge = self.predictions.knowledge
        return replace(conditions, model_trained_at=knowledge.trained_at, model_problem=knowledge.problem)

    def _store_cycle(
        self,
        warehouse: Warehouse | HeliosError,
        report: CycleReport,
        *,
        seconds: float,
        released: Mapping[str, str],
    ) -> CycleReport:
        """Store the controller's state, the figures of the cycle and its predictions.

        A failure to store them is a note in the report, not a failure of the cycle.
        """
        try:
            if isinstance(warehouse, HeliosError):
                raise warehouse
            if report.leads:  # a standby must not overwrite the leader's state
                self.store.write(warehouse, report.memory, at=report.taken_at)
            if report.leads and report.recorded and not report.suspended:
                self.store.forget(warehouse, released, at=report.taken_at)
            if report.leads and report.seen:  # without a snapshot its figures say nothing of the queue
                warehouse.add_cycles(self.site.name, cycles_frame(report, seconds=seconds))
            self._keep_predictions(warehouse, report.taken_at)
        except HeliosError as problem:
            return replace(report, notes=(*report.notes, f"this cycle could not be stored: {problem.message}"))
        return report

    def _keep_predictions(self, warehouse: Warehouse, made_at: datetime) -> None:
        if self._predicted is None or self._predicted.empty:
            return
        # A job that never starts keeps its submission in the queue for years: only what is new is looked up.
        jobs = job_keys(self._predicted)
        unknown = [job not in self._stored for job in jobs]
        if any(unknown):
            found = warehouse.predictions_of(self.site.name, self._predicted.loc[unknown, "submitted_at"])
            self._remember(found)  # by the time they were made: the newest of a job last
        fresh = worth_storing(self._predicted, self._stored)
        if len(fresh):
            names = ["job_id", "submitted_at", "restart", *PREDICTIONS.names]
            warehouse.add_predictions(self.site.name, fresh[names], made_at=made_at)
            self._remember(fresh)
        self._stored = {job: self._stored[job] for job in jobs if job in self._stored}

    def _remember(self, predictions: pd.DataFrame) -> None:
        self._stored |= dict(zip(job_keys(predictions), predictions["p50_s"].tolist(), strict=True))


def cycles_frame(report: CycleReport, *, seconds: float) -> pd.DataFrame:
    """Return a cycle as one row of ``CYCLES``."""
    row = {
        "taken_at": report.taken_at,
        "seconds": seconds,
        "pending": report.pending,
        "running": report.running,
        "gpus_pending": report.gpus_pending,
        "gpus_running": report.gpus_running,
        "acted": report.acted,
        "suspended": "\n".join(report.suspended) or None,
        "counts": report.counts_json() if report.counts else json.dumps({}),
    }
    return CYCLES.conform(pd.DataFrame([row]))


_log = logging.getLogger("helios.app.controllers")


class UseUnknown(HeliosError):
    """It is not known which nodes were in use.

    The message says why.
    """


class NodeController(Controller[NodeControllerState]):
    """Controller of the nodes of one cluster."""

    domain, lock, kind = Domain.NODES, LOCK_OF_NODES, NodeControllerState
    memory, released, released_file = NODES_MEMORY, NODES_RELEASED, NODES_RELEASED_FILE

    def __init__(
        self,
        site: LiveCluster,
        settings: Settings,
        *,
        clock: Callable[[], datetime] = now_utc,
    ) -> None:
        super().__init__(site, settings, clock=clock)
        self._use: NodeUseRecord | None = None
        self._seen_use: NodeUse | None = None
        self._defect = ""
        self._tallied_at: datetime | None = None

    @property
    def nodes(self) -> NodeCluster:
        """The interface to the nodes."""
        return self.site.nodes()

    def cycle(self, *, modes: Mapping[str, ServiceMode]) -> NodeCycleReport:
        """Run one control cycle on the nodes.

        See :class:`helios.control.Cycle`. Without the warehouse nothing is changed, except that a pause by file
        still wakes everything.

        Raises
        ------
        MemoryDamaged
            The controller's stored state cannot be read; nothing was done.
        """
        with self.begin_cycle() as (memory, warehouse, released):
            report = self.run_cycle(
                NodeDomain(self.nodes, self.settings, memory),
                modes,
                ledger=self.ledger(warehouse),
                memory=memory.cycle,
                released="; ".join(released.values()),
                undo=self._undo,
                read_undo=self._read_undo,
            )
            return self._store_cycle(warehouse, report, released=released)

    def plan(self, *, modes: Mapping[str, ServiceMode]) -> NodeCycleReport:
        """Return what ``cycle`` would do now.

        Nothing is written: it runs on shadow nodes and a read-only ledger.

        Raises
        ------
        WarehouseUnavailable, MemoryDamaged
            The record of applied changes or the controller's stored state cannot be read.
        """
        with Warehouse.open(self.settings.database.url) as warehouse:
            applied_changes, memory = self.ledger(warehouse).applied_changes(), self.store.read(warehouse)
        memory = self._with_observation(replace(memory, cycle=replace(memory.cycle, asked_at={})))
        simulated = ShadowNodes(
            snapshot=self.nodes.snapshot, applied=AppliedChanges.read(applied_changes, APPLIED_NODE_CHANGES).real
        )
        report: NodeCycleReport = self.run_cycle(
            NodeDomain(simulated, self.settings, memory),
            modes,
            ledger=ReadOnlyLedger(applied_changes),
            memory=memory.cycle,
            read_undo=self._read_undo,
        )
        return report

    def summary(self) -> NodeCycleSummary:
        """Run a cycle and summarise it for the daemon.

        Raises
        ------
        WarehouseUnavailable
            The warehouse cannot be read. What a pause by file asks for was done all the same.
        """
        began, modes = time.monotonic(), self.modes()
        report = self.cycle(modes=modes)
        return NodeCycleSummary(
            nodes=count_states(report),
            by_helios=report.asleep_by_helios,
            slept=len(report.slept),
            woken=len(report.woken),
            weighed=len(report.weighed),
            protected=report.protected,
            quarantined=len(report.memory.quarantined),
            spare=self.spare_nodes(report.memory),
            lease_held=report.leads,
            **self.summary_fields(report, modes, report.memory.cycle, began_s=began),
        )

    def release(self, reason: str) -> NodeCycleReport:
        """Wake sleeping nodes and revert all other changes.

        Node weights and the list of nodes that are kept awake are reverted too. The result is verified. It needs no
        database.

        See :func:`helios.control.release_nodes`.
        """
        within_s = self.settings.slurm.timeout_s
        with (
            between_cycles(self.folder, within_s=within_s, lock=LOCK_OF_NODES) as disturbed,
            open_controller_warehouse(self.settings.database.url) as warehouse,
        ):
            now = self.clock()
            memory = None
            with suppress(HeliosError):
                memory = None if isinstance(warehouse, HeliosError) else self.store.read(warehouse)
            report = release_nodes(
                cluster=self.nodes,
                ledger=self.ledger(warehouse),
                undo=self._undo,
                read_undo=self._read_undo_if_any,
                now=now,
                holder=self.holder,
                reason=reason,
                memory=memory,
            )
            report = replace(report, notes=(*report.notes, *disturbed))
            if isinstance(warehouse, HeliosError):
                return report
            self._remove_undo_unless_leading()
            with suppress(HeliosError):
                if memory is not None:
                    # Read again: a Helios with another state folder may have ended a cycle in between.
                    last = self.store.read(warehouse)
                    memory = replace(last, wakes={**report.memory.wakes, **last.wakes})
                    self.store.write(warehouse, memory, at=now)
                if not report.recorded:  # another Helios holds the lease; what a person did is audited all the same
                    warehouse.add_decisions(self.site.name, report.decisions)
                    warehouse.remember(self.site.name, NODES_RELEASED, f"{reason} ({self.holder})", at=now)
                    return replace(report, recorded=True)
            return report

    def clear(self, node: str | None) -> NodeControllerState:
        """Allow a node that failed to wake to sleep again.

        None for all of them, and end protected mode.

        Raises
        ------
        WarehouseUnavailable, MemoryDamaged
            The controller's stored state cannot be read.
        """
        with (
            hold_cycle_lock(self.folder, within_s=self.settings.slurm.timeout_s, lock=LOCK_OF_NODES),
            Warehouse.open(self.settings.database.url) as warehouse,
        ):
            memory = clear_failed_wakes(self.store.read(warehouse), node)
            self.store.write(warehouse, memory, at=self.clock())
        return memory

    def _with_observation(self, memory: NodeControllerState) -> NodeControllerState:
        """Return the state as after one more observation of the nodes.

        A node must be idle in two consecutive snapshots, and a plan may have no cycle before it.
        """
        snapshot = self.nodes.snapshot()
        follows = memory.looked_at is not None and snapshot.taken_at - memory.looked_at <= APART
        before = memory.idle if follows else {}
        idle = {
            name: before.get(name, snapshot.taken_at) for name, node in observed_nodes(snapshot).items() if node.idle
        }
        return replace(memory, idle=idle, looked_at=snapshot.taken_at)

    def expect(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with the use of nodes."""
        from helios.app.node_use import NodeUseRecord  # noqa: PLC0415 - a pause must not wait for this import

        if self._use is None:
            self._use = NodeUseRecord(self.site.name, self.settings)
        try:
            expected = self._use(snapshot)
            if expected.use is None:
                raise UseUnknown(self._use.why_not)
            self._seen_use = expected.use
            return expected
        except HeliosError:
            raise
        except Exception as defect:  # whatever it is: nodes must still be woken, and a pause be obeyed
            if str(defect) != self._defect:
                _log.exception("the use of nodes could not be counted, so that no node is put to sleep")
            self._defect = str(defect)
            raise UseUnknown(f"{type(defect).__name__}: {defect}") from defect

    def spare_nodes(self, memory: NodeControllerState) -> SpareNodes | None:
        """Return the rules of the last decision, and what came of them.

        None where no service has one.
        """
        service = next((each for each in self.services.values() if getattr(each, "choices", None)), None)
        if service is None:
            return None
        submissions = {} if self._seen_use is None else self._seen_use.submissions
        delayed = Counter(submission.partition(" ")[2] for submission in memory.delayed)
        rules = (
            PoolRule(
                pool=pool,
                spare=choice.rule.spare,
                memory_s=choice.rule.memory_s,
                reason=choice.reason,
                submissions=submissions.get(pool, 0),
                delayed=delayed[pool],
            )
            for pool, choice in getattr(service, "choices", {}).items()
        )
        return SpareNodes(
            rules=tuple(rules),
            accepted=getattr(service, "options").delayed_submissions,  # noqa: B009 - a Service has no options
            cycles={node: len(times) for node, times in memory.slept.items() if times},
        )

    def _undo(self, undo: Undo) -> None:
        file = self.folder / UNDO_FILE
        write_undo(file, asleep=undo.asleep, weights=dict(undo.weights), keep_awake=undo.keep_awake)

    def _read_undo(self) -> Undo:
        found = read_undo(self.folder / UNDO_FILE)
        return Undo(asleep=found.asleep, weights=tuple(found.weights.items()), keep_awake=found.keep_awake)

    def _read_undo_if_any(self) -> Undo | None:
        """Return the content of the undo file.

        None where there is none, for example where a Helios with another state folder leads.
        """
        names = (UNDO_FILE, f"{UNDO_FILE}.released")  # the second as helios-release.sh leaves it
        return self._read_undo() if any(os.path.lexists(self.folder / name) for name in names) else None

    def _remove_undo_unless_leading(self) -> None:
        """Remove the undo file where another Helios leads.

        The leader's record and undo file name everything that this Helios did, and stay right.
        """
        if other_leader(self.settings, self.site.name, now=self.clock(), domain=Domain.NODES):
            with suppress(OSError):
                (self.folder / UNDO_FILE).unlink(missing_ok=True)

    def _store_cycle(
        self, warehouse: Warehouse | HeliosError, report: NodeCycleReport, *, released: Mapping[str, str]
    ) -> NodeCycleReport:
        """Store the controller's state and the counts of the nodes.

        A failure to store them is a note in the report, not a failure of the cycle. A standby stores nothing, and
        leaves the undo file to the leader.
        """
        if not report.leads:  # a standby must not overwrite the leader's state
            self._remove_undo_unless_leading()
            return report
        try:
            if isinstance(warehouse, HeliosError):
                raise warehouse
            self.store.write(warehouse, report.memory, at=report.taken_at)
            if report.recorded and report.seen:
                self.store.forget(warehouse, released, at=report.taken_at)
            self._tally(warehouse, report)
        except HeliosError as problem:
            return replace(report, notes=(*report.notes, f"this cycle could not be stored: {problem.message}"))
        return report

    def _tally(self, warehouse: Warehouse, report: NodeCycleReport) -> None:
        changed = bool(report.slept or report.woken)
        late = self._tallied_at is None or report.taken_at - self._tallied_at >= TALLY_EVERY
        if report.tallies.empty or not (changed or late):
            return
        warehouse.add_node_tallies(self.site.name, report.tallies)
        warehouse.forget_tallies(self.site.name, report.taken_at - TALLIES_KEPT)
        self._tallied_at = report.taken_at


def delete_damaged_state(warehouse: Warehouse, cluster: str, *, at: datetime) -> None:
    """Allow node cycles again after a pause.

    A stored state that cannot be read is dropped. One that can be read is kept: cool-downs, failed wakes and protected
    mode are no reason to pause and none to forget. Changes that were reverted meanwhile no longer count as applied.
    """
    try:
        NodeControllerState.from_json(warehouse.remembered(cluster, NODES_MEMORY) or NodeControllerState().to_json())
    except MemoryDamaged:
        warehouse.remember(cluster, NODES_MEMORY, "", at=at)
    warehouse.remember(cluster, NODES_RELEASED, f"before {at:%Y-%m-%d %H:%M:%S} UTC", at=at)


def count_states(report: NodeCycleReport) -> dict[str, int]:
    """Return the number of nodes in each state.

    ``idle`` are the nodes in service that are neither busy, asleep nor on the way.
    """
    tallies = report.tallies
    sums = Counter({name: int(tallies[name].sum()) for name in ("total", "busy", "asleep", "falling_asleep", "waking")})
    away = sums["asleep"] + sums["falling_asleep"] + sums["waking"]
    return {
        "busy": sums["busy"],
        "idle": max(sums["total"] - sums["busy"] - away, 0),
        NodePower.ASLEEP.value: sums["asleep"],
        NodePower.FALLING_ASLEEP.value: sums["falling_asleep"],
        NodePower.WAKING.value: sums["waking"],
    }


def grant_roles(settings: Settings, *, jobs: str, nodes: str | None, reader: str | None) -> None:
    """Grant the daemons' roles their privileges.

    See :meth:`helios.warehouse.Warehouse.grant`.
    """
    on_nodes = sorted(
        {name for name, offered in installed().items() if offered.domain is Domain.NODES} | EARLIER_NODE_SERVICES
    )
    with Warehouse.open(settings.database.url) as warehouse:
        warehouse.grant(
            jobs=jobs,
            nodes=nodes,
            reader=reader,
            node_services=on_nodes,
            node_memories=[NODES_MEMORY],
            common_memories=[PAUSED, RELEASED, NODES_RELEASED],
        )
