"""The kill switch: revert everything that Helios ever set, look again, and say what is left.

It needs neither the lease nor the database: a person asked. What Helios set is known by its mark on the job together
with a record of it. What bears the mark and is in no record, and what the cluster hides, is left and named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from helios.actions import NodeOutcome, NodeSetting, Outcome, Result, Revert
from helios.changes import HIDDEN, Key
from helios.control.applied import (
    AppliedChanges,
    AppliedNodeChange,
    AppliedNodeChanges,
    NodeBook,
    Undo,
    read_applied,
    read_applied_nodes,
    same_list,
    weight_in,
)
from helios.control.audit import HELIOS, PAUSED, AuditEntry, AuditLog
from helios.control.execute import NodeActivity, reverts
from helios.control.observed import ObservedNode, carried_values, observed_nodes, pending_jobs
from helios.control.reconcile import NodeReversion
from helios.control.report import CycleReport, NodeCycleReport, cycle_counts, node_cycle_counts
from helios.control.state import NodeControllerState
from helios.errors import HeliosError
from helios.model import Snapshot
from helios.ports import Cluster, Ledger, NodeCluster

ROUNDS = 200
"""Most calls of a cluster that postpones for its budget: at 500 writes a call, 100,000 jobs."""
OF_THE_HIDDEN = (
    "A paused daemon takes it back once it can be read; at once: scontrol update jobid=N SiteFactor=0, or for all of "
    "them helios pause --hidden"
)
OF_THE_UNPROVED = "If they are Helios' own, its database and state folder lost: helios-release.sh --by-mark"
LEASE = timedelta(seconds=60)
"""How long a release asks for the lease: to write down, not to go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseResult:
    """What became of taking everything back.

    Attributes
    ----------
    outcomes : list of Outcome
        The last of each setting of each job.
    remaining : list of Key, optional
        What is still seen on the cluster, or was left there; None: it could not be looked at.
    hidden, unproved : tuple of str
        Those of these jobs of which the cluster hides what stands, and those in no record.
    snapshot : Snapshot, optional
        The look that verified it.
    failure : str
        What the cluster answered instead, for a person; empty: it did as told.
    """

    outcomes: list[Outcome] = field(default_factory=list)
    remaining: list[Key] | None = None
    hidden: tuple[str, ...] = ()
    unproved: tuple[str, ...] = ()
    snapshot: Snapshot | None = None
    failure: str = ""


def revert_everything(cluster: Cluster, reason: str, *, hidden: bool = False) -> ReleaseResult:
    """Revert every job that Helios set, then look whether any is left.

    Parameters
    ----------
    hidden : bool
        As in ``Revert``.
    """
    outcomes: dict[Key, Outcome] = {}
    failure = ""
    try:
        for _ in range(ROUNDS):
            answer = cluster.apply([Revert(reason=reason, hidden=hidden)])
            outcomes |= {
                (outcome.setting, outcome.job_id): outcome for outcome in answer if _says_more(outcome, outcomes)
            }
            if not _goes_on(answer):
                break
        snapshot = cluster.snapshot()
    except HeliosError as error:
        failure = f"taking everything back was broken off: {error.message}"
        return ReleaseResult(outcomes=list(outcomes.values()), failure=failure)
    jobs = pending_jobs(snapshot)
    refused = [one for one in outcomes.values() if one.result is Result.REFUSED and one.job_id in jobs]
    left = dict.fromkeys([*carried_values(list(jobs.values())), *((one.setting, one.job_id) for one in refused)])
    return ReleaseResult(
        outcomes=list(outcomes.values()),
        remaining=list(left),
        hidden=tuple(dict.fromkeys(one.job_id for one in refused if one.remark.startswith(HIDDEN))),
        unproved=tuple(dict.fromkeys(one.job_id for one in refused if not one.remark.startswith(HIDDEN))),
        snapshot=snapshot,
    )


def release(
    *, cluster: Cluster, ledger: Ledger, now: datetime, holder: str, reason: str, hidden: bool = False
) -> CycleReport:
    """Revert everything, verify it by a second look, write it down, and clear the book.

    Never raises a :class:`HeliosError`: what could not be done is told by ``clean``, ``suspended`` and ``notes`` of the
    report. Somebody else's changes stay in the book as theirs.

    Parameters
    ----------
    holder : str
        Who asks; the lease is taken for the audit if it is free, and given back.
    """
    everything = revert_everything(cluster, reason, hidden=hidden)
    minutes = release_entries(everything, now=now, reason=reason)
    recorded = _written_down(ledger, minutes, everything, now=now, holder=holder)
    looked = everything.snapshot
    return CycleReport(
        taken_at=now if looked is None else looked.taken_at,
        acted=len(minutes.changed),
        suspended=(f"released: {reason}", *([everything.failure] if everything.failure else [])),
        counts=minutes.sums(),
        decisions=minutes.frame(),
        recorded=recorded,
        leads=recorded,
        remaining=jobs_in(everything),
        notes=minutes.told(),
        **cycle_counts(looked),
    )


