"""The queue replayed with trials that share GPUs, on a cluster small enough to do in one's head."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest

from helios.app.history import LoadedHistory
from helios.errors import UsageError
from helios.model import in_submission_order
from helios.report.admin.sacct_format import as_parsable
from helios.training.repeated.replay import PackingCase, find_repeated
from helios.training.repeated.report import TrialsReport
from tests.builders import a_job, jobs_frame

START = pd.Timestamp("2026-03-02T00:00:00Z")
DAY = timedelta(days=1)


def sent(after_s: float, **named: Any) -> dict[str, Any]:
    return a_job(**{"submitted_at": START + pd.Timedelta(seconds=after_s), "run_time_s": 100.0} | named)


def repeated(*jobs: dict[str, Any], select: dict[str, list[str]] | None = None, **packing: Any) -> TrialsReport:
    frame = in_submission_order(jobs_frame(*jobs))
    loaded = LoadedHistory(cluster="venus", jobs=frame, timezone="UTC")
    how = {"nodes": {"all": 1}, "gpus_per_node": 1, "draws": 0} | packing
    return find_repeated(loaded, since=START, until=START + DAY, select=select, packing=PackingCase(**how))


def three_trials_and_another() -> list[dict[str, Any]]:
    """Three trials of 100 s, and a job of somebody else behind them, all for one GPU."""
    return [*(sent(0) for _ in range(3)), sent(1, user="bob", run_time_s=10.0)]


def test_others_wait_for_one_trial_less_where_two_share_for_nothing() -> None:
    unpacked, _, packed = repeated(*three_trials_and_another(), gains=(1.0, 2.0)).replays[:3]
    # The third trial has nobody to share with. It and the other job waited 200 and 299 s.
    assert (unpacked.packed, unpacked.mean_wait_s) == (0, pytest.approx(249.5))
    assert (packed.packed, packed.gain, packed.mean_wait_s) == (2, 2.0, pytest.approx(149.5))
    assert packed.less_s == pytest.approx(100)
    # The two had their results after 100 and 200 s, and both have them after 100 s.
    assert (unpacked.trials_s, packed.trials_s) == (pytest.approx(150), pytest.approx(100))
    assert packed.trials_less_s == pytest.approx(50)


def test_sharing_that_gains_nothing_only_makes_trials_late() -> None:
    unpacked, packed = repeated(*three_trials_and_another(), gains=(1.0, 2.0)).replays[:2]
    assert (packed.gain, packed.less_s) == (1.0, pytest.approx(0))
    assert packed.mean_wait_s == unpacked.mean_wait_s
    assert packed.trials_less_s == pytest.approx(-50), "both have their results when both are done"


def test_names_that_differ_are_packed_at_most() -> None:
    jobs = [*(sent(0, name=f"lr={place}") for place in range(4)), sent(1, user="bob")]
    found = repeated(*jobs)
    assert [one.gain for one in found.replays] == [None, 1.0, 1.26], "nothing is sure, so only what is possible"
    assert found.totals["fusible_hours_low"] == 0
    assert found.totals["fusible_hours_high"] == pytest.approx(400 / 3600)
    assert found.table.rows[["user", "groups", "jobs"]].to_numpy().tolist() == [["alice", 1, 4]]


def test_an_interval_has_its_ends_in_order() -> None:
    jobs = [*(sent(0) for _ in range(5)), *(sent(3, name=f"wd={place}", gpus=2) for place in range(4))]
    total = repeated(*jobs, gpus_per_node=4).totals
    for name in ("repeated", "fusible", "saved"):
        assert 0 <= total[f"{name}_hours_low"] <= total[f"{name}_hours_high"] <= total["gpu_hours"]
    assert total["repeated_hours_high"] > total["fusible_hours_high"] == total["one_gpu_hours"]


def test_only_jobs_that_are_asked_for_are_packed() -> None:
    jobs = [*three_trials_and_another(), *(sent(2, user="carol") for _ in range(4))]
    found = repeated(*jobs, select={"users": ["carol"]})
    assert found.table.rows["user"].tolist() == ["carol"]
    assert found.replays[-1].packed == 4
    assert found.totals["gpu_hours"] == pytest.approx(400 / 3600)


def test_draws_give_ranges_that_hold_for_the_same_seed() -> None:
    rng = np.random.default_rng(7)
    jobs = [sent(float(at), run_time_s=300.0, name=f"{at}") for at in rng.integers(0, 20_000, size=120)]
    one, again = (repeated(*jobs, draws=12, seed=3).replays[-1] for _ in range(2))
    assert one == again
    assert one.less_low_s is not None and one.less_high_s is not None
    assert one.less_low_s <= one.less_high_s
    assert repeated(*jobs, draws=5).replays[-1].less_low_s is None, "five draws are no range"


@pytest.mark.parametrize(
    ("jobs", "why"),
    [
        ([sent(0, gpus=0)], "No job names a GPU in this history"),
        ([sent(0, user=None)], "Users are not recorded here"),
        ([sent(-9 * 86_400)], "No job names a GPU in this window."),
    ],
)
def test_what_is_not_known_is_said(jobs: list[dict[str, Any]], why: str) -> None:
    found = repeated(*jobs)
    assert found.table.rows.empty
    assert found.table.empty.startswith(why)
    assert (found.sentences, list(found.replays)) == ([], [])


def test_jobs_that_have_not_ended_are_reported_and_not_replayed() -> None:
    running = {"state": "RUNNING", "ended_at": None, "run_time_s": float("nan")}
    found = repeated(*(sent(0, **running) for _ in range(4)))
    assert found.totals["fusible_hours_high"] > 0
    assert not found.replays
    assert found.replay_notes[0].startswith("Nothing was replayed")


@pytest.mark.parametrize("gains", [(1.5, 1.2), (0.1, 1.0), (1.0, 2.5), (float("nan"), 1.0)])
def test_a_gain_that_cannot_be_is_refused(gains: tuple[float, float]) -> None:
    with pytest.raises(UsageError) as refused:
        PackingCase(gains=gains)
    assert "--gain" in refused.value.hint


def test_trials_that_are_done_later_have_a_sign() -> None:
    table = repeated(*three_trials_and_another(), gains=(1.0, 2.0)).replay_table()
    length = next(field for field in table.fields if field.name == "Less")
    rows = replace(table, rows=table.rows.assign(less_s=-122.0))
    assert list(as_parsable(rows, [length]))[1:] == ["-00:02:02"] * len(rows.rows)


def test_jobs_that_were_submitted_before_the_window_count_with_their_hours() -> None:
    jobs = [sent(-100, run_time_s=10_000.0) for _ in range(4)]
    found = repeated(*jobs, sent(1, user="bob"))
    (row,) = found.table.rows.to_dict("records")
    assert row["gpu_hours"] > 0
    assert row["jobs"] == 4


def test_the_upper_gain_is_that_of_two_of_the_same_program() -> None:
    found = repeated(*(sent(0, name=f"lr={place}") for place in range(4)))
    assert found.gains == (1.0, 1.26)
