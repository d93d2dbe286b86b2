"""What a warehouse promises, held on SQLite and on a real PostgreSQL alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal
from sqlalchemy import create_engine, inspect, text

from helios.errors import (
    FrameInvalid,
    LeaseLost,
    NoSuchCluster,
    NotEnoughHistory,
    SchemaOutdated,
    UsageError,
    WarehouseUnavailable,
)
from helios.model import (
    APPLIED_CHANGES,
    APPLIED_NODE_CHANGES,
    COVERAGE,
    CYCLES,
    DECISIONS,
    JOBS,
    MODES,
    NODE_EVENTS,
    NODE_TALLIES,
    NODES,
    REJECTS,
    Batch,
    ModelRecord,
    in_submission_order,
)
from helios.ports import LONGEST_LEASE, Domain
from helios.warehouse import LoadReport, Warehouse, control_state, engine
from helios.warehouse.columns import stored_time
from helios.warehouse.engine import engine_for
from helios.warehouse.schema import metadata
from tests.builders import a_batch, a_job, a_trial_run, jobs_frame
from tests.contract.test_migrations import revisions_after
from tests.examples import examples

NOON = datetime(2020, 1, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
UNENDED: dict[str, Any] = {"state": "RUNNING", "ended_at": None, "run_time_s": np.nan}
PENDING: dict[str, Any] = {**UNENDED, "state": "PENDING", "started_at": None}


@pytest.fixture
def warehouse(database: str) -> Iterator[Warehouse]:
    with Warehouse.open(database) as opened:
        yield opened


def load(warehouse: Warehouse, *batches: Batch, content: str = "first", cluster: str = "venus") -> LoadReport:
    return warehouse.load(
        batches, cluster=cluster, path=f"{content}.txt", sha256=content, format="sacct", timezone="UTC"
    )


def a_model(**overrides: Any) -> ModelRecord:
    record: dict[str, Any] = {
        "model_id": "m1",
        "cluster": "venus",
        "trained_at": NOON,
        "trained_until": NOON - timedelta(days=1, microseconds=1),
        "jobs": 7,
        "features": ("user_mean_s", "gpus"),
        "scores": {"spearman": 0.5},
        "artifact": "tree\n{'é'}",
    }
    return ModelRecord(**(record | overrides))


def as_read(jobs: pd.DataFrame) -> pd.DataFrame:
    """Compare categories by their text: their numbering is nobody's business."""
    return jobs.astype({column.name: "str" for column in JOBS.columns if column.dtype == "category"})


def a_job_with_everything(**overrides: Any) -> dict[str, Any]:
    texts = {
        name: f"{name}-é,\"quoted\"\n'x'\\N" for name in ("group", "qos", "exit_code", "gpu_type", "node_list", "name")
    }
    ids = {"array_job_id": "17", "array_task_id": "", "het_job_id": "NULL", "het_job_offset": 2.0}
    tres = {"tres_requested": "cpu=4,gres/gpu=1", "tres_allocated": "cpu=8" * 2_000}
    return a_job(
        **(
            texts
            | ids
            | tres
            | {"restart": 3, "time_limit_s": np.inf, "memory_mib": 0.1, "eligible_at": None}
            | overrides
        )
    )


# What goes in comes out.


def test_every_column_comes_back_as_it_went_in(warehouse: Warehouse) -> None:
    jobs = jobs_frame(a_job_with_everything(), a_job(), a_job(user=None, partition=None, state=None, name=None))
    load(warehouse, Batch(jobs=jobs, rejects=REJECTS.empty(), bytes_read=0))
    assert_frame_equal(as_read(warehouse.jobs("venus")), as_read(jobs))


def test_jobs_have_exactly_the_declared_types(warehouse: Warehouse) -> None:
    load(warehouse, a_batch(a_job(), a_job_with_everything()))
    assert list(JOBS.check(warehouse.jobs("venus")).columns) == JOBS.names


def test_a_cluster_without_jobs_has_an_empty_frame_of_the_declared_types(warehouse: Warehouse) -> None:
    load(warehouse, a_batch())
    assert len(JOBS.check(warehouse.jobs("venus"))) == 0


def test_microseconds_survive(warehouse: Warehouse) -> None:
    job = a_job(submitted_at="2020-01-01T00:00:00.000001Z", ended_at="2262-01-01T00:00:00.999999Z")
    load(warehouse, a_batch(job))
    assert_frame_equal(as_read(warehouse.jobs("venus")), as_read(jobs_frame(job)))


def test_a_nul_character_is_written_out(warehouse: Warehouse) -> None:
    load(warehouse, a_batch(a_job(name="a\0b", user="eve\0"), rejects=((1, "broken", "x\0y"),)))
    stored = warehouse.jobs("venus").iloc[0]
    assert (stored["name"], stored["user"]) == ("a\\x00b", "eve\\x00")
    assert warehouse.rejects("venus")["text"].tolist() == ["x\\x00y"]


def test_only_the_chosen_columns_are_read_in_the_chosen_order(warehouse: Warehouse) -> None:
    load(warehouse, a_batch(a_job(gpus=8)))
    chosen = warehouse.jobs("venus", columns=["gpus", "user"])
    assert list(chosen.columns) == ["gpus", "user"]
    assert chosen.iloc[0].tolist() == [8, "alice"]


def test_since_is_within_and_until_is_without(warehouse: Warehouse) -> None:
    hours = [NOON + timedelta(hours=hour) for hour in range(4)]
    load(warehouse, a_batch(*(a_job(job_id=str(hour.hour), submitted_at=hour) for hour in hours)))
    assert warehouse.jobs("venus", since=hours[1], until=hours[3])["job_id"].tolist() == ["13", "14"]


def test_jobs_come_in_submission_order_and_ids_in_that_of_their_numbers(warehouse: Warehouse) -> None:
    ids = [("10", 0), ("9", 1), ("9", 0), ("100_2", 0), ("2", 0)]
    tied = [a_job(job_id=job_id, restart=restart, submitted_at=NOON) for job_id, restart in ids]
    early = a_job(job_id="999", submitted_at=NOON - timedelta(seconds=1))
    load(warehouse, a_batch(*tied, early))
    read = warehouse.jobs("venus")
    assert list(zip(read["job_id"], read["restart"], strict=True)) == [
        ("999", 0), ("2", 0), ("9", 0), ("9", 1), ("10", 0), ("100_2", 0),
    ]  # fmt: skip


def test_clusters_do_not_see_each_others_jobs(warehouse: Warehouse) -> None:
    load(warehouse, a_batch(a_job(job_id="1")), cluster="venus")
    load(warehouse, a_batch(a_job(job_id="1", gpus=0), a_job(job_id="2")), cluster="earth")
    assert warehouse.jobs("venus")["job_id"].tolist() == ["1"]
    assert warehouse.clusters(counts=True).set_index("name")[["jobs", "gpu_jobs"]].to_dict("index") == {
        "earth": {"jobs": 2, "gpu_jobs": 1},
        "venus": {"jobs": 1, "gpu_jobs": 1},
    }


def test_a_cluster_says_its_zone_and_span(warehouse: Warehouse) -> None:
    load(warehouse, a_batch(a_job(submitted_at=NOON), a_job(submitted_at=NOON + timedelta(days=1))))
    venus = warehouse.clusters().iloc[0]
    assert venus["timezone"] == "UTC"
    assert (venus["first_submitted_at"], venus["last_submitted_at"]) == (NOON, NOON + timedelta(days=1))


def test_spans_are_those_of_the_clusters_without_counts(warehouse: Warehouse) -> None:
    load(warehouse, a_batch(a_job(submitted_at=NOON), a_job(submitted_at=NOON + timedelta(days=1))))
    load(warehouse, a_batch(), cluster="empty")
    assert_frame_equal(warehouse.clusters(), warehouse.clusters(counts=True).drop(columns=["jobs", "gpu_jobs"]))


# Loading again.


