"""Advice: said where enough alike jobs show it, with what it rests on, and not otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from helios.app.advise import advise_on, usage_of_file
from helios.app.history import LoadedHistory
from helios.errors import UsageError
from helios.metrics.statistics import share_interval
from helios.report.advice import FEWEST_JOBS, FITS, Advice, limit_advice, usage_advice
from helios.slurm.accounting import read_usage
from helios.slurm.parse import length_s
from tests.builders import a_job, jobs_frame

HOUR_S = 3600.0

# Printed by Slurm 22.05.8 with JobAcctGatherType=jobacct_gather/linux: sacct --parsable2 --noconvert.
PRINTED = """\
JobIDRaw|User|Partition|State|ElapsedRaw|AllocTRES|TotalCPU|NTasks|MaxRSS|TRESUsageInTot|JobName
1|alice|gpu|COMPLETED|9|billing=4,cpu=4,gres/gpu=1,mem=4096M,node=1|00:04.038||||train
1.batch|||COMPLETED|9|cpu=4,gres/gpu=1,mem=4096M,node=1|00:04.038|1|324276224|cpu=00:00:03,energy=0,fs/disk=48310,mem=324276224,pages=2,vmem=331415552|batch
22|alice|gpu|COMPLETED|2|billing=4,cpu=4,gres/gpu=1,mem=4096M,node=1|00:00.002||||train
22.batch|||COMPLETED|2|cpu=4,gres/gpu=1,mem=4096M,node=1|00:00.002|1|3289088|cpu=00:00:00,energy=0,fs/disk=11083,mem=3289088,pages=0,vmem=5644288|batch
"""


def alike(count: int, **overrides: Any) -> list[dict[str, Any]]:
    return [a_job(**({"run_time_s": HOUR_S, "time_limit_s": 24 * HOUR_S} | overrides)) for _ in range(count)]


def kinds(found: list[Advice]) -> list[str]:
    return [one.kind for one in found]


def used(count: int, **overrides: Any) -> pd.DataFrame:
    row = {"user": "alice", "partition": "gpu", "name": "train", "state": "COMPLETED", "run_time_s": HOUR_S}
    row |= {"nodes": 1.0, "gpus": 1.0, "cpus": 8.0, "memory_mib": 64 * 1024.0}
    row |= {"cpu_s": 7.5 * HOUR_S, "used_memory_mib": 60 * 1024.0}
    return pd.DataFrame([{"job_id": str(number)} | row | overrides for number in range(count)])


def test_a_limit_far_too_long_is_named_with_a_shorter_one() -> None:
    (one,) = limit_advice(jobs_frame(*alike(30)))
    assert (one.kind, one.jobs, one.hours, one.resource) == ("limit_too_long", 30, 30.0, "GPU")
    assert one.option == "--time=01:15:00"
    assert (one.interval.low, one.interval.high, one.interval.unit) == (HOUR_S, HOUR_S, "s")


@pytest.mark.parametrize(
    "jobs",
    [
        alike(FEWEST_JOBS - 1),
        alike(30, time_limit_s=1.5 * HOUR_S),
        alike(30, time_limit_s=float("nan")),
        alike(30, state="FAILED"),
        [*alike(28), *alike(2, state="TIMEOUT", run_time_s=24 * HOUR_S)],
    ],
    ids=["too few", "fits", "unknown", "failed early", "some reached it"],
)
def test_nothing_is_said_of_limits_without_evidence(jobs: list[dict[str, Any]]) -> None:
    assert limit_advice(jobs_frame(*jobs)) == []


def test_jobs_that_are_not_alike_are_not_evidence_of_each_other() -> None:
    differ = ({"user": "bob"}, {"name": "evaluate"}, {"gpus": 2}, {"partition": "long"}, {"time_limit_s": 30 * HOUR_S})
    assert limit_advice(jobs_frame(*alike(15), *(job for other in differ for job in alike(15, **other)))) == []
    numbered = [job for number in range(30) for job in alike(1, name=f"train-{number}.sh")]
    assert kinds(limit_advice(jobs_frame(*numbered))) == ["limit_too_long"]


def test_no_limit_at_all_is_too_long() -> None:
    (one,) = limit_advice(jobs_frame(*alike(30, time_limit_s=float("inf"))))
    assert "no time limit" in one.which


@pytest.mark.parametrize(
    ("state", "kind"), [("TIMEOUT", "limit_too_short"), ("OUT_OF_MEMORY", "memory_too_small")], ids=["time", "memory"]
)
def test_jobs_that_end_at_a_limit_are_counted_with_an_interval(state: str, kind: str) -> None:
    jobs = jobs_frame(*alike(12, state=state, run_time_s=24 * HOUR_S), *alike(8))
    (one,) = [one for one in limit_advice(jobs) if one.kind == kind]
    assert (one.jobs, one.hours) == (20, 12 * 24 + 8)
    assert one.interval.low < 12 / 20 < one.interval.high
    assert "12 of 20" in one.sentence
    assert limit_advice(jobs_frame(*alike(2, state=state, run_time_s=24 * HOUR_S), *alike(3))) == []


@given(run_h=st.lists(st.floats(0.1, 5.0), min_size=FEWEST_JOBS, max_size=60), limit_h=st.sampled_from([10, 100]))
def test_a_proposed_limit_fits_its_own_jobs_and_is_shorter(run_h: list[float], limit_h: int) -> None:
    jobs = jobs_frame(*(a_job(run_time_s=hours * HOUR_S, time_limit_s=limit_h * HOUR_S) for hours in run_h))
    for one in limit_advice(jobs):
        proposed_s = float(length_s(one.option.removeprefix("--time=")) or 0)
        assert np.mean(np.array(run_h) * HOUR_S <= proposed_s) >= FITS
        assert proposed_s <= limit_h * HOUR_S / 2


@pytest.mark.parametrize(("count", "of"), [(0, 5), (3, 8), (12, 20), (5, 5), (400, 1000)])
def test_the_interval_of_a_share_is_that_of_scipy(count: int, of: int) -> None:
    expected = binomtest(count, of).proportion_ci(method="wilson")
    assert share_interval(count, of) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_memory_and_cpus_that_were_never_used_are_named() -> None:
    assert usage_advice(used(30)) == []
    (memory,) = usage_advice(used(30, used_memory_mib=10 * 1024.0))
    assert (memory.kind, memory.option, memory.jobs) == ("memory_too_large", "--mem=12G", 30)
    (cpus,) = usage_advice(used(30, cpu_s=1.5 * HOUR_S))
    assert (cpus.kind, cpus.option) == ("cpus_unused", "2 instead of 8 CPUs (--cpus-per-task)")
    assert usage_advice(used(30, used_memory_mib=np.nan, cpu_s=0.0)) == []
    assert usage_advice(used(30, used_memory_mib=10 * 1024.0, state="OUT_OF_MEMORY")) == []
    assert usage_advice(used(30, used_memory_mib=10 * 1024.0, nodes=2.0)) == []
    assert usage_advice(used(30, used_memory_mib=10 * 1024.0, run_time_s=60.0)) == []


def test_what_slurm_printed_of_use_is_read() -> None:
    frame = read_usage(PRINTED).set_index("job_id")
    assert list(frame.index) == ["1", "22"]
    first = frame.loc["1"]
    assert (first["user"], first["name"], first["run_time_s"], first["cpus"], first["gpus"]) == (
        "alice",
        "train",
        9,
        4,
        1,
    )
    assert first["memory_mib"] == 4096
    assert first["used_memory_mib"] == pytest.approx(324276224 / 1024**2)
    assert first["cpu_s"] == 4


def test_use_is_summed_over_steps_and_units_are_read() -> None:
    had = "cpu=4,gres/gpu=2,mem=16G,node=1"
    text = f"""5|bob|gpu|TIMEOUT|7200|{had}|1-00:00:10|||a|b
