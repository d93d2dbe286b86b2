"""Compiled code is compiled anew when a source behind it changes, and gets its tables as one pointer."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from helios.jit import Table, cached_jit, digest, inline_jit
from helios.simulate.slurm.events import run_until

LIBRARY = """
from helios.jit import inline_jit

@inline_jit
def step(x):
    return x + {by}
"""
ENTRY = """
from helios.jit import cached_jit
{imported}

@cached_jit
def twice(x):
    return {step}({step}(x))

print(twice(1), sum(twice.stats.cache_hits.values()))
"""
IMPORTS = [
    ("from helios.made_up.library import step", "step"),
    ("from helios.made_up import (\n    library,\n)", "library.step"),
]
RECORD = np.dtype([("number", np.int64), ("value", np.float64)], align=True)


@dataclass(frozen=True, eq=False)
class Inner(Table):
    grid: NDArray[np.float32]
    records: NDArray[np.void]


@dataclass(frozen=True, eq=False)
class Outer(Table):
    line: NDArray[np.float64]
    inner: Inner
    sizes: tuple[int, ...]


def an_outer() -> Outer:
    grid = np.arange(6, dtype=np.float32).reshape(2, 3)
    return Outer(line=np.arange(4.0), inner=Inner(grid=grid, records=np.zeros(2, dtype=RECORD)), sizes=(7, 8))


@inline_jit
def _add_up(inner: Any) -> Any:
    total = 0.0
    for row in range(inner.grid.shape[0]):
        for column in range(inner.grid.shape[1]):
            total += inner.grid[row, column]
    return total


@cached_jit
def change(outer: Any, by: float) -> Any:
    """Change one of each kind of array, and read the rest."""
    outer.line[-1] += by
    outer.inner.records[1].number += 3
    outer.inner.grid[0, 0] = by
    return _add_up(outer.inner) + outer.sizes[1] + len(outer.line)


def test_compiled_code_reads_and_changes_what_a_table_holds() -> None:
    outer = an_outer()
    assert change(outer, 2.0) == 17.0 + 8 + 4
    assert outer.line.tolist() == [0.0, 1.0, 2.0, 5.0]
    assert outer.inner.records["number"].tolist() == [0, 3]


def test_code_that_a_package_has_is_used_and_not_compiled(tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    (environment / "compiled").mkdir(parents=True)
    (tmp_path / "entry.py").write_text(
        ENTRY.format(imported="def step(x): return x + 1\nstep = cached_jit(step)", step="step")
    )

    def hits(prefix: Path, cache: Path) -> str:
        started = f"import sys; sys.prefix = {str(prefix)!r}; import entry"
        names = {"NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join((str(tmp_path), *sys.path))}
        return subprocess.run(
            [sys.executable, "-c", started], env=os.environ | names, capture_output=True, text=True, check=True
        ).stdout

    assert hits(environment, tmp_path / "built") == "3 0\n"
    (environment / "compiled").rmdir()
    (tmp_path / "built").rename(environment / "compiled")
    assert hits(environment, tmp_path / "of a user") == "3 1\n"
    assert hits(tmp_path, tmp_path / "of another") == "3 0\n"


def test_tables_of_other_lengths_need_no_other_code() -> None:
    change(an_outer(), 1.0)
    known = len(change.signatures)  # type: ignore[attr-defined]  # because Numba's functions have no types
    longer = replace(an_outer(), line=np.zeros(100))
    assert change(longer, 1.0) == 16.0 + 8 + 100
    assert len(change.signatures) == known  # type: ignore[attr-defined]  # as above


@pytest.mark.parametrize("copied", [deepcopy, lambda table: pickle.loads(pickle.dumps(table))], ids=["copy", "pickle"])
def test_a_copy_has_arrays_of_its_own(copied: Any) -> None:
    outer = an_outer()
    other = copied(outer)
    change(other, 2.0)
    assert (outer.line[-1], other.line[-1]) == (3.0, 5.0)
    assert other.address != outer.address


def test_arrays_that_are_not_in_c_order_are_refused() -> None:
    with pytest.raises(ValueError, match="C order"):
        Inner(grid=np.zeros((2, 3), dtype=np.float32).T, records=np.zeros(1, dtype=RECORD))


def test_what_may_not_be_written_is_not_written() -> None:
    line = np.zeros(3)
    line.flags.writeable = False
    with pytest.raises(Exception, match="readonly"):
        change(replace(an_outer(), line=line), 1.0)


def test_parts_are_kept_in_what_calls_them_alone() -> None:
    assert not _add_up.stats.cache_path  # type: ignore[attr-defined]  # because Numba's functions have no types
    assert change.stats.cache_path  # type: ignore[attr-defined]  # as above


def test_modules_with_other_imports_have_other_digests() -> None:
    assert digest("helios.simulate.core.events") != digest("helios.predict.timeline")


@pytest.mark.parametrize(("imported", "step"), IMPORTS, ids=["name", "module"])
def test_an_edit_of_an_imported_module_has_its_users_compiled_anew(tmp_path: Path, imported: str, step: str) -> None:
    """In a copy of Helios, since its own modules are not edited."""
    package = tmp_path / "helios"
    package.mkdir()
    (package / "jit.py").write_text((Path(__file__).parents[2] / "helios" / "jit.py").read_text())
    (package / "__init__.py").touch()
    (package / "made_up").mkdir()
    (package / "made_up" / "__init__.py").touch()
    (package / "made_up" / "entry.py").write_text(ENTRY.format(imported=imported, step=step))

    def says(by: int, *, unused: int = 0) -> str:
        (package / "made_up" / "library.py").write_text(LIBRARY.format(by=by))
        (package / "made_up" / "unused.py").write_text(f"NUMBER = {unused}")
        environment = os.environ | {
            "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(tmp_path),
        }
        asked = [sys.executable, "-c", "import helios.made_up.entry"]
        done = subprocess.run(asked, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert [says(1), says(1), says(1, unused=1), says(2)] == ["3 0", "3 1", "3 1", "5 0"]


def test_the_simulator_lets_other_threads_go_on() -> None:
    """Otherwise each step of a cycle would wait for a whole simulation of a forecast beside it."""
    assert run_until.targetoptions["nogil"]