def test_the_same_content_is_not_loaded_twice(warehouse: Warehouse) -> None:
    first = load(warehouse, a_batch(a_job(), rejects=((2, "broken", "x"),), notes=("zone assumed",)))

    def untouchable() -> Iterator[Batch]:
        raise AssertionError("the file was read again")
        yield

    again = warehouse.load(untouchable(), cluster="venus", path="p", sha256="first", format="sacct", timezone=None)
    assert again.already_loaded
    assert not first.already_loaded
    for name in ("load_id", "rows_read", "jobs_new", "jobs_updated", "jobs_unchanged", "rejects", "notes"):
        assert getattr(again, name) == getattr(first, name), name


def test_known_jobs_in_other_content_change_nothing(warehouse: Warehouse) -> None:
    job = a_job()
    load(warehouse, a_batch(job))
    before = warehouse.jobs("venus")
    report = load(warehouse, a_batch(job), content="second")
    assert (report.jobs_new, report.jobs_updated, report.jobs_unchanged) == (0, 0, 1)
    assert report.notes == ()
    assert_frame_equal(as_read(warehouse.jobs("venus")), as_read(before))


@pytest.mark.parametrize(
    ("stored", "newer", "updated"),
    [
        (UNENDED, {}, True),
        (PENDING, UNENDED, True),
        (PENDING, {}, True),
        ({}, UNENDED, False),
        ({}, PENDING, False),
        (UNENDED, UNENDED, True),
        (PENDING, PENDING, True),
        ({}, {}, True),
    ],
)
def test_a_row_that_knows_no_less_of_a_run_updates_its_job(
    warehouse: Warehouse, stored: dict[str, Any], newer: dict[str, Any], updated: bool
) -> None:
    load(warehouse, a_batch(a_job(job_id="1", cpus=1, **stored)))
    report = load(warehouse, a_batch(a_job(job_id="1", cpus=2, **newer)), content="second")
    assert (report.jobs_new, report.jobs_updated, report.jobs_unchanged) == (0, int(updated), int(not updated))
    assert warehouse.jobs("venus")["cpus"].tolist() == [2 if updated else 1]


def test_an_update_erases_nothing_that_it_does_not_know(warehouse: Warehouse) -> None:
    load(warehouse, a_batch(a_job(job_id="1", **UNENDED)))
    known_by_another = a_job(job_id="2", user="bob", time_limit_s=60.0)
    load(warehouse, a_batch(a_job(job_id="1", user=None, time_limit_s=np.nan), known_by_another), content="second")
    stored = warehouse.jobs("venus").iloc[0]
    assert (stored["user"], stored["time_limit_s"], stored["run_time_s"]) == ("alice", 3600, 60)


def test_a_job_that_comes_twice_in_a_file_is_new_once(warehouse: Warehouse) -> None:
    report = load(warehouse, a_batch(a_job(job_id="1", **PENDING), a_job(job_id="1"), a_job(job_id="1", **UNENDED)))
    assert (report.rows_read, report.jobs_new, report.jobs_updated, report.jobs_unchanged) == (3, 1, 1, 1)
    assert warehouse.jobs("venus")["state"].tolist() == ["COMPLETED"]


def test_a_known_job_that_comes_twice_in_a_batch_is_updated_once(warehouse: Warehouse) -> None:
    load(warehouse, a_batch(a_job(job_id="1", **PENDING)))
    report = load(warehouse, a_batch(a_job(job_id="1", **UNENDED), a_job(job_id="1")), content="second")
    assert (report.jobs_new, report.jobs_updated, report.jobs_unchanged) == (0, 1, 1)
    assert warehouse.jobs("venus")["state"].tolist() == ["COMPLETED"]


ENDED_ONLY: dict[str, Any] = {"started_at": None, "state": "COMPLETED"}
STARTED_ONLY: dict[str, Any] = {**UNENDED}


