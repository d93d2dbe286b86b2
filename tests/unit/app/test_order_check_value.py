"""What predictions are worth: shares between today's queue and the one of true run times."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest

from helios.app.history import LoadedHistory
from helios.app.model_registry import judge
from helios.app.order_check import DrawnWindow, value_of_predictions, value_or_reason
from helios.app.whatif import WhatIfRequest
from helios.report.models import REPLAY_NAMES, OrderValue, model_notes
from tests.builders import a_job, jobs_frame

START = pd.Timestamp("2020-01-01", tz="UTC")
CROWDED = WhatIfRequest(nodes={"gpu": 1}, gpus_per_node=2)


def a_history(n_jobs: int = 900, *, every_s: int = 100, **columns: Any) -> LoadedHistory:
    """Two users in turn, one whose jobs take 20 s, one whose jobs take 400 s; all ask for both GPUs."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(n_jobs):
        user, run_s = (("short", 20), ("long", 400))[int(rng.random() < 0.3)]
        at = START + timedelta(seconds=every_s * number)
        job = {"user": user, "submitted_at": at, "gpus": 2, "run_time_s": run_s, "time_limit_s": 3_600}
        rows.append(a_job(started_at=at, ended_at=at + timedelta(seconds=run_s), **job | columns))
    return LoadedHistory(cluster="venus", jobs=jobs_frame(*rows), timezone="UTC")


def asked(history: LoadedHistory, request: WhatIfRequest = CROWDED) -> OrderValue:
    return value_of_predictions(history, request, train_until=None, test_fraction=0.3)


@pytest.fixture(scope="module")
def crowded() -> OrderValue:
    return asked(a_history())


def test_good_predictions_realise_most_of_what_true_run_times_would(crowded: OrderValue) -> None:
    assert crowded.share("model") == pytest.approx(1.0, abs=0.15)
    assert crowded.share("fifo") == 0
    assert crowded.share("oracle") == 1


def test_an_order_that_knows_nothing_gains_nothing_among_equal_jobs(crowded: OrderValue) -> None:
    assert crowded.share("smallest_first") == pytest.approx(0.0)


def test_only_the_judged_part_is_replayed_and_counted(crowded: OrderValue) -> None:
    assert {summary.jobs for summary in crowded.replays.values()} == {270}


def test_every_replay_has_a_name_for_people(crowded: OrderValue) -> None:
    assert set(crowded.replays) == set(REPLAY_NAMES)


def test_a_what_if_of_the_judged_part_begins_with_the_same_model() -> None:
    history = a_history()
    # The first judged jobs hold no GPU, and others end before the first that does.
    jobs = history.jobs.assign(gpus=history.jobs["gpus"].mask(np.arange(900) // 20 == 630 // 20, 0))
    since = jobs["submitted_at"].iloc[630].to_pydatetime()
    judged = judge(replace(history, jobs=jobs), train_until=since, seed=0)
    request = WhatIfRequest(scenarios=(), since=since, nodes=CROWDED.nodes, gpus_per_node=2)
    begun = DrawnWindow(replace(history, jobs=jobs), request).model
    assert begun is not None
    assert begun.model_id == judged.model.model_id


def test_a_machine_on_which_nobody_waits_gains_nothing() -> None:
    value = asked(a_history(every_s=500))
    assert value.share("model") is None
    assert value.to_json()["share_of_oracle_gain"] is None


def test_the_share_is_of_the_gain_in_mean_wait(crowded: OrderValue) -> None:
    wait = {name: summary.mean_wait_s for name, summary in crowded.replays.items()}
    expected = (wait["fifo"] - wait["user_last"]) / (wait["fifo"] - wait["oracle"])
    assert crowded.to_json()["replays"]["user_last"]["share_of_oracle_gain"] == pytest.approx(expected)


def test_jobs_that_cannot_be_replayed_cost_no_more_than_this_judgement() -> None:
    history = a_history(250, gpus=0, cpus=0)
    reason = value_or_reason(history, CROWDED, train_until=None, test_fraction=0.3)
    assert isinstance(reason, str)
    assert "cannot be replayed" in reason
    assert model_notes(reason) == (reason,)


def test_jobs_larger_than_the_machine_are_left_out_and_said_to_be() -> None:
    history = a_history()
    history.jobs.loc[history.jobs.index[-1], "gpus"] = 64
    value = asked(history)
    assert value.replays["fifo"].jobs == 269
    assert any("larger" in note for note in value.notes)
