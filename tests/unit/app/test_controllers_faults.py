"""A cycle with a fault at any database statement or file operation: what was touched is recorded."""

from __future__ import annotations

import shutil
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from helios.actions import Result
from helios.control import ServiceMode
from helios.errors import HeliosError
from helios.model import Mode
from tests.faults import Faults, copied, counted, failing_at, spread
from tests.unit.app.sites import Town

ACTIVE = {"qssf": ServiceMode(mode=Mode.ACTIVE)}
PAST_THE_LEASE = timedelta(minutes=5)
HOW_MANY = [8, pytest.param(10_000, marks=pytest.mark.nightly)]


@pytest.fixture
def template(tmp_path: Path) -> Path:
    """Return a folder with the database of a town that has learned."""
    folder = tmp_path / "template"
    folder.mkdir()
    Town(folder).learn()
    return folder


def another(template: Path, to: Path) -> Town:
    """Return such a town, with a long and a short job in its queue."""
    shutil.copytree(template, to)
    town = Town(to)
    town.cluster.submit(user="bob", job_id="long")
    town.cluster.submit(user="alice", job_id="short")
    return town


def touched(town: Town) -> frozenset[str]:
    return frozenset(job for job in town.cluster.queue if town.cluster.site_factor_of(job))


def recorded_jobs(town: Town) -> set[str]:
    with town.warehouse() as warehouse:
        return set(warehouse.ledger("dev").applied_changes()["job_id"])


def announced(town: Town) -> bool:
    with town.warehouse() as warehouse:
        return "meant" in set(warehouse.decisions("dev")["outcome"])


def goes_on(town: Town) -> None:
    """Take a cycle that nothing disturbs, and hold the book against the cluster."""
    town.cluster.tick(PAST_THE_LEASE)
    report = town.another().cycle(modes=ACTIVE)
    assert report.suspended == ()
    assert town.cluster.queue == ["short", "long"]
    assert recorded_jobs(town) == touched(town) == {"long", "short"}
    assert report.counts.get("qssf", {}).get(Result.REFUSED, 0) == 0


@pytest.mark.parametrize("some", HOW_MANY)
def test_a_cycle_with_any_fault_touches_only_recorded_jobs(template: Path, tmp_path: Path, some: int) -> None:
    whole = another(template, tmp_path / "whole")
    with counted(Faults(folder=tmp_path / "whole")) as faults:
        whole.cycles.cycle(modes=ACTIVE)
    assert touched(whole) == {"long", "short"}
    for number in spread(len(faults.seen), some):
        town = another(template, tmp_path / str(number))
        with counted(failing_at(number, folder=town.folder)) as tried, suppress(HeliosError):
            town.cycles.cycle(modes=ACTIVE)
        assert len(tried.seen) >= number
        assert touched(town) <= recorded_jobs(town), tried.seen[number - 1]
        assert announced(town) or not touched(town), tried.seen[number - 1]
        goes_on(town)


@pytest.mark.parametrize("some", HOW_MANY)
def test_a_cycle_that_dies_anywhere_has_recorded_what_it_touched(template: Path, tmp_path: Path, some: int) -> None:
    town = another(template, tmp_path / "there")
    at_death: list[dict[str, int]] = []

    def dies(number: int, _kind: str) -> None:
        at_death.append({job: town.cluster.site_factor_of(job) for job in town.cluster.queue})
        copied(town.folder, tmp_path / str(number))

    with counted(Faults(folder=town.folder, at_each=dies)) as faults:
        town.cycles.cycle(modes=ACTIVE)
    assert any(any(factors.values()) for factors in at_death)
    for number in spread(len(faults.seen), some):
        left = Town(tmp_path / str(number))
        for job, factor in at_death[number - 1].items():
            left.cluster.submit(user={"long": "bob", "short": "alice"}[job], job_id=job)
            left.cluster.admin_sets_site_factor(job, factor)  # as the dead turn left it
        assert touched(left) <= recorded_jobs(left), faults.seen[number - 1]
        assert announced(left) or not touched(left), faults.seen[number - 1]
        goes_on(left)
