"""The rule for nodes awake on past use: tried minute by minute as in plain code, and chosen as by hand."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.config import Energy
from helios.control.power_budget import MOST_SPARE
from helios.metrics.spare_nodes import (
    SAFE_RULE,
    SPARES,
    AwakeRule,
    RuleOutcome,
    choose_rules,
    nodes_to_change,
    share_delays,
    try_rules,
    use_by_minute,
)
from helios.model import PoolUse
from tests.examples import examples

ENERGY = Energy()
DAY, WEEK = 1_440, 7 * 1_440
"""Minutes."""


def a_use(last, *, nodes=10, submissions=None, **options):
    """Build the use of a pool that changes at the begin of minutes, each rise by a job of its own."""
    last = np.array(last, dtype=np.int64)
    raised = np.where(np.diff(last, prepend=last[:1]) > 0, last, 0)
    most = np.maximum(last, np.concatenate([last[:1], last[:-1]]))
    n_submissions = int((raised > 0).sum()) if submissions is None else submissions
    return PoolUse(nodes=nodes, most=most, last=last, raised=raised, submissions=n_submissions, **options)


def a_random_use(seed, *, weeks=4, nodes=10):
    """Build a use that goes up and down by a node or two, and by more now and then."""
    rng = np.random.default_rng(seed)
    steps = rng.choice(
        [0, 0, 0, 1, -1, 2, -2, 6], size=weeks * WEEK // 10, p=[0.55, 0.1, 0.1, 0.1, 0.08, 0.03, 0.03, 0.01]
    )
    level, levels = nodes // 2, []
    for step in steps.tolist():
        level = min(max(level + step, 0), nodes)
        levels += [level] * 10
    return a_use(levels, nodes=nodes)


def tried_by_hand(use, rule, boot):
    """Return minutes asleep, wakes, sleeps and late minutes, counted in the plainest way."""
    awake, booting, asleep, wakes, sleeps, late = use.nodes, [], 0, 0, 0, 0
    for minute, (most, last, raised) in enumerate(zip(use.most, use.last, use.raised, strict=True)):
        awake += sum(count for due, count in booting if due == minute)
        booting = [(due, count) for due, count in booting if due > minute]
        waking = sum(count for _, count in booting)
        asleep += use.nodes - awake - waking
        late += raised > awake
        forced = max(most - awake - waking, 0)
        peak = max(use.most[max(minute - rule.memory_s // 60 + 1, 0) : minute + 1])
        least, most_awake = (min(use.nodes, used + rule.spare) for used in (last, peak))
        powered = awake + waking + forced
        change = forced + max(least - powered, 0) + min(most_awake - powered, 0)
        if change > 0:
            booting.append((minute + boot, change))
            wakes += change
        else:
            slept = min(-change, max(awake - last, 0))
            awake, sleeps = awake - slept, sleeps + slept
    return asleep, wakes, sleeps, late


@given(seed=st.integers(0, 10_000), nodes=st.integers(1, 12), boot_s=st.sampled_from([0, 60, 90, 300]))
@settings(max_examples=examples(7), deadline=None)
def test_rules_are_tried_as_by_hand(seed, nodes, boot_s):
    use = a_random_use(seed, weeks=1, nodes=nodes)
    energy = ENERGY.model_copy(update={"boot_s": boot_s})
    for row in try_rules(use, energy):
        asleep, wakes, sleeps, late = tried_by_hand(use, row.rule, max(-(-boot_s // 60), 1))
        assert (row.asleep, row.delayed) == (pytest.approx(asleep / WEEK), late)
        assert row.cycles_per_node_day == pytest.approx(wakes / 7 / nodes)
        saved_j = asleep * 60 * 785 - wakes * boot_s * 200 - sleeps * 120 * 985
        assert row.saved_kwh_day == pytest.approx(saved_j * 1.3 / 3.6e6 / 7)


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_the_rule_never_wakes_what_it_would_put_to_sleep(busy, more, spare, powered):
    peak, total = busy + more, 20
    changed = powered + nodes_to_change(busy, peak, spare, powered, total)
    assert nodes_to_change(busy, peak, spare, changed, total) == 0


def test_use_is_counted_by_minute_from_a_log():
    at_s, in_use = np.array([0, 70, 80, 130, 250]), np.array([2, 5, 1, 4, 3])
    use = use_by_minute(at_s, in_use, nodes=8, begin_s=60, end_s=300, submitted_s=np.array([10, 61, 62, 130]))
    assert use.most.tolist() == [5, 4, 4, 4]
    assert use.last.tolist() == [1, 4, 4, 3]
    assert use.raised.tolist() == [5, 4, 0, 0]
    assert use.submissions == 2


def choose(uses, **options):
    return choose_rules(uses, ENERGY, **{"delayed_submissions": 0.01, "cycles_per_node_day": 1.0} | options)


def test_the_chosen_rule_saves_most_at_the_accepted_delays():
    use = a_random_use(1)
    choice = choose({"gpu": use}, delayed_submissions=0.05)["gpu"]
    fits = [row for row in try_rules(use, ENERGY) if row.delayed <= 0.05 * use.submissions]
    assert choice.outcome.saved_kwh_day == max(row.saved_kwh_day for row in fits if row.cycles_per_node_day <= 1)


def test_a_rule_keeps_to_the_cycles_accepted():
    uses = {"gpu": a_random_use(1)}
    free = choose(uses, delayed_submissions=1.0, cycles_per_node_day=100.0)["gpu"].outcome
    most = 0.8 * free.cycles_per_node_day
    assert choose(uses, delayed_submissions=1.0, cycles_per_node_day=most)["gpu"].outcome.cycles_per_node_day <= most


def an_outcome(spare, delayed, kwh):
    rule = AwakeRule(memory_s=1_800, spare=spare)
    return RuleOutcome(rule=rule, asleep=0.0, delayed=delayed, cycles_per_node_day=0.0, saved_kwh_day=kwh)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 30), st.integers(1, 100)), min_size=1, max_size=4), min_size=1, max_size=3
    ),
    st.integers(0, 60),
)
@settings(max_examples=examples(50), deadline=None)
def test_pools_share_the_delays_nearly_as_well_as_can_be(pools, accepted):
    tried = {
        str(number): [*(an_outcome(i, *row) for i, row in enumerate(rows)), an_outcome(9, 0, 0.0)]
        for number, rows in enumerate(pools)
    }
    chosen = share_delays(tried, accepted)
    best = max(
        sum(row.saved_kwh_day for row in rows)
        for rows in product(*tried.values())
        if sum(row.delayed for row in rows) <= accepted
    )
    assert sum(row.delayed for row in chosen.values()) <= accepted
    # One price for all misses the best by less than what one pool saves, and by nothing in a single pool.
    largest = max(row.saved_kwh_day for rows in tried.values() for row in rows)
    saved = sum(row.saved_kwh_day for row in chosen.values())
    assert saved == best if len(tried) == 1 else saved > best - largest


def test_without_three_weeks_of_history_the_safe_rule_is_said():
    choice = choose({"gpu": a_random_use(1, weeks=2)})["gpu"]
    assert choice.rule == SAFE_RULE
    assert choice.reason == "5 spare nodes: fewer than 3 weeks are known, too few to choose"


def test_the_only_node_of_a_new_pool_stays_awake():
    choice = choose({"gpu": a_use([0] * 600, nodes=1)})["gpu"]
    assert choice.rule.spare >= 1
    assert choice.reason == "the only node stays awake"


def test_a_pool_without_nodes_gets_a_rule():
    assert choose({"gpu": a_use([0] * 4 * WEEK, nodes=0)})["gpu"].outcome.asleep == 0


def test_a_record_with_holes_takes_an_hour_of_memory():
    use = a_random_use(1)
    with_holes = PoolUse(
        nodes=use.nodes,
        most=use.most,
        last=use.last,
        raised=use.raised,
        submissions=use.submissions,
        has_holes=True,
    )
    assert all(row.rule.memory_s >= 3_600 for row in choose({"gpu": with_holes})["gpu"].outcomes)


def test_where_no_rule_keeps_to_the_delays_all_nodes_stay_awake():
    levels = np.tile([0] * 300 + [10] * 300, 4 * WEEK // 600)
    choice = choose({"gpu": a_use(levels)})["gpu"]
    assert choice.outcome.asleep == 0
    assert choice.reason.startswith("all nodes stay awake")


def test_the_reason_gives_the_price_of_the_last_spare_node():
    use = a_random_use(1, nodes=30)
    choice = choose({"gpu": use}, delayed_submissions=0.02)["gpu"]
    rows = {row.rule.spare: row for row in choice.outcomes if row.rule.memory_s == choice.rule.memory_s}
    less = rows[choice.rule.spare - 1]
    kwh, spared = less.saved_kwh_day - choice.outcome.saved_kwh_day, (less.delayed - choice.outcome.delayed) / 4
    assert choice.reason == (
        f"{choice.rule.spare} spare nodes: {100 * choice.outcome.delayed / use.submissions:.2f} % of submissions would "
        f"have waited for a boot in the last 4 weeks; the last of them spares {spared:.2g} a week and costs {kwh:.0f} "
        "kWh a day"
    )


def test_the_rails_let_the_most_spare_nodes_wake():
    assert max(SPARES) == MOST_SPARE
