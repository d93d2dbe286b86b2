import pytest

from helios.actions import Result
from helios.app.controller_state import CycleSummary, CycleTally
from tests.unit.daemon.builders import a_cycle


@pytest.mark.parametrize(
    ("cycle", "line"),
    [
        (a_cycle(), "3 pending, 2 running, 0.5 s; nothing proposed"),
        (
            a_cycle(
                acted=2,
                tallies=(
                    CycleTally(service="qssf", mode="active", result=Result.DONE, jobs=2),
                    CycleTally(service="qssf", mode="active", result=Result.FAILED, jobs=0),
                ),
            ),
            "3 pending, 2 running, 0.5 s; qssf (active) done 2",
        ),
        (a_cycle(suspended=("paused", "old")), "3 pending, 2 running, 0.5 s; nothing is done: paused; old"),
        (a_cycle(problem="slurmctld is away"), "no cycle: slurmctld is away"),
    ],
)
def test_a_cycle_is_told_in_one_line(cycle: CycleSummary, line: str) -> None:
    assert cycle.line() == line


def test_a_tally_does_not_count_below_zero() -> None:
    with pytest.raises(ValueError, match="counts -1 jobs"):
        CycleTally(service="qssf", mode="active", result=Result.DONE, jobs=-1)
