"""Log lines: for a person, or one JSON object each; to standard error, where the journal picks them up."""

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
    way = logging.StreamHandler(stream)
    way.setFormatter(JsonLines() if form == "json" else TextLines())
    logging.basicConfig(level=level, handlers=[way], force=True)
    logging.captureWarnings(True)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.ERROR)


class TextLines(logging.Formatter):
    """``2026-11-21T02:30:00Z WARNING turn: what happened``; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = f"{_time(record)} {record.levelname:<7} {_source(record)}: {_message(record)}"
        trace = _traceback(self, record)
        return f"{line}\n{trace}" if trace else line


class JsonLines(logging.Formatter):
    """One object a line: time, level, source, message, and traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "source": _source(record),
            "message": _message(record),
        }
        trace = _traceback(self, record)
        return json.dumps({**line, "traceback": trace} if trace else line, ensure_ascii=False)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _source(record: logging.LogRecord) -> str:
    """Return who speaks: of Helios itself the last word of the logger's name, ``helios.daemon.cycle``: cycle."""
    return record.name.rpartition(".")[2] if record.name.startswith("helios.") else record.name


def _message(record: logging.LogRecord) -> str:
    """Return the message in one line: a job's name with a line break in it must not forge a second one."""
    return "".join(sign if sign.isprintable() else " " for sign in _masked(record.getMessage())).strip()


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return _masked(formatter.formatException(record.exc_info)) if record.exc_info else ""


def _masked(text: str) -> str:
    return re.sub(r"\S+://\S+", lambda url: str(without_password(url[0])), text)
