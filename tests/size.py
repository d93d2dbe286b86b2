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
    "top, model, metrics": 4_750,
    "ingest": 4_450,
    "warehouse": 3_400,
    "predict": 4_350,
    "services": 960,
    "control": 3_300,
    "slurm": 4_400,
    "simulate": 6_000,
    "report": 5_100,
    "app": 11_100,
    "daemon": 950,
    "cli": 2_900,
    "testing": 1_400,
    "web": 2_900,
    "training": 18_300,
    "study": 6_150,
    "job_use": 2_000,
}
"""Most code lines of each package. A row may be exceeded by ``GROWTH``; a change that needs more changes it, and says
for what. Of training's, 3,500 are pools that can be asked, spaces that grow, curves, shares, placements, data loaders
and several sweeps in one pool; 900 more are targets, 3,000 elastic sizes, where 2,000 were asked.
Of the metrics', 300 are sums of jobs by period, and of the warehouse 550 to keep and read them. Of the report's and the
app's, 250 and 300 are a job's life, alike jobs, and answers on one user, account, partition and node. Of control's, 300
are running jobs that yield, and their rails. What jobs use is ``job_use``, of which 200 predict from the first minutes
of a run and judge it each night, 450 of the core, of which 200 are the report's advice and sentences, and of the study
650, what is held and unused and what sharing GPUs brings.
Of the web's, 100 are QOS, reservations and what a job like the last one would meet.
Of the warehouse 200 are that use and answers from the sums, of the app 300 what is known of a record at its ends."""
GROWTH = 0.05
GOALS = {"core": 46_500, "training": 13_000, "study": 5_500, "job_use": 1_800}
"""Code lines that the core and each wing are to come down to."""
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


def count_lines() -> dict[Path, int]:
    """Return the code lines of each module."""
    return {path: code_lines(path.read_text(encoding="utf-8")) for path in sorted(ROOT.rglob("*.py"))}


def sum_packages(lines: dict[Path, int]) -> Counter[str]:
    """Return the code lines of each row of ``BUDGET``."""
    sums: Counter[str] = Counter()
    for path, count in lines.items():
        sums[package_of(path)] += count
    return sums


def main() -> None:
    """Print the table, and the longest files if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=0, help="also print so many of the longest files")
    arguments = parser.parse_args()
    lines = count_lines()
    sums = sum_packages(lines)
    print(f"{'package':22}{'lines':>8}{'budget':>8}{'goal':>8}")
    core = [package for package in BUDGET if package not in GOALS]
    for package in core:
        print(f"{package:22}{sums[package]:8,}{BUDGET[package]:8,}")
    for part, goal in GOALS.items():
        rows = core if part == "core" else [part]
        total, budget = (sum(counts[row] for row in rows if row in counts) for counts in (sums, BUDGET))
        print(f"{part:22}{total:8,}{budget:8,}{goal:8,}")
    for path in sorted(lines, key=lambda path: -lines[path])[: arguments.files]:
        print(f"{lines[path]:8,}  {path.relative_to(ROOT.parent)}")


if __name__ == "__main__":
    main()
