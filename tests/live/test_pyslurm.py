"""The way in through pyslurm, on a Slurm that it fits: everything a back end promises, and what soft limits do."""

from __future__ import annotations

import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from helios.actions import Place, Reorder, Revert
from helios.control.jobs import revert_jobs
from helios.errors import ClusterUnavailable
from helios.slurm.backend import JobUpdate, RawJob, RawNode
from helios.slurm.connect import open_cluster
from helios.slurm.pyslurm_backend import NOT_KNOWN, PyslurmBackend
from tests.changes import asked
from tests.contract.cluster_suite import ClusterContract, World
from tests.live.chroot import Chroot
from tests.live.meanwhile import Meanwhile


@pytest.fixture(scope="module")
def cluster(newest: Chroot) -> Chroot:
    return newest


@pytest.fixture
def chroot(cluster: Chroot) -> Iterator[Chroot]:
    cluster.empty()
    yield cluster
    cluster.empty()


@pytest.fixture(scope="module")
def backend(cluster: Chroot) -> Iterator[PyslurmBackend]:
    with cluster.by_pyslurm() as backend:
        yield backend


def the_job(backend: PyslurmBackend, job_id: str) -> RawJob:
    return next(job for job in backend.queue() if job["job_id"] == job_id)


def by_id(jobs: list[RawJob]) -> dict[str, dict[str, Any]]:
    return {job["job_id"]: dict(job) for job in jobs}


def a_motley_queue(chroot: Chroot) -> int:
    """Submit jobs of every kind that the two ways in might read differently; return the number of records."""
    chroot.submit("--array=0-1", gpus=4, limit="90", name="first tasks")
    chroot.until(lambda: len(chroot.lines("squeue", "-h", "-t", "R", "-o", "%i")) == 2)
    chroot.submit("--array=1,3,5-90:3,97,103,111-113,117,121,131,139,151,163,177,187,199,213,227,239,251%2")
    chroot.submit("--array=1-9%2", gpus=3)
    held = chroot.submit("--hold", name="held")
    chroot.submit("--begin=now+1hour", gpus=0)
    chroot.submit(f"--dependency=afterok:{held}", gpus=0)
    chroot.submit("--time-min=5", "--nice=3", gpus=4)
    chroot.submit("--nodes=2", gpus=1, limit="1-02:03:00")
    chroot.submit("--gres=gpu:a100:2", gpus=0, user="bob")
    chroot.submit("--gpus-per-task=1", "--ntasks=3", "--cpus-per-task=2", gpus=0, user="carol")
    chroot.submit("--gpus=3", "--nodes=1", gpus=0, limit="UNLIMITED")
    chroot.submit("--mem=3G", "--requeue", gpus=1, name="x\n|y=z JobId=7 \udcff")
    return 13


def test_both_ways_in_read_the_same_queue(chroot: Chroot, backend: PyslurmBackend) -> None:
    records = a_motley_queue(chroot)
    commands = chroot.by_commands()
    # Between the two looks backfill may have moved a planned start.
    chroot.until(lambda: by_id(backend.queue()) == by_id(commands.queue()))
    assert len(backend.queue()) == records


def test_both_ways_in_read_the_same_nodes(chroot: Chroot, backend: PyslurmBackend) -> None:
    chroot.submit(gpus=3)
    chroot.run("scontrol", "update", "nodename=n2", "state=drain", "reason=a fan, loud")
    try:
        chroot.until(lambda: backend.nodes()[0]["gpus_held"] == 3)
        chroot.until(lambda: backend.nodes() == [_without_signature(node) for node in chroot.by_commands().nodes()])
        assert backend.nodes()[1]["reason"] == "a fan, loud"
    finally:
        chroot.run("scontrol", "update", "nodename=n2", "state=resume")


def test_both_ways_in_read_the_same_configuration(cluster: Chroot, backend: PyslurmBackend) -> None:
    shown, known = cluster.by_commands().configuration(), backend.configuration()
    assert known == {key: shown[key] for key in known}
    assert "time_min_as_soft_limit" in known["SchedulerParameters"].split(",")


