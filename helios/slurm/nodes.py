"""The nodes of a cluster made of metal: a way into Slurm as a :class:`helios.ports.NodeCluster`.

What may be done is judged from what is read right before, and what was written is read back. Between the last look and
the write a job may still be started on a node: Slurm then lets it run to its end before the node sleeps, and the
outcome says so. Weights and the keep-awake list live in the controller alone: a restart or ``scontrol reconfigure``
brings back those of slurm.conf, and the next look shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from helios.actions import NodeAction, NodeLever, NodeOutcome, Result
from helios.errors import HeliosError
from helios.model import Snapshot
from helios.slurm import translate
from helios.slurm.backend import Backend
from helios.slurm.cluster import OVERRULED, SPENT, now
from helios.slurm.node_wishes import DOWN, UP, NodeLook, NodeWish, became, verdict, wishes_of
from helios.slurm.power_settings import PowerDesk


class SlurmNodes:
    """A :class:`helios.ports.NodeCluster` over a way into Slurm.

    Parameters
    ----------
    backend : Backend
        The way in.
    desk : PowerDesk
        How the cluster powers its nodes.
    name : str
        The cluster's name.
    site_factor_most : int
        Bound of the SiteFactor that Helios writes to jobs.
    writes_per_turn : int
        Most nodes changed by one :meth:`steer`; what is taken back comes first, then wakes, sleeps and weights, and the
        rest is ``POSTPONED``.
    clock : callable
        Returns the time, aware.
    notes : sequence of str
        What a person should be told about the way in.
    """

    def __init__(
        self,
        backend: Backend,
        desk: PowerDesk,
        *,
        name: str,
        site_factor_most: int,
        writes_per_turn: int,
        clock: Callable[[], datetime] = now,
        notes: Sequence[str] = (),
    ) -> None:
        self.backend = backend
        self.desk = desk
        self.name = name
        self.notes = tuple(notes)
        self._most = site_factor_most
        self._writes_per_turn = writes_per_turn
        self._clock = clock

    def snapshot(self) -> Snapshot:
        """Look, with ``power`` filled in; predictions and demand are missing, and so is what Helios set on jobs.

        Raises
        ------
        ClusterUnavailable
            It cannot be reached, or did not answer in time.
        """
        taken_at = self._clock()
        powering, jobs = self.desk(), self.backend.queue()
        return Snapshot(
            taken_at=taken_at,
            cluster=self.name,
            pending=translate.pending(jobs, {}, most=self._most, release=powering.release),
            running=translate.running(jobs, release=powering.release),
            nodes=translate.node_states(self.backend.nodes(), powering.surroundings),
            power=powering.settings,
        )

    def steer(self, actions: Sequence[NodeAction]) -> list[NodeOutcome]:
        """Act, read back, and say what became of each node that an action names.

        Raises
        ------
        ClusterUnavailable
            It cannot be reached; nothing was written.
        """
        if not actions:
            return []
        look = NodeLook.of(nodes=self.backend.nodes(), powering=self.desk())
        wishes = wishes_of(actions, look)
        outcomes = {at: said for at, wish in enumerate(wishes) if (said := verdict(wish, look)) is not None}
        outcomes |= _left_out(wishes, outcomes, look, self._writes_per_turn)
        open_wishes = {at: wish for at, wish in enumerate(wishes) if at not in outcomes}
        outcomes |= self._written(open_wishes, look)
        return [outcomes[at] for at in range(len(wishes))]

    def close(self) -> None:
        """Let go of the way in."""
        self.backend.close()

    def _written(self, wishes: Mapping[int, NodeWish], look: NodeLook) -> dict[int, NodeOutcome]:
        """Write, read back, and return what became of each wish; sleeps last, each judged once more right before."""
        sleeps = {at: wish for at, wish in wishes.items() if wish.wanted == DOWN and wish.lever is NodeLever.POWER}
        others = {at: wish for at, wish in wishes.items() if at not in sleeps}
        answers = self._answers(others, first=True)
        late: dict[int, NodeOutcome] = {}
        if sleeps:
            late = self._too_late(sleeps, look, first=not others)
            answers |= self._answers({at: wish for at, wish in sleeps.items() if at not in late}, first=not others)
        written = {at: wish for at, wish in wishes.items() if at not in late}
        return late | self._read_back(written, answers, look)

    def _too_late(self, sleeps: Mapping[int, NodeWish], look: NodeLook, *, first: bool) -> dict[int, NodeOutcome]:
        """Return the sleeps that must not be written any more: by the freshest look there can be."""
        try:
            fresh = NodeLook.of(nodes=self.backend.nodes(), powering=look.powering)
        except HeliosError as reason:
            if first:
                raise
            why = f"not written: {reason.fact}"
            return {at: wish.outcome(Result.FAILED, remark=why) for at, wish in sleeps.items()}
        return {at: said for at, wish in sleeps.items() if (said := verdict(wish, fresh)) is not None}

    def _answers(self, wishes: Mapping[int, NodeWish], *, first: bool) -> dict[int, str]:
        """Write, and return Slurm's answer to each; where nothing was written before, a silent cluster is an error."""
        lists = {at: wish for at, wish in wishes.items() if wish.lever is NodeLever.KEEP_AWAKE}
        nodes = {at: wish for at, wish in wishes.items() if at not in lists}
        answers = {at: self._told(wish.wanted) for at, wish in lists.items()}
        if nodes:
            said = self._changed(list(nodes.values()), first=first and not lists)
            answers |= dict(zip(nodes, said, strict=True))
        return answers

    def _changed(self, wishes: Sequence[NodeWish], *, first: bool) -> list[str]:
        try:
            return self.backend.change_nodes([wish.change for wish in wishes])
        except HeliosError as reason:
            if first:
                raise
            # Something was written before: that must be read back and told.
            return [reason.fact] * len(wishes)

    def _told(self, keep_awake: str) -> str:
        try:
            return self.desk.keep_awake(keep_awake)
        except HeliosError as reason:
            # The list may have been written: that must be read back and told.
            return reason.fact

    def _read_back(
        self, wishes: Mapping[int, NodeWish], answers: Mapping[int, str], look: NodeLook
    ) -> dict[int, NodeOutcome]:
        if not wishes:
            return {}
        try:
            lists = any(wish.lever is NodeLever.KEEP_AWAKE for wish in wishes.values())
            after = NodeLook.of(nodes=self.backend.nodes(), powering=self.desk() if lists else look.powering)
        except HeliosError as reason:
            return {at: _unread(wish, look, reason) for at, wish in wishes.items()}
        return {at: became(wish, look, after, answers[at]) for at, wish in wishes.items()}


