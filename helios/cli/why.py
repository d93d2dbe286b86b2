"""``helios why``: the question that every user asks."""

from __future__ import annotations

from typing import Annotated

import typer

from helios.app.chores import Desk
from helios.app.why import explain
from helios.cli.options import AsJson, Cluster, configuration
from helios.cli.screen import show, show_json, width


def why_(
    job: Annotated[str, typer.Argument(help="Job id, of an array 123 or 123_7; or the name of a node.")],
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    """Say why a job waits: predicted run time, place in the queue, what Helios did, and the place without it.

    Works for jobs that run or are over too. Of a node it says what it does, what Helios did to it, and why.

    Example: helios why 12345
    """
    if not job[:1].isdigit():
        _of_the_node(job, cluster=cluster, as_json=as_json)
        return
    told = explain(Desk(configuration().settings, cluster=cluster).turns, job)
    if as_json:
        show_json(told.to_json())
        return
    show(*told.lines())


def _of_the_node(node: str, *, cluster: str | None, as_json: bool) -> None:
    from helios.app.node_status import explain_node  # noqa: PLC0415 - only for nodes

    story = explain_node(Desk(configuration().settings, cluster=cluster).node_turns, node)
    if as_json:
        show_json(story.to_json())
        return
    show(*story.parts(width=width()))
