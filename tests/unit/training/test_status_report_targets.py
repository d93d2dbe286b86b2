"""What ``helios pool status`` says of a target."""

from __future__ import annotations

from pathlib import Path

import pytest

from helios.training.pool.state import Records
from helios.training.status import PoolStatus
from helios.training.status_report import target_lines


@pytest.mark.parametrize(
    ("reached", "said"),
    [(0.71, "trial 1 is to in 2 min (40 s to 4 min), 71% likely"), (0.01, "trial 1 will hardly reach it, 1% likely")],
)
def test_an_unlikely_target_has_no_time(reached: float, said: str) -> None:
    records = Records()
    records.runs["a"] = {"target": {"metric": "acc", "first": 0.9}}
    need = {"trial": 1, "seconds": [40.0, 120.0, 240.0], "reached": reached}
    live = {"a": {"target": {"need": need}}}
    status = PoolStatus(folder=Path("pool"), owner=0, records=records, live=live, reports={}, now_s=0.0)
    assert target_lines(status)[-1] == f"  0.9 is not reached yet; {said}"
