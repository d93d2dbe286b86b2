"""The part of the kill switch that all domains share.

It needs neither the lease nor the database, because a person requested it. What could not be reverted is left and
reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from helios.actions import NodeOutcome, Outcome, Result
from helios.changes import Key
from helios.control.applied import AppliedChanges
from helios.control.audit import HELIOS, PAUSED, AuditEntry, AuditLog
from helios.control.state import outcome_target
from helios.errors import HeliosError
from helios.model import FrameKind, Snapshot
from helios.ports import Ledger

ROUNDS = 200
"""Most calls of a cluster that postpones beyond its budget, enough for 100,000 jobs at 500 writes a call."""
LEASE = timedelta(seconds=60)
"""Length of the lease for a release, which needs it only to record the outcomes."""

SomeOutcome = TypeVar("SomeOutcome", Outcome, NodeOutcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseResult:
    """Result of reverting everything.

    Attributes
    ----------
    outcomes : sequence of Outcome or NodeOutcome
        Last outcome of each setting of each target.
    message : str
        Summary in a sentence.
    notes : tuple of str
        Further messages for the operator.
    remaining : tuple of str, optional
        Targets with changes that are still applied or were left. None where they could not be observed.
    keys : frozenset of Key
        Settings of these targets.
    snapshot : Snapshot, optional
        The snapshot that verified it.
    failure : str
        The cluster's error, for a person; empty where there was none.
    left : AppliedChanges
        Applied changes after it.
    sources : mapping
        Source of each job's prediction.
    """

    outcomes: Sequence[Outcome | NodeOutcome]
    message: str
    notes: tuple[str, ...] = ()
    remaining: tuple[str, ...] | None = None
    keys: frozenset[Key] = frozenset()
    snapshot: Snapshot | None = None
    failure: str = ""
    left: AppliedChanges = field(default_factory=AppliedChanges)
    sources: Mapping[str, str] = field(default_factory=dict)

    def report(self, audit: AuditLog, *, reason: str, recorded: bool) -> dict[str, Any]:
        """Return the fields of a report that every domain has."""
        return {
            "suspended": (f"released: {reason}", *([self.failure] if self.failure else [])),
            **audit.report(),
            "seen": self.snapshot is not None,
            "recorded": recorded,
            "leads": recorded,
            "remaining": self.remaining,
        }


def add_round(outcomes: dict[Key, SomeOutcome], answer: Sequence[SomeOutcome]) -> bool:
    """Add the outcomes of one round of reverting.

    Returns whether another round may revert more. A later round finds unchanged what an earlier one has reverted.
    """
    for outcome in answer:
        key: Key = (outcome.setting, outcome_target(outcome))
        if outcome.result is not Result.UNCHANGED or key not in outcomes:
            outcomes[key] = outcome
    return {Result.DONE, Result.POSTPONED} <= {outcome.result for outcome in answer}


def release_entries(result: ReleaseResult, *, now: datetime, reason: str) -> AuditLog:
    """Return the audit of reverting everything."""
    audit = AuditLog(decided_at=now, sources=result.sources)
    audit.record_outcomes(HELIOS, PAUSED, result.outcomes)
    target = "" if result.snapshot is None else result.snapshot.cluster
    audit.lines.append(
        AuditEntry(service=HELIOS, mode=PAUSED, action="Cycle", target=target, reason=reason, outcome=result.message)
    )
    audit.notes += [result.message, *result.notes]
    return audit


def record_release(
    ledger: Ledger,
    audit: AuditLog,
    left: Callable[[], AppliedChanges],
    *,
    table: FrameKind,
    now: datetime,
    holder: str,
) -> bool:
    """Record a release in the ledger.

    The lease is taken for it if it is free, and released. Returns whether it was recorded.
    """
    try:
        token = ledger.acquire(holder=holder, now=now, lasts=LEASE)
        if token is None:
            audit.notes.append("the audit has no line of this: another Helios holds the lease, and may set it again")
            return False
        ledger.record(token=token, decisions=audit.frame(), applied_changes=left().frame(table))
        ledger.release(holder=holder)
    except HeliosError as error:
        audit.notes.append(f"the audit failed: {error.message}")
        return False
    return True
