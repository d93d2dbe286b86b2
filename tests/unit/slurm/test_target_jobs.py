"""Comments as squeue prints them, and what is asked of Slurm."""

from __future__ import annotations

import re

import pytest

from helios.errors import AnswerNotUnderstood
from helios.slurm.shell import CommandResult, Shell
from helios.slurm.target_jobs import TargetJobs, join_queue
from tests.unit.slurm.slurm import START, a_raw_job

TARGET = "helios:target=acc>=0.9;yield=USR2"


class Says(Shell):
    """A shell that prints these records, and keeps what was asked."""

    __slots__ = ("asked", "complaint", "cut", "records")

    def answer(self, program: str, *words: str, stdin: bytes = b"", timeout_s: float | None = None) -> CommandResult:
        self.asked.append((program, *words))
        if program != "squeue":
            return CommandResult(output=b"", error_output=self.complaint, status=bool(self.complaint))
        (end,) = re.findall(r"Comment:(\x1e\w+)", " ".join(words))
        text = "".join("\x1f".join(record) + f"{end}\n" for record in self.records)
        return CommandResult(output=text.encode()[: self.cut], error_output="", status=0)


def a_shell(*records: tuple[str, ...], complaint: str = "", cut: int | None = None) -> Says:
    shell = Says()
    for name, value in (("asked", []), ("records", records), ("complaint", complaint), ("cut", cut)):
        object.__setattr__(shell, name, value)
    return shell


def test_only_jobs_that_name_a_target_are_kept() -> None:
    found = TargetJobs(
        shell=a_shell(("1", "RUNNING", "2", "1", "1", TARGET), ("2", "RUNNING", "0", "1", "1", "x"))
    ).read()
    assert list(found) == ["1"]
    assert (found["1"].restart, found["1"].requeues, found["1"].state) == (2, True, "RUNNING")


@pytest.mark.parametrize("flags", [("0", "1"), ("1", "0"), ("", "1")])
def test_a_job_without_requeue_or_batch_flag_may_not_be_requeued(flags: tuple[str, str]) -> None:
    found = TargetJobs(shell=a_shell(("1", "RUNNING", "0", *flags, TARGET))).read()
    assert not found["1"].requeues


def test_a_comment_with_separators_makes_no_second_job() -> None:
    comment = f"{TARGET}\x1f\x1e\n9\x1fRUNNING\x1f0\x1f1\x1f1\x1f{TARGET};at=1"
    found = TargetJobs(shell=a_shell(("1", "RUNNING", "0", "1", "1", comment))).read()
    assert list(found) == ["1"]


def test_a_cut_answer_is_not_believed() -> None:
    with pytest.raises(AnswerNotUnderstood):
        TargetJobs(shell=a_shell(("1", "RUNNING", "0", "1", "1", TARGET), cut=30)).read()


def test_a_comment_that_is_not_understood_says_why() -> None:
    found = TargetJobs(shell=a_shell(("1", "RUNNING", "0", "1", "1", "helios:target=acc>0.9"))).read()
    assert found["1"].note is None
    assert "write it as" in found["1"].problem


def test_a_signal_goes_to_the_steps_or_to_the_batch_script() -> None:
    shell = a_shell()
    TargetJobs(shell=shell).signal("7", "USR2")
    TargetJobs(shell=shell).signal("7", "B:USR1")
    assert shell.asked == [("scancel", "--signal=USR2", "7"), ("scancel", "--signal=USR1", "--batch", "7")]


def test_a_requeue_names_only_what_has_not_ended_and_returns_the_complaint() -> None:
    shell = a_shell(complaint="Requested operation is presently disabled for job 7")
    assert "disabled" in TargetJobs(shell=shell).requeue("7")
    assert shell.asked == [("scontrol", "requeue", "Incomplete", "7")]


def test_a_job_that_changed_between_two_readings_is_left_out() -> None:
    noted = TargetJobs(
        shell=a_shell(("1", "RUNNING", "1", "1", "1", TARGET), ("2", "PENDING", "0", "1", "1", TARGET))
    ).read()
    queue = [a_raw_job("1", state="RUNNING", restart=0), a_raw_job("2", array_job_id="2")]
    (job,) = join_queue(noted, queue, {})
    assert (job.job_id, job.excluded_reason, job.gpus) == ("2", "it is part of an array", 1)


def test_a_running_job_has_its_start() -> None:
    noted = TargetJobs(shell=a_shell(("1", "RUNNING", "0", "1", "1", TARGET))).read()
    (job,) = join_queue(noted, [a_raw_job("1", state="RUNNING", started=START)], {"1": "it is held"})
    assert (job.started_s, job.excluded_reason, job.partition) == (START, "it is held", "gpu")
