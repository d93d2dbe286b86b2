"""Sizes are chosen exactly, and GPUs found for them with few moves."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.training.sizes.model import BatchLimits, ElasticSnapshot, ElasticState, ElasticTraining, Placement
from helios.training.sizes.placing import maximise_sum, place, possible_sizes
from tests.examples import examples

LIMITS = BatchLimits(smallest=10, largest=640, smallest_local=10, largest_local=40)


def training(number: int, placement: Placement = (), **known: Any) -> ElasticTraining:
    fields: dict[str, Any] = {"asked": 1, "most": 64, "limits": LIMITS, "submit_s": 0.0, "remaining": 1.0}
    return ElasticTraining(number, placement, ElasticState(**fields | known))


def snapshot(*jobs: ElasticTraining, nodes: tuple[int, ...] = (4,) * 16) -> ElasticSnapshot:
    return ElasticSnapshot(0.0, jobs, nodes)


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.lists(st.integers(-3, 9), min_size=0, max_size=3), min_size=1, max_size=4), st.integers(0, 9))
def test_no_other_sizes_reach_a_larger_sum(gains: list[list[int]], capacity: int) -> None:
    sizes = np.array([1, 2, 4])
    options = [[(0, 0), *zip(sizes.tolist(), gain, strict=False)] for gain in gains]
    best = max(sum(gain for _, gain in chosen) for chosen in product(*options) if sum(s for s, _ in chosen) <= capacity)
    chosen = maximise_sum([(sizes[: len(gain)], np.array(gain, dtype=float)) for gain in gains], capacity)
    assert sum(chosen) <= capacity
    assert sum(dict(option)[size] for option, size in zip(options, chosen, strict=True)) == best


def test_sizes_fill_nodes_without_gaps() -> None:
    assert possible_sizes(snapshot(nodes=(4, 4, 4))).tolist() == [1, 2, 4, 8, 12]


def test_a_limit_below_a_node_is_a_size() -> None:
    assert possible_sizes(snapshot(training(0, most=3), nodes=(8,))).tolist() == [1, 2, 3, 4, 8]


def test_sizes_of_a_large_cluster_lie_apart() -> None:
    sizes = possible_sizes(snapshot(nodes=(4,) * 500))
    assert len(sizes) < 40
    assert sizes[-1] == 2000


def test_a_job_that_keeps_its_size_stays() -> None:
    assert place(snapshot(training(0, (5,)), training(1)), {0: 1, 1: 4})[0] == (5,)


def test_small_jobs_share_a_node() -> None:
    assert place(snapshot(training(0, (5,)), training(1)), {0: 1, 1: 2})[1] == (5, 5)


def test_a_small_job_moves_where_another_finds_no_room() -> None:
    jobs = training(0, (0, 0)), training(1, (1,)), training(2)
    assert place(snapshot(*jobs, nodes=(4, 4)), {0: 2, 1: 1, 2: 4}) == {0: (0, 0), 1: (0,), 2: (1,) * 4}


def test_a_job_is_smaller_where_no_node_is_whole() -> None:
    jobs = training(0), training(1), training(2, least=3)
    assert place(snapshot(*jobs, nodes=(4, 2, 2)), {0: 4, 1: 4, 2: 4}) == {0: (0,) * 4, 1: (1, 1)}


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.sampled_from([0, 1, 2, 4, 8]), max_size=8), st.lists(st.sampled_from([0, 1, 2, 4, 8]), min_size=8))
def test_sizes_that_fit_in_all_find_room_after_any_past(before: list[int], after: list[int]) -> None:
    def fitting(sizes: list[int]) -> dict[int, int]:
        return {n: size for n, size in enumerate(sizes[:8]) if sum(sizes[: n + 1]) <= 16}

    past = place(snapshot(*map(training, range(8)), nodes=(4,) * 4), fitting(before))
    now = snapshot(*(training(n, past.get(n, ())) for n in range(8)), nodes=(4,) * 4)
    sizes = fitting(after)
    placed = place(now, sizes)
    used = [node for placement in placed.values() for node in placement]
    assert {name: len(placement) for name, placement in placed.items()} == {n: s for n, s in sizes.items() if s}
    assert all(used.count(node) <= 4 for node in used)


def test_jobs_over_several_nodes_lie_on_no_gpu_of_another() -> None:
    jobs = training(0, (0,) * 6), training(1, (0, 1, 1, 1, 1)), training(2)
    placed = place(snapshot(*jobs, nodes=(8, 8)), {0: 6, 1: 5, 2: 6})
    assert max(Counter(node for placement in placed.values() for node in placement).values()) <= 8


def test_jobs_of_a_size_take_no_turns_on_the_only_node() -> None:
    jobs = training(1), training(2)
    assert sorted(map(len, place(snapshot(*jobs, nodes=(4, 2)), {1: 3, 2: 3}).values())) == [1, 3]


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6),
)
def test_gpus_are_given_once_and_within_limits_on_any_nodes(nodes: list[int], wanted: list[tuple[int, int]]) -> None:
    jobs = [training(number, least=min(pair)) for number, pair in enumerate(wanted)]
    sizes = {number: max(pair) for number, pair in enumerate(wanted)}
    placed = place(snapshot(*jobs, nodes=tuple(nodes)), sizes)
    used = Counter(node for placement in placed.values() for node in placement)
    assert all(used[node] <= room for node, room in enumerate(nodes))
    assert all(min(wanted[number]) <= len(placement) <= sizes[number] for number, placement in placed.items())
