"""Which tests one worker of pytest-xdist runs, and in which order the groups start.

A group shares a cluster, a server or what a module set up: a module is a group where nothing else is said, because a
second worker would draw its page, read its trace and load its compiled code again. The longest start first, the many
short modules come last.

Live tests mostly wait, all others compute. Every second worker runs live tests as long as there are any, the others run
the rest, so that the processors are busy from the beginning to the end.

This stands for ``--dist loadgroup`` and its marker: pytest-xdist 3.8 tells its controller of groups by changing node
ids, which pytest 9.2 no longer lets it. Here the controller knows a test's group from the test's own id.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

GROUPS = {
    "tests/live/test_power.py": "power",
    "tests/story/test_postgres.py": "postgres",
    "tests/story/test_real_traces.py": "real traces",
    "tests/live/test_acting.py": "acting",
    "tests/live/test_pyslurm.py": "pyslurm",
    "tests/story/test_wheel.py": "wheel",
    "tests/live/test_unprivileged.py": "unprivileged",
    "tests/story/test_models.py": "models",
    "tests/live/test_hook.py": "hook",
    "tests/story/test_rehearse.py": "replays",
    "tests/live/test_fidelity.py": "fidelity",
    "tests/live/test_cli.py": "live commands",
    "tests/live/test_daemon.py": "daemon",
    "tests/live/test_power_daemon.py": "power",
    "tests/live/test_power_rig.py": "power",
    "tests/live/test_nodes_commands.py": "power",
    "tests/live/test_release_nodes.py": "power",
    "tests/live/test_nodes_pyslurm.py": "pyslurm",
    "tests/contract/test_grants.py": "postgres",
    "tests/contract/test_migrations.py::test_grants": "postgres",
    "tests/browser/": "browser",
    "tests/story/test_forecast.py::test_a_published_series": "real traces",
}
"""The group of a test by the beginning of its id; the first that fits. Groups start in this order."""
WAITS = "tests/live/"
LONG = (
    WAITS,
    "tests/story/",
    "tests/unit/app/test_nightly.py",
    "tests/unit/app/test_controllers_many_cycles.py",
    "tests/unit/training/",
    "tests/unit/web/",
    "tests/unit/test_task.py",
    "tests/contract/",
)
"""Modules of these beginnings start after ``GROUPS``, all others after them.

Those of training and of the web page take up to two minutes each, and are the last by their names: started last, one of
them keeps a single worker busy at the end.
"""
ON_POSTGRES = re.compile(r"\[(.*-)?postgresql(-.*)?\]$")


def group_of(test: str) -> str:
    """Return the group of a test by its id: its module where nothing else is said."""
    for beginning, group in GROUPS.items():
        if test.startswith(beginning):
            return group
    if test.startswith("tests/contract/") and ON_POSTGRES.search(test):
        return "postgres"
    return test.partition("::")[0]


def start_of(test: str) -> int:
    """Return a number by which tests are sorted to start in the order of ``GROUPS``."""
    group = group_of(test)
    names = list(dict.fromkeys(GROUPS.values()))
    if group in names:
        return names.index(group)
    return len(names) + (not test.startswith(LONG))


class Grouping(LoadScopeScheduling):
    """Run each group on one worker."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        waits = self.nodes.index(node) % 2 == 0
        groups = ((group, next(iter(tests)).startswith(WAITS)) for group, tests in self.workqueue.items())
        if wanted := next((group for group, is_live in groups if is_live is waits), None):
            self.workqueue.move_to_end(wanted, last=False)
        super()._assign_work_unit(node)
