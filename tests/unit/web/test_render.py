"""What a page shows of names: heads of columns in words."""

from __future__ import annotations

import pytest

from helios.web.render import Address, head_in_words


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("GPUHours", "GPU hours"),
        ("MeanWait", "Mean wait"),
        ("P50Wait", "Median wait"),
        ("P95Wait", "P95 wait"),
        ("JobID", "Job"),
        ("MiddleOf10", "Middle 8 of 10"),
        ("IdlekWh", "Idle kWh"),
        ("kWh", "kWh"),
        ("AsleepH", "Asleep hours"),
        ("GPUs waited for", "GPUs waited for"),
        ("User", "User"),
        ("CPUs", "CPUs"),
        ("When (UTC)", "When (UTC)"),
        ("GPU hours", "GPU hours"),
    ],
)
def test_the_head_of_a_column_is_words(name: str, head: str) -> None:
    assert head_in_words(name) == head


def test_links_keep_the_window_and_nothing_else() -> None:
    address = Address(path="/users", given={"from": "2021-05-01", "sort": "-Jobs", "page": "2"})
    assert address.to("/partitions") == "/partitions?from=2021-05-01"
    assert address.changed(page="", to="now") == "/users?from=2021-05-01&sort=-Jobs&to=now"
