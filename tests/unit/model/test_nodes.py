"""Hostlists: what Slurm writes is understood, what it does not write is refused, nothing is asked of the machine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helios.errors import HostlistInvalid
from helios.model.nodes import MOST_NODES, expand, fold


def test_ranges_and_single_nodes_are_expanded_in_the_order_of_their_numbers() -> None:
    assert expand("gpu[8-10],login1") == ("gpu8", "gpu9", "gpu10", "login1")


def test_padding_is_kept() -> None:
    assert expand("cpn-f13-03-[01-02],cpn-f13-04-01") == ("cpn-f13-03-01", "cpn-f13-03-02", "cpn-f13-04-01")


def test_two_brackets_multiply() -> None:
    assert expand("r[0-1]n[08-09]") == ("r0n08", "r0n09", "r1n08", "r1n09")


@pytest.mark.parametrize("text", ["", " ", "None assigned", "(null)", "none"])
def test_a_job_without_nodes_has_none(text: str) -> None:
    assert expand(text) == ()


@pytest.mark.parametrize(
    "text", ["gpu[01-", "@all", "gpu[1-4]:2", "gpu[0-9-2]", "a,,b", "a!b", "a&b", "gpu[4-1]", "a b"]
)
def test_what_slurm_would_not_write_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(HostlistInvalid, match="Write it as Slurm does"):
        expand(text)


@pytest.mark.parametrize("text", ["gpu[1-999999999]", "a[1-999]b[1-999]", f"a[1-{MOST_NODES}],b[1-2]"])
def test_a_list_that_would_fill_the_memory_is_refused_before_it_does(text: str) -> None:
    with pytest.raises(HostlistInvalid, match="more than"):
        expand(text)


@given(st.sets(st.integers(0, 999)), st.sets(st.integers(0, 99)))
def test_what_is_folded_expands_to_the_same_nodes(some: set[int], others: set[int]) -> None:
    nodes = {f"gpu{number:03}" for number in some} | {f"r{number}-n1" for number in others}
    assert set(expand(fold(nodes))) == nodes


@pytest.mark.parametrize("name", ["", "gpu[1-2]", "a,b", "@all"])
def test_only_names_of_single_nodes_are_folded(name: str) -> None:
    with pytest.raises(HostlistInvalid):
        fold(["gpu1", name])
