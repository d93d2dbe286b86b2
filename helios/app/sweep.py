"""Sweeps of many replays, from a plan to a results file.

A replay whose result the file already has is not repeated. Replays run in this process, on Dask or on Slurm.

A cell is one replay. It states everything that its figures depend on, and nothing of where it is replayed. What cells
share, the jobs on their machine and the model trained beforehand, is cached in each process.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tomllib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from itertools import groupby, product
from logging import CRITICAL
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from helios import __version__
from helios.app.history import LoadedHistory
from helios.app.replay_cluster import parse_nodes
from helios.app.resampling import redraw, resampled_predictor, resampler_for
from helios.app.scenarios import CONTROLS, Scenario, read_options, scenarios
from helios.app.whatif import ReplaySetup, WhatIfRequest, prepare_replay, to_run, train_predictor
from helios.choices import Policy, ResampledUnit, RunTimes
from helios.config import zone
from helios.dask_client import connect, refuse_other_releases, silence_logs
from helios.errors import DaskUnavailable, FileUnreadable, HeliosError, NotEnoughHistory, UsageError
from helios.lines_file import LinesFile, try_lock
from helios.ports import Progress, no_progress
from helios.predict.duration import DurationModel
from helios.report.significance import Differences, compare_repeats, whatif_figures
from helios.report.sweep import Group, Sweep, SweepRow
from helios.simulate import Backfill, Placement
from helios.units import length

if TYPE_CHECKING:
    from distributed import Client


LIBRARIES = ("lightgbm", "numpy")
"""Libraries that affect figures: trees, and random numbers, whose streams numpy may change with a release."""

FIGURES = "figures"
FAILED = "failed"
MOST_KEPT = 2
"""Windows, draws and models that a process caches, of each kind; each takes the memory of a history."""
SETUP_FIELDS = (
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

SHORT_S = 20.0
"""Replays that take less in this process are replayed here: the start of others costs as much, s."""
JOB_S, PREDICTED_JOB_S = 2e-6, 1e-4
"""About what a job of a replay takes, and one that is predicted, s."""

COMPARED = ("python", "dask", "distributed", "cloudpickle", "numpy", "pandas", "numba", "lightgbm", "helios-slurm")
"""Packages whose releases must agree: messages are pickled, and figures must not depend on the worker."""
SAME_RELEASES = "Install the same on all of them, Helios too: python -m pip freeze here, pip install -r there."
CONNECT_S = 10.0
TEST_ONLY_S = 60.0
JOIN_S = 600.0
"""How long a site's own Slurm may take to start the first worker."""

FEWEST_REPEATS = 5
"""Fewest repeats; the spread of fewer says too little."""


@cache
def code_fingerprint(package: Path = Path(__file__).parents[1]) -> str:
    """Return a digest of the sources and releases behind a result.

    It has 16 characters. A result of other sources is never reused, also where the edit could not have changed it.
    """
    digest = hashlib.sha256("".join(f"{name} {version(name)}\n" for name in LIBRARIES).encode())
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


