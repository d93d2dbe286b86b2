"""What is done to one cluster, or for one stretch of time, leaves all the rest of a warehouse as it was.

On SQLite and on a real PostgreSQL alike. One cluster is filled, its neighbour is then used in every way there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from helios.errors import FrameInvalid, LeaseLost, NoSuchCluster
from helios.model import (
    APPLIED_CHANGES,
    APPLIED_NODE_CHANGES,
    CYCLES,
    DECISIONS,
    MODES,
    NODE_EVENTS,
    NODE_TALLIES,
    NODES,
    AuditStep,
)
from helios.ports import Domain
from helios.warehouse import Warehouse
from tests.builders import a_batch, a_job
from tests.contract.test_warehouse import (
    MINUTE,
    NOON,
    UNENDED,
    a_applied,
    a_decision,
    a_model,
    a_node_applied,
    a_tally,
    applied_changes_frame,
    decisions_frame,
    load,
    tallies_frame,
)

HOUR = timedelta(hours=1)
JOB = {"job_id": "7", "submitted_at": NOON, "restart": 0}

OF_THIS_MACHINE = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
"""PostgreSQL's leases run by its own clock; test_warehouse.py has what holds for both."""


@pytest.fixture
def warehouse(database: str) -> Iterator[Warehouse]:
    with Warehouse.open(database) as opened:
        yield opened


def nodes_frame(*rows: dict[str, Any]) -> pd.DataFrame:
    return NODES.conform(
        pd.DataFrame([{"name": "n1", "partition": "gpu", "cpus": 8.0, "gpus": 4} | row for row in rows])
    )


def events_frame(*rows: dict[str, Any]) -> pd.DataFrame:
    event: dict[str, Any] = {"node": "n1", "started_at": NOON, "ended_at": None, "state": "DOWN", "reason": "fan"}
    frame = pd.DataFrame([event | row for row in rows])
    times = {name: pd.to_datetime(frame[name], utc=True) for name in ("started_at", "ended_at")}
    return NODE_EVENTS.conform(frame.assign(**times))


def predictions_frame(*rows: dict[str, Any]) -> pd.DataFrame:
    prediction = JOB | {"p10_s": 1.0, "p50_s": 2.0, "p90_s": 3.0, "source": "m1"}
    prediction |= {"typical_s": 2.0, "mean_s": 2.5, "truncated_mean_s": 2.25}
    frame = pd.DataFrame([prediction | row for row in rows])
    return frame.assign(submitted_at=pd.to_datetime(frame["submitted_at"], utc=True))


def cycles_frame(*rows: dict[str, Any]) -> pd.DataFrame:
    return CYCLES.conform(pd.DataFrame([{"taken_at": NOON, "seconds": 0.5, "pending": 1} | row for row in rows]))


def modes_frame(mode: str) -> pd.DataFrame:
    row = {"service": "qssf", "mode": mode, "percent": 10.0, "set_at": NOON, "set_by": "root", "reason": "trial"}
    return MODES.conform(pd.DataFrame([row]))


def fill(warehouse: Warehouse, cluster: str) -> None:
    """Put some of everything into a cluster."""
    reject = ((3, "no end", "7|x"),)
    load(warehouse, a_batch(a_job(**JOB), a_job(job_id="8", **UNENDED), rejects=reject), cluster=cluster)
    warehouse.add_nodes(cluster, nodes_frame({}))
    warehouse.add_node_events(cluster, events_frame({}))
    warehouse.add_predictions(cluster, predictions_frame({}), NOON)
    warehouse.add_decisions(cluster, decisions_frame(a_decision()))
    warehouse.add_modes(cluster, modes_frame("canary"))
    warehouse.add_cycles(cluster, cycles_frame({}))
    warehouse.add_node_tallies(cluster, tallies_frame(a_tally()))
    warehouse.add_coverage(cluster, source="jobs", started_at=NOON, ended_at=NOON + HOUR, read_at=NOON)
    warehouse.remember(cluster, "cycle", f"of {cluster}", at=NOON)
    for hour, model_id in enumerate("ab"):
        warehouse.add_model(a_model(model_id=model_id, cluster=cluster, trained_at=NOON + hour * HOUR))
    warehouse.decide(cluster, step=AuditStep.PROMOTED, model_id="a", by="ann", why="because", at=NOON)
    for domain, applied_changes in (
        (Domain.JOBS, applied_changes_frame(a_applied())),
        (Domain.NODES, APPLIED_NODE_CHANGES.conform(pd.DataFrame([a_node_applied()]))),
    ):
        ledger = warehouse.ledger(cluster, domain)
        token = ledger.acquire(holder="a", now=NOON, lasts=MINUTE)
        assert token is not None
        ledger.record(token=token, decisions=DECISIONS.empty(), applied_changes=applied_changes)


