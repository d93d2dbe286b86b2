"""The checks of services for pools find what they look for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import pytest

from helios.training.check_service import check_pool_service
from helios.training.model import (
    PauseTrial,
    PoolAction,
    PoolSnapshot,
    ShareTrial,
    StartTrial,
    StopTrial,
    Trial,
    TrialState,
)

Answer = Callable[[PoolSnapshot], Iterable[PoolAction]]


def service(answer: Answer) -> type:
    class Made:
        @dataclass(frozen=True, kw_only=True)
        class Options:
            pass

        every = timedelta(minutes=1)

        def __init__(self, options: Options) -> None:
            self.options = options

        def decide(self, snapshot: PoolSnapshot) -> Iterable[PoolAction]:
            return answer(snapshot)

    return Made


def start(trial: Trial, device: str = "gpu:0", mib: float | None = None, reason: str = "test") -> StartTrial:
    return StartTrial(number=trial.number, devices=(device,), memory_limit_mib=mib, reason=reason)


def of(pool: PoolSnapshot, state: TrialState) -> list[Trial]:
    return [trial for trial in pool.trials if trial.state is state]


def test_a_service_that_does_nothing_keeps_its_promises() -> None:
    check_pool_service(service(lambda _: []))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda pool: ["start"], "is no action on a pool"),
        (lambda pool: [StopTrial(number=999_999, reason="test")], "not in the snapshot"),
        (lambda pool: [start(t) for t in of(pool, TrialState.WAITING)[:1] for _ in range(2)], "2 times"),
        (lambda pool: [start(t) for t in of(pool, TrialState.FINISHED)], "which is finished"),
        (lambda pool: [PauseTrial(number=t.number, reason="x") for t in of(pool, TrialState.WAITING)], "is waiting"),
        (lambda pool: [StopTrial(number=t.number, reason="x") for t in of(pool, TrialState.FAILED)], "is failed"),
        (
            lambda pool: [ShareTrial(number=t.number, share=1.0, reason="x") for t in of(pool, TrialState.PAUSED)],
            "paused",
        ),
        (
            lambda pool: [ShareTrial(number=t.number, share=0.0, reason="x") for t in of(pool, TrialState.RUNNING)],
            "above 0",
        ),
        (lambda pool: [start(t, "gpu:77") for t in of(pool, TrialState.WAITING)], "'gpu:77', which is not"),
        (lambda pool: [start(t, pool.devices[0].name) for t in of(pool, TrialState.WAITING)], "slots"),
        (lambda pool: [start(t, pool.devices[0].name, 9e9) for t in of(pool, TrialState.WAITING)[:1]], "it promises"),
        (lambda pool: [start(t, pool.devices[0].name, 1, " ") for t in of(pool, TrialState.WAITING)[:1]], "no reason"),
        (lambda pool: [][len(pool.trials)], "it raised IndexError"),
        (
            lambda pool: [StopTrial(number=t.number, reason=str(np.random.rand())) for t in pool.trials[:1]],
            "asks chance",
        ),
    ],
)
def test_a_broken_promise_is_named(answer: Answer, said: str) -> None:
    with pytest.raises(AssertionError, match="not yet a service for pools") as caught:
        check_pool_service(service(answer))
    assert said in str(caught.value)
