"""Summaries of jobstats, right and wrong ones."""

from __future__ import annotations

import json
import math
from typing import Any

import pandas as pd
import pytest

from helios.job_use.jobstats import read_summaries
from tests.use_files import GIB, USE, comment, needs_use, of_node, summary


def read_one(text: str) -> dict[str, Any]:
    """Return the known values of one comment."""
    row = read_summaries([text]).jobs.iloc[0].to_dict()
    return {name: value for name, value in row.items() if not pd.isna(value)}


def test_a_summary_is_summed_over_nodes_and_averaged_over_gpus() -> None:
    idle = of_node(gpu_utilization={"0": 0}, gpu_used_memory={"0": GIB})
    jobs, gpus = read_summaries([comment(summary(of_node(), idle, gpus=2))])
    assert jobs.iloc[0].to_dict() == {
        "quality": "ok",
        "busy_means": "a kernel ran",
        "covered_s": 3600.0,
        "gpus_measured": 2.0,
        "utilization": 20.0,
        "gpu_memory_peak_mib": 10 * 1024.0,
        "gpu_memory_total_mib": 80 * 1024.0,
        "cpu_s": 1000.0,
        "memory_peak_mib": 8 * 1024.0,
        "memory_limit_mib": 16 * 1024.0,
        "is_mig": 0.0,
    }
    assert gpus[["record", "node", "gpu", "utilization"]].values.tolist() == [[0, "n0", "0", 40.0], [0, "n1", "0", 0.0]]


@pytest.mark.parametrize(
    ("text", "quality"),
    [
        ("JS1:Short", "short"),
        ("JS1:None", "none"),
        ("js1:short", "short"),
        (comment(summary()), "none"),
        (comment(summary(of_node(), gpus=2)), "partial"),
        (comment(summary(of_node(gpu_utilization={"1": 5.0}))), "partial"),
        (comment(summary(of_node(gpu_utilization=None))), "ok"),
        (comment(summary(of_node(used_memory=9 * GIB))), "broken"),
        (comment(summary(of_node(gpu_used_memory={"0": 81 * GIB}))), "broken"),
        (comment(summary(of_node(gpu_utilization={"0": 101.0}))), "broken"),
    ],
)
def test_a_summary_says_how_far_it_can_be_trusted(text: str, quality: str) -> None:
    assert read_one(text)["quality"] == quality


def test_a_slice_has_no_utilization() -> None:
    found = read_one(comment(summary(of_node(gpu_utilization=None))))
    assert "utilization" not in found and "busy_means" not in found
    assert (found["is_mig"], found["gpus_measured"], found["gpu_memory_peak_mib"]) == (1.0, 1.0, 10 * 1024.0)


def test_more_memory_used_than_there_is_is_kept() -> None:
    found = read_one(comment(summary(of_node(used_memory=9 * GIB))))
    assert (found["memory_peak_mib"], found["memory_limit_mib"]) == (9 * 1024.0, 8 * 1024.0)


def test_text_around_a_summary_is_left_alone() -> None:
    text = comment(summary(of_node()))
    assert read_one(f"checked by hand; {text}; ok") == read_one(text)


NONSENSE = {
    "cut": comment(summary(of_node()))[:-20],
    "in small letters": comment(summary(of_node())).lower(),
    "empty": "JS1:",
    "no base64": "JS1:=A=",
    "another letter": "JS1:\u00e9",
    "no gzip": "JS1:aGVsbG8=",
    "a bomb": comment(json.dumps(summary(of_node())) + " " * 50_000_000),
    "no JSON": comment("nodes: 5"),
    "no text": comment(b'{"nodes": {"\xff": {}}}'),
    "deep": comment("[" * 100_000),
    "a list": comment([1]),
    "no nodes": comment({"nodes": None, "gpus": 1}),
    "half a letter": comment(summary(of_node(gpu_utilization={"\ud800": 5.0}))),
    "NaN": comment(summary(of_node(used_memory=math.nan))),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_a_comment_that_cannot_be_read_says_nothing(name: str) -> None:
    assert read_one(NONSENSE[name]) == {"quality": "broken"}


@pytest.mark.parametrize(
    "node",
    [
        of_node(total_time="500"),
        of_node(total_time=-1),
        of_node(total_time=True),
        of_node(total_time=10**400),
        of_node(gpu_utilization={"0": [1]}),
        of_node(gpu_utilization=[5]),
        of_node(gpu_utilization={"x" * 65: 5.0}),
        of_node(gpu_utilization={"a b": 5.0}),
    ],
)
def test_a_wrong_value_is_unknown_and_its_summary_broken(node: dict[str, Any]) -> None:
    found = read_one(comment(summary(node)))
    assert found["quality"] == "broken"
    assert found["memory_limit_mib"] == 8 * 1024.0
    assert found.get("cpu_s", 500.0) == 500.0


@needs_use
def test_examples_of_the_format_are_read_as_they_say() -> None:
    folder = USE / "formats"
    lines = (folder / "admin_comment.txt").read_text().splitlines()[1:]
    comments = dict(line.split("|", 1) for line in lines)
    decoded = json.loads((folder / "admin_comment_expected.json").read_text())["decoded"]
    for job, expected in decoded.items():
        found = read_one(comments[job])
        assert found["covered_s"] == expected["total_time"]
        assert found["cpu_s"] == pytest.approx(sum(node["total_time"] for node in expected["nodes"].values()))
    qualities = {job: read_one(text)["quality"] for job, text in comments.items() if "JS1:" in text}
    told = ("ok", "ok", "ok", "ok", "broken", "short", "none", "broken", "ok")
    assert qualities == dict(zip([*map(str, range(1001, 1009)), "1010"], told, strict=True))