@pytest.mark.parametrize("order", [(STARTED_ONLY, ENDED_ONLY), (ENDED_ONLY, STARTED_ONLY)])
def test_a_row_that_knows_the_end_wins_over_one_with_the_start(
    warehouse: Warehouse, order: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    load(warehouse, a_batch(a_job(job_id="1", **PENDING)))
    load(warehouse, a_batch(*(a_job(job_id="1", **known) for known in order)), content="second")
    stored = warehouse.jobs("venus").iloc[0]
    assert (stored["state"], stored["run_time_s"]) == ("COMPLETED", 60)


def test_restart_and_submit_time_tell_jobs_of_one_id_apart(warehouse: Warehouse) -> None:
    jobs = [a_job(job_id="1", submitted_at=NOON, restart=0), a_job(job_id="1", submitted_at=NOON, restart=1)]
    report = load(warehouse, a_batch(*jobs, a_job(job_id="1", submitted_at=NOON + timedelta(seconds=1))))
    assert report.jobs_new == 3


ROWS = st.builds(
    # A restart has a submission of its own: test_requeues.py has the others.
    lambda job_id, restart, known, user: a_job(
        job_id=str(job_id), submitted_at=NOON + timedelta(hours=restart), restart=restart, user=user, **known
    ),
    st.integers(8, 11), st.integers(0, 1),
    st.sampled_from([PENDING, UNENDED, {}]), st.sampled_from(["alice", "bob", None]),
)  # fmt: skip


@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(loads=st.lists(st.lists(ROWS, max_size=6), min_size=1, max_size=4))
def test_any_sequence_of_loads_ends_as_a_dictionary_would(
    warehouse: Warehouse, loads: list[list[dict[str, Any]]]
) -> None:
    cluster = f"cluster {len(warehouse.clusters())}"
    known: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number, rows in enumerate(loads):
        before = len(known)
        of_this_load: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in sorted(rows, key=knowledge, reverse=True):  # what the best one does not know, the others tell
            first = of_this_load.setdefault(key_of(row), dict(row))
            first["user"] = first["user"] or row["user"]
        for row in of_this_load.values():
            remember(known, row)
        report = load(warehouse, a_batch(*rows), content=str(number), cluster=cluster)
        assert report.jobs_new == len(known) - before
        assert report.jobs_new + report.jobs_updated + report.jobs_unchanged == report.rows_read == len(rows)
    expected = in_submission_order(jobs_frame(*known.values()))
    told = ["job_id", "submitted_at", "restart", "user", "started_at", "ended_at", "run_time_s", "state"]
    assert_frame_equal(as_read(warehouse.jobs(cluster))[told], as_read(expected)[told])


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["job_id"], row["submitted_at"], row["restart"]


def knowledge(row: dict[str, Any]) -> int:
    return 2 if row["ended_at"] is not None else int(row["started_at"] is not None)


def remember(known: dict[tuple[Any, ...], dict[str, Any]], row: dict[str, Any]) -> None:
    """The rule of updates, one row at a time and without SQL."""
    before = known.setdefault(key_of(row), row)
    if knowledge(before) <= knowledge(row):
        known[key_of(row)] = row | {"user": before["user"] if row["user"] is None else row["user"]}


def test_rows_of_one_load_fill_each_other_for_a_known_job(warehouse: Warehouse) -> None:
    load(warehouse, a_batch(a_job(job_id="1", user=None, **UNENDED)))
    rows = a_batch(a_job(job_id="1", user="bob", **PENDING), a_job(job_id="1", user=None, **UNENDED))
    load(warehouse, rows, content="second")
    assert stored_user(warehouse, "1") == "bob"
    load_live(warehouse, a_job(job_id="1", user="eve", **PENDING), a_job(job_id="1", user=None), content="live")
    assert pd.isna(warehouse.jobs("venus").iloc[0]["user"])  # what a live accounting does not know is not so


MIDNIGHT = NOON - timedelta(hours=12)  # a minute before the first job of ``a_job``
FORGED = {"user": "bob", "ended_at": MIDNIGHT + timedelta(seconds=66), "run_time_s": 1.0}


def load_live(warehouse: Warehouse, *jobs: dict[str, Any], content: str) -> LoadReport:
    return warehouse.load(
        [a_batch(*jobs)], cluster="venus", path="p", sha256=content, format="sacct", timezone=None, live=True
    )


def test_a_true_end_read_after_a_forged_one_wins_and_is_told(warehouse: Warehouse) -> None:
    load(warehouse, a_batch(a_job(job_id="1") | FORGED))
    report = load(warehouse, a_batch(a_job(job_id="1"), a_job(job_id="2")), content="second")
    assert (report.jobs_new, report.jobs_updated, report.jobs_unchanged) == (1, 1, 0)
    assert (stored_user(warehouse, "1"), warehouse.jobs("venus")["run_time_s"].tolist()) == ("alice", [60, 60])
    corrected, suspicious = report.notes
    assert corrected.startswith("1 jobs that had ended were corrected by this reading, such as '1' (was: 'bob' until")
    assert suspicious.startswith("1 of them have another user or an earlier end")


def stored_user(warehouse: Warehouse, job_id: str) -> str:
    jobs = warehouse.jobs("venus")
    return str(jobs.loc[jobs["job_id"] == job_id, "user"].iloc[0])


def test_examples_of_what_was_corrected_are_few(warehouse: Warehouse) -> None:
    load(warehouse, a_batch(*(a_job(job_id=str(number)) | FORGED for number in range(20))))
    report = load(warehouse, a_batch(*(a_job(job_id=str(number)) for number in range(20))), content="second")
    assert report.notes[0].startswith("20 jobs") and report.notes[0].count("(was:") == 3


def test_another_changed_value_of_an_ended_job_is_a_correction(
    warehouse: Warehouse,
) -> None:
    load(warehouse, a_batch(a_job(job_id="1", cpus=1)))
    (note,) = load(warehouse, a_batch(a_job(job_id="1", cpus=2)), content="second").notes
    assert note.startswith("1 jobs that had ended were corrected")


def test_an_example_of_a_correction_says_both_owners_and_both_ends(
    warehouse: Warehouse,
) -> None:
    load(warehouse, a_batch(a_job(job_id="1") | FORGED))
    rest = "(was: 'bob' until 2020-01-01 00:01:06; this row: 'alice' until "
    corrected, suspicious = load(warehouse, a_batch(a_job(job_id="1")), content="second").notes
    assert corrected.count(rest) == suspicious.count(rest) == 1
    notes = load_live(warehouse, a_job(job_id="1", user=None, **UNENDED), content="live").notes
    assert notes[0].endswith("; this row: no user without an end)")


def test_a_job_that_ends_is_updated_without_a_word(warehouse: Warehouse) -> None:
    load(warehouse, a_batch(a_job(job_id="1", **UNENDED)))
    assert load(warehouse, a_batch(a_job(job_id="1")), content="second").notes == ()


def test_another_user_of_a_job_that_runs_is_told(warehouse: Warehouse) -> None:
    load(warehouse, a_batch(a_job(job_id="1", user="bob", **UNENDED)))
    assert "another user" in load(warehouse, a_batch(a_job(job_id="1", **UNENDED)), content="second").notes[1]


@pytest.mark.parametrize("known", [{}, FORGED, UNENDED, PENDING])
@pytest.mark.parametrize("said", [{}, UNENDED, PENDING, {"time_limit_s": np.nan, "user": None}])
def test_the_live_accounting_wins_over_whatever_is_stored(
    warehouse: Warehouse, known: dict[str, Any], said: dict[str, Any]
) -> None:
    load(warehouse, a_batch(a_job(job_id="1") | known))
    load_live(warehouse, a_job(job_id="1") | said, content="live")
    expected = jobs_frame(a_job(job_id="1") | said)
    assert_frame_equal(as_read(warehouse.jobs("venus")), as_read(expected))


@pytest.mark.parametrize(("hours", "kept"), [((-2, 1), True), ((-9, -8), False), ((2, 3), False)])
def test_a_file_changes_no_ended_job_where_history_was_read_live(
    warehouse: Warehouse, hours: tuple[int, int], kept: bool
) -> None:
    load_live(warehouse, a_job(job_id="1"), content="live")
    first, last = (MIDNIGHT + timedelta(hours=hour) for hour in hours)
    warehouse.add_coverage("venus", source="jobs", started_at=first, ended_at=last, read_at=last)
    warehouse.add_coverage("venus", source="node_events", started_at=NOON - DAY, ended_at=NOON + DAY, read_at=NOON)
    report = load(warehouse, a_batch(a_job(job_id="1") | FORGED), content="file")
    assert (report.jobs_updated, report.jobs_unchanged) == (int(not kept), int(kept))
    assert stored_user(warehouse, "1") == ("alice" if kept else "bob")
    assert ("rows contradict what the live accounting said" in report.notes[0]) is kept


def test_a_file_ends_a_job_that_ran_when_it_was_read_live(warehouse: Warehouse) -> None:
    load_live(warehouse, a_job(job_id="1", **UNENDED), content="live")
    warehouse.add_coverage("venus", source="jobs", started_at=NOON - DAY, ended_at=NOON + DAY, read_at=NOON)
    assert load(warehouse, a_batch(a_job(job_id="1")), content="file").jobs_updated == 1


def test_live_reading_of_another_cluster_protects_no_job_of_this_one(warehouse: Warehouse) -> None:
    load(warehouse, a_batch(a_job(job_id="1") | FORGED))
    warehouse.add_coverage("earth", source="jobs", started_at=NOON - DAY, ended_at=NOON + DAY, read_at=NOON)
    assert load(warehouse, a_batch(a_job(job_id="1")), content="second").jobs_updated == 1


def test_jobs_updated_by_a_load_are_counted(warehouse: Warehouse) -> None:
    load(warehouse, a_batch(*(a_job(job_id=str(i), **UNENDED) for i in range(5))))
    rows = [*(a_job(job_id=str(i)) for i in range(3)), a_job(job_id="3", **UNENDED), a_job(job_id="9")]
    report = load(warehouse, a_batch(*rows), content="second")
    assert (report.jobs_new, report.jobs_updated, report.jobs_unchanged) == (1, 3, 1)


# All or nothing.


@pytest.mark.parametrize("failure", [RuntimeError("disk pulled"), KeyboardInterrupt()])
def test_an_interrupted_load_leaves_nothing_behind(warehouse: Warehouse, failure: BaseException) -> None:
    def interrupted() -> Iterator[Batch]:
        yield a_batch(a_job(user="new"), rejects=((1, "broken", "x"),))
        raise failure

    with pytest.raises(type(failure)):
        load(warehouse, *[], content="warm-up")
        warehouse.load(interrupted(), cluster="earth", path="p", sha256="s", format="sacct", timezone=None)
    assert warehouse.clusters()["name"].tolist() == ["venus"]
    assert load(warehouse, a_batch(a_job(user="new")), cluster="earth").jobs_new == 1


def test_a_database_error_within_batches_is_not_mistaken_for_ours(warehouse: Warehouse) -> None:
    def failing() -> Iterator[Batch]:
        raise FrameInvalid("from the reader")
        yield

    with pytest.raises(FrameInvalid, match="from the reader"):
        warehouse.load(failing(), cluster="venus", path="p", sha256="s", format="sacct", timezone=None)


@pytest.mark.parametrize("name", ["job_id", "submitted_at"])
def test_a_job_without_its_key_is_refused(warehouse: Warehouse, name: str) -> None:
    jobs = jobs_frame(a_job())
    jobs[name] = pd.Series([None], dtype=jobs[name].dtype)
    with pytest.raises(FrameInvalid, match=name):
        load(warehouse, Batch(jobs=jobs, rejects=REJECTS.empty(), bytes_read=0))
    assert warehouse.clusters().empty


def test_a_batch_without_a_declared_column_is_refused(warehouse: Warehouse) -> None:
    with pytest.raises(FrameInvalid, match="gpus"):
        load(warehouse, Batch(jobs=jobs_frame(a_job()).drop(columns="gpus"), rejects=REJECTS.empty(), bytes_read=0))


# Rejects and loads.


def test_rejects_are_kept_with_line_text_and_file(warehouse: Warehouse) -> None:
    load(warehouse, a_batch(rejects=((9, "end before start", 'a|b\n"é"'), (3, "broken line", ""))))
    rejects = warehouse.rejects("venus")
    assert rejects.astype({"reason": "str"}).to_dict("records") == [
        {"line": 3, "reason": "broken line", "text": "", "path": "first.txt"},
        {"line": 9, "reason": "end before start", "text": 'a|b\n"é"', "path": "first.txt"},
    ]
    assert {name: str(rejects[name].dtype) for name in REJECTS.names} == {c.name: c.dtype for c in REJECTS.columns}


def test_rejects_are_counted_by_reason_most_frequent_first(warehouse: Warehouse) -> None:
    rejects = tuple((line, "broken" if line % 3 else "negative size", "x") for line in range(1, 8))
    report = load(warehouse, a_batch(rejects=rejects))
    assert list(report.rejects.items()) == [("broken", 5), ("negative size", 2)]
    assert warehouse.reject_counts("venus").to_dict("list") == {"reason": ["broken", "negative size"], "rows": [5, 2]}


def test_the_number_of_rejects_read_can_be_limited(warehouse: Warehouse) -> None:
    load(warehouse, a_batch(rejects=tuple((line, "broken", "x") for line in range(1, 8))))
    assert warehouse.rejects("venus", limit=2)["line"].tolist() == [1, 2]


def test_a_load_is_recorded_with_its_watermark(warehouse: Warehouse) -> None:
    last = NOON + timedelta(hours=1)
    jobs = [a_job(submitted_at=last), a_job(submitted_at=NOON)]
    load(warehouse, a_batch(jobs[0]), a_batch(jobs[1], rejects=((1, "broken", "x"),)))
    recorded = warehouse.loads("venus").iloc[0]
    assert recorded["watermark"] == last
    assert (recorded["path"], recorded["sha256"], recorded["rows_read"]) == ("first.txt", "first", 3)
    assert (recorded["jobs_new"], recorded["rejected"]) == (2, 1)


def test_what_a_load_did_stays_written_when_others_follow(warehouse: Warehouse) -> None:
    load(warehouse, a_batch(a_job(job_id="1"), a_job(job_id="2"), rejects=((3, "no end", "x"),)))
    before = warehouse.loads("venus")
    load(warehouse, a_batch(a_job(job_id="9")), content="second")
    load(warehouse, a_batch(a_job(job_id="9")), content="third", cluster="earth")
    assert_frame_equal(warehouse.loads("venus").iloc[:1], before)
    assert before[["jobs_new", "rejected"]].iloc[0].tolist() == [2, 1]


def test_a_load_without_jobs_has_no_watermark(warehouse: Warehouse) -> None:
    load(warehouse, a_batch())
    assert warehouse.loads("venus")["watermark"].isna().all()


def test_notes_are_told_once_each_in_the_order_they_arose(warehouse: Warehouse) -> None:
    report = load(warehouse, a_batch(notes=("zone", "repaired")), a_batch(notes=("repaired", "zone", "last")))
    assert report.notes == ("zone", "repaired", "last")


# What else is remembered.


def test_nodes_come_back_and_replace_those_of_their_name(warehouse: Warehouse) -> None:
    def nodes(**overrides: Any) -> pd.DataFrame:
        row = {"name": "n1", "partition": "gpu", "cpus": 64.0, "gpus": 8, "gpu_type": "a100", "memory_mib": np.nan}
        return NODES.conform(pd.DataFrame([row | overrides]))

    warehouse.add_nodes("venus", pd.concat([nodes(), nodes(name="n0", partition=None)]).pipe(NODES.conform))
    warehouse.add_nodes("venus", nodes(gpus=4))
    found = NODES.check(warehouse.nodes("venus"))
    assert found["name"].tolist() == ["n0", "n1"]
    assert found["gpus"].tolist() == [8, 4]
    assert found["partition"].isna().tolist() == [True, False]


def test_adding_the_same_node_events_again_changes_nothing(warehouse: Warehouse) -> None:
    row = {"node": "n1", "state": "DOWN", "started_at": NOON, "ended_at": None, "reason": "gpu fell off"}
    later = row | {"started_at": NOON + timedelta(hours=1), "ended_at": NOON + timedelta(hours=2)}
    events = pd.DataFrame([row, later])
    events["ended_at"] = pd.to_datetime(events["ended_at"], utc=True)
    warehouse.add_node_events("venus", NODE_EVENTS.conform(events))
    once = NODE_EVENTS.check(warehouse.node_events("venus"))
    warehouse.add_node_events("venus", NODE_EVENTS.conform(events))
    assert_frame_equal(warehouse.node_events("venus"), once)
    assert once["ended_at"].isna().tolist() == [True, False]
    assert len(warehouse.node_events("venus", NOON, NOON + timedelta(hours=1))) == 1


def test_events_that_reach_into_a_stretch_are_found_though_they_began_before(warehouse: Warehouse) -> None:
    hours = [
        ("gone", 0, 1),
        ("until it begins", 0, 2),
        ("reaches in", 0, 3),
        ("lasts", 1, None),
        ("within", 2, 3),
        ("after", 4, 5),
    ]
    rows = [
        {
            "node": node,
            "state": "DOWN",
            "started_at": NOON + timedelta(hours=start),
            "ended_at": pd.NaT if end is None else NOON + timedelta(hours=end),
        }
        for node, start, end in hours
    ]
    warehouse.add_node_events("venus", NODE_EVENTS.conform(pd.DataFrame(rows)))
    since, until = NOON + timedelta(hours=2), NOON + timedelta(hours=4)
    assert list(warehouse.node_events("venus", since, until)["node"]) == ["within"]
    assert list(warehouse.node_events("venus", since, until, reaching=True)["node"]) == [
        "reaches in",
        "lasts",
        "within",
    ]


def test_a_model_comes_back_as_it_went_in(warehouse: Warehouse) -> None:
    warehouse.add_model(a_model())
    assert warehouse.model("venus", "m1") == a_model()


def test_without_an_id_the_model_trained_last_is_meant(warehouse: Warehouse) -> None:
    for hour, model_id in enumerate(["b", "c", "a"]):
        warehouse.add_model(a_model(model_id=model_id, trained_at=NOON + timedelta(hours=hour)))
    assert warehouse.model("venus").model_id == "a"
    assert warehouse.models("venus")["model_id"].tolist() == ["a", "c", "b"]


@pytest.mark.parametrize("model_id", [None, "m1"])
def test_a_missing_model_is_an_error_that_says_how_to_train_one(warehouse: Warehouse, model_id: str | None) -> None:
    load(warehouse, a_batch())
    with pytest.raises(NotEnoughHistory, match="helios model train"):
        warehouse.model("venus", model_id)


MEANS = {"typical_s": 2.0, "mean_s": 2.5, "truncated_mean_s": 2.25}


def test_predictions_are_kept_once_for_each_time_they_were_made(warehouse: Warehouse) -> None:
    frame = jobs_frame(a_job(job_id="2"), a_job(job_id="1"))[["job_id", "submitted_at", "restart"]]
    frame = frame.assign(p10_s=1.0, p50_s=2.0, p90_s=np.inf, **MEANS, source=pd.Categorical(["m1", "user_last"]))
    assert warehouse.add_predictions("venus", frame, NOON) == 2
    assert warehouse.add_predictions("venus", frame, NOON) == 0
    assert warehouse.add_predictions("venus", frame, NOON + timedelta(minutes=1)) == 2
    found = warehouse.predictions("venus")
    assert found["job_id"].tolist() == ["1", "1", "2", "2"]
    assert found["source"].tolist() == ["user_last", "user_last", "m1", "m1"]
    assert found["made_at"].tolist()[:2] == [NOON, NOON + timedelta(minutes=1)]


def test_predictions_of_some_jobs_are_found_however_many_are_stored(warehouse: Warehouse) -> None:
    hours = [NOON + timedelta(hours=hour) for hour in range(4)]
    jobs = jobs_frame(*(a_job(job_id=str(n), submitted_at=at) for n, at in enumerate(hours)))
    frame = jobs[["job_id", "submitted_at", "restart"]].assign(p10_s=1.0, p50_s=2.0, p90_s=3.0, **MEANS, source="m1")
    warehouse.add_predictions("venus", frame, NOON)
    warehouse.add_predictions("venus", frame.assign(p50_s=2.5), NOON + timedelta(minutes=1))
    found = warehouse.predictions_of("venus", frame["submitted_at"].iloc[[3, 1, 1]])
    assert found[["job_id", "p50_s"]].to_numpy().tolist() == [["1", 2.0], ["1", 2.5], ["3", 2.0], ["3", 2.5]]
    assert warehouse.predictions_of("venus", frame["submitted_at"].iloc[:0]).empty


def test_only_the_newest_models_are_kept(warehouse: Warehouse) -> None:
    for hour, model_id in enumerate(["b", "c", "a"]):
        warehouse.add_model(a_model(model_id=model_id, trained_at=NOON + timedelta(hours=hour)))
    warehouse.add_model(a_model(cluster="earth", model_id="old", trained_at=NOON - timedelta(days=900)))
    assert warehouse.forget_models("venus", keep=2) == 1
    assert warehouse.models("venus")["model_id"].tolist() == ["a", "c"]
    assert warehouse.model("earth").model_id == "old"


def test_the_time_zone_of_a_cluster_is_known_without_counting_its_jobs(warehouse: Warehouse) -> None:
    load(warehouse, a_batch())
    clusters = warehouse.clusters()
    assert warehouse.timezone("venus") == clusters.set_index("name")["timezone"]["venus"]
    assert warehouse.timezone("nowhere") is None
    warehouse.try_to_write()
    assert_frame_equal(warehouse.clusters(), clusters)


def test_decisions_are_appended_and_read_in_their_order(warehouse: Warehouse) -> None:
    rows = [
        {"decided_at": NOON + timedelta(hours=hour), "service": "qssf", "mode": "shadow", "action": "Reorder",
         "target": "gpu", "reason": "shorter first", "after": after}
        for hour, after in [(1, "2,1"), (0, None)]
    ]  # fmt: skip
    warehouse.add_decisions("venus", pd.DataFrame(rows))
    warehouse.add_decisions("venus", pd.DataFrame(rows[:1]))
    found = warehouse.decisions("venus")
    assert found["decided_at"].tolist() == [NOON, NOON + timedelta(hours=1), NOON + timedelta(hours=1)]
    assert found["after"].isna().tolist() == [True, False, False]
    assert found["model_id"].isna().all()


def test_a_decision_without_a_reason_is_refused(warehouse: Warehouse) -> None:
    row = {"decided_at": NOON, "service": "qssf", "mode": "live", "action": "Reorder", "target": "gpu", "reason": None}
    with pytest.raises(FrameInvalid, match="reason"):
        warehouse.add_decisions("venus", pd.DataFrame([row]))


# Questions that cannot be answered.


def test_an_unknown_cluster_is_named_with_those_there_are(warehouse: Warehouse) -> None:
    load(warehouse, a_batch())
    with pytest.raises(NoSuchCluster, match=r"(?s)mars.*venus"):
        warehouse.jobs("mars")


def test_an_undeclared_column_is_refused(warehouse: Warehouse) -> None:
    load(warehouse, a_batch())
    with pytest.raises(FrameInvalid, match="colour"):
        warehouse.jobs("venus", columns=["colour"])


def test_a_time_without_a_zone_is_refused(warehouse: Warehouse) -> None:
    load(warehouse, a_batch())
    with pytest.raises(UsageError, match="no time zone"):
        warehouse.jobs("venus", since=NOON.replace(tzinfo=None))


# The schema.


def test_the_migrated_schema_is_the_declared_one(warehouse: Warehouse, database: str) -> None:
    with engine_for(database).connect() as connection:
        options = {"compare_type": True, "compare_server_default": True}
        assert compare_metadata(MigrationContext.configure(connection, opts=options), metadata) == []


def test_the_readable_view_shows_every_declared_column(warehouse: Warehouse, database: str) -> None:
    columns = inspect(engine_for(database)).get_columns("jobs_readable")
    assert next(column["name"] for column in columns) == "cluster"
    assert {column["name"] for column in columns} == {"cluster", *JOBS.names}


def test_the_readable_view_shows_text_and_dates(warehouse: Warehouse, database: str) -> None:
    load(warehouse, a_batch(a_job(job_id="1", submitted_at=NOON, qos=None)))
    query = text('SELECT cluster, "user", qos, submitted_at, gpus FROM jobs_readable')
    with engine_for(database).connect() as connection:
        cluster, user, qos, submitted_at, gpus = connection.execute(query).one()
    assert (cluster, user, qos, gpus) == ("venus", "alice", None, 1)
    assert pd.Timestamp(submitted_at) == NOON


def test_opening_again_keeps_everything(database: str) -> None:
    with Warehouse.open(database) as first:
        load(first, a_batch(a_job()))
    with Warehouse.open(database) as second:
        assert len(second.jobs("venus")) == 1


def test_upgrading_says_what_it_applied_and_then_has_nothing_to_do(database: str) -> None:
    with Warehouse.open(database, create=False) as untouched:
        assert untouched.revision() is None
        assert untouched.upgrade() == revisions_after()
        assert untouched.revision() == untouched.head()
        assert untouched.upgrade() == []


def set_revision(database: str, revision: str) -> None:
    with engine_for(database).begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})


