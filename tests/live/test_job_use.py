"""What a job used by a comment in a real accounting, read with its history."""

from __future__ import annotations

from pathlib import Path

from helios.warehouse import Warehouse
from tests.live.rig import Rig
from tests.live.test_cli import Shell, from_now_on
from tests.use_files import comment, of_node, summary


def test_a_comment_of_jobstats_is_stored_with_its_job(rig: Rig, tmp_path: Path) -> None:
    site = Shell(rig, tmp_path, since=from_now_on(rig))
    site.environment["HELIOS_HISTORY_JOB_USE"] = "jobstats,sacct"
    measured, lowered, short, foreign = jobs = [rig.submit(gpus=1, seconds=2) for _ in range(4)]
    text = comment(summary(of_node(), total_time=2))
    rig.run("scontrol", "update", f"jobid={measured}", f"AdminComment={text}")

    def states() -> list[str]:
        return rig.lines("sacct", "-n", "-X", "-P", "-j", ",".join(jobs), "-o", "State")

    rig.until(lambda: states() == ["COMPLETED"] * 4)
    # sacctmgr writes it in small letters. Bars are delimiters of sacct, and anything may be in a comment.
    for job, other in ((lowered, text), (short, "JS1:Short"), (foreign, "a|b\nc")):
        rig.run("sacctmgr", "-i", "modify", "job", "where", f"jobid={job}", "set", f"AdminComment={other}")
    said = list[str]()

    def reads_all() -> bool:
        said.append(site.says("trace", "sync"))
        return "3 of 3 records stored, with 1 GPUs (quality: 1 broken, 1 ok, 1 short)" in said[-1]

    rig.until(reads_all)  # accounting may lag
    assert "1 AdminComments are not of jobstats" in said[-1]
    with Warehouse.open(f"sqlite:///{tmp_path / 'helios.db'}") as warehouse:
        (cluster,) = warehouse.clusters()["name"]
        stored = warehouse.job_use(cluster).set_index("job_id")
        starts = warehouse.jobs(cluster).set_index("job_id")["submitted_at"]
    assert stored.loc[measured, ["utilization", "quality", "submitted_at"]].tolist() == [40.0, "ok", starts[measured]]
    assert stored.loc[short, "quality"] == "short"
