"""Answers about a pool whose trials change their size."""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from helios.training.pool.coordinator import Coordinator
from helios.training.status import read_status
from helios.training.status_report import _devices_in_words, show_lines, status_lines
from tests.unit.training.pool.test_coordinator import Watched, run
from tests.unit.training.pool.test_resizing import FOUR, Resizes, elastic_sweep


@pytest.fixture
def answers(tmp_path: Path) -> dict[str, str]:
    """What ``status`` and ``show`` said of a trial with three devices."""
    said: dict[str, str] = {}

    def look(_: Coordinator, event: Mapping[str, Any]) -> None:
        if event["event"] == "resized":
            status = read_status(tmp_path / "pool", history_of=0)
            shown = {"status": status_lines(status, width=80)}
            shown["show"] = show_lines(status, 0, [], status.attempts(status.records.trials[0]))
            for name, lines in shown.items():
                console = Console(width=80, file=StringIO())
                console.print(*lines, sep="\n")
                said[name] = console.file.getvalue()
            said["json"] = str(status.to_json()["running_trials"])
            (tmp_path / "go").touch()

    run(elastic_sweep(tmp_path), devices=FOUR, decide=Resizes(("cpu:0", "cpu:1", "cpu:2")), watched=Watched(look))
    return said


def test_status_says_size_changes_and_the_last_pause(answers: Mapping[str, str]) -> None:
    assert "Trial 0 after 1 change: 3 devices, cpu:0-2, stood still for 0.25 s" in answers["status"]


def test_show_lists_the_sizes_of_an_attempt(answers: Mapping[str, str]) -> None:
    assert "\n  3 devices, cpu:0-2, stood still for 0.25 s, " in answers["show"]


def test_json_has_devices_changes_and_pause(answers: Mapping[str, str]) -> None:
    assert "'devices': ['cpu:0', 'cpu:1', 'cpu:2']" in answers["json"]
    assert "'changes': 1, 'pause_s': 0.25" in answers["json"]


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        (("gpu:0",), "gpu:0"),
        (("gpu:0", "gpu:1", "gpu:2"), "gpu:0-2"),
        (("gpu:0", "gpu:2", "gpu:3"), "gpu:0, gpu:2-3"),
        (("gpu:3", "n2/gpu:0", "n2/gpu:1"), "gpu:3, n2/gpu:0-1"),
        (("gpu:1", "gpu:0"), "gpu:1, gpu:0"),
    ],
)
def test_devices_that_count_up_are_a_range(devices: tuple[str, ...], words: str) -> None:
    assert _devices_in_words(devices) == words
