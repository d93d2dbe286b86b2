"""docs/architecture.md names modules, functions and packages that exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.size import BUDGET, GROWTH, count_lines, sum_packages

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
NAMED = sorted(set(re.findall(r"`(helios/[\w/]+\.py)(?::([\w.]+))?`", PAGE)))


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


def test_no_package_has_outgrown_its_budget() -> None:
    sums = sum_packages(count_lines())
    assert {package: sums[package] for package, most in BUDGET.items() if sums[package] > most * (1 + GROWTH)} == {}
