"""Slurm's programs as processes: what they are given, how long they may take, what their complaints mean."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from helios.errors import AnswerNotUnderstood, ClusterRefused, ClusterUnavailable
from helios.model.nodes import expand
from helios.slurm import parse
from helios.slurm.backend import JobUpdate, NodeUpdate, write_in_batches
from helios.slurm.commands import UNANSWERED, CommandsBackend, SiteFactor, Sprio, cron_jobs
from helios.slurm.shell import Shell
from tests.waiting import until

Program = Callable[[str, str], Path]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Make a program that is a shell script; the folder is where Slurm's commands are looked for."""

    def make(name: str, script: str) -> Path:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)
        return tmp_path

    return make


def show_config(*settings: str) -> str:
    """Return the shell words that print a configuration as ``scontrol show config`` does."""
    shown = ["Configuration data as of 1795255200", *settings, "", "Slurmctld(primary) at head is UP"]
    return "; ".join(f"echo '{line}'" for line in shown)


SCONTROL = f"""
[ "$1" = show ] && {{ {show_config("SLURM_VERSION = 22.05.8")}; exit 0; }}
"""
SCONTROL += """
while read -r word job rest; do
  case $word in
    update) case $job in *=404) echo "Invalid job id specified for job 404" >&2;; *=9) kill -9 $$;; esac
            echo "$job $rest" >> "$HOME/written";;
    *) echo "invalid keyword: $word" >&2;;
  esac
done
exit 1
"""


def test_each_answer_of_many_changes_is_told_apart(program: Program, tmp_path: Path) -> None:
    folder = program("scontrol", SCONTROL)
    backend = CommandsBackend(commands_folder=str(folder), environment={"PATH": os.defpath, "HOME": str(tmp_path)})
    ids = ["1", "404", "2", "3", "5", "404", "6", "7", "8", "10", "11"]
    answers = backend.change([JobUpdate(job_id=job_id, site_factor=137) for job_id in ids])
    assert [bool(answer) for answer in answers] == [job_id == "404" for job_id in ids]
    assert answers[1] == "Invalid job id specified for job 404"
    assert len((tmp_path / "written").read_text().splitlines()) == len(ids)


def test_a_change_names_only_the_setting_kinds_it_changes(program: Program, tmp_path: Path) -> None:
    folder = program("scontrol", SCONTROL)
    backend = CommandsBackend(commands_folder=str(folder), environment={"PATH": os.defpath, "HOME": str(tmp_path)})
    backend.change([JobUpdate(job_id="1", site_factor=0)])
    backend.change([JobUpdate(job_id="1", time_min=17)])
    assert (tmp_path / "written").read_text() == "JobId=1 SiteFactor=0\nJobId=1 TimeMin=17\n"


def test_a_change_of_an_arrays_record_names_its_tasks(program: Program, tmp_path: Path) -> None:
    folder = program("scontrol", SCONTROL)
    backend = CommandsBackend(commands_folder=str(folder), environment={"PATH": os.defpath, "HOME": str(tmp_path)})
    backend.change([JobUpdate(job_id="5", tasks="0,2-9:3", site_factor=137)])
    assert (tmp_path / "written").read_text() == "JobId=5_[0,2-9:3] SiteFactor=137\n"


def test_nodes_that_are_written_the_same_go_in_one_command(program: Program, tmp_path: Path) -> None:
    folder = program("scontrol", SCONTROL)
    backend = CommandsBackend(commands_folder=str(folder), environment={"PATH": os.defpath, "HOME": str(tmp_path)})
    sleeps = [NodeUpdate(node=f"n{number}", state="POWER_DOWN") for number in (1, 2, 3, 7)]
    others = [NodeUpdate(node="n9", state="POWER_UP"), NodeUpdate(node="n1", weight=0), NodeUpdate(node="n2", weight=7)]
    assert backend.change_nodes([sleeps[0], *others, *sleeps[1:]]) == [""] * 7
    assert (tmp_path / "written").read_text().splitlines() == [
        "NodeName=n[1-3,7] State=POWER_DOWN",
        "NodeName=n9 State=POWER_UP",
        "NodeName=n1 Weight=0",
        "NodeName=n2 Weight=7",
    ]
    assert backend.change_nodes([]) == []


def test_nodes_of_one_command_have_its_answer_and_others_theirs(program: Program, tmp_path: Path) -> None:
    folder = program("scontrol", SCONTROL.replace("*=404)", "*403*)"))
    backend = CommandsBackend(commands_folder=str(folder), environment={"PATH": os.defpath, "HOME": str(tmp_path)})
    changes = [NodeUpdate(node="n404", weight=1), NodeUpdate(node="n3", weight=2), NodeUpdate(node="n403", weight=1)]
    assert [bool(answer) for answer in backend.change_nodes(changes)] == [True, False, True]


