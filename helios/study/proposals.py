"""Commands that statements of a study propose, with its window and nodes.

A command is proposed only if it prints the number of the statement, or one that follows from it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from helios.metrics.blocks import Finding, Question
from helios.metrics.capacity import ClusterCapacity
from helios.metrics.history import StudyHistory
from helios.units import duration_in_words

_REPLAY = "helios whatif {history} {window} {machine}"
_ORDERS = "how long jobs would wait in other orders of the queue, beside the recorded mean wait"
_SHARING = "helios study sharing {cluster} {window} {machine}"
_USAGE = "{load}helios report usage --by user {cluster} {window} {partitions}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Command:
    """A command and what it prints that follows from the statement.

    ``needs`` are parts of the finding without which it cannot.
    """

    words: str
    shows: str
    needs: tuple[str, ...] = ()


COMMANDS: Mapping[Question, _Command] = {
    Question.IDLE_WHILE_JOBS_WAIT_ELSEWHERE: _Command(
        words="helios whatif {history} {window} {pool}", shows="how long jobs would wait if all nodes were one pool"
    ),
    Question.IDLE_BEHIND_OLDEST_JOB: _Command(words=_REPLAY, shows=_ORDERS),
    Question.IDLE_NODES: _Command(
        words="helios whatif energy {history} {window} {machine}",
        shows="how many nodes would sleep if some stay awake for what comes next, and the energy that saves",
    ),
    Question.LONG_FAILURES: _Command(
        words=_USAGE,
        shows="hours of failed jobs by user, {failed_hours} in all with short failures",
        needs=("failed_hours",),
    ),
    Question.LONG_TIME_LIMITS: _Command(
        words="helios whatif --service soft_limits {history} {window} {machine}",
        shows="how long jobs would wait if the service soft_limits set limits",
    ),
    Question.CONCENTRATION: _Command(words=_USAGE, shows="the hours of each of them"),
    Question.WHO_WAITS: _Command(words=_REPLAY, shows=f"{_ORDERS}, {{mean_wait_s}}", needs=("mean_wait_s",)),
    Question.SHORT_BEHIND_LONG: _Command(words=_REPLAY, shows=_ORDERS),
    Question.REPETITION: _Command(
        words="helios model evaluate {history} {machine} --draws 0",
        shows="the rank correlation of predictions on the last part of the record, beside that of the user's last job",
    ),
    Question.ONE_GPU_JOBS: _Command(
        words="{load}helios report trials {cluster} {window} {partitions}",
        shows="the hours of repeated jobs of one GPU by user",
        needs=("share_of_hours_repeated_high",),
    ),
    Question.HELD_AND_UNUSED: _Command(
        words=_SHARING,
        shows="what ending idle sessions frees, beside what sharing would",
        needs=("memory_measured", "freed_by_timeout"),
    ),
    Question.FITS_A_PART: _Command(
        words=_SHARING,
        shows="what two and four jobs on a GPU would have saved, beside an idle time-out",
        needs=("memory_measured",),
    ),
    Question.UNUSED_REQUESTS: _Command(
        words="{load}helios report use --by job {cluster} {window} {partitions}",
        shows="these shares, and of each job how much of its memory and CPUs it used",
        needs=("share_of_cpu_hours",),
    ),
}
"""What to type next, by finding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a history comes from, as a person says it.

    Attributes
    ----------
    trace : Path, optional
        Its file. None where it is loaded.
    machine : sequence of str
        Options that give the nodes, empty where none do.
    partitions : sequence of str
        Partitions that are studied, empty for all.
    """

    trace: Path | None = None
    machine: Sequence[str] = ()
    partitions: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A command, and what it shows that follows from the statement."""

    command: str
    shows: str


def propose(finding: Finding, history: StudyHistory, size: ClusterCapacity | None, source: Source) -> Proposal | None:
    """Return the command that a finding argues for.

    None if there is none that shows what follows from it.
    """
    command = COMMANDS.get(finding.question)
    if command is None or any(finding.parts.get(name) is None for name in command.needs):
        return None
    if source.partitions and "{partitions}" not in command.words:
        return None  # a replay has all partitions
    options = _options(history, size, source)
    if "{pool}" in command.words and not options["pool"]:
        return None
    parts = {name: _in_words(name, finding.parts[name]) for name in command.needs}
    words = command.words.format(**options)
    return Proposal(command=" ".join(words.split()), shows=command.shows.format(**parts))


def _options(history: StudyHistory, size: ClusterCapacity | None, source: Source) -> dict[str, str]:
    """Return the options of commands by what they say."""
    cluster = shlex.join(["--cluster", history.cluster])
    trace = None if source.trace is None else shlex.quote(str(source.trace))
    zone = ZoneInfo(history.timezone)
    first, end = (datetime.fromtimestamp(at_s, zone) for at_s in (history.first_s, history.end_s))
    return {
        "history": cluster if trace is None else f"--trace {trace}",
        "cluster": cluster,
        "load": "" if trace is None else f"helios trace load {trace} {cluster} && ",
        "window": f"--from {first:%Y-%m-%dT%H:%M:%S} --to {end:%Y-%m-%dT%H:%M:%S}",
        "machine": shlex.join(source.machine),
        "pool": _pool(size),
        "partitions": shlex.join(word for name in source.partitions for word in ("--partition", name)),
    }


def _pool(size: ClusterCapacity | None) -> str:
    """Return options that make all nodes one pool.

    They are empty where nodes differ or are not known.
    """
    if size is None or size.nodes is None or size.per_node is None or size.nodes * size.per_node != size.units:
        return ""
    return f"--nodes {size.nodes} --gpus-per-node {size.per_node}"


def _in_words(name: str, value: float) -> str:
    return duration_in_words(value) if name.endswith("_s") else f"{value:,.1f}"
