"""One live cycle stays short: whoever follows a job through it meets few modules and functions."""

from pathlib import Path

from tests.walk import walk

MOST_MODULES = 41
MOST_FUNCTIONS = 262
"""To be lowered when a cycle gets shorter. Asked are 25 and 150."""


def test_a_cycle_executes_no_more_modules_and_functions_than_before(tmp_path: Path) -> None:
    modules = walk(tmp_path)
    assert len(modules) <= MOST_MODULES, modules
    assert modules.total() <= MOST_FUNCTIONS, modules
