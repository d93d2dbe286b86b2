"""Growing the trees on the workers of a Dask cluster, where one machine is too slow or too small.

The one module of this room that speaks to other machines, and only where an address is given. The rows are dealt out to
the workers, LightGBM's own distributed learner (``lightgbm.dask``, ``tree_learner=data``) grows the trees, and its text
comes back: the model is the same kind of thing as one grown here. Workers need Dask and LightGBM, not Helios.
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

from helios.dask_client import connected, refuse_other_releases
from helios.errors import DaskUnavailable, TrainingBroken
from helios.ports import Progress, no_progress
from helios.predict.duration import PARAMETERS, ROUNDS, TrainingSet

if TYPE_CHECKING:
    from distributed import Client

NEEDED = ("dask", "distributed", "sklearn")
# Releases that must agree: what is sent is pickled by one side and read by the other.
COMPARED = ("python", "dask", "distributed", "cloudpickle", "numpy", "lightgbm")
SAME_RELEASES = "Install the same on all of them: python -m pip freeze here, pip install -r there. Or train here."
# Each worker finds quantiles and a share of the bins from its own rows alone; with few of them it finds noise.
FEWEST_ROWS = 2_000
# Rounds between two words on how far a worker is: each is a message to the scheduler.
ROUNDS_TOLD = 10
LOOK_S = 1.0
"""How often the workers are counted while they learn."""
GRACE_S = 5.0
"""A survivor may report a broken connection before the scheduler misses the worker at its other end."""
SOCKET_MINUTES = 5
"""LightGBM's ``time_out``: how long a worker waits for another that is silent; its default is two hours."""
# What LightGBM writes into a model's text about where it was grown: no business of the model, and new each time.
_WHERE_GROWN = re.compile(r"^\[(?:machines|local_listen_port|time_out|num_threads): .*\]\n", re.MULTILINE)
_RESTART = "Restart the workers that are left, since they may still be waiting for it, and train again, or train here."


@dataclass(frozen=True, slots=True, kw_only=True)
class DaskTrainer:
    """A :class:`helios.predict.duration.Trainer` on the workers of a Dask cluster.

    The same seed gives trees close to those grown here, not the same: see docs/experiments.md.

    Attributes
    ----------
    address : str
        Of the scheduler, as ``tcp://HOST:8786``.
    connect_s, longest_s : float
        Longest wait for the scheduler's answer, and for one ensemble of trees.
    """

    address: str
    connect_s: float = 10.0
    longest_s: float = 3600.0

    def __call__(
        self, training_set: TrainingSet, *, quantiles: Sequence[float], seed: int, progress: Progress = no_progress
    ) -> tuple[str, ...]:
        """Return LightGBM's text of one ensemble for each of ``quantiles``.

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
            workers = _workers(client, self.address, len(training_set.residual))
            with _told(client, progress, len(quantiles) * len(workers)) as topic:
                rows = _dealt(client, workers, training_set)
                return tuple(self._grown(client, workers, rows, topic, _parameters(each, seed)) for each in quantiles)

    def _grown(
        self, client: Client, workers: Sequence[str], rows: Mapping[str, Any], topic: str, parameters: dict[str, Any]
    ) -> str:
        estimator = lightgbm.DaskLGBMRegressor(client=client, **parameters)
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


def _parameters(quantile: float, seed: int) -> dict[str, Any]:
    here_only = {"num_threads"}  # there, as many as the worker has
    parameters = {name: value for name, value in PARAMETERS.items() if name not in here_only}
    return parameters | {
        "n_estimators": ROUNDS,
        "alpha": quantile,
        "seed": seed,
        "tree_learner": "data",
        "time_out": SOCKET_MINUTES,
    }


@contextmanager
def _connected(address: str, connect_s: float) -> Iterator[Client]:
    if any(find_spec(name) is None for name in NEEDED):
        raise DaskUnavailable(
            "Dask is not installed here, and training on other machines needs it.",
            hint="pip install 'helios-slurm[dask]', or train here.",
        )
    _quiet()
    with connected(address, connect_s=connect_s, instead="train here.", default=True) as client:
        yield client


def _quiet() -> None:
    """Keep what lightgbm.dask logs of every port off the operator's screen."""
    lightgbm_says = getLogger("lightgbm.dask")
    lightgbm_says.setLevel(ERROR)
    lightgbm.register_logger(lightgbm_says)  # by default it prints on standard output, where answers go


