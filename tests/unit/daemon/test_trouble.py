import errno

import pytest

from helios.app.controller_state import CycleUnderWay
from helios.daemon.tasks import MOST_WAIT_S, Backoff, TaskError, task_error
from helios.errors import ClusterUnavailable


def waits_after(failures: int, *, interval_s: float) -> float:
    pace = Backoff(interval_s=interval_s)
    for _ in range(failures):
        pace = pace.failed(TaskError(message="no"), began_s=0)
    return pace.not_before_s


def test_after_one_failure_the_next_time_is_taken() -> None:
    assert waits_after(1, interval_s=60) < 60


@pytest.mark.parametrize(("failures", "runs_at_s", "too_early_s"), [(2, 120, 60), (3, 240, 180)])
def test_repeated_failures_wait_twice_as_long_each(failures: int, runs_at_s: float, too_early_s: float) -> None:
    assert too_early_s < waits_after(failures, interval_s=60) <= runs_at_s


def test_the_wait_is_bounded_however_often_it_failed() -> None:
    assert waits_after(10_000, interval_s=60) <= MOST_WAIT_S


def test_what_nothing_was_tried_for_does_not_wait_longer() -> None:
    pace = Backoff(interval_s=60)
    for _ in range(5):
        pace = pace.failed(task_error(CycleUnderWay("the lock is held")), began_s=0)
    assert pace.not_before_s < 60


def test_a_task_with_a_long_interval_never_loses_its_next_time() -> None:
    assert waits_after(50, interval_s=86_400) < 86_400


def test_a_success_forgets_the_failures() -> None:
    pace = Backoff(interval_s=60).failed(TaskError(message="no"), began_s=0).succeeded(began_s=60)
    assert (pace.failures, pace.problem) == (0, None)
    assert pace.not_before_s <= 60


def test_after_a_success_it_rests_as_long_as_it_should() -> None:
    assert Backoff(interval_s=60, rest_s=500).succeeded(began_s=100).not_before_s == 600


def test_failures_in_a_row_remember_when_the_first_was() -> None:
    pace = Backoff(interval_s=60)
    for began_s in (100.0, 160.0, 280.0):
        pace = pace.failed(TaskError(message="no"), began_s=began_s)
    assert pace.failing_since_s == 100


def test_the_same_problem_with_other_figures_is_no_news() -> None:
    pace = Backoff(interval_s=60).failed(TaskError(message="no answer in 30.1 s"), began_s=0)
    assert not pace.is_news(TaskError(message="no answer in 31 s"))
    assert pace.is_news(TaskError(message="refused"))


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
