import errno

import pytest

from helios.daemon.tasks import MOST_WAIT_S, backoff_s, error_kind, task_error
from helios.errors import ClusterUnavailable


def test_after_one_failure_the_next_time_is_taken() -> None:
    assert backoff_s(1, interval_s=60) == 60


@pytest.mark.parametrize(("failures", "waits_s"), [(2, 120), (3, 240)])
def test_repeated_failures_wait_twice_as_long_each(failures: int, waits_s: float) -> None:
    assert backoff_s(failures, interval_s=60) == waits_s


def test_the_wait_is_bounded_however_often_it_failed() -> None:
    assert backoff_s(10_000, interval_s=60) == MOST_WAIT_S


def test_a_task_with_a_long_interval_never_loses_its_next_time() -> None:
    assert backoff_s(50, interval_s=86_400) == 86_400


def test_the_same_problem_with_other_figures_is_of_the_same_kind() -> None:
    assert error_kind("no answer in 30.1 s") == error_kind("no answer in 31 s")
    assert error_kind("no answer in 30.1 s") != error_kind("refused")


def test_an_error_of_helios_keeps_its_message_and_hint() -> None:
    problem = task_error(ClusterUnavailable("slurmctld does not answer", hint="scontrol ping"))
    assert problem.line() == "slurmctld does not answer What to do: scontrol ping"
    assert not problem.defect


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named_as_one(number: int) -> None:
    problem = task_error(OSError(number, "no room", "/var/lib/helios/helios.db"))
    assert "disk is full" in problem.message
    assert "/var/lib/helios/helios.db" in problem.message
    assert not problem.defect


def test_another_error_of_the_system_is_not_taken_for_a_full_disk() -> None:
    assert task_error(OSError(errno.EACCES, "denied")).defect


def test_lack_of_memory_is_no_defect() -> None:
    assert "Memory" in task_error(MemoryError()).message
    assert not task_error(MemoryError()).defect


def test_what_nobody_foresaw_is_a_defect_to_report() -> None:
    problem = task_error(KeyError("job_id"))
    assert problem.defect
    assert "KeyError: 'job_id'" in problem.message
