"""Tests that share a cluster or a server stay on one worker, and while some workers wait the others compute."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.grouping import GROUPS, LONG, Grouping, group_of, start_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("test", "group"),
    [
        ("tests/live/test_hook.py::test_a", "hook"),
        ("tests/live/test_rig.py::test_a", "tests/live/test_rig.py"),
        ("tests/live/test_power_rig.py::test_a[x]", "power"),
        ("tests/live/test_hook.py::test_a", "hook"),
        ("tests/contract/test_warehouse.py::test_a[postgresql-3]", "postgres"),
        ("tests/contract/test_warehouse.py::test_a[1-postgresql]", "postgres"),
        ("tests/contract/test_warehouse.py::test_a[sqlite]", "tests/contract/test_warehouse.py"),
        ("tests/story/test_cli.py::test_a", "tests/story/test_cli.py"),
        ("tests/unit/test_cli.py::test_a[postgresql]", "tests/unit/test_cli.py"),
    ],
)
def test_a_test_s_id_tells_its_group(test: str, group: str) -> None:
    assert group_of(test) == group


@pytest.mark.parametrize("beginning", [*GROUPS, *LONG])
def test_each_named_test_is_there(beginning: str) -> None:
    file, _, name = beginning.partition("::")
    found = list(ROOT.glob(f"{file.rstrip('/')}*"))
    assert found
    assert not name or f"def {name}" in found[0].read_text()


def test_long_modules_of_units_start_before_short_ones() -> None:
    long, short = (f"tests/unit/{module}::test_a" for module in ("training/pool/test_fusing.py", "app/test_doctor.py"))
    assert start_of(long) < start_of(short)


class Worker:
    """A worker of pytest-xdist that notes which tests it was sent."""

    shutting_down = False

    def __init__(self) -> None:
        self.gateway = SimpleNamespace(id="w")
        self.sent: list[int] = []

    def send_runtest_some(self, places: Sequence[int]) -> None:
        self.sent += places

    def shutdown(self) -> None:
        self.shutting_down = True


@pytest.mark.parametrize(
    ("modules", "of_first", "of_second"),
    [
        (["live/a", "live/b", "story/c", "unit/d", "unit/e"], ["live/a", "live/b"], ["story/c", "unit/d", "unit/e"]),
        (["live/a", "live/b", "live/c", "unit/d"], ["live/a", "live/b"], ["unit/d", "live/c"]),
        (["live/a", "unit/b", "unit/c", "unit/d", "unit/e"], ["live/a", "unit/c"], ["unit/b", "unit/d", "unit/e"]),
    ],
)
def test_one_worker_waits_and_one_computes_while_there_are_both_kinds(
    modules: list[str], of_first: list[str], of_second: list[str]
) -> None:
    tests = [f"tests/{module}::test_{number}" for module in modules for number in range(3)]
    option = SimpleNamespace(loadscopereorder=False)
    scheduler = Grouping(SimpleNamespace(getvalue=lambda _: ["popen"] * 2, option=option), None)
    workers = [Worker(), Worker()]
    for worker in workers:
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, tests)
    scheduler.schedule()
    ran: list[list[str]] = [[], []]
    while any(len(mine) < len(worker.sent) for mine, worker in zip(ran, workers, strict=True)):
        for place in (0, 1, 1):  # the second worker is twice as fast
            if len(ran[place]) < len(workers[place].sent):
                index = workers[place].sent[len(ran[place])]
                ran[place].append(tests[index])
                scheduler.mark_test_complete(workers[place], index)
    assert [list(dict.fromkeys(test[6:].partition("::")[0] for test in mine)) for mine in ran] == [of_first, of_second]
    assert sorted(ran[0] + ran[1]) == sorted(tests)
