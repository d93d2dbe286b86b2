"""An admin asks what other settings of Slurm would do to the cluster's own jobs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from tests.live.recorded import Recording, as_jobs
from tests.story.shell import Helios

RECORDED = Path(__file__).parents[1] / "unit" / "simulate" / "slurm" / "recorded" / "slurm-22.05"
FIELDS = "JobIDRaw|JobID|Partition|QOS|Account|User|Submit|Eligible|Start|End|State|NNodes|ReqCPUS|ReqTRES|Timelimit"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The files that an admin would print: Slurm's, and a sacct dump of what ran."""
    recording = Recording.read(RECORDED)
    for name, text in recording.texts.items():
        (tmp_path / name).write_text(text)
    rows = [_sacct(job) for job in as_jobs(recording).to_dict("records")]
    (tmp_path / "sacct.txt").write_text("\n".join([FIELDS, *rows]) + "\n")
    return tmp_path


def test_a_site_learns_how_faithful_a_replay_with_other_weights_is(helios: Helios, site: Path) -> None:
    files = ("--slurm-conf", site / "slurm.conf", "--qos", site / "qos.txt", "--assoc", site / "assoc.txt")
    done = helios(
        "whatif", "slurm", *files, "--trace", site / "sacct.txt", "--set", "PriorityWeightFairshare=0", "--json"
    )
    assert [run["policy"] for run in done.json["runs"]] == ["slurm", "qssf", "slurm_otherwise", "fifo"]
    ours, textbook, _ = done.json["fidelity"]
    assert ours["wait_correlation"] > textbook["wait_correlation"] + 0.1
    assert abs(ours["mean_wait_error"]) < abs(textbook["mean_wait_error"])
    assert "Other settings: PriorityWeightFairshare=0" in done.err


def test_a_wrong_line_is_named_with_its_file(helios: Helios, site: Path) -> None:
    (site / "slurm.conf").write_text("NodeName=n1 CPUs=many\n")
    done = helios("whatif", "slurm", "--slurm-conf", site / "slurm.conf", "--trace", site / "sacct.txt", code=2)
    assert "slurm.conf, line 1: cpus=many is not a whole number" in done.err


def test_a_wrong_setting_is_named_as_it_was_typed(helios: Helios, site: Path) -> None:
    files = ("--slurm-conf", site / "slurm.conf", "--trace", site / "sacct.txt")
    done = helios("whatif", "slurm", *files, "--set", "PriorityWeightAge=many", code=2)
    assert "--set PriorityWeightAge=many: priorityweightage=many is not a whole number" in done.err


def _sacct(job: dict[str, object]) -> str:
    """Write a job as ``sacct -P`` does, in whole seconds."""
    moment = {name: pd.Timestamp(job[f"{name}_at"]).strftime("%Y-%m-%dT%H:%M:%S") for name in _MOMENTS}  # type: ignore[arg-type]  # because rows of a frame have no type
    task = job["array_task_id"]
    tres = f"cpu={job['cpus']:g},mem={job['memory_mib']:g}M,node={job['nodes']:g}"
    return "|".join(
        [
            str(job["job_id"]),
            f"{job['array_job_id']}_{task}" if isinstance(task, str) else str(job["job_id"]),
            *(str(job[name]) for name in ("partition", "qos", "account", "user")),
            *moment.values(),
            "COMPLETED",
            f"{job['nodes']:g}",
            f"{job['cpus']:g}",
            f"{tres},gres/gpu={job['gpus']:g}" if job["gpus"] else tres,
            f"{int(job['time_limit_s']) // 3600:02}:{int(job['time_limit_s']) // 60 % 60:02}:00",  # type: ignore[call-overload]  # as above
        ]
    )


_MOMENTS = ("submitted", "eligible", "started", "ended")
