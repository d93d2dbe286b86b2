"""What is made of answers recorded from real clusters; a difference is a change to look at, not to overwrite."""

from __future__ import annotations

import difflib
import json
from pathlib import Path

import pytest

from helios.actions import JobSetting
from helios.slurm.commands import CommandsBackend, Sprio
from helios.slurm.jobs import SlurmCluster
from helios.slurm.translate import node_states
from helios.slurm.undo_file import JobsUndo, UndoEntry
from tests.unit.slurm.recorded import GOLDEN, RELEASES, recorded


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def backend(release: str) -> CommandsBackend:
    backend = CommandsBackend()
    backend.shell = recorded(release)
    return backend


def test_the_oldest_the_newest_and_one_release_between_are_recorded() -> None:
    assert {"slurm-22.05", "slurm-24.11", "slurm-26.05"} <= set(RELEASES)


def test_a_recording_is_read_as_it_was(release: str, backend: CommandsBackend) -> None:
    factors = Sprio(shell=backend.shell)()
    read = {
        "jobs": sorted(backend.queue(), key=lambda job: int(job["job_id"])),
        "nodes": sorted(backend.nodes(), key=lambda node: node["name"]),
        "site_factors": {job_id: [factor.value, factor.direct] for job_id, factor in factors.items()},
    }
    now = json.dumps(read, indent=1).splitlines()
    then = (GOLDEN / release / "read-as.json").read_text(encoding="utf-8").splitlines()
    assert now == then, "\n".join(difflib.unified_diff(then, now, "recorded", "read now", lineterm=""))


def test_a_name_with_line_breaks_bars_and_bad_bytes_is_one_name(backend: CommandsBackend) -> None:
    names = {job["job_id"]: job["name"] for job in backend.queue()}
    assert "two\nlines|bar\x1f\udcff" in names.values()


def test_a_pending_array_is_one_record(release: str, backend: CommandsBackend) -> None:
    arrays = [job for job in backend.queue() if job["tasks"] > 1]
    assert {(job["job_id"] == job["array_job_id"], job["name"]) for job in arrays} == (
        {(True, "arr"), (True, "split")} if release == "slurm-24.11" else {(True, "arr")}
    )


def test_a_task_that_an_admin_split_off_is_its_own_job() -> None:
    backend = CommandsBackend()
    backend.shell = recorded("slurm-24.11")
    split = {job["job_id"]: (job["array_tasks"], job["tasks"]) for job in backend.queue() if job["name"] == "split"}
    assert split == {"6": ("1-4,6-8", 7), "18": ("5", 1)}


def test_every_sort_of_job_to_leave_alone_is_seen_in_the_recording(release: str, backend: CommandsBackend) -> None:
    snapshot = SlurmCluster(
        backend, name="x", site_factor_most=10_000, writes_per_cycle=1, sprio=Sprio(shell=backend.shell)
    ).snapshot()
    reasons = " ".join(snapshot.pending["excluded_reason"].dropna().tolist())
    seen = [word for word in ("heterogeneous", "held", "set directly", "scrontab", "reservation") if word in reasons]
    assert seen[:3] == ["heterogeneous", "held", "set directly"]
    assert seen[3:] == (["reservation"] if release == "slurm-22.05" else ["scrontab"])


def test_gpus_are_counted_for_a_whole_job_however_they_were_asked_for(backend: CommandsBackend) -> None:
    gpus = {job["name"]: (job["gpus"], job["gpu_type"]) for job in backend.queue()}
    asked = {"min": (4, None), "pertask": (6, None), "two\nlines|bar\x1f\udcff": (2, "a100"), "begin": (0, None)}
    assert {name: gpus[name] for name in asked} == asked


def test_the_controllers_clock_comes_with_its_configuration(backend: CommandsBackend) -> None:
    assert backend.configuration()["NOW"].startswith("1795")


def test_a_marked_site_factor_becomes_an_urgency(release: str, backend: CommandsBackend) -> None:
    sprio, undo = Sprio(shell=backend.shell), JobsUndo()
    wrote = {job_id: factor.value for job_id, factor in sprio().items() if factor.value in {4037, -2537}}
    undo.add(
        UndoEntry(
            setting=JobSetting.ORDER, job_id=job["job_id"], submitted=job["submitted"], value=wrote[job["job_id"]]
        )
        for job in backend.queue()
        if job["job_id"] in wrote
    )
    snapshot = SlurmCluster(
        backend, name="x", site_factor_most=10_000, writes_per_cycle=1, sprio=sprio, undo=undo
    ).snapshot()
    urgencies = snapshot.pending.loc[snapshot.pending["urgency"] != 0, "urgency"].round(2).tolist()
    # In the recording of 24.11 the job with 4037 had started.
    assert ({-0.25} if release == "slurm-24.11" else {0.4, -0.25}) <= set(urgencies)


AS_READ = {
    "slurm-22.05": [
        ("asleep", None),
        ("waking", None),
        ("falling asleep", None),
        ("awake", "it is drained (bad disk)"),
        ("awake", "it is under maintenance"),
        ("falling asleep", None),
    ],
    "slurm-26.05": [
        ("falling asleep", None),
        ("awake", "it is drained (bad disk)"),
        ("asleep", None),
        ("waking", None),
        ("awake", "it is under maintenance"),
    ],
}
"""Power and hands of recorded nodes, in the order of their names. The states they were in, of 22.05: POWERED_DOWN,
POWERING_UP, MIXED+POWER_DOWN, DRAIN, MAINTENANCE+RESERVED, POWERING_DOWN; of 26.05: POWERING_DOWN, DRAIN, POWERED_DOWN,
POWERING_UP, MAINTENANCE+RESERVED."""


@pytest.mark.parametrize("power_of", AS_READ)
def test_every_power_state_is_read_as_it_was_recorded(power_of: str, tmp_path: Path) -> None:
    program = tmp_path / "scontrol"
    program.write_text(f"#!/bin/sh\ncat {GOLDEN / 'power' / f'{power_of}.txt'}\n")
    program.chmod(0o755)
    frame = node_states(CommandsBackend(commands_folder=str(tmp_path)).nodes()).astype(object)
    excluded_reason = [why if isinstance(why, str) else None for why in frame["excluded_reason"]]
    assert list(zip(frame["power"], excluded_reason, strict=True)) == AS_READ[power_of]
