"""Groups of repeated jobs against plain loops, and what two on a GPU save."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from helios.metrics.history import StudyHistory, read_history
from helios.metrics.trials import (
    FEW_GPUS,
    FEWEST_TRIALS,
    SENT_WITHIN_S,
    find_trials,
    may_share,
    pair_trials,
    saved_hours,
    shared_run_times,
)
from helios.model import in_submission_order
from helios.model.records import split_words
from helios.study.statements.jobs import small_work
from tests.builders import a_job, jobs_frame

START = pd.Timestamp("2026-03-02T00:00:00Z")


def a_history(*jobs: dict[str, Any]) -> StudyHistory:
    recorded, names = in_submission_order(jobs_frame(*jobs)), ("user", "account", "name")
    return read_history(recorded, cluster="venus", timezone="UTC", resource="gpus", keep=names)


def sent(after_s: float, **named: Any) -> dict[str, Any]:
    """A job submitted so long after the begin, which waits 5 s unless its start is given."""
    at = {"submitted_at": START + pd.Timedelta(seconds=after_s)}
    return a_job(**at | {"run_time_s": 7_200.0, "name": "lr=0.1"} | named)


def a_random_history(seed: int) -> StudyHistory:
    rng = np.random.default_rng(seed)
    jobs = []
    for number in range(90):
        array = rng.integers(0, 3)
        after_s = float(rng.choice([0, 1, 30, 300, 590, 600, 601, 2_000])) + 400 * int(rng.integers(0, 8))
        job = {
            "job_id": str(1 if rng.random() < 0.05 else number + 2),
            "restart": int(rng.random() < 0.05),
            "user": rng.choice(["alice", "alice", "bob", None]),
            "gpus": int(rng.choice([1, 1, 1, 2, FEW_GPUS, 0, FEW_GPUS + 1], p=[0.3, 0.3, 0.2, 0.1, 0.04, 0.03, 0.03])),
            "name": rng.choice(["lr=0.1", "lr=0.2", "eval", "17", None]),
            "array_job_id": None if array == 0 else str(900 + array),
            "partition": rng.choice(["gpu", "debug"]),
            "run_time_s": float(rng.choice([1, 60, 400, 5_000])),
        }
        jobs.append(sent(after_s, **job))
    return a_history(*jobs)


def groups_by_loops(history: StudyHistory, *, sure: bool) -> set[frozenset[int]]:
    """Return the groups as the documentation defines them, job by job."""
    by_key: dict[tuple[Any, ...], list[list[int]]] = {}
    for job in range(len(history.size)):
        row = history.jobs.iloc[job]
        if pd.isna(row["user"]) or not 1 <= history.size[job] <= FEW_GPUS:
            continue
        stem = "" if pd.isna(row["name"]) else split_words(row["name"])
        key: tuple[Any, ...] = (row["user"], row["account"], int(history.size[job]), stem)
        if sure and pd.notna(row["name"]):
            key = (*key, "name", row["name"])
        elif sure and pd.notna(row["array_job_id"]):
            key = (*key, "array", row["array_job_id"])
        elif sure:
            continue
        groups = by_key.setdefault(key, [])
        at_s = history.submitted_s[job]
        if (
            not groups
            or at_s - history.submitted_s[groups[-1][-1]] > SENT_WITHIN_S
            or all(history.ended_s[other] <= at_s for other in groups[-1])
        ):
            groups.append([])
        groups[-1].append(job)
    ids = history.jobs["job_id"].tolist()
    found = [group for groups in by_key.values() for group in groups]
    return {frozenset(group) for group in found if len({ids[job] for job in group}) >= FEWEST_TRIALS}


def as_sets(group: np.ndarray) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(group == number).tolist()) for number in np.unique(group[group >= 0])}


@pytest.mark.parametrize("seed", range(15))
def test_groups_are_those_of_plain_loops(seed: int) -> None:
    history = a_random_history(seed)
    found = find_trials(history)
    assert as_sets(found.possible) == groups_by_loops(history, sure=False)
    assert as_sets(found.sure) == groups_by_loops(history, sure=True)
    assert (found.possible[found.sure >= 0] >= 0).all(), "what is sure is possible"


def test_random_histories_have_groups_of_both_kinds() -> None:
    found = [find_trials(a_random_history(seed)) for seed in range(15)]
    assert sum((one.sure >= 0).any() for one in found) > 7
    assert sum(((one.possible >= 0) & (one.sure < 0)).any() for one in found) > 7


def test_names_that_differ_in_numbers_are_possible_and_not_sure() -> None:
    found = find_trials(a_history(*(sent(place, name=f"lr={place}") for place in range(4))))
    assert found.possible.tolist() == [0, 0, 0, 0]
    assert found.sure.tolist() == [-1, -1, -1, -1]


def test_an_array_without_a_name_is_sure() -> None:
    found = find_trials(a_history(*(sent(place, name=None, array_job_id="7") for place in range(4))))
    assert found.sure.tolist() == [0, 0, 0, 0]
    assert found.of_array.all()


def test_a_job_sent_again_after_its_end_is_no_sweep() -> None:
    again = find_trials(a_history(*(sent(100 * place, run_time_s=10.0) for place in range(6))))
    assert (again.possible == -1).all()


def test_runs_of_one_requeued_job_are_no_sweep() -> None:
    runs = [
        sent(0, job_id="5", restart=restart, started_at=START + pd.Timedelta(hours=restart)) for restart in range(4)
    ]
    assert (find_trials(a_history(*runs)).possible == -1).all()


def test_jobs_of_unknown_users_are_in_no_group() -> None:
    assert (find_trials(a_history(*(sent(place, user=None) for place in range(5)))).possible == -1).all()


def saved_by_loops(history: StudyHistory, group: np.ndarray, gain: float) -> float:
    hours, total = history.hours(), 0.0
    waiting: dict[tuple[int, int], int] = {}
    last_s: dict[tuple[int, int], int] = {}
    for job in range(len(hours)):
        if group[job] < 0 or not may_share(history)[job]:
            continue
        key = (int(group[job]), int(history.partition.code[job]))
        # Who comes long after the one before in this partition finds nobody to share with.
        if history.submitted_s[job] - last_s.get(key, history.submitted_s[job]) > SENT_WITHIN_S:
            waiting.pop(key, None)
        last_s[key] = int(history.submitted_s[job])
        if key not in waiting:
            waiting[key] = job
            continue
        one_h, other_h = hours[waiting.pop(key)], hours[job]
        shared_h = 2 * min(one_h, other_h) / gain
        total += one_h + other_h - (shared_h + abs(one_h - other_h))
    return total


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("gain", [0.9, 1.5])
def test_saved_hours_are_those_of_plain_loops(seed: int, gain: float) -> None:
    history = a_random_history(seed)
    group = find_trials(history).possible
    assert saved_hours(history, group, gain).sum() == pytest.approx(saved_by_loops(history, group, gain))


def test_nothing_is_saved_where_sharing_gains_nothing_and_half_where_it_doubles() -> None:
    history = a_history(*(sent(0) for _ in range(4)))
    group = find_trials(history).possible
    held = history.hours().sum()
    assert saved_hours(history, group, 1.0).sum() == 0
    assert saved_hours(history, group, 2.0).sum() == pytest.approx(held / 2)


def test_the_longer_of_two_is_alone_at_last() -> None:
    one_s, other_s = shared_run_times(np.array([100.0]), np.array([300.0]), 1.6)
    assert one_s[0] == pytest.approx(125.0), "two together do 1.6 x the work of one, so each .8"
    assert other_s[0] == pytest.approx(325.0), "200 s of work are left, alone"


def test_pairs_are_of_one_group_and_partition_in_the_order_of_submission() -> None:
    group = np.array([0, 0, 1, 0, 0, 1, -1, 0])
    partition = np.array([0, 0, 0, 1, 0, 0, 0, 0], dtype=np.int32)
    may = np.array([True, True, True, True, True, True, True, False])
    first, second = pair_trials(group, partition, np.arange(8), may)
    assert sorted(zip(first.tolist(), second.tolist(), strict=True)) == [(0, 1), (2, 5)]


def test_statement_16_has_the_hours_of_these_groups() -> None:
    jobs = [*(sent(0) for _ in range(3)), *(sent(1, name=f"wd={place}") for place in range(3)), sent(2, gpus=8)]
    history = a_history(*jobs, sent(86_400, user="carol"), sent(3 * 86_400, gpus=0))
    told = small_work(history, node_cpus=None, node_memory_mib=None)
    hours, trials = history.hours(), find_trials(history)
    low, high = (hours[group >= 0].sum() / hours.sum() for group in (trials.sure, trials.possible))
    assert told.parts["share_of_hours_repeated_low"] == pytest.approx(low)
    assert told.parts["share_of_hours_repeated_high"] == pytest.approx(high)
    assert 0 < low < high < (told.estimate.value or 0)