Kept = TypeVar("Kept")
RunResult = dict[str, Any]
"""Result of a cell: its ``figures``, or why it ``failed``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCell:
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
    def scenario(self) -> Scenario:
        """The only scenario of the request."""
        (scenario,) = self.request.scenarios
        return scenario

    def to_json(self) -> dict[str, Any]:
        """Return the run as plain values."""
        request = self.request
        parts = {name: getattr(request, name) for name in WhatIfRequest.__slots__ if name != "scenarios"}
        scenario = {name: getattr(self.scenario, name) for name in Scenario.__slots__}
        values = parts | scenario | {"repeat": self.repeat, "over": self.over}
        values |= {
            "since": request.since.isoformat() if request.since else None,
            "until": request.until.isoformat() if request.until else None,
            "warm_up": request.warm_up.total_seconds(),
            "nodes": dict(request.nodes) if request.nodes else None,
            "options": dict(self.scenario.options),
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


Engine = Callable[[LoadedHistory, Sequence[SweepCell]], Generator[FinishedRun, None, None]]
"""Way to replay cells, in any order. Closing the generator early stops the replays that are still running."""


def fingerprint_history(history: LoadedHistory) -> str:
    """Return a fingerprint of a history.

    It covers the jobs, the time zone and the cluster's name, in 16 characters.
    """
    rows = pd.util.hash_pandas_object(history.jobs, index=False)
    digest = hashlib.sha256(rows.to_numpy().tobytes())
    digest.update(f"{list(history.jobs.columns)} {history.timezone} {history.cluster}".encode())
    return digest.hexdigest()[:16]


def run_on_this_machine(
    history: LoadedHistory, cells: Sequence[SweepCell], *, workers: int
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


def expected_s(history: LoadedHistory, cells: Sequence[SweepCell]) -> float:
    """Return about how long the cells take in one process, s.

    It goes by the number of their jobs, and by whether these are predicted.
    """
    submitted = history.jobs["submitted_at"]
    total = 0.0
    for cell in cells:
        since, until = cell.request.since, cell.request.until
        first = 0 if since is None else submitted.searchsorted(pd.Timestamp(since - cell.request.warm_up))
        end = len(submitted) if until is None else submitted.searchsorted(pd.Timestamp(until))
        total += int(end - first) * (PREDICTED_JOB_S if cell.scenario.uses_predictions else JOB_S)
    return total


def run_here(history: LoadedHistory, cells: Sequence[SweepCell]) -> Generator[FinishedRun, None, None]:
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

    def run(self, cell: SweepCell) -> RunResult:
        """Replay a cell and return its figures, or why it failed.

        A cell that fails does not stop the others.
        """
        try:
            return {FIGURES: self.figures(cell)}
        except HeliosError as reason:
            return {FAILED: reason.message}
        except Exception as reason:  # whatever it is, the other cells can still be replayed
            return {FAILED: f"{type(reason).__name__}: {reason}"}

    def figures(self, cell: SweepCell) -> dict[str, Any]:
        """Replay a cell and return its figures.

        Raises
        ------
        HeliosError
            As :func:`helios.app.whatif.whatif`.
        """
        request, about = cell.request, cell.to_json()
        machine = str({name: about[name] for name in SETUP_FIELDS})
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
            if cell.scenario.uses_predictions:
                # What was learned before the window does not depend on the draw, so all draws share it.
                of_model = f"{request.since} {request.warm_up} {request.seed}"
                taught = _get_or_make(
                    self._taught, of_model, lambda: train_predictor(self._history, original, request, no_progress)
                )
        if cell.scenario.uses_predictions:
            predictor = resampled_predictor(setup, taught, request)
        run = to_run(cell.scenario, setup, predictor, no_progress, request=request)
        return {
            "label": run.label,
            "is_plain": run.is_plain,
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


def run_in_processes(
    history: LoadedHistory, cells: Sequence[SweepCell], *, workers: int
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
    history: LoadedHistory, cells: Sequence[SweepCell], *, address: str, join_s: float = 0.0
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
    cells: Sequence[SweepCell],
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
    client: Client, history: LoadedHistory, cells: Sequence[SweepCell], address: str
) -> Generator[FinishedRun, None, None]:
    from distributed import as_completed  # noqa: PLC0415 - optional

    from helios.app.sweep_worker import WithHistory, replay_on_worker  # noqa: PLC0415 - needs Dask

    fingerprint = fingerprint_history(history)
    client.register_plugin(WithHistory(history, fingerprint, SweepWorker))
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


# A what-if repeated on resampled weeks, to see which of its differences are more than chance.


def repeats(
    history: LoadedHistory,
    request: WhatIfRequest,
    *,
    times: int,
    over: ResampledUnit | None = None,
    engine: Engine = run_here,
    progress: Progress = no_progress,
) -> Differences:
    """Replay every scenario on resampled histories, and compare with the baseline.

    Each of the ``times`` samples is the same for all scenarios.

    Parameters
    ----------
    over : ResampledUnit, optional
        What is resampled. None for weeks, or what the window is long enough for
        (:func:`helios.app.resampling.resampler_for`).
    engine : Engine
        Where the replays run; the result does not depend on it.

    Raises
    ------
    NotEnoughHistory
        A replay failed, with the reason.
    """
    cells = [
        SweepCell(request=replace(request, scenarios=(scenario,)), repeat=repeat, over=over)
        for repeat in range(1, times + 1)
        for scenario in request.scenarios
    ]
    figures_by_place: dict[int, Mapping[str, Any]] = {}
    progress("Repeating", 0.0)
    for done in engine(history, cells):
        if FIGURES not in done.result:
            raise NotEnoughHistory(f"A repeat could not be replayed: {next(iter(done.result.values()))}")
        figures_by_place[done.place] = done.result[FIGURES]
        progress("Repeating", len(figures_by_place) / len(cells))
    return compare_runs([figures_by_place[place] for place in range(len(cells))])


def compare_runs(runs: Sequence[Mapping[str, Any]]) -> Differences:
    """Compare the results of runs that differ only in scenario and repeat.

    Every scenario must have the same repeats in the same order.
    """
    by_label: dict[str, list[dict[str, float | None]]] = {}
    for figures in runs:
        by_label.setdefault(figures["label"], []).append(whatif_figures(figures))
    plain = next((figures["label"] for figures in runs if figures["is_plain"]), runs[0]["label"])
    return compare_repeats(by_label, baseline=plain, over=ResampledUnit(runs[0]["over"]), blocks=runs[0]["blocks"])


class ResultsFile:
    """Open file of results, locked until it is closed.

    It has one line for each run, appended when the run is done and never changed. Lines of other plans, histories and
    versions of Helios may be in it, because each run has a key.

    Attributes
    ----------
    known : dict
        The figures of each run by key, or why it failed the last time.
    """

    def __init__(self, path: Path, handle: int) -> None:
        self._file = LinesFile(handle)
        self.known: dict[str, RunResult] = {}
        for number, line in enumerate(self._file.read(), start=1):
            try:
                result: dict[str, Any] = json.loads(line)
                key = str(result.pop("key"))
            except (ValueError, KeyError, TypeError, AttributeError) as reason:
                raise FileUnreadable(
                    f"{path}, line {number}, is no result of a sweep.", hint="Choose another file: --out FILE"
                ) from reason
            result.pop("cell", None)
            if FIGURES in result or not self.has(key):
                self.known[key] = result

    def has(self, key: str) -> bool:
        """Return whether a run has a result.

        A failed run has none.
        """
        return FIGURES in self.known.get(key, {})

    def add(self, key: str, cell: SweepCell, result: RunResult) -> None:
        """Append the line of a run, and sync it to the disk."""
        line = json.dumps({"key": key, "cell": cell.to_json(), **result}, sort_keys=True, allow_nan=False)
        self._file.append(line.encode() + b"\n")
        self.known[key] = result


@contextmanager
def read_results(path: Path) -> Iterator[ResultsFile]:
    """Open a file of results, or create one.

    Raises
    ------
    UsageError
        It cannot be written, or another sweep is writing to it.
    FileUnreadable
        It contains something else.
    """
    try:
        stream = path.open("a+b", buffering=0)
    except OSError as reason:
        raise UsageError(f"Results cannot be written: {reason}", hint="Choose another place: --out FILE") from reason
    with stream:
        if not try_lock(stream.fileno()):
            raise UsageError(
                f"Another sweep is writing to {path}.", hint="Wait for it, or choose another place: --out FILE"
            )
        yield ResultsFile(path, stream.fileno())


# The plan of a sweep is a TOML file, whose lists are combined as a Cartesian product.

OptionColumns = dict[str, list[Any]]
"""Options of a policy, each with a list of values to combine with the others'."""


