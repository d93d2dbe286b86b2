"""Functions of Helios that are executed, by module: ``python -m tests.walk [whatif]``.

Printed are functions with a name, without lambdas and comprehensions. By default it is the way of a pending job through
a live cycle, from the observation to the audit: fake cluster, real warehouse, a trained model. With ``whatif`` it is
``helios whatif --trace FILE`` with its defaults. The first time fills caches and is not counted.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

from typer.testing import CliRunner

import helios
from helios.cli.main import application
from helios.control import ServiceMode
from helios.control.cycle import Cycle
from helios.ingest import synthetic_trace, write_helios_csv
from helios.model import Mode
from tests.unit.app.sites import FakeSite

PACKAGE = Path(helios.__file__).parent
MODES = {"qssf": ServiceMode(mode=Mode.ACTIVE)}


@contextmanager
def executed(found: set[CodeType]) -> Iterator[None]:
    """Collect the code of every Python function of Helios that is called inside ``Cycle.run``."""
    run = Cycle.run

    def profiled(cycle: Cycle, *args: Any, **kwargs: Any) -> Any:
        with profile(found):
            return run(cycle, *args, **kwargs)

    with patch.object(Cycle, "run", profiled):
        yield


@contextmanager
def profile(found: set[CodeType]) -> Iterator[None]:
    """Collect the code of every Python function of Helios that is called in a ``with`` block."""

    def called(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            found.add(frame.f_code)

    sys.setprofile(called)
    try:
        yield
    finally:
        sys.setprofile(None)


def walk(folder: Path) -> Counter[str]:
    """Return the number of executed functions by module, comprehensions and lambdas not counted."""
    site = FakeSite(folder, services={"qssf": {}})
    site.learn(jobs=60)
    site.put_promoted()
    found: set[CodeType] = set()
    for cycle in range(2):
        site.cluster.tick(timedelta(minutes=2))
        site.cluster.submit(job_id=f"{cycle}", user="alice")
        site.read()
        found.clear()
        with executed(found):
            report = site.cycles.cycle(modes=MODES)
        if report.suspended or not report.acted:
            raise RuntimeError(f"the cycle did not act: {report.suspended}")
    return by_module(found)


def walk_whatif(folder: Path) -> Counter[str]:
    """Return the same for ``helios whatif`` on a made trace of two days."""
    trace, found = folder / "venus.csv", set[CodeType]()
    write_helios_csv(synthetic_trace(profile="venus", start=datetime(2020, 9, 1, tzinfo=UTC), days=2, seed=0), trace)
    for _ in range(2):
        found.clear()
        with profile(found):
            done = CliRunner().invoke(application, ["whatif", "--trace", str(trace)])
        if done.exit_code:
            raise RuntimeError(f"helios whatif failed: {done.output}")
    return by_module(found)


def by_module(found: set[CodeType]) -> Counter[str]:
    """Return the number of named functions in each module."""
    named = {(code.co_filename, code.co_qualname) for code in found if not code.co_name.startswith("<")}
    return Counter(str(Path(file).relative_to(PACKAGE)) for file, _ in named)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        modules = (walk_whatif if sys.argv[1:] == ["whatif"] else walk)(Path(temporary))
    for module, functions in sorted(modules.items()):
        print(f"{functions:5}  {module}")
    print(f"{modules.total():5}  functions in {len(modules)} modules")
