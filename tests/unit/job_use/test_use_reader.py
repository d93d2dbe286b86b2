"""Questions about many runs to a Prometheus that takes few."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd
import pytest

from helios.config import PrometheusSettings
from helios.errors import UsageError
from helios.job_use.fetch import frames
from helios.job_use.prometheus import Prometheus, PrometheusRefused, TooMuchAsked
from helios.job_use.use_reader import JobRun, UseReader, longest_idle_s
from tests.prometheus_rig import Answer, Server, refusal, vector

HOUR = 3600
TOO_MANY = refusal(422, "execution", "query processing would load too many samples into memory in query execution")


def a_run(number: int, *, span_s: float = HOUR, **values: Any) -> JobRun:
    usual = {"submitted_at": pd.Timestamp("2026-03-02", tz="UTC"), "restart": 0, "gpus": 1.0, "nodes": frozenset()}
    begin_s = 1.7e9
    return JobRun(job_id=str(number), begin_s=begin_s, end_s=begin_s + span_s, **(usual | values))


def answer_to(query: str, *, most_runs: int = 10**6, most_points: float = 10**6) -> Answer:
    """Answer as a server with one busy GPU of slurm-job-exporter for each job."""
    runs = re.findall(r'slurmjobid="(\d+)".*?\[(\d+)s:(\d+)s\].*?"helios_run", "(\d+)"', query)
    if query.startswith("count(last_over_time"):
        return vector(({}, 1)) if "slurm_job_utilization_gpu" in query else vector()
    if len(runs) > most_runs or any(int(span) / int(step) > most_points for _, span, step, _ in runs):
        return TOO_MANY
    value = 3600 if "count_over_time" in query else 0 if "bool" in query else 50
    series = [({"instance": f"g{job}:9798", "gpu": "0", "helios_run": run}, value) for job, _, _, run in runs]
    return vector(*series) if "slurm_job_sm" not in query else vector()


def reader(server: Server, **settings: object) -> UseReader:
    usual = {"url": server.url, "step_s": 30, "dialect": "slurm-job-exporter"}
    chosen = PrometheusSettings.model_validate(usual | settings)
    return UseReader(Prometheus(chosen, sleep=lambda _: None), chosen)


def test_a_server_that_takes_few_jobs_is_asked_for_few() -> None:
    runs = [a_run(number) for number in range(20)]
    with Server(lambda query: answer_to(query, most_runs=3)) as server:
        asking = reader(server)
        asking.read(runs)
        use, gpus = frames(runs, asking)
    assert [*use["utilization"]] == [50] * 20
    assert [*gpus["node"]] == [f"g{number}" for number in range(20)]


def test_a_job_too_long_for_a_server_is_asked_in_longer_steps() -> None:
    runs = [a_run(1)]
    with Server(lambda query: answer_to(query, most_points=40)) as server:
        reader(server).read(runs)
    (gpu,) = runs[0].found.values()
    assert gpu.values["utilization"] == 50


def test_a_server_that_takes_nothing_is_an_error() -> None:
    with Server(lambda query: answer_to(query, most_runs=0)) as server, pytest.raises(TooMuchAsked):
        reader(server).read([a_run(1)])


def test_no_question_has_more_points_than_a_server_gives() -> None:
    with Server(answer_to) as server:
        reader(server, step_s=1).read([a_run(1, span_s=30 * 24 * HOUR)])
        windows = [found for query in server.queries for found in re.findall(r"\[(\d+)s:(\d+)s\] @", query)]
    assert windows
    assert max(int(span) / int(step) for span, step in windows) <= 11_000


def test_series_that_nobody_asked_for_are_refused() -> None:
    def answer(query: str) -> Answer:
        return answer_to(query) if query.startswith("count") else vector(({"helios_run": "7"}, 1))

    with Server(answer) as server, pytest.raises(PrometheusRefused, match="nobody asked"):
        reader(server).read([a_run(1)])


def test_the_step_is_found_by_itself() -> None:
    with Server(lambda query: vector(({}, 40)) if "[10m]" in query else answer_to(query)) as server:
        assert reader(server, step_s=0).step_s == 15


def test_without_an_exporter_nothing_is_read() -> None:
    with Server(lambda _: vector()) as server, pytest.raises(UsageError, match="names jobs"):
        reader(server)


def test_a_missing_part_ends_an_idle_time() -> None:
    parts = [(60.0, True), (120.0, True), (240.0, True), (300.0, False), (360.0, True)]
    assert longest_idle_s(parts, 60) == 120
