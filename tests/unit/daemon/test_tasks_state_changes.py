import logging

import pytest

from helios.app.controller_state import CycleSummary
from helios.daemon.tasks import StateChangeLog
from tests.unit.daemon.builders import a_cycle


def said(caplog: pytest.LogCaptureFixture, *cycles: CycleSummary) -> list[str]:
    changes = StateChangeLog()
    with caplog.at_level(logging.WARNING):
        for cycle in cycles:
            changes.record(cycle)
    return [record.getMessage() for record in caplog.records]


def test_a_cycle_that_acts_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    assert said(caplog, a_cycle(), a_cycle(acted=3)) == []


def test_the_same_reason_is_said_once_though_its_figures_grow(caplog: pytest.LogCaptureFixture) -> None:
    cycles = [a_cycle(suspended=(f"the history was read {age} s ago",)) for age in (3601, 3661, 3721.5)]
    assert said(caplog, *cycles) == ["nothing is done: the history was read 3601 s ago"]


def test_cycles_on_nodes_are_told_from_cycles_on_jobs(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for changes in (StateChangeLog(), StateChangeLog("nodes")):
            changes.record(a_cycle(suspended=("paused: by root",)))
    assert [record.name for record in caplog.records] == ["helios.daemon.cycle", "helios.daemon.nodes"]


def test_another_reason_is_said_and_so_is_the_end(caplog: pytest.LogCaptureFixture) -> None:
    cycles = [
        a_cycle(suspended=("the model is old",)),
        a_cycle(suspended=("the breaker is open",)),
        a_cycle(),
        a_cycle(),
    ]
    assert said(caplog, *cycles) == [
        "nothing is done: the model is old",
        "nothing is done: the breaker is open",
        "acts again",
    ]


def test_a_second_daemon_says_once_that_it_begins_and_ends_standby(
    caplog: pytest.LogCaptureFixture,
) -> None:
    away = a_cycle(suspended=("node2 holds the lease for 170 s",), lease_held=False)
    later = a_cycle(suspended=("node2 holds the lease for 110 s",), lease_held=False)
    standby, ours, again = said(caplog, away, later, a_cycle(), a_cycle())
    assert standby.startswith("standby: another Helios writes to this cluster")
    assert ours == "the lease is ours: no longer standby"
    assert again == "acts again"


def test_a_note_is_said_once_each_time_it_comes(caplog: pytest.LogCaptureFixture) -> None:
    noted = a_cycle(notes=("3 jobs are an admin's now",))
    assert len(said(caplog, noted, noted, a_cycle(), noted)) == 2


def test_why_a_cycle_failed_is_left_to_whoever_counts_failures(caplog: pytest.LogCaptureFixture) -> None:
    assert said(caplog, a_cycle(problem="slurmctld is away", suspended=("slurmctld is away",))) == []
