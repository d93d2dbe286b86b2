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
from tests.unit.app.sites import FakeSite

ACTIVE = {"qssf": ServiceMode(mode=Mode.ACTIVE)}
PAST_THE_LEASE = timedelta(minutes=5)
HOW_MANY = [8, pytest.param(10_000, marks=pytest.mark.nightly)]


@pytest.fixture
def template(tmp_path: Path) -> Path:
    """Return a folder with the database of a fake site that has learned."""
    folder = tmp_path / "template"
    folder.mkdir()
    FakeSite(folder).learn()
    return folder


def another(template: Path, to: Path) -> FakeSite:
    """Return such a fake site, with a long and a short job in its queue."""
    shutil.copytree(template, to)
    fake_site = FakeSite(to)
    fake_site.cluster.submit(user="bob", job_id="long")
    fake_site.cluster.submit(user="alice", job_id="short")
    return fake_site


def touched(fake_site: FakeSite) -> frozenset[str]:
    return frozenset(job for job in fake_site.cluster.queue if fake_site.cluster.site_factor_of(job))


def recorded_jobs(fake_site: FakeSite) -> set[str]:
    with fake_site.warehouse() as warehouse:
        return set(warehouse.ledger("dev").applied_changes()["job_id"])


def announced(fake_site: FakeSite) -> bool:
    with fake_site.warehouse() as warehouse:
        return "meant" in set(warehouse.decisions("dev")["outcome"])


def goes_on(fake_site: FakeSite) -> None:
    """Take a cycle that nothing disturbs, and hold the book against the cluster."""
    fake_site.cluster.tick(PAST_THE_LEASE)
    report = fake_site.another().cycle(modes=ACTIVE)
    assert report.suspended == ()
    assert fake_site.cluster.queue == ["short", "long"]
    assert recorded_jobs(fake_site) == touched(fake_site) == {"long", "short"}
    assert report.counts.get("qssf", {}).get(Result.REFUSED, 0) == 0


@pytest.mark.parametrize("some", HOW_MANY)
def test_a_cycle_with_any_fault_touches_only_recorded_jobs(template: Path, tmp_path: Path, some: int) -> None:
    whole = another(template, tmp_path / "whole")
    with counted(Faults(folder=tmp_path / "whole")) as faults:
        whole.cycles.cycle(modes=ACTIVE)
    assert touched(whole) == {"long", "short"}
    for number in spread(len(faults.seen), some):
        fake_site = another(template, tmp_path / str(number))
        with counted(failing_at(number, folder=fake_site.folder)) as tried, suppress(HeliosError):
            fake_site.cycles.cycle(modes=ACTIVE)
        assert len(tried.seen) >= number
        assert touched(fake_site) <= recorded_jobs(fake_site), tried.seen[number - 1]
        assert announced(fake_site) or not touched(fake_site), tried.seen[number - 1]
        goes_on(fake_site)


@pytest.mark.parametrize("some", HOW_MANY)
def test_a_cycle_that_dies_anywhere_has_recorded_what_it_touched(template: Path, tmp_path: Path, some: int) -> None:
    fake_site = another(template, tmp_path / "there")
    at_death: list[dict[str, int]] = []

    def dies(number: int, _kind: str) -> None:
        at_death.append({job: fake_site.cluster.site_factor_of(job) for job in fake_site.cluster.queue})
        copied(fake_site.folder, tmp_path / str(number))

    with counted(Faults(folder=fake_site.folder, at_each=dies)) as faults:
        fake_site.cycles.cycle(modes=ACTIVE)
    assert any(any(factors.values()) for factors in at_death)
    for number in spread(len(faults.seen), some):
        left = FakeSite(tmp_path / str(number))
        for job, factor in at_death[number - 1].items():
            left.cluster.submit(user={"long": "bob", "short": "alice"}[job], job_id=job)
            left.cluster.admin_sets_site_factor(job, factor)  # as the dead turn left it
        assert touched(left) <= recorded_jobs(left), faults.seen[number - 1]
        assert announced(left) or not touched(left), faults.seen[number - 1]
        goes_on(left)
