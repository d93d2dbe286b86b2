"""The kill switch, as far as it is the same for every domain.

It needs neither the lease nor the database: a person asked. What could not be reverted is left and named.
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
"""Most calls of a cluster that postpones for its budget: at 500 writes a call, 100,000 jobs."""
LEASE = timedelta(seconds=60)
"""How long a release asks for the lease: to write down, not to go on."""

SomeOutcome = TypeVar("SomeOutcome", Outcome, NodeOutcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseResult:
    """What became of reverting everything.

    Attributes
    ----------
    outcomes : sequence of Outcome or NodeOutcome
        The last of each setting of each target.
    message : str
        How it went, in a sentence.
    notes : tuple of str
        What the operator should be told besides.
    remaining : tuple of str, optional
        On what something stands yet, or was left; None: nobody could look.
    keys : frozenset of Key
        The settings of these.
    snapshot : Snapshot, optional
        The look that verified it.
    failure : str
        What the cluster answered instead, for a person; empty: it did as told.
    left : AppliedChanges
        What stands changed after it.
    sources : mapping
        What predicted, by job.
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
            "counts": audit.sums(),
            "decisions": audit.frame(),
            "recorded": recorded,
            "leads": recorded,
            "remaining": self.remaining,
            "notes": audit.all_notes(),
        }


def add_round(outcomes: dict[Key, SomeOutcome], answer: Sequence[SomeOutcome]) -> bool:
    """Add the outcomes of one round of reverting, and return whether another round may do more.

    A later round finds unchanged what an earlier one has done.
    """
    for outcome in answer:
        key: Key = (outcome.setting, outcome_target(outcome))
        if outcome.result is not Result.UNCHANGED or key not in outcomes:
            outcomes[key] = outcome
    return {Result.DONE, Result.POSTPONED} <= {outcome.result for outcome in answer}


def release_entries(result: ReleaseResult, *, now: datetime, reason: str) -> AuditLog:
    """Return the audit of reverting everything."""
    audit = AuditLog(decided_at=now, sources=result.sources)
    audit.outcomes(HELIOS, PAUSED, result.outcomes)
    target = "" if result.snapshot is None else result.snapshot.cluster
    audit.say(
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
    """Write down a release.

    The lease is taken for that if it is free, and given back.
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
