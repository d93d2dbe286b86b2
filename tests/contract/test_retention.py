"""What is deleted once it is old, and how one job's decisions are found, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from helios.model import CYCLES, DECISIONS, PREDICTIONS, START_ESTIMATES
from helios.ports import Domain
from helios.warehouse import Horizon, Warehouse, deletion, rows
from helios.warehouse.engine import engine_for, reading
from helios.warehouse.schema import decisions
from tests.builders import a_batch, a_job

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
HORIZON = Horizon(
    audit=NOW - 400 * DAY,
    shadow=NOW - 60 * DAY,
    cycles=NOW - 400 * DAY,
    predictions=NOW - 400 * DAY,
    readings=NOW - 60 * DAY,
)


@pytest.fixture
def warehouse(database: str) -> Iterator[Warehouse]:
    with Warehouse.open(database) as opened:
        yield opened


def decide(warehouse: Warehouse, *ages: int, mode: str = "active", target: str = "1", cluster: str = "venus") -> None:
    """Write a decision for each of these ages, days."""
    rows = {"decided_at": [NOW - age * DAY for age in ages], "target": target, "mode": mode}
    texts = {"service": "qssf", "action": "Reorder", "reason": "short", "outcome": "done"}
    warehouse.add_decisions(cluster, DECISIONS.conform(pd.DataFrame(rows | texts)))


def ages(warehouse: Warehouse, cluster: str = "venus") -> list[int]:
    return [int((NOW - at) / DAY) for at in warehouse.decisions(cluster)["decided_at"]]


def test_decisions_go_when_they_are_old_and_those_of_a_shadow_sooner(warehouse: Warehouse) -> None:
    decide(warehouse, 500, 401, 399, 61, 1)
    decide(warehouse, 402, 61, 59, mode="shadow")
    gone = warehouse.forget("venus", HORIZON)
    assert (gone["decisions"], gone["shadow decisions"]) == (3, 1)
    assert sorted(ages(warehouse)) == [1, 59, 61, 399]


def test_clusters_forget_for_themselves(warehouse: Warehouse) -> None:
    decide(warehouse, 500)
    decide(warehouse, 500, cluster="earth")
    warehouse.forget("venus", HORIZON)
    assert (ages(warehouse), ages(warehouse, "earth")) == ([], [500])


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 100])
def test_however_few_rows_go_at_a_time_all_that_is_old_goes(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(deletion, "DELETE_BATCH", batch)
    decide(warehouse, 500, 500, 500, 480, 470, 450, 3)
    assert warehouse.forget("venus", HORIZON)["decisions"] == 6
    assert ages(warehouse) == [3]


def test_cycles_and_predictions_go_when_they_are_old(warehouse: Warehouse) -> None:
    times = [NOW - 401 * DAY, NOW - DAY]
    counts = dict.fromkeys(("pending", "running", "gpus_pending", "gpus_running", "acted"), 0)
    warehouse.add_cycles("venus", CYCLES.conform(pd.DataFrame({"taken_at": times, "seconds": 1.0} | counts)))
    predicted = dict.fromkeys(PREDICTIONS.names[:-1], 60.0) | {"source": "m"}
    jobs = pd.DataFrame({"job_id": ["1", "2"], "submitted_at": times, "restart": np.int32(0)} | predicted)
    warehouse.add_predictions("venus", jobs.astype({"job_id": "str"}), made_at=NOW)
    estimates = jobs[["job_id", "submitted_at", "restart"]].assign(made_at=NOW, horizon_at=NOW)
    warehouse.add_start_estimates("venus", START_ESTIMATES.conform(estimates))
    gone = warehouse.forget("venus", HORIZON)
    assert (gone["cycles"], gone["predictions"], gone["estimates of starts"]) == (1, 1, 1)
    assert warehouse.start_estimates("venus")["job_id"].tolist() == ["2"]
    assert warehouse.cycles("venus")["taken_at"].tolist() == [times[1]]
    assert warehouse.predictions("venus")["job_id"].tolist() == ["2"]


def read_of(warehouse: Warehouse, path: str, **job: Any) -> int:
    rejects = [(3, "no end", "x")]
    report = warehouse.load(
        [a_batch(a_job(**job), rejects=rejects)],
        cluster="venus",
        path=path,
        sha256=path,
        format="sacct",
        timezone="UTC",
    )
    return report.load_id


def test_old_readings_lose_their_notes_and_rejects_but_keep_jobs_and_files(
    warehouse: Warehouse,
) -> None:
    first = read_of(warehouse, "sacct 2025-01-01T00:00:00Z to 2025-01-02T00:00:00Z", job_id="1")
    a_file = read_of(warehouse, "sacct of last year.txt", job_id="2")
    last = read_of(warehouse, "sacct 2025-01-02T00:00:00Z to 2025-01-03T00:00:00Z", job_id="3")
    edition = warehouse.edition("venus")
    far = {"audit": NOW, "shadow": NOW, "cycles": NOW, "predictions": NOW}
    gone = warehouse.forget("venus", Horizon(**far, readings=datetime.now(UTC) + DAY))
    assert gone["readings"] == 1
    assert warehouse.loads("venus")["load_id"].tolist() == [a_file, last] != [first, last]
    assert len(warehouse.rejects("venus")) == 2
    assert len(warehouse.jobs("venus")) == 3
    assert warehouse.edition("venus") == edition


def test_what_control_relies_on_is_never_old(warehouse: Warehouse) -> None:
    old = NOW - 2_000 * DAY
    token = warehouse.ledger("venus", Domain.NODES).acquire(holder="me", now=old, lasts=DAY)
    warehouse.remember("venus", "cycle", "{}", at=old)
    warehouse.forget("venus", HORIZON)
    assert warehouse.remembered("venus", "cycle") == "{}"
    lease = warehouse.lease("venus", domain=Domain.NODES)
    assert lease is not None and lease["token"] == token


def test_what_was_decided_about_one_job_is_found_oldest_first(warehouse: Warehouse) -> None:
    decide(warehouse, 3, 1, 2, target="7")
    decide(warehouse, 1, target="70")
    decide(warehouse, 1, target="7", cluster="earth")
    found = warehouse.decisions_about("venus", "7", since=NOW - 2 * DAY)
    assert [int((NOW - at) / DAY) for at in found["decided_at"]] == [2, 1]
    whole = warehouse.decisions("venus")
    pd.testing.assert_frame_equal(
        warehouse.decisions_about("venus", "70"), whole[whole["target"] == "70"].reset_index(drop=True)
    )
    assert warehouse.decisions_about("venus", "it's %s").empty


def test_one_jobs_decisions_are_found_by_an_index_and_old_ones_too(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'helios.db'}"
    Warehouse.open(url).close()
    with reading(engine_for(url)) as connection:

        def plan(query: Any) -> str:
            text = query.compile(dialect=connection.dialect, compile_kwargs={"literal_binds": True})
            return str(connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}").all())

        found = plan(rows.decision_columns(1, "7", since=NOW))
        assert "ix_decisions_cluster_id_target_decided_at (cluster_id=? AND target=? AND decided_at>?)" in found
        old = plan(deletion.select_older(1, decisions.c.decided_at, NOW))
        assert "ix_decisions_cluster_id_decided_at (cluster_id=? AND decided_at<?)" in old


def test_a_job_is_found_by_the_id_that_a_person_writes(warehouse: Warehouse) -> None:
    array = {"array_job_id": "20", "array_task_id": "3"}
    jobs = [a_job(job_id="20"), a_job(job_id="23", **array), a_job(job_id="24", array_job_id="20", array_task_id="4")]
    warehouse.load([a_batch(*jobs)], cluster="venus", path="p", sha256="1", format="sacct", timezone="UTC")
    since = warehouse.jobs("venus")["submitted_at"].min().to_pydatetime()
    named = {name: warehouse.jobs_named("venus", name, since=since)["job_id"].tolist() for name in ("20", "20_3", "23")}
    assert named == {"20": ["20"], "20_3": ["23"], "23": ["23"]}
    assert warehouse.jobs_named("venus", "20", since=since + timedelta(days=1)).empty
    assert warehouse.jobs_named("venus", "404", since=since).empty
    pd.testing.assert_frame_equal(
        warehouse.jobs_named("venus", "23", since=since).drop(columns="node_list"),
        warehouse.jobs("venus").query("job_id == '23'").reset_index(drop=True).drop(columns="node_list"),
        check_categorical=False,
    )
