"""Training of the trees on the workers of a Dask cluster.

For training sets that are too large, or too slow to train on, for one machine. This is the only module of the package
that contacts other machines, and only where an address is given. The rows are distributed over the workers. LightGBM's
own distributed learner (``lightgbm.dask``, ``tree_learner=data``) grows the trees and returns its text form, so that
the model is of the same kind as one trained locally. Workers need Dask and LightGBM, not Helios.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from logging import ERROR, getLogger
from threading import Thread
from typing import TYPE_CHECKING, Any

import lightgbm
import numpy as np
from numpy.typing import NDArray

from helios.dask_client import connect, refuse_other_releases
from helios.errors import DaskUnavailable, TrainingBroken
from helios.ports import Progress, no_progress
from helios.predict.duration import PARAMETERS, ROUNDS, TrainingSet

if TYPE_CHECKING:
    from distributed import Client

NEEDED = ("dask", "distributed", "sklearn")
# Releases that must agree, because one side pickles objects that the other one reads.
COMPARED = ("python", "dask", "distributed", "cloudpickle", "numpy", "lightgbm")
SAME_RELEASES = "Install the same on all of them: python -m pip freeze here, pip install -r there. Or train here."
# Each worker computes a share of the bins from its own rows alone; with few rows they are noise.
FEWEST_ROWS = 2_000
# Rounds between two progress reports of a worker. Each report is a message to the scheduler.
ROUNDS_TOLD = 10
LOOK_S = 1.0
"""Interval between checks that all workers are still there, s."""
GRACE_S = 5.0
"""Time to find a lost worker, s. Others may report a broken connection before the scheduler notices the loss."""
SOCKET_MINUTES = 5
"""LightGBM's ``time_out``, minutes, how long a worker waits for a silent one. Its default is two hours."""
# Lines of LightGBM's text about the machines. They differ in every training and do not belong to the model.
_WHERE_GROWN = re.compile(r"^\[(?:machines|local_listen_port|time_out|num_threads): .*\]\n", re.MULTILINE)
_RESTART = "Restart the workers that are left, since they may still be waiting for it, and train again, or train here."


@dataclass(frozen=True, slots=True, kw_only=True)
class DaskTrainer:
    """``Trainer`` on the workers of a Dask cluster.

    The same seed gives trees close to those trained locally, but not the same ones; see docs/experiments.md.

    Attributes
    ----------
    address : str
        Address of the scheduler, such as ``tcp://HOST:8786``.
    connect_s, longest_s : float
        Longest wait for the scheduler's answer, and for the trees, s.
    """

    address: str
    connect_s: float = 10.0
    longest_s: float = 3600.0

    def __call__(self, training_set: TrainingSet, *, seed: int, progress: Progress = no_progress) -> str:
        """Return LightGBM's text of the trees.

        Raises
        ------
        DaskUnavailable
            Dask is not installed here, no scheduler answers, or it has no workers.
        DaskMismatch
            Workers run other releases of Python, Dask, NumPy or LightGBM.
        TrainingBroken
            A worker or the scheduler was lost, LightGBM failed there, or ``longest_s`` have passed.
        """
        with _connected(self.address, self.connect_s) as client:
            workers = _workers(client, self.address, len(training_set.ended))
            with _told(client, progress, len(workers)) as topic:
                rows = _dealt(client, workers, training_set)
                return self._grown(client, workers, rows, topic, seed)

    def _grown(self, client: Client, workers: Sequence[str], rows: Mapping[str, Any], topic: str, seed: int) -> str:
        # Remote training uses as many threads as the worker has.
        parameters: dict[str, Any] = {name: value for name, value in PARAMETERS.items() if name != "num_threads"}
        parameters |= {"n_estimators": ROUNDS, "seed": seed, "tree_learner": "data", "time_out": SOCKET_MINUTES}
        estimator = lightgbm.DaskLGBMClassifier(client=client, **parameters)
        growing = _aside(lambda: estimator.fit(**rows, callbacks=[_teller(topic)]))
        waited_s = 0.0
        while not wait([growing], timeout=LOOK_S).done:
            waited_s += LOOK_S
            _refuse_if_lost(client, workers, self.address)
            if waited_s >= self.longest_s:
                raise TrainingBroken(
                    f"The workers of {self.address} had not grown the trees after {self.longest_s:,.0f} s.",
                    hint="See in Dask's dashboard what they do; restart them, since they do not stop by themselves.",
                )
        if (reason := growing.exception()) is not None:
            _explain(reason, client, workers, self.address)
        return _WHERE_GROWN.sub("", str(growing.result().booster_.model_to_string()))


