"""Sleeping nodes on a trace of jobs: what each policy comes to, in small."""

from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from helios.predict.demand.types import Calendar

from helios.actions import NodeAction, PowerDown
from helios.app.energy.whatif import (
    EnergyJobsRequest,
    demand_known_at,
    energy_on_jobs,
    policy_result,
    replay_nodes,
)
from helios.app.history import LoadedHistory
from helios.app.whatif import WhatIfRequest
from helios.config import Energy, Power
from helios.errors import NotEnoughHistory, UsageError
from helios.metrics.node_usage import NodeSeconds, energy_kwh
from helios.model import JOBS, STEP_S, Demand
from helios.simulate import Placement, Sleep
from helios.simulate.node_series import SeriesRun
from tests.unit.simulate.builders import a_shape, a_sim_cluster

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
        **{
            "calendar": Calendar(zone=ZoneInfo("UTC")),
            "policies": ("idle_timer_10min", "idle_timer_30min", "max_3h_plus_5", "node_fill_order"),
        }
        | options,
    )


@pytest.fixture(scope="module")
def answer():
    return energy_on_jobs(a_history(), a_request(), energy=Energy(), power=Power())


def test_where_nothing_sleeps_nothing_is_saved_and_nobody_waits(answer):
    always = answer.of("always_on")
    assert (always.mean_sleeping_nodes, always.wakeups_per_day, always.jobs_delayed, always.saved_kwh) == (0, 0, 0, 0)
    assert always.node_utilization_before == always.node_utilization_after


def test_idle_timers_save_energy_and_let_jobs_wait_for_a_boot(answer):
    ten, thirty = answer.of("idle_timer_10min"), answer.of("idle_timer_30min")
    assert ten.mean_sleeping_nodes > thirty.mean_sleeping_nodes > 5
    assert ten.wakeups_per_day > thirty.wakeups_per_day
    assert thirty.saved_kwh > 0
    assert thirty.jobs_delayed > 0
    assert 0 < thirty.mean_delay_s <= thirty.longest_delay_s <= Energy().boot_s


def test_no_node_sleeps_and_is_used_at_once(answer):
    for policy in answer.policies:
        floor = answer.of("always_on").node_utilization_before * answer.total_nodes
        assert policy.mean_sleeping_nodes <= answer.total_nodes - 0.7 * floor
        assert policy.node_utilization_after <= 1


def test_the_reserve_of_five_nodes_delays_fewer_jobs_than_a_timer(answer):
    assert answer.of("max_3h_plus_5").jobs_delayed < answer.of("idle_timer_30min").jobs_delayed


@pytest.fixture(scope="module")
def with_spare_nodes():
    policies = ("timer_and_spare", "timer_and_floor", "spare_nodes", "oracle")
    ask = a_request(window=(START + 26 * DAY, START + 28 * DAY), policies=policies, delayed_submissions=0.05)
    return energy_on_jobs(a_history(days=28), ask, energy=Energy(), power=Power())


def test_the_rule_is_chosen_on_the_weeks_before_the_window(with_spare_nodes):
    (chosen,) = with_spare_nodes.spare
    assert "of submissions would have waited for a boot in the last 4 weeks" in chosen.reason
    row = with_spare_nodes.front[chosen.spare].result
    assert row.saved_kwh == with_spare_nodes.of("spare_nodes").saved_kwh


def test_more_spare_nodes_delay_no_more_and_save_no_more(with_spare_nodes):
    rows = [row.result for row in with_spare_nodes.front]
    assert [row.spare for row in with_spare_nodes.front] == list(range(11))
    assert sorted((row.saved_kwh for row in rows), reverse=True) == [row.saved_kwh for row in rows]
    assert rows[0].submissions_delayed > rows[-2].submissions_delayed
    assert (rows[-1].submissions_delayed, rows[-1].mean_sleeping_nodes) == (0, 0)


def test_the_oracle_delays_nobody_and_saves_more_than_the_rule(with_spare_nodes):
    oracle, rule = with_spare_nodes.of("oracle"), with_spare_nodes.of("spare_nodes")
    assert (oracle.jobs_delayed, oracle.share_of_oracle) == (0, 1)
    assert 0.5 < rule.share_of_oracle < 1


def test_a_timer_that_leaves_spare_nodes_delays_more_than_waking_ahead(with_spare_nodes):
    rule, spare, floor = map(with_spare_nodes.of, ("spare_nodes", "timer_and_spare", "timer_and_floor"))
    assert rule.submissions_delayed < spare.submissions_delayed <= floor.submissions_delayed


def test_too_few_weeks_before_the_window_take_the_safe_rule(answer):
    ask = a_request(policies=("spare_nodes",))
    (chosen,) = energy_on_jobs(a_history(), ask, energy=Energy(), power=Power()).spare
    assert (chosen.spare, chosen.memory_s) == (5, 3_600)
    assert "too few to choose" in chosen.reason


