"""Sleeping nodes on a trace of jobs: what each policy comes to, in small."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest

from helios.app.energy.policies import LEAST_WEEKS, policy_result, weekly_savings
from helios.app.energy.whatif import EnergyJobsRequest, energy_on_jobs
from helios.app.history import LoadedHistory
from helios.app.whatif import WhatIfRequest
from helios.config import Energy
from helios.errors import NotEnoughHistory, UsageError
from helios.metrics.node_usage import NodeSeconds, energy_kwh
from helios.model import JOBS
from helios.simulate import Placement
from helios.simulate.node_series import SeriesRun

START = datetime(2026, 3, 2, tzinfo=UTC)
DAY = timedelta(days=1)


def a_history(days=6, seed=1):
    """Build jobs of alice and bob, who work by day: an hour each on one or two nodes' GPUs, none at night."""
    rng = np.random.default_rng(seed)
    rows = []
    for day in range(days):
        for _ in range(40):
            at = START + day * DAY + timedelta(hours=float(rng.uniform(8, 18)))
            rows.append((at, float(rng.uniform(600, 7_200)), int(rng.choice([1, 4, 8, 16]))))
    submitted, run_time, gpus = zip(*sorted(rows), strict=True)
    jobs = pd.DataFrame(
        {
            "job_id": [str(number) for number in range(len(rows))],
            "user": ["alice", "bob"] * (len(rows) // 2),
            "name": "train",
            "partition": "gpu",
            "submitted_at": pd.to_datetime(list(submitted)),
            "run_time_s": run_time,
            "time_limit_s": 14_400.0,
            "gpus": gpus,
        }
    )
    return LoadedHistory(cluster="toy", jobs=JOBS.conform(jobs), timezone="UTC", notes=())


def a_request(**options):
    since, until = options.pop("window", (START + 4 * DAY, START + 6 * DAY))
    machine = {"placement": Placement.RANDOM, "nodes": {"gpu": 10}, "seed": options.pop("seed", 0)}
    return EnergyJobsRequest(
        replay=WhatIfRequest(scenarios=(), since=since, until=until, **machine),
        **{"policies": ("idle_timer_30min", "max_3h_plus_5", "ces_published")} | options,
    )


@pytest.fixture(scope="module")
def answer():
    return energy_on_jobs(a_history(), a_request(), energy=Energy())


def test_where_nothing_sleeps_nothing_is_saved_and_nobody_waits(answer):
    always = answer.of("always_on")
    assert (always.mean_sleeping_nodes, always.cycles_per_node_day, always.jobs_delayed, always.saved_kwh) == (0,) * 4
    assert always.node_utilization_before == always.node_utilization_after


def test_an_idle_timer_saves_energy_and_lets_jobs_wait(answer):
    timer = answer.of("idle_timer_30min")
    assert timer.mean_sleeping_nodes > 5
    assert timer.saved_kwh > 0
    assert timer.jobs_delayed > 0
    assert 0 < timer.mean_delay_s <= timer.longest_delay_s <= Energy().boot_s


def test_no_node_sleeps_and_is_used_at_once(answer):
    for policy in answer.policies:
        floor = answer.of("always_on").node_utilization_before * answer.total_nodes
        assert policy.mean_sleeping_nodes <= answer.total_nodes - 0.7 * floor
        assert policy.node_utilization_after <= 1


def test_the_reserve_of_five_nodes_delays_fewer_jobs_than_a_timer(answer):
    assert answer.of("max_3h_plus_5").jobs_delayed < answer.of("idle_timer_30min").jobs_delayed


@pytest.fixture(scope="module")
def with_spare_nodes():
    policies = ("timer_and_spare", "timer_and_floor", "ces_published", "ces", "ces+weights", "oracle")
    ask = a_request(window=(START + 26 * DAY, START + 28 * DAY), policies=policies, delayed_submissions=0.05)
    return energy_on_jobs(a_history(days=28), ask, energy=Energy())


def test_the_rule_is_chosen_on_the_weeks_before_the_window(with_spare_nodes):
    (chosen,) = with_spare_nodes.spare
    assert "of submissions would have waited for a boot in the last 4 weeks" in chosen.reason
    row = with_spare_nodes.front[chosen.spare].result
    assert row.saved_kwh == with_spare_nodes.of("ces").saved_kwh


def test_more_spare_nodes_delay_no_more_and_save_no_more(with_spare_nodes):
    rows = [row.result for row in with_spare_nodes.front]
    assert [row.spare for row in with_spare_nodes.front] == list(range(11))
    assert sorted((row.saved_kwh for row in rows), reverse=True) == [row.saved_kwh for row in rows]
    assert rows[0].submissions_delayed > rows[-2].submissions_delayed
    assert (rows[-1].submissions_delayed, rows[-1].mean_sleeping_nodes) == (0, 0)


def test_the_oracle_delays_nobody_and_saves_more_than_the_rule(with_spare_nodes):
    oracle, rule = with_spare_nodes.of("oracle"), with_spare_nodes.of("ces")
    assert (oracle.jobs_delayed, oracle.share_of_oracle) == (0, 1)
    assert 0.5 < rule.share_of_oracle < 1


def test_waking_ahead_delays_less_than_a_timer_that_leaves_nodes_awake(with_spare_nodes):
    rule, floor = map(with_spare_nodes.of, ("ces", "timer_and_floor"))
    assert rule.submissions_delayed < floor.submissions_delayed


@pytest.mark.parametrize(
    ("release", "row", "said"),
    [
        (None, "timer_and_floor", "the site's release is not known"),
        ((23, 11), "timer_and_spare", "Slurm here is 23.11"),
        ((24, 5), "timer_and_floor", "Slurm here is 24.05"),
    ],
)
def test_the_timer_leaves_nodes_awake_as_the_sites_release_counts(release, row, said):
    ask = a_request(policies=("timer_and_spare", "timer_and_floor"), release=release)
    answer = energy_on_jobs(a_history(), ask, energy=Energy())
    assert [result.policy for result in answer.policies] == ["always_on", row]
    (note,) = [note for note in answer.notes if note.startswith("timer_and")]
    assert note.startswith(f"{row} is the idle timer of 30 min") and said in note


def test_nodes_in_blocks_leave_no_fewer_asleep(with_spare_nodes):
    blocks, rule = map(with_spare_nodes.of, ("ces+weights", "ces"))
    assert blocks.mean_sleeping_nodes >= rule.mean_sleeping_nodes - 0.2


def test_the_papers_rule_without_a_forecast_puts_nothing_to_sleep(answer, with_spare_nodes):
    assert answer.of("ces_published").mean_sleeping_nodes == 0
    assert with_spare_nodes.of("ces_published").mean_sleeping_nodes > 0


def test_too_few_weeks_before_the_window_take_the_safe_rule(answer):
    (chosen,) = energy_on_jobs(a_history(), a_request(policies=("ces",)), energy=Energy()).spare
    assert (chosen.spare, chosen.memory_s) == (5, 3_600)
    assert "too few to choose" in chosen.reason


def test_pools_of_one_node_and_of_few_jobs_get_a_rule():
    jobs = a_history(days=26).jobs
    alone = jobs.assign(partition=np.where(jobs["gpus"] <= 4, "one", "gpu"), gpus=jobs["gpus"].clip(upper=8))
    few = alone.head(1).assign(submitted_at=START, job_id="first", partition="few")
    history = LoadedHistory(cluster="toy", jobs=JOBS.conform(pd.concat([few, alone])), timezone="UTC", notes=())
    ask = a_request(window=(START + 24 * DAY, START + 26 * DAY), policies=("ces", "oracle"))
    ask = replace(ask, replay=replace(ask.replay, nodes={"gpu": 10, "one": 1, "few": 3}))
    answer = energy_on_jobs(history, ask, energy=Energy())
    spare = {choice.pool: choice.spare for choice in answer.spare}
    assert set(spare) == {"gpu", "one", "few"}
    # Nobody has used the pool of few jobs for weeks, so that a spare node there would spare no delay.
    assert (spare["few"], spare["one"]) == (0, 1)
    assert answer.of("ces").mean_sleeping_nodes >= 3


def test_jobs_without_gpus_are_replayed_by_their_cpus():
    history = a_history()
    jobs = history.jobs.assign(gpus=0.0, cpus=history.jobs["gpus"])
    answer = energy_on_jobs(
        replace(history, jobs=JOBS.conform(jobs)), a_request(policies=("ces", "oracle")), energy=Energy()
    )
    assert answer.of("ces").saved_kwh > 0
    assert answer.of("ces").gpu_utilization is None


def test_a_job_of_unknown_gpus_is_left_out_and_said():
    history = a_history()
    unknown = history.jobs["gpus"].where(history.jobs.index != 200)
    answer = energy_on_jobs(
        replace(history, jobs=JOBS.conform(history.jobs.assign(gpus=unknown))),
        a_request(policies=("ces",)),
        energy=Energy(),
    )
    assert any("200" in note for note in answer.notes)
    assert answer.of("ces").saved_kwh > 0


def test_a_window_shorter_than_a_day_is_scaled_up_and_said():
    window = (START + timedelta(days=4, hours=8), START + timedelta(days=4, hours=12))
    answer = energy_on_jobs(a_history(), a_request(window=window, policies=("ces",)), energy=Energy())
    assert answer.days == pytest.approx(4 / 24, rel=0.1)
    assert any("figures for a day are scaled up from it" in note for note in answer.notes)


def test_fewer_than_three_weeks_have_no_interval_and_it_is_said(with_spare_nodes):
    assert not with_spare_nodes.weekly
    assert any("No interval is given: it takes 3 whole weeks" in note for note in with_spare_nodes.notes)


def a_run(hourly):
    return SeriesRun(hourly=tuple(hourly), woken=0, short_s=0.0, mean_asleep=0.0, utilization_before=0.5)


def weeks_of(*kwh_a_day):
    """Return a run that saves so much a day in each week, against two idle nodes."""
    watts = Energy().node_idle_w - Energy().node_sleep_w
    asleep = [kwh * 3.6e6 / Energy().cooling_factor / watts / 24 for kwh in kwh_a_day for _ in range(7 * 24)]
    return a_run(NodeSeconds(idle=7_200.0 - seconds, asleep=seconds) for seconds in asleep)


def test_savings_are_compared_week_by_week():
    runs = {"ces": weeks_of(20, 30, 25), "always_on": weeks_of(0, 0, 0), "idle_timer_30min": weeks_of(15, 25, 20)}
    always, timer = weekly_savings(runs, Energy(), policy="ces")
    assert (always.against, always.weeks) == ("always_on", LEAST_WEEKS)
    assert always.kwh_day == pytest.approx(25)
    assert always.low_kwh_day == pytest.approx(25 - 4.303 * 5 / 3**0.5, rel=1e-3)
    # The weeks differ much, what one saves more than the other does not.
    assert (timer.low_kwh_day, timer.high_kwh_day) == (pytest.approx(5), pytest.approx(5))


def test_two_weeks_have_no_interval():
    runs = {"ces": weeks_of(20, 30), "always_on": weeks_of(0, 0)}
    assert weekly_savings(runs, Energy(), policy="ces") == ()


def test_energy_is_compared_for_the_same_work():
    hour, more = (NodeSeconds(busy=3_600.0, idle=3_600.0, gpus_busy=gpus) for gpus in (36_000.0, 43_200.0))
    always, other = (a_run((seconds,)) for seconds in (hour, more))
    saved = policy_result("other", other, always, Energy(), window_s=(0, 3_600), total_nodes=2).saved_kwh
    assert saved == pytest.approx(1.2 * energy_kwh(hour, Energy()) - energy_kwh(more, Energy()))
    assert saved > 0


def test_the_assumptions_are_said_aloud(answer):
    said = " ".join(answer.notes)
    assert "random" in said
    assert "The limits of [power] are not simulated" in said


def test_the_same_request_gives_the_same_answer():
    ask = a_request(policies=("idle_timer_30min",), seed=4)
    one, two = (energy_on_jobs(a_history(), ask, energy=Energy()).to_json() for _ in range(2))
    assert one == two


def test_what_comes_after_the_window_changes_nothing():
    until = START + 4 * DAY
    ask = a_request(window=(START + 3 * DAY, until), policies=("max_3h_plus_5",))
    jobs = a_history().jobs
    later = jobs.assign(gpus=jobs["gpus"].where(jobs["submitted_at"] < until, 16))
    histories = (LoadedHistory(cluster="toy", jobs=them, timezone="UTC", notes=()) for them in (jobs, later))
    one, two = (energy_on_jobs(history, ask, energy=Energy()).to_json() for history in histories)
    assert one == two


def test_a_window_with_nothing_before_it_is_refused():
    with pytest.raises(NotEnoughHistory):
        energy_on_jobs(a_history(), a_request(window=(START, START + DAY)), energy=Energy())


def test_an_unknown_policy_is_named_with_those_there_are():
    with pytest.raises(UsageError, match="idle_timer_30min"):
        a_request(policies=("sleep_well",))
