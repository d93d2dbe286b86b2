"""A simulated pool runs trials as fast as was measured, and shows a rule only what a pool would know."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.training.model import Device, PauseTrial, PoolAction, PoolSnapshot, StartTrial, TrialState
from helios.training.services.packing import Packing, PackingOptions
from helios.training.sharing_rules import longest_first, share_fixed
from helios.training.simulated_trials import PairProfiles, SimulatedTrial
from helios.training.simulator import Decide, PoolCosts, SimulatedPool
from tests.examples import examples

FREE = PoolCosts(start_s=0.0, pause_s=0.0, measure_s=10.0, noise=0.0)
GPU = Device(name="gpu:0", kind="gpu", memory_mib=16_000.0)


def profiles(beside: list[list[float]]) -> PairProfiles:
    names = tuple("abcdef"[: len(beside)])
    return PairProfiles(families=names, alone=np.arange(1.0, len(names) + 1), beside=np.array(beside))


def gpus(count: int) -> list[Device]:
    return [dataclasses.replace(GPU, name=f"gpu:{place}") for place in range(count)]


def test_two_trials_run_as_fast_as_measured_and_the_rest_alone() -> None:
    # a does .8 beside b and ends after 125 s; b did .5 of that and has 37.5 s left, alone.
    trials = [SimulatedTrial(family=0, seconds=100.0), SimulatedTrial(family=1, seconds=100.0)]
    found = SimulatedPool(trials, [GPU], profiles([[0.5, 0.8], [0.5, 0.5]]), costs=FREE).run(share_fixed(2))
    assert found.ended_s == pytest.approx((125.0, 162.5))
    assert found.busy_gpu_s == pytest.approx(162.5)


def test_three_on_a_device_run_in_pairs_by_turns() -> None:
    trials = [SimulatedTrial(family=0, seconds=60.0)] * 3
    found = SimulatedPool(trials, [GPU], profiles([[0.75]]), costs=FREE).run(share_fixed(3))
    assert found.makespan_s == pytest.approx(3 * 60.0 / 1.5)


def test_a_start_is_paid_at_each_attempt_and_slows_nobody() -> None:
    trials = [SimulatedTrial(family=0, seconds=100.0), SimulatedTrial(family=0, seconds=100.0, arrives_s=50.0)]
    costs = dataclasses.replace(FREE, start_s=20.0)
    found = SimulatedPool(trials, [GPU], profiles([[0.5]]), costs=costs).run(share_fixed(2))
    # Alone until the second has started at 70 s, with 50 s done; then half as fast, until 170 s.
    assert found.ended_s[0] == pytest.approx(170.0)


def test_a_newcomer_that_does_not_fit_is_killed_alone() -> None:
    trials = [SimulatedTrial(family=0, seconds=100.0, memory_mib=9_000.0)] * 2
    seen: list[float | None] = []

    def decide(snapshot: PoolSnapshot) -> list[PoolAction]:
        seen.extend(trial.out_of_memory_mib for trial in snapshot.trials)
        return share_fixed(2)(snapshot)  # type: ignore[return-value]  # because it returns a list

    found = SimulatedPool(trials, [GPU], profiles([[0.9]]), costs=FREE).run(decide)
    assert (found.out_of_memory, found.out_of_memory_late) == (1, 0)
    assert found.ended_s == pytest.approx((100.0, 200.0))
    assert 7_000.0 in seen


def test_a_paused_trial_keeps_its_progress() -> None:
    trials = [SimulatedTrial(family=0, seconds=100.0), SimulatedTrial(family=0, seconds=1.0, arrives_s=40.0)]

    def decide(snapshot: PoolSnapshot) -> list[PoolAction]:
        first = snapshot.trials[0]
        waiting = [t for t in snapshot.trials if t.state in {TrialState.WAITING, TrialState.PAUSED}]
        running = [t for t in snapshot.trials if t.state is TrialState.RUNNING]
        if snapshot.now_s == 40.0 and first in running:
            return [PauseTrial(number=0, reason="test")]
        if waiting and not running:
            return [StartTrial(number=waiting[-1].number, devices=("gpu:0",), memory_limit_mib=None, reason="test")]
        return []

    found = SimulatedPool(trials, [GPU], profiles([[0.9]]), costs=FREE).run(decide)
    assert found.ended_s == pytest.approx((101.0, 41.0))
    assert (found.starts, found.pauses) == (3, 1)


def test_a_speed_is_shown_only_after_it_was_measured() -> None:
    trials = [SimulatedTrial(family=0, seconds=100.0)] * 2
    seen: list[tuple[float, int]] = []

    def decide(snapshot: PoolSnapshot) -> list[PoolAction]:
        seen.append((snapshot.now_s, len(snapshot.speeds)))
        assert all(t.forecast.seconds_p50 is None for t in snapshot.trials) or snapshot.now_s >= 10.0
        return list(share_fixed(2)(snapshot))

    SimulatedPool(trials, [GPU], profiles([[0.9]]), costs=FREE).run(decide)
    assert {speeds for now, speeds in seen if now < 10.0} == {0}
    assert max(speeds for _, speeds in seen) == 1


def test_of_a_silent_program_only_its_end_is_seen() -> None:
    seen: list[tuple[float | None, float | None]] = []

    def decide(pool: PoolSnapshot) -> list[PoolAction]:
        seen.extend((trial.progress, trial.forecast.seconds_p50) for trial in pool.trials if trial.number == 2)
        return share_fixed(2)(pool)

    trials = [SimulatedTrial(family=0, seconds=60.0, reports=False)] * 3
    SimulatedPool(trials, [GPU], profiles([[0.5]]), costs=FREE).run(decide)
    assert {progress for progress, _ in seen} == {None}
    assert seen[0][1] is None
    assert seen[-1][1] == pytest.approx(120.0)


def test_a_rule_is_asked_between_events() -> None:
    asked: list[float] = []

    def decide(snapshot: PoolSnapshot) -> list[PoolAction]:
        asked.append(snapshot.now_s)
        return list(share_fixed(1)(snapshot))

    found = SimulatedPool([SimulatedTrial(family=0, seconds=1_000.0)], [GPU], profiles([[0.9]]), costs=FREE).run(decide)
    assert found.makespan_s == pytest.approx(1_000.0)
    assert max(np.diff([*asked, found.makespan_s])) <= 1_000.0 / 20 + 1e-6


@given(changed=st.lists(st.floats(0.3, 1.0), min_size=3, max_size=3))
@settings(max_examples=examples(20), deadline=None)
def test_what_was_not_measured_yet_changes_nothing_before(changed: list[float]) -> None:
    """The speeds beside c differ, and nothing that is shown before c starts does."""
    shown = []
    for last in ([0.5, 0.5, 0.5], changed):
        table = [[0.9, 0.8, last[0]], [0.7, 0.6, last[1]], [last[2], 0.5, 0.5]]
        trials = [
            SimulatedTrial(family=0, seconds=100.0),
            SimulatedTrial(family=1, seconds=90.0),
            SimulatedTrial(family=2, seconds=50.0, arrives_s=60.0),
        ]
        seen: list[PoolSnapshot] = []

        def decide(snapshot: PoolSnapshot, seen: list[PoolSnapshot] = seen) -> list[PoolAction]:
            if snapshot.now_s < 60.0:
                seen.append(snapshot)
            return list(share_fixed(3)(snapshot))

        SimulatedPool(trials, [GPU], profiles(table), costs=FREE).run(decide)
        shown.append(seen)
    assert shown[0] == shown[1]


@pytest.mark.parametrize(
    ("rule", "times_s", "counts"),
    [
        (share_fixed(1), (6676.7077, 3211.4216), (0, 24, 0)),
        (share_fixed(2), (6715.8588, 3145.2190), (16, 40, 0)),
        (share_fixed(4), (6549.3043, 3130.7707), (17, 41, 0)),
        (longest_first, (6770.1433, 3795.5331), (0, 24, 0)),
        (Packing(PackingOptions()).decide, (5926.9493, 2346.5345), (5, 35, 6)),
    ],
)
def test_without_further_effects_results_stay_as_they_were(
    rule: Decide, times_s: tuple[float, ...], counts: tuple[int, ...]
) -> None:
    random = np.random.default_rng(7)
    beside = random.uniform(0.45, 1.0, (4, 4))
    beside[0, 3] = beside[3, 0] = np.nan
    memory_mib = (3_000.0, 5_000.0, 7_000.0, 11_000.0)
    trials = [
        SimulatedTrial(
            family=int(family),
            seconds=float(300 * (family + 1) * np.exp(random.normal(0, 0.2))),
            memory_mib=float(memory_mib[family] * random.uniform(0.9, 1.1)),
            arrives_s=float(arrival),
            parameters={"width": 2 ** int(family)},
            reports=number % 5 > 0,
        )
        for number, (family, arrival) in enumerate(
            zip(random.integers(0, 4, 24), np.sort(random.choice([0.0, 500.0, 1_500.0], 24)), strict=True)
        )
    ]
    speeds = PairProfiles(families=tuple("abcd"), alone=np.array([1.0, 2.0, 5.0, 9.0]), beside=beside)
    devices = [dataclasses.replace(device, memory_mib=16_384.0) for device in gpus(3)]
    found = SimulatedPool(trials, devices, speeds, seed=3).run(rule)
    assert (found.makespan_s, found.mean_result_s) == pytest.approx(times_s, abs=0.01)
    assert (found.out_of_memory, found.starts, found.pauses) == counts


def test_a_rule_that_starts_nothing_is_refused() -> None:
    pool = SimulatedPool([SimulatedTrial(family=0, seconds=1.0)], [GPU], profiles([[0.9]]))
    with pytest.raises(RuntimeError, match="starts nothing"):
        pool.run(lambda _: [])
