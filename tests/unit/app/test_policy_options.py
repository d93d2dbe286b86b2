"""What policies are told: how it is written, what becomes of it in a replay."""

from typing import Any

import pytest

from helios.app.scenarios import read_options, wait_bound
from helios.errors import UsageError
from helios.simulate import Backlog, WaitBound


def test_lengths_and_shares_are_kept_by_the_names_that_the_bound_takes() -> None:
    written = {"share": 1, "least": "90min", "known": "2d", "every": "0.5h"}
    options = read_options("balanced", written)
    assert options == (("every_s", 1_800), ("known_s", 172_800), ("least_s", 5_400), ("share", 1.0))
    assert wait_bound("balanced", options) == Backlog(every_s=1_800, known_s=172_800, least_s=5_400, share=1.0)


def test_without_options_only_balanced_has_a_bound() -> None:
    assert wait_bound("balanced", ()) == Backlog()
    assert wait_bound("fifo", ()) is None


@pytest.mark.parametrize("policy", ["balanced", "qssf", "fifo"])
def test_any_order_takes_a_patience_of_its_own(policy: str) -> None:
    bound = wait_bound(policy, read_options(policy, {"patience": "12h"}))
    assert isinstance(bound, WaitBound)
    assert bound.patience_s.tolist() == [43_200]
    assert wait_bound(policy, read_options(policy, {"patience": "never"})) is None


@pytest.mark.parametrize(
    ("policy", "written", "said"),
    [
        ("qssf", {"share": 0.9}, "qssf has no option share"),
        ("srtf", {"patience": "1h"}, "srtf has no option patience"),
        ("balanced", {"shares": 0.9}, "share: of the longest backlog"),
        ("balanced", {"share": "much"}, "'much' is not a share"),
        ("balanced", {"share": -1}, "-1 is not a share"),
        ("balanced", {"share": float("nan")}, "nan is not a share"),
        ("balanced", {"share": True}, "True is not a share"),
        ("balanced", {"least": 3}, "3 is not a length"),
        ("balanced", {"every": "0.001min"}, "every_s of at least 1"),
        ("balanced", {"patience": "1h", "share": 0.9}, "balanced cannot have patience together with share"),
    ],
)
def test_what_is_not_understood_is_refused_with_what_there_is(policy: str, written: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_options(policy, written)
    assert said in str(refused.value)
