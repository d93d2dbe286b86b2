"""Tests that share a cluster or a server stay on one worker."""

from pathlib import Path

import pytest

from tests.grouping import GROUPS, group_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("test", "group"),
    [
        ("tests/live/test_hook.py::test_a", "hook"),
        ("tests/live/test_rig.py::test_a", "tests/live/test_rig.py"),
        ("tests/live/test_power_rig.py::test_a[x]", "power"),
        ("tests/live/test_proof.py::test_a", "proof"),
        ("tests/contract/test_warehouse.py::test_a[postgresql-3]", "postgres"),
        ("tests/contract/test_warehouse.py::test_a[1-postgresql]", "postgres"),
        ("tests/contract/test_warehouse.py::test_a[sqlite]", "tests/contract/test_warehouse.py::test_a[sqlite]"),
        ("tests/story/test_dask_client.py::test_a", "dask"),
        ("tests/story/test_cli.py::test_a", "tests/story/test_cli.py"),
        ("tests/unit/test_cli.py::test_a[postgresql]", "tests/unit/test_cli.py::test_a[postgresql]"),
    ],
)
def test_a_test_s_id_tells_its_group(test: str, group: str) -> None:
    assert group_of(test) == group


@pytest.mark.parametrize("beginning", GROUPS)
def test_each_named_test_is_there(beginning: str) -> None:
    file, _, name = beginning.partition("::")
    found = list(ROOT.glob(f"{file.rstrip('/')}*"))
    assert found
    assert not name or f"def {name}" in found[0].read_text()
