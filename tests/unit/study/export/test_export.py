"""What is exported loads again, names nobody if it should not, and nothing is left of what fails."""

from __future__ import annotations

import gzip
import json
import stat
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from helios.app.history import LoadedHistory, ingest, load_history, read_file
from helios.app.replay_cluster import replay_cluster_for
from helios.choices import ExportLayout
from helios.errors import FileUnreadable, FileUnwritable, NotEnoughHistory, RiskTooHigh, UsageError
from helios.ingest import synthetic_trace
from helios.report.history import describe
from helios.simulate import ORDERS
from helios.study.export import files as module
from helios.study.export.anonymous import OTHERS
from helios.study.export.comparison import compare_exports
from helios.study.export.export import COARSER_S, export_history
from helios.study.export.request import ExportRequest
from helios.study.study import study
from tests.builders import a_job, jobs_frame
from tests.traces import TRACES, needs_traces

ZONE = "Asia/Shanghai"
SECRETS = (
    "secretuser",
    "secretaccount",
    "secretgroup",
    "secretqos",
    "secretpart",
    "secretname",
    "secretnode",
    "4711471",
)
LAYOUTS = list(ExportLayout)


@pytest.fixture(scope="module")
def month() -> LoadedHistory:
    jobs = synthetic_trace(start=datetime(2020, 9, 1, tzinfo=UTC), days=7)
    return LoadedHistory(cluster="venus", jobs=jobs, timezone=ZONE)


def a_history(*jobs: dict[str, Any]) -> LoadedHistory:
    return LoadedHistory(cluster="secretcluster", jobs=jobs_frame(*jobs), timezone=ZONE)


def anonymously(folder: Path, **options: Any) -> ExportRequest:
    chosen = {"accept_risk": True, "key_folder": folder / "keys"} | options
    return ExportRequest(out=folder / "out", anonymous=True, **chosen)


def again(path: Path) -> LoadedHistory:
    zone = None if path.suffix == ".parquet" else ZONE
    return read_file(path, timezone=zone, cluster="venus")


def described(history: LoadedHistory, jobs: pd.DataFrame | None = None) -> dict[str, Any]:
    figures = describe(history.jobs if jobs is None else jobs, cluster="venus", timezone=ZONE).to_json()
    return {name: figure for name, figure in figures.items() if name not in {"busiest_users", "missing"}}


def statements_of(history: LoadedHistory) -> dict[str, float]:
    """What a study says, NaN where it is not known. Sums may be in another order."""
    parts = ("value", "low", "high", "n", "coverage")
    told = {f"{one.name}.{part}": getattr(one, part) for one in study(history).statements for part in parts}
    return {name: float("nan") if value is None else value for name, value in told.items()}


def replayed(history: LoadedHistory) -> tuple[Any, Any]:
    """Starts and ends of the jobs with GPUs in one pool, first in, first out."""
    jobs = history.jobs[(history.jobs["gpus"] > 0) & history.jobs["run_time_s"].notna()]
    machine = replay_cluster_for(jobs, resource="gpus", nodes={"all": 70}, gpus_per_node=8, skip_oversized=True)
    result = machine.replay(ORDERS["fifo"], default_limit_s=7 * 86_400)
    return result.started_s, result.ended_s


# Plain exports.


def test_parquet_moves_a_whole_history_from_one_warehouse_to_another(tmp_path, month):
    export_history(month, ExportRequest(out=tmp_path / "out"))
    url = f"sqlite:///{tmp_path / 'helios.db'}"
    report = ingest(tmp_path / "out" / "jobs.parquet", url=url)
    moved = load_history(url=url, cluster=None)
    assert (report.rejects, moved.cluster, moved.timezone) == ({}, "venus", ZONE)
    pd.testing.assert_frame_equal(moved.jobs, month.jobs, check_categorical=False)


