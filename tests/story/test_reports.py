"""An admin's morning: history and predictions are loaded, decisions were written; every report is asked for."""

import sys
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from email.policy import default
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from helios.app.nightly import NightlyReport, nightly_pages
from helios.cli.main import main
from helios.config import Settings
from helios.errors import UsageError
from helios.model import Batch, in_submission_order
from helios.warehouse import Warehouse
from tests.builders import a_job, jobs_frame, rejects_frame
from tests.story.shell import Answer, Helios
from tests.traces import TRACES, needs_traces
from tests.unit.report.admin.frames import at, decisions_frame, predicted, predictions_frame

WINDOW = ("-S", "2026-11-20", "-E", "2026-11-20")
REPORTS = (
    ("queue",),
    ("usage",),
    ("usage", "--by", "account"),
    ("usage", "--by", "partition"),
    ("predictions",),
    ("decisions",),
    ("decisions", "--by", "service"),
)


def load(url: str, jobs: pd.DataFrame, *, predictions: pd.DataFrame, decisions: pd.DataFrame) -> None:
    with Warehouse.open(url) as warehouse:
        batch = Batch(jobs=in_submission_order(jobs), rejects=rejects_frame(), bytes_read=0)
        warehouse.load([batch], cluster="venus", path="day", sha256="0", format="sacct", timezone="UTC")
        warehouse.add_predictions("venus", predictions, made_at=datetime.fromisoformat("2026-11-20T00:00:00+00:00"))
        warehouse.add_decisions("venus", decisions)


