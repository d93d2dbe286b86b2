"""Nodes are filled in a wanted order, and the site's own order is never changed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from helios.slurm.nodes import HEAVIEST, weights_by_tier

NODES = [f"n{number}" for number in range(9)]
OWN = st.fixed_dictionaries(
    {node: st.one_of(st.integers(0, 12), st.integers(HEAVIEST - 3, HEAVIEST)) for node in NODES}
)
TIERS = st.lists(st.integers(0, 5), min_size=len(NODES), max_size=len(NODES)).map(
    lambda places: [[node for node, place in zip(NODES, places, strict=True) if place == tier] for tier in range(5)]
)
"""Five tiers of some of the nodes; those of place 5 are in none."""


@given(own=OWN, tiers=TIERS)
def test_of_two_nodes_that_the_site_set_apart_the_same_is_filled_first(
    own: dict[str, int], tiers: list[list[str]]
) -> None:
    weights = own | weights_by_tier(own, tiers)
    assert all(weights[one] < weights[other] for one in NODES for other in NODES if own[one] < own[other])


@given(own=OWN, tiers=TIERS)
def test_of_two_nodes_that_the_site_treats_alike_the_earlier_tier_is_never_filled_later(
    own: dict[str, int], tiers: list[list[str]]
) -> None:
    weights = weights_by_tier(own, tiers)
    place = {node: tier for tier, nodes in enumerate(tiers) for node in nodes}
    for one in weights:
        for other in weights:
            if own[one] == own[other] and place[one] < place[other]:
                assert weights[one] <= weights[other]


@given(own=OWN, tiers=TIERS)
def test_weights_are_bounded_and_only_named_nodes_get_one(own: dict[str, int], tiers: list[list[str]]) -> None:
    weights = weights_by_tier(own, tiers)
    assert weights.keys() == {node for nodes in tiers for node in nodes}
    assert all(0 <= weight - own[node] < len(tiers) and weight <= HEAVIEST for node, weight in weights.items())


@given(tiers=TIERS)
def test_with_room_every_tier_has_its_own_weight(tiers: list[list[str]]) -> None:
    weights = weights_by_tier(dict.fromkeys(NODES, 100), tiers)
    assert weights == {node: 100 + tier for tier, nodes in enumerate(tiers) for node in nodes}


def test_where_the_sites_weights_lie_close_tiers_are_merged() -> None:
    own = {"a": 1, "b": 1, "c": 1, "d": 1, "next": 3}
    assert weights_by_tier(own, [["a"], ["b"], ["c"], ["d"]]) == {"a": 1, "b": 1, "c": 2, "d": 2}
    assert weights_by_tier(own | {"next": 2}, [["a"], ["b"], ["c"], ["d"]]) == dict.fromkeys("abcd", 1)


def test_a_node_that_no_tier_names_suspended_bounds_the_others() -> None:
    assert weights_by_tier({"a": 20, "b": 20, "quiet": 21}, [["a"], ["b"]]) == {"a": 20, "b": 20}
