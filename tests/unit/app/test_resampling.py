"""What a draw of weeks keeps of a site, and what it changes."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest

from helios.app.history import LoadedHistory
from helios.app.resampling import DeduplicatingPredictor, Resampler, redraw, resampled_predictor, resampler_for
from helios.app.scenarios import Policy, Scenario
from helios.app.whatif import ReplaySetup, WhatIfRequest, predictor_for, prepare_replay
from helios.choices import ResampledUnit
from helios.simulate import Backfill
from tests.builders import a_job, jobs_frame
from tests.run_times import in_columns

START = pd.Timestamp("2020-03-02", tz="Asia/Shanghai")  # a Monday
WEEK_S, DAY_S, HOUR_S = 7 * 86_400, 86_400, 3_600
WEEKS = ResampledUnit.WEEKS
FIFO = Scenario(policy=Policy.FIFO, backfill=Backfill.NONE)


def a_site(days: float, *, jobs: int = 400, seed: int = 0, users: bool = True) -> LoadedHistory:
    """Jobs of some users at random moments, each with a run time, a limit and a name of its own."""
    rng = np.random.default_rng(seed)
    seconds = np.sort(rng.integers(0, int(days * DAY_S), size=jobs))
    rows: list[dict[str, Any]] = [
        a_job(
            job_id=str(1000 + number),
            user=f"user{rng.integers(5)}" if users else None,
            gpus=int(rng.choice([1, 2, 4])),
            submitted_at=START + timedelta(seconds=int(second)),
            started_at=None,
            ended_at=None,
            run_time_s=float(100 + number),
            time_limit_s=float(10_000 + number),
        )
        for number, second in enumerate(seconds)
    ]
    return LoadedHistory(cluster="lab", jobs=jobs_frame(*rows), timezone="Asia/Shanghai")


def staged(days: float, *, before: float = 0, warm_up: float = 0, **options: Any) -> ReplaySetup:
    history = a_site(days + before + warm_up, **options)
    since = START + timedelta(days=before + warm_up)
    request = WhatIfRequest(scenarios=(FIFO,), since=since, warm_up=timedelta(days=warm_up), nodes={"gpu": 4})
    return prepare_replay(history, request)


def drawn(setup: ReplaySetup, over: ResampledUnit | None = None, repeat: int = 1) -> tuple[ReplaySetup, Resampler]:
    resampler = resampler_for(setup, over)
    return redraw(setup, resampler, repeat=repeat, seed=0), resampler


def who(setup: ReplaySetup, row: int) -> tuple[Any, ...]:
    """All that a draw must leave to a job: run times are different for every job."""
    jobs, work = setup.machine.jobs, setup.workload
    return (
        int(work.run_time_s[row]),
        int(work.gpus[row]),
        int(setup.limit_s[row]),
        jobs["user"].iloc[row],
        jobs["run_time_s"].iloc[row],
        int(work.partition[row]),
    )


@pytest.mark.parametrize(
    ("days", "over", "blocks"),
    [
        (35, ResampledUnit.WEEKS, 5),
        (27.95, ResampledUnit.WEEKS, 4),
        (20, ResampledUnit.DAYS, 20),
        (3, ResampledUnit.SEEDS, 0),
    ],
)
def test_weeks_days_or_arrivals_are_drawn_by_how_many_there_are(days: float, over: ResampledUnit, blocks: int) -> None:
    resampler = resampler_for(staged(days, jobs=1_000, users=False))
    assert (resampler.over, resampler.blocks) == (over, blocks)


def test_a_window_of_one_week_is_drawn_by_its_seven_days() -> None:
    history, since = a_site(20, jobs=1_000, users=False), START + timedelta(days=3)
    hours = (history.jobs["submitted_at"] - since) / timedelta(hours=1)
    awake = history.jobs[~hours.between(0, 5) & ~hours.between(7 * 24 - 5, 7 * 24)].reset_index(drop=True)
    request = WhatIfRequest(scenarios=(FIFO,), since=since, until=since + timedelta(days=7), nodes={"gpu": 4})
    resampler = resampler_for(prepare_replay(replace(history, jobs=awake), request))
    assert (resampler.over, resampler.blocks, resampler.begins_s) == (ResampledUnit.DAYS, 7, since.timestamp())
    shorter = replace(request, until=since + timedelta(days=6, hours=20))
    assert resampler_for(prepare_replay(replace(history, jobs=awake), shorter)).over is ResampledUnit.SEEDS


def test_a_window_beyond_the_history_is_as_long_as_the_history() -> None:
    history = a_site(8, jobs=400, users=False)
    request = WhatIfRequest(
        scenarios=(FIFO,), since=START - timedelta(days=30), until=START + timedelta(days=30), nodes={"gpu": 4}
    )
    first = history.jobs["submitted_at"].iloc[0]
    resampler = resampler_for(prepare_replay(history, request))
    assert (resampler.over, resampler.blocks, resampler.begins_s) == (ResampledUnit.DAYS, 8, int(first.timestamp()))


def test_each_job_keeps_its_weekday_hour_user_size_limit_and_run_time() -> None:
    setup = staged(35)
    again, _ = drawn(setup, WEEKS)
    known = {int(run): row for row, run in enumerate(setup.workload.run_time_s)}
    moved = set()
    for row, run in enumerate(again.workload.run_time_s):
        original = known[int(run)]
        assert who(again, row) == who(setup, original)
        by = int(again.workload.submitted_s[row] - setup.workload.submitted_s[original])
        assert by % WEEK_S == 0
        moved.add(by)
    assert len(moved) > 2


def test_weeks_are_whole_and_lie_end_to_end() -> None:
    setup = staged(35)
    again, resampler = drawn(setup, WEEKS)
    week_of = {
        int(run): int(at - resampler.begins_s) // WEEK_S
        for run, at in zip(setup.workload.run_time_s, setup.workload.submitted_s, strict=True)
    }
    drawn_weeks = []
    for place in range(resampler.blocks):
        here = (again.workload.submitted_s - resampler.begins_s) // WEEK_S == place
        runs = again.workload.run_time_s[here].tolist()
        (week,) = {week_of[run] for run in runs}
        assert sorted(runs) == sorted(run for run, of in week_of.items() if of == week)
        drawn_weeks.append(week)
    assert max(Counter(drawn_weeks).values()) > 1, "this seed draws a week twice"


def test_the_frame_that_predictors_see_is_the_workload_that_is_replayed() -> None:
    again, _ = drawn(staged(35, warm_up=3), WEEKS)
    jobs = again.machine.jobs
    np.testing.assert_array_equal(jobs["submitted_at"].astype("int64") // 10**6, again.workload.submitted_s)
    np.testing.assert_array_equal(jobs["run_time_s"], again.workload.run_time_s)
    assert jobs["job_id"].tolist() == again.workload.job_id.tolist()
    assert jobs["job_id"].is_unique
    predictor_for(again, None, WhatIfRequest(scenarios=(FIFO,)))  # refuses jobs out of order, or before its history


def test_what_lies_before_the_window_stays_as_it_was() -> None:
    setup = staged(35, before=5, warm_up=3)
    again, _ = drawn(setup, WEEKS)
    assert (~setup.counted).sum() == (~again.counted).sum() > 0
    np.testing.assert_array_equal(
        again.workload.submitted_s[~again.counted], setup.workload.submitted_s[~setup.counted]
    )
    pd.testing.assert_frame_equal(again.before, setup.before)


def test_a_draw_depends_on_its_seed_and_repeat_alone() -> None:
    setup = staged(35)
    one, same, other = (drawn(setup, repeat=repeat)[0].workload.run_time_s.tolist() for repeat in (1, 1, 2))
    assert one == same != other


def test_users_are_moved_where_most_are_known() -> None:
    assert resampler_for(staged(35)).over is ResampledUnit.USERS
    assert resampler_for(staged(3)).over is ResampledUnit.SEEDS
    setup = staged(20)
    jobs = setup.machine.jobs
    few = replace(setup.machine, jobs=jobs.assign(user=jobs["user"].where(jobs["user"] == "user1")))
    assert resampler_for(replace(setup, machine=few)).over is ResampledUnit.DAYS


def test_jobs_of_a_user_move_together_by_whole_days() -> None:
    setup = staged(20.4, before=5, warm_up=3)
    again, resampler = drawn(setup)
    assert sorted(again.workload.run_time_s) == sorted(setup.workload.run_time_s), "no copies, nobody left out"
    assert again.machine.jobs["job_id"].is_unique
    known = {int(run): row for row, run in enumerate(setup.workload.run_time_s)}
    days_of: dict[str, set[int]] = {}
    for row, run in enumerate(again.workload.run_time_s):
        original = known[int(run)]
        assert who(again, row) == who(setup, original)
        by = int(again.workload.submitted_s[row] - setup.workload.submitted_s[original])
        assert by % DAY_S == 0
        if again.counted[row]:
            days_of.setdefault(again.machine.jobs["user"].iloc[row], set()).add(by // DAY_S % resampler.blocks)
        else:
            assert by == 0
    assert [len(days) for days in days_of.values()] == [1] * 5
    since_s = again.workload.submitted_s[again.counted] - resampler.begins_s
    assert since_s.min() >= 0 and since_s.max() < 21 * DAY_S


def test_a_working_day_stands_in_for_a_working_day() -> None:
    setup = staged(20)
    again, resampler = drawn(setup, ResampledUnit.DAYS)
    assert resampler.over is ResampledUnit.DAYS

    def at_weekend(of: ReplaySetup) -> dict[int, set[bool]]:
        local = of.machine.jobs["submitted_at"].dt.tz_convert("Asia/Shanghai")
        found: dict[int, set[bool]] = {}
        for run, weekday in zip(of.workload.run_time_s.tolist(), local.dt.day_of_week, strict=True):
            found.setdefault(run, set()).add(weekday >= 5)
        return found

    was, now = at_weekend(setup), at_weekend(again)
    strangers = [run for run in now if now[run] != was[run]]
    assert len(strangers) <= 0.02 * len(now)
    assert any(len({*of}) for of in now.values())


def test_arrivals_move_within_their_hour_and_bursts_stay_together() -> None:
    history = a_site(3)
    jobs = history.jobs.copy()
    jobs.loc[100:109, "submitted_at"] = jobs["submitted_at"].iloc[100]
    jobs["user"] = jobs["user"].where(~jobs.index.isin(range(100, 110)), "user1")
    setup = prepare_replay(replace(history, jobs=jobs), WhatIfRequest(scenarios=(FIFO,), nodes={"gpu": 4}))
    again, resampler = drawn(setup)
    assert resampler.over is ResampledUnit.SEEDS
    was = dict(zip(setup.workload.run_time_s.tolist(), setup.workload.submitted_s.tolist(), strict=True))
    now = dict(zip(again.workload.run_time_s.tolist(), again.workload.submitted_s.tolist(), strict=True))
    assert {run: at // HOUR_S for run, at in was.items()} == {run: at // HOUR_S for run, at in now.items()}
    assert len({now[200 + number] for number in range(10)}) == 1
    assert sum(was[run] != now[run] for run in was) > 0.9 * len(was)


class Witness:
    """A predictor that writes down what it is told and says each time something else."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.asked: list[int] = []

    def ended(self, jobs: Any, ended_s: Any) -> None:
        assert len(jobs) == len(ended_s)
        self.told += jobs.tolist()

    def submitted(self, jobs: Any, now_s: int) -> Any:
        self.asked += jobs.tolist()
        return in_columns(np.repeat(1.0 + np.arange(len(self.asked))[-len(jobs) :, None], 3, axis=1))

    def waiting(self, jobs: Any, now_s: int, *, running: Any, since_s: Any) -> Any:
        assert len(running) == len(since_s)
        self.asked += (*jobs.tolist(), *running.tolist())
        return in_columns(np.full((len(jobs), 3), 99.0))