def release_entries(everything: ReleaseResult, *, now: datetime, reason: str) -> AuditLog:
    """Take down what became of taking everything back."""
    minutes = AuditLog(decided_at=now, said={})
    looked = everything.snapshot
    jobs = {} if looked is None else pending_jobs(looked)
    minutes.outcomes(HELIOS, PAUSED, everything.outcomes, jobs)
    told = describe_release(everything)
    target = "" if looked is None else looked.cluster
    minutes.say(AuditEntry(service=HELIOS, mode=PAUSED, action="Cycle", target=target, reason=reason, outcome=told))
    minutes.notes.append(told)
    return minutes


def describe_release(everything: ReleaseResult) -> str:
    """Say in a sentence how taking everything back went."""
    if everything.failure:
        return f"{Result.FAILED}: {everything.failure}"
    left = jobs_in(everything) or ()
    others = {*everything.hidden, *everything.unproved}
    suspended = [job_id for job_id in left if job_id not in others]
    parts = [
        f"{len(suspended)} jobs still carry what Helios set: {_named(suspended)}" if suspended else "",
        f"of {len(everything.hidden)} jobs Slurm hides whether they still carry what Helios set: "
        f"{_named(everything.hidden)}. {OF_THE_HIDDEN}"
        if everything.hidden
        else "",
        f"{len(everything.unproved)} jobs bear Helios' mark and are in no record: {_named(everything.unproved)}; "
        f"not touched. {OF_THE_UNPROVED}"
        if everything.unproved
        else "",
    ]
    if left:
        return f"{Result.MISMATCH}: {'; '.join(filter(None, parts))}"
    return f"{Result.DONE}: looked again, no job carries anything that Helios is known to have set"


def _named(job_ids: Sequence[str]) -> str:
    return ", ".join(job_ids[:20]) + (", ..." if len(job_ids) > 20 else "")


def jobs_in(everything: ReleaseResult) -> tuple[str, ...] | None:
    """Return the jobs that still carry something; None: nobody could look."""
    if everything.remaining is None:
        return None
    return tuple(dict.fromkeys(job_id for _, job_id in everything.remaining))


def applied_after(applied: AppliedChanges, everything: ReleaseResult) -> AppliedChanges:
    """Return the book without what was reverted: what remains or could not be looked at stays, and what is theirs."""
    left = everything.remaining
    stays = set(applied.real) if left is None else set(left)
    return AppliedChanges(
        real={key: row for key, row in applied.real.items() if row.overridden or key in stays}, shadow={}
    )


def _written_down(ledger: Ledger, minutes: AuditLog, everything: ReleaseResult, *, now: datetime, holder: str) -> bool:
    try:
        token = ledger.acquire(holder=holder, now=now, lasts=LEASE)
        if token is None:
            minutes.notes.append("the audit has no line of this: another Helios holds the lease, and may set it again")
            return False
        applied = applied_after(read_applied(ledger.applied_changes()), everything)
        ledger.record(token=token, decisions=minutes.frame(), applied_changes=applied.frame())
        ledger.release(holder=holder)
    except HeliosError as error:
        minutes.notes.append(f"the audit failed: {error.message}")
        return False
    return True


def _says_more(outcome: Outcome, known: dict[Key, Outcome]) -> bool:
    # A later round finds unchanged what an earlier one has done.
    return outcome.result is not Result.UNCHANGED or (outcome.setting, outcome.job_id) not in known


def _goes_on(answer: list[Outcome]) -> bool:
    results = {outcome.result for outcome in answer}
    return Result.POSTPONED in results and Result.DONE in results


# The kill switch for nodes: wake everything that Helios put to sleep, give back weights and list, look again.
#
# It needs neither the lease nor the database: what Helios did is in the book and, should that be gone, in the undo
# file. A node that still falls asleep cannot be woken yet; it remains, and whoever asked asks again.

