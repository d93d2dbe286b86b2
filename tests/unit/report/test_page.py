import re
from functools import cache

from helios.report.describe import describe
from helios.report.page import render_description, render_whatif
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
    description = describe(jobs_frame(a_job(job_id="1"), a_job(job_id="2", gpus=8)), cluster="venus", timezone="UTC")
    return render_whatif(
        a_what_if(*runs, **overrides), description=description, evaluation=EVALUATION, next_steps=["helios whatif"]
    )


@cache
def the_page() -> str:
    """The page that tests read and do not change; drawing one takes a second."""
    return a_page()


def test_a_page_fetches_nothing() -> None:
    page = the_page()
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#)""", page)
    assert not re.search(r"@import|url\((?!#)", page)


def test_the_same_figures_give_the_same_bytes() -> None:
    assert a_page() == the_page()


def test_a_name_cannot_become_markup() -> None:
    page = a_page(cluster="<script>alert(1)</script>", notes=("<b>note</b>",))
    assert "<script>" not in page
    assert "<b>note" not in page


def test_a_user_s_name_cannot_become_markup_in_a_figure() -> None:
    description = describe(jobs_frame(a_job(user="<script>x</script>")), cluster="venus", timezone="UTC")
    assert "<script>" not in render_description(description)


def test_every_figure_has_words_for_those_who_cannot_see_it() -> None:
    page = the_page()
    assert page.count("<svg") == len(re.findall(r'<svg role="img" aria-label="[^"]{10,}"', page)) > 6


def test_the_notes_are_in_the_page() -> None:
    assert "7 days are assumed" in a_page(notes=("7 days are assumed",))


def test_a_page_of_one_replay_in_which_nobody_waits_can_be_drawn() -> None:
    assert "<svg" in render_whatif(a_what_if(a_run([0, 0])))


def test_what_a_site_has_today_comes_first_wherever_it_was_replayed() -> None:
    page = render_whatif(a_what_if(fewest_gpus([1, 2]), a_run([3, 4])))
    assert page.index("FIFO + EASY (limit) (today)") < page.index("<td>Fewest GPUs")


def test_a_first_replay_that_no_site_has_is_not_called_today_s() -> None:
    assert "today" not in render_whatif(a_what_if(qssf([60, 120]), fewest_gpus([3000, 4000])))


def test_a_desk_and_a_phone_each_have_their_own_figures() -> None:
    page = the_page()
    assert page.count('<div class="wide">') == page.count('<div class="narrow">') == page.count("<svg") / 2


def test_names_within_figures_are_not_used_twice() -> None:
    names = re.findall(r' id="([^"]+)"', the_page())
    assert len(names) == len(set(names)) > 0


def test_what_jobs_lack_is_in_the_page() -> None:
    description = describe(jobs_frame(a_job(user=None)), cluster="venus", timezone="UTC")
    assert "user 100 %" in render_description(description)


def test_where_nobody_waits_nothing_is_compared() -> None:
    page = render_whatif(a_what_if(a_run([0, 0]), qssf([0, 0])))
    assert "Who gains and who pays" not in page
    assert "no order of the queue can change anything" in page