def _left_out(
    wishes: Sequence[NodeWish], judged: Mapping[int, NodeOutcome], look: NodeLook, most: int
) -> dict[int, NodeOutcome]:
    """Return what is not written now: of each lever of a node all wishes but the last, and what exceeds the budget."""
    last = {(wish.lever, wish.node): at for at, wish in enumerate(wishes)}
    open_wishes = [at for at in range(len(wishes)) if at not in judged]
    overruled = [at for at in open_wishes if last[wishes[at].lever, wishes[at].node] != at]
    due = sorted(set(open_wishes) - set(overruled), key=lambda at: (_turn(wishes[at]), at))
    spent = due[most:]
    said = dict.fromkeys(overruled, (Result.REFUSED, OVERRULED)) | dict.fromkeys(spent, (Result.POSTPONED, SPENT))
    return {
        at: wishes[at].outcome(result, before=look.said(wishes[at].lever, wishes[at].node), remark=why)
        for at, (result, why) in said.items()
    }


def _turn(wish: NodeWish) -> int:
    if wish.takes_back:
        return 0
    return {UP: 1, DOWN: 3}.get(wish.wanted, 2 if wish.lever is NodeLever.KEEP_AWAKE else 4)


def _unread(wish: NodeWish, look: NodeLook, reason: HeliosError) -> NodeOutcome:
    before = look.said(wish.lever, wish.node)
    return wish.outcome(
        Result.FAILED, before=before, remark=f"it was written, but could not be read back: {reason.fact}"
    )
