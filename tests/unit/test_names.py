"""Unit tests are found by the name of their module, and a test's name is a short sentence."""

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
PACKAGE = TESTS.parent / "helios"
WITHOUT_MODULE = {
    "test_behaviour.py",  # tests/behaviour.py
    "test_cpu_times.py",  # tests/cpu_times.py
    "test_docstrings.py",  # all modules
    "test_extras.py",  # all modules
    "test_grouping.py",  # tests/grouping.py
    "test_held_out.py",  # benchmarks/held_out.py
    "test_map.py",  # docs/architecture.md
    "test_names.py",  # tests
    "test_pair_profiles.py",  # benchmarks/pair_profiles.py
    "test_reaper.py",  # tests/reaper.py
    "test_task.py",  # task/helios_task.py
    "test_recorded_levels.py",  # benchmarks/recorded_levels.py
    "test_recorded_levels_files.py",
}
"""Unit tests of what is no module of Helios."""
EXCEPTIONS_MOST = 0.05
WORDS_MOST = 12
"""A list of failed tests is read line by line."""
ALL = sorted(TESTS.rglob("*.py"))
UNIT_TESTS = [path for path in ALL if path.is_relative_to(TESTS / "unit") and path.name.startswith("test_")]


def test_unit_tests_are_named_for_their_modules() -> None:
    assert [str(path) for path in UNIT_TESTS if not is_named_for_a_module(path.relative_to(TESTS / "unit"))] == []


def is_named_for_a_module(inside: Path) -> bool:
    """Return whether a file below tests/unit has the name of a module, or may have none."""
    modules = {module.stem for module in (PACKAGE / inside.parent).glob("[!_]*")}
    words = inside.stem.removeprefix("test_").split("_")
    return str(inside) in WITHOUT_MODULE or bool(modules & {"_".join(words[:n]) for n in range(1, len(words) + 1)})


def test_few_unit_tests_have_no_module() -> None:
    assert len(WITHOUT_MODULE) <= EXCEPTIONS_MOST * len(UNIT_TESTS)


def test_the_names_of_tests_are_short() -> None:
    found = {str(path): long for path in ALL if (long := long_names(path))}
    assert found == {}


def long_names(path: Path) -> list[str]:
    """Return the tests of a file whose names have too many words."""
    functions = [node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    names = [name.removeprefix("test_").split("_") for name in functions if name.startswith("test_")]
    return [" ".join(words) for words in names if len([word for word in words if word]) > WORDS_MOST]
