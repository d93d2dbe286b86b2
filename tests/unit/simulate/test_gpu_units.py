"""Parts of a GPU in replays: the units they are counted in, and the same replay in whole units as an oracle."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.simulate import ORDERS, Backfill, Placement, SimCluster, replay
from helios.simulate.gpu_units import choose_units, in_units, replay_sizes, rounding_note
from helios.simulate.slurm import replay_slurm
from tests.examples import examples
from tests.unit.simulate.builders import a_shape, a_workload, jobs_of
from tests.unit.simulate.slurm.builders import AT_ONCE, a_site
from tests.unit.simulate.slurm.builders import a_workload as a_slurm_workload

TOTAL = 8


@pytest.mark.parametrize(
    ("sizes", "units"),
    [
        ([1, 2], 1),
        ([0.25, 1], 4),
        ([1 / 7, 2], 7),
        ([1 / 7, 0.5], 14),
        ([1 / 3, 0.1], 30),
        ([1 / 9, 1 / 8, 1 / 7], 504),
    ],
)
def test_a_gpu_is_the_fewest_units_that_make_sizes_whole(sizes, units):
    assert choose_units(np.array(sizes), total=TOTAL) == units
    assert not rounding_note(np.array(sizes), total=TOTAL)


@given(denominators=st.lists(st.integers(1, 10), min_size=1, max_size=5))
def test_no_fewer_units_make_all_sizes_whole(denominators):
    sizes = np.array([1 / number for number in denominators])
    units = choose_units(sizes, total=TOTAL)
    whole = [n for n in range(1, 2_521) if np.allclose(sizes * n, np.rint(sizes * n), rtol=0, atol=1e-9)]
    assert units == whole[0]


def test_sizes_without_a_common_unit_are_rounded_up():
    sizes = np.array([1 / 11, 1 / 13, 1 / 17, 1 / 19, 1.0])
    units = choose_units(sizes, total=TOTAL)
    assert in_units(sizes, units).tolist() == [10, 8, 6, 6, 100]
    assert "in units of 1/100: the sizes of 4 jobs, such as 0.09091 GPUs, are" in rounding_note(sizes, total=TOTAL)


def test_a_huge_cluster_has_few_units_of_a_gpu():
    assert choose_units(np.array([1 / 7, 1 / 8]), total=1_000_000) == 10


def test_whole_sizes_stay_integers():
    assert replay_sizes(np.array([1.0, 8.0])).dtype == np.int32
    assert replay_sizes(np.array([0.5, 8.0])).dtype == np.float64


def quarters(rows, nodes, gpus):
    """Return a workload in quarters of GPUs with its cluster, and the same with quarters as GPUs."""
    whole = a_workload(rows)
    return (replace(whole, gpus=whole.gpus / 4), a_shape((nodes, gpus))), (whole, a_shape((nodes, 4 * gpus)))


some_rows = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 60), st.integers(1, 16)), min_size=1, max_size=25
).map(sorted)


@settings(max_examples=examples(20), deadline=None)
@given(rows=some_rows, backfill=st.sampled_from(list(Backfill)), order=st.sampled_from(["fifo", "fewest_gpus"]))
def test_a_replay_in_quarters_is_that_of_as_many_small_gpus(rows, backfill, order):
    (parts, cluster), (whole, small) = quarters(rows, nodes=2, gpus=2)
    options = {"backfill": backfill, "order": ORDERS[order], "estimate_s": 2 * whole.run_time_s}
    assert replay(parts, cluster, **options).started_s.tolist() == replay(whole, small, **options).started_s.tolist()


@settings(max_examples=examples(10), deadline=None)
@given(rows=some_rows, placement=st.sampled_from(list(Placement)))
def test_nodes_never_hold_more_parts_than_their_gpus(rows, placement):
    (parts, shape), _ = quarters(rows, nodes=2, gpus=2)
    cluster = SimCluster(parts, shape, jobs_of(parts, shape), estimates_s=parts.run_time_s, placement=placement)
    while (at_s := cluster.next_event_s()) is not None:
        cluster.advance(at_s)
        seen = cluster.snapshot()
        held = seen.nodes["gpus_held"].to_numpy()
        assert (held <= seen.nodes["gpus"].to_numpy()).all()
        assert held.sum() == pytest.approx(seen.running["gpus"].sum())


def test_a_simulated_queue_shows_gpus_and_not_units():
    (parts, shape), _ = quarters([(0, 100, 1), (0, 100, 6), (0, 100, 4)], nodes=1, gpus=2)
    cluster = SimCluster(parts, shape, jobs_of(parts, shape), estimates_s=parts.run_time_s)
    cluster.advance(1)
    seen = cluster.snapshot()
    assert (seen.running["gpus"].tolist(), seen.pending["gpus"].tolist()) == ([0.25, 1.5], [1.0])
    assert (seen.nodes["gpus"].tolist(), seen.nodes["gpus_held"].tolist()) == ([2], [1.75])
    cluster.advance(201)
    assert cluster.tally().seconds["a"].gpus_busy == 100 * (0.25 + 1.5 + 1.0)


@settings(max_examples=examples(10), deadline=None)
@given(rows=some_rows)
def test_slurm_replayed_in_quarters_is_that_of_as_many_small_gpus(rows):
    gpus = np.array([row[2] for row in rows])
    times = [(submitted_s, run_time_s) for submitted_s, run_time_s, _ in rows]
    cpus = np.ones(len(rows), dtype=int)
    started = [
        replay_slurm(
            a_slurm_workload(times, gpus=held, cpus=cpus), a_site(cpus=64, gpus=each), latency=AT_ONCE
        ).started_s
        for held, each in ((gpus / 4, 4), (gpus, 16))
    ]
    assert started[0].tolist() == started[1].tolist()
