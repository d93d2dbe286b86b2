"""Lines of ``helios power weights`` in the slurm.conf of a running controller, and where jobs then go."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from helios.model.nodes import expand
from tests.live.rig import Rig, roomy_folder, skip_without_slurm
from tests.story.shell import run_command

NODES = 18
RACKS = "r1=n[1,10-18]; r2=n[2-9]"
"""In this order, which is not that of the names, the nodes of one rack follow each other."""
BLOCKS = ["n[1,10-16]", "n[2-7,17-18]", "n[8-9]"]


@pytest.fixture(scope="module")
def wide() -> Iterator[Rig]:
    """A cluster of more nodes than a block has."""
    skip_without_slurm()
    rig = Rig(roomy_folder(), settings={"NODES": str(NODES), "CPUS": "2", "GPUS": "1"})
    try:
        rig.control("up")
        yield rig
    finally:
        rig.control("wipe")


def answer_of(rig: Rig, folder: Path, **environment: str) -> dict[str, list[str]]:
    """Return what ``helios power weights`` answers."""
    given = rig.environment | {"HELIOS_POWER_RACKS": RACKS} | environment
    done = run_command(["power", "weights", "--json"], folder=folder, environment=given)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout))


def nodes_of_jobs(rig: Rig, count: int) -> set[str]:
    """Return the nodes that Slurm gives to ``count`` new jobs for whole nodes."""
    jobs = [rig.submit("--exclusive") for _ in range(count)]
    rig.until(lambda: {rig.job_state(job) for job in jobs} == {"RUNNING"})
    return {rig.show_job(job)["NodeList"] for job in jobs}


def test_without_the_file_there_are_only_comments_and_a_reason(wide: Rig, tmp_path: Path) -> None:
    path, copy = Path(wide.environment["SLURM_CONF"]), tmp_path / "slurm.conf"
    path.rename(copy)
    try:
        answer = answer_of(wide, tmp_path, SLURM_CONF=str(copy))
    finally:
        copy.rename(path)
    assert answer["lines"] == [f"# Weight={weight}: {nodes}" for weight, nodes in enumerate(BLOCKS, start=1)]
    assert "whole lines need a copy: --slurm-conf FILE" in answer["notes"][0]


def test_slurm_takes_the_lines_and_jobs_fill_in_their_order(wide: Rig, tmp_path: Path) -> None:
    lines = [line for line in answer_of(wide, tmp_path)["lines"] if not line.startswith("#")]
    named = {line.split()[0] for line in lines}
    path = Path(wide.environment["SLURM_CONF"])
    kept = [line for line in path.read_text().splitlines() if line.partition(" ")[0] not in named]
    path.write_text("\n".join([*kept, *lines]) + "\n")
    wide.run("scontrol", "reconfigure")
    expected = {node: weight for weight, nodes in enumerate(BLOCKS, start=1) for node in expand(nodes)}
    wide.until(lambda: wide.weights() == expected)
    filled = [nodes_of_jobs(wide, len(expand(nodes))) for nodes in BLOCKS]
    assert filled == [set(expand(nodes)) for nodes in BLOCKS]
    assert answer_of(wide, tmp_path)["lines"] == []
