"""Whatever a person gets wrong ends in a sentence that says what to do, and leaves nothing half-written."""

from pathlib import Path

import pytest

from tests.story.shell import Helios, shell

HEADER = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"


def trace(folder: Path, *rows: str, header: str = HEADER) -> Path:
    path = folder / "trace.csv"
    path.write_text(header + "".join(f"{row}\n" for row in rows))
    return path


def job(number: int, *, user: str = "ann", gpus: int = 1, seconds: int = 60, day: int = 1) -> str:
    minute, second = divmod(number, 60)
    submitted = f"2020-09-{day:02} {minute // 60 % 24:02}:{minute % 60:02}:{second:02}"
    return f"{number},{user},v,{gpus},4,1,COMPLETED,{submitted},,,{seconds},"


def nothing_loaded(helios: Helios) -> bool:
    return "Nothing" in helios("trace", "list").out


def test_an_unknown_format_names_the_known_ones(helios: Helios, tmp_path: Path) -> None:
    path = tmp_path / "poem.txt"
    path.write_text("Shall I compare thee to a summer's day?\n")
    answer = helios("trace", "load", path, code=2)
    assert all(name in answer.err for name in ("helios", "sacct", "swf", "--format"))
    assert nothing_loaded(helios)


def test_an_empty_file_is_an_error(helios: Helios, tmp_path: Path) -> None:
    path = tmp_path / "empty.csv"
    path.touch()
    assert "empty" in helios("trace", "load", path, code=1).err
    assert nothing_loaded(helios)


def test_a_missing_file_is_an_error(helios: Helios, tmp_path: Path) -> None:
    assert "nowhere.csv" in helios("trace", "load", tmp_path / "nowhere.csv", code=1).err


def test_a_file_of_which_nothing_was_understood_names_text_line_and_column(helios: Helios, tmp_path: Path) -> None:
    answer = helios("trace", "load", trace(tmp_path, "1,ann,v,1,4,1,COMPLETED,yesterday,,,60,"), code=1)
    assert "'yesterday' in submit_time on line 2" in " ".join(answer.err.split())


def test_rejects_are_kept_where_no_row_was_understood(helios: Helios, tmp_path: Path) -> None:
    path = trace(tmp_path, "1,ann,v,1,4,1,COMPLETED,yesterday,,,60,", "2,ann,v,1,4,1,COMPLETED,tomorrow,,,60,")
    for _ in range(2):
        assert "trace describe --cluster trace" in helios("trace", "load", path, code=1).err
    rows = helios("trace", "describe", "--cluster", "trace", "--json").json["rejects"]["rows"]
    assert [row["line"] for row in rows] == [2, 3] and "tomorrow" in rows[1]["text"]


def test_a_cluster_with_refused_rows_only_is_no_choice(helios: Helios, tmp_path: Path) -> None:
    helios("trace", "load", trace(tmp_path, "1,ann,v,1,4,1,COMPLETED,yesterday,,,60,"), "--cluster", "bad", code=1)
    helios("trace", "load", trace(tmp_path, job(1)), "--cluster", "good")
    assert helios("trace", "describe", "--json").json["jobs"] == 1


def test_rows_that_make_no_sense_are_kept_with_their_line_and_shown(helios: Helios, tmp_path: Path) -> None:
    path = trace(tmp_path, job(1), "2,ann,v,-4,4,1,COMPLETED,2020-09-01 00:00:00,,,60,", "broken")
    report = helios("trace", "load", path, "--json").json
    assert report["jobs_new"] == 1
    assert sum(report["rejects"].values()) == 2
    kept = helios("trace", "describe", "--json").json["rejects"]["rows"]
    assert sorted(row["line"] for row in kept) == [3, 4]


def test_the_zone_assumed_for_local_times_is_said(helios: Helios, tmp_path: Path) -> None:
    assert "UTC" in helios("trace", "load", trace(tmp_path, job(1))).err


def test_a_month_that_ends_a_window_is_included(helios: Helios, tmp_path: Path) -> None:
    path, window = trace(tmp_path, job(1), job(2, day=30)), ("--from", "2020-09", "--to", "2020-09")
    said = helios("trace", "export", "--trace", path, *window, "--layout", "helios", "--out", tmp_path / "out").out
    assert said.startswith("2 jobs")


