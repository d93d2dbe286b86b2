"""The facts about Slurm that the rest of the house stands on, seen on this release."""

from __future__ import annotations

from tests.live.rig import Rig


def test_a_job_of_a_user_runs_and_ends(rig: Rig) -> None:
    job = rig.submit(seconds=0, user="bob")
    rig.until(lambda: rig.run("sacct", "-n", "-X", "-P", "-j", job, "-o", "State,User") == "COMPLETED|bob\n")


def test_a_full_cluster_leaves_jobs_pending(rig: Rig) -> None:
    rig.fill()
    job = rig.submit()
    assert rig.run("squeue", "-h", "-j", job, "-o", "%t").strip() == "PD"
