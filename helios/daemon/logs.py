"""Log lines for a person, or one JSON object each, on standard error."""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from typing import Literal, TextIO

from helios.config import without_password

QUIET = ("apscheduler", "alembic", "matplotlib", "numba")
"""Libraries that tell every step of theirs; the daemon's own listeners say what matters."""


def start_logs(form: Literal["text", "json"], *, stream: TextIO, level: int = logging.INFO) -> None:
    """Send all logs to ``stream`` in the chosen form; calling again replaces what was chosen before."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter(as_json=form == "json"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.ERROR)


class LineFormatter(logging.Formatter):
    """A line for each record.

    As text ``2026-11-21T02:30:00Z WARNING cycle: what happened``, and a traceback on lines of its own; as JSON one
    object with time, level, source, message, and traceback where there is one.
    """

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without passwords."""
        time = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        # Of Helios itself the last word of the logger's name, as helios.daemon.cycle: cycle.
        source = record.name.rpartition(".")[2] if record.name.startswith("helios.") else record.name
        # In one line: a job's name with a line break in it must not forge a second one.
        message = "".join(sign if sign.isprintable() else " " for sign in _masked(record.getMessage())).strip()
        trace = _masked(self.formatException(record.exc_info)) if record.exc_info else ""
        if not self._as_json:
            line = f"{time} {record.levelname:<7} {source}: {message}"
            return f"{line}\n{trace}" if trace else line
        answer = {"time": time, "level": record.levelname.lower(), "source": source, "message": message}
        return json.dumps({**answer, "traceback": trace} if trace else answer, ensure_ascii=False)


def _masked(text: str) -> str:
    return re.sub(r"\S+://\S+", lambda url: str(without_password(url[0])), text)
