"""Replace the sources of libraries by their bytecode without docstrings.

Sources and docstrings of libraries are a sixth of a package. Helios keeps its own, which its compiled code is checked
against and its help is made from, and so do libraries under the LGPL. Lines in tracebacks keep their numbers.
"""

from __future__ import annotations

import ast
import py_compile
import sys
from importlib._bootstrap_external import _code_to_hash_pyc  # type: ignore[attr-defined]  # no public function has it
from importlib.util import source_hash
from pathlib import Path

WITH_SOURCES = {"helios", "ClusterShell", "psycopg", "psycopg_binary"}
WITH_DOCSTRINGS = {"numpy", "lightgbm"}
"""Edit their docstrings when they are imported, and refuse to do without."""


def without_docstrings(source: bytes) -> ast.Module:
    """Return the tree of a module whose docstrings are gone."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node, clean=False
        ):
            first = node.body[0]
            empty = ast.copy_location(ast.Pass(), first)
            node.body = node.body[1:] or [empty]
    return tree


def main(folder: Path) -> None:
    """Compile every module below a folder of packages."""
    for path in sorted(folder.rglob("*.py")):
        inside = path.relative_to(folder)
        if inside.parts[0] in WITH_SOURCES:
            py_compile.compile(
                str(path), dfile=None, doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
            )
            continue
        source = path.read_bytes()
        try:
            tree = ast.parse(source) if inside.parts[0] in WITH_DOCSTRINGS else without_docstrings(source)
            code = compile(tree, str(inside), "exec", dont_inherit=True)
        except SyntaxError:
            continue  # a template, or for another release of Python
        path.with_suffix(".pyc").write_bytes(_code_to_hash_pyc(code, source_hash(source), False))
        path.unlink()


main(Path(sys.argv[1]))
