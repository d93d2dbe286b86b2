"""Every outcome says what stood before and what stands after, on a Slurm in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from helios.actions import JobSetting, KeepAwake, NodeAction, NodeSetting, Result, Revert
from helios.errors import ClusterUnavailable
from helios.slurm.undo_file import JOBS_FILE, JobsUndo
from tests.changes import asked, asked_of_nodes
from tests.unit.slurm.slurm import START, MemorySlurm, SleepySlurm, a_raw_job, a_raw_node
from tests.unit.slurm.test_jobs import a_applied, a_cluster, a_limit, an_order, having
from tests.unit.slurm.test_nodes import asleep, down, nodes_of, restore, up

IDLE, FALLING = "IDLE", "IDLE+POWER_DOWN"
SLEEPING, WAKING = "IDLE+POWERED_DOWN", "IDLE+POWER_UP+POWERED_DOWN"


def is_held(slurm: MemorySlurm) -> None:
    slurm.between.append(lambda: slurm.jobs["1"].update(priority=0))


def starts(slurm: MemorySlurm) -> None:
    slurm.between.append(lambda: slurm.jobs["1"].update(state="RUNNING"))


def falls_silent(slurm: MemorySlurm) -> None:
    slurm.between.append(lambda: setattr(slurm, "down_after", 0))


@pytest.mark.parametrize(
    ("happens", "result", "after"),
    [
        (lambda slurm: None, Result.DONE, "SiteFactor 5037"),
        (lambda slurm: slurm.answers.update({"1": "Access denied"}), Result.FAILED, "SiteFactor 1037"),
        (lambda slurm: slurm.swallowed.add("1"), Result.MISMATCH, "SiteFactor 1037"),
        (is_held, Result.DONE, ""),
        (starts, Result.GONE, ""),
        (falls_silent, Result.FAILED, ""),
    ],
)
def test_the_outcome_of_a_job_write_says_what_stood_before(
    happens: Callable[[MemorySlurm], Any], result: Result, after: str
) -> None:
    slurm = MemorySlurm(a_raw_job("1"))
    slurm.site["1"] = 1037
    happens(slurm)
    (outcome,) = a_cluster(slurm, undo=having((JobSetting.ORDER, "1", 1037))).apply(asked([an_order(j1=0.5)]))
    assert (outcome.action, outcome.setting, outcome.job_id) == ("Reorder", JobSetting.ORDER, "1")
    assert (outcome.result, outcome.before, outcome.after) == (result, "SiteFactor 1037", after)
    assert bool(outcome.remark) is (result is not Result.DONE or not after)
    assert outcome.reason == "short"


def test_what_is_not_written_to_a_job_is_told_with_what_stands() -> None:
    slurm = MemorySlurm(*(a_raw_job(job) for job in "123"))
    slurm.site |= {"1": 1037, "2": 1037, "3": 5037}
    undo = having(*((JobSetting.ORDER, job, slurm.site[job]) for job in "123"))
    overruled, waits, same, done = a_cluster(slurm, undo=undo, writes_per_cycle=1).apply(
        asked([an_order(j1=0.5), an_order(j2=0.2), an_order(j3=0.5), an_order(j1=-0.5)])
    )
    assert (overruled.result, overruled.before) == (Result.REFUSED, "SiteFactor 1037")
    assert (waits.result, waits.before) == (Result.POSTPONED, "SiteFactor 1037")
    assert (same.result, same.before) == (Result.UNCHANGED, "SiteFactor 5037")
    assert (done.result, done.after) == (Result.DONE, "SiteFactor -5037")


def test_a_soft_limit_is_told_in_minutes_before_and_after() -> None:
    slurm = MemorySlurm(a_raw_job("1"))
    cluster = a_cluster(slurm)
    told = [cluster.apply(asked([action]))[0] for action in (a_limit("1", 11), a_limit("1", 21), Revert(reason="stop"))]
    assert [(outcome.before, outcome.after) for outcome in told] == [
        ("TimeMin 0 min", "TimeMin 17 min"),
        ("TimeMin 17 min", "TimeMin 27 min"),
        ("TimeMin 27 min", "TimeMin 0 min"),
    ]


def test_nothing_is_told_of_a_task_that_stays_as_it_was() -> None:
    left = a_raw_job("9", array_job_id="5", array_tasks="3")
    slurm = MemorySlurm(left, a_raw_job("5", array_job_id="5", array_tasks="4-8", tasks=5))
    slurm.site["9"] = 500
    slurm.swallowed.add("5")
    outcomes = a_cluster(slurm).apply(asked([an_order(j5=0.1)]))
    assert [(outcome.job_id, outcome.result) for outcome in outcomes] == [("5", Result.MISMATCH)]


# What is known of a job goes into the file, and only that.


def entries(folder: Path) -> list[str]:
    return (folder / JOBS_FILE).read_text().splitlines() if (folder / JOBS_FILE).exists() else []


@pytest.mark.parametrize("hidden", [False, True])
def test_a_job_known_only_to_the_ledger_is_in_the_file(tmp_path: Path, hidden: bool) -> None:
    slurm = MemorySlurm(a_raw_job("1", **({"priority": 0, "reason": "JobHeldUser"} if hidden else {})), a_raw_job("2"))
    slurm.site["1"] = 5037
    cluster = a_cluster(slurm, undo=JobsUndo(tmp_path))
    cluster.load_applied_changes(pd.DataFrame([a_applied("1", JobSetting.ORDER, 0.5)]), keep=False)
    assert entries(tmp_path) == []
    for _ in range(2):
        cluster.apply(asked([an_order(j2=0.5)]))
    assert entries(tmp_path) == [f"site_factor\t1\t{START}\t5037", f"site_factor\t2\t{START}\t5037"]


def test_a_replaced_value_is_in_the_file_as_gone_once(tmp_path: Path) -> None:
    slurm = MemorySlurm(a_raw_job("1"), a_raw_job("2"))
    cluster = a_cluster(slurm, undo=JobsUndo(tmp_path))
    cluster.apply(asked([an_order(j1=0.5)]))
    slurm.site["1"] = 500
    for _ in range(2):
        cluster.apply(asked([Revert(reason="stop", job_ids=("2",))]))
    assert entries(tmp_path) == [f"site_factor\t1\t{START}\t5037", f"site_factor\t1\t{START}\t0"]


def test_a_file_that_was_removed_proves_nothing_any_more(tmp_path: Path) -> None:
    slurm = MemorySlurm(a_raw_job("1"))
    cluster = a_cluster(slurm, undo=JobsUndo(tmp_path))
    cluster.apply(asked([an_order(j1=0.5)]))
    cluster.snapshot()
    (tmp_path / JOBS_FILE).unlink()
    assert cluster.snapshot().pending["urgency"].tolist() == [0]


# The same for nodes.


def node_starts_a_job(slurm: SleepySlurm) -> None:
    slurm.before_look[3] = lambda: slurm.node["n1"].update(state="MIXED", cpus_held=4)


def node_vanishes(slurm: SleepySlurm) -> None:
    slurm.before_look[3] = lambda: slurm.node.pop("n1")


def nodes_fall_silent(slurm: SleepySlurm) -> None:
    slurm.before_look[2] = lambda: setattr(slurm, "down_after", 1)


@pytest.mark.parametrize(
    ("happens", "result", "after"),
    [
        (lambda slurm: None, Result.DONE, FALLING),
        (lambda slurm: slurm.answers.update({"n1": "Access denied"}), Result.FAILED, IDLE),
        (lambda slurm: slurm.swallowed.add("n1"), Result.MISMATCH, IDLE),
        (node_starts_a_job, Result.DONE, "MIXED+POWER_DOWN"),
        (node_vanishes, Result.GONE, ""),
        (nodes_fall_silent, Result.FAILED, ""),
    ],
)
def test_the_outcome_of_a_node_write_says_what_stood_before(
    happens: Callable[[SleepySlurm], Any], result: Result, after: str
) -> None:
    slurm = SleepySlurm(a_raw_node("n1"))
    happens(slurm)
    (outcome,) = nodes_of(slurm).steer(asked_of_nodes(down("n1")))
    assert (outcome.action, outcome.setting, outcome.node) == ("PowerDown", NodeSetting.POWER, "n1")
    assert (outcome.result, outcome.before, outcome.after) == (result, IDLE, after)
    assert bool(outcome.remark) is (after != FALLING)
    assert outcome.reason == "nothing to do"


def test_a_node_that_is_not_written_is_told_with_its_state() -> None:
    slurm = SleepySlurm(a_raw_node("n1"), asleep("n2"), a_raw_node("n3", state="MIXED"), a_raw_node("n4", weight=5))
    slurm.node["n5"] = dict(a_raw_node("n5", flags="POWERING_DOWN"))
    actions: list[NodeAction] = [
        *down("n1", "n2", "n3"),
        *up("n5"),
        *(restore(NodeSetting.WEIGHT, n4=weight) for weight in ("6", "7")),
    ]
    told = nodes_of(slurm, writes_per_cycle=0).steer(asked_of_nodes(actions))
    assert [(outcome.node, outcome.result, outcome.before, outcome.after) for outcome in told] == [
        ("n1", Result.POSTPONED, IDLE, ""),
        ("n2", Result.UNCHANGED, SLEEPING, SLEEPING),
        ("n3", Result.REFUSED, "MIXED", ""),
        ("n5", Result.POSTPONED, "IDLE+POWERING_DOWN", ""),
        ("n4", Result.REFUSED, "Weight 5", ""),
        ("n4", Result.POSTPONED, "Weight 5", ""),
    ]
    assert slurm.written == []


@pytest.mark.parametrize("action", [*up("n2"), restore(NodeSetting.WEIGHT, n1="9")])
def test_a_cluster_silent_at_the_first_write_is_an_error(action: NodeAction) -> None:
    slurm = SleepySlurm(a_raw_node("n1"), asleep("n2"))
    slurm.down_after = 2  # nodes, and how they are powered
    with pytest.raises(ClusterUnavailable):
        nodes_of(slurm).steer(asked_of_nodes([action]))
    assert slurm.written == []


def test_a_list_and_a_weight_are_told_before_and_after() -> None:
    slurm = SleepySlurm(a_raw_node("n1", weight=9), a_raw_node("n2"))
    listed, weighed = nodes_of(slurm).steer(
        asked_of_nodes([KeepAwake(nodes=("n1", "n2"), reason="wanted"), restore(NodeSetting.WEIGHT, n1="1")])
    )
    assert (listed.node, listed.before, listed.after) == ("", "SuspendExcNodes (null)", "SuspendExcNodes n1,n2")
    assert (weighed.node, weighed.before, weighed.after) == ("n1", "Weight 9", "Weight 1")


def test_of_changes_that_share_a_budget_lists_come_before_sleeps() -> None:
    written = []
    for most in range(1, 5):
        slurm = SleepySlurm(a_raw_node("n1"), asleep("n2"), a_raw_node("n3"), a_raw_node("n4", weight=9))
        actions: list[NodeAction] = [
            *down("n1"),
            KeepAwake(nodes=("n3",), reason="wanted"),
            *up("n2"),
            restore(NodeSetting.WEIGHT, n4="1"),
        ]
        done = {
            outcome.action
            for outcome in nodes_of(slurm, writes_per_cycle=most).steer(asked_of_nodes(actions))
            if outcome.after
        }
        written.append(done - set().union(*written))
    assert written == [{"RevertNodes"}, {"PowerUp"}, {"KeepAwake"}, {"PowerDown"}]
