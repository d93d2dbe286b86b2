"""The interface to Slurm that commands and pyslurm share.

Decisions about what was read are made once, above this interface, in ``translate.py``, ``jobs.py`` and ``nodes.py``.
Raw records carry Slurm's own meaning in plain JSON values, so that the worker can send them as lines of JSON:

- a time is whole seconds since the epoch, or None for Slurm's ``N/A``, ``Unknown`` and 0;
- a length is seconds as a number, :data:`UNLIMITED`, or None for not set;
- text is as Slurm has it, undecodable bytes as surrogate escapes; None or ``""`` where Slurm prints ``(null)`` or
  ``N/A``;
- a number that Slurm does not give is None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypedDict, TypeVar

from helios.errors import AnswerNotUnderstood
from helios.model.nodes import fold

UNLIMITED = "UNLIMITED"
"""A length without bound, in :class:`RawJob`."""

Length = float | str | None
"""Seconds, or :data:`UNLIMITED`. None where it is not set."""

Record = TypeVar("Record", "RawJob", "RawNode")

_NAMES = {"job_id": re.compile(r"[1-9]\d{0,9}", re.ASCII), "name": re.compile(r"[\w.-]+", re.ASCII)}
"""What identifies a job and a node, each by its field."""
_LARGEST = {**dict.fromkeys(("restart", "tasks", "gpus", "gpus_held"), 2**31), "": 2**33}
"""What numbers stay below: an int32 of a frame, otherwise a time in s of the year 2242, beyond any count of Slurm's."""

NODES_PER_CALL = 200
"""Most nodes written in one call. The controller holds its node lock for the whole call; the number is a guess."""


class RawJob(TypedDict):
    """One record of Slurm's queue.

    It is a job, a component of a heterogeneous job, or all pending tasks of an array.
    """

    job_id: str
    """The number by which ``scontrol update`` knows it. A pending array record has the master's."""
    restart: int
    """Slurm's ``Restarts``."""
    array_job_id: str | None
    """The master's number, or None if the job is not part of an array."""
    array_tasks: str | None
    """The record's tasks in Slurm's notation, ``7`` or for a pending record ``0-9,12%2``. None as above."""
    tasks: int
    """Number of jobs in the record: that of ``array_tasks``, otherwise 1."""
    het_job_id: str | None
    """The leader's number, or None if the job is not heterogeneous."""
    het_job_offset: int | None
    """Component number within it."""
    name: str | None
    """As submitted, whatever characters it has."""
    user: str | None
    """User name, or the user id as text where the name is not known."""
    group: str | None
    """Group name, or the group id as text where the name is not known."""
    account: str | None
    qos: str | None
    partition: str | None
    """The partition. Several acceptable ones are joined by commas."""
    state: str
    """Slurm's base state without flags, such as PENDING, RUNNING, SUSPENDED or COMPLETING."""
    reason: str | None
    """Why it is not running, in Slurm's words, such as Resources, Priority, JobHeldUser or Dependency."""
    submitted: int
    eligible: int | None
    started: int | None
    """Start of this run. None while it is pending; Slurm's expected start is then in ``planned_start``."""
    planned_start: int | None
    """Start that backfill plans for a pending job. None where there is none, or the job is not pending."""
    time_limit_s: Length
    time_min_s: Length
    """``--time-min``, or what was written since. None or 0 where there is none."""
    nodes: int | None
    """Allocated nodes, otherwise the least number requested."""
    cpus: int | None
    """CPUs of ONE task of the record, allocated or requested."""
    gpus: float
    """GPUs of ONE task of the record over all its nodes, parts of one included, allocated or requested."""
    gpu_type: str | None
    """GRES type such as ``a100``. None for any type, and without GPUs."""
    memory_mib: float | None
    """Memory of ONE task of the record over all its nodes."""
    node_list: str | None
    """Nodes it runs on, in Slurm's notation. None while it is pending."""
    priority: int | None
    """Slurm's current priority. 0 if the job is held."""
    reservation: str | None
    """The reservation that it requests."""
    cron: bool
    """Whether scrontab submitted it."""
    nice: int
    """The user's own nice value, without Slurm's offset."""


