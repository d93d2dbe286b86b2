"""What jobs used, as ``helios report use`` answers it from the warehouse."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from helios.app.reports import ReportQuery
from helios.app.subjects import subject_report
from helios.cli.main import main
from helios.job_use.report import use_report
from helios.model import GPU_USE, JOB_USE, Batch, in_submission_order
from helios.warehouse import Warehouse
from tests.builders import a_job, jobs_frame, rejects_frame
from tests.unit.app.sites import put_empty_database
from tests.use_files import USE, needs_use

HOUR_S = 3600.0
DAY = pd.Timestamp("2026-03-02", tz="UTC")
KNOWN = {"source": "jobstats", "busy_means": "a kernel ran", "quality": "ok"}
Ask = Callable[..., str]


def put(url: str, jobs: pd.DataFrame, use: pd.DataFrame, gpus: pd.DataFrame) -> None:
    with Warehouse.open(url) as warehouse:
        batch = Batch(jobs=in_submission_order(jobs), rejects=rejects_frame(), bytes_read=0)
        warehouse.load([batch], cluster="dev", path="p", sha256="1", format="sacct", timezone="UTC")
        warehouse.add_job_use("dev", JOB_USE.conform(use), GPU_USE.conform(gpus))


def job(number: int, **values: Any) -> dict[str, Any]:
    """Return a job of two GPUs and ten hours that began at the day's begin."""
    times = {"submitted_at": DAY + pd.Timedelta(seconds=number), "started_at": DAY, "run_time_s": 10 * HOUR_S}
    return a_job(**times | {"job_id": str(number), "gpus": 2, "time_limit_s": 20 * HOUR_S} | values)


def key(one: dict[str, Any]) -> dict[str, Any]:
    return {name: one[name] for name in ("submitted_at", "job_id", "restart")}


@pytest.fixture
def query(tmp_path: Path) -> ReportQuery:
    """Return the query of a day with an idle, a half idle, a busy, an unmeasured, a broken and a CPU job."""
    url = put_empty_database(tmp_path / "helios.db")
    jobs = [job(1), job(2, user="bob"), job(3, user="bob", state="FAILED"), job(4, user="carol"), job(5, user="carol")]
    jobs += [job(6, gpus=0, user="dan")]
    jobs[0] |= {"name": "interactive"}  # what salloc is called
    memory = {"gpu_memory_peak_mib": 30_000.0, "gpu_memory_total_mib": 40_000.0}
    use = [
        key(jobs[0]) | KNOWN | memory | {"utilization": 0.1, "cpu_s": 4 * HOUR_S},
        key(jobs[1]) | KNOWN | {"utilization": 40.0, "is_interactive": 0.0, "longest_idle_s": HOUR_S},
        key(jobs[2]) | KNOWN | {"utilization": 0.0, "source": "prometheus", "busy_means": "an SM was active"},
        key(jobs[3]) | KNOWN | {"utilization": 0.0, "quality": "broken"},
        key(jobs[5]) | {"source": "sacct", "quality": "ok", "memory_peak_mib": 512.0, "memory_limit_mib": 1024.0},
    ]
    gpus = [key(jobs[1]) | {"source": "jobstats", "node": "n", "gpu": str(n), "utilization": 80.0 * n} for n in (0, 1)]
    put(url, jobs_frame(*jobs), pd.DataFrame(use), pd.DataFrame(gpus))
    return ReportQuery(
        url=url, now=datetime(2026, 3, 9, tzinfo=UTC), cluster="dev", start="2026-03-02", end="2026-03-02"
    )


def test_what_was_not_measured_comes_first(query: ReportQuery) -> None:
    sentences = use_report(query, by="user").sentences
    assert sentences[:2] == (
        "Not measured: 40 % of 100 GPU hours.",
        "Of the measured 60 GPU hours 83 % were of GPUs below 1 % utilization: 10 in jobs that used other GPUs, "
        "20 in jobs that failed.",
    )
    assert "Shells and notebooks held 33 % of the measured GPU hours; of these 100 % were below 1 %." in sentences
    assert "67 % of these were measured by jobstats, where busy means that a kernel ran." in sentences
    assert "33 % of these were measured by Prometheus, where busy means that an SM was active." in sentences
    assert sentences[-2:] == (
        "Most idle GPU hours: bob 30, alice 20.",
        "Of the memory hours asked for 50 % was not used at the jobs' peak, of the CPU hours 90 %.",
    )


