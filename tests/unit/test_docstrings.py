"""The first line of a docstring is one short sentence, and no class has the name of another."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

import helios

ROOT = Path(helios.__file__).parent
MODULES = [*sorted(ROOT.rglob("*.py")), ROOT.parent / "task" / "helios_task.py"]
LONGEST = 15
"""Words of a first line."""
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def test_first_lines_are_short_sentences() -> None:
    found = {str(module.relative_to(ROOT.parent)): long for module in MODULES if (long := long_first_lines(module))}
    assert found == {}


def long_first_lines(module: Path) -> list[str]:
    """Return the first lines of a module's docstrings that are no short sentences."""
    documented = [node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, DOCUMENTED)]
    first_lines = [text.splitlines()[0] for node in documented if (text := ast.get_docstring(node))]
    return [line for line in first_lines if not is_short_sentence(line)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Return the jobs that may be reordered.", True),
        ("Return what ``Change`` records.", True),
        ("Return what :class:`Change` records.", False),
        ("Return the jobs: those that wait.", False),
        ("Return the jobs; none if there are none.", False),
        ("Return the jobs", False),
        ("word " * LONGEST + "more.", False),
    ],
)
def test_the_rule(line: str, expected: bool) -> None:
    assert is_short_sentence(line) is expected


def test_no_public_class_has_the_name_of_another() -> None:
    nodes = (node for module in MODULES for node in ast.walk(ast.parse(module.read_text())))
    classes = [node.name for node in nodes if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    assert {name: count for name, count in Counter(classes).items() if count > 1} == {}


def is_short_sentence(line: str) -> bool:
    return len(line.split()) <= LONGEST and ":" not in line and ";" not in line and line.endswith((".", "?", ")"))