def test_a_schema_of_a_newer_helios_is_refused(database: str) -> None:
    Warehouse.open(database).close()
    set_revision(database, "9999")
    with pytest.raises(SchemaOutdated, match="install that release or a newer one"):
        Warehouse.open(database)
    with Warehouse.open(database, create=False) as warehouse, pytest.raises(SchemaOutdated):
        warehouse.upgrade()


def test_a_database_of_another_program_is_left_alone(database: str) -> None:
    with create_engine(engine_for(database).url).begin() as connection:
        connection.execute(text("CREATE TABLE jobs (number INTEGER)"))
    with pytest.raises(WarehouseUnavailable, match="another program"):
        Warehouse.open(database)
    assert inspect(engine_for(database)).get_table_names() == ["jobs"]


def test_two_warehouses_on_one_database_see_each_others_loads(database: str) -> None:
    with Warehouse.open(database) as one, Warehouse.open(database) as other:
        load(one, a_batch(a_job(user="bob")))
        load(other, a_batch(a_job(user="bob")), content="second")
        assert len(one.jobs("venus")) == len(other.jobs("venus")) == 2


def a_applied(**overrides: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "setting": "order",
        "job_id": "7",
        "submitted_at": NOON,
        "service": "qssf",
        "mode": "active",
        "value": 0.5,
        "after": "SiteFactor 5037",
        "written_at": NOON,
        "overridden": 0,
    }
    return row | overrides