class _PlanTable(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    @field_validator("*", mode="before")
    @classmethod
    def _not_empty(cls, value: Any, about: ValidationInfo) -> Any:
        if value == []:
            raise ValueError(f"an empty list replays nothing; {_example(cls, about.field_name)}")
        return value


class Window(_PlanTable):
    """Time window of the history."""

    since: datetime | date | str | None = Field(default=None, alias="from", description="Jobs submitted from then on")
    until: datetime | date | str | None = Field(default=None, alias="to", description="Jobs submitted before then")
    warm_up: str | None = Field(default=None, description="Replayed before it, uncounted: 7d")


class SweepSettings(_PlanTable):
    """The cluster and how it is used, as lists that are combined."""

    nodes: list[str] = Field(default=[], description="As --nodes: gpu=16, or 16 to pool all jobs")
    gpus_per_node: list[int] = Field(default=[], description="GPUs of a node")
    placement: list[Placement] = Field(default=[], description="packed, spread, random")
    plan_quantile: list[float] = Field(default=[], description="What backfill plans with: 0.1, 0.5, 0.9")
    predict_again: list[str] = Field(default=[], description="Predict what waits again after so long: 1h; never")
    default_time_limit: list[str] = Field(default=[], description="Assumed for jobs that have none: 7d")


class SweepPlan(_PlanTable):
    """Plan of a sweep, in which every key is optional."""

    policies: list[Policy] = Field(
        default=[], description="Queue orders; else the controls of a what-if", examples=[["fifo", "qssf"]]
    )
    options: dict[Policy, list[OptionColumns]] = Field(
        default={}, description="Options of policies, by policy: share, least"
    )
    backfills: list[Backfill] = Field(default=[], description="What may pass a blocked head")
    estimates: list[RunTimes | int] = Field(default=[], description="Run times that backfill plans with")
    run_times: list[RunTimes] = Field(default=[], description="Run times that orders use")
    controls: bool = Field(default=True, description="Add plain FIFO + EASY, and fewest GPUs first")
    windows: list[Window] = Field(default=[], description="Stretches of the history; else all of it")
    settings: SweepSettings = SweepSettings()
    repeats: int = Field(default=0, ge=0, description="Random samples of weeks for each; 0: the window as it was")
    over: ResampledUnit | None = Field(default=None, description="What is resampled: weeks, days, seeds")
    seeds: list[int] = Field(default=[], description="Of training, random placement and samples")
    slurm: dict[str, Any] = Field(default={}, description="Workers as Slurm jobs: jobs, cores, memory, queue, ...")

    @field_validator("options", mode="before")
    @classmethod
    def _one_table_or_several(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: [tables] if isinstance(tables, dict) else tables for name, tables in value.items()}

    @field_validator("options")
    @classmethod
    def _none_empty(cls, value: dict[Policy, list[OptionColumns]]) -> dict[Policy, list[OptionColumns]]:
        for policy, tables in value.items():
            if not tables or not all(values for table in tables for values in table.values()):
                raise ValueError(
                    f"an empty list replays nothing; write {policy} = {{wait_share = [0.5]}}, or leave it out"
                )
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Cross:
    """Runs of a sweep, and notes on combinations that were left out.

    Runs that are compared with each other are adjacent.
    """

    cells: tuple[SweepCell, ...]
    notes: tuple[str, ...]


def _example(table: type[BaseModel], key: str | None) -> str:
    examples = table.model_fields[key].examples if key else None
    return f"write {key} = {json.dumps(examples[0])}, or leave it out" if examples else "leave it out"


def read_sweep_plan(path: Path) -> SweepPlan:
    """Read the plan of a sweep.

    Raises
    ------
    UsageError
        It cannot be read, or a key is unknown or of the wrong type. The message lists the known keys.
    """
    try:
        plan = SweepPlan.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as reason:
        raise UsageError(f"{path}: {reason.strerror}.", hint="Give the path of a plan: --sweep PLAN.toml") from reason
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as reason:
        raise UsageError(
            f"{path} cannot be read as TOML: {reason}", hint="See docs/whatif.md for an example."
        ) from reason
    except ValidationError as reason:
        wrong = "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in reason.errors()[:5])
        keys = ", ".join(SweepPlan.model_fields)
        of_settings = ", ".join(SweepSettings.model_fields)
        raise UsageError(
            f"{path} is not a plan of a sweep: {wrong}.",
            hint=f"The keys are: {keys}; of [settings]: {of_settings}. See docs/whatif.md for an example.",
        ) from reason
    if 0 < plan.repeats < FEWEST_REPEATS:
        raise UsageError(
            f"{plan.repeats} repeats are too few to tell a difference from chance.",
            hint=f"Write repeats = {FEWEST_REPEATS} or more, or 0 for one replay of each.",
        )
    return plan


def cross_options(plan: SweepPlan, *, base: WhatIfRequest, timezone: str) -> Cross:
    """Return every cell of a plan.

    Parameters
    ----------
    base : WhatIfRequest
        What holds where the plan says nothing.
    timezone : str
        Zone of times that carry none.

    Raises
    ------
    UsageError
        No replay is left, or a value is not understood.
    """
    replays, notes = _replays(plan)
    repeats = range(1, plan.repeats + 1) if plan.repeats else (0,)
    cells = [
        SweepCell(request=replace(request, scenarios=(replay,)), repeat=repeat, over=plan.over)
        for request in _requests(plan, base, timezone)
        for repeat in repeats
        for replay in replays
    ]
    return Cross(cells=tuple(cells), notes=tuple(notes))


def _replays(plan: SweepPlan) -> tuple[list[Scenario], list[str]]:
    """Return a plan's valid scenarios, and notes on the others."""
    if any(isinstance(value, int) and value < 1 for value in plan.estimates):
        raise UsageError(
            "estimates in the plan holds a number of seconds below 1.",
            hint="Write limit, predicted, expected, true, or a number of seconds from 1 on.",
        )
    chosen, notes = [], []
    crossed: Iterable[tuple[Policy | None, Backfill | None, RunTimes | None]] = product(
        plan.policies or (None,), plan.backfills or (None,), plan.run_times or (None,)
    )
    for policy, backfill, run_times in crossed:
        try:
            chosen += scenarios(
                policies=[policy] if policy else [],
                backfills=[backfill] if backfill else [],
                estimates=plan.estimates,
                run_times=run_times,
            )
        except UsageError as reason:
            notes.append(f"Left out: {', '.join(filter(None, (policy, backfill, run_times)))}. {reason.message}")
    if not chosen:
        raise UsageError("No combination in the plan can be replayed.", hint="\n".join(notes))
    if unknown := set(plan.options) - {scenario.policy for scenario in chosen}:
        names = ", ".join(sorted(unknown))
        raise UsageError(
            f"The plan has options for {names}, but does not replay {names}.",
            hint=f"Add {names} to policies, or leave the options out.",
        )
    options = {
        policy: [
            read_options(policy, dict(zip(table, values, strict=True)))
            for table in tables
            for values in product(*table.values())
        ]
        for policy, tables in plan.options.items()
    }
    chosen = [one.with_options(given) for one in chosen for given in options.get(one.policy, [()])]
    if plan.controls:
        chosen = [*CONTROLS, *chosen]
    return list(dict.fromkeys(chosen)), notes


def _requests(plan: SweepPlan, base: WhatIfRequest, timezone: str) -> Iterator[WhatIfRequest]:
    """Yield a request for each window and combination of settings.

    The settings vary within a window.
    """
    asked = plan.settings
    lists: dict[str, list[Any]] = {
        "nodes": [parse_nodes(text) for text in asked.nodes],
        "gpus_per_node": asked.gpus_per_node,
        "placement": asked.placement,
        "plan_quantile": asked.plan_quantile,
        "predict_again_s": [repredict_interval_s(text) or 0 for text in asked.predict_again],
        "default_time_limit_s": [int(length(text).total_seconds()) for text in asked.default_time_limit],
        "seed": plan.seeds,
    }
    lists = {name: values for name, values in lists.items() if values}
    for window in plan.windows or [Window()]:
        within: dict[str, Any] = {
            "since": _moment(window.since, timezone) or base.since,
            "until": _moment(window.until, timezone) or base.until,
            "warm_up": base.warm_up if window.warm_up is None else length(window.warm_up),
        }
        for values in product(*lists.values()):
            yield replace(base, **within, **dict(zip(lists, values, strict=True)))


def repredict_interval_s(text: str) -> int | None:
    """Parse how often waiting jobs are predicted again, s.

    Returns None for ``never``.

    Raises
    ------
    UsageError
        It is neither a length nor ``never``, or less than a second.
    """
    if text == "never":
        return None
    every_s = int(length(text).total_seconds())
    if every_s < 1:
        raise UsageError(f"{text!r} is less than a second.", hint="Write 10min, 1h, or never")
    return every_s


def _moment(value: datetime | date | str | None, timezone: str) -> datetime | None:
    if value is None:
        return None
    read = pd.to_datetime(str(value), errors="coerce")
    if pd.isna(read):
        raise UsageError(f"{value!r} is not a date or time.", hint="Write 2020-09-01, or 2020-09-01T08:00:00+08:00")
    zoned = read.tz_localize(zone(timezone)) if read.tzinfo is None else read
    moment: datetime = zoned.to_pydatetime().astimezone(UTC)
    return moment


def sweep(
    history: LoadedHistory,
    asked: Cross,
    *,
    out: Path,
    engine: Engine = run_here,
    progress: Progress = no_progress,
) -> Sweep:
    """Replay the runs missing in ``out``, and return the results of all.

    After an interruption, ``out`` keeps what was done, and the same call continues from there. Runs that fail are
    recorded with their reason, and tried again the next time.

    Raises
    ------
    UsageError, FileUnreadable
        ``out`` cannot be used.
    DaskUnavailable, DaskMismatch
        The engine has no workers, or workers with another release.
    """
    fingerprint = fingerprint_history(history)
    keys = [cell.key(fingerprint) for cell in asked.cells]
    with read_results(out) as results:
        left = [place for place, key in enumerate(keys) if not results.has(key)]
        progress("Replaying cells", 1 - len(left) / len(keys))
        # Close the generator now, not at garbage collection, since remote workers go on until then.
        with closing((engine if left else run_here)(history, [asked.cells[place] for place in left])) as replays:
            for number, done in enumerate(replays, start=1):
                place = left[done.place]
                results.add(keys[place], asked.cells[place], done.result)
                progress("Replaying cells", 1 - (len(left) - number) / len(keys))
        results_by_key = {key: results.known[key] for key in keys}
    return Sweep(
        cluster=history.cluster,
        timezone=history.timezone,
        results=str(out),
        cells=len(keys),
        known_before=len(keys) - len(left),
        groups=tuple(_groups(asked.cells, keys, results_by_key)),
        notes=(*history.notes, *asked.notes),
        lines=tuple(
            {"key": key, "cell": cell.to_json(), **results_by_key[key]}
            for key, cell in zip(keys, asked.cells, strict=True)
        ),
    )


def _groups(cells: Sequence[SweepCell], keys: Sequence[str], results_by_key: dict[str, RunResult]) -> Iterator[Group]:
    """Yield groups of runs that differ only in scenario and repeat.

    Groups are in the order of the runs. A row is one scenario over all of its repeats. Differences to the baseline are
    those of the repeats in which every scenario was replayed, if there are two at least.
    """
    numbered = zip(cells, keys, strict=True)
    for request, members in groupby(numbered, key=lambda member: replace(member[0].request, scenarios=())):
        by_scenario: dict[Scenario, list[RunResult]] = {}
        by_repeat: dict[int, list[RunResult]] = {}
        for cell, key in members:
            by_scenario.setdefault(cell.scenario, []).append(results_by_key[key])
            by_repeat.setdefault(cell.repeat, []).append(results_by_key[key])
            about = cell.to_json()
        whole = [runs for repeat, runs in by_repeat.items() if repeat and all(FIGURES in run for run in runs)]
        yield Group(
            about={name: about[name] for name in about if name in request.__slots__ and name != "scenarios"},
            rows=tuple(_row(scenario, runs) for scenario, runs in by_scenario.items()),
            differences=compare_runs([run[FIGURES] for runs in whole for run in runs]) if len(whole) >= 2 else None,
        )


def _row(scenario: Scenario, runs: Sequence[RunResult]) -> SweepRow:
    found = [run[FIGURES] for run in runs if FIGURES in run]
    reasons = [run[FAILED] for run in runs if FAILED in run]
    named = ", ".join([scenario.policy, scenario.backfill, *(f"{name} {value}" for name, value in scenario.options)])
    return SweepRow.of(found, reasons, named=named)