@pytest.mark.parametrize("name", ["jobs.parquet", "jobs.csv.gz"])
def test_a_plain_export_gives_the_same_study(tmp_path, month, name):
    export_history(month, ExportRequest(out=tmp_path))
    assert described(again(tmp_path / name)) == described(month)


@pytest.mark.parametrize("name", ["jobs.parquet", "jobs.csv.gz"])
def test_a_plain_export_gives_the_same_statements_and_the_same_replay(tmp_path, month, name):
    export_history(month, ExportRequest(out=tmp_path))
    found = again(tmp_path / name)
    assert statements_of(found) == pytest.approx(statements_of(month), nan_ok=True)
    for one, other in zip(replayed(found), replayed(month), strict=True):
        assert one.tolist() == other.tolist()


@needs_traces
def test_a_real_trace_gives_the_same_statements_and_the_same_replay(tmp_path):
    venus = read_file(TRACES / "helios_venus_users_may-jun2020.csv.gz", timezone=ZONE, cluster="venus")
    some = replace(venus, jobs=venus.jobs.head(4_000))
    export_history(some, ExportRequest(out=tmp_path, layouts=(ExportLayout.HELIOS,)))
    found = again(tmp_path / "jobs.csv.gz")
    assert statements_of(found) == pytest.approx(statements_of(some), nan_ok=True)
    assert [one.tolist() for one in replayed(found)] == [one.tolist() for one in replayed(some)]


@needs_traces
@pytest.mark.parametrize("name", ["jobs.parquet", "jobs.csv.gz", "jobs.swf.gz"])
def test_a_real_trace_without_gpus_gives_the_same_study_from_every_layout(tmp_path, name):
    kth = read_file(TRACES / "KTH-SP2-1996-2.1-cln.swf.gz", timezone=ZONE)
    some = replace(kth, jobs=kth.jobs.head(3_000))
    export_history(some, ExportRequest(out=tmp_path))
    assert described(again(tmp_path / name)) == described(some)
    assert again(tmp_path / name).machine == (kth.machine if "swf" in name else None)


def test_columns_that_a_layout_cannot_hold_are_named(tmp_path):
    result = export_history(a_history(a_job(qos="long", cpus=4.0)), ExportRequest(out=tmp_path))
    assert result.lost["jobs.csv.gz"] == ["account", "qos", "eligible_at"]
    assert set(result.lost["jobs.swf.gz"]) == {"account", "qos", "eligible_at", "nodes", "gpus"}
    assert "jobs.parquet" not in result.lost


def test_only_the_window_and_the_layouts_asked_for_are_written(tmp_path):
    jobs = [a_job(submitted_at=f"2024-01-0{day}T00:00:00Z") for day in (1, 2, 3)]
    request = ExportRequest(
        out=tmp_path / "out",
        layouts=(ExportLayout.PARQUET,),
        since=datetime(2024, 1, 2, tzinfo=UTC),
        until=datetime(2024, 1, 3, tzinfo=UTC),
    )
    assert export_history(a_history(*jobs), request).jobs == 1
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["export.json", "jobs.parquet"]


def test_files_are_closed_to_others(tmp_path, month):
    result = export_history(month, ExportRequest(out=tmp_path / "out"))
    assert {stat.S_IMODE(path.stat().st_mode) for path in result.files} == {0o600}


# Anonymous exports.


def secret_jobs() -> list[dict[str, Any]]:
    named = {name: f"secret{name}" for name in ("user", "account", "group", "qos")}
    text = {
        "partition": "secretpart",
        "name": "secretname_1.sh",
        "node_list": "secretnode[1-2]",
        "exit_code": "4711471:0",
    }
    tres = {"tres_requested": "gres/secretnode=1", "tres_allocated": "gres/secretnode=1"}
    at = [f"2024-01-01T00:{number:02}:00Z" for number in range(12)]
    ids = [{"job_id": f"4711471{number:02}", "array_job_id": "4711471"} for number in range(12)]
    return [a_job(submitted_at=when, **job, **named, **text, **tres) for when, job in zip(at, ids, strict=True)]


