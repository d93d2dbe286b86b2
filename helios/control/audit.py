"""Audit log of a cycle, and its counts.

Outcomes that were unchanged, postponed or outside of a canary are counted only. A refusal or failure is logged when it
is new, not in every cycle, because otherwise jobs that fail repeatedly would fill the audit.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pandas as pd

from helios.actions import NodeOutcome, Outcome, Result
from helios.control.modes import OUTSIDE
from helios.control.state import outcome_target, state_digest
from helios.model import DECISIONS

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
        self.record_request(service)
        if not message:
            return False
        digest = hashlib.blake2b(message.encode(errors="surrogatepass"), digest_size=6).hexdigest()
        self._digests[service].add(digest)
        return digest not in before