def test_the_handshake_tells_that_the_pair_is_not_of_one_release(backend: PyslurmBackend) -> None:
    versions = backend.versions()
    assert versions.pyslurm.startswith("25.11.")
    assert versions.controller is not None and versions.controller.startswith(f"{versions.library}.")
    assert not versions.agree


def test_a_site_factor_moves_the_priority_and_zero_takes_it_back(chroot: Chroot, backend: PyslurmBackend) -> None:
    chroot.fill()
    job = chroot.submit()
    chroot.until(lambda: job in chroot.site_factors())
    for factor in (4037, -2537, 0):
        assert backend.change([JobUpdate(job_id=job, site_factor=factor)]) == [""]
        chroot.until(lambda factor=factor: chroot.site_factors()[job] == factor)  # type: ignore[misc]  # lambda default
        assert the_job(backend, job)["priority"] == 100_000 + factor


def test_a_soft_limit_is_written_and_zero_takes_it_back(chroot: Chroot, backend: PyslurmBackend) -> None:
    chroot.fill()
    job = chroot.submit(limit="120")
    for minutes, seconds in ((37, 2220), (7, 420), (0, None)):
        assert backend.change([JobUpdate(job_id=job, time_min=minutes)]) == [""]
        assert the_job(backend, job)["time_min_s"] == seconds
        assert the_job(backend, job)["time_limit_s"] == 7200


def test_both_setting_kinds_are_one_change(chroot: Chroot, backend: PyslurmBackend) -> None:
    chroot.fill()
    job = chroot.submit(limit="120")
    chroot.until(lambda: job in chroot.site_factors())
    assert backend.change([JobUpdate(job_id=job, site_factor=137, time_min=17)]) == [""]
    chroot.until(lambda: chroot.site_factors()[job] == 137)
    assert the_job(backend, job)["time_min_s"] == 1020


def test_one_change_of_an_array_changes_all_its_pending_tasks(chroot: Chroot, backend: PyslurmBackend) -> None:
    chroot.submit(gpus=4, limit="600")
    array = chroot.submit("--array=0-6", gpus=4)  # one runs, six wait
    chroot.until(lambda: "R" in chroot.lines("squeue", "-h", "-j", array, "-o", "%t"))
    assert the_job(backend, array)["tasks"] == 6
    chroot.until(lambda: array in chroot.site_factors())
    assert backend.change([JobUpdate(job_id=array, site_factor=537, time_min=7)]) == [""]
    chroot.until(lambda: chroot.site_factors()[array] == 537)
    assert the_job(backend, array)["time_min_s"] == 420
    chroot.run("scontrol", "update", f"JobId={array}_4", "JobName=apart")
    chroot.until(lambda: len(chroot.site_factors()) == 2)
    assert set(chroot.site_factors().values()) == {537}


@pytest.mark.parametrize("way", ["commands", "pyslurm"])
def test_a_task_that_an_admin_split_off_keeps_its_value(chroot: Chroot, way: str) -> None:
    chroot.fill()
    array = chroot.submit("--array=1-8%3")
    chroot.until(lambda: array in chroot.site_factors())
    chroot.run("scontrol", "update", f"JobId={array}_5", "SiteFactor=500")
    chroot.until(lambda: sorted(chroot.site_factors().values()) == [0, 500])
    cluster = open_cluster(chroot.slurm(way))
    try:
        seen = cluster.snapshot().pending.set_index("job_id")
        assert seen.loc[array, "tasks"] == 7
        place = Place(job_id=array, urgency=0.9, reason="short")
        (outcome,) = cluster.apply(asked([Reorder(partition="gpu", order=(place,), reason="a test")]))
        assert outcome.after == "SiteFactor 8937"
        chroot.until(lambda: sorted(chroot.site_factors().values()) == [500, 8937])
        cluster.apply(asked([Revert(reason="a test")]))
        chroot.until(lambda: sorted(chroot.site_factors().values()) == [0, 500])
    finally:
        cluster.close()


def test_a_refused_change_is_answered_with_slurms_words_and_stops_no_other(
    chroot: Chroot, backend: PyslurmBackend
) -> None:
    chroot.fill()
    job = chroot.submit(limit="60")
    answers = backend.change(
        [
            JobUpdate(job_id="999999", site_factor=137),
            JobUpdate(job_id=job, time_min=61),
            JobUpdate(job_id=job, time_min=17),
        ]
    )
    assert answers[0] == "Invalid job id specified"
    assert answers[1] != ""
    assert answers[2] == ""
    assert the_job(backend, job)["time_min_s"] == 1020


