"""A person asks for the runs of a job on a machine without Slurm."""

from pathlib import Path

import pytest

from tests.story.shell import Helios, shell

HEADER = "JobIDRaw|Cluster|User|State|Submit|Start|End|ElapsedRaw|Timelimit|NNodes|AllocTRES\n"
TIMES = "2024-03-01T{0:02}:00:00|2024-03-01T{0:02}:30:00|2024-03-01T{1:02}:00:00"
ROW = "{job}|{cluster}|ann|{state}|" + TIMES + "|{2}|4:00:00|1|cpu=4,gres/gpu=2,node=1\n"


def row(job: int, submitted: int, ended: int, *, cluster: str = "west", state: str = "COMPLETED") -> str:
    elapsed_s = 3600 * (ended - submitted) - 1800
    return ROW.format(submitted, ended, elapsed_s, job=job, cluster=cluster, state=state)


@pytest.fixture
def helios(tmp_path: Path) -> Helios:
    (tmp_path / "west.txt").write_text(HEADER + row(7, 1, 3, state="PREEMPTED") + row(7, 3, 7))
    (tmp_path / "east.txt").write_text(HEADER + row(7, 1, 2, cluster="east"))
    helios = shell(tmp_path, PATH="/nowhere")
    for name in ("west", "east"):
        helios("trace", "load", f"{name}.txt", "--cluster", name, "--timezone", "UTC")
    return helios


def test_the_runs_of_a_job_are_listed_without_a_live_cluster(helios: Helios) -> None:
    told = helios("why", "7", "--cluster", "west", "--json").json
    assert [run["gpu_hours"] for run in told["runs"]["runs"]] == [3.0, 7.0]
    assert told["runs"]["total"] | {"run_time_s": 0} == {
        "run_time_s": 0,
        "gpu_hours": 10.0,
        "cpu_hours": 20.0,
        "lost_gpu_hours": 3.0,
        "lost_cpu_hours": 6.0,
    }


def test_an_answer_from_the_history_alone_says_so(helios: Helios) -> None:
    out = helios("why", "7", "--cluster", "west").out
    assert "It was run 2 times" in out and "west is history, not the live cluster." in out


def test_a_job_of_a_federation_is_named_with_its_cluster(helios: Helios) -> None:
    assert len(helios("why", "7@east", "--json").json["runs"]["runs"]) == 1
    assert len(helios("why", "7@west", "--json").json["runs"]["runs"]) == 2


def test_a_job_that_a_named_cluster_lacks_is_misuse(helios: Helios) -> None:
    assert "No job 8 is in the history of west" in helios("why", "8", "--cluster", "west", code=2).err
