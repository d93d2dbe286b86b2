"""Static weights: what is a block, which weights it gets, and the lines for slurm.conf."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helios.errors import FileUnreadable
from helios.model.nodes import expand, fold
from helios.slurm.node_weights import MOST_WEIGHTS, WeightPlan, plan_weights, read_conf
from helios.slurm.site import read_site

GPUS = "CPUs=64 RealMemory=500000 Gres=gpu:a100:8"


def planned(conf: str, racks: dict[str, str] | None = None) -> WeightPlan:
    return plan_weights(read_site(conf), racks or {}, conf)


def by_weight(plan: WeightPlan) -> dict[int, str]:
    """Return the nodes of each weight as a list."""
    weights = sorted({block.weight for block in plan.blocks})
    return {w: fold(node for block in plan.blocks if block.weight == w for node in block.nodes) for w in weights}


def racks_by(text: str) -> dict[str, str]:
    named = (part.split("=") for part in text.split())
    return {node: rack for rack, nodes in named for node in expand(nodes)}


def test_nodes_of_one_kind_get_weights_in_blocks_of_eight() -> None:
    plan = planned(f"NodeName=gpu[01-20] {GPUS}\nPartitionName=gpu Nodes=ALL")
    assert by_weight(plan) == {1: "gpu[01-08]", 2: "gpu[09-16]", 3: "gpu[17-20]"}


def test_each_kind_of_node_has_a_series_of_its_own() -> None:
    plan = planned(f"NodeName=gpu[1-9] {GPUS}\nNodeName=cpu[1-9] CPUs=64\nPartitionName=all Nodes=ALL")
    assert by_weight(plan) == {1: "cpu[1-8],gpu[1-8]", 2: "cpu9,gpu9"}


def test_partitions_without_common_nodes_begin_at_the_same_weight() -> None:
    conf = f"NodeName=n[1-20] {GPUS}\nPartitionName=a Nodes=n[1-10]\nPartitionName=b Nodes=n[11-20]"
    assert by_weight(planned(conf)) == {1: "n[1-8,11-18]", 2: "n[9-10,19-20]"}


def test_partitions_that_share_nodes_are_one_series_and_stay_together() -> None:
    conf = f"NodeName=n[1-20] {GPUS}\nPartitionName=all Nodes=ALL\nPartitionName=b Nodes=n[1-4]"
    assert by_weight(planned(conf)) == {1: "n[5-12]", 2: "n[13-20]", 3: "n[1-4]"}


def test_the_nodes_of_a_rack_follow_each_other() -> None:
    racks = racks_by("r1=n[1,10-18] r2=n[2-9]")
    plan = planned(f"NodeName=n[1-18] {GPUS}\nPartitionName=all Nodes=ALL", racks)
    assert by_weight(plan) == {1: "n[1,10-16]", 2: "n[2-7,17-18]", 3: "n[8-9]"}


def test_weights_that_a_site_has_stay_and_blocks_lie_between() -> None:
    conf = f"NodeName=s[1-10] {GPUS} Weight=10\nNodeName=b[1-10] {GPUS} Weight=50\nPartitionName=all Nodes=ALL"
    plan = planned(conf)
    assert by_weight(plan) == {10: "s[1-8]", 11: "s[9-10]", 50: "b[1-8]", 51: "b[9-10]"}
    assert plan.notes == ("Your own weights 10, 50 stay, with blocks between them.",)


def test_weights_too_close_are_numbered_anew_in_their_order() -> None:
    conf = f"NodeName=s[1-10] {GPUS} Weight=1\nNodeName=b[1-10] {GPUS} Weight=2\nPartitionName=all Nodes=ALL"
    plan = planned(conf)
    assert by_weight(plan) == {100: "s[1-8]", 101: "s[9-10]", 200: "b[1-8]", 201: "b[9-10]"}
    assert "1 becomes 100, 2 becomes 200" in plan.notes[0]


def test_many_nodes_get_larger_blocks_and_not_more_weights() -> None:
    plan = planned(f"NodeName=n[1-352] {GPUS}\nPartitionName=all Nodes=ALL")
    assert plan.block_nodes == 19
    assert len(by_weight(plan)) == MOST_WEIGHTS


@given(
    weights=st.lists(st.integers(1, 30), min_size=1, max_size=60),
    cuts=st.lists(st.integers(0, 59), min_size=1, max_size=3),
)
def test_no_node_overtakes_one_of_a_lower_own_weight(weights: list[int], cuts: list[int]) -> None:
    """The oracle is the site's own order, and that each node is in one block."""
    conf = "\n".join(f"NodeName=n{number} Weight={weight}" for number, weight in enumerate(weights))
    conf += "".join(f"\nPartitionName=p{place} Nodes=n0,n[{cut}-59]" for place, cut in enumerate(cuts))
    plan = planned(conf)
    found = {node: block.weight for block in plan.blocks for node in block.nodes}
    assert sorted(found) == sorted(f"n{number}" for number in range(len(weights)))
    assert sum(len(block.nodes) for block in plan.blocks) == len(weights)
    ranges = {w: [found[f"n{n}"] for n, own in enumerate(weights) if own == w] for w in sorted(set(weights))}
    assert all(max(low) < min(high) for low, high in pairwise(ranges.values()))


