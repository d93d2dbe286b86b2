"""The tables against the declared columns."""

from helios.model import (
    APPLIED_CHANGES,
    APPLIED_NODE_CHANGES,
    JOBS,
    NODE_EVENTS,
    NODE_TALLIES,
    NODES,
    PREDICTIONS,
    REJECTS,
    START_ESTIMATES,
)
from helios.warehouse import schema


def test_the_table_of_jobs_has_exactly_the_declared_columns() -> None:
    assert set(schema.jobs.c.keys()) == {"cluster_id", *JOBS.names}


def test_every_declared_column_of_the_other_frames_has_its_place() -> None:
    for kind, table in [
        (NODES, schema.nodes),
        (NODE_EVENTS, schema.node_events),
        (REJECTS, schema.rejects),
        (PREDICTIONS, schema.predictions),
        (START_ESTIMATES, schema.start_estimates),
        (APPLIED_CHANGES, schema.applied_changes),
        (APPLIED_NODE_CHANGES, schema.applied_node_changes),
        (NODE_TALLIES, schema.node_tallies),
    ]:
        assert set(kind.names) <= set(table.c.keys()), kind.name
