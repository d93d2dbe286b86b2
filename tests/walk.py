"""Functions of Helios that one live cycle executes, by module: ``python -m tests.walk``.

Printed are functions with a name, without lambdas and comprehensions. It is the way of a pending job through the cycle,
from the observation to the audit: fake cluster, real warehouse, a trained model. The first cycle fills caches and is
not counted.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

import helios
from helios.control import ServiceMode
from helios.control.cycle import Cycle
from helios.model import Mode
from tests.unit.app.sites import Town

PACKAGE = Path(helios.__file__).parent
MODES = {"qssf": ServiceMode(mode=Mode.ACTIVE)}


@contextmanager
def executed(found: set[CodeType]) -> Iterator[None]:
    """Collect the code of every Python function of Helios that is called inside ``Cycle.run``."""
    run = Cycle.run

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            found.add(frame.f_code)

    def profiled(cycle: Cycle, *args: Any, **kwargs: Any) -> Any:
        sys.setprofile(profile)
        try:
            return run(cycle, *args, **kwargs)
        finally:
            sys.setprofile(None)

    with patch.object(Cycle, "run", profiled):
        yield


def walk(folder: Path) -> Counter[str]:
    """Return the number of executed functions by module, comprehensions and lambdas not counted."""
    site = Town(folder, services={"qssf": {}})
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
    named = {(code.co_filename, code.co_qualname) for code in found if not code.co_name.startswith("<")}
    return Counter(str(Path(file).relative_to(PACKAGE)) for file, _ in named)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        modules = walk(Path(temporary))
    for module, functions in sorted(modules.items()):
        print(f"{functions:5}  {module}")
    print(f"{modules.total():5}  functions in {len(modules)} modules")
