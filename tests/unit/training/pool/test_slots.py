"""Fixed slots of pools with several sweeps."""

from __future__ import annotations

from collections import Counter
from typing import Any

from helios.training.model import NUMBERS, Device, PoolAction, PoolSnapshot, StartTrial, Trial, TrialState
from helios.training.pool.slots import fixed_slots

A, B = 0, NUMBERS


def waiting(first: int, count: int, **values: Any) -> list[Trial]:
    return [Trial(number=first + number, parameters={}, **values) for number in range(count)]


def running(number: int, **values: Any) -> Trial:
    known: dict[str, Any] = {"state": TrialState.RUNNING, "devices": ("cpu:0",), "memory_limit_mib": 10.0}
    return Trial(number=number, parameters={}, **(known | values))


def decide(*trials: Trial, slots: int) -> list[PoolAction]:
    cpu = Device(name="cpu:0", kind="cpu", memory_mib=10.0 * slots, slots=slots)
    return fixed_slots(PoolSnapshot(now_s=0.0, devices=(cpu,), trials=trials))


def starts(*trials: Trial, slots: int) -> list[int]:
    """The numbers of the trials that get slots of their own, in order."""
    actions = decide(*trials, slots=slots)
    return [action.number for action in actions if isinstance(action, StartTrial) and action.into is None]


def by_sweep(numbers: list[int]) -> dict[int, int]:
    return dict(Counter(number // NUMBERS for number in numbers))


def test_sweeps_get_equally_many_slots() -> None:
    assert by_sweep(starts(*waiting(A, 9), *waiting(B, 9), slots=4)) == {0: 2, 1: 2}


def test_slots_that_a_sweep_does_not_need_go_to_others() -> None:
    assert by_sweep(starts(*waiting(A, 1), *waiting(B, 9), slots=4)) == {0: 1, 1: 3}


def test_a_free_slot_goes_to_the_sweep_that_holds_fewest() -> None:
    there = [running(A), running(A + 1), running(B)]
    assert starts(*there, *waiting(A + 2, 5), *waiting(B + 1, 5), slots=4) == [B + 1]


def test_two_sweeps_take_turns_on_one_slot() -> None:
    ended = Trial(number=A, parameters={}, state=TrialState.FINISHED)
    assert starts(ended, *waiting(A + 1, 5), *waiting(B, 5), slots=1) == [B]
    ended = Trial(number=B, parameters={}, state=TrialState.FINISHED)
    assert starts(ended, *waiting(A + 1, 5), *waiting(B + 1, 5), slots=1) == [A + 1]


def test_trials_of_one_sweep_start_in_order() -> None:
    late = Trial(number=1, parameters={}, out_of_memory_mib=5.0)
    assert starts(*waiting(0, 1), late, *waiting(2, 4), slots=4) == [0, 2, 3, 4]


FUSED: dict[str, Any] = {"fusible": "a", "most_fused": 16}


def test_fused_trials_leave_the_slots_of_other_sweeps() -> None:
    assert by_sweep(starts(*waiting(A, 40, **FUSED), *waiting(B, 9), slots=4)) == {0: 2, 1: 2}


def test_a_fused_process_takes_no_trials_while_another_sweep_has_no_slot() -> None:
    process = [running(A + number, process=-1, **FUSED) for number in range(3)]
    more = waiting(A + 3, 5, **FUSED)
    assert len(decide(*process, *more, slots=1)) == 5
    assert decide(*process, *more, *waiting(B, 2), slots=1) == []


def test_fused_processes_within_their_part_take_trials() -> None:
    there = [running(A, process=-1, **FUSED), running(B)]
    assert {action.number for action in decide(*there, *waiting(A + 1, 2, **FUSED), *waiting(B + 1, 2), slots=2)} == {
        A + 1,
        A + 2,
    }
