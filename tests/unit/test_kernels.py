"""Code that is kept on disk is compiled anew when anything it was made of was edited, in whatever file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
import numpy as np
import pytest

import helios
from helios.jit import cached_jit, fingerprint, inline_jit

CALLEE = """
from helios.jit import inline_jit

@inline_jit
def step(x):
    return x + {by}
"""
NAMES = """
from typing import NamedTuple

class Pair(NamedTuple):
    {first}: int
    {second}: int
"""
ASKING = """
from callee import Pair
from helios.jit import cached_jit

@cached_jit
def least(pair):
    return pair.least

print(least(Pair(least=1, most=2)), sum(least.stats.cache_hits.values()))
"""
ENTRY = """
from callee import step
from helios.jit import cached_jit

@cached_jit
def twice(x):
    return step(step(x))

print(twice(1), sum(twice.stats.cache_hits.values()))
"""

REPLAY = """
from helios.jit import fingerprint
from helios.simulate.core import events

print(fingerprint(events.run))
"""
LEFT_ASIDE, TAKEN = "while state.level_nodes[home.first_level + least] == 0:", "while False:"


def plus_one(x: int) -> int:
    return x + 1


def a_step(text: str, *, takes: str = "x") -> Callable[..., int]:
    names: dict[str, Any] = {}
    exec(f"def step({takes}):\n    return {text}", names)
    return names["step"]  # type: ignore[no-any-return]  # because it was just made of text


def an_entry(*, step: Any = plus_one, limit: Any = 3) -> Callable[[int], int]:
    """Build an entry point as another module would define it: what it names is found by name."""
    names = {"step": step, "limit": limit}
    exec("def entry(x):\n    return step(x) + limit", names)
    return names["entry"]  # type: ignore[no-any-return]  # because it was just made of text


def test_the_fingerprint_of_the_same_code_stays() -> None:
    assert fingerprint(an_entry(step=inline_jit(plus_one))) == fingerprint(an_entry(step=inline_jit(plus_one)))


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("step", inline_jit(a_step("x + 1")), inline_jit(a_step("x - 1"))),
        ("step", inline_jit(a_step("x + 1")), inline_jit(a_step("x + 2"))),
        ("step", inline_jit(a_step("sum([i for i in (x, 1)])")), inline_jit(a_step("sum([i for i in (x, 2)])"))),
        ("step", inline_jit(a_step("x + y", takes="x, y=1")), inline_jit(a_step("x + y", takes="x, y=2"))),
        ("step", inline_jit(a_step("x - y", takes="x, y")), inline_jit(a_step("y - x", takes="y, x"))),
        ("step", inline_jit(plus_one), inline_jit(plus_one, fastmath=True)),
        ("step", an_entry(limit=1), an_entry(limit=2)),
        ("limit", 1, 2),
        ("limit", 1.0, 1.5),
        ("limit", (1, 2), (1, 3)),
        ("limit", np.array([1, 2]), np.array([1, 3])),
        ("limit", np.array([1, 2]), np.array([1, 2]).view(np.float64)),
        ("limit", np.array([1, 2]), np.array([[1, 2]])),
        ("limit", namedtuple("Pair", "least most"), namedtuple("Pair", "most least")),
        ("limit", namedtuple("Pair", "least", defaults=[1]), namedtuple("Pair", "least", defaults=[2])),
        ("limit", namedtuple("Pair", "least most")(1, 2), namedtuple("Pair", "most least")(1, 2)),
    ],
    ids=[
        "code",
        "constant",
        "constant inside",
        "default",
        "order of what it takes",
        "options",
        "further down",
        "int",
        "float",
        "tuple",
        "values",
        "type of values",
        "shape of values",
        "order of fields",
        "default of a field",
        "order of a value's fields",
    ],
)
def test_the_fingerprint_changes_with_what_is_named(name: str, before: Any, after: Any) -> None:
    assert fingerprint(an_entry(**{name: before})) != fingerprint(an_entry(**{name: after}))


def test_the_fingerprint_changes_with_a_member_of_a_module_of_ours() -> None:
    def by_module(limit: int) -> Callable[[int], int]:
        module = ModuleType("helios.made_up")
        vars(module).update(LIMIT=limit)
        names: dict[str, Any] = {"values": module}
        exec("def entry(x):\n    return x + values.LIMIT", names)
        return names["entry"]  # type: ignore[no-any-return]  # because it was just made of text

    assert fingerprint(by_module(1)) != fingerprint(by_module(2))


def test_the_fingerprint_changes_with_what_a_closure_holds() -> None:
    def holding(limit: int) -> Callable[[int], int]:
        return lambda x: x + limit

    assert fingerprint(holding(1)) != fingerprint(holding(2))


def test_what_calls_itself_has_a_fingerprint() -> None:
    def down(x: int) -> int:
        return down(x - 1) if x else 0

    assert fingerprint(down) == fingerprint(down)


def test_parts_are_not_kept_one_by_one() -> None:
    # A part that is kept would bring old code of its callees into an entry point that is compiled anew.
    assert not inline_jit(plus_one).stats.cache_path  # type: ignore[attr-defined]  # because numba's types are not known
    assert cached_jit(plus_one).stats.cache_path  # type: ignore[attr-defined]  # because numba's types are not known


def test_other_options_have_the_same_code_compiled_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def hits(**options: Any) -> int:
        entry: Any = cached_jit(plus_one, **options)
        entry(1)
        return sum(entry.stats.cache_hits.values())

    assert [hits(), hits(), hits(fastmath=True), hits(fastmath=True)] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("entry", "before", "after", "said"),
    [
        (ENTRY, CALLEE.format(by=1), CALLEE.format(by=2), ["3 0", "3 1", "5 0"]),
        (
            ASKING,
            NAMES.format(first="least", second="most"),
            NAMES.format(first="most", second="least"),
            ["1 0", "1 1", "1 0"],
        ),
    ],
    ids=["code", "order of an argument's fields"],
)
def test_an_edit_of_another_file_has_the_entry_compiled_anew(
    tmp_path: Path, entry: str, before: str, after: str, said: list[str]
) -> None:
    (tmp_path / "entry.py").write_text(entry)

    def says(callee: str) -> str:
        (tmp_path / "callee.py").write_text(callee)
        return run_by_itself(tmp_path)

    assert [says(before), says(before), says(after)] == said


def test_what_a_release_with_other_class_names_kept_is_forgotten(tmp_path: Path) -> None:
    said = []
    for name in ("Pair", "Pair", "Couple", "Couple"):
        (tmp_path / "entry.py").write_text(ASKING.replace("Pair", name))
        (tmp_path / "callee.py").write_text(NAMES.format(first="least", second="most").replace("Pair", name))
        said.append(run_by_itself(tmp_path))
    assert said == ["1 0", "1 1", "1 0", "1 1"]


def test_an_edit_of_how_nodes_are_taken_changes_the_fingerprint_of_a_replay(tmp_path: Path) -> None:
    shutil.copytree(Path(helios.__file__).parent, tmp_path / "helios", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "entry.py").write_text(REPLAY)
    placement = tmp_path / "helios/simulate/core/placement.py"
    before = placement.read_text()
    assert before.count(LEFT_ASIDE) == 1
    first, again = run_by_itself(tmp_path), run_by_itself(tmp_path)
    placement.write_text(before.replace(LEFT_ASIDE, TAKEN))
    assert first == again != run_by_itself(tmp_path)


def run_by_itself(folder: Path) -> str:
    """Return what ``entry.py`` of a folder prints, which finds other modules there before all others."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "entry.py"], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
