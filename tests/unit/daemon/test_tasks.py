import logging
import threading
from collections.abc import Callable

import pytest

from helios.app.controller_state import CycleUnderWay
from helios.daemon.health import Health, Metrics
from helios.daemon.tasks import ExclusiveSection, Task
from helios.errors import ClusterUnavailable, HeliosError, WarehouseUnavailable
from tests.unit.daemon.builders import PATIENCE_S, Blocked, HandSet

INTERVAL_S = 60.0


class Bench:
    """One task, its clocks and what it was asked to do."""

    def __init__(
        self,
        work: Callable[[], str] | None = None,
        *,
        section: ExclusiveSection | None = None,
        rest_s: float = 0,
        repeats: bool = True,
    ) -> None:
        self.hand = HandSet()
        self.runs = 0
        self.error: Exception | None = None
        self.health = Health(longest_silence_s={"cycle": 240}, times=self.hand.times)
        self.metrics = Metrics(times=self.hand.times)
        self.task = Task(
            "cycle",
            work or self._work,
            interval_s=INTERVAL_S,
            rest_s=rest_s,
            repeats=repeats,
            section=section or ExclusiveSection(),
            health=self.health,
            metrics=self.metrics,
            times=self.hand.times,
        )

    def _work(self) -> str:
        self.runs += 1
        if self.error is not None:
            raise self.error
        return "done"

    def tick_for(self, seconds: float) -> int:
        """Tick at every interval for so long, and return how often the work was tried."""
        before = self.runs
        for _ in range(int(seconds / INTERVAL_S)):
            self.hand.move(INTERVAL_S)
            self.task.tick()
        return self.runs - before

    def figure(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, {"task": "cycle"})


def entering(call: Callable[[], None]) -> Callable[[], str]:
    def work() -> str:
        call()
        return "done"

    return work


@pytest.mark.parametrize(
    "error",
    [
        ClusterUnavailable("away"),
        WarehouseUnavailable("locked"),
        MemoryError(),
        OSError(28, "full"),
        ZeroDivisionError(),
    ],
)
def test_whatever_the_work_raises_the_tick_does_not(error: Exception) -> None:
    bench = Bench()
    bench.error = error
    assert bench.task.tick() is False


def test_after_a_failure_the_next_tick_tries_again() -> None:
    bench = Bench()
    bench.error = ClusterUnavailable("away")
    bench.task.tick()
    assert bench.tick_for(INTERVAL_S) == 1


def test_what_nothing_was_tried_for_does_not_wait_longer() -> None:
    bench = Bench()
    bench.error = CycleUnderWay("the lock is held")
    assert bench.tick_for(600) == 10


def test_how_long_it_failed_is_counted_from_the_first_failure(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.error = ClusterUnavailable("away")
    bench.tick_for(180)
    bench.error = None
    bench.tick_for(600)
    assert any("works again, after 2 failures in 3 min" in record.getMessage() for record in caplog.records)


def test_an_hour_of_failures_is_few_tries_and_not_none() -> None:
    bench = Bench()
    bench.error = ClusterUnavailable("away")
    assert 10 <= bench.tick_for(3600) <= 20


def test_it_recovers_by_itself_and_keeps_its_rhythm_again() -> None:
    bench = Bench()
    bench.error = WarehouseUnavailable("disk full")
    bench.tick_for(3600)
    bench.error = None
    bench.tick_for(600)
    assert bench.tick_for(600) == 10
    assert bench.health.of("cycle").problem == ""


def test_the_same_problem_is_said_once_and_its_end_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    with caplog.at_level(logging.INFO):
        for number in range(3):
            bench.error = WarehouseUnavailable(f"The disk is full: {number} bytes left")
            bench.tick_for(1200)
        bench.error = None
        bench.tick_for(1200)
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 2
    assert "disk is full" in said[0]
    assert "works again, after" in said[1]


def test_another_problem_is_said_too(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    for error in (WarehouseUnavailable("locked"), ClusterUnavailable("away")):
        bench.error = error
        bench.tick_for(600)
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert errors == ["locked", "away"]


def test_only_a_defect_brings_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.error = HeliosError("on purpose")
    bench.task.tick()
    bench.hand.move(INTERVAL_S)
    bench.error = KeyError("x")
    bench.task.tick()
    assert [record.exc_info is not None for record in caplog.records] == [False, True]


def test_health_and_metrics_hear_of_failures_and_success() -> None:
    bench = Bench()
    bench.error = ClusterUnavailable("away", hint="scontrol ping")
    bench.task.tick()
    assert bench.health.of("cycle").failures == 1
    assert "scontrol ping" in bench.health.of("cycle").problem
    assert bench.figure("helios_task_failures_total") == 1
    bench.error = None
    bench.tick_for(INTERVAL_S)
    assert bench.health.of("cycle").line == "done"
    assert bench.figure("helios_task_last_success_timestamp_seconds") == bench.hand.times.now().timestamp()


def test_a_task_that_rests_is_not_done_twice_in_one_night() -> None:
    bench = Bench(rest_s=12 * 3600)
    bench.task.tick()
    bench.hand.move(3600)
    bench.task.tick()
    assert bench.runs == 1
    bench.hand.move(23 * 3600)
    bench.task.tick()
    assert bench.runs == 2


def test_two_tasks_in_one_section_never_work_at_the_same_time() -> None:
    section, blocked = ExclusiveSection(), Blocked()
    second_ran: list[bool] = []
    first = Bench(entering(blocked), section=section)
    second = Bench(entering(lambda: second_ran.append(blocked.left.is_set())), section=section)
    threads = [threading.Thread(target=first.task.tick), threading.Thread(target=second.task.tick)]
    threads[0].start()
    assert blocked.enter.wait(PATIENCE_S)
    threads[1].start()
    blocked.let_go()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert second_ran == [True]


def test_nobody_enters_a_section_that_was_closed_while_waiting() -> None:
    section, blocked = ExclusiveSection(), Blocked()
    first, second = Bench(entering(blocked), section=section), Bench(section=section)
    threads = [threading.Thread(target=first.task.tick), threading.Thread(target=second.task.tick)]
    threads[0].start()
    assert blocked.enter.wait(PATIENCE_S)
    threads[1].start()
    assert not section.close(within_s=0.01)
    blocked.let_go()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert second.runs == 0


def test_an_overlap_is_counted_each_time_and_said_once_a_run(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    for _ in range(2):
        bench.task.tick()
        for _ in range(3):
            bench.task.report_overlap()
    assert len([r for r in caplog.records if "still at work" in r.getMessage()]) == 2
    assert bench.figure("helios_task_left_out_total") == 6


def test_silence_is_counted_from_the_last_sign_of_progress() -> None:
    bench = Bench()
    bench.error = ClusterUnavailable("away")
    bench.tick_for(600)
    assert bench.task.silent_for_s() == 0
    bench.hand.move(42)
    assert bench.task.silent_for_s() == 42


@pytest.mark.parametrize(("repeats", "lines"), [(True, 3), (False, 2)])
def test_a_line_that_only_counts_on_is_repeated_where_that_is_wanted(
    repeats: bool, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    says = iter(["table of 1,204 rows", "table of 96 rows", "the table was removed"])
    bench = Bench(lambda: next(says), repeats=repeats)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            bench.task.tick()
    assert len(caplog.records) == lines


def test_the_end_of_long_work_is_progress_too() -> None:
    bench: list[Bench] = []
    bench.append(Bench(entering(lambda: bench[0].hand.move(200))))
    bench[0].task.tick()
    assert bench[0].task.silent_for_s() == 0