def everything_in(path: Path) -> str:
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        return str(table.to_pydict()) + str(table.schema.metadata) + str([c.dictionary for c in dictionaries(table)])
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()


def dictionaries(table: Any) -> list[Any]:
    columns = [column for column in table.columns if hasattr(column.type, "value_type")]
    return [chunk for column in columns for chunk in column.chunks]


def test_nothing_that_was_named_is_in_any_file(tmp_path):
    result = export_history(a_history(*secret_jobs()), anonymously(tmp_path))
    for path in result.files:
        text = everything_in(path)
        assert [secret for secret in (*SECRETS, "secretcluster") if secret in text] == [], path.name
    assert len(result.files) == 6


def test_the_secrets_of_that_test_are_in_a_plain_export(tmp_path):
    result = export_history(a_history(*secret_jobs()), ExportRequest(out=tmp_path))
    text = "".join(map(everything_in, result.files))
    assert [secret for secret in SECRETS if secret not in text] == []


@pytest.mark.parametrize("name", ["jobs.parquet", "jobs.csv.gz"])
def test_an_anonymous_export_gives_the_same_study_to_the_rounding(tmp_path, month, name):
    result = export_history(month, anonymously(tmp_path, round_s=60))
    before, after = described(month), described(again(tmp_path / "out" / name))
    same = ("jobs", "gpu_jobs", "partitions", "states", "day_shape", "week_shape")
    assert [figure for figure in same if before[figure] != after[figure]] == []
    assert after["resource_hours"] == pytest.approx(before["resource_hours"], rel=0.01)
    for length in ("run_time_s", "wait_s"):
        assert after[length] == pytest.approx(before[length], rel=0.051, abs=1)
    assert result.loss is not None
    figure = result.loss["replayed_mean_wait_s.fifo"]
    assert figure["after"] == pytest.approx(figure["before"], rel=0.1)


def test_what_is_lost_is_what_whoever_loads_it_reads(tmp_path, month):
    result = export_history(month, anonymously(tmp_path, round_s=60))
    for when, history in (("before", month), ("after", again(tmp_path / "out" / "jobs.parquet"))):
        for one in study(history).statements:
            assert result.loss[f"statements.{one.name}"][when] == pytest.approx(one.value), one.name
    # What rests on sizes and lengths of time stays, to the rounding to two digits.
    for name in ("one_gpu_jobs", "long_failures", "large_and_long_jobs"):
        figure = result.loss[f"statements.{name}"]
        assert figure["after"] == pytest.approx(figure["before"], rel=0.1)


def test_days_and_total_hours_stay_where_submissions_keep_their_day(tmp_path, month):
    export_history(month, anonymously(tmp_path))
    before, after = described(month), described(again(tmp_path / "out" / "jobs.parquet"))
    assert after["week_shape"] == before["week_shape"]
    assert after["day_shape"] == pytest.approx(before["day_shape"], abs=0.02)
    assert after["resource_hours"] == pytest.approx(before["resource_hours"], rel=0.01)


def test_two_exports_have_two_keys_and_no_pseudonym_in_common(tmp_path, month):
    first = export_history(month, anonymously(tmp_path))
    users = set(again(tmp_path / "out" / "jobs.parquet").jobs["user"])
    second = export_history(month, anonymously(tmp_path))
    assert first.key_file != second.key_file
    assert users & set(again(tmp_path / "out" / "jobs.parquet").jobs["user"]) == {OTHERS}


def test_the_same_key_gives_the_same_files(tmp_path, month):
    key = tmp_path / "my.key"
    files = [export_history(month, anonymously(tmp_path / name, key_file=key)).files for name in ("one", "two")]
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]


def test_the_key_is_private_and_in_no_file_of_the_export(tmp_path):
    result = export_history(a_history(a_job()), anonymously(tmp_path))
    assert result.key_file is not None and stat.S_IMODE(result.key_file.stat().st_mode) == 0o600
    key = result.key_file.read_text().strip()
    assert len(bytes.fromhex(key)) == 32 and not any(key in everything_in(path) for path in result.files)
    assert json.loads((tmp_path / "out" / "export.json").read_text())["key"] in result.key_file.name


