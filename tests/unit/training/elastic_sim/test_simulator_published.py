"""Published rules decide as their authors ran them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from benchmarks.elastic import read_profiles, read_workload, summarise
from benchmarks.elastic_published import TUNED, optimus, tiresias
from helios.training.elastic_sim.simulator import ElasticJob, simulate
from helios.training.services.elastic import Elastic, ElasticOptions
from helios.training.sizes.rules import fixed
from tests.traces import TRACES
from tests.unit.training.elastic_sim.models import model
from tests.unit.training.sizes.test_placing import snapshot, training

POLLUX = TRACES.parent / "profiles" / "pollux"


def test_a_job_that_had_much_waits_behind_the_others() -> None:
    long, new = training(0, (0,) * 4, asked=4, gpu_s=16 * 3600), training(1, asked=4)
    assert list(tiresias()(snapshot(long, new, nodes=(4,)))) == [1]


def test_fixed_sizes_start_in_the_order_of_arrival() -> None:
    jobs = training(0, asked=2), training(1, asked=4), training(2, asked=2)
    assert sorted(fixed(snapshot(*jobs, nodes=(4,)))) == [0, 2]


def test_optimus_gives_gpus_where_they_save_most(tmp_path: Path) -> None:
    short, long = model(tmp_path / "short"), model(tmp_path / "long", epochs=100)
    jobs = [ElasticJob(name=profile.name, submit_s=0, profile=profile, gpus=1, batch=640) for profile in (short, long)]
    placed = optimus(jobs)(snapshot(training(0), training(1), nodes=(4,)))
    assert {number: len(placement) for number, placement in placed.items()} == {0: 1, 1: 3}


@pytest.mark.skipif(not POLLUX.is_dir(), reason=f"published profiles are not at {POLLUX}")
@pytest.mark.parametrize(("rule", "within"), [("tiresias", 1e-3), ("optimus", 1.2e-2)])
def test_published_mean_completion_times_are_reproduced(rule: str, within: float) -> None:
    published = pd.read_csv(POLLUX / "published_jct.csv")
    jobs = read_workload(POLLUX / "workloads-0.5" / "workload-3.csv", read_profiles(POLLUX), tuned=True)
    mean, _, longest, _ = summarise(simulate(jobs, Elastic(ElasticOptions(), TUNED[rule](jobs))))
    row = published.query("load == 0.5 and workload == 'workload-3' and policy == @rule").iloc[0]
    assert (mean, longest) == pytest.approx((row["mean_jct_s"], row["max_jct_s"]), rel=within)
