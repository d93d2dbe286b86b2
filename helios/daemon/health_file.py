"""``health.json``: the daemon's health for whoever has no port to ask (``helios doctor``, a site that serves none)."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from helios.private_files import make_folder, write_private

NAME = "health.json"

_log = logging.getLogger("helios.daemon.health")


class HealthFile:
    """The file in the state folder; replaced as a whole, so that a reader never sees half of it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._trouble = ""
        self._one_at_a_time = Lock()

    def write(self, report: Callable[[], Mapping[str, Any]]) -> None:
        """Replace the file by what ``report`` says; a failure is said once, and never raised."""
        with self._one_at_a_time:  # the last to write asks last: "stopping" never lands on top of "stopped"
            try:
                self._replace(json.dumps(report(), indent=2) + "\n")
            except OSError as error:
                self._say(f"{self._path} cannot be written: {error.strerror}")
            else:
                self._say("")

    def _replace(self, text: str) -> None:
        make_folder(self._path.parent)
        write_private(self._path, text.encode())

    def _say(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            _log.error("%s. What to do: check control.state_folder and the room on its disk.", trouble)
        elif self._trouble and not trouble:
            _log.warning("%s is written again", self._path)
        self._trouble = trouble
