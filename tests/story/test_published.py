"""The published simulator's answer beside ours: what is replayed, what is held against what, what is said aloud."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.published.compare import (
    ALL,
    PHILLY,
    Comparison,
    ComparisonRequest,
    compare_published,
    comparison_table,
    drawn_errors,
    partition_table,
)
from helios.app.history import LoadedHistory
from helios.app.scenarios import Policy
from helios.errors import JobLargerThanPartition, NotEnoughHistory
from helios.ingest import synthetic_trace, write_helios_csv
from tests.builders import a_job, jobs_frame
from tests.waiting import TEST_TIMEOUT_S

REPOSITORY = Path(__file__).parents[2]
START = pd.Timestamp("2017-10-01T08:00", tz="UTC")


def at(second: float, **job: object) -> dict[str, object]:
    submitted_at = START + pd.Timedelta(seconds=second)
    known = {"submitted_at": submitted_at, "started_at": None, "ended_at": None, "partition": "gpu", "gpus": 1}
    return a_job(**{**known, **job})


def asked(*jobs: dict[str, object], **options: object) -> Comparison:
    history = LoadedHistory(cluster="site", jobs=jobs_frame(*jobs), timezone="UTC")
    return compare_published(history, ComparisonRequest(**{"nodes": {"gpu": 1}, "draws": 2, **options}))


def a_crowd() -> list[dict[str, object]]:
    """Two long jobs of all GPUs in the same second, and short ones behind them."""
    return [at(0, gpus=8, run_time_s=100), at(0, gpus=8, run_time_s=50), at(1, run_time_s=10), at(2, run_time_s=10)]


def row(answer: Comparison, policy: Policy):
    return next(one for one in answer.rows if one.policy is policy)


def test_a_site_sees_the_published_answer_beside_ours() -> None:
    answer = asked(*a_crowd())
    assert answer.table is None and not answer.same_jobs
    assert row(answer, Policy.FIFO).found.queue_s == (0 + 100 + 149 + 148) / 4
    assert row(answer, Policy.FIFO).ours == row(answer, Policy.FIFO).found
    # An end is seen a second late, and what waits is started then.
    assert row(answer, Policy.SRTF).found.jct_s > row(answer, Policy.SRTF).ours.jct_s


def test_the_range_over_orders_of_one_second_holds_both_orders() -> None:
    fifo = row(asked(*a_crowd(), draws=20), Policy.FIFO)
    assert (fifo.lowest.queue_s, fifo.highest.queue_s) == ((0 + 50 + 149 + 148) / 4, (0 + 100 + 149 + 148) / 4)


def test_without_nodes_the_jobs_are_held_against_the_table_of_philly() -> None:
    jobs = [at(second, partition="6214e9", run_time_s=PHILLY.run_time_s) for second in range(3)]
    answer = asked(*jobs, at(5, partition="unheard of", run_time_s=7), nodes=None)
    assert answer.jobs == 3 and answer.same_jobs and sum(answer.partitions.values()) == 352
    assert row(answer, Policy.SERVICE).printed.queue_s == 7_783
    assert row(answer, Policy.FEWEST_GPUS).printed is None


def test_the_window_of_the_table_lasts_61_days_less_a_minute() -> None:
    last_s = 61 * 86_400 - 60
    jobs = [at(second, partition="6214e9", run_time_s=60) for second in (-9 * 3_600, 0, last_s, last_s + 1)]
    assert asked(*jobs, nodes=None).jobs == 2


def test_other_jobs_than_those_of_the_table_are_said_to_be_others() -> None:
    answer = asked(at(0, partition="6214e9", run_time_s=60), nodes=None)
    assert not answer.same_jobs
    assert any("not the jobs of the published table" in note for note in answer.notes)
    assert any("ends on 2017-10-01" in note for note in answer.notes)


def test_jobs_without_gpus_or_length_are_left_out() -> None:
    answer = asked(at(0, run_time_s=60), at(1, gpus=0, run_time_s=60), at(2, run_time_s=0), at(3, run_time_s=None))
    assert answer.jobs == 1
    assert any(note.startswith("2 jobs without a run time") for note in answer.notes)


def test_jobs_larger_than_their_partition_are_refused_or_left_out_and_told() -> None:
    jobs = [*a_crowd(), at(3, gpus=9, run_time_s=10)]
    with pytest.raises(JobLargerThanPartition, match="--oversized skip"):
        asked(*jobs)
    answer = asked(*jobs, skip_oversized=True)
    assert answer.jobs == 4
    assert any(note.startswith("Left out: 1 job is larger") for note in answer.notes)
    with pytest.raises(NotEnoughHistory, match="left out"):
        asked(jobs[-1], skip_oversized=True)


def test_a_history_with_nothing_to_replay_is_an_error_with_a_hint() -> None:
    with pytest.raises(NotEnoughHistory) as error:
        asked(at(0, run_time_s=60), nodes=None)
    assert "--nodes" in str(error.value.hint)


def test_the_artifacts_errors_are_as_large_as_it_says() -> None:
    true_s = np.full(40_000, 1_000_000)
    off = np.abs(drawn_errors(true_s, seed=6) / true_s - 1)
    shares = [(off <= most).mean() for most in (0.1, 0.5, 1, 10, 100)]
    assert shares == pytest.approx([0.1, 0.5, 0.7, 0.9, 1.0], abs=0.01)
    assert (drawn_errors(true_s, seed=6) < 0).mean() == pytest.approx(0.15, abs=0.01)


def test_errors_are_drawn_alike_by_a_seed() -> None:
    true_s = np.arange(1, 50)
    assert (drawn_errors(true_s, seed=1) == drawn_errors(true_s, seed=1)).all()
    assert (drawn_errors(true_s, seed=1) != drawn_errors(true_s, seed=2)).any()


def test_the_printed_table_agrees_with_itself() -> None:
    # JCT less queue is the mean run time, whoever goes first; SRTF adds its second and the checkpoints.
    for name in (*PHILLY.nodes, ALL):
        run_times = {policy: PHILLY.jct_s[policy][name] - PHILLY.queue_s[policy][name] for policy in PHILLY.jct_s}
        assert max(run_times[policy] for policy in ("fifo", "sjf", "service")) - run_times["fifo"] <= 1
        assert run_times["fifo"] <= run_times["srtf"] <= run_times["fifo"] + 30


def test_the_table_of_a_site_shows_no_printed_column() -> None:
    assert not [column for column in columns(asked(*a_crowd())) if str(column.header).startswith("Printed")]
    printed = asked(at(0, partition="6214e9", run_time_s=60), nodes=None)
    assert [column for column in columns(printed) if str(column.header).startswith("Printed")]


def columns(answer: Comparison):
    return comparison_table(answer).renderables[2].columns


def test_every_partition_is_shown_with_what_was_printed_of_it() -> None:
    answer = asked(at(0, partition="6214e9", run_time_s=60), nodes=None)
    names = list(partition_table(answer).renderables[1].columns[0].cells)
    assert names[:2] == ["6214e9", "  printed"] and len(names) == 2 * len(PHILLY.nodes)


def test_the_benchmark_prints_its_answer_or_what_to_do(tmp_path: Path) -> None:
    trace = tmp_path / "venus.csv"
    write_helios_csv(synthetic_trace(start=datetime(2020, 9, 1, tzinfo=UTC), days=1), trace)
    command = [sys.executable, "-m", "benchmarks.published.compare", "--trace", str(trace), "--timezone", "UTC"]
    command += ["--to", "2020-09-01T09:00", "--nodes", "1", "--draws", "0", "--json"]

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *options], cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=TEST_TIMEOUT_S
        )

    refused, answered = run(), run("--oversized", "skip")
    assert refused.returncode == 1 and "--oversized skip" in refused.stderr
    assert answered.returncode == 0 and "note: Left out: " in answered.stderr
    assert len(json.loads(answered.stdout)["policies"]) == 5