def a_decision(**overrides: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "decided_at": NOON,
        "service": "qssf",
        "mode": "active",
        "action": "Reorder",
        "target": "7",
        "reason": "short",
        "outcome": "done",
    }
    return row | overrides


def applied_changes_frame(*rows: dict[str, Any]) -> pd.DataFrame:
    return APPLIED_CHANGES.conform(pd.DataFrame(rows)) if rows else APPLIED_CHANGES.empty()


def decisions_frame(*rows: dict[str, Any]) -> pd.DataFrame:
    return DECISIONS.conform(pd.DataFrame(rows)) if rows else DECISIONS.empty()


MINUTE = timedelta(minutes=1)


@pytest.fixture
def one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the database's clock, where it has one, show what whoever asks calls now."""
    monkeypatch.setattr(control_state, "lease_time_us", lambda _, now: stored_time(now))


@pytest.mark.usefixtures("one_clock")
def test_one_holder_has_the_lease_until_it_runs_out(warehouse: Warehouse) -> None:
    ledger = warehouse.ledger("venus")
    token = ledger.acquire(holder="a", now=NOON, lasts=MINUTE)
    assert ledger.acquire(holder="b", now=NOON + MINUTE / 2, lasts=MINUTE) is None
    assert ledger.acquire(holder="a", now=NOON + MINUTE / 2, lasts=MINUTE) == token
    taken = ledger.acquire(holder="b", now=NOON + 2 * MINUTE, lasts=MINUTE)
    assert taken is not None and token is not None and taken > token


