"""The breaker: when it opens, how long it stays so, and that no restart shortens it."""

from datetime import timedelta

import pytest

from helios.config import Control
from helios.control import BreakerState, CircuitBreaker, ControllerState
from helios.testing import NOON

RULES = Control(mismatches_to_open=3, breaker_s=900)
WAIT = timedelta(seconds=900)


def after_bad_cycles(number: int) -> CircuitBreaker:
    breaker = CircuitBreaker()
    for _ in range(number):
        breaker = breaker.after_a_bad_cycle(now=NOON, settings=RULES)
    return breaker


def state(breaker: CircuitBreaker, after: timedelta = timedelta(0)) -> BreakerState:
    return breaker.state(now=NOON + after, settings=RULES)


def test_the_breaker_opens_after_the_configured_number_of_bad_cycles() -> None:
    assert [state(after_bad_cycles(number)) for number in range(4)] == ["closed", "closed", "closed", "open"]


def test_a_good_cycle_begins_the_count_anew() -> None:
    breaker = after_bad_cycles(2).after_a_good_cycle().after_a_bad_cycle(now=NOON, settings=RULES)
    assert state(breaker) is BreakerState.CLOSED


def test_it_stays_open_for_its_time_and_then_lets_one_cycle_try() -> None:
    breaker = after_bad_cycles(3)
    assert state(breaker, WAIT - timedelta(seconds=1)) is BreakerState.OPEN
    assert state(breaker, WAIT) is BreakerState.HALF_OPEN


def test_the_cycle_that_tries_decides() -> None:
    breaker = after_bad_cycles(3)
    assert state(breaker.after_a_good_cycle(), WAIT) is BreakerState.CLOSED
    assert state(breaker.after_a_bad_cycle(now=NOON + WAIT, settings=RULES), WAIT) is BreakerState.OPEN


def test_a_restart_does_not_shorten_the_wait() -> None:
    restarted = ControllerState.from_json(ControllerState(breaker=after_bad_cycles(3)).to_json()).breaker
    assert restarted == after_bad_cycles(3)
    assert state(restarted, WAIT - timedelta(seconds=1)) is BreakerState.OPEN


def test_a_closed_breaker_has_no_end() -> None:
    with pytest.raises(ValueError, match="closed"):
        CircuitBreaker().closes_at(RULES)


def test_an_open_breaker_opens_again_at_once_after_a_patient_setting() -> None:
    strict, patient = Control(mismatches_to_open=1), Control(mismatches_to_open=9)
    again = CircuitBreaker().after_a_bad_cycle(now=NOON, settings=strict).after_a_bad_cycle(now=NOON, settings=patient)
    assert again.opened_at == NOON
