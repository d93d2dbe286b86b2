import json
from dataclasses import replace

import numpy as np

from tests.unit.report.replays import a_run, a_what_if, an_oracle, fewest_gpus, qssf

PUBLISHED = {
    "policy", "run_times", "estimates", "backfill", "jobs", "jobs_by_size", "mean_jct_s", "mean_wait_s",
    "median_wait_s", "p99_wait_s", "max_wait_s", "mean_wait_s_by_size", "mean_bounded_slowdown",
    "utilization", "queued_jobs", "possible_live",
}  # fmt: skip


def test_the_baseline_is_plain_fifo_wherever_it_was_replayed() -> None:
    today = a_run([1])
    assert a_what_if(fewest_gpus([1]), today).baseline is today


def test_without_it_the_first_replay_is_the_baseline() -> None:
    first = a_run([1], backfill="none", estimates=None)
    result = a_what_if(first, qssf([1]))
    assert result.baseline is first
    assert not first.is_plain


def test_whoever_knows_true_run_times_is_an_oracle() -> None:
    guided = a_run([1], estimates="true")
    result = a_what_if(a_run([1]), qssf([1]), guided, an_oracle([1]))
    assert [run.estimates for run in result.oracles] == ["true", "true"]
    assert [run.policy for run in result.feasible] == ["qssf"]


def test_a_label_names_order_beliefs_and_backfill() -> None:
    assert qssf([1], estimates="3600").label == "QSSF predicted + EASY (3600)"
    assert fewest_gpus([1], backfill="skip").label == "Fewest GPUs + skip"


def test_a_policy_without_a_name_of_its_own_is_called_as_typed() -> None:
    assert a_run([1], policy="las", backfill="none").label == "las"


def test_the_json_has_the_published_keys_and_no_job() -> None:
    answer = json.loads(json.dumps(a_what_if(a_run([1, 2]), notes=("said",)).to_json(), allow_nan=False))
    assert set(answer["runs"][0]) == PUBLISHED
    assert set(answer) == {
        "cluster",
        "nodes",
        "gpus_per_node",
        "resource",
        "capacity",
        "recorded_wait",
        "from",
        "to",
        "notes",
        "verdict",
        "runs",
    }


def test_a_cluster_s_size_is_told_in_words() -> None:
    assert a_what_if(a_run([1]), partitions={"a": 1000, "b": 24}).size == "1,024 nodes of 8 GPUs"
    assert a_what_if(a_run([1]), partitions={"a": 1}, gpus_per_node=1, resource="cpus").size == "1 node of 1 CPU"


def test_a_replay_that_waits_far_longer_than_the_site_is_warned_of() -> None:
    result = replace(a_what_if(a_run([21_600] * 4), qssf([1] * 4)), recorded_wait_s=np.full(4, 3.0))
    text = " ".join(result.headline())
    assert "Plain FIFO + EASY is not what this site runs" in text
    assert "of the 4 jobs with a recorded start is 6 h where 3 s was recorded" in text
    assert result.to_json()["recorded_wait"]["differs"]


def test_a_replay_that_waits_as_the_site_did_says_both() -> None:
    result = replace(a_what_if(a_run([120] * 4), qssf([1] * 4)), recorded_wait_s=np.full(4, 100.0))
    assert result.headline()[-1].startswith("Under plain FIFO + EASY the mean wait of the 4 jobs")
    assert result.headline()[-1].endswith("is 2 min where 1 min 40 s was recorded.")


def test_waits_of_few_known_starts_are_not_compared() -> None:
    recorded_s = np.array([3.0, np.nan, np.nan, np.nan])
    result = replace(a_what_if(a_run([21_600] * 4), qssf([1] * 4)), recorded_wait_s=recorded_s)
    assert result.to_json()["recorded_wait"] is None
