"""docs/architecture.md names modules, functions and packages that exist."""

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import get_type_hints

import pytest

from helios.changes import Change
from helios.control.modes import CanaryCluster, CanaryNodes, ShadowCluster, ShadowNodes
from helios.ports import Cluster, NodeCluster
from helios.simulate import SimCluster
from helios.simulate.slurm.cluster import SimulatedSlurm
from helios.slurm.jobs import SlurmCluster
from helios.slurm.nodes import SlurmNodes
from helios.testing import FakeCluster, FakeNodes
from tests.size import BUDGET, GROWTH, count_lines, sum_packages

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
CONSTANTS_BELOW_MOST = 150
"""Constants below the first definition of a module; some are made of what the module defines."""
NAMED = sorted(set(re.findall(r"`(helios/[\w/]+\.py)(?::([\w.]+))?`", PAGE)))

FORMS = {"Change", "AppliedChange", "UndoEntry"}
"""Classes with a setting on the way from a service to Slurm: the change, and the two records of what was written."""


@cache
def names_in(module: Path) -> set[str]:
    """Return the functions, classes and methods of a module, methods as ``Class.method``."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    found = [node for node in ast.parse(module.read_text()).body if isinstance(node, kinds)]
    inner = {
        f"{node.name}.{each.name}"
        for node in found
        if isinstance(node, ast.ClassDef)
        for each in node.body
        if isinstance(each, kinds)
    }
    return inner | {node.name for node in found}


def test_the_page_walks_through_functions() -> None:
    assert sum(1 for _, name in NAMED if name) >= 20


@pytest.mark.parametrize(("module", "name"), NAMED, ids=[":".join(named) for named in NAMED])
def test_what_the_map_names_exists(module: str, name: str) -> None:
    assert (ROOT / module).exists()
    assert not name or name in names_in(ROOT / module)


def test_the_map_names_every_package_and_module() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE, flags=re.MULTILINE)
    there = {path.name for path in (ROOT / "helios").iterdir() if path.name != "__pycache__"} - {
        "__init__.py",
        "py.typed",
    }
    assert {name.rstrip("/") for row in rows for name in re.findall(r"`([\w./]+)`", row)} == there


@pytest.mark.parametrize(
    "cluster", [Cluster, ShadowCluster, CanaryCluster, SlurmCluster, SimCluster, SimulatedSlurm, FakeCluster]
)
def test_every_cluster_takes_the_changes_that_control_judged(cluster: type) -> None:
    assert get_type_hints(cluster.apply)["changes"] == Sequence[Change[float]]


@pytest.mark.parametrize("cluster", [NodeCluster, ShadowNodes, CanaryNodes, SlurmNodes, SimCluster, FakeNodes])
def test_all_nodes_take_the_changes_that_control_judged(cluster: type) -> None:
    assert get_type_hints(cluster.steer)["changes"] == Sequence[Change[str]]


def test_a_change_has_no_other_form_on_its_way() -> None:
    ways = ("changes.py", "ports.py", "control/*.py", "slurm/*.py", "simulate/**/*.py", "testing/*.py")
    classes = [
        node
        for way in ways
        for module in (ROOT / "helios").glob(way)
        for node in ast.parse(module.read_text()).body
        if isinstance(node, ast.ClassDef)
    ]
    fields = {
        node.name: {
            each.target.id
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        }
        for node in classes
    }
    assert {name for name, names in fields.items() if "setting" in names} == FORMS


def test_no_package_has_outgrown_its_budget() -> None:
    sums = sum_packages(count_lines())
    assert {package: sums[package] for package, most in BUDGET.items() if sums[package] > most * (1 + GROWTH)} == {}


def constants_below(module: Path) -> int:
    """Return how many constants stand below the first function or class of a module."""
    definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    body = ast.parse(module.read_text()).body
    first = next((n for n, node in enumerate(body) if isinstance(node, definitions)), len(body))
    assigned = [node for node in body[first:] if isinstance(node, ast.Assign | ast.AnnAssign)]
    names = [
        name.id
        for node in assigned
        for name in ast.walk(node)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
    ]
    return sum(name.isupper() for name in names)


def test_few_constants_stand_below_the_first_definition() -> None:
    assert sum(constants_below(module) for module in (ROOT / "helios").rglob("*.py")) <= CONSTANTS_BELOW_MOST


def imported_modules(tree: ast.AST, modules: Collection[str]) -> Iterator[str]:
    """Yield what a module imports, also in functions, but not what only a type checker reads."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):  # most nodes, none of which imports
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in modules else str(node.module) for name in names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        yield from imported_modules(node, modules)


def test_no_modules_import_each_other_in_a_circle() -> None:
    files = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in (ROOT / "helios").rglob("*.py")}
    trees = {name.removesuffix(".__init__"): ast.parse(path.read_text()) for name, path in files.items()}
    imports = {name: {*imported_modules(tree, trees)} & {*trees} for name, tree in trees.items()}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))