@pytest.mark.usefixtures("one_clock")
def test_a_lease_given_back_is_anybodys_under_a_larger_token(warehouse: Warehouse) -> None:
    ledger = warehouse.ledger("venus")
    first = ledger.acquire(holder="a", now=NOON, lasts=MINUTE)
    ledger.release(holder="b")
    assert ledger.acquire(holder="b", now=NOON, lasts=MINUTE) is None
    ledger.release(holder="a")
    second = ledger.acquire(holder="b", now=NOON, lasts=MINUTE)
    assert first is not None and second is not None and second > first


def test_the_first_lease_of_all_is_taken_by_one_at_a_time(
    warehouse: Warehouse, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not database.startswith("postgresql"):
        pytest.skip("SQLite has one writer at a time in any case")
    ledger = warehouse.ledger("venus")
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_S", 1)
    with engine.writing(engine_for(database), alone=True), pytest.raises(WarehouseUnavailable, match="Another process"):
        ledger.acquire(holder="a", now=NOON, lasts=MINUTE)
    assert ledger.acquire(holder="a", now=NOON, lasts=MINUTE) == 1


@pytest.mark.usefixtures("one_clock")
def test_a_stale_token_writes_nothing(warehouse: Warehouse) -> None:
    ledger = warehouse.ledger("venus")
    stale = ledger.acquire(holder="a", now=NOON, lasts=MINUTE)
    current = ledger.acquire(holder="b", now=NOON + 2 * MINUTE, lasts=MINUTE)
    assert stale is not None and current is not None
    with pytest.raises(LeaseLost, match="Another Helios"):
        ledger.record(
            token=stale, decisions=decisions_frame(a_decision()), applied_changes=applied_changes_frame(a_applied())
        )
    assert warehouse.decisions("venus").empty and ledger.applied_changes().empty
    ledger.record(token=current, decisions=decisions_frame(a_decision()), applied_changes=None)
    assert len(warehouse.decisions("venus")) == 1


@pytest.mark.usefixtures("one_clock")
def test_a_clock_a_year_ahead_keeps_nobody_away_beyond_the_longest_lease(warehouse: Warehouse) -> None:
    ledger = warehouse.ledger("venus")
    ahead = ledger.acquire(holder="a", now=NOON + timedelta(days=365), lasts=MINUTE)
    assert ledger.acquire(holder="b", now=NOON, lasts=MINUTE) is None
    assert ledger.acquire(holder="b", now=NOON + LONGEST_LEASE - MINUTE, lasts=MINUTE) is None
    taken = ledger.acquire(holder="b", now=NOON + LONGEST_LEASE, lasts=MINUTE)
    assert ahead is not None and taken == ahead + 1


@pytest.mark.usefixtures("one_clock")
def test_a_holder_whose_clock_is_ahead_keeps_the_lease_while_it_renews(warehouse: Warehouse) -> None:
    ledger = warehouse.ledger("venus")
    year = timedelta(days=365)
    token = ledger.acquire(holder="a", now=NOON + year, lasts=MINUTE)
    for minutes in range(0, 60, 5):
        assert ledger.acquire(holder="b", now=NOON + minutes * MINUTE, lasts=MINUTE) is None
        assert ledger.acquire(holder="a", now=NOON + year + minutes * MINUTE, lasts=MINUTE) == token


def test_a_second_load_waits_for_the_first_and_gives_up(
    warehouse: Warehouse, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_S", 1)
    named: dict[str, Any] = {"cluster": "venus", "path": "p", "format": "sacct", "timezone": None}

    def batches() -> Iterator[Batch]:
        yield a_batch(a_job())
        if database.startswith("postgresql"):  # a second load that does not ask for it would wait for the first's rows
            with create_engine(engine_for(database).url).connect() as connection:
                assert (
                    connection.execute(text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")).scalar() == 1
                )
        # Spelled in another way, so that SQLite's bound is that of this test.
        other = database if "?" in database else f"{database}?timeout=1"
        with Warehouse.open(other) as second, pytest.raises(WarehouseUnavailable):
            second.load([a_batch(a_job(job_id="2"))], sha256="2", **named)

    assert warehouse.load(batches(), sha256="1", **named).jobs_new == 1


@pytest.mark.usefixtures("one_clock")
def test_who_asks_for_as_long_a_lease_believes_one_beyond_the_longest(warehouse: Warehouse) -> None:
    ledger, hours = warehouse.ledger("venus"), timedelta(hours=5)
    ledger.acquire(holder="a", now=NOON, lasts=hours)
    assert ledger.acquire(holder="b", now=NOON, lasts=hours) is None
    assert ledger.acquire(holder="b", now=NOON + hours - MINUTE, lasts=hours) is None


def test_the_clock_of_the_database_wins_over_that_of_the_process(warehouse: Warehouse, database: str) -> None:
    if not database.startswith("postgresql"):
        pytest.skip("SQLite has no clock but the machine's")
    ledger, year = warehouse.ledger("venus"), timedelta(days=365)
    token = ledger.acquire(holder="a", now=NOON + year, lasts=MINUTE)
    left_us = (warehouse.lease("venus") or {})["expires_at"] - warehouse.time_of_leases(NOON).timestamp() * 1e6
    assert 0 < left_us <= MINUTE / timedelta(microseconds=1)
    assert ledger.acquire(holder="b", now=NOON + 2 * year, lasts=MINUTE) is None
    ledger.acquire(holder="a", now=NOON + year, lasts=timedelta(0))
    assert ledger.acquire(holder="b", now=NOON - year, lasts=MINUTE) == (token or 0) + 1


def test_applied_changes_are_replaced_and_read_as_they_were_written(warehouse: Warehouse) -> None:
    ledger = warehouse.ledger("venus")
    token = ledger.acquire(holder="a", now=NOON, lasts=MINUTE)
    assert token is not None
    before = applied_changes_frame(a_applied(job_id="7"), a_applied(job_id="8", overridden=1), a_applied(mode="shadow"))
    ledger.record(token=token, decisions=DECISIONS.empty(), applied_changes=before)
    after = applied_changes_frame(a_applied(job_id="9", setting="soft_limit", value=2220.0, after="TimeMin 37 min"))
    ledger.record(token=token, decisions=DECISIONS.empty(), applied_changes=None)
    assert len(ledger.applied_changes()) == 3
    ledger.record(token=token, decisions=DECISIONS.empty(), applied_changes=after)
    assert_frame_equal(APPLIED_CHANGES.check(ledger.applied_changes()), after)


def a_node_applied(**overrides: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "setting": "power",
        "node": "n1",
        "service": "ces",
        "mode": "active",
        "value": "asleep",
        "own": "",
        "after": None,
        "written_at": NOON,
        "overridden": 0,
    }
    return row | overrides


def a_tally(**overrides: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "taken_at": NOON,
        "pool": "gpu (a100)",
        "total": 10,
        "busy": 4,
        "asleep": 3,
        "falling_asleep": 1,
        "waking": 1,
        "by_helios": 2,
        "wanted": 6.5,
    }
    return row | overrides


def tallies_frame(*rows: dict[str, Any]) -> pd.DataFrame:
    return NODE_TALLIES.conform(pd.DataFrame(rows))


@pytest.mark.usefixtures("one_clock")
def test_the_domains_have_leases_and_tokens_of_their_own(warehouse: Warehouse) -> None:
    jobs, nodes = warehouse.ledger("venus"), warehouse.ledger("venus", Domain.NODES)
    assert jobs.acquire(holder="a", now=NOON, lasts=MINUTE) == 1
    assert nodes.acquire(holder="b", now=NOON, lasts=MINUTE) == 1
    taken = nodes.acquire(holder="c", now=NOON + 2 * MINUTE, lasts=MINUTE)
    assert taken == 2
    jobs.record(token=1, decisions=decisions_frame(a_decision()), applied_changes=None)
    with pytest.raises(LeaseLost):
        nodes.record(token=1, decisions=decisions_frame(a_decision()), applied_changes=None)
    jobs.release(holder="c")
    of_nodes = warehouse.lease("venus", domain=Domain.NODES)
    assert of_nodes is not None and (of_nodes["holder"], of_nodes["token"]) == ("c", 2)


def test_what_stands_of_nodes_leaves_what_stands_of_jobs_alone(warehouse: Warehouse) -> None:
    jobs, nodes = warehouse.ledger("venus"), warehouse.ledger("venus", Domain.NODES)
    for ledger in (jobs, nodes):
        assert ledger.acquire(holder="a", now=NOON, lasts=MINUTE) == 1
    jobs.record(token=1, decisions=DECISIONS.empty(), applied_changes=applied_changes_frame(a_applied()))
    rows = [
        a_node_applied(setting="keep_awake", node="", value="n[1-2]", own="login1"),
        a_node_applied(),
        a_node_applied(setting="weight", value="20", own="10", after="Weight 20", overridden=1),
    ]
    written = APPLIED_NODE_CHANGES.conform(pd.DataFrame(rows))
    nodes.record(token=1, decisions=decisions_frame(a_decision(service="ces")), applied_changes=written)
    assert_frame_equal(APPLIED_NODE_CHANGES.check(nodes.applied_changes()), written)
    assert len(jobs.applied_changes()) == 1
    nodes.record(token=1, decisions=DECISIONS.empty(), applied_changes=APPLIED_NODE_CHANGES.empty())
    assert nodes.applied_changes().empty and len(jobs.applied_changes()) == 1


def test_what_stands_of_jobs_is_refused_by_the_domain_of_nodes(warehouse: Warehouse) -> None:
    nodes = warehouse.ledger("venus", Domain.NODES)
    nodes.acquire(holder="a", now=NOON, lasts=MINUTE)
    with pytest.raises(FrameInvalid, match="applied node changes"):
        nodes.record(
            token=1, decisions=decisions_frame(a_decision()), applied_changes=applied_changes_frame(a_applied())
        )
    assert warehouse.decisions("venus").empty


def test_counts_of_nodes_come_back_by_time_and_pool(warehouse: Warehouse) -> None:
    later = a_tally(taken_at=NOON + MINUTE, wanted=np.nan)
    written = tallies_frame(later, a_tally(pool="cpu"), a_tally())
    warehouse.add_node_tallies("venus", written)
    expected = written.iloc[[1, 2, 0]].reset_index(drop=True)
    assert_frame_equal(NODE_TALLIES.check(warehouse.node_tallies("venus")), expected)
    assert len(warehouse.node_tallies("venus", NOON + MINUTE)) == 1
    assert len(warehouse.node_tallies("venus", NOON, NOON + MINUTE)) == 2


def test_counts_of_nodes_taken_twice_at_one_time_are_kept_once(warehouse: Warehouse) -> None:
    warehouse.add_node_tallies("venus", tallies_frame(a_tally(busy=4)))
    warehouse.add_node_tallies("venus", tallies_frame(a_tally(busy=5)))
    assert list(warehouse.node_tallies("venus")["busy"]) == [4]


def test_only_counts_of_nodes_from_before_are_forgotten(warehouse: Warehouse) -> None:
    warehouse.add_node_tallies("venus", tallies_frame(*(a_tally(taken_at=NOON + n * MINUTE) for n in range(3))))
    warehouse.add_node_tallies("earth", tallies_frame(a_tally()))
    assert warehouse.forget_tallies("venus", NOON + 2 * MINUTE) == 2
    assert len(warehouse.node_tallies("venus")) == len(warehouse.node_tallies("earth")) == 1


def test_a_text_is_remembered_under_its_name_alone(warehouse: Warehouse) -> None:
    warehouse.remember("venus", "cycle", "{}", at=NOON)
    warehouse.remember("venus", "cycle", '{"é": 1}', at=NOON)
    warehouse.remember("venus", "other", "x", at=NOON)
    assert warehouse.remembered("venus", "cycle") == '{"é": 1}'
    assert warehouse.remembered("venus", "never") is None


def test_modes_are_appended_and_the_last_comes_last(warehouse: Warehouse) -> None:
    for mode in ("canary", "active"):
        row = {"service": "qssf", "mode": mode, "percent": 10.0, "set_at": NOON, "set_by": "root", "reason": "trial"}
        warehouse.add_modes("venus", MODES.conform(pd.DataFrame([row])))
    found = MODES.check(warehouse.modes("venus"))
    assert list(found["mode"]) == ["canary", "active"]
    assert found["partitions"].isna().all()


def test_cycles_are_read_by_the_time_they_were_taken(warehouse: Warehouse) -> None:
    rows = [
        {"taken_at": NOON + n * MINUTE, "seconds": 0.5, "pending": n, "suspended": None if n else "paused"}
        for n in range(3)
    ]
    warehouse.add_cycles("venus", CYCLES.conform(pd.DataFrame(rows)))
    found = CYCLES.check(warehouse.cycles("venus", since=NOON + MINUTE))
    assert list(found["pending"]) == [1, 2]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 10)), max_size=12))