def test_a_call_names_a_bounded_number_of_nodes() -> None:
    sizes: list[int] = []

    def write(batches: Sequence[NodeUpdate]) -> list[str]:
        sizes.extend(len(expand(batch.node)) for batch in batches)
        return [batch.node for batch in batches]

    answers = write_in_batches([NodeUpdate(node=f"n{number}", weight=1) for number in range(450)], write)
    assert sizes == [200, 200, 50]
    assert all(f"n{number}" in expand(answer) for number, answer in enumerate(answers))


def test_a_change_that_scontrol_did_not_come_to_is_not_called_accepted(program: Program, tmp_path: Path) -> None:
    folder = program("scontrol", SCONTROL)
    backend = CommandsBackend(commands_folder=str(folder), environment={"PATH": os.defpath, "HOME": str(tmp_path)})
    answers = backend.change([JobUpdate(job_id=job_id, site_factor=137) for job_id in ("9", "1", "2", "3", "4")])
    assert answers == [UNANSWERED, "", "", "", UNANSWERED]  # the fifth waits behind the first


def test_no_changes_start_no_process() -> None:
    assert CommandsBackend(commands_folder="/nowhere").change([]) == []


def test_a_silent_program_is_killed_with_what_it_started(program: Program, tmp_path: Path) -> None:
    folder = program("squeue", f"sh -c 'echo $$ > {tmp_path}/child; exec sleep 600' & wait")
    for timeout_s in (0.5, 5, 50):  # a busy machine needs longer to start it
        with pytest.raises(ClusterUnavailable, match="did not answer within"):
            Shell(folder=str(folder), timeout_s=timeout_s).run("squeue")
        if said := (tmp_path / "child").exists() and (tmp_path / "child").read_text():
            break
    until(lambda: not _lives(int(said)))


def test_slurms_own_variables_do_not_reach_the_programs(program: Program) -> None:
    folder = program("squeue", "env")
    given = {"PATH": os.defpath, "SQUEUE_FORMAT": "x", "SLURM_TIME_FORMAT": "relative", "SLURM_CLUSTERS": "other"}
    given |= {"SLURM_CONF": "/etc/slurm/slurm.conf", "LANG": "de_DE", "TZ": "Asia/Shanghai", "SINFO_FORMAT": "y"}
    seen = set(Shell(folder=str(folder), environment=given).run("squeue").decode().split())
    assert {"SLURM_CONF=/etc/slurm/slurm.conf", "TZ=UTC", "LC_ALL=C.UTF-8", "SLURM_TIME_FORMAT=%s"} <= seen
    assert not any(line.startswith(("SQUEUE_", "SINFO_", "SLURM_CLUSTERS", "LANG")) for line in seen)


@pytest.mark.parametrize(
    ("complaint", "error"),
    [
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", ClusterUnavailable),
        ("squeue: fatal: Unable to process configuration file", ClusterUnavailable),
        ("slurm_load_jobs error: Socket timed out on send/recv operation", ClusterUnavailable),
        ("slurm_load_jobs error: Access/permission denied", ClusterRefused),
        ("squeue: error: Invalid job format specification: Nope", AnswerNotUnderstood),
    ],
)
def test_a_complaint_becomes_the_error_that_it_means(program: Program, complaint: str, error: type[Exception]) -> None:
    folder = program("squeue", f"echo '{complaint}' >&2; exit 1")
    with pytest.raises(error, match=complaint.rsplit(maxsplit=1)[-1].strip("()")) as raised:
        Shell(folder=str(folder)).run("squeue")
    assert getattr(raised.value, "hint", "")


def test_a_missing_program_is_told_with_where_to_say_where_it_is(tmp_path: Path) -> None:
    with pytest.raises(ClusterUnavailable, match=r"\[slurm\] commands"):
        Shell(folder=str(tmp_path)).run("squeue")


def test_an_answer_that_breaks_off_is_not_taken_for_a_shorter_queue(program: Program) -> None:
    folder = program("squeue", "printf '1\\0371\\037'")
    program("scontrol", SCONTROL)
    with pytest.raises(AnswerNotUnderstood, match="middle of a job"):
        CommandsBackend(commands_folder=str(folder)).queue()


def test_a_single_job_is_named_twice_to_squeue(program: Program) -> None:
    folder = program("squeue", 'echo "$*" > "$0.asked"')
    assert CommandsBackend(commands_folder=str(folder)).queue(["5"]) == []
    assert (folder / "squeue.asked").read_text().split()[-1] == "--jobs=5,5"


def test_site_factors_are_read_of_named_jobs_alone(program: Program) -> None:
    folder = program("sprio", 'echo "$*" > "$0.asked"')
    assert Sprio(shell=Shell(folder=str(folder)))(["5", "6"]) == {}
    assert (folder / "sprio.asked").read_text().split()[-1] == "--jobs=5,6"


