"""CPU seconds of the commands that a person waits for, the first time and again, beside simple controls in one run.

    python -m benchmarks.commands [--only "whatif,whatif energy"] [--again-only] [--json]

Each command is a process of its own, whose CPU time (user and system, with that of its children) is counted from
the start of Python to the end. ``first`` is the first run after an installation: after ``helios compile`` into an
empty folder, which has a row of its own. ``again`` is the next run, and ``asked`` the goal of the design. The traces
come from the folder that HELIOS_TRACES names. Helios runs as it is installed, without scikit-learn, with which
LightGBM takes a second longer to import.

``why 1`` is asked of a daemon that answers at once: what the daemon itself spends on an answer is not counted.

The control of a command that learns is one LightGBM fit of a quantile on the raw columns of the same file and its
prediction of the last half: no features, no replay. That of a command that only prints is ``import pandas``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from helios.app.explain_socket import ExplainServer, JobAnswer
from helios.config import load_configuration
from tests.traces import TRACES

VENUS = ["--trace", str(TRACES / "helios_venus_mar-aug2020.csv.gz")]
KTH = ["--trace", str(TRACES / "KTH-SP2-1996-2.1-cln.swf.gz")]
PHILLY_NODES = ["--series", str(TRACES / "philly_nodes_oct-nov2017.csv.gz")]
MACHINE = ["--nodes", "133", "--gpus-per-node", "8", "--oversized", "skip"]
RAW_FIT = """
import sys
import lightgbm
import pandas
jobs = pandas.read_csv(sys.argv[1]).assign(at=lambda jobs: pandas.to_datetime(jobs.submit_time).astype("int64"))
columns = ["at", "gpu_num", "cpu_num", "node_num"]
past, later = jobs.iloc[: len(jobs) // 2], jobs.iloc[len(jobs) // 2 :]
model = lightgbm.LGBMRegressor(objective="quantile", alpha=0.5, n_estimators=300, num_leaves=63, verbose=-1, n_jobs=1)
model.fit(past[columns], past.duration).predict(later[columns])
"""
FIT = [sys.executable, "-c", RAW_FIT, VENUS[1]]
WITHOUT_SKLEARN = """
import sys
sys.modules["sklearn"] = None
from helios.cli.main import main
main()
"""
HELIOS = [sys.executable, "-c", WITHOUT_SKLEARN]
PANDAS = [sys.executable, "-c", "import pandas"]


@dataclass(frozen=True)
class Command:
    """A command, its control, and the CPU seconds asked of it the first time and again; None: nothing was asked."""

    name: str
    arguments: list[str]
    control: list[str]
    first: float | None
    again: float | None


COMMANDS = [
    Command("whatif", ["whatif", *VENUS, *MACHINE, "--draws", "0"], FIT, 30, 22),
    Command("whatif with its verdict", ["whatif", *VENUS, *MACHINE], FIT, None, None),
    Command("whatif --service", ["whatif", "--service", "qssf", "--draws", "0", *KTH], FIT, 25, 12),
    Command(
        "whatif energy",
        ["whatif", "energy", *VENUS, *MACHINE[:4], "--from", "2020-08-03", "--to", "2020-08-30"],
        FIT,
        None,
        15,
    ),
    Command("forecast", ["forecast", *VENUS, *MACHINE[:4]], FIT, None, 15),
    Command("model evaluate", ["model", "evaluate", *VENUS], FIT, None, 16),
    Command("--help", ["--help"], PANDAS, None, 0.3),
    Command("config", ["config"], PANDAS, None, None),
    Command("why --help", ["why", "--help"], PANDAS, None, 0.35),
    Command("why 1", ["why", "1"], PANDAS, None, 0.8),
    Command("whatif --help", ["whatif", "--help"], PANDAS, None, 0.5),
]


@dataclass(frozen=True)
class Measured:
    """CPU seconds of a command and its control."""

    name: str
    first: float | None
    first_asked: float | None
    again: float | None
    again_asked: float | None
    control: float | None


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda names: names.split(","), help="names of commands, by commas")
    parser.add_argument("--again-only", action="store_true", help="with compiled code of earlier runs")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if not given.json:
        print(f"{'command':26}{'first':>8}{'asked':>7}{'again':>8}{'asked':>7}{'control':>9}   CPU seconds")
    with tempfile.TemporaryDirectory() as compiled:
        cache = {} if given.again_only else {"NUMBA_CACHE_DIR": compiled}
        if not given.again_only:
            show(Measured("compile", cpu_s([*HELIOS, "compile"], compiled, cache), None, None, None, None), given.json)
        for command in COMMANDS:
            if not given.only or command.name in given.only:
                show(measure(command, cache), given.json)


def show(measured: Measured, as_json: bool) -> None:
    """Print a row."""
    cells = (measured.first, measured.first_asked, measured.again, measured.again_asked, measured.control)
    row = "".join(f"{_cell(cell):>{width}}" for cell, width in zip(cells, (8, 7, 8, 7, 9), strict=True))
    print(json.dumps(asdict(measured)) if as_json else f"{measured.name:26}{row}", flush=True)


def measure(command: Command, cache: dict[str, str]) -> Measured:
    """Run a command twice, or once where nothing was compiled anew, and its control once, in an empty folder."""
    helios = [*HELIOS, *command.arguments]
    with tempfile.TemporaryDirectory() as folder, answering_daemon(folder) as daemon:
        first = cpu_s(helios, folder, cache | daemon) if cache else None
        again = cpu_s(helios, folder, cache | daemon)
        control = cpu_s(command.control, folder, {})
    return Measured(command.name, first, command.first, again, command.again, control)


@contextmanager
def answering_daemon(folder: str) -> Iterator[dict[str, str]]:
    """Answer every ``helios why`` as a daemon does, and yield the environment in which it is asked."""
    environment = {"HELIOS_CONTROL_STATE_FOLDER": folder}
    settings = load_configuration(environment={**os.environ, **environment}, folder=Path(folder)).settings
    server = ExplainServer(settings, lambda job_id, _: JobAnswer(values={"job_id": job_id}, lines=("It waits.",)))
    try:
        yield environment
    finally:
        server.close()


def cpu_s(command: list[str], folder: str, environment: dict[str, str]) -> float:
    """Return the CPU seconds of a process and its children. Raises CalledProcessError where it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    root = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": root, "HELIOS_INGEST_TIMEZONE": "Asia/Shanghai", **environment}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _cell(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:,.1f}" if seconds >= 10 else f"{seconds:.2f}"


if __name__ == "__main__":
    main()
