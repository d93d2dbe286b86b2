"""What a Dask worker keeps between the cells of a sweep.

Dask is optional: only a sweep on Dask imports this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from distributed import Reschedule, Worker, WorkerPlugin, get_worker

from helios.app.history import LoadedHistory


class Replayer(Protocol):
    """Replays cells on one history."""

    def run(self, cell: Any) -> Any:
        """Replay a cell."""
        ...


class WithHistory(WorkerPlugin):  # type: ignore[misc]  # because distributed is not followed: it is optional
    """Dask plugin that gives each worker the history once.

    Workers that join later get it too. Without it the history would be sent with every cell.
    """

    def __init__(
        self, history: LoadedHistory, fingerprint: str, make_replayer: Callable[[LoadedHistory], Replayer]
    ) -> None:
        self.name = plugin_name(fingerprint)
        self._history, self._make_replayer = history, make_replayer
        self.replayer: Replayer | None = None

    def setup(self, worker: Worker) -> None:  # noqa: ARG002 - the signature is Dask's
        """Prepare the shared data."""
        self.replayer = self._make_replayer(self._history)


def plugin_name(fingerprint: str) -> str:
    """Return the name of the worker plugin."""
    return f"helios-history-{fingerprint}"


def replay_on_worker(cell: Any, fingerprint: str) -> Any:
    """Replay a cell on the Dask worker that runs this."""
    plugin: Any = get_worker().plugins.get(plugin_name(fingerprint))
    if plugin is None:  # a worker that joined while the history was handed out
        raise Reschedule
    return plugin.replayer.run(cell)
