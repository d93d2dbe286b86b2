"""Reports that are read, and speeds that are measured from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from helios.training.model import TrialState
from helios.training.pool.state import read_runs
from tests.unit.training.pool.test_coordinator import a_sweep, run


def test_garbage_in_a_report_file_is_skipped_and_said(tmp_path: Path) -> None:
    program = "import os\nwith open(os.environ['HELIOS_REPORT'], 'wb') as file:\n"
    program += "    file.write(os.urandom(30_000_000))\n    file.write(b'\\n{\"loss\": 0.5}\\n')\n"
    end, trials = run(a_sweep(tmp_path, program, metric="loss"))
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
