import re
from xml.etree import ElementTree

import matplotlib
import pytest

from helios.report import charts
from helios.report.history import describe
from tests.builders import a_job, jobs_frame
from tests.unit.report.replays import a_run, a_what_if, an_oracle, fewest_gpus, qssf

GPUS = [1, 4, 16] * 20
RESULT = a_what_if(
    a_run(list(range(0, 6000, 100)), gpus=GPUS),
    qssf(list(range(0, 3000, 50)), gpus=GPUS),
    fewest_gpus(list(range(0, 9000, 150)), gpus=GPUS),
    an_oracle([0] * 60, gpus=GPUS),
)


def words(svg: str | None) -> str:
    assert svg is not None
    return " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg))


@pytest.mark.parametrize("draw", [charts.who_gains, charts.mean_and_longest, charts.waits, charts.over_time])
@pytest.mark.parametrize("narrow", [False, True])
def test_each_comparison_is_well_formed_and_names_its_replays(draw: object, narrow: bool) -> None:
    svg = draw(RESULT, narrow=narrow)  # type: ignore[operator]  # because parametrize hides the type
    ElementTree.fromstring(svg.replace("xlink:", ""))
    assert "QSSF predicted" in words(svg)


def test_a_figure_leaves_matplotlib_s_settings_alone() -> None:
    before = dict(matplotlib.rcParams)
    charts.mean_and_longest(RESULT)
    assert dict(matplotlib.rcParams) == before


def test_oracles_are_not_among_those_who_gain() -> None:
    assert "QSSF true" not in words(charts.who_gains(RESULT))


def test_where_nothing_is_compared_nobody_gains() -> None:
    assert charts.who_gains(a_what_if(a_run([1, 2]))) is None


def test_where_nobody_waits_no_curve_is_drawn() -> None:
    assert charts.waits(a_what_if(a_run([0, 0]))) is None


def test_an_axis_of_like_waits_still_has_a_scale() -> None:
    drawn = charts.waits(a_what_if(a_run([70, 110, 205]), qssf([80, 90, 200])))
    assert drawn is not None
    assert "1 min" in drawn
    assert "10 min" in drawn


def test_preempted_jobs_have_no_line_over_time() -> None:
    srtf = a_run([5, 5], policy="srtf", run_times="true", backfill="none", estimates=None)
    assert charts.over_time(a_what_if(srtf)) is None


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("every_s", [0, 1, 60, 3_600, 20_000, 86_400, 10 * 86_400])
@pytest.mark.parametrize("narrow", [False, True])
def test_a_window_of_any_length_can_be_drawn(every_s: int, narrow: bool) -> None:
    result = a_what_if(a_run([3] * 10, run_time_s=0, every_s=every_s))
    assert "Jobs waiting" in words(charts.over_time(result, narrow=narrow))


def test_a_user_s_name_is_never_read_as_mathematics() -> None:
    description = describe(jobs_frame(a_job(user=r"$\frac{$")), cluster="x", timezone="UTC")
    assert r"$\frac{$" in words(charts.busiest_users(description))


def test_a_long_name_is_cut() -> None:
    description = describe(jobs_frame(a_job(user="u" * 80)), cluster="x", timezone="UTC")
    assert "u" * 23 + "…" in words(charts.busiest_users(description))


def test_a_history_without_starts_has_no_hours_in_use() -> None:
    known, unknown = (
        describe(jobs_frame(job), cluster="x", timezone="UTC")
        for job in (a_job(), a_job(started_at=None, ended_at=None))
    )
    assert "in use by hour" in words(charts.day_and_week(known))
    assert "in use by hour" not in words(charts.day_and_week(unknown))
