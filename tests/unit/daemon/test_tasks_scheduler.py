import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from apscheduler.executors.pool import ThreadPoolExecutor

from helios.actions import Result
from helios.app.controller_state import CycleTally, CycleUnderWay
from helios.daemon.health import Health, Metrics, TaskTimes
from helios.daemon.tasks import TaskSchedule, TaskScheduler
from helios.errors import ClusterUnavailable, HeliosError
from helios.model import Mode
from tests.unit.daemon.builders import PATIENCE_S, Blocked, HandSet, ToyChores, a_cycle, eventually

OFTEN_S = 0.03


class Ticking:
    """A clock over toy tasks; not started."""

    def __init__(self, toys: ToyChores, *, times: TaskTimes | None = None, **schedule: Any) -> None:
        self.times = times or TaskTimes()
        facts: dict[str, Any] = {
            "cycle_s": OFTEN_S,
            "ingest_s": OFTEN_S,
            "nightly": None,
            "heartbeat_s": OFTEN_S,
        }
        self.schedule = TaskSchedule(**{**facts, **schedule})
        self.metrics = Metrics(times=self.times)
        self.health = Health(longest_silence_s=self.schedule.longest_silence_s(), times=self.times)
        self.beats = 0
        self.paused = False
        self.clock = TaskScheduler(
            tasks=toys.tasks(),
            schedule=self.schedule,
            beat=self._beat,
            paused=lambda: self.paused,
            health=self.health,
            metrics=self.metrics,
            times=self.times,
        )

    def _beat(self) -> None:
        self.beats += 1

    def record_skip(self, task: str) -> float:
        return self.metrics.registry.get_sample_value("helios_task_left_out_total", {"task": task}) or 0


@contextmanager
def started(toys: ToyChores, **schedule: Any) -> Iterator[Ticking]:
    ticking = Ticking(toys, **schedule)
    ticking.clock.start()
    try:
        yield ticking
    finally:
        ticking.clock.stop()


def test_the_first_cycle_and_the_first_reading_come_at_once() -> None:
    toys = ToyChores()
    with started(toys, cycle_s=3600, ingest_s=3600):
        assert eventually(lambda: {"cycle", "ingest"} <= set(toys.called))


def test_tasks_come_again_and_again() -> None:
    toys = ToyChores()
    with started(toys) as ticking:
        assert eventually(lambda: min(toys.count("cycle"), toys.count("ingest"), ticking.beats) >= 4)


def test_after_a_stop_nothing_is_called_any_more() -> None:
    toys = ToyChores()
    with started(toys) as ticking:
        assert eventually(lambda: toys.count("cycle") >= 2)
    ticking.clock.writing.close(within_s=PATIENCE_S)
    before = toys.count("cycle")
    ticking.clock.cycles["cycle"].tick()
    assert toys.count("cycle") == before


def test_a_task_that_raises_is_called_again_and_the_others_go_on() -> None:
    toys = ToyChores(raises={"cycle": ClusterUnavailable("away"), "ingest": RuntimeError("defect")})
    with started(toys) as ticking:
        assert eventually(lambda: toys.count("cycle") >= 3 and toys.count("ingest") >= 3)
        toys.raises.clear()
        assert eventually(lambda: not ticking.health.reasons())


def test_a_slow_cycle_runs_once_while_readings_go_on() -> None:
    slow = Blocked()
    toys = ToyChores(does={"cycle": slow})
    with started(toys) as ticking:
        assert slow.enter.wait(PATIENCE_S)
        readings = toys.count("ingest")
        assert eventually(lambda: ticking.record_skip("cycle") >= 3 and toys.count("ingest") >= readings + 3)
        assert toys.count("cycle") == 1
        assert eventually(lambda: ticking.beats > 3)
        slow.let_go()
        assert eventually(lambda: toys.count("cycle") > 1)


def test_the_hook_s_table_is_published_after_a_reading() -> None:
    toys = ToyChores()
    with started(toys):
        assert eventually(lambda: toys.count("hook") >= 2)
    assert toys.called.index("ingest") < toys.called.index("hook")


def test_after_a_failed_reading_the_table_is_left_to_expire() -> None:
    toys = ToyChores(raises={"ingest": HeliosError("slurmdbd is away")})
    with started(toys):
        assert eventually(lambda: toys.count("ingest") >= 3)
    assert toys.count("hook") == 0


