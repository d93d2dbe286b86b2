"""Print the code lines of each package beside its budget: ``python -m tests.size [--files N]``.

A code line is one that holds something other than a blank, a comment or a docstring.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1] / "helios"
BUDGET = {
    "top, model, metrics": 1_900,
    "ingest": 2_400,
    "warehouse": 1_400,
    "predict": 3_700,
    "services": 1_150,
    "control": 2_050,
    "slurm": 3_000,
    "simulate": 5_100,
    "report": 3_400,
    "app": 5_600,
    "daemon": 650,
    "cli": 2_100,
    "testing": 1_100,
    "fused": 1_800,
    "web": 600,
    "pools": 2_500,
}
FILES_MOST = 260
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def code_lines(text: str) -> int:
    """Return the number of code lines of a module."""
    docstrings = {
        line
        for node in ast.walk(ast.parse(text))
        for statement in (getattr(node, "body", None) if isinstance(getattr(node, "body", None), list) else ())
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if isinstance(statement.value.value, str)
        for line in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    }
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in NO_CODE]
    return len({line for token in tokens for line in range(token.start[0], token.end[0] + 1)} - docstrings)


def package_of(path: Path) -> str:
    """Return the row of ``BUDGET`` that a module counts in."""
    first = path.relative_to(ROOT).parts[0]
    return first if first in BUDGET else "top, model, metrics"


def main() -> None:
    """Print the table, and the longest files if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=0, help="also print so many of the longest files")
    arguments = parser.parse_args()
    lines = {path: code_lines(path.read_text(encoding="utf-8")) for path in sorted(ROOT.rglob("*.py"))}
    sums: Counter[str] = Counter()
    for path, count in lines.items():
        sums[package_of(path)] += count
    print(f"{'package':22}{'lines':>8}{'budget':>8}")
    for package, budget in BUDGET.items():
        print(f"{package:22}{sums[package]:8,}{budget:8,}")
    print(f"{'all':22}{sum(sums.values()):8,}{sum(BUDGET.values()):8,}")
    print(f"{'files':22}{len(lines):8,}{FILES_MOST:8,}")
    for path in sorted(lines, key=lambda path: -lines[path])[: arguments.files]:
        print(f"{lines[path]:8,}  {path.relative_to(ROOT.parent)}")


if __name__ == "__main__":
    main()
