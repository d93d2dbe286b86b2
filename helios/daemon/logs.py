"""Logging to standard error, as text or as JSON."""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from typing import Literal, TextIO

from helios.config import without_password

QUIET = ("apscheduler", "alembic", "matplotlib", "numba")
"""Libraries that log every step. The daemon's own listeners log the important events."""


def start_logs(form: Literal["text", "json"], *, stream: TextIO, level: int = logging.INFO) -> None:
    """Send all logs to ``stream`` in the chosen form.

    Calling it again replaces the earlier choice.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter(as_json=form == "json"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.ERROR)


class LineFormatter(logging.Formatter):
    """Formatter with one line for each record.

    A text line is like ``2026-11-21T02:30:00Z WARNING cycle: what happened``, with a traceback on separate lines. A
    JSON line is one object with time, level, source, message, and traceback where there is one.
    """

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without passwords."""
        time = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        # For Helios' own loggers, the last word of the name: cycle for helios.daemon.cycle.
        source = record.name.rpartition(".")[2] if record.name.startswith("helios.") else record.name
        # On one line, because a job's name with a line break must not forge a second record.
        message = "".join(sign if sign.isprintable() else " " for sign in _masked(record.getMessage())).strip()
        trace = _masked(self.formatException(record.exc_info)) if record.exc_info else ""
        if not self._as_json:
            line = f"{time} {record.levelname:<7} {source}: {message}"
            return f"{line}\n{trace}" if trace else line
        answer = {"time": time, "level": record.levelname.lower(), "source": source, "message": message}
        return json.dumps({**answer, "traceback": trace} if trace else answer, ensure_ascii=False)


def _masked(text: str) -> str:
    return re.sub(r"\S+://\S+", lambda url: str(without_password(url[0])), text)
