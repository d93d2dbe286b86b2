import pytest

from helios.units import bar, change, duration, duration_in_words, sparkline


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59.4, "59s"),
        (59.6, "1m00s"),
        (725, "12m05s"),
        (3599.7, "1h00m"),
        (11_100, "3h05m"),
        (442_800, "5d03h"),
        (None, "-"),
    ],
)
def test_a_length_of_time_takes_two_units(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (42, "42 s"),
        (89, "1 min 29 s"),
        (120, "2 min"),
        (725, "12 min"),
        (3599, "1 h"),
        (11_100, "3 h 5 min"),
        (7200, "2 h"),
        (442_800, "5 days 3 h"),
    ],
)
def test_a_spoken_length_of_time_reads_as_in_a_sentence(seconds: float, text: str) -> None:
    assert duration_in_words(seconds) == text


@pytest.mark.parametrize(
    ("value", "base", "text"),
    [(50, 100, "-50 %"), (199, 100, "+99 %"), (320, 100, "x 3.2"), (5, 0, "-"), (None, 3, "-")],
)
def test_a_change_is_in_per_cent_and_above_twice_a_factor(value: float | None, base: float, text: str) -> None:
    assert change(value, base) == text


def test_bars_and_lines_reach_their_full_height() -> None:
    assert bar(1, width=4) == "████"
    assert bar(0) == ""
    assert sparkline([0, 1]) == "▁█"
