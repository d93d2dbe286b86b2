"""``health.json``: the daemon's health for whoever has no port to ask (``helios doctor``, a site that serves none)."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

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
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_name(f".{NAME}.{os.getpid()}")
        beside.write_text(text, encoding="utf-8")
        beside.replace(self._path)

    def _say(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            _log.error("%s. What to do: check control.state_folder and the room on its disk.", trouble)
        elif self._trouble and not trouble:
            _log.warning("%s is written again", self._path)
        self._trouble = trouble
