"""Series of busy nodes: each layout read, each flaw mended in one way and said, each impossibility refused."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helios.errors import FileUnreadable, FormatUnknown, NothingUnderstood, UsageError
from helios.ingest.node_series import read_series, resample, sum_series
from helios.model import NodeSeries
from tests.traces import TRACES, needs_traces

NEW_YEAR_S = 1_577_836_800  # 2020-01-01 00:00:00 UTC


def a_series_file(folder: Path, *rows: str, header: str = "time,active,total", name: str = "gpu.csv") -> Path:
    path = folder / name
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def minutes(*active: float, total: int = 9) -> list[str]:
    return [f"2020-01-01 00:{minute:02d}:00,{nodes},{total}" for minute, nodes in enumerate(active)]


def read(path: Path, *, timezone: str = "UTC", **options: float) -> NodeSeries:
    return read_series(path, timezone=timezone, **options)


def a_series(*active: float, step_s: int = 60, start_s: int = NEW_YEAR_S, gaps: tuple[int, ...] = ()) -> NodeSeries:
    return NodeSeries(
        name="gpu",
        start_s=start_s,
        step_s=step_s,
        active=np.array(active, dtype=np.float64),
        total=np.full(len(active), 9.0),
        gaps=np.isin(np.arange(len(active)), gaps),
    )


def test_time_active_and_total_are_read(tmp_path):
    series = read(a_series_file(tmp_path, *minutes(3, 4, 5)))
    assert (series.name, series.start_s, series.step_s) == ("gpu", NEW_YEAR_S, 60)
    assert (series.active.tolist(), series.total.tolist()) == ([3, 4, 5], [9, 9, 9])
    assert not series.gaps.any() and series.notes == ()


def test_gzip_is_read_and_other_columns_do_not_matter(tmp_path):
    path = tmp_path / "gpu.csv.gz"
    path.write_bytes(
        gzip.compress(b"remark,total,TIME,active\nx,9,2020-01-01T00:00:00Z,3\ny,9,2020-01-01T00:01:00Z,4\n")
    )
    assert read(path, timezone="Asia/Shanghai").start_s == NEW_YEAR_S


def test_times_without_a_zone_are_in_the_one_given(tmp_path):
    assert read(a_series_file(tmp_path, *minutes(3, 4)), timezone="Asia/Shanghai").start_s == NEW_YEAR_S - 8 * 3_600


def test_the_total_is_told_where_the_file_does_not_tell_it(tmp_path):
    path = a_series_file(tmp_path, "2020-01-01 00:00:00,3", "2020-01-01 00:01:00,4", header="time,active")
    assert read(path, total=7).total.tolist() == [7, 7]
    with pytest.raises(UsageError, match="--total N"):
        read(path)


def test_gpus_are_nodes_rounded_up_and_it_is_said(tmp_path):
    path = a_series_file(
        tmp_path,
        "2020-01-01 00:00:00,64,0",
        "2020-01-01 00:01:00,64,9",
        header="time,total_gpu_num,running_gpu_num",
    )
    series = read(path, gpus_per_node=8)
    assert (series.active.tolist(), series.total.tolist()) == ([0, 2], [8, 8])
    assert "8 are taken for a node, rounded up" in series.notes[0]


def test_a_hole_keeps_the_last_value_is_marked_and_said(tmp_path):
    rows = minutes(3, 4, 0, 0, 0, 8, 7)
    series = read(a_series_file(tmp_path, *rows[:2], *rows[5:]))
    assert series.active.tolist() == [3, 4, 4, 4, 4, 8, 7]
    assert series.gaps.tolist() == [False, False, True, True, True, False, False]
    assert "a hole of 0.1 h" in series.notes[0]


def test_rows_out_of_order_are_sorted_and_it_is_said(tmp_path):
    rows = minutes(3, 4, 5)
    series = read(a_series_file(tmp_path, rows[2], rows[0], rows[1]))
    assert series.active.tolist() == [3, 4, 5] and "not in the order of time" in series.notes[0]


def test_of_two_rows_of_one_minute_the_larger_counts(tmp_path):
    series = read(a_series_file(tmp_path, *minutes(3, 4, 5), "2020-01-01 00:01:00,2,9"))
    assert series.active.tolist() == [3, 4, 5]
    assert any("1 rows fall on a step that has another" in note for note in series.notes)


def test_an_hour_that_daylight_saving_repeats_is_two_hours(tmp_path):
    clock = [f"2020-10-25 {hour:02d}:{minute:02d}:00" for hour in (1, 2, 2, 3) for minute in range(60)]
    rows = [f"{time},{number},300" for number, time in enumerate(clock)]
    series = read(a_series_file(tmp_path, *rows), timezone="Europe/Berlin")
    assert series.active.tolist() == list(range(240)) and series.notes == ()


def test_more_active_than_there_are_raise_the_total_and_it_is_said(tmp_path):
    series = read(a_series_file(tmp_path, *minutes(3, 12, 5)))
    assert series.total.tolist() == [9, 12, 9] and "in 1 steps more nodes are active" in series.notes[0]


def test_rows_that_make_no_sense_are_left_out_and_counted(tmp_path):
    rows = [*minutes(3, 4, 5), "soon,3,9", "2020-01-01 00:03:00,many,9", "2020-01-01 00:03:00,-1,9", ",,"]
    series = read(a_series_file(tmp_path, *rows))
    assert len(series) == 3 and "4 rows without a time or a number" in series.notes[0]


@pytest.mark.parametrize("header", ["job_id,submit_time", "time,total", "active,total", ""])
def test_another_file_is_refused_with_what_is_needed(tmp_path, header):
    with pytest.raises(FormatUnknown, match="time,active,total"):
        read(a_series_file(tmp_path, "1,2", header=header))


def test_a_file_without_one_row_of_sense_is_refused(tmp_path):
    with pytest.raises(NothingUnderstood):
        read(a_series_file(tmp_path, "soon,3,9"))


def test_a_damaged_or_missing_file_is_refused(tmp_path):
    path = tmp_path / "gpu.csv.gz"
    path.write_bytes(gzip.compress(b"time,active,total\n" + b"2020-01-01 00:00:00,3,9\n" * 9_999)[:-20])
    for wrong in (path, tmp_path / "none.csv"):
        with pytest.raises(FileUnreadable):
            read(wrong)


def test_one_wrong_century_does_not_fill_the_memory(tmp_path):
    with pytest.raises(UsageError, match="wrong date"):
        read(a_series_file(tmp_path, *minutes(3, 4), "1971-01-01 00:00:00,3,9"))


@given(st.lists(st.integers(0, 9), min_size=40, max_size=80), st.integers(0, 9))
def test_longer_steps_hold_the_most_of_the_whole_ones(active, late):
    series = a_series(*active, start_s=NEW_YEAR_S + 60 * late)
    steps = resample(series)
    assert steps.start_s % 600 == 0 and steps.step_s == 600
    for number, most in enumerate(steps.active):
        first = (steps.start_s + 600 * number - series.start_s) // 60
        assert most == max(active[first : first + 10]) and len(active[first : first + 10]) == 10


def test_a_longer_step_is_a_gap_where_half_of_it_is():
    series = a_series(*[1] * 30, gaps=(0, 1, 2, 3, 10, 11, 12, 13, 14))
    assert resample(series).gaps.tolist() == [False, True, False]


def test_steps_that_do_not_fit_are_refused():
    for series in (a_series(*[1] * 30, step_s=420), a_series(1, 2, 3)):
        with pytest.raises(UsageError):
            resample(series)


def test_series_are_added_up_where_all_have_something():
    first, second = a_series(1, 2, 3, 4, gaps=(2,)), a_series(10, 20, 30, start_s=NEW_YEAR_S + 60)
    total = sum_series([first, second], name="both")
    assert (total.name, total.start_s) == ("both", NEW_YEAR_S + 60)
    assert total.active.tolist() == [12, 23, 34] and total.total.tolist() == [18, 18, 18]
    assert total.gaps.tolist() == [False, True, False]


def test_series_without_a_common_time_are_refused():
    with pytest.raises(UsageError, match="no time in common"):
        sum_series([a_series(1, 2), a_series(1, 2, start_s=NEW_YEAR_S + 86_400)], name="both")


@needs_traces
def test_the_published_series_are_read():
    philly = resample(read(TRACES / "philly_nodes_oct-nov2017.csv.gz"))
    assert philly.gaps.sum() == 60 and philly.active.max() == 450 and philly.total.max() == 552
    files = sorted((TRACES / "helios_earth_vc_may2020").glob("*.csv.gz"))
    earth = sum_series([resample(read(path, timezone="Asia/Shanghai")) for path in files], name="earth")
    assert len(earth) == 31 * 144 and earth.notes[0].startswith("16 series")