@contextmanager
def _connected(address: str, connect_s: float) -> Iterator[Client]:
    if any(find_spec(name) is None for name in NEEDED):
        raise DaskUnavailable(
            "Dask is not installed here, and training on other machines needs it.",
            hint="pip install 'helios-slurm[dask]', or train here.",
        )
    # lightgbm.dask logs every port, by default on standard output, which is for results.
    lightgbm_says = getLogger("lightgbm.dask")
    lightgbm_says.setLevel(ERROR)
    lightgbm.register_logger(lightgbm_says)
    with connect(address, connect_s=connect_s, instead="train here.", default=True) as client:
        yield client


def _workers(client: Client, address: str, n_rows: int) -> tuple[str, ...]:
    """Return the workers to use, as many as there are rows for.

    Raises an error unless all of them run the same releases as this machine.
    """
    there = _count(client, address)
    if not there:
        raise DaskUnavailable(
            f"The Dask scheduler at {address} has no workers.",
            hint=f"Start some, on each machine: dask worker {address}",
        )
    refuse_other_releases(client, address, COMPARED, hint=SAME_RELEASES)
    return tuple(sorted(there)[: max(1, n_rows // FEWEST_ROWS)])


def _dealt(client: Client, workers: Sequence[str], training_set: TrainingSet) -> dict[str, Any]:
    """Send each worker its rows, and return the arguments of ``fit``.

    Rows are assigned round-robin. With blocks by time each worker would see one period only, but LightGBM takes the
    bins of a feature from one worker's rows.
    """
    from dask import array  # noqa: PLC0415 - optional

    def dealt(column: NDArray[Any]) -> Any:
        blocks = []
        for n, worker in enumerate(workers):
            hand = np.ascontiguousarray(column[n :: len(workers)])
            # direct=False sends through the scheduler, since this machine may not reach the workers. hash=False keeps
            # equal arrays apart, which would otherwise become one.
            there = client.scatter(hand, workers=[worker], direct=False, hash=False)
            blocks.append(array.from_delayed(there, shape=hand.shape, dtype=hand.dtype))
        return array.concatenate(blocks)

    names = list(training_set.names)
    return {"X": dealt(training_set.features), "y": dealt(training_set.ended), "feature_name": names}


@contextmanager
def _told(client: Client, progress: Progress, n_parts: int) -> Iterator[str]:
    """Yield a topic on which workers report progress to ``progress``."""
    topic, told = f"helios-rounds-{client.id}", 0

    def hear(_: Any) -> None:
        nonlocal told
        told += ROUNDS_TOLD
        progress("Learning run times on Dask", min(told / (ROUNDS * n_parts), 1.0))

    client.subscribe_topic(topic, hear)
    yield topic
    client.unsubscribe_topic(topic)
    progress("Learning run times on Dask", 1.0)


def _teller(topic: str) -> Callable[[Any], None]:
    # A nested function is pickled by value, so that the workers need not have Helios.
    every = ROUNDS_TOLD

    def tell(environment: Any) -> None:
        from distributed import get_worker  # noqa: PLC0415 - runs on the worker

        if (environment.iteration + 1) % every == 0:
            get_worker().log_event(topic, environment.iteration)

    return tell


def _aside(work: Callable[[], Any]) -> Future[Any]:
    """Run ``work`` in a daemon thread.

    A lost worker may leave it waiting for ever, which must not keep the process alive.
    """
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as reason:  # every exception is passed on to the waiting caller
            future.set_exception(reason)

    Thread(target=run, daemon=True).start()
    return future


def _count(client: Client, address: str) -> dict[str, int]:
    """Return the number of threads of each worker."""
    try:
        counted: dict[str, int] = client.sync(client.scheduler.ncores, callback_timeout=30)
    except (OSError, TimeoutError, ValueError, RuntimeError) as reason:
        raise TrainingBroken(
            f"The Dask scheduler at {address} went away: {reason}",
            hint="Start it again and train again, or train here. Nothing was written.",
        ) from reason
    return counted


def _refuse_if_lost(client: Client, workers: Sequence[str], address: str) -> None:
    """Raise TrainingBroken if any of ``workers`` is lost."""
    lost = sorted(set(workers) - set(_count(client, address)))
    if lost:
        raise TrainingBroken(
            f"{len(lost)} of {len(workers)} Dask workers were lost during the training: {', '.join(lost)}.",
            hint=f"{_RESTART} Nothing was written. Out of memory is the usual cause: the worker's log says.",
        )


def _explain(reason: BaseException, client: Client, workers: Sequence[str], address: str) -> None:
    """Raise TrainingBroken with the cause of a failed training.

    The cause is a lost worker, or otherwise LightGBM's error.
    """
    never: Future[Any] = Future()
    for _ in range(int(GRACE_S / LOOK_S)):
        _refuse_if_lost(client, workers, address)
        wait([never], timeout=LOOK_S)
    raise TrainingBroken(
        f"LightGBM failed on the workers of {address}: {reason}",
        hint="Workers must reach each other on every port: LightGBM picks free ones. Try again, or train here.",
    ) from reason
