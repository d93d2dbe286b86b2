"""Audit log and reports of control cycles.

Outcomes that were unchanged, postponed or outside of a canary are counted only. A refusal or failure is logged when it
is new, not in every cycle, because otherwise jobs that fail repeatedly would fill the audit.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pandas as pd

from helios.actions import NodeOutcome, NodeSetting, Outcome, Result
from helios.changes import AWAKE, RequestedChanges, nodes_named, sleeps
from helios.control.modes import OUTSIDE
from helios.control.observed import AppliedChanges, ObservedNode, observed_nodes
from helios.control.state import ControllerState, NodeControllerState, outcome_target, state_digest
from helios.model import DECISIONS, NODE_TALLIES, NodePower, Snapshot

HELIOS = "helios"
"""Name of the service in entries by control itself."""
PAUSED = "paused"
_OUT_OF_PLACE = {Result.FAILED, Result.MISMATCH}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One entry of the audit log.

    It has the columns of ``DECISIONS`` except the time. None where a column does not apply.
    """

    service: str
    mode: str
    action: str
    target: str
    reason: str
    outcome: str
    before: str | None = None
    after: str | None = None
    model_id: str | None = None


class AuditLog:
    """Audit log while a cycle is in progress.

    Parameters
    ----------
    decided_at : datetime
        Time of every entry.
    digests : mapping
        Digests of the refusals and failures already logged, by service.
    sources : mapping
        Source of each job's prediction.

    Attributes
    ----------
    lines : list of AuditEntry
    changed : set of str
        Jobs or nodes that were changed.
    bad : bool
        Whether a write failed or another value was read back.
    notes : list of str
        Further messages for the operator.
    waiting : mapping
        Number of postponed changes by reason.
    """

    def __init__(
        self,
        *,
        decided_at: datetime,
        digests: Mapping[str, frozenset[str]] | None = None,
        sources: Mapping[str, str] | None = None,
    ) -> None:
        self.decided_at = decided_at
        self.sources = sources or {}
        self.lines: list[AuditEntry] = []
        self._counts: defaultdict[str, Counter[Result]] = defaultdict(Counter)
        self.changed: set[str] = set()
        self.bad = False
        self.notes: list[str] = []
        self.waiting: Counter[str] = Counter()
        self._digests_before = digests or {}
        self._digests: dict[str, set[str]] = {}

    @property
    def digests(self) -> dict[str, frozenset[str]]:
        """Digests of the refusals and failures known now.

        For a service that was not asked they are those of before.
        """
        return {**self._digests_before, **{service: frozenset(digests) for service, digests in self._digests.items()}}

    def report(self) -> dict[str, Any]:
        """Return the fields of a report that come from the audit.

        The notes end with the postponed changes.
        """
        return {
            "counts": {service: dict(results) for service, results in self._counts.items()},
            "decisions": self.frame(),
            "notes": (*self.notes, *(f"{number} changes wait: {why}" for why, number in self.waiting.items())),
        }

    def record_request(self, service: str) -> None:
        """Record that ``service`` was asked.

        Its earlier refusals are forgotten.
        """
        self._digests[service] = set()

    def count(self, service: str, result: Result, number: int = 1) -> None:
        """Count outcomes that need no entry."""
        if number:
            self._counts[service][result] += number

    def record_outcomes(self, service: str, mode: str, outcomes: Iterable[Outcome | NodeOutcome]) -> None:
        """Record the outcomes of a service's actions."""
        for outcome in outcomes:
            self.count(service, outcome.result)
            self.bad |= outcome.result in _OUT_OF_PLACE
            if outcome.result is Result.DONE:
                self.changed.add(outcome_target(outcome))
            if outcome.remark == OUTSIDE:
                continue  # expected for a canary, so it is not logged in each cycle
            if outcome.result is Result.POSTPONED:
                self.waiting[outcome.remark] += 1
                continue
            if outcome.result in _OUT_OF_PLACE | {Result.REFUSED}:
                digest = state_digest(outcome)
                self._digests.setdefault(service, set()).add(digest)
                if digest in self._digests_before.get(service, frozenset()):
                    continue
            if outcome.result is not Result.UNCHANGED:
                target = outcome_target(outcome)
                self.lines.append(
                    AuditEntry(
                        service=service,
                        mode=mode,
                        action=outcome.action,
                        target=target,
                        reason=outcome.reason,
                        outcome=f"{outcome.result}: {outcome.remark}" if outcome.remark else str(outcome.result),
                        before=outcome.before or None,
                        after=outcome.after or None,
                        model_id=self.sources.get(target) or None,
                    )
                )

    def frame(self, lines: Iterable[AuditEntry] | None = None) -> pd.DataFrame:
        """Return ``lines`` (all so far by default) as columns of ``DECISIONS``."""
        rows = self.lines if lines is None else list(lines)
        if not rows:
            return DECISIONS.empty()
        columns = {name: [getattr(row, name) for row in rows] for name in AuditEntry.__slots__}
        decided_at = pd.to_datetime([self.decided_at] * len(rows), utc=True)
        return DECISIONS.conform(pd.DataFrame({"decided_at": decided_at, **columns}))

    def is_news(self, service: str, message: str) -> bool:
        """Return whether ``message`` is new since the last cycle that acted.

        False for an empty message.
        """
        before = self._digests_before.get(service, frozenset())
        if not message and not before:
            return False
        known = self._digests.setdefault(service, set())
        if not message:
            return False
        digest = hashlib.blake2b(message.encode(errors="surrogatepass"), digest_size=6).hexdigest()
        known.add(digest)
        return digest not in before


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DomainReport:
    """Observations, decisions and actions of one cycle, as every domain has them.

    Attributes
    ----------
    taken_at : datetime
        Time of the snapshot, or start of the cycle without one.
    suspended : tuple of str
        Why nothing was done, for a person; empty where services were asked.
    counts : mapping
        Number of outcomes by service and result, including shadows.
    decisions : DataFrame
        Audit entries of this cycle, columns of ``DECISIONS``, whether or not they could be recorded.
    seen : bool
        Whether the cluster could be observed.
    recorded : bool
        Whether every entry was recorded.
    leads : bool
        Whether this Helios had the lease. A standby's state must not replace that of the leader.
    remaining : tuple of str, optional
        After reverting everything, targets with changes that are still applied, such as nodes that fall asleep and can
        be woken only later. None where they could not be observed.
    strangers : tuple of str
        After reverting everything, targets with values that look like Helios' own and are in no record of it.
    notes : tuple of str
        Further messages for the operator.
    """

    taken_at: datetime
    suspended: tuple[str, ...] = ()
    counts: Mapping[str, Mapping[Result, int]] = field(default_factory=dict)
    decisions: pd.DataFrame
    seen: bool = True
    recorded: bool = True
    leads: bool = True
    remaining: tuple[str, ...] | None = ()
    strangers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether everything of Helios was reverted, as far as observed."""
        return self.remaining == ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CycleReport(DomainReport):
    """Report of one cycle on jobs.

    Attributes
    ----------
    acted : int
        Number of jobs changed on the cluster.
    pending, running : int
        Number of jobs, with each array task counted.
    gpus_pending, gpus_running : int
        Requested and allocated GPUs.
    memory : ControllerState
        State to be stored, and passed to the next cycle.
    """

    acted: int
    pending: int = 0
    running: int = 0
    gpus_pending: int = 0
    gpus_running: int = 0
    memory: ControllerState = field(default_factory=ControllerState)

    def counts_json(self) -> str:
        """Return the counts as in ``CYCLES``."""
        return json.dumps({service: {str(k): n for k, n in sums.items()} for service, sums in self.counts.items()})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeCycleReport(DomainReport):
    """Report of one cycle on nodes.

    Attributes
    ----------
    slept, woken, weighed : tuple of str
        Nodes put to sleep, woken, and given back their weight, on the cluster.
    nodes : mapping
        Number of nodes by ``NodePower``, without nodes that are down.
    asleep_by_helios : int
        Number of nodes asleep, or falling asleep, because of Helios.
    tallies : DataFrame
        Columns of ``NODE_TALLIES``, a row for each pool; empty where the nodes could not be observed.
    protected : str
        Why nothing is put to sleep until a person clears it; empty where nodes may be put to sleep.
    memory : NodeControllerState
        State to be stored, and passed to the next cycle.
    """

    slept: tuple[str, ...] = ()
    woken: tuple[str, ...] = ()
    weighed: tuple[str, ...] = ()
    nodes: Mapping[NodePower, int] = field(default_factory=dict)
    asleep_by_helios: int = 0
    tallies: pd.DataFrame = field(default_factory=NODE_TALLIES.empty)
    protected: str = ""
    memory: NodeControllerState = field(default_factory=NodeControllerState)


def node_cycle_counts(
    snapshot: Snapshot | None, applied: AppliedChanges, *, at: datetime, wanted: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Return the sums of a snapshot of nodes.

    Parameters
    ----------
    snapshot : Snapshot, optional
        Without it only ``at`` is returned.
    wanted : mapping, optional
        As from :func:`wanted_awake`.
    """
    if snapshot is None:
        return {"taken_at": at}
    nodes = observed_nodes(snapshot)
    powers = Counter(node.power for node in nodes.values())
    by_helios = count_asleep_by_helios(nodes, applied)
    return {
        "taken_at": snapshot.taken_at,
        "nodes": {power: powers[power] for power in NodePower},
        "asleep_by_helios": len(by_helios),
        "tallies": service_tallies(nodes, at=snapshot.taken_at, by_helios=by_helios, wanted=wanted or {}),
    }


