"""Evolution finds sizes that are allowed, and no better ones than there are."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.training.sizes.evolution import evolve
from helios.training.sizes.placing import maximise_sum
from tests.examples import examples

SIZES = np.array([1, 2, 4])


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.lists(st.integers(-3, 9), max_size=3), min_size=1, max_size=4))
def test_evolution_finds_no_larger_sum_than_there_is(gains: list[list[int]]) -> None:
    scores = [(SIZES[: len(gain)], np.array(gain, dtype=float)) for gain in gains]

    def total(chosen: list[int]) -> float:
        values = (dict(zip(*each, strict=True)).get(size, 0.0) for each, size in zip(scores, chosen, strict=True))
        return float(sum(values))

    found = evolve(scores, [0] * len(gains), 6, seed=1)
    assert sum(found) <= 6
    assert all(size in {0, *sizes.tolist()} for (sizes, _), size in zip(scores, found, strict=True))
    assert total(found) <= total(maximise_sum(scores, 6))


def test_a_job_without_a_gpu_gets_one_before_others_grow() -> None:
    scores = [(SIZES, np.array([5.0, 6, 7])), (SIZES, np.array([1.0, 2, 3]))]
    assert evolve(scores, [2, 0], 4, seed=1) == [2, 2]
