"""Targets of Slurm jobs, as their comments say them.

A job opts in by its comment, which its owner and operators alone can change:
``helios:target=val_acc>=0.90,0.95;yield=USR2``. The program appends where it stands, ``;at=0.91,step=120,checkpoint=T``
with T in s since the epoch.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from helios.targets import Target, parse_target

OPT_IN = "helios:target="
"""Beginning of what a comment says of a target. It ends at the next space."""
SIGNALS = ("USR1", "USR2")
"""Signals that may ask a program for a checkpoint. Others end most programs."""
READY_REASONS = ("Resources", "Priority")
"""Slurm's reasons of a pending job that could start if GPUs were free."""
UNCONSIDERED = ("", "None")
"""Reasons of a pending job that Slurm has not looked at since it was submitted or changed."""

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_STAGES = ("before its first target", "past its first target", "past its second target")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetNote:
    """What a job's comment says of its target.

    Attributes
    ----------
    target : Target
        The target that its owner set.
    signal : str
        Signal that asks its program for a checkpoint, as ``sbatch --signal`` has it: ``USR2`` for the job's steps,
        ``B:USR2`` for the batch script. Empty: its owner did not opt in to yield.
    at : float, optional
        Last reported value of the metric. None where nothing was reported.
    step : float, optional
        Step of that value.
    checkpoint_s : int
        When the last checkpoint was saved, s since the epoch by the program's clock. 0: none was reported.
    """

    target: Target
    signal: str = ""
    at: float | None = None
    step: float | None = None
    checkpoint_s: int = 0

    @property
    def reached(self) -> int:
        """Number of targets that the last value reaches."""
        return sum(self.target.is_reached(tier, self.at) for tier in range(len(self.target.values)))

    def __str__(self) -> str:
        at = "nothing reported yet" if self.at is None else f"{self.target.metric} {self.at:g}"
        step = "" if self.step is None else f" at step {self.step:g}"
        return f"{at}{step}, {_STAGES[self.reached]} ({self.target})"


def read_note(comment: str | None) -> TargetNote | None:
    """Read the target in a job's comment.

    None where there is none.

    Raises
    ------
    ValueError
        It names Helios' target, and is not written as it should be.
    """
    if not comment or OPT_IN not in comment:
        return None
    text = (comment.partition(OPT_IN)[2].split() or [""])[0]
    target, *parts = text.split(";")
    found = dict(part.split("=", 1) for entry in parts for part in entry.split(",") if "=" in part)
    if unknown := sorted(set(found) - {"yield", "at", "step", "checkpoint"}):
        raise ValueError(f"{unknown[0]!r} is not known beside a target; there are yield, at, step and checkpoint")
    if (signal := found.get("yield", "")) and signal.removeprefix("B:") not in SIGNALS:
        raise ValueError(f"yield={signal} names no signal that may be sent; write {' or '.join(SIGNALS)}, or B: before")
    checkpoint = found.get("checkpoint", "")
    return TargetNote(
        target=parse_target(target),
        signal=signal,
        at=_finite(found.get("at")),
        step=_finite(found.get("step")),
        checkpoint_s=int(checkpoint) if re.fullmatch(r"\d{1,11}", checkpoint, re.ASCII) else 0,
    )


def _finite(text: str | None) -> float | None:
    return float(text) if text and re.fullmatch(_NUMBER, text, re.ASCII) and math.isfinite(float(text)) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetJob:
    """A queued job whose comment names a target.

    Attributes
    ----------
    job_id, user, partition : str
        As in ``QUEUE``.
    state, reason : str
        Slurm's base state, and why it waits.
    gpus, nodes : float
        Held, otherwise asked for.
    gpu_type : str, optional
        None for any.
    restart : int
        How often it was requeued.
    started_s : int
        Start of this run, s since the epoch; 0: it waits.
    requeues : bool
        Whether Slurm may requeue it: a batch job with ``Requeue=1``.
    excluded_reason : str
        Why Helios must leave it alone; empty where it may act.
    comment : str
        The whole comment.
    note : TargetNote, optional
        None where the comment is not understood.
    problem : str
        Why it is not.
    """

    job_id: str
    user: str = ""
    partition: str = ""
    state: str = "PENDING"
    reason: str = ""
    gpus: float = 1
    nodes: float = 1
    gpu_type: str | None = None
    restart: int = 0
    started_s: int = 0
    requeues: bool = True
    excluded_reason: str = ""
    comment: str = ""
    note: TargetNote | None = None
    problem: str = ""

    @property
    def wants_first(self) -> bool:
        """Whether it is pending, and has not reached its first target."""
        waits = self.state == "PENDING" and not self.excluded_reason and self.gpus > 0
        return waits and self.note is not None and not self.note.reached

    @property
    def waits_for_first(self) -> bool:
        """Whether it could also start now, if GPUs were free."""
        return self.wants_first and self.reason in READY_REASONS

    def why_not_asked(self) -> str:
        """Return why it may not be asked to yield.

        The text is for a person, and empty where it may.
        """
        if self.note is None or not self.note.signal:
            return "its owner did not opt in by yield=USR2 in its comment"
        if self.excluded_reason:
            return self.excluded_reason
        if self.state != "RUNNING":
            return f"it is {self.state.lower()}, not running"
        if not self.requeues:
            return "Slurm may not requeue it: it needs sbatch --requeue"
        return "" if self.note.reached else "it has not reached its first target"

    def can_free(self, other: TargetJob) -> bool:
        """Return whether the GPUs that it holds are enough for another job."""
        fits = 0 < other.gpus <= self.gpus and other.nodes <= self.nodes
        is_type = other.gpu_type is None or other.gpu_type == self.gpu_type
        return fits and is_type and self.partition in other.partition.split(",")
