import re
import warnings
from functools import cache

from helios.report import charts
from helios.report.history import describe
from helios.report.html import render_description, render_whatif
from tests.builders import a_job, jobs_frame
from tests.unit.report.replays import a_run, a_verdict, a_what_if, fewest_gpus, qssf
from tests.unit.report.test_charts_gains import a_result
from tests.unit.report.test_whatif_gains import named

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
    assert page.index("FIFO + EASY (limit) (plain)") < page.index("<td>Fewest GPUs")


def test_a_first_replay_that_no_site_has_is_not_called_today_s() -> None:
    assert "today" not in render_whatif(a_what_if(qssf([60, 120]), fewest_gpus([3000, 4000])))


def test_a_operations_and_a_phone_each_have_their_own_figures() -> None:
    page = the_page()
    assert page.count('<div class="wide">') == page.count('<div class="narrow">') == page.count("<svg") / 2


def test_names_within_figures_are_not_used_twice() -> None:
    names = re.findall(r' id="([^"]+)"', the_page())
    assert len(names) == len(set(names)) > 0


def test_what_jobs_lack_is_in_the_page() -> None:
    description = describe(jobs_frame(a_job(user=None)), cluster="venus", timezone="UTC")
    assert "user 100 %" in render_description(description)


def test_the_verdict_comes_first_and_what_no_slurm_can_do_is_marked() -> None:
    runs = (a_run([7200] * 3), qssf([3600] * 3), qssf([60] * 3, estimates="predicted"))
    page = render_whatif(a_what_if(*runs, verdict=a_verdict((0.5, 0.52), (0.98, 1.02))))
    assert page.index("Order by predictions here") < page.index("<h2>All figures</h2>")
    marked = page.index("Not possible on a live Slurm: backfill plans with predictions.")
    assert page.rindex("<td>QSSF predicted + EASY (predicted)</td>", 0, page.index("</table>", marked)) > marked


def test_where_nobody_waits_nothing_is_compared() -> None:
    page = render_whatif(a_what_if(a_run([0, 0]), qssf([0, 0])))
    assert "Who gains and who pays" not in page
    assert "no order of the queue can change anything" in page


@cache
def the_page_with_names() -> str:
    return render_whatif(a_result())


def test_who_gains_and_who_loses_is_told_by_size_user_and_job() -> None:
    page = the_page_with_names()
    for title in ("Wait by size of job", "Wait by user", "The jobs that wait longer most", "Waiting saved"):
        assert f"<h2>{title}</h2>" in page
    assert "<h2>The queue of each partition</h2>" in page
    assert "5 users: 1 wait longer on average, 4 shorter" in page


def test_a_user_s_name_cannot_become_markup_in_a_what_if() -> None:
    page = the_page_with_names()
    assert "&lt;dee&gt;" in page
    assert "<dee>" not in page


def test_names_within_the_figures_of_users_and_partitions_are_not_used_twice() -> None:
    names = re.findall(r' id="([^"]+)"', the_page_with_names())
    assert len(names) == len(set(names)) > 0


def test_where_no_user_is_known_no_user_is_told_of() -> None:
    assert "Wait by user" not in the_page()
    assert "Wait by size of job" in the_page()


def test_a_page_does_not_grow_with_the_number_of_jobs() -> None:
    def length(n: int) -> int:
        _, result = named([n % 977 * 10 for n in range(n)], [n % 877 * 10 for n in range(n)], users="ab" * (n // 2))
        return len(render_whatif(result))

    assert length(40_000) < 1.2 * length(4_000)


def test_figures_follow_a_dark_screen() -> None:
    page = the_page()
    assert "prefers-color-scheme: dark" in page
    assert not re.search(r"(?:fill|stroke): #(?:202124|000000|5f6368|eceef1)", page)


def test_the_longest_wait_stands_beside_the_mean_where_a_phone_shows_it() -> None:
    assert "<th>Replayed</th><th>Mean</th><th>Longest</th>" in render_whatif(a_what_if(a_run([500, 700])))


def test_long_names_of_replays_leave_room_for_the_axis_on_a_phone() -> None:
    options = {"bound_share": 0.9, "wait_share": 0.5}
    result = a_what_if(a_run([500, 700]), fewest_gpus([400, 600], options=options), qssf([300, 500], options=options))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # as matplotlib says where an axis has no width left
        assert all("<svg" in (draw(result, narrow=True) or "") for draw in (charts.mean_and_longest, charts.who_gains))


def test_replays_of_a_site_without_gpus_do_not_name_gpus() -> None:
    assert fewest_gpus([1, 2], unit="CPU").label.startswith("Fewest CPUs")


def test_options_do_not_change_the_name_of_an_order() -> None:
    assert fewest_gpus([1], options={"wait_share": 0.5}).label == "Fewest GPUs + EASY (limit), wait_share 0.5"


def test_waits_by_size_and_the_longest_stand_in_the_table() -> None:
    page = the_page_with_names()
    for head in ("Longest", "Below a node", "One node", "More"):
        assert f"<th>{head}</th>" in page