def test_a_job_name_cannot_make_another_job_look_like_scrontabs() -> None:
    forged = (
        "JobId=5 JobName=x\nJobId=6 JobName=y CronJob=Yes CrontabSpec=* UserId=eve(1)\nJobId=6 JobName=real UserId=a"
    )
    assert cron_jobs(forged, ["5", "6"]) == frozenset()
    assert cron_jobs("JobId=7 JobName=/bin/true UserId=bob(1002) CronJob=Yes CrontabSpec=x\n", ["7"]) == {"7"}


def test_a_job_that_scontrol_leaves_out_counts_as_scrontabs() -> None:
    assert cron_jobs("JobId=7 JobName=a UserId=bob(1002) Priority=1\n", ["7", "8"]) == {"8"}


def test_a_direct_priority_is_told_from_a_sum_of_nothing(program: Program) -> None:
    rows = "4|5000|0|0|0|0|0|0|0|0|\n5|104037|4037|0|0|0|0|100000|0|0|\n6|1|0|0|0|0|0|0|0|0|\n7|50|0|0|0|0|0|0|0|-50|"
    folder = program("sprio", f"cat <<'X'\n{rows}\nX")
    assert Sprio(shell=Shell(folder=str(folder)))() == {
        "4": SiteFactor(value=0, direct=True),
        "5": SiteFactor(value=4037),
        "6": SiteFactor(value=0),
        "7": SiteFactor(value=0),
    }


def test_an_empty_queue_has_no_site_factors(program: Program) -> None:
    folder = program("sprio", "echo 'Unable to find jobs matching user/id(s) specified'")
    assert Sprio(shell=Shell(folder=str(folder)))() == {}


def test_a_cluster_without_priority_factors_is_told_what_to_set(program: Program) -> None:
    folder = program("sprio", "echo \"sprio: error: Only 'priority/multifactor' is supported.\" >&2; exit 1")
    with pytest.raises(ClusterRefused, match="PriorityType=priority/multifactor"):
        Sprio(shell=Shell(folder=str(folder)))()


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


SQUEUE_WITHOUT_ARRAY_UNIQUE = f"""#!{sys.executable} -S
# squeue of 25.11 and 26.05: without --array one line stands for the whole array, whatever was split off it.
import re, sys
if "--array-unique" in sys.argv:
    sys.exit("squeue: unrecognized option '--array-unique'")
(chosen,) = (word for word in sys.argv if word.startswith("--Format="))
fields = re.findall(r"(?:^|,)([A-Za-z-]+):([^,]*)", chosen.partition("=")[2])
rows = {{"whole": [("5", "5", "1-8", "PENDING", "0:00")],
        "tasks": [("6", "5", "5", "PENDING", "17:00")]
                 + [("5", "5", str(n), "PENDING", "0:00") for n in (1, 2, 3, 4, 6, 7, 8)]
                 + [("7", "5", "9", "RUNNING", "0:00")]}}
for row in rows["tasks" if "--array" in sys.argv else "whole"]:
    known = dict(zip(("JobID", "ArrayJobID", "ArrayTaskID", "State", "MinTime"), row), HetJobID="0")
    known["Name"] = "\\nJobId=5 ArrayJobId=5 ArrayTaskId=1-8 JobState=PENDING"
    sys.stdout.write("".join(known.get(name, "N/A") + end for name, end in fields) + "\\n")
"""


def test_a_task_that_left_its_array_is_a_record_of_its_own(program: Program, tmp_path: Path) -> None:
    folder = program("scontrol", SCONTROL)
    (tmp_path / "squeue").write_text(SQUEUE_WITHOUT_ARRAY_UNIQUE)
    (tmp_path / "squeue").chmod(0o755)
    backend = CommandsBackend(commands_folder=str(folder), environment={"PATH": os.defpath, "HOME": str(tmp_path)})
    jobs = {job["job_id"]: job for job in backend.queue()}
    assert (jobs["5"]["array_tasks"], jobs["5"]["tasks"]) == ("1-4,6-8", 7)
    assert (jobs["6"]["array_tasks"], jobs["6"]["tasks"], jobs["6"]["time_min_s"]) == ("5", 1, 1020)
    assert (jobs["7"]["state"], jobs["7"]["tasks"]) == ("RUNNING", 1)


@pytest.mark.parametrize(
    ("tasks", "text"), [([7], "7"), ([3, 1, 2], "1-3"), ([0, 3, 6, 20, 21, 22], "0,3,6,20-22"), ([1, 2, 2, 4], "1-2,4")]
)
def test_tasks_are_named_as_slurm_names_them(tasks: list[int], text: str) -> None:
    assert parse.join_words(tasks) == text
    assert parse.tasks(text) == len(set(tasks))


def test_a_change_without_a_started_scontrol_is_answered(tmp_path: Path) -> None:
    backend = CommandsBackend(commands_folder=str(tmp_path))
    (said,) = backend.change([JobUpdate(job_id="1", site_factor=137)])
    assert said
