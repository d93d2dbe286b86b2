"""What is shown of nodes: a line for all of which the same is said."""

from __future__ import annotations

import pandas as pd

from helios.model import APPLIED_NODE_CHANGES, DECISIONS, NODE_TALLIES
from helios.report.nodes import NodeExplanation, NodeStatus, group_decisions
from helios.testing import NOON


def a_line(target: str, *, reason: str = "idle: after the busy ones", outcome: str = "done") -> dict[str, object]:
    return {
        "decided_at": NOON,
        "service": "node_fill_order",
        "mode": "active",
        "action": "FillFirst",
        "target": target,
        "reason": reason,
        "outcome": outcome,
    }


def test_nodes_of_which_the_same_is_said_share_a_row() -> None:
    lines = DECISIONS.conform(
        pd.DataFrame([a_line("n1"), a_line("n2"), a_line("n9", reason="asleep"), a_line("n3"), a_line("")])
    )
    assert group_decisions(lines) == [
        ("n[1-3]", "node_fill_order", "FillFirst", "done", "idle: after the busy ones"),
        ("n9", "node_fill_order", "FillFirst", "done", "asleep"),
    ]


def test_what_stands_alike_shares_a_row_and_a_list_has_no_node() -> None:
    rows = [
        {
            "setting": "weight",
            "node": node,
            "service": "node_fill_order",
            "mode": "active",
            "value": "tier 1",
            "own": "1",
        }
        for node in ("n1", "n2", "n4")
    ]
    rows.append({"setting": "keep_awake", "node": "", "service": "ces", "mode": "active", "value": "n1", "own": ""})
    applied_changes = pd.DataFrame(rows).assign(
        after="", overridden=False, written_at=pd.to_datetime([NOON] * len(rows), utc=True)
    )
    status = NodeStatus(
        taken_at=NOON,
        pools=NODE_TALLIES.empty(),
        applied_changes=APPLIED_NODE_CHANGES.conform(applied_changes),
        protected="",
        quarantined={},
        cannot="",
        kept_awake="",
        paused="",
    )
    cells = [list(column.cells) for column in status._applied_changes().columns]
    assert cells[0] == ["n[1-2,4]", "(the list)"]
    assert len(status.to_json()["applied_changes"]) == 4


def test_the_status_says_what_a_number_in_the_list_means() -> None:
    status = NodeStatus(
        taken_at=NOON,
        pools=NODE_TALLIES.empty(),
        applied_changes=APPLIED_NODE_CHANGES.empty(),
        protected="",
        quarantined={},
        cannot="",
        kept_awake="SuspendExcNodes keeps 2 of 9 nodes awake",
        paused="",
    )
    assert "SuspendExcNodes keeps 2 of 9 nodes awake." in list(status.parts())


def test_a_narrow_terminal_keeps_each_reason_whole() -> None:
    decisions = DECISIONS.conform(pd.DataFrame([a_line("n1", reason="a reason of some length [and brackets]")]))
    story = NodeExplanation(node="n1", facts=("n1 is awake.",), decisions=decisions)
    assert list(story.parts(width=80))[-1] == "    a reason of some length \\[and brackets]"
    assert not isinstance(list(story.parts(width=160))[-1], str)
