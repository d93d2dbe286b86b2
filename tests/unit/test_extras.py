"""Helios without its extras: only what needs one asks for it."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import helios

EXTRAS = (
    "optuna",
    "psycopg",
    "pynvml",
    "pyslurm",
    "sklearn",
    "starlette",
    "torch",
    "uvicorn",
)
NEEDS_ONE = {"helios.web.application", "helios.web.server", "helios.__main__"}
"""Is imported by helios web; runs the command line."""
OF_TORCH = (
    "helios.training.fused",
    *(f"helios.training.elastic.{name}" for name in ("adapters", "gradients", "group", "samples", "training")),
    *("helios.training.elastic.__main__", "helios.training.elastic.launcher"),
)
"""Run inside of programs that have PyTorch and helios-task."""
WITHOUT = """
import sys
from importlib import import_module
for extra in {extras!r}:
    sys.modules[extra] = None
for module in {modules!r}:
    try:
        import_module(module)
    except ImportError as error:
        print(module, error)
"""


def test_without_extras_every_module_can_be_imported() -> None:
    names = [module.name for module in pkgutil.walk_packages(helios.__path__, "helios.")]
    assert set(names) >= NEEDS_ONE
    modules = [name for name in names if name not in NEEDS_ONE and not name.startswith(OF_TORCH)]
    code = WITHOUT.format(extras=EXTRAS, modules=modules)
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == ""
