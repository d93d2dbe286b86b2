"""The services that ship, under control: they settle, and neither flaps nor floods the audit."""

from dataclasses import replace
from datetime import timedelta

import pytest

from helios.control import ActiveService
from helios.model import Snapshot
from helios.services.registry import build
from tests.unit.control.table import ACTIVE, MINUTE, SHADOW, Table, active, settings


def expected(snapshot: Snapshot) -> Snapshot:
    """Job n of the queue is expected to run n hours."""
    pending = snapshot.pending
    hours = pending["job_id"].str.removeprefix("j").astype("float64")
    columns = {f"p{part}_s": hours * 3600 * share for part, share in ((10, 0.5), (50, 1.0), (90, 1.5))}
    return replace(
        snapshot, pending=pending.assign(**columns, source=pending["source"].cat.set_categories(["m1"]).fillna("m1"))
    )


def a_table() -> Table:
    table = Table(expectation=expected, settings=settings(most_of_one_user=1.0))
    for hours in (1, 2, 4, 8, 24):
        table.submit(f"j{hours}", time_limit_s=7 * 86_400.0)
    return table


def both(mode: object = ACTIVE) -> list[ActiveService]:
    return [active(build(name, {}), name=name, mode=mode) for name in ("qssf", "soft_limits")]  # type: ignore[arg-type]


def test_shorter_jobs_come_first_and_bounds_are_set() -> None:
    table = a_table()
    table.cycle(*both())
    assert list(table.cluster.snapshot().pending["job_id"]) == ["j1", "j2", "j4", "j8", "j24"]
    assert table.cluster.time_min_of("j1") > 90


@pytest.mark.parametrize("mode", [ACTIVE, SHADOW])
def test_a_quiet_queue_is_written_once(mode: object) -> None:
    table = a_table()
    table.cycle(*both(mode))
    writes, records = table.cluster.writes, table.ledger.records
    for _ in range(3):
        table.cycle(*both(mode))
    assert (table.cluster.writes, table.ledger.records) == (writes, records)


def test_a_job_that_has_waited_long_is_promoted_by_one_write() -> None:
    table = a_table()
    table.cycle(*both())
    table.cycle(*both(), after=timedelta(days=2))
    assert table.cluster.urgency_of("j24") == 1.0
    writes = table.cluster.writes
    table.cycle(*both(), after=MINUTE)
    assert table.cluster.writes == writes


def test_a_promoted_job_goes_first_whatever_else_its_owner_has_queued() -> None:
    table = Table(expectation=expected, settings=settings(most_of_one_user=0.5))
    table.submit("j1", "j2", "j24", "j48", user="alice", time_limit_s=7 * 86_400.0)
    table.cluster.tick(timedelta(days=2))
    table.submit("j3", "j4", user="bob", time_limit_s=7 * 86_400.0)
    table.cycle(*both())
    assert [table.cluster.urgency_of(job) for job in ("j1", "j2", "j24", "j48")] == [1.0] * 4