class RawNode(TypedDict):
    """One node."""

    name: str
    partitions: str
    """Joined by commas."""
    state: str
    """Base state, one of IDLE, ALLOCATED, MIXED, DOWN, UNKNOWN, FUTURE and ERROR."""
    flags: str | None
    """State flags such as DRAIN, POWERED_DOWN or PLANNED, joined by ``+``. None without flags."""
    cpus: int
    cpus_held: int
    gpus: int
    gpus_held: float
    gpu_type: str | None
    memory_mib: float | None
    weight: int | None
    features: str | None
    """The active features, joined by commas."""
    idle_since: int | None
    """Slurm's ``LastBusyTime``. None if the node was never busy, is busy now, or it is not known."""
    reason: str | None
    """The reason an admin or Slurm gave for its state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUpdate:
    """The values to write to one job.

    Attributes
    ----------
    job_id : str
        As in :class:`RawJob`.
    tasks : str
        For an array's master, the tasks of its record in Slurm's notation. Only these are changed. A change of the
        bare master's id also reaches every task that ever left the record, for instance one that an admin changed
        (22.05.8). Empty for a job that is not an array's master.
    site_factor : int, optional
        The SiteFactor to set; 0 is neutral; None leaves it.
    time_min : int, optional
        The TimeMin to set, whole minutes; 0 clears it; None leaves it.
    """

    job_id: str
    tasks: str = ""
    site_factor: int | None = None
    time_min: int | None = None

    def __post_init__(self) -> None:
        if self.site_factor is None and self.time_min is None:
            raise ValueError(f"a change of job {self.job_id} changes nothing")
        if self.time_min is not None and self.time_min < 0:
            raise ValueError(f"TimeMin of job {self.job_id} would be {self.time_min} minutes")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUpdate:
    """The power state or the weight to write to one node.

    Attributes
    ----------
    node : str
        As in :class:`RawNode`.
    state : str
        ``POWER_DOWN`` or ``POWER_UP``; empty leaves its power.
    weight : int, optional
        The weight to set; None leaves it.
    """

    node: str
    state: str = ""
    weight: int | None = None

    def __post_init__(self) -> None:
        if bool(self.state) == (self.weight is not None):
            raise ValueError(f"a change of node {self.node} changes its power or its weight, one of the two")
        if self.state not in ("", "POWER_DOWN", "POWER_UP"):
            raise ValueError(f"{self.state} is never written to a node")


def check_records(records: list[Record], *, by: str, source: str) -> list[Record]:
    """Return the records of an answer if they can be told apart.

    Parameters
    ----------
    by : str
        Field that identifies a record, ``job_id`` or ``name``.
    source : str
        Program that answered, for the error.

    Raises
    ------
    AnswerNotUnderstood
        An identifier is none or comes twice, or a number is larger than Slurm's are.
    """
    known: set[object] = set()
    hint = f"Run {source} by hand as the user that runs Helios; a wrapper in its place may change what it prints."
    for record in records:
        fields: dict[str, object] = dict(record)
        name = str(fields[by])
        if name in known:
            raise AnswerNotUnderstood(f"{source} printed {by} {name} twice.", hint=hint)
        known.add(name)
        wrong = None if _NAMES[by].fullmatch(name) else by
        for field, value in fields.items():
            if isinstance(value, (int, float)) and not abs(value) < _LARGEST.get(field, _LARGEST[""]):
                wrong = field
        if wrong:
            raise AnswerNotUnderstood(f"{source} printed a {wrong} that is none: {fields[wrong]!r:.80}", hint=hint)
    return records


def write_in_batches(
    changes: Sequence[NodeUpdate], write: Callable[[Sequence[NodeUpdate]], Sequence[str]]
) -> list[str]:
    """Write the same change to many nodes in one call.

    Returns one answer for each of ``changes``, in order.

    Parameters
    ----------
    write : callable
        Writes changes whose ``node`` names up to ``NODES_PER_CALL`` nodes as Slurm does, ``n[1-4,7]``, and returns one
        answer for each.
    """
    alike: dict[tuple[str, int | None], list[int]] = {}
    for at, change in enumerate(changes):
        alike.setdefault((change.state, change.weight), []).append(at)
    batches = [
        same[first : first + NODES_PER_CALL] for same in alike.values() for first in range(0, len(same), NODES_PER_CALL)
    ]
    complaints = write([replace(changes[batch[0]], node=fold(changes[at].node for at in batch)) for batch in batches])
    answers = {at: answer for batch, answer in zip(batches, complaints, strict=True) for at in batch}
    return [answers[at] for at in range(len(changes))]


class Backend(Protocol):
    """Interface for reading and changing one Slurm cluster.

    Every method raises :class:`~helios.errors.ClusterUnavailable` when the controller cannot be reached or does not
    answer in time, and :class:`~helios.errors.AnswerNotUnderstood` when its answer makes no sense.
    """

    name: str
    """``commands`` or ``pyslurm``."""

    def queue(self, job_ids: Sequence[str] = ()) -> list[RawJob]:
        """Return the records of all jobs that have not ended.

        Of ``job_ids`` alone where it names any; an array's id stands for all its records.
        """
        ...

    def nodes(self) -> list[RawNode]:
        """Return all nodes, in any order."""
        ...

    def configuration(self) -> dict[str, str]:
        """Return the settings that ``scontrol show config`` prints, as text."""
        ...

    def change(self, changes: Sequence[JobUpdate]) -> list[str]:
        """Write each change, and return one answer for each, in order.

        An answer is empty where Slurm accepted the change, otherwise it is Slurm's message. A failure for one job does
        not stop the others. Whether an accepted change took effect is for the caller to read back. So is a change whose
        answer was lost: its answer is a text that says so.
        """
        ...

    def change_nodes(self, changes: Sequence[NodeUpdate]) -> list[str]:
        """Write each change of a node, and return one answer for each.

        Order and answers are those of :meth:`change`. Nodes with the same change are written in one call and share its
        answer. The caller reads back the value on each node.
        """
        ...

    def close(self) -> None:
        """End processes and connections.

        Calling it again has no effect.
        """
        ...
