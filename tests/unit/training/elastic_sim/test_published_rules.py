"""Published rules decide as their authors ran them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from benchmarks.elastic import read_profiles, read_workload, summarise
from helios.training.elastic_sim.published_rules import TUNED, fixed, optimus, tiresias
from helios.training.elastic_sim.simulator import ElasticJob, simulate
from helios.training.sizes.snapshot import ElasticSnapshot
from tests.traces import TRACES
from tests.unit.training.elastic_sim.models import model
from tests.unit.training.sizes.test_placing import state

POLLUX = TRACES.parent / "profiles" / "pollux"


def test_a_job_that_had_much_waits_behind_the_others() -> None:
    long, new = state("long", (0,) * 4, asked=4, gpu_s=16 * 3600), state("new", asked=4)
    assert list(tiresias()(ElasticSnapshot(0, (long, new), nodes=1))) == ["new"]


def test_fixed_sizes_start_in_the_order_of_arrival() -> None:
    jobs = state("first", asked=2), state("wide", asked=4), state("small", asked=2)
    assert sorted(fixed(ElasticSnapshot(0, jobs, nodes=1))) == ["first", "small"]


def test_optimus_gives_gpus_where_they_save_most(tmp_path: Path) -> None:
    short, long = model(tmp_path / "short"), model(tmp_path / "long", epochs=100)
    jobs = [ElasticJob(name=profile.name, submit_s=0, profile=profile, gpus=1, batch=640) for profile in (short, long)]
    placed = optimus(jobs)(ElasticSnapshot(0, (state("short"), state("long")), nodes=1))
    assert {name: len(placement) for name, placement in placed.items()} == {"short": 1, "long": 3}


@pytest.mark.skipif(not POLLUX.is_dir(), reason=f"published profiles are not at {POLLUX}")
@pytest.mark.parametrize("rule", ["tiresias", "optimus"])
def test_published_mean_completion_times_are_reproduced(rule: str) -> None:
    published = pd.read_csv(POLLUX / "published_jct.csv")
    jobs = read_workload(POLLUX / "workloads-0.5" / "workload-3.csv", read_profiles(POLLUX), tuned=True)
    mean, _, longest, _ = summarise(simulate(jobs, TUNED[rule](jobs)))
    row = published.query("load == 0.5 and workload == 'workload-3' and policy == @rule").iloc[0]
    assert (mean, longest) == pytest.approx((row["mean_jct_s"], row["max_jct_s"]), rel=1e-3)
