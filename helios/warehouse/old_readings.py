"""Stored rows that an older Helios read wrongly, by kind.

Migration 0013 notes when each cluster got the present rules. What is stored since then is not looked at, nor what was
read anew (``helios trace sync --again``): a row may rightly look like a misread one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime

import sqlalchemy as sa

from helios.model import INTERRUPTED, JobState
from helios.model.gpu_parts import part_of_gpu
from helios.warehouse.columns import text_digest
from helios.warehouse.schema import jobs, loads, memories, names, nodes, requeues

MEMORY = "old_readings"
"""Name in ``memories`` of the moment of the upgrade, and of the submission from which all was read anew."""
DAY_US = 86_400_000_000
OVER_LIMIT_S = 3_600.0
"""A run of the whole time between start and end that is so much above its limit may hide a suspension, s."""
SAME_JOB_US = 366 * DAY_US
"""Longest time between the submissions of two runs, µs; the same as for runaways."""
_OF_1970 = sa.and_(jobs.c.started_at < DAY_US, jobs.c.submitted_at > SAME_JOB_US)
REPEATED = "have the number 0 although another run of the same job came before"
_UNFINISHED = (JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class OldRows:
    """Rows of one kind that were read wrongly.

    Attributes
    ----------
    kind : str
        What is wrong with them, as the rest of a sentence that begins with "jobs".
    jobs : int
        Number of them.
    example : str
        Id of the one submitted first.
    first_at : datetime
        When that was submitted.
    """

    kind: str
    jobs: int
    example: str
    first_at: datetime


def find_old_rows(connection: sa.Connection, cluster_id: int) -> list[OldRows]:
    """Return the misread rows of a cluster, by kind.

    All jobs are looked at once, and once more for the example of a kind.
    """
    noted = read_note(connection, cluster_id)
    if noted is None:
        return []
    old = jobs.c.cluster_id == cluster_id
    if noted["until"] is not None:
        old &= jobs.c.submitted_at < noted["until"]
    kinds = _kinds(connection, cluster_id)
    sums = [sa.func.sum(sa.case((condition, 1), else_=0)) for condition in kinds.values()]
    counts = connection.execute(sa.select(*sums).where(old)).one()
    found = [
        _old_rows(connection, kind, count, sa.and_(old, condition))
        for (kind, condition), count in zip(kinds.items(), counts, strict=True)
        if count
    ]
    count, first = _repeated_runs(connection, cluster_id, old)
    if count:
        is_first = sa.and_(old, jobs.c.submitted_at == first, jobs.c.restart == 0)
        found.append(_old_rows(connection, REPEATED, count, is_first))
    return found


def _old_rows(connection: sa.Connection, kind: str, count: int, condition: sa.ColumnElement[bool]) -> OldRows:
    """Return rows of a kind, with the first as example."""
    query = sa.select(jobs.c.job_id, jobs.c.submitted_at).where(condition)
    example, submitted = connection.execute(query.order_by(jobs.c.submitted_at, jobs.c.job_id).limit(1)).one()
    return OldRows(kind=kind, jobs=int(count), example=example, first_at=datetime.fromtimestamp(submitted / 1e6, UTC))


def read_note(connection: sa.Connection, cluster_id: int) -> dict[str, int | None] | None:
    """Return when a cluster got the present rules and was reread.

    None where all of it was read by them.
    """
    key = {"cluster_id": cluster_id, "name": MEMORY}
    text = connection.execute(sa.select(memories.c.text).filter_by(**key)).scalar_one_or_none()
    return None if text is None else json.loads(text)


def note_read_again(connection: sa.Connection, cluster_id: int, since_us: int) -> None:
    """Note that all jobs since a moment were read anew."""
    if (noted := read_note(connection, cluster_id)) is not None:
        until = since_us if noted["until"] is None else min(since_us, noted["until"])
        note = sa.update(memories).filter_by(cluster_id=cluster_id, name=MEMORY)
        connection.execute(note.values(text=json.dumps(noted | {"until": until})))


def forget_if_loaded(connection: sa.Connection, cluster_id: int) -> None:
    """Forget the note of a cluster of which every file was loaded again."""
    noted = read_note(connection, cluster_id)
    older = sa.select(loads.c.load_id).where(loads.c.cluster_id == cluster_id)
    if noted is not None and not connection.execute(older.where(loads.c.loaded_at < noted["upgraded"])).first():
        connection.execute(sa.delete(memories).filter_by(cluster_id=cluster_id, name=MEMORY))


def _kinds(connection: sa.Connection, cluster_id: int) -> dict[str, sa.ColumnElement[bool]]:
    """Return the conditions on jobs, by what is wrong with these."""
    job = jobs.c
    in_cluster = job.cluster_id == cluster_id
    newest = connection.execute(sa.select(sa.func.max(job.submitted_at)).where(in_cluster)).scalar_one() or 0
    largest = connection.execute(sa.select(sa.func.max(nodes.c.gpus)).where(nodes.c.cluster_id == cluster_id)).scalar()
    shares = sa.or_(names.c.text.like("%gres/shard%"), names.c.text.like("%gres/mps%"))
    of_shares = sa.select(names.c.name_id).where(shares)
    of_slices = _lists_of_slices(connection)
    unended = sa.and_(job.started_at.is_not(None), job.ended_at.is_(None), job.run_time_s.is_(None))
    over = job.state.in_(_numbers(connection, *(set(JobState) - set(_UNFINISHED))))
    lasted_s = (job.ended_at - job.started_at) / 1e6
    kinds = {
        "have ended without an end": sa.and_(over, unended, job.started_at < newest - DAY_US),
        "have a start of 1970": _OF_1970,
        f"ran more than {OVER_LIMIT_S / 3600:g} h above their limit, perhaps suspended": sa.and_(
            job.run_time_s > job.time_limit_s + OVER_LIMIT_S, sa.func.abs(lasted_s - job.run_time_s) < 1.0
        ),
        "ran on another cluster of the federation (REVOKED) and have a start": _is_revoked(connection),
        "hold shards or MPS shares of GPUs that are not counted": sa.and_(
            job.gpus == 0, sa.or_(job.tres_allocated.in_(of_shares), job.tres_requested.in_(of_shares))
        ),
        "hold MIG slices that are counted as whole GPUs": sa.and_(job.gpus >= 1, job.tres_allocated.in_(of_slices)),
    }
    if largest:
        kinds[f"hold more GPUs than their nodes have ({largest:g} each at most)"] = job.gpus > job.nodes * largest
    return kinds


def _lists_of_slices(connection: sa.Connection) -> list[int]:
    """Return the TRES lists with MIG slices below one GPU."""
    query = sa.select(names.c.name_id, names.c.text).where(names.c.text.like("%gres/gpu:%gb%=%"))
    texts = connection.execute(query).all()
    return [number for number, text in texts if 0 < _slices(text) < 1]


def _slices(text: str) -> float:
    """Return the GPUs in the MIG slices of a TRES list."""
    entries = (entry.removeprefix("gres/gpu:").partition("=") for entry in text.split(",") if "gres/gpu:" in entry)
    return sum(float(count) * (part_of_gpu(kind) or 1.0) for kind, _, count in entries if count.isdecimal())


def has_misread_times(connection: sa.Connection) -> sa.ColumnElement[bool]:
    """Return the condition that a stored job's start is impossible."""
    return sa.or_(_OF_1970, _is_revoked(connection))


