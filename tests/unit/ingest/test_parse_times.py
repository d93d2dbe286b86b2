from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.errors import UsageError
from helios.ingest import open_trace
from helios.ingest.parse import TimeParser
from tests.examples import examples
from tests.unit.ingest.builders import (
    a_helios_file,
    a_helios_row,
    a_sacct_file,
    a_sacct_row,
    an_swf_file,
    an_swf_row,
    read,
)


def read_times(folder, zone, **fields):
    return read(a_helios_file(folder, a_helios_row(**fields)), timezone=zone)


def test_without_a_zone_utc_is_assumed_and_told(tmp_path):
    path = a_helios_file(tmp_path, a_helios_row())
    assert open_trace(path).assumed_timezone == "UTC"
    assert any("UTC was assumed" in note for note in read(path).notes)


def test_a_zone_that_was_named_is_not_assumed(tmp_path):
    path = a_helios_file(tmp_path, a_helios_row())
    assert open_trace(path, timezone="UTC").assumed_timezone is None
    assert read(path, timezone="UTC").notes == ()


def test_the_standard_workload_format_needs_no_zone(tmp_path):
    assert open_trace(an_swf_file(tmp_path, an_swf_row())).assumed_timezone is None


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc/passwd", "America"])
def test_a_zone_that_does_not_exist_is_a_misuse(tmp_path, zone):
    path = a_helios_file(tmp_path, a_helios_row())
    with pytest.raises(UsageError, match="time zone"):
        open_trace(path, timezone=zone or " ")


def test_a_repeated_hour_is_its_first_and_told(tmp_path):
    batch = read_times(tmp_path, "Europe/Berlin", submit="2020-10-25 02:30:00", start="", end="", queue="")
    assert batch.jobs["submitted_at"][0] == pd.Timestamp("2020-10-25 00:30:00", tz="UTC")
    assert any("repeats" in note for note in batch.notes)


def test_a_repeated_hour_is_the_second_where_the_first_would_end_early(tmp_path):
    batch = read_times(
        tmp_path, "Europe/Berlin", submit="2020-10-25 01:00:00", start="2020-10-25 02:50:00", end="2020-10-25 02:10:00"
    )
    assert batch.jobs["ended_at"][0] == pd.Timestamp("2020-10-25 01:10:00", tz="UTC")


def test_a_skipped_hour_ends_at_the_gap_and_is_told(tmp_path):
    batch = read_times(tmp_path, "Europe/Berlin", submit="2020-03-29 02:30:00", start="", end="", queue="")
    assert batch.jobs["submitted_at"][0] == pd.Timestamp("2020-03-29 01:00:00", tz="UTC")
    assert any("skips" in note for note in batch.notes)


@pytest.mark.parametrize(
    "text", ["2021-05-01T12:00:00+02:00", "2021-05-01T12:00:00+0200", "2021-05-01T10:00:00Z", "1619863200"]
)
def test_times_that_carry_their_zone_are_absolute(tmp_path, text):
    path = a_sacct_file(tmp_path, a_sacct_row(Submit=text, Start="Unknown", End="Unknown", State="PENDING"))
    job = read(path, timezone="America/New_York").jobs.iloc[0]
    assert job["submitted_at"] == pd.Timestamp("2021-05-01T10:00:00", tz="UTC")


def test_no_zone_is_assumed_where_times_carry_one(tmp_path):
    path = a_sacct_file(tmp_path, a_sacct_row(Submit="2021-05-01T12:00:00+02:00"))
    assert open_trace(path).assumed_timezone is None


@settings(deadline=None, max_examples=examples(15))
@given(
    hours=st.integers(24 * 365, 24 * 365 * 67),
    zone=st.sampled_from(["Europe/Berlin", "America/New_York", "Asia/Shanghai", "Australia/Lord_Howe"]),
)
def test_local_times_agree_with_zoneinfo(tmp_path_factory, hours, zone):
    local = datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None) + timedelta(hours=hours, minutes=30)
    expected = local.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    if expected.astimezone(ZoneInfo(zone)).replace(tzinfo=None) != local:
        return  # a skipped time, which the test above is about
    text = local.isoformat(sep=" ")
    batch = read_times(tmp_path_factory.mktemp("clock"), zone, submit=text, start="", end="", queue="")
    assert batch.jobs["submitted_at"][0] == expected


@pytest.mark.parametrize("others", [[], ["2020-01-01T00:00:00"]])  # a column of one kind, and one of several
def test_times_with_their_distance_from_utc_are_read_alike_in_any_company(others):
    texts = [
        "2023-03-01 00:18:22+08:00",
        "2023-03-01T00:18:22Z",
        "2023-02-28 23:18:22.5-01:00",
        None,
        "2999-01-01 00:00:00Z",
    ]
    found, bad = TimeParser("Europe/Berlin").read(pa.array([*texts, *others]))
    expected = ["2023-02-28T16:18:22", "2023-03-01T00:18:22", "2023-03-01T00:18:22.5", "NaT", "NaT"]
    assert np.array_equal(found[:5], np.array(expected, dtype="datetime64[us]"), equal_nan=True)
    assert bad[:5].tolist() == [False, False, False, False, True]