@pytest.mark.parametrize(("raises", "published"), [({}, True), ({"nightly": HeliosError("too little history")}, False)])
def test_a_night_that_went_well_is_published_too(raises: dict[str, Exception], published: bool) -> None:
    toys = ToyChores(raises={"ingest": HeliosError("no reading, for once"), **raises})
    with started(toys, ingest_s=3600) as ticking:  # for so long a table may be late: a loaded machine leaves none out
        ticking.clock.run_nightly()
        cycles = toys.count("cycle")
        assert eventually(lambda: toys.count("cycle") >= cycles + 3 and (toys.count("hook") == 1) is published)


def test_a_night_and_a_reading_at_once_publish_without_a_quarrel() -> None:
    toys = ToyChores()
    ticking = Ticking(toys)
    ticking.clock.read()
    ticking.clock.run_nightly()
    ticking.clock.start()
    assert eventually(lambda: toys.count("hook") >= 1)
    ticking.clock.stop()


@pytest.mark.parametrize(
    "change", [{"suspended": ("the breaker is open",)}, {"modes": {"qssf": Mode.SHADOW}}], ids=["suspended", "mode"]
)
def test_the_hook_table_follows_a_suspended_cycle_and_a_set_mode(change: dict[str, Any]) -> None:
    toys = ToyChores(cycle=a_cycle(modes={"qssf": Mode.ACTIVE}), raises={"ingest": HeliosError("slurmdbd is away")})
    with started(toys):
        assert eventually(lambda: toys.count("cycle") >= 3)
        assert toys.count("hook") == 0
        toys.cycle = a_cycle(**({"modes": {"qssf": Mode.ACTIVE}} | change))
        assert eventually(lambda: toys.count("hook") == 1)


def test_the_hook_waits_for_a_cycle_and_says_if_too_long(caplog: pytest.LogCaptureFixture) -> None:
    slow = Blocked()
    toys = ToyChores(does={"cycle": slow})
    with started(toys, cycle_s=0.1) as ticking:
        assert slow.enter.wait(PATIENCE_S)
        assert eventually(lambda: ticking.record_skip("cycle") >= 15)
        assert toys.count("hook") == 0
        slow.let_go()
        assert eventually(lambda: ticking.record_skip("hook") >= 1 and toys.count("hook") >= 1)
    assert any("its time passed" in record.getMessage() for record in caplog.records)


def test_a_stop_while_the_hook_is_called_leaves_no_broken_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    ticking, broken, stopped = Ticking(ToyChores(), cycle_s=3600, ingest_s=3600), [], []
    stopping = threading.Thread(target=ticking.clock.stop)
    submit = ThreadPoolExecutor.submit_job

    def stopped_meanwhile(workers: ThreadPoolExecutor, job: Any, times: Any) -> None:
        submit(workers, job, times)
        if job.id == "hook":
            stopping.start()
            stopped.append(eventually(lambda: not ticking.clock._scheduler.running))

    monkeypatch.setattr(threading, "excepthook", broken.append)
    monkeypatch.setattr(ThreadPoolExecutor, "submit_job", stopped_meanwhile)
    ticking.clock.start()
    assert eventually(lambda: stopped == [True])
    stopping.join(PATIENCE_S)
    assert broken == []


def test_a_long_night_holds_up_no_reading() -> None:
    night = Blocked()
    toys = ToyChores(does={"nightly": night})
    with started(toys) as ticking:
        training = threading.Thread(target=ticking.clock.nightly.tick)
        training.start()
        assert night.enter.wait(PATIENCE_S)
        readings = toys.count("ingest")
        assert eventually(lambda: toys.count("ingest") > readings)
        assert not ticking.clock.close_readers(within_s=0.01)
        night.let_go()
        training.join(PATIENCE_S)


def test_the_night_is_local() -> None:
    with started(ToyChores(), nightly="02:30", zone=ZoneInfo("Asia/Kolkata")) as ticking:
        due = ticking.clock.due()["nightly"]
    assert (due.hour, due.minute, due.utcoffset()) == (2, 30, ZoneInfo("Asia/Kolkata").utcoffset(due))


def test_a_night_that_is_somebody_else_s_is_not_planned() -> None:
    with started(ToyChores(), nightly=None) as ticking:
        assert "nightly" not in ticking.clock.due()


def test_two_half_past_twos_in_one_night_are_one_analysis() -> None:
    hand, toys = HandSet(), ToyChores()
    clock = Ticking(toys, times=hand.times).clock
    for hours in (0, 1, 24):
        hand.passed_s = hours * 3600
        clock.nightly.tick()
    assert toys.count("nightly") == 2