def use(warehouse: Warehouse, cluster: str) -> None:
    """Change, replace and forget what can be, in a cluster that was filled."""
    load(warehouse, a_batch(a_job(job_id="8"), a_job(job_id="9")), content="second", cluster=cluster)
    warehouse.add_nodes(cluster, nodes_frame({"cpus": 16.0}, {"name": "n2"}))
    warehouse.add_node_events(cluster, events_frame({"ended_at": NOON + HOUR}, {"node": "n2"}))
    warehouse.add_predictions(cluster, predictions_frame({"p50_s": 9.0}), NOON + HOUR)
    warehouse.add_decisions(cluster, decisions_frame(a_decision(target="8")))
    warehouse.add_modes(cluster, modes_frame("active"))
    warehouse.add_cycles(cluster, cycles_frame({"pending": 5}))
    warehouse.forget_tallies(cluster, NOON + HOUR)
    warehouse.add_coverage(cluster, source="jobs", started_at=NOON + HOUR, ended_at=NOON + 2 * HOUR, read_at=NOON)
    warehouse.remember(cluster, "cycle", "changed", at=NOON + HOUR)
    warehouse.decide(cluster, step=AuditStep.PROMOTED, model_id="b", by="ann", why="newer", at=NOON + HOUR)
    warehouse.add_model(a_model(model_id="b", cluster=cluster, trained_at=NOON + HOUR, jobs=99))
    warehouse.add_model(a_model(model_id="c", cluster=cluster, trained_at=NOON + 2 * HOUR))
    warehouse.forget_models(cluster, keep=1)
    for domain, applied_changes in (
        (Domain.JOBS, applied_changes_frame(a_applied(value=0.9), a_applied(job_id="8"))),
        (Domain.NODES, APPLIED_NODE_CHANGES.empty()),
    ):
        ledger = warehouse.ledger(cluster, domain)
        ledger.release(holder="a")
        token = ledger.acquire(holder="b", now=NOON + HOUR, lasts=MINUTE)
        assert token is not None
        ledger.record(token=token, decisions=DECISIONS.empty(), applied_changes=applied_changes)
        ledger.release(holder="b")


def all_of(warehouse: Warehouse, cluster: str) -> dict[str, Any]:
    """Everything that can be read of a cluster."""
    return {
        "jobs": warehouse.jobs(cluster),
        "ended": warehouse.ended_jobs(cluster, since=NOON - 99 * HOUR),
        "size": warehouse.clusters(counts=True).query("name == @cluster").reset_index(drop=True),
        "edition": warehouse.edition(cluster),
        "loads": warehouse.loads(cluster).drop(columns="loaded_at"),
        "rejects": warehouse.rejects(cluster),
        "reject counts": warehouse.reject_counts(cluster),
        "nodes": warehouse.nodes(cluster),
        "events": warehouse.node_events(cluster),
        "predictions": warehouse.predictions(cluster),
        "predictions of": warehouse.predictions_of(cluster, pd.Series(pd.to_datetime([NOON], utc=True))),
        "decisions": warehouse.decisions(cluster),
        "modes": warehouse.modes(cluster),
        "cycles": warehouse.cycles(cluster),
        "tallies": warehouse.node_tallies(cluster),
        "coverage": warehouse.coverage(cluster),
        "memory": warehouse.remembered(cluster, "cycle"),
        "models": warehouse.models(cluster),
        "in charge": warehouse.model(cluster),
        "promotions": warehouse.promotions(cluster),
        "lease of jobs": warehouse.lease(cluster),
        "lease of nodes": warehouse.lease(cluster, domain=Domain.NODES),
        "applied_changes": warehouse.ledger(cluster).applied_changes(),
        "applied node changes": warehouse.ledger(cluster, Domain.NODES).applied_changes(),
    }


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, pd.DataFrame):
            assert_frame_equal(value, other[name], obj=name)
        else:
            assert value == other[name], name


