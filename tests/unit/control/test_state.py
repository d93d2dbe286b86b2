"""The memory of a cycle goes through text and back, and damage is not taken for an empty memory."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from helios.actions import JobSetting, Outcome, Result
from helios.config import Control
from helios.control import (
    CircuitBreaker,
    ControllerState,
    Failure,
    NodeControllerState,
    ServiceSuspension,
    WakeUp,
)
from helios.control.state import state_digest
from helios.errors import MemoryDamaged
from helios.testing import NOON

FULL = ControllerState(
    asked_at={"qssf": NOON},
    breaker=CircuitBreaker().after_a_bad_cycle(now=NOON, settings=Control(mismatches_to_open=1)),
    suspension=ServiceSuspension().after_a_failure("ces", what="ÄÖ\n'x'", now=NOON),
    controller="ctl1",
    pending=12,
    nodes=3,
    suspended=("paused: by alice",),
    said={"qssf": frozenset({"a1", "b2"})},
)


@pytest.mark.parametrize("memory", [ControllerState(), FULL])
def test_a_memory_survives_its_text(memory: ControllerState) -> None:
    assert ControllerState.from_json(memory.to_json()) == memory


def test_the_text_of_earlier_releases_is_read_and_written() -> None:
    text = (
        '{"asked_at": {"qssf": "2026-01-05T12:00:00+00:00"}, '
        '"breaker": {"bad_in_row": 1, "opened_at": "2026-01-05T12:00:00+00:00"}, '
        '"suspension": {"ces": {"in_row": 1, "last_at": "2026-01-05T12:00:00+00:00", "what": "'
        "\\u00c4\\u00d6\\n'x'"
        '"}}, "controller": "ctl1", "pending": 12, "nodes": 3, "suspended": ["paused: by alice"], '
        '"said": {"qssf": ["a1", "b2"]}}'
    )
    assert FULL.to_json() == text
    assert ControllerState.from_json(text) == FULL


def test_the_nodes_text_of_earlier_releases_is_read_and_written() -> None:
    failure = Failure(node="n1", at=NOON, what="did not wake")
    state = NodeControllerState(
        cycle=FULL,
        looked_at=NOON,
        slept={"n1": (NOON, NOON)},
        wakes={"n2": WakeUp(since=NOON, by="Slurm")},
        failures=(failure,),
        quarantined={"n1": failure},
        protected_at=None,
        keep_off={"n3": NOON},
    )
    at = "2026-01-05T12:00:00+00:00"
    assert json.loads(state.to_json()) == {
        "cycle": FULL.to_json(),
        "looked_at": at,
        "idle": {},
        "slept": {"n1": [at, at]},
        "wakes": {"n2": [at, "Slurm"]},
        "failures": [["n1", at, "did not wake"]],
        "quarantined": [["n1", at, "did not wake"]],
        "protected_at": None,
        "keep_off": {"n3": at},
        "delayed": {},
    }
    assert NodeControllerState.from_json(state.to_json()) == state


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "null", "[]", "[" * 200_000, FULL.to_json()[:-10]),
        FULL.to_json().replace("2026-01-05", "yesterday"),
        FULL.to_json().replace('"bad_in_row": 1', '"bad_in_row": 1e999'),
        FULL.to_json().replace('"bad_in_row": 1, ', ""),
        FULL.to_json().replace('"suspension":', '"other":'),
    ],
    ids=range(10),
)
def test_a_damaged_memory_is_said_to_be_damaged(text: str) -> None:
    with pytest.raises(MemoryDamaged, match="cannot be read"):
        ControllerState.from_json(text)


def test_a_clock_set_back_makes_a_service_due() -> None:
    assert FULL.is_due("qssf", every=timedelta(hours=1), now=NOON - timedelta(hours=2))
    assert not FULL.is_due("qssf", every=timedelta(hours=1), now=NOON + timedelta(minutes=1))


def test_a_refusal_of_another_job_setting_or_reason_is_another_refusal() -> None:
    refusal = Outcome(
        action="Reorder", setting=JobSetting.ORDER, job_id="1", result=Result.REFUSED, reason="so", remark="held"
    )
    others = [
        replace(refusal, job_id="2"),
        replace(refusal, setting=JobSetting.SOFT_LIMIT),
        replace(refusal, remark="reserved"),
        replace(refusal, result=Result.FAILED),
    ]
    assert len({state_digest(outcome) for outcome in (refusal, *others)}) == 5
    assert state_digest(replace(refusal, reason="another wording of the service's")) == state_digest(refusal)
