"""Replaying cells on Dask: processes of this machine, a scheduler elsewhere, or jobs of the site's own Slurm.

Workers get the history once, as a plugin (the documented way of giving every worker something, those that join later
too), and cells one by one. A worker that is lost costs the cells that it was replaying, which others replay again; Dask
gives a cell up when three workers have died of it (``distributed.scheduler.allowed-failures``). Figures do not hang on
where a cell was replayed.
"""

from __future__ import annotations

import subprocess
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from logging import CRITICAL
from typing import TYPE_CHECKING, Any

from helios.app.cells import FAILED, Cell, Done, fingerprint_of
from helios.app.history import History
from helios.dask_client import connected, quiet, refuse_other_releases
from helios.errors import DaskUnavailable

if TYPE_CHECKING:
    from distributed import Client

COMPARED = ("python", "dask", "distributed", "cloudpickle", "numpy", "pandas", "numba", "lightgbm", "helios-slurm")
"""Releases that must agree: what is sent is pickled, and figures must not hang on who made them."""
SAME_RELEASES = "Install the same on all of them, Helios too: python -m pip freeze here, pip install -r there."
CONNECT_S = 10.0
ASK_S = 60.0
JOIN_S = 600.0
"""How long a site's own Slurm may take to start the first worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """An :class:`~helios.app.cells.Engine`: ``workers`` processes of this machine, one thread each."""

    workers: int

    def __call__(self, history: History, cells: Sequence[Cell]) -> Generator[Done, None, None]:
        """Yield each cell when it is done.

        Raises
        ------
        DaskUnavailable
            Dask is not installed.
        """
        _need("distributed", extra="dask", instead="replay in this process: --workers 1")
        from distributed import LocalCluster  # noqa: PLC0415 - optional, and takes half a second

        quiet()
        with LocalCluster(
            n_workers=min(self.workers, len(cells)),
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address=None,
            memory_limit=0,
            silence_logs=CRITICAL,
        ) as cluster:
            yield from Scheduler(address=cluster.scheduler_address)(history, cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """An :class:`~helios.app.cells.Engine`: the workers of the Dask scheduler at ``address``."""

    address: str
    join_s: float = 0.0

    def __call__(self, history: History, cells: Sequence[Cell]) -> Generator[Done, None, None]:
        """Yield each cell when it is done.

        Raises
        ------
        DaskUnavailable
            Dask is not installed, no scheduler answers, it has no workers, or it went away.
        DaskMismatch
            Workers run other releases, or lack Helios.
        """
        _need("distributed", extra="dask", instead="replay here: --workers 1")
        with connected(self.address, connect_s=CONNECT_S, instead="--workers N.") as client:
            _wait_for_workers(client, self.address, self.join_s)
            refuse_other_releases(client, self.address, COMPARED, remedy=SAME_RELEASES)
            yield from _spread(client, history, cells, self.address)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJobs:
    """An :class:`~helios.app.cells.Engine`: workers that are jobs of the Slurm where this runs, by dask-jobqueue.

    Attributes
    ----------
    jobs : int
        How many.
    options : mapping
        Of ``dask_jobqueue.SLURMCluster``: queue, account, cores, memory, walltime, job_extra_directives, interface.
    join_s : float
        Longest wait for the first to start, s.
    """

    jobs: int
    options: Mapping[str, Any] = field(default_factory=dict)
    join_s: float = JOIN_S

    def __call__(self, history: History, cells: Sequence[Cell]) -> Generator[Done, None, None]:
        """Yield each cell when it is done; raises as :class:`Scheduler`, and if Slurm refuses the jobs."""
        _need("dask_jobqueue", extra="jobqueue", instead="replay here: --workers 1")
        from dask_jobqueue import SLURMCluster  # noqa: PLC0415 - optional

        quiet()
        try:
            cluster = SLURMCluster(**self._defaults() | dict(self.options))
        except (TypeError, ValueError, OSError, RuntimeError) as reason:
            raise DaskUnavailable(
                f"dask-jobqueue refuses the table [slurm]: {reason}",
                remedy="cores and memory are needed; the others are those of dask_jobqueue.SLURMCluster.",
            ) from reason
        with cluster:
            _ask_slurm(cluster.job_script())
            cluster.scale(jobs=self.jobs)
            yield from Scheduler(address=cluster.scheduler_address, join_s=self.join_s)(history, cells)

    def _defaults(self) -> dict[str, Any]:
        """Return what a sweep wants where the plan says nothing: a process a core, and no port that others may have."""
        return {"processes": self.options.get("cores", 1), "scheduler_options": {"dashboard_address": ":0"}}


def _need(module: str, *, extra: str, instead: str) -> None:
    if find_spec(module) is None:
        raise DaskUnavailable(
            f"{module.replace('_', '-')} is not installed here, and replaying in other processes needs it.",
            remedy=f"pip install 'helios-slurm[{extra}]', or {instead}",
        )


def _ask_slurm(script: str) -> None:
    """Raise DaskUnavailable if Slurm would refuse such a job: dask-jobqueue only logs that, and waits for ever."""
    try:
        asked = subprocess.run(
            ["sbatch", "--test-only"], input=script, capture_output=True, text=True, check=False, timeout=ASK_S
        )
    except (OSError, subprocess.TimeoutExpired) as reason:
        raise DaskUnavailable(
            f"Slurm cannot be asked for jobs: {reason}", remedy="Run it where sbatch works, or replay here: --workers N"
        ) from reason
    if asked.returncode != 0:
        said = "; ".join(line.removeprefix("sbatch: error: ") for line in asked.stderr.split("\n") if line)
        raise DaskUnavailable(
            f"Slurm refuses such jobs: {said}", remedy=f"Change [slurm] in the plan. The job was:\n{script}"
        )


def _wait_for_workers(client: Client, address: str, join_s: float) -> None:
    try:
        client.wait_for_workers(1, timeout=join_s or CONNECT_S)
    except TimeoutError as reason:
        if join_s:
            raise DaskUnavailable(
                f"None of the jobs asked of Slurm had become a worker after {join_s:,.0f} s.",
                remedy="squeue -n dask-worker says whether they wait; log_directory in [slurm] keeps what they say.",
            ) from reason
        raise DaskUnavailable(
            f"The Dask scheduler at {address} has no workers.",
            remedy=f"Start some, on each machine: dask worker {address}",
        ) from reason


def _spread(client: Client, history: History, cells: Sequence[Cell], address: str) -> Generator[Done, None, None]:
    from distributed import as_completed  # noqa: PLC0415 - optional

    from helios.app.dask_worker import WithHistory, told_there  # noqa: PLC0415 - imports Dask

    fingerprint = fingerprint_of(history)
    client.register_plugin(WithHistory(history, fingerprint))
    places = {
        # Named for this client: another may ask for the same cell, and its end must not be the end of ours.
        client.submit(told_there, cell, fingerprint, key=f"helios-cell-{place}-{client.id}", pure=False): place
        for place, cell in enumerate(cells)
    }
    try:
        for future in as_completed(list(places), loop=client.loop):
            place = places.pop(future)
            yield Done(place, _told(future, address))
            future.release()
    finally:
        client.cancel(list(places), force=True)


def _told(future: Any, address: str) -> dict[str, Any]:
    if future.status == "finished":
        told: dict[str, Any] = future.result()
        return told
    if future.status == "error":
        reason = future.exception()
        return {FAILED: f"{type(reason).__name__}: {reason}"}
    raise DaskUnavailable(
        f"The Dask scheduler at {address} went away.",
        remedy="Start it again, and give the same command again: what was replayed is kept.",
    )
