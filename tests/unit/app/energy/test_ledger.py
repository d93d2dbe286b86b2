"""The energy ledger: node times and idle timers against second-by-second oracles, sums, money, and what is unknown."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from helios.app.energy.idle_timer import idle_gaps, split_by_timer
from helios.app.energy.ledger import energy_ledger, ledger_interval
from helios.app.energy.node_states import (
    NodePowerState,
    NodeTimes,
    PowerSpans,
    Spans,
    count_wakes,
    node_times,
    power_spans,
    sleep_reasons,
    sum_by_bin,
    unread_spans,
)
from helios.config import Energy
from helios.errors import NotEnoughHistory
from helios.metrics.node_usage import NodeSeconds, energy_kwh
from helios.model import DECISIONS, NODE_EVENTS, NODE_TALLIES, NODES, REJECTS, Batch, in_submission_order
from helios.report.energy import ALWAYS_ON, EnergyLedger, energy_sentences
from helios.warehouse import Warehouse
from tests.builders import a_job, jobs_frame
from tests.examples import examples

NODES_N, END_S = 3, 60
DAY = datetime(2026, 11, 20, tzinfo=UTC)
HOUR = timedelta(hours=1)
MODEL = Energy(boot_s=300, shutdown_s=120)


def spans(*rows: tuple[int, int, int], weight: list[float] | None = None) -> Spans:
    node, start, end = (np.array([row[column] for row in rows], dtype=np.int64) for column in range(3))
    return Spans(node=node, start_s=start, end_s=end, weight=None if weight is None else np.array(weight))


def some_spans(limit: int = 6) -> st.SearchStrategy[Spans]:
    row = st.tuples(st.integers(0, NODES_N - 1), st.integers(-10, END_S + 10), st.integers(0, 30))
    return st.lists(row, max_size=limit).map(lambda rows: spans(*((node, at, at + long) for node, at, long in rows)))


def held(layer: Spans, node: int, second: int) -> bool:
    return bool(np.any((layer.node == node) & (layer.start_s <= second) & (second < layer.end_s)))


def times_of(**layers: Any) -> NodeTimes:
    none = spans()
    power = PowerSpans(**{name: layers.get(name, none) for name in ("asleep", "falling", "waking", "out")})
    return node_times(
        n_nodes=NODES_N,
        begin_s=0,
        end_s=END_S,
        busy=layers.get("busy", none),
        power=power,
        unread_jobs=layers.get("unread_jobs", none),
        unread_events=layers.get("unread_events", none),
        by_helios=layers.get("by_helios", none),
    )


def second_by_second(times: NodeTimes) -> NDArray[np.int64]:
    found = np.full((NODES_N, END_S), -1)
    for node, start, end, state in zip(times.node, times.start_s, times.end_s, times.state, strict=True):
        assert (found[node, start:end] == -1).all(), "two states at once"
        found[node, start:end] = state
    return found


def oracle(node: int, second: int, layers: dict[str, Spans]) -> NodePowerState:
    def here(name: str) -> bool:
        return held(layers[name], node, second)

    if here("busy"):
        return NodePowerState.BUSY
    if here("unread_events"):
        return NodePowerState.UNKNOWN if here("unread_jobs") else NodePowerState.UNSEEN
    for name, state in (
        ("asleep", NodePowerState.ASLEEP),
        ("falling", NodePowerState.FALLING_ASLEEP),
        ("waking", NodePowerState.WAKING),
        ("out", NodePowerState.OUT),
        ("unread_jobs", NodePowerState.UNKNOWN),
    ):
        if here(name):
            return state
    return NodePowerState.IDLE


LAYERS = ("busy", "asleep", "falling", "waking", "out", "unread_jobs", "unread_events")


@settings(max_examples=examples(37), deadline=None)
@given(st.fixed_dictionaries({name: some_spans() for name in LAYERS}))
def test_every_second_of_a_node_has_the_state_of_a_plain_reading(layers: dict[str, Spans]) -> None:
    found = second_by_second(times_of(**layers))
    expected = [[oracle(node, second, layers) for second in range(END_S)] for node in range(NODES_N)]
    assert found.tolist() == expected


@settings(max_examples=examples(25), deadline=None)
@given(some_spans(10), st.lists(st.integers(1, END_S - 1), max_size=5, unique=True), st.data())
def test_seconds_within_intervals_are_those_counted_one_by_one(layer: Spans, cuts: list[int], data: Any) -> None:
    edges = np.array([0, *sorted(cuts), END_S], dtype=np.int64)
    weight = data.draw(st.lists(st.integers(0, 8), min_size=len(layer.node), max_size=len(layer.node)))
    weighted = Spans(
        node=layer.node, start_s=layer.start_s, end_s=layer.end_s, weight=np.array(weight, dtype=np.float64)
    )
    group = np.array([0, 1, 0], dtype=np.int64)
    counted = np.zeros((2, len(edges) - 1))
    for node, start, end, each in zip(layer.node, layer.start_s, layer.end_s, weight, strict=True):
        for second in range(max(start, 0), min(end, END_S)):
            counted[group[node], np.searchsorted(edges, second, side="right") - 1] += each
    assert sum_by_bin(weighted, edges_s=edges, group=group, n_groups=2) == pytest.approx(counted, abs=1e-6)


@settings(max_examples=examples(37), deadline=None)
@given(
    busy=some_spans(),
    out=some_spans(2),
    timer_s=st.integers(0, 25),
    shutdown_s=st.integers(0, 6),
    boot_s=st.integers(0, 6),
)
def test_an_idle_timer_does_what_a_clock_on_each_node_would(
    busy: Spans, out: Spans, timer_s: int, shutdown_s: int, boot_s: int
) -> None:
    times = times_of(busy=busy, out=out)
    now = second_by_second(times)
    would = now.copy()
    for state, layer in split_by_timer(idle_gaps(times), timer_s=timer_s, boot_s=boot_s, shutdown_s=shutdown_s).items():
        for node, start, end in zip(layer.node, layer.start_s, layer.end_s, strict=True):
            would[node, start:end] = state
    for node in range(NODES_N):
        idle_for = 0
        for second in range(END_S):
            idle_for = idle_for + 1 if now[node, second] == NodePowerState.IDLE else 0
            if not idle_for:
                assert would[node, second] == now[node, second]
                continue
            ahead = now[node, second:]
            gap_left = int(np.argmax(ahead != NodePowerState.IDLE)) if (ahead != NodePowerState.IDLE).any() else None
            ends_busy = gap_left is not None and ahead[gap_left] == NodePowerState.BUSY
            expected = (
                NodePowerState.IDLE
                if idle_for <= timer_s
                else NodePowerState.FALLING_ASLEEP
                if idle_for <= timer_s + shutdown_s
                else NodePowerState.WAKING
                if ends_busy and gap_left is not None and gap_left <= boot_s
                else NodePowerState.ASLEEP
            )
            assert would[node, second] == expected


def test_a_node_that_stays_on_is_idle_whenever_it_holds_no_job() -> None:
    times = times_of(busy=spans((0, 10, 20)), asleep=spans((1, 0, 50)), waking=spans((1, 50, 55)))
    always = split_by_timer(idle_gaps(times), timer_s=np.inf, boot_s=5, shutdown_s=5)
    idle_s = sum_by_bin(
        always[NodePowerState.IDLE], edges_s=np.array([0, END_S]), group=np.zeros(NODES_N, dtype=np.int64), n_groups=1
    )
    assert idle_s[0, 0] == NODES_N * END_S - 10
    assert all(
        (layer.start_s == layer.end_s).all() for state, layer in always.items() if state is not NodePowerState.IDLE
    )


def test_only_a_node_that_came_back_was_woken() -> None:
    times = times_of(
        asleep=spans((0, 5, 20), (1, 5, 20), (2, 5, 60)), waking=spans((0, 20, 25)), out=spans((1, 20, 60))
    )
    assert count_wakes(times, begin_s=0) == 1
    assert count_wakes(times, begin_s=21) == 0


def test_what_was_not_read_is_the_rest_of_what_was() -> None:
    gaps = unread_spans([(10, 20), (15, 30), (50, 99)], n_nodes=2, begin_s=0, end_s=60)
    assert list(zip(gaps.node, gaps.start_s, gaps.end_s, strict=True)) == [
        (0, 0, 10),
        (0, 30, 50),
        (1, 0, 10),
        (1, 30, 50),
    ]
    assert len(unread_spans([(0, 60), (10, 20)], n_nodes=2, begin_s=0, end_s=60).node) == 0


def events(*rows: dict[str, Any]) -> pd.DataFrame:
    frame = pd.DataFrame(list(rows), columns=["node", "state", "started_at", "ended_at", "reason"])
    for name in ("started_at", "ended_at"):
        frame[name] = pd.to_datetime(frame[name], unit="s", utc=True)
    return NODE_EVENTS.conform(frame)


def rows_of(layer: Spans) -> list[tuple[int, int, int]]:
    return [(int(n), int(a), int(b)) for n, a, b in zip(layer.node, layer.start_s, layer.end_s, strict=True)]


def told(*rows: dict[str, Any]) -> PowerSpans:
    return power_spans(events(*rows), {"n1": 0, "n2": 1}, known_until_s=9_000, boot_s=300, shutdown_s=120)


def test_a_sleep_event_has_falling_asleep_before_it_and_waking_after_it() -> None:
    found = told({"node": "n1", "state": "IDLE~", "started_at": 1_000, "ended_at": 5_000})
    assert rows_of(found.asleep) == [(0, 1_000, 5_000)]
    assert rows_of(found.falling) == [(0, 880, 1_000)]
    assert rows_of(found.waking) == [(0, 5_000, 5_300)]
    assert rows_of(found.out) == []


def test_a_sleep_that_lasts_is_known_up_to_the_last_reading() -> None:
    found = told({"node": "n2", "state": "IDLE~", "started_at": 1_000, "ended_at": None})
    assert rows_of(found.asleep) == [(1, 1_000, 9_000)]
    assert rows_of(found.waking) == []


@pytest.mark.parametrize("state", ["DOWN", "DOWN*", "DRAIN", "IDLE+DRAIN", "MIXED+DRAIN", "DOWN~", "FAIL"])
def test_a_down_or_drained_node_is_not_asleep(state: str) -> None:
    found = told({"node": "n1", "state": state, "started_at": 1_000, "ended_at": 5_000})
    assert rows_of(found.out) == [(0, 1_000, 5_000)]
    assert rows_of(found.asleep) == rows_of(found.waking) == []


def test_a_node_whose_wake_failed_was_waking_until_given_up() -> None:
    found = told(
        {"node": "n1", "state": "IDLE~", "started_at": 1_000, "ended_at": 5_000},
        {"node": "n1", "state": "DOWN~", "started_at": 5_900, "ended_at": 8_000},
        {"node": "n2", "state": "IDLE~", "started_at": 1_000, "ended_at": 5_000},
    )
    assert rows_of(found.waking) == [(0, 5_000, 5_900), (1, 5_000, 5_300)]
    assert rows_of(found.out) == [(0, 5_900, 8_000)]


def test_events_of_nodes_that_are_not_the_clusters_are_left_out() -> None:
    assert rows_of(told({"node": "gone", "state": "IDLE~", "started_at": 1, "ended_at": 2}).asleep) == []


def test_a_sleep_is_by_helios_only_soon_after_its_request() -> None:
    asleep = spans((0, 1_000, 2_000), (0, 9_000, 9_500), (1, 1_000, 2_000))
    orders = spans((0, 950, 951), (1, 1_001, 1_002))
    assert rows_of(sleep_reasons(asleep, orders, within_s=600)) == [(0, 1_000, 2_000)]


def test_of_few_days_only_the_wattages_make_an_interval() -> None:
    assert ledger_interval(np.array([10.0, 20.0]), band=0.2) == pytest.approx((24.0, 36.0))


def test_days_that_differ_widen_the_interval_and_like_days_do_not() -> None:
    even, uneven = (ledger_interval(np.array(days), band=0.0) for days in ([10.0] * 7, [0.0, 20.0] * 4))
    assert even == (70.0, 70.0)
    assert uneven[0] < 60 and uneven[1] > 100


def test_a_loss_stays_within_its_own_interval() -> None:
    low, high = ledger_interval(np.array([-10.0] * 6), band=0.2)
    assert (low, high) == pytest.approx((-72.0, -48.0))


# The whole of it, over a warehouse.


def at(hours: float) -> datetime:
    return DAY + hours * HOUR


def job(start: float, end: float | None, nodes: str, **overrides: Any) -> dict[str, Any]:
    ended = None if end is None else at(end)
    return a_job(
        submitted_at=at(start - 0.01),
        started_at=at(start),
        ended_at=ended,
        run_time_s=np.nan if end is None else (end - start) * 3_600,
        state="RUNNING" if end is None else "COMPLETED",
        node_list=nodes,
        **{"gpus": 0, **overrides},
    )


def event(node: str, state: str, start: float, end: float | None) -> dict[str, Any]:
    return {"node": node, "state": state, "started_at": at(start), "ended_at": pd.NaT if end is None else at(end)}


def filled(
    warehouse: Warehouse,
    *jobs: dict[str, Any],
    sleep: tuple[dict[str, Any], ...] = (),
    nodes: int = 2,
    read: tuple[float, float] | None = (-48, 240),
    events_read: tuple[float, float] | None = (-48, 240),
    path: str = "sacct window",
) -> None:
    frame = in_submission_order(jobs_frame(*jobs))
    batch = Batch(jobs=frame, rejects=REJECTS.empty(), bytes_read=0)
    warehouse.load([batch], cluster="venus", path=path, sha256="1", format="sacct", timezone="UTC")
    if nodes:
        rows = [{"name": f"n{number}", "partition": "gpu", "gpus": 8} for number in range(1, nodes + 1)]
        warehouse.add_nodes("venus", NODES.conform(pd.DataFrame(rows)))
    if sleep:
        warehouse.add_node_events("venus", NODE_EVENTS.conform(pd.DataFrame(sleep)))
    for source, interval in (("jobs", read), ("node_events", events_read)):
        if interval:
            first, last = interval
            warehouse.add_coverage("venus", source=source, started_at=at(first), ended_at=at(last), read_at=DAY)


@pytest.fixture
def warehouse(tmp_path: Path) -> Iterator[Warehouse]:
    with Warehouse.open(f"sqlite:///{tmp_path / 'helios.db'}") as opened:
        yield opened


def ledger(
    warehouse: Warehouse, *, start: float = 0, end: float = 24, energy: Energy = MODEL, **options: Any
) -> EnergyLedger:
    return energy_ledger(
        warehouse,
        "venus",
        since=at(start),
        until=at(end),
        energy=energy,
        **{"timezone": "UTC", **options},
    )


HOURS = ("busy_h", "idle_h", "asleep_h", "moving_h", "out_h", "unknown_h")


def hours(found: EnergyLedger) -> dict[str, float]:
    return {name: pytest.approx(found.total[name], abs=1e-6) for name in HOURS}


def test_node_hours_and_energy_of_a_day_are_those_computed_by_hand(warehouse: Warehouse) -> None:
    filled(
        warehouse,
        job(0, 6, "n[1-2]", gpus=8),
        job(20, 24, "n1", gpus=4),
        sleep=(event("n1", "IDLE~", 8, 19.5), event("n2", "DRAIN", 12, 18)),
    )
    found = ledger(warehouse)
    assert found.total["busy_h"] == pytest.approx(16)
    assert found.total["asleep_h"] == pytest.approx(11.5)
    assert found.total["falling_asleep_h"] == pytest.approx(120 / 3600)
    assert found.total["waking_h"] == pytest.approx(300 / 3600)
    assert found.total["out_h"] == pytest.approx(6)
    assert found.total["idle_h"] == pytest.approx(48 - 16 - 11.5 - 420 / 3600 - 6)
    assert found.total["gpu_h"] == pytest.approx(6 * 8 + 4 * 4)
    told = NodeSeconds(
        busy=16 * 3600,
        idle=found.total["idle_h"] * 3600,
        asleep=11.5 * 3600,
        falling_asleep=120,
        waking=300,
        gpus_busy=64 * 3600,
    )
    assert found.total["kwh"] == pytest.approx(energy_kwh(told, MODEL))
    saved_j = 11.5 * 3600 * (MODEL.node_idle_w - MODEL.node_sleep_w) - 420 * (MODEL.boot_w - MODEL.node_idle_w)
    assert found.saving_against(ALWAYS_ON).kwh == pytest.approx(saved_j * MODEL.cooling_factor / 3.6e6)
    saved = found.saving_against(ALWAYS_ON)
    assert saved.cost == pytest.approx(saved.kwh * MODEL.price_per_kwh)
    assert found.wakes == 1


def test_against_its_own_timer_a_cluster_saves_nothing(warehouse: Warehouse) -> None:
    # Idle from 6:00, asleep half an hour and a shutdown later, woken a boot before the next job: Slurm at 30 min.
    filled(
        warehouse,
        job(0, 6, "n1"),
        job(20, 24, "n1"),
        sleep=(event("n1", "IDLE~", 6.5 + 120 / 3600, 20 - 300 / 3600),),
        nodes=1,
    )
    found = ledger(warehouse)
    assert found.saving_against("idle_timer_30min").kwh == pytest.approx(0, abs=1e-9)
    assert found.saving_against("idle_timer_10min").kwh < 0 < found.saving_against(ALWAYS_ON).kwh
    assert found.saving_against("idle_timer_30min").wakes == found.wakes == 1


def test_an_idle_timer_does_not_start_with_the_window(warehouse: Warehouse) -> None:
    filled(warehouse, job(-10, -6, "n1"), nodes=1, sleep=(event("n1", "IDLE~", -5.5 + 120 / 3600, None),))
    assert ledger(warehouse).saving_against("idle_timer_30min").kwh == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("by", ["day", "partition", "node"])
def test_the_hours_of_every_line_add_up_to_nodes_times_time(warehouse: Warehouse, by: str) -> None:
    filled(
        warehouse,
        job(-3, 6, "n[1-2]"),
        job(5, 30, "n1"),
        job(40, None, "n3"),
        sleep=(event("n2", "IDLE~", 8, 50), event("n3", "DOWN", 10, 12)),
        nodes=3,
        read=(-48, 60),
        events_read=(-48, 55),
    )
    found = ledger(warehouse, start=1.5, end=70, by=by)
    assert sum(found.total[name] for name in HOURS) == pytest.approx(3 * 68.5)
    assert found.rows[list(HOURS)].to_numpy().sum() == pytest.approx(3 * 68.5)
    assert found.levels[["busy", "idle", "asleep", "moving", "out", "unknown"]].sum(axis=1).to_numpy() == pytest.approx(
        3
    )
    assert found.rows["saved_kwh"].sum() == pytest.approx(found.saving_against(ALWAYS_ON).kwh)
    assert len(found.rows) == {"day": 3, "partition": 1, "node": 3}[by]


def test_what_was_not_read_is_unknown_and_never_asleep_or_saved(warehouse: Warehouse) -> None:
    filled(warehouse, job(0, 6, "n1"), sleep=(event("n2", "IDLE~", 0, None),), read=(-48, 12), events_read=(-48, 12))
    found = ledger(warehouse)
    assert hours(found) == {
        "busy_h": 6,
        "idle_h": 6,
        "asleep_h": 12,
        "moving_h": 0,
        "out_h": 0,
        "unknown_h": 24,
    }
    assert any("50 % of the node hours are unknown" in note for note in found.notes)
    assert ledger(warehouse, start=13).saving_against(ALWAYS_ON).kwh == 0


def test_without_node_events_nobody_knows_whether_a_free_node_was_awake(warehouse: Warehouse) -> None:
    filled(warehouse, job(0, 6, "n1"), events_read=None)
    found = ledger(warehouse)
    assert (found.total["busy_h"], found.total["idle_h"]) == (6, 0)
    assert found.total["unknown_h"] == found.total["unseen_h"] == 42
    said = " ".join(energy_sentences(found))
    assert "Of 42 node hours without a job it is not known whether the nodes were awake" in said
    assert found.unseen_kwh == pytest.approx(42 * 0.8 * 1.3)
    assert any("node events were never read" in note for note in found.notes)


def test_a_running_job_holds_its_node_up_to_the_last_reading(warehouse: Warehouse) -> None:
    filled(warehouse, job(20, None, "n1"), nodes=1, read=(-48, 22), events_read=(-48, 22))
    assert hours(ledger(warehouse))["busy_h"] == 2


def test_unseen_nodes_are_those_that_jobs_ran_on(warehouse: Warehouse) -> None:
    filled(warehouse, job(0, 6, "a[01-03]"), job(7, 8, "b1", partition="debug"), nodes=0)
    found = ledger(warehouse, by="partition")
    assert found.rows[["line", "busy_h"]].to_numpy().tolist() == [["debug", 1.0], ["gpu", 18.0]]
    assert any("nodes without a job" in note for note in found.notes)


def test_nodes_of_the_same_partitions_and_gpus_are_one_line(warehouse: Warehouse) -> None:
    filled(warehouse, job(0, 6, "a"), nodes=0)
    rows = [
        {"name": "a", "partition": "gpu", "gpu_type": "a100"},
        {"name": "a", "partition": "debug", "gpu_type": "a100"},
        {"name": "b", "partition": "debug", "gpu_type": "a100"},
        {"name": "b", "partition": "gpu", "gpu_type": "a100"},
        {"name": "c", "partition": "gpu", "gpu_type": "v100"},
        {"name": "d"},
    ]
    warehouse.add_nodes("venus", NODES.conform(pd.DataFrame(rows)))
    found = ledger(warehouse, by="partition").rows.set_index("line")
    total = found["busy_h"] + found["idle_h"]
    assert total.to_dict() == {"debug,gpu (a100)": 48.0, "gpu (v100)": 24.0, "partition unknown": 24.0}


def test_a_node_that_only_slept_is_counted_though_no_job_ran_there(warehouse: Warehouse) -> None:
    filled(warehouse, job(0, 6, "n1"), sleep=(event("n2", "IDLE~", 0, None),), nodes=0)
    found = ledger(warehouse, by="partition")
    assert found.rows[["line", "asleep_h"]].to_numpy().tolist() == [["gpu", 0.0], ["partition unknown", 24.0]]


def test_a_history_without_nodes_is_refused_with_what_to_do(warehouse: Warehouse) -> None:
    filled(warehouse, a_job(submitted_at=at(1)), nodes=0)
    with pytest.raises(NotEnoughHistory, match="names no nodes"):
        ledger(warehouse)


def test_jobs_that_name_no_nodes_are_counted_aloud(warehouse: Warehouse) -> None:
    filled(warehouse, job(0, 6, "n1"), job(1, 2, "None assigned"), job(2, 3, "what [ever"))
    found = ledger(warehouse)
    assert any(note.startswith("2 of 3 jobs do not say on which nodes they ran") for note in found.notes)


def test_history_from_a_file_is_whole_from_first_to_last_job(warehouse: Warehouse) -> None:
    filled(warehouse, job(0, 6, "n1"), job(12, 13, "n1"), read=None, events_read=None, path="/data/sacct.txt", nodes=1)
    found = ledger(warehouse)
    assert found.total["busy_h"] == pytest.approx(7)
    assert found.total["unseen_h"] == pytest.approx(11.99 - 6, abs=0.01)
    assert found.total["unknown_h"] == pytest.approx(17)


def test_days_follow_the_cluster_clock_and_one_has_25_hours(warehouse: Warehouse) -> None:
    filled(warehouse, job(-24 * 27, -24 * 27 + 1, "n1"), nodes=1, read=(-24 * 40, 0), events_read=(-24 * 40, 0))
    begin = datetime(2026, 10, 23, 22, tzinfo=UTC)
    found = energy_ledger(
        warehouse, "venus", timezone="Europe/Berlin", since=begin, until=begin + 73 * HOUR, energy=MODEL
    )
    assert list(found.rows["line"]) == ["2026-10-24", "2026-10-25", "2026-10-26"]
    assert list(found.rows["busy_h"] + found.rows["idle_h"]) == pytest.approx([24, 25, 24])


def tally(hour: float, **overrides: Any) -> dict[str, Any]:
    row = {"taken_at": at(hour), "pool": "gpu", "total": 2, "asleep": 1, "by_helios": 1, "wanted": 1.0}
    return row | overrides


def looked(warehouse: Warehouse, *rows: dict[str, Any]) -> None:
    warehouse.add_node_tallies("venus", NODE_TALLIES.conform(pd.DataFrame(rows)))


def test_what_helios_counted_says_whose_sleep_it_was(warehouse: Warehouse) -> None:
    filled(warehouse, sleep=(event("n1", "IDLE~", 0, None), event("n2", "IDLE~", 0, 12)))
    looked(warehouse, *(tally(k / 6, asleep=2 if k < 72 else 1) for k in range(144)))
    found = ledger(warehouse)
    assert found.helios_node_hours == pytest.approx(24)
    assert found.helios_kwh == pytest.approx(24 * (0.8 - 0.015) * 1.3)
    assert "24 of 36 node hours asleep were Helios' doing" in " ".join(energy_sentences(found))
    assert found.levels["wanted"].to_numpy() == pytest.approx(np.ones(24))


def test_where_nothing_was_counted_the_audit_says_whose_sleep_it_was(warehouse: Warehouse) -> None:
    filled(warehouse, sleep=(event("n1", "IDLE~", 1, 5), event("n2", "IDLE~", 1, 5)))
    rows = [
        {"decided_at": at(0.9), "service": "ces", "mode": "active", "action": "PowerDown", "target": node,
         "reason": "idle", "outcome": outcome}
        for node, outcome in (("n1", "done"), ("n2", "refused: it is busy"))
    ]  # fmt: skip
    warehouse.add_decisions("venus", DECISIONS.conform(pd.DataFrame(rows)))
    assert ledger(warehouse).helios_node_hours == pytest.approx(4)


def test_an_interval_without_readings_is_not_filled_from_earlier_ones(warehouse: Warehouse) -> None:
    filled(warehouse, sleep=(event("n1", "IDLE~", 0, None),))
    looked(warehouse, tally(0), tally(0.4))
    found = ledger(warehouse)
    assert found.levels["wanted"].notna().tolist() == [True] + [False] * 23
    assert found.helios_node_hours == pytest.approx(1)


def test_looks_hours_apart_say_nothing_of_the_time_between(warehouse: Warehouse) -> None:
    filled(warehouse, sleep=(event("n1", "IDLE~", 0, None),))
    looked(warehouse, tally(0, by_helios=0), tally(6.75), tally(12))
    found = ledger(warehouse)
    assert found.levels.index[found.levels["wanted"].notna()].tolist() == [0, 12]
    assert found.helios_node_hours == pytest.approx(1)


def test_a_sleep_that_began_long_before_the_window_reaches_into_it(warehouse: Warehouse) -> None:
    filled(warehouse, sleep=(event("n1", "IDLE~", -40, None), event("n2", "IDLE~", -40, 6)))
    assert ledger(warehouse).total["asleep_h"] == pytest.approx(30)


def test_sleep_unknown_to_the_accounting_is_noted_and_not_counted(warehouse: Warehouse) -> None:
    filled(warehouse, job(0, 1, "n1"))
    looked(warehouse, *(tally(k / 6) for k in range(144)))
    found = ledger(warehouse)
    assert found.total["asleep_h"] == 0
    assert any("saw 24 node hours asleep, Slurm's accounting tells of 0" in note for note in found.notes)


def test_nodes_that_left_the_cluster_are_said_to_count_as_idle(warehouse: Warehouse) -> None:
    filled(warehouse, nodes=4)
    looked(warehouse, *(tally(k / 6, asleep=0, by_helios=0) for k in range(144)))
    assert any("counted 48 node hours in service, the ledger 96" in note for note in ledger(warehouse).notes)


def test_money_and_carbon_follow_the_hour_in_which_they_were_saved(warehouse: Warehouse, tmp_path: Path) -> None:
    path = tmp_path / "hourly.csv"
    path.write_text("time,price_per_kwh,co2_g_per_kwh\n2026-11-20T00:00Z,0.1,100\n2026-11-20T12:00Z,0.5,500\n")
    filled(warehouse, sleep=(event("n1", "IDLE~", 13, None),), nodes=1)
    found = ledger(warehouse, energy=Energy(hourly=str(path), shutdown_s=0))
    saved = found.saving_against(ALWAYS_ON)
    assert saved.cost == pytest.approx(saved.kwh * 0.5)
    assert saved.co2_kg == pytest.approx(saved.kwh * 0.5)


def test_nothing_that_happens_after_the_window_changes_it(warehouse: Warehouse) -> None:
    filled(warehouse, job(0, 6, "n1"), sleep=(event("n2", "IDLE~", 2, 60),), read=(-48, 240))
    before = ledger(warehouse).to_json()
    warehouse.add_node_events("venus", NODE_EVENTS.conform(pd.DataFrame([event("n1", "IDLE~", 30, 40)])))
    assert ledger(warehouse).to_json() == before


def test_an_answer_is_plain_json_with_units_in_its_names(warehouse: Warehouse) -> None:
    filled(warehouse, job(0, 6, "n1"), sleep=(event("n2", "IDLE~", 2, None),))
    answer = ledger(warehouse).to_json()
    assert answer["cluster"] == "venus" and answer["nodes"] == 2 and answer["days"] == 1
    assert [saving["against"] for saving in answer["savings"]] == [ALWAYS_ON, "idle_timer_30min", "idle_timer_10min"]
    assert answer["rows"][0]["asleep_h"] == pytest.approx(22)
    assert answer["savings"][0]["low_kwh"] < answer["savings"][0]["kwh"] < answer["savings"][0]["high_kwh"]
