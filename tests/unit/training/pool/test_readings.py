"""Reports that are read, and speeds that are measured from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from helios.training.model import TrialState
from helios.training.pool.state import TrialRecord, read_runs
from tests.unit.training.pool.test_coordinator import a_sweep, run
from tests.unit.training.pool.test_reports import record, scalar


def test_garbage_in_a_report_file_is_skipped_and_said(tmp_path: Path) -> None:
    program = "import os\nwith open(os.environ['HELIOS_REPORT'], 'wb') as file:\n"
    program += "    file.write(os.urandom(30_000_000))\n    file.write(b'\\n{\"loss\": 0.5}\\n')\n"
    end, trials = run(a_sweep(tmp_path, program, objectives={"loss": True}))
    assert (trials[0].state, trials[0].value) == (TrialState.FINISHED, 0.5)
    assert any("skipped" in note for note in end.notes)


@pytest.mark.parametrize("first_batch", [1, 500])
def test_steps_made_before_the_first_reading_do_not_count_as_speed(tmp_path: Path, first_batch: int) -> None:
    program = f"""
import json, os, time
def report(first, after):
    with open(os.environ["HELIOS_REPORT"], "a") as file:
        file.writelines(json.dumps({{"step": step}}) + "\\n" for step in range(first, after))
report(0, {first_batch})
for step in range(25):
    time.sleep(0.1)
    report({first_batch} + step, {first_batch} + step + 1)
"""
    run(a_sweep(tmp_path, program, (1,)))
    ((speed,),) = (one.speeds for one in read_runs(tmp_path / "pool"))
    assert speed.steps_per_s < 25.0


def written(tmp_path: Path, lines: str) -> TrialRecord:
    """The trial of a program that writes some bytes to its report file and ends."""
    program = f"import os\nwith open(os.environ['HELIOS_REPORT'], 'ab') as file:\n    {lines}\n"
    _, trials = run(a_sweep(tmp_path, program, objectives={"accuracy": True}))
    return trials[0]


def test_a_last_line_without_a_newline_is_read(tmp_path: Path) -> None:
    assert written(tmp_path, """file.write(b'{"accuracy": 0.1}\\n{"accuracy": 0.9}')""").value == 0.9


def test_the_last_of_many_lines_counts(tmp_path: Path) -> None:
    lines = """file.write(b'{"accuracy": 0.1}\\n' * 199_999 + b'{"accuracy": 0.9}\\n')"""
    assert written(tmp_path, lines).value == 0.9


def test_a_metric_that_only_the_first_lines_have_is_kept(tmp_path: Path) -> None:
    lines = """file.write(b'{"accuracy": 0.9}\\n' + b'{"loss": 0.1}\\n' * 50_000)"""
    assert written(tmp_path, lines).value == 0.9


def test_a_line_behind_a_very_long_one_is_read(tmp_path: Path) -> None:
    assert written(tmp_path, """file.write(b'x' * 500_000 + b'\\n{"accuracy": 0.9}\\n')""").value == 0.9


def test_a_report_behind_a_cut_line_of_an_earlier_attempt_is_read(tmp_path: Path) -> None:
    program = """
import os, pathlib, signal
again = pathlib.Path("once").exists()
with open(os.environ["HELIOS_REPORT"], "ab") as file:
    file.write(b'{"accuracy": 0.9}\\n' if again else b'{"accuracy": 0.1}\\n{"accu')
if not again:
    pathlib.Path("once").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    _, trials = run(a_sweep(tmp_path, program, objectives={"accuracy": True}))
    assert (trials[0].state, trials[0].value) == (TrialState.FINISHED, 0.9)


def test_a_scalar_behind_a_large_event_is_read(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(record(bytes(1_000_000)) + record(scalar(1, 0.5)))
    program = "import os\nos.mkdir('runs')\nos.rename('large', 'runs/events.out.tfevents.1')"
    _, trials = run(a_sweep(tmp_path, program, objectives={"a": True}, events="runs"))
    assert trials[0].value == 0.5