@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_what_was_read_is_the_union_of_its_stretches(warehouse: Warehouse, stretches: list[tuple[int, int]]) -> None:
    source = f"jobs {stretches}"
    for start, length in stretches:
        begin = NOON + start * MINUTE
        warehouse.add_coverage("venus", source=source, started_at=begin, ended_at=begin + length * MINUTE, read_at=NOON)
    covered = {minute for start, length in stretches for minute in range(start, start + length)}
    rows = COVERAGE.check(warehouse.coverage("venus")) if stretches else COVERAGE.empty()
    rows = rows[rows["source"] == source]
    noon = pd.Timestamp(NOON)
    read = [((row.started_at - noon) // MINUTE, (row.ended_at - noon) // MINUTE) for row in rows.itertuples()]
    assert {minute for start, end in read for minute in range(start, end)} == covered
    assert all(end < start for (_, end), (start, _) in pairwise(read))


def test_the_last_jobs_are_those_submitted_last(warehouse: Warehouse) -> None:
    load(warehouse, a_batch(*(a_job(job_id=str(number)) for number in (1, 2, 3, 4))))
    assert list(warehouse.jobs("venus", last=2)["job_id"]) == ["3", "4"]
    assert list(warehouse.jobs("venus", last=9)["job_id"]) == ["1", "2", "3", "4"]


def four_days_of_jobs(warehouse: Warehouse) -> list[datetime]:
    """Load a job a day: the first ended within its day, the second runs for three, two have not ended."""
    days = [NOON + timedelta(days=day) for day in range(4)]
    load(
        warehouse,
        a_batch(
            a_job(job_id="1", submitted_at=days[0], started_at=days[0], run_time_s=3600.0),
            a_job(job_id="2", submitted_at=days[1], started_at=days[1], run_time_s=3 * 86_400.0),
            a_job(job_id="3", submitted_at=days[2], **UNENDED),
            a_job(job_id="4", submitted_at=days[3], **PENDING),
        ),
    )
    load(warehouse, a_batch(a_job(job_id="9", submitted_at=days[0], **UNENDED)), content="other", cluster="saturn")
    return days


def test_not_ended_by_a_moment_are_open_jobs_and_later_ends(
    warehouse: Warehouse,
) -> None:
    days = four_days_of_jobs(warehouse)
    assert warehouse.jobs("venus", unended_at=days[0])["job_id"].tolist() == ["1", "2", "3", "4"]
    assert warehouse.jobs("venus", unended_at=days[3])["job_id"].tolist() == ["2", "3", "4"]
    assert warehouse.jobs("venus", unended_at=days[0] + timedelta(days=9))["job_id"].tolist() == ["3", "4"]


def test_a_job_that_ends_at_the_very_moment_had_not_ended_before(warehouse: Warehouse) -> None:
    days = four_days_of_jobs(warehouse)
    end = days[0] + timedelta(hours=1)
    assert "1" in set(warehouse.jobs("venus", unended_at=end)["job_id"])
    assert "1" not in set(warehouse.jobs("venus", unended_at=end + timedelta(microseconds=1))["job_id"])


def test_what_had_not_ended_is_searched_among_what_was_submitted_since(warehouse: Warehouse) -> None:
    days = four_days_of_jobs(warehouse)
    assert warehouse.jobs("venus", since=days[2], unended_at=days[0])["job_id"].tolist() == ["3", "4"]
    assert JOBS.check(warehouse.jobs("venus", since=days[2], unended_at=days[0])).shape[1] == len(JOBS.names)


def test_jobs_of_some_users_and_partitions_are_read_alone(warehouse: Warehouse) -> None:
    jobs = [
        a_job(job_id=f"{n}", user=user, partition=partition)
        for n, (user, partition) in enumerate([("a", "gpu"), ("b", "gpu"), ("c", "cpu"), ("a", "cpu")])
    ]
    load(warehouse, a_batch(*jobs, a_job(job_id="9", user=None)))

    def ids(**only: list[str]) -> list[str]:
        return list(warehouse.jobs("venus", only=only, columns=["job_id"])["job_id"])

    assert ids(user=["a", "b", "nobody"]) == ["0", "1", "3"]
    assert ids(user=["a"], partition=["cpu"]) == ["3"]
    assert ids(user=["nobody"]) == []
    assert ids(user=[], account=[]) == ["0", "1", "2", "3", "9"]


def test_ended_jobs_are_counted_from_a_submission_on_and_no_other_clusters(warehouse: Warehouse) -> None:
    days = four_days_of_jobs(warehouse)
    counts = [warehouse.ended_jobs("venus", since=day) for day in days]
    assert counts == [2, 1, 0, 0]
    assert warehouse.ended_jobs("venus", since=days[1] + timedelta(microseconds=1)) == 0
    assert warehouse.ended_jobs("saturn", since=days[0]) == 0
    with pytest.raises(NoSuchCluster):
        warehouse.ended_jobs("mars", since=days[0])


def test_the_edition_changes_with_every_load_and_model(warehouse: Warehouse) -> None:
    load(warehouse, a_batch(a_job()))
    loaded = warehouse.edition("venus")
    load(warehouse, a_batch(a_job()), content="second")
    again = warehouse.edition("venus")
    warehouse.add_model(a_model())
    assert len({loaded, again, warehouse.edition("venus")}) == 3


def test_a_cluster_is_renamed_and_removed_and_the_others_stay(warehouse: Warehouse) -> None:
    for name in ("venus", "earth"):
        batch = a_batch(a_job(job_id="1"), rejects=((7, "unknown state", "x"),))
        warehouse.load([batch], cluster=name, path=name, sha256=name, format="sacct", timezone="UTC")
    with pytest.raises(UsageError, match="There is a cluster earth already"):
        warehouse.rename_cluster("venus", "earth")
    warehouse.rename_cluster("venus", "mars")
    assert len(warehouse.jobs("mars")) == len(warehouse.rejects("mars")) == 1
    counted = warehouse.contents("mars")
    assert counted == warehouse.contents("earth") == {"jobs": 1, "loads": 1, "rejects": 1}
    warehouse.remove_cluster("mars")
    assert warehouse.clusters()["name"].tolist() == ["earth"]
    assert warehouse.contents("earth") == counted
    with pytest.raises(NoSuchCluster):
        warehouse.remove_cluster("mars")


@pytest.mark.parametrize("name", ["../venus", "a/b", "", "a\nb", "v" * 300])
def test_a_path_is_no_name_of_a_new_cluster(warehouse: Warehouse, name: str) -> None:
    warehouse.load([a_batch(a_job())], cluster="venus", path="x", sha256="x", format="sacct", timezone="UTC")
    refused = pytest.raises(UsageError, match="cannot be the name of a cluster")
    with refused:
        warehouse.load([a_batch(a_job())], cluster=name, path="y", sha256="y", format="sacct", timezone="UTC")
    with refused:
        warehouse.rename_cluster("venus", name)
    assert warehouse.clusters()["name"].tolist() == ["venus"]


@pytest.mark.parametrize(
    ("name", "user", "found"),
    [
        ("7", "alice", True),
        ("6_2", "alice", True),
        ("7", "bob", False),
        ("6_2", "bob", False),
        ("8", "bob", True),
        ("404", "alice", False),
        ("7", "nobody", False),
        ("9", "alice", False),
        ("9" * 400, "alice", False),
    ],
)
def test_a_user_has_a_job_by_its_id(warehouse: Warehouse, name: str, user: str, found: bool) -> None:
    jobs = [
        a_job(job_id="7", user="alice", array_job_id="6", array_task_id="2", submitted_at="2020-01-02T00:00:00Z"),
        a_job(job_id="8", user="bob", submitted_at="2020-01-02T00:00:00Z"),
        a_job(job_id="9", user="alice", submitted_at="2019-01-01T00:00:00Z"),
    ]
    load(warehouse, a_batch(*jobs))
    assert warehouse.has_job("venus", name, user=user, since=datetime(2020, 1, 1, tzinfo=UTC)) is found


def test_a_cluster_with_a_lease_is_kept_until_it_runs_out(warehouse: Warehouse) -> None:
    warehouse.load([a_batch(a_job())], cluster="venus", path="x", sha256="x", format="sacct", timezone="UTC")
    ledger, now = warehouse.ledger("venus"), datetime.now(UTC)
    assert ledger.acquire(holder="here", now=now, lasts=timedelta(minutes=5)) is not None
    for forbidden in (lambda: warehouse.remove_cluster("venus"), lambda: warehouse.rename_cluster("venus", "mars")):
        with pytest.raises(UsageError, match="A Helios acts on venus"):
            forbidden()


def test_runs_of_trials_are_read_back_as_they_were(warehouse: Warehouse) -> None:
    runs = [
        a_trial_run(0),
        a_trial_run(0, attempt=2, placement=(4, 2)),
        a_trial_run(1, start_up_s=3.0, progress=0.5, utilization=0.9),
        a_trial_run(2, sizes={"smallest": 32, "steps": [[1, 2, 64, 0.5, 0.125]]}),
    ]
    assert warehouse.add_trial_runs(runs, user="ann") == 4
    stored = [replace(run, user="ann") for run in runs]
    assert warehouse.trial_runs(user="ann") == sorted(stored, key=lambda run: run.started_s)
    assert warehouse.clusters().empty


def test_the_last_runs_are_read_with_their_curves(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helios.warehouse.trials.MOST_CURVES_READ", 2)
    warehouse.add_trial_runs([a_trial_run(number) for number in range(3)], user="ann")
    assert [len(run.curve) for run in warehouse.trial_runs(user="ann")] == [0, 3, 3]


def test_a_run_of_a_trial_is_stored_once(warehouse: Warehouse) -> None:
    warehouse.add_trial_runs([a_trial_run()], user="ann")
    assert warehouse.add_trial_runs([a_trial_run(seconds=1.0), a_trial_run(1)], user="ann") == 1
    assert [run.seconds for run in warehouse.trial_runs(user="ann")] == [100.5, 100.5]


def test_runs_of_trials_are_those_of_a_pool(warehouse: Warehouse) -> None:
    warehouse.add_trial_runs([a_trial_run()], user="ann")
    warehouse.add_trial_runs([a_trial_run(1, pool="q")], user="bob")
    assert [(run.number, run.user) for run in warehouse.trial_runs()] == [(0, "ann"), (1, "bob")]
    assert [run.number for run in warehouse.trial_runs(pool="q")] == [1]
    warehouse.add_trial_runs([a_trial_run(2, pool="0123456789abcdef")], user="bob")
    found = {part: len(warehouse.trial_runs(pool=part)) for part in ("0123456789abcdef", "0123456789ab", "0123456789")}
    assert found == {"0123456789abcdef": 1, "0123456789ab": 1, "0123456789": 0}
    assert warehouse.trial_runs(user="ann", pool="q") == []


def test_runs_of_trials_are_those_of_a_user_and_a_program(warehouse: Warehouse) -> None:
    warehouse.add_trial_runs([a_trial_run()], user="ann")
    warehouse.add_trial_runs([a_trial_run(1), a_trial_run(2, program="other.py")], user="bob")
    assert [run.number for run in warehouse.trial_runs(user="bob", program="train.py")] == [1]
    assert warehouse.trial_runs(user="eve") == []
