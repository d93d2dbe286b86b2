import re

import pytest
from rich.console import Console

from helios.report.describe import describe
from helios.report.page import render_description, render_whatif
from helios.report.tables import whatif_table
from tests.builders import a_job, jobs_frame
from tests.unit.report.replays import a_run, a_what_if, fewest_gpus, qssf

GPUS = [1, 4, 16] * 20
EVALUATION = {
    "cluster": "venus",
    "train_until": "2020-09-10T00:00:00+00:00",
    "train_jobs": 1000,
    "jobs": 500,
    "spearman": 0.7,
    "median_abs_log_error": 0.8,
    "mae_s": 3000.0,
    "within_10pct": 0.1,
    "within_50pct": 0.4,
    "within_100pct": 0.7,
    "coverage_p10_p90": 0.75,
    "controls": {},
}


def a_page(**overrides: object) -> str:
    runs = (
        a_run(list(range(0, 6000, 100)), gpus=GPUS),
        qssf(list(range(0, 3000, 50)), gpus=GPUS),
        qssf([0] * 60, gpus=GPUS, run_times="true", estimates="true"),
    )
    description = describe(jobs_frame(a_job(), a_job(gpus=8)), cluster="venus", timezone="UTC")
    return render_whatif(
        a_what_if(*runs, **overrides), description=description, evaluation=EVALUATION, next_steps=["helios whatif"]
    )


def test_a_page_fetches_nothing() -> None:
    page = a_page()
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#)""", page)
    assert not re.search(r"@import|url\((?!#)", page)


def test_the_same_figures_give_the_same_bytes() -> None:
    assert a_page() == a_page()


def test_a_name_cannot_become_markup() -> None:
    page = a_page(cluster="<script>alert(1)</script>", notes=("<b>note</b>",))
    assert "<script>" not in page
    assert "<b>note" not in page


def test_a_user_s_name_cannot_become_markup_in_a_figure() -> None:
    description = describe(jobs_frame(a_job(user="<script>x</script>")), cluster="venus", timezone="UTC")
    assert "<script>" not in render_description(description)


def test_every_figure_has_words_for_those_who_cannot_see_it() -> None:
    page = a_page()
    assert page.count("<svg") == len(re.findall(r'<svg role="img" aria-label="[^"]{10,}"', page)) > 6


def test_the_notes_are_in_the_page() -> None:
    assert "7 days are assumed" in a_page(notes=("7 days are assumed",))


def test_a_page_of_one_replay_in_which_nobody_waits_can_be_drawn() -> None:
    assert "<svg" in render_whatif(a_what_if(a_run([0, 0])))


def test_what_a_site_has_today_comes_first_wherever_it_was_replayed() -> None:
    page = render_whatif(a_what_if(fewest_gpus([1, 2]), a_run([3, 4])))
    assert page.index("FIFO + EASY (limit) (today)") < page.index("<td>Fewest GPUs")


@pytest.mark.parametrize("width", [80, 160])
def test_the_table_fits_the_terminal(width: int) -> None:
    result = a_what_if(a_run([100] * 60, gpus=GPUS), qssf([90_000] * 60, gpus=GPUS, estimates="predicted"))
    console = Console(width=width, record=True, file=None)
    with console.capture() as captured:
        console.print(whatif_table(result, width=width))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= width
    assert sum("1d01h" in line for line in lines) == 1
