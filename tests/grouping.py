"""Which tests one worker of pytest-xdist runs, and in which order the groups start.

A group shares a cluster, a server or what a module set up. Live tests mostly wait and stories mostly compute, so they
start in turn, the longest first. The many short tests come last and fill what is left.

This stands for ``--dist loadgroup`` and its marker: pytest-xdist 3.8 tells its controller of groups by changing node
ids, which pytest 9.2 no longer lets it. Here the controller knows a test's group from the test's own id.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from xdist.scheduler import LoadScopeScheduling

GROUPS = {
    "tests/live/test_power.py": "power",
    "tests/story/test_real_traces.py": "real traces",
    "tests/live/test_pyslurm.py": "pyslurm",
    "tests/live/test_unprivileged.py": "unprivileged",
    "tests/live/test_hook.py": "hook",
    "tests/contract/test_cluster.py": "clusters",
    "tests/live/test_proof.py": "proof",
    "tests/story/test_models.py": "models",
    "tests/live/test_cli.py": "live commands",
    "tests/story/test_postgres.py": "postgres",
    "tests/live/test_acting.py": "acting",
    "tests/story/test_rehearse.py": "replays",
    "tests/live/test_fidelity.py": "fidelity",
    "tests/story/test_dask": "dask",
    "tests/live/test_daemon.py": "daemon",
    "tests/story/test_try.py": "try",
    "tests/live/test_sweep_jobs.py": "sweep jobs",
    "tests/story/test_wheel.py": "wheel",
    "tests/live/test_power_daemon.py": "power",
    "tests/live/test_power_rig.py": "power",
    "tests/live/test_nodes_commands.py": "power",
    "tests/live/test_release_nodes.py": "power",
    "tests/live/test_nodes_pyslurm.py": "pyslurm",
    "tests/contract/test_grants.py": "postgres",
    "tests/story/test_forecast.py::test_a_published_series": "real traces",
    "tests/story/test_sweep.py": "dask",
}
"""The group of a test by the beginning of its id; the first that fits. Groups start in this order."""
BY_MODULE = ("tests/live/", "tests/story/")
"""Tests below these folders are a group with the others of their module, and start after ``GROUPS``."""
ON_POSTGRES = re.compile(r"\[(.*-)?postgresql(-.*)?\]$")


def group_of(test: str) -> str:
    """Return the group of a test by its id: itself where it shares nothing."""
    for beginning, group in GROUPS.items():
        if test.startswith(beginning):
            return group
    if test.startswith("tests/contract/") and ON_POSTGRES.search(test):
        return "postgres"
    if test.startswith(BY_MODULE):
        return str(PurePosixPath(test.partition("::")[0]))
    return test


def start_of(test: str) -> int:
    """Return a number by which tests are sorted to start in the order of ``GROUPS``."""
    group = group_of(test)
    names = list(dict.fromkeys(GROUPS.values()))
    if group in names:
        return names.index(group)
    return len(names) + (not test.startswith(BY_MODULE))


class Grouping(LoadScopeScheduling):
    """Run each group on one worker."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