def test_a_line_is_split_with_its_addresses_and_ports() -> None:
    conf = (
        "NodeName=DEFAULT CPUs=4 Weight=5\n"
        'NodeName=n[1-10] NodeAddr=10.0.0.[101-110] Port=[7001-7010] Reason="a b" NodeHostname=host Weight=5\n'
        "PartitionName=all Nodes=ALL\n"
    )
    assert planned(conf).lines == (
        "# In place of the line of NodeName=n[1-10]:",
        'NodeName=n[1-8] NodeAddr=10.0.0.[101-108] Port=[7001-7008] Reason="a b" NodeHostname=host Weight=5',
        'NodeName=n[9-10] NodeAddr=10.0.0.[109-110] Port=[7009-7010] Reason="a b" NodeHostname=host Weight=6',
    )


def test_lists_in_any_order_keep_which_address_is_whose() -> None:
    conf = "NodeName=n[9,1-8] NodeAddr=b,a[1-8] Port=[7,1-6,9,8]\nPartitionName=all Nodes=ALL\n"
    lines = planned(conf).lines
    assert lines[1:] == (
        "NodeName=n9 NodeAddr=b Port=7 Weight=2",
        "NodeName=n[1-8] NodeAddr=a[1-8] Port=[1,2,3,4,5,6,9,8] Weight=1",
    )


def test_lines_that_need_no_change_are_not_printed() -> None:
    conf = f"NodeName=n[1-8] {GPUS}\nNodeName=n[9-12] {GPUS}\nPartitionName=all Nodes=ALL"
    assert [line for line in planned(conf).lines if not line.startswith("#")] == [f"NodeName=n[9-12] {GPUS} Weight=2"]


def test_without_slurm_conf_there_are_only_comments() -> None:
    site = read_site(f"NodeName=n[1-9] {GPUS}\nPartitionName=all Nodes=ALL")
    assert plan_weights(site, {}, None).lines == ("# Weight=1: n[1-8]", "# Weight=2: n9")


def test_included_files_are_read_and_a_missing_one_is_said(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("Include nodes.conf # ours\nInclude gone.conf\nPartitionName=a Nodes=ALL\n")
    (tmp_path / "nodes.conf").write_text("NodeName=n[1-9]\n")
    notes: list[str] = []
    assert by_weight(planned(read_conf(tmp_path / "slurm.conf", notes))) == {1: "n[1-8]", 2: "n9"}
    assert [note for note in notes if "gone.conf" in note]
    with pytest.raises(FileUnreadable):
        read_conf(tmp_path / "none.conf", notes)
