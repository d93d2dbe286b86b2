"""Training of the trees on the workers of a Dask cluster.

It is for training sets that are too large or too slow for one machine. This is the only module of the package that
contacts other machines, and only if an address is given. The rows are distributed over the workers. LightGBM's
distributed learner (``lightgbm.dask``, ``tree_learner=data``) trains the trees and returns their text, so that the
model does not differ in form from one trained locally. Workers need Dask and LightGBM, but not Helios.
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
FEWEST_ROWS = 2_000
"""Fewest rows for each worker, which computes a share of the bins from its own rows alone."""
REPORT_ROUNDS = 10
"""Rounds between two progress reports of a worker. Each report is a message to the scheduler."""
CHECK_S = 1.0
"""Interval between checks that all workers are still there, s."""
GRACE_S = 5.0
"""Time to find a lost worker, s. Others may report a broken connection before the scheduler notices the loss."""
SOCKET_MINUTES = 5
"""LightGBM's ``time_out``, for which a worker waits for a silent one, minutes. Its default is two hours."""
# Lines of LightGBM's text about the machines, which differ in every training and are not part of the model.
_MACHINE_LINES = re.compile(r"^\[(?:machines|local_listen_port|time_out|num_threads): .*\]\n", re.MULTILINE)
_RESTART = "Restart the workers that are left, since they may still be waiting for it, and train again, or train here."