def test_a_key_within_the_folder_to_be_given_away_is_refused(tmp_path):
    with pytest.raises(UsageError, match="given away"):
        export_history(a_history(a_job()), anonymously(tmp_path, key_file=tmp_path / "out" / "a" / ".." / "x.key"))


@pytest.mark.parametrize("content", ["", "abc", "00" * 31, "zz" * 32])
def test_a_file_that_is_no_key_is_refused(tmp_path, content):
    (tmp_path / "x.key").write_text(content)
    with pytest.raises(UsageError, match="is not a key"):
        export_history(a_history(a_job()), anonymously(tmp_path, key_file=tmp_path / "x.key"))


def test_a_key_that_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(FileUnreadable, match="cannot be read"):
        export_history(a_history(a_job()), anonymously(tmp_path, key_file=tmp_path))


# The bound on the risk.


def three_users(**job: Any) -> list[dict[str, Any]]:
    return [a_job(user=user, **job) for user in ("ann", "bob", "eve") for _ in range(2)]


def test_too_great_a_risk_is_refused_and_nothing_is_left(tmp_path):
    request = anonymously(tmp_path, accept_risk=False, round_s=60)
    apart = [job for minute in range(6) for job in three_users(submitted_at=f"2024-01-01T00:0{minute}:00Z")]
    history = a_history(*apart[::7])
    with pytest.raises(RiskTooHigh, match=r"size and submission of a job, 100 %.*bound is 20 %") as refused:
        export_history(history, request)
    assert list(tmp_path.iterdir()) == []
    assert "--accept-risk" in refused.value.hint and "--round 1d or 7d" in refused.value.hint


def test_a_history_of_two_users_is_refused(tmp_path):
    jobs = [a_job(user=user, submitted_at="2024-01-01T00:00:00Z") for user in ("ann", "ann", "ann", "bob")]
    with pytest.raises(RiskTooHigh, match="one of the only 2 users"):
        export_history(a_history(*jobs), anonymously(tmp_path, accept_risk=False))


def test_a_risk_below_the_bound_passes(tmp_path):
    jobs = three_users(submitted_at="2024-01-01T00:00:00Z")
    result = export_history(a_history(*jobs), anonymously(tmp_path, accept_risk=False))
    assert result.risk is not None and result.risk.highest == result.risk.left_out == 0
    assert json.loads((tmp_path / "out" / "risk.json").read_text())["bound"] == 0.2


def test_jobs_are_left_out_until_the_bound_holds(tmp_path):
    at = {"submitted_at": "2024-01-01T00:00:00Z"}
    jobs = [*three_users(**at), *(a_job(user="ann", gpus=0, **at) for _ in range(20)), a_job(user="bob", gpus=0, **at)]
    result = export_history(a_history(*jobs), anonymously(tmp_path, accept_risk=False))
    assert result.risk is not None and result.risk.highest <= 0.2
    assert result.risk.left_out == 19 and result.jobs == len(jobs) - 19


def test_an_accepted_risk_leaves_no_job_out(tmp_path):
    result = export_history(a_history(a_job()), anonymously(tmp_path))
    assert result.risk is not None and (result.jobs, result.risk.traced.jobs) == (1, 1)


def test_coarser_steps_in_the_hint_are_such_as_can_be_asked_for(tmp_path):
    for step_s in COARSER_S.values():
        anonymously(tmp_path, round_s=step_s)
    with pytest.raises(UsageError, match="does not divide a week"):
        anonymously(tmp_path, round_s=7 * 60 + 1)


