"""What a Dask worker keeps between the cells of a sweep.

Dask is optional: only a sweep on Dask imports this module.
"""

from __future__ import annotations

from typing import Any

from distributed import Reschedule, Worker, WorkerPlugin, get_worker

from helios.app.history import LoadedHistory
from helios.app.sweep import RunResult, SweepRun, SweepWorker


class WithHistory(WorkerPlugin):  # type: ignore[misc]  # because distributed is not followed: it is optional
    """Dask plugin that gives each worker the history once.

    Workers that join later get it too. Without it the history would be sent with every cell.
    """

    def __init__(self, history: LoadedHistory, fingerprint: str) -> None:
        self.name = plugin_name(fingerprint)
        self._history = history
        self.worker: SweepWorker | None = None

    def setup(self, worker: Worker) -> None:  # noqa: ARG002 - the signature is Dask's
        """Prepare the shared data."""
        self.worker = SweepWorker(self._history)


def plugin_name(fingerprint: str) -> str:
    """Return the name of the worker plugin."""
    return f"helios-history-{fingerprint}"


def replay_on_worker(cell: SweepRun, fingerprint: str) -> RunResult:
    """Replay a cell on the Dask worker that runs this."""
    plugin: Any = get_worker().plugins.get(plugin_name(fingerprint))
    if plugin is None:  # a worker that joined while the history was handed out
        raise Reschedule
    result: RunResult = plugin.worker.run(cell)
    return result