def test_whatever_happens_to_a_cluster_its_neighbour_keeps_everything(warehouse: Warehouse) -> None:
    for cluster in ("venus", "earth"):
        fill(warehouse, cluster)
    before = all_of(warehouse, "earth")
    use(warehouse, "venus")
    assert_same(before, all_of(warehouse, "earth"))


def test_what_happens_to_a_cluster_is_read_of_it(warehouse: Warehouse) -> None:
    for cluster in ("venus", "earth"):
        fill(warehouse, cluster)
    before = all_of(warehouse, "venus")
    use(warehouse, "venus")
    after = all_of(warehouse, "venus")
    same = []
    for name, value in before.items():
        equal = value.equals(after[name]) if isinstance(value, pd.DataFrame) else value == after[name]
        same += [name] if equal else []
    assert same == ["rejects", "reject counts"]
    assert (len(after["jobs"]), after["ended"], len(after["nodes"]), after["nodes"]["cpus"].tolist()) == (
        3,
        3,
        2,
        [16, 8],
    )
    assert after["events"]["ended_at"].isna().tolist() == [False, True]
    assert after["predictions"]["p50_s"].tolist() == after["predictions of"]["p50_s"].tolist() == [2.0, 9.0]
    assert after["decisions"]["target"].tolist() == ["7", "8"]
    assert (after["modes"]["mode"].tolist(), after["cycles"]["pending"].tolist()) == (["canary", "active"], [1, 5])
    assert after["tallies"].empty
    assert after["coverage"][["started_at", "ended_at"]].to_numpy().tolist() == [
        [pd.Timestamp(NOON), pd.Timestamp(NOON + 2 * HOUR)]
    ]
    assert (after["memory"], after["in charge"].model_id, after["in charge"].jobs) == ("changed", "b", 99)
    assert after["models"]["model_id"].tolist() == ["c", "b", "a"]  # the newest, the one in charge, the one before it
    assert after["models"]["promoted"].tolist() == [False, True, False]
    assert after["promotions"]["previous"].tolist()[-1] == "a"
    assert after["applied_changes"]["value"].tolist() == [0.9, 0.5]
    assert after["applied node changes"].empty
    assert {key: after["lease of jobs"][key] for key in ("token", "holder")} == {"token": 2, "holder": None}


