"""Command ``helios compile``.

It compiles beforehand what other commands would compile at their first run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from helios.cli.main import application
from helios.cli.output import print_message, progress_bars
from helios.config import Energy

if TYPE_CHECKING:  # pandas, which no help needs
    from helios.ports import Progress

FIRST_DAY = datetime(2020, 9, 1, tzinfo=UTC)
DAYS, FEW_DAYS, SERIES_DAYS = 16, 2, 50
FEW = ["--trace", "few.csv.gz"]
MANY = ["--trace", "many.csv.gz"]
MACHINE = ["--nodes", "60", "--gpus-per-node", "8"]
SLURM_CONF = """ClusterName=venus
SelectType=select/cons_tres
GresTypes=gpu
NodeName=n[1-60] CPUs=64 Gres=gpu:8
"""
STEPS = {
    "Replays of queue orders": ["whatif", *FEW, *MACHINE, "--oversized", "skip", "--draws", "2"],
    "Replays of one job": ["why", "{job}", *FEW, *MACHINE, "--policy", "fifo"],
    "Replays with services": [
        *("whatif", "--service", "qssf", "--service", "soft_limits", "--draws", "0"),
        *(*FEW, *MACHINE, "--oversized", "skip"),
    ],
    "Replays under Slurm's rules": ["whatif", "slurm", "--slurm-conf", "slurm.conf", "--service", "qssf", *FEW],
    "Predictions": ["model", "evaluate", *FEW],
    "Explanations": ["why", "{job}", *FEW, "--prediction"],
    "Forecasts of nodes": ["forecast", *MANY, *MACHINE],
    "Studies": ["study", *FEW, *MACHINE],
    "Nodes that sleep": ["whatif", "energy", *FEW, *MACHINE, "--from", "2020-09-02T06:00"],
    "Nodes that sleep, from a series": ["whatif", "energy", "--series", "nodes.csv", "--from", "2020-10-20"],
}
"""Commands that together call every compiled function, on a small synthetic cluster. A forecast takes two weeks."""


def compile_() -> None:
    """Compile beforehand what other commands would compile at their first run.

    Takes about three minutes, once for each version of Helios and each kind of processor. Nothing is compiled twice.
    The code is kept in the folder that NUMBA_CACHE_DIR names, else in the cache folder of the user.

    Example: helios compile
    """
    from helios.jit import KEPT, cache_folder  # noqa: PLC0415 - numba; no help needs it

    with progress_bars(shows_compiling=False) as progress:
        compile_all(progress)
    print_message(f"{len(KEPT)} functions are compiled and kept in {cache_folder()}.")


def compile_all(progress: Progress) -> None:
    """Run every step in a temporary folder."""
    with TemporaryDirectory() as folder, _working_directory(Path(folder)):
        job = _write_inputs()
        for step, arguments in STEPS.items():
            progress(f"Compiling: {step}", 0.0)
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                application([argument.format(job=job) for argument in arguments], standalone_mode=False)
            progress(f"Compiling: {step}", 1.0)
        progress("Compiling: Live predictions", 0.0)
        _predict_live()
        progress("Compiling: Live predictions", 1.0)
        progress("Compiling: Spare nodes", 0.0)
        _try_spare_nodes()
        progress("Compiling: Spare nodes", 1.0)


@contextmanager
def _working_directory(folder: Path) -> Iterator[None]:
    """Work in a folder without any settings of the caller."""
    before, environment = Path.cwd(), dict(os.environ)
    for name in environment:
        if name.startswith("HELIOS_"):
            del os.environ[name]
    os.chdir(folder)
    os.environ["HELIOS_CONFIG"] = str(folder / "helios.toml")
    (folder / "helios.toml").touch()
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(environment)


def _write_inputs() -> str:
    """Write the input files of the steps.

    Returns the id of a job in them.
    """
    import numpy as np  # noqa: PLC0415 - as above

    from helios.ingest import synthetic_trace, write_helios_csv  # noqa: PLC0415 - as above

    jobs = synthetic_trace(start=FIRST_DAY, days=DAYS)
    few = jobs[jobs["submitted_at"] < FIRST_DAY + timedelta(days=FEW_DAYS)]
    write_helios_csv(few, Path("few.csv.gz"))
    write_helios_csv(jobs, Path("many.csv.gz"))
    partitions = [f"PartitionName={name} Nodes=n[1-60] MaxTime=INFINITE\n" for name in jobs["partition"].unique()]
    Path("slurm.conf").write_text(SLURM_CONF + "".join(partitions), encoding="utf-8")
    steps = [FIRST_DAY + timedelta(minutes=10 * step) for step in range(SERIES_DAYS * 144)]
    busy = np.random.default_rng(0).integers(10, 40, size=len(steps))
    rows = [f"{moment:%Y-%m-%d %H:%M:%S},{count},40" for moment, count in zip(steps, busy, strict=True)]
    Path("nodes.csv").write_text("\n".join(["time,active,total", *rows]) + "\n", encoding="utf-8")
    return str(few["job_id"].iloc[-1])


def _predict_live() -> None:
    """Predict run times and a start time."""
    from helios.app.start_forecast import QueueForecast  # noqa: PLC0415 - as above
    from helios.ingest import synthetic_trace  # noqa: PLC0415 - as above
    from helios.model import NODE_STATES, QUEUE, Snapshot  # noqa: PLC0415 - as above
    from helios.model.slurm_site import NodeGroup, PartitionRules, SlurmSite  # noqa: PLC0415 - as above
    from helios.predict.live_predictor import LivePredictor  # noqa: PLC0415 - as above

    jobs = synthetic_trace(start=FIRST_DAY, days=1)
    asked = jobs[[name for name in QUEUE.names if name in jobs]].tail(20)
    running = QUEUE.conform(asked.tail(10))
    pending = QUEUE.conform(asked.drop(columns="started_at").head(10))
    predictor = LivePredictor(jobs.head(500))
    now = FIRST_DAY + timedelta(days=2)
    # At a moment at which their users have just submitted jobs, whose number in a row is counted.
    predictor.predict(running, now=running["submitted_at"].max() + timedelta(seconds=1), running=running)
    seen = Snapshot(taken_at=now, cluster="c", pending=pending, running=running, nodes=NODE_STATES.empty())
    names = tuple(str(name) for name in jobs["partition"].unique())
    site = SlurmSite(
        nodes=(NodeGroup(names=("n1",), cpus=64, gpus={"": 8}),),
        partitions=tuple(PartitionRules(name=name, nodes=("n1",)) for name in names),
    )
    QueueForecast(seen, site, jobs, draws=2).starts([len(running)])


def _try_spare_nodes() -> None:
    """Try rules for nodes awake, which commands do on weeks of history."""
    import numpy as np  # noqa: PLC0415 - as above

    from helios.metrics.spare_nodes import try_rules, use_by_minute  # noqa: PLC0415 - as above

    use = use_by_minute(
        np.array([0, 300]), np.array([1, 2]), nodes=4, begin_s=0, end_s=600, submitted_s=np.array([0, 300])
    )
    try_rules(use, Energy())