def test_cycles_that_fail_are_progress_and_cycles_that_hang_are_not() -> None:
    hand = HandSet()
    toys = ToyChores(raises={"cycle": ClusterUnavailable("away")})
    ticking = Ticking(toys, times=hand.times, cycle_s=60)
    for _ in range(60):
        hand.move(60)
        ticking.clock.cycles["cycle"].tick()
        assert ticking.clock.is_progressing()
    hand.move(299)
    assert ticking.clock.is_progressing()
    hand.move(1)
    assert not ticking.clock.is_progressing()


def test_a_cycle_that_could_not_observe_counts_as_failed() -> None:
    ticking = Ticking(ToyChores(cycle=a_cycle(problem="slurmctld is away")))
    assert ticking.clock.cycles["cycle"].tick() is False
    assert ticking.health.of("cycle").problem == "slurmctld is away"
    assert ticking.health.report()["cycle"] is not None


def test_a_cycle_is_logged_when_it_acts_or_its_answers_change(caplog: pytest.LogCaptureFixture) -> None:
    def refused(jobs: int, *, unchanged: int = 0) -> tuple[CycleTally, ...]:
        return (
            CycleTally(service="qssf", mode="active", result=Result.REFUSED, jobs=jobs),
            CycleTally(service="qssf", mode="active", result=Result.UNCHANGED, jobs=unchanged),
        )

    toys = ToyChores()
    clock = Ticking(toys).clock
    with caplog.at_level(logging.INFO):
        for cycle in (
            a_cycle(),
            a_cycle(tallies=refused(4)),
            a_cycle(tallies=refused(5, unchanged=7)),
            a_cycle(acted=2, tallies=refused(5)),
            a_cycle(suspended=("paused",), tallies=()),
            a_cycle(),
        ):
            toys.cycle = cycle
            clock.cycles["cycle"].tick()
    lines = [record.getMessage() for record in caplog.records if "pending" in record.getMessage()]
    assert len(lines) == 2
    assert "qssf (active) refused 4" in lines[0]


def test_health_and_metrics_hear_of_a_cycle() -> None:
    ticking = Ticking(ToyChores(cycle=a_cycle(predictions=9)))
    ticking.clock.cycles["cycle"].tick()
    assert ticking.health.report()["cycle"]["predictions"] == 9
    assert ticking.metrics.registry.get_sample_value("helios_predictions_total") == 9


def test_the_health_rests_on_cycles_and_readings() -> None:
    schedule = TaskSchedule(cycle_s=60, ingest_s=300, nightly=None)
    assert schedule.longest_silence_s() == {"cycle": 240, "ingest": 960}


@pytest.mark.parametrize(("cycle_s", "stuck_s"), [(5, 300), (60, 300), (600, 3000)])
def test_cycles_are_stuck_only_after_several_of_them(cycle_s: float, stuck_s: float) -> None:
    assert TaskSchedule(cycle_s=cycle_s, ingest_s=300, nightly=None).stuck_s() == stuck_s


HELD = CycleUnderWay("Another process (process 4711) is running a cycle on this machine just now.")


def test_a_pause_file_reverts_everything_though_another_process_holds_the_lock() -> None:
    toys = ToyChores(raises={"cycle": HELD})
    ticking = Ticking(toys)
    ticking.paused = True
    assert not ticking.clock.cycles["cycle"].tick()
    assert toys.count("release") == 1
    problem = ticking.health.of("cycle").problem
    assert "process 4711" in problem and "Helios is paused: release done" in problem


def test_a_cycle_that_is_kept_away_takes_nothing_back_unless_somebody_paused() -> None:
    toys = ToyChores(raises={"cycle": HELD})
    ticking = Ticking(toys)
    assert not ticking.clock.cycles["cycle"].tick()
    assert toys.called == ["cycle"]


def test_a_lock_held_for_three_cycles_is_bad_health() -> None:
    hand = HandSet()
    toys = ToyChores(raises={"cycle": HELD})
    ticking = Ticking(toys, times=hand.times, cycle_s=60)
    for _ in range(5):
        ticking.clock.cycles["cycle"].tick()
        hand.move(60)
    assert toys.count("cycle") == 5  # no cycle waits longer for a lock that may be free, or a pause that may come
    assert ticking.health.reasons()[0].startswith("cycle failed 5 times in a row: Another process (process 4711)")