def test_a_copy_of_a_job_teaches_nothing() -> None:
    inner = Witness()
    #                       0  1  2: copy of 0  3  4: copy of 3, in one second with it
    first = np.array([0, 1, 0, 3, 3])
    predictor = DeduplicatingPredictor(inner, first)
    at = [predictor.submitted(np.array(jobs), now)[:, 1].tolist() for now, jobs in enumerate([[0, 1], [2], [3, 4]])]
    assert at == [[1.0, 2.0], [1.0], [3.0, 3.0]]
    assert inner.asked == [0, 1, 2], "by their place among the first ones"
    predictor.ended(np.array([2, 1, 4, 3]), np.array([5, 6, 7, 8]))
    assert inner.told == [1, 2]
    again = predictor.waiting(np.array([2, 3]), 9, running=np.array([0, 2, 1]), since_s=np.array([1, 2, 3]))
    assert again[:, 1].tolist() == [1.0, 99.0]
    assert inner.asked[3:] == [2, 0, 1]


def test_predictions_in_a_draw_are_those_of_a_timeline_without_copies() -> None:
    drawn_setup, _ = drawn(staged(35), WEEKS)
    work, first = drawn_setup.workload, drawn_setup.first
    assert first is not None
    np.testing.assert_array_equal(work.run_time_s, work.run_time_s[first])
    new = first == np.arange(len(first))
    assert (~new).sum() > 0
    request = WhatIfRequest(scenarios=(FIFO,))
    predictor = resampled_predictor(drawn_setup, None, request)
    alone = predictor_for(
        replace(
            drawn_setup, machine=replace(drawn_setup.machine, jobs=drawn_setup.machine.jobs[new].reset_index(drop=True))
        ),
        None,
        request,
    )
    position = np.cumsum(new) - 1
    for row, at in enumerate(work.submitted_s.tolist()):
        said = predictor.submitted(np.array([row]), at)
        if new[row]:
            np.testing.assert_array_equal(said, alone.submitted(position[[row]], at))
            alone.ended(position[[row]], np.array([at]))
        predictor.ended(np.array([row]), np.array([at]))


def test_a_week_without_jobs_is_never_all_that_is_drawn() -> None:
    """Jobs on one day of five weeks: most draws of five hold none of it, but a replay needs one."""
    history = a_site(1, jobs=50)
    late = jobs_frame(a_job(job_id="9999", submitted_at=START + timedelta(days=34.9), run_time_s=7.0))
    jobs = pd.concat([history.jobs, late], ignore_index=True)
    setup = prepare_replay(replace(history, jobs=jobs), WhatIfRequest(scenarios=(FIFO,), nodes={"gpu": 4}))
    for repeat in range(1, 12):
        again, _ = drawn(setup, WEEKS, repeat)
        assert again.counted.any()