def a_day() -> list[dict[str, Any]]:
    jobs = [
        a_job(
            job_id=str(hour),
            user="alice" if hour % 2 else "bob",
            account="lab",
            submitted_at=at(f"{hour:02d}:00"),
            started_at=at(f"{hour:02d}:10"),
            run_time_s=3_600.0,
            gpus=4,
        )
        for hour in range(20)
    ]
    pending = {"state": "PENDING", "started_at": None, "ended_at": None, "run_time_s": float("nan")}
    return [*jobs, a_job(job_id="99", user="carol", account="hpc", submitted_at=at("20:00"), **pending)]


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of one day."""
    folder = tmp_path_factory.mktemp("reports")
    jobs = a_day()
    load(
        f"sqlite:///{folder / 'helios.db'}",
        jobs_frame(*jobs),
        predictions=predictions_frame(*(predicted(job, 1_800) for job in jobs)),
        decisions=decisions_frame(
            {"target": "99", "after": "urgency 0.4", "decided_at": at("20:01"), "reason": "predicted 30 min [4 GPUs]"},
            {"target": "19", "outcome": "refused: the job is held", "decided_at": at("19:01")},
        ),
    )
    return folder / "helios.db"


@pytest.fixture
def helios(warehouse: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Helios:
    """Type a command in this very process: the same door, without the seconds that Python takes to start."""
    return _typed_here(f"sqlite:///{warehouse}", monkeypatch, capfd)


def _typed_here(url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Helios:
    monkeypatch.setenv("HELIOS_DATABASE_URL", url)

    def helios(*arguments: object, code: int = 0) -> Answer:
        monkeypatch.setattr(sys, "argv", ["helios", *map(str, arguments)])
        ended = 0
        try:
            main()
        except SystemExit as leaving:
            ended = int(leaving.code or 0)
        said = capfd.readouterr()
        assert ended == code, f"exit {ended}\n{said.out}\n{said.err}"
        return Answer(code=ended, out=said.out, err=said.err)

    return helios


def rows(answer: Answer) -> list[list[str]]:
    return [line.split("|") for line in answer.out.splitlines()]


def test_users_are_reported_as_sacct_would(helios: Helios) -> None:
    answer = helios("report", "usage", *WINDOW, "-P", "-o", "user,jobs,gpuhours,meanwait,waiting")
    assert rows(answer) == [
        ["User", "Jobs", "GPUHours", "MeanWait", "Waiting"],
        ["alice", "10", "40.0", "00:10:00", "0"],
        ["bob", "10", "40.0", "00:10:00", "0"],
        ["carol", "1", "0.0", "", "1"],
    ]


def test_hours_are_those_held_in_the_window(helios: Helios) -> None:
    window = ("-S", "2026-11-20T01:05", "-E", "2026-11-20T01:25")
    found = helios("report", "usage", *window, "--json").json["rows"]
    # Bob's job of 00:00 runs until 01:10, Alice's of 01:00 from then on. Nobody submits one.
    assert {row["group"]: row["gpu_hours"] for row in found} == pytest.approx({"alice": 1.0, "bob": 1 / 3})
    assert [row["jobs"] for row in found] == [0, 0]
    assert "held in the window" in helios("report", "usage", *window).err


def test_r_is_partition_and_n_takes_the_header_away(helios: Helios) -> None:
    answer = helios(
        "report", "usage", "--by", "partition", *WINDOW, "-nP", "-r", "gpu", "-A", "lab", "-o", "partition,jobs"
    )
    assert answer.out == "gpu|20\n"


def test_users_are_chosen_by_commas_and_by_repetition(helios: Helios) -> None:
    assert len(helios("report", "usage", *WINDOW, "-u", "alice,carol", "-nP").out.splitlines()) == 2
    assert len(helios("report", "usage", *WINDOW, "-u", "alice", "-u", "bob", "-nP").out.splitlines()) == 2


@pytest.mark.parametrize("report", REPORTS, ids=" ".join)
def test_every_report_fits_100_columns_and_says_its_window_beside_the_answer(
    helios: Helios, report: tuple[str, ...]
) -> None:
    answer = helios("report", *report, *WINDOW)
    lines = answer.out.splitlines()
    assert len(lines) >= 3
    assert set(lines[1]) == {"-", " "}
    assert max(map(len, lines)) <= 100
    assert "venus" in answer.err and "2026-11-21 00:00" in answer.err


@pytest.mark.parametrize("report", REPORTS, ids=" ".join)
def test_every_report_answers_a_program_with_json(helios: Helios, report: tuple[str, ...]) -> None:
    found = helios("report", *report, *WINDOW, "--json").json
    assert found["rows"]
    assert set(found) == {"title", "rows", "total", "notes"}


@pytest.mark.parametrize("report", REPORTS, ids=" ".join)
def test_an_empty_window_is_no_error_and_says_so(helios: Helios, report: tuple[str, ...]) -> None:
    answer = helios("report", *report, "-S", "2001-01-01", "-E", "2001-01-01")
    assert len(answer.out.splitlines()) == 1
    assert answer.out.startswith(("No", "Nothing"))


def test_who_is_shown_nothing_learns_what_the_history_spans(helios: Helios) -> None:
    answer = helios("report", "usage", "-S", "2001-01-01", "-E", "2001-01-01")
    assert "The history spans 2026-11-20 00:00 to 2026-11-20 20:00." in answer.out


@pytest.mark.parametrize("report", REPORTS, ids=" ".join)
def test_fields_are_listed_without_a_database(
    tmp_path: Path, report: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    typed = _typed_here(f"sqlite:///{tmp_path / 'helios.db'}", monkeypatch, capfd)
    lines = typed("report", *report, "-o", "help", code=2).err.splitlines()
    assert "no field 'help'" in lines[0]
    assert len(lines) >= 9
    assert not (tmp_path / "helios.db").exists()


def test_the_queue_of_a_moment_names_who_waits(helios: Helios) -> None:
    answer = helios("report", "queue", "-E", "2026-11-20T21:00", "-nP", "-o", "user,waiting,oldest,oldestjob")
    assert rows(answer) == [["carol", "1", "01:00:00", "99"]]


def test_the_audit_is_filtered_and_shows_reasons_as_they_were_written(helios: Helios) -> None:
    answer = helios("report", "decisions", *WINDOW, "-u", "carol", "-nP", "-o", "target,result,reason")
    assert answer.out == "99|would|predicted 30 min [4 GPUs]\n"
    refused = helios("report", "decisions", *WINDOW, "--result", "refused", "-nP", "-o", "target,remark")
    assert refused.out == "19|the job is held\n"
    assert helios("report", "decisions", *WINDOW, "-j", "99", "-nP", "-o", "target").out == "99\n"


def test_predictions_are_judged_by_user(helios: Helios) -> None:
    answer = helios("report", "predictions", *WINDOW, "--by", "user", "-nP", "-o", "group,jobs,offby,bias")
    assert rows(answer) == [["alice", "10", "2.0x", "0.5x"], ["bob", "10", "2.0x", "0.5x"]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("usage", "-S", "yestreday"), "not a date or time"),
        (("usage", "-S", "now", "-E", "now-1days"), "before the end"),
        (("usage", "-o", "usr"), "no field 'usr'"),
        (("usage", "-P", "--json"), "Give one of them"),
        (("usage", "--cluster", "earth"), "No cluster 'earth'"),
        (("shadow", "--nodes", "many"), "--nodes"),
    ],
)
def test_a_misuse_is_told_with_what_to_write(helios: Helios, arguments: tuple[str, ...], words: str) -> None:
    assert words in helios("report", *arguments, code=2).err


def test_a_shadow_s_day_is_replayed(helios: Helios) -> None:
    answer = helios("report", "shadow", "--day", "2026-11-20", "--nodes", "1", "--gpus-per-node", "8")
    assert answer.out.startswith("A shadow would have given 1 job another place.")
    assert "replayed, as decided" in answer.out
    assert "fairshare" in answer.err
    found = helios("report", "shadow", "--day", "2026-11-20", "--json").json
    assert (found["cluster"], found["decided"], found["recorded"]["jobs"]) == ("venus", 1, 20)


def night(database: Path, folder: Path, *, day: str = "2026-11-20", **report: int) -> NightlyReport:
    """Write the pages of a day."""
    settings = Settings.model_validate({"database": {"url": f"sqlite:///{database}"}, "report": report})
    return nightly_pages(settings, None, day, folder, now=datetime.now(UTC))


def test_the_report_of_a_night_is_printed(
    warehouse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, helios: Helios
) -> None:
    monkeypatch.setenv("HELIOS_REPORT_FOLDER", str(tmp_path))
    assert "Write one: helios nightly" in helios("nightly", "--show", code=1).err
    found = [night(warehouse, tmp_path, day=day) for day in ("2026-11-19", "2026-11-20")]
    newest = helios("nightly", "--show", "--json").json
    assert (newest["subject"], newest["page"]) == (found[1].subject, str(found[1].page))
    assert found[0].subject.split(",")[0] in helios("nightly", "--show", "--day", "2026-11-19").out
    assert "2026-11-19, 2026-11-20" in helios("nightly", "--show", "--day", "2026-11-18", code=1).err


def test_a_night_is_written_as_page_and_mail(warehouse: Path, tmp_path: Path) -> None:
    (tmp_path / "venus-2019-01-01.html").write_text("old")
    (tmp_path / "venus-notes.html").write_text("not ours")
    found = night(warehouse, tmp_path)
    mail = message_from_bytes(found.mail.read_bytes(), policy=default)
    assert (mail["Subject"], mail["To"]) == (found.subject, "root")
    assert mail.get_body().get_content().startswith(found.subject[:40])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(before) == {
        "venus-2026-11-20.html",
        "venus-2026-11-20.eml",
        "venus-2019-01-01.html",
        "venus-notes.html",
    }
    night(warehouse, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_only_so_many_nights_are_kept(warehouse: Path, tmp_path: Path) -> None:
    for name in ("venus-2019-01-01", "venus-2019-01-02"):
        for ending in (".html", ".eml"):
            (tmp_path / f"{name}{ending}").write_text("old")
    (tmp_path / "earth-2019-01-01.html").write_text("another cluster's")
    night(warehouse, tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.glob("*.html")) == [
        "earth-2019-01-01.html",
        "venus-2019-01-02.html",
        "venus-2026-11-20.html",
    ]


def test_a_folder_that_cannot_be_written_is_told(warehouse: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match="cannot be written"):
        night(warehouse, tmp_path / "file")


@pytest.fixture
def sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Helios:
    """Type a command on a history of two sweeps and other jobs."""
    sweep = [
        a_job(job_id=str(number), name=f"train lr={number // 6}", submitted_at=at("06:00"), run_time_s=7_200.0)
        for number in range(1, 13)
    ]
    others = [a_job(job_id=str(90 + hour), user="bob", gpus=8, submitted_at=at(f"{hour:02d}:30")) for hour in (6, 7)]
    url = f"sqlite:///{tmp_path / 'helios.db'}"
    load(url, jobs_frame(*sweep, *others), predictions=predictions_frame(), decisions=decisions_frame())
    return _typed_here(url, monkeypatch, capfd)


def test_repeated_jobs_are_reported_with_what_packing_would_have_saved(sweeps: Helios) -> None:
    answer = sweeps("report", "trials", *WINDOW, "--nodes", "1", "--gain", "1.2,2")
    assert max(map(len, answer.out.splitlines())) <= 100
    table, said, replays = answer.out.split("\n\n")
    assert table.splitlines()[2].split() == ["alice", "1", "12", "24.0", "22.0", "24.0", "3.3", "12.0"]
    assert "Between 22 and 24 of 24 GPU hours" in " ".join(said.split())
    assert "everybody else would have waited" in " ".join(said.split())
    assert replays.splitlines()[2].startswith("Nothing packed")
    assert "evidence, not proof" in answer.err


def test_repeated_jobs_fit_a_terminal_of_80_columns(sweeps: Helios) -> None:
    for by in ("user", "group"):
        table = sweeps("report", "trials", *WINDOW, "--by", by).out.split("\n\n")[0]
        assert max(map(len, table.splitlines())) <= 80


def test_repeated_jobs_are_told_to_programs_and_on_a_page(sweeps: Helios, tmp_path: Path) -> None:
    page = tmp_path / "trials.html"
    found = sweeps("report", "trials", *WINDOW, "--by", "group", "--json", "--report", page).json
    assert set(found) >= {"title", "rows", "total", "notes", "sums", "gains", "replays"}
    assert [(row["name"], row["jobs"], row["evidence"]) for row in found["rows"]] == [("train lr=0", 12, "alike names")]
    assert found["sums"]["fusible_hours_low"] == pytest.approx(22)
    told = sweeps("study", "--from", "2026-11-20", "--to", "2026-11-20", "--json").json["statements"][15]
    assert told["parts"]["share_of_hours_repeated_low"] == pytest.approx(22 / found["sums"]["gpu_hours"])
    assert "All alike jobs, gain 1.26" in page.read_text()
    lines = rows(sweeps("report", "trials", *WINDOW, "-nP", "-o", "user,jobs,onegpuh"))
    assert lines == [["alice", "12", "24.0"]]


def test_a_gain_that_cannot_be_is_refused(sweeps: Helios) -> None:
    assert "1.0,1.87" in sweeps("report", "trials", "--gain", "3", code=2).err
    assert "not possible" in sweeps("report", "trials", "--gain", "1,3", code=2).err


TRACE_REPORTS = {
    "philly_vc_aug-oct2017.csv.gz": ("2017-10-02", "2017-10-09"),
    "sacct_graham_may-jun2021.txt.gz": ("2021-05-10", "2021-05-17"),
    "KTH-SP2-1996-2.1-cln.swf.gz": ("1997-01-06", "1997-01-13"),
}


@needs_traces
@pytest.mark.parametrize("trace", TRACE_REPORTS)
def test_reports_of_real_traces_add_up(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    helios = _typed_here(f"sqlite:///{tmp_path / 'helios.db'}", monkeypatch, capfd)
    helios("trace", "load", TRACES / trace)
    since, until = TRACE_REPORTS[trace]
    with Warehouse.open(f"sqlite:///{tmp_path / 'helios.db'}") as opened:
        name = opened.clusters()["name"].iloc[0]
        begin, last = (datetime.fromisoformat(f"{day}T00:00:00+00:00") for day in (since, until))
        end = last + timedelta(days=1)
        jobs, every = opened.jobs(name, since=begin, until=end), opened.jobs(name)
    held_s = every["ended_at"].clip(upper=end) - every["started_at"].clip(lower=begin)
    hours = (every["gpus"] * held_s.dt.total_seconds().clip(lower=0).fillna(0)).sum() / 3600
    unstarted = jobs[jobs["started_at"].isna()]  # of Philly's no start is recorded
    hours += (unstarted["gpus"] * unstarted["run_time_s"].fillna(0)).sum() / 3600
    for by in ("user", "account", "partition"):
        found = helios("report", "usage", "--by", by, "-S", since, "-E", until, "--json").json
        assert sum(row["jobs"] for row in found["rows"]) == found["total"]["jobs"] == len(jobs)
        assert sum(row["gpu_hours"] or 0.0 for row in found["rows"]) == pytest.approx(hours)
    found_night = night(tmp_path / "helios.db", tmp_path / "nights", day=since)
    mail = message_from_bytes(found_night.mail.read_bytes(), policy=default)
    assert max(map(len, mail.get_body().get_content().splitlines())) <= 76
