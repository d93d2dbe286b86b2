"""Training pools from Python, as in a notebook.

It is what ``helios pool run`` and ``helios pool status`` do. It stands above the wing of training, so that the rest of
Helios does not import the wing.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helios.training.pool.coordinator import Coordinator
from helios.training.pool.sweep_file import check_training_sweep, read_training_sweep
from helios.training.run import run_pools
from helios.training.status import find_pool, read_status

if TYPE_CHECKING:
    import pandas as pd

NAME = "sweep.toml"
"""Name of a sweep that has no file; its pool is beside where the file would be."""
_LOOK_S = 0.2
"""How often an interruption is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A pool and its trials at one moment.

    Attributes
    ----------
    rows : list of dict
        What is known of each trial, by number, as ``helios pool show --json``.
    best : dict, optional
        The best finished trial, with its ``parameters``, ``value``, ``checkpoints`` and ``command``.
    """

    folder: Path
    metrics: tuple[str, ...]
    rows: list[dict[str, Any]]
    best: dict[str, Any] | None

    @property
    def trials(self) -> pd.DataFrame:
        """The trials as a frame, with a column for each parameter and metric."""
        import pandas as pd  # noqa: PLC0415 - a pool needs none

        own = ("number", "state", "value", "seconds", "attempts")
        rows = [
            {name: row[name] for name in own}
            | {name if name not in own else f"parameter_{name}": value for name, value in row["parameters"].items()}
            | {
                f"metric_{name}" if name in {*own, *row["parameters"]} else name: row["metrics"][name]
                for name in row["metrics"]
            }
            for row in self.rows
        ]
        return pd.DataFrame(rows)


def run(sweep: str | Path | Mapping[str, Any], **options: Any) -> Pool:
    """Run or resume the trials of a sweep, and return how they ended.

    An interruption asks trials for a checkpoint and ends them, as Ctrl-C does to the command; another one ends them at
    once. The same call goes on.

    Parameters
    ----------
    sweep : str, Path or mapping
        A sweep file, or its content: the same keys. Paths are then relative to the current folder.
    **options
        Those of :func:`helios.training.run.run_pools`, such as ``slots``, ``folder``, ``service`` and ``time_limit_s``.

    Raises
    ------
    HeliosError
        The sweep cannot be run, with what to do.
    KeyboardInterrupt
        It was interrupted, and its trials have ended.
    """
    read = read_training_sweep
    path = Path(NAME)
    if isinstance(sweep, Mapping):
        read = partial(check_training_sweep, content=sweep)
    else:
        path = Path(sweep)
    folder = path.with_suffix(".pool")
    if options.get("folder") is not None:
        folder = options["folder"] = Path(options["folder"])
    # A join that is interrupted takes the thread for ended (Python 3.11), so an event says when it is.
    watcher, failures, ended = _Interruptions(), list[BaseException](), threading.Event()

    def work() -> None:
        try:
            run_pools([path], read=read, watcher=watcher, **options)
        except BaseException as reason:  # raised again where the caller waits
            failures.append(reason)
        finally:
            ended.set()

    # In a thread, since signals of the process belong to whoever calls this.
    thread = threading.Thread(target=work, name="helios pool")
    thread.start()
    while not ended.is_set():
        try:
            ended.wait(_LOOK_S)
        except KeyboardInterrupt:
            watcher.count += 1
    if failures:
        raise failures[0]
    if watcher.count:
        raise KeyboardInterrupt
    return load(folder)


def load(pool: str | Path | None = None) -> Pool:
    """Read a pool that runs or has run.

    Parameters
    ----------
    pool : str or Path, optional
        Its folder or sweep file. None for the only pool of the current folder.
    """
    status = read_status(find_pool(None if pool is None else Path(pool)))
    trials = [status.records.trials[number] for number in sorted(status.records.trials)]
    best = status.best()
    return Pool(
        folder=status.folder,
        metrics=tuple(status.objectives),
        rows=[status.trial_json(trial) for trial in trials],
        best=status.result_json(best[0]) if best else None,
    )


class _Interruptions:
    """Passes interruptions on to the pool, which runs in another thread."""

    def __init__(self) -> None:
        self.count = self._passed = 0

    def event(self, event: Mapping[str, Any]) -> None:
        pass

    def refresh(self, pool: Coordinator) -> None:
        while self._passed < self.count:
            self._passed += 1
            pool.interrupt()
