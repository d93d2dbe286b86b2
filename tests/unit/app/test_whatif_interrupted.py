"""Ctrl-C in a what-if."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from helios.app.history import LoadedHistory
from helios.app.scenarios import scenarios
from helios.app.whatif import WhatIfRequest, whatif
from helios.choices import Backfill, Policy
from helios.ingest import synthetic_trace

PLANS = scenarios(policies=[Policy.FIFO, Policy.FEWEST_GPUS], backfills=[Backfill.NONE, Backfill.EASY])


def interrupted_at(step: int, *, keeps_finished: bool):
    jobs = synthetic_trace(start=datetime(2020, 9, 1, tzinfo=UTC), days=1)
    request = WhatIfRequest(scenarios=PLANS, nodes={"all": 10}, skip_oversized=True)
    begun = []

    def progress(what: str, done: float) -> None:
        if done == 0.0:
            begun.append(what)
        if len(begun) > step:
            raise KeyboardInterrupt

    history = LoadedHistory(cluster="venus", jobs=jobs, timezone="UTC")
    return whatif(history, request, progress=progress, keeps_finished=keeps_finished)


def test_finished_replays_are_kept_and_said_to_be_some() -> None:
    found = interrupted_at(2, keeps_finished=True)
    assert found.interrupted
    assert [run.label for run in found.runs] == ["FIFO", "FIFO + EASY (limit)"]
    assert "Interrupted: 2 of 4 replays were made, and only these are shown." in found.notes


@pytest.mark.parametrize(("step", "keeps_finished"), [(0, True), (2, False)])
def test_without_a_finished_replay_or_the_wish_it_ends(step: int, keeps_finished: bool) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted_at(step, keeps_finished=keeps_finished)
