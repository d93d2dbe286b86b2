from typing import Any

import pandas as pd
import pytest
from rich.console import Console, RenderableType

from helios.report.history import describe
from helios.report.tables import describe_missing, description_tables, evaluation_table, load_table, rejects_table
from helios.report.whatif_tables import whatif_table
from tests.builders import a_job, jobs_frame, rejects_frame
from tests.unit.report.replays import a_run, a_what_if, an_oracle, fewest_gpus, qssf

GPUS = [1, 4, 16] * 20
LOADED = {
    "cluster": "venus",
    "rows_read": 10,
    "jobs_new": 7,
    "jobs_updated": 1,
    "jobs_unchanged": 0,
    "rejects": {"unknown state": 2},
    "already_loaded": False,
}


def printed(*parts: RenderableType, width: int = 80) -> list[str]:
    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    return captured.get().splitlines()


def row_of(name: str, lines: list[str]) -> str:
    return next(line for line in lines if line.startswith(name))


@pytest.mark.parametrize("width", [80, 160])
def test_a_comparison_fits_the_terminal_without_a_figure_broken(width: int) -> None:
    result = a_what_if(a_run([100] * 60, gpus=GPUS), qssf([90_000] * 60, gpus=GPUS, estimates="predicted"))
    lines = printed(whatif_table(result, width=width), width=width)
    assert max(map(len, lines)) <= width
    assert sum("1d01h" in line for line in lines) == 1


def test_today_comes_first_and_the_oracles_last() -> None:
    result = a_what_if(an_oracle([1]), fewest_gpus([2]), a_run([3]))
    lines = printed(whatif_table(result, width=160), width=160)
    places = [lines.index(row_of(name, lines)) for name in ("FIFO + EASY (limit) (plain)", "Fewest", "QSSF true")]
    assert places == sorted(places)


def test_a_first_replay_that_no_site_has_is_not_called_today() -> None:
    table = "\n".join(printed(whatif_table(a_what_if(qssf([3]), fewest_gpus([2])), width=160), width=160))
    assert "today" not in table


def test_a_wide_terminal_shows_every_figure() -> None:
    lines = printed(whatif_table(a_what_if(a_run([3600] * 3, gpus=[1, 8, 9])), width=160), width=160)
    waits = ["1h00m"] * 7
    assert row_of("FIFO", lines).split()[-12:-3] == [*waits, "1h10m", "7.0"]


def test_the_verdict_stands_above_the_comparison() -> None:
    result = a_what_if(a_run([7200] * 3), qssf([3600] * 3), qssf([60] * 3, estimates="predicted"))
    lines = printed(whatif_table(result, width=160), width=160)
    assert "no evidence" in lines[0]
    marked = next(place for place, line in enumerate(lines) if "Not possible on a live Slurm" in line)
    assert "QSSF predicted + EASY (predicted)" in lines[marked + 1]


def test_a_description_fits_eighty_columns() -> None:
    jobs = [a_job(gpus=size, state=state) for size in (1, 8, 65) for state in ("TIMEOUT", "FAILED", None)]
    lines = printed(*description_tables(describe(jobs_frame(*jobs), cluster="x", timezone="Asia/Shanghai")))
    assert max(map(len, lines)) <= 80
    assert row_of(">64", lines).split()[-1] == "5s"


def test_a_trace_without_gpus_is_said_to_be_measured_in_cpus() -> None:
    lines = printed(*description_tables(describe(jobs_frame(a_job(gpus=0)), cluster="x", timezone="UTC")))
    assert "no job names a GPU in this history" in row_of("Resource", lines)


def test_what_jobs_lack_is_named_in_words_few_jobs_by_number() -> None:
    jobs = [a_job(name=None, user=None if place == 0 else "ann") for place in range(300)]
    description = describe(jobs_frame(*jobs), cluster="x", timezone="UTC")
    assert describe_missing(description) == "user 1 job, name 100 %"


