"""Several pools of one folder, as far as the state file decides."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from helios.errors import UsageError
from helios.training.model import TrialState
from helios.training.pool.state import FILE, StateFile


def a_state(folder: Path, *, shared: bool = True) -> StateFile:
    return StateFile(folder, {}, shared=shared)


def finish(state: StateFile, number: int) -> None:
    state.record_ended(
        number,
        what="finished",
        state=TrialState.FINISHED,
        seconds=1.0,
        peak_memory_mib=None,
        metrics={},
        value=None,
    )


def test_each_reads_what_the_other_wrote_before_it_writes(tmp_path: Path) -> None:
    with a_state(tmp_path) as one, a_state(tmp_path) as two:
        one.record_created(0, {"x": 1})
        two.record_created(1, {"x": 2})
        assert [*two.trials] == [0, 1]
        assert not two.is_mine(two.trials[0])
        assert two.has_owner(two.trials[0])
        finish(one, 0)
        with two.exclusive():
            assert two.trials[0].ended
    with a_state(tmp_path, shared=False) as after:
        assert {number: trial.state for number, trial in after.trials.items()} == {0: "finished", 1: "waiting"}


def test_only_trials_of_a_pool_that_is_gone_are_taken_over(tmp_path: Path) -> None:
    with a_state(tmp_path) as one:
        gone = a_state(tmp_path)
        gone.record_created(0, {"x": 1})
        gone.record_started(0, devices=["cpu:0"], memory_limit_mib=None)
        assert one.adopt() == []
        pool = gone.pool
        for handle in (gone._own_lock, gone._handle, gone._write_lock):  # as a kill does
            os.close(handle)
        (taken,) = one.adopt()
        assert (taken.number, taken.state, taken.attempts) == (0, TrialState.WAITING, 1)
        assert one.is_mine(taken)
        assert one.interrupted == {pool}
        assert one.adopt() == []


def test_a_line_that_a_killed_pool_left_half_written_is_cut_off(tmp_path: Path) -> None:
    with a_state(tmp_path) as one, a_state(tmp_path) as two:
        with (tmp_path / FILE).open("ab") as file:
            file.write(b'{"what": "made", "tri')
        one.record_created(0, {"x": 1})
        two.record_created(1, {"x": 2})
        assert [*two.trials] == [0, 1]


def test_pools_that_share_and_one_that_does_not_exclude_each_other(tmp_path: Path) -> None:
    with a_state(tmp_path), pytest.raises(UsageError, match="Another pool"):
        a_state(tmp_path, shared=False)
    with a_state(tmp_path, shared=False), pytest.raises(UsageError, match="Another pool"):
        a_state(tmp_path)