def _is_revoked(connection: sa.Connection) -> sa.ColumnElement[bool]:
    return sa.and_(jobs.c.state.in_(_numbers(connection, JobState.REVOKED)), jobs.c.started_at.is_not(None))


def _numbers(connection: sa.Connection, *states: JobState) -> list[int]:
    digests = [text_digest(state.value) for state in states]
    return list(connection.execute(sa.select(names.c.name_id).where(names.c.digest.in_(digests))).scalars())


def _repeated_runs(connection: sa.Connection, cluster_id: int, old: sa.ColumnElement[bool]) -> tuple[int, int]:
    """Count later runs that are numbered 0, and find the first submission."""
    job, listed = jobs.c, sa.select(requeues.c.job_id).where(requeues.c.cluster_id == cluster_id)
    names_of = (job.submitted_at, job.state, job.user)
    before = (sa.func.lag(value).over(partition_by=job.job_id, order_by=job.submitted_at) for value in names_of)
    rows = sa.select(*names_of, *(value.label(f"old_{n.name}") for n, value in zip(names_of, before, strict=True)))
    run = rows.where(old, job.restart == 0, job.job_id.in_(listed)).subquery().c
    is_repeated = sa.and_(
        run.old_state.in_(_numbers(connection, *INTERRUPTED)),
        run.user == run.old_user,
        run.submitted_at - run.old_submitted_at < SAME_JOB_US,
    )
    found = sa.select(sa.func.count(), sa.func.coalesce(sa.func.min(run.submitted_at), 0)).where(is_repeated)
    count, first = connection.execute(found).one()
    return int(count), int(first)
