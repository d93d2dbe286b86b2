"""Sizes are chosen exactly, and GPUs found for them with few moves."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.training.sizes.model import BatchLimits
from helios.training.sizes.placing import maximise_sum, place, possible_sizes
from helios.training.sizes.snapshot import ElasticSnapshot, Placement, TrainingState
from tests.examples import examples

LIMITS = BatchLimits(smallest=10, largest=640, smallest_local=10, largest_local=40)


def state(name: str, placement: Placement = (), *, asked: int = 1, gpu_s: float = 0.0) -> TrainingState:
    return TrainingState(
        name=name,
        submit_s=0,
        gpus=asked,
        limits=LIMITS,
        placement=placement,
        most_gpus=64,
        restarts=0,
        gpu_s=gpu_s,
        epoch=0,
        remaining=1.0,
        measured=(),
        gradient=None,
    )


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.lists(st.integers(-3, 9), min_size=0, max_size=3), min_size=1, max_size=4), st.integers(0, 9))
def test_no_other_sizes_reach_a_larger_sum(gains: list[list[int]], capacity: int) -> None:
    sizes = np.array([1, 2, 4])
    options = [[(0, 0), *zip(sizes.tolist(), gain, strict=False)] for gain in gains]
    best = max(sum(gain for _, gain in chosen) for chosen in product(*options) if sum(s for s, _ in chosen) <= capacity)
    chosen = maximise_sum([np.array(gain, dtype=float) for gain in gains], sizes, capacity)
    assert sum(chosen) <= capacity
    assert sum(dict(option)[size] for option, size in zip(options, chosen, strict=True)) == best


def test_sizes_fill_nodes_without_gaps() -> None:
    assert possible_sizes(ElasticSnapshot(0, (), nodes=3)).tolist() == [1, 2, 4, 8, 12]


def test_a_job_that_keeps_its_size_stays() -> None:
    snapshot = ElasticSnapshot(0, (state("a", (5,)), state("b")), nodes=16)
    assert place(snapshot, {"a": 1, "b": 4})["a"] == (5,)


def test_small_jobs_share_a_node() -> None:
    snapshot = ElasticSnapshot(0, (state("a", (5,)), state("b")))
    assert place(snapshot, {"a": 1, "b": 2})["b"] == (5, 5)


def test_a_small_job_moves_where_another_finds_no_room() -> None:
    snapshot = ElasticSnapshot(0, (state("a", (0, 0)), state("b", (1,)), state("c")), nodes=2)
    assert place(snapshot, {"a": 2, "b": 1, "c": 4}) == {"a": (0, 0), "b": (0,), "c": (1,) * 4}


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.sampled_from([0, 1, 2, 4, 8]), max_size=8), st.lists(st.sampled_from([0, 1, 2, 4, 8]), min_size=8))
def test_sizes_that_fit_in_all_find_room_after_any_past(before: list[int], after: list[int]) -> None:
    def fitting(sizes: list[int]) -> dict[str, int]:
        return {f"{n}": s for n, s in enumerate(sizes[:8]) if sum(sizes[: n + 1]) <= 16}

    past = place(ElasticSnapshot(0, tuple(state(f"{n}") for n in range(8)), nodes=4), fitting(before))
    now = ElasticSnapshot(0, tuple(state(f"{n}", past.get(f"{n}", ())) for n in range(8)), nodes=4)
    sizes = fitting(after)
    placed = place(now, sizes)
    used = [node for placement in placed.values() for node in placement]
    assert {name: len(placement) for name, placement in placed.items()} == {n: s for n, s in sizes.items() if s}
    assert all(used.count(node) <= 4 for node in used)
