import numpy as np
import pandas as pd
import pytest

from helios.errors import FrameInvalid
from helios.model import JOBS, QUEUE, in_submission_order
from helios.testing import NOON, a_node, a_pending_job, a_running_job, a_snapshot


def frame(*ids: str, submitted: str = "2020-01-01", restart: int = 0) -> pd.DataFrame:
    return JOBS.conform(
        pd.DataFrame(
            {"job_id": list(ids), "submitted_at": pd.to_datetime([submitted] * len(ids), utc=True), "restart": restart}
        )
    )


def test_an_empty_frame_passes_its_own_check() -> None:
    JOBS.check(JOBS.empty())


def test_conforming_adds_what_is_missing_as_unknown() -> None:
    jobs = JOBS.check(frame("1"))
    assert jobs["user"].isna().all()
    assert jobs["started_at"].isna().all()
    assert jobs["gpus"].isna().all()


def test_an_undeclared_column_is_refused_by_name() -> None:
    with pytest.raises(FrameInvalid, match="owner"):
        JOBS.conform(frame("1").assign(owner="ann"))


def test_a_missing_column_is_refused_by_name() -> None:
    with pytest.raises(FrameInvalid, match="'user'"):
        JOBS.check(frame("1").drop(columns="user"))


def test_a_column_of_the_wrong_type_is_refused_by_name() -> None:
    with pytest.raises(FrameInvalid, match="'gpus'"):
        JOBS.check(frame("1").assign(gpus=np.int32(1)))


def test_a_value_that_cannot_be_converted_is_refused() -> None:
    with pytest.raises(FrameInvalid, match="wrong type"):
        JOBS.conform(frame("1").assign(cpus="many"))


def test_job_ids_are_ordered_as_numbers() -> None:
    assert in_submission_order(frame("10", "9", "100"))["job_id"].tolist() == ["9", "10", "100"]


def test_submit_time_comes_before_job_id() -> None:
    jobs = pd.concat([frame("1", submitted="2020-01-02"), frame("2", submitted="2020-01-01")], ignore_index=True)
    assert in_submission_order(JOBS.conform(jobs))["job_id"].tolist() == ["2", "1"]


def test_a_restart_follows_the_run_before_it() -> None:
    jobs = pd.concat([frame("1", restart=1), frame("1", restart=0)], ignore_index=True)
    assert in_submission_order(JOBS.conform(jobs))["restart"].tolist() == [0, 1]


def test_the_check_of_a_few_columns_does_not_look_at_the_others() -> None:
    JOBS.check(frame("1").assign(gpus=np.int32(1)), columns=["job_id", "user"])
    with pytest.raises(FrameInvalid, match="'gpus' of a jobs frame is int32, not float64"):
        JOBS.check(frame("1").assign(gpus=np.int32(1)), columns=["job_id", "gpus"])


@pytest.mark.parametrize("wrong", [{"user": "str"}, {"job_id": "category"}, {"submitted_at": "datetime64[ns, UTC]"}])
def test_a_type_that_only_looks_alike_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(FrameInvalid, match=next(iter(wrong))):
        JOBS.check(frame("1").astype(wrong))


def test_pending_jobs_column_by_column_are_plain_arrays() -> None:
    held = a_pending_job(job_id="7", excluded_reason="held", gpus=2, submitted_at=NOON, eligible_at=None)
    snapshot = a_snapshot(pending=[held, a_pending_job(job_id="8", p50_s=60.0)])
    values = snapshot.pending_values
    assert values("job_id").tolist() == ["7", "8"]
    assert (values("gpus").dtype, values("gpus").tolist()) == (np.float64, [2, 1])
    assert values("submitted_at")[0] == np.datetime64("2026-01-05T12:00:00", "us")
    assert np.isnat(values("eligible_at")).tolist() == [True, False]
    assert (values("excluded_reason")[0], values("excluded_reason")[1]) == ("held", pytest.approx(np.nan, nan_ok=True))
    assert np.isnan(values("p50_s")).tolist() == [True, False]


def test_nodes_and_running_jobs_column_by_column_are_plain_arrays() -> None:
    nodes = [a_node(name="n1", idle_since=NOON), a_node(name="n2", power=None)]
    snapshot = a_snapshot(nodes=nodes, running=[a_running_job(node_list="n2", gpus=2)])
    assert snapshot.node_values("name").tolist() == ["n1", "n2"]
    assert snapshot.node_values("idle_since")[0] == np.datetime64("2026-01-05T12:00:00", "us")
    assert np.isnat(snapshot.node_values("idle_since")).tolist() == [False, True]
    assert snapshot.node_values("power")[0] == "awake"
    assert np.isnan(snapshot.node_values("power")[1])
    assert snapshot.running_values("node_list").tolist() == ["n2"]
    assert (snapshot.running_values("gpus").dtype, snapshot.running_values("gpus").tolist()) == (np.float64, [2])


def test_columns_are_the_same_arrays_without_the_private_method_of_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = a_snapshot(pending=[a_pending_job(job_id="1", user="alice", gpus=2), a_pending_job(job_id="2")]).pending
    fast = QUEUE.arrays(jobs, QUEUE.names)
    monkeypatch.delattr(pd.DataFrame, "_get_column_array")
    for name, values in QUEUE.arrays(jobs, QUEUE.names).items():
        assert type(values) is type(fast[name])
        assert pd.Series(values).equals(pd.Series(fast[name]))
