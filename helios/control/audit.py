"""The audit log of a cycle, and the counts a person looks at first.

What already was so, waits for a later cycle or lies outside of a canary is counted and not written; a refusal or a
failure is written when it is new, not every cycle: jobs that fail on and on would else fill the audit with one line.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

import pandas as pd

from helios.actions import NodeOutcome, Outcome, Result
from helios.control.modes import OUTSIDE
from helios.control.state import outcome_target, state_digest
from helios.model import DECISIONS

HELIOS = "helios"
"""The service of a line that control itself is responsible for."""
PAUSED = "paused"
_OUT_OF_PLACE = {Result.FAILED, Result.MISMATCH}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One line of the audit.

    Columns of ``DECISIONS`` but for the time. None: not applicable.
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
    """What is taken down while a cycle goes on.

    Parameters
    ----------
    decided_at : datetime
        Stands in every line.
    said : mapping
        Digests of the refusals and failures already written, by service.
    sources : mapping
        What predicted, by job.

    Attributes
    ----------
    lines : list of AuditEntry
    changed : set of str
        Jobs, or nodes, that were written.
    bad : bool
        Whether a write failed or read back as something else.
    notes : list of str
        What the operator should be told besides.
    waiting : mapping
        How many changes wait, by what for.
    """

    def __init__(
        self,
        *,
        decided_at: datetime,
        said: Mapping[str, frozenset[str]] | None = None,
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
        self._said_before = said or {}
        self._said: dict[str, set[str]] = {}

    @property
    def said(self) -> dict[str, frozenset[str]]:
        """Digests of the refusals and failures now known.

        Of a service that was not asked, those known before.
        """
        return {**self._said_before, **{service: frozenset(digests) for service, digests in self._said.items()}}

    def sums(self) -> dict[str, dict[Result, int]]:
        """Return the number of outcomes by service and result."""
        return {service: dict(results) for service, results in self._counts.items()}

    def all_notes(self) -> tuple[str, ...]:
        """Return the notes, and what waits."""
        return (*self.notes, *(f"{number} changes wait: {why}" for why, number in self.waiting.items()))

    def asks(self, service: str) -> None:
        """Take note that ``service`` was asked.

        What it is refused from now on is all that it is refused.
        """
        self._said[service] = set()

    def say(self, line: AuditEntry) -> None:
        """Write a line."""
        self.lines.append(line)

    def count(self, service: str, result: Result, number: int = 1) -> None:
        """Count outcomes that need no line."""
        if number:
            self._counts[service][result] += number

    def outcomes(self, service: str, mode: str, outcomes: Iterable[Outcome | NodeOutcome]) -> None:
        """Take down what became of a service's actions."""
        for outcome in outcomes:
            self.count(service, outcome.result)
            self.bad |= outcome.result in _OUT_OF_PLACE
            if outcome.result is Result.DONE:
                self.changed.add(outcome_target(outcome))
            if outcome.remark == OUTSIDE:
                continue  # that is what a canary is for: nothing to say of it in each cycle
            if outcome.result is Result.POSTPONED:
                self.waiting[outcome.remark] += 1
            elif outcome.result is not Result.UNCHANGED and self._is_new(service, outcome):
                self.say(self._entry(service, mode, outcome))

    def frame(self, lines: Iterable[AuditEntry] | None = None) -> pd.DataFrame:
        """Return ``lines`` (default all so far) as columns of ``DECISIONS``."""
        rows = self.lines if lines is None else list(lines)
        if not rows:
            return DECISIONS.empty()
        columns = {name: [getattr(row, name) for row in rows] for name in AuditEntry.__slots__}
        decided_at = pd.to_datetime([self.decided_at] * len(rows), utc=True)
        return DECISIONS.conform(pd.DataFrame({"decided_at": decided_at, **columns}))

    def is_news(self, service: str, message: str) -> bool:
        """Return whether ``message`` was not said of ``service`` at the last cycle that acted.

        Empty: no.
        """
        before = self._said_before.get(service, frozenset())
        if not message and not before:
            return False
        self.asks(service)
        if not message:
            return False
        digest = hashlib.blake2b(message.encode(errors="surrogatepass"), digest_size=6).hexdigest()
        self._said[service].add(digest)
        return digest not in before

    def _is_new(self, service: str, outcome: Outcome | NodeOutcome) -> bool:
        if outcome.result not in _OUT_OF_PLACE | {Result.REFUSED}:
            return True
        digest = state_digest(outcome)
        self._said.setdefault(service, set()).add(digest)
        return digest not in self._said_before.get(service, frozenset())

    def _entry(self, service: str, mode: str, outcome: Outcome | NodeOutcome) -> AuditEntry:
        target = outcome_target(outcome)
        return AuditEntry(
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