def test_a_user_without_privilege_is_told_so(chroot: Chroot) -> None:
    chroot.fill()
    job = chroot.submit(user="bob")
    with chroot.by_pyslurm("setpriv", "--reuid=alice", "--regid=alice", "--clear-groups") as backend:
        (answer,) = backend.change([JobUpdate(job_id=job, site_factor=137)])
    assert "denied" in answer or "Invalid user id" in answer


def test_a_soft_limit_moves_the_next_planned_start_and_shortens_no_job(chroot: Chroot, backend: PyslurmBackend) -> None:
    first = chroot.submit("--nodes=2", "--hold", gpus=4, limit="120")
    assert backend.change([JobUpdate(job_id=first, time_min=7)]) == [""]
    chroot.run("scontrol", "release", first)
    chroot.until(lambda: the_job(backend, first)["started"])
    second = chroot.submit("--nodes=2", gpus=4)
    chroot.until(lambda: the_job(backend, second)["planned_start"])
    running, waiting = the_job(backend, first), the_job(backend, second)
    assert running["started"] and waiting["planned_start"]
    assert 6 * 60 <= waiting["planned_start"] - running["started"] <= 10 * 60
    assert running["time_limit_s"] == 7200


def test_without_a_soft_limit_the_next_start_follows_the_hard_limit(chroot: Chroot, backend: PyslurmBackend) -> None:
    first = chroot.submit("--nodes=2", gpus=4, limit="120")
    chroot.until(lambda: the_job(backend, first)["started"])
    second = chroot.submit("--nodes=2", gpus=4)
    chroot.until(lambda: the_job(backend, second)["planned_start"])
    planned, started = the_job(backend, second)["planned_start"], the_job(backend, first)["started"]
    assert planned and started and planned - started >= 119 * 60


def test_a_soft_limit_of_a_running_job_is_accepted_and_does_nothing(chroot: Chroot, backend: PyslurmBackend) -> None:
    job = chroot.submit(limit="120")
    chroot.until(lambda: the_job(backend, job)["started"])
    assert backend.change([JobUpdate(job_id=job, time_min=7)]) == [""]
    assert the_job(backend, job)["time_min_s"] is None
    assert the_job(backend, job)["time_limit_s"] == 7200


def test_a_worker_killed_within_a_change_leaves_its_result_unknown(chroot: Chroot) -> None:
    chroot.fill()
    job = chroot.submit()
    with chroot.by_pyslurm() as backend:
        killer = threading.Timer(0.5, os.kill, (worker_of(backend), signal.SIGKILL))
        backend.timeout_s = 2.0
        with stopped(chroot.controller_pid()):
            killer.start()
            answers = backend.change([JobUpdate(job_id=job, site_factor=137), JobUpdate(job_id=job, site_factor=237)])
    assert "signal 9" in answers[0]
    assert answers[0].startswith(NOT_KNOWN)
    assert answers[1] != ""
    with chroot.by_pyslurm() as backend:
        assert the_job(backend, job)["state"] == "PENDING"


def test_a_controller_that_hangs_costs_no_more_than_the_bound(chroot: Chroot) -> None:
    with chroot.by_pyslurm() as backend:
        backend.versions()
        backend.timeout_s = 1.0
        with stopped(chroot.controller_pid()):
            before = time.monotonic()
            with pytest.raises(ClusterUnavailable, match="within 1 s"):
                backend.queue()
            assert time.monotonic() - before < 15, "half of what is usual, also on a busy machine"
        backend.timeout_s = 30.0
        chroot.until(lambda: backend.queue() == [])