THE_LIST = "the keep-awake list"
NOT_KNOWN = "there is neither book nor undo file: what Helios did to nodes is not known here"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReleaseResult:
    """What became of taking everything back.

    Attributes
    ----------
    outcomes : list of NodeOutcome
        The last of each setting of each node.
    remaining : list of NodeStanding, optional
        What still stands on the cluster; None: it could not be looked at.
    snapshot : Snapshot, optional
        The look that verified it.
    failure : str
        What the cluster answered instead, for a person; empty: it did as told.
    in_hand : tuple of NodeOutcome
        Of nodes that sleep on because somebody has them in hand by now, as drained: the door refuses to wake them.
    """

    outcomes: list[NodeOutcome] = field(default_factory=list)
    remaining: list[AppliedNodeChange] | None = None
    snapshot: Snapshot | None = None
    failure: str = ""
    in_hand: tuple[NodeOutcome, ...] = ()

    def names(self) -> tuple[str, ...] | None:
        """Return the nodes on which something stands yet; None: nobody could look."""
        if self.remaining is None:
            return None
        return tuple(dict.fromkeys(row.node or THE_LIST for row in self.remaining))


def all_awake(cluster: NodeCluster, real: NodeBook, reason: str) -> NodeReleaseResult:
    """Revert everything of the book that is seen to stand, then look whether any is left.

    A sleeping node that an admin has in hand by now is left as it is, and is not waited for; the book keeps it.
    """
    outcomes: dict[tuple[NodeSetting, str], NodeOutcome] = {}
    try:
        snapshot = cluster.snapshot()
        for _ in range(ROUNDS):
            backs = [NodeReversion(row=row, why=reason) for row in applied_on(snapshot, real)]
            answer = cluster.steer(reverts(backs)) if backs else []
            outcomes |= {
                (outcome.setting, outcome.node): outcome
                for outcome in answer
                if outcome.result is not Result.UNCHANGED or (outcome.setting, outcome.node) not in outcomes
            }
            snapshot = cluster.snapshot() if answer else snapshot
            if not {Result.DONE, Result.POSTPONED} <= {outcome.result for outcome in answer}:
                break
    except HeliosError as error:
        failure = f"waking the nodes was broken off: {error.message}"
        return NodeReleaseResult(outcomes=list(outcomes.values()), failure=failure)
    in_hand = {key: said for key, said in outcomes.items() if _is_in_hand(said)}
    return NodeReleaseResult(
        outcomes=list(outcomes.values()),
        remaining=[row for row in applied_on(snapshot, real) if row.key not in in_hand],
        snapshot=snapshot,
        in_hand=tuple(in_hand.values()),
    )


def applied_on(snapshot: Snapshot, real: NodeBook) -> list[AppliedNodeChange]:
    """Return what of the book is seen to stand on the cluster and is Helios' own."""
    nodes = observed_nodes(snapshot)
    kept = None if snapshot.power is None else snapshot.power.keep_awake
    return [row for row in real.values() if not row.overridden and _stands(row, nodes.get(row.node), kept)]


def with_undo_records(applied: AppliedNodeChanges, undo: Undo, *, at: datetime) -> AppliedNodeChanges:
    """Return the books with what the undo file names and they do not: nobody's, so that it is reverted."""
    return AppliedNodeChanges(real={**undo.rows(at=at, service=HELIOS), **applied.real}, shadow=applied.shadow)


def applied_nodes_after(applied: AppliedNodeChanges, awakening: NodeReleaseResult) -> AppliedNodeChanges:
    """Return what remains; what could not be looked at stays.

    What was somebody else's is forgotten: nothing of Helios stands, so that what is read now is the site's own.
    """
    if awakening.snapshot is None or awakening.remaining is None:
        return AppliedNodeChanges(real=applied.real, shadow={})
    return AppliedNodeChanges(real=suspended_applied(applied.real, awakening.snapshot), shadow={})


def suspended_applied(real: NodeBook, snapshot: Snapshot) -> NodeBook:
    """Return what is seen to stand, and what is about nodes that are not seen at all."""
    stands, seen = {row.key for row in applied_on(snapshot, real)}, {*snapshot.nodes["name"], ""}
    return {key: row for key, row in real.items() if key in stands or (row.node not in seen and not row.overridden)}