def test_a_zone_that_does_not_exist_is_refused(helios: Helios, tmp_path: Path) -> None:
    answer = helios("trace", "load", trace(tmp_path, job(1)), "--timezone", "Mars/Olympus", code=2)
    assert "Europe/Berlin" in answer.err


def test_a_zone_without_effect_on_a_loaded_cluster_is_refused(helios: Helios, tmp_path: Path) -> None:
    path = trace(tmp_path, job(1))
    helios("trace", "load", path, "--timezone", "Asia/Shanghai", "--cluster", "lab")
    assert (
        "loaded into lab before" in helios("trace", "load", path, "--timezone", "UTC", "--cluster", "lab", code=2).err
    )


def test_a_job_larger_than_its_partition_is_named_with_the_way_out(helios: Helios, tmp_path: Path) -> None:
    path = trace(tmp_path, job(1, gpus=17), job(2))
    answer = helios("whatif", "--trace", path, "--nodes", "v=2", "--policy", "fifo", code=1)
    assert "job 1" in answer.err
    assert "--oversized skip" in answer.err


def test_zero_length_jobs_are_replayed(helios: Helios, tmp_path: Path) -> None:
    path = trace(tmp_path, job(1, seconds=0), job(2, seconds=0))
    runs = helios("whatif", "--trace", path, "--nodes", "v=1", "--policy", "fifo", "--json").json["runs"]
    assert [run["jobs"] for run in runs] == [2, 2]


def test_a_trace_too_short_to_train_on_says_how_much_is_needed(helios: Helios, tmp_path: Path) -> None:
    helios("trace", "load", trace(tmp_path, *(job(n) for n in range(5))))
    answer = helios("model", "train", code=1)
    assert "5" in answer.err


def test_a_trace_of_one_user_can_be_learned_from(helios: Helios, tmp_path: Path) -> None:
    rows = [job(n, seconds=60 + 37 * n % 1000, day=1 + n // 100) for n in range(1500)]
    helios("trace", "load", trace(tmp_path, *rows))
    assert helios("model", "evaluate", "--json").json["jobs"] > 0


def test_an_empty_warehouse_says_how_to_fill_it(helios: Helios) -> None:
    assert "helios trace load" in helios("trace", "describe", code=2).err


def test_several_clusters_must_be_told_apart(helios: Helios, tmp_path: Path) -> None:
    helios("trace", "load", trace(tmp_path, job(1)), "--cluster", "a")
    helios("trace", "load", trace(tmp_path, job(2)), "--cluster", "b")
    answer = helios("trace", "describe", code=2)
    assert "a, b" in answer.err
    assert "--cluster" in answer.err


def test_a_window_without_jobs_says_what_the_history_spans(helios: Helios, tmp_path: Path) -> None:
    answer = helios("whatif", "--trace", trace(tmp_path, job(1)), "--from", "2021-01-01", code=1)
    assert "2020-09-01" in answer.err


@pytest.mark.parametrize(
    "options",
    [
        ("--policy", "lifo"),
        ("--service", "qsff"),
        ("--set", "qssf"),
        ("--set", "soft_limits.margin=2"),
        ("--nodes", "v"),
        ("--from", "yesterday-ish"),
        ("--warm-up", "long"),
        ("--draws", "1"),
    ],
)
def test_an_option_that_makes_no_sense_is_misuse(helios: Helios, tmp_path: Path, options: tuple[str, ...]) -> None:
    helios("whatif", "--trace", trace(tmp_path, job(1)), *options, code=2)


def test_a_database_that_is_none_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, " * 100)
    answer = shell(tmp_path, HELIOS_DATABASE_URL=f"sqlite:///{path}")("trace", "list", code=1)
    assert "notes.txt" in answer.err
    assert path.read_text().startswith("not a database")


@pytest.mark.parametrize("command", ["whatif", "trace describe", "study", "whatif energy", "whatif --service qssf"])
def test_a_report_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path, command: str) -> None:
    answer = shell(tmp_path)(*command.split(), "--trace", "missing.csv", "--report", "no/such/page.html", code=2)
    assert "--report no/such/page.html cannot be written" in answer.err  # and not that the trace is missing
    (tmp_path / "page.html").write_text("old")
    shell(tmp_path)(*command.split(), "--trace", "missing.csv", "--report", "page.html", code=1)
    shell(tmp_path)(*command.split(), "--trace", "missing.csv", "--report", "new.html", code=1)
    assert (tmp_path / "page.html").read_text() == "old" and not (tmp_path / "new.html").exists()