def test_a_part_of_a_history_is_linked_against_all_of_it(tmp_path):
    jobs = [a_job(submitted_at=f"2024-01-01T0{hour}:00:00Z") for hour in range(3)]
    jobs.append(a_job(submitted_at="2024-01-01T03:00:00Z"))
    request = anonymously(tmp_path, until=datetime(2024, 1, 1, 1, tzinfo=UTC))
    risk = export_history(a_history(*jobs), request).risk
    assert risk is not None and (risk.unique_jobs, risk.by_size_and_submission.jobs) == (1, 0)


# The comparison before and after.


def test_comparing_a_history_with_itself_shows_no_difference(month):
    found = compare_exports(month.jobs, month.jobs, timezone=ZONE)
    assert all(figure["before"] == figure["after"] for figure in found.values())
    assert found["replayed_mean_wait_s.fifo"]["before"] > found["replayed_mean_wait_s.fewest_gpus"]["before"] > 0


# What may go wrong.


def test_an_empty_window_is_an_error_and_leaves_nothing(tmp_path):
    with pytest.raises(NotEnoughHistory):
        export_history(a_history(a_job()), anonymously(tmp_path, since=datetime(2030, 1, 1, tzinfo=UTC)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "job", [{}, {"user": None, "name": None, "partition": None}, {"gpus": 0, "cpus": None}, {"run_time_s": None}]
)
def test_one_job_alone_can_be_exported(tmp_path, job):
    export_history(a_history(a_job(**job)), anonymously(tmp_path))
    for layout in LAYOUTS:
        assert len(again(tmp_path / "out" / module.NAMES[layout]).jobs) == 1


def test_a_job_that_only_waits_can_be_exported(tmp_path):
    waiting = a_job(state="PENDING", started_at=None, ended_at=None, run_time_s=None)
    export_history(a_history(waiting, waiting), anonymously(tmp_path))
    assert again(tmp_path / "out" / "jobs.parquet").jobs["started_at"].isna().all()


def test_a_folder_that_cannot_be_made_leaves_no_key(tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(FileUnwritable, match="cannot be"):
        export_history(a_history(a_job()), anonymously(tmp_path))
    assert [path.name for path in tmp_path.rglob("*.key")] == []


def test_a_write_that_fails_midway_leaves_nothing(tmp_path, monkeypatch):
    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.swf, "write_swf", full)
    with pytest.raises(FileUnwritable, match="No space left"):
        export_history(a_history(a_job()), anonymously(tmp_path))
    assert [path for path in tmp_path.rglob("*") if path.is_file() or path.name == "out"] == []


def test_a_write_that_fails_leaves_the_earlier_export(tmp_path, monkeypatch, month):
    before = {path: path.read_bytes() for path in export_history(month, anonymously(tmp_path)).files}

    def fail(*arguments: object, **options: object) -> None:
        raise FileUnwritable("full")

    monkeypatch.setattr(module.swf, "write_swf", fail)
    with pytest.raises(FileUnwritable, match="full"):
        export_history(month, anonymously(tmp_path))
    assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


@pytest.mark.parametrize("name", ["jobs.parquet", "risk.json", "export.json"])
def test_files_of_others_are_not_overwritten(tmp_path, name):
    (tmp_path / name).write_text("{}")
    with pytest.raises(UsageError, match=f"holds {name}, and no export of Helios wrote it"):
        export_history(a_history(a_job()), ExportRequest(out=tmp_path))
    assert (tmp_path / name).read_text() == "{}"


def test_an_anonymous_export_takes_the_plain_one_s_place(tmp_path):
    history = a_history(a_job())
    export_history(history, ExportRequest(out=tmp_path / "out"))
    export_history(history, anonymously(tmp_path, layouts=(ExportLayout.PARQUET,)))
    names = ["export.json", "jobs.parquet", "loss.json", "risk.json"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names


def test_other_files_in_the_folder_are_named(tmp_path):
    (tmp_path / "names.txt").write_text("ann")
    result = export_history(a_history(a_job()), ExportRequest(out=tmp_path))
    assert any("names.txt" in note for note in result.notes)
