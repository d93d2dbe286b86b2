"""Comparison of recorded and observed nodes since the last cycle.

It finds nodes that are idle, that are no longer Helios', or that did not wake, and adds entries to the audit. All
functions are pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from helios.actions import NodeSetting, Result
from helios.changes import AWAKE, LIST
from helios.config import Power
from helios.control.applied import AppliedChange, AppliedChanges, same_list, weight_in
from helios.control.observed import ObservedNode
from helios.control.report import HELIOS, AuditEntry
from helios.control.state import APART, DAY, Failure, NodeControllerState, WakeUp
from helios.model import Mode, NodePower, PowerSettings

WAKE_MARGIN_S = 60.0
"""Time after Slurm's own ResumeTimeout at which a wake counts as failed, s."""
FALLS_WITHIN = timedelta(minutes=10)
"""Time after which a sleep that was requested counts as failed if the node is still awake."""
GAVE_UP = ("resumetimeout", "not respond", "noresp")
"""Parts of Slurm's reason for a node that did not answer. Any other reason of a node that is down is a person's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWatch:
    """Result of the comparison.

    Attributes
    ----------
    applied : AppliedChanges
        Applied changes, without those that are no longer Helios'.
    lines : tuple of AuditEntry
        Entries for the audit.
    notes : tuple of str
        Further messages for the operator.
    """

    memory: NodeControllerState
    applied: AppliedChanges
    lines: tuple[AuditEntry, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeObservation:
    """Current observation of the nodes, with the settings to evaluate it.

    Attributes
    ----------
    released : bool
        Whether a kill switch reverted everything since the last cycle.
    """

    nodes: Mapping[str, ObservedNode]
    power: PowerSettings | None
    at: datetime
    settings: Power
    released: bool = False


def update_nodes(memory: NodeControllerState, applied: AppliedChanges, observation: NodeObservation) -> NodeWatch:
    """Update state and applied changes by what is observed."""
    memory = memory.without_old_entries(observation.at)
    for row in applied.by_helios(NodeSetting.POWER):
        memory = memory.with_slept(row.target, row.written_at) if observation.at - row.written_at < DAY else memory
    watch = _update_power(memory, applied, observation)
    watch = _update_weights(watch, observation)
    watch = _update_keep_awake(watch, observation)
    watch = _update_wakes(watch, observation)
    idle_nodes = {node.name for node in observation.nodes.values() if node.idle}
    shadow = {
        key: row
        for key, row in watch.applied.shadow.items()
        if row.setting is not NodeSetting.POWER or row.target in idle_nodes  # a job on it would have woken it
    }
    memory = watch.memory
    follows = memory.looked_at is not None and timedelta(0) <= observation.at - memory.looked_at <= APART
    before = memory.idle if follows else {}
    idle = {node.name: before.get(node.name, observation.at) for node in observation.nodes.values() if node.idle}
    return replace(
        watch,
        memory=replace(memory, idle=idle, looked_at=observation.at),
        applied=replace(watch.applied, shadow=shadow),
    )


def _update_power(memory: NodeControllerState, applied: AppliedChanges, observation: NodeObservation) -> NodeWatch:
    real, lines = dict(applied.real), []
    for row in applied.by_helios(NodeSetting.POWER):
        node = observation.nodes.get(row.target)
        if node is None:
            continue  # a node missing in the snapshot may come back, and still be asleep
        if node.is_away and not node.down:
            real[row.key] = row if row.confirmed else replace(row, after=str(node.power))
            continue
        asked_to_sleep = not row.confirmed and row.value != AWAKE
        if asked_to_sleep and node.power is NodePower.AWAKE and observation.at - row.written_at < FALLS_WITHIN:
            continue  # it may still fall asleep
        del real[row.key]
        if observation.released or not row.confirmed:
            continue
        if node.down:
            gave_up = any(words in node.reason.lower() for words in GAVE_UP)
            if row.value == AWAKE or not node.reason or gave_up:
                # It was asleep in the last snapshot and did not answer when it was woken since.
                memory = memory.with_wake(row.target, WakeUp(since=observation.at, by="Slurm"))
        elif row.value != AWAKE:
            memory, line = _woken_by_others(memory, row, node, observation)
            lines.append(line)
        elif node.power is NodePower.WAKING:  # woken by a cycle that ended before it could record so
            memory = memory.with_wake(row.target, WakeUp(since=observation.at, by="Helios"))
    return NodeWatch(memory=memory, applied=replace(applied, real=real), lines=tuple(lines))


def _woken_by_others(
    memory: NodeControllerState, row: AppliedChange, node: ObservedNode, observation: NodeObservation
) -> tuple[NodeControllerState, AuditEntry]:
    a_job_ran = node.idle_since is not None and node.idle_since > row.written_at
    if node.holds or node.state != "IDLE" or (node.power is NodePower.AWAKE and a_job_ran):
        by, rest = "Slurm woke it for a job", "it is no longer asleep because of Helios"
    elif observation.at - row.written_at < timedelta(seconds=observation.settings.payback_s):
        until = observation.at + DAY
        memory = replace(memory, keep_off={**memory.keep_off, row.target: until})
        by, rest = "somebody woke it", f"Helios does not put it to sleep before {until:%Y-%m-%d %H:%M} UTC"
    else:
        by, rest = "somebody woke it", "it is no longer asleep because of Helios"
    if node.power is NodePower.WAKING:
        memory = memory.with_wake(row.target, WakeUp(since=observation.at, by="Slurm"))
    return memory, _audit_entry("Woken", row, reason=by, outcome=f"{Result.DONE}: {rest}", read=str(node.power))


def _update_weights(watch: NodeWatch, observation: NodeObservation) -> NodeWatch:
    real, lines, lost = dict(watch.applied.real), list(watch.lines), 0
    for row in [row for row in real.values() if row.setting is NodeSetting.WEIGHT]:
        node = observation.nodes.get(row.target)
        if node is None or math.isnan(node.weight):
            continue
        as_written = node.weight == weight_in(row.after)
        if node.weight == weight_in(row.own) and (observation.released or not as_written):
            del real[row.key]
            lost += row.confirmed and not row.overridden and not observation.released
        elif as_written:
            continue  # also after a release, since its user may not have had the privilege
        elif row.confirmed and not row.overridden:
            lines.append(_overridden_entry(row, read=f"Weight {node.weight:.0f}"))
            real[row.key] = replace(row, overridden=True)
    forgotten = (
        [f"the cluster forgot {lost} weights (a reconfiguration, a restart): they are set again"] if lost else []
    )
    return replace(
        watch, applied=replace(watch.applied, real=real), lines=tuple(lines), notes=(*watch.notes, *forgotten)
    )


def _update_keep_awake(watch: NodeWatch, observation: NodeObservation) -> NodeWatch:
    row = watch.applied.real.get(LIST)
    if row is None or observation.power is None:
        return watch
    read = observation.power.keep_awake
    if row.confirmed and same_list(read, row.after) and not observation.released:
        return watch
    if same_list(read, row.own):
        real = {key: entry for key, entry in watch.applied.real.items() if key != LIST}
        reported = row.confirmed and not row.overridden and not observation.released
        lost = "the cluster forgot the keep-awake list (a reconfiguration, a restart): it is set again"
        return replace(
            watch, applied=replace(watch.applied, real=real), notes=(*watch.notes, lost) if reported else watch.notes
        )
    if not row.confirmed or row.overridden or same_list(read, row.after):
        return watch
    applied = replace(watch.applied, real={**watch.applied.real, LIST: replace(row, overridden=True)})
    return replace(watch, applied=applied, lines=(*watch.lines, _overridden_entry(row, read=read)))


def _update_wakes(watch: NodeWatch, observation: NodeObservation) -> NodeWatch:
    memory, lines, notes = watch.memory, list(watch.lines), list(watch.notes)
    was_protected = bool(memory.protected)
    for name, wake in watch.memory.wakes.items():
        result = _wake_result(observation.nodes.get(name), wake, observation)
        if result is None:
            continue
        memory = replace(memory, wakes={node: other for node, other in memory.wakes.items() if node != name})
        if result:
            memory = memory.with_failure(Failure(node=name, at=observation.at, what=result), observation.settings)
            lines.append(
                AuditEntry(
                    service=HELIOS,
                    mode=Mode.ACTIVE,
                    action="FailedWake",
                    target=name,
                    reason=f"{wake.by} told it to wake at {wake.since:%Y-%m-%d %H:%M:%S} UTC",
                    outcome=f"{Result.FAILED}: {result}; it is not put to sleep until a person clears it",
                )
            )
            notes.append(
                f"tell somebody: node {name} {result}; it is not put to sleep until: helios power clear {name}"
            )
    if memory.protected and not was_protected:
        lines.append(
            AuditEntry(
                service=HELIOS,
                mode=Mode.ACTIVE,
                action="Protected",
                target="",
                reason=f"{len(memory.failures)} wakes failed in 24 hours",
                outcome=f"{Result.REFUSED}: nothing is put to sleep until a person says: helios power clear",
            )
        )
    return replace(watch, memory=memory, lines=tuple(lines), notes=tuple(notes))


def _wake_result(node: ObservedNode | None, wake: WakeUp, observation: NodeObservation) -> str | None:
    """Return the problem of a wake.

    Empty where the node woke, or the wake no longer matters. None while it may still wake.
    """
    if node is None or node.power is NodePower.FALLING_ASLEEP:
        return ""
    if node.state == "DOWN":
        return "did not wake: it is DOWN" + (f" ({node.reason})" if node.reason else "")
    if node.power is NodePower.AWAKE:
        return ""
    if observation.power is None or observation.at - wake.since <= timedelta(
        seconds=observation.power.resume_timeout_s + WAKE_MARGIN_S
    ):
        return None
    return f"did not wake within {observation.power.resume_timeout_s:g} s: it is {node.power or 'not responding'}"


def _overridden_entry(row: AppliedChange, *, read: str) -> AuditEntry:
    rest = f"{Result.REFUSED}: {row.setting} is theirs from now on; what Helios set there it leaves"
    reason = f"somebody changed what service {row.service} had set"
    return _audit_entry("HandsOff", row, reason=reason, outcome=rest, read=read)


def _audit_entry(action: str, row: AppliedChange, *, reason: str, outcome: str, read: str) -> AuditEntry:
    return AuditEntry(
        service=row.service,
        mode=row.mode,
        action=action,
        target=row.target,
        reason=reason,
        before=row.after,
        after=read,
        outcome=outcome,
    )


def shadow_entries(before: AppliedChanges, after: AppliedChanges) -> Iterable[AuditEntry]:
    """Yield entries about nodes that a shadow would have had asleep.

    They are no longer idle, because a job came for them.
    """
    for key, row in before.shadow.items():
        if key not in after.shadow:
            would = f"{Result.WOULD}: Slurm would have woken it for a job, or somebody has changed it"
            yield _audit_entry("Woken", row, reason="it is no longer idle", outcome=would, read="awake")
