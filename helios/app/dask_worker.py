"""What a Dask worker keeps between the cells that it replays; imported on workers, where Dask is installed."""

from __future__ import annotations

from typing import Any, cast

from distributed import Reschedule, Worker, WorkerPlugin, get_worker

from helios.app.cells import Cell, Told, Workbench
from helios.app.history import History


class WithHistory(WorkerPlugin):  # type: ignore[misc]  # because distributed is not followed: it is optional
    """Gives each worker the history once, those that come later too, instead of with every cell."""

    def __init__(self, history: History, fingerprint: str) -> None:
        self.name = name_of(fingerprint)
        self._history = history
        self.bench: Workbench | None = None

    def setup(self, worker: Worker) -> None:  # noqa: ARG002 - the signature is Dask's
        """Make ready what the cells share."""
        self.bench = Workbench(self._history)


def name_of(fingerprint: str) -> str:
    """Return by what name workers know the history."""
    return f"helios-history-{fingerprint}"


def told_there(cell: Cell, fingerprint: str) -> Told:
    """Replay a cell on the worker that runs this."""
    plugin: Any = get_worker().plugins.get(name_of(fingerprint))
    if plugin is None:  # a worker that joined while the history was handed out
        raise Reschedule
    return cast("Workbench", plugin.bench).tell(cell)