@OF_THIS_MACHINE
def test_a_lease_says_whose_it_is_and_how_long(warehouse: Warehouse) -> None:
    warehouse.ledger("venus").acquire(holder="a", now=NOON, lasts=MINUTE)
    found = warehouse.lease("venus")
    assert found is not None
    assert (found["token"], found["holder"]) == (1, "a")
    assert found["expires_at"] == int((NOON + MINUTE - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1e6)
    assert warehouse.lease("venus", domain=Domain.NODES) is None


@OF_THIS_MACHINE
def test_a_lease_can_be_taken_when_it_runs_out_and_not_before(warehouse: Warehouse) -> None:
    ledger = warehouse.ledger("venus")
    assert ledger.acquire(holder="a", now=NOON, lasts=MINUTE) == 1
    assert ledger.acquire(holder="b", now=NOON + MINUTE - timedelta(microseconds=1), lasts=MINUTE) is None
    assert ledger.acquire(holder="b", now=NOON + MINUTE, lasts=MINUTE) == 2
    assert ledger.acquire(holder="b", now=NOON + 9 * MINUTE, lasts=MINUTE) == 2  # ran out, and nobody took it


def test_without_a_lease_nothing_is_recorded(warehouse: Warehouse) -> None:
    with pytest.raises(LeaseLost, match="token 1"):
        warehouse.ledger("venus").record(token=1, decisions=decisions_frame(a_decision()), applied_changes=None)
    assert warehouse.clusters().empty


def test_reading_what_is_applied_creates_no_cluster(warehouse: Warehouse) -> None:
    ledger = warehouse.ledger("venus")
    assert ledger.applied_changes().empty
    ledger.release(holder="a")
    assert warehouse.clusters().empty


def test_times_are_read_from_their_first_moment_to_before_their_last(warehouse: Warehouse) -> None:
    times = [NOON + n * HOUR for n in range(4)]
    warehouse.add_cycles("venus", cycles_frame(*({"taken_at": at, "pending": n} for n, at in enumerate(times))))
    warehouse.add_decisions("venus", decisions_frame(*(a_decision(decided_at=at, target=str(at.hour)) for at in times)))
    warehouse.add_node_tallies("venus", tallies_frame(*(a_tally(taken_at=at, busy=n) for n, at in enumerate(times))))
    warehouse.add_predictions("venus", predictions_frame(*({"submitted_at": at} for at in times)), NOON)
    warehouse.add_node_events("venus", events_frame(*({"started_at": at, "ended_at": at + HOUR} for at in times)))
    since, until = times[1], times[3]
    assert warehouse.cycles("venus", since=since, until=until)["pending"].tolist() == [1, 2]
    assert warehouse.decisions("venus", since=since, until=until)["target"].tolist() == ["13", "14"]
    assert warehouse.node_tallies("venus", since, until)["busy"].tolist() == [1, 2]
    found = warehouse.predictions("venus", since=since, until=until)
    assert found["submitted_at"].tolist() == [pd.Timestamp(at) for at in times[1:3]]
    started = warehouse.node_events("venus", since, until)["started_at"]
    assert started.tolist() == [pd.Timestamp(at) for at in times[1:3]]
    reaching = warehouse.node_events("venus", since + MINUTE, until, reaching=True)["started_at"]
    assert reaching.tolist() == [pd.Timestamp(at) for at in times[1:3]]
    assert len(warehouse.node_events("venus", reaching=True)) == 4


def test_rows_of_one_time_are_read_in_the_order_they_were_written(warehouse: Warehouse) -> None:
    for target in ("9", "10", "1"):
        warehouse.add_decisions("venus", decisions_frame(a_decision(target=target)))
        warehouse.add_cycles("venus", cycles_frame({"pending": int(target)}))
    warehouse.add_decisions("venus", decisions_frame(a_decision(target="0", decided_at=NOON - HOUR)))
    assert warehouse.decisions("venus")["target"].tolist() == ["0", "9", "10", "1"]
    assert warehouse.cycles("venus")["pending"].tolist() == [9, 10, 1]


def test_what_stands_is_read_by_setting_then_job_then_mode(warehouse: Warehouse) -> None:
    rows = [
        a_applied(setting=setting, job_id=job, mode=mode)
        for setting, job, mode in [
            ("soft_limit", "1", "active"),
            ("order", "2", "shadow"),
            ("order", "2", "active"),
            ("order", "1", "shadow"),
        ]
    ]
    ledger = warehouse.ledger("venus")
    ledger.acquire(holder="a", now=NOON, lasts=MINUTE)
    ledger.record(token=1, decisions=DECISIONS.empty(), applied_changes=applied_changes_frame(*rows))
    found = APPLIED_CHANGES.check(ledger.applied_changes())
    assert found[["setting", "job_id", "mode"]].astype(str).to_numpy().tolist() == [
        ["order", "1", "shadow"],
        ["order", "2", "active"],
        ["order", "2", "shadow"],
        ["soft_limit", "1", "active"],
    ]


def test_stretches_of_another_source_or_out_of_touch_are_kept_apart(warehouse: Warehouse) -> None:
    for source, start, end in [("jobs", 0, 1), ("nodes", 1, 2), ("jobs", 3, 4)]:
        warehouse.add_coverage(
            "venus", source=source, started_at=NOON + start * HOUR, ended_at=NOON + end * HOUR, read_at=NOON + 5 * HOUR
        )
    found = warehouse.coverage("venus")
    assert sorted(found["source"].astype(str)) == ["jobs", "jobs", "nodes"]
    assert set(found["read_at"]) == {pd.Timestamp(NOON + 5 * HOUR)}


def test_a_load_says_what_it_read_and_when(warehouse: Warehouse) -> None:
    before = datetime.now(UTC)
    rejects = ((3, "no end", "7|x"), (4, "no end", "8|x"), (5, "no start", "9|x"))
    report = load(warehouse, a_batch(a_job(**JOB), rejects=rejects, notes=("odd", "odd", "even")))
    assert (report.cluster, report.rows_read, report.jobs_new, report.jobs_updated, report.jobs_unchanged) == (
        "venus",
        4,
        1,
        0,
        0,
    )
    assert (report.rejects, report.notes) == ({"no end": 2, "no start": 1}, ("odd", "even"))
    assert (report.already_loaded, load(warehouse, a_batch(a_job(**JOB))).already_loaded) == (False, True)
    row = warehouse.loads("venus").to_dict("records")[0]
    wanted = {"path": "first.txt", "sha256": "first", "format": "sacct", "timezone": "UTC", "rows_read": 4}
    wanted |= {"jobs_new": 1, "jobs_updated": 0, "jobs_unchanged": 0, "rejected": 3, "watermark": pd.Timestamp(NOON)}
    assert {name: row[name] for name in wanted} == wanted
    assert pd.Timestamp(before) <= row["loaded_at"] <= pd.Timestamp(datetime.now(UTC))
    assert warehouse.reject_counts("venus").to_numpy().tolist() == [["no end", 2], ["no start", 1]]
    assert warehouse.rejects("venus")[["line", "text", "path"]].to_numpy().tolist() == [
        [3, "7|x", "first.txt"],
        [4, "8|x", "first.txt"],
        [5, "9|x", "first.txt"],
    ]


def test_a_zone_is_learned_once_and_never_changed(warehouse: Warehouse) -> None:
    warehouse.remember("venus", "x", "made without a zone", at=NOON)
    assert warehouse.timezone("venus") is None
    for zone, content in (("Asia/Tokyo", "a"), ("UTC", "b")):
        warehouse.load([a_batch()], cluster="venus", path="x", sha256=content, format="sacct", timezone=zone)
    assert warehouse.timezone("venus") == "Asia/Tokyo"
    assert warehouse.timezone("nowhere") is None


def test_sizes_of_clusters_count_jobs_of_gpus_and_first_and_last(warehouse: Warehouse) -> None:
    jobs = [a_job(job_id="1", gpus=0, submitted_at=NOON), a_job(job_id="2", gpus=3, submitted_at=NOON + HOUR)]
    load(warehouse, a_batch(*jobs, a_job(job_id="3", gpus=1, submitted_at=NOON + MINUTE)))
    warehouse.remember("earth", "x", "empty", at=NOON)
    earth, venus = warehouse.clusters(counts=True).to_dict("records")
    assert (earth["name"], earth["jobs"], earth["gpu_jobs"], earth["timezone"]) == ("earth", 0, 0, None)
    assert pd.isna(earth["first_submitted_at"]) and pd.isna(earth["last_submitted_at"])
    assert (venus["name"], venus["jobs"], venus["gpu_jobs"], venus["timezone"]) == ("venus", 3, 2, "UTC")
    assert (venus["first_submitted_at"], venus["last_submitted_at"]) == (pd.Timestamp(NOON), pd.Timestamp(NOON + HOUR))


def test_a_cluster_that_is_not_known_is_answered_with_those_that_are(warehouse: Warehouse) -> None:
    with pytest.raises(NoSuchCluster) as nothing:
        warehouse.jobs("mars")
    assert "helios trace load" in nothing.value.hint
    for name in ("venus", "earth"):
        warehouse.remember(name, "x", "y", at=NOON)
    with pytest.raises(NoSuchCluster) as some:
        warehouse.jobs("mars")
    assert "mars" in some.value.message and some.value.hint.endswith("earth, venus")


@pytest.mark.parametrize("missing", ["name", "node", "started_at"])
def test_a_row_without_its_key_is_refused_and_named(warehouse: Warehouse, missing: str) -> None:
    frame = nodes_frame({}) if missing == "name" else events_frame({})
    broken = frame.assign(**{missing: pd.Series([None], dtype=frame[missing].dtype)})
    kind = NODES.name if missing == "name" else NODE_EVENTS.name
    with pytest.raises(FrameInvalid, match=f"a {kind} frame .*{missing}"):
        (warehouse.add_nodes if missing == "name" else warehouse.add_node_events)("venus", broken)


def test_a_prediction_made_again_at_one_time_stays_and_is_not_counted(warehouse: Warehouse) -> None:
    assert warehouse.add_predictions("venus", predictions_frame({}, {"job_id": "8"}), NOON) == 2
    assert warehouse.add_predictions("venus", predictions_frame({"p50_s": 9.0}, {"restart": 1}), NOON) == 1
    found = warehouse.predictions("venus")
    assert found[["job_id", "restart", "p50_s"]].to_numpy().tolist() == [["7", 0, 2.0], ["7", 1, 2.0], ["8", 0, 2.0]]
    assert (found["made_at"] == pd.Timestamp(NOON)).all()
    with pytest.raises(FrameInvalid, match="p90_s"):
        warehouse.add_predictions("venus", predictions_frame({}).drop(columns="p90_s"), NOON)


def test_tallies_come_back_with_every_figure(warehouse: Warehouse) -> None:
    warehouse.add_node_tallies("venus", tallies_frame(a_tally(), a_tally(pool="cpu", wanted=np.nan)))
    assert_frame_equal(
        warehouse.node_tallies("venus"),
        NODE_TALLIES.conform(tallies_frame(a_tally(pool="cpu", wanted=np.nan), a_tally())),
    )


def test_a_decision_on_models_is_kept_whole(warehouse: Warehouse) -> None:
    warehouse.add_model(a_model(model_id="a"))
    warehouse.decide("venus", step=AuditStep.PROMOTED, model_id="a", by="ann", why="good", at=NOON, candidate="a")
    warehouse.decide(
        "venus", step=AuditStep.ROLLED_BACK, model_id=None, by="bob", why="bad", at=NOON + HOUR, candidate="b"
    )
    rows = warehouse.promotions("venus").astype(object)
    told = rows.where(rows.notna(), None)[["step", "model_id", "previous", "candidate", "promoted_by", "why"]]
    assert told.to_numpy().tolist() == [
        [AuditStep.PROMOTED, "a", None, "a", "ann", "good"],
        [AuditStep.ROLLED_BACK, None, "a", "b", "bob", "bad"],
    ]
    assert rows["promoted_at"].tolist() == [pd.Timestamp(NOON), pd.Timestamp(NOON + HOUR)]


def test_nodes_are_read_by_name_and_partition_and_numbered_anew(warehouse: Warehouse) -> None:
    rows = [("n2", "gpu"), ("n1", None), ("n1", "cpu")]
    warehouse.add_nodes("venus", nodes_frame(*({"name": name, "partition": partition} for name, partition in rows)))
    found = warehouse.nodes("venus")
    told = found.astype(object).where(found.notna(), None)[["name", "partition"]].to_numpy().tolist()
    assert told == [["n1", "cpu"], ["n1", None], ["n2", "gpu"]]
    assert found.index.tolist() == [0, 1, 2]


def test_rejects_of_a_load_are_told_most_frequent_first_then_by_reason(warehouse: Warehouse) -> None:
    reasons = ["odd", "even", "all wrong", "odd"]
    report = load(warehouse, a_batch(rejects=tuple((line, why, "x") for line, why in enumerate(reasons, start=1))))
    assert list(report.rejects.items()) == [("odd", 2), ("all wrong", 1), ("even", 1)]
    assert warehouse.reject_counts("venus")["reason"].tolist() == ["odd", "all wrong", "even"]
