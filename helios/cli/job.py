"""Command ``helios why``, which says why a job waits or what a node does."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from helios.cli.options import AsJson, Cluster, configuration
from helios.cli.output import answer, width


def why_(
    job: Annotated[str, Argument(help="Job id, such as 123, or 123_7 of an array; or the name of a node.")],
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    """Say why a job waits, and what Helios did to it.

    Shows the job's predicted run time, its place in the queue, and its place without Helios. Works for jobs that run or
    have ended, too. For a node it shows the state of the node, what Helios did to it, and why.

    Example: helios why 12345
    """
    from helios.app.operations import Operations  # noqa: PLC0415 - pandas and SQLAlchemy, which the help needs not

    operations = Operations(configuration().settings, cluster=cluster)
    if job[:1].isdigit():
        from helios.app.explain_job import explain  # noqa: PLC0415 - only for jobs

        found = explain(operations.cycles, job)
        answer(found.to_json(), *found.lines(), as_json=as_json)
        return
    from helios.app.explain_node import explain_node  # noqa: PLC0415 - only for nodes

    node = explain_node(operations.node_cycles, job)
    answer(node.to_json(), *node.parts(width=width()), as_json=as_json)
