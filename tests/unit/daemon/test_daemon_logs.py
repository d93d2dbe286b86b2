import io
import json
import logging
from collections.abc import Iterator
from typing import Literal

import pytest

from helios.daemon.daemon import start_logs


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def logged(form: Literal["text", "json"], *, name: str = "helios.daemon.cycle", text: str, error: bool = False) -> str:
    stream = io.StringIO()
    start_logs(form, stream=stream)
    try:
        if error:
            raise ValueError("postgresql://helios:secret@db/helios is away")
        logging.getLogger(name).warning("%s", text)
    except ValueError:
        logging.getLogger(name).exception("%s", text)
    return stream.getvalue()


def test_a_text_line_has_time_level_and_task() -> None:
    time, level, task, rest = logged("text", text="3 pending").split(maxsplit=3)
    assert time.endswith("Z")
    assert (level, task, rest) == ("WARNING", "cycle:", "3 pending\n")


def test_a_json_line_is_one_object_even_with_a_traceback() -> None:
    (line,) = logged("json", text="failed", error=True).splitlines()
    answer = json.loads(line)
    assert (answer["level"], answer["source"], answer["message"]) == ("error", "cycle", "failed")
    assert "ValueError" in answer["traceback"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_password_is_logged(form: Literal["text", "json"]) -> None:
    lines = logged(form, text="cannot open postgresql://helios:secret@db/helios now", error=True)
    assert "secret" not in lines
    assert "postgresql://helios:***@db/helios now" in lines


def test_a_line_break_in_a_message_forges_no_second_line() -> None:
    lines = logged("text", text="job a\n2026-11-21T00:00:00Z ERROR cycle: forged\x1b[2J")
    assert lines.count("\n") == 1
    assert "\x1b" not in lines


def test_a_library_keeps_its_whole_name() -> None:
    assert "sqlalchemy.pool:" in logged("text", name="sqlalchemy.pool", text="x")


def test_the_scheduler_s_own_chatter_is_silenced() -> None:
    assert logged("text", name="apscheduler.executors.writes", text="Running job") == ""