def release_nodes(
    *,
    cluster: NodeCluster,
    ledger: Ledger,
    undo: Callable[[Undo], None],
    undone: Callable[[], Undo | None],
    now: datetime,
    holder: str,
    reason: str,
    memory: NodeControllerState | None = None,
) -> NodeCycleReport:
    """Wake what Helios put to sleep, give back weights and list, verify it, write it down.

    Never raises a :class:`HeliosError`: what could not be done is told by ``clean``, ``suspended`` and ``notes`` of the
    report.

    Parameters
    ----------
    undo, undone : callable
        Write the undo file, and read it; None: there is none. Without it and without the book it is not known what
        stands, and that is said.
    holder : str
        Who asks; the lease is taken for the audit if it is free, and given back.
    memory : NodeMemory, optional
        Of the last cycle, to watch the wakes; None: it is not known.
    """
    notes: list[str] = []
    applied = _known(ledger, undone, notes, at=now)
    awakening = NodeReleaseResult(failure=NOT_KNOWN) if applied is None else all_awake(cluster, applied.real, reason)
    minutes = node_release_entries(awakening, now=now, reason=reason)
    minutes.notes.extend(notes)
    left = applied_nodes_after(applied or AppliedNodeChanges(real={}, shadow={}), awakening)
    recorded = _nodes_written_down(ledger, minutes, left, now=now, holder=holder)
    if applied is not None:
        _undo_is(undo, left, minutes)
    activity = NodeActivity(memory=memory or NodeControllerState())
    activity.take_note(awakening.outcomes, now=now)
    return NodeCycleReport(
        suspended=(f"released: {reason}", *([awakening.failure] if awakening.failure else [])),
        counts=minutes.sums(),
        decisions=minutes.frame(),
        woken=tuple(activity.woken),
        weighed=tuple(activity.weighed),
        recorded=recorded,
        leads=recorded,
        seen=awakening.snapshot is not None,
        remaining=awakening.names(),
        notes=minutes.told(),
        protected=activity.memory.protected,
        memory=activity.memory,
        **node_cycle_counts(awakening.snapshot, left, at=now),
    )


def node_release_entries(awakening: NodeReleaseResult, *, now: datetime, reason: str) -> AuditLog:
    """Take down what became of taking everything back."""
    minutes = AuditLog(decided_at=now, said={})
    minutes.outcomes(HELIOS, PAUSED, awakening.outcomes)
    told = _told_of(awakening)
    target = "" if awakening.snapshot is None else awakening.snapshot.cluster
    minutes.say(AuditEntry(service=HELIOS, mode=PAUSED, action="Cycle", target=target, reason=reason, outcome=told))
    minutes.notes.append(told)
    if awakening.in_hand:
        said = ", ".join(f"{outcome.node} ({outcome.remark})" for outcome in awakening.in_hand[:20])
        minutes.notes.append(f"left asleep, in the hands of an admin, to be woken when back in service: {said}")
    return minutes


def _is_in_hand(said: NodeOutcome) -> bool:
    return said.setting is NodeSetting.POWER and said.result is Result.REFUSED


def _stands(row: AppliedNodeChange, node: ObservedNode | None, kept: str | None) -> bool:
    if row.setting is NodeSetting.KEEP_AWAKE:
        ours = not row.confirmed or (kept is not None and same_list(kept, row.after))
        return kept is not None and ours and not same_list(kept, row.own)
    if node is None:
        return False
    if row.setting is NodeSetting.POWER:
        return node.away and not node.down
    return node.weight != weight_in(row.own) and (not row.confirmed or node.weight == weight_in(row.after))


def _told_of(awakening: NodeReleaseResult) -> str:
    if awakening.failure:
        return f"{Result.FAILED}: {awakening.failure}"
    left = awakening.names()
    if not left:
        return f"{Result.DONE}: looked again, no node sleeps or is weighed because of Helios"
    return f"{Result.POSTPONED}: {len(left)} cannot be reverted yet: {', '.join(left[:20])}; asked again"


def _known(
    ledger: Ledger, undone: Callable[[], Undo | None], notes: list[str], *, at: datetime
) -> AppliedNodeChanges | None:
    """Return what stands, as far as it was written down; None: neither the book nor the undo file can be had."""
    applied, file = None, None
    try:
        applied = read_applied_nodes(ledger.applied_changes())
    except HeliosError as error:
        notes.append(f"the book could not be read, the undo file stands in for it: {error.message}")
    try:
        file = undone()
    except HeliosError as error:
        notes.append(f"the undo file could not be read: {error.message}")
    if applied is None and file is None:
        return None
    return with_undo_records(applied or AppliedNodeChanges(real={}, shadow={}), file or Undo(), at=at)


def _nodes_written_down(
    ledger: Ledger, minutes: AuditLog, left: AppliedNodeChanges, *, now: datetime, holder: str
) -> bool:
    try:
        token = ledger.acquire(holder=holder, now=now, lasts=LEASE)
        if token is None:
            minutes.notes.append("the audit has no line of this: another Helios holds the lease, and may set it again")
            return False
        ledger.record(token=token, decisions=minutes.frame(), applied_changes=left.frame())
        ledger.release(holder=holder)
    except HeliosError as error:
        minutes.notes.append(f"the audit failed: {error.message}")
        return False
    return True


def _undo_is(undo: Callable[[Undo], None], applied: AppliedNodeChanges, minutes: AuditLog) -> None:
    try:
        undo(Undo.of(applied))
    except HeliosError as error:
        minutes.notes.append(f"the undo file could not be written: {error.message}")
