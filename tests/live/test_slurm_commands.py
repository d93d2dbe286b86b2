"""Slurm through its own commands, on a real cluster: the contract, and each fact that the room rests on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from helios.actions import JobSetting, Place, Reorder, Result, Revert, SoftLimit
from helios.config import SlurmSettings
from helios.errors import ClusterUnavailable, NothingUnderstood
from helios.ingest import open_trace
from helios.model import JOBS
from helios.slurm.accounting import Accounting
from helios.slurm.backend import JobUpdate
from helios.slurm.commands import CommandsBackend, Sprio
from helios.slurm.connect import open_cluster
from helios.slurm.jobs import SlurmCluster
from helios.slurm.parse import release
from helios.slurm.preflight import FindingLevel, run_checks
from helios.slurm.shell import Shell
from tests.changes import asked
from tests.contract.cluster_suite import ClusterContract, World
from tests.live.meanwhile import Meanwhile
from tests.live.rig import Rig

SETTINGS = SlurmSettings(backend="commands", site_factor_most=10_000, writes_per_cycle=500)


@pytest.fixture
def meanwhile(tmp_path: Path) -> Meanwhile:
    return Meanwhile.of_path(tmp_path)


@pytest.fixture
def cluster_of_slurm(rig: Rig, meanwhile: Meanwhile) -> Iterator[SlurmCluster]:
    settings = SETTINGS.model_copy(update={"commands": str(meanwhile.folder)})
    cluster = open_cluster(settings, environment=rig.environment)
    yield cluster
    cluster.close()


@pytest.fixture
def backend(rig: Rig) -> CommandsBackend:
    return CommandsBackend(environment=rig.environment)


def busy(rig: Rig, jobs: int = 5) -> list[str]:
    """Fill the cluster, and queue jobs behind; wait until all of them are ranked."""
    rig.fill()
    waiting = [rig.submit(limit="120") for _ in range(jobs)]
    rig.until(lambda: set(waiting) <= set(rig.site_factors()))
    return waiting


def an_order(urgencies: dict[str, float]) -> Reorder:
    ranked = sorted(urgencies.items(), key=lambda item: -item[1])
    places = tuple(Place(job_id=job_id, urgency=urgency, reason="short") for job_id, urgency in ranked)
    return Reorder(partition="gpu", order=places, reason="shortest first")


def update(rig: Rig, field: str) -> Callable[[str, int], None]:
    return lambda job_id, value: print(rig.run("scontrol", "update", f"JobId={job_id}", f"{field}={value}"))  # noqa: T201


class TestCommands(ClusterContract):
    """The contract of every cluster, on a running one."""

    @pytest.fixture
    def world(self, rig: Rig, cluster_of_slurm: SlurmCluster, meanwhile: Meanwhile) -> World:
        busy(rig)
        return World(
            cluster=cluster_of_slurm,
            hold=lambda job_id: print(rig.run("scontrol", "hold", job_id)),  # noqa: T201 - for its effect
            set_site_factor=update(rig, "SiteFactor"),
            set_priority=update(rig, "Priority"),
            set_time_min=update(rig, "TimeMin"),
            delay=lambda job_id: print(rig.run("scontrol", "update", f"JobId={job_id}", "StartTime=now+1hour")),  # noqa: T201
            meanwhile=meanwhile,
        )


def test_a_site_factor_moves_the_priority_and_0_takes_it_back(rig: Rig, backend: CommandsBackend) -> None:
    job, *_ = busy(rig, 1)
    before = int(rig.show_job(job)["Priority"])
    assert backend.change([JobUpdate(job_id=job, site_factor=777)]) == [""]
    assert int(rig.show_job(job)["Priority"]) == before + 777
    assert Sprio(shell=backend.shell)()[job].value == 777
    backend.change([JobUpdate(job_id=job, site_factor=0)])
    assert int(rig.show_job(job)["Priority"]) == before


def test_a_site_factor_survives_hold_and_release_and_cannot_be_read_between(rig: Rig, backend: CommandsBackend) -> None:
    job, *_ = busy(rig, 1)
    backend.change([JobUpdate(job_id=job, site_factor=4037)])
    rig.run("scontrol", "hold", job)
    assert job not in Sprio(shell=backend.shell)()
    rig.run("scontrol", "release", job)
    rig.until(lambda: job in rig.site_factors())
    assert Sprio(shell=backend.shell)()[job].value == 4037


def test_a_restore_leaves_a_held_job_until_it_can_be_read(rig: Rig, cluster_of_slurm: SlurmCluster) -> None:
    job, *_ = busy(rig, 1)
    cluster_of_slurm.apply(asked([an_order({job: 0.5})]))
    rig.run("scontrol", "hold", job)
    (outcome,) = cluster_of_slurm.apply(asked([Revert(reason="stop")]))
    assert outcome.result is Result.REFUSED
    assert "Helios had written SiteFactor" in outcome.remark
    rig.run("scontrol", "release", job)
    rig.until(lambda: rig.site_factors().get(job))
    cluster_of_slurm.apply(asked([Revert(reason="stop")]))
    assert rig.site_factors()[job] == 0


def test_one_change_of_an_array_reaches_all_its_pending_tasks(rig: Rig, cluster_of_slurm: SlurmCluster) -> None:
    rig.fill()
    array = rig.submit("--array=0-9")
    rig.until(lambda: array in rig.site_factors())
    (outcome,) = cluster_of_slurm.apply(asked([an_order({array: 0.5})]))
    assert outcome.result is Result.DONE
    assert cluster_of_slurm.snapshot().pending["tasks"].tolist() == [10]
    priorities = rig.lines("squeue", "-h", "-r", "-j", array, "-o", "%Q")
    assert (len(priorities), set(priorities)) == (10, {priorities[0]})


def test_a_direct_priority_is_told_by_sprio_and_hides_the_site_factor(rig: Rig, backend: CommandsBackend) -> None:
    job, *_ = busy(rig, 1)
    backend.change([JobUpdate(job_id=job, site_factor=4037)])
    rig.run("scontrol", "update", f"JobId={job}", "Priority=5000")
    factor = Sprio(shell=backend.shell)()[job]
    assert (factor.direct, factor.value) == (True, 0)
    backend.change([JobUpdate(job_id=job, site_factor=137)])
    assert rig.show_job(job)["Priority"] == "5000"


def test_a_change_of_one_component_reaches_the_whole_heterogeneous_job(rig: Rig, backend: CommandsBackend) -> None:
    rig.fill()
    words = ["sbatch", "--parsable", "--output=/dev/null", "--mem=100", "--gres=gpu:1", "-t10", ":", "--gres=gpu:2"]
    leader = rig.run(*words, "--wrap=sleep 1", user="alice").strip()
    rig.until(lambda: leader in rig.site_factors())
    backend.change([JobUpdate(job_id=leader, site_factor=137)])
    assert sorted(
        Sprio(shell=backend.shell)()[job["job_id"]].value for job in backend.queue() if job["het_job_id"]
    ) == [
        137,
        137,
    ]


def test_a_time_min_above_the_limit_is_refused_by_name(rig: Rig, backend: CommandsBackend) -> None:
    job, other = busy(rig, 2)
    refused, taken = backend.change([JobUpdate(job_id=job, time_min=9_999), JobUpdate(job_id=other, time_min=17)])
    assert "time-min" in refused
    assert taken == ""
    minutes = {job["job_id"]: job["time_min_s"] for job in backend.queue()}
    assert (minutes[job], minutes[other]) == (None, 1020.0)


def test_a_time_min_on_a_running_job_is_accepted_and_does_nothing(rig: Rig, backend: CommandsBackend) -> None:
    running = rig.fill()[0]
    assert backend.change([JobUpdate(job_id=running, time_min=17)]) == [""]
    assert rig.show_job(running)["TimeMin"] == "N/A"


def test_where_there_are_no_soft_limits_helios_writes_none(rig: Rig, cluster_of_slurm: SlurmCluster) -> None:
    job, *_ = busy(rig, 1)
    (outcome,) = cluster_of_slurm.apply(
        asked([SoftLimit(job_id=job, run_time=timedelta(minutes=11), reason="p90")]),
    )
    if release(cluster_of_slurm.backend.configuration()["SLURM_VERSION"]) < (23, 11):
        assert outcome.result is Result.REFUSED
        assert rig.show_job(job)["TimeMin"] == "N/A"


def test_a_user_without_the_right_is_refused(rig: Rig) -> None:
    job, *_ = busy(rig, 1)
    script = f"echo update JobId={job} SiteFactor=137 | scontrol 2>&1 >/dev/null || true"
    assert f"Invalid user id for job {job}" in rig.run("sh", "-c", script, user="bob")
    assert rig.site_factors()[job] == 0


def test_names_of_any_bytes_come_through(rig: Rig, backend: CommandsBackend) -> None:
    name = "two\nlines|bar\x1f\x1e JobId=1"
    job = rig.submit(name=name)
    assert {raw["job_id"]: raw["name"] for raw in backend.queue()}[job] == name


def test_a_stopped_controller_is_unavailable_and_comes_back(rig: Rig, cluster_of_slurm: SlurmCluster) -> None:
    rig.control("stop", "slurmctld")
    try:
        with pytest.raises(ClusterUnavailable):
            cluster_of_slurm.snapshot()
    finally:
        rig.control("start", "slurmctld")
    rig.until(lambda: "UP" in rig.run("scontrol", "ping", check=False))
    assert cluster_of_slurm.snapshot().cluster == rig.name


def test_a_window_of_the_accounting_lists_every_job_alive_in_it(rig: Rig, tmp_path: Path) -> None:
    started = datetime.now(UTC)
    job = rig.submit(seconds=2, user="bob", name="two\nlines|bar")
    rig.until(lambda: rig.run("sacct", "-n", "-X", "-P", "-j", job, "-o", "State") == "COMPLETED\n")
    accounting = Accounting(shell=Shell(environment=rig.environment))

    def ids(start: datetime, end: datetime) -> list[str]:
        path = tmp_path / "window.txt"
        accounting.sacct_window(start, end, path=path)
        if len(path.read_text(encoding="utf-8").splitlines()) == 1:
            return []  # a header alone: nobody was here
        return [job_id for batch in open_trace(path).read() for job_id in batch.jobs["job_id"]]

    # On a cluster a few seconds old slurmdbd answers for a job by id before it lists it in a window (22.05.8).
    rig.until(lambda: job in ids(started - timedelta(seconds=5), datetime.now(UTC) + timedelta(seconds=2)))
    assert job not in ids(started - timedelta(hours=2), started - timedelta(hours=1))
    assert accounting.cluster_name() == rig.name
    used = accounting.used_by_jobs(started - timedelta(seconds=5), datetime.now(UTC), users=("bob",))
    (mine,) = used[used["job_id"] == job].to_dict("records")
    assert (mine["user"], mine["run_time_s"] > 0, mine["cpus"] > 0) == ("bob", True, True)
    assert np.isnan(mine["used_memory_mib"])  # this cluster gathers nothing


def runs_read(rig: Rig, job: str, *, since: datetime, path: Path) -> pd.DataFrame:
    """Return the runs of ``job`` as they are read from the accounting now, in their order."""
    accounting = Accounting(shell=Shell(environment=rig.environment))
    # A run that was requeued is eligible two minutes later, and sacct lists it in windows from then on only.
    accounting.sacct_window(since - timedelta(seconds=5), datetime.now(UTC) + timedelta(minutes=5), path=path)
    try:
        found = pd.concat([batch.jobs for batch in open_trace(path).read()])
    except NothingUnderstood:
        found = JOBS.empty()  # as on a cluster that is a few seconds old
    return found[found["job_id"] == job].sort_values("restart")


def test_requeued_and_suspended_runs_are_read_as_slurm_counts_them(rig: Rig, tmp_path: Path) -> None:
    started = datetime.now(UTC)
    job = rig.submit(seconds=600, user="bob")
    rig.until(lambda: rig.job_state(job) == "RUNNING")
    rig.run("scontrol", "suspend", job)
    rig.until(lambda: rig.job_state(job) == "SUSPENDED")
    rig.run("scontrol", "resume", job)
    rig.until(lambda: rig.job_state(job) == "RUNNING")
    rig.run("scontrol", "requeue", job)
    rig.until(lambda: rig.job_state(job) == "PENDING")
    rig.run("scancel", job)

    def runs() -> pd.DataFrame:
        return runs_read(rig, job, since=started, path=tmp_path / "window.txt")

    rig.until(lambda: runs()["state"].tolist() == ["REQUEUED", "CANCELLED"])
    first, second = runs().to_dict("records")
    assert (first["restart"], second["restart"]) == (0, 1)
    elapsed = rig.lines("sacct", "-n", "-X", "-P", "-D", "-j", job, "-o", "ElapsedRaw")[0]
    assert first["run_time_s"] == float(elapsed) and not pd.isna(first["ended_at"])


def test_each_size_of_a_resized_job_holds_its_nodes_once(rig: Rig, tmp_path: Path) -> None:
    started = datetime.now(UTC)
    job = rig.submit("-N2", "-n2", user="bob")
    rig.until(lambda: rig.job_state(job) == "RUNNING" and int(rig.show_job(job)["RunTime"][-2:]) > 1)
    rig.run("scontrol", "update", f"JobId={job}", "NumNodes=1")
    rig.run("scancel", job)

    def sizes() -> pd.DataFrame:
        return runs_read(rig, job, since=started, path=tmp_path / "window.txt")

    rig.until(lambda: sizes()["state"].tolist() == ["RESIZING", "CANCELLED"])
    first, second = sizes().to_dict("records")
    assert (first["nodes"], second["nodes"]) == (2, 1)
    assert second["started_at"] == first["ended_at"]


def test_a_drain_is_an_event_of_its_node(rig: Rig) -> None:
    began = datetime.now(UTC) - timedelta(seconds=5)
    accounting = Accounting(shell=Shell(environment=rig.environment))
    rig.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=a fan|is loud")
    try:

        def drains() -> list[str]:
            events = accounting.node_events(began, datetime.now(UTC) + timedelta(seconds=5))
            return list(events.loc[(events["node"] == "n2") & events["ended_at"].isna(), "reason"])

        rig.until(lambda: drains() == ["a fan|is loud"])
    finally:
        rig.run("scontrol", "update", "NodeName=n2", "State=RESUME")


def test_the_doctor_finds_a_development_cluster_fit(rig: Rig, backend: CommandsBackend) -> None:
    shell, configuration = backend.shell, backend.configuration
    findings = run_checks(shell=shell, configuration=configuration, user="root", site_factor_most=10_000)
    assert [finding for finding in findings if finding.verdict is FindingLevel.FAIL] == []
    assert {"controller", "clock", "accounting", "privileges"} <= {finding.check for finding in findings}


def test_an_order_stands_is_not_written_twice_and_is_taken_back(rig: Rig, cluster_of_slurm: SlurmCluster) -> None:
    jobs = busy(rig, 8)
    order = an_order({job_id: 1 - place / 8 for place, job_id in enumerate(jobs)})
    assert {outcome.result for outcome in cluster_of_slurm.apply(asked([order]))} == {Result.DONE}
    assert {outcome.result for outcome in cluster_of_slurm.apply(asked([order]))} == {Result.UNCHANGED}
    restored = cluster_of_slurm.apply(asked([Revert(reason="stop", setting=JobSetting.ORDER)]))
    assert {outcome.result for outcome in restored} == {Result.DONE}
    assert set(rig.site_factors().values()) == {0}


def test_a_task_that_an_admin_split_off_keeps_its_value(rig: Rig, cluster_of_slurm: SlurmCluster) -> None:
    busy(rig)
    array = rig.submit("--array=0-3%2")
    rig.until(lambda: array in rig.site_factors())
    rig.run("scontrol", "update", f"JobId={array}_1", "SiteFactor=500")
    (theirs,) = (job for job, factor in rig.site_factors().items() if factor == 500)
    (outcome,) = cluster_of_slurm.apply(asked([an_order({array: 0.5})]))
    assert outcome.result is Result.DONE
    assert rig.site_factors()[theirs] == 500
    cluster_of_slurm.apply(asked([Revert(reason="a test")]))
    assert (rig.site_factors()[array], rig.site_factors()[theirs]) == (0, 500)


def test_a_task_held_alone_is_taken_back_once_it_is_released(rig: Rig, cluster_of_slurm: SlurmCluster) -> None:
    rig.fill()
    array = rig.submit("--array=0-3")
    rig.until(lambda: array in rig.site_factors())
    cluster_of_slurm.apply(asked([an_order({array: 0.5})]))
    rig.run("scontrol", "hold", f"{array}_2")
    seen = cluster_of_slurm.snapshot().pending.set_index("array_task_id")["excluded_reason"]
    assert seen["2"] == "it is held"
    cluster_of_slurm.apply(asked([Revert(reason="a test")]))
    rig.run("scontrol", "release", f"{array}_2")
    rig.until(lambda: sorted(rig.site_factors().values()) == [0, 5037])
    cluster_of_slurm.apply(asked([Revert(reason="a test")]))
    assert set(rig.site_factors().values()) == {0}