5.batch|||TIMEOUT|7200|{had}|00:10.500|1|2G|batch
5.0|||COMPLETED|7000|{had}|01:00:00|4|512M|srun
6|bob|gpu|RUNNING|7200|{had}|00:00:00|||a
7|bob|gpu|COMPLETED|7200|{had}|00:00:00|||nothing gathered"""
    frame = read_usage(text).set_index("job_id")
    assert list(frame.index) == ["5", "7"]
    assert frame.loc["5", "name"] == "a|b"
    assert (frame.loc["5", "used_memory_mib"], frame.loc["5", "cpu_s"]) == (2048 + 4 * 512, 3610)
    assert np.isnan(frame.loc["7", "used_memory_mib"]) and np.isnan(frame.loc["7", "cpu_s"])


def test_the_last_poll_of_slurm_is_not_what_a_job_used() -> None:
    header = "JobIDRaw|User|Partition|State|ElapsedRaw|AllocTRES|TotalCPU|NTasks|MaxRSS|TRESUsageInTot|JobName"
    had, last = "cpu=8,gres/gpu=1,mem=64G,node=1", "cpu=07:30:00,gres/gpumem=9G,gres/gpuutil=0,mem=1G"
    jobs = [
        f"{number}|bob|gpu|COMPLETED|3600|{had}|07:30:00||||train\n"
        f"{number}.batch|||COMPLETED|3600|{had}|07:30:00|1|60G|{last}|batch\n"
        for number in range(25)
    ]
    use = read_usage(f"{header}\n{''.join(jobs)}")
    assert use["used_memory_mib"].unique().tolist() == [60 * 1024]
    assert usage_advice(use) == []


def test_a_file_of_something_else_is_refused_with_the_command(tmp_path: Path) -> None:
    path = tmp_path / "usage.txt"
    path.write_text("JobID|State\n1|COMPLETED\n")
    with pytest.raises(UsageError, match="No line has the fields") as refused:
        usage_of_file(path)
    assert "MaxRSS,JobName" in refused.value.hint


def test_a_user_sees_own_jobs_and_the_most_hours_come_first() -> None:
    others = [*alike(30, user="bob"), *alike(40, user="bob", gpus=8), *alike(25, user="alice")]
    # Jobs are the later the more of them other tests have made.
    at = others[-1]["submitted_at"] + pd.Timedelta(days=1)
    sweep = alike(6, user="alice", name="sweep", time_limit_s=float("nan"), submitted_at=at)
    jobs = jobs_frame(*others, *sweep)
    history = LoadedHistory(cluster="venus", jobs=jobs, timezone="UTC")
    alice = advise_on(history, users=("alice",), used=used(30, used_memory_mib=10 * 1024.0))
    assert {one.user for one in alice.advice} == {"alice"}
    assert {one.kind for one in alice.advice} == {"limit_too_long", "memory_too_large", "packing"}
    assert (alice.jobs, alice.measured) == (31, 30)
    everybody = advise_on(history)
    hours = [one.hours for one in everybody.advice]
    assert hours == sorted(hours, reverse=True)
    assert everybody.advice[0].user == "bob" and everybody.advice[0].hours == 320
    assert json.loads(json.dumps(everybody.to_json()))["advice"][0]["interval"]["unit"] == "s"
    assert "No advice" in "\n".join(advise_on(history, users=("nobody",)).lines())
