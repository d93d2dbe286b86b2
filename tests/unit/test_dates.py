from datetime import UTC, datetime, timedelta

import pytest

from helios.dates import local_day, parse_date
from helios.errors import UsageError

NOW = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
SHANGHAI = "Asia/Shanghai"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("now", NOW),
        ("now-1days", NOW - timedelta(days=1)),
        ("now-1day", NOW - timedelta(days=1)),
        ("NOW-2hours", NOW - timedelta(hours=2)),
        ("now-90", NOW - timedelta(seconds=90)),
        ("now+30minutes", NOW + timedelta(minutes=30)),
        ("now-4weeks", NOW - timedelta(weeks=4)),
        ("now-5min", NOW - timedelta(minutes=5)),
        ("today", datetime(2026, 11, 21, tzinfo=UTC)),
        ("yesterday", datetime(2026, 11, 20, tzinfo=UTC)),
        ("2026-09", datetime(2026, 9, 1, tzinfo=UTC)),
        ("2026-11-01", datetime(2026, 11, 1, tzinfo=UTC)),
        ("2026-11-01T08:00", datetime(2026, 11, 1, 8, tzinfo=UTC)),
        ("2026-11-01T08:00:05", datetime(2026, 11, 1, 8, 0, 5, tzinfo=UTC)),
        ("2026-11-01T08:00+08:00", datetime(2026, 11, 1, 0, tzinfo=UTC)),
        ("2026-11-01T08:00:00Z", datetime(2026, 11, 1, 8, tzinfo=UTC)),
        ("2026-11-01 08:00", datetime(2026, 11, 1, 8, tzinfo=UTC)),
    ],
)
def test_a_window_begins_with_what_is_written(words: str, meant: datetime) -> None:
    assert parse_date(words, now=NOW, timezone="UTC") == meant


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("2026-09", datetime(2026, 10, 1, tzinfo=UTC)),
        ("2026-12", datetime(2027, 1, 1, tzinfo=UTC)),
        ("2026-11-01", datetime(2026, 11, 2, tzinfo=UTC)),
        ("today", datetime(2026, 11, 22, tzinfo=UTC)),
        ("yesterday", datetime(2026, 11, 21, tzinfo=UTC)),
        ("2026-11-01T08:00", datetime(2026, 11, 1, 8, tzinfo=UTC)),
        ("now", NOW),
        ("now-1days", NOW - timedelta(days=1)),
    ],
)
def test_a_window_includes_the_month_or_day_that_ends_it(words: str, meant: datetime) -> None:
    assert parse_date(words, now=NOW, timezone="UTC", is_end=True) == meant


def test_a_month_is_that_of_the_cluster_s_clock() -> None:
    bounds = [parse_date("2026-10", now=NOW, timezone="Europe/Berlin", is_end=is_end) for is_end in (False, True)]
    assert bounds == [datetime(2026, 9, 30, 22, tzinfo=UTC), datetime(2026, 10, 31, 23, tzinfo=UTC)]


def test_words_mean_the_cluster_s_clock_not_ours() -> None:
    # 09:30 UTC is 17:30 in Shanghai: its day began at 16:00 UTC the day before.
    assert parse_date("today", now=NOW, timezone=SHANGHAI) == datetime(2026, 11, 20, 16, tzinfo=UTC)
    assert parse_date("2026-11-01", now=NOW, timezone=SHANGHAI) == datetime(2026, 10, 31, 16, tzinfo=UTC)


@pytest.mark.parametrize(
    "words",
    [
        "",
        "tomorrowish",
        "now-",
        "now-3moons",
        "now-1m0",
        "2026-13-01",
        "2026-13",
        "2026-00",
        "2026",
        "25:00",
        "20261101",
        "11/01",
        "8",
    ],
)
def test_what_is_no_date_is_refused_with_examples(words: str) -> None:
    with pytest.raises(UsageError, match=r"not a date or time(.|\n)*now-7days"):
        parse_date(words, now=NOW, timezone="UTC")


@pytest.mark.parametrize(
    "words", ["now+999999weeks", "now-999999weeks", "0001-01-01", "9999-12-31", "9999-12-31T23:59-12:00", "2200-01-02"]
)
def test_dates_of_other_centuries_are_refused(words: str) -> None:
    with pytest.raises(UsageError, match="is not between 1970 and 2200"):
        parse_date(words, now=NOW, timezone=SHANGHAI)


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25), ("2026-11-20", 24)])
def test_a_day_is_as_long_as_the_clock_says(day: str, hours: int) -> None:
    named = parse_date(day, now=NOW, timezone="Europe/Berlin")
    begin, end = local_day(named + timedelta(hours=11), timezone="Europe/Berlin")
    assert begin == named
    assert end - begin == timedelta(hours=hours)
