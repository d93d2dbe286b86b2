"""Statements on jobs against plain counts over small random histories."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from itertools import pairwise, product

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.metrics.blocks import Finding
from helios.study.capacity import find_capacity
from helios.study.statements import jobs as findings
from tests.examples import examples
from tests.unit.study.random_worlds import DAY, END, HOUR, Row, history_of, rows
from tests.unit.study.worlds import a_history, job

LOST = {"FAILED", "OUT_OF_MEMORY", "NODE_FAIL"}
RUNS_ON = {"RUNNING", "PENDING"}
worlds = settings(max_examples=examples(25), deadline=None)


def share(part: list[Row], whole: list[Row]) -> float | None:
    """The share of the GPU hours, None where there are none."""
    total = sum(row.hours for row in whole)
    return sum(row.hours for row in part) / total if total else None


def same(found: Finding, value: float | None) -> None:
    """Compare a finding with what was counted."""
    assert found.estimate.value == (None if value is None else pytest.approx(value, abs=1e-9))
    if found.estimate.low is not None and found.estimate.high is not None:
        assert found.estimate.low <= found.estimate.high


def at_limit(row: Row) -> bool:
    close = row.limit is not None and math.isfinite(row.limit) and row.run is not None and row.run >= 0.98 * row.limit
    return row.state == "TIMEOUT" or (close and row.state not in {"COMPLETED", *RUNS_ON})


def last_alike(rows: list[Row], row: Row) -> Row | None:
    alike = [
        (other.ended, place, other)
        for place, other in enumerate(rows)
        if row.user is not None and (other.user, other.gpus) == (row.user, row.gpus)
        if other.run is not None and other.ended is not None and other.ended < row.submitted
    ]
    return max(alike)[2] if alike else None


def seen_by(rows: list[Row]) -> list[Row]:
    """The rows that a window shows: submitted before its end, and not over before its begin."""
    return [row for row in rows if row.submitted >= 0 or row.ended is None or row.ended > 0]


@worlds
@given(rows())
def test_late_failures_are_those_of_a_plain_count(world: list[Row]) -> None:
    world = seen_by(world)
    known = [row for row in world if row.state is not None]
    late = [row for row in known if row.state in LOST and (row.run or 0) > HOUR and not at_limit(row)]
    found = findings.long_failures(history_of(world))
    same(found, share(late, known))
    assert found.parts["failed_hours"] == pytest.approx(sum(row.hours for row in world if row.state in LOST))


@worlds
@given(rows())
def test_repeated_failures_are_those_of_a_plain_search(world: list[Row]) -> None:
    world = seen_by(world)
    known = [row for row in world if row.counted and row.state is not None and row.state not in RUNS_ON]
    after = {}
    for row in known:
        before = last_alike(world, row)
        if before is not None and before.state is not None:
            after[row] = before
    follows = {row for row, before in after.items() if before.state in LOST}
    third = [row for row in follows if row.state in LOST and after[row] in follows]
    found = findings.repeated_failures(history_of(world))
    same(found, share(third, [row for row in world if row.state is not None]) if follows else None)
    if follows:
        again = sum(row.state in LOST for row in follows) / len(follows)
        assert found.parts["share_that_fails_after_failure"] == pytest.approx(again)


@worlds
@given(rows())
def test_hours_at_the_limit_are_those_of_a_plain_count(world: list[Row]) -> None:
    world = seen_by(world)
    known = [row for row in world if row.state is not None or (row.limit is not None and math.isfinite(row.limit))]
    found = findings.hours_at_limit(history_of(world))
    same(found, share([row for row in world if at_limit(row)], known))


@worlds
@given(rows())
def test_long_limits_are_the_median_of_hours_written_out(world: list[Row]) -> None:
    ratios = []
    for row in seen_by(world):
        if row.counted and row.state in {"COMPLETED", "TIMEOUT"} and row.run and row.limit and math.isfinite(row.limit):
            ratios += [row.limit / row.run] * (row.gpus * row.run)
    ratios.sort()
    same(findings.long_limits(history_of(world)), ratios[(len(ratios) - 1) // 2] if ratios else None)


@worlds
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 3), st.integers(0, 20)), min_size=6, max_size=14))
def test_the_top_users_hold_and_wait_what_a_plain_count_says(world: list[tuple[int, int, int]]) -> None:
    jobs = [
        Row(
            HOUR * place,
            HOUR * place,
            HOUR * place + wait,
            HOUR * (place + 3) + wait,
            "COMPLETED",
            gpus,
            user=f"u{user}",
        )
        for place, (user, gpus, wait) in enumerate(world)
    ]
    hours, waited = Counter[str](), Counter[str]()
    for row in jobs:
        hours[str(row.user)] += round(HOUR * row.hours)
        waited[str(row.user)] += len(row.waits)
    found = findings.concentration(history_of(jobs))
    if len(hours) < 5:
        assert found.missing
        return
    same(found, max(hours.values()) / sum(hours.values()))
    told, tops = (
        found.parts["share_of_waiting_of_top_users"],
        [user for user in hours if hours[user] == max(hours.values())],
    )
    assert told is None or any(told == pytest.approx(waited[user] / sum(waited.values())) for user in tops)


@worlds
@given(rows())
def test_who_waits_is_the_median_of_the_shorter_half(world: list[Row]) -> None:
    chosen = [row for row in seen_by(world) if row.counted and not row.restart and row.run and row.started is not None]
    found = findings.who_waits(history := history_of(world), find_capacity(history))
    waits = [(row.started or 0) - row.eligible for row in chosen]
    runs = [row.run or 0 for row in chosen]
    spent = [wait / (wait + run) for wait, run in zip(waits, runs, strict=True) if run <= np.median(runs)]
    same(found, float(np.median(spent)) if chosen else None)
    if chosen:
        assert found.parts["mean_wait_s"] == pytest.approx(900 * np.mean(waits))


def test_waits_are_also_those_of_jobs_that_ended_as_they_began() -> None:
    world = [Row(0, 0, 4, 8, "COMPLETED", 1, "p"), Row(1, 1, 1, 1, "FAILED", 1, "p")]
    found = findings.who_waits(history := history_of(world), find_capacity(history))
    same(found, 0.5)
    assert (found.parts["mean_wait_s"], found.n) == (900 * 2, 1)


QUARTER_S, LONG_S = 900, 7 * 3600
spells = st.tuples(
    *(st.integers(-8, 30), st.integers(0, 12), st.sampled_from([1, 600, 899, 900, 1800, LONG_S]), st.integers(1, 4)),
    *(st.sampled_from("pq"), st.integers(0, 1)),
)


@worlds
@given(st.lists(spells, min_size=1, max_size=9))
def test_short_behind_long_is_counted_in_each_quarter_of_an_hour(
    world: list[tuple[int, int, int, int, str, int]],
) -> None:
    world.sort(key=lambda spell: spell[0])
    end = 48
    jobs = [
        job(at * QUARTER_S, (at + wait) * QUARTER_S, (at + wait) * QUARTER_S + run_s, gpus, partition=partition,
            restart=restart, job_id=f"j{number}")
        for number, (at, wait, run_s, gpus, partition, restart) in enumerate(world)
    ]  # fmt: skip
    behind, waiting = 0.0, 0
    for quarter, partition in product(range(end), "pq"):
        held = Counter[bool]()
        here = [spell for spell in world if spell[4] == partition]
        for at, wait, run_s, gpus, _, _ in here:
            seconds = min((at + wait - quarter) * QUARTER_S + run_s, QUARTER_S) - max(
                (at + wait - quarter) * QUARTER_S, 0
            )
            held[run_s > 6 * 3600] += gpus * max(seconds, 0)
        waits = [
            run_s < QUARTER_S for at, wait, run_s, _, _, restart in here if at <= quarter < at + wait and not restart
        ]
        waiting += len(waits)
        behind += sum(waits) * held[True] / (held.total() or 1)
    found = findings.short_behind_long(a_history(*jobs, end=end * QUARTER_S))
    same(found, behind / waiting if waiting else None)


@worlds
@given(rows())
def test_the_last_job_alike_tells_what_ranks_say(world: list[Row]) -> None:
    world = seen_by(world)
    pairs = [(row.run, before.run) for row in world if row.counted and row.run is not None
             if (before := last_alike(world, row)) is not None]  # fmt: skip
    found = findings.repetition(history_of(world))
    runs = pd.DataFrame(pairs, columns=["run", "last"], dtype=float)
    if len(runs) < 2 or runs.nunique().min() < 2:
        assert found.missing
        return
    same(found, float(runs["run"].corr(runs["last"], method="spearman")))


@worlds
@given(rows())
def test_bursts_are_the_variance_of_hourly_counts(world: list[Row]) -> None:
    counted = Counter(row.submitted // HOUR for row in seen_by(world) if row.counted)
    counts = [counted[hour] for hour in range(END // HOUR)]
    found = findings.bursts(history_of(world))
    same(found, float(np.var(counts) / np.mean(counts)) if any(counts) else None)


@worlds
@given(rows())
def test_one_gpu_hours_are_those_of_a_plain_count(world: list[Row]) -> None:
    world = seen_by(world)
    found = findings.small_work(history_of(world), node_cpus=None, node_memory_mib=None)
    same(found, share([row for row in world if row.gpus == 1], world))


@worlds
@given(rows())
def test_lost_to_requeues_are_the_runs_that_another_follows(world: list[Row]) -> None:
    world = seen_by(world)
    again = {row.number for row in world if row.restart}
    in_window = [row for row in world if 0 <= row.submitted < END]

    def whole(row: Row) -> int:
        return (
            row.gpus * ((max(END, row.started) if row.ended is None else row.ended) - row.started)
            if row.started is not None
            else 0
        )

    lost = sum(whole(row) for row in in_window if row.number in again and not row.restart)
    total = sum(whole(row) for row in in_window)
    same(findings.lost_to_requeues(history_of(world)), lost / total if again and total else None)


@worlds
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12)), min_size=1, max_size=30))
def test_drift_is_the_divergence_of_weeks_written_out(world: list[tuple[int, int]]) -> None:
    jobs = [Row(0, 0, 0, 1, "COMPLETED", 1)]
    jobs += [
        Row(week * 7 * DAY, week * 7 * DAY, week * 7 * DAY, week * 7 * DAY + 2**power, "COMPLETED", 1)
        for week, power in world
    ]
    jobs.sort(key=lambda row: row.submitted)
    mixes = defaultdict[int, Counter[int]](Counter)
    for row in jobs:
        mixes[row.submitted // (7 * DAY)][round(math.log2(row.run or 1))] += 1
    weeks = [mixes[week] for week in sorted(mixes)]
    changes = []
    for one, other in pairwise(weeks):
        total = 0.0
        for power in {*one, *other}:
            p, q = one[power] / sum(one.values()), other[power] / sum(other.values())
            total += sum(part * math.log2(2 * part / (p + q)) / 2 for part in (p, q) if part)
        changes.append(total)
    found = findings.drift(history_of(jobs, end=28 * DAY))
    same(found, float(np.mean(changes)) if changes else None)
