"""What actions ask of a cluster, as the changes that it takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from helios.actions import JobAction, JobSetting, NodeAction, Revert, RevertNodes
from helios.changes import EVERY, LIST, Change, revert_job, revert_node, to_job_changes, to_node_changes


def asked(actions: Iterable[JobAction], *, unseen: bool = False) -> list[Change[float]]:
    """Return the changes of jobs; a ``Revert`` without jobs stands for every one of Helios."""
    changes: list[Change[float]] = []
    for action in actions:
        if isinstance(action, Revert):
            settings = list(JobSetting) if action.setting is None else [action.setting]
            job_ids = [EVERY] if action.job_ids is None else action.job_ids
            changes += [
                revert_job(setting, job_id, reason=action.reason, unseen=unseen)
                for job_id in job_ids
                for setting in settings
            ]
        else:
            changes += to_job_changes([action]).changes
    return changes


def asked_of_nodes(actions: Iterable[NodeAction | Change[str]], *, own: str | None = None) -> list[Change[str]]:
    """Return the changes of nodes; ``own`` is the site's own keep-awake list, where Helios has recorded it."""
    changes: list[Change[str]] = []
    for action in actions:
        if isinstance(action, Change):
            changes.append(action)
        elif isinstance(action, RevertNodes):
            changes += [revert_node(action.setting, node, value, reason=action.reason) for node, value in action.own]
        else:
            changes += to_node_changes([action]).changes
    return [
        replace(change, own=own) if own is not None and change.key == LIST and not change.is_revert else change
        for change in changes
    ]
