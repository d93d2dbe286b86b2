"""Starts of the launcher with programs that cannot train."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.training.elastic.runs import Run
from tests.waiting import until


@pytest.mark.parametrize(
    ("devices", "words", "reason"),
    [
        (2, ("--batch", "1"), "A batch of 1 on 2 devices gives one of them less than 1."),
        (1, ("--samples", "10"), "A batch of 24 needs as many samples; there are 10."),
    ],
)
def test_a_start_that_cannot_train_ends_with_the_reason(
    tmp_path: Path, devices: int, words: tuple[str, ...], reason: str
) -> None:
    with Run(tmp_path, devices, *words) as run:
        until(lambda: run.process.poll() is not None)
        assert run.process.returncode
    assert reason in run.log
    assert "launcher.py" not in run.log


def test_a_training_that_ends_while_it_grows_has_ended_well(tmp_path: Path) -> None:
    with Run(tmp_path, 2) as run:
        run.request("resize", number=1, devices=[{}] * 3)
        until(lambda: run.process.poll() is not None)
        assert (run.process.returncode, run.last()) == (0, 40), run.log


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A training on one device that goes on, whatever it is asked."""
    with Run(tmp_path_factory.mktemp("running"), 1, "--epochs", "100000", batch=[8, 1024]) as run:
        run.wait_for_steps()
        yield run


def test_a_batch_is_at_most_the_data(running: Run) -> None:
    assert running.resize(1, batch=512)["batch"] == 240


@pytest.mark.parametrize(
    "kind", ["[", '{"request": "resize", "number": Infinity, "devices": [{}, {}]}', "fifo", "socket", "folder", "huge"]
)
def test_what_is_no_request_does_not_stop_a_training(running: Run, kind: str) -> None:
    file = running.request_file
    file.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        if kind == "fifo":
            os.mkfifo(file)
        elif kind == "socket":
            listener.bind(str(file))
        elif kind == "folder":
            file.mkdir()
        elif kind == "huge":
            with file.open("wb") as opened:
                opened.truncate(1 << 33)
        else:
            file.write_text(kind)
        running.wait_for_steps(20)
        file.rmdir() if kind == "folder" else file.unlink()
    batch = 16 if running.number % 2 else 24
    assert running.resize(1, batch=batch)["batch"] == batch, running.log


def test_a_training_grows_after_all_that(running: Run) -> None:
    assert running.resize(2)["devices"] == 2, running.log
