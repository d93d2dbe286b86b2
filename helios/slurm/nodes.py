"""Nodes of a real Slurm as a ``NodeCluster``.

Every decision is made from what is read right before, and every write is read back. A job may still be started on a
node between the last reading and the write. Slurm then lets it run to its end before the node sleeps, and the outcome
says so. Weights and the keep-awake list exist in the controller only: a restart or ``scontrol reconfigure`` brings back
those of slurm.conf, and the next reading shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from helios.actions import NodeOutcome, NodeSetting, Result
from helios.changes import ASLEEP, AWAKE, LIST, Change, Setting, nodes_named, sleeps
from helios.errors import HeliosError, HostlistInvalid
from helios.model import NodePower, Snapshot
from helios.slurm import parse, translate
from helios.slurm.backend import Backend, NodeUpdate, RawNode
from helios.slurm.jobs import OVERRULED, SPENT, now
from helios.slurm.power import (
    excluded_reason,
    is_idle,
    join_exceptions,
    keep_awake_list,
    kept_awake,
    power,
    same_list,
    why_not_wake,
)
from helios.slurm.power_config import KEEP_AWAKE_SINCE, PowerConfig, PowerConfigReader

DOWN, UP = "POWER_DOWN", "POWER_UP"
"""The only two states that are written. ``POWER_DOWN_ASAP`` would drain nodes, and ``POWER_DOWN_FORCE`` kills jobs."""
NO_NODE = "there is no such node"
FALLING = "it is falling asleep: Slurm ignores a power_up until it is asleep"
TAKEN = "a job was started on it in between: it runs to its end, and then Slurm puts the node to sleep"
TOO_OLD = f"this Slurm cannot change SuspendExcNodes while it runs; {'.'.join(f'{n:02}' for n in KEEP_AWAKE_SINCE)} can"

_ON_THE_WAY_DOWN = (NodePower.FALLING_ASLEEP, NodePower.ASLEEP)
_ON_THE_WAY_UP = (NodePower.WAKING, NodePower.AWAKE)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReading:
    """State of the nodes at one moment, from which changes are decided.

    Attributes
    ----------
    nodes : mapping
        The nodes by name.
    powering : PowerConfig
        The cluster's power-saving configuration.
    warm : set of str
        Nodes that the cluster's own keep-awake list keeps awake now.
    """

    nodes: Mapping[str, RawNode]
    powering: PowerConfig
    warm: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def of(cls, nodes: Sequence[RawNode], powering: PowerConfig) -> NodeReading:
        """Return a reading with the nodes that the cluster itself keeps awake."""
        kept = kept_awake(nodes, powering.surroundings.exclusions)
        return cls(nodes={node["name"]: node for node in nodes}, powering=powering, warm=kept)

    def current_value(self, setting: Setting, node: str) -> str:
        """Return the current value of a node's setting, in Slurm's words.

        Empty where the node does not exist.
        """
        if setting is NodeSetting.KEEP_AWAKE:
            return f"SuspendExcNodes {self.powering.settings.keep_awake or '(null)'}"
        if node not in self.nodes:
            return ""
        if setting is NodeSetting.WEIGHT:
            return f"Weight {self.nodes[node]['weight']}"
        return "+".join(filter(None, (self.nodes[node]["state"], self.nodes[node]["flags"])))


def node_update(change: Change[str]) -> NodeUpdate:
    """Return the values to write to a node."""
    if change.setting is NodeSetting.WEIGHT:
        return NodeUpdate(node=change.target, weight=_weight(change.value))
    return NodeUpdate(node=change.target, state=DOWN if change.value == ASLEEP else UP)


def whole_list(change: Change[str], reading: NodeReading) -> Change[str]:
    """Return a change whose keep-awake list has the site's own entries.

    Other changes stay as they are. Nodes that do not exist are left out, since Slurm accepts a list with one (26.05.5),
    and then may keep nothing awake.
    """
    if change.key != LIST or change.is_revert:
        return change
    own = reading.powering.settings.keep_awake if change.own is None else change.own
    names = [node for node in nodes_named(change.value) if node in reading.nodes]
    return replace(change, value=join_exceptions(own, names))


def check_node_update(change: Change[str], reading: NodeReading) -> NodeOutcome | None:
    """Return the outcome of a change that is not written.

    It is a change that must not, cannot or need not be written. None where the change is to be written.
    """
    if change.setting is not NodeSetting.KEEP_AWAKE and change.target not in reading.nodes:
        return change.outcome(Result.GONE, NO_NODE)
    before = reading.current_value(change.setting, change.target)
    if is_in_state(change, reading):
        return change.outcome(Result.UNCHANGED, before=before, after=before)
    wakes = change.setting is NodeSetting.POWER and change.value == AWAKE
    if wakes and power(reading.nodes[change.target]) is NodePower.FALLING_ASLEEP:
        return change.outcome(Result.POSTPONED, FALLING, before=before)
    why = _why_not_written(change, reading)
    return change.outcome(Result.REFUSED, why, before=before) if why else None


def is_in_state(change: Change[str], reading: NodeReading) -> bool:
    """Return whether a node has or gets the requested value.

    The node must exist.
    """
    if change.setting is NodeSetting.KEEP_AWAKE:
        return same_list(reading.powering.settings.keep_awake, change.value)
    node = reading.nodes[change.target]
    if change.setting is NodeSetting.WEIGHT:
        return node["weight"] == _weight(change.value)
    return power(node) in (_ON_THE_WAY_DOWN if change.value == ASLEEP else _ON_THE_WAY_UP)


def node_outcome_after(change: Change[str], before: NodeReading, after: NodeReading, answer: str) -> NodeOutcome:
    """Return the outcome of a written change.

    It follows from the values read before and after, and from Slurm's answer.
    """
    was, read = before.current_value(change.setting, change.target), after.current_value(change.setting, change.target)
    if not read:
        return change.outcome(Result.GONE, NO_NODE, before=was)
    if is_in_state(change, after):
        # A job that was started before the sleep took effect is safe, because Slurm waits for its end.
        remark = TAKEN if sleeps(change) and not is_idle(after.nodes[change.target]) else ""
        return change.outcome(Result.DONE, remark, before=was, after=read)
    if answer:
        return change.outcome(Result.FAILED, answer, before=was, after=read)
    return change.outcome(Result.MISMATCH, "Slurm accepted it, and something else stands", before=was, after=read)


def _why_not_written(change: Change[str], reading: NodeReading) -> str:
    """Return why a change must not be written now.

    Empty where it may.
    """
    if change.setting is NodeSetting.WEIGHT:
        return "" if _weight(change.value) is not None else f"{change.value!r} is no weight"
    if change.setting is NodeSetting.KEEP_AWAKE:
        return _why_no_list(change, reading)
    node = reading.nodes[change.target]
    if change.value == AWAKE:
        return why_not_wake(node) or ("" if power(node) else "it does not answer")
    return _why_awake(node, reading)


def _why_no_list(change: Change[str], reading: NodeReading) -> str:
    if reading.powering.release < KEEP_AWAKE_SINCE:
        return TOO_OLD
    if reading.powering.settings.why_not and not change.is_revert:
        return reading.powering.settings.why_not
    try:
        keep_awake_list(change.value)
    except HostlistInvalid as reason:
        return reason.message
    return ""


def _why_awake(node: RawNode, reading: NodeReading) -> str:
    if why := reading.powering.settings.why_not or excluded_reason(node, reading.powering.surroundings.exclusions):
        return why
    if power(node) is NodePower.WAKING:
        return "it is waking"
    if not is_idle(node):
        return f"it is not idle: {reading.current_value(NodeSetting.POWER, node['name'])}"
    return "SuspendExcNodes keeps it awake" if node["name"] in reading.warm else ""


def _rank(change: Change[str]) -> int:
    """Return the position among changes that share a budget, lowest first."""
    if change.is_revert:
        return 0
    return 2 if change.setting is not NodeSetting.POWER else 3 if sleeps(change) else 1


def _with_left_out(outcome: NodeOutcome, change: Change[str], reading: NodeReading) -> NodeOutcome:
    """Add a keep-awake list's missing nodes to its outcome."""
    if change.key != LIST or change.is_revert:
        return outcome
    missing = ", ".join(node for node in nodes_named(change.value) if node not in reading.nodes)
    note = f"left out, as there are no such nodes: {missing}" if missing else ""
    return replace(outcome, remark="; ".join(filter(None, (outcome.remark, note))))


