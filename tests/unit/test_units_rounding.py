"""Numbers in reasons read as a person would say them."""

import pytest

from helios.units import count_in_words, gpu_time, rounded_duration


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        *[(0, "0 s"), (89, "89 s"), (90, "2 min"), (5_399, "90 min"), (5_400, "1.5 h"), (36_000, "10 h")],
        *[(7_200, "2 h"), (172_799, "48 h"), (172_800, "2 days"), (200_000, "2.3 days"), (1e7, "116 days")],
    ],
)
def test_a_length_of_time(seconds: float, said: str) -> None:
    assert rounded_duration(seconds) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(50, "50 GPU-seconds"), (1440, "24 GPU-minutes"), (23_400, "6.5 GPU-hours"), (1_036_800, "12 GPU-days")],
)
def test_gpu_time(seconds: float, said: str) -> None:
    assert gpu_time(seconds) == said


def test_one_is_singular() -> None:
    assert [count_in_words(number, "GPU") for number in (0, 1, 2.0)] == ["0 GPUs", "1 GPU", "2 GPUs"]


def test_parts_and_unknown_counts_are_named_as_such() -> None:
    counts = (0.25, 1 / 7, 12.5, float("nan"))
    assert [count_in_words(number, "GPU") for number in counts] == [
        "0.25 GPUs",
        "0.143 GPUs",
        "12.5 GPUs",
        "unknown GPUs",
    ]
