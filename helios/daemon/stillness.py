"""Says when Helios falls still, why, and when it goes on: once each, however often a turn finds it so."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from helios.app.clockwork import NodeTurnSummary, TurnSummary
from helios.daemon.trouble import kind_of


class Stillness:
    """Compares each turn with the one before.

    Parameters
    ----------
    chore : str
        Whose turns: ``turn`` or ``nodes``, as the log has it.
    """

    def __init__(self, chore: str = "turn") -> None:
        self._log = logging.getLogger(f"helios.daemon.{chore}")
        self._still: frozenset[str] = frozenset()
        self._notes: frozenset[str] = frozenset()
        self._held: bool | None = None

    def hear(self, turn: TurnSummary | NodeTurnSummary) -> None:
        """Take note of a turn."""
        self._say_lease(turn)
        if not turn.trouble:  # which is the chore's to say
            self._say_still(turn)
        self._say_notes(turn)

    def _say_lease(self, turn: TurnSummary | NodeTurnSummary) -> None:
        if not turn.lease_held and self._held is not False:
            self._log.warning(
                "standby: another Helios writes to this cluster; this one takes over when its lease runs out"
            )
        elif turn.lease_held and self._held is False:
            self._log.warning("the lease is ours: no longer standby")
        self._held = turn.lease_held

    def _say_still(self, turn: TurnSummary | NodeTurnSummary) -> None:
        before, self._still = self._still, _kinds(turn.still)
        if not turn.lease_held:
            return  # said as standby
        if self._still and self._still != before:
            self._log.warning("nothing is done: %s", "; ".join(turn.still))
        elif before and not self._still:
            self._log.warning("acts again")

    def _say_notes(self, turn: TurnSummary | NodeTurnSummary) -> None:
        before, self._notes = self._notes, _kinds(turn.notes)
        for note in turn.notes:
            if kind_of(note) not in before:
                self._log.warning("%s", note)


def _kinds(lines: Iterable[str]) -> frozenset[str]:
    return frozenset(kind_of(line) for line in lines)