def test_markup_in_names_is_printed_as_it_is() -> None:
    description = describe(jobs_frame(a_job(user="[red]ann[/]")), cluster="[bold]x", timezone="UTC")
    text = "\n".join(printed(*description_tables(description)))
    assert "[red]ann[/]" in text
    assert "[bold]x" in text


def test_a_load_counts_what_it_refused_by_reason() -> None:
    lines = printed(load_table(LOADED))
    assert "10 rows read, 7 new jobs" in lines[0]
    assert row_of("unknown state", lines).split()[-1] == "2"


def test_a_load_without_rejects_says_so() -> None:
    assert "Every row could be read." in printed(load_table({**LOADED, "rejects": {}}))


def test_a_file_loaded_before_is_said_to_have_changed_nothing() -> None:
    assert "nothing changed" in printed(load_table({**LOADED, "already_loaded": True}))[0]


def test_rejects_are_shown_with_their_line_and_text() -> None:
    counts = pd.DataFrame({"reason": ["unknown state"], "rows": [1]})
    rejects = rejects_frame((17, "unknown state", "1|venus|[odd]")).assign(path="a.csv")
    text = "\n".join(printed(rejects_table(rejects, counts), width=160))
    assert all(part in text for part in ("17", "1|venus|[odd]", "unknown state"))


def test_a_model_stands_above_its_controls() -> None:
    figures: dict[str, Any] = {
        "spearman": 0.7, "median_abs_log_error": 0.8, "mae_s": 3000.0, "within_10pct": 0.1, "within_50pct": 0.4,
        "within_100pct": 0.7, "coverage_p10_p90": 0.75,
    }  # fmt: skip
    blind = {**figures, "spearman": None, "coverage_p10_p90": None}
    answer = {
        **figures, "cluster": "x", "train_jobs": 9, "jobs": 5, "train_until": "2020-09-10T00:00:00+00:00",
        "controls": {"size_only": blind},
    }  # fmt: skip
    lines = printed(evaluation_table(answer))
    assert lines.index(row_of("Helios", lines)) < lines.index(row_of("median of that size", lines))
    assert row_of("median of that size", lines).split()[-2] == "-"


def test_the_upper_bound_is_shown_for_each_group_beside_shrinkages() -> None:
    figures: dict[str, Any] = {
        "spearman": 0.7, "spearman_90": [0.6, 0.8], "spearman_by_burst": 0.5, "median_abs_log_error": 0.8,
        "mae_s": 3000.0, "within_10pct": 0.1, "within_50pct": 0.4, "within_100pct": 0.7, "coverage_p10_p90": 0.75,
        "coverage_p90": 0.9, "bias_log": -0.25, "log_width": 2.0,
        "coverage_p90_by_group": {"large": {"jobs": 36, "share": 0.89}, "new_user": {"jobs": 0, "share": None}},
    }  # fmt: skip
    raw = {**figures, "coverage_p90": 0.8, "coverage_p90_by_group": {"large": {"jobs": 36, "share": 0.69}}}
    answer = {
        **figures, "cluster": "x", "train_jobs": 9, "jobs": 5, "train_until": "2020-09-10T00:00:00+00:00",
        "at_start": {**figures, "spearman": 0.75}, "controls": {"shrinkage": raw},
    }  # fmt: skip
    lines = printed(evaluation_table(answer), width=80)
    assert row_of("larger than 8", lines).split()[3:] == ["36", "89", "%", "69", "%"]
    assert row_of("of users with fewer", lines).split()[-3:] == ["0", "-", "-"]
    assert row_of("all jobs", lines).split()[3:6] == ["90", "%", "80"]
    assert "0.750" in row_of("Helios, at job's start", lines)


@pytest.mark.parametrize("width", [40, 60])
def test_a_narrow_terminal_shows_the_longest_wait(width: int) -> None:
    result = a_what_if(a_run([100] * 60, gpus=GPUS), qssf([90_000] * 60, gpus=GPUS))
    lines = printed(whatif_table(result, width=width), width=width)
    assert max(map(len, lines)) <= width
    assert any("Longest" in line for line in lines)
    assert sum("1d01h" in line for line in lines) >= 1
