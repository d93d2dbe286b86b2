"""Builders, fakes and checks for authors of services and clusters.

They are shipped with Helios, are stable like the rest of its public interface, and need no test framework.
``docs/write-a-service.md`` shows them in use.
"""

from helios.testing.builders import (
    NOON,
    a_node,
    a_pending_job,
    a_running_job,
    a_snapshot,
    a_use,
    frame_of,
    power_settings,
)
from helios.testing.check_cluster import check_cluster
from helios.testing.check_service import check_service, node_situations, situations
from helios.testing.fake_cluster import Crash, FakeCluster, FakeLedger
from helios.testing.fake_nodes import FakeNodes, PowerDownSeen

__all__ = [
    "NOON",
    "Crash",
    "FakeCluster",
    "FakeLedger",
    "FakeNodes",
    "PowerDownSeen",
    "a_node",
    "a_pending_job",
    "a_running_job",
    "a_snapshot",
    "a_use",
    "check_cluster",
    "check_service",
    "frame_of",
    "node_situations",
    "power_settings",
    "situations",
]
