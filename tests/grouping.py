"""Which tests one worker of pytest-xdist runs, because they share a cluster, a server or what a module set up.

This stands for ``--dist loadgroup`` and its marker: pytest-xdist 3.8 tells its controller of groups by changing node
ids, which pytest 9.2 no longer lets it. Here the controller knows a test's group from the test's own id.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from xdist.scheduler import LoadScopeScheduling

GROUPS = {
    "tests/live/test_proof.py": "proof",
    "tests/live/test_fidelity.py": "fidelity",
    "tests/live/test_pyslurm.py": "pyslurm",
    "tests/live/test_nodes_pyslurm.py": "pyslurm",
    "tests/live/test_power.py": "power",
    "tests/live/test_power_daemon.py": "power",
    "tests/live/test_power_rig.py": "power",
    "tests/live/test_nodes_commands.py": "power",
    "tests/live/test_release_nodes.py": "power",
    "tests/live/": "live",
    "tests/contract/test_grants.py": "postgres",
    "tests/story/test_postgres.py": "postgres",
    "tests/story/test_real_traces.py": "real traces",
    "tests/story/test_forecast.py::test_a_published_series": "real traces",
    "tests/story/test_sweep.py": "dask",
    "tests/story/test_dask": "dask",
}
"""The group of a test by the beginning of its id; the first that fits."""
ON_POSTGRES = re.compile(r"\[(.*-)?postgresql(-.*)?\]$")


def group_of(test: str) -> str:
    """Return the group of a test by its id: itself where it shares nothing."""
    for beginning, group in GROUPS.items():
        if test.startswith(beginning):
            return group
    if test.startswith("tests/contract/") and ON_POSTGRES.search(test):
        return "postgres"
    if test.startswith("tests/story/"):
        return PurePosixPath(test.partition("::")[0]).stem
    return test


class Grouping(LoadScopeScheduling):
    """Run each group on one worker, the large ones first."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
