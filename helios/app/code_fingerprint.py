"""Which code made a result: what a replay hangs on beside its question and its history.

:func:`helios.kernels.fingerprint` tells edits of compiled kernels only, for numba's cache. Here it is every module that
a replay can reach, predictors and orders too, by what it says and not by how: neither comments nor docstrings count.
What reads and keeps histories does not count either: jobs have a fingerprint of their own.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

PACKAGE = "helios"
BEGIN = "helios.app.cells"
NO_PART = ("helios.config", "helios.errors", "helios.ingest", "helios.slurm", "helios.warehouse")
"""Rooms that decide what the jobs are, or say what went wrong, and never how they are replayed."""
LIBRARIES = ("lightgbm", "numpy")
"""Others' code that decides figures: trees, and the draws of random numbers, which numpy may change with a release."""


@cache
def code_fingerprint() -> str:
    """Return the fingerprint of the code that makes the results of a sweep, in 16 characters."""
    return digest_of(modules_of(Path(__file__).parents[1], BEGIN))


def digest_of(modules: Mapping[str, Path]) -> str:
    """Return a digest of what the files of ``modules`` say, and of the releases of ``LIBRARIES``, in 16 characters."""
    digest = hashlib.sha256("".join(f"{name} {version(name)}\n" for name in LIBRARIES).encode())
    for name, path in sorted(modules.items()):
        digest.update(f"{name} {_meaning(path)}\n".encode())
    return digest.hexdigest()[:16]


def modules_of(root: Path, begin: str, *, no_part: tuple[str, ...] = NO_PART) -> dict[str, Path]:
    """Return the files of a module and of all in its package that it imports, directly or not, at once or later.

    Parameters
    ----------
    root : Path
        The package's folder.
    begin : str
        The module's name, with that of the package.
    no_part : tuple of str
        Modules and packages that are passed over, with what they alone import.
    """
    found: dict[str, Path] = {}
    left = [begin]
    while left:
        name = left.pop()
        path = _file_of(root, name)
        if path is None or name in found or any(f"{name}.".startswith(f"{other}.") for other in no_part):
            continue
        found[name] = path
        left += _imported(path)
    return found


def _file_of(root: Path, name: str) -> Path | None:
    package, *rest = name.split(".")
    if package != root.name:
        return None
    place = root.joinpath(*rest)
    return next((path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file()), None)


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _meaning(path: Path) -> str:
    tree = _tree(path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [statement for statement in node.body if not _is_text(statement)]
    return ast.dump(tree)


def _is_text(statement: ast.stmt) -> bool:
    """Return whether a statement is a docstring, of a module, a class, a function or a constant."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Constant):
        return False
    return isinstance(statement.value.value, str)


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
