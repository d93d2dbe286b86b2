"""Starts of the launcher with programs that cannot train."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tests.unit.training.elastic.runs import Run
from tests.waiting import until


@pytest.mark.parametrize(
    ("devices", "words", "reason"),
    [
        (3, ("--batch", "1"), "A batch of 1 on 3 devices gives one of them less than 1."),
        (2, ("--samples", "10"), "A batch of 24 needs as many samples; there are 10."),
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


def test_a_batch_is_at_most_the_data(tmp_path: Path) -> None:
    with Run(tmp_path, 1, "--epochs", "1000", batch=[8, 1024]) as run:
        run.wait_for_steps()
        assert run.resize(1, batch=512)["batch"] == 240


@pytest.mark.parametrize("content", ["[", '{"request": "resize", "number": Infinity, "devices": [{}, {}]}'])
def test_a_request_that_cannot_be_read_is_none(tmp_path: Path, content: str) -> None:
    with Run(tmp_path, 1, "--epochs", "1000") as run:
        run.request_file.write_text(content)
        run.wait_for_steps()
        assert run.resize(2)["devices"] == 2, run.log


@pytest.mark.parametrize("kind", ["fifo", "socket", "folder", "huge"])
def test_what_is_no_request_does_not_stop_a_training(tmp_path: Path, kind: str) -> None:
    with Run(tmp_path, 1, "--epochs", "1000") as run, socket.socket(socket.AF_UNIX) as listener:
        run.wait_for_steps()
        if kind == "fifo":
            os.mkfifo(run.request_file)
        elif kind == "socket":
            listener.bind(str(run.request_file))
        elif kind == "folder":
            run.request_file.mkdir()
        else:
            with run.request_file.open("wb") as file:
                file.truncate(1 << 33)
        run.wait_for_steps(20)
        run.request_file.rmdir() if kind == "folder" else run.request_file.unlink()
        assert run.resize(2)["devices"] == 2, run.log