def test_a_pool_of_one_node_and_one_of_few_jobs_get_a_rule():
    jobs = a_history(days=26).jobs
    alone = jobs.assign(partition=np.where(jobs["gpus"] <= 4, "one", "gpu"), gpus=jobs["gpus"].clip(upper=8))
    few = alone.head(1).assign(submitted_at=START, job_id="first", partition="few")
    history = LoadedHistory(cluster="toy", jobs=JOBS.conform(pd.concat([few, alone])), timezone="UTC", notes=())
    ask = a_request(window=(START + 24 * DAY, START + 26 * DAY), policies=("spare_nodes", "oracle"))
    ask = replace(ask, replay=replace(ask.replay, nodes={"gpu": 10, "one": 1, "few": 3}))
    answer = energy_on_jobs(history, ask, energy=Energy(), power=Power())
    spare = {choice.pool: choice.spare for choice in answer.spare}
    assert set(spare) == {"gpu", "one", "few"}
    # Nobody has used the pool of few jobs for weeks, so that a spare node there would spare no delay.
    assert spare["few"] == 0
    assert answer.of("spare_nodes").mean_sleeping_nodes >= 3


def test_energy_is_compared_for_the_same_work():
    hour, more = (NodeSeconds(busy=3_600.0, idle=3_600.0, gpus_busy=gpus) for gpus in (36_000.0, 43_200.0))
    always, other = (
        SeriesRun(
            hourly=(seconds,),
            wakes=0,
            sleeps=0,
            woken=0,
            shortages=0,
            short_s=0.0,
            mean_asleep=0.0,
            utilization_before=0.5,
        )
        for seconds in (hour, more)
    )
    saved = policy_result("other", other, always, Energy(), window_s=(0, 3_600)).saved_kwh
    assert saved == pytest.approx(1.2 * energy_kwh(hour, Energy()) - energy_kwh(more, Energy()))
    assert saved > 0


def test_the_node_fill_order_keeps_no_more_nodes_busy_than_the_timer_alone(answer):
    assert answer.of("node_fill_order").mean_sleeping_nodes >= answer.of("idle_timer_30min").mean_sleeping_nodes - 0.2


def test_the_assumptions_are_said_aloud(answer):
    said = " ".join(answer.notes)
    assert "random" in said
    assert "most_in_transition" in said


def test_the_same_request_gives_the_same_answer():
    ask = a_request(policies=("idle_timer_30min",), seed=4)
    one, two = (energy_on_jobs(a_history(), ask, energy=Energy(), power=Power()).to_json() for _ in range(2))
    assert one == two


def test_what_comes_after_the_window_changes_nothing():
    until = START + 4 * DAY
    ask = a_request(window=(START + 3 * DAY, until), policies=("max_3h_plus_5",))
    jobs = a_history().jobs
    later = jobs.assign(gpus=jobs["gpus"].where(jobs["submitted_at"] < until, 16))
    histories = (LoadedHistory(cluster="toy", jobs=them, timezone="UTC", notes=()) for them in (jobs, later))
    one, two = (energy_on_jobs(history, ask, energy=Energy(), power=Power()).to_json() for history in histories)
    assert one == two


def test_a_window_with_nothing_before_it_is_refused():
    with pytest.raises(NotEnoughHistory):
        energy_on_jobs(a_history(), a_request(window=(START, START + DAY)), energy=Energy(), power=Power())


def test_an_unknown_policy_is_named_with_those_there_are():
    with pytest.raises(UsageError, match="idle_timer_10min"):
        a_request(policies=("sleep_well",))


def a_demand(busy):
    busy = np.array([busy], dtype=np.float64)
    n = busy.shape[1]
    return Demand(
        pools=("a",),
        ended_s=n * STEP_S,
        busy=busy,
        total=np.full((1, n), 4.0),
        ahead_s=(3_600,),
        levels=(0.9,),
        point=np.zeros((1, n, 1)),
        mean=np.zeros((1, n, 1)),
        most=np.zeros((1, n, 1, 1)),
        source="made up",
    )


def test_at_a_step_services_see_what_was_known_at_its_end():
    seen = demand_known_at(a_demand([1, 2, 3, 4]), 2 * STEP_S)
    assert seen.busy.tolist() == [[1, 2]]
    assert (seen.ended_s, seen.most.shape) == (2 * STEP_S, (1, 2, 1, 1))


@dataclass
class Says:
    """Says the same actions each time."""

    actions: list[NodeAction]
    every: timedelta = timedelta(minutes=10)

    def decide(self, _snapshot):
        return self.actions


def down(numbers):
    return [PowerDown(node=f"a{number}", reason="why") for number in numbers]


def replayed(actions, nodes=10, **power):
    """Replay a step in which a service asks for this, and return the state of each node after it."""
    shape = a_shape((nodes, 8))
    cluster = a_sim_cluster([(0, 1, 1), (90_000, 1, 1)], shape, sleep=Sleep(boot_s=300, shutdown_s=120))
    cluster.advance(100)
    replay_nodes(
        cluster, [Says(actions)], demand=None, begin_s=600, end_s=1_200, power=Power(**power), progress=lambda _: None
    )
    return Counter(cluster.snapshot().node_values("power").tolist())


def test_so_many_nodes_are_on_their_way_at_once_in_a_replay():
    assert replayed(down(range(1, 8)), most_in_transition=0.3)["asleep"] == 3


def test_so_many_nodes_of_a_pool_may_sleep_in_a_replay():
    assert replayed(down(range(1, 91)), nodes=90, most_in_transition=1, most_asleep=0.7)["asleep"] == 63


def test_the_last_node_of_a_pool_stays_awake_in_a_replay():
    assert replayed(down(range(1, 11)), most_in_transition=1, most_asleep=1)["awake"] == 1