def _workers(client: Client, address: str, n_rows: int) -> tuple[str, ...]:
    """Return as many workers as there are rows for, all of the releases that run here."""
    there = _count(client, address)
    if not there:
        raise DaskUnavailable(
            f"The Dask scheduler at {address} has no workers.",
            hint=f"Start some, on each machine: dask worker {address}",
        )
    refuse_other_releases(client, address, COMPARED, hint=SAME_RELEASES)
    return tuple(sorted(there)[: max(1, n_rows // FEWEST_ROWS)])


def _dealt(client: Client, workers: Sequence[str], training_set: TrainingSet) -> dict[str, Any]:
    """Send each worker its rows, dealt in turn like cards, and return what ``fit`` takes.

    In blocks by time each worker would know one era only; LightGBM takes the bins of a feature from one worker's rows,
    and the quantile in a leaf as the mean of the workers' own.
    """

    def dealt(column: NDArray[Any]) -> Any:
        return _distributed(
            client, workers, [np.ascontiguousarray(column[n :: len(workers)]) for n in range(len(workers))]
        )

    weighted = {} if training_set.weight is None else {"sample_weight": dealt(training_set.weight)}
    return weighted | {
        "X": dealt(training_set.features),
        "y": dealt(training_set.residual),
        "feature_name": list(training_set.names),
    }


def _distributed(client: Client, workers: Sequence[str], hands: Sequence[NDArray[Any]]) -> Any:
    from dask import array  # noqa: PLC0415 - optional

    # Through the scheduler: this machine need not reach the workers. Unhashed: equal arrays must not become one.
    there = [
        client.scatter(hand, workers=[worker], direct=False, hash=False)
        for worker, hand in zip(workers, hands, strict=True)
    ]
    blocks = [
        array.from_delayed(block, shape=hand.shape, dtype=hand.dtype) for block, hand in zip(there, hands, strict=True)
    ]
    return array.concatenate(blocks)


@contextmanager
def _told(client: Client, progress: Progress, n_parts: int) -> Iterator[str]:
    """Let ``progress`` hear how far the workers are, from the topic that this yields."""
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
    # A function within a function travels as its own code: the workers need not have Helios.
    every = ROUNDS_TOLD

    def tell(environment: Any) -> None:
        from distributed import get_worker  # noqa: PLC0415 - runs on the worker

        if (environment.iteration + 1) % every == 0:
            get_worker().log_event(topic, environment.iteration)

    return tell


def _aside(work: Callable[[], Any]) -> Future[Any]:
    """Do ``work`` in a thread that does not keep the process alive: a lost worker may leave it waiting for ever."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as reason:  # handed to whoever waits, whatever it is
            future.set_exception(reason)

    Thread(target=run, daemon=True).start()
    return future


def _count(client: Client, address: str) -> dict[str, int]:
    """Return the threads of each worker."""
    try:
        counted: dict[str, int] = client.sync(client.scheduler.ncores, callback_timeout=30)
    except (OSError, TimeoutError, ValueError, RuntimeError) as reason:
        raise TrainingBroken(
            f"The Dask scheduler at {address} went away: {reason}",
            hint="Start it again and train again, or train here. Nothing was written.",
        ) from reason
    return counted


def _refuse_if_lost(client: Client, workers: Sequence[str], address: str) -> None:
    """Raise TrainingBroken if any of ``workers`` is there no more."""
    lost = sorted(set(workers) - set(_count(client, address)))
    if lost:
        raise TrainingBroken(
            f"{len(lost)} of {len(workers)} Dask workers were lost during the training: {', '.join(lost)}.",
            hint=f"{_RESTART} Nothing was written. Out of memory is the usual cause: the worker's log says.",
        )


def _explain(reason: BaseException, client: Client, workers: Sequence[str], address: str) -> None:
    """Raise TrainingBroken with what lies behind ``reason``: a lost worker, or what LightGBM said."""
    never: Future[Any] = Future()
    for _ in range(int(GRACE_S / LOOK_S)):
        _refuse_if_lost(client, workers, address)
        wait([never], timeout=LOOK_S)
    raise TrainingBroken(
        f"LightGBM failed on the workers of {address}: {reason}",
        hint="Workers must reach each other on every port: LightGBM picks free ones. Try again, or train here.",
    ) from reason