def count_asleep_by_helios(nodes: Mapping[str, ObservedNode], applied: AppliedChanges) -> frozenset[str]:
    """Return the nodes that are asleep, or falling asleep, because of Helios."""
    put_to_sleep = (row.target for row in applied.by_helios(NodeSetting.POWER))
    return frozenset(name for name in put_to_sleep if name in nodes and nodes[name].is_away)


def service_tallies(
    nodes: Mapping[str, ObservedNode], *, at: datetime, by_helios: frozenset[str], wanted: Mapping[str, float]
) -> pd.DataFrame:
    """Return the numbers of nodes of each pool, columns of ``NODE_TALLIES``.

    Parameters
    ----------
    by_helios : set of str
        Nodes asleep because of Helios.
    wanted : mapping
        Number of nodes that services wanted awake, by pool. A pool is missing where no service was asked.
    """
    rows = []
    by_pool: dict[str, list[ObservedNode]] = {}
    for node in nodes.values():
        by_pool.setdefault(node.pool, []).extend([node] if node.in_service else [])
    for pool, served in by_pool.items():
        powers = Counter(node.power for node in served)
        rows.append(
            {
                "taken_at": at,
                "pool": pool,
                "total": len(served),
                "busy": sum(node.holds for node in served),
                "asleep": powers[NodePower.ASLEEP],
                "falling_asleep": powers[NodePower.FALLING_ASLEEP],
                "waking": powers[NodePower.WAKING],
                "by_helios": sum(node.name in by_helios for node in served),
                "wanted": wanted.get(pool, float("nan")),
            }
        )
    if not rows:
        return NODE_TALLIES.empty()
    frame = pd.DataFrame(rows)
    return NODE_TALLIES.conform(frame.assign(taken_at=pd.to_datetime(frame["taken_at"], utc=True)))


def wanted_awake(proposals: Mapping[str, RequestedChanges[str]], nodes: Mapping[str, ObservedNode]) -> dict[str, float]:
    """Return the number of nodes of each pool that are wanted awake.

    It is that of the first service that decides about power. A service that was asked and requested nothing wants the
    current number.
    """
    proposal = next(iter(proposals.values()), None)
    if proposal is None:
        return {}
    lists = [change for change in proposal.changes if change.setting is NodeSetting.KEEP_AWAKE]
    if lists:
        awake = {node.name for node in nodes.values() if node.holds} | set(nodes_named(lists[0].value))
    else:
        awake = {node.name for node in nodes.values() if node.power in {NodePower.AWAKE, NodePower.WAKING}}
        awake |= {change.target for change in proposal.changes if change.value == AWAKE}
        awake -= {change.target for change in proposal.changes if sleeps(change)}
    found = Counter(node.pool for node in nodes.values() if node.in_service and node.name in awake)
    return {pool: float(found[pool]) for pool in {node.pool for node in nodes.values()}}