def test_unmeasured_users_have_no_idle_hours_and_come_last(query: ReportQuery) -> None:
    rows = use_report(query, by="user").table.rows
    found = rows.set_index("group")[["gpu_hours", "idle_hours", "inside_hours", "failed_hours"]]
    assert [*found.index] == ["bob", "alice", "carol"]
    assert found.loc["bob"].tolist() == [40.0, 30.0, 10.0, 20.0]
    assert found.loc["carol"].isna().tolist() == [False, True, True, True]
    assert rows["unknown_share"].tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("by", "hours"),
    [
        ("account", {"lab": 100.0}),
        ("partition", {"gpu": 100.0}),
        ("week", {"2026-03-02": 100.0}),
        ("class", {"unknown": 40.0, "idle (<1 %)": 50.0, ">=75 %": 10.0}),
        ("memory", {"unknown": 80.0, ">=3/4": 20.0}),
        ("kind", {f"{user}: Jobs '{name}' in gpu of 2 GPUs and 4 CPUs": hours for user, name, hours in
                  (("bob", "train", 40.0), ("alice", "interactive", 20.0), ("carol", "train", 40.0))}),
    ],
)  # fmt: skip
def test_hours_are_summed_by_group(query: ReportQuery, by: str, hours: dict[str, float]) -> None:
    rows = use_report(query, by=by).table.rows
    assert dict(zip(rows["group"], rows["gpu_hours"], strict=True)) == pytest.approx(hours)


def test_hours_outside_the_window_do_not_count(query: ReportQuery) -> None:
    part = ReportQuery(url=query.url, now=query.now, cluster="dev", start="2026-03-02T05:00", end="2026-03-02T06:00")
    assert use_report(part, by="partition").table.rows["gpu_hours"].tolist() == [10.0]


def test_a_long_run_is_in_each_week_that_it_was_in(query: ReportQuery, tmp_path: Path) -> None:
    url, one = put_empty_database(tmp_path / "long.db"), job(1, run_time_s=240 * HOUR_S)
    put(url, jobs_frame(one), pd.DataFrame([key(one) | KNOWN | {"utilization": 0.1}]), GPU_USE.empty())
    rows = use_report(
        replace(query, url=url, end="2026-03-10", now=datetime(2026, 4, 1, tzinfo=UTC)), by="week"
    ).table.rows
    assert rows["group"].tolist() == ["2026-03-02", "2026-03-09"]
    assert rows["gpu_hours"].tolist() == rows["idle_hours"].tolist() == [2 * 7 * 24, 2 * 2 * 24]


def test_each_job_has_its_efficiencies(query: ReportQuery) -> None:
    rows = use_report(query, by="job").table.rows.set_index("job_id")
    first, second, last = (rows.loc[name] for name in ("1", "2", "6"))
    assert (first["time_efficiency"], first["cpu_efficiency"], first["gpu_memory"]) == (0.5, 0.1, 0.75)
    assert (first["utilization"], first["idle_gpus"], second["idle_gpus"]) == (0.001, 2.0, 1.0)
    assert (last["memory_efficiency"], last["source"]) == (0.5, "sacct")
    assert rows.loc[["4", "5"], "idle_gpus"].isna().all()


@pytest.mark.parametrize(
    "measurements",
    [
        pytest.param([{"utilization": 5.0}, {"utilization": 80.0, "source": "prometheus"}], id="contradicted"),
        pytest.param([{"utilization": 5.0, "gpus_measured": 1.0}], id="one GPU of two"),
        pytest.param([{"utilization": 5.0, "is_shared": 1.0}], id="shared"),
        pytest.param([{"utilization": 5.0, "covered_s": 8 * HOUR_S, "samples": 80.0}], id="not to its end"),
        pytest.param([{"utilization": 5.0, "quality": "broken"}], id="broken"),
    ],
)
def test_a_measurement_that_does_not_stand_for_the_run_is_none(
    query: ReportQuery, tmp_path: Path, measurements: list[dict[str, Any]]
) -> None:
    one = job(1, user=None)
    memory = {"gpu_memory_peak_mib": 30_000.0, "gpu_memory_total_mib": 40_000.0}
    url = put_empty_database(tmp_path / "other.db")
    put(url, jobs_frame(one), pd.DataFrame([key(one) | KNOWN | memory | row for row in measurements]), GPU_USE.empty())
    for by in ("class", "memory", "user"):
        rows = use_report(replace(query, url=url), by=by).table.rows
        assert rows[["gpu_hours", "unknown_share"]].to_numpy().tolist() == [[20.0, 1.0]]
        assert rows["group"].str.contains("unknown").all()
    assert use_report(replace(query, url=url), by="kind").table.rows["group"].str.startswith("(unknown): Jobs").all()


