"""What a jobwise service says to a live cluster, made of what it wishes for each job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from helios.actions import Place, Ranking, Reorder
from helios.model import Snapshot
from helios.ports import Wishes

Rows = NDArray[np.int64]


def reorders(
    snapshot: Snapshot,
    wishes: Wishes,
    *,
    why: Callable[[Rows], list[str]],
    reason: Callable[[Rows], str],
) -> list[Reorder]:
    """Return an order for each partition in which ``wishes`` names a job, by the names of the partitions.

    Jobs of equal urgency stand by submission, then id. A job without a partition is nobody's.

    Parameters
    ----------
    wishes : Wishes
        For all pending jobs of ``snapshot``, in its order.
    why : callable
        Returns the reason of each place, given the rows of their jobs in the snapshot.
    reason : callable
        Returns the reason of an order, given the same. Both are asked when somebody reads them.

    Raises
    ------
    ValueError
        An urgency is not between -1 and 1.
    """
    if (np.abs(wishes.urgency) > 1).any():
        raise ValueError("a wish has an urgency that is not between -1 and 1")
    return [
        Ranking(
            partition=partition,
            snapshot=snapshot,
            rows=rows,
            urgency=wishes.urgency[rows],
            order=partial(_places, snapshot, rows, wishes.urgency, why),
            reason=partial(reason, rows),
        )
        for partition, rows in _by_partition(snapshot, (~np.isnan(wishes.urgency)).nonzero()[0])
    ]


def _by_partition(snapshot: Snapshot, rows: Rows) -> Iterator[tuple[str, Rows]]:
    names = snapshot.pending_values("partition")[rows].tolist()
    distinct = set(names)
    known = sorted(name for name in distinct if isinstance(name, str))
    if len(distinct) == len(known) == 1:
        yield known[0], rows
        return
    number = dict.fromkeys(distinct, -1) | {name: place for place, name in enumerate(known)}
    home = np.array([*map(number.__getitem__, names)], dtype=np.int64)
    for place, name in enumerate(known):
        yield name, rows[home == place]


def _places(
    snapshot: Snapshot, rows: Rows, urgency: NDArray[np.float64], why: Callable[[Rows], list[str]]
) -> tuple[Place, ...]:
    job_ids = snapshot.pending_values("job_id")[rows].tolist()
    submitted = snapshot.pending_values("submitted_at")[rows].astype(np.int64).tolist()
    ranks = zip((-urgency[rows]).tolist(), submitted, map(len, job_ids), job_ids, rows.tolist(), strict=True)
    ranked = sorted(ranks)
    reasons = why(np.array([row for *_, row in ranked], dtype=np.int64))
    return tuple(
        Place(job_id=job_id, urgency=-minus_urgency, reason=text)
        for (minus_urgency, _, _, job_id, _), text in zip(ranked, reasons, strict=True)
    )
