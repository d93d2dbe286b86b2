"""Least privileges in PostgreSQL for the daemon of each domain."""

from __future__ import annotations

from helios.app import modes
from helios.app.node_controller import NODES_MEMORY, RELEASED
from helios.choices import Domain
from helios.config import Settings
from helios.services.registry import installed
from helios.warehouse import Warehouse


def grant_roles(settings: Settings, *, jobs: str, nodes: str | None, reader: str | None) -> None:
    """Grant the daemons' roles their privileges.

    See :meth:`helios.warehouse.Warehouse.grant`.
    """
    on_nodes = sorted(name for name, offered in installed().items() if offered.domain is Domain.NODES)
    with Warehouse.open(settings.database.url) as warehouse:
        warehouse.grant(
            jobs=jobs,
            nodes=nodes,
            reader=reader,
            node_services=on_nodes,
            node_memories=[NODES_MEMORY],
            common_memories=[modes.PAUSED, modes.RELEASED, RELEASED],
        )
