"""Output of the commands.

Results go to standard output, everything else to standard error.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from helios.errors import HeliosError, UsageError

if TYPE_CHECKING:  # pandas takes half a second to import, and this module is every command's
    import pandas as pd

    from helios.ports import Progress as ProgressPort

PLAIN_WIDTH = 160


def _console(*, stderr: bool) -> Console:
    """Return a console for standard output or standard error.

    Piped output is wide, so that a table is never cut to fit an imagined terminal.
    """
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else PLAIN_WIDTH, highlight=False)


def width() -> int:
    """Return how many columns a result may take."""
    return _console(stderr=False).width


def show(*parts: RenderableType) -> None:
    """Print a result for a person."""
    console = _console(stderr=False)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))


def show_json(value: Mapping[str, Any] | list[Any]) -> None:
    """Print a result as JSON."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False, default=str) + "\n")


def print_result(value: Any, *parts: RenderableType, as_json: bool) -> None:
    """Print a result, as JSON or for a person."""
    if as_json:
        show_json(value)
    else:
        show(*parts)


def print_message(*lines: str) -> None:
    """Print lines on standard error."""
    console = _console(stderr=True)
    for line in lines:
        console.print(escape(line), soft_wrap=True)


def print_notes(notes: Iterable[str]) -> None:
    """Print assumptions as notes on standard error."""
    print_message(*(f"note: {note}" for note in notes))


def print_error(error: HeliosError) -> None:
    """Print an error and what to try next."""
    console = _console(stderr=True)
    console.print(f"[bold red]error:[/] {escape(error.message)}", soft_wrap=True)
    if error.hint:
        console.print(escape(error.hint), soft_wrap=True)


@contextmanager
def progress_bars(*, shows_compiling: bool = True) -> Iterator[ProgressPort]:
    """Show a progress bar for each stage.

    Without a terminal, a line for each stage. Compiling is a stage of its own, if it is shown.
    """
    with _bars_or_lines() as progress:
        if not shows_compiling:
            yield progress
            return
        compiler, shown = logging.getLogger("helios.jit"), _CompileProgress(progress)
        before = compiler.level
        compiler.addHandler(shown)
        compiler.setLevel(logging.INFO)
        try:
            yield progress
        finally:
            compiler.removeHandler(shown)
            compiler.setLevel(before)
            shown.end()


class _CompileProgress(logging.Handler):
    """One stage for all that is compiled, which ends with the command."""

    STEP = "Compiling, once (helios compile does it beforehand)"

    def __init__(self, progress: ProgressPort) -> None:
        super().__init__()
        self._progress, self._begun = progress, False

    def emit(self, record: logging.LogRecord) -> None:  # noqa: ARG002 - one line stands for all
        self._begun = True
        self._progress(self.STEP, 0.0)

    def end(self) -> None:
        """Show the stage as done, if there was one."""
        if self._begun:
            self._progress(self.STEP, 1.0)


@contextmanager
def _bars_or_lines() -> Iterator[ProgressPort]:
    if not sys.stderr.isatty():
        # One line when a stage begins, so that the log of a stuck run shows where.
        begun: set[str] = set()

        def print_once(step: str, done: float) -> None:  # noqa: ARG001 - a line has no length
            if step not in begun:
                begun.add(step)
                print_message(f"{step} ...")

        yield print_once
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    with Progress(*columns, TimeElapsedColumn(), console=_console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def update(step: str, done: float) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task(step, total=1.0)
            bars.update(tasks[step], completed=done)

        yield update


def frame_table(frame: pd.DataFrame, *, empty: str = "Nothing yet.") -> RenderableType:
    """Return a frame as a plain table."""
    if frame.empty:
        return empty
    table = Table(*frame.columns, box=None, pad_edge=False)
    for row in frame.itertuples(index=False):
        table.add_row(*(escape(_cell(value)) for value in row))
    return table


def write_page(path: Path, page: str) -> None:
    """Write a report and print its path."""
    write_file(path, page, what="The report", option="--report FILE")
    print_message(f"Report: {path.resolve()}")


def write_file(path: Path, content: str | bytes, *, what: str, option: str) -> None:
    """Write a file that an option names.

    Raises
    ------
    UsageError
        It cannot be written there; the message calls it ``what``.
    """
    try:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    except OSError as reason:
        raise UsageError(f"{what} cannot be written: {reason}", hint=f"Choose another place: {option}") from reason


def _cell(value: Any) -> str:
    if value is None or value != value:  # noqa: PLR0124 - NaN and NaT are not equal to themselves
        return ""
    return value.strftime("%Y-%m-%d %H:%M") if isinstance(value, datetime) else str(value)
