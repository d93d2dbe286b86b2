"""What a turn hands back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypedDict

import pandas as pd

from helios.actions import Result
from helios.control.memory import TurnMemory
from helios.model import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TurnReport:
    """What was seen, decided and done in one turn.

    Attributes
    ----------
    taken_at : datetime
        When the cluster was looked at; the start of the turn, if it was not.
    acted : int
        Jobs changed on the cluster.
    still : tuple of str
        Why no service was listened to, for a person; empty: they were.
    counts : mapping
        Outcomes by service and result; a shadow's too.
    pending, running : int
        Jobs, array tasks counted one by one.
    gpus_pending, gpus_running : int
        GPUs asked for and held.
    decisions : DataFrame
        The lines of this turn, columns of ``DECISIONS``, whether or not they could be written down.
    seen : bool
        Whether the cluster could be looked at.
    recorded : bool
        Whether every line was written down.
    leads : bool
        Whether this Helios had the lease. A standby's memory must not be kept over that of the one that leads.
    remaining : tuple of str, optional
        After everything was to be taken back: jobs that still carry something. None: that could not be seen.
    notes : tuple of str
        What the operator should be told besides.
    memory : TurnMemory
        To be kept, and given to the next turn.
    """

    taken_at: datetime
    acted: int
    still: tuple[str, ...]
    counts: Mapping[str, Mapping[Result, int]]
    pending: int = 0
    running: int = 0
    gpus_pending: int = 0
    gpus_running: int = 0
    decisions: pd.DataFrame
    seen: bool = True
    recorded: bool
    leads: bool
    remaining: tuple[str, ...] | None = ()
    notes: tuple[str, ...] = ()
    memory: TurnMemory = field(default_factory=TurnMemory)

    @property
    def clean(self) -> bool:
        """Whether nothing that was to be taken back is left, as far as was looked."""
        return self.remaining == ()

    def counts_json(self) -> str:
        """Return the counts as ``TURNS`` keeps them."""
        return json.dumps({service: {str(k): n for k, n in sums.items()} for service, sums in self.counts.items()})


class Sums(TypedDict, total=False):
    """The sums of a snapshot, as :class:`TurnReport` names them."""

    pending: int
    running: int
    gpus_pending: int
    gpus_running: int


def sums_of(snapshot: Snapshot | None) -> Sums:
    """Return the jobs and GPUs of a snapshot, named as in :class:`TurnReport`; None: it was not seen."""
    if snapshot is None:
        return {}
    pending, running = snapshot.pending, snapshot.running
    return {
        "pending": int(pending["tasks"].sum()),
        "running": int(running["tasks"].sum()),
        "gpus_pending": int((pending["tasks"] * pending["gpus"]).sum()),
        "gpus_running": int((running["tasks"] * running["gpus"]).sum()),
    }