@dataclass(frozen=True, slots=True, kw_only=True)
class DaskTrainer:
    """``Trainer`` on the workers of a Dask cluster.

    The same seed gives trees close to those trained locally, but not the same ones (docs/research/experiments.md).

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
            with _progress_topic(client, progress, len(workers)) as topic:
                data = _scatter(client, workers, training_set)
                return self._train(client, workers, data, topic, seed)

    def _train(self, client: Client, workers: Sequence[str], data: Mapping[str, Any], topic: str, seed: int) -> str:
        # Without num_threads LightGBM uses all threads of a worker.
        parameters: dict[str, Any] = {name: value for name, value in PARAMETERS.items() if name != "num_threads"}
        parameters |= {"n_estimators": ROUNDS, "seed": seed, "tree_learner": "data", "time_out": SOCKET_MINUTES}
        estimator = lightgbm.DaskLGBMClassifier(client=client, **parameters)
        training = _run_in_thread(lambda: estimator.fit(**data, callbacks=[_report_callback(topic)]))
        waited_s = 0.0
        while not wait([training], timeout=CHECK_S).done:
            waited_s += CHECK_S
            _refuse_if_lost(client, workers, self.address)
            if waited_s >= self.longest_s:
                raise TrainingBroken(
                    f"The workers of {self.address} had not grown the trees after {self.longest_s:,.0f} s.",
                    hint="See in Dask's dashboard what they do; restart them, since they do not stop by themselves.",
                )
        if (reason := training.exception()) is not None:
            _raise_cause(reason, client, workers, self.address)
        return _MACHINE_LINES.sub("", str(training.result().booster_.model_to_string()))


@contextmanager
def _connected(address: str, connect_s: float) -> Iterator[Client]:
    if any(find_spec(name) is None for name in NEEDED):
        raise DaskUnavailable(
            "Dask is not installed here, and training on other machines needs it.",
            hint="pip install 'helios-slurm[dask]', or train here.",
        )
    # lightgbm.dask logs every port, by default on standard output, which is for results.
    logger = getLogger("lightgbm.dask")
    logger.setLevel(ERROR)
    lightgbm.register_logger(logger)
    with connect(address, connect_s=connect_s, instead="train here.", default=True) as client:
        yield client


def _workers(client: Client, address: str, n_rows: int) -> tuple[str, ...]:
    """Return the workers to use, as many as there are rows for.

    Raises an error unless all of them run the same releases as this machine.
    """
    workers = _thread_counts(client, address)
    if not workers:
        raise DaskUnavailable(
            f"The Dask scheduler at {address} has no workers.",
            hint=f"Start some, on each machine: dask worker {address}",
        )
    refuse_other_releases(client, address, COMPARED, hint=SAME_RELEASES)
    return tuple(sorted(workers)[: max(1, n_rows // FEWEST_ROWS)])


def _scatter(client: Client, workers: Sequence[str], training_set: TrainingSet) -> dict[str, Any]:
    """Send each worker its rows, and return the arguments of ``fit``.

    Rows are assigned round-robin, because LightGBM computes the bins of a feature from the rows of one worker. With
    blocks by time each worker would see one period only.
    """
    from dask import array  # noqa: PLC0415 - optional

    def scatter(values: NDArray[Any]) -> Any:
        blocks = []
        for i, worker in enumerate(workers):
            block = np.ascontiguousarray(values[i :: len(workers)])
            # direct=False sends through the scheduler, since this machine may not reach the workers. hash=False keeps
            # equal arrays apart, which would otherwise become one.
            future = client.scatter(block, workers=[worker], direct=False, hash=False)
            blocks.append(array.from_delayed(future, shape=block.shape, dtype=block.dtype))
        return array.concatenate(blocks)

    names = list(training_set.names)
    return {"X": scatter(training_set.features), "y": scatter(training_set.ended), "feature_name": names}


@contextmanager
def _progress_topic(client: Client, progress: Progress, n_workers: int) -> Iterator[str]:
    """Yield a topic on which workers report progress to ``progress``."""
    topic, n_rounds = f"helios-rounds-{client.id}", 0

    def receive(_: Any) -> None:
        nonlocal n_rounds
        n_rounds += REPORT_ROUNDS
        progress("Learning run times on Dask", min(n_rounds / (ROUNDS * n_workers), 1.0))

    client.subscribe_topic(topic, receive)
    yield topic
    client.unsubscribe_topic(topic)
    progress("Learning run times on Dask", 1.0)


def _report_callback(topic: str) -> Callable[[Any], None]:
    # A nested function is pickled by value, so that the workers need not have Helios.
    report_rounds = REPORT_ROUNDS

    def report(environment: Any) -> None:
        from distributed import get_worker  # noqa: PLC0415 - runs on the worker

        if (environment.iteration + 1) % report_rounds == 0:
            get_worker().log_event(topic, environment.iteration)

    return report


def _run_in_thread(function: Callable[[], Any]) -> Future[Any]:
    """Run ``function`` in a daemon thread.

    A lost worker may let it wait for ever, which must not keep the process alive.
    """
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as reason:  # every exception is passed on to the waiting caller
            future.set_exception(reason)

    Thread(target=run, daemon=True).start()
    return future


def _thread_counts(client: Client, address: str) -> dict[str, int]:
    """Return the number of threads of each worker."""
    try:
        counts: dict[str, int] = client.sync(client.scheduler.ncores, callback_timeout=30)
    except (OSError, TimeoutError, ValueError, RuntimeError) as reason:
        raise TrainingBroken(
            f"The Dask scheduler at {address} went away: {reason}",
            hint="Start it again and train again, or train here. Nothing was written.",
        ) from reason
    return counts


def _refuse_if_lost(client: Client, workers: Sequence[str], address: str) -> None:
    """Raise TrainingBroken if any of ``workers`` is lost."""
    lost = sorted(set(workers) - set(_thread_counts(client, address)))
    if lost:
        raise TrainingBroken(
            f"{len(lost)} of {len(workers)} Dask workers were lost during the training: {', '.join(lost)}.",
            hint=f"{_RESTART} Nothing was written. Out of memory is the usual cause: the worker's log says.",
        )


def _raise_cause(reason: BaseException, client: Client, workers: Sequence[str], address: str) -> None:
    """Raise TrainingBroken with the cause of a failed training.

    The cause is a lost worker, or otherwise LightGBM's error.
    """
    never: Future[Any] = Future()
    for _ in range(int(GRACE_S / CHECK_S)):
        _refuse_if_lost(client, workers, address)
        wait([never], timeout=CHECK_S)
    raise TrainingBroken(
        f"LightGBM failed on the workers of {address}: {reason}",
        hint="Workers must reach each other on every port: LightGBM picks free ones. Try again, or train here.",
    ) from reason
