"""The kill switch: take back everything that Helios ever set, look again, and say what is left.

It needs neither the lease nor the database: a person asked. What Helios set is known by its mark on the job together
with a record of it. What bears the mark and is in no record, and what the cluster hides, is left and named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from helios.actions import Outcome, Restore, Result
from helios.asked_of_jobs import HIDDEN
from helios.control.audit import HELIOS, PAUSED, Line, Minutes
from helios.control.outcome import TurnReport, sums_of
from helios.control.pending import Key, carried, pending_jobs
from helios.control.standings import Books, books_of
from helios.errors import HeliosError
from helios.model import Snapshot
from helios.ports import Cluster, Ledger

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
class Everything:
    """What became of taking everything back.

    Attributes
    ----------
    outcomes : list of Outcome
        The last of each lever of each job.
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


def take_everything_back(cluster: Cluster, reason: str, *, hidden: bool = False) -> Everything:
    """Restore every job that Helios set, then look whether any is left.

    Parameters
    ----------
    hidden : bool
        As in ``Restore``.
    """
    outcomes: dict[Key, Outcome] = {}
    failure = ""
    try:
        for _ in range(ROUNDS):
            answer = cluster.apply([Restore(reason=reason, hidden=hidden)])
            outcomes |= {
                (outcome.lever, outcome.job_id): outcome for outcome in answer if _says_more(outcome, outcomes)
            }
            if not _goes_on(answer):
                break
        snapshot = cluster.snapshot()
    except HeliosError as error:
        failure = f"taking everything back was broken off: {error.fact}"
        return Everything(outcomes=list(outcomes.values()), failure=failure)
    jobs = pending_jobs(snapshot)
    refused = [one for one in outcomes.values() if one.result is Result.REFUSED and one.job_id in jobs]
    left = dict.fromkeys([*carried(list(jobs.values())), *((one.lever, one.job_id) for one in refused)])
    return Everything(
        outcomes=list(outcomes.values()),
        remaining=list(left),
        hidden=tuple(dict.fromkeys(one.job_id for one in refused if one.remark.startswith(HIDDEN))),
        unproved=tuple(dict.fromkeys(one.job_id for one in refused if not one.remark.startswith(HIDDEN))),
        snapshot=snapshot,
    )


def release(
    *, cluster: Cluster, ledger: Ledger, now: datetime, holder: str, reason: str, hidden: bool = False
) -> TurnReport:
    """Take back everything, verify it by a second look, write it down, and clear the book.

    Never raises a :class:`HeliosError`: what could not be done is told by ``clean``, ``still`` and ``notes`` of the
    report. Somebody else's changes stay in the book as theirs.

    Parameters
    ----------
    holder : str
        Who asks; the lease is taken for the audit if it is free, and given back.
    """
    everything = take_everything_back(cluster, reason, hidden=hidden)
    minutes = minutes_of_the_release(everything, now=now, reason=reason)
    recorded = _written_down(ledger, minutes, everything, now=now, holder=holder)
    looked = everything.snapshot
    return TurnReport(
        taken_at=now if looked is None else looked.taken_at,
        acted=len(minutes.changed),
        still=(f"released: {reason}", *([everything.failure] if everything.failure else [])),
        counts=minutes.sums(),
        decisions=minutes.frame(),
        recorded=recorded,
        leads=recorded,
        remaining=jobs_of(everything),
        notes=minutes.told(),
        **sums_of(looked),
    )


def minutes_of_the_release(everything: Everything, *, now: datetime, reason: str) -> Minutes:
    """Take down what became of taking everything back."""
    minutes = Minutes(decided_at=now, said={})
    looked = everything.snapshot
    jobs = {} if looked is None else pending_jobs(looked)
    minutes.outcomes(HELIOS, PAUSED, everything.outcomes, jobs)
    told = told_of(everything)
    target = "" if looked is None else looked.cluster
    minutes.say(Line(service=HELIOS, mode=PAUSED, action="Turn", target=target, reason=reason, outcome=told))
    minutes.notes.append(told)
    return minutes


def told_of(everything: Everything) -> str:
    """Say in a sentence how taking everything back went."""
    if everything.failure:
        return f"{Result.FAILED}: {everything.failure}"
    left = jobs_of(everything) or ()
    others = {*everything.hidden, *everything.unproved}
    still = [job_id for job_id in left if job_id not in others]
    parts = [
        f"{len(still)} jobs still carry what Helios set: {_named(still)}" if still else "",
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


def jobs_of(everything: Everything) -> tuple[str, ...] | None:
    """Return the jobs that still carry something; None: nobody could look."""
    if everything.remaining is None:
        return None
    return tuple(dict.fromkeys(job_id for _, job_id in everything.remaining))


def book_after(books: Books, everything: Everything) -> Books:
    """Return the book without what was taken back: what remains or could not be looked at stays, and what is theirs."""
    left = everything.remaining
    stays = set(books.real) if left is None else set(left)
    return Books(real={key: row for key, row in books.real.items() if row.admins or key in stays}, shadow={})


def _written_down(ledger: Ledger, minutes: Minutes, everything: Everything, *, now: datetime, holder: str) -> bool:
    try:
        token = ledger.acquire(holder=holder, now=now, lasts=LEASE)
        if token is None:
            minutes.notes.append("the audit has no line of this: another Helios holds the lease, and may set it again")
            return False
        books = book_after(books_of(ledger.standings()), everything)
        ledger.record(token=token, decisions=minutes.frame(), standings=books.frame())
        ledger.release(holder=holder)
    except HeliosError as error:
        minutes.notes.append(f"the audit failed: {error.fact}")
        return False
    return True


def _says_more(outcome: Outcome, known: dict[Key, Outcome]) -> bool:
    # A later round finds unchanged what an earlier one has done.
    return outcome.result is not Result.UNCHANGED or (outcome.lever, outcome.job_id) not in known


def _goes_on(answer: list[Outcome]) -> bool:
    results = {outcome.result for outcome in answer}
    return Result.POSTPONED in results and Result.DONE in results
