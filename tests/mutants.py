"""Draw a sample of mutants, run the tests against each, and print which survive: ``make mutants``.

A mutant is the code with one small change (mutmut makes them); one that no test notices shows what the tests do not
hold. Those that only reword a text for people are not drawn, because tests do not pin wordings. ``[tool.mutmut]`` in
``pyproject.toml`` says what is changed and which tests run; CONTRIBUTING.md has the figures.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from functools import cache
from itertools import islice
from pathlib import Path

from tests.postgres import postgres_server

PACKAGES = ("control", "warehouse", "slurm")
MADE = Path("mutants")
AS_MANY_AT_ONCE = 2_000
"""Names of mutants in one command line."""
SURVIVED, UNTESTED, NOT_RUN = 0, 33, None
"""How mutmut writes down what became of a mutant: the exit status of its tests; 33: no test runs the code."""


def main() -> None:
    asked = _asked()
    with postgres_server() as url:
        surroundings = os.environ | {"HELIOS_TEST_POSTGRES_URL": url, "CI": "1"}
        if not _results():
            _mutmut(["none.of.them"], children=asked.children, surroundings=surroundings)  # makes them all, and ends
        drawn = asked.names or _drawn(asked.packages, number=asked.sample, seed=asked.seed)
        for start in range(0, len(drawn), AS_MANY_AT_ONCE):
            some = drawn[start : start + AS_MANY_AT_ONCE]
            _mutmut(some, children=asked.children, surroundings=surroundings)
    _tell(drawn, packages=asked.packages, seed=asked.seed)


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", default=PACKAGES, metavar="PACKAGE", help=", ".join(PACKAGES))
    parser.add_argument("--sample", type=int, default=100, help="mutants of each package; 0: all (default 100)")
    parser.add_argument("--seed", type=int, default=1, help="which are drawn (default 1)")
    parser.add_argument("--children", type=int, default=1, help="processes at once (default 1)")
    parser.add_argument("--names", nargs="+", help="these mutants instead, as an earlier run named them")
    asked = parser.parse_args()
    if unknown := set(asked.packages) - set(PACKAGES):
        parser.error(f"no package {', '.join(sorted(unknown))}; there are {', '.join(PACKAGES)}")
    return asked


def _mutmut(names: Sequence[str], *, children: int, surroundings: dict[str, str]) -> None:
    command = ["mutmut", "run", "--max-children", str(children), *names]
    subprocess.run(command, env=surroundings, check=False)  # a sample that was broken off is counted as far as it went


def _results() -> dict[str, int | None]:
    """Return what became of every mutant that was made; None: it was not run."""
    found: dict[str, int | None] = {}
    for file in sorted((MADE / "helios").rglob("*.meta")):
        found |= json.loads(file.read_text(encoding="utf-8"))["exit_code_by_key"]
    return found


def _drawn(packages: Sequence[str], *, number: int, seed: int) -> list[str]:
    drawn: list[str] = []
    for package in packages:
        names = sorted(name for name in _results() if name.startswith(f"helios.{package}."))
        random.Random(seed).shuffle(names)
        drawn += islice((name for name in names if not _rewords(name)), number or None)
    return drawn


def _rewords(mutant: str) -> bool:
    """Return whether a mutant changes only the wording of texts, which are literals of several words."""
    module, _, name = mutant.rpartition(".")
    functions = _functions(module)
    return _without_texts(functions[name]) == _without_texts(functions[name.rpartition("_")[0] + "_orig"])


@cache
def _functions(module: str) -> dict[str, str]:
    """Return the source of every mutant of a module's functions, and of the functions themselves."""
    path = MADE / Path(*module.split("."))
    text = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
    lines = text.splitlines()
    made = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {node.name: "\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in made}


def _without_texts(source: str) -> str:
    function = ast.parse(textwrap.dedent(source)).body[0]
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    function.name = ""
    for node in ast.walk(function):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.split()) > 1:
            node.value = ""
    return ast.dump(function)


def _tell(drawn: Sequence[str], *, packages: Sequence[str], seed: int) -> None:
    results = _results()
    ran = [name for name in drawn if results[name] is not NOT_RUN]
    survivors = [name for name in ran if results[name] in {SURVIVED, UNTESTED}]
    for name in survivors:
        print(subprocess.run(["mutmut", "show", name], capture_output=True, text=True, check=False).stdout)
    for package in packages:
        tried = [name for name in ran if name.startswith(f"helios.{package}.")]
        left = sum(name in survivors for name in tried)
        share = (len(tried) - left) / len(tried) if tried else float("nan")
        print(
            f"{package}: {len(tried)} mutants of seed {seed}, {len(tried) - left} killed, {left} survived: {share:.1%}"
        )
    sys.exit(0 if len(ran) == len(drawn) else 1)


if __name__ == "__main__":
    main()
