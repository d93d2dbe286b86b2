"""Execution of a sweep's replays here, on Dask or on Slurm.

A cell is one replay. It states everything that its figures depend on, and nothing of where it is replayed. What cells
share, the jobs on their machine and the model trained beforehand, is cached in each process.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from logging import CRITICAL
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pandas as pd

from helios import __version__
from helios.app.history import LoadedHistory
from helios.app.resampling import redraw, resampled_predictor, resampler_for
from helios.app.scenarios import Scenario
from helios.app.whatif import ReplaySetup, WhatIfRequest, prepare_replay, to_run, train_predictor
from helios.choices import ResampledUnit
from helios.dask_client import connect, refuse_other_releases, silence_logs
from helios.errors import DaskUnavailable, HeliosError
from helios.ports import no_progress
from helios.predict.duration import DurationModel

if TYPE_CHECKING:
    from distributed import Client


LIBRARIES = ("lightgbm", "numpy")
"""Libraries that affect figures: trees, and random numbers, whose streams numpy may change with a release."""


@cache
def code_fingerprint(package: Path = Path(__file__).parents[1]) -> str:
    """Return a digest of the sources and releases behind a result.

    It has 16 characters. A result of other sources is never reused, also where the edit could not have changed it.
    """
    digest = hashlib.sha256("".join(f"{name} {version(name)}\n" for name in LIBRARIES).encode())
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


FIGURES = "figures"
FAILED = "failed"
MOST_KEPT = 2
"""Windows, draws and models that a process caches, of each kind; each takes the memory of a history."""
OF_THE_SETUP = (
    "since",
    "until",
    "warm_up",
    "nodes",
    "gpus_per_node",
    "resource",
    "skip_oversized",
    "default_time_limit_s",
)
"""Fields of a request that choose the jobs and the machine."""

Kept = TypeVar("Kept")
RunResult = dict[str, Any]
"""Result of a cell: its ``figures``, or why it ``failed``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRun:
    """One replay of a sweep.

    Attributes
    ----------
    request : WhatIfRequest
        The window, the machine, and exactly one scenario.
    repeat : int
        Number of the draw of weeks, days or arrivals. 0 for the window as it was.
    over : ResampledUnit, optional
        What is drawn. By default what the window is long enough for.
    """

    request: WhatIfRequest
    repeat: int = 0
    over: ResampledUnit | None = None

    @property
    def plan(self) -> Scenario:
        """The only scenario of the request."""
        (plan,) = self.request.plans
        return plan

    def to_json(self) -> dict[str, Any]:
        """Return the run as plain values."""
        request = self.request
        parts = {name: getattr(request, name) for name in WhatIfRequest.__slots__ if name != "plans"}
        plan = {name: getattr(self.plan, name) for name in Scenario.__slots__}
        values = parts | plan | {"repeat": self.repeat, "over": self.over}
        values |= {
            "since": request.since.isoformat() if request.since else None,
            "until": request.until.isoformat() if request.until else None,
            "warm_up": request.warm_up.total_seconds(),
            "nodes": dict(request.nodes) if request.nodes else None,
            "options": dict(self.plan.options),
        }
        plain: dict[str, Any] = json.loads(json.dumps(values, default=str))
        return plain

    def key(self, fingerprint: str) -> str:
        """Return the key under which the result is stored.

        Another history, another release or other code of Helios gives another key.
        """
        text = json.dumps([self.to_json(), fingerprint, __version__, code_fingerprint()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]


class FinishedRun(NamedTuple):
    """A cell that was replayed, with its position in the request."""

    place: int
    result: RunResult


Engine = Callable[[LoadedHistory, Sequence[SweepRun]], Generator[FinishedRun, None, None]]
"""Way to replay cells, in any order. Closing the generator early stops the replays that are still running."""


def package_fingerprint(history: LoadedHistory) -> str:
    """Return a fingerprint of a history.

    It covers the jobs, the time zone and the cluster's name, in 16 characters.
    """
    rows = pd.util.hash_pandas_object(history.jobs, index=False)
    digest = hashlib.sha256(rows.to_numpy().tobytes())
    digest.update(f"{list(history.jobs.columns)} {history.timezone} {history.cluster}".encode())
    return digest.hexdigest()[:16]


SHORT_S = 20.0
"""Replays that take less in this process are replayed here: the start of others costs as much, s."""
JOB_S, PREDICTED_JOB_S = 2e-6, 1e-4
"""About what a job of a replay takes, and one that is predicted, s."""


def run_on_this_machine(
    history: LoadedHistory, cells: Sequence[SweepRun], *, workers: int
) -> Generator[FinishedRun, None, None]:
    """Replay the cells on this machine, as an ``Engine``.

    Short ones stay in this process, others go to ``workers`` processes.

    Raises
    ------
    DaskUnavailable
        Dask is not installed, and the cells are not short.
    """
    if workers == 1 or expected_s(history, cells) < SHORT_S:
        yield from run_here(history, cells)
    else:
        yield from run_in_processes(history, cells, workers=workers)


def expected_s(history: LoadedHistory, cells: Sequence[SweepRun]) -> float:
    """Return about how long the cells take in one process, s.

    It goes by the number of their jobs, and by whether these are predicted.
    """
    submitted = history.jobs["submitted_at"]
    total = 0.0
    for cell in cells:
        since, until = cell.request.since, cell.request.until
        first = 0 if since is None else submitted.searchsorted(pd.Timestamp(since - cell.request.warm_up))
        end = len(submitted) if until is None else submitted.searchsorted(pd.Timestamp(until))
        total += int(end - first) * (PREDICTED_JOB_S if cell.plan.uses_predictions else JOB_S)
    return total


def run_here(history: LoadedHistory, cells: Sequence[SweepRun]) -> Generator[FinishedRun, None, None]:
    """Replay the cells one by one in this process."""
    worker = SweepWorker(history)
    for place, cell in enumerate(cells):
        yield FinishedRun(place, worker.run(cell))


class SweepWorker:
    """Replays runs of one history, with shared caches.

    Several threads may use one worker.
    """

    def __init__(self, history: LoadedHistory) -> None:
        self._history = history
        self._setups: dict[str, ReplaySetup] = {}
        self._drawn: dict[str, ReplaySetup] = {}
        self._taught: dict[str, DurationModel | None] = {}
        self._lock = Lock()

    def run(self, cell: SweepRun) -> RunResult:
        """Replay a cell and return its figures, or why it failed.

        A cell that fails does not stop the others.
        """
        try:
            return {FIGURES: self.figures(cell)}
        except HeliosError as reason:
            return {FAILED: reason.message}
        except Exception as reason:  # whatever it is, the other cells can still be replayed
            return {FAILED: f"{type(reason).__name__}: {reason}"}

    def figures(self, cell: SweepRun) -> dict[str, Any]:
        """Replay a cell and return its figures.

        Raises
        ------
        HeliosError
            As :func:`helios.app.whatif.whatif`.
        """
        request, about = cell.request, cell.to_json()
        machine = str({name: about[name] for name in OF_THE_SETUP})
        with self._lock:
            original = setup = _get_or_make(self._setups, machine, lambda: prepare_replay(self._history, request))
            resampler, predictor, taught = None, None, None
            if cell.repeat:
                of_draw = f"{machine} {cell.repeat} {cell.over} {request.seed}"
                resampler = resampler_for(original, cell.over)
                setup = _get_or_make(
                    self._drawn,
                    of_draw,
                    lambda: redraw(original, resampler, repeat=cell.repeat, seed=request.seed),
                )
            if cell.plan.uses_predictions:
                # What was learned before the window does not depend on the draw, so all draws share it.
                of_model = f"{request.since} {request.warm_up} {request.seed}"
                taught = _get_or_make(
                    self._taught, of_model, lambda: train_predictor(self._history, original, request, no_progress)
                )
        if cell.plan.uses_predictions:
            predictor = resampled_predictor(setup, taught, request)
        run = to_run(cell.plan, setup, predictor, no_progress, request=request)
        return {
            "label": run.label,
            "is_today": run.is_today,
            "is_oracle": run.is_oracle,
            "over": resampler.over.value if resampler else None,
            "blocks": resampler.blocks if resampler else 0,
            "nodes": setup.machine.nodes,
            **run.summary.to_json(),
        }


def _get_or_make(memory: dict[str, Kept], key: str, make: Callable[[], Kept]) -> Kept:
    """Return the cached value of ``key``, computing it if it is missing.

    The oldest values are dropped beyond ``MOST_KEPT``.
    """
    if key not in memory:
        while len(memory) >= MOST_KEPT:
            memory.pop(next(iter(memory)))
        memory[key] = make()
    return memory[key]


# Replaying cells on Dask: processes of this machine, a scheduler elsewhere, or jobs of the site's own Slurm.
#
# Workers get the history once, as a plugin (the documented way of giving every worker something, those that join
# later too), and cells one by one. A worker that is lost costs the cells that it was replaying, which others replay
# again; Dask gives a cell up when three workers have died of it (``distributed.scheduler.allowed-failures``). Figures
# do not depend on where a cell was replayed.

COMPARED = ("python", "dask", "distributed", "cloudpickle", "numpy", "pandas", "numba", "lightgbm", "helios-slurm")
"""Packages whose releases must agree: messages are pickled, and figures must not depend on the worker."""
SAME_RELEASES = "Install the same on all of them, Helios too: python -m pip freeze here, pip install -r there."
CONNECT_S = 10.0
TEST_ONLY_S = 60.0
JOIN_S = 600.0
"""How long a site's own Slurm may take to start the first worker."""


def run_in_processes(
    history: LoadedHistory, cells: Sequence[SweepRun], *, workers: int
) -> Generator[FinishedRun, None, None]:
    """Replay the cells in local processes, as an ``Engine``.

    There are ``workers`` of them, or fewer where there are fewer cells, with one thread each.

    Raises
    ------
    DaskUnavailable
        Dask is not installed.
    """
    _require_module("distributed", extra="dask", instead="replay in this process: --workers 1")
    from distributed import LocalCluster  # noqa: PLC0415 - optional, and takes half a second

    silence_logs()
    with LocalCluster(
        n_workers=min(workers, len(cells)),
        threads_per_worker=1,
        processes=True,
        host="127.0.0.1",
        dashboard_address=None,
        memory_limit=0,
        silence_logs=CRITICAL,
    ) as cluster:
        yield from run_on_dask(history, cells, address=cluster.scheduler_address)


def run_on_dask(
    history: LoadedHistory, cells: Sequence[SweepRun], *, address: str, join_s: float = 0.0
) -> Generator[FinishedRun, None, None]:
    """Replay the cells on the workers of a Dask scheduler.

    With ``join_s`` its first worker may take that long to join, s.

    Raises
    ------
    DaskUnavailable
        Dask is not installed, no scheduler answers, it has no workers, or it went away.
    DaskMismatch
        Workers run other releases, or lack Helios.
    """
    _require_module("distributed", extra="dask", instead="replay here: --workers 1")
    with connect(address, connect_s=CONNECT_S, instead="--workers N.") as client:
        try:
            client.wait_for_workers(1, timeout=join_s or CONNECT_S)
        except TimeoutError as reason:
            if join_s:
                raise DaskUnavailable(
                    f"No Slurm job of this sweep started as a worker within {join_s:,.0f} s.",
                    hint="squeue -n dask-worker shows whether they wait; set log_directory in [slurm] for their logs.",
                ) from reason
            raise DaskUnavailable(
                f"The Dask scheduler at {address} has no workers.",
                hint=f"Start some, on each machine: dask worker {address}",
            ) from reason
        refuse_other_releases(client, address, COMPARED, hint=SAME_RELEASES)
        yield from _replay_on_client(client, history, cells, address)


def run_on_slurm(
    history: LoadedHistory,
    cells: Sequence[SweepRun],
    *,
    jobs: int = 1,
    options: Mapping[str, Any] | None = None,
    join_s: float = JOIN_S,
) -> Generator[FinishedRun, None, None]:
    """Replay the cells in Slurm jobs, as an ``Engine``.

    They are submitted by dask-jobqueue, to the Slurm of the machine that this runs on.

    Parameters
    ----------
    jobs : int
        Number of Slurm jobs.
    options : mapping, optional
        Options of ``dask_jobqueue.SLURMCluster``: queue, account, cores, memory, walltime, job_extra_directives and
        interface.
    join_s : float
        Longest wait for the first to start, s.

    Raises
    ------
    DaskUnavailable
        As :func:`run_on_dask`, or Slurm refuses the jobs.
    DaskMismatch
        As :func:`run_on_dask`.
    """
    _require_module("dask_jobqueue", extra="jobqueue", instead="replay here: --workers 1")
    from dask_jobqueue import SLURMCluster  # noqa: PLC0415 - optional

    silence_logs()
    cluster_options = options or {}
    # One process per core, and a dashboard port that is free.
    defaults = {"processes": cluster_options.get("cores", 1), "scheduler_options": {"dashboard_address": ":0"}}
    try:
        cluster = SLURMCluster(**defaults | dict(cluster_options))
    except (TypeError, ValueError, OSError, RuntimeError) as reason:
        raise DaskUnavailable(
            f"dask-jobqueue refuses the table [slurm] of the plan: {reason}",
            hint="Give cores and memory; other keys are the options of dask_jobqueue.SLURMCluster.",
        ) from reason
    with cluster:
        _test_submission(cluster.job_script())
        cluster.scale(jobs=jobs)
        yield from run_on_dask(history, cells, address=cluster.scheduler_address, join_s=join_s)


def _require_module(module: str, *, extra: str, instead: str) -> None:
    if find_spec(module) is None:
        raise DaskUnavailable(
            f"{module.replace('_', '-')} is not installed here; replays in other processes need it.",
            hint=f"pip install 'helios-slurm[{extra}]', or {instead}",
        )


def _test_submission(script: str) -> None:
    """Raise DaskUnavailable if Slurm would refuse such a job.

    dask-jobqueue only logs a refusal, and waits for ever.
    """
    try:
        asked = subprocess.run(
            ["sbatch", "--test-only"], input=script, capture_output=True, text=True, check=False, timeout=TEST_ONLY_S
        )
    except (OSError, subprocess.TimeoutExpired) as reason:
        raise DaskUnavailable(
            f"sbatch cannot be run, so no worker can be started: {reason}",
            hint="Run the sweep where sbatch works, or replay here: --workers N",
        ) from reason
    if asked.returncode != 0:
        complaint = "; ".join(line.removeprefix("sbatch: error: ") for line in asked.stderr.split("\n") if line)
        raise DaskUnavailable(
            f"Slurm refuses such jobs: {complaint}", hint=f"Change [slurm] in the plan. The batch script was:\n{script}"
        )


def _replay_on_client(
    client: Client, history: LoadedHistory, cells: Sequence[SweepRun], address: str
) -> Generator[FinishedRun, None, None]:
    from distributed import as_completed  # noqa: PLC0415 - optional

    from helios.app.sweep_worker import WithHistory, replay_on_worker  # noqa: PLC0415 - needs Dask

    fingerprint = package_fingerprint(history)
    client.register_plugin(WithHistory(history, fingerprint))
    places = {
        # Named for this client: another may ask for the same cell, and its end must not be the end of ours.
        client.submit(replay_on_worker, cell, fingerprint, key=f"helios-cell-{place}-{client.id}", pure=False): place
        for place, cell in enumerate(cells)
    }
    try:
        for future in as_completed(list(places), loop=client.loop):
            place = places.pop(future)
            yield FinishedRun(place, _result(future, address))
            future.release()
    finally:
        client.cancel(list(places), force=True)


def _result(future: Any, address: str) -> dict[str, Any]:
    if future.status == "finished":
        result: dict[str, Any] = future.result()
        return result
    if future.status == "error":
        reason = future.exception()
        return {FAILED: f"{type(reason).__name__}: {reason}"}
    raise DaskUnavailable(
        f"The Dask scheduler at {address} went away.",
        hint="Start it again, and give the same command again: what was replayed is kept.",
    )
