"""The facts about Slurm's sleeping nodes that the rest of the house stands on, seen on this release."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.live.rig import Rig

PROGRAMS = Path(__file__).parents[2] / "deploy" / "slurm" / "power"
STATUS = """#!/bin/sh
pid=$(cat {run}/slurmd.$1.pid 2>/dev/null) && grep -qa slurmd /proc/$pid/cmdline 2>/dev/null && echo on || echo off
"""
POWER_CONF = """
folder {site}/state
log {site}/log
poll 1
nodes n[1-8] cloud start={rig}/bin/resume stop={rig}/bin/suspend status={site}/status
"""


def test_a_node_that_slurm_puts_to_sleep_is_off_and_comes_back(sleepy: Rig) -> None:
    sleepy.put_to_sleep("n1", "n2")
    sleepy.until(lambda: sleepy.machines_on() == {"n3", "n4", "n5", "n6", "n7", "n8"})
    sleepy.boots("n1", 2)
    sleepy.power("n1", "power_up")
    sleepy.until(lambda: "POWERING_UP" in sleepy.nodes()["n1"])
    assert "n1" not in sleepy.machines_on()
    sleepy.until(lambda: sleepy.nodes()["n1"] == "IDLE")
    assert sleepy.machines_on() == {"n1", "n3", "n4", "n5", "n6", "n7", "n8"}


def test_a_busy_node_finishes_its_job_before_it_sleeps(sleepy: Rig) -> None:
    job = sleepy.submit("--nodelist=n1")
    sleepy.until(lambda: sleepy.job_state(job) == "RUNNING")
    sleepy.power("n1", "power_down")
    sleepy.power("n1", "power_up")
    assert "POWER_DOWN" in sleepy.nodes()["n1"]
    assert sleepy.job_state(job) == "RUNNING"
    sleepy.run("scancel", job)
    sleepy.until(lambda: "n1" not in sleepy.machines_on())


@contextmanager
def example_programs(rig: Rig) -> Iterator[Path]:
    """Have Slurm call the programs of deploy/slurm/power, whose cloud this rig is; yield where they keep their log."""
    site, conf = rig.folder / "power", rig.folder / "conf" / "slurm.conf"
    shutil.copytree(PROGRAMS, site)
    (site / "power.conf").write_text(POWER_CONF.format(site=site, rig=rig.folder))
    (site / "status").write_text(STATUS.format(run=rig.folder / "run"))
    (site / "status").chmod(0o755)
    before = conf.read_text()
    bin_ = rig.folder / "bin"
    conf.write_text(
        before.replace(f"={bin_}/suspend\n", f"={site}/suspend\n").replace(f"={bin_}/resume\n", f"={site}/resume\n")
    )
    rig.run("scontrol", "reconfigure")
    try:
        yield site
    finally:
        conf.write_text(before)
        rig.run("scontrol", "reconfigure")
        shutil.rmtree(site)


def test_the_example_power_programs_serve_slurm(sleepy: Rig) -> None:
    with example_programs(sleepy) as site:
        sleepy.put_to_sleep("n1", "n2")
        sleepy.until(lambda: not {"n1", "n2"} & sleepy.machines_on())
        sleepy.power("n1", "power_up")
        sleepy.until(lambda: sleepy.nodes()["n1"] == "IDLE")
        sleepy.until(lambda: "on n1 done: it is on (try 1)" in (site / "log").read_text())
        assert (site / "log").read_text().count("done: it is off (try 1)") == 2


def test_the_nodes_have_racks_features_and_a_partition_in_common(sleepy: Rig) -> None:
    assert "SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[5-8]" in sleepy.run("scontrol", "show", "topology")
    assert "n[1-3] ib\n" in sleepy.run("sinfo", "-h", "-o", "%N %f")
    assert {line.split()[0] for line in sleepy.lines("sinfo", "-h", "-N", "-n", "n6", "-o", "%R")} == {"gpu", "debug"}
    assert list(sleepy.weights().values()) == [10, 10, 10, 20, 20, 50, 50, 50]
