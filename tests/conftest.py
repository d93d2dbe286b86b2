"""What holds for every test: examples are not timed, CI judges each change by the same ones, and nothing is left."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, settings

from helios.jit import cache_folder
from tests.examples import NIGHTLY, USUAL
from tests.reaper import REAPER

if TYPE_CHECKING:
    from tests.grouping import Grouping

settings.register_profile("here", deadline=None, max_examples=USUAL)
settings.register_profile("ci", deadline=None, derandomize=True, max_examples=USUAL)
settings.register_profile("nightly", deadline=None, print_blob=True, max_examples=NIGHTLY)
# Threads that wait for each other do so in a loop: on busy processors a training took 25 times as long, all of it CPU.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# Reading a module's compiled code takes a tenth of compiling it, and a thousand are imported by tests and commands.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Commands that tests start with another home find the compiled code all the same.
os.environ.setdefault("NUMBA_CACHE_DIR", str(cache_folder()))
# A mutant needs one example that it fails, not the smallest.
settings.register_profile(
    "mutants", deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate], max_examples=USUAL
)
settings.load_profile("ci" if os.environ.get("CI") else "here")


def pytest_configure(config: pytest.Config) -> None:
    """Have whatever the tests start end with them, also when they are interrupted or killed, and count CPU time.

    Programs that tests interrupt must hear it, also where a shell has started the tests in its background.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    REAPER.start()
    config.pluginmanager.import_plugin("tests.cpu_times")


@pytest.hookimpl(optionalhook=True)  # without pytest-xdist nobody asks
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Grouping | None:
    """Keep tests that share something on one worker, unless ``--dist`` asks for something else."""
    from tests.grouping import Grouping  # noqa: PLC0415  # it needs pytest-xdist

    if config.getvalue("dist") not in {"load", "loadgroup"}:
        return None
    config.option.loadscopereorder = False  # the tests are sorted already
    return Grouping(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have the groups start in the order of ``tests.grouping`` on a worker of pytest-xdist."""
    if hasattr(config, "workerinput"):
        from tests.grouping import start_of  # noqa: PLC0415  # it needs pytest-xdist

        items.sort(key=lambda item: start_of(item.nodeid))