def test_a_controller_that_is_down_is_said_to_be_and_found_again(chroot: Chroot) -> None:
    job = chroot.submit()
    with chroot.by_pyslurm() as backend:
        assert the_job(backend, job)
        pid = backend.worker_pid
        os.kill(chroot.controller_pid(), signal.SIGTERM)
        chroot.until(lambda: not (chroot.root / "var/lib/helios-lab/run/slurmctld.pid").exists())
        try:
            with pytest.raises(ClusterUnavailable, match="Unable to contact"):
                backend.queue()
            with pytest.raises(ClusterUnavailable, match="Unable to contact"):
                backend.change([JobUpdate(job_id=job, site_factor=137)])
            assert backend.versions().controller is None
        finally:
            chroot.control("up")
        assert the_job(backend, job)
        assert backend.worker_pid == pid


def test_a_missing_configuration_stops_the_import_and_helios_survives_it(cluster: Chroot) -> None:
    with (
        cluster.by_pyslurm("env", "SLURM_CONF=/nowhere/slurm.conf", timeout_s=2.0) as backend,
        pytest.raises(ClusterUnavailable, match=r"/nowhere/slurm\.conf.*importing pyslurm"),
    ):
        backend.queue()


def test_a_worker_ends_with_helios(cluster: Chroot) -> None:
    with cluster.by_pyslurm() as backend:
        pid = worker_of(backend)
        backend.close()
        assert not Path(f"/proc/{pid}").exists()


def _without_signature(node: RawNode) -> RawNode:
    """Return a node without the ``[root@TIME]`` that scontrol puts behind its reason."""
    return {**node, "reason": re.sub(r" \[\S+@\S+\]$", "", node["reason"]) if node["reason"] else None}


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        # A signal is taken when the process next runs: until then a thread of the controller may still answer.
        while any(
            stat.read_text().rpartition(")")[2].split()[0] != "T" for stat in Path(f"/proc/{pid}/task").glob("*/stat")
        ):
            time.sleep(0.01)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def worker_of(backend: PyslurmBackend) -> int:
    if backend.worker_pid is None:
        backend.versions()
    assert backend.worker_pid is not None
    return backend.worker_pid


@pytest.fixture(params=["pyslurm", "commands"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestBothWaysIn(ClusterContract):
    """The contract of every cluster, on a release that has soft limits, through either way in."""

    @pytest.fixture
    def world(self, chroot: Chroot, way: str, tmp_path: Path) -> Iterator[World]:
        chroot.fill()
        waiting = [chroot.submit(limit="120") for _ in range(5)]
        chroot.until(lambda: set(waiting) <= set(chroot.site_factors()))
        for path in chroot.scratch.iterdir():
            shutil.copy(path, tmp_path)
        settings = chroot.slurm(way).model_copy(update={"commands": str(tmp_path)})
        cluster = open_cluster(settings)
        yield World(
            cluster=cluster,
            hold=lambda job_id: _quietly(chroot, "hold", job_id),
            set_site_factor=lambda job_id, value: _update(chroot, job_id, f"SiteFactor={value}"),
            set_priority=lambda job_id, value: _update(chroot, job_id, f"Priority={value}"),
            set_time_min=lambda job_id, value: _update(chroot, job_id, f"TimeMin={value}"),
            delay=lambda job_id: _update(chroot, job_id, "StartTime=now+1hour"),
            meanwhile=Meanwhile(tmp_path),
        )
        cluster.close()


def test_a_users_own_minimum_that_bears_the_mark_is_a_strangers(chroot: Chroot, way: str) -> None:
    chroot.fill()
    job = chroot.submit("--time-min=7", limit="120")
    chroot.until(lambda: job in chroot.site_factors())
    cluster = open_cluster(chroot.slurm(way))
    try:
        result = revert_jobs(cluster, "a test")
    finally:
        cluster.close()
    assert (result.remaining, result.strangers) == ((), (job,))
    assert chroot.show_job(job)["TimeMin"] == "00:07:00"


def test_automatically_a_pyslurm_of_another_release_is_not_taken(chroot: Chroot) -> None:
    cluster = open_cluster(chroot.slurm("auto"))
    cluster.close()
    assert cluster.backend.name == "commands"
    assert "releases differ" in "".join(cluster.notes)


def _update(chroot: Chroot, job_id: str, field: str) -> None:
    _quietly(chroot, "update", f"JobId={job_id}", field)


def _quietly(chroot: Chroot, *words: str) -> None:
    chroot.run("scontrol", *words)