def test_a_source_that_knows_less_hides_no_other(query: ReportQuery, tmp_path: Path) -> None:
    jobs = [job(number) for number in (1, 2, 3)]
    less = [{"quality": "none", "gpus_measured": 0.0}, {"quality": "partial", "utilization": 90.0}, {"quality": "none"}]
    use = [key(one) | KNOWN | {"source": "prometheus"} | values for one, values in zip(jobs, less, strict=True)]
    use += [key(one) | KNOWN | {"utilization": 5.0, "gpus_measured": 2.0} for one in jobs]
    url = put_empty_database(tmp_path / "other.db")
    put(url, jobs_frame(*jobs), pd.DataFrame(use), GPU_USE.empty())
    rows = use_report(replace(query, url=url), by="class").table.rows
    assert rows[["group", "gpu_hours", "unknown_share"]].to_numpy().tolist() == [["1-10 %", 60.0, 0.0]]


@pytest.fixture
def ask(query: ReportQuery, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    def run(*words: str) -> str:
        monkeypatch.setenv("HELIOS_DATABASE_URL", query.url)
        window = ("-S", "2026-03-02", "-E", "2026-03-02") if words[0] == "report" else ()
        monkeypatch.setattr("sys.argv", ["helios", *words, *window])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
        return capsys.readouterr().out

    return run


def test_the_command_is_plain_in_a_pipe_and_colored_on_a_terminal(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask("report", "use", "--by", "job", "-P", "-o", "JobID,GPUEff,Source").splitlines() == [
        "JobID|GPUEff|Source",
        *("1|0.1%|jobstats", "2|40.0%|jobstats", "3|0.0%|prometheus", "4||jobstats", "5||", "6||sacct"),
    ]
    assert "\x1b" not in ask("report", "use", "--by", "job")
    assert ask("report", "use").startswith("Not measured: 40 % of 100 GPU hours.\n")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "\x1b[31m0.1%\x1b[0m" in ask("report", "use", "--by", "job")
    assert "\x1b" not in ask("report", "use", "--by", "job", "-P")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in ask("report", "use", "--by", "job")


def test_a_job_says_what_it_used_and_who_measured(ask: Ask) -> None:
    assert (
        "Measured by jobstats, where busy means that a kernel ran: GPUs 40 % busy on average; 1 of 2 GPUs below 1 %; "
        "idle for at most 1 h at a time." in ask("why", "2")
    )
    assert "Measured by jobstats: the record is cut or contradicts itself, and does not count." in ask("why", "4")
    assert "What it used of what it held was not measured." in ask("why", "5")


def test_two_sources_that_contradict_each_other_are_both_named(query: ReportQuery, ask: Ask) -> None:
    row = key(job(2)) | KNOWN | {"source": "prometheus", "utilization": 5.0}
    with Warehouse.open(query.url) as warehouse:
        warehouse.add_job_use("dev", JOB_USE.conform(pd.DataFrame([row])), GPU_USE.empty())
    assert ask("why", "2").count("another source contradicts it, and neither counts.") == 2


def test_a_user_has_the_share_of_idle_hours(query: ReportQuery) -> None:
    sentences = subject_report(query, "user", "alice", by=()).sentences
    assert "Not measured: 0 % of 20 GPU hours." in sentences
    assert not any("measured" in text for text in subject_report(query, "user", "carol", by=()).sentences)


def report(url: str, *, by: str, start: str, end: str) -> pd.DataFrame:
    query = ReportQuery(url=url, now=datetime(2026, 1, 1, tzinfo=UTC), cluster="dev", start=start, end=end)
    return use_report(query, by=by).table.rows.set_index("group")


@needs_use
def test_four_fifths_of_notebook_hours_of_a_company_are_idle(tmp_path: Path) -> None:
    rows = pd.read_csv(next((USE / "violet").glob("*.csv.gz")), parse_dates=["start", "finish"])
    hours = (rows["finish"] - rows["start"]).dt.total_seconds() / HOUR_S
    is_idle = rows["gpu_utilization"] < 1
    truth = {kind: hours[is_idle & own].sum() / hours[own].sum() for kind in ("instance", "task")
             if (own := rows["pod_type"] == kind) is not None}  # fmt: skip
    runs = rows.groupby(["pod_name", "start", "finish"], as_index=False).agg(
        gpus=("gpu_number", "size"), utilization=("gpu_utilization", "mean"), partition=("pod_type", "first"),
        account=("project", "first"), user=("user_team", "first"),
    )  # fmt: skip
    runs = runs.assign(job_id=[str(number) for number in range(len(runs))], restart=0)
    times = {name: runs[which] for name, which in (("started_at", "start"), ("ended_at", "finish"))}
    length_s = (runs["finish"] - runs["start"]).dt.total_seconds()
    jobs = [
        a_job(**row)
        for row in runs.assign(**times, submitted_at=runs["start"], run_time_s=length_s, state="COMPLETED")
        .drop(columns=["pod_name", "start", "finish", "utilization"])
        .to_dict("records")
    ]
    use = runs[["job_id", "restart", "utilization"]].assign(submitted_at=runs["start"], source="file", quality="ok")
    gpus = rows.merge(runs[["pod_name", "start", "finish", "job_id"]]).assign(restart=0, source="file")
    gpus = gpus.rename(columns={"start": "submitted_at", "gpu_utilization": "utilization", "gpu_number": "gpu"})
    gpus = gpus[["submitted_at", "job_id", "restart", "source", "node", "gpu", "utilization"]].astype({"gpu": "str"})
    url = put_empty_database(tmp_path / "helios.db")
    put(url, jobs_frame(*jobs), use, gpus)
    found = report(url, by="partition", start="2023-11-01", end="2023-12-31")
    assert found["gpu_hours"].sum() == pytest.approx(hours.sum())
    assert found["idle_share"].to_dict() == pytest.approx(truth)
    assert found.loc["instance", "idle_share"] == pytest.approx(0.776, abs=0.001)
    assert found.loc["instance", "idle_low"] < 0.776 < found.loc["instance", "idle_high"]


@needs_use
def test_memory_and_use_of_a_public_cluster_are_told_apart(tmp_path: Path) -> None:
    rows = pd.read_csv(next((USE / "supercloud").glob("*.csv.gz")), parse_dates=["time"])
    runs = rows.groupby("id_job", as_index=False).agg(
        utilization=("utilization_gpu_pct_mean", "mean"), begin=("time", "min"), steps=("time", "size"),
        peak=("memory_used_MiB_max", "max"), gpus=("num_gpus", "first"),
    )  # fmt: skip
    run_s = runs["steps"] * 300.0
    hours = run_s * runs["gpus"] / HOUR_S
    jobs = [
        a_job(job_id=f"j{name}", gpus=gpus, submitted_at=begin, started_at=begin, run_time_s=seconds, user=f"u{place}")
        for place, (name, gpus, begin, seconds) in enumerate(
            zip(runs["id_job"], runs["gpus"], runs["begin"], run_s, strict=True)
        )
    ]
    use = pd.DataFrame(
        {
            "submitted_at": runs["begin"],
            "job_id": "j" + runs["id_job"].astype("str"),
            "restart": 0,
            "source": "file",
            "quality": "ok",
            "utilization": runs["utilization"],
            "gpu_memory_peak_mib": runs["peak"].astype("float64"),
            "gpu_memory_total_mib": 32_768.0,
        }
    )
    url = put_empty_database(tmp_path / "helios.db")
    put(url, jobs_frame(*jobs), use, GPU_USE.empty())
    busy = report(url, by="class", start="2021-01-01", end="2021-12-31")
    idle, low = (hours[runs["utilization"] < end].sum() for end in (1, 10))
    assert busy.loc["idle (<1 %)", "gpu_hours"] == pytest.approx(idle)
    assert busy.loc[["idle (<1 %)", "1-10 %"], "gpu_hours"].sum() == pytest.approx(low)
    held = report(url, by="memory", start="2021-01-01", end="2021-12-31")
    assert held.loc[">=3/4", "gpu_hours"] == pytest.approx(hours[runs["peak"] >= 0.75 * 32_768].sum())
    one = report(url, by="partition", start="2021-01-01", end="2021-12-31").iloc[0]
    assert one["idle_low"] < one["idle_share"] < one["idle_high"]
    assert hours.max() / hours.sum() == pytest.approx(0.395, abs=0.001)  # one job holds so much