def _weight(text: str) -> int | None:
    text = text.partition(".")[0]
    return parse.whole(text) if text.isascii() and text.isdigit() else None


class SlurmNodes:
    """``NodeCluster`` over a backend for Slurm.

    Parameters
    ----------
    backend : Backend
        Slurm's commands or pyslurm.
    operations : PowerConfigReader
        Reads the power-saving configuration, and writes the keep-awake list.
    name : str
        The cluster's name.
    site_factor_most : int
        Largest absolute SiteFactor that Helios writes to jobs.
    writes_per_cycle : int
        Most changes written by one :meth:`steer`. Reverts come first, then wakes, the keep-awake list and sleeps. The
        others are ``POSTPONED``.
    clock : callable
        Returns the time, aware.
    notes : sequence of str
        Why this backend was chosen, for a person.
    """

    def __init__(
        self,
        backend: Backend,
        operations: PowerConfigReader,
        *,
        name: str,
        site_factor_most: int,
        writes_per_cycle: int,
        clock: Callable[[], datetime] = now,
        notes: Sequence[str] = (),
    ) -> None:
        self.backend = backend
        self.operations = operations
        self.name = name
        self.notes = tuple(notes)
        self._most = site_factor_most
        self._writes_per_cycle = writes_per_cycle
        self._clock = clock

    def snapshot(self) -> Snapshot:
        """Return the cluster's current state, including ``power``.

        Predictions, the use of nodes, and what Helios set on jobs are missing.

        Raises
        ------
        ClusterUnavailable
            The cluster cannot be reached, or did not answer in time.
        """
        taken_at = self._clock()
        powering, jobs, nodes = self.operations(), self.backend.queue(), self.backend.nodes()
        return Snapshot(
            taken_at=taken_at,
            cluster=self.name,
            pending=translate.pending(jobs, {}, most=self._most, release=powering.release, nodes=nodes),
            running=translate.running(jobs, release=powering.release, nodes=nodes),
            nodes=translate.node_states(nodes, powering.surroundings),
            power=powering.settings,
        )

    def steer(self, changes: Sequence[Change[str]]) -> list[NodeOutcome]:
        """Apply changes, read back, and return the outcome of each.

        Raises
        ------
        ClusterUnavailable
            The cluster cannot be reached. Nothing was written.
        """
        if not changes:
            return []
        reading = NodeReading.of(nodes=self.backend.nodes(), powering=self.operations())
        whole = [whole_list(change, reading) for change in changes]
        checked = {at: check_node_update(change, reading) for at, change in enumerate(whole)}
        outcomes = {at: outcome for at, outcome in checked.items() if outcome is not None}
        last = {change.key: at for at, change in enumerate(whole)}
        open_changes = {at: change for at, change in enumerate(whole) if at not in outcomes}
        due = [at for at, change in open_changes.items() if last[change.key] == at]
        due.sort(key=lambda at: _rank(whole[at]))
        left_out = dict.fromkeys(open_changes.keys() - due, (Result.REFUSED, OVERRULED))
        left_out |= dict.fromkeys(due[self._writes_per_cycle :], (Result.POSTPONED, SPENT))
        for at, (result, why) in left_out.items():
            before = reading.current_value(whole[at].setting, whole[at].target)
            outcomes[at] = whole[at].outcome(result, why, before=before)
        outcomes |= self._write({at: change for at, change in open_changes.items() if at not in outcomes}, reading)
        return [_with_left_out(outcomes[at], change, reading) for at, change in enumerate(changes)]

    def close(self) -> None:
        """Close the backend."""
        self.backend.close()

    def _write(self, changes: Mapping[int, Change[str]], reading: NodeReading) -> dict[int, NodeOutcome]:
        """Write changes, read them back, and return their outcomes.

        Sleeps are written last, and each is checked once more right before.
        """
        to_sleep = {at: change for at, change in changes.items() if sleeps(change)}
        others = {at: change for at, change in changes.items() if not sleeps(change)}
        answers = self._write_and_answer(others, first=True)
        outcomes: dict[int, NodeOutcome] = {}
        if to_sleep:
            outcomes = self._drop_late_sleeps(to_sleep, reading, first=not others)
            ready = {at: change for at, change in to_sleep.items() if at not in outcomes}
            answers |= self._write_and_answer(ready, first=not others)
        if not answers:
            return outcomes
        try:
            lists = any(changes[at].setting is NodeSetting.KEEP_AWAKE for at in answers)
            after = NodeReading.of(
                nodes=self.backend.nodes(), powering=self.operations() if lists else reading.powering
            )
        except HeliosError as reason:
            why = f"it was written, but could not be read back: {reason.message}"
            for at in answers:
                before = reading.current_value(changes[at].setting, changes[at].target)
                outcomes[at] = changes[at].outcome(Result.FAILED, why, before=before)
            return outcomes
        return outcomes | {at: node_outcome_after(changes[at], reading, after, answers[at]) for at in answers}

    def _drop_late_sleeps(
        self, to_sleep: Mapping[int, Change[str]], reading: NodeReading, *, first: bool
    ) -> dict[int, NodeOutcome]:
        """Return the outcomes of sleeps that must no longer be written.

        They are checked with a new reading of the nodes. With ``first``, nothing was written before, and a cluster that
        does not answer is an error.
        """
        try:
            fresh = NodeReading.of(nodes=self.backend.nodes(), powering=reading.powering)
        except HeliosError as reason:
            if first:
                raise
            why = f"not written: {reason.message}"
            return {at: change.outcome(Result.FAILED, why) for at, change in to_sleep.items()}
        return {
            at: current_value
            for at, change in to_sleep.items()
            if (current_value := check_node_update(change, fresh)) is not None
        }

    def _write_and_answer(self, changes: Mapping[int, Change[str]], *, first: bool) -> dict[int, str]:
        """Write changes, and return Slurm's answer to each.

        With ``first``, nothing was written before, and a cluster that does not answer is an error.
        """
        answers: dict[int, str] = {}
        nodes: dict[int, Change[str]] = {}
        for at, change in changes.items():
            if change.setting is not NodeSetting.KEEP_AWAKE:
                nodes[at] = change
                continue
            try:
                answers[at] = self.operations.keep_awake(change.value)
            except HeliosError as reason:
                answers[at] = reason.message  # the list may have been written, so it must be read back and reported
        if nodes:
            try:
                of_nodes = self.backend.change_nodes([node_update(change) for change in nodes.values()])
            except HeliosError as reason:
                if first and not answers:
                    raise
                # Something was written before, which must be read back and reported.
                of_nodes = [reason.message] * len(nodes)
            answers |= dict(zip(nodes, of_nodes, strict=True))
        return answers
